//! Fifty new instances, all cold, all at once.
//!
//! Autoscaling answers load with instances, and each of them fills its caches and pools before it is of any use. All at once
//! they are a herd at the database at the worst time, and those who pay are the users of the instances that already serve.
//! In batches of five the worst of it is a tenth, and mostly less if the members of a batch are apart. It has a price: the
//! last instance is there when the last batch's turn is.

use std::{sync::Arc, time::Duration};

use herdproof::{Env, Sim, Tick, schedule::Stagger};
use parking_lot::Mutex;

use super::{Scenario, Settings};
use crate::{
    arrivals::poisson,
    origin::Origin,
    report::{Arm, Check, Figure, Parameter, Report, Source},
    slowdown::Slowdown,
};

const INSTANCES: u32 = 50;
const BATCH: u32 = 5;
const QUERIES: u32 = 20;
const GAP: Duration = Duration::from_secs(4);
const TIME: Duration = Duration::from_secs(40);
const USERS_PER_SECOND: f64 = 20.0;
const BIN: Duration = Duration::from_millis(100);
const LAW: Slowdown = Slowdown::alone(Duration::from_millis(50)).at(1000, Duration::from_secs(5));

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

pub(super) const SCENARIO: Scenario =
    Scenario { name: "autoscale", title: "50 cold instances at once, or in batches of five", knobs: Vec::new, run };

fn run(settings: &Settings) -> Report {
    let naive = start(settings.seed, None);
    let batches = start(settings.seed, Some(Stagger::new(BATCH, GAP).jitter(0.0)));
    let apart = start(settings.seed, Some(Stagger::new(BATCH, GAP)));
    let all = u64::from(INSTANCES * QUERIES);
    let seconds = |time: Duration| time.as_secs_f64();
    let checks = vec![
        Check::equal(
            Source::Article,
            "cold queries at a time: 50 K at once, 5 K in batches of 5",
            &[all, all / 10],
            &[naive.cold.1, batches.cold.1],
        ),
        Check::at_most(
            Source::Promise,
            "apart inside a batch: no more than 5 K",
            all as f64 / 10.0,
            apart.cold.1 as f64,
        ),
        Check::at_least(
            Source::Formula,
            "at once: a user waits for 50 K others, 5 s, at worst (s)",
            5.0,
            seconds(naive.slowest_user()),
        ),
        Check::at_most(
            Source::Promise,
            "in batches: a user waits for 5 K and half as many users at worst (s)",
            seconds(LAW.time(all / 10 * 3 / 2)),
            seconds(batches.slowest_user()).max(seconds(apart.slowest_user())),
        ),
        Check::at_most(
            Source::Promise,
            "in batches: everybody is warm when the last gap is over (s)",
            seconds(Stagger::new(BATCH, GAP).total(INSTANCES)),
            seconds(apart.warm),
        ),
    ];
    let summary = format!(
        "{all} cold queries at once make a user wait {:.1} s; in batches of {BATCH}, {} at a time and {:.2} s, and it is {:.0} \
         instead of {:.0} s until all are warm.",
        seconds(naive.slowest_user()),
        apart.cold.1,
        seconds(apart.slowest_user()),
        seconds(apart.warm),
        seconds(naive.warm),
    );
    Report {
        scenario: "autoscale",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("new instances", INSTANCES),
            Parameter::new("cold queries each", QUERIES),
            Parameter::new("batch", BATCH),
            Parameter::new("gap", format!("{GAP:?}")),
            Parameter::new("users/s", USERS_PER_SECOND),
            Parameter::new("database", LAW),
        ],
        arms: vec![naive.arm("at once"), batches.arm("batches of 5"), apart.arm("batches of 5, apart inside")],
        span: TIME,
        checks,
        summary,
        ..Report::default()
    }
}

fn start(seed: u64, stagger: Option<Stagger>) -> Start {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let database = Origin::up(&env, BIN, LAW);
    let seen = Start { database: database.clone(), cold: (0, 0), warm: Duration::ZERO, users: Vec::new() };
    let seen = Arc::new(Mutex::new(seen));
    for instance in 0..INSTANCES {
        let rng = env.scope(u64::from(instance)).rng("start");
        let at = env.now() + stagger.map_or(Duration::ZERO, |stagger| stagger.start(instance, &rng));
        for _ in 0..QUERIES {
            env.spawn(cold_query(env.clone(), at, database.clone(), Arc::clone(&seen))).detach();
        }
    }
    let (clock, users) = (env.clone(), Arc::clone(&seen));
    env.spawn(async move {
        let arrive = |_| {
            let (env, database, users) = (clock.clone(), database.clone(), Arc::clone(&users));
            clock
                .spawn(async move {
                    let began = env.now();
                    // An origin that is up answers everybody.
                    let _ = database.call().await;
                    users.lock().users.push(env.now() - began);
                })
                .detach();
        };
        poisson(&clock, &clock.rng("users"), Tick::ZERO + TIME, |_| USERS_PER_SECOND, arrive).await;
    })
    .detach();
    sim.finish().expect("every query is answered");
    Arc::into_inner(seen).expect("everybody is done").into_inner()
}

async fn cold_query(env: Env, at: Tick, database: Origin, seen: Arc<Mutex<Start>>) {
    env.sleep_until(at).await;
    {
        let Start { cold, .. } = &mut *seen.lock();
        cold.0 += 1;
        cold.1 = cold.1.max(cold.0);
    }
    // As above.
    let _ = database.call().await;
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
