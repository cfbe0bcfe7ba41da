//! Eighty milliseconds become five seconds, and then nothing ends it.
//!
//! The origin answers in 80 ms alone and in 5 s among 800. A hot key expires while 800 readers want it, and everybody else goes on
//! wanting it too. Whoever is patient makes it worse for a while: the crowd that waits slows down the one load that would end it.
//! Whoever is not makes it worse for good. A load that is given up is worked on to its end and stored by nobody, and the reader asks again:
//! three tries are three times the load, which is more than the origin can serve at any crowd. So the key is never there, nobody is
//! served, and everybody asks three times, long after the 800 have left.
//!
//! With the cache the same readers, with the same timeout and the same tries, are one load of 80 ms. Its crowd is one.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Cache, Env, Sim, Tick,
    cache::{Keep, Load, Policy},
    retry::by,
};

use super::{
    Scenario, Settings,
    readers::{Reads, Shelf, load},
};
use crate::{
    arrivals::poisson,
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Parameter, Report, Source},
    slowdown::Slowdown,
};

const SEC: Duration = Duration::from_secs(1);
/// Readers a second.
const RATE: f64 = 100.0;
const HERD: u64 = 800;
const ALONE: Duration = Duration::from_millis(80);
const LAW: Slowdown = Slowdown::alone(ALONE).at(800, Duration::from_secs(5));
const TTL: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = SEC;
const TRIES: u32 = 3;
/// When the key expires and the herd comes.
const EXPIRY: Duration = Duration::from_secs(10);
/// When it should all be over, and when the run ends.
const LATE: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(40);
const BIN: Duration = Duration::from_millis(100);
const TAG: &str = "odds";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Check, then load, and wait as long as it takes.
    Patient,
    /// Check, then load, with a timeout and tries.
    Retrying,
    Cache,
    CacheWithGrace,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Patient, "check, then load"),
    (Way::Retrying, "... timeout, 3 tries"),
    (Way::Cache, "cache, timeout, 3 tries"),
    (Way::CacheWithGrace, "... and grace"),
];

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cascade",
    title: "80 ms become 5 s under the load's own herd, and nothing ends it, or one load",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let runs = WAYS.map(|(way, _)| Run::new(settings.seed, way));
    let [patient, retrying, cache, grace] = &runs;
    // What the origin can serve at the largest crowd.
    let most = HERD as f64 / LAW.time(HERD).as_secs_f64();
    let checks = vec![
        Check::equal(
            Source::Article,
            "800 at once: 80 ms become 5 s",
            &(ALONE, SEC * 5),
            &(LAW.time(1), LAW.time(HERD)),
        ),
        Check::at_least(
            Source::Article,
            "patient readers: the herd waits longer than that, as more come while it does (s)",
            5.0,
            patient.in_herd().quantile(50).as_secs_f64(),
        ),
        Check::equal(
            Source::Formula,
            "vulnerable: readers/s < what the origin can serve < readers/s x tries",
            &true,
            &(RATE < most && most < RATE * f64::from(TRIES)),
        ),
        Check::at_least(Source::Formula, "before, the naive arms serve everybody (%)", 100.0, {
            patient.before().min(retrying.before())
        }),
        Check::at_most(Source::Article, "timeouts and tries: 20 s later nobody is served (%)", 1.0, retrying.at_end()),
        Check::equal(Source::Promise, "cache: never more than one load under way", &1, &cache.origin.peak_in_flight()),
        Check::equal(Source::Promise, "cache: everybody is served", &0, &cache.reads.all().errors()),
        Check::at_most(
            Source::Promise,
            "cache: nobody waits longer than for one load alone (ms)",
            ALONE.as_secs_f64() * 1e3,
            cache.reads.all().quantile(100).as_secs_f64() * 1e3,
        ),
        Check::equal(Source::Promise, "with grace: of the herd and all who come after, nobody waits at all", &0, &{
            grace.reads.between(SEC, END).waited()
        }),
    ];
    let summary = format!(
        "20 s after one expiry with {HERD} readers, {:.0} % of all readers were served; through the cache the same readers with the \
         same timeouts were {} calls instead of {}, and all were served within {:.0} ms.",
        retrying.at_end(),
        cache.origin.calls(),
        retrying.origin.calls(),
        cache.reads.all().quantile(100).as_secs_f64() * 1e3,
    );
    Report {
        scenario: "cascade",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("readers/s", RATE),
            Parameter::new("herd", format!("{HERD} at {EXPIRY:?}, when the key expires")),
            Parameter::new("origin", LAW),
            Parameter::new("ttl", format!("{TTL:?}")),
            Parameter::new("timeout", format!("{TIMEOUT:?}")),
            Parameter::new("tries", TRIES),
        ],
        arms: WAYS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: END,
        checks,
        summary,
        ..Report::default()
    }
}

struct Run {
    origin: Origin,
    reads: Reads,
}

struct World {
    env: Env,
    way: Way,
    origin: Origin,
    shelf: Shelf<&'static str>,
    cache: Cache<&'static str, Tick, Down>,
}

impl Run {
    fn new(seed: u64, way: Way) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let origin = Origin::up(&env, BIN, LAW);
        let grace = if way == Way::CacheWithGrace { TTL } else { Duration::ZERO };
        let cache = Cache::builder(&env).policy(Policy::new(TTL).grace(grace)).build();
        let world = Arc::new(World { env: env.clone(), way, origin: origin.clone(), shelf: Shelf::default(), cache });
        let reads = Reads::default();
        let read = |_| {
            let (clock, reads, world) = (env.clone(), reads.clone(), Arc::clone(&world));
            env.spawn(async move { reads.read(&clock, world.get()).await }).detach();
        };
        let readers = env.rng("readers");
        sim.run(poisson(&env, &readers, Tick::ZERO + EXPIRY, |_| RATE, read));
        sim.run_until(Tick::ZERO + EXPIRY);
        world.shelf.clear();
        world.cache.expire_tag(TAG, Duration::ZERO);
        (0..HERD).for_each(read);
        sim.run(poisson(&env, &readers, Tick::ZERO + END, |_| RATE, read));
        // Those who are under way, if they ever come to an end.
        sim.run_until(Tick::ZERO + END * 2);
        Run { origin, reads }
    }

    fn before(&self) -> f64 {
        self.reads.between(Duration::ZERO, EXPIRY).percent_served()
    }

    /// Those who came with the herd.
    fn in_herd(&self) -> super::readers::Crowd {
        self.reads.between(EXPIRY, EXPIRY + Duration::from_nanos(1))
    }

    /// How many of a hundred are served of those who come in the last ten seconds.
    fn at_end(&self) -> f64 {
        self.reads.between(LATE, END).percent_served()
    }

    fn arm(&self, name: &'static str) -> Arm {
        let all = self.reads.all();
        let figures = vec![
            Figure::count("calls", "calls", self.origin.calls()),
            Figure::count("peak_in_flight", "in flight", self.origin.peak_in_flight()),
            Figure::time("herd_p50_ms", "herd p50", self.in_herd().quantile(50)),
            Figure::time("p99_ms", "p99", all.quantile(99)),
            Figure::number("served_before_percent", "before %", self.before()),
            Figure::number("served_percent", "after %", self.reads.between(EXPIRY, END).percent_served()),
            Figure::number("served_at_end_percent", "at end %", self.at_end()),
        ];
        Arm::new(name, figures, self.origin.timeline())
    }
}

impl World {
    async fn get(&self) -> Result<Tick, ()> {
        if self.way == Way::Patient {
            let load = load(&self.env, &self.origin);
            return self.shelf.get(&self.env, "key", TTL, load).await.map_err(|_| ());
        }
        for _ in 0..TRIES {
            if let Some(value) = self.attempt().await {
                return Ok(value);
            }
        }
        Err(())
    }

    async fn attempt(&self) -> Option<Tick> {
        let World { env, way, origin, shelf, cache } = self;
        let deadline = env.now() + TIMEOUT;
        let load = load(env, origin);
        if *way == Way::Retrying {
            return by(env, Some(deadline), shelf.get(env, "key", TTL, load)).await?.ok();
        }
        let get = cache.get_with(&"key", |_| async { Ok(Load::With(load.await?, Keep::tagged(TAG))) });
        get.by(deadline).await.ok().map(|got| got.value)
    }
}
