//! The queue without fair mode: a line for each class, and a way past the lock while nobody waits.

use std::{
    sync::atomic::Ordering::{AcqRel, Relaxed},
    task::Waker,
    time::Duration,
};

use super::{
    Asked, CALM, Codel, INSIDE, Inner, Order, SLOW,
    line::{CLASSES, Line},
    slots::{Stage, Waiter},
};
use crate::{
    env::Tick,
    event::Event,
    gate::{Ask, Why},
};

/// How many are woken before the lock is let go.
pub(super) const BATCH: usize = 32;

pub(super) struct State {
    pub(super) line: Line,
    /// One for each class: a crowd of unimportant calls is no reason to refuse an important one that waits for a moment.
    pub(super) codels: [Codel; CLASSES],
}

/// Those who are to be woken once the lock is let go.
#[derive(Default)]
pub(super) struct Woken([Option<Waker>; BATCH], usize);

impl Inner {
    #[cold]
    pub(super) fn ask_slowly(&self, ask: &Ask, wait: bool) -> Asked {
        let mut pushed_out = None;
        let mut state = self.state.lock();
        if state.line.len() == 0 && self.take_or_mark() {
            self.sample(&mut state, ask.at);
            self.unmark(&state);
            return Asked::Seated(0);
        }
        let asked = if !wait {
            Asked::Refused(Why::Concurrency)
        } else if state.line.len() < self.most {
            Asked::Waiting(state.join(ask))
        } else if let Some(out) = state.pushes_out(ask) {
            pushed_out = state.line.end(out.slot, Stage::Refused(Why::Queue));
            self.waited(out, ask.at, true);
            Asked::Waiting(state.join(ask))
        } else {
            Asked::Refused(Why::Queue)
        };
        self.unmark(&state);
        let depth = state.line.len();
        drop(state);
        if let Some(waker) = pushed_out {
            waker.wake();
        }
        self.found_no_seat(asked, wait, depth)
    }

    /// Takes a seat if there is one; if not, makes sure that whoever gives one back takes the lock. Called with it held.
    fn take_or_mark(&self) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            let free = word & INSIDE < self.seats.load(Relaxed);
            let next = if free { word + 1 } else { word | SLOW };
            match self.word.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return free,
                Err(other) => word = other,
            }
        }
    }

    /// Lets others do without the lock if nobody waits and there is no overload. Called with it held.
    pub(super) fn unmark(&self, state: &State) {
        if state.line.len() == 0 && !state.is_overloaded() {
            self.word.fetch_and(!SLOW, AcqRel);
        } else {
            self.word.fetch_or(SLOW, AcqRel);
        }
    }

    /// Takes a seat if there is one and somebody waits for it.
    pub(super) fn take_for_next(&self) -> bool {
        let state = self.state.lock();
        // While somebody waits only whoever holds the lock writes the word.
        let free = state.line.len() > 0 && self.word.load(Relaxed) & INSIDE < self.seats.load(Relaxed);
        if free {
            self.word.fetch_add(1, AcqRel);
        }
        free
    }

    fn sample(&self, state: &mut State, now: Tick) {
        let calm = self.word.load(Relaxed) & CALM != 0;
        if calm {
            self.word.fetch_and(!CALM, Relaxed);
        }
        let usual = self.median();
        for (class, codel) in state.codels.iter_mut().enumerate() {
            if calm {
                codel.calm();
            }
            codel.scale(usual);
            codel.sample(state.line.oldest(class).map_or(Duration::ZERO, |oldest| now - oldest.since), now);
        }
    }

    /// Hands the seat to whoever is next, after those who have waited too long are refused.
    #[cold]
    pub(super) fn release_slowly(&self, now: Tick) {
        let mut woken = Woken::default();
        let mut sampled = false;
        loop {
            let mut state = self.state.lock();
            if !sampled {
                self.sample(&mut state, now);
                sampled = true;
            }
            let seated = self.seat_next(&mut state, now, &mut woken);
            let depth = state.line.len();
            drop(state);
            woken.wake();
            if seated {
                self.env.tell(&Event::QueueDepth(depth.into()));
                return;
            }
        }
    }

    /// False if there are more to be refused than can be woken at a time.
    fn seat_next(&self, state: &mut State, now: Tick, woken: &mut Woken) -> bool {
        for (class, codel) in state.codels.iter().enumerate() {
            while let Some(oldest) = state.line.oldest(class).filter(|oldest| codel.refuses(now - oldest.since)) {
                if woken.is_full() {
                    return false;
                }
                self.waited(oldest, now, true);
                woken.push(state.line.end(oldest.slot, Stage::Refused(Why::Shed)));
            }
        }
        if self.word.load(Relaxed) & INSIDE > self.seats.load(Relaxed) {
            // There are fewer seats than there were: this one is gone.
            self.word.fetch_sub(1, AcqRel);
            self.unmark(state);
            return true;
        }
        let codels = state.codels;
        let newest = |class: usize| match self.order {
            Order::Adaptive => codels[class].is_overloaded(),
            Order::Oldest => false,
            Order::Newest => true,
        };
        let others = (self.word.load(Relaxed) & INSIDE) - 1;
        while let Some(next) = state.line.next(newest) {
            if woken.is_full() {
                return false;
            }
            if self.is_late(next.deadline, now, others) {
                self.waited(next, now, true);
                woken.push(state.line.end(next.slot, Stage::Refused(Why::Deadline)));
                continue;
            }
            self.waited(next, now, false);
            woken.push(state.line.end(next.slot, Stage::Seated(now)));
            self.unmark(state);
            return true;
        }
        self.word.fetch_sub(1, AcqRel);
        self.unmark(state);
        true
    }
}

impl State {
    pub(super) fn is_overloaded(&self) -> bool {
        self.codels.iter().any(Codel::is_overloaded)
    }

    fn join(&mut self, ask: &Ask) -> u32 {
        self.line.join(ask)
    }

    /// Who has to go from a full line for somebody to join it: the least important, if they matter less; and while the
    /// newest are served first, if they matter no more.
    fn pushes_out(&self, ask: &Ask) -> Option<Waiter> {
        let (class, out) = self.line.least()?;
        let mine = ask.priority as usize;
        (mine > class || (mine == class && self.codels[class].is_overloaded())).then_some(out)
    }
}

impl Woken {
    pub(super) fn is_full(&self) -> bool {
        self.1 == BATCH
    }

    pub(super) fn push(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0[self.1] = Some(waker);
            self.1 += 1;
        }
    }

    pub(super) fn wake(&mut self) {
        for waker in self.0[..self.1].iter_mut().filter_map(Option::take) {
            waker.wake();
        }
        self.1 = 0;
    }
}
