//! `herdproof lab`: the catalogue of experiments, running one, and putting every claim to the test.

mod ask;
mod list;
mod log;
mod stdout;
mod sweep;
mod table;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write},
    path::Path,
};

use herdproof_lab::{Arm, Knob, NoArm, Report, Runs, SEEDS, Scenario, Settings, Spread};
use serde::Serialize;

use crate::{
    Done, Verdict,
    args::RunArgs,
    output::{Failure, Output, write_whole},
};
pub(crate) use ask::ask;
pub(crate) use list::list;
use stdout::{Stdout, is_stdout};
pub(crate) use sweep::sweep;
pub(crate) use table::table;
use watched::{followed, watched};

const BOLD: anstyle::Style = anstyle::Style::new().bold();
const GREEN: anstyle::Style = anstyle::AnsiColor::Green.on_default();
const RED: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();

pub(crate) fn run(output: &mut Output, args: &RunArgs) -> Done {
    let scenario = find(&args.name)?;
    let settings = settings(scenario, args.seed, &args.set)?;
    let stdout = Stdout::of(args.json, args.log.as_deref(), args.html.as_deref())?;
    if let Some(file) = &args.log {
        log::write(output, scenario, &settings, file, args)?;
        if stdout == Stdout::Log && args.html.is_none() {
            return Ok(Verdict::Fine);
        }
    }
    if args.runs > 1 {
        return run_many(output, stdout, scenario, &settings, args);
    }
    let report = followed(|arms| scenario.run(&settings.followed(arms)))?;
    let report = report.only(&args.arm).map_err(|unknown| no_arm(&unknown))?;
    write_page(output, args.html.as_deref(), report.page())?;
    match stdout {
        Stdout::Json => output.json(&report)?,
        Stdout::Text => output.text(coloured(&report))?,
        Stdout::Log | Stdout::Page => {}
    }
    Ok(if report.passed() { Verdict::Fine } else { Verdict::Found })
}

fn find(name: &str) -> Result<&'static Scenario, Failure> {
    herdproof_lab::find(name).map_err(|unknown| Failure::Usage {
        problem: unknown.to_string(),
        hint: "`herdproof lab list` shows them all".into(),
    })
}

fn settings(scenario: &Scenario, seed: u64, set: &[String]) -> Result<Settings, Failure> {
    let knobs = scenario.knobs();
    let mut settings = Settings::new(seed);
    for text in set {
        settings
            .set(&knobs, text)
            .map_err(|bad| Failure::Usage { problem: bad.to_string(), hint: hint(scenario, &knobs) })?;
    }
    Ok(settings)
}

/// What could have been set.
fn hint(scenario: &Scenario, knobs: &[Knob]) -> String {
    let mut hint = format!("What can be set in {0}, and its range (`herdproof lab list {0}`):", scenario.name);
    for Knob { name, what, default, least, most } in knobs {
        let _ = write!(hint, "\n  {name}={default}  ({least} to {most})  {what}");
    }
    hint
}

fn no_arm(unknown: &NoArm) -> Failure {
    Failure::Usage { problem: unknown.to_string(), hint: "An arm is named by its name or the beginning of it".into() }
}

/// Writes a page where it is wanted: to a file whole, or to standard output.
fn write_page(output: &mut Output, file: Option<&Path>, page: impl Display) -> Result<(), Failure> {
    match file {
        Some(file) if is_stdout(file) => output.bytes(page.to_string().as_bytes()),
        Some(file) => write_whole(file, page.to_string().as_bytes()),
        None => Ok(()),
    }
}

fn run_many(output: &mut Output, stdout: Stdout, scenario: &Scenario, settings: &Settings, args: &RunArgs) -> Done {
    let wanted = args.runs as usize;
    let runs = watched(wanted, |watch| Runs::of(scenario, settings, wanted, watch))?;
    let runs = runs.only(&args.arm).map_err(|unknown| no_arm(&unknown))?;
    let Some(shown) = runs.reports().first() else {
        output.note("stopped before the first run was done");
        return Ok(Verdict::Found);
    };
    write_page(output, args.html.as_deref(), runs.page())?;
    match stdout {
        Stdout::Json => output.json(&Summary::of(&runs, shown))?,
        Stdout::Text => output.text(medians(&runs, shown))?,
        Stdout::Log | Stdout::Page => {}
    }
    let is_whole = runs.reports().len() == wanted;
    if !is_whole {
        output.note(format!("stopped after {} of {wanted} runs", runs.reports().len()));
    }
    Ok(if is_whole && runs.reports().iter().all(Report::passed) { Verdict::Fine } else { Verdict::Found })
}

/// Many runs, for a script.
#[derive(Serialize)]
struct Summary<'a> {
    scenario: &'a str,
    seed: u64,
    runs: usize,
    parameters: &'a [herdproof_lab::Parameter],
    arms: Vec<ArmOver<'a>>,
    checks: Vec<herdproof_lab::Held>,
}

#[derive(Serialize)]
struct ArmOver<'a> {
    name: &'a str,
    figures: BTreeMap<&'a str, Spread>,
}

impl<'a> Summary<'a> {
    fn of(runs: &Runs, shown: &'a Report) -> Summary<'a> {
        let figures = |at: usize, arm: &'a Arm| {
            arm.figures.iter().filter_map(|figure| Some((figure.key, runs.spread(at, figure.key)?))).collect()
        };
        let over = |(at, arm): (usize, &'a Arm)| ArmOver { name: arm.name, figures: figures(at, arm) };
        Summary {
            scenario: shown.scenario,
            seed: shown.seed,
            runs: runs.reports().len(),
            parameters: &shown.parameters,
            arms: shown.arms.iter().enumerate().map(over).collect(),
            checks: runs.held(),
        }
    }
}

/// Many runs, for a person.
fn medians(runs: &Runs, shown: &Report) -> String {
    let count = runs.reports().len();
    let parameters: Vec<String> = shown.parameters.iter().map(|p| format!("{} {}", p.name, p.value)).collect();
    let mut text = format!(
        "{}: {}, {count} runs from seed {}\n{}\n",
        shown.scenario,
        parameters.join(", "),
        shown.seed,
        runs.about(),
    );
    for (at, arm) in shown.arms.iter().enumerate() {
        let _ = writeln!(text, "\n{}{}{}", BOLD.render(), arm.name, BOLD.render_reset());
        for figure in &arm.figures {
            if let Some(Spread { median, low, high, .. }) = runs.spread(at, figure.key) {
                let [median, low, high] = [median, low, high].map(|value| figure.value.show(value));
                let _ = writeln!(text, "  {:<14} {median:>12}  {low} to {high}", figure.title);
            }
        }
    }
    let _ = writeln!(text, "\n{}Checks{}, and in how many runs they held", BOLD.render(), BOLD.render_reset());
    for held in runs.held() {
        let style = if held.held == held.runs { GREEN } else { RED };
        let mark = format!("{}/{}", held.held, held.runs);
        let _ = writeln!(text, "  {}{mark:>9}{}  {}", style.render(), style.render_reset(), held.what);
    }
    let _ = writeln!(text, "\nAgain:   {}", runs.replay());
    text
}

pub(crate) fn verify(output: &mut Output, names: &[String], json: bool) -> Done {
    let mut named: Vec<&Scenario> = names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
    // Who is named twice is put to the test once.
    let mut seen = BTreeSet::new();
    named.retain(|scenario| seen.insert(scenario.name));
    let scenarios = if named.is_empty() { herdproof_lab::all().iter().collect() } else { named };
    let runs = scenarios.len() * usize::try_from(SEEDS).unwrap_or(0);
    let verification = watched(runs, |watch| herdproof_lab::verify(&scenarios, watch))?;
    let failed = verification.checks.iter().filter(|check| !check.passed).count();
    if json {
        output.json(&verification)?;
    } else {
        let mut text = String::new();
        for check in &verification.checks {
            let (style, mark) = if check.passed { (GREEN, "ok    ") } else { (RED, "FAILED") };
            let (on, off) = (style.render(), style.render_reset());
            let _ = writeln!(text, "{on}{mark} {}{off} ({:?})", check.name, check.source);
            if check.passed && check.expected == check.measured {
                let _ = writeln!(text, "       {}", check.measured);
            } else {
                let _ = writeln!(text, "       expected {}, got {}", check.expected, check.measured);
            }
        }
        let held = verification.checks.len() - failed;
        let _ = writeln!(text, "\n{held} claims hold on each of {SEEDS} seeds, {failed} do not");
        output.text(text)?;
    }
    if !verification.unfinished.is_empty() {
        output.note(format!("stopped; not put to the test: {}", verification.unfinished.join(", ")));
    }
    Ok(if verification.passed() { Verdict::Fine } else { Verdict::Found })
}

/// The report with the words that matter set off.
fn coloured(report: &Report) -> String {
    let mut text = String::new();
    for line in report.to_string().lines() {
        let style = match line.trim_start() {
            rest if rest.starts_with("ok ") => Some(GREEN),
            rest if rest.starts_with("FAILED ") => Some(RED),
            rest if rest == "Checks" || rest.starts_with("arm ") || rest.starts_with("Summary: ") => Some(BOLD),
            rest if report.arms.iter().any(|arm| line.starts_with(arm.name) && rest.len() > arm.name.len()) => {
                Some(BOLD)
            }
            _ => None,
        };
        let _ = match style {
            Some(style) => writeln!(text, "{}{line}{}", style.render(), style.render_reset()),
            None => writeln!(text, "{line}"),
        };
    }
    text
}
