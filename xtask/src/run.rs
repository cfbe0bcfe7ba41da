//! Running other programs, and the time that takes.
//!
//! Every child is described as a [`Call`] first, so that what failed can be shown as a line to paste into a shell.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::failure::Failure;
use crate::workspace::Workspace;

/// A program to run, with everything that makes this run differ from a bare one.
pub(crate) struct Call {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    folder: Option<PathBuf>,
}

impl Call {
    pub(crate) fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), variables: Vec::new(), folder: None }
    }

    pub(crate) fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Runs it on our terminal; a bad ending is a failure that names the command.
    pub(crate) fn succeed(&self) -> Result<(), Failure> {
        let status = self.command().status().map_err(|error| self.unusable(&error))?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Found(format!("{}; rerun just that:\n  {self}", ending(status))))
    }

    /// Its standard output, for programs that answer a question.
    pub(crate) fn output(&self) -> Result<String, Failure> {
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|error| self.unusable(&error))?;
        if !output.status.success() {
            return Err(Failure::Io(format!("`{self}` {}", ending(output.status))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether it exists and ends well, without a word.
    pub(crate) fn works(&self) -> bool {
        let quiet = self.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    }

    /// Appends all it prints to `log` and gives its exit code; `None` when a signal ended it.
    pub(crate) fn logged(&self, log: &Path) -> Result<Option<i32>, Failure> {
        let unwritable = |error: std::io::Error| Failure::io("write", log, &error);
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder).map_err(unwritable)?;
        }
        let out = OpenOptions::new().create(true).append(true).open(log).map_err(unwritable)?;
        let err = out.try_clone().map_err(unwritable)?;
        let status = self.command().stdin(Stdio::null()).stdout(out).stderr(err).status();
        Ok(status.map_err(|error| self.unusable(&error))?.code())
    }

    /// As the last arguments of another program that runs it.
    pub(crate) fn under(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).arg(&self.program);
        self.complete(command)
    }

    fn command(&self) -> Command {
        self.complete(Command::new(&self.program))
    }

    fn complete(&self, mut command: Command) -> Command {
        command.args(&self.arguments);
        // `cargo xtask` describes the xtask package in the environment. Build scripts that watch those variables would
        // run again on every switch between us and a bare cargo.
        for (name, _) in std::env::vars_os().filter(|(name, _)| describes_a_package(name)) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    fn unusable(&self, error: &std::io::Error) -> Failure {
        Failure::Io(format!("cannot run `{self}`: {error}"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

/// Cargo at the root of the workspace; on CI it must not touch the lock file.
pub(crate) fn cargo<A: AsRef<str>>(workspace: &Workspace, arguments: &[A]) -> Call {
    let arguments = arguments.iter().map(AsRef::as_ref).collect();
    let arguments = if std::env::var_os("CI").is_some() { locked(arguments) } else { arguments };
    Call::new("cargo").args(arguments).within(&workspace.root)
}

/// `--locked` goes in front of what is passed on. `cargo fmt` resolves nothing and does not know it.
fn locked(mut arguments: Vec<&str>) -> Vec<&str> {
    if arguments.first() != Some(&"fmt") {
        let end = arguments.iter().position(|argument| *argument == "--").unwrap_or(arguments.len());
        arguments.insert(end, "--locked");
    }
    arguments
}

fn describes_a_package(variable: &OsStr) -> bool {
    variable.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn ending(status: ExitStatus) -> String {
    status.code().map_or_else(|| format!("was stopped ({status})"), |code| format!("failed with exit code {code}"))
}

/// How long a chore takes, in the seconds of the person waiting for it.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a chore is timed for the person at the terminal; no lab runs it")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_a_failure_shows_can_be_pasted_into_a_shell() {
        let call = Call::new("cargo").args(["doc", "--cfg", "it's a b"]).env("RUSTDOCFLAGS", "-Dwarnings");
        assert_eq!(call.to_string(), r"RUSTDOCFLAGS=-Dwarnings cargo doc --cfg 'it'\''s a b'");
    }

    #[test]
    fn locked_is_not_passed_on_to_the_program_behind_cargo() {
        assert_eq!(locked(vec!["clippy", "--", "-D", "warnings"]), ["clippy", "--locked", "--", "-D", "warnings"]);
        assert_eq!(locked(vec!["test", "--doc"]), ["test", "--doc", "--locked"]);
    }

    #[test]
    fn fmt_is_spared_the_flag_it_would_refuse() {
        assert_eq!(locked(vec!["fmt", "--all"]), ["fmt", "--all"]);
    }

    #[test]
    fn a_program_that_is_not_there_does_not_work() {
        assert!(!Call::new("herdproof-no-such-program").works());
    }

    #[cfg(unix)]
    #[test]
    fn a_failing_child_is_not_taken_for_success() {
        assert!(!Call::new("false").works());
        assert_eq!(Call::new("false").succeed().unwrap_err().exit_code(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_log_keeps_both_streams_of_every_child() {
        let scratch = Scratch::new();
        let log = scratch.path().join("deep/down.log");
        let call = Call::new("sh").args(["-c", "echo out; echo err >&2; exit 7"]);
        assert_eq!(call.logged(&log).unwrap(), Some(7));
        assert_eq!(call.logged(&log).unwrap(), Some(7));
        assert_eq!(scratch.read("deep/down.log"), "out\nerr\nout\nerr\n");
    }
}
