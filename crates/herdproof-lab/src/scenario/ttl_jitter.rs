//! A thousand caches that expire together, and what jitter does for them. And where it does nothing.
//!
//! Jitter on the time to live helps where there is more than one expiry to move: the same key in the caches of a thousand servers,
//! or a thousand keys in one cache. A thousand loads in a second become `N / J` a second. And as each cycle adds its own jitter,
//! the crowd drifts further apart: after `k` cycles its deviation is `J sqrt(k / 12)`.
//!
//! corrects: the same advice for one key in one shared cache, such as Redis. There is one expiry, and whenever it comes, everybody
//! misses. Jitter moves the stampede and does not make it smaller; nor does a longer time to live. That takes one load for all.
//!
//! The library takes its jitter from the time to live (240 to 300 s); the article adds it (300 to 360 s). Nothing depends on that
//! but that nothing is kept for longer than it was said to be. Early refresh is off here, so that jitter is seen alone.

use std::{sync::Arc, time::Duration};

use herdproof::{Cache, Env, Sim, Tick, cache::Policy};
use parking_lot::Mutex;

use super::{
    Scenario,
    readers::{Shelf, load_by},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, say},
    slowdown::Slowdown,
};

const SEC: Duration = Duration::from_secs(1);
/// Everybody reads once a second, each at its own phase of it.
const EVERY: Duration = SEC;
/// Cycles for the drift, and servers.
const CYCLES: u32 = 4;
const DRIFTING: u32 = 250;

/// What expires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// One key in the cache of each server.
    EachServer,
    /// As many keys in one cache.
    ManyKeys,
    /// One key in one cache for all servers, by check-then-load.
    SharedNaively,
    /// One key in one cache for all.
    Shared,
}

knobs! {
    /// How many servers have the key in a cache of their own, or how many keys one cache has.
    servers: u32 = 1_000, 1..=5_000;
    /// How long an entry is fresh at most.
    ttl: Duration = SEC * 300, SEC * 10..=SEC * 3_600;
    /// By how much that differs, down from it: no more than nine tenths.
    jitter: Duration = SEC * 60, Duration::ZERO..=SEC * 300;
    /// How long a load takes.
    load: Duration = SEC, SEC / 100..=SEC * 10;
    /// What the database can serve in a second.
    database: u64 = 50, 1..=100_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "ttl-jitter",
    title: "jitter on the TTL: it parts a thousand caches or keys, and does nothing for one shared key",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let one_cycle = Trial { readers: knobs.servers, cycles: 1 };
    let herd = |place, ttl, jitter, tap| herd(settings.seed, knobs, one_cycle, place, ttl, jitter, tap);
    // The arms are in pairs, without jitter and with it.
    let places = [Where::EachServer, Where::ManyKeys, Where::SharedNaively];
    let [each, keys, naive] = settings.arms(&places, |pair, place| {
        [false, true].map(|jitter| herd(*place, knobs.ttl, jitter, settings.tap(2 * pair + usize::from(jitter))))
    });
    let shared = herd(Where::Shared, knobs.ttl, true, settings.tap(6));
    let longer = herd(Where::EachServer, knobs.ttl * 2, false, Tap::default());
    let moved = [SEC * 60, SEC * 600].map(|ttl| herd(Where::EachServer, ttl, false, Tap::default()));
    let peak = |runs: &[Run; 2]| runs.each_ref().map(Run::peak);
    let all = u64::from(knobs.servers);
    let per_second = f64::from(knobs.servers) / knobs.jitter.as_secs_f64();
    // Five deviations of a Poisson count: more than its largest in a minute, wherever seconds begin.
    let highest = per_second + 5.0 * per_second.sqrt();
    let mut checks = vec![
        Check::equal(Source::Article, "each server its cache, no jitter: loads in one second", &all, &each[0].peak())
            .cites("N9")
            .cites("H5"),
        Check::equal(Source::Article, "... with twice the TTL", &all, &longer.peak()).cites("H5"),
        Check::within(
            Source::Article,
            format!("{} of jitter: a second (article: ~16)", say(knobs.jitter)),
            per_second,
            1.0,
            each[1].mean(),
        )
        .cites("N10")
        .cites("T9"),
        Check::at_most(Source::Formula, "... in the worst second", highest, each[1].peak() as f64).cites("T9"),
        Check::at_most(
            Source::Article,
            format!("... and the database can serve {}", knobs.database),
            knobs.database as f64,
            each[1].peak() as f64,
        )
        .cites("N9")
        .cites("T9"),
        Check::equal(Source::Formula, "as many keys in one cache, no jitter", &all, &keys[0].peak()).cites("H5"),
        Check::at_most(Source::Formula, "... with jitter, in the worst second", highest, keys[1].peak() as f64)
            .cites("T9"),
        Check::equal(
            Source::Formula,
            "one shared key: jitter changes nothing (article: it helps)",
            &[all; 2],
            &peak(&naive),
        )
        .cites("H3")
        .cites("T9"),
        Check::equal(Source::Promise, "... through the cache: one load", &1, &shared.calls.len()).cites("T5"),
    ];
    checks.extend(longer_lives(all, knobs, &moved));
    let drift = self::herd(
        settings.seed,
        knobs,
        Trial { readers: DRIFTING, cycles: CYCLES },
        Where::EachServer,
        knobs.ttl,
        true,
        Tap::default(),
    );
    for cycle in [1, CYCLES] {
        let deviation = knobs.jitter.as_secs_f64() * (f64::from(cycle) / 12.0).sqrt();
        let what = format!("servers drift apart: deviation after k = {cycle} cycles, J sqrt(k/12) (s)");
        let error = 4.0 * deviation / (2.0 * f64::from(DRIFTING)).sqrt();
        checks.push(Check::within(Source::Formula, what, deviation, error, drift.deviation(cycle)).cites("T9"));
    }
    let summary = format!(
        "{} of jitter turn {} loads in a second into {} for {servers} servers and {} for {servers} keys; for one shared key it \
         is {} without and {} with, and {} through the cache.",
        say(knobs.jitter),
        each[0].peak(),
        each[1].peak(),
        keys[1].peak(),
        naive[0].peak(),
        naive[1].peak(),
        shared.calls.len(),
        servers = if knobs.servers == 1_000 { "a thousand".to_owned() } else { knobs.servers.to_string() },
    );
    let [plain_keys, jittered_keys] = knobs.keys();
    Report {
        scenario: "ttl-jitter",
        seed: settings.seed,
        parameters: vec![Parameter::new("reads", "one a second by each server, or of each key")],
        arms: vec![
            each[0].arm("each server its cache"),
            each[1].arm("each server, with jitter"),
            keys[0].arm(plain_keys),
            keys[1].arm(jittered_keys),
            naive[0].arm("one shared key"),
            naive[1].arm("one shared key, with jitter"),
            shared.arm("one shared key, through the cache"),
        ],
        span: knobs.ttl + knobs.load * 2,
        marks: vec![Mark { at: knobs.load + knobs.ttl, what: "the time to live is over" }],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// What the arms with many keys are called.
    fn keys(self) -> [&'static str; 2] {
        match self.servers {
            1_000 => ["a thousand keys", "a thousand keys, with jitter"],
            _ => ["as many keys", "as many keys, with jitter"],
        }
    }
}

/// With 60 s, and with ten minutes: what one would set first.
fn longer_lives(all: u64, knobs: Knobs, moved: &[Run; 2]) -> Vec<Check> {
    vec![
        Check::equal(
            Source::Article,
            "no jitter, 60 s or 10 min: as many in one second",
            &[all; 2],
            &moved.each_ref().map(Run::peak),
        )
        .cites("N25")
        .cites("H5"),
        Check::equal(
            Source::Article,
            "... only when it comes is another matter",
            &[SEC * 60, SEC * 600],
            &moved.each_ref().map(|run| run.first().saturating_sub(knobs.load)),
        )
        .cites("N25"),
    ]
}

/// How many read, and how often each wants something new.
#[derive(Clone, Copy)]
struct Trial {
    readers: u32,
    cycles: u32,
}

struct Run {
    origin: Origin,
    /// When loads began, but for those that filled the caches.
    calls: Vec<Tick>,
    /// When each reader had something new, each time.
    news: Vec<Vec<Tick>>,
}

fn herd(seed: u64, knobs: Knobs, trial: Trial, place: Where, ttl: Duration, jitter: bool, tap: Tap) -> Run {
    let Trial { readers, cycles } = trial;
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, SEC, Slowdown::alone(knobs.load)).tapped(tap);
    let share = if jitter { (knobs.jitter.as_secs_f64() / ttl.as_secs_f64()).min(0.9) } else { 0.0 };
    let policy = Policy::strict(ttl).jitter(share);
    let cache = |env: &Env, entries| {
        Cache::builder(env).capacity(entries).policy(policy.clone()).sweep(knobs.ttl * 100).build()
    };
    let common: Cache<u32, Tick, Down> = cache(&env, knobs.servers as usize * 2);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let rng = env.rng("redis");
    let shelf = Naive { shelf: Shelf::default(), ttl: ttl.mul_f64(1.0 - share * rng.unit()) };
    let readers: Vec<_> = (0..readers)
        .map(|id| {
            let env = env.scope(u64::from(id));
            let (kept, key) = match place {
                Where::EachServer => (Kept::Cache(cache(&env, 16)), 0),
                Where::ManyKeys => (Kept::Cache(common.clone()), id),
                Where::Shared => (Kept::Cache(common.clone()), 0),
                Where::SharedNaively => (Kept::Naive(shelf.clone()), 0),
            };
            let reader = Reader {
                id: u64::from(id),
                env: env.clone(),
                origin: origin.clone(),
                calls: Arc::clone(&calls),
                kept,
                key,
                load: knobs.load,
            };
            env.spawn(reader.run(EVERY * id / knobs.servers, ttl.mul_f64(1.0 - share), cycles))
        })
        .collect();
    let news = sim.run(async {
        let mut news = Vec::new();
        for reader in readers {
            news.push(reader.await.expect("a reader neither panics nor is aborted"));
        }
        news
    });
    let first = Tick::ZERO + knobs.load;
    let calls = calls.lock().iter().copied().filter(|at| *at > first).collect();
    Run { origin, calls, news }
}

enum Kept {
    Cache(Cache<u32, Tick, Down>),
    Naive(Naive),
}

/// A shared cache without any protection. The jitter was drawn when the value was stored.
#[derive(Clone)]
struct Naive {
    shelf: Shelf<u32>,
    ttl: Duration,
}

struct Reader {
    id: u64,
    env: Env,
    origin: Origin,
    calls: Arc<Mutex<Vec<Tick>>>,
    kept: Kept,
    key: u32,
    /// How long a load takes.
    load: Duration,
}

impl Reader {
    /// Reads once a second, from the time on at which there may be something to load, until it has got something new so often.
    /// All fill their caches at once; after that each reads at its own phase.
    async fn run(self, phase: Duration, shortest: Duration, cycles: u32) -> Vec<Tick> {
        let mut known = self.read(0).await;
        let mut at = Tick::ZERO + phase + self.load + shortest;
        let mut news = Vec::new();
        while news.len() < cycles as usize {
            self.env.sleep_until(at).await;
            let value = self.read(1 + u32::try_from(news.len()).unwrap_or(u32::MAX)).await;
            let new = value != known;
            if new {
                news.push(at);
                known = value;
            }
            at = at + if new { self.load + shortest } else { EVERY };
        }
        news
    }

    /// Reads, and loads if there is nothing fresh: in the wave that fills the caches (zero) or a later one.
    async fn read(&self, wave: u32) -> Tick {
        let Reader { id, env, origin, calls, kept, key, .. } = self;
        let caller = Caller::of(*id, "/value").item(u64::from(*key)).in_wave("ttl", wave);
        let (calls, clock, load) = (Arc::clone(calls), env.clone(), load_by(env, origin, Some(caller)));
        let load = async move {
            calls.lock().push(clock.now());
            load.await
        };
        let value = match kept {
            Kept::Cache(cache) => cache.get(key, || load).await.map(|got| got.value).map_err(|_| Down),
            Kept::Naive(Naive { shelf, ttl }) => shelf.get(env, *key, *ttl, load).await,
        };
        value.expect("the origin is up")
    }
}

impl Run {
    /// The most loads within a second.
    fn peak(&self) -> u64 {
        let mut from = 0;
        let within = |(to, at): (usize, &Tick)| {
            while *at - self.calls[from] >= SEC {
                from += 1;
            }
            to + 1 - from
        };
        self.calls.iter().enumerate().map(within).max().unwrap_or(0) as u64
    }

    /// When the first load began.
    fn first(&self) -> Duration {
        self.calls.first().map_or(Duration::ZERO, |at| *at - Tick::ZERO)
    }

    /// Loads a second, from the first to the last.
    fn mean(&self) -> f64 {
        match &self.calls[..] {
            [first, .., last] => self.calls.len() as f64 / (*last - *first).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// By how much the servers' loads of this cycle are apart, as a standard deviation in seconds.
    fn deviation(&self, cycle: u32) -> f64 {
        let at: Vec<f64> = self.news.iter().map(|at| (at[cycle as usize - 1] - Tick::ZERO).as_secs_f64()).collect();
        let mean = at.iter().sum::<f64>() / at.len() as f64;
        (at.iter().map(|at| (at - mean).powi(2)).sum::<f64>() / at.len() as f64).sqrt()
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("loads", "loads", self.calls.len() as u64),
            Figure::count("peak_per_second", "peak/s", self.peak()),
        ];
        Arm::new(name, figures, self.origin.timeline())
    }
}
