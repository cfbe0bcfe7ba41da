//! Whom to wake: wakers in numbered slots, in chunks.
//!
//! A crowd grows while it waits. One list for all would be copied each time it doubles, and what it leaves behind keeps the
//! allocator busy; chunks stay where they are. They are also what followers are woken by: chunk after chunk, each given
//! back before the next.

use std::{num::NonZeroU32, task::Waker};

use crate::error::quietly;

/// Slots in a chunk. Half a kilobyte, because asked for more than one glibc's allocator first sweeps up what was freed.
const CHUNK: usize = 32;

#[derive(Default)]
pub(super) struct Wakers {
    /// All but the last are full.
    chunks: Vec<Vec<Option<Waker>>>,
    free: Vec<Slot>,
}

/// Where a waker is kept: counted from one, so that a follower without a slot needs no more room than one with.
pub(super) type Slot = NonZeroU32;

impl Wakers {
    /// Keeps the waker, and says in which slot.
    pub(super) fn add(&mut self, waker: Waker) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.slot(slot) = Some(waker);
            return slot;
        }
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(Some(waker)),
            // Most crowds are small: the first chunk grows, the others have their size.
            None => self.chunks.push(vec![Some(waker)]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(Some(waker));
                self.chunks.push(chunk);
            }
        }
        let count = u32::try_from(self.len()).ok().and_then(Slot::new);
        count.expect("somebody is here, and fewer than the cap, which is a u32")
    }

    /// Keeps this waker in the slot instead of the one there, which comes back to be dropped.
    pub(super) fn replace(&mut self, slot: Slot, waker: &Waker) -> Option<Waker> {
        match self.slot(slot) {
            Some(kept) if kept.will_wake(waker) => None,
            kept => kept.replace(waker.clone()),
        }
    }

    /// Empties the slot for another.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Waker> {
        let waker = self.slot(slot).take();
        if waker.is_some() {
            self.free.push(slot);
        }
        waker
    }

    /// Wakes everybody, also if one waker panics. To be called on a list that nobody else can reach, with no lock held.
    pub(super) fn wake_all(self) {
        for chunk in self.chunks {
            for waker in chunk.into_iter().flatten() {
                quietly(|| waker.wake());
            }
        }
    }

    /// How many slots there are, free ones too.
    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    fn slot(&mut self, slot: Slot) -> &mut Option<Waker> {
        let index = slot.get() as usize - 1;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}
