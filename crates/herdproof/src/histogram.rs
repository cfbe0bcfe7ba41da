//! How long things take, as a histogram that forgets.
//!
//! A hedge waits for the 95th percentile, a queue drops what cannot be served in the median time, a limit compares medians.
//! Each needs a quantile of what was seen lately, on a hot path, from many threads, in little memory. So durations are
//! counted in buckets that are an eighth of an octave wide, and when enough were counted all counts are halved: what was
//! long ago weighs less and less, without a clock.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Buckets to an octave; a quantile is off by an eighth at most, on the long side.
const STEPS: u32 = 8;
/// Durations below this many nanoseconds share one bucket: a microsecond.
const SHORTEST: u32 = 10;
/// Octaves above the shortest: up to two hours.
const OCTAVES: u32 = 33;
const BUCKETS: usize = (OCTAVES * STEPS) as usize;

/// Durations seen lately; see the [module](self). A kilobyte.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU32; BUCKETS],
    total: AtomicU32,
    memory: u32,
}

impl Histogram {
    /// An empty one, which halves its counts whenever they come to this many.
    pub fn new(memory: u32) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|_| AtomicU32::new(0)),
            total: AtomicU32::new(0),
            memory: memory.max(2),
        }
    }

    /// Counts one.
    #[inline]
    pub fn record(&self, time: Duration) {
        add_one(&self.counts[bucket(time)]);
        if add_one(&self.total) >= self.memory {
            self.fade();
        }
    }

    /// How many count at present.
    pub fn len(&self) -> u32 {
        self.total.load(Ordering::Relaxed)
    }

    /// Whether nothing was counted yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The time that this share of them did not exceed, from 0 to 1; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let counts = || self.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed)));
        let total: u64 = counts().sum();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u64")]
        let wanted = ((total as f64 * share.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let mut last = None;
        for (bucket, count) in counts().enumerate().filter(|(_, count)| *count > 0) {
            seen += count;
            last = Some(bucket);
            if seen >= wanted {
                break;
            }
        }
        // If counts are halved meanwhile, so many are not there any more: then it is the longest.
        last.map(top)
    }

    /// Halves what was counted. Counts that come in meanwhile may be lost; they are few.
    fn fade(&self) {
        let mut left = 0;
        for count in &self.counts {
            let half = count.load(Ordering::Relaxed) / 2;
            count.store(half, Ordering::Relaxed);
            left += half;
        }
        self.total.store(left, Ordering::Relaxed);
    }
}

/// Adds one, or less where two threads do so at the same moment: a histogram is a sample anyway, and an exact count costs more than
/// all the rest of [`record`](Histogram::record) (`bench toolbox`, `shield`).
#[inline]
fn add_one(count: &AtomicU32) -> u32 {
    let next = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(next, Ordering::Relaxed);
    next
}

/// The bucket of a time: its octave, and its next three bits.
fn bucket(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let index = match nanos.checked_ilog2() {
        Some(log) if log >= SHORTEST => {
            let step = (nanos >> (log - 3)) & 7;
            u64::from((log - SHORTEST + 1) * STEPS) + step
        }
        _ => 0,
    };
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The longest time that falls into a bucket.
fn top(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    let (octave, step) = (bucket / u64::from(STEPS), bucket % u64::from(STEPS));
    let next = match octave {
        0 => 1 << SHORTEST,
        octave => (8 + step + 1) << (octave - 1 + u64::from(SHORTEST) - 3),
    };
    Duration::from_nanos(next - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_never_below_the_truth_and_at_most_an_eighth_above() {
        for nanos in (0..50).map(|power| 1u64 << power).flat_map(|base| [base, base + base / 3, base + base / 2]) {
            let time = Duration::from_nanos(nanos);
            let histogram = Histogram::new(100);
            histogram.record(time);
            let told = histogram.quantile(0.5).unwrap();
            let longest = top(BUCKETS - 1);
            assert!(told >= time.min(longest), "{time:?} was told as {told:?}");
            assert!(
                told <= (time + time / 8).max(Duration::from_nanos(1 << SHORTEST)),
                "{time:?} was told as {told:?}"
            );
        }
    }

    #[test]
    fn quantiles_are_those_of_the_crowd() {
        let histogram = Histogram::new(10_000);
        for ms in 1..=1000 {
            histogram.record(Duration::from_millis(ms));
        }
        for (share, ms) in [(0.0, 1.0), (0.5, 500.0), (0.95, 950.0), (1.0, 1000.0)] {
            let told = histogram.quantile(share).unwrap().as_secs_f64() * 1e3;
            assert!((ms..=ms * 1.126).contains(&told), "{share}: {told} for {ms}");
        }
        assert_eq!(histogram.len(), 1000);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let histogram = Histogram::new(128);
        for _ in 0..1000 {
            histogram.record(Duration::from_secs(10));
        }
        for _ in 0..1000 {
            histogram.record(Duration::from_millis(1));
        }
        assert!(histogram.quantile(0.99).unwrap() < Duration::from_millis(2));
        assert!(histogram.len() <= 128);
    }

    #[test]
    fn an_empty_one_knows_nothing() {
        let histogram = Histogram::new(0);
        assert!(histogram.is_empty());
        assert_eq!(histogram.quantile(0.5), None);
    }
}
