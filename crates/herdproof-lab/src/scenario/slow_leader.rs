//! A load of thirty seconds, and callers who can wait for one.
//!
//! Where the caller that began a load is the one that runs it, everybody waits as long as it does, and when it gives up
//! the load is lost. Here the load belongs to nobody: every caller has a deadline of its own, those who are in a hurry
//! leave in time, and the load lands for those who are not.

use std::time::Duration;

use herdproof::{Group, Sim};

use super::{
    Scenario,
    callers::{Callers, timed},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Check, Report, Source, say},
    slowdown::Slowdown,
};

const SECOND: Duration = Duration::from_secs(1);
const BIN: Duration = Duration::from_millis(100);

knobs! {
    /// How many are in a hurry; one more is not.
    hasty: u64 = 19, 1..=5_000;
    /// How long the load takes.
    load: Duration = SECOND * 30, SECOND / 10..=SECOND * 3_600;
    /// How long those in a hurry wait.
    deadline: Duration = SECOND, SECOND / 100..=SECOND * 3_600;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "slow-leader",
    title: "a load of 30 s and callers who can wait for one: deadlines of their own",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let Knobs { hasty, load, deadline } = knobs;
    let patient = herd(settings.seed, knobs, false, settings.tap(0));
    let own = herd(settings.seed, knobs, true, settings.tap(1));
    let landed = |callers: &Callers<u64>| callers.got.iter().filter(|got| got.result.is_ok()).count() as u64;
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("without deadlines: p50 is the load's {}", say(load)),
            &load,
            &patient.quantile(50),
        )
        .cites("H28"),
        Check::equal(
            Source::Article,
            format!("with: those in a hurry leave after {}", say(deadline)),
            &deadline,
            &own.quantile(95),
        )
        .cites("N20")
        .cites("H28")
        .cites("C5"),
        Check::equal(Source::Formula, "with: the load is neither lost nor begun again", &1, &own.origin.calls())
            .cites("C5"),
        Check::equal(Source::Formula, "with: it lands for the one who waits", &1, &landed(&own)).cites("C5"),
        Check::equal(Source::Formula, format!("with: after its {}", say(load)), &load, &own.quantile(100)).cites("C5"),
    ];
    let summary = format!(
        "with deadlines of their own {hasty} of {} callers had their answer, or knew that there was none, after {:?} \
         instead of {:?}, and the load went on for the other.",
        hasty + 1,
        own.quantile(95),
        patient.quantile(95),
    );
    Report {
        scenario: "slow-leader",
        seed: settings.seed,
        arms: vec![patient.arm("everybody waits"), own.arm("own deadlines").sample("C5")],
        span: load,
        checks,
        summary,
        ..Report::default()
    }
}

/// The leader is among those in a hurry; the last to come is not.
fn herd(seed: u64, knobs: Knobs, deadlines: bool, tap: Tap) -> Callers<u64> {
    let Knobs { hasty, load, deadline } = knobs;
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(load)).tapped(tap);
    let group: Group<&str, u64, Down> = Group::new(&env);
    let tasks = (0..=hasty)
        .map(|id| {
            let (origin, group, clock) = (origin.clone(), group.clone(), env.clone());
            let call = async move {
                let caller = Caller::of(id, "/key").in_wave("ttl", 0);
                let mut flight = group.run("key", || async move { origin.call_from(caller).await });
                if deadlines && id < hasty {
                    flight = flight.by(clock.now() + deadline);
                }
                flight.await.map(|landed| landed.value)
            };
            env.spawn(timed(env.clone(), call))
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
