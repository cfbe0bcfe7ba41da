//! Asking again and again, but not in step, and not for nothing.

use std::{future::Future, ops::RangeInclusive, pin::pin, time::Duration};

use super::{draw, unless_stopped};
use crate::env::Env;

/// Polls a queue or anything else that has to be asked.
///
/// Consumers that start together and sleep the same time poll together for ever: `P` of them with a period of `T` are `P`
/// calls in one instant and none until the next, instead of `P / T` a second. And most of those calls find nothing. So
/// every pause is drawn, from the first on, and a poller that finds nothing takes longer and longer pauses, up to a bound.
///
/// | what the last poll found | pause is drawn from |
/// |---|---|
/// | (before the first poll) | `0 ..= period` |
/// | [`Found::Full`]: there is more | none |
/// | [`Found::Some`] | `period / 2 ..= 3 period / 2` |
/// | [`Found::Nothing`], `n` times in a row | the same of `2^n period`, whose upper end is at most `slowest` |
#[derive(Clone, Debug)]
#[must_use]
pub struct Poller {
    period: Duration,
    slowest: Duration,
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As much as could be taken; there may be more.
    Full,
    /// Something.
    Some,
    /// Nothing. A poll that failed is best called this too: who cannot answer is not helped by being asked more often.
    Nothing,
}

/// How long a poller's pauses are at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many polls in a row found nothing.
    nothing: u32,
}

impl Poller {
    /// Polls once in a period (a millisecond at least) while there is something to do, and once in ten while there is not.
    pub fn every(period: Duration) -> Poller {
        let period = period.max(Duration::from_millis(1));
        Poller { period, slowest: period.saturating_mul(10) }
    }

    /// The longest pause; ten periods unless told otherwise, and not less than one and a half.
    pub fn slowest(mut self, pause: Duration) -> Poller {
        self.slowest = pause;
        self
    }

    /// What the pause before the first poll is drawn from.
    pub fn first(&self) -> RangeInclusive<Duration> {
        Duration::ZERO..=self.period
    }

    /// What the pause after this poll is drawn from, and the pace from then on.
    pub fn pause(&self, pace: Pace, found: Found) -> (RangeInclusive<Duration>, Pace) {
        match found {
            Found::Full => (Duration::ZERO..=Duration::ZERO, Pace::default()),
            Found::Some => (self.around(self.period), Pace::default()),
            Found::Nothing => {
                let nothing = pace.nothing.saturating_add(1);
                let grown = self.period.saturating_mul(1u32.checked_shl(nothing).unwrap_or(u32::MAX));
                (self.around(grown), Pace { nothing })
            }
        }
    }

    /// Half of it more or less. The bound limits the range, not the draw, so that nobody is pinned to it.
    fn around(&self, mean: Duration) -> RangeInclusive<Duration> {
        let least = self.period.saturating_add(self.period / 2);
        let top = mean.saturating_add(mean / 2).min(self.slowest.max(least));
        top / 3..=top
    }

    /// Polls until `stop` is done. A poll that has begun is finished, a pause is cut short.
    pub async fn run<S, F>(&self, env: &Env, stop: S, mut poll: impl FnMut() -> F)
    where
        S: Future,
        F: Future<Output = Found>,
    {
        let rng = env.rng("schedule/poll");
        let mut stop = pin!(stop);
        let mut pace = Pace::default();
        let mut range = self.first();
        while unless_stopped(env.sleep(draw(&rng, &range)), stop.as_mut()).await.is_continue() {
            (range, pace) = self.pause(pace, poll().await);
        }
    }
}
