//! What comes out of a service, over what is put in: from half of what it can do to eight times that.
//!
//! Up to its capacity a service answers what it is asked. Beyond, a line before it grows until everybody in it gives up before it is
//! their turn; the service works at full speed, and what it does is for nobody. The curve of good answers over offered load rises
//! to the capacity and falls off a cliff. More capacity moves the cliff; twice as much capacity moves it to twice the load. Refusing
//! what cannot be done in time removes it: the curve is flat from the capacity on, as in what Netflix and Uber show of theirs.
//!
//! Known: at just the capacity a line does better, by a tenth. Callers here would wait for ten times as long as a call takes; shedding
//! by default keeps waits at a tenth of it, and refuses in a rush who could still have been served after it.
//!
//! Each load is a run of its own, so that none suffers from the one before it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Gate, guard, result},
    limit::AdaptiveLimit,
    shed::Queue,
    timeout::by,
};

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Parameter, Report, Source, Steps},
    service::{Plan, Service, Times},
    timeline::{Shape, Timeline},
};

const SEC: Duration = Duration::from_secs(1);
/// Nothing is counted until then: lines and limits find their length.
const WARM_UP: Duration = Duration::from_secs(10);
const COUNTED: Duration = Duration::from_secs(20);
/// Offered loads are so many steps, each of half the capacity.
const STEP: f64 = 0.5;
const STEPS: usize = 16;
/// The one of which there is a log.
const LISTENED: f64 = 2.0;

knobs! {
    /// How many calls the service works on at a time.
    workers: u32 = 10, 1..=20;
    /// How long it takes for one, on average.
    service_time: Duration = SEC / 10, SEC / 20..=SEC;
    /// How long callers wait.
    patience: Duration = SEC, SEC / 10..=SEC * 10;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "goodput",
    title: "what comes out over what is put in: a cliff, the same cliff further on, or a plain",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let (plain, twice) = (knobs, Knobs { workers: knobs.workers * 2, ..knobs });
    let rate = |load: f64| load * knobs.service().capacity();
    // Listened to is the run at twice the capacity.
    let tap = |arm, load: f64| if (load - LISTENED).abs() < STEP / 2.0 { settings.tap(arm) } else { Tap::default() };
    let waiting = |_: &Env| None::<Queue>;
    let ways: [&(dyn Fn(usize, f64) -> u64 + Sync); 5] = [
        &|arm, load| good(seed, plain, rate(load), &tap(arm, load), waiting),
        &|arm, load| good(seed, twice, rate(load), &tap(arm, load), waiting),
        &|arm, load| good(seed, plain, rate(load), &tap(arm, load), |env| Queue::new(env, plain.workers)),
        &|arm, load| good(seed, twice, rate(load), &tap(arm, load), |env| Queue::new(env, twice.workers)),
        &|arm, load| good(seed, plain, rate(load), &tap(arm, load), AdaptiveLimit::new),
    ];
    let [line, more, shed, both, adaptive] = settings.arms(&ways, |arm, way| Curve::of(|load| way(arm, load)));
    let summary = format!(
        "a line serves {:.0} a second at its capacity and {:.0} at twice that; with twice the capacity it serves {:.0} there, and {:.0} at \
         four times. Shedding serves {:.0} at eight times the capacity, and a limit that finds itself {:.0}.",
        line.at(1.0),
        line.at(2.0),
        more.at(2.0),
        more.at(4.0),
        shed.at(8.0),
        adaptive.at(8.0),
    );
    Report {
        scenario: "goodput",
        seed,
        parameters: vec![
            Parameter::new("capacity", format!("{:.0}/s", knobs.service().capacity())),
            Parameter::new("warm-up", format!("{WARM_UP:?}")),
            Parameter::new("counted", format!("{COUNTED:?}")),
            Parameter::new("figures", "answers in time, a second"),
        ],
        checks: checks(knobs, [&line, &more, &shed, &both, &adaptive]),
        arms: vec![
            line.arm("a line"),
            more.arm("a line, twice the capacity"),
            shed.arm("shed"),
            both.arm("shed, twice the capacity"),
            adaptive.arm("adaptive limit"),
        ],
        steps: Some(Steps { shows: "answers in time", over: "offered load, in capacities", step: STEP }),
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn service(self) -> Plan {
        Plan { times: Times::Exponential, ..Plan::new(self.workers as usize, self.service_time) }
    }
}

/// How many callers are answered in time while it counts, if so many come in a second.
fn good<G: Gate + Clone + 'static>(seed: u64, knobs: Knobs, rate: f64, tap: &Tap, gate: impl FnOnce(&Env) -> G) -> u64 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service::new(&env, "service", SEC, knobs.service());
    let gate = gate(&env);
    let good = Arc::new(AtomicU64::new(0));
    let counted = Tick::ZERO + WARM_UP..Tick::ZERO + WARM_UP + COUNTED;
    let rng = env.rng("users");
    let arrive = |id| {
        let (env, gate, service, good, counted) =
            (env.clone(), gate.clone(), service.clone(), Arc::clone(&good), counted.clone());
        let tap = tap.clone();
        env.clone()
            .spawn(async move {
                let deadline = env.now() + knobs.patience;
                let ask = Ask::new(&env).deadline(deadline);
                let answer = guard(&env, &gate, result, ask, || service.call());
                let answer = by(&env, Some(deadline), tap.door(&env, Caller::of(id, "/"), answer)).await;
                if matches!(answer, Some(Ok(()))) && counted.contains(&env.now()) {
                    good.fetch_add(1, Relaxed);
                }
            })
            .detach();
    };
    sim.run(poisson(&env, &rng, counted.end, |_| rate, arrive));
    sim.run_until(counted.end);
    good.load(Relaxed)
}

/// Good answers at each load, from half of the capacity up.
struct Curve(Vec<u64>);

impl Curve {
    fn of(good: impl Fn(f64) -> u64) -> Curve {
        Curve((1..=STEPS).map(|steps| good(steps as f64 * STEP)).collect())
    }

    /// Good answers a second at this load.
    fn at(&self, load: f64) -> f64 {
        let here = (1..).zip(&self.0).find(|(steps, _)| f64::from(*steps) * STEP >= load);
        here.map_or(0.0, |(_, good)| *good as f64 / COUNTED.as_secs_f64())
    }

    /// From the least to the most a second, at loads above this.
    fn above(&self, load: f64) -> (f64, f64) {
        let good = (1..=STEPS).map(|steps| steps as f64 * STEP).filter(|at| *at > load).map(|at| self.at(at));
        good.fold((f64::INFINITY, 0.0), |(least, most), good| (least.min(good), most.max(good)))
    }

    fn arm(self, name: &'static str) -> Arm {
        let figures = [
            ("at_half_per_s", "at half", 0.5),
            ("at_1_per_s", "at capacity", 1.0),
            ("at_2_per_s", "at twice", 2.0),
            ("at_4_per_s", "at 4 times", 4.0),
            ("at_8_per_s", "at 8 times", 8.0),
        ];
        let figures = figures.map(|(key, title, load)| Figure::number(key, title, self.at(load))).into();
        Arm { shape: Shape::Curve, ..Arm::new(name, figures, Timeline::of(SEC, self.0)) }
    }
}

fn checks(knobs: Knobs, [line, more, shed, both, adaptive]: [&Curve; 5]) -> Vec<Check> {
    let capacity = knobs.service().capacity();
    // As many as come while it counts, give or take four standard deviations.
    let error = |load: f64| 4.0 * (load * capacity / COUNTED.as_secs_f64()).sqrt();
    let all = [line, more, shed, both, adaptive].map(|curve| curve.at(STEP));
    let [least, most] = [f64::min, f64::max].map(|of| all.into_iter().reduce(of).unwrap_or(0.0));
    vec![
        Check::within(
            Source::Formula,
            "half of the capacity: all are served, whatever is before the service (the least of all arms)",
            STEP * capacity,
            error(STEP),
            least,
        )
        .cites("L28"),
        Check::within(Source::Formula, "... and the most", STEP * capacity, error(STEP), most).cites("L28"),
        Check::at_most(
            Source::Published,
            "a line: beyond its capacity next to nothing is in time (the most at any load, a second)",
            0.05 * capacity,
            line.above(1.0).1,
        )
        .cites("L28")
        .cites("Uber")
        .cites("Netflix"),
        Check::at_least(
            Source::Published,
            "shed: flat beyond the capacity (the least at any load, as a share of the capacity)",
            0.9,
            shed.above(1.0).0 / capacity,
        )
        .cites("L28")
        .cites("Uber")
        .cites("T17"),
        Check::at_least(
            Source::Published,
            "adaptive limit: the same, and nobody had to know the capacity",
            0.9,
            adaptive.above(1.0).0 / capacity,
        )
        .cites("L28")
        .cites("Uber")
        .cites("Netflix")
        .cites("T17"),
        Check::within(
            Source::Article,
            "twice the capacity: what made the line useless is served (at 1.5 times the first capacity, a second)",
            1.5 * capacity,
            error(1.5),
            more.at(1.5),
        )
        .cites("T31")
        .cites("Q9"),
        Check::at_most(
            Source::Article,
            "... but the cliff is only further on (the most beyond twice the first capacity, a second)",
            0.05 * capacity,
            more.above(2.0).1,
        )
        .cites("T31")
        .cites("Q9")
        .cites("Q5"),
        Check::at_least(
            Source::Promise,
            "twice the capacity is worth twice as much where it is shed (the least beyond it, in capacities)",
            1.8,
            both.above(2.0).0 / capacity,
        )
        .cites("T31")
        .cites("T17"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_found_by_what_it_is() {
        let curve = Curve((1..=16).map(|good| good * COUNTED.as_secs()).collect());
        assert_eq!((curve.at(0.5), curve.at(1.0), curve.at(8.0)), (1.0, 2.0, 16.0));
        assert_eq!((curve.above(1.0), curve.above(7.5)), ((3.0, 16.0), (16.0, 16.0)));
    }
}
