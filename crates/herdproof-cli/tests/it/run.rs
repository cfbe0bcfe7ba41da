//! Running the binary.

use std::process::{Command, Output, Stdio};

/// The binary with no environment that could change what it prints.
pub(crate) fn herdproof(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdproof"));
    command.args(args).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("CLICOLOR").env("COLUMNS", "100");
    command.stdin(Stdio::null());
    command
}

pub(crate) fn output(args: &[&str]) -> Output {
    herdproof(args).output().expect("the binary starts")
}

/// What it printed on standard output, if it ended well.
pub(crate) fn printed(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "herdproof {args:?} ended with {}: {}", output.status, stderr(&output));
    String::from_utf8(output.stdout).expect("it prints text")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
