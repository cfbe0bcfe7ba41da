//! A hundred clients that each want to change one row once: read its version, write it back, and again if somebody else was faster.
//!
//! This is the experiment behind the advice to use jitter (Brooker, AWS Architecture Blog 2015). Without backoff nearly everybody's
//! write is in vain, nearly every time: calls grow with the square of the crowd, but somebody always wins. Exponential backoff alone
//! keeps those who lost together together, and the row is idle while they all wait. Jitter parts them.
//!
//! Corrects: "jitter does not reduce latency" is true of one client that is alone. Here those who wait are what others wait for, and
//! with jitter both the last and the average client are done several times sooner.
//!
//! As in the original, only the loser of a write waits, its first delay is twice the base, and its count of attempts never goes back.
//! What the library does by a rule of its own: the original draws a decorrelated delay and clamps it to the cap; the library caps the
//! range and draws then, so that no two clients wait exactly the cap.

use std::{sync::Arc, time::Duration};

use herdproof::{Backoff, Env, Sim, Tick, backoff::Jitter};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    network::Network,
    report::{Arm, Check, Figure, Report, Source, millis},
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const BIN: Duration = Duration::from_millis(100);

knobs! {
    /// How many clients want to write the row.
    clients: u64 = 100, 1..=200;
    /// What backoff begins with; the first delay is twice that.
    base_delay: Duration = MS * 5, MS..=MS * 1_000;
    /// The longest delay.
    cap: Duration = MS * 2_000, MS * 10..=MS * 10_000;
    /// How long a message takes each way, on average.
    trip: Duration = MS * 10, MS..=MS * 1_000;
    /// Its standard deviation.
    trip_sd: Duration = MS * 2, Duration::ZERO..=MS * 100;
    /// How often the experiment is made; figures are means over these.
    repetitions: u64 = 20, 1..=50;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "occ",
    title: "100 clients write one row: calls by the square, an idle row, or jitter",
    knobs: Knobs::all,
    run,
};

/// What a loser does, with what was published for 100 clients: the means and standard deviations of calls and of the time until the
/// last is done in milliseconds, over 100 runs of the original program.
const WAYS: [(Option<Jitter>, &str, Published); 5] = [
    (None, "no backoff", Published { calls: (2_426.0, 31.0), time: (2_031.0, 43.0) }),
    (Some(Jitter::None), "exponential", Published { calls: (1_846.0, 58.0), time: (63_309.0, 3_639.0) }),
    (Some(Jitter::Equal), "equal jitter", Published { calls: (813.0, 8.0), time: (6_540.0, 780.0) }),
    (Some(Jitter::Full), "full jitter", Published { calls: (796.0, 7.0), time: (4_909.0, 545.0) }),
    (Some(Jitter::Decorrelated), "decorrelated", Published { calls: (999.0, 26.0), time: (4_780.0, 825.0) }),
];
/// How many runs the published means are over.
const PUBLISHED_RUNS: f64 = 100.0;
/// The published calls of 190 clients, in those of 100: 8,013 in 2,426 without backoff, 1,772 in 796 with full jitter.
const GROWTH: [(Option<Jitter>, f64); 2] = [(None, 3.3), (Some(Jitter::Full), 2.23)];
/// How often that is measured.
const LARGER: u64 = 5;

#[derive(Clone, Copy, Debug)]
struct Published {
    calls: (f64, f64),
    time: (f64, f64),
}

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let means = std::array::from_fn(|arm| Mean::of(settings.seed, knobs, WAYS[arm].0, &settings.tap(arm)));
    let [none, exponential, _, full, _] = &means;
    let larger = Knobs { clients: knobs.clients * 19 / 10, repetitions: LARGER, ..knobs };
    let growth = GROWTH.map(|(way, _)| Mean::of(settings.seed, larger, way, &Tap::default()));
    let summary = format!(
        "without backoff {} clients need {:.0} writes; with exponential backoff {:.0}, and the last is done after {:.1} s; with full \
         jitter {:.0}, and after {:.1} s.",
        knobs.clients,
        none.calls,
        exponential.calls,
        exponential.time / 1e3,
        full.calls,
        full.time / 1e3,
    );
    Report {
        scenario: "occ",
        seed: settings.seed,
        checks: [checks(knobs, &means), grown([none, full], &growth)].concat(),
        arms: means.into_iter().zip(WAYS).map(|(mean, (_, name, _))| mean.arm(name)).collect(),
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn backoff(self, jitter: Jitter) -> Backoff {
        let base = match jitter {
            // Growth comes from the draws, the first of which is from the base to three times that.
            Jitter::Decorrelated => self.base_delay,
            Jitter::None | Jitter::Full | Jitter::Equal => self.base_delay * 2,
        };
        Backoff::exponential(base).cap(self.cap).jitter(jitter)
    }
}

/// The row, and what was seen at it.
#[derive(Debug)]
struct Row {
    version: u64,
    writes: Timeline,
    /// When each client knew that its write was the one.
    done: Vec<Tick>,
    /// How often a loser waited for exactly the cap, as everybody else who did.
    capped: u64,
}

impl Row {
    /// Writes if nobody has since this version was read.
    fn write(&mut self, now: Tick, read: u64) -> bool {
        self.writes.record(now);
        let is_current = read == self.version;
        self.version += u64::from(is_current);
        is_current
    }
}

fn contend(seed: u64, knobs: Knobs, way: Option<Jitter>, tap: &Tap) -> Row {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let row = Arc::new(Mutex::new(Row { version: 0, writes: Timeline::new(BIN), done: Vec::new(), capped: 0 }));
    for id in 0..knobs.clients {
        env.spawn(client(env.scope(id), id, knobs, way, Arc::clone(&row), tap.clone())).detach();
    }
    sim.finish().expect("one write of those that were read together is in time");
    Arc::into_inner(row).expect("everybody is done").into_inner()
}

async fn client(env: Env, id: u64, knobs: Knobs, way: Option<Jitter>, row: Arc<Mutex<Row>>, tap: Tap) {
    let network = Network { mean: knobs.trip, sd: knobs.trip_sd };
    let (trips, chance) = (env.rng("network"), env.rng("retry"));
    let mut delays = way.map(|jitter| knobs.backoff(jitter).delays());
    for attempt in 0.. {
        network.trip(&env, &trips).await;
        let read = row.lock().version;
        network.trip(&env, &trips).await;
        let at = network.trip(&env, &trips).await;
        let is_written = row.lock().write(at, read);
        let status = if is_written { 200 } else { 409 };
        tap.note(&env, Caller::of(id, "/row").in_wave("retry", attempt), status);
        let now = network.trip(&env, &trips).await;
        if is_written {
            row.lock().done.push(now);
            return;
        }
        if let Some(delays) = &mut delays {
            let delay = delays.next(&chance);
            row.lock().capped += u64::from(delay == knobs.cap);
            env.sleep(delay).await;
        }
    }
}

/// What came out on average, in milliseconds.
struct Mean {
    calls: f64,
    /// Until the last is done.
    time: f64,
    /// Until a client is done.
    each: f64,
    /// Waits of exactly the cap, in all repetitions.
    capped: u64,
    /// The writes of the first repetition.
    writes: Timeline,
}

impl Mean {
    /// Listened to is the first repetition.
    fn of(seed: u64, knobs: Knobs, way: Option<Jitter>, tap: &Tap) -> Mean {
        let first = seed.wrapping_mul(knobs.repetitions);
        let rows: Vec<Row> = (0..knobs.repetitions)
            .map(|nth| {
                let tap = if nth == 0 { tap } else { &Tap::default() };
                contend(first.wrapping_add(nth), knobs, way, tap)
            })
            .collect();
        let mean = |of: &dyn Fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
        let since_start = |at: &Tick| millis(*at - Tick::ZERO);
        Mean {
            calls: mean(&|row| row.writes.total() as f64),
            time: mean(&|row| row.done.iter().map(since_start).fold(0.0, f64::max)),
            each: mean(&|row| row.done.iter().map(since_start).sum::<f64>() / row.done.len() as f64),
            capped: rows.iter().map(|row| row.capped).sum(),
            writes: rows.first().map_or(Timeline::new(BIN), |row| row.writes.clone()),
        }
    }

    fn arm(self, name: &'static str) -> Arm {
        let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let figures = vec![
            Figure::number("calls", "calls", self.calls),
            Figure::time("last_done_ms", "last done", time(self.time)),
            Figure::time("mean_done_ms", "mean done", time(self.each)),
        ];
        Arm::new(name, figures, self.writes)
    }
}

/// Who has the most of something.
fn most(means: &[Mean; 5], of: impl Fn(&Mean) -> f64) -> &'static str {
    let place = (0..means.len()).max_by(|a, b| of(&means[*a]).total_cmp(&of(&means[*b])));
    place.map_or("", |place| WAYS[place].1)
}

fn checks(knobs: Knobs, means: &[Mean; 5]) -> Vec<Check> {
    let [_, exponential, equal, full, decorrelated] = means;
    // Theirs is a mean with an error, and so is ours.
    let error = |sd: f64| 4.0 * sd * (1.0 / PUBLISHED_RUNS + 1.0 / knobs.repetitions as f64).sqrt();
    let mut checks = Vec::new();
    for (mean, (way, name, Published { calls, time })) in means.iter().zip(WAYS) {
        let what = format!("{name}: calls, within 4 standard errors");
        checks.push(Check::within(Source::Published, what, calls.0, error(calls.1), mean.calls).cites("AWS 2015"));
        // The law of the library is another one there.
        if way != Some(Jitter::Decorrelated) {
            let what = format!("{name}: ms until the last is done, within 4 standard errors");
            checks.push(Check::within(Source::Published, what, time.0, error(time.1), mean.time).cites("AWS 2015"));
        }
    }
    let [.., (_, _, theirs)] = WAYS;
    checks.extend([
        Check::at_most(
            Source::Promise,
            "decorrelated: the original clamps what it drew to the cap, ours caps the range and draws; the last is done no later (ms)",
            theirs.time.0,
            decorrelated.time,
        )
        .cites("AWS 2015")
        .cites("T3"),
        Check::equal(
            Source::Promise,
            "decorrelated: losers who wait for exactly the cap, as all do whose draw is clamped to it",
            &0,
            &decorrelated.capped,
        )
        .cites("T3")
        .cites("T4"),
        Check::equal(
            Source::Published,
            "who has the most calls, the least time, the most time",
            &["no backoff", "no backoff", "exponential"],
            &[most(means, |mean| mean.calls), most(means, |mean| -mean.time), most(means, |mean| mean.time)],
        )
        .cites("AWS 2015")
        .cites("T1"),
        Check::within(
            Source::Published,
            "full jitter: about as many calls as equal jitter",
            1.0,
            0.05,
            full.calls / equal.calls,
        )
        .cites("AWS 2015")
        .cites("T3"),
        Check::at_least(
            Source::Published,
            "corrects \"jitter does not reduce latency\": with it the last is done so many times sooner",
            10.0,
            exponential.time / full.time,
        )
        .cites("Q20")
        .cites("T2"),
        Check::at_least(
            Source::Formula,
            "... and the average client, too",
            5.0,
            exponential.each / full.each,
        )
        .cites("Q20")
        .cites("T2"),
    ]);
    checks
}

fn grown(means: [&Mean; 2], larger: &[Mean; 2]) -> Vec<Check> {
    let ways = [
        "without backoff calls grow nearly with the square of the crowd",
        "... with full jitter nearly as the crowd does",
    ];
    let growth = ways.into_iter().zip(GROWTH).zip(means.into_iter().zip(larger));
    growth
        .map(|((what, (_, published)), (mean, larger))| {
            let what = format!("{what}: those of 1.9 times as many clients, in those of 100, within a twentieth");
            Check::within(Source::Published, what, published, published / 20.0, larger.calls / mean.calls)
                .cites("AWS 2015")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_those_who_read_one_version_only_the_first_writes() {
        let mut row = Row { version: 0, writes: Timeline::new(BIN), done: Vec::new(), capped: 0 };
        assert_eq!([0, 0, 1, 0, 1].map(|read| row.write(Tick::ZERO, read)), [true, false, true, false, false]);
        assert_eq!((row.version, row.writes.total()), (2, 5));
    }

    #[test]
    fn everybody_writes_once_whatever_a_loser_does() {
        for (way, name, _) in WAYS {
            let row = contend(7, Knobs { clients: 20, ..Knobs::of(&Settings::new(7)) }, way, &Tap::default());
            assert_eq!((row.version, row.done.len()), (20, 20), "{name}");
        }
    }
}
