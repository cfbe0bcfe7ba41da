//! Reacting to what everybody hears of at once.

use std::{ops::RangeInclusive, time::Duration};

use super::{Splay, draw};
use crate::env::{Env, Rng, Tick};

/// A delay before reacting to a broadcast, a watch, a new leader: uniform over a window, which is the best spread there is.
///
/// `N` clients spread over `D` seconds come at `N / D` a second, so an origin that can serve `H` of them a second needs
/// `D >= N / H`. A smaller window makes a queue, a larger one only makes news late.
///
/// Wait first, then read the newest version: however many changes there were meanwhile, one read is enough.
///
/// ```
/// use std::time::Duration;
/// use herdproof::{Env, schedule::Spread};
///
/// let spread = Spread::of_crowd(200_000, 4_000.0); // clients, and how many of them a second the origin can serve
/// assert_eq!(*spread.range().end(), Duration::from_secs(50));
/// assert!(spread.delay(&Env::system().rng("flags/reload")) <= Duration::from_secs(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread(Duration);

impl Spread {
    /// Over this long.
    pub fn over(window: Duration) -> Spread {
        Spread(window)
    }

    /// Over as long as an origin that serves `per_second` needs for a crowd of this size. A rate that is none (zero, less,
    /// not a number) counts as one a second.
    pub fn of_crowd(size: u64, per_second: f64) -> Spread {
        let rate = if per_second > 0.0 { per_second } else { 1.0 };
        Spread(Duration::try_from_secs_f64(size as f64 / rate).unwrap_or(Duration::MAX))
    }

    /// What delays are drawn from.
    pub fn range(&self) -> RangeInclusive<Duration> {
        Duration::ZERO..=self.0
    }

    /// A delay, drawn anew every time.
    pub fn delay(&self, rng: &Rng) -> Duration {
        draw(rng, &self.range())
    }

    /// The delay of an instance that is always the same: those who learn late always learn late, and nobody is unlucky
    /// twice in a row by chance.
    pub fn delay_of(&self, splay: Splay) -> Duration {
        splay.offset(self.0)
    }

    /// Waits for a drawn delay, and gives the tick it ended at.
    pub async fn wait(&self, env: &Env, rng: &Rng) -> Tick {
        env.sleep(self.delay(rng)).await
    }
}
