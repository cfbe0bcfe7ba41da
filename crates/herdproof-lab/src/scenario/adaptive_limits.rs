//! proto
use std::{
    cell::Cell,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Gate, guard, result},
    limit::{
        AdaptiveLimit,
        law::{Aimd, Gradient2, Knee, Vegas},
    },
};

use super::Settings;
use crate::{
    arrivals::poisson,
    report::{Arm, Figure, Report},
    service::{Plan, Service},
    timeline::Timeline,
};

const WORKERS: usize = 20;
const TIME: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(1);
const STEADY: f64 = 300.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Steady,
    Overload,
    Slow8,
    Slow2,
    Tail,
    Thrash,
    Far,
    Drift,
}

const PLANTS: [(Plant, &str, &str); 8] = [
    (Plant::Steady, "steady", "steady"),
    (Plant::Overload, "overload", "overload"),
    (Plant::Slow8, "slow8", "8x slower"),
    (Plant::Slow2, "slow2", "2x slower"),
    (Plant::Tail, "tail", "heavy tail"),
    (Plant::Thrash, "thrash", "thrashing"),
    (Plant::Far, "far", "far away"),
    (Plant::Drift, "drift", "drifting"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    None,
    Aimd,
    Gradient2,
    Vegas,
    Knee,
}

pub(super) fn run(settings: Settings) -> Report {
    let env_u = |n: &str, d: u64| std::env::var(n).ok().and_then(|v| v.parse().ok()).unwrap_or(d);
    let (warm, trouble) = (env_u("WARM", 15), env_u("TROUBLE", 30));
    let mut arms = vec![];
    let verbose = std::env::var("V").is_ok();
    for (which, name) in [
        (Which::None, "none"),
        (Which::Aimd, "aimd"),
        (Which::Gradient2, "gradient2"),
        (Which::Vegas, "vegas"),
        (Which::Knee, "knee"),
    ] {
        let mut figures = vec![];
        let mut t = Timeline::new(TIME);
        for (plant, key, title) in PLANTS {
            if std::env::var("ONLY").is_ok_and(|o| o != key) {
                continue;
            }
            let (good, limits, tl) = race(settings.seed, which, plant, warm, trouble);
            if verbose {
                eprintln!("{name:10} {key:10} good {:.0}/{:.0}  limits {limits:?}", good.0, good.1);
            }
            figures.push(Figure::number(key, title, good.1));
            if plant == Plant::Overload {
                t = tl;
            }
        }
        arms.push(Arm::new(name, figures, t));
    }
    Report {
        scenario: "adaptive-limits",
        seed: settings.seed,
        parameters: vec![],
        arms,
        span: Duration::ZERO,
        checks: vec![],
        summary: String::new(),
    }
}

fn race(seed: u64, which: Which, plant: Plant, warm: u64, trouble: u64) -> ((f64, f64), Vec<u32>, Timeline) {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let plan = match plant {
        Plant::Tail => Plan { tail: Some(1.5), ..Plan::new(WORKERS, TIME) },
        Plant::Thrash => Plan { exponential: true, ..Plan::new(1000, TIME) },
        _ => Plan { exponential: true, ..Plan::new(WORKERS, TIME) },
    };
    let service = Service::new(&env, "service", Duration::from_secs(1), plan);
    let builder = AdaptiveLimit::builder(&env);
    let builder = match which {
        Which::None => builder.between(1_000_000, 1_000_000),
        Which::Aimd => builder.law(Aimd::default()),
        Which::Gradient2 => builder.law(Gradient2::default()),
        Which::Vegas => builder.law(Vegas::default()),
        Which::Knee => builder.law(Knee::default()),
    };
    let gate = builder.build();
    let lag = Arc::new(AtomicU64::new(0));
    let good = Arc::new(AtomicU64::new(0));
    let rng = env.rng("users");
    let begin = Tick::ZERO + Duration::from_secs(warm);
    let end = begin + Duration::from_secs(trouble);
    let rate = move |at: Tick| match plant {
        Plant::Overload | Plant::Tail | Plant::Thrash if at >= begin => 800.0,
        Plant::Drift if at >= begin => 600.0,
        _ => STEADY,
    };
    {
        let (clock, service, lag) = (env.clone(), service.clone(), lag.clone());
        env.spawn(async move {
            clock.sleep_until(begin).await;
            match plant {
                Plant::Slow8 => service.change(|plan| plan.time = TIME * 8),
                Plant::Slow2 => service.change(|plan| plan.time = TIME * 2),
                Plant::Far => lag.store(150, Ordering::Relaxed),
                Plant::Drift => {
                    let steps = trouble * 2;
                    for step in 0..steps {
                        // down to a half and back
                        let x = step as f64 / steps as f64;
                        let w = if x < 0.5 { 1.0 - x } else { x };
                        service.change(|plan| plan.workers = (WORKERS as f64 * w) as usize);
                        clock.sleep(Duration::from_millis(500)).await;
                    }
                }
                _ => {}
            }
        })
        .detach();
    }
    let arrive = |_| {
        let (clock, service, gate, lag, good) = (env.clone(), service.clone(), gate.clone(), lag.clone(), good.clone());
        env.spawn(async move {
            let ask = Ask::new(&clock);
            let done = guard(&clock, &gate, result, ask, || async {
                let late = clock.now() + TIMEOUT;
                let call = async {
                    let lag = lag.load(Ordering::Relaxed);
                    if lag > 0 {
                        clock.sleep(Duration::from_millis(lag)).await;
                    }
                    if plant == Plant::Thrash {
                        let n = service.in_flight() as f64 / 30.0;
                        service.change(|plan| plan.time = TIME.mul_f64(1.0 + n * n));
                    }
                    service.call().await.map_err(|_| ())
                };
                let (mut call, mut late) = (pin!(call), pin!(clock.sleep_until(late)));
                poll_fn(|cx| {
                    if let Poll::Ready(done) = call.as_mut().poll(cx) {
                        return Poll::Ready(done);
                    }
                    late.as_mut().poll(cx).map(|_| Err(()))
                })
                .await
            })
            .await;
            if done.is_ok() {
                good.fetch_add(1, Ordering::Relaxed);
            }
        })
        .detach();
    };
    let at_begin = Cell::new(0);
    let limits = std::cell::RefCell::new(vec![]);
    sim.run(async {
        let mut first = true;
        for s in 1..=(warm + trouble) {
            poisson(&env, &rng, Tick::ZERO + Duration::from_secs(s), rate, arrive).await;
            env.sleep_until(Tick::ZERO + Duration::from_secs(s)).await;
            limits.borrow_mut().push(gate.limit());
            if first && env.now() >= begin {
                first = false;
                at_begin.set(good.load(Ordering::Relaxed));
            }
        }
    });
    let total = good.load(Ordering::Relaxed);
    let _ = end;
    (
        (at_begin.get() as f64 / warm as f64, (total - at_begin.get()) as f64 / trouble as f64),
        limits.into_inner(),
        service.seen().calls,
    )
}
