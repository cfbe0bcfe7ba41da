//! When things happened, counted in equal bins: what tells a wall from a curve.

use std::time::Duration;

use herdproof::Tick;
use serde::Serialize;

/// Fewer at one instant are no spike among other traffic.
const CROWD: u64 = 10;

/// Events counted in bins of equal width, from tick zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    bin: Duration,
    counts: Vec<u64>,
}

/// What events look like over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Nothing happened.
    Empty,
    /// One event.
    One,
    /// Everything within one bin, or more than all the rest together.
    Wall,
    /// In several bins, to each more than half of what the fullest has; or most of it in few bins that stand out.
    Spikes,
    /// Spread out.
    Curve,
}

impl Shape {
    /// What one would call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Empty => "",
            Shape::One => "one call",
            Shape::Wall => "a wall",
            Shape::Spikes => "spikes",
            Shape::Curve => "a curve",
        }
    }
}

impl Timeline {
    /// An empty one. A bin is at least a nanosecond wide.
    pub fn new(bin: Duration) -> Timeline {
        Timeline { bin: bin.max(Duration::from_nanos(1)), counts: Vec::new() }
    }

    /// With so many events in each bin.
    pub fn of(bin: Duration, counts: Vec<u64>) -> Timeline {
        Timeline { counts, ..Timeline::new(bin) }
    }

    /// Counts one event.
    pub fn record(&mut self, at: Tick) {
        let bin = usize::try_from((at - Tick::ZERO).as_nanos() / self.bin.as_nanos()).unwrap_or(usize::MAX);
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
    }

    /// When the last bin that has any events is over.
    pub fn end(&self) -> Duration {
        self.bin.saturating_mul(u32::try_from(self.counts.len()).unwrap_or(u32::MAX))
    }

    /// How many bins there are up to then.
    pub fn bins(&self, end: Duration) -> usize {
        usize::try_from(end.as_nanos().div_ceil(self.bin.as_nanos())).unwrap_or(usize::MAX)
    }

    /// How many events there were in each bin, up to the last that has any.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many events there were.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The most events in one bin.
    pub fn peak(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// The bins that have any events, with how many.
    pub fn occupied(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// What it looks like: everybody at one instant, everybody at several, or spread out.
    pub fn shape(&self) -> Shape {
        let peak = self.peak();
        match self.occupied().count() {
            0 => Shape::Empty,
            1 if peak == 1 => Shape::One,
            1 => Shape::Wall,
            _ if self.stands_out() => {
                if peak * 2 > self.total() {
                    Shape::Wall
                } else {
                    Shape::Spikes
                }
            }
            _ if self.is_level() => Shape::Curve,
            _ if self.occupied().all(|(_, count)| count * 2 > peak) => Shape::Spikes,
            _ => Shape::Curve,
        }
    }

    /// Whether most events are in few bins, each with a good part of what the fullest has and none beside another: what there
    /// is between them hides no spike, and a hill is none.
    fn stands_out(&self) -> bool {
        let peak = self.peak();
        let (mut bins, mut edges, mut events) = (0, 0, 0);
        let mut beside = false;
        for count in &self.counts {
            let high = count * 4 > peak;
            edges += usize::from(high && !beside);
            bins += usize::from(high);
            events += if high { *count } else { 0 };
            beside = high;
        }
        let first = self.occupied().next().map_or(0, |(bin, _)| bin);
        peak >= CROWD && bins * 8 <= self.counts.len() - first && bins <= edges * 2 && events * 2 > self.total()
    }

    /// Whether there are many bins with events and none without between them: whatever their heights, those are not spikes.
    fn is_level(&self) -> bool {
        let first = self.occupied().next().map_or(0, |(bin, _)| bin);
        let bins = self.occupied().count();
        bins >= 8 && self.counts.len() - first == bins
    }

    /// The same events in `columns` wider bins that together cover the time up to `end`.
    pub fn columns(&self, end: Duration, columns: usize) -> Vec<u64> {
        let mut wide = vec![0; columns.max(1)];
        let last = wide.len() - 1;
        for (bin, count) in self.occupied() {
            let at = self.bin.as_nanos() * bin as u128 * wide.len() as u128;
            let column = at.checked_div(end.as_nanos()).and_then(|column| usize::try_from(column).ok());
            wide[column.unwrap_or(0).min(last)] += count;
        }
        wide
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timeline(at_ms: &[u32]) -> Timeline {
        let mut timeline = Timeline::new(MS);
        for &at in at_ms {
            timeline.record(Tick::ZERO + MS * at);
        }
        timeline
    }

    #[test]
    fn events_of_one_bin_are_one_peak() {
        let timeline = timeline(&[0, 0, 3, 3, 3]);
        assert_eq!((timeline.total(), timeline.peak()), (5, 3));
        assert_eq!(timeline.occupied().collect::<Vec<_>>(), [(0, 2), (3, 3)]);
    }

    #[test]
    fn wider_bins_lose_no_event_whatever_the_width() {
        let timeline = timeline(&[0, 1, 5, 9, 10, 300]);
        for columns in [0, 1, 7, 60, 1000] {
            for end in [Duration::ZERO, MS, MS * 10, MS * 300, MS * 310] {
                assert_eq!(timeline.columns(end, columns).iter().sum::<u64>(), 6, "{columns} columns to {end:?}");
            }
        }
        assert_eq!(timeline.columns(MS * 310, 31)[..2], [4, 1]);
    }

    #[test]
    fn the_shape_follows_from_the_counts() {
        assert_eq!(timeline(&[]).shape(), Shape::Empty);
        assert_eq!(timeline(&[7]).shape(), Shape::One);
        assert_eq!(timeline(&[7, 7]).shape(), Shape::Wall);
        assert_eq!(timeline(&[0, 0, 10, 10, 10]).shape(), Shape::Spikes);
        assert_eq!(timeline(&[0, 0, 0, 10, 11]).shape(), Shape::Curve);
        assert_eq!(timeline(&[3, 4, 5, 6, 7, 8, 9, 10]).shape(), Shape::Curve, "as many in every bin");
        assert_eq!(timeline(&[3, 4, 5, 6, 7, 8, 9, 11]).shape(), Shape::Spikes);
    }

    #[test]
    fn ordinary_traffic_between_them_does_not_make_a_curve_of_spikes() {
        let busy = |spikes: &[usize], high: u64| {
            let counts = (0..200).map(|bin| if spikes.contains(&bin) { high } else { 1 }).collect();
            Timeline::of(MS, counts).shape()
        };
        assert_eq!(busy(&[0, 20, 60, 140], 100), Shape::Spikes);
        assert_eq!(busy(&[0], 300), Shape::Wall);
        assert_eq!(busy(&[0], 100), Shape::Curve, "less than all the rest");
        assert_eq!(busy(&(0..100).collect::<Vec<_>>(), 100), Shape::Curve, "half the time is no instant");
        assert_eq!(busy(&(0..20).collect::<Vec<_>>(), 100), Shape::Curve, "a hill is no spike");
        assert_eq!(
            Timeline::of(MS, [[2, 0, 0, 0, 0, 0, 0, 0, 0], [1; 9]].concat()).shape(),
            Shape::Curve,
            "two are no crowd"
        );
    }

    #[test]
    fn an_empty_timeline_has_no_peak() {
        let empty = Timeline::new(Duration::ZERO);
        assert_eq!((empty.total(), empty.peak(), empty.columns(MS, 3)), (0, 0, vec![0; 3]));
    }
}
