//! Which keys were said to have changed, so that a response that was asked for before is not kept after.
//!
//! One counter for all keys would be enough to be right, but then the uploads of one user keep what all others ask for by
//! themselves out of the store. So there are tens of thousands, by a hash of the key that clients cannot foresee: two keys that share
//! one cost a response that is not kept, and nothing else.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};

const COUNTERS: usize = 1 << 16;

/// How often keys were said to have changed.
#[derive(Debug)]
pub(crate) struct Changes(Box<[AtomicU32]>);

/// The state of a key at some moment, to see whether it has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(u32);

impl Snapshot {
    /// The same for the same state.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Of the key with this hash.
    pub(super) fn of(&self, key: u64) -> Snapshot {
        Snapshot(self.counter(key).load(Acquire))
    }

    /// The key with this hash has changed.
    pub(super) fn add(&self, key: u64) {
        self.counter(key).fetch_add(1, Release);
    }

    fn counter(&self, key: u64) -> &AtomicU32 {
        // Never past the end: the remainder is smaller than the length.
        &self.0[usize::try_from(key % COUNTERS as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_key_is_none_of_another() {
        let changes = Changes::new();
        let (mine, other) = (changes.of(7), changes.of(8));
        changes.add(7);
        assert_ne!(changes.of(7), mine);
        assert_eq!(changes.of(8), other);
        assert_eq!(changes.of(u64::MAX), changes.of(COUNTERS as u64 - 1), "every hash has a counter");
    }
}
