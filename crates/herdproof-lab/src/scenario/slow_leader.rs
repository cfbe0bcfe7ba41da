//! A load of thirty seconds, and callers who can wait for one.
//!
//! Where the caller that began a load is the one that runs it, everybody waits as long as it does, and when it gives up
//! the load is lost. Here the load belongs to nobody: every caller has a deadline of its own, those who are in a hurry
//! leave in time, and the load lands for those who are not.

use std::time::Duration;

use herdproof::{Group, Sim};

use super::{
    Scenario, Settings,
    callers::{Callers, timed},
};
use crate::{
    origin::{Down, Origin},
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const HASTY: u64 = 19;
const LOAD: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(1);
const BIN: Duration = Duration::from_millis(100);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "slow-leader",
    title: "a load of 30 s and callers who can wait for one: deadlines of their own",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let patient = herd(settings.seed, false);
    let hasty = herd(settings.seed, true);
    let landed = |callers: &Callers<u64>| callers.got.iter().filter(|got| got.result.is_ok()).count() as u64;
    let checks = vec![
        Check::equal(Source::Article, "without deadlines: p50 is the load's 30 s", &LOAD, &patient.quantile(50)),
        Check::equal(Source::Article, "with: those in a hurry leave after 1 s", &DEADLINE, &hasty.quantile(95)),
        Check::equal(Source::Formula, "with: the load is neither lost nor begun again", &1, &hasty.origin.calls()),
        Check::equal(Source::Formula, "with: it lands for the one who waits", &1, &landed(&hasty)),
        Check::equal(Source::Formula, "with: after its 30 s", &LOAD, &hasty.quantile(100)),
    ];
    let summary = format!(
        "with deadlines of their own {HASTY} of {} callers had their answer, or knew that there was none, after {:?} \
         instead of {:?}, and the load went on for the other.",
        HASTY + 1,
        hasty.quantile(95),
        patient.quantile(95),
    );
    Report {
        scenario: "slow-leader",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("clients", HASTY + 1),
            Parameter::new("load", format!("{LOAD:?}")),
            Parameter::new("deadline", format!("{DEADLINE:?}, but for one")),
        ],
        arms: vec![patient.arm("everybody waits"), hasty.arm("own deadlines")],
        span: LOAD,
        checks,
        summary,
        ..Report::default()
    }
}

/// The leader is among those in a hurry; the last to come is not.
fn herd(seed: u64, deadlines: bool) -> Callers<u64> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(LOAD));
    let group: Group<&str, u64, Down> = Group::new(&env);
    let tasks = (0..=HASTY)
        .map(|id| {
            let (origin, group, clock) = (origin.clone(), group.clone(), env.clone());
            let call = async move {
                let mut flight = group.run("key", || async move { origin.call().await });
                if deadlines && id < HASTY {
                    flight = flight.by(clock.now() + DEADLINE);
                }
                flight.await.map(|landed| landed.value)
            };
            env.spawn(timed(env.clone(), call))
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
