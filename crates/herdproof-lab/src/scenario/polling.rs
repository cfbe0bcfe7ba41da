//! Consumers that poll a queue in step, mostly for nothing.
//!
//! `P` consumers with a period of `T` make `P / T` polls a second on average. In step they make `P` in one instant and none
//! until the next. Jitter takes the peak away. It does not take the empty polls away: for that a consumer has to slow down
//! while there is nothing, which costs little waiting, because there are many others, and be quick when there is a lot.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    schedule::{Found, Poller},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, Waits, millis},
    timeline::Timeline,
};

const BURST_AT: Duration = Duration::from_millis(40_300);
const BIN: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Polls, sleeps a period, polls.
    InStep,
    /// The library, with the same pace whatever it finds.
    Jittered,
    /// The library.
    Adaptive,
}

/// The queue, and what was seen at it.
struct Queue {
    /// How many a poll takes at most.
    batch: usize,
    jobs: VecDeque<Tick>,
    polls: Timeline,
    empty: u64,
    waits: Vec<Duration>,
    /// When the last job of the burst was taken.
    drained: Option<Tick>,
}

knobs! {
    /// How many consumers poll.
    consumers: u64 = 1_000, 1..=200_000;
    /// How often each does.
    period: Duration = Duration::from_secs(1), Duration::from_millis(500)..=Duration::from_secs(60);
    /// How slow one becomes that finds nothing; no faster than the period.
    slowest: Duration = Duration::from_secs(10), Duration::from_millis(500)..=Duration::from_secs(60);
    /// How many jobs a poll takes at most.
    batch: usize = 10, 1..=1_000;
    /// What a poll takes.
    round_trip: Duration = Duration::from_millis(5), Duration::from_millis(1)..=Duration::from_secs(1);
    /// Jobs that come in a second.
    jobs: f64 = 20.0, 0.0..=10_000.0;
    /// How many come at once besides, at 40.3 s.
    burst: u64 = 5_000, 0..=100_000;
    /// How long they are watched.
    time: Duration = Duration::from_secs(60), Duration::from_secs(60)..=Duration::from_secs(600);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "polling",
    title: "consumers that poll in step and mostly for nothing: jitter, and slower when empty",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let ways = [Way::InStep, Way::Jittered, Way::Adaptive];
    let [step, jittered, adaptive] =
        settings.arms(&ways, |arm, way| herd(settings.seed, knobs, *way, &settings.tap(arm)));
    let summary = format!(
        "in step, {} polls come in one instant and {:.0} % find nothing; jittered, the busiest 10 ms have {}; slower when \
         empty, there are {:.1} times fewer polls, a job waits {:.0} ms on average, and a burst of {} is gone in {:.2} s.",
        step.polls.peak(),
        step.empty as f64 * 100.0 / step.polls.total() as f64,
        jittered.polls.peak(),
        jittered.polls.total() as f64 / adaptive.polls.total() as f64,
        millis(adaptive.mean_wait()),
        knobs.burst,
        millis(adaptive.burst_gone()) / 1e3,
    );
    Report {
        scenario: "polling",
        seed: settings.seed,
        marks: vec![Mark { at: BURST_AT, what: "the burst" }],
        checks: checks(knobs, &step, &jittered, &adaptive),
        arms: vec![step.arm("in step"), jittered.arm("jittered"), adaptive.arm("slower when empty")],
        span: knobs.time,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn slowest(self) -> Duration {
        self.slowest.max(self.period)
    }
}

fn herd(seed: u64, knobs: Knobs, way: Way, tap: &Tap) -> Queue {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let queue = Arc::new(Mutex::new(Queue {
        batch: knobs.batch,
        jobs: VecDeque::new(),
        polls: Timeline::new(BIN),
        empty: 0,
        waits: Vec::new(),
        drained: None,
    }));
    for id in 0..knobs.consumers {
        env.spawn(consumer(env.scope(id), id, knobs, way, Arc::clone(&queue), tap.clone())).detach();
    }
    let (producer, line) = (env.clone(), Arc::clone(&queue));
    env.spawn(async move {
        let arrive = |_| line.lock().jobs.push_back(producer.now());
        poisson(&producer, &producer.rng("jobs"), Tick::ZERO + knobs.time, |_| knobs.jobs, arrive).await;
    })
    .detach();
    let line = Arc::clone(&queue);
    env.clone()
        .spawn(async move {
            let now = env.sleep(BURST_AT).await;
            line.lock().jobs.extend((0..knobs.burst).map(|_| now));
        })
        .detach();
    sim.finish().expect("everybody stops");
    Arc::into_inner(queue).expect("everybody has stopped").into_inner()
}

async fn consumer(env: Env, id: u64, knobs: Knobs, way: Way, queue: Arc<Mutex<Queue>>, tap: Tap) {
    let mut waves = 0..;
    let mut poll = || {
        let wave = waves.next().unwrap_or(u32::MAX);
        tap.note(&env, Caller::of(id, "/jobs").in_wave("polling", wave), 200);
        queue.lock().poll(env.now())
    };
    let poller = match way {
        Way::InStep => {
            let mut at = env.now();
            while at - Tick::ZERO < knobs.time {
                env.sleep_until(at).await;
                poll();
                at = at + knobs.period;
            }
            return;
        }
        Way::Jittered => Poller::every(knobs.period).slowest(knobs.period),
        Way::Adaptive => Poller::every(knobs.period).slowest(knobs.slowest()),
    };
    poller
        .run(&env, env.sleep(knobs.time), || {
            let found = poll();
            let trip = env.sleep(knobs.round_trip);
            async move {
                trip.await;
                match (way, found) {
                    (Way::Jittered, _) => Found::Some,
                    (_, count) if count == knobs.batch => Found::Full,
                    (_, 0) => Found::Nothing,
                    _ => Found::Some,
                }
            }
        })
        .await;
}

impl Queue {
    /// Takes up to a batch, and says how many there were.
    fn poll(&mut self, now: Tick) -> usize {
        self.polls.record(now);
        let count = self.jobs.len().min(self.batch);
        self.empty += u64::from(count == 0);
        for job in self.jobs.drain(..count) {
            self.waits.push(now - job);
            if job == Tick::ZERO + BURST_AT {
                self.drained = Some(now);
            }
        }
        count
    }

    fn mean_wait(&self) -> Duration {
        self.waits.iter().sum::<Duration>() / u32::try_from(self.waits.len().max(1)).unwrap_or(u32::MAX)
    }

    fn burst_gone(&self) -> Duration {
        self.drained.map_or(Duration::MAX, |at| at - (Tick::ZERO + BURST_AT))
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("polls", "polls", self.polls.total()),
            Figure::count("empty", "empty", self.empty),
            Figure::count("peak_per_10_ms", "peak/10 ms", self.polls.peak()),
            Figure::time("mean_wait_ms", "mean wait", self.mean_wait()),
            Figure::time("burst_gone_ms", "burst gone", self.burst_gone()),
        ];
        Arm::new(name, figures, self.polls.clone()).waits(Waits::of(self.waits.clone()))
    }
}

fn checks(knobs: Knobs, step: &Queue, jittered: &Queue, adaptive: &Queue) -> Vec<Check> {
    let per_second = |queue: &Queue| queue.polls.total() as f64 / knobs.time.as_secs_f64();
    let (p, t) = (knobs.consumers as f64, knobs.period.as_secs_f64());
    let mean = p / t * BIN.as_secs_f64();
    vec![
        Check::equal(Source::Formula, "in step: P polls in one instant", &knobs.consumers, &step.polls.peak())
            .cites("H10"),
        Check::equal(Source::Formula, "in step: P / T a second on average", &(p / t), &per_second(step)).cites("H10"),
        Check::within(Source::Formula, "jittered: P / T a second, too", p / t, p / t * 0.02, per_second(jittered))
            .cites("T23"),
        Check::at_most(
            Source::Formula,
            "jittered: six standard deviations above P / T in the busiest 10 ms",
            (mean + 6.0 * mean.sqrt()).ceil(),
            jittered.polls.peak() as f64,
        )
        .cites("T23"),
        Check::at_least(
            Source::Promise,
            "slower when empty: times fewer empty polls",
            3.0,
            jittered.empty as f64 / adaptive.empty as f64,
        )
        .cites("H10"),
        Check::at_most(
            Source::Promise,
            "slower when empty: mean wait, in periods",
            1.0,
            adaptive.mean_wait().as_secs_f64() / t,
        )
        .cites("H10"),
        Check::at_most(
            Source::Promise,
            "slower when empty: the burst is gone within the longest pause (s)",
            knobs.slowest().as_secs_f64(),
            adaptive.burst_gone().as_secs_f64(),
        )
        .cites("H10"),
    ]
}
