//! A key that is missing on every node, and everybody who wants it.
//!
//! Check, then load, and everybody loads: N callers make N loads, or, where they come at random, one and as many as come
//! while the first loads (`1 + lambda x d`). A mutex for each key in each node brings that down to one for each node, and so
//! does the cache; what differs is the day on which the origin fails. Then whoever waited for the mutex finds nothing and
//! loads in turn, one after another, and the last of them waits for all. The cache has asked once, and everybody knows.
//!
//! One load for the whole fleet takes a second tier with a lease: that is `fleet-stampede`.

use std::time::Duration;

use herdproof::{Cache, Sim, Tick, cache::Policy};

use super::{
    Scenario,
    callers::{Callers, timed},
    readers::{Locks, Shelf, load, load_by},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Check, Figure, Mark, Parameter, Report, Source, say},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(60);
const BIN: Duration = Duration::from_millis(10);
/// The example of the XFetch paper: ten a second, and a load of three.
const RATE: f64 = 10.0;
const LOAD: Duration = Duration::from_secs(3);
/// Claims about chance are put to the seeds from zero up to this, whatever the run's own seed.
const SEEDS: u64 = 200;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    CheckThenLoad,
    Mutex,
    Cache,
}

const WAYS: [Way; 3] = [Way::CheckThenLoad, Way::Mutex, Way::Cache];

knobs! {
    /// How many want the key at one instant, as many on each node. The origin is slow at as many in flight.
    callers: u64 = 800, 1..=20_000;
    /// How many nodes have a cache of their own. There is at least one caller on each.
    nodes: u64 = 10, 1..=1_000;
    /// How long the origin takes for one load alone.
    load: Duration = MS * 80, MS..=MS * 10_000;
    /// How long with everybody's load in flight; no less than alone.
    crowded: Duration = MS * 5_000, MS..=MS * 60_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "stampede",
    title: "a key is missing on every node: everybody loads it, or one on each node does",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let (nodes, law) = (knobs.nodes, knobs.law());
    let fleet = [0, 1, 2].map(|arm| herd(seed, knobs, WAYS[arm], nodes, false, settings.tap(arm)));
    let alone = WAYS.map(|way| herd(seed, knobs, way, 1, false, Tap::default()));
    let failing = WAYS.map(|way| herd(seed, knobs, way, nodes, true, Tap::default()));
    let callers = knobs.each_of(nodes) * nodes;
    let calls = |callers: &[Callers<Tick>; 3]| callers.each_ref().map(|callers| callers.origin.calls());
    let [_, mutex, cache] = &failing;
    // A load that fails takes as long as one that does not: there are never more than one for each node under way.
    let one_by_one = law.time(nodes) * u32::try_from(knobs.each_of(nodes)).unwrap_or(u32::MAX);
    let (naive_mean, error) = mean(&(0..SEEDS).map(|seed| at_random(seed, false)).collect::<Vec<_>>());
    let checks = vec![
        Check::equal(
            Source::Article,
            "one node: loads by check-then-load, mutex, cache",
            &[knobs.callers, 1, 1],
            &calls(&alone),
        )
        .cites("N5")
        .cites("H3")
        .cites("T6"),
        Check::equal(Source::Formula, "on all nodes: one load for each node", &[callers, nodes, nodes], &calls(&fleet))
            .cites("H3")
            .cites("T5"),
        Check::within(
            Source::Article,
            "cache: collapse ratio, callers for each load (target: 50 to 500)",
            275.0,
            225.0,
            callers as f64 / fleet[2].origin.calls() as f64,
        )
        .cites("N8")
        .cites("T5"),
        Check::equal(
            Source::Article,
            format!("check-then-load: {} become {}", say(knobs.load), say(knobs.crowded)),
            &law.time(callers),
            &fleet[0].quantile(50),
        )
        .cites("N6")
        .cites("H4"),
        Check::equal(
            Source::Article,
            format!("one node, cache: everybody has it after {}", say(knobs.load)),
            &knobs.load,
            &alone[2].quantile(100),
        )
        .cites("N5"),
        Check::equal(
            Source::Formula,
            "the origin fails: loads by check-then-load, mutex, cache",
            &[callers, callers, nodes],
            &calls(&failing),
        )
        .cites("C8")
        .cites("H27"),
        Check::equal(Source::Formula, "mutex: the last is told after every load of its node", &one_by_one, &{
            mutex.quantile(100)
        })
        .cites("C8")
        .cites("T6"),
        Check::equal(Source::Promise, "cache: everybody is told after one", &law.time(nodes), &cache.quantile(100))
            .cites("T5"),
        Check::within(
            Source::Formula,
            format!("10 callers a second, load 3 s: 1 + 30 loads (XFetch paper: 30), mean of {SEEDS}"),
            1.0 + RATE * LOAD.as_secs_f64(),
            3.0 * error,
            naive_mean,
        )
        .cites("XFetch 2015")
        .cites("H3"),
        Check::equal(Source::Promise, "... through the cache", &1, &at_random(seed, true)).cites("T5"),
    ];
    let summary = format!(
        "{callers} callers on {nodes} nodes made {} loads without a remedy and {} with the cache, one for each node; when the \
         origin failed, a mutex for each key made {}, and the last caller was told after {:.1} s instead of {:.2}.",
        fleet[0].origin.calls(),
        fleet[2].origin.calls(),
        mutex.origin.calls(),
        mutex.quantile(100).as_secs_f64(),
        cache.quantile(100).as_secs_f64(),
    );
    let names = ["check, then load", "mutex per node and key", "cache per node"];
    let arms = names.into_iter().zip(&fleet).zip(&failing).map(|((name, callers), failing)| {
        let mut arm = callers.arm(name);
        arm.figures.push(Figure::count("calls_if_origin_fails", "if it fails", failing.origin.calls()));
        arm.figures.push(Figure::time("max_if_origin_fails_ms", "known after", failing.quantile(100)));
        arm
    });
    Report {
        scenario: "stampede",
        seed,
        parameters: vec![Parameter::new("second tier", "none; see fleet-stampede")],
        arms: arms.collect(),
        span: fleet[0].quantile(100),
        marks: vec![Mark { at: Duration::ZERO, what: "the key is missing" }],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn law(self) -> Slowdown {
        Slowdown::alone(self.load).at(self.callers, self.crowded)
    }

    /// How many callers there are on each of so many nodes.
    fn each_of(self, nodes: u64) -> u64 {
        (self.callers / nodes).max(1)
    }
}

/// Callers who all want one key at the same instant, spread over the nodes.
fn herd(seed: u64, knobs: Knobs, way: Way, nodes: u64, fails: bool, tap: Tap) -> Callers<Tick> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let mut origin = Origin::up(&env, BIN, knobs.law()).tapped(tap);
    if fails {
        origin = origin.failing(u64::MAX);
    }
    let mut tasks = Vec::new();
    for node in 0..nodes {
        let env = env.scope(node);
        let (shelf, locks) = (Shelf::default(), Locks::default());
        let cache: Cache<&str, Tick, Down> = Cache::builder(&env).policy(Policy::new(TTL)).build();
        for caller in 0..knobs.each_of(nodes) {
            let (clock, shelf, locks, cache) = (env.clone(), shelf.clone(), locks.clone(), cache.clone());
            let caller = Caller::of(node * knobs.each_of(nodes) + caller, "/odds").item(42).in_wave("ttl", 0);
            let load = load_by(&env, &origin, Some(caller));
            let call = async move {
                match way {
                    Way::CheckThenLoad => shelf.get(&clock, "odds/42", TTL, load).await.map_err(|_| ()),
                    Way::Mutex => locks.get(&clock, &shelf, "odds/42", TTL, load).await.map_err(|_| ()),
                    Way::Cache => cache.get(&"odds/42", || load).await.map(|got| got.value).map_err(|_| ()),
                }
            };
            tasks.push(env.spawn(timed(env.clone(), call)));
        }
    }
    Callers::gather(&mut sim, &origin, tasks)
}

/// How many loads callers make who come at random while the key is missing.
fn at_random(seed: u64, cached: bool) -> u64 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(LOAD));
    let shelf = Shelf::default();
    let cache: Cache<&str, Tick, Down> = Cache::builder(&env).policy(Policy::strict(TTL)).build();
    let call = || {
        let (clock, shelf, cache, load) = (env.clone(), shelf.clone(), cache.clone(), load(&env, &origin));
        let call = async move {
            if cached {
                cache.get(&"key", || load).await.is_ok()
            } else {
                shelf.get(&clock, "key", TTL, load).await.is_ok()
            }
        };
        env.spawn(call).detach();
    };
    // The first finds it missing; the others come as they please.
    call();
    sim.run(poisson(&env, &env.rng("callers"), Tick::ZERO + LOAD * 2, |_| RATE, |_| call()));
    origin.calls()
}

/// The mean, and its standard error.
fn mean(counts: &[u64]) -> (f64, f64) {
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<u64>() as f64 / n;
    let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}
