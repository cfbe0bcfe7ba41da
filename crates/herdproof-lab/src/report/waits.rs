//! How long callers waited: not one number, but the few that tell most from the worst.

use std::time::Duration;

use herdproof::histogram::Histogram;
use serde::{Serialize, Serializer};

use super::millis;

/// Which of them are kept: what so many of a thousand callers did not exceed.
const KEPT: [(&str, usize); 10] = [
    ("min", 0),
    ("p10", 100),
    ("p25", 250),
    ("p50", 500),
    ("p75", 750),
    ("p90", 900),
    ("p95", 950),
    ("p99", 990),
    ("p99.9", 999),
    ("max", 1_000),
];

/// The waits of many callers, as quantiles from the shortest to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits([Duration; KEPT.len()]);

impl Waits {
    /// Of these, in any order; none of nobody.
    pub fn of(mut waits: Vec<Duration>) -> Option<Waits> {
        waits.sort_unstable();
        let rank = |thousandths: usize| (waits.len() * thousandths).div_ceil(1_000).max(1);
        let kept = KEPT.map(|(_, thousandths)| waits.get(rank(thousandths) - 1).copied());
        kept[0].map(|_| Waits(kept.map(Option::unwrap_or_default)))
    }

    /// Of more than one would keep: within an eighth, and none longer than the longest, which is known.
    pub(crate) fn counted(counts: &Histogram, longest: Duration) -> Option<Waits> {
        let kept = KEPT.map(|(_, thousandths)| counts.quantile(thousandths as f64 / 1e3));
        kept[0].map(|_| Waits(kept.map(|wait| wait.unwrap_or_default().min(longest))))
    }

    /// Each with the share of the callers that did not wait longer.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static str, f64, Duration)> {
        KEPT.iter().zip(self.0).map(|((name, thousandths), wait)| (*name, *thousandths as f64 / 1e3, wait))
    }
}

impl Serialize for Waits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.quantiles().map(|(name, _, wait)| (name, millis(wait))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn kept(waits: Waits) -> Vec<u128> {
        waits.quantiles().map(|(_, _, wait)| wait.as_millis()).collect()
    }

    #[test]
    fn one_in_a_thousand_is_told_from_the_worst() {
        let waits = Waits::of((1..=2_000).rev().map(|wait| MS * wait).collect()).unwrap();
        assert_eq!(kept(waits), [1, 200, 500, 1_000, 1_500, 1_800, 1_900, 1_980, 1_998, 2_000]);
        assert_eq!(kept(Waits::of(vec![MS * 7]).unwrap()), [7; 10]);
        assert_eq!(Waits::of(vec![]), None);
    }

    #[test]
    fn counted_waits_are_near_the_truth_and_never_beyond_the_longest() {
        let histogram = Histogram::new(u32::MAX);
        assert_eq!(Waits::counted(&histogram, MS), None);
        (1..=1_000).for_each(|wait| histogram.record(MS * wait));
        let counted = Waits::counted(&histogram, MS * 1_000).unwrap();
        let exact = Waits::of((1..=1_000).map(|wait| MS * wait).collect()).unwrap();
        for ((name, _, counted), (_, _, exact)) in counted.quantiles().zip(exact.quantiles()) {
            assert!(exact <= counted && counted <= exact + exact / 8 && counted <= MS * 1_000, "{name}: {counted:?}");
        }
    }
}
