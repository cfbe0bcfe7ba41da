//! Who is to be woken when.
//!
//! Nearly every timer belongs to a task that sleeps on it directly, so such a timer lives in the task's own slot and
//! costs nothing but its 16 bytes in the event queue. A timer that is polled through another waker (inside a join of many
//! futures, say) gets a slot of its own. Cancelling only makes the ticket invalid: the entry in the queue is passed over
//! when its time comes, and does not move the clock.

use std::task::Waker;

use parking_lot::MutexGuard;

use super::{
    queue::EventQueue,
    slab::Slab,
    world::{State, World},
};
use crate::env::tick::Tick;

/// Purging cancelled timers costs a walk over all of them, so it waits until they are many and the majority.
const PURGE: usize = 1024;
/// How many tasks to look at before they are polled: what fits the processor's nearest cache.
const LOOK_AHEAD: usize = 128;
/// Marks a timer with a slot of its own.
const FOREIGN: u32 = 1 << 31;
/// A timer that never fires is not kept at all.
const NEVER: Timer = Timer { target: u32::MAX, ticket: 0 };

/// A registration in the event queue: whom to wake, and the ticket that must still be valid then.
#[derive(Clone, Copy)]
pub(in crate::env) struct Timer {
    target: u32,
    ticket: u32,
}

#[derive(Default)]
pub(super) struct Timers {
    queue: EventQueue<Timer>,
    /// Timers in the queue that were cancelled.
    cancelled: usize,
    foreign: Slab<Foreign>,
}

#[derive(Default)]
struct Foreign {
    /// Present while the timer with the present ticket is pending.
    waker: Option<Waker>,
    ticket: u32,
}

impl Timer {
    fn foreign(self) -> Option<u32> {
        (self.target & FOREIGN != 0).then_some(self.target & !FOREIGN)
    }
}

impl Timers {
    /// Entries in the queue, those of cancelled timers included.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Takes every waker out.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.foreign.iter_mut().filter_map(|(_, foreign)| foreign.waker.take()).collect()
    }
}

impl World {
    /// The tick if `at` is reached; otherwise the timer that will wake this waker then.
    pub(in crate::env) fn poll_timer(&self, at: Tick, timer: Option<Timer>, waker: &Waker) -> Result<Tick, Timer> {
        let now = self.now();
        if at <= now {
            // Its timer has fired: all those of a tick do before any task runs at that tick.
            return Ok(now);
        }
        if at == Tick::MAX {
            return Err(NEVER);
        }
        let mut state = self.lock();
        let own = state.tasks.running_with(waker);
        let Some(timer) = timer.filter(|timer| state.is_pending(*timer)) else {
            return Err(state.arm(at, own, waker));
        };
        let (timer, replaced) = match timer.foreign() {
            Some(index) => {
                let kept = &mut state.timers.foreign.get_mut(index).waker;
                let same = kept.as_ref().is_some_and(|kept| kept.will_wake(waker));
                (timer, if same { None } else { kept.replace(waker.clone()) })
            }
            None if own == Some(timer.target) => (timer, None),
            None => {
                // It moved to another task, or into a future with a waker of its own.
                let replaced = state.cancel(timer);
                (state.arm(at, None, waker), replaced)
            }
        };
        drop(state);
        drop(replaced);
        Err(timer)
    }

    pub(in crate::env) fn cancel_timer(&self, timer: Timer) {
        let waker = self.lock().cancel(timer);
        drop(waker);
    }

    /// Lets time pass to the next event, if that is not after `limit`, and wakes everybody who waited for that tick; false
    /// if nothing happens until the limit.
    pub(super) fn advance(&self, state: &mut MutexGuard<'_, State>, limit: Tick) -> bool {
        if state.timers.queue.upcoming().is_empty() {
            state.look_ahead(limit);
        }
        let mut happened = false;
        let mut until = limit.as_nanos();
        while let Some((tick, timer)) = state.timers.queue.pop_until(until) {
            let Some(waker) = state.fire(timer) else {
                state.timers.cancelled = state.timers.cancelled.saturating_sub(1);
                continue;
            };
            // The clock moves only for a timer that somebody still waits for.
            happened = true;
            until = tick;
            self.pass_to(Tick::from_nanos(tick));
            if let Wake::Foreign(waker) = waker {
                MutexGuard::unlocked(state, || waker.wake());
            }
        }
        happened
    }
}

/// What is left to do for a timer that fired.
enum Wake {
    /// Its task is in the queue.
    Done,
    Foreign(Waker),
}

impl State {
    /// Registers a timer in the task's own slot if that is free, else in one that keeps the waker.
    fn arm(&mut self, at: Tick, own: Option<u32>, waker: &Waker) -> Timer {
        let inline = own.and_then(|task| Some(Timer { target: task, ticket: self.tasks.arm(task)? }));
        let timer = inline.unwrap_or_else(|| {
            let index = self.timers.foreign.claim();
            let foreign = self.timers.foreign.get_mut(index);
            foreign.waker = Some(waker.clone());
            foreign.ticket = foreign.ticket.wrapping_add(1);
            Timer { target: index | FOREIGN, ticket: foreign.ticket }
        });
        self.timers.queue.push(at.as_nanos(), timer);
        timer
    }

    /// Reads a little of every task that is due soon. The reads do not depend on each other, so the processor fetches them
    /// side by side; left to the polls, each would be a wait of its own, which is most of what a large crowd costs.
    fn look_ahead(&mut self, limit: Tick) {
        let State { timers, tasks, .. } = self;
        timers.queue.load(limit.as_nanos());
        let due = timers.queue.upcoming().iter().take(LOOK_AHEAD);
        tasks.look_at(due.filter(|(_, timer)| timer.foreign().is_none()).map(|(_, timer)| timer.target));
    }

    /// `None` if the timer was cancelled.
    fn fire(&mut self, timer: Timer) -> Option<Wake> {
        match timer.foreign() {
            None => {
                if self.tasks.fire(timer.target, timer.ticket)? {
                    self.ready.push_back(timer.target);
                }
                Some(Wake::Done)
            }
            Some(index) => {
                let foreign = self.timers.foreign.get_mut(index);
                let waker = foreign.waker.take_if(|_| foreign.ticket == timer.ticket)?;
                self.timers.foreign.release(index);
                Some(Wake::Foreign(waker))
            }
        }
    }

    fn is_pending(&mut self, timer: Timer) -> bool {
        match timer.foreign() {
            None => self.tasks.is_armed(timer.target, timer.ticket),
            Some(_) if timer.target == NEVER.target => false,
            Some(index) => {
                let foreign = self.timers.foreign.get_mut(index);
                foreign.waker.is_some() && foreign.ticket == timer.ticket
            }
        }
    }

    /// Gives the waker that the timer kept, to be dropped when the lock is not held.
    fn cancel(&mut self, timer: Timer) -> Option<Waker> {
        if !self.is_pending(timer) {
            return None;
        }
        let waker = match timer.foreign() {
            None => {
                self.tasks.disarm(timer.target);
                None
            }
            Some(index) => {
                self.timers.foreign.release(index);
                self.timers.foreign.get_mut(index).waker.take()
            }
        };
        self.timers.cancelled += 1;
        if self.timers.cancelled > PURGE && self.timers.cancelled > self.timers.queue.len() / 2 {
            let mut queue = std::mem::take(&mut self.timers.queue);
            queue.retain(|timer| self.is_pending(*timer));
            self.timers.queue = queue;
            self.timers.cancelled = 0;
        }
        waker
    }
}
