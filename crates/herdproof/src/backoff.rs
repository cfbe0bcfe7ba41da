//! How long to wait before trying again, without trying again in step.
//!
//! Clients that fail together and wait the same time fail together again: backoff alone turns one wall of retries into
//! several spikes of the same height. Jitter breaks the step, and must not be lost at the cap. A delay that is drawn first
//! and clamped to the cap afterwards puts more and more clients on exactly the cap, until all of them march in step
//! again. Here the cap limits the range, then the draw is made; no draw is ever clamped.
//!
//! ```
//! use std::time::Duration;
//! use herdproof::{Backoff, Env};
//!
//! let rng = Env::system().rng("retry/orders");
//! let mut delays = Backoff::exponential(Duration::from_millis(50)).cap(Duration::from_secs(20)).delays();
//! assert!(delays.next(&rng) <= Duration::from_millis(50)); // full jitter: anywhere from zero to 50 ms
//! assert!(delays.next(&rng) <= Duration::from_millis(100));
//! ```
//!
//! | jitter | range of delay `n`, with `e = min(cap, growth(n))` | mean |
//! |---|---|---|
//! | none | exactly `e` | `e` |
//! | full (default) | `0..=e` | `e / 2` |
//! | equal | `e / 2..=e` | `3e / 4` |
//! | decorrelated | `base..=min(cap, 3 * previous)` | about half as much again as the previous, up to `(base + cap) / 2` |

mod hint;

use std::{ops::RangeInclusive, time::Duration};

pub use hint::{BadRetryAfter, RetryAfter};

use crate::env::Rng;

/// A rule for the delays between attempts; see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    growth: Growth,
    cap: Duration,
    jitter: Jitter,
    trust: Duration,
}

/// How the delay grows from one attempt to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Constant,
    Linear,
    Exponential,
}

/// How the delay is spread, so that those who failed together do not return together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// None: everybody returns at the same instant. For contrast, and for a client that is alone.
    None,
    /// Anywhere from zero to the full delay: the widest spread, and half the mean wait.
    #[default]
    Full,
    /// Half the delay for certain, the other half at random.
    Equal,
    /// From the base to three times the previous delay. Growth comes from the draws, so the kind of growth is not used.
    Decorrelated,
}

impl Backoff {
    /// The same delay every time.
    pub fn constant(delay: Duration) -> Backoff {
        Backoff::new(delay, Growth::Constant)
    }

    /// One step more every time: `step`, `2 step`, `3 step`.
    pub fn linear(step: Duration) -> Backoff {
        Backoff::new(step, Growth::Linear)
    }

    /// Twice as long every time: `base`, `2 base`, `4 base`.
    pub fn exponential(base: Duration) -> Backoff {
        Backoff::new(base, Growth::Exponential)
    }

    fn new(base: Duration, growth: Growth) -> Backoff {
        Backoff {
            base,
            growth,
            cap: Duration::from_secs(20),
            jitter: Jitter::default(),
            trust: Duration::from_secs(120),
        }
    }

    /// The longest delay to draw from; 20 s unless told otherwise.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Backoff {
        self.cap = cap;
        self
    }

    /// How delays are spread; [`Jitter::Full`] unless told otherwise.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Backoff {
        self.jitter = jitter;
        self
    }

    /// The longest wait that a server may ask for; 120 s unless told otherwise. A longer one is spread over the upper half
    /// of this, so that a server that says "tomorrow" neither stops its clients for a day nor lines them up.
    #[must_use]
    pub fn trust(mut self, longest: Duration) -> Backoff {
        self.trust = longest;
        self
    }

    /// The delays of one operation, from the first.
    pub fn delays(&self) -> Delays {
        Delays { backoff: self.clone(), attempt: 0, previous: self.base }
    }

    /// The range that the delay after attempt `attempt` (from zero) is drawn from, uniformly. `previous` is the delay
    /// before it, or the base.
    pub fn range(&self, attempt: u32, previous: Duration) -> RangeInclusive<Duration> {
        let grown = match self.growth {
            Growth::Constant => self.base,
            Growth::Linear => self.base.saturating_mul(attempt.saturating_add(1)),
            Growth::Exponential => self.base.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX)),
        };
        let top = grown.min(self.cap);
        match self.jitter {
            Jitter::None => top..=top,
            Jitter::Full => Duration::ZERO..=top,
            Jitter::Equal => top / 2..=top,
            Jitter::Decorrelated => {
                let top = previous.saturating_mul(3).max(self.base).min(self.cap);
                self.base.min(top)..=top
            }
        }
    }

    /// The range that the wait is drawn from when a server asked for one.
    ///
    /// The server's word is a lower bound, spread over the grain of its header: clients told "2 seconds" by whole-second
    /// headers return over the whole third second rather than at its start.
    pub fn range_after(&self, hint: RetryAfter) -> RangeInclusive<Duration> {
        if hint.after > self.trust {
            return self.trust / 2..=self.trust;
        }
        hint.after..=hint.after.saturating_add(hint.grain)
    }
}

/// The delays of one operation: how many there were, and the last.
#[derive(Clone, Debug)]
pub struct Delays {
    backoff: Backoff,
    attempt: u32,
    previous: Duration,
}

impl Delays {
    /// The delay before the next attempt.
    pub fn next(&mut self, rng: &Rng) -> Duration {
        let delay = draw(rng, self.backoff.range(self.attempt, self.previous));
        self.attempt = self.attempt.saturating_add(1);
        self.previous = delay;
        delay
    }

    /// The delay before the next attempt when the server has said when to come back: what it asked for, spread, and not
    /// less than this backoff's own draw.
    pub fn next_after(&mut self, hint: RetryAfter, rng: &Rng) -> Duration {
        let own = self.next(rng);
        draw(rng, self.backoff.range_after(hint)).max(own)
    }

    /// How many delays were given.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Begins anew, for an operation that has succeeded.
    pub fn reset(&mut self) {
        self.attempt = 0;
        self.previous = self.backoff.base;
    }
}

fn draw(rng: &Rng, range: RangeInclusive<Duration>) -> Duration {
    rng.between(*range.start(), *range.end())
}

#[cfg(test)]
mod tests;
