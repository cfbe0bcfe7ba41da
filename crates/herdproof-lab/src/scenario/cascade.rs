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
    timeout::by,
};

use super::{
    Scenario,
    readers::{Reads, Shelf, load_by},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Report, Source, say},
    slowdown::Slowdown,
};

const SEC: Duration = Duration::from_secs(1);
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

knobs! {
    /// Readers a second.
    readers: f64 = 100.0, 1.0..=500.0;
    /// How many more come at 10 s, when the key expires. The origin is slow at as many in flight.
    herd: u64 = 800, 2..=10_000;
    /// How long the origin takes for one load alone.
    load: Duration = Duration::from_millis(80), Duration::from_millis(1)..=SEC;
    /// How long among the herd; no less than alone.
    crowded: Duration = SEC * 5, Duration::from_millis(1)..=SEC * 60;
    /// How long the key is fresh.
    ttl: Duration = SEC * 5, SEC / 2..=SEC * 60;
    /// How long a try may take.
    timeout: Duration = SEC, SEC / 10..=SEC * 30;
    /// How often a reader tries.
    tries: u32 = 3, 1..=10;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cascade",
    title: "80 ms become 5 s under the load's own herd, and nothing ends it, or one load",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let law = knobs.law();
    let runs = std::array::from_fn(|arm| Run::new(settings.seed, knobs, WAYS[arm].0, settings.tap(arm)));
    let [patient, retrying, cache, grace] = &runs;
    // What the origin can serve at the largest crowd.
    let most = knobs.herd as f64 / law.time(knobs.herd).as_secs_f64();
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("{} at once: {} become {}", knobs.herd, say(knobs.load), say(knobs.crowded)),
            &(knobs.load, knobs.crowded),
            &(law.time(1), law.time(knobs.herd)),
        )
        .cites("N6")
        .cites("H4"),
        Check::at_least(
            Source::Article,
            "patient readers: the herd waits longer than that, as more come while it does (s)",
            knobs.crowded.as_secs_f64(),
            patient.in_herd().quantile(50).as_secs_f64(),
        )
        .cites("H4"),
        Check::equal(
            Source::Formula,
            "vulnerable: readers/s < what the origin can serve < readers/s x tries",
            &true,
            &(knobs.readers < most && most < knobs.readers * f64::from(knobs.tries)),
        )
        .cites("H4"),
        Check::at_least(Source::Formula, "before, the naive arms serve everybody (%)", 100.0, {
            patient.before().min(retrying.before())
        })
        .cites("H4"),
        Check::at_most(Source::Article, "timeouts and tries: 20 s later nobody is served (%)", 1.0, retrying.at_end())
            .cites("H4"),
        Check::equal(Source::Promise, "cache: never more than one load under way", &1, &cache.origin.peak_in_flight())
            .cites("T5"),
        Check::equal(Source::Promise, "cache: everybody is served", &0, &cache.reads.all().errors()).cites("T5"),
        Check::at_most(
            Source::Promise,
            "cache: nobody waits longer than for one load alone (ms)",
            knobs.load.as_secs_f64() * 1e3,
            cache.reads.all().quantile(100).as_secs_f64() * 1e3,
        )
        .cites("T5"),
        Check::equal(Source::Promise, "with grace: of the herd and all who come after, nobody waits at all", &0, &{
            grace.reads.between(SEC, END).waited()
        })
        .cites("T10"),
    ];
    let summary = format!(
        "20 s after one expiry with {} readers, {:.0} % of all readers were served; through the cache the same readers with the \
         same timeouts were {} calls instead of {}, and all were served within {:.0} ms.",
        knobs.herd,
        retrying.at_end(),
        cache.origin.calls(),
        retrying.origin.calls(),
        cache.reads.all().quantile(100).as_secs_f64() * 1e3,
    );
    Report {
        scenario: "cascade",
        seed: settings.seed,
        arms: WAYS.into_iter().zip(&runs).map(|((way, name), run)| run.arm(knobs.name(way, name))).collect(),
        marks: vec![Mark { at: EXPIRY, what: "the key expires" }],
        span: END,
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn law(self) -> Slowdown {
        Slowdown::alone(self.load).at(self.herd, self.crowded)
    }

    /// What an arm is called, whose usual name tells how many tries there are.
    fn name(self, way: Way, usual: &'static str) -> &'static str {
        match way {
            Way::Retrying if self.tries != 3 => "... timeout, tries",
            Way::Cache if self.tries != 3 => "cache, timeout, tries",
            _ => usual,
        }
    }
}

struct Run {
    origin: Origin,
    reads: Reads,
}

struct World {
    knobs: Knobs,
    env: Env,
    way: Way,
    origin: Origin,
    shelf: Shelf<&'static str>,
    cache: Cache<&'static str, Tick, Down>,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let origin = Origin::up(&env, BIN, knobs.law()).tapped(tap);
        let grace = if way == Way::CacheWithGrace { knobs.ttl } else { Duration::ZERO };
        let cache = Cache::builder(&env).policy(Policy::new(knobs.ttl).grace(grace)).build();
        let world =
            Arc::new(World { knobs, env: env.clone(), way, origin: origin.clone(), shelf: Shelf::default(), cache });
        let reads = Reads::default();
        let read = |id| {
            let (clock, reads, world) = (env.clone(), reads.clone(), Arc::clone(&world));
            env.spawn(async move { reads.read(&clock, world.get(id)).await }).detach();
        };
        let readers = env.rng("readers");
        sim.run(poisson(&env, &readers, Tick::ZERO + EXPIRY, |_| knobs.readers, read));
        sim.run_until(Tick::ZERO + EXPIRY);
        world.shelf.clear();
        world.cache.expire_tag(TAG, Duration::ZERO);
        (0..knobs.herd).for_each(read);
        sim.run(poisson(&env, &readers, Tick::ZERO + END, |_| knobs.readers, read));
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
        Arm::new(name, figures, self.origin.timeline()).waits(all.waits())
    }
}

impl World {
    /// In a wave with those of the same time to live, or with those who try again.
    fn load(&self, id: u64, attempt: u32) -> impl Future<Output = Result<Tick, Down>> + Send + use<> {
        let lives = (self.env.now() - Tick::ZERO).as_nanos() / self.knobs.ttl.as_nanos();
        let caller = Caller::of(id, "/key").in_wave("ttl", u32::try_from(lives).unwrap_or(u32::MAX)).trying(attempt);
        load_by(&self.env, &self.origin, Some(caller))
    }

    async fn get(&self, id: u64) -> Result<Tick, ()> {
        if self.way == Way::Patient {
            let load = self.load(id, 0);
            return self.shelf.get(&self.env, "key", self.knobs.ttl, load).await.map_err(|_| ());
        }
        for attempt in 0..self.knobs.tries {
            if let Some(value) = self.attempt(id, attempt).await {
                return Ok(value);
            }
        }
        Err(())
    }

    async fn attempt(&self, id: u64, attempt: u32) -> Option<Tick> {
        let World { knobs, env, way, shelf, cache, .. } = self;
        let deadline = env.now() + knobs.timeout;
        let load = self.load(id, attempt);
        if *way == Way::Retrying {
            return by(env, Some(deadline), shelf.get(env, "key", knobs.ttl, load)).await?.ok();
        }
        let get = cache.get_with(&"key", |_| async { Ok(Load::With(load.await?, Keep::tagged(TAG))) });
        get.by(deadline).await.ok().map(|got| got.value)
    }
}
