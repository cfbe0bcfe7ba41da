//! The tokens that failures take and successes return, in one word.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens from zero to `most`; open, which is to say that nothing extra goes, at half of them or fewer.
#[derive(Debug)]
pub(super) struct Circuit {
    /// The bits of an `f64`. Nothing else is published with it, so it is always `Relaxed`.
    tokens: AtomicU64,
    most: f64,
    success: f64,
}

impl Circuit {
    pub(super) fn new(most: f64, success: f64) -> Circuit {
        Circuit { tokens: AtomicU64::new(most.to_bits()), most, success }
    }

    /// While all is well this reads one word and writes none, so that the cache line stays with every core.
    #[inline]
    pub(super) fn success(&self) {
        if self.tokens() < self.most {
            self.change(self.success);
        }
    }

    pub(super) fn failure(&self) {
        self.change(-1.0);
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.tokens() <= self.most / 2.0
    }

    #[inline]
    fn tokens(&self) -> f64 {
        f64::from_bits(self.tokens.load(Ordering::Relaxed))
    }

    #[cold]
    fn change(&self, by: f64) {
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
            Some((f64::from_bits(bits) + by).clamp(0.0, self.most).to_bits())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_failures_that_fill_it_open_it_and_one_success_more_closes_it() {
        let circuit = Circuit::new(10.0, 0.1);
        for failure in 1..=5 {
            assert!(!circuit.is_open(), "before failure {failure}");
            circuit.failure();
        }
        assert!(circuit.is_open());
        circuit.success();
        assert!(!circuit.is_open());
    }

    #[test]
    fn neither_a_long_outage_nor_a_long_peace_counts_without_end() {
        let circuit = Circuit::new(10.0, 0.1);
        for _ in 0..1000 {
            circuit.failure();
        }
        for _ in 0..51 {
            assert!(circuit.is_open());
            circuit.success();
        }
        assert!(!circuit.is_open(), "51 successes return 5.1 tokens");
        for _ in 0..1000 {
            circuit.success();
        }
        for _ in 0..5 {
            circuit.failure();
        }
        assert!(circuit.is_open());
    }

    #[test]
    fn it_opens_where_more_than_one_in_eleven_fails_and_not_below() {
        let ends_open = |failures: u32, of: u32| {
            let circuit = Circuit::new(10.0, 0.1);
            for call in 0..of * 1000 {
                if call % of < failures { circuit.failure() } else { circuit.success() }
            }
            circuit.is_open()
        };
        assert!(ends_open(1, 10));
        assert!(!ends_open(1, 12));
    }
}
