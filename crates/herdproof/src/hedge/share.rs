//! The share of attempts that failed lately.

use std::sync::atomic::{AtomicU64, Ordering};

/// Two counts in one word, halved when they come to so many: what was long ago weighs less and less.
pub(super) struct Share {
    /// All in the upper half, the failed in the lower.
    counts: AtomicU64,
    memory: u64,
}

const ONE: u64 = 1 << 32;
const LOWER: u64 = ONE - 1;

impl Share {
    pub(super) fn new(memory: u32) -> Share {
        Share { counts: AtomicU64::new(0), memory: u64::from(memory) }
    }

    #[inline]
    pub(super) fn add(&self, failed: bool) {
        let counts = self.counts.fetch_add(ONE + u64::from(failed), Ordering::Relaxed) + ONE + u64::from(failed);
        if counts >> 32 >= self.memory {
            let halved = (counts >> 33 << 32) | ((counts & LOWER) >> 1);
            // Whoever was quicker has halved it, or has counted one more and will.
            let _ = self.counts.compare_exchange(counts, halved, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Zero if there were none.
    pub(super) fn get(&self) -> f64 {
        let counts = self.counts.load(Ordering::Relaxed);
        let (all, failed) = (counts >> 32, counts & LOWER);
        if all == 0 { 0.0 } else { failed as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_ago_is_forgotten_and_nothing_spills() {
        let share = Share::new(64);
        assert!(share.get().abs() < f64::EPSILON);
        for _ in 0..10_000 {
            share.add(true);
        }
        assert!((share.get() - 1.0).abs() < f64::EPSILON);
        for _ in 0..500 {
            share.add(false);
        }
        assert!(share.get() < 0.01, "{}", share.get());
    }
}
