//! The knee: the least in flight that gives the most through.

use super::{Law, Window};

/// A call in a hundred may be refused by chance; more than this share is overload.
const DROPS: f64 = 0.05;
/// Some calls are longer than callers wait in any case; more than this share is collapse. Of an origin whose times are
/// exponential with a mean of 0.4 s, 8 % take longer than a second, and now and then 7 in a window of 25 do by chance.
const TIMEOUTS: f64 = 0.35;
/// What the limit is multiplied by then.
const CUT: f64 = 0.7;
/// The queue is long from this many times the square root of the limit on, and short up to half of it: as many as chance
/// makes wait before so many servers.
const LONG: f64 = 1.7;
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

/// The least in flight that gives the most through: a queue estimate that is put to the test.
///
/// Latency alone cannot tell a queue from an origin that has become slower, and every law that goes by it mistakes one for
/// the other: it either learns the queue as normal and grows without end, or takes a slower origin for a queue and starves
/// it. What tells them apart is trying: with fewer in flight a queue gets shorter and a slow origin does not. So:
///
/// - While calls take about as long as they do without a queue, and somebody is refused, the limit grows. A window in which
///   nobody was refused says nothing about the limit, and it stays.
/// - When the estimated queue, `limit x (1 - base / time)`, is too long, the limit shrinks a little. When it is nearly half of
///   all that is in flight, the limit is cut **on trial**. Then it goes back up by as much as the cut did not help: if calls
///   take as long as before, all the way; if they got faster in proportion, not at all.
/// - If the cut helped by less than half as much as with a queue (on a logarithmic scale), there was none, and the time it
///   takes now is the new base.
/// - The base is never learnt upwards while the limit refuses anybody: that would be learning the queue. A trial can err, and
///   then it would be wrong for good; so a limit that has refused somebody for half a minute is tried in any case.
/// - The first window is not believed: of the calls that began in it, the slow ones are not back yet.
/// - Refused by the origin, or a third not in time: the limit shrinks at once, and waits for what it did before it judges
///   again.
///
/// Known weakness: where every call in flight slows down all others there is no clear knee. This law takes that for a queue
/// and stays below the best limit. And a trial goes by 60 calls: where times differ widely, chance decides some of them.
///
/// Derived from TCP Vegas (as in Netflix's concurrency-limits), with trials, which are new here. A veto by the correlation of
/// in-flight and throughput, as at Uber, was part of it until it made no difference on a hundred random origins.
#[derive(Clone, Debug, Default)]
pub struct Knee {
    /// How long a call takes without a queue, in seconds; zero if that is not known.
    pub(super) base: f64,
    /// How long calls took lately; zero if that is not known.
    time: f64,
    /// How long, in seconds, calls of before the last change may still come in.
    wait: f64,
    trial: Option<Trial>,
    /// Windows in which somebody was refused since the last trial.
    untried: u32,
    /// Whether the first window is over.
    begun: bool,
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
        if !self.begun {
            self.begun = true;
            self.wait = time;
            return limit;
        }
        let recent = if self.time > 0.0 { f64::midpoint(self.time, time) } else { time };
        self.learn(recent, window.binding);
        if let Some(limit) = self.judge(limit, time, window) {
            return limit;
        }
        self.time = recent;
        self.step(limit, time, window)
    }
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
    fn judge(&mut self, limit: f64, time: f64, window: &Window) -> Option<f64> {
        let trial = self.trial.as_mut()?;
        trial.calls += f64::from(window.successes);
        trial.total += time * f64::from(window.successes);
        let Trial { limit: before, time: slow, needs, calls, total } = *trial;
        if calls < needs {
            return Some(limit);
        }
        self.trial = None;
        let (after, cut) = (total / calls, limit / before);
        let is_queue = after <= slow * cut.sqrt();
        self.base = if is_queue { self.base.min(after) } else { after };
        Some(before * (after / slow).max(cut).min(1.0))
    }

    fn step(&mut self, limit: f64, latest: f64, window: &Window) -> f64 {
        let queue = limit.min(window.in_flight) * (1.0 - self.base / self.time).max(0.0);
        let long = LONG * limit.sqrt();
        let little = (limit.sqrt() / 2.0).max(1.0);
        self.untried += u32::from(window.binding);
        if queue > long && queue > SUSPECT * limit {
            let cut = (limit - queue + long / 2.0).clamp(0.5 * limit, CUT * limit);
            self.begin_trial(limit, latest, TRIAL, cut)
        } else if queue > long {
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
}
