//! How many at once may an origin have? Four laws that find it by themselves, on eight origins.
//!
//! Laws that go by latency are tuned on an origin that queues, and it is on the others that they fail: one that gets slower
//! without a queue, one that is suddenly further away, one whose capacity drifts, one with a heavy tail, one that thrashes.
//! Here each law meets all of them with the same users. Users wait a second and then leave; what they left is served all the
//! same.
//!
//! Corrects: the sketch that the default law began as scored 47 of 50 calls a second on "8x slower" in a small model. With
//! service times drawn at random it scored 11 here: 8 % of such calls take longer than a second without any queue, its rule
//! for drops took that for overload and starved the origin. The law now tells late from refused, and puts a cut to the test
//! before it believes in it (`limit::law::Knee`).
//!
//! Known: the default law was tuned while looking at these very origins; `unseen-plants` has some that it was not tuned on.
//! Which law is best on "thrashing" is a matter of chance. There every call in flight slows down all others, which looks like a
//! queue from the first call on; the default law stays below the best limit. So on that origin each law runs [`DRAWS`] times,
//! and what is compared is the mean; of forty seeds, one has 0.93 of the best other law and all others 0.95. On the other
//! origins all forty have that; but one of them has 374 of the 400 that the origin can do in overload, less than promised.

mod origin;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{Env, Sim, Tick, limit::AdaptiveLimit};
use origin::{Origin, Trouble};

use super::{
    Scenario,
    laws::{Law, ask_once},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, say},
    timeline::Timeline,
};

const BIN: Duration = Duration::from_secs(1);
/// All is well until then; the limits find their place.
const CALM: Duration = Duration::from_secs(5);
const TROUBLE: Duration = Duration::from_secs(13);
/// The share of what the best of the others lets through that the default law has to reach, and where calls slow each other.
const SHARE: f64 = 0.95;
const SHARE_THRASHING: f64 = 0.9;
/// How often each law meets an origin on which chance decides.
const DRAWS: u64 = 16;

knobs! {
    /// How many calls the origin works on at a time.
    workers: usize = 20, 2..=60;
    /// How long it takes for one, on average.
    service_time: Duration = Duration::from_millis(50), Duration::from_millis(15)..=Duration::from_secs(1);
    /// How long users wait.
    patience: Duration = Duration::from_secs(1), Duration::from_millis(50)..=Duration::from_secs(10);
    /// How many times what it can serve there are in overload.
    overload: f64 = 2.0, 1.0..=5.0;
    /// How much further away an origin is that was moved, there and back.
    further: Duration = Duration::from_millis(150), Duration::ZERO..=Duration::from_secs(5);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "adaptive-limits",
    title: "how many at once: four laws that find it by themselves, on eight origins",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let arms = settings.arms(&Law::ALL, |at, law| arm(settings.seed, knobs, *law, &settings.tap(at)));
    let checks = checks(knobs, &arms);
    let goodput = |law: usize, trouble: Trouble| arms[law].figure(trouble.key()).unwrap_or(0.0);
    let summary = format!(
        "without a limit {} the load leaves {:.0} good answers of {} a second; every law keeps most of them. An \
         origin that is eight times slower, or {} further away, is what tells the laws apart: the default one lets {:.0} \
         and {:.0} a second through there, the best of the others {:.0} and {:.0}.",
        times(knobs.overload),
        goodput(0, Trouble::Overload),
        knobs.capacity(),
        say(knobs.further),
        goodput(4, Trouble::Slow8),
        goodput(4, Trouble::Far),
        best_of_others(&arms, Trouble::Slow8),
        best_of_others(&arms, Trouble::Far),
    );
    Report {
        scenario: "adaptive-limits",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("users", format!("{}/s", Trouble::Steady.rate(knobs))),
            Parameter::new("calm", format!("{CALM:?}")),
            Parameter::new("trouble", format!("{TROUBLE:?}")),
            Parameter::new("figures", "good answers a second in trouble"),
            Parameter::new("thrashing", format!("mean of {DRAWS} draws")),
        ],
        arms: arms.into(),
        span: CALM + TROUBLE,
        marks: vec![Mark { at: CALM, what: "trouble begins" }],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// What the origin can serve in a second.
    fn capacity(self) -> f64 {
        self.workers as f64 / self.service_time.as_secs_f64()
    }
}

/// A factor in a sentence.
fn times(factor: f64) -> String {
    if (factor - 2.0).abs() < 1e-9 { "twice".to_owned() } else { format!("{factor} times") }
}

/// One law on all origins; the picture is that of the calls in overload, and so is the log.
fn arm(seed: u64, knobs: Knobs, law: Law, tap: &Tap) -> Arm {
    let mut picture = Timeline::new(BIN);
    let figures = Trouble::ALL
        .iter()
        .map(|trouble| {
            let draws = if *trouble == Trouble::Thrash { DRAWS } else { 1 };
            let is_shown = *trouble == Trouble::Overload;
            let tap = if is_shown { tap.clone() } else { Tap::default() };
            let mut good = 0;
            for draw in 0..draws {
                let (answers, calls) = race(seed.wrapping_add(draw << 32), knobs, law, *trouble, tap.clone());
                good += answers;
                if is_shown {
                    picture = calls;
                }
            }
            Figure::number(trouble.key(), trouble.title(), good as f64 / (draws as f64 * TROUBLE.as_secs_f64()))
        })
        .collect();
    Arm::new(law.name(), figures, picture)
}

/// How many answers were good while there was trouble, and all calls at the origin.
fn race(seed: u64, knobs: Knobs, law: Law, trouble: Trouble, tap: Tap) -> (u64, Timeline) {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let begins = Tick::ZERO + CALM;
    let origin = Origin::new(&env, knobs, trouble, begins..begins + TROUBLE, tap);
    let limit = law.limit(&env);
    let good = Arc::new(AtomicU64::new(0));
    let rng = env.rng("users");
    let arrive = |id| {
        let call = origin.clone().call(Caller::of(id, "/"));
        let user = user(env.clone(), knobs.patience, call, limit.clone(), Arc::clone(&good));
        env.spawn(user).detach();
    };
    let rate = |at: Tick| if at < begins { Trouble::Steady.rate(knobs) } else { trouble.rate(knobs) };
    let good_before = sim.run(async {
        poisson(&env, &rng, begins, rate, arrive).await;
        env.sleep_until(begins).await;
        let before = good.load(Relaxed);
        poisson(&env, &rng, begins + TROUBLE, rate, arrive).await;
        env.sleep_until(begins + TROUBLE).await;
        before
    });
    (good.load(Relaxed) - good_before, origin.calls())
}

/// Asks once, and counts a good answer.
async fn user(
    env: Env,
    patience: Duration,
    call: impl Future<Output = Result<(), ()>>,
    limit: AdaptiveLimit,
    good: Arc<AtomicU64>,
) {
    if ask_once(&env, &limit, patience, call).await {
        good.fetch_add(1, Relaxed);
    }
}

/// The best of the other laws.
fn best_of_others(arms: &[Arm], trouble: Trouble) -> f64 {
    let others = &arms[1..arms.len() - 1];
    others.iter().filter_map(|arm| arm.figure(trouble.key())).fold(0.0, f64::max)
}

fn checks(knobs: Knobs, arms: &[Arm]) -> Vec<Check> {
    let goodput = |law: usize, trouble: Trouble| arms[law].figure(trouble.key()).unwrap_or(0.0);
    let ours = arms.len() - 1;
    let (capacity, load) = (knobs.capacity(), times(knobs.overload));
    let mut checks = vec![
        Check::at_most(
            Source::Published,
            format!("no limit, {load} the load: less than a quarter of what the origin can do"),
            capacity / 4.0,
            goodput(0, Trouble::Overload),
        )
        .cites("Uber")
        .cites("T17"),
        Check::within(
            Source::Formula,
            format!("default, {load} the load: what the origin can do"),
            capacity,
            capacity / 20.0,
            goodput(ours, Trouble::Overload),
        )
        .cites("T17"),
        Check::at_most(
            Source::Published,
            "Gradient2 takes an origin that is further away for one with a queue",
            goodput(ours, Trouble::Far) / 2.0,
            goodput(2, Trouble::Far),
        )
        .cites("T17"),
    ];
    for trouble in Trouble::ALL {
        let share = if trouble == Trouble::Thrash { SHARE_THRASHING } else { SHARE };
        let what = format!("default, {}: its share of what the best other law lets through", trouble.title());
        checks.push(
            Check::at_least(Source::Promise, what, share, goodput(ours, trouble) / best_of_others(arms, trouble))
                .cites("T17"),
        );
    }
    checks
}
