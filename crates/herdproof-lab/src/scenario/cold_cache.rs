//! A cache is lost under full traffic.
//!
//! At a hit ratio of 99 % the origin sees one request in a hundred, and is built for a few of them. Then the cache is gone. The
//! origin is asked for a hundred times as much; what it serves after its callers have given up is stored by nobody; so the cache stays
//! empty, and nothing ends this but less traffic.
//!
//! With one load per key there are as many loads as keys, which are many less than requests, and each is kept whoever still waits
//! for it: the cache is warm when the origin has been through all keys once. That is as fast as it can be. What is left is the line
//! before the origin, in which all of them stand at once, and everything else that needs the origin behind them. A limit on loads
//! keeps the line short, and tells those who cannot be served at once instead of after their timeout. A gate before the cache lets in
//! as many lookups as make no more misses than the origin can serve; it cannot know which of them would be hits, so it turns away
//! some of those too, and pays only where the lookups themselves are what is scarce. And who can choose when to take traffic fills
//! the cache before.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Cache, Env, Sim, Tick,
    cache::{Keep, Policy},
    gate::{Ask, Gate},
    limit::Bulkhead,
    timeout::by,
    warm::ColdCache,
};

use super::{
    Scenario,
    readers::{Reads, Shelf},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Seen, Service, Unserved},
};

const SEC: Duration = Duration::from_secs(1);
const LOST: Duration = Duration::from_secs(5);
/// When it should all be over, and when the run ends.
const LATE: Duration = Duration::from_secs(25);
const END: Duration = Duration::from_secs(30);
const BIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Naive,
    Coalesced,
    Limited,
    Gated,
    Primed,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Naive, "check, then load"),
    (Way::Coalesced, "cache"),
    (Way::Limited, "cache, load_limit"),
    (Way::Gated, "cache, limit, cold gate"),
    (Way::Primed, "cache, limit, filled first"),
];

knobs! {
    /// Requests a second.
    requests: f64 = 1_000.0, 1.0..=3_000.0;
    /// How many keys they are for.
    keys: u64 = 500, 1..=20_000;
    /// How long a value is fresh.
    ttl: Duration = SEC * 50, SEC..=SEC * 3_600;
    /// How many calls the origin works on at a time.
    workers: usize = 5, 1..=100;
    /// How long it takes for one.
    service_time: Duration = Duration::from_millis(100), Duration::from_millis(1)..=SEC;
    /// How long a request waits.
    timeout: Duration = SEC, SEC / 10..=SEC * 10;
    /// How many loads may wait for their turn where they are limited.
    waiting: usize = 20, 0..=10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cold-cache",
    title: "a cache is lost under full traffic: it never fills again, or as fast as the origin can",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs = std::array::from_fn(|arm| Run::new(settings.seed, knobs, WAYS[arm].0, settings.tap(arm)));
    let [naive, coalesced, limited, gated, primed] = &runs;
    let (keys, capacity) = (knobs.keys, knobs.origin().capacity());
    let fill = keys as f64 / capacity;
    let misses = keys as f64 / knobs.ttl.as_secs_f64() / knobs.requests;
    let seconds = |run: &Run| run.recovered().map_or(f64::INFINITY, |after| after.as_secs_f64());
    let ours = [coalesced, limited, gated];
    let slowest = ours.iter().map(|run| seconds(run)).fold(0.0, f64::max);
    let longest_line = [limited, gated, primed].iter().map(|run| run.seen.longest_line).max().unwrap_or(0);
    let checks = vec![
        Check::within(
            Source::Article,
            "before: one request in a hundred comes to the origin (hit ratio 99 %)",
            misses,
            misses / 2.0,
            coalesced.calls_before() as f64 / coalesced.reads.between(Duration::ZERO, LOST).len() as f64,
        )
        .cites("N19")
        .cites("H20"),
        Check::within(
            Source::Article,
            "naive: in the second after, a hundred times the load",
            knobs.requests,
            0.15 * knobs.requests,
            naive.calls_after(SEC) as f64,
        )
        .cites("N19")
        .cites("H20"),
        Check::at_most(
            Source::Formula,
            format!(
                "naive: 25 s later only those are served who want what came in time, {:.0} keys of {keys} (%)",
                capacity * knobs.timeout.as_secs_f64()
            ),
            100.0 * (capacity * knobs.timeout.as_secs_f64() + knobs.workers as f64) / keys as f64 + 2.0,
            naive.at_end(),
        )
        .cites("H20"),
        Check::at_least(Source::Promise, "with the cache everybody is served again (%)", 99.0, {
            ours.iter().map(|run| run.at_end()).fold(100.0, f64::min)
        })
        .cites("T5"),
        Check::within(
            Source::Formula,
            format!("... when the origin has been through all keys once, {keys} / {capacity} a second (s)"),
            fill,
            0.4 * fill,
            slowest,
        )
        .cites("H20"),
        Check::at_most(
            Source::Formula,
            "one load per key: the line before the origin is no longer than there are keys",
            knobs.keys as f64,
            coalesced.seen.longest_line as f64,
        )
        .cites("T5"),
        // A call stands there for no time at all if a worker is free.
        Check::at_most(Source::Promise, "with the limit there is no line before the origin", 1.0, longest_line as f64)
            .cites("T27"),
        Check::at_most(
            Source::Promise,
            "with the limit those who are not served know it at once (median wait of the refused, ms)",
            0.0,
            limited.refused_wait().as_secs_f64() * 1e3,
        )
        .cites("T17"),
        Check::equal(Source::Promise, "filled first: nobody fails", &0, &{
            primed.reads.between(primed.opened, END).errors()
        })
        .cites("T29"),
    ];
    let summary = format!(
        "25 s after the loss {:.0} % are served without a remedy. With one load per key all are, after {:.0} s, with {} loads in the \
         line; with a limit after {:.0} s with none.",
        naive.at_end(),
        seconds(coalesced),
        coalesced.seen.longest_line,
        seconds(limited),
    );
    Report {
        scenario: "cold-cache",
        seed: settings.seed,
        parameters: vec![Parameter::new("filled first", "no traffic until then")],
        arms: WAYS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: END,
        marks: vec![Mark { at: LOST, what: "the cache is lost" }],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn origin(self) -> Plan {
        Plan::new(self.workers, self.service_time)
    }
}

struct Run {
    /// When it took traffic again.
    opened: Duration,
    seen: Seen,
    reads: Reads,
}

/// What all requests of a run share.
struct World {
    knobs: Knobs,
    env: Env,
    way: Way,
    service: Service,
    shelf: Shelf<u64>,
    cache: Cache<u64, Tick, Unserved>,
    gate: ColdCache,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let world = Arc::new(World::new(&env, knobs, way, tap));
        world.fill();
        let reads = Reads::default();
        let keys = env.rng("keys");
        let read = |id| {
            let (clock, reads, world, key) = (env.clone(), reads.clone(), Arc::clone(&world), keys.below(knobs.keys));
            env.spawn(async move { reads.read(&clock, world.get(id, key)).await }).detach();
        };
        let users = env.rng("users");
        sim.run(poisson(&env, &users, Tick::ZERO + LOST, |_| knobs.requests, read));
        world.shelf.clear();
        world.cache.clear();
        if way == Way::Primed {
            sim.run(world.prime());
        }
        let opened = env.now() - Tick::ZERO;
        sim.run(poisson(&env, &users, Tick::ZERO + END, |_| knobs.requests, read));
        sim.run_until(Tick::ZERO + END + knobs.timeout * 2);
        Run { opened, seen: world.service.seen(), reads }
    }

    fn calls(&self, from: Duration, to: Duration) -> u64 {
        let bin = |time: Duration| usize::try_from(time.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
        self.seen.calls.counts().iter().take(bin(to)).skip(bin(from)).sum()
    }

    fn calls_before(&self) -> u64 {
        self.calls(Duration::ZERO, LOST)
    }

    fn calls_after(&self, time: Duration) -> u64 {
        self.calls(LOST, LOST + time)
    }

    /// How many of a hundred are served in the last five seconds.
    fn at_end(&self) -> f64 {
        self.reads.between(LATE, END).percent_served()
    }

    /// How long after the loss everybody was served again: 99 of a hundred in every second from then on.
    fn recovered(&self) -> Option<Duration> {
        let good = |second: &u32| self.reads.between(SEC * *second, SEC * (*second + 1)).percent_served() >= 99.0;
        let end = u32::try_from(END.as_secs()).unwrap_or(0);
        let first = (0..end).rev().take_while(good).last()?;
        Some((SEC * first).max(self.opened).saturating_sub(LOST))
    }

    /// How long those who were not served waited to know it, half of them at most.
    fn refused_wait(&self) -> Duration {
        self.reads.all().unserved().quantile(50)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let after = self.reads.between(LOST, END);
        let never = END.saturating_sub(LOST);
        let figures = vec![
            Figure::count("calls", "calls", self.seen.calls.total()),
            Figure::count("wasted", "for nobody", self.seen.wasted),
            Figure::count("longest_line", "line", self.seen.longest_line as u64),
            Figure::number("served_percent", "served %", after.percent_served()),
            Figure::number("served_at_end_percent", "at end %", self.at_end()),
            Figure::time("recovered_ms", "recovered", self.recovered().unwrap_or(never)),
            Figure::time("refused_wait_ms", "refused in", self.refused_wait()),
        ];
        Arm::new(name, figures, self.seen.calls.clone()).waits(self.reads.all().waits())
    }
}

impl World {
    fn new(env: &Env, knobs: Knobs, way: Way, tap: Tap) -> World {
        let mut cache = Cache::builder(env).policy(Policy::new(knobs.ttl).load_timeout(knobs.timeout * 30));
        if !matches!(way, Way::Naive | Way::Coalesced) {
            let seats = u32::try_from(knobs.workers).unwrap_or(u32::MAX);
            cache = cache.load_limit(Bulkhead::new(env, seats).max_waiting(knobs.waiting));
        }
        World {
            knobs,
            env: env.clone(),
            way,
            service: Service::tapped(env, "origin", BIN, knobs.origin(), tap),
            shelf: Shelf::default(),
            cache: cache.build(),
            gate: ColdCache::new(env, knobs.origin().capacity()),
        }
    }

    /// As it is after some time: ten keys a second come to their end.
    fn fill(&self) {
        let (now, knobs) = (self.env.now(), self.knobs);
        for key in 0..knobs.keys {
            let left = knobs.ttl.mul_f64((key as f64 + 0.5) / knobs.keys as f64);
            self.shelf.put(key, now, now + left);
            self.cache.set_with(key, now, &Keep::ttl(left));
        }
    }

    /// Loads every key, no more at a time than the limit lets in.
    async fn prime(&self) {
        let Knobs { keys, workers, .. } = self.knobs;
        let seats = workers as u64;
        let fillers: Vec<_> = (0..seats)
            .map(|seat| {
                let (cache, service, env) = (self.cache.clone(), self.service.clone(), self.env.clone());
                self.env.spawn(async move {
                    for key in (seat..keys).step_by(workers) {
                        // What cannot be loaded now is loaded when somebody wants it.
                        drop(cache.get(&key, || load(&env, &service, seat, key)).await);
                    }
                })
            })
            .collect();
        for filler in fillers {
            filler.await.expect("a filler neither panics nor is aborted");
        }
    }

    async fn get(&self, id: u64, key: u64) -> Result<Tick, ()> {
        let World { knobs, env, way, service, shelf, cache, gate } = self;
        let deadline = env.now() + knobs.timeout;
        let load = load(env, service, id, key);
        if *way == Way::Naive {
            let get = shelf.get(env, key, knobs.ttl, load);
            return by(env, Some(deadline), get).await.and_then(Result::ok).ok_or(());
        }
        if *way != Way::Gated {
            return cache.get(&key, || load).by(deadline).await.map(|got| got.value).map_err(|_| ());
        }
        let mut lookup = gate.try_enter(&Ask::new(env)).map_err(|_| ())?;
        let mut missed = false;
        let get = cache.get(&key, || {
            missed = true;
            load
        });
        if missed {
            lookup.missed();
        } else {
            lookup.hit();
        }
        get.by(deadline).await.map(|got| got.value).map_err(|_| ())
    }
}

fn load(
    env: &Env,
    service: &Service,
    id: u64,
    key: u64,
) -> impl Future<Output = Result<Tick, Unserved>> + Send + use<> {
    let (env, service) = (env.clone(), service.clone());
    async move {
        // Before the loss keys come to their end one by one.
        let is_cold = env.now() >= Tick::ZERO + LOST;
        let caller = Caller::of(id, "/key").item(key).in_wave_if("cold", is_cold.then_some(0));
        service.call_from(caller).await?;
        Ok(env.now())
    }
}
