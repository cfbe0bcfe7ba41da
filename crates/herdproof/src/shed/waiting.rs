//! One caller's place in the line.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{Asked, Inner, Queue, slots::Stage};
use crate::{
    env::{Sleep, Tick},
    event::Event,
    gate::{Ask, Why},
};

/// Waits for a seat or a no, and gives when it came. Dropping it leaves the line; if a seat was kept for it, the next in
/// line gets that.
pub(super) struct Waiting<'a> {
    queue: &'a Inner,
    /// `None` once the answer was read.
    slot: Option<u32>,
    since: Tick,
    deadline: Option<Tick>,
    /// When its patience is over, if that ends.
    patience: Option<Tick>,
    /// Until waiting on would be of no use, if there is a deadline or an end of patience.
    timer: Option<Sleep>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(queue: &'a Queue, slot: u32, ask: &Ask) -> Waiting<'a> {
        let queue = &*queue.0;
        let patience = (queue.patience < Duration::MAX).then(|| ask.at + queue.patience);
        Waiting { queue, slot: Some(slot), since: ask.at, deadline: ask.deadline, patience, timer: None }
    }

    /// Until when to wait, as things are, and why not longer.
    fn end(&self) -> Option<(Tick, Why)> {
        let latest = self.deadline.map(|deadline| (self.queue.latest(deadline), Why::Deadline));
        let patience = self.patience.map(|patience| (patience, Why::Shed));
        latest.into_iter().chain(patience).min_by_key(|end| end.0)
    }

    fn watch(&mut self, slot: u32, waker: &Waker) -> Poll<(Tick, Asked)> {
        let (stage, old) = match &self.queue.fair {
            Some(flows) => flows.lock().watch(slot, waker),
            None => self.queue.state.lock().line.watch(slot, waker),
        };
        drop(old);
        if stage == Stage::Waiting {
            return Poll::Pending;
        }
        let (stage, flow) = self.leave(slot);
        Poll::Ready(match stage {
            Stage::Seated(at) => (at, Asked::Seated(flow)),
            Stage::Refused(why) => (self.queue.env.now(), Asked::Refused(why)),
            Stage::Waiting => return Poll::Pending,
        })
    }

    /// Gives the slot back. Whoever holds it owes the seat that may have been kept, to this flow.
    fn leave(&mut self, slot: u32) -> (Stage, u32) {
        self.slot = None;
        let (stage, flow, depth, waker) = if let Some(flows) = &self.queue.fair {
            let mut flows = flows.lock();
            let (stage, flow, waker) = flows.leave(slot);
            (stage, flow, flows.len(), waker)
        } else {
            let mut state = self.queue.state.lock();
            let (stage, waker) = state.line.leave(slot);
            self.queue.unmark(&state);
            (stage, 0, state.line.len(), waker)
        };
        drop(waker);
        if stage == Stage::Waiting {
            self.queue.env.tell(&Event::QueueDepth(depth.into()));
        }
        (stage, flow)
    }

    /// To whoever counts, waiting in vain is as bad as being refused.
    fn gave_up(&self, now: Tick) {
        if let Some(cut) = &self.queue.cut {
            cut.waited(now - self.since, true);
        }
    }
}

impl Future for Waiting<'_> {
    type Output = (Tick, Asked);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Tick, Asked)> {
        let this = &mut *self;
        let Some(slot) = this.slot else { return Poll::Pending };
        if let Poll::Ready(answer) = this.watch(slot, cx.waker()) {
            return Poll::Ready(answer);
        }
        loop {
            let Some((end, why)) = this.end() else { return Poll::Pending };
            let queue = this.queue;
            let timer = this.timer.get_or_insert_with(|| queue.env.sleep_until(end));
            let Poll::Ready(now) = Pin::new(timer).poll(cx) else { return Poll::Pending };
            this.timer = None;
            // The work may have become quicker while we waited.
            if now >= end {
                return Poll::Ready(match this.leave(slot) {
                    (Stage::Seated(at), flow) => (at, Asked::Seated(flow)),
                    (Stage::Refused(why), _) => (now, Asked::Refused(why)),
                    (Stage::Waiting, _) => {
                        this.gave_up(now);
                        (now, Asked::Refused(why))
                    }
                });
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        match self.leave(slot) {
            (Stage::Waiting, _) => self.gave_up(self.queue.env.now()),
            (Stage::Seated(_), flow) => self.queue.release(flow, || self.queue.env.now()),
            (Stage::Refused(_), _) => {}
        }
    }
}
