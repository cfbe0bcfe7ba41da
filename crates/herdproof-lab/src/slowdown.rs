//! How an origin slows down: the law behind every herd.
//!
//! An origin that answers each request in 80 ms whatever the load would survive any crowd, and no herd would hurt. Real
//! ones share something (a disk, a pool, a lock), so a request takes longer the more others there are. This is that law and
//! nothing else: arithmetic, the same for origins on sockets and for simulated ones.
//!
//! ```
//! use std::time::Duration;
//! use herdproof_lab::Slowdown;
//!
//! let law = Slowdown::alone(Duration::from_millis(80)).at(800, Duration::from_secs(5));
//! assert_eq!(law.time(1), Duration::from_millis(80));
//! assert_eq!(law.time(800), Duration::from_secs(5));
//! ```

use std::{fmt, time::Duration};

/// The time a request takes, given how many are in flight: linear through two points, and beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    alone: Duration,
    crowd: u64,
    crowded: Duration,
}

impl Slowdown {
    /// A request takes this long, however many there are, until [`at`](Slowdown::at) says otherwise.
    pub const fn alone(alone: Duration) -> Slowdown {
        Slowdown { alone, crowd: 2, crowded: alone }
    }

    /// With this many in flight (two at least), a request takes this long. An origin does not get faster in a crowd: less
    /// than the time alone counts as the time alone.
    #[must_use]
    pub const fn at(mut self, in_flight: u64, time: Duration) -> Slowdown {
        self.crowd = if in_flight < 2 { 2 } else { in_flight };
        self.crowded = time;
        self
    }

    /// How long a request takes with this many in flight, itself included.
    pub fn time(&self, in_flight: u64) -> Duration {
        let slope = self.crowded.saturating_sub(self.alone).as_nanos();
        let others = u128::from(in_flight.saturating_sub(1));
        let extra = slope.saturating_mul(others) / u128::from(self.crowd - 1);
        self.alone.saturating_add(Duration::from_nanos(u64::try_from(extra).unwrap_or(u64::MAX)))
    }
}

/// Such as `80ms alone, 5s at 800 in flight`.
impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} alone, {:?} at {} in flight", self.alone, self.time(self.crowd), self.crowd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_line_goes_through_both_points_and_beyond() {
        let law = Slowdown::alone(10 * MS).at(11, 110 * MS);
        for (in_flight, ms) in [(0, 10), (1, 10), (2, 20), (6, 60), (11, 110), (101, 1010)] {
            assert_eq!(law.time(in_flight), ms * MS, "{in_flight} in flight");
        }
    }

    #[test]
    fn senseless_laws_neither_divide_by_zero_nor_run_backwards() {
        assert_eq!(Slowdown::alone(10 * MS).at(0, 20 * MS).time(2), 20 * MS);
        assert_eq!(Slowdown::alone(10 * MS).at(5, MS).time(5), 10 * MS);
        assert_eq!(Slowdown::alone(10 * MS).time(1_000_000), 10 * MS);
        assert!(Slowdown::alone(MS).at(2, Duration::MAX).time(u64::MAX) > Duration::from_secs(1_000_000_000));
    }

    #[test]
    fn a_person_can_read_it() {
        let law = Slowdown::alone(80 * MS).at(800, Duration::from_secs(5));
        assert_eq!(law.to_string(), "80ms alone, 5s at 800 in flight");
    }
}
