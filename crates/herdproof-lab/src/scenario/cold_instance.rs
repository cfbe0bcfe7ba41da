//! A new instance with an empty cache gets its full share, collapses, is restarted, and gets its full share again.
//!
//! Each instance answers from a cache of its own, and what it misses it asks its database for over a few connections. Warm,
//! it hardly needs them. Cold, everything is a miss, which is twice what the connections can do. The line before them grows
//! until callers give up; what is found for somebody who has gone is not kept, so the cache stays empty and nothing gets
//! better by itself. Then the health check fails, the instance is restarted, and it is as cold as before.
//!
//! Two pools: one new instance beside nine warm ones, and one that is new altogether, as after a deploy.
//!
//! - Slow start gives the new one a share that grows. A window that is too short is none; how long it has to be depends on
//!   the cache and on the connections. Where everybody is new the weights are equal and cancel out, so the pool's limit
//!   has to come down as well. One that is fixed would have to be small enough for cold instances.
//! - A readiness that opens refuses by a share that grows, and the balancer asks another instance. Where there is none that
//!   is warm, callers are told when to come back.
//! - A gate that is tied to what the connections can do needs no window. It fills the cache as fast as that goes.
//!
//! A caller that is refused twice is counted and does not come back here. Hits are answered at once.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Gate},
    timeout::by,
    warm::{ColdCache, Lookup, Opening, SlowStart},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(62);

/// What keeps a new instance from getting all of its share.
#[derive(Clone, Copy)]
struct Way {
    knobs: Knobs,
    weights: Option<SlowStart>,
    limit: Option<SlowStart>,
    door: Kind,
}

/// Which of the doors it is.
#[derive(Clone, Copy)]
enum Kind {
    None,
    Opening,
    Cold,
}

/// What stands before an instance's cache.
enum Door {
    None,
    Opening(Opening),
    Cold(ColdCache),
}

impl Way {
    fn door(&self, env: &Env) -> Door {
        match self.door {
            Kind::None => Door::None,
            Kind::Opening => Door::Opening(Opening::new(env, SlowStart::over(WINDOW))),
            Kind::Cold => Door::Cold(ColdCache::new(env, self.knobs.misses())),
        }
    }
}

impl Knobs {
    /// What the gate of a cold cache is told: what the connections can do, less a tenth for health checks and chance.
    fn misses(self) -> f64 {
        0.9 * Plan::new(self.connections, self.query).capacity()
    }
}

/// What came of a pool.
struct Outcome {
    failed: u64,
    refused: u64,
    restarts: u64,
    /// When the last instance had nine tenths of the keys; `None` if one had not in the end.
    warm: Option<Duration>,
    /// What the new instances asked their databases for.
    misses: Vec<u64>,
}

knobs! {
    /// Calls a second that are one instance's share.
    share: f64 = 100.0, 1.0..=500.0;
    /// How many keys they are for.
    keys: u64 = 1_000, 1..=20_000;
    /// How many connections an instance has to its database.
    connections: usize = 2, 1..=100;
    /// How long a query takes.
    query: Duration = SECOND / 25, SECOND / 1_000..=SECOND * 2;
    /// How long a call may take.
    timeout: Duration = SECOND, SECOND / 100..=SECOND * 30;
    /// After how many failed health checks, one a second, an instance is restarted.
    unhealthy: u32 = 3, 1..=100;
    /// How long that takes.
    restart: Duration = SECOND * 5, Duration::ZERO..=SECOND * 60;
    /// What a pool may have under way when it is warm. Far more than it ever has, as such limits are.
    limit: u32 = 300, 1..=100_000;
    /// How many warm instances there are beside one that is new.
    warm_ones: u32 = 9, 0..=50;
    /// How many there are where all are new.
    all_new: usize = 5, 1..=20;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cold-instance",
    title: "a new instance gets its full share, collapses, is restarted: or gets it little by little",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let plain = Way { knobs, weights: None, limit: None, door: Kind::None };
    let slow = |window| Way { weights: Some(SlowStart::over(window)), ..plain };
    let fixed = Way { limit: Some(SlowStart::over(Duration::ZERO)), ..slow(WINDOW) };
    let limited = Way { limit: Some(SlowStart::over(WINDOW)), ..slow(WINDOW) };
    let opening = Way { door: Kind::Opening, ..plain };
    let cold = Way { door: Kind::Cold, ..plain };
    let ways = [plain, slow(SHORT), slow(WINDOW), fixed, limited, opening, cold];
    // Listened to is the one that is new.
    let [naive, short, slow, fixed, limited, opening, cold] = settings.arms(&ways, |arm, way| {
        let (seed, way) = (settings.seed, *way);
        [pool(seed, way, 1, knobs.warm_ones, &settings.tap(arm)), pool(seed, way, knobs.all_new, 0, &Tap::default())]
    });
    let summary = format!(
        "given its full share at once, a new instance is restarted {} times in a minute and is as cold as before. With slow start it \
         is warm after {:.0} s, with a readiness that opens after {:.0} s, with a gate that knows what its database can do after \
         {:.0} s, and nothing fails. If all are new slow start alone does not help: {} restarts; with the limit lowered \
         {}, with the other two {} and {}.",
        naive[0].restarts,
        slow[0].seconds(),
        opening[0].seconds(),
        cold[0].seconds(),
        slow[1].restarts,
        limited[1].restarts,
        opening[1].restarts,
        cold[1].restarts,
    );
    Report {
        scenario: "cold-instance",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("window", format!("{WINDOW:?}, too short {SHORT:?}")),
            Parameter::new("cold-cache gate", format!("{} misses/s", knobs.misses())),
        ],
        marks: vec![Mark { at: Duration::ZERO, what: "new instances, with nothing in their caches" }],
        checks: checks(knobs, [&naive, &short, &slow, &fixed, &limited, &opening, &cold]),
        arms: vec![
            arm("full share at once", naive),
            arm("slow start, 5 s", short),
            arm("slow start, 30 s", slow),
            arm("and a fixed limit", fixed),
            arm("and a limit that grows", limited),
            arm("readiness that opens", opening),
            arm("cold-cache gate", cold),
        ],
        span: END,
        summary,
        ..Report::default()
    }
}

type Pools = [Outcome; 2];

/// In the order of the arms.
fn checks(knobs: Knobs, [naive, short, slow, fixed, limited, opening, cold]: [&Pools; 7]) -> Vec<Check> {
    let trouble = |outcome: &Outcome| (outcome.restarts, outcome.failed);
    let restarts = |outcome: &Outcome| outcome.restarts as f64;
    vec![
        Check::at_least(
            Source::Formula,
            "one new, full share at once: more than its connections can do, so it is restarted, again and again",
            3.0,
            restarts(&naive[0]),
        )
        .cites("H18")
        .cites("H21"),
        Check::equal(Source::Formula, "and does not get warm in that time", &None, &naive[0].warm).cites("H18"),
        Check::at_least(
            Source::Formula,
            "one new, a window of 5 s: the misses at its end are too many",
            1.0,
            restarts(&short[0]),
        )
        .cites("T22"),
        Check::within(
            Source::Formula,
            "one new, a window of 30 s: in the worst ten seconds sqrt(share x keys / (e x window)) misses a second",
            (knobs.share * knobs.keys as f64 / (std::f64::consts::E * WINDOW.as_secs_f64())).sqrt(),
            7.0,
            slow[0].worst_misses(),
        )
        .cites("T22"),
        Check::equal(
            Source::Promise,
            "one new, a ramp of either kind: restarts and failed calls",
            &[(0, 0); 4],
            &[&slow[0], &limited[0], &opening[0], &cold[0]].map(trouble),
        )
        .cites("T22"),
        Check::at_most(
            Source::Promise,
            "one new: the gate is warm in less time than the window takes, by seconds",
            -5.0,
            cold[0].seconds() - slow[0].seconds(),
        )
        .cites("T22"),
        Check::at_least(
            Source::Published,
            "all new: weights cancel out, and slow start alone is as good as nothing: restarts",
            knobs.all_new as f64,
            restarts(&slow[1]),
        )
        .cites("Envoy docs")
        .cites("H18"),
        Check::at_least(
            Source::Formula,
            "all new, a fixed limit: those in line for a few connections wait longer than anybody waits: restarts",
            knobs.all_new as f64,
            restarts(&fixed[1]),
        )
        .cites("H18"),
        Check::at_most(
            Source::Promise,
            "all new, a limit that grows: hardly a restart; it bounds the pool, but not what each of them gets",
            1.0,
            restarts(&limited[1]),
        )
        .cites("T22"),
        Check::equal(
            Source::Promise,
            "all new: a readiness that opens, a gate: restarts and failed calls",
            &[(0, 0); 2],
            &[&opening[1], &cold[1]].map(trouble),
        )
        .cites("T22")
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "all new: refused by the gate, as a share of what a readiness that opens refuses",
            1.0,
            cold[1].refused as f64 / opening[1].refused as f64,
        )
        .cites("T22"),
    ]
}

fn arm(name: &'static str, [one, all]: Pools) -> Arm {
    let mut misses = Timeline::new(SECOND);
    for (second, count) in (0u32..).zip(&one.misses) {
        (0..*count).for_each(|_| misses.record(Tick::ZERO + SECOND * second));
    }
    let figures = vec![
        Figure::count("one_restarts", "one: restarts", one.restarts),
        Figure::count("one_failed", "failed", one.failed),
        Figure::number("one_warm_s", "warm after s", one.seconds()),
        Figure::count("all_restarts", "all: restarts", all.restarts),
        Figure::count("all_failed", "failed", all.failed),
        Figure::count("all_refused", "refused", all.refused),
        Figure::number("all_warm_s", "warm after s", all.seconds()),
    ];
    Arm::new(name, figures, misses)
}

impl Outcome {
    /// Until it was warm; as long as was watched if it never was.
    fn seconds(&self) -> f64 {
        self.warm.unwrap_or(END).as_secs_f64()
    }

    /// The most misses a second, over ten seconds.
    fn worst_misses(&self) -> f64 {
        self.misses.windows(10).map(|ten| ten.iter().sum::<u64>() as f64 / 10.0).fold(0.0, f64::max)
    }
}

/// One instance. Its cache is gone when it is restarted, and so is its line.
struct Instance {
    env: Env,
    way: Way,
    life: Mutex<Life>,
    tap: Tap,
}

struct Life {
    up: bool,
    since: Tick,
    /// Which life it is: what is found for an earlier one is found for nobody.
    number: u64,
    database: Service,
    door: Door,
    cached: Vec<bool>,
    filled: usize,
    warm: Option<Tick>,
}

impl Life {
    fn begin(env: &Env, way: Way, number: u64, tap: &Tap) -> Life {
        let keys = usize::try_from(way.knobs.keys).unwrap_or_default();
        Life {
            up: true,
            since: env.now(),
            number,
            database: Service::tapped(
                env,
                "database",
                SECOND,
                Plan::new(way.knobs.connections, way.knobs.query),
                tap.clone(),
            ),
            door: way.door(env),
            cached: vec![false; keys],
            filled: 0,
            warm: None,
        }
    }

    /// Asks at the door; gives the lookup that wants to hear how it went, where there is one.
    fn enter(&self, ask: &Ask) -> Result<Option<Lookup>, ()> {
        match &self.door {
            Door::None => Ok(None),
            Door::Opening(opening) => opening.try_enter(ask).map(|_| None).map_err(drop),
            Door::Cold(gate) => gate.try_enter(ask).map(Some).map_err(drop),
        }
    }

    fn keep(&mut self, key: usize, now: Tick) {
        if !std::mem::replace(&mut self.cached[key], true) {
            self.filled += 1;
        }
        if self.filled * 10 >= self.cached.len() * 9 {
            self.warm.get_or_insert(now);
        }
    }
}

impl Instance {
    fn new(env: &Env, way: Way, tap: &Tap) -> Arc<Instance> {
        let life = Mutex::new(Life::begin(env, way, 0, tap));
        Arc::new(Instance { env: env.clone(), way, life, tap: tap.clone() })
    }

    /// What the balancer gives it: nothing while it is down.
    fn weight(&self, now: Tick) -> f64 {
        let life = self.life.lock();
        match self.way.weights {
            _ if !life.up => 0.0,
            Some(slow) => slow.weight(now - life.since),
            None => 1.0,
        }
    }

    fn age(&self, now: Tick) -> Duration {
        now - self.life.lock().since
    }

    /// Asks the database once a second whether it is well, and restarts the instance when it has not been for too long.
    async fn watch(self: Arc<Instance>) {
        let Instance { env, way, life, tap } = &*self;
        let (knobs, mut failed) = (way.knobs, 0);
        loop {
            env.sleep(SECOND).await;
            let database = life.lock().database.clone();
            let well = by(env, Some(env.now() + knobs.timeout), database.call()).await.is_some();
            failed = if well { 0 } else { failed + 1 };
            if failed == knobs.unhealthy {
                life.lock().up = false;
                env.sleep(knobs.restart).await;
                let number = life.lock().number + 1;
                *life.lock() = Life::begin(env, *way, number, tap);
                failed = 0;
            }
        }
    }
}

/// What is counted.
#[derive(Default)]
struct Counts {
    failed: AtomicU64,
    refused: AtomicU64,
    in_flight: AtomicU64,
    misses: Mutex<Vec<u64>>,
}

fn pool(seed: u64, way: Way, new: usize, warm_ones: u32, tap: &Tap) -> Outcome {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let (knobs, counts) = (way.knobs, Arc::new(Counts::default()));
    let instances: Vec<Arc<Instance>> = (0..new).map(|_| Instance::new(&env, way, tap)).collect();
    for instance in &instances {
        env.spawn(Arc::clone(instance).watch()).detach();
    }
    let (users, who, what) = (env.rng("users"), env.rng("who"), env.rng("what"));
    let rate = knobs.share * (new as f64 + f64::from(warm_ones));
    let weights = Cell::new(vec![0.0; new]);
    let pick = |now: Tick, not: Option<usize>| {
        let mut of = weights.take();
        for (which, (weight, instance)) in of.iter_mut().zip(&instances).enumerate() {
            *weight = if not == Some(which) { 0.0 } else { instance.weight(now) };
        }
        let picked = pick(&of, f64::from(warm_ones), who.unit());
        weights.set(of);
        picked
    };
    sim.run(poisson(
        &env,
        &users,
        Tick::ZERO + END,
        |_| rate,
        |user| {
            let ask = Ask::new(&env);
            let key = usize::try_from(what.below(knobs.keys)).unwrap_or_default();
            if let Some(slow) = way.limit {
                let warm = (0..warm_ones).map(|_| END);
                let most = slow.limit(knobs.limit, instances.iter().map(|new| new.age(ask.at)).chain(warm));
                if counts.in_flight.load(Ordering::Relaxed) >= u64::from(most) {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            let mut not = None;
            for _ in 0..2 {
                match pick(ask.at, not) {
                    Picked::Warm => return,
                    Picked::Nobody => break,
                    Picked::New(which) => {
                        if call(&instances[which], &ask, (user, key), &counts) {
                            return;
                        }
                        not = Some(which);
                    }
                }
            }
            counts.refused.fetch_add(1, Ordering::Relaxed);
        },
    ));
    let lives = instances.iter().map(|instance| instance.life.lock());
    let mut outcome = Outcome {
        failed: counts.failed.load(Ordering::Relaxed),
        refused: counts.refused.load(Ordering::Relaxed),
        misses: std::mem::take(&mut *counts.misses.lock()),
        warm: Some(Duration::ZERO),
        restarts: 0,
    };
    for life in lives {
        outcome.restarts += life.number;
        outcome.warm = outcome.warm.zip(life.warm).map(|(last, warm)| last.max(warm - Tick::ZERO));
    }
    outcome
}

/// Whom the balancer chose.
enum Picked {
    Warm,
    New(usize),
    Nobody,
}

fn pick(weights: &[f64], warm_ones: f64, draw: f64) -> Picked {
    let all = warm_ones + weights.iter().sum::<f64>();
    let mut place = draw * all - warm_ones;
    if all <= 0.0 {
        return Picked::Nobody;
    }
    if place < 0.0 {
        return Picked::Warm;
    }
    for (which, weight) in weights.iter().enumerate() {
        if place < *weight {
            return Picked::New(which);
        }
        place -= weight;
    }
    Picked::Nobody
}

/// One call; false if it was refused.
fn call(instance: &Arc<Instance>, ask: &Ask, (user, key): (u64, usize), counts: &Arc<Counts>) -> bool {
    let life = instance.life.lock();
    let Ok(mut lookup) = life.enter(ask) else { return false };
    if life.cached[key] {
        lookup.iter_mut().for_each(Lookup::hit);
        return true;
    }
    lookup.iter_mut().for_each(Lookup::missed);
    let (database, number) = (life.database.clone(), life.number);
    drop(life);
    counts.missed(ask.at);
    let life = u32::try_from(number).unwrap_or(u32::MAX);
    let caller = Caller::of(user, "/key").item(key as u64).in_wave("deploy", life);
    let (instance, counts) = (Arc::clone(instance), Arc::clone(counts));
    let (env, timeout) = (instance.env.clone(), instance.way.knobs.timeout);
    env.clone()
        .spawn(async move {
            let found = by(&env, Some(env.now() + timeout), database.call_from(caller)).await == Some(Ok(()));
            counts.in_flight.fetch_sub(1, Ordering::Relaxed);
            let mut life = instance.life.lock();
            if !found {
                counts.failed.fetch_add(1, Ordering::Relaxed);
            } else if life.number == number {
                life.keep(key, env.now());
            }
        })
        .detach();
    true
}

impl Counts {
    fn missed(&self, at: Tick) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let second = usize::try_from((at - Tick::ZERO).as_secs()).unwrap_or_default();
        let mut misses = self.misses.lock();
        if misses.len() <= second {
            misses.resize(second + 1, 0);
        }
        misses[second] += 1;
    }
}
