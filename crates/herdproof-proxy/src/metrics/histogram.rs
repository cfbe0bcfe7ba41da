//! How long things took.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The upper bounds of the buckets, in nanoseconds.
const BOUNDS: [u64; 21] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    7_500_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

/// Which of the bounds are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All of them.
    Fine,
    /// Those of the semantic convention of OpenTelemetry, from 5 ms to 10 s.
    Convention,
}

/// A histogram that is counted on without a lock.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// What one or several histograms hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    counts: [u64; BOUNDS.len() + 1],
    nanos: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: array::from_fn(|_| AtomicU64::new(0)), nanos: AtomicU64::new(0) }
    }
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&self, time: Duration) {
        let nanos = time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into());
        // From below: most of what is counted often is short.
        let bucket = BOUNDS.iter().position(|bound| nanos <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn sum(&self) -> Sum {
        Sum { counts: array::from_fn(|bucket| self.counts[bucket].load(Relaxed)), nanos: self.nanos.load(Relaxed) }
    }
}

impl Sum {
    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// Each bound in seconds, and how many were not above it; last how many there were at all.
    pub(super) fn buckets(&self, view: View) -> impl Iterator<Item = (Option<f64>, u64)> {
        let shown = match view {
            View::Fine => 0..=u64::MAX,
            View::Convention => 5_000_000..=10_000_000_000,
        };
        let mut below = 0;
        let bounds = BOUNDS.map(Some).into_iter().chain([None]);
        bounds.zip(self.counts).filter_map(move |(bound, count)| {
            below += count;
            match bound {
                Some(bound) => shown.contains(&bound).then(|| (Some(bound as f64 / 1e9), below)),
                None => Some((None, below)),
            }
        })
    }
}

impl std::iter::Sum for Sum {
    fn sum<I: Iterator<Item = Sum>>(sums: I) -> Sum {
        sums.fold(Sum::default(), |sum, other| Sum {
            counts: array::from_fn(|bucket| sum.counts[bucket] + other.counts[bucket]),
            nanos: sum.nanos.wrapping_add(other.nanos),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_what_is_above_all_is_counted_too() {
        let histogram = Histogram::default();
        for nanos in [0, 100_000, 100_001, 250_000, 60_000_000_000, 60_000_000_001] {
            histogram.add(Duration::from_nanos(nanos));
        }
        histogram.add(Duration::MAX);
        let buckets: Vec<_> = histogram.sum().buckets(View::Fine).collect();
        assert_eq!(buckets[..3], [(Some(0.0001), 2), (Some(0.00025), 4), (Some(0.0005), 4)]);
        assert_eq!(buckets[19..], [(Some(30.0), 4), (Some(60.0), 5), (None, 7)]);
    }

    #[test]
    fn the_convention_has_its_own_bounds_and_nothing_is_lost_between_them() {
        let histogram = Histogram::default();
        for millis in [1, 5, 6, 60, 10_000, 10_001] {
            histogram.add(Duration::from_millis(millis));
        }
        let buckets: Vec<_> = histogram.sum().buckets(View::Convention).collect();
        let bounds: Vec<_> = buckets.iter().filter_map(|(bound, _)| *bound).collect();
        let convention = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
        assert_eq!(bounds, convention);
        assert_eq!((buckets[0].1, buckets[1].1, buckets[4].1, buckets[13].1, buckets[14].1), (2, 3, 4, 5, 6));
        assert!((histogram.sum().seconds() - 20.073).abs() < 1e-9);
    }
}
