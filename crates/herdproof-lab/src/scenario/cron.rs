//! Everybody's job runs at :00.
//!
//! Nothing fails and nothing is retried: the crowd is in the timetable. A loop that sleeps for an hour after each run is no
//! better, as everybody was started by the same deploy, and it drifts by the time that the job takes. A place drawn anew
//! for every run spreads the crowd, but then two runs of one instance may be almost at once or almost two hours apart. A
//! slot of the instance's own, from a hash of its name, has neither fault.

use std::{ops::ControlFlow, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    schedule::{Cron, Splay},
};

use super::{Scenario, marks::Marks};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
};

const HOUR: Duration = Duration::from_secs(3600);
const BOUND: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
const HOURS: u32 = 6;

#[derive(Clone, Copy, Debug)]
enum Way {
    /// At the full hour, like cron.
    Sharp,
    /// An hour after the last run ended.
    Sleep,
    /// The library, within a bound; in a slot of its own, or drawn anew every time.
    Cron { bound: Duration, own: bool },
}

knobs! {
    /// How many instances have the job.
    instances: u64 = 2_000, 1..=30_000;
    /// How long it takes.
    job: Duration = SECOND * 20, SECOND..=SECOND * 1_800;
}

pub(super) const SCENARIO: Scenario =
    Scenario { name: "cron", title: "everybody's job at :00, or each in a slot of its own", knobs: Knobs::all, run };

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let herd = |arm, way| herd(settings.seed, knobs, way, &settings.tap(arm));
    let sharp = herd(0, Way::Sharp);
    let sleep = herd(1, Way::Sleep);
    let drawn = herd(2, Way::Cron { bound: BOUND, own: false });
    let own = herd(3, Way::Cron { bound: BOUND, own: true });
    let hour = herd(4, Way::Cron { bound: HOUR, own: true });
    let peak = |marks: &Marks| marks.timeline(SECOND).peak();
    let summary = format!(
        "{} jobs at :00 are {} in one second; each in its own slot of ten minutes {}, of the whole hour {}, and \
         every instance still runs once an hour.",
        knobs.instances,
        peak(&sharp),
        peak(&own),
        peak(&hour),
    );
    Report {
        scenario: "cron",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("period", "1 h"),
            Parameter::new("bound", "10 min"),
            Parameter::new("time", format!("{HOURS} h")),
        ],
        marks: (0..HOURS).map(|hour| Mark { at: HOUR * hour, what: ":00" }).collect(),
        checks: checks(knobs, &sharp, &sleep, &drawn, &own, &hour),
        arms: vec![
            arm("at :00", &sharp),
            arm("sleep an hour", &sleep),
            arm("drawn in 10 min", &drawn),
            arm("own slot in 10 min", &own),
            arm("own slot in the hour", &hour),
        ],
        span: HOUR * HOURS,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, knobs: Knobs, way: Way, tap: &Tap) -> Marks {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let marks = Marks::new(knobs.instances);
    for id in 0..knobs.instances {
        env.spawn(instance(env.scope(id), knobs.job, way, id, marks.clone(), tap.clone())).detach();
    }
    sim.finish().expect("every instance stops");
    marks
}

async fn instance(env: Env, time: Duration, way: Way, id: u64, marks: Marks, tap: Tap) {
    let clock = env.clone();
    let mut left = HOURS;
    let mut job = move || {
        let wave = marks.mark(id, clock.now());
        tap.note(&clock, Caller::of(id, "/report").in_wave("cron", wave), 200);
        left -= 1;
        let work = clock.sleep(time);
        async move {
            work.await;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    };
    match way {
        Way::Sharp | Way::Sleep => {
            let mut next = env.now();
            while job().await.is_continue() {
                next = if matches!(way, Way::Sharp) { next + HOUR } else { env.now() + HOUR };
                env.sleep_until(next).await;
            }
        }
        Way::Cron { bound, own } => {
            let cron = Cron::every(HOUR).within(bound);
            let cron = if own { cron.splay(Splay::of(&format!("web-{id}"), "report")) } else { cron };
            cron.run(&env, std::future::pending::<()>(), job).await;
        }
    }
}

/// How long after its full hour a run was; the simulation begins at one.
fn late(number: u32, at: Tick) -> Duration {
    (at - Tick::ZERO).saturating_sub(HOUR * number)
}

fn latest(marks: &Marks) -> Duration {
    marks.each(|runs| (0..).zip(runs).map(|(n, at)| late(n, *at)).max()).into_iter().flatten().max().unwrap_or_default()
}

/// The shortest time between two runs of one instance.
fn closest(marks: &Marks) -> Duration {
    let gaps = marks.each(|runs| runs.windows(2).map(|pair| pair[1] - pair[0]).min());
    gaps.into_iter().flatten().min().unwrap_or_default()
}

/// How far an instance was from where it was in the first hour, at most.
fn moved(marks: &Marks) -> Duration {
    let moves = marks.each(|runs| {
        let first = runs.first().map_or(Duration::ZERO, |at| late(0, *at));
        (0..).zip(runs).map(|(n, at)| late(n, *at).abs_diff(first)).max()
    });
    moves.into_iter().flatten().max().unwrap_or_default()
}

fn arm(name: &'static str, marks: &Marks) -> Arm {
    let seconds = marks.timeline(SECOND);
    let figures = vec![
        Figure::count("runs", "runs", seconds.total()),
        Figure::count("peak_per_second", "peak/s", seconds.peak()),
        Figure::number("latest_s", "latest, s", latest(marks).as_secs_f64()),
        Figure::number("closest_s", "closest, s", closest(marks).as_secs_f64()),
        Figure::number("moved_s", "moved, s", moved(marks).as_secs_f64()),
    ];
    Arm::new(name, figures, marks.timeline(SECOND * 60))
}

/// A mean per second, and what a Poisson process of that mean does not exceed in any of the seconds of a run.
fn peak_bound(mean: f64) -> f64 {
    (mean + 6.0 * mean.sqrt() + 3.0).ceil()
}

fn checks(knobs: Knobs, sharp: &Marks, sleep: &Marks, drawn: &Marks, own: &Marks, hour: &Marks) -> Vec<Check> {
    let peak = |marks: &Marks| marks.timeline(SECOND).peak() as f64;
    let runs = |marks: &Marks| marks.timeline(SECOND).total();
    let n = knobs.instances as f64;
    // A slot is a tenth of the bound wide, so places are spread over nine tenths of it.
    let slots = n / (BOUND.as_secs_f64() * 0.9);
    vec![
        Check::equal(Source::Article, "at :00: everybody in one second", &n, &peak(sharp)).cites("H17"),
        Check::equal(Source::Article, "sleep an hour: everybody in one second, still", &n, &peak(sleep)).cites("H17"),
        Check::equal(
            Source::Formula,
            "sleep an hour: has drifted by the job's time for every run before",
            &(knobs.job * (HOURS - 1)),
            &latest(sleep),
        )
        .cites("H17"),
        Check::equal(
            Source::Promise,
            "everybody runs once an hour",
            &[knobs.instances * u64::from(HOURS); 3],
            &[runs(drawn), runs(own), runs(hour)],
        )
        .cites("T23"),
        Check::at_most(Source::Formula, "own slot in 10 min: peak of N / 9 min", peak_bound(slots), peak(own))
            .cites("T23"),
        Check::at_most(
            Source::Formula,
            "own slot in the hour: peak of N / 54 min",
            peak_bound(slots / 6.0),
            peak(hour),
        )
        .cites("T23"),
        Check::at_most(Source::Promise, "own slot in 10 min: nobody is later (s)", BOUND.as_secs_f64(), {
            latest(own).as_secs_f64()
        })
        .cites("T23"),
        Check::at_most(
            Source::Promise,
            "own slot: nobody moves by more than the slot's 60 s",
            60.0,
            moved(own).as_secs_f64(),
        )
        .cites("T23"),
        Check::at_least(
            Source::Formula,
            "drawn anew: some instance moves by nearly the bound (s)",
            BOUND.as_secs_f64() * 0.9,
            moved(drawn).as_secs_f64(),
        )
        .cites("H17"),
        Check::at_least(
            Source::Promise,
            "own slot: two runs are an hour apart, give or take the slot (s)",
            3540.0,
            closest(own).as_secs_f64(),
        )
        .cites("T23"),
    ]
}
