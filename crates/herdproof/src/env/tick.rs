//! A point in monotonic time that both clocks can name: nanoseconds since the `Env`'s own beginning.
//!
//! `std::time::Instant` cannot be made up, so nothing that stores one can run in virtual time.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Monotonic nanoseconds since the beginning of the [`Env`](super::Env) that gave it.
///
/// Arithmetic saturates: a deadline too far away is [`Tick::MAX`], an earlier tick minus a later one is zero.
///
/// ```
/// use std::time::Duration;
/// use herdproof::env::Tick;
///
/// let deadline = Tick::ZERO + Duration::from_millis(250);
/// assert_eq!(deadline - Tick::ZERO, Duration::from_millis(250));
/// assert_eq!(Tick::ZERO - deadline, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The beginning.
    pub const ZERO: Tick = Tick(0);
    /// Later than anything that happens; a sleep until then never ends.
    pub const MAX: Tick = Tick(u64::MAX);

    /// The tick this many nanoseconds after the beginning.
    pub const fn from_nanos(nanos: u64) -> Tick {
        Tick(nanos)
    }

    /// Nanoseconds since the beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    fn add(self, after: Duration) -> Tick {
        Tick(self.0.saturating_add(nanos(after)))
    }
}

impl Sub<Tick> for Tick {
    type Output = Duration;

    fn sub(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Whole nanoseconds of a duration; 584 years and more are all the same to a clock of 64 bits.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_clock_saturates_instead_of_wrapping_into_the_past() {
        assert_eq!(Tick::from_nanos(u64::MAX - 1) + Duration::from_secs(1), Tick::MAX);
        assert_eq!(Tick::ZERO + Duration::MAX, Tick::MAX);
    }
}
