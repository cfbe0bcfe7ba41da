//! Fifty new instances, all cold, all at once.
//!
//! Autoscaling answers load with instances, and each of them opens its connections and fills its cache before it is of any
//! use. All at once they are a herd at the database at the worst time. In batches of five the worst of it is a tenth; apart
//! inside a batch it is less than that, and everybody is warm sooner, because a crowded database is a slow one.

use std::time::Duration;

use herdproof::{Sim, schedule::Stagger};

use super::{
    Settings,
    callers::{Callers, timed},
};
use crate::{
    origin::Origin,
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const INSTANCES: u32 = 50;
const BATCH: u32 = 5;
const QUERIES: u32 = 20;
const GAP: Duration = Duration::from_secs(2);
const BIN: Duration = Duration::from_millis(100);
const LAW: Slowdown = Slowdown::alone(Duration::from_millis(100)).at(1000, Duration::from_secs(10));

pub(super) fn run(settings: Settings) -> Report {
    let naive = herd(settings.seed, None);
    let batches = herd(settings.seed, Some(Stagger::new(BATCH, GAP).jitter(0.0)));
    let apart = herd(settings.seed, Some(Stagger::new(BATCH, GAP)));
    let peak = |callers: &Callers<u64>| callers.origin.peak_in_flight();
    let all = u64::from(INSTANCES * QUERIES);
    let checks = vec![
        Check::equal(
            Source::Article,
            "cold queries at a time: 50 K at once, 5 K in batches of 5",
            &[all, all / 10],
            &[peak(&naive), peak(&batches)],
        ),
        Check::equal(Source::Formula, "as many queries in each arm", &[all; 3], &{
            [&naive, &batches, &apart].map(|callers| callers.origin.calls())
        }),
        Check::at_most(Source::Promise, "apart inside a batch: less than 5 K", (all / 10) as f64, peak(&apart) as f64),
        Check::at_most(
            Source::Promise,
            "apart inside a batch: a query is not slower than in step (p99, ms)",
            batches.quantile(99).as_secs_f64() * 1e3,
            apart.quantile(99).as_secs_f64() * 1e3,
        ),
    ];
    let summary = format!(
        "{all} cold queries at once take {:?} each; in batches of {BATCH} never more than {} are under way, and the slowest \
         takes {:.1} s.",
        naive.quantile(50),
        peak(&apart),
        apart.quantile(100).as_secs_f64(),
    );
    Report {
        scenario: "autoscale",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("new instances", INSTANCES),
            Parameter::new("cold queries each", QUERIES),
            Parameter::new("batch", BATCH),
            Parameter::new("gap", format!("{GAP:?}")),
            Parameter::new("database", LAW),
        ],
        arms: vec![naive.arm("at once"), batches.arm("batches of 5"), apart.arm("batches of 5, apart inside")],
        span: GAP * (INSTANCES / BATCH),
        checks,
        summary,
    }
}

fn herd(seed: u64, stagger: Option<Stagger>) -> Callers<u64> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let database = Origin::up(&env, BIN, LAW);
    let mut tasks = Vec::new();
    for instance in 0..INSTANCES {
        let rng = env.scope(u64::from(instance)).rng("start");
        let start = env.now() + stagger.map_or(Duration::ZERO, |stagger| stagger.start(instance, &rng));
        for _ in 0..QUERIES {
            let (clock, database) = (env.clone(), database.clone());
            tasks.push(env.spawn(async move {
                clock.sleep_until(start).await;
                timed(clock.clone(), async move { database.call().await }).await
            }));
        }
    }
    Callers::gather(&mut sim, &database, tasks)
}
