//! Refreshing before the end: dice for each reader, or one draw for each entry.
//!
//! XFetch lets every reader throw dice, and refresh the entry with a chance that grows as its end comes near: `e^(-s / (beta x
//! d))` at `s` before it, for a load that takes `d`. No reader has to know of any other. Articles claim two things of it that
//! are not so; what is true is easy to derive and to measure:
//!
//! - corrects: "statistically exactly one refresh". Others go on throwing while the first one loads. With reads at random, in
//!   the mean `e^(1 / beta)` refresh, however many read: 2.72 at beta 1, and one expiry in a hundred sees a dozen.
//! - corrects: "63 % at `s = d`". It is `e^-1`, 37 %.
//!
//! One flight for all readers makes it one refresh. But the lead still grows with the traffic: it is `beta x d x (ln(reads a
//! second x beta x d) + 0.577)`, so a key is loaded the more often the more it is read. Readers of one cache need no dice. The
//! library draws the lead once, when the entry is stored: 1.25 to 3.25 load times, whatever the traffic. An exponential draw, as
//! the dice have it, would not do: 63 % of its leads are shorter than the load, and readers wait.
//!
//! The arms without coalescing are the articles' sample, read for read; it needs neither tasks nor a clock, so it is a loop
//! over instants. Claims about chance are put to fixed seeds, whatever the run's own seed.

mod traffic;

use std::time::Duration;

use herdproof::{Cache, Env, Group, Sim, Tick, cache::Policy, env::Rng};

use traffic::Rule;

use super::{Scenario, readers::load_by};
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
/// How often an entry comes to its end, without and with one load for all.
const EXPIRIES: u32 = 1_000;
const SHARED: u32 = 10;
/// Reads one load time before the end.
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
    title: "early refresh: dice for each reader, or one draw for each entry",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let statistics = Sim::new(0).env();
    let alone = BETAS.map(|beta| Refreshes::alone(&statistics, knobs, beta));
    let at_one = |beta: f64| (beta - 1.0).abs() < f64::EPSILON;
    let shared = BETAS.map(|beta| {
        let tap = if at_one(beta) { settings.tap(NAMES.len()) } else { Tap::default() };
        Refreshes::shared(settings.seed, knobs, Some(beta), tap)
    });
    let drawn = Refreshes::shared(settings.seed, knobs, None, settings.tap(NAMES.len() + 1));
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
    let worst = shared.each_ref().map(|seen| seen.quantile(100));
    checks.push(
        Check::equal(Source::Promise, "through one flight: one, for each beta", &[1; 4], &worst)
            .cites("T11")
            .cites("T5"),
    );
    checks.push(Check::equal(Source::Promise, "one draw for each entry: one", &1, &drawn.quantile(100)).cites("T11"));
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
            "of those who read one load time before the end, e^-1 refresh (article: 63 %) (%)",
            100.0 * share,
            100.0 * error,
            100.0 * one_load_before(&statistics, knobs),
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
    let traffic = Traffic::watch(settings.seed);
    traffic.claim(&mut checks);
    let summary = summary(&alone[1], &traffic);
    let mut arms: Vec<Arm> = NAMES.into_iter().zip(&alone).map(|(name, seen)| seen.arm(name).sample("C14")).collect();
    arms.push(shared[1].arm("beta 1, one flight"));
    arms.push(drawn.arm("one draw per entry"));
    Report {
        scenario: "xfetch",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("expiries", format!("{EXPIRIES}, {SHARED} where loads are shared, all in one picture")),
            Parameter::new(
                "more and more reads",
                format!("ttl {:?}, load {:?}, and +- {WAITING_SPREAD:?} for the waits", traffic::TTL, traffic::LOAD),
            ),
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

fn summary(one: &Refreshes, traffic: &Traffic) -> String {
    format!(
        "on their own {:.2} readers refresh an entry at beta 1, not one, and {} at one expiry in a hundred. Through one flight it is \
         one, but dice load an entry {:.1} times in its time to live with ten reads in a load time and {:.1} times with 100,000; one \
         draw for each entry {:.2} and {:.2} times. At the end of an entry {:.2} % of the readers wait for a load, and {:.1} % \
         without an early refresh.",
        one.mean(),
        one.quantile(99),
        traffic.dice[0],
        traffic.dice[2],
        traffic.drawn[0],
        traffic.drawn[2],
        traffic.waited[3],
        traffic.waited[0],
    )
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

    /// The library's cache with the same readers: their dice and one flight, or one draw for each entry.
    fn shared(seed: u64, knobs: Knobs, beta: Option<f64>, tap: Tap) -> Refreshes {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let origin = Origin::up(&env, BIN, Slowdown::alone(knobs.load)).tapped(tap);
        let cache: Cache<&str, Tick, Down> =
            Cache::builder(&env).policy(Policy::strict(TTL).early(beta.is_none())).build();
        let flights: Group<&str, Tick, Down> = Group::new(&env);
        let (arrivals, dice) = (env.rng("readers"), env.rng("dice"));
        let mut expiries = Vec::new();
        for expiry in 0..SHARED {
            cache.invalidate(&"key");
            let got = sim.run(cache.get(&"key", || load_by(&env, &origin, None)));
            let loaded = got.expect("the origin is up").value;
            sim.run_until(loaded + TTL.saturating_sub(Duration::from_secs_f64(earliest(knobs, beta.unwrap_or(1.0)))));
            let end = loaded + TTL;
            let mut began = Vec::new();
            let read = |id| {
                let now = env.now();
                let load = || {
                    began.push((end - now).as_secs_f64());
                    load_by(&env, &origin, Some(Caller::of(id, "/key").in_wave("ttl", expiry)))
                };
                let Some(beta) = beta else {
                    // A hit, and perhaps the beginning of a refresh.
                    drop(cache.get(&"key", load));
                    return;
                };
                let is_old = cache.peek(&"key").is_some_and(|got| got.value == loaded);
                if is_old && fires(&dice, knobs.load.as_secs_f64(), beta, (end - now).as_secs_f64()) {
                    let (cache, flight) = (cache.clone(), flights.run("key", load));
                    let refresh = async move {
                        if let Ok(landed) = flight.await {
                            cache.set("key", landed.value);
                        }
                    };
                    env.spawn(refresh).detach();
                }
            };
            sim.run(poisson(&env, &arrivals, end + knobs.load, |_| knobs.reads, read));
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
        if fires(rng, load, beta, before) {
            began.push(before);
        }
    }
}

/// Whether a reader's dice say to refresh an entry this long before its end: `now - delta * beta * ln(rand()) >= expiry`, with rand
/// in (0, 1].
fn fires(rng: &Rng, load: f64, beta: f64, before: f64) -> bool {
    -(load * beta * (1.0 - rng.unit()).ln()) >= before
}

/// Of readers who come one load time before the end: the share that refreshes.
fn one_load_before(env: &Env, knobs: Knobs) -> f64 {
    let (rng, load) = (env.rng("xfetch/before"), knobs.load.as_secs_f64());
    f64::from((0..KEYS).map(|_| u32::from(fires(&rng, load, 1.0, load))).sum::<u32>()) / f64::from(KEYS)
}

/// How often a key is loaded that is read more and more, and who waits.
struct Traffic {
    /// Loads in a time to live, for each of [`READS`].
    dice: [f64; 3],
    drawn: [f64; 3],
    /// Readers in a hundred who wait: without early refresh, with dice, with one exponential draw, with the library's.
    waited: [f64; 4],
}

/// Reads in a load time.
const READS: [u32; 3] = [10, 1_000, 100_000];
/// For how many loads they are watched: fewer, where a load is long in coming and readers are many.
const DICE_LOADS: [usize; 3] = [40, 20, 20];
const DRAWN_LOADS: [usize; 3] = [40, 20, 5];
/// For those who wait: 1,700 reads a second, for so many loads, each of which takes up to so much more or less than the mean.
const WAITING_READS: u32 = 136;
const WAITING_LOADS: usize = 200;
const WAITING_SPREAD: Duration = Duration::from_millis(40);

impl Traffic {
    fn watch(seed: u64) -> Traffic {
        let per_ttl = |rule, loads: [usize; 3]| {
            let runs = [(READS[0], loads[0]), (READS[1], loads[1]), (READS[2], loads[2])];
            runs.map(|(reads, loads)| traffic::watch(seed, rule, reads, loads, Duration::ZERO).per_ttl)
        };
        let rules = [Rule::Never, Rule::Dice, Rule::Exponential, Rule::Library];
        Traffic {
            dice: per_ttl(Rule::Dice, DICE_LOADS),
            drawn: per_ttl(Rule::Library, DRAWN_LOADS),
            waited: rules.map(|rule| traffic::watch(seed, rule, WAITING_READS, WAITING_LOADS, WAITING_SPREAD).waited),
        }
    }

    fn claim(&self, checks: &mut Vec<Check>) {
        let (ttl, load) = (traffic::TTL.as_secs_f64(), traffic::LOAD.as_secs_f64());
        for (reads, drawn) in READS.into_iter().zip(self.drawn) {
            let what = format!("one draw for each entry, {reads} reads in a load time: loads in a time to live");
            checks.push(Check::at_most(Source::Promise, what, 1.15, drawn).cites("T11"));
        }
        // The lead is shorter than the time to live with few reads, and there the formula holds.
        let lead = |reads: u32| load * (f64::from(reads).ln() + EULER);
        for (at, error) in [(0, 0.15), (1, 0.5)] {
            let what =
                format!("dice, {} reads in a load time: ttl / (ttl - d (ln N + 0.577) + d) loads in it", READS[at]);
            let expected = ttl / (ttl - lead(READS[at]) + load);
            checks.push(Check::within(Source::Formula, what, expected, error, self.dice[at]).cites("XFetch 2015"));
        }
        checks.push(
            Check::at_least(
                Source::Promise,
                "dice: loads with 100,000 reads in a load time, in those with ten",
                3.0,
                self.dice[2] / self.dice[0],
            )
            .cites("T11"),
        );
        let [never, dice, exponential, library] = self.waited;
        checks.push(
            Check::within(
                Source::Formula,
                "no early refresh: d / (ttl + d) of the readers wait (%)",
                100.0 * load / (ttl + load),
                1.0,
                never,
            )
            .cites("T11"),
        );
        checks.push(
            Check::within(
                Source::Formula,
                "one exponential draw, beta 1: about d / e of each ttl readers wait (%)",
                100.0 * load / (1f64.exp() * ttl),
                1.2,
                exponential,
            )
            .cites("T11"),
        );
        checks.push(Check::at_most(Source::Promise, "dice, beta 1: readers who wait (%)", 1.0, dice).cites("T11"));
        checks.push(
            Check::at_most(Source::Promise, "one draw for each entry: readers who wait (%)", 0.2, library).cites("T11"),
        );
    }
}
