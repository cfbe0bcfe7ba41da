//! The same people at the same café: over ten minutes, or in one second.

use std::{sync::Arc, time::Duration};

use herdproof::{Sim, Tick};
use parking_lot::Mutex;

use crate::{
    report::{Check, Source},
    service::{Plan, Service},
};

const PEOPLE: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);
/// One who makes two coffees a second.
const CAFE: Plan = Plan::new(1, Duration::from_millis(500));

/// What it was like for them.
struct Day {
    /// How many came in a second, while they came.
    rate: f64,
    longest_wait: Duration,
}

/// Everybody comes at some time within this.
fn day(seed: u64, within: Duration) -> Day {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let cafe = Service::new(&env, "cafe", SECOND, CAFE);
    let waits = Arc::new(Mutex::new(Vec::new()));
    let rng = env.rng("people");
    for _ in 0..PEOPLE {
        let (env, cafe, waits) = (env.clone(), cafe.clone(), Arc::clone(&waits));
        let comes = Tick::ZERO + rng.between(Duration::ZERO, within);
        env.clone()
            .spawn(async move {
                env.sleep_until(comes).await;
                cafe.call().await.expect("nobody is turned away");
                waits.lock().push(env.now() - comes);
            })
            .detach();
    }
    sim.finish().expect("everybody is served in the end");
    let longest_wait = waits.lock().iter().copied().max().unwrap_or_default();
    Day { rate: cafe.seen().calls.total() as f64 / within.as_secs_f64(), longest_wait }
}

pub(super) fn checks(seed: u64) -> Vec<Check> {
    let (spread, at_once) = (day(seed, SECOND * 600), day(seed, SECOND));
    let round = |rate: f64| (rate * 100.0).round() / 100.0;
    vec![
        Check::equal(
            Source::Article,
            "a café, 1,000 people over 10 min or in 1 s: how many come in a second",
            &[1.67, 1_000.0],
            &[round(spread.rate), round(at_once.rate)],
        )
        .cites("N22")
        .cites("H26"),
        Check::at_most(
            Source::Article,
            "... which serves two in a second: over 10 min nobody waits for longer than a minute (s)",
            60.0,
            spread.longest_wait.as_secs_f64(),
        )
        .cites("N22"),
        Check::within(
            Source::Formula,
            "... in 1 s the last waits for all others, 1,000 / 2 s, less the second in which they came",
            f64::from(PEOPLE) / CAFE.capacity(),
            1.0,
            at_once.longest_wait.as_secs_f64(),
        )
        .cites("N22")
        .cites("H26"),
    ]
}
