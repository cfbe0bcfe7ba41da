//! When to tell those who are refused to come back.
//!
//! Were everybody told the same instant, all but one would be refused again then. So each is told a slot of its own, as if
//! those before had reserved theirs; but nothing is reserved, so whoever does not come back costs nothing. When that gets too
//! far ahead the time is drawn.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    env::{Rng, Tick},
    striped::Padded,
};

/// What a refusal tells is spread over this much, beyond the instant at which the next could be let in.
pub(super) const SPREAD: u64 = 30_000_000_000;

/// What a refused caller is told, and what the next one is told follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) told: u64,
    pub(super) promised: u64,
}

/// What to tell the next caller, who could be let in at this instant at the earliest and takes that much time from those
/// after it, given what was promised to those before.
#[inline]
pub(super) fn promise(at: u64, takes: u64, promised: u64, draw: impl FnOnce(u64) -> u64) -> Promise {
    let told = promised.max(at);
    if told - at > SPREAD {
        return Promise { told: at.saturating_add(SPREAD / 2 + draw(SPREAD / 2)), promised };
    }
    Promise { told, promised: told.saturating_add(takes) }
}

/// What those who were refused were told, in one word.
#[derive(Debug)]
pub(super) struct Promises {
    /// Whoever draws counts a draw, which those who do not need not wait for.
    rng: Padded<Rng>,
    promised: Padded<AtomicU64>,
}

impl Promises {
    pub(super) fn new(rng: Rng) -> Promises {
        Promises { rng: Padded(rng), promised: Padded(AtomicU64::new(0)) }
    }

    /// How long to stay away, if room comes free this often.
    pub(super) fn next(&self, now: Tick, interval: u64) -> Duration {
        let (now, interval) = (now.as_nanos(), interval.max(1));
        Duration::from_nanos(self.at(now.saturating_add(interval), interval).saturating_sub(now))
    }

    /// The instant to tell, which nobody else is told.
    #[inline]
    pub(super) fn at(&self, at: u64, takes: u64) -> u64 {
        let mut promised = self.promised.0.load(Relaxed);
        loop {
            let promise = promise(at, takes, promised, |below| self.rng.0.below(below));
            // A time that was drawn is promised to nobody else.
            if promise.promised == promised {
                return promise.told;
            }
            match self.promised.0.compare_exchange_weak(promised, promise.promised, Relaxed, Relaxed) {
                Ok(_) => return promise.told,
                Err(other) => promised = other,
            }
        }
    }
}
