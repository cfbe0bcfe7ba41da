//! One blip at the origin, and everybody who shared the load has an error.
//!
//! Sharing a load means sharing its failure. The usual cure, letting each waiter try for itself, turns a failing origin
//! into a convoy of serial loads. Trying again inside the flight is neither.

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

const MS: Duration = Duration::from_millis(1);
const CALLERS: u64 = 20;
const LOAD: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Everybody loads.
    Naive,
    /// One loads, and its error is everybody's.
    Share,
    /// One loads; if that fails, every follower tries again, one after another.
    Convoy,
    /// One loads, and tries once more before it gives up.
    Retry,
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "shared-failure",
    title: "one failed load fails everybody who shared it, unless it is tried again inside",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let blip = |policy| herd(settings.seed, policy, 1);
    let outage = |policy| herd(settings.seed, policy, u64::MAX);
    let (naive, share, retry) = (blip(Policy::Naive), blip(Policy::Share), blip(Policy::Retry));
    let (convoy, shared_outage, retried_outage) =
        (outage(Policy::Convoy), outage(Policy::Share), outage(Policy::Retry));
    let figures = |callers: &Callers<u64>| [callers.origin.calls(), callers.errors()];
    let loads = u32::try_from(CALLERS).unwrap_or(u32::MAX);
    let checks = vec![
        Check::equal(Source::Formula, "one blip, naive: calls, errors", &[CALLERS, 1], &figures(&naive)),
        Check::equal(Source::Article, "one blip, shared: calls, errors", &[1, CALLERS], &figures(&share)),
        Check::equal(Source::Formula, "one blip, retry inside: calls, errors", &[2, 0], &figures(&retry)),
        Check::equal(Source::Formula, "outage, shared: calls, errors", &[1, CALLERS], &figures(&shared_outage)),
        Check::equal(Source::Formula, "outage, retry inside: calls, errors", &[2, CALLERS], &figures(&retried_outage)),
        Check::equal(Source::Formula, "outage, convoy: calls, errors", &[CALLERS, CALLERS], &figures(&convoy)),
        Check::equal(
            Source::Formula,
            "outage, convoy: the last waits for every load",
            &(LOAD * loads),
            &convoy.quantile(100),
        ),
    ];
    let summary = format!(
        "one failed call became {} errors when shared, and none when tried again inside the flight, for {} calls instead \
         of {}.",
        share.errors(),
        retry.origin.calls(),
        naive.origin.calls(),
    );
    Report {
        scenario: "shared-failure",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("clients", CALLERS),
            Parameter::new("load", format!("{} ms", LOAD.as_millis())),
            Parameter::new("failures", "the first call; in an outage, every call"),
        ],
        arms: vec![
            naive.arm("naive, one blip"),
            share.arm("shared, one blip"),
            retry.arm("retry inside, one blip"),
            convoy.arm("convoy, outage"),
            shared_outage.arm("shared, outage"),
        ],
        span: Duration::ZERO,
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, policy: Policy, failures: u64) -> Callers<u64> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, Slowdown::alone(LOAD)).failing(failures);
    let group: Group<&str, u64, Down> = Group::new(&env);
    let turn = std::sync::Arc::new(tokio::sync::Mutex::new(()));
    let tasks = (0..CALLERS)
        .map(|_| {
            let (origin, group, turn) = (origin.clone(), group.clone(), turn.clone());
            let load = move || {
                let origin = origin.clone();
                async move { origin.call().await }
            };
            let call = async move {
                match policy {
                    Policy::Naive => load().await.map_err(|_| ()),
                    Policy::Share => group.run("key", load).await.map(|landed| landed.value).map_err(|_| ()),
                    Policy::Retry => {
                        group.run_retrying("key", 1, load).await.map(|landed| landed.value).map_err(|_| ())
                    }
                    Policy::Convoy => {
                        let _turn = turn.lock().await;
                        load().await.map_err(|_| ())
                    }
                }
            };
            env.spawn(timed(env.clone(), call))
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
