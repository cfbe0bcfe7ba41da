//! The only place that prints, and that turns an ending into an exit code.

mod file;
mod progress;

use std::{
    error::Error,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use serde::Serialize;

pub(crate) use file::write_whole;
pub(crate) use progress::Progress;

use crate::{Done, Verdict};

/// Standard output, coloured where that is wanted (a terminal, and no `NO_COLOR`).
pub(crate) struct Output(anstream::AutoStream<io::StdoutLock<'static>>);

/// Why a command did not work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for something that does not exist.
    Usage { problem: String, hint: String },
    /// Reading or writing failed.
    Io { what: String, error: io::Error },
}

impl Output {
    pub(crate) fn new() -> Output {
        Output(anstream::AutoStream::auto(io::stdout().lock()))
    }

    /// Whether what is printed may have colours.
    pub(crate) fn is_coloured(&self) -> bool {
        self.0.current_choice() != anstream::ColorChoice::Never
    }

    /// Prints text that ends with a newline of its own.
    pub(crate) fn text(&mut self, text: impl Display) -> Result<(), Failure> {
        write!(self.0, "{text}").map_err(stdout)
    }

    /// Prints the beginning of a line that somebody is to end.
    pub(crate) fn prompt(&mut self, text: impl Display) -> Result<(), Failure> {
        write!(self.0, "{text}").and_then(|()| self.0.flush()).map_err(stdout)
    }

    /// Prints one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(value).map_err(|error| stdout(error.into()))?;
        writeln!(self.0, "{line}").map_err(stdout)
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(stdout)
    }

    /// Says something beside the output, on standard error; if it cannot be said, nothing is lost.
    #[expect(clippy::unused_self, reason = "who may print has an Output")]
    pub(crate) fn note(&self, text: impl Display) {
        writeln!(anstream::stderr(), "{}note:{} {text}", YELLOW.render(), YELLOW.render_reset()).ok();
    }

    /// Says what is going on, on standard error, in whole lines; if it cannot be said, nothing is lost.
    #[expect(clippy::unused_self, reason = "who may print has an Output")]
    pub(crate) fn say(&self, lines: impl Display) {
        writeln!(anstream::stderr(), "{lines}").ok();
    }

    /// The exit code; says what went wrong. A reader that has seen enough (`| head`) is not a failure.
    pub(crate) fn finish(mut self, done: Done) -> ExitCode {
        let done = done.and_then(|verdict| self.0.flush().map_err(stdout).map(|()| verdict));
        match done {
            Ok(Verdict::Fine) => ExitCode::SUCCESS,
            Ok(Verdict::Found) => ExitCode::from(1),
            Err(Failure::Io { error, .. }) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(failure) => {
                // If even that cannot be said, the exit code says it.
                writeln!(anstream::stderr(), "{}error:{} {failure}", RED.render(), RED.render_reset()).ok();
                ExitCode::from(if matches!(failure, Failure::Usage { .. }) { 2 } else { 3 })
            }
        }
    }
}

const YELLOW: anstyle::Style = anstyle::AnsiColor::Yellow.on_default().bold();
const RED: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();

fn stdout(error: io::Error) -> Failure {
    Failure::Io { what: "cannot write to standard output".into(), error }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage { problem, hint } => write!(f, "{problem}\n\n{hint}"),
            Failure::Io { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl Error for Failure {}
