//! `herdproof lab`: the catalogue of experiments, and running one.

use std::fmt::Write;

use herdproof_lab::{Report, Settings};
use serde::Serialize;

use crate::{
    Done, Verdict,
    output::{Failure, Output},
};

const BOLD: anstyle::Style = anstyle::Style::new().bold();
const GREEN: anstyle::Style = anstyle::AnsiColor::Green.on_default();
const RED: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();

pub(crate) fn list(output: &mut Output, json: bool) -> Done {
    #[derive(Serialize)]
    struct Listed {
        name: &'static str,
        title: &'static str,
    }
    let scenarios: Vec<Listed> =
        herdproof_lab::all().iter().map(|scenario| Listed { name: scenario.name, title: scenario.title }).collect();
    if json {
        output.json(&scenarios)?;
        return Ok(Verdict::Fine);
    }
    let mut text = String::new();
    for Listed { name, title } in &scenarios {
        let _ = writeln!(text, "{}{name:<14}{} {title}", BOLD.render(), BOLD.render_reset());
    }
    let _ = writeln!(text, "\nRun one with: herdproof lab run NAME");
    output.text(text)?;
    Ok(Verdict::Fine)
}

pub(crate) fn run(output: &mut Output, name: &str, seed: u64, json: bool) -> Done {
    let scenario = herdproof_lab::find(name).map_err(|unknown| Failure::Usage {
        problem: unknown.to_string(),
        hint: "`herdproof lab list` shows them all".into(),
    })?;
    let report = scenario.run(Settings { seed });
    if json {
        output.json(&report)?;
    } else {
        output.text(coloured(&report))?;
    }
    Ok(if report.passed() { Verdict::Fine } else { Verdict::Found })
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
