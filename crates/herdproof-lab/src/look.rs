//! One figure of one arm of one scenario, by name: what a cell of the table and an answer to a question are made of.

use std::collections::BTreeMap;

use crate::{
    knob::Settings,
    named::named,
    report::{Measured, Report},
    runs::Watch,
    scenario::find,
};

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) scenario: &'static str,
    /// A parameter that is changed, as in `nodes=1`.
    pub(crate) set: Option<&'static str>,
    /// The arm by its name or the beginning of it.
    pub(crate) arm: &'static str,
    pub(crate) figure: &'static str,
}

/// What is there.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) arm: &'static str,
    pub(crate) value: Measured,
    /// The command that shows it.
    pub(crate) again: String,
}

/// The runs to look at, by scenario and what is set.
pub(crate) type Reports = BTreeMap<(&'static str, Option<&'static str>), Report>;

impl Look {
    pub(crate) const fn at(scenario: &'static str, arm: &'static str, figure: &'static str) -> Look {
        Look { scenario, set: None, arm, figure }
    }

    /// The same with a parameter changed.
    pub(crate) const fn with(self, set: &'static str) -> Look {
        Look { set: Some(set), ..self }
    }

    /// What is there; nothing if an arm, a figure or a parameter is not called that.
    pub(crate) fn seen(&self, seed: u64, reports: &Reports) -> Option<Seen> {
        let arms = &reports.get(&(self.scenario, self.set))?.arms;
        let known: Vec<&'static str> = arms.iter().map(|arm| arm.name).collect();
        let arm = arms.get(*named(self.scenario, &known, self.arm).ok()?.first()?)?;
        let value = arm.figures.iter().find(|figure| figure.key == self.figure)?.value;
        let set = self.set.map(|set| format!(" --set {set}")).unwrap_or_default();
        let again = format!("herdproof lab run {}{set} --seed {seed}", self.scenario);
        Some(Seen { arm: arm.name, value, again })
    }
}

/// Which runs these take, each once.
pub(crate) fn runs_for(looks: impl Iterator<Item = Look>) -> Vec<(&'static str, Option<&'static str>)> {
    let mut wanted: Vec<_> = looks.map(|look| (look.scenario, look.set)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// Runs them on this seed, on all processors; nothing if the watch was stopped before all were begun.
pub(crate) fn reports(wanted: &[(&'static str, Option<&'static str>)], seed: u64, watch: &Watch) -> Option<Reports> {
    let reports = watch.each(wanted, |(scenario, set)| run(scenario, *set, seed));
    wanted.iter().zip(reports).map(|(key, report)| Some((*key, report.flatten()?))).collect()
}

fn run(scenario: &str, set: Option<&str>, seed: u64) -> Option<Report> {
    let scenario = find(scenario).ok()?;
    let mut settings = Settings::new(seed);
    if let Some(text) = set {
        settings.set(&scenario.knobs(), text).ok()?;
    }
    Some(scenario.run(&settings.bare()))
}
