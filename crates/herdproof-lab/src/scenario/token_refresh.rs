//! Instances deployed together refresh their tokens together, for days.
//!
//! With jitter of `J` either way on every cycle of `T`, the phases do a random walk: after `k` cycles the crowd is in step by
//! `|sin(x) / x|^k` with `x = 2 pi J / T`, where 1 is one instant and 0 is all over the hour. Five minutes on an hour leave
//! .955 a cycle; a day later the crowd is still a third in step, and a tenth after two days. Where the jitter is around a
//! fixed schedule it never dissolves at all. What helps at once is a window as wide as the period.
//!
//! Scaled from 50,000 instances to 2,000: rates scale with it, synchrony does not depend on it.

use std::{future::ready, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    env::Rng,
    schedule::{Cron, Refresher},
};

use super::{Scenario, marks::Marks};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
};

const MINUTE: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_secs(3600);
const HOURS: u32 = 51;
/// The pictures show the first rounds: a column for every quarter of an hour.
const SHOWN: Duration = Duration::from_secs(62 * 15 * 60);

#[derive(Clone, Copy, Debug)]
enum Way {
    /// One period after the last refresh, so much more or less.
    Jitter(Duration),
    /// So much more or less around a fixed time of each period.
    Anchored(Duration),
    /// The library: once a period, anywhere in it.
    Cron,
    /// The library: somewhere in the second half of the token's life, the first time anywhere in it.
    Refresher,
}

knobs! {
    /// How many instances were deployed together.
    instances: u64 = 2_000, 10..=50_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "token-refresh",
    title: "tokens issued together are refreshed together, for days, or nowhere near each other",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let ways = [
        Way::Jitter(Duration::ZERO),
        Way::Jitter(MINUTE * 5),
        Way::Anchored(MINUTE * 5),
        Way::Jitter(MINUTE * 30),
        Way::Cron,
        Way::Refresher,
    ];
    let herds = settings.arms(&ways, |arm, way| herd(settings.seed, knobs, *way, HOURS, &settings.tap(arm)));
    let checks = checks(settings.seed, knobs, herds.each_ref());
    let [together, five, anchored, thirty, cron, refresher] = herds;
    let summary = format!(
        "5 minutes of jitter on an hour leave the crowd {:.0} % in step after a day and {:.0} % after two; anywhere in the \
         token's life it is {:.0} % at the first refresh.",
        five.synchrony(24, PERIOD) * 100.0,
        five.synchrony(48, PERIOD) * 100.0,
        refresher.synchrony(1, PERIOD) * 100.0,
    );
    Report {
        scenario: "token-refresh",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("token lives", "60 min"),
            Parameter::new("time", format!("{HOURS} h")),
            Parameter::new("deployed", "all at once"),
        ],
        arms: vec![
            arm(knobs, "every 60 min", &together),
            arm(knobs, "60 +- 5 min", &five),
            arm(knobs, "fixed time +- 5 min", &anchored),
            arm(knobs, "60 +- 30 min", &thirty),
            arm(knobs, "cron: anywhere in each hour", &cron),
            arm(knobs, "refresher: 0, then 30 to 59 min", &refresher),
        ],
        span: SHOWN,
        marks: vec![Mark { at: Duration::ZERO, what: "all are deployed" }],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// Four standard deviations of the synchrony of so many random phases.
    fn noise(self) -> f64 {
        0.064 * (2_000.0 / self.instances as f64).sqrt()
    }
}

fn herd(seed: u64, knobs: Knobs, way: Way, hours: u32, tap: &Tap) -> Marks {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let marks = Marks::new(knobs.instances);
    for id in 0..knobs.instances {
        env.spawn(instance(env.scope(id), way, id, marks.clone(), tap.clone(), PERIOD * hours)).detach();
    }
    sim.finish().expect("every instance stops");
    marks
}

async fn instance(env: Env, way: Way, id: u64, marks: Marks, tap: Tap, until: Duration) {
    let clock = env.clone();
    let refresh = move || {
        let wave = marks.mark(id, clock.now());
        tap.note(&clock, Caller::of(id, "/token").in_wave("refresh", wave), 200);
    };
    match way {
        Way::Jitter(jitter) | Way::Anchored(jitter) => {
            let anchored = matches!(way, Way::Anchored(_));
            by_hand(&env, &env.rng("token"), jitter, anchored, until, refresh).await;
        }
        Way::Cron => {
            let job = || {
                refresh();
                ready(std::ops::ControlFlow::Continue(()))
            };
            Cron::every(PERIOD).run(&env, env.sleep(until), job).await;
        }
        Way::Refresher => {
            let load = || {
                refresh();
                ready(Ok::<_, ()>(PERIOD))
            };
            Refresher::new().run(&env, PERIOD, env.sleep(until), load).await.expect("no load fails");
        }
    }
}

async fn by_hand(env: &Env, rng: &Rng, jitter: Duration, anchored: bool, until: Duration, refresh: impl Fn()) {
    let mut base = env.now();
    loop {
        let at = base + rng.between(PERIOD.saturating_sub(jitter), PERIOD + jitter);
        if at - Tick::ZERO > until {
            return;
        }
        env.sleep_until(at).await;
        refresh();
        base = if anchored { base + PERIOD } else { at };
    }
}

fn arm(knobs: Knobs, name: &'static str, marks: &Marks) -> Arm {
    let minutes = marks.timeline(MINUTE);
    let per_hour = minutes.total() as f64 / (knobs.instances * u64::from(HOURS)) as f64;
    let figures = vec![
        Figure::number("refreshes_per_hour", "per hour", per_hour),
        Figure::count("peak_per_minute", "peak/min", minutes.peak()),
        Figure::number("peak_to_mean_after_a_day", "a day later", peak_to_mean(marks, 24)),
        Figure::number("synchrony_1", "in step: 1st", marks.synchrony(1, PERIOD)),
        Figure::number("synchrony_24", "24th", marks.synchrony(24, PERIOD)),
        Figure::number("synchrony_50", "50th", marks.synchrony(50, PERIOD)),
        Figure::count("refreshed_late", "too late", late(marks)),
    ];
    Arm::new(name, figures, marks.timeline_until(SHOWN, MINUTE * 15))
}

/// How many tokens were refreshed when their life was over already.
fn late(marks: &Marks) -> u64 {
    let of_each = marks.each(|person| person.windows(2).filter(|pair| pair[1] - pair[0] > PERIOD).count() as u64);
    of_each.into_iter().sum()
}

/// The busiest minute of the hour around hour `hour`, relative to the mean minute.
fn peak_to_mean(marks: &Marks, hour: usize) -> f64 {
    let minutes = marks.timeline(MINUTE);
    let hour = minutes.counts().get(hour * 60 - 30..hour * 60 + 30).unwrap_or_default();
    let peak = hour.iter().copied().max().unwrap_or(0);
    peak as f64 * 60.0 / hour.iter().sum::<u64>().max(1) as f64
}

/// What is left of being in step after `k` cycles with jitter of `J` minutes either way on an hour.
fn formula(minutes: f64, k: i32) -> f64 {
    let x = std::f64::consts::TAU * minutes / 60.0;
    (x.sin() / x).abs().powi(k)
}

fn checks(seed: u64, knobs: Knobs, [together, five, anchored, thirty, cron, refresher]: [&Marks; 6]) -> Vec<Check> {
    let fifteen = herd(seed, knobs, Way::Jitter(MINUTE * 15), 16, &Tap::default());
    let walk = |minutes: f64, marks: &Marks, k: i32| {
        Check::within(
            Source::Formula,
            format!("60 +- {minutes} min: |sin x / x|^{k} in step at refresh {k}"),
            (formula(minutes, k) * 1e3).round() / 1e3,
            knobs.noise(),
            marks.synchrony(usize::try_from(k).unwrap_or(1), PERIOD),
        )
        .cites("H16")
    };
    let first_hour = |marks: &Marks| marks.timeline(MINUTE).counts().iter().take(96).copied().max().unwrap_or(0) as f64;
    let longest = |marks: &Marks| {
        let gaps = marks.each(|person| person.windows(2).map(|pair| pair[1] - pair[0]).max());
        gaps.into_iter().flatten().max().unwrap_or_default()
    };
    let n = knobs.instances as f64;
    vec![
        Check::equal(
            Source::Article,
            "every 60 min: all in one minute",
            &knobs.instances,
            &together.timeline(MINUTE).peak(),
        )
        .cites("H16")
        .cites("N28"),
        Check::within(
            Source::Article,
            "60 +- 5 min: N / 10 in the busiest minute of the first round",
            n / 10.0,
            n / 25.0,
            first_hour(five),
        )
        .cites("N28")
        .cites("H16"),
        walk(5.0, five, 1),
        walk(5.0, five, 10),
        walk(5.0, five, 24),
        walk(5.0, five, 50),
        walk(15.0, &fifteen, 1),
        walk(15.0, &fifteen, 10),
        walk(30.0, thirty, 1),
        Check::at_least(
            Source::Formula,
            "60 +- 5 min: a day later, the busiest minute is 1 + 2R = 1.7 times the mean",
            1.6,
            peak_to_mean(five, 24),
        )
        .cites("H16"),
        Check::at_least(
            Source::Formula,
            "fixed time +- 5 min: N / 10 a minute for ever, 6 times the mean",
            6.0,
            peak_to_mean(anchored, 50),
        )
        .cites("H16"),
        Check::at_most(Source::Promise, "cron: in step at the first refresh", knobs.noise(), cron.synchrony(1, PERIOD))
            .cites("T23"),
        Check::at_most(
            Source::Promise,
            "refresher: in step at the first refresh",
            knobs.noise(),
            refresher.synchrony(1, PERIOD),
        )
        .cites("T29"),
        Check::at_most(
            Source::Promise,
            "refresher: no token is used for longer than its life but a minute (min)",
            59.0,
            longest(refresher).as_secs_f64() / 60.0,
        )
        .cites("T29"),
    ]
}
