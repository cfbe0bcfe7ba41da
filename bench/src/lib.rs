//! Measures subjects side by side, fairly, on a noisy machine.
//!
//! Every measurement is a process of its own, so that no subject inherits another's heap, page faults or warm caches. A
//! round measures every subject once; rounds alternate their direction (A B C, C B A, ...), so that a slow spell of the
//! machine falls on all of them. What is measured is CPU time, not wall time, and what is reported is the minimum (what
//! the code needs) and the median (what one sees). Instructions are counted by callgrind where it is there, as the
//! difference of two runs of different length, which leaves out the set-up.
//!
//! Ratios say how many times better we are than a peer: above one we win, below one we lose, and both are printed alike.

mod alloc;
pub mod calls;
mod measure;
mod report;

use std::process::ExitCode;

pub use alloc::{Counting, allocations, keep_memory, live_bytes, peak_bytes, reset_peak};
pub use measure::cpu_time;

/// The name of a subject that is no peer but what cannot be done without; "best" is not measured against it.
pub const FLOOR: &str = "floor";

/// One benchmark: a name and its cases.
pub struct Bench {
    /// What `cargo xtask bench` calls it.
    pub name: &'static str,
    /// What is measured.
    pub cases: Vec<Case>,
}

/// One comparison.
pub struct Case {
    /// Its name in rows and ratios.
    pub name: &'static str,
    /// Who takes part; the first is ours, and so is who has its name before a comma. Goals are for the first.
    pub subjects: Vec<Subject>,
    /// What we want to reach.
    pub goals: Vec<Goal>,
    /// How many operations a measurement takes.
    pub ops: u64,
    /// Whether callgrind counts its instructions: only where it ends in reasonable time.
    pub instructions: bool,
}

/// Somebody who takes part.
pub struct Subject {
    /// The name in rows.
    pub name: &'static str,
    /// How it is run.
    pub run: Run,
}

/// How a subject is run for a number of operations; each gives values with their units.
pub enum Run {
    /// Code in this binary.
    Here(fn(ops: u64) -> Vec<Value>),
    /// A Python script beside the benches, run with these arguments and then the number of operations.
    Python { script: &'static str, args: &'static [&'static str] },
    /// A Go program beside the benches, built once and run with these arguments and then the number of operations.
    Go { program: &'static str, args: &'static [&'static str] },
}

/// A measured value. Less is better in every unit used here, but for those with a goal of "exactly".
pub struct Value {
    /// Such as "ns/event".
    pub unit: &'static str,
    /// How much.
    pub value: f64,
}

/// What a ratio is to reach.
pub struct Goal {
    /// Against whom: a subject; "best", for whichever of them is best; another case, for ourselves in that one;
    /// "limit", for a goal in absolute numbers; or "exactly", where there is no better or worse, but one number is right.
    /// A case with goals of that kind has no others, and is printed as a table.
    pub peer: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// How many times better than the peer; for "limit", the value not to exceed; for "exactly", the value.
    pub at_least: f64,
}

/// Runs the benchmark as the command line says.
pub fn main(bench: &Bench) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("--worker") => measure::work(bench, &args[1..]),
        _ => Options::parse(&args).and_then(|options| {
            let rows = measure::all(bench, &options)?;
            report::print(bench, &rows, options.json);
            Ok(())
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench {}: {problem}", bench.name);
            ExitCode::from(2)
        }
    }
}

/// What the command line asks for.
pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) rounds: usize,
    pub(crate) only: Option<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let mut options = Options { json: false, rounds: 10, only: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--rounds" => {
                    let value = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    options.rounds = value.ok_or("--rounds takes a whole number from 1")?;
                }
                "--case" => options.only = Some(args.next().ok_or("--case takes the start of a case's name")?.clone()),
                other => return Err(format!("unknown option {other}; there are --json, --rounds N and --case NAME")),
            }
        }
        Ok(options)
    }
}
