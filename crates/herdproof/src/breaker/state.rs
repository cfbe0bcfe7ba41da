//! The breaker's decisions, as arithmetic: what follows from a state, a time and a draw.
//!
//! ```text
//!            trip                     open time over, one asks
//!  Closed ---------> Open { until } -------------------------> Probing { until }
//!    ^                 ^   ^   ^                                 |    |
//!    |                 |   |   +------- it left, or says nothing +    |
//!    |                 |   +----------- it failed, or took too long --+
//!    |   share < 0.05  |                                              | it worked
//!    |                 +------------------------------------- Ramping { share } <--+
//!    +----------------------------------------------- share >= 1 ---------+
//! ```

use std::time::Duration;

use crate::{
    env::{Tick, nanos},
    window::Sum,
};

/// What a breaker goes by; see [`BreakerBuilder`](super::BreakerBuilder) for what each is and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) faults: u32,
    pub(super) least_ok: f64,
    pub(super) least_calls: u32,
    pub(super) window: Duration,
    /// From how many nanoseconds on a call is slow; the largest number if none is.
    pub(super) slow_from: u64,
    pub(super) most_slow: f64,
    pub(super) open: Duration,
    pub(super) open_cap: Duration,
    pub(super) jitter: f64,
    pub(super) probe: Duration,
    pub(super) first_share: f64,
    pub(super) step: Duration,
    pub(super) factor: f64,
    /// Whether no caller is ever the probe: the owner probes, and says how that went.
    pub(super) external_probes: bool,
}

/// The share of good results from which a step of the ramp leads up.
const STEP_UP: f64 = 0.9;
/// The share below which the ramp is given up.
pub(super) const LEAST_SHARE: f64 = 0.05;

/// All that a breaker remembers, beside its counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    pub(super) mode: Mode,
    /// Grows with every change, so that what began before one can be told from what began after it.
    pub(super) epoch: u64,
    /// How often the open time has doubled.
    pub(super) level: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    Closed {
        since: Tick,
    },
    /// Nobody gets in until then; who asks first after it is the probe.
    Open {
        until: Tick,
    },
    /// One is in. If it has not answered by then, that is an answer too.
    Probing {
        until: Tick,
    },
    /// A share of the callers gets in.
    Ramping {
        share: f32,
        ok: u32,
        bad: u32,
        /// Faults in a row.
        faults: u32,
        /// When the share is looked at again.
        step_ends: Tick,
        /// When a caller gets in whatever the share: nobody has been for as long as a breaker is open at first, so one
        /// more is no more than a probe, and without it a breaker that is asked once a minute would ramp for ten.
        quiet: Tick,
    },
    /// A person has said so.
    HeldOpen,
    HeldClosed,
}

/// What a result says about the origin, to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Result {
    Ok,
    /// It answered, but too slowly, or that it has too much to do: no fault, but no success.
    Weak,
    Fault,
}

/// Whether somebody who asked got in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    In,
    /// Not before this.
    Refused {
        until: Tick,
    },
    Held,
}

impl Rules {
    /// Whether these counts of calls and of bad ones among them are too bad to go on.
    pub(super) fn is_failing(&self, Sum { all, some: bad }: Sum) -> bool {
        all >= u64::from(self.least_calls) && (all.saturating_sub(bad) as f64) < self.least_ok * all as f64
    }

    /// Whether so many slow ones among the calls are too many.
    pub(super) fn is_crawling(&self, calls: u64, slow: u64) -> bool {
        calls >= u64::from(self.least_calls) && slow as f64 >= self.most_slow * calls as f64
    }

    pub(super) fn is_slow(&self, took: Duration) -> bool {
        nanos(took) >= self.slow_from
    }

    /// The outcome of a probe or of a call of the ramp: where slowness counts, a slow success is none.
    pub(super) fn on_trial(&self, outcome: Result, took: Duration) -> Result {
        if outcome == Result::Ok && self.is_slow(took) { Result::Weak } else { outcome }
    }

    /// The range that an open time is drawn from. The cap limits the range; the draw is made within it.
    pub(super) fn open_range(&self, level: u8) -> (Duration, Duration) {
        let longest = self.open.saturating_mul(1u32.checked_shl(level.into()).unwrap_or(u32::MAX)).min(self.open_cap);
        (longest.mul_f64(1.0 - self.jitter), longest)
    }

    /// The level from which on the open time does not grow.
    fn top_level(&self) -> u8 {
        (0..31).find(|level| self.open.saturating_mul(1 << level) >= self.open_cap).unwrap_or(31)
    }

    /// How long a ramp takes if all goes well.
    pub(super) fn ramp_time(&self) -> Duration {
        let mut share = self.first_share;
        let mut time = self.step;
        while share * self.factor < 1.0 && time < self.step * 64 {
            share *= self.factor;
            time += self.step;
        }
        time
    }
}

impl State {
    /// Closed. Epochs begin with the time, so that where a key was forgotten and came again, permits from before mean nothing.
    pub(super) fn new(now: Tick) -> State {
        State { mode: Mode::Closed { since: now }, epoch: now.as_nanos() + 1, level: 0 }
    }

    /// Whether it opened in between; a probe's place that is given back has been open since ever, and one that stays open for
    /// longer was open before.
    pub(super) fn opened_since(&self, before: &State) -> bool {
        self.epoch != before.epoch
            && !matches!(before.mode, Mode::Open { .. })
            && matches!(self.mode, Mode::Open { until } if until > Tick::ZERO)
    }

    fn change(self, mode: Mode) -> State {
        State { mode, epoch: self.epoch + 1, ..self }
    }

    /// Opens, for longer than the last time, unless there were healthy windows in between: each takes one doubling back.
    pub(super) fn trip(self, rules: &Rules, now: Tick, draw: f64) -> State {
        let healthy = match self.mode {
            Mode::Closed { since } => nanos(now - since) / nanos(rules.window).max(1),
            _ => 0,
        };
        let level = self.level.saturating_sub(u8::try_from(healthy).unwrap_or(u8::MAX));
        let (shortest, longest) = rules.open_range(level);
        let open = shortest + longest.saturating_sub(shortest).mul_f64(draw);
        let level = level.saturating_add(1).min(rules.top_level());
        State { level, ..self.change(Mode::Open { until: now + open }) }
    }

    /// The owner says that the origin is down. What a person has said holds.
    pub(super) fn trip_by_owner(self, rules: &Rules, now: Tick, draw: f64) -> State {
        match self.mode {
            Mode::HeldOpen | Mode::HeldClosed => self,
            _ => self.trip(rules, now, draw),
        }
    }

    /// The owner says that the origin is back.
    pub(super) fn recover(self, rules: &Rules, now: Tick) -> State {
        match self.mode {
            Mode::Open { .. } | Mode::Probing { .. } => self.change(Mode::ramp(rules, now)).closed_at_top(now),
            _ => self,
        }
    }

    pub(super) fn close(self, now: Tick) -> State {
        self.change(Mode::Closed { since: now })
    }

    /// Somebody asks.
    pub(super) fn ask(self, rules: &Rules, now: Tick, draw: f64) -> (State, Entry) {
        let state = self.step(rules, now, draw);
        match state.mode {
            Mode::Closed { .. } | Mode::HeldClosed => (state, Entry::In),
            Mode::HeldOpen => (state, Entry::Held),
            Mode::Open { until } if now < until || rules.external_probes => {
                (state, Entry::Refused { until: until.max(now) })
            }
            Mode::Open { .. } => (state.change(Mode::Probing { until: now + rules.probe }), Entry::In),
            Mode::Probing { .. } => (state, Entry::Refused { until: now }),
            Mode::Ramping { share, ok, bad, faults, step_ends, quiet } => {
                if draw < f64::from(share) || now >= quiet {
                    let quiet = now + rules.open;
                    (State { mode: Mode::Ramping { share, ok, bad, faults, step_ends, quiet }, ..state }, Entry::In)
                } else {
                    (state, Entry::Refused { until: now })
                }
            }
        }
    }

    /// A probe, or a call let in by the ramp, is over. A probe that took too long has failed by then, whatever it came to; and
    /// what a step of the ramp had before belongs to it, so one that had nothing is judged by this one result.
    pub(super) fn settle(self, rules: &Rules, now: Tick, result: Result, draw: f64) -> State {
        self.step(rules, now, draw).count(rules, now, result, draw)
    }

    fn count(self, rules: &Rules, now: Tick, result: Result, draw: f64) -> State {
        match self.mode {
            Mode::Probing { .. } if result == Result::Ok => self.change(Mode::ramp(rules, now)).closed_at_top(now),
            Mode::Probing { .. } => self.trip(rules, now, draw),
            Mode::Ramping { share, ok, bad, faults, step_ends, quiet } => {
                let faults = match result {
                    Result::Ok => 0,
                    Result::Weak => faults,
                    Result::Fault => faults + 1,
                };
                if faults >= rules.faults {
                    return self.trip(rules, now, draw);
                }
                let (ok, bad) = match result {
                    Result::Ok => (ok.saturating_add(1), bad),
                    Result::Weak | Result::Fault => (ok, bad.saturating_add(1)),
                };
                let mode = Mode::Ramping { share, ok, bad, faults, step_ends, quiet };
                State { mode, ..self }.step(rules, now, draw)
            }
            _ => self,
        }
    }

    /// A call is over that says nothing: its caller left, or what came of it is not about the origin. A probe gives its
    /// place back, so that the next to ask is the probe.
    pub(super) fn cancel(self) -> State {
        match self.mode {
            Mode::Probing { .. } => self.change(Mode::Open { until: Tick::ZERO }),
            _ => self,
        }
    }

    /// What follows from the time alone.
    fn step(self, rules: &Rules, now: Tick, draw: f64) -> State {
        match self.mode {
            Mode::Probing { until } if now >= until => self.trip(rules, now, draw),
            Mode::Ramping { share, ok, bad, faults, step_ends, quiet } if now >= step_ends && (ok, bad) != (0, 0) => {
                let good = f64::from(ok) >= STEP_UP * (f64::from(ok) + f64::from(bad));
                let share = f64::from(share) * if good { rules.factor } else { 1.0 / rules.factor };
                if share < LEAST_SHARE {
                    return self.trip(rules, now, draw);
                }
                #[expect(clippy::cast_possible_truncation, reason = "a share, of which a few digits matter")]
                let share = share as f32;
                let mode = Mode::Ramping { share, ok: 0, bad: 0, faults, step_ends: now + rules.step, quiet };
                State { mode, ..self }.closed_at_top(now)
            }
            _ => self,
        }
    }

    /// Closes if the ramp is at its top.
    fn closed_at_top(self, now: Tick) -> State {
        match self.mode {
            Mode::Ramping { share, .. } if share >= 1.0 => self.close(now),
            _ => self,
        }
    }

    pub(super) fn hold(self, mode: Mode) -> State {
        State { level: 0, ..self.change(mode) }
    }
}

impl Mode {
    fn ramp(rules: &Rules, now: Tick) -> Mode {
        #[expect(clippy::cast_possible_truncation, reason = "a share, of which a few digits matter")]
        let share = rules.first_share as f32;
        Mode::Ramping { share, ok: 0, bad: 0, faults: 0, step_ends: now + rules.step, quiet: now + rules.open }
    }
}

#[cfg(test)]
mod tests;
