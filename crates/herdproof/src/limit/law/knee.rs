//! The knee: the least in flight that gives the most through.

use super::{Law, Window};

/// A call in a hundred may be refused by chance; more than this share is overload.
const DROPS: f64 = 0.05;
/// Some calls are longer than callers wait in any case; more than this share is collapse. Of an origin whose times are
/// exponential with a mean of 0.4 s, 8 % take longer than a second, and now and then 7 in a window of 25 do by chance.
const TIMEOUTS: f64 = 0.35;
/// What the limit is multiplied by in a collapse, at least.
const LEAST: f64 = 0.3;
/// What it is multiplied by then and in a trial, at most; and how far it shrinks in little steps before that is judged.
const CUT: f64 = 0.7;
/// The queue is long from this many times the square root of the limit on, and short up to half of it: as many as chance
/// makes wait before so many servers.
const LONG: f64 = 1.7;
/// What cannot be chance: such a share of all in flight in the queue calls for a trial.
const SUSPECT: f64 = 0.4;
/// More are late than usual if it is half as many again, and one in twenty.
const MORE: f64 = 1.5;
const LATE: f64 = 0.05;
/// A trial is over after this many calls.
const TRIAL: f64 = 60.0;
/// After how many windows in which somebody was refused there is one in any case.
const UNTRIED: u32 = 30;
/// While there is hardly a queue, the limit grows by this.
const LEAP: f64 = 1.25;
/// Times so much above their average are on the rise.
const RISING: f64 = 1.5;
/// How fast what is usual is followed down, and up.
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
/// - When the estimated queue, `limit x (1 - base / time)`, is nearly half of all that is in flight, the limit is cut **on
///   trial**. Then it goes back up by as much as the cut did not help: if calls take as long as before, all the way; if they
///   got faster in proportion, not at all. A limit that nobody met is cut from what was in flight: otherwise nothing changes,
///   and that would be taken for the answer.
/// - If the cut helped by less than half as much as with a queue (on a logarithmic scale), there was none, and the time it
///   takes now is the new base.
/// - When the queue is too long but not that long, the limit shrinks a little, again and again. That is a slow trial, and
///   ends like one: three tenths down without calls having become faster, it was no queue, and all of it is taken back.
/// - Callers who give up are the same question once more: some would in any case, as some calls are long. When more do than
///   usual the limit shrinks a little, and if no fewer do after that, so many are usual.
/// - What is usual is never learnt upwards while the limit refuses anybody: that would be learning the queue. A trial can err,
///   and then it would be wrong for good; so a limit that has refused somebody for a quarter of a minute is tried in any case.
/// - The first window is not believed: of the calls that began in it, the slow ones are not back yet.
/// - Refused by the origin, or a third not in time: the limit shrinks at once to as many as were answered, and waits for what
///   that did before it judges again. What callers have left is still being worked on, and while it is, nobody is answered;
///   only far fewer let the origin come out of that.
///
/// Known weakness: where every call in flight slows down all others there is no clear knee. This law takes that for a queue
/// and stays below the best limit, or above it if it has never seen the origin calm. A trial goes by 60 calls: where times
/// differ widely, chance decides some of them. And where callers come in bursts a queue would bridge the time between them:
/// this law keeps it short all the same.
///
/// Derived from TCP Vegas (as in Netflix's concurrency-limits), with trials, which are new here. What was tried on random
/// origins and is not part of it: a veto by the correlation of in-flight and throughput, as at Uber, trials judged by
/// throughput, and trials of what growing brought made nothing better. The queue by Little's law (the wait times the
/// throughput) did, but it takes an origin that is twice as slow for one with a queue.
#[derive(Clone, Debug, Default)]
pub struct Knee {
    /// How long a call takes without a queue, in seconds; zero if that is not known.
    pub(super) base: f64,
    /// Which share of the calls is not in time without a queue.
    usual: f64,
    /// How long calls took lately; zero if that is not known.
    time: f64,
    /// Which share of them was not in time.
    late: f64,
    /// How long, in seconds, calls of before the last change may still come in.
    wait: f64,
    trial: Option<Trial>,
    /// How it was when the limit began to shrink in little steps; none once it has grown again.
    shrinks: Option<Before>,
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
    /// What was cut: the limit, or what was in flight if that was less.
    from: f64,
    /// How long calls took before.
    time: f64,
    /// Calls since, and the time they took.
    calls: f64,
    total: f64,
}

/// How it was with a higher limit.
#[derive(Clone, Copy, Debug)]
struct Before {
    limit: f64,
    time: f64,
    late: f64,
}

impl Law for Knee {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        let (elapsed, time) = (window.elapsed.as_secs_f64(), window.median.as_secs_f64());
        if self.wait > elapsed / 2.0 {
            self.wait -= elapsed;
            return limit;
        }
        self.wait = 0.0;
        let (drops, late) = (window.drop_share(), window.timeout_share());
        if drops > DROPS || late > TIMEOUTS {
            self.trial = None;
            self.wait = 2.0 * time;
            return limit * (1.0 - drops - late).clamp(LEAST, CUT);
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
        let late = f64::midpoint(self.late, late);
        if self.base <= 0.0 {
            (self.base, self.usual) = (recent, late);
        }
        self.base = follow(self.base, recent, window.binding);
        if let Some(limit) = self.judge(limit, time, window) {
            return limit;
        }
        self.usual = follow(self.usual, late, window.binding);
        (self.time, self.late) = (recent, late);
        self.step(limit, time, window)
    }
}

/// A step of the limit.
fn little(limit: f64) -> f64 {
    (limit.sqrt() / 2.0).max(1.0)
}

/// What is usual, after this was seen.
fn follow(usual: f64, seen: f64, binding: bool) -> f64 {
    let weight = if seen < usual {
        DOWN
    } else if binding {
        0.0
    } else {
        UP
    };
    usual + weight * (seen - usual)
}

/// Whether a cut to this share made something less by at least half as much as with a queue, on a logarithmic scale.
fn helped(before: f64, after: f64, cut: f64) -> bool {
    after <= before * cut.sqrt()
}

impl Knee {
    /// Counts the window into the trial, if there is one, and ends that when it has seen enough.
    fn judge(&mut self, limit: f64, time: f64, window: &Window) -> Option<f64> {
        let trial = self.trial.as_mut()?;
        trial.calls += f64::from(window.successes);
        trial.total += time * f64::from(window.successes);
        let Trial { limit: before, from, time: slow, calls, total } = *trial;
        if calls < TRIAL {
            return Some(limit);
        }
        self.trial = None;
        let after = total / calls;
        self.base = if helped(slow, after, limit / from) { self.base.min(after) } else { after };
        Some(if after < slow { limit.max(from * after / slow) } else { before })
    }

    fn step(&mut self, limit: f64, latest: f64, window: &Window) -> f64 {
        let queue = limit.min(window.in_flight) * (1.0 - self.base / self.time).max(0.0);
        let long = (LONG * limit.sqrt()).min(limit / 2.0);
        self.untried += u32::from(window.binding);
        if queue > long && queue > SUSPECT * limit {
            let from = if window.binding { limit } else { limit.min(window.in_flight) };
            self.begin_trial(limit, from, latest, from - queue + long / 2.0)
        } else if queue > long {
            self.shrink(limit, true)
        } else if !window.binding {
            limit
        } else if self.late > MORE * self.usual + LATE {
            self.shrink(limit, false)
        } else if self.untried >= UNTRIED {
            self.begin_trial(limit, limit, latest, limit)
        } else if queue < long / 6.0 {
            self.shrinks = None;
            self.wait = latest;
            limit * LEAP
        } else if queue < long / 2.0 {
            self.shrinks = None;
            limit + little(limit)
        } else {
            limit
        }
    }

    /// Cuts what was in flight, to no more than seven and no less than five tenths, and remembers how it was.
    fn begin_trial(&mut self, limit: f64, from: f64, latest: f64, to: f64) -> f64 {
        // While times rise the average lags behind, and a queue would seem not to have got shorter.
        let time = if latest > RISING * self.time { latest } else { self.time };
        self.trial = Some(Trial { limit, from, time, calls: 0.0, total: 0.0 });
        self.shrinks = None;
        self.wait = time;
        (self.time, self.late) = (0.0, 0.0);
        self.untried = 0;
        to.clamp(0.5 * from, CUT * from)
    }

    /// A little less, because of a queue or because many were late; or all of it back, once it has gone far without a use.
    fn shrink(&mut self, limit: f64, is_queue: bool) -> f64 {
        let before = *self.shrinks.get_or_insert(Before { limit, time: self.time, late: self.late });
        let cut = limit / before.limit;
        if cut > CUT {
            return limit - little(limit);
        }
        self.shrinks = None;
        let (usual, was, is) =
            if is_queue { (&mut self.base, before.time, self.time) } else { (&mut self.usual, before.late, self.late) };
        if helped(was, is, cut) {
            return limit - little(limit);
        }
        *usual = is;
        before.limit
    }
}
