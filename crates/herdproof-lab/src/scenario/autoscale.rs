//! Fifty new instances, all cold, all at once.
//!
//! Autoscaling answers load with instances, and each of them fills its caches and pools before it is of any use. All at once
//! they are a herd at the database at the worst time, and those who pay are the users of the instances that already serve.
//! In batches of five the worst of it is a tenth, and mostly less if the members of a batch are apart. It has a price: the
//! last instance is there when the last batch's turn is.

use std::{sync::Arc, time::Duration};

use herdproof::{Env, Sim, Tick, schedule::Stagger};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::Origin,
    report::{Arm, Check, Figure, Mark, Report, Source, say},
    slowdown::Slowdown,
};

const SECOND: Duration = Duration::from_secs(1);
const TIME: Duration = Duration::from_secs(40);
const BIN: Duration = Duration::from_millis(100);

/// What a start of all instances did.
struct Start {
    database: Origin,
    /// Cold queries under way, and the most there were.
    cold: (u64, u64),
    /// When the last instance was warm.
    warm: Duration,
    /// How long each user's query took.
    users: Vec<Duration>,
}

knobs! {
    /// How many instances are new.
    instances: u32 = 50, 1..=500;
    /// How many queries each makes until it is warm.
    queries: u32 = 20, 1..=200;
    /// How many start together.
    batch: u32 = 5, 1..=500;
    /// How long until the next do.
    gap: Duration = SECOND * 4, SECOND / 100..=SECOND * 60;
    /// Users' queries a second.
    users: f64 = 20.0, 0.0..=1_000.0;
    /// How long the database takes for a query alone.
    query: Duration = SECOND / 20, SECOND / 1_000..=SECOND * 5;
    /// How many in flight it is slow at.
    crowd: u64 = 1_000, 2..=100_000;
    /// How long a query takes then; no less than alone.
    crowded: Duration = SECOND * 5, SECOND / 1_000..=SECOND * 60;
}

pub(super) const SCENARIO: Scenario =
    Scenario { name: "autoscale", title: "50 cold instances at once, or in batches of five", knobs: Knobs::all, run };

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let Knobs { instances, queries, batch, gap, .. } = knobs;
    let naive = start(settings.seed, knobs, None, settings.tap(0));
    let batches = start(settings.seed, knobs, Some(Stagger::new(batch, gap).jitter(0.0)), settings.tap(1));
    let apart = start(settings.seed, knobs, Some(Stagger::new(batch, gap)), settings.tap(2));
    let all = u64::from(instances * queries);
    let together = u64::from(instances.min(batch) * queries);
    let seconds = |time: Duration| time.as_secs_f64();
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("cold queries at a time: {instances} K at once, {batch} K in batches of {batch}"),
            &[all, together],
            &[naive.cold.1, batches.cold.1],
        )
        .cites("N17")
        .cites("H21"),
        Check::at_most(
            Source::Promise,
            format!("apart inside a batch: no more than {batch} K"),
            together as f64,
            apart.cold.1 as f64,
        )
        .cites("T22"),
        Check::at_least(
            Source::Formula,
            format!("at once: a user waits for {instances} K others, {}, at worst (s)", say(knobs.law().time(all))),
            seconds(knobs.law().time(all)),
            seconds(naive.slowest_user()),
        )
        .cites("H21"),
        Check::at_most(
            Source::Promise,
            format!("in batches: a user waits for {batch} K and half as many users at worst (s)"),
            seconds(knobs.law().time(together * 3 / 2)),
            seconds(batches.slowest_user()).max(seconds(apart.slowest_user())),
        )
        .cites("T22"),
        Check::at_most(
            Source::Promise,
            "in batches: everybody is warm when the last gap is over (s)",
            seconds(Stagger::new(batch, gap).total(instances)),
            seconds(apart.warm),
        )
        .cites("T22"),
    ];
    let summary = format!(
        "{all} cold queries at once make a user wait {:.1} s; in batches of {batch}, {} at a time and {:.2} s, and it is {:.0} \
         instead of {:.0} s until all are warm.",
        seconds(naive.slowest_user()),
        apart.cold.1,
        seconds(apart.slowest_user()),
        seconds(apart.warm),
        seconds(naive.warm),
    );
    let [in_batches, apart_inside] = match batch {
        5 => ["batches of 5", "batches of 5, apart inside"],
        _ => ["in batches", "in batches, apart inside"],
    };
    Report {
        scenario: "autoscale",
        seed: settings.seed,
        arms: vec![naive.arm("at once"), batches.arm(in_batches), apart.arm(apart_inside)],
        marks: vec![Mark { at: Duration::ZERO, what: "the instances are there" }],
        span: TIME,
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn law(self) -> Slowdown {
        Slowdown::alone(self.query).at(self.crowd, self.crowded)
    }
}

fn start(seed: u64, knobs: Knobs, stagger: Option<Stagger>, tap: Tap) -> Start {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let database = Origin::up(&env, BIN, knobs.law()).tapped(tap);
    let seen = Start { database: database.clone(), cold: (0, 0), warm: Duration::ZERO, users: Vec::new() };
    let seen = Arc::new(Mutex::new(seen));
    for instance in 0..knobs.instances {
        let rng = env.scope(u64::from(instance)).rng("start");
        let at = env.now() + stagger.map_or(Duration::ZERO, |stagger| stagger.start(instance, &rng));
        let batch = if stagger.is_some() { instance / knobs.batch } else { 0 };
        let caller = Caller::of(instance.into(), "/warm").in_wave("autoscale", batch);
        for _ in 0..knobs.queries {
            env.spawn(cold_query(env.clone(), at, caller, database.clone(), Arc::clone(&seen))).detach();
        }
    }
    let (clock, users) = (env.clone(), Arc::clone(&seen));
    env.spawn(async move {
        let arrive = |number| {
            let caller = Caller::of(u64::from(knobs.instances) + number, "/");
            let (env, database, users) = (clock.clone(), database.clone(), Arc::clone(&users));
            clock
                .spawn(async move {
                    let began = env.now();
                    // An origin that is up answers everybody.
                    let _ = database.call_from(caller).await;
                    users.lock().users.push(env.now() - began);
                })
                .detach();
        };
        poisson(&clock, &clock.rng("users"), Tick::ZERO + TIME, |_| knobs.users, arrive).await;
    })
    .detach();
    sim.finish().expect("every query is answered");
    Arc::into_inner(seen).expect("everybody is done").into_inner()
}

async fn cold_query(env: Env, at: Tick, caller: Caller, database: Origin, seen: Arc<Mutex<Start>>) {
    env.sleep_until(at).await;
    {
        let Start { cold, .. } = &mut *seen.lock();
        cold.0 += 1;
        cold.1 = cold.1.max(cold.0);
    }
    // As above.
    let _ = database.call_from(caller).await;
    let mut seen = seen.lock();
    seen.cold.0 -= 1;
    seen.warm = seen.warm.max(env.now() - Tick::ZERO);
}

impl Start {
    fn slowest_user(&self) -> Duration {
        self.users.iter().copied().max().unwrap_or_default()
    }

    fn arm(&self, name: &'static str) -> Arm {
        let mut users = self.users.clone();
        users.sort_unstable();
        let median = users.get(users.len() / 2).copied().unwrap_or_default();
        let figures = vec![
            Figure::count("cold_at_a_time", "cold at once", self.cold.1),
            Figure::time("user_p50_ms", "user p50", median),
            Figure::time("user_max_ms", "user max", self.slowest_user()),
            Figure::time("all_warm_ms", "all warm", self.warm),
        ];
        Arm::new(name, figures, self.database.timeline())
    }
}
