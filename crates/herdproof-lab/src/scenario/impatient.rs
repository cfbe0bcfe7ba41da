//! A load that is slower than every caller is patient.
//!
//! In most caches whoever finds a key missing loads it, and the others wait for that; if it leaves, the next begins a load of its
//! own, from the start. With callers who wait for 40 ms and a load of 100 ms nobody ever gets to the end: an origin that is only a
//! little slow is asked for the same thing again and again, and nothing is ever stored. Measured in moka 0.12: 100 loads, nobody
//! served; in `quick_cache` 0.7: 34 loads, nobody served.
//!
//! Here the load belongs to nobody. It goes on without its callers, fills the cache, and all who come after are served.

use std::time::Duration;

use herdproof::{Cache, Sim, Tick, cache::Policy, timeout::by};

use super::{
    Scenario,
    callers::{Callers, timed},
    readers::{Locks, Shelf, load_by},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Check, Report, Source, say},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(60);
const BIN: Duration = Duration::from_millis(10);

knobs! {
    /// How many come, one after another.
    callers: u32 = 100, 1..=5_000;
    /// How long after the one before.
    apart: Duration = MS * 10, MS..=MS * 1_000;
    /// How long each waits.
    patience: Duration = MS * 40, MS..=MS * 10_000;
    /// How long a load takes; 99 rather than 100 ms, so that it does not end at anybody's deadline.
    load: Duration = MS * 99, MS..=MS * 10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "impatient",
    title: "a load slower than every caller is patient: begun again for ever, or once",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let handed_over = herd(settings.seed, knobs, false, settings.tap(0));
    let cache = herd(settings.seed, knobs, true, settings.tap(1));
    let served = |callers: &Callers<Tick>| callers.got.len() as u64 - callers.errors();
    // Who came so long before the end of the load that its patience was over before it.
    let late = knobs.load.saturating_sub(knobs.patience).as_nanos().div_ceil(knobs.apart.as_nanos());
    let late = u32::try_from(late).unwrap_or(u32::MAX).min(knobs.callers);
    let checks = vec![
        Check::equal(
            Source::Published,
            "handed over (moka): loads",
            &u64::from(knobs.callers),
            &handed_over.origin.calls(),
        )
        .cites("moka 0.12"),
        Check::equal(Source::Published, "handed over (moka, quick_cache): callers served", &0, &served(&handed_over))
            .cites("moka 0.12")
            .cites("quick_cache 0.7"),
        Check::equal(Source::Promise, "cache: loads", &1, &cache.origin.calls()).cites("C5"),
        Check::equal(
            Source::Promise,
            format!("cache: all but those of the first {} are served", say(knobs.apart * late)),
            &u64::from(knobs.callers - late),
            &served(&cache),
        )
        .cites("C5"),
        Check::equal(
            Source::Formula,
            "... who are so many: those who leave before the load lands",
            &cache.errors(),
            &u64::from(late),
        )
        .cites("C5"),
        Check::equal(Source::Promise, "cache: nobody waits longer than it said", &knobs.patience, &cache.quantile(100))
            .cites("H28"),
    ];
    let summary = format!(
        "of {} callers who wait for {} each, a load of {} that is handed over served {} with {} loads; one that \
         goes on without them served {} with {}.",
        knobs.callers,
        say(knobs.patience),
        say(knobs.load),
        served(&handed_over),
        handed_over.origin.calls(),
        served(&cache),
        cache.origin.calls(),
    );
    Report {
        scenario: "impatient",
        seed: settings.seed,
        arms: vec![handed_over.arm("handed over"), cache.arm("cache")],
        span: knobs.apart * knobs.callers,
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, knobs: Knobs, cached: bool, tap: Tap) -> Callers<Tick> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(knobs.load)).tapped(tap);
    let (shelf, locks) = (Shelf::default(), Locks::default());
    let cache: Cache<&str, Tick, Down> = Cache::builder(&env).policy(Policy::new(TTL)).build();
    let tasks = (0..knobs.callers)
        .map(|id| {
            let (clock, shelf, locks, cache) = (env.clone(), shelf.clone(), locks.clone(), cache.clone());
            let load = load_by(&env, &origin, Some(Caller::of(id.into(), "/key").in_wave("ttl", 0)));
            env.spawn(async move {
                let env = clock.clone();
                clock.sleep(knobs.apart * id).await;
                let deadline = clock.now() + knobs.patience;
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
