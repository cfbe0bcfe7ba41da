//! A store of waiters, and lists through it.
//!
//! Joining a list, leaving it from the middle, and taking the oldest or the newest each cost the same whether ten wait or
//! twenty thousand, and nothing is allocated once the store has grown.

use std::{num::NonZero, task::Waker};

use crate::{
    env::Tick,
    gate::{Ask, Why},
};

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// All waiters of a queue. A waiter holds its slot until it has read how its wait ended.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The first of the free slots, which are linked by `next`.
    free: u32,
}

/// Waiters in the order in which they came; the head is the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
}

#[derive(Debug)]
struct Slot {
    prev: u32,
    next: u32,
    of: Of,
    stage: Stage,
    since: Tick,
    deadline: Tick,
    waker: Option<Waker>,
}

/// Which list a waiter is in, and which load it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of {
    pub(super) class: u8,
    /// Not used by a line without flows.
    pub(super) flow: u32,
    pub(super) load: Option<NonZero<u64>>,
}

/// How far a waiter has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    /// A seat was kept for it at this tick. Whoever holds the slot owes it.
    Seated(Tick),
    Refused(Why),
}

/// A waiter, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) slot: u32,
    pub(super) since: Tick,
    pub(super) deadline: Tick,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE, tail: NONE };

    pub(super) const fn is_empty(self) -> bool {
        self.head == NONE
    }
}

impl Of {
    pub(super) fn class(self) -> usize {
        usize::from(self.class)
    }
}

impl Slots {
    pub(super) const fn new() -> Slots {
        Slots { slots: Vec::new(), free: NONE }
    }

    /// A slot for a waiter that is in no list yet.
    pub(super) fn add(&mut self, ask: &Ask, of: Of) -> u32 {
        let (since, deadline) = (ask.at, ask.deadline.unwrap_or(Tick::MAX));
        let slot = Slot { prev: NONE, next: NONE, of, stage: Stage::Waiting, since, deadline, waker: None };
        if self.free == NONE {
            self.slots.push(slot);
            // The line is bounded far below this.
            return u32::try_from(self.slots.len() - 1).unwrap_or(NONE);
        }
        let free = self.free;
        self.free = std::mem::replace(self.slot(free), slot).next;
        free
    }

    /// Puts a waiter at the end of a list.
    pub(super) fn link(&mut self, list: &mut List, slot: u32) {
        let tail = std::mem::replace(&mut list.tail, slot);
        let linked = self.slot(slot);
        (linked.prev, linked.next) = (tail, NONE);
        match tail {
            NONE => list.head = slot,
            tail => self.slot(tail).next = slot,
        }
    }

    /// Takes a waiter out of the list that it is in.
    pub(super) fn unlink(&mut self, list: &mut List, slot: u32) {
        let Slot { prev, next, .. } = *self.slot(slot);
        match prev {
            NONE => list.head = next,
            prev => self.slot(prev).next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.slot(next).prev = prev,
        }
    }

    /// Says how a wait ended, and gives whom to wake.
    pub(super) fn end(&mut self, slot: u32, stage: Stage) -> Option<Waker> {
        let slot = self.slot(slot);
        slot.stage = stage;
        slot.waker.take()
    }

    /// How far the holder of a slot has come, and whom to wake when it has come further. The waker that this one replaces is
    /// given back, to be dropped where no lock is held.
    pub(super) fn watch(&mut self, slot: u32, waker: &Waker) -> (Stage, Option<Waker>) {
        let slot = self.slot(slot);
        if slot.stage != Stage::Waiting || slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return (slot.stage, None);
        }
        (slot.stage, slot.waker.replace(waker.clone()))
    }

    /// Gives a slot back that is in no list.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Waker> {
        let free = std::mem::replace(&mut self.free, slot);
        let slot = self.slot(slot);
        slot.next = free;
        slot.waker.take()
    }

    pub(super) fn stage(&self, slot: u32) -> Stage {
        self.slots[slot as usize].stage
    }

    pub(super) fn of(&self, slot: u32) -> Of {
        self.slots[slot as usize].of
    }

    pub(super) fn set_of(&mut self, slot: u32, of: Of) {
        self.slot(slot).of = of;
    }

    /// Who stands there; `None` for [`NONE`].
    pub(super) fn waiter(&self, slot: u32) -> Option<Waiter> {
        let Slot { since, deadline, .. } = *self.slots.get(slot as usize)?;
        Some(Waiter { slot, since, deadline })
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let mut free = 0;
        let mut next = self.free;
        while let Some(slot) = self.slots.get(next as usize) {
            free += 1;
            next = slot.next;
        }
        self.slots.len() - free
    }
}
