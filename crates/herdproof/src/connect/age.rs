//! Connections that end one by one.

use std::{ops::RangeInclusive, time::Duration};

use crate::{
    env::Rng,
    schedule::{draw, part},
};

/// How long connections live, each a little longer or shorter than the others.
///
/// A pool that opens twenty connections at its start and closes each after exactly half an hour opens twenty connections
/// every half hour, and so does every other instance of the deploy. A tenth either way, as is usual, only blurs that: after
/// ten rounds the fleet is still half in step. So what was opened in a crowd (at the start, after an outage) lives for
/// anything from a tenth of the age to all of it, and is spread evenly from the first round on.
///
/// ```
/// use std::time::Duration;
/// use herdproof::connect::MaxAge;
///
/// let minute = Duration::from_secs(60);
/// let age = MaxAge::new(minute * 30).drain(minute);
/// assert_eq!(age.life(false), minute * 27..=minute * 33);
/// assert_eq!(age.life(true), minute * 3..=minute * 33);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct MaxAge {
    max: Duration,
    drain: Duration,
    spread: f64,
}

/// What one connection is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How long after it was made nothing new is sent over it.
    pub life: Duration,
    /// How long after that it is closed, even if something is still under way.
    pub drain: Duration,
}

impl MaxAge {
    /// About this long, and ten seconds to drain.
    pub fn new(max: Duration) -> MaxAge {
        MaxAge { max, drain: Duration::from_secs(10), spread: 0.1 }
    }

    /// How long what is under way has, about, when a connection's life is over; ten seconds unless told otherwise.
    pub fn drain(mut self, drain: Duration) -> MaxAge {
        self.drain = drain;
        self
    }

    /// How much longer or shorter, as a share; 0.1 unless told otherwise, and one half at most.
    pub fn spread(mut self, share: f64) -> MaxAge {
        self.spread = if share.is_nan() { 0.0 } else { share.clamp(0.0, 0.5) };
        self
    }

    /// What a connection's life is drawn from. `crowded` says that it was made when many others were: the range is then as
    /// wide as the age itself.
    pub fn life(&self, crowded: bool) -> RangeInclusive<Duration> {
        let around = self.around(self.max);
        if crowded { around.end().saturating_sub(self.max)..=*around.end() } else { around }
    }

    /// What the time to drain is drawn from: those whose lives end together do not all get cut off together.
    pub fn draining(&self) -> RangeInclusive<Duration> {
        self.around(self.drain)
    }

    /// Draws both.
    pub fn lifetime(&self, crowded: bool, rng: &Rng) -> Lifetime {
        Lifetime { life: draw(rng, &self.life(crowded)), drain: draw(rng, &self.draining()) }
    }

    fn around(&self, mean: Duration) -> RangeInclusive<Duration> {
        let some = part(mean, self.spread);
        mean.saturating_sub(some)..=mean.saturating_add(some)
    }
}
