//! A burst of one second before a service that needs ten for it, and callers who give up after two.
//!
//! Served in the order in which they came, the first few are in time, and from then on everybody has given up before it is
//! their turn: the service works at full speed for nobody, until the line is short again. This is the bathtub: it fills in
//! a second and drains for many, and those who come meanwhile go under with the rest.
//!
//! Corrects: newest first is not what saves the *goodput*. Oldest first does as many if the line knows the deadlines and
//! drops whom it cannot serve in time; even more, as nobody is refused who could still be served. But as long as the line
//! stands everybody waits for nearly all of their two seconds. Newest first serves most at once, and lets the others wait
//! for nothing. Shedding tells them within moments, when they can still do something else.

mod cafe;

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, guard, result},
    shed::{Order, Queue},
    timeout::by,
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, Waits},
    service::{Plan, Service},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
/// The burst is the third second.
const BEGIN: usize = 2;
const SECONDS: usize = 20;

knobs! {
    /// How many calls the service works on at a time.
    workers: u32 = 20, 1..=1_000;
    /// How long it takes for one.
    service_time: Duration = Duration::from_millis(10), Duration::from_millis(1)..=SECOND;
    /// Callers a second who come all the time.
    usual: f64 = 800.0, 1.0..=5_000.0;
    /// How many more come in the third second.
    burst: f64 = 20_000.0, 0.0..=100_000.0;
    /// How long a caller waits.
    timeout: Duration = SECOND * 2, SECOND / 100..=SECOND * 20;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "bathtub",
    title: "a burst of ten seconds' work: served in order it is work for nobody, shed it is goodput",
    knobs: Knobs::all,
    run,
};

/// Where those wait who come, if that is not the service's own line.
type Line<'a> = &'a (dyn Fn(&Env) -> Option<Queue> + Sync);

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let more = Knobs { workers: knobs.workers * 2, ..knobs };
    let queue = |env: &Env, order| {
        Some(Queue::builder(env, knobs.workers).line(100_000).target(Duration::MAX).order(order).build())
    };
    let ways: [(Knobs, Line<'_>); 5] = [
        (knobs, &|_| None),
        (more, &|_| None),
        (knobs, &|env| queue(env, Order::Oldest)),
        (knobs, &|env| queue(env, Order::Newest)),
        (knobs, &|env| Some(Queue::new(env, knobs.workers))),
    ];
    let [fifo, more, deadlines, newest, ours] =
        settings.arms(&ways, |arm, (knobs, line)| herd(seed, *knobs, &settings.tap(arm), line));
    let summary = format!(
        "served in order, {:.0} of {} in the burst are in time and then {} seconds pass with nobody served in time; \
         with shedding the worst second is at {:.0} % of what the service can do, and whoever is served waits {:.0} ms at \
         the 99th percentile.",
        fifo.in_burst(),
        knobs.burst,
        fifo.dead_seconds(),
        ours.worst_second() * 100.0,
        ours.quantile(0.99).as_secs_f64() * 1e3,
    );
    Report {
        scenario: "bathtub",
        seed,
        marks: vec![Mark { at: SECOND * 2, what: "the burst begins" }, Mark { at: SECOND * 3, what: "and ends" }],
        checks: [checks(knobs, &fifo, &more, &deadlines, &newest, &ours), cafe::checks(seed)].concat(),
        arms: vec![
            fifo.arm("oldest first"),
            more.arm("oldest first, twice as many workers"),
            deadlines.arm("oldest first, deadlines"),
            newest.arm("newest first"),
            ours.arm("codel + newest first"),
        ],
        span: SECOND * 20,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn service(self) -> Plan {
        Plan::new(self.workers as usize, self.service_time)
    }
}

/// What became of everybody.
#[derive(Debug)]
struct Tub {
    knobs: Knobs,
    came: Timeline,
    /// By when they came, so that a second is judged by its own callers; and by when they were served.
    served_of: Timeline,
    served: Timeline,
    waits: Vec<Duration>,
    refused: u64,
    /// Gave up, without having been told anything.
    gave_up: u64,
    wasted: u64,
}

fn herd(seed: u64, knobs: Knobs, tap: &Tap, gate: impl FnOnce(&Env) -> Option<Queue>) -> Tub {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service::new(&env, "service", SECOND, knobs.service());
    let gate = gate(&env);
    let timeline = || Timeline::new(SECOND);
    let tub = Arc::new(Mutex::new(Tub {
        knobs,
        came: timeline(),
        served_of: timeline(),
        served: timeline(),
        waits: Vec::new(),
        refused: 0,
        gave_up: 0,
        wasted: 0,
    }));
    let rng = env.rng("users");
    let end = Tick::ZERO + SECOND * 20;
    let is_burst = |at: Tick| usize::try_from((at - Tick::ZERO).as_secs()) == Ok(BEGIN);
    let rate = |at: Tick| if is_burst(at) { knobs.usual + knobs.burst } else { knobs.usual };
    let arrive = |id| {
        // The few who would have come in that second anyway cannot be told from the others.
        let who = Caller::of(id, "/").in_wave_if("burst", is_burst(env.now()).then_some(0));
        let server = Server { gate: gate.clone(), service: service.clone(), tap: tap.clone() };
        let (env, tub) = (env.clone(), Arc::clone(&tub));
        env.clone().spawn(async move { caller(env, who, knobs.timeout, server, &tub).await }).detach();
    };
    sim.run(poisson(&env, &rng, end, rate, arrive));
    sim.finish().expect("everybody gives up after a while");
    let wasted = service.seen().wasted;
    drop(sim);
    let tub = Arc::into_inner(tub).expect("the callers are gone").into_inner();
    Tub { wasted, ..tub }
}

/// The service and what stands before it.
struct Server {
    gate: Option<Queue>,
    service: Service,
    tap: Tap,
}

async fn caller(env: Env, who: Caller, timeout: Duration, server: Server, tub: &Mutex<Tub>) {
    let Server { gate, service, tap } = server;
    let ask = Ask::new(&env).deadline(env.now() + timeout);
    let (came, deadline) = (ask.at, env.now() + timeout);
    tub.lock().came.record(came);
    let answer = tap.door(&env, who, guard(&env, &gate, result, ask, || service.call()));
    let answer = by(&env, Some(deadline), answer).await;
    let mut tub = tub.lock();
    match answer {
        Some(Ok(())) => {
            tub.served_of.record(came);
            tub.served.record(env.now());
            tub.waits.push(env.now() - came);
        }
        Some(Err(_)) => tub.refused += 1,
        None => tub.gave_up += 1,
    }
}

impl Tub {
    /// How many of those who came in the burst were served in time.
    fn in_burst(&self) -> f64 {
        at(&self.served_of, BEGIN)
    }

    /// Seconds in which hardly anybody was served in time.
    fn dead_seconds(&self) -> usize {
        (0..SECONDS).filter(|second| at(&self.served, *second) < 0.05 * self.knobs.usual).count()
    }

    /// The least that was served in any second, as a share of what could be: what the service can do, or all who came.
    fn worst_second(&self) -> f64 {
        let share = |second| at(&self.served, second) / at(&self.came, second).min(self.knobs.service().capacity());
        (0..SECONDS).map(share).fold(f64::INFINITY, f64::min)
    }

    fn quantile(&self, share: f64) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let rank = (waits.len() as f64 * share) as usize;
        waits.get(rank.min(waits.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    fn arm(self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("served", "in time", self.served.total()),
            Figure::number("worst_second_share", "worst second", self.worst_second()),
            Figure::count("wasted", "for nobody", self.wasted),
            Figure::count("refused", "refused", self.refused),
            Figure::count("gave_up", "gave up", self.gave_up),
            Figure::time("p90_ms", "p90", self.quantile(0.9)),
            Figure::time("p99_ms", "p99", self.quantile(0.99)),
        ];
        Arm::new(name, figures, self.served).waits(Waits::of(self.waits))
    }
}

fn at(timeline: &Timeline, second: usize) -> f64 {
    timeline.counts().get(second).copied().unwrap_or(0) as f64
}

fn checks(knobs: Knobs, fifo: &Tub, more: &Tub, deadlines: &Tub, newest: &Tub, ours: &Tub) -> Vec<Check> {
    let (mu, offered) = (knobs.service().capacity(), knobs.usual + knobs.burst);
    let in_time = mu * knobs.timeout.as_secs_f64() * offered / (offered - mu);
    // The line at the end of the burst, down to what is served while a caller waits.
    let line = offered - mu;
    let drained = (line - mu * knobs.timeout.as_secs_f64()) / (mu - knobs.usual);
    vec![
        Check::within(
            Source::Formula,
            "oldest first: in time of the burst, mu x timeout x offered / (offered - mu)",
            in_time.round(),
            0.05 * in_time,
            fifo.in_burst(),
        )
        .cites("H26")
        .cites("N21"),
        Check::within(
            Source::Formula,
            "oldest first: seconds without anybody in time",
            drained.floor() - 1.0,
            2.0,
            fifo.dead_seconds() as f64,
        )
        .cites("N21")
        .cites("H26"),
        Check::at_least(
            Source::Article,
            "oldest first: more is served to nobody than in time of the burst",
            fifo.in_burst(),
            fifo.wasted as f64,
        )
        .cites("H26"),
        Check::at_least(
            Source::Article,
            "twice as many workers do not remove it: seconds without anybody in time",
            1.0,
            more.dead_seconds() as f64,
        )
        .cites("Q9")
        .cites("T31"),
        Check::at_least(Source::Formula, "newest first: the worst second, as a share", 0.95, newest.worst_second())
            .cites("T17"),
        Check::at_least(
            Source::Formula,
            "oldest first with deadlines: as good a share",
            0.95,
            deadlines.worst_second(),
        )
        .cites("T17"),
        Check::at_least(
            Source::Formula,
            "but one in ten waits for most of the timeout (p90, ms)",
            0.75 * knobs.timeout.as_secs_f64() * 1e3,
            deadlines.quantile(0.9).as_secs_f64() * 1e3,
        )
        .cites("T17"),
        Check::at_least(
            Source::Promise,
            "codel + newest first: the worst second, as a share",
            0.95,
            ours.worst_second(),
        )
        .cites("T17"),
        Check::at_most(
            Source::Promise,
            "codel + newest first: p99 of those served (ms)",
            250.0,
            ours.quantile(0.99).as_secs_f64() * 1e3,
        )
        .cites("T17"),
        Check::equal(Source::Promise, "codel + newest first: nobody waits in vain", &0, &(ours.gave_up + ours.wasted))
            .cites("T17"),
    ]
}
