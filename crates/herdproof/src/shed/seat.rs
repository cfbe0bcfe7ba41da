//! A seat, and what is learned from how its work went.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::{Inner, Queue};
use crate::{
    env::Tick,
    gate::{Permit, Place, Sizer, Span, Verdict},
};

/// The median is looked up once in so many services.
const EVERY: u32 = 32;

/// The right to be inside; see [`Queue`].
#[derive(Debug)]
pub struct Seat {
    /// There until it is given back.
    pub(super) queue: Option<Queue>,
    /// When it was taken; [`Tick::MAX`] once it is known how the work went.
    pub(super) from: Tick,
    /// Whose it is, in fair mode.
    pub(super) flow: u32,
}

impl Seat {
    /// Says how the work went while the seat is kept: an answer's head tells how the origin does, and how long a slow reader
    /// takes for its body does not. Only the first time counts; what the seat is settled with later then says how long it was
    /// taken, and nothing else.
    pub fn learn(&mut self, verdict: &Verdict, span: Span) {
        if let (Some(queue), true) = (&self.queue, self.from < Tick::MAX) {
            self.from = Tick::MAX;
            queue.0.over(verdict, span);
        }
    }
}

/// Dropped before the work or during it, it takes nothing.
impl Place for Seat {
    type Permit = Self;

    #[inline]
    fn commit(self) -> Self {
        self
    }
}

impl Permit for Seat {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        self.learn(verdict, span);
        if let Some(queue) = self.queue.take() {
            if matches!(verdict, Verdict::Ok | Verdict::Final) {
                queue.0.occupied(span.took());
            }
            queue.0.release(self.flow, || span.to);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if self.from < Tick::MAX && queue.0.sizer.is_some() {
            queue.0.cancelled(self.from, queue.0.env.now());
        }
        queue.0.release(self.flow, || queue.0.env.now());
    }
}

impl Inner {
    /// How the work of a seat went is known.
    fn over(&self, verdict: &Verdict, span: Span) {
        if matches!(verdict, Verdict::Ok | Verdict::Final) {
            self.learn(span.took());
        }
        if let Some(sizer) = &self.sizer {
            sizer.over(verdict, span, self.inside());
            self.follow(&**sizer, span.to);
        }
    }

    fn cancelled(&self, from: Tick, now: Tick) {
        if let Some(sizer) = &self.sizer {
            sizer.cancelled(from);
            self.follow(&**sizer, now);
        }
    }

    fn follow(&self, sizer: &dyn Sizer, now: Tick) {
        let seats = sizer.limit().clamp(1, self.most_seats);
        if seats != self.seats.load(Relaxed) {
            self.set_seats(seats, now);
        }
    }

    /// A seat was taken for so long.
    pub(super) fn occupied(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.mean.load(Relaxed);
        // The first is all that is known; after that each is a sixty-fourth of it.
        let next = if mean == 0 { nanos } else { mean - mean / 64 + nanos / 64 };
        self.mean.store(next.max(1), Relaxed);
    }

    /// Some work was done.
    pub(super) fn learn(&self, took: Duration) {
        self.times.record(took);
        if self.times.len() == 1 || self.times.len().is_multiple_of(EVERY) {
            let median = self.times.quantile(0.5).unwrap_or_default();
            self.median.store(u64::try_from(median.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}
