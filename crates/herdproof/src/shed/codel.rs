//! Whether a line is a short rush or a standing queue: `CoDel`, in the form that folly uses for servers.
//!
//! A rush empties the line again within moments; a standing queue makes everybody wait and serves nobody sooner. The length
//! of a line cannot tell them apart, nor can the mean wait. The *shortest* wait of an interval can: if even the luckiest
//! waited longer than the target, the line has not been empty for the whole interval.
//!
//! Two things differ from folly, because here the newest may be served first. What is sampled is how long the **oldest** in
//! the line has waited, whoever is served: the newest has always waited a moment only, and would end the overload that it
//! profits from. And an interval in which nobody came is not held against those who come after it.

use std::time::Duration;

use crate::env::Tick;

/// Intervals are this many targets long: 100 ms for 5 ms.
const INTERVAL: u32 = 20;
/// While overloaded, who has waited more than this many targets is refused.
const SLOUGH: u32 = 2;
/// The share of the usual service time that a wait may have, where that is more than the target.
const SHARE: u32 = 10;

/// The state of one line; every sample is a pure step. See [`Queue`](super::Queue) for the shell.
///
/// ```
/// use std::time::Duration;
/// use herdproof::{Tick, shed::Codel};
///
/// let ms = Duration::from_millis(1);
/// let mut codel = Codel::new(5 * ms);
/// for at in 0..200 {
///     codel.sample(20 * ms, Tick::ZERO + at * ms); // nobody waits less than 20 ms, for 200 ms
/// }
/// assert!(codel.is_overloaded());
/// assert!(codel.refuses(11 * ms) && !codel.refuses(9 * ms));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    /// As set; the target in force may be longer.
    floor: Duration,
    target: Duration,
    /// When the interval ends.
    until: Tick,
    /// The shortest wait of the interval.
    least: Duration,
    overloaded: bool,
    /// Whether the last sample was the first of its interval, which never refuses: one is not a standing queue.
    first: bool,
}

impl Codel {
    /// A line in which a wait of this long is fine. [`Duration::MAX`] turns it off.
    pub const fn new(target: Duration) -> Codel {
        let first = true;
        Codel { floor: target, target, until: Tick::ZERO, least: Duration::ZERO, overloaded: false, first }
    }

    /// Says how long the work usually takes: a wait of a tenth of that is fine too.
    pub fn scale(&mut self, usual: Duration) {
        self.target = self.floor.max(usual / SHARE);
    }

    /// How long the oldest in the line has waited: zero if there was no line.
    pub fn sample(&mut self, oldest: Duration, now: Tick) {
        self.first = now > self.until;
        if self.first {
            let interval = self.target.saturating_mul(INTERVAL);
            let idle = now - self.until > interval && oldest <= self.target;
            self.overloaded = self.least > self.target && !idle;
            self.until = now + interval;
            self.least = oldest;
        } else {
            self.least = self.least.min(oldest);
        }
    }

    /// Somebody was served without any wait, at some time in this interval.
    pub fn calm(&mut self) {
        self.least = Duration::ZERO;
    }

    /// Whether there was a standing queue throughout the last interval.
    pub const fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    /// Whether somebody who has waited this long should be refused rather than served.
    pub fn refuses(&self, waited: Duration) -> bool {
        self.overloaded && !self.first && waited > self.target.saturating_mul(SLOUGH)
    }

    /// The wait that is fine at present.
    pub const fn target(&self) -> Duration {
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Tick {
        Tick::ZERO + MS * ms
    }

    /// A line whose oldest has waited this long at every millisecond of a range.
    fn standing(codel: &mut Codel, wait: Duration, ms: std::ops::Range<u32>) {
        for now in ms {
            codel.sample(wait, at(now));
        }
    }

    #[test]
    fn a_rush_that_empties_within_the_interval_is_not_overload() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 80, 1..90);
        codel.sample(MS * 4, at(95)); // once short is enough
        standing(&mut codel, MS * 80, 96..150);
        assert!(!codel.is_overloaded());
        assert!(!codel.refuses(MS * 80));
    }

    #[test]
    fn a_line_that_stands_for_an_interval_is() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 6, 1..102);
        assert!(!codel.is_overloaded(), "the interval that began at 1 ms is not over at 101 ms");
        codel.sample(MS * 6, at(102));
        assert!(codel.is_overloaded());
    }

    #[test]
    fn exactly_the_target_is_fine() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 5, 1..500);
        assert!(!codel.is_overloaded());
    }

    #[test]
    fn the_first_of_an_interval_is_never_refused() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 50, 1..103);
        assert!(codel.is_overloaded() && !codel.refuses(MS * 50));
        codel.sample(MS * 50, at(103));
        assert!(codel.refuses(MS * 50) && codel.refuses(MS * 11) && !codel.refuses(MS * 10));
    }

    #[test]
    fn overload_ends_with_the_first_interval_that_had_a_short_wait() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 50, 1..150);
        codel.sample(Duration::ZERO, at(151));
        assert!(codel.is_overloaded(), "not before the interval is over");
        standing(&mut codel, MS * 50, 152..210);
        assert!(!codel.is_overloaded());
    }

    #[test]
    fn an_idle_night_is_not_held_against_the_first_of_the_morning() {
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 50, 1..150);
        codel.sample(Duration::ZERO, at(8 * 3_600_000));
        assert!(!codel.is_overloaded());
        // But workers that were stuck for as long have kept the line waiting all the time.
        let mut codel = Codel::new(MS * 5);
        standing(&mut codel, MS * 50, 1..150);
        codel.sample(MS * 3_600_000, at(8 * 3_600_000));
        assert!(codel.is_overloaded());
    }

    #[test]
    fn long_work_may_wait_longer() {
        let mut codel = Codel::new(MS * 5);
        codel.scale(MS * 20);
        assert_eq!(codel.target(), MS * 5);
        codel.scale(MS * 400);
        assert_eq!(codel.target(), MS * 40);
        standing(&mut codel, MS * 41, 1..802);
        assert!(!codel.is_overloaded(), "the interval is 20 targets");
        standing(&mut codel, MS * 41, 802..804);
        assert!(codel.is_overloaded() && codel.refuses(MS * 81) && !codel.refuses(MS * 80));
        codel.scale(MS);
        assert_eq!(codel.target(), MS * 5, "and is no worse off when the work is short again");
    }

    #[test]
    fn a_target_without_end_turns_it_off() {
        let mut codel = Codel::new(Duration::MAX);
        standing(&mut codel, Duration::MAX, 1..10);
        codel.sample(Duration::MAX, Tick::MAX);
        codel.sample(Duration::MAX, Tick::MAX);
        assert!(!codel.is_overloaded() && !codel.refuses(Duration::MAX));
    }
}
