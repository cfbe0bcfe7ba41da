//! Refreshing before the end, by dice: how many do.
//!
//! XFetch lets every reader throw dice, and refresh the entry with a chance that grows as its end comes near: `e^(-s / (beta x
//! d))` at `s` before it, for a load that takes `d`. No reader has to know of any other. Articles claim two things of it that
//! are not so; what is true is easy to derive and to measure:
//!
//! - corrects: "statistically exactly one refresh". Others go on throwing while the first one loads. With reads at random, in
//!   the mean `e^(1 / beta)` refresh, however many read: 2.72 at beta 1, and one expiry in a hundred sees a dozen.
//! - corrects: "63 % at `s = d`". It is `e^-1`, 37 %.
//!
//! The count does not depend on the traffic, but the lead does: `beta x d x (ln(reads a second x beta x d) + 0.577)`. Through the
//! cache, whoever the dice choose first takes the flight, and it is one.
//!
//! The arms without coalescing are the articles' sample, read for read; it needs neither tasks nor a clock, so it is a loop
//! over instants. Claims about chance are put to fixed seeds, whatever the run's own seed.

use std::time::Duration;

use herdproof::{Cache, Env, Sim, Tick, cache::Policy, env::Rng};

use super::{
    Scenario,
    readers::{load, load_by},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    slowdown::Slowdown,
    timeline::Timeline,
};

const BETAS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const NAMES: [&str; 4] = ["beta 0.5, alone", "beta 1, alone", "beta 2, alone", "beta 4, alone"];
/// How often an entry comes to its end, without and through the cache.
const EXPIRIES: u32 = 1_000;
const CACHED: u32 = 10;
/// Reads one load time before the end, of as many keys.
const KEYS: u32 = 5_000;
const TTL: Duration = Duration::from_secs(120);
const BIN: Duration = Duration::from_millis(100);
/// What the pictures show: this long before the end, and the load after it.
const SHOWN: Duration = Duration::from_secs(20);
const EULER: f64 = 0.577_215_664_9;

knobs! {
    /// Reads a second.
    reads: f64 = 200.0, 1.0..=500.0;
    /// How long a load takes.
    load: Duration = Duration::from_millis(500), Duration::from_millis(10)..=Duration::from_secs(2);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "xfetch",
    title: "early refresh by dice: e^(1/beta) readers refresh, or one",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let statistics = Sim::new(0).env();
    let alone = BETAS.map(|beta| Refreshes::alone(&statistics, knobs, beta));
    let at_one = |beta: f64| (beta - 1.0).abs() < f64::EPSILON;
    let cached = BETAS.map(|beta| {
        let tap = if at_one(beta) { settings.tap(NAMES.len()) } else { Tap::default() };
        Refreshes::cached(settings.seed, knobs, beta, tap)
    });
    for (arm, seen) in alone.iter().enumerate() {
        let tap = settings.tap(arm);
        if tap.is_open() {
            seen.write_down(knobs, &tap);
        }
    }
    let mut checks = Vec::new();
    for (beta, seen) in BETAS.into_iter().zip(&alone) {
        let what = format!("beta {beta}, alone: e^(1/beta) refreshes for each expiry (article: exactly one)");
        let expected = ((1.0 / beta).exp() * 1e3).round() / 1e3;
        checks.push(
            Check::within(Source::Formula, what, expected, 3.0 * seen.error(), seen.mean())
                .cites("N12")
                .cites("T11")
                .cites("XFetch 2015"),
        );
    }
    let worst = cached.each_ref().map(|seen| seen.quantile(100));
    checks.push(
        Check::equal(Source::Promise, "through the cache: one, for each beta", &[1; 4], &worst)
            .cites("T11")
            .cites("T5"),
    );
    let lead = knobs.load.as_secs_f64() * ((knobs.reads * knobs.load.as_secs_f64()).ln() + EULER);
    // A first refresh's lead has a Gumbel distribution: its deviation is pi / sqrt(6) load times.
    let deviation = knobs.load.as_secs_f64() * std::f64::consts::PI / 6f64.sqrt();
    checks.push(
        Check::within(
            Source::Formula,
            "beta 1, alone: mean lead, d (ln(rate d) + 0.577) (s)",
            lead,
            3.0 * deviation / f64::from(EXPIRIES).sqrt(),
            alone[1].lead(),
        )
        .cites("T11")
        .cites("XFetch 2015"),
    );
    let share = (-1f64).exp();
    let error = 3.0 * (share * (1.0 - share) / f64::from(KEYS)).sqrt();
    checks.push(
        Check::within(
            Source::Formula,
            "the cache: of those who read one load time before the end, e^-1 refresh (article: 63 %) (%)",
            100.0 * share,
            100.0 * error,
            100.0 * one_load_before(0, knobs),
        )
        .cites("C14")
        .cites("T11"),
    );
    let cold = Refreshes::cold(&statistics, knobs);
    checks.push(
        Check::within(
            Source::Formula,
            "alone, and there is nothing yet: the sample has no other way for that, and 1 + rate d load",
            1.0 + knobs.reads * knobs.load.as_secs_f64(),
            3.0 * cold.error(),
            cold.mean(),
        )
        .cites("C14"),
    );
    let summary = format!(
        "on their own {:.2} readers refresh an entry at beta 1, not one, and {} at one expiry in a hundred; with beta 4 {:.2} do, \
         {:.1} s before its end instead of {:.1}. Through the cache it is one, whatever beta.",
        alone[1].mean(),
        alone[1].quantile(99),
        alone[3].mean(),
        alone[3].lead(),
        alone[1].lead(),
    );
    let mut arms: Vec<Arm> = NAMES.into_iter().zip(&alone).map(|(name, seen)| seen.arm(name).sample("C14")).collect();
    arms.push(cached[1].arm("beta 1, cache"));
    Report {
        scenario: "xfetch",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("expiries", format!("{EXPIRIES}, {CACHED} through the cache, all in one picture")),
            Parameter::new("the pictures end", "where the entries would, and a load later"),
        ],
        arms,
        span: SHOWN + knobs.load,
        marks: vec![Mark { at: SHOWN, what: "the entries would end" }],
        checks,
        summary,
        ..Report::default()
    }
}

/// What happened at each expiry: how long before it each refresh began.
struct Refreshes(Vec<Vec<f64>>);

impl Refreshes {
    /// The articles' sample: nobody knows of the others.
    fn alone(env: &Env, knobs: Knobs, beta: f64) -> Refreshes {
        let rng = env.rng(&format!("xfetch/{beta}"));
        Refreshes((0..EXPIRIES).map(|_| expiry(&rng, knobs, beta, earliest(knobs, beta))).collect())
    }

    /// The same where the entry is not there to begin with: it has come to its end before the first reader.
    fn cold(env: &Env, knobs: Knobs) -> Refreshes {
        let rng = env.rng("xfetch/cold");
        Refreshes((0..EXPIRIES).map(|_| expiry(&rng, knobs, 1.0, 0.0)).collect())
    }

    /// The cache, with the same readers.
    fn cached(seed: u64, knobs: Knobs, beta: f64, tap: Tap) -> Refreshes {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let origin = Origin::up(&env, BIN, Slowdown::alone(knobs.load)).tapped(tap);
        let policy = Policy::strict(TTL).early(beta);
        let cache: Cache<&str, Tick, Down> = Cache::builder(&env).policy(policy).build();
        let rng = env.rng("readers");
        let mut expiries = Vec::new();
        for expiry in 0..CACHED {
            cache.invalidate(&"key");
            let got = sim.run(cache.get(&"key", || load(&env, &origin)));
            let loaded = got.expect("the origin is up").value;
            sim.run_until(loaded + TTL.saturating_sub(Duration::from_secs_f64(earliest(knobs, beta))));
            let end = loaded + TTL;
            let mut began = Vec::new();
            let read = |id| {
                // A hit, and perhaps the beginning of a refresh.
                drop(cache.get(&"key", || {
                    began.push((end - env.now()).as_secs_f64());
                    load_by(&env, &origin, Some(Caller::of(id, "/key").in_wave("ttl", expiry)))
                }));
            };
            sim.run(poisson(&env, &rng, end + knobs.load, |_| knobs.reads, read));
            expiries.push(began);
        }
        Refreshes(expiries)
    }

    /// Those of the sample as they would be in a log: one expiry after another.
    fn write_down(&self, knobs: Knobs, tap: &Tap) {
        let mut sim = Sim::new(0);
        let env = sim.env();
        for (wave, began) in (0..).zip(&self.0) {
            let end = Tick::ZERO + TTL * (wave + 1);
            for (id, before) in (0..).zip(began) {
                let (clock, tap, load) = (env.clone(), tap.clone(), knobs.load);
                // After the end, where it is negative.
                let late = Duration::try_from_secs_f64(-before).unwrap_or_default();
                let early = Duration::try_from_secs_f64(*before).unwrap_or_default();
                let at = Tick::ZERO + (end - Tick::ZERO + late).saturating_sub(early);
                env.spawn(async move {
                    clock.sleep_until(at).await;
                    let request = tap.begin(&clock, Caller::of(id, "/key").in_wave("ttl", wave));
                    clock.sleep(load).await;
                    request.end(200);
                })
                .detach();
            }
        }
        sim.finish().expect("every load ends");
    }

    fn counts(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|began| began.len() as f64)
    }

    fn mean(&self) -> f64 {
        self.counts().sum::<f64>() / self.0.len() as f64
    }

    /// The standard error of the mean.
    fn error(&self) -> f64 {
        let (mean, n) = (self.mean(), self.0.len() as f64);
        let variance = self.counts().map(|count| (count - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (variance / n).sqrt()
    }

    fn quantile(&self, percent: usize) -> u64 {
        let mut counts: Vec<u64> = self.0.iter().map(|began| began.len() as u64).collect();
        counts.sort_unstable();
        let rank = (counts.len() * percent).div_ceil(100).max(1);
        counts[rank - 1]
    }

    /// How long before the end the first began, in the mean.
    fn lead(&self) -> f64 {
        self.0.iter().filter_map(|began| began.first()).sum::<f64>() / self.0.len() as f64
    }

    fn arm(&self, name: &'static str) -> Arm {
        let mut timeline = Timeline::new(BIN);
        for before in self.0.iter().flatten() {
            timeline.record(Tick::ZERO + Duration::from_secs_f64((SHOWN.as_secs_f64() - before).max(0.0)));
        }
        let figures = vec![
            Figure::number("refreshes_per_expiry", "refreshes", self.mean()),
            Figure::number("standard_error", "+-", self.error()),
            Figure::count("p99", "p99", self.quantile(99)),
            Figure::time("mean_lead_ms", "lead", Duration::from_secs_f64(self.lead().max(0.0))),
        ];
        Arm::new(name, figures, timeline)
    }
}

/// How long before the end there is anything to see: a first refresh is earlier than this less than once in a hundred
/// times, and is followed by as many others whenever it is.
fn earliest(knobs: Knobs, beta: f64) -> f64 {
    let scale = beta * knobs.load.as_secs_f64();
    // With few reads, that would be after the end.
    (scale * ((knobs.reads * scale).ln() + 5.0)).max(0.0)
}

/// One expiry in the articles' sample, from so long before it: readers at random, each of whom throws the dice, until what the first
/// has loaded is there.
fn expiry(rng: &Rng, knobs: Knobs, beta: f64, mut before: f64) -> Vec<f64> {
    let load = knobs.load.as_secs_f64();
    let mut began: Vec<f64> = Vec::new();
    loop {
        before -= -(1.0 - rng.unit()).ln() / knobs.reads;
        if began.first().is_some_and(|first| first - before >= load) {
            return began;
        }
        // `now - delta * beta * ln(rand()) >= expiry`, with rand in (0, 1].
        if -(load * beta * (1.0 - rng.unit()).ln()) >= before {
            began.push(before);
        }
    }
}

/// Of many entries that are each read once, one load time before their end: the share that is refreshed then.
fn one_load_before(seed: u64, knobs: Knobs) -> f64 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, BIN, Slowdown::alone(knobs.load));
    let policy = Policy::strict(TTL).early(1.0);
    let cache: Cache<u32, Tick, Down> = Cache::builder(&env).capacity(2 * KEYS as usize).policy(policy).build();
    for key in 0..KEYS {
        drop(cache.get(&key, || load(&env, &origin)));
    }
    sim.run_until(Tick::ZERO + TTL);
    let before = cache.stats().refreshes;
    for key in 0..KEYS {
        drop(cache.get(&key, || load(&env, &origin)));
    }
    (cache.stats().refreshes - before) as f64 / f64::from(KEYS)
}
