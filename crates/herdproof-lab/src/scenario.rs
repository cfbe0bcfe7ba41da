//! The catalogue of experiments.

mod adaptive_limits;
mod autoscale;
mod away;
mod bathtub;
mod breaker_reclose;
mod broadcast;
mod bulkhead;
mod callers;
mod cascade;
mod cold_cache;
mod cold_instance;
mod connection_storm;
mod cron;
mod cross_layer;
mod election;
mod flash_sale;
mod fleet_stampede;
mod goodput;
mod hedging;
mod hot_key;
mod hot_shard;
mod impatient;
mod keyed_mutex;
mod laws;
mod leases;
mod limiter_refill;
mod marks;
mod metastable;
mod occ;
mod outlier_ejection;
mod polling;
mod priority_shedding;
mod readers;
mod retry_chain;
mod retry_storm;
mod retry_wall;
mod shards;
mod shared_failure;
mod shed_and_return;
mod slow_leader;
mod stampede;
mod swr;
mod throttle;
mod token_refresh;
mod ttl_jitter;
mod turned_shield;
mod unseen_plants;
mod xfetch;

use std::{error::Error, fmt};

use crate::{
    knob::{Knob, Settings},
    nearest::nearest,
    report::{Parameter, Report},
};

/// An experiment: a herd, what it does to an origin, and what each remedy does to the herd.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What to call it.
    pub name: &'static str,
    /// What it shows, in one line.
    pub title: &'static str,
    knobs: fn() -> Vec<Knob>,
    run: fn(&Settings) -> Report,
}

/// There is no such scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScenario {
    /// What was asked for.
    pub name: String,
    /// What may have been meant.
    pub nearest: Option<&'static str>,
}

/// In the order they are listed: retries, overload, shared loads, caches, clocks and connections.
const CATALOGUE: &[Scenario] = &[
    retry_wall::SCENARIO,
    retry_storm::SCENARIO,
    retry_chain::SCENARIO,
    occ::SCENARIO,
    metastable::SCENARIO,
    bathtub::SCENARIO,
    goodput::SCENARIO,
    shed_and_return::SCENARIO,
    priority_shedding::SCENARIO,
    breaker_reclose::SCENARIO,
    outlier_ejection::SCENARIO,
    throttle::SCENARIO,
    turned_shield::SCENARIO,
    limiter_refill::SCENARIO,
    adaptive_limits::SCENARIO,
    unseen_plants::SCENARIO,
    hedging::SCENARIO,
    bulkhead::SCENARIO,
    hot_key::SCENARIO,
    hot_shard::SCENARIO,
    shared_failure::SCENARIO,
    slow_leader::SCENARIO,
    keyed_mutex::SCENARIO,
    stampede::SCENARIO,
    fleet_stampede::SCENARIO,
    leases::SCENARIO,
    xfetch::SCENARIO,
    ttl_jitter::SCENARIO,
    swr::SCENARIO,
    impatient::SCENARIO,
    cold_cache::SCENARIO,
    cascade::SCENARIO,
    flash_sale::SCENARIO,
    connection_storm::SCENARIO,
    cross_layer::SCENARIO,
    token_refresh::SCENARIO,
    cron::SCENARIO,
    polling::SCENARIO,
    election::SCENARIO,
    broadcast::SCENARIO,
    autoscale::SCENARIO,
    cold_instance::SCENARIO,
];

/// Every scenario there is.
pub fn all() -> &'static [Scenario] {
    CATALOGUE
}

/// The scenario of this name.
pub fn find(name: &str) -> Result<&'static Scenario, UnknownScenario> {
    let found = CATALOGUE.iter().find(|scenario| scenario.name == name);
    found.ok_or_else(|| UnknownScenario {
        name: name.to_string(),
        nearest: nearest(name, CATALOGUE.iter().map(|scenario| scenario.name)),
    })
}

impl Scenario {
    /// What can be set, with its range.
    pub fn knobs(&self) -> Vec<Knob> {
        (self.knobs)()
    }

    /// Runs it: every arm, then the checks.
    pub fn run(&self, settings: &Settings) -> Report {
        let mut report = (self.run)(settings);
        let knobs = self.knobs();
        let set = knobs.iter().map(|knob| Parameter::new(knob.name, settings.value(knob)));
        report.parameters.splice(0..0, set);
        report.changed = settings.changes();
        report
    }
}

impl fmt::Display for UnknownScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no scenario called {:?}", self.name)?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest:?}?"),
            None => Ok(()),
        }
    }
}

impl Error for UnknownScenario {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{knob::Value, named::named, runs::Watch};

    #[test]
    fn names_are_unique_and_all_can_be_found() {
        let names: std::collections::BTreeSet<&str> = all().iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(all().iter().all(|scenario| find(scenario.name).is_ok()));
    }

    /// An arm is named by its name or the beginning of it.
    #[test]
    fn every_arm_can_be_named() {
        let scenarios: Vec<&Scenario> = all().iter().collect();
        let others = Watch::default().each(&scenarios, |scenario| {
            let arms = scenario.run(&Settings::new(1).bare()).arms;
            let known: Vec<&'static str> = arms.iter().map(|arm| arm.name).collect();
            let is_another =
                |(place, name): &(usize, &&str)| named(scenario.name, &known, name).ok() != Some(vec![*place]);
            let names = known.iter().enumerate();
            names.filter(is_another).map(|(_, name)| (scenario.name, *name)).collect::<Vec<_>>()
        });
        let others: Vec<_> = others.into_iter().flatten().flatten().collect();
        assert!(others.is_empty(), "by these names another arm is meant: {others:?}");
    }

    #[test]
    fn every_claim_of_every_scenario_holds_for_many_seeds() {
        let scenarios: Vec<&Scenario> = all().iter().collect();
        let failed = Watch::default().each(&scenarios, |scenario| {
            let reports = [3, 42, u64::MAX].map(|seed| scenario.run(&Settings::new(seed)));
            assert!(reports.iter().all(|report| report.scenario == scenario.name));
            let failed = |report: Report| report.checks.into_iter().filter(|check| !check.passed).collect::<Vec<_>>();
            reports.into_iter().map(move |report| (scenario.name, report.seed, failed(report))).collect::<Vec<_>>()
        });
        let failed: Vec<_> = failed.into_iter().flatten().flatten().filter(|(.., failed)| !failed.is_empty()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    #[test]
    fn a_report_is_the_same_on_one_thread_and_on_more() {
        let scenarios: Vec<&Scenario> = all().iter().collect();
        Watch::default().each(&scenarios, |scenario| {
            let settings = Settings::new(7).bare();
            let json = |threads| serde_json::to_string(&scenario.run(&settings.on_threads(threads))).unwrap();
            assert!(json(1) == json(3), "{}", scenario.name);
        });
    }

    /// With everything at its least, and with as few as possible for as long and as much as possible.
    #[test]
    fn nothing_that_can_be_set_makes_a_scenario_panic() {
        let is_count = |knob: &Knob| matches!(knob.default, Value::Count(_));
        let scenarios: Vec<&Scenario> = all().iter().filter(|scenario| !scenario.knobs().is_empty()).collect();
        Watch::default().each(&scenarios, |scenario| {
            for longest in [false, true] {
                let (knobs, mut settings) = (scenario.knobs(), Settings::new(1));
                for knob in &knobs {
                    let value = if longest && !is_count(knob) { knob.most } else { knob.least };
                    settings.set(&knobs, &format!("{}={value}", knob.name)).expect("both ends can be set");
                }
                let report = scenario.run(&settings);
                assert!(!report.arms.is_empty() && report.passed(), "{}", scenario.name);
            }
        });
    }

    #[test]
    fn a_slip_of_the_finger_is_told_what_was_meant() {
        for slip in ["retry_wall", "retrywall", "Retry-Wall", "wall", "retry-wal"] {
            assert_eq!(find(slip).unwrap_err().nearest, Some("retry-wall"), "{slip}");
        }
        assert_eq!(find("quicksort").unwrap_err().nearest, None);
        assert_eq!(find("").unwrap_err().to_string(), "there is no scenario called \"\"");
    }
}
