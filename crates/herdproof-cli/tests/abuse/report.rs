//! What was measured beside what is promised.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use crate::{client::Answer, world::Place};

/// One promise, measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) attack: &'static str,
    /// Under which circumstances.
    pub(crate) case: String,
    pub(crate) what: String,
    pub(crate) got: String,
    pub(crate) bar: String,
    /// `None`: shown, but not judged here.
    pub(crate) met: Option<bool>,
}

impl Check {
    /// The attack itself did not come to its end.
    pub(crate) fn ended_early(attack: &'static str, why: &impl ToString) -> Check {
        let (what, bar) = ("the attack".into(), "comes to its end".into());
        Check { attack, case: String::new(), what, got: why.to_string(), bar, met: Some(false) }
    }
}

/// What an attack has to say, one line for each promise.
#[derive(Debug)]
pub(crate) struct Findings {
    attack: &'static str,
    place: Place,
    pub(crate) checks: Vec<Check>,
}

#[expect(clippy::needless_pass_by_value, reason = "texts and numbers alike, at a hundred places")]
impl Findings {
    pub(crate) fn new(attack: &'static str, place: Place) -> Findings {
        Findings { attack, place, checks: Vec::new() }
    }

    pub(crate) fn check(&mut self, case: &str, what: &str, got: impl ToString, bar: impl ToString, met: bool) {
        self.add(case, what, got.to_string(), bar.to_string(), Some(met));
    }

    /// Shown, not judged.
    pub(crate) fn note(&mut self, case: &str, what: &str, got: impl ToString) {
        self.add(case, what, got.to_string(), "-".into(), None);
    }

    pub(crate) fn at_most<T: PartialOrd + ToString>(&mut self, case: &str, what: &str, got: T, most: T) {
        let met = got <= most;
        self.check(case, what, got.to_string(), format!("at most {}", most.to_string()), met);
    }

    /// No good user fails.
    pub(crate) fn nobody_failed(&mut self, case: &str, what: &str, tally: &Tally) {
        self.check(case, what, tally.shown(), "0 failed", tally.failed() == 0 && tally.asked > 0);
    }

    fn add(&mut self, case: &str, what: &str, got: String, bar: String, met: Option<bool>) {
        let parts: Vec<&str> = [case, self.place.shown()].into_iter().filter(|part| !part.is_empty()).collect();
        self.checks.push(Check { attack: self.attack, case: parts.join(", "), what: what.into(), got, bar, met });
    }
}

/// How good users fared.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    asked: u64,
    /// Everything but a 200, by what it was.
    failures: BTreeMap<String, u64>,
}

impl Tally {
    pub(crate) fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Tally {
        let mut tally = Tally::default();
        answers.into_iter().for_each(|answer| tally.add(answer));
        tally
    }

    pub(crate) fn add(&mut self, answer: &Answer) {
        self.asked += 1;
        if !answer.is_ok() {
            *self.failures.entry(answer.shown()).or_default() += 1;
        }
    }

    pub(crate) fn merge(&mut self, other: Tally) {
        self.asked += other.asked;
        for (what, count) in other.failures {
            *self.failures.entry(what).or_default() += count;
        }
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub(crate) fn shown(&self) -> String {
        let mut text = format!("{} of {} failed", self.failed(), self.asked);
        let kinds: Vec<String> = self.failures.iter().map(|(what, count)| format!("{count} x {what}")).collect();
        if !kinds.is_empty() {
            write!(text, " ({})", kinds.join(", ")).ok();
        }
        text
    }
}

/// Longer cells push the rest of their line to the right instead of everybody's.
const WIDEST: usize = 46;

/// For people: one line for each promise.
pub(crate) fn table(checks: &[Check]) -> String {
    let row = |check: &Check| {
        let met = match check.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        [met, &check.case, &check.what, &check.bar, &check.got].map(str::to_owned)
    };
    let rows: Vec<_> = checks.iter().map(row).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).min(WIDEST);
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    let mut attack = "";
    for (check, row) in checks.iter().zip(&rows) {
        if check.attack != attack {
            attack = check.attack;
            writeln!(text, "{attack}").ok();
        }
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(text, "  {}", cells.join("  ").trim_end()).ok();
    }
    text
}
