//! One blip at the origin, and everybody who shared the load has an error.
//!
//! Sharing a load means sharing its failure. The usual cure, letting each waiter try for itself, turns a failing origin
//! into a convoy of serial loads. Trying again inside the flight is neither.

use std::time::Duration;

use herdproof::{Group, Sim};

use super::{
    Scenario,
    callers::{Callers, timed},
};
use crate::{
    knob::{Settings, knobs},
    origin::{Down, Origin},
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);

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

knobs! {
    /// How many share a load.
    clients: u64 = 20, 1..=5_000;
    /// How long it takes.
    load: Duration = MS * 50, MS..=MS * 10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "shared-failure",
    title: "one failed load fails everybody who shared it, unless it is tried again inside",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let Knobs { clients, load } = knobs;
    let blip = |policy| herd(settings.seed, knobs, policy, 1);
    let outage = |policy| herd(settings.seed, knobs, policy, u64::MAX);
    let (naive, share, retry) = (blip(Policy::Naive), blip(Policy::Share), blip(Policy::Retry));
    let (convoy, shared_outage, retried_outage) =
        (outage(Policy::Convoy), outage(Policy::Share), outage(Policy::Retry));
    let figures = |callers: &Callers<u64>| [callers.origin.calls(), callers.errors()];
    let loads = u32::try_from(clients).unwrap_or(u32::MAX);
    let checks = vec![
        Check::equal(Source::Formula, "one blip, naive: calls, errors", &[clients, 1], &figures(&naive)).cites("H27"),
        Check::equal(Source::Article, "one blip, shared: calls, errors", &[1, clients], &figures(&share)).cites("H27"),
        Check::equal(Source::Formula, "one blip, retry inside: calls, errors", &[2, 0], &figures(&retry))
            .cites("H27")
            .cites("T5"),
        Check::equal(Source::Formula, "outage, shared: calls, errors", &[1, clients], &figures(&shared_outage))
            .cites("H27"),
        Check::equal(Source::Formula, "outage, retry inside: calls, errors", &[2, clients], &figures(&retried_outage))
            .cites("H27")
            .cites("T5"),
        Check::equal(Source::Formula, "outage, convoy: calls, errors", &[clients, clients], &figures(&convoy))
            .cites("H27")
            .cites("C8"),
        Check::equal(
            Source::Formula,
            "outage, convoy: the last waits for every load",
            &(load * loads),
            &convoy.quantile(100),
        )
        .cites("H27")
        .cites("C8"),
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
        parameters: vec![Parameter::new("failures", "the first call; in an outage, every call")],
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

fn herd(seed: u64, knobs: Knobs, policy: Policy, failures: u64) -> Callers<u64> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, Slowdown::alone(knobs.load)).failing(failures);
    let group: Group<&str, u64, Down> = Group::new(&env);
    let turn = std::sync::Arc::new(tokio::sync::Mutex::new(()));
    let tasks = (0..knobs.clients)
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
