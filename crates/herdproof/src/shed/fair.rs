//! The queue in fair mode: every decision is made in [`Flows`], under one lock.
//!
//! There is no way past the lock as there is without fair mode: how many seats a user holds has to be counted whether or not
//! somebody waits. The lock is held for a few look-ups, about as long as a request to an origin spends in a system call.

use std::{sync::atomic::Ordering::Relaxed, task::Waker};

use super::{
    Asked, Inner,
    flows::{Flows, View},
    plain::Woken,
    slots::Stage,
};
use crate::{
    env::Tick,
    event::Event,
    gate::{Ask, Why},
    sync::Mutex,
};

impl Inner {
    /// Takes a seat, a place in the line, or a no.
    pub(super) fn ask_fairly(&self, flows: &Mutex<Flows>, ask: &Ask, wait: bool) -> Asked {
        let mut pushed_out = None;
        let mut state = flows.lock();
        // Read with the lock held: whoever adds seats takes it after that.
        let view = self.view(ask.at);
        if let Some(flow) = state.take(ask, view) {
            self.word.store(state.inside(), Relaxed);
            return Asked::Seated(flow);
        }
        let asked = if !wait {
            Asked::Refused(Why::Concurrency)
        } else if let Ok(out) = state.make_room(ask, self.most) {
            pushed_out = out;
            Asked::Waiting(state.join(ask, view.usual))
        } else {
            Asked::Refused(Why::Queue)
        };
        let depth = state.len();
        drop(state);
        if let Some(out) = pushed_out {
            self.waited(out.waiter, ask.at, true);
            out.waker.into_iter().for_each(Waker::wake);
        }
        self.found_no_seat(asked, wait, depth)
    }

    /// Ends the waits that can end now: after a seat was given back, seats were added, or a waiter changed its flow.
    pub(super) fn hand_out(&self, flows: &Mutex<Flows>, mut released: Option<u32>, now: Tick) {
        let mut woken = Woken::default();
        let (mut more, mut any) = (true, false);
        while more {
            let mut state = flows.lock();
            if let Some(flow) = released.take() {
                state.release(flow);
            }
            more = false;
            while let Some(ended) = state.next(self.view(now), |deadline, others| self.is_late(deadline, now, others)) {
                any = true;
                self.waited(ended.waiter, now, !matches!(ended.stage, Stage::Seated(_)));
                woken.push(ended.waker);
                more = woken.is_full();
                if more {
                    break;
                }
            }
            self.word.store(state.inside(), Relaxed);
            let depth = state.len();
            drop(state);
            woken.wake();
            if any && !more {
                self.env.tell(&Event::QueueDepth(depth.into()));
            }
        }
    }

    fn view(&self, now: Tick) -> View {
        View { now, seats: self.seats.load(Relaxed), usual: self.median(), order: self.order }
    }
}

#[cfg(test)]
mod tests;
