//! The knee: the least in flight that gives the most through.

use std::collections::VecDeque;

use super::{Law, Window};

/// A call in a hundred may be refused by chance; more than this share is overload.
const DROPS: f64 = 0.05;
/// Some calls are longer than callers wait in any case; more than this share is collapse.
const TIMEOUTS: f64 = 0.25;
/// What the limit is multiplied by then.
const CUT: f64 = 0.7;
/// The queue is long from this many times the logarithm of the limit on, and short up to half of it.
const LONG: f64 = 6.0;
/// What cannot be chance: such a share of all in flight in the queue calls for a trial.
const SUSPECT: f64 = 0.4;
/// A trial is over after this many calls,
const TRIAL: f64 = 60.0;
/// and one without a suspicion after more, as it must not err for the worse.
const LONG_TRIAL: f64 = 200.0;
/// After how many windows in which somebody was refused there is one.
const UNTRIED: u32 = 60;
/// While there is hardly a queue, the limit grows by this.
const LEAP: f64 = 1.25;
/// Times so much above their average are on the rise.
const RISING: f64 = 1.5;
/// How fast the base follows down, and up.
const DOWN: f64 = 0.2;
const UP: f64 = 0.05;
/// Over how many windows throughput is compared with what was in flight, and over how many at least.
const HISTORY: usize = 30;
const LEAST: usize = 10;
/// The correlation below which more in flight is taken to have done harm.
const HARM: f64 = -0.3;

/// The least in flight that gives the most through: a queue estimate that is put to the test, with a veto by throughput.
///
/// Latency alone cannot tell a queue from an origin that has become slower, and every law that goes by it mistakes one for
/// the other: it either learns the queue as normal and grows without end, or takes a slower origin for a queue and starves
/// it. What tells them apart is trying: with fewer in flight a queue gets shorter and a slow origin does not. So:
///
/// - While calls take about as long as they do without a queue, and somebody is refused, the limit grows. A window in which
///   nobody was refused says nothing about the limit, and it stays.
/// - When the estimated queue, `limit x (1 - base / time)`, is too long, the limit shrinks a little. When it is nearly half of
///   all that is in flight, the limit is cut **on trial**: if calls do not get faster by at least half as much as a queue would
///   have (on a logarithmic scale), it was no queue. Then this is the new base, and the cut is undone.
/// - The base is never learnt upwards while the limit refuses anybody: that would be learning the queue. A trial can err, and
///   then it would be wrong for good; so a limit that has refused somebody for half a minute is tried in any case.
/// - If over some time more in flight went together with fewer successes, the limit shrinks whatever the latency says.
/// - Refused by the origin, or a quarter not in time: the limit shrinks at once, and waits for what it did before it judges
///   again.
///
/// Known weakness: where every call in flight slows down all others there is no clear knee. This law takes that for a queue
/// and stays below the best limit, which cost up to a sixth in the lab.
///
/// Derived from TCP Vegas (as in Netflix's concurrency-limits), with Uber's comparison of in-flight and throughput against the
/// drift of the baseline, and with trials, which are new here.
#[derive(Clone, Debug, Default)]
pub struct Knee {
    /// How long a call takes without a queue, in seconds; zero if that is not known.
    pub(super) base: f64,
    /// How long calls took lately.
    time: f64,
    /// How long, in seconds, calls of before the last change may still come in.
    wait: f64,
    trial: Option<Trial>,
    /// Windows in which somebody was refused since the last trial.
    untried: u32,
    /// What was in flight and what came through, the latest last.
    history: VecDeque<(f64, f64)>,
}

/// A cut whose effect is being watched.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The limit before.
    limit: f64,
    /// How long calls took before.
    time: f64,
    /// How many calls it takes.
    needs: f64,
    /// Calls since, and the time they took.
    calls: f64,
    total: f64,
}

impl Law for Knee {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        let (elapsed, time) = (window.elapsed.as_secs_f64(), window.median.as_secs_f64());
        if self.wait > elapsed / 2.0 {
            self.wait -= elapsed;
            return limit;
        }
        self.wait = 0.0;
        if window.drop_share() > DROPS || window.timeout_share() > TIMEOUTS {
            self.trial = None;
            self.wait = 2.0 * time;
            return limit * CUT;
        }
        if time <= 0.0 {
            return limit;
        }
        self.learn(time, window.binding);
        self.remember(window);
        match self.judge(limit, time, window) {
            Some(Judgement::Pending) => return limit,
            Some(Judgement::NotAQueue { restore }) => return restore,
            Some(Judgement::Queue) | None => {}
        }
        self.time = if self.time > 0.0 { f64::midpoint(self.time, time) } else { time };
        self.step(limit, time, window)
    }
}

/// What a trial shows.
enum Judgement {
    Pending,
    Queue,
    NotAQueue { restore: f64 },
}

impl Knee {
    fn learn(&mut self, time: f64, binding: bool) {
        let weight = if self.base <= 0.0 {
            1.0
        } else if time < self.base {
            DOWN
        } else if binding {
            0.0
        } else {
            UP
        };
        self.base += weight * (time - self.base);
    }

    /// Counts the window into the trial, if there is one, and ends that when it has seen enough.
    fn judge(&mut self, limit: f64, time: f64, window: &Window) -> Option<Judgement> {
        let trial = self.trial.as_mut()?;
        trial.calls += f64::from(window.successes);
        trial.total += time * f64::from(window.successes);
        let Trial { limit: before, time: slow, needs, calls, total } = *trial;
        if calls < needs {
            return Some(Judgement::Pending);
        }
        self.trial = None;
        let after = total / calls;
        if after <= slow * (limit / before).sqrt() {
            self.base = self.base.min(after);
            return Some(Judgement::Queue);
        }
        self.base = after;
        self.history.clear();
        Some(Judgement::NotAQueue { restore: before })
    }

    fn step(&mut self, limit: f64, latest: f64, window: &Window) -> f64 {
        let queue = limit.min(window.in_flight) * (1.0 - self.base / self.time).max(0.0);
        let long = LONG * limit.log10().max(1.0);
        let little = (limit.sqrt() / 2.0).max(1.0);
        self.untried += u32::from(window.binding);
        if queue > long && queue > SUSPECT * limit {
            let cut = (limit - queue + long / 2.0).clamp(0.5 * limit, CUT * limit);
            self.begin_trial(limit, latest, TRIAL, cut)
        } else if queue > long || (window.binding && self.correlation() < HARM) {
            limit - little
        } else if !window.binding {
            limit
        } else if self.untried >= UNTRIED {
            self.begin_trial(limit, latest, LONG_TRIAL, CUT * limit)
        } else if queue < long / 6.0 {
            limit * LEAP
        } else if queue < long / 2.0 {
            limit + little
        } else {
            limit
        }
    }

    fn begin_trial(&mut self, limit: f64, latest: f64, needs: f64, cut: f64) -> f64 {
        // While times rise the average lags behind, and a queue would seem not to have got shorter.
        let time = if latest > RISING * self.time { latest } else { self.time };
        self.trial = Some(Trial { limit, time, needs, calls: 0.0, total: 0.0 });
        self.wait = time;
        self.time = 0.0;
        self.untried = 0;
        cut
    }

    fn remember(&mut self, window: &Window) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((window.in_flight, window.rate()));
    }

    /// Between what was in flight and what came through; zero while little is known.
    fn correlation(&self) -> f64 {
        if self.history.len() < LEAST {
            return 0.0;
        }
        let count = self.history.len() as f64;
        let sum = self.history.iter().fold((0.0, 0.0), |sum, seen| (sum.0 + seen.0, sum.1 + seen.1));
        let mean = (sum.0 / count, sum.1 / count);
        let (mut both, mut flights, mut rates) = (0.0, 0.0, 0.0);
        for (flight, rate) in &self.history {
            both += (flight - mean.0) * (rate - mean.1);
            flights += (flight - mean.0).powi(2);
            rates += (rate - mean.1).powi(2);
        }
        if flights > 0.0 && rates > 0.0 { both / (flights * rates).sqrt() } else { 0.0 }
    }
}
