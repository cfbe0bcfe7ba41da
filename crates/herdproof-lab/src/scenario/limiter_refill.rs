//! A crowd at a limit of a hundred a second, and four ways of counting a second.
//!
//! A fixed window lets a hundred through just before its edge and a hundred just after: twice the rate, and everybody who
//! waits wakes at the edge to fight for the next hundred. Refilling in steps, ten each tenth of a second, makes the crowds
//! smaller and leaves them crowds. A theoretical arrival time has no steps. Who asks and does not wait is told when to come,
//! each another instant; who waits has a slot of its own and wakes once.
//!
//! The two naive limits are written out here, as services have them; the other two arms are the library's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Gate, Permit, Span, Verdict},
    limit::{Rate, RateLimit},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, say},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Callers come between these, half of them before the first full second.
const FIRST: Duration = Duration::from_millis(950);
const LAST: Duration = Duration::from_millis(1_050);

/// How a caller gets in.
#[derive(Clone)]
enum Limit {
    Steps(Arc<Steps>),
    Told(RateLimit),
    Waits(RateLimit),
}

/// A limit that is whole again at every step of the clock: the naive kind.
struct Steps {
    step: Duration,
    count: u32,
    /// The step it was asked in last, and how many went in it.
    used: Mutex<(u128, u32)>,
}

/// What a crowd did.
struct Herd {
    went: Vec<Tick>,
    asked: u64,
}

knobs! {
    /// How many may go in a second.
    rate: u32 = 100, 10..=10_000;
    /// How many may go at once besides.
    burst: u32 = 10, 1..=1_000;
    /// How many come around the first full second.
    callers: u64 = 400, 1..=5_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "limiter-refill",
    title: "a crowd at a limit: fixed windows let twice the rate through, slots of one's own space them",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let steps = |step, count| move |_: &Env| Limit::Steps(Arc::new(Steps { step, count, used: Mutex::default() }));
    let rate = || Rate::per_second(knobs.rate).burst(knobs.burst);
    let window = herd(seed, knobs, &settings.tap(0), steps(SECOND, knobs.rate));
    let ticks = herd(seed, knobs, &settings.tap(1), steps(SECOND / 10, knobs.rate / 10));
    let told = herd(seed, knobs, &settings.tap(2), |env| Limit::Told(RateLimit::new(env, rate())));
    let waits = herd(seed, knobs, &settings.tap(3), |env| Limit::Waits(RateLimit::new(env, rate())));
    let checks = checks(knobs, &window, &ticks, &told, &waits);
    let summary = format!(
        "the fixed window let {} through within one second and {} within one millisecond, and its waiters asked {:.1} times \
         each; with slots of their own everybody asked once, and no second saw more than {}.",
        window.most_within(SECOND),
        window.most_within(MS),
        window.asked as f64 / knobs.callers as f64,
        waits.most_within(SECOND),
    );
    Report {
        scenario: "limiter-refill",
        seed: settings.seed,
        parameters: vec![Parameter::new("arrivals", format!("{FIRST:?} to {LAST:?}"))],
        arms: vec![
            window.arm("fixed window"),
            ticks.arm(if knobs.rate == 100 { "ten every 100 ms" } else { "in tenths of a second" }),
            told.arm("GCRA, told when"),
            waits.arm("GCRA, reserved slots"),
        ],
        span: Duration::ZERO,
        marks: vec![Mark { at: SECOND, what: "a window ends" }],
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, knobs: Knobs, tap: &Tap, limit: impl FnOnce(&Env) -> Limit) -> Herd {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let limit = limit(&env);
    let rng = env.rng("callers");
    let asked = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..knobs.callers)
        .map(|id| {
            let comes = Tick::ZERO + rng.between(FIRST, LAST);
            let (clock, limit, asked) = (env.clone(), limit.clone(), Arc::clone(&asked));
            let tap = tap.clone();
            env.spawn(async move {
                clock.sleep_until(comes).await;
                limit.pass(&clock, &asked, id, &tap).await;
                clock.now()
            })
        })
        .collect();
    let went = sim.run(async {
        let mut went = Vec::new();
        for caller in callers {
            went.push(caller.await.expect("callers neither panic nor are aborted"));
        }
        went.sort_unstable();
        went
    });
    Herd { went, asked: asked.load(Ordering::Relaxed) }
}

impl Limit {
    /// Asks until it is let in.
    async fn pass(&self, env: &Env, asked: &AtomicU64, id: u64, tap: &Tap) {
        for wave in 0.. {
            asked.fetch_add(1, Ordering::Relaxed);
            // Who comes by itself is part of the herd once it comes back.
            let caller = Caller::of(id, "/");
            let request = tap.begin(env, if wave == 0 { caller } else { caller.in_wave("refill", wave) });
            let mut ask = Ask::new(env).deadline(Tick::MAX);
            let entered = match self {
                Limit::Steps(steps) => match steps.try_enter(env.now()) {
                    Ok(()) => return request.end(200),
                    Err(next) => {
                        request.end(429);
                        env.sleep_until(next).await;
                        continue;
                    }
                },
                Limit::Told(limit) => limit.try_enter(&ask),
                Limit::Waits(limit) => limit.enter(&mut ask).await,
            };
            match entered {
                Ok(permit) => {
                    request.end(200);
                    return permit.settle(&Verdict::Ok, Span { from: ask.at, to: ask.at });
                }
                Err(refusal) => {
                    request.end(429);
                    env.sleep(refusal.after.unwrap_or(SECOND)).await;
                }
            }
        }
    }
}

impl Steps {
    /// Goes in this step if there is room, else says when the next begins.
    fn try_enter(&self, now: Tick) -> Result<(), Tick> {
        let step = (now - Tick::ZERO).as_nanos() / self.step.as_nanos();
        let mut used = self.used.lock();
        if used.0 != step {
            *used = (step, 0);
        }
        if used.1 < self.count {
            used.1 += 1;
            return Ok(());
        }
        Err(Tick::ZERO + self.step * u32::try_from(step + 1).unwrap_or(u32::MAX))
    }
}

impl Herd {
    /// The most that went within any span of this length, its end not included.
    fn most_within(&self, span: Duration) -> u64 {
        let until = |first: Tick| self.went.partition_point(|at| *at < first + span);
        let most = self.went.iter().enumerate().map(|(index, first)| until(*first) - index).max();
        most.unwrap_or(0) as u64
    }

    /// The same, for those who went after the first so many.
    fn most_later_within(&self, span: Duration, burst: u32) -> u64 {
        let later = self.went.iter().skip(burst as usize).copied().collect();
        Herd { went: later, asked: 0 }.most_within(span)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let mut timeline = Timeline::new(MS * 10);
        self.went.iter().for_each(|at| timeline.record(*at));
        let end = self.went.last().map_or(Duration::ZERO, |last| *last - Tick::ZERO);
        let figures = vec![
            Figure::count("calls", "calls", self.went.len() as u64),
            Figure::count("peak_per_s", "in any s", self.most_within(SECOND)),
            Figure::count("peak_per_ms", "in any ms", self.most_within(MS)),
            Figure::count("asked", "asked", self.asked),
            Figure::time("end_ms", "end", end),
        ];
        Arm::new(name, figures, timeline)
    }
}

fn checks(knobs: Knobs, window: &Herd, ticks: &Herd, told: &Herd, waits: &Herd) -> Vec<Check> {
    let apart = SECOND / knobs.rate;
    let rate = u64::from(knobs.rate);
    // Everybody asks once. Half come before the first edge, and 100 of them ask again there; then 200 at the next, 100 at the
    // last. How many come before the edge is chance: 200, with a standard deviation of 10.
    let asks = (knobs.callers + 100 + 200 + 100) as f64;
    vec![
        Check::equal(
            Source::Article,
            "fixed window: twice the rate within a second",
            &(2 * rate),
            &window.most_within(SECOND),
        )
        .cites("H11"),
        Check::equal(Source::Article, "fixed window: the whole rate at one edge", &rate, &window.most_within(MS))
            .cites("H11"),
        Check::within(
            Source::Formula,
            "fixed window: who waits asks again at every edge",
            asks,
            50.0,
            window.asked as f64,
        )
        .cites("H11"),
        Check::equal(
            Source::Formula,
            "ticks: a tenth of it at every edge",
            &(rate / 10),
            &ticks.most_later_within(MS, knobs.burst),
        )
        .cites("H11"),
        Check::at_most(
            Source::Formula,
            "GCRA: in any second the rate and one burst",
            f64::from(knobs.rate + knobs.burst),
            told.most_within(SECOND).max(waits.most_within(SECOND)) as f64,
        )
        .cites("T15"),
        Check::equal(
            Source::Promise,
            format!("GCRA, slots: after the burst one in {}", say(apart)),
            &1,
            &waits.most_later_within(apart, knobs.burst),
        )
        .cites("T15"),
        Check::equal(Source::Promise, "GCRA, slots: everybody asks once", &knobs.callers, &waits.asked).cites("T15"),
        Check::at_most(
            Source::Promise,
            "GCRA, told when: everybody comes back once at most",
            2.0 * knobs.callers as f64,
            told.asked as f64,
        )
        .cites("T15"),
    ]
}
