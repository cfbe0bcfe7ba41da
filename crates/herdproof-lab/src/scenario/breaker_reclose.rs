//! An origin is back after an outage, cold, and two hundred breakers find out.
//!
//! It can do a fifth of its load at first and warms up from there. Breakers that opened together, stay open equally long and
//! close completely at the first call that works give it everything at once, again and again; what it cannot serve in time
//! fails, and it serves much of it for nobody. A random open time takes the step out of that. A ramp takes most of the
//! load: a breaker lets in as much as works.
//!
//! Only calls that reached the origin after it was back, and failed, count as failed; what a breaker refuses costs the origin
//! nothing.
//!
//! Corrects: a model of this said that the ramp spares two fifths of the failed calls when the origin is back cold. That
//! counted those of the outage itself. Of those that the return causes, it spares more than nine in ten.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use herdproof::{
    Breaker, Env, Sim, Tick,
    gate::{Ask, Gate, Permit, Span, Verdict},
};

use super::{Scenario, away::Away};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
const BACK: u32 = 40;
const END: u32 = 186;

/// How a breaker goes on after it has opened, where there is one.
#[derive(Clone, Copy)]
enum Way {
    NoBreaker,
    FixedCloseAll,
    JitterCloseAll,
    JitterRamp,
}

/// How much an origin that is back can do: calls a second at first, in the end, and how long that takes.
#[derive(Clone, Copy)]
struct Warming(f64, f64, Duration);

/// What came of it.
struct Outcome {
    /// Calls that reached the origin after it was back, and failed.
    failed: u64,
    /// How long after that the origin first served nearly all of the demand.
    recovered: Duration,
    calls: Timeline,
}

knobs! {
    /// How many instances have a breaker.
    instances: u64 = 200, 1..=5_000;
    /// Calls a second.
    demand: f64 = 400.0, 1.0..=2_000.0;
    /// How many calls the origin works on at a time; as many may stand in its line.
    workers: usize = 40, 1..=1_000;
    /// How long a call may take.
    timeout: Duration = SECOND, SECOND / 100..=SECOND * 30;
    /// What the origin can do in a second when it is warm.
    full: f64 = 500.0, 1.0..=5_000.0;
    /// What it can do at first where it is back cold.
    cold: f64 = 80.0, 1.0..=5_000.0;
    /// What it can do at first where it is back very cold.
    very_cold: f64 = 40.0, 1.0..=5_000.0;
    /// What it can do at first where it is back warm.
    warm: f64 = 400.0, 1.0..=5_000.0;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "breaker-reclose",
    title: "an origin is back, cold, and every breaker closes: all at once, or as a ramp",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let warmings = [(knobs.cold, 40), (knobs.very_cold, 90), (knobs.warm, 5)];
    let warmings = warmings.map(|(from, over)| Warming(from, knobs.full, SECOND * over));
    // Listened to is the origin that is back cold.
    let ways = [Way::NoBreaker, Way::FixedCloseAll, Way::JitterCloseAll, Way::JitterRamp];
    let [none, fixed, jitter, ramp] = settings.arms(&ways, |arm, way| {
        let [cold, very_cold, warm] = warmings;
        let outage = |warming, tap| outage(settings.seed, knobs, *way, warming, tap);
        [outage(cold, settings.tap(arm)), outage(very_cold, Tap::default()), outage(warm, Tap::default())]
    });
    let [cold, very_cold, warm] = [0, 1, 2].map(|which| [&fixed[which], &jitter[which], &ramp[which]]);
    let summary = format!(
        "back cold, {} calls failed without breakers, {} with a fixed open time and closing all at once, {} with a random \
         open time, {} with a ramp as well, and the origin served everybody after {:?}, {:?}, {:?} and {:?}. Back warm, where \
         caution is not needed, it costs {:?}: of that the ramp {:?}, the longer open time the rest.",
        none[0].failed,
        cold[0].failed,
        cold[1].failed,
        cold[2].failed,
        none[0].recovered,
        cold[0].recovered,
        cold[1].recovered,
        cold[2].recovered,
        warm[2].recovered.saturating_sub(warm[0].recovered),
        warm[2].recovered.saturating_sub(warm[1].recovered),
    );
    Report {
        scenario: "breaker-reclose",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("back cold", warmings[0]),
            Parameter::new("back very cold", warmings[1]),
            Parameter::new("back warm", warmings[2]),
        ],
        marks: vec![
            Mark { at: Duration::ZERO, what: "the origin is down" },
            Mark { at: SECOND * BACK, what: "it is back" },
        ],
        checks: [without(knobs, &none, &ramp), checks(cold, very_cold, warm)].concat(),
        arms: vec![
            arm("no breaker", none),
            arm("fixed 10 s, close all", fixed),
            arm("random open time, close all", jitter),
            arm("random open time, ramp", ramp),
        ],
        span: Duration::ZERO,
        summary,
        ..Report::default()
    }
}

/// In each, the fixed open time comes first, the random one next, the ramp last.
fn checks(cold: [&Outcome; 3], very_cold: [&Outcome; 3], warm: [&Outcome; 3]) -> Vec<Check> {
    let failed = |[naive, _, ramp]: [&Outcome; 3]| ramp.failed as f64 / naive.failed as f64;
    let later = |than: &Outcome, what: &Outcome| what.recovered.as_secs_f64() - than.recovered.as_secs_f64();
    vec![
        Check::at_most(
            Source::Promise,
            "cold: share of the failed calls that a random open time alone leaves",
            0.4,
            cold[1].failed as f64 / cold[0].failed as f64,
        )
        .cites("T16"),
        Check::at_most(Source::Promise, "cold: share of the failed calls that the ramp leaves", 0.2, failed(cold))
            .cites("T16"),
        Check::at_most(Source::Promise, "cold: seconds by which it is later", 5.0, later(cold[0], cold[2]))
            .cites("T16"),
        Check::at_most(
            Source::Promise,
            "very cold: share of the failed calls that the ramp leaves",
            0.65,
            failed(very_cold),
        )
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "very cold: seconds by which it is later",
            10.0,
            later(very_cold[0], very_cold[2]),
        )
        .cites("T16"),
        Check::equal(Source::Formula, "warm: nothing fails", &[0; 3], &warm.map(|outcome| outcome.failed)).cites("T16"),
        Check::at_most(
            Source::Formula,
            "warm: seconds that open times up to 30 s cost more than 10 s, to the second",
            22.0,
            later(warm[0], warm[1]),
        )
        .cites("T16"),
        Check::at_most(Source::Promise, "warm: seconds that the ramp costs more", 12.0, later(warm[1], warm[2]))
            .cites("T16"),
    ]
}

fn without(knobs: Knobs, none: &[Outcome; 3], ramp: &[Outcome; 3]) -> Vec<Check> {
    let outage = knobs.demand * f64::from(BACK);
    vec![
        Check::within(
            Source::Formula,
            "no breaker: an origin that is down is asked for everything, demand x outage",
            outage,
            4.0 * outage.sqrt(),
            none[0].while_down() as f64,
        )
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "random open time, ramp: the share of that which it is asked for",
            0.2,
            ramp[0].while_down() as f64 / outage,
        )
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "cold: the worst of the first ten seconds, as a share of that without a breaker",
            0.5,
            ramp[0].worst_at_return() as f64 / none[0].worst_at_return() as f64,
        )
        .cites("T16"),
    ]
}

impl Outcome {
    /// Calls at the origin while it was down.
    fn while_down(&self) -> u64 {
        self.calls.counts().iter().take(BACK as usize).sum()
    }

    /// The most calls in one of the ten seconds after it is back.
    fn worst_at_return(&self) -> u64 {
        self.calls.counts().iter().skip(BACK as usize).take(10).copied().max().unwrap_or(0)
    }
}

fn arm(name: &'static str, [cold, very_cold, warm]: [Outcome; 3]) -> Arm {
    let figures = vec![
        Figure::count("while_down", "while down", cold.while_down()),
        Figure::count("worst_at_return_per_second", "back: worst/s", cold.worst_at_return()),
        Figure::count("failed_cold", "failed, cold", cold.failed),
        Figure::number("recovered_cold_s", "back after s", cold.recovered.as_secs_f64()),
        Figure::count("failed_very_cold", "very cold", very_cold.failed),
        Figure::number("recovered_very_cold_s", "after s", very_cold.recovered.as_secs_f64()),
        Figure::count("failed_warm", "warm", warm.failed),
        Figure::number("recovered_warm_s", "after s", warm.recovered.as_secs_f64()),
    ];
    Arm::new(name, figures, cold.calls)
}

impl fmt::Display for Warming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warming(from, to, over) = self;
        write!(f, "{from} to {to}/s in {over:?}")
    }
}

fn breaker(env: &Env, way: Way) -> Option<Breaker> {
    let breaker = Breaker::builder(env);
    let breaker = match way {
        Way::NoBreaker => return None,
        Way::FixedCloseAll => breaker.open(SECOND * 10, SECOND * 10).jitter(0.0).ramp(1.0, SECOND),
        Way::JitterCloseAll => breaker.ramp(1.0, SECOND),
        Way::JitterRamp => breaker,
    };
    Some(breaker.build())
}

fn outage(seed: u64, knobs: Knobs, way: Way, warming: Warming, tap: Tap) -> Outcome {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let down = Plan { line: knobs.workers, down: true, ..Plan::new(knobs.workers, SECOND) };
    let service = Service::tapped(&env, "origin", SECOND, down, tap);
    env.spawn(come_back(env.clone(), service.clone(), knobs.workers, warming)).detach();
    let mut breakers: Vec<(Option<Breaker>, Away)> =
        (0..knobs.instances).map(|id| (breaker(&env.scope(id), way), Away::default())).collect();
    let failed = Arc::new(AtomicU64::new(0));
    let (users, who) = (env.rng("users"), env.rng("who"));
    sim.run(poisson(
        &env,
        &users,
        Tick::ZERO + SECOND * END,
        |_| knobs.demand,
        |_| {
            let id = who.below(knobs.instances);
            let (breaker, away) = &mut breakers[usize::try_from(id).unwrap_or(0)];
            let ask = Ask::new(&env);
            let Ok(permit) = breaker.try_enter(&ask) else { return away.kept_away(ask.at) };
            let caller = Caller::of(id, "/").in_wave_if("breaker", away.let_in(ask.at));
            let (env, service, failed) = (env.clone(), service.clone(), Arc::clone(&failed));
            env.clone()
                .spawn(async move {
                    let served = within(&env, knobs.timeout, service.call_from(caller)).await;
                    let verdict = if served == Some(Ok(())) { Verdict::Ok } else { Verdict::Fault };
                    if verdict != Verdict::Ok && ask.at >= Tick::ZERO + SECOND * BACK {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    permit.settle(&verdict, Span { from: ask.at, to: env.now() });
                })
                .detach();
        },
    ));
    let seen = service.seen();
    Outcome {
        failed: failed.load(Ordering::Relaxed),
        recovered: recovered(&seen.served, knobs.demand),
        calls: seen.calls,
    }
}

/// Is down, then back, then warmer every second.
async fn come_back(env: Env, service: Service, workers: usize, Warming(from, to, over): Warming) {
    env.sleep(SECOND * BACK).await;
    for second in 0..END - BACK {
        let warm = (f64::from(second) / over.as_secs_f64()).min(1.0);
        let capacity = from + (to - from) * warm;
        service.change(|plan| {
            plan.down = false;
            plan.time = Duration::from_secs_f64(workers as f64 / capacity);
        });
        env.sleep(SECOND).await;
    }
}

/// The future's output, or nothing if that takes longer. Dropped then, as a caller that gives up.
async fn within<T>(env: &Env, time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut sleep) = (pin!(future), pin!(env.sleep(time)));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|_| None),
    })
    .await
}

/// How long after it was back the first five seconds ended that had 95 % of the demand served.
fn recovered(served: &Timeline, demand: f64) -> Duration {
    let counts = served.counts();
    let good = (BACK as usize..counts.len().saturating_sub(5))
        .find(|&second| counts[second..second + 5].iter().sum::<u64>() as f64 >= 0.95 * 5.0 * demand);
    let end = good.map_or(END, |second| u32::try_from(second + 5).unwrap_or(END));
    SECOND * (end - BACK)
}
