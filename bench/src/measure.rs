//! One process per measurement, in alternating rounds.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{Bench, Case, Options, Run, Subject};

/// Where Debian puts the libraries of Go: the programs here use nothing else.
const GO_LIBRARIES: &str = "/usr/share/gocode";

/// What one subject measured in one case and unit, over all rounds.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) subject: &'static str,
    pub(crate) unit: String,
    pub(crate) values: Vec<f64>,
}

impl Row {
    pub(crate) fn min(&self) -> f64 {
        self.values.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn max(&self) -> f64 {
        self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    pub(crate) fn is_always(&self, value: f64) -> bool {
        self.values.iter().all(|seen| *seen == value)
    }

    pub(crate) fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
    }
}

/// The CPU time this thread has used.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The other end of [`measure`]: one measurement, printed as `unit value` lines. Callgrind knows it by its name.
#[inline(never)]
pub(crate) fn work(bench: &Bench, args: &[String]) -> Result<(), String> {
    let [case, subject, ops] = args else { return Err("--worker takes CASE SUBJECT OPS".into()) };
    let found = bench.cases.iter().find(|c| c.name == case).and_then(|c| c.subjects.iter().find(|s| s.name == subject));
    let run = match found.map(|subject| &subject.run) {
        Some(Run::Here(run)) => run,
        _ => return Err(format!("nothing to measure as {case} {subject} here")),
    };
    for value in run(ops.parse().map_err(|_| "OPS is a number")?) {
        println!("{} {}", value.unit, value.value);
    }
    Ok(())
}

pub(crate) fn all(bench: &Bench, options: &Options) -> Result<Vec<Row>, String> {
    let without = std::env::var("HERDPROOF_BENCH_WITHOUT").unwrap_or_default();
    let python = std::env::var("HERDPROOF_BENCH_PYTHON").ok();
    let valgrind = !without.split(',').any(|tool| tool == "valgrind");
    let chosen = |case: &&Case| options.only.as_ref().is_none_or(|only| case.name.starts_with(only.as_str()));
    let cases: Vec<&Case> = bench.cases.iter().filter(chosen).collect();
    if cases.is_empty() {
        let names: Vec<&str> = bench.cases.iter().map(|case| case.name).collect();
        return Err(format!("no case begins so; there are {}", names.join(", ")));
    }
    let go = build_go(&cases)?;
    let is_here = |subject: &&Subject| match subject.run {
        Run::Here(_) => true,
        Run::Python { .. } => python.is_some(),
        Run::Go { program, .. } => go.contains(&program),
    };
    let mut rows: Vec<Row> = Vec::new();
    for case in cases {
        let (here, missing): (Vec<&Subject>, Vec<&Subject>) = case.subjects.iter().partition(is_here);
        for subject in missing {
            eprintln!("{}: without {}, which is not installed", case.name, subject.name);
        }
        let started = Instant::now();
        for round in 0..options.rounds {
            progress(case.name, round, options.rounds, started);
            let forward = round % 2 == 0;
            for index in 0..here.len() {
                let subject = here[if forward { index } else { here.len() - 1 - index }];
                for (unit, value) in measure(case, subject, case.ops, python.as_deref())? {
                    record(&mut rows, case.name, subject.name, unit, value);
                }
            }
        }
        if case.instructions && valgrind {
            for subject in here.iter().filter(|subject| matches!(subject.run, Run::Here(_))) {
                eprint!("\r\x1b[K{}: counting instructions of {}", case.name, subject.name);
                let value = instructions(case, subject)?;
                record(&mut rows, case.name, subject.name, "instructions/op".into(), value);
            }
        }
        eprint!("\r\x1b[K");
    }
    Ok(rows)
}

fn record(rows: &mut Vec<Row>, case: &'static str, subject: &'static str, unit: String, value: f64) {
    match rows.iter_mut().find(|row| row.case == case && row.subject == subject && row.unit == unit) {
        Some(row) => row.values.push(value),
        None => rows.push(Row { case, subject, unit, values: vec![value] }),
    }
}

fn progress(case: &str, round: usize, rounds: usize, started: Instant) {
    let mut err = std::io::stderr();
    let left = started.elapsed().as_secs_f64() / round.max(1) as f64 * (rounds - round) as f64;
    let eta = if round == 0 { String::new() } else { format!(", about {left:.0} s left") };
    let _ = write!(err, "\r\x1b[K{case}: round {} of {rounds}{eta}", round + 1);
    let _ = err.flush();
}

fn measure(case: &Case, subject: &Subject, ops: u64, python: Option<&str>) -> Result<Vec<(String, f64)>, String> {
    let mut command = match &subject.run {
        Run::Here(_) => worker(&own_binary()?, case, subject, ops),
        Run::Python { script, args } => {
            let mut command = Command::new(python.unwrap_or("python3"));
            command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).args(*args).arg(ops.to_string());
            command
        }
        Run::Go { program, args } => {
            let mut command = Command::new(go_binary(program)?);
            command.args(*args).arg(ops.to_string());
            command
        }
    };
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{}: {error}", subject.name))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A unit may be two words.
    let value = |line: &str| line.rsplit_once(' ').and_then(|(unit, value)| Some((unit.into(), value.parse().ok()?)));
    let values: Option<Vec<(String, f64)>> = text.lines().map(value).collect();
    match values {
        Some(values) if output.status.success() && !values.is_empty() => Ok(values),
        _ => Err(format!("{} in {} ended with {} and said {text:?}", subject.name, case.name, output.status)),
    }
}

/// Builds the Go programs of these cases, and gives those that can be run here. What Go has to say of the others it says
/// itself.
fn build_go(cases: &[&Case]) -> Result<Vec<&'static str>, String> {
    let run = |subject: &Subject| if let Run::Go { program, .. } = subject.run { Some(program) } else { None };
    let mut programs: Vec<&str> = cases.iter().flat_map(|case| &case.subjects).filter_map(run).collect();
    programs.dedup();
    let mut built = Vec::new();
    for program in programs {
        let mut command = Command::new("go");
        command.args(["build", "-o"]).arg(go_binary(program)?);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(program));
        command.env("GO111MODULE", "off").env("GOPATH", GO_LIBRARIES);
        if command.status().is_ok_and(|status| status.success()) {
            built.push(program);
        }
    }
    Ok(built)
}

/// Beside this binary, where the folder is ours to write.
fn go_binary(program: &str) -> Result<std::path::PathBuf, String> {
    let name = Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
    Ok(own_binary()?.with_file_name(format!("{name}-go")))
}

/// Instructions per operation: what a run twice as long costs beyond a single one.
fn instructions(case: &Case, subject: &Subject) -> Result<f64, String> {
    let ops = case.ops / 4;
    let total = |ops: u64| -> Result<f64, String> {
        let mut command = Command::new("valgrind");
        // What runs before it is not ours: there are libraries that spin at start to see how fast the clock is.
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measure::work*"]);
        command.arg(own_binary()?).args(["--worker", case.name, subject.name, &ops.to_string()]);
        let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let collected = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
        let collected = collected.filter(|instructions: &f64| *instructions > 0.0);
        collected.ok_or_else(|| format!("valgrind said nothing of use about {}: {text}", subject.name))
    };
    Ok((total(ops * 2)? - total(ops)?) / ops as f64)
}

fn worker(binary: &Path, case: &Case, subject: &Subject, ops: u64) -> Command {
    let mut command = Command::new(binary);
    command.args(["--worker", case.name, subject.name, &ops.to_string()]);
    command
}

fn own_binary() -> Result<std::path::PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find my own binary: {error}"))
}
