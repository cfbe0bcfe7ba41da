//! A load that is slower than every caller is patient.
//!
//! In most caches whoever finds a key missing loads it, and the others wait for that; if it leaves, the next begins a load of its
//! own, from the start. With callers who wait for 40 ms and a load of 100 ms nobody ever gets to the end: an origin that is only a
//! little slow is asked for the same thing again and again, and nothing is ever stored. Measured in moka 0.12: 100 loads, nobody
//! served; in `quick_cache` 0.7: 34 loads, nobody served.
//!
//! Here the load belongs to nobody. It goes on without its callers, fills the cache, and all who come after are served.

use std::time::Duration;

use herdproof::{Cache, Sim, Tick, cache::Policy, retry::by};

use super::{
    Scenario, Settings,
    callers::{Callers, timed},
    readers::{Locks, Shelf, load},
};
use crate::{
    origin::{Down, Origin},
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const CALLERS: u32 = 100;
const APART: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_millis(40);
/// A millisecond less than in the measurement, so that it does not end at the instant of anybody's deadline.
const LOAD: Duration = Duration::from_millis(99);
const TTL: Duration = Duration::from_secs(60);
const BIN: Duration = Duration::from_millis(10);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "impatient",
    title: "a load slower than every caller is patient: begun again for ever, or once",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let handed_over = herd(settings.seed, false);
    let cache = herd(settings.seed, true);
    let served = |callers: &Callers<Tick>| callers.got.len() as u64 - callers.errors();
    // Who came so long before the end of the load that its patience was over before it.
    let late = LOAD.saturating_sub(PATIENCE).as_millis().div_ceil(APART.as_millis());
    let checks = vec![
        Check::equal(Source::Published, "handed over (moka): loads", &u64::from(CALLERS), &handed_over.origin.calls()),
        Check::equal(Source::Published, "handed over (moka, quick_cache): callers served", &0, &served(&handed_over)),
        Check::equal(Source::Promise, "cache: loads", &1, &cache.origin.calls()),
        Check::equal(Source::Promise, "cache: all but those of the first 60 ms are served", &94, &served(&cache)),
        Check::equal(
            Source::Formula,
            "... who are so many: those who leave before the load lands",
            &u128::from(cache.errors()),
            &late,
        ),
        Check::equal(Source::Promise, "cache: nobody waits longer than it said", &PATIENCE, &cache.quantile(100)),
    ];
    let summary = format!(
        "of {CALLERS} callers who wait for 40 ms each, a load of 99 ms that is handed over served {} with {} loads; one that \
         goes on without them served {} with {}.",
        served(&handed_over),
        handed_over.origin.calls(),
        served(&cache),
        cache.origin.calls(),
    );
    Report {
        scenario: "impatient",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("callers", format!("{CALLERS}, one every {APART:?}")),
            Parameter::new("patience", format!("{PATIENCE:?}")),
            Parameter::new("load", format!("{LOAD:?}")),
        ],
        arms: vec![handed_over.arm("handed over"), cache.arm("cache")],
        span: APART * CALLERS,
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, cached: bool) -> Callers<Tick> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(LOAD));
    let (shelf, locks) = (Shelf::default(), Locks::default());
    let cache: Cache<&str, Tick, Down> = Cache::builder(&env).policy(Policy::new(TTL)).build();
    let tasks = (0..CALLERS)
        .map(|id| {
            let (clock, shelf, locks, cache) = (env.clone(), shelf.clone(), locks.clone(), cache.clone());
            let load = load(&env, &origin);
            env.spawn(async move {
                let env = clock.clone();
                clock.sleep(APART * id).await;
                let deadline = clock.now() + PATIENCE;
                let call = async move {
                    if cached {
                        return cache.get(&"key", || load).by(deadline).await.map(|got| got.value).map_err(|_| ());
                    }
                    // Whoever has the lock loads; when it leaves, the lock goes to the next, and what was loaded is lost.
                    let get = locks.get(&clock, &shelf, "key", TTL, load);
                    by(&clock, Some(deadline), get).await.and_then(Result::ok).ok_or(())
                };
                timed(env, call).await
            })
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
