//! When to do what everybody does: jobs, refreshes, polls, starts, and reactions to news.
//!
//! A clock is the most common synchronizer. Everybody's job runs at :00, everybody's token was issued at the deploy and
//! expires an hour later, everybody hears of the new configuration in the same millisecond. Nothing fails, so no backoff
//! helps: the crowd is in the timetable. Each type here gives one instance a time of its own. The decision is a range
//! (a pure function, to be looked at and tested); the loop around it sleeps, draws and calls.
//!
//! | type | what would happen at once | when it happens instead |
//! |---|---|---|
//! | [`Cron`] | a job at :00 on every instance | in a slot of the instance's own, the same one every time, within a bound |
//! | [`Refresher`] | tokens that expire together | anywhere in a wide window before the expiry |
//! | [`Poller`] | consumers that poll in step | jittered, slower while there is nothing to do |
//! | [`Stagger`] | instances that start together | batch by batch, apart inside a batch |
//! | [`Spread`] | reactions to a broadcast | over as long as the origin needs for all of them |
//!
//! ```
//! use std::time::Duration;
//! use herdproof::schedule::{Cron, Splay};
//!
//! let hour = Duration::from_secs(3600);
//! let report = Cron::every(hour).within(hour / 6).splay(Splay::of("web-17", "report"));
//! let slot = report.window(0);
//! assert!(*slot.start() >= Duration::ZERO);  // never before :00
//! assert!(*slot.end() <= hour / 6);          // never later than ten past
//! assert_eq!(slot, report.window(0));        // and after a restart the same
//! ```
//!
//! Loops take a future that says when to stop (`std::future::pending()` for never). It cuts a sleep short and lets work
//! that has begun finish; dropping the loop drops the work too.

mod cron;
mod poll;
mod refresh;
mod splay;
mod spread;
mod stagger;

use std::{
    future::Future,
    ops::{ControlFlow, RangeInclusive},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

pub use cron::Cron;
pub use poll::{Found, Pace, Poller};
pub use refresh::{Expired, Refresher};
pub use splay::Splay;
pub use spread::Spread;
pub use stagger::Stagger;

use crate::env::Rng;

/// Does this to its end, or until told to stop. Told before, or at the same time, it does not go on.
pub(crate) fn unless_stopped<S: Future, F: Future>(work: F, stop: Pin<&mut S>) -> UnlessStopped<'_, S, F> {
    UnlessStopped { work, stop }
}

pin_project! {
    /// No `async fn`, which would keep the work twice: as its argument, and pinned.
    pub(crate) struct UnlessStopped<'a, S, F> {
        #[pin]
        work: F,
        stop: Pin<&'a mut S>,
    }
}

impl<S: Future, F: Future> Future for UnlessStopped<'_, S, F> {
    type Output = ControlFlow<(), F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(ControlFlow::Break(()));
        }
        this.work.poll(cx).map(ControlFlow::Continue)
    }
}

/// Uniform in the range.
pub(crate) fn draw(rng: &Rng, range: &RangeInclusive<Duration>) -> Duration {
    rng.between(*range.start(), *range.end())
}

/// A share of a duration, from 0 to 1; what is not a share counts as the nearest one, and not a number as 0.
pub(crate) fn part(of: Duration, share: f64) -> Duration {
    // Through nanoseconds: `mul_f64` panics where the product of a rounded duration does not fit.
    let nanos = of.as_nanos() as f64 * share.clamp(0.0, 1.0);
    Duration::try_from_secs_f64(nanos / 1e9).map_or(of, |part| part.min(of))
}

#[cfg(test)]
mod tests;
