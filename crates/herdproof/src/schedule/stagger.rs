//! Starting in batches.

use std::{ops::RangeInclusive, time::Duration};

use super::{draw, part};
use crate::env::{Env, Rng, Tick};

/// When each of many instances may start: so many at a time, with a gap in which a batch gets warm.
///
/// Fifty new instances that open their connections and fill their caches at once are a herd that autoscaling has made by
/// itself. In batches of five the worst of it is a tenth.
///
/// ```
/// use std::time::Duration;
/// use herdproof::schedule::Stagger;
///
/// let stagger = Stagger::new(5, Duration::from_secs(10));
/// assert_eq!(stagger.window(4), Duration::ZERO..=Duration::from_secs(5));
/// assert_eq!(stagger.window(5), Duration::from_secs(10)..=Duration::from_secs(15));
/// assert_eq!(stagger.total(50), Duration::from_secs(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Stagger {
    batch: u32,
    gap: Duration,
    jitter: f64,
}

impl Stagger {
    /// So many at a time (one at least), and from one batch to the next this long.
    pub fn new(batch: u32, gap: Duration) -> Stagger {
        Stagger { batch: batch.max(1), gap, jitter: 0.5 }
    }

    /// The share of the gap over which the members of a batch are spread; 0.5 unless told otherwise. What is left of it is
    /// the time that the last of them has to get warm before the next batch comes.
    pub fn jitter(mut self, share: f64) -> Stagger {
        self.jitter = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self
    }

    /// When instance `i`, from zero, may start: what its start is drawn from.
    pub fn window(&self, i: u32) -> RangeInclusive<Duration> {
        let from = self.gap.saturating_mul(i / self.batch);
        from..=from.saturating_add(part(self.gap, self.jitter))
    }

    /// When instance `i` starts.
    pub fn start(&self, i: u32, rng: &Rng) -> Duration {
        draw(rng, &self.window(i))
    }

    /// When so many instances have started and the last batch's gap is over.
    pub fn total(&self, instances: u32) -> Duration {
        self.gap.saturating_mul(instances.div_ceil(self.batch))
    }

    /// Waits until instance `i` may start, and gives the tick of it.
    pub async fn wait(&self, env: &Env, i: u32) -> Tick {
        let delay = self.start(i, &env.rng("schedule/stagger"));
        env.sleep(delay).await
    }
}
