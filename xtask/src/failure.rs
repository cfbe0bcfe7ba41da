//! How a chore ends badly, and the exit code that says so.

use std::fmt;
use std::path::Path;

/// What went wrong, told so that the reader knows what to do next.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The chore did its work and the answer is no.
    Found(String),
    /// The caller asked for something that does not exist.
    Usage(String),
    /// A file or a program could not be used.
    Io(String),
}

impl Failure {
    /// `doing` completes "cannot ...": `Failure::io("read", path, &error)`.
    pub(crate) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Io(format!("cannot {doing} {}: {error}", path.display()))
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Found(_) => 1,
            Self::Usage(_) => 2,
            Self::Io(_) => 3,
        }
    }

    /// The same ending, with the place where it happened in front.
    pub(crate) fn within(self, place: &str) -> Self {
        match self {
            Self::Found(text) => Self::Found(format!("{place}: {text}")),
            Self::Usage(text) => Self::Usage(format!("{place}: {text}")),
            Self::Io(text) => Self::Io(format!("{place}: {text}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(text) | Self::Io(text) => f.write_str(text),
            Self::Usage(text) => write!(f, "{text}\nSee `cargo xtask --help`."),
        }
    }
}
