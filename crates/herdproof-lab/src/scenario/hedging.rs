//! Second attempts beside slow ones: what they save while things go well, and what they cost when they do not.
//!
//! A service answers in 10 ms on average, with a tail. A hedge after the time that nineteen in twenty take adds a twentieth
//! to the load and cuts the tail off. Then the service becomes half as fast, which it can bear: it would be busy for three
//! quarters of the time. A client that hedges whatever is slow now hedges nearly everything; with twice the load the
//! service cannot keep up, so everything becomes slower still, and it stays so. A hedge with a budget stays a twentieth.
//!
//! As in most real services, an attempt that lost is served all the same.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, result},
    hedge::{Hedge, Which},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, Waits, say},
    service::{Plan, Service, Times},
    timeline::Timeline,
};

const CALM: Duration = Duration::from_secs(20);
const SLOW: Duration = Duration::from_secs(20);
const BIN: Duration = Duration::from_millis(500);

knobs! {
    /// Requests a second.
    requests: f64 = 300.0, 1.0..=2_000.0;
    /// How many calls the service works on at a time.
    workers: usize = 8, 1..=200;
    /// How long it takes for one, on average; later twice that.
    service_time: Duration = Duration::from_millis(10), Duration::from_millis(1)..=Duration::from_millis(200);
    /// How long anybody cares for an answer.
    useful: Duration = Duration::from_secs(1), Duration::from_millis(10)..=Duration::from_secs(60);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hedging",
    title: "a second attempt beside a slow first: it cuts the tail, or it doubles the load",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let plain = herd(seed, knobs, settings.tap(0), |_| None);
    let always = herd(seed, knobs, settings.tap(2), |env| Some(Hedge::builder(env).ratio(1.0).failures(2.0).build()));
    let fixed = herd(seed, knobs, settings.tap(1), |env| {
        Some(Hedge::builder(env).ratio(1.0).failures(2.0).at(Duration::from_millis(30)).build())
    });
    let ours = herd(seed, knobs, settings.tap(3), |env| Some(Hedge::new(env)));
    let useful = if knobs.useful == Duration::from_secs(1) { "a second".to_owned() } else { say(knobs.useful) };
    let checks = vec![
        Check::within(
            Source::Published,
            "in calm: calls per request with a hedge at the 95th percentile",
            1.05,
            0.02,
            ours.calm.calls_per_request(),
        )
        .cites("T28"),
        Check::at_most(
            Source::Promise,
            "in calm: p99 with hedges, as a share of that without",
            0.95,
            ours.calm.p99().as_secs_f64() / plain.calm.p99().as_secs_f64(),
        )
        .cites("T28"),
        Check::at_least(
            Source::Formula,
            "half as fast, hedged after a fixed 30 ms: calls per request go to two",
            1.8,
            fixed.slow.calls_per_request(),
        )
        .cites("H22"),
        Check::at_most(
            Source::Formula,
            format!("and the service that could bear it collapses: requests answered within {useful}"),
            0.5,
            fixed.slow.useful(),
        )
        .cites("H22"),
        Check::at_most(
            Source::Promise,
            "half as fast, with our budget: calls per request",
            1.07,
            ours.slow.calls_per_request(),
        )
        .cites("T28"),
        Check::at_least(
            Source::Promise,
            format!("half as fast, with our budget: requests answered within {useful}"),
            0.999,
            ours.slow.useful(),
        )
        .cites("T28"),
    ];
    let summary = format!(
        "while the service is well a hedge brings p99 from {:.0} to {:.0} ms for {:.0} % more calls. When it is half as fast, \
         hedging whatever takes longer than 30 ms makes {:.2} calls per request and leaves {:.0} % of them answered in time; \
         with a budget it is {:.2} and {:.0} %.",
        plain.calm.p99().as_secs_f64() * 1e3,
        ours.calm.p99().as_secs_f64() * 1e3,
        (ours.calm.calls_per_request() - 1.0) * 100.0,
        fixed.slow.calls_per_request(),
        fixed.slow.useful() * 100.0,
        ours.slow.calls_per_request(),
        ours.slow.useful() * 100.0,
    );
    Report {
        scenario: "hedging",
        seed,
        parameters: vec![
            Parameter::new("service times", "exponential"),
            Parameter::new("then", format!("twice that after {CALM:?}, for {SLOW:?}")),
        ],
        arms: vec![
            plain.arm("without"),
            fixed.arm("whatever is slow, 30 ms"),
            always.arm("whatever is slow, p95"),
            ours.arm("with a budget"),
        ],
        span: CALM + SLOW,
        marks: vec![Mark { at: CALM, what: "half as fast" }],
        checks,
        summary,
        ..Report::default()
    }
}

/// What happened to the requests of one phase.
#[derive(Default)]
struct Phase {
    /// How long anybody cares for an answer.
    cared: Duration,
    times: Vec<Duration>,
    calls: u64,
}

impl Phase {
    fn calls_per_request(&self) -> f64 {
        self.calls as f64 / self.times.len().max(1) as f64
    }

    fn p99(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get((times.len() * 99).div_ceil(100).max(1) - 1).copied().unwrap_or_default()
    }

    /// The share of requests that were answered while somebody cared.
    fn useful(&self) -> f64 {
        let useful = self.times.iter().filter(|time| **time <= self.cared).count();
        useful as f64 / self.times.len().max(1) as f64
    }
}

struct Herd {
    calm: Phase,
    slow: Phase,
    calls: Timeline,
}

impl Herd {
    fn arm(self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::number("calm_calls_per_request", "calls/request", self.calm.calls_per_request()),
            Figure::time("calm_p99_ms", "p99", self.calm.p99()),
            Figure::number("slow_calls_per_request", "when slow", self.slow.calls_per_request()),
            Figure::time("slow_p99_ms", "p99", self.slow.p99()),
            Figure::number("slow_useful_share", "in time", self.slow.useful()),
        ];
        // In calm and when slow.
        let waits = Waits::of([self.calm.times, self.slow.times].concat());
        Arm::new(name, figures, self.calls).waits(waits)
    }
}

fn herd(seed: u64, knobs: Knobs, tap: Tap, hedge: impl FnOnce(&Env) -> Option<Hedge>) -> Herd {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let plan = Plan { times: Times::Exponential, ..Plan::new(knobs.workers, knobs.service_time) };
    let service = Service::tapped(&env, "service", BIN, plan, tap);
    let hedge = hedge(&env);
    let turning = Tick::ZERO + CALM;
    let phases = Arc::new(Mutex::new([0, 1].map(|_| Phase { cared: knobs.useful, ..Phase::default() })));
    let users = {
        let (service, env, phases) = (service.clone(), env.clone(), Arc::clone(&phases));
        async move {
            let rng = env.rng("users");
            poisson(
                &env,
                &rng,
                turning + SLOW,
                |_| knobs.requests,
                |id| {
                    let (service, hedge, phases) = (service.clone(), hedge.clone(), Arc::clone(&phases));
                    env.spawn(request(env.clone(), id, service, hedge, turning, phases)).detach();
                },
            )
            .await;
        }
    };
    let users = env.spawn(users);
    sim.run_until(turning);
    service.change(|plan| plan.time = knobs.service_time * 2);
    sim.run(users).expect("users neither panic nor are aborted");
    // Those who still wait are answered, if late.
    sim.run_until(turning + SLOW + Duration::from_secs(120));
    let [calm, slow] = std::mem::take(&mut *phases.lock());
    Herd { calm, slow, calls: service.seen().calls }
}

async fn request(
    env: Env,
    id: u64,
    service: Service,
    hedge: Option<Hedge>,
    turning: Tick,
    phases: Arc<Mutex<[Phase; 2]>>,
) {
    let began = env.now();
    let phase = usize::from(began >= turning);
    let call = |which| {
        phases.lock()[phase].calls += 1;
        let service = service.clone();
        let caller = Caller::of(id, "/").in_wave_if("hedge", (which == Which::Second).then_some(0));
        async move { service.call_from(caller).await }
    };
    let _served = match hedge {
        Some(hedge) => hedge.run(&env, result, Ask::new(&env), |_, which| call(which)).await,
        None => call(Which::First).await,
    };
    phases.lock()[phase].times.push(env.now() - began);
}
