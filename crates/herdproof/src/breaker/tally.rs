//! What a closed breaker counts, and when that is enough to open.

use std::sync::atomic::Ordering::Relaxed;

use super::state::{Result as Outcome, Rules};
use crate::{
    env::Tick,
    sync::AtomicU32,
    window::{ALL, BOTH, Scale, Window},
};

/// The counts of a breaker while it is closed.
pub(super) struct Tally<const SLOTS: usize> {
    /// Faults in a row. Written on a fault, and on the first success after one.
    faults: AtomicU32,
    /// Calls, and the bad ones among them.
    calls: Window<SLOTS>,
    /// Slow calls.
    slow: Window<SLOTS>,
}

impl<const SLOTS: usize> Tally<SLOTS> {
    pub(super) fn new() -> Tally<SLOTS> {
        Tally { faults: AtomicU32::new(0), calls: Window::new(), slow: Window::new() }
    }

    /// Counts a call; true if the breaker has to open.
    #[inline]
    pub(super) fn count(&self, rules: &Rules, scale: Scale<SLOTS>, outcome: Outcome, slow: bool, now: Tick) -> bool {
        if outcome != Outcome::Ok || slow {
            return self.count_bad(rules, scale, outcome, slow, now);
        }
        if self.faults.load(Relaxed) != 0 {
            self.faults.store(0, Relaxed);
        }
        self.calls.add(scale, now, ALL);
        false
    }

    #[inline(never)]
    fn count_bad(&self, rules: &Rules, scale: Scale<SLOTS>, outcome: Outcome, slow: bool, now: Tick) -> bool {
        let faults = match outcome {
            Outcome::Fault => self.faults.fetch_add(1, Relaxed).saturating_add(1),
            Outcome::Weak => 0,
            Outcome::Ok => {
                self.faults.store(0, Relaxed);
                0
            }
        };
        self.calls.add(scale, now, if outcome == Outcome::Ok { ALL } else { BOTH });
        if slow {
            self.slow.add(scale, now, ALL);
        }
        let calls = self.calls.sum(scale, now);
        faults >= rules.faults
            || rules.is_failing(calls)
            || (slow && rules.is_crawling(calls.all, self.slow.sum(scale, now).all))
    }

    /// Whether the last call that says anything was a fault.
    pub(super) fn has_row(&self) -> bool {
        self.faults.load(Relaxed) > 0
    }

    pub(super) fn clear(&self) {
        self.faults.store(0, Relaxed);
        self.calls.clear();
        self.slow.clear();
    }
}
