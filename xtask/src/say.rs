//! The only place that prints.
//!
//! A reader that hangs up (`cargo xtask tidy | head`) is no reason to panic, so write errors are dropped here.

use std::fmt::Display;
use std::io::{self, Write};

pub(crate) fn line(text: impl Display) {
    writeln!(io::stdout(), "{text}").ok();
}

/// What does not belong in the output that somebody may be piping on.
pub(crate) fn aside(text: impl Display) {
    writeln!(io::stderr(), "xtask: {text}").ok();
}
