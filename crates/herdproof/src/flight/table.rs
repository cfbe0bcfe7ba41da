//! Which keys are in the air: a sharded table that finds a flight by key, and takes it out by identity.
//!
//! A flight is only ever removed by its own number. Were it removed by key, a flight that was forgotten could, at its end,
//! remove the one that was begun after it, and a third caller would start a third load.

use std::sync::Arc;

use hashbrown::HashTable;

use super::{shared::Shared, stats::Stats};
use crate::sync::{Mutex, MutexGuard};

/// Enough that two threads rarely meet, few enough to cost nothing when idle.
const SHARDS: usize = 32;

pub(super) struct Table<K, V, E> {
    shards: Box<[Locked<K, V, E>]>,
}

/// Keeps neighbours off each other's cache lines.
#[repr(align(128))]
struct Locked<K, V, E>(Mutex<Shard<K, V, E>>);

pub(super) struct Shard<K, V, E> {
    flights: HashTable<Entry<K, V, E>>,
    begun: u64,
    pub(super) tally: Stats,
}

struct Entry<K, V, E> {
    key: K,
    hash: u64,
    number: u64,
    seat: Seat<V, E>,
    /// Newcomers no longer find it; those aboard stay aboard.
    forgotten: bool,
}

/// Whether anybody but the leader has a part in the flight yet.
pub(super) enum Seat<V, E> {
    /// The leader is polling the load in place and nobody has joined, so nothing needs to be shared.
    Alone,
    Shared(Arc<Shared<V, E>>),
}

impl<V, E> Seat<V, E> {
    /// What is shared, made now if it was not.
    pub(super) fn share(&mut self, make: impl FnOnce() -> Shared<V, E>) -> &Arc<Shared<V, E>> {
        if let Seat::Alone = self {
            *self = Seat::Shared(Arc::new(make()));
        }
        let Seat::Shared(shared) = self else { unreachable!("it was made a line ago") };
        shared
    }

    /// What is shared, if the flight has landed.
    pub(super) fn landed(&self) -> Option<Arc<Shared<V, E>>>
    where
        V: Clone,
    {
        match self {
            Seat::Shared(shared) if shared.is_landed() => Some(Arc::clone(shared)),
            _ => None,
        }
    }

    pub(super) fn into_shared(self) -> Option<Arc<Shared<V, E>>> {
        match self {
            Seat::Alone => None,
            Seat::Shared(shared) => Some(shared),
        }
    }
}

/// Where a flight stands in the table, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) hash: u64,
    pub(super) number: u64,
}

impl<K: Eq, V, E> Table<K, V, E> {
    pub(super) fn new() -> Table<K, V, E> {
        let shard = || Shard { flights: HashTable::new(), begun: 0, tally: Stats::default() };
        Table { shards: (0..SHARDS).map(|_| Locked(Mutex::new(shard()))).collect() }
    }

    pub(super) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V, E>> {
        // The table inside a shard uses the low bits and the top seven; these are others.
        let index = usize::try_from(hash >> 40).unwrap_or(0) % SHARDS;
        self.shards[index].0.lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<K, V, E>>> {
        self.shards.iter().map(|shard| shard.0.lock())
    }
}

impl<K: Eq, V, E> Shard<K, V, E> {
    /// The flight of this key that newcomers may join.
    pub(super) fn find(&mut self, hash: u64, key: &K) -> Option<(Place, &mut Seat<V, E>)> {
        let entry = self.flights.find_mut(hash, |entry| !entry.forgotten && entry.key == *key)?;
        Some((Place { hash, number: entry.number }, &mut entry.seat))
    }

    pub(super) fn insert(&mut self, hash: u64, key: K) -> Place {
        self.begun += 1;
        let number = self.begun;
        let entry = Entry { key, hash, number, seat: Seat::Alone, forgotten: false };
        self.flights.insert_unique(hash, entry, |entry| entry.hash);
        Place { hash, number }
    }

    /// The seat of a flight that is still in the air, forgotten or not.
    pub(super) fn seat(&mut self, place: Place) -> Option<&mut Seat<V, E>> {
        self.flights.find_mut(place.hash, |entry| entry.number == place.number).map(|entry| &mut entry.seat)
    }

    /// Takes the flight out. The key is given back to be dropped when the lock is not held.
    pub(super) fn remove(&mut self, place: Place) -> Option<(K, Seat<V, E>)> {
        let found = self.flights.find_entry(place.hash, |entry| entry.number == place.number).ok()?;
        let (entry, _) = found.remove();
        Some((entry.key, entry.seat))
    }

    /// Hides the flight of this key from newcomers.
    pub(super) fn forget(&mut self, hash: u64, key: &K) -> bool {
        let found = self.flights.find_mut(hash, |entry| !entry.forgotten && entry.key == *key);
        found.map(|entry| entry.forgotten = true).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }
}
