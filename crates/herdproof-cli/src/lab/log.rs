//! `herdproof lab run --log`: the requests of an arm as an access log with the truth beside each line.

use std::path::Path;

use herdproof_lab::{Log, NoLog, Scenario, Settings};

use super::{no_arm, stdout::is_stdout};
use crate::{
    args::RunArgs,
    output::{Failure, Output, write_whole},
};

/// Runs the arm once more, listens to it, and writes the lines: all of them or none.
pub(super) fn write(
    output: &mut Output,
    scenario: &Scenario,
    settings: &Settings,
    file: &Path,
    args: &RunArgs,
) -> Result<(), Failure> {
    let usage = |problem: String, hint: &str| Failure::Usage { problem, hint: hint.into() };
    if args.arm.len() > 1 {
        return Err(usage("a log is of one arm, and several were named".into(), "Take one: --log FILE --arm ARM"));
    }
    let log = Log::of(scenario, settings, args.arm.first().map(String::as_str)).map_err(|none| match none {
        NoLog::NoRequests(_) => usage(none.to_string(), "Every other scenario has one: herdproof lab list"),
        NoLog::NoArm(unknown) => no_arm(&unknown),
        NoLog::Several { .. } => usage(none.to_string(), "Take one: --log FILE --arm ARM"),
    })?;
    let mut bytes = Vec::new();
    for line in log.lines() {
        serde_json::to_writer(&mut bytes, &line)
            .map_err(|error| Failure::Io { what: "cannot write a line".into(), error: error.into() })?;
        bytes.push(b'\n');
    }
    if is_stdout(file) { output.bytes(&bytes) } else { write_whole(file, &bytes) }
}
