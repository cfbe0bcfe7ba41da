//! The attack suite in full, at a release build: what a stranger can do to everybody, beside what is promised.
//!
//! The attacks are in `crates/herdproof-cli/tests/abuse`, as their short form is a test. Here they are only started.

use crate::failure::Failure;
use crate::run;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    run::cargo(workspace, &BUILD_AND_RUN).args(arguments).succeed()
}

const BUILD_AND_RUN: [&str; 9] =
    ["test", "--quiet", "--release", "--package", "herdproof-cli", "--test", "abuse", "--", "--full"];
