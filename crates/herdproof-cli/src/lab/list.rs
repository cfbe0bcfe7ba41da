//! `herdproof lab list`: the catalogue, and what can be set in one of its scenarios.

use std::fmt::Write;

use herdproof_lab::{Knob, Scenario};
use serde::Serialize;

use super::{BOLD, find};
use crate::{Done, Verdict, output::Output};

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    title: &'static str,
    parameters: Vec<Parameter>,
}

#[derive(Serialize)]
struct Parameter {
    name: &'static str,
    what: &'static str,
    default: String,
    least: String,
    most: String,
}

pub(crate) fn list(output: &mut Output, name: Option<&str>, json: bool) -> Done {
    let one = name.map(find).transpose()?;
    match (one, json) {
        (Some(scenario), true) => output.json(&Listed::of(scenario))?,
        (Some(scenario), false) => output.text(parameters(scenario))?,
        (None, true) => output.json(&herdproof_lab::all().iter().map(Listed::of).collect::<Vec<_>>())?,
        (None, false) => output.text(catalogue(herdproof_lab::all()))?,
    }
    Ok(Verdict::Fine)
}

impl Listed {
    fn of(scenario: &Scenario) -> Listed {
        let parameter = |Knob { name, what, default, least, most }| Parameter {
            name,
            what,
            default: default.to_string(),
            least: least.to_string(),
            most: most.to_string(),
        };
        Listed {
            name: scenario.name,
            title: scenario.title,
            parameters: scenario.knobs().into_iter().map(parameter).collect(),
        }
    }
}

fn catalogue(scenarios: &[Scenario]) -> String {
    let width = scenarios.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Scenario { name, title, .. } in scenarios {
        let _ = writeln!(text, "{}{name:<width$}{} {title}", BOLD.render(), BOLD.render_reset());
    }
    let _ = writeln!(text, "\nRun one with: herdproof lab run NAME\nWhat can be set in it: herdproof lab list NAME");
    text
}

fn parameters(scenario: &Scenario) -> String {
    let Listed { name, title, parameters } = Listed::of(scenario);
    let mut text = format!("{}{name}{}: {title}\n", BOLD.render(), BOLD.render_reset());
    let Some(first) = parameters.first() else {
        text.push_str("\nIt has no parameters to set\n");
        return text;
    };
    let again = format!("herdproof lab run {name} --set {}={}", first.name, first.default);
    let rows: Vec<[String; 3]> =
        parameters.iter().map(|p| [p.name.into(), p.default.clone(), format!("{} to {}", p.least, p.most)]).collect();
    let heads = ["parameter", "default", "range"];
    let wide = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0).max(heads[column].len());
    let [name, default, range] = [0, 1, 2].map(wide);
    let mut line = |[a, b, c]: [&str; 3], what: &str| {
        let _ = writeln!(text, "{a:<name$}  {b:<default$}  {c:<range$}  {what}");
    };
    line(heads, "what it is");
    for ([a, b, c], parameter) in rows.iter().zip(&parameters) {
        line([a, b, c], parameter.what.trim_end_matches('.'));
    }
    let _ = writeln!(text, "\nSet one with: {again}");
    text
}
