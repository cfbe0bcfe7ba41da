//! Which keys are in the air: a sharded table that finds a flight by key, and takes it out by identity.
//!
//! A flight is only ever removed by its own number. Were it removed by key, a flight that was forgotten could, at its end,
//! remove the one that was begun after it, and a third caller would start a third load.

use std::sync::Arc;

use hashbrown::{HashTable, hash_table::Entry as Slot};

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
    /// The number of the last flight; shards count in steps, each from its own start, so no two flights share a number.
    last: u64,
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

impl<K, V: Clone, E> Entry<K, V, E> {
    fn into_removed(self, tally: &mut Stats) -> Removed<K, V, E> {
        let shared = self.seat.into_shared();
        tally.ended(shared.as_ref().map_or(0, |shared| shared.followers()));
        Removed { key: self.key, shared }
    }
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

/// A flight that was taken out: its key, to be dropped when the lock is not held, and what is shared of it.
pub(super) struct Removed<K, V, E> {
    pub(super) key: K,
    pub(super) shared: Option<Arc<Shared<V, E>>>,
}

/// Where a flight is when its load has ended.
pub(super) enum Ended<K, V, E> {
    Removed(Removed<K, V, E>),
    /// It landed before, and stays in the table for newcomers.
    Lingers(Arc<Shared<V, E>>),
}

/// What came of asking for a flight.
pub(super) enum Boarding<K> {
    /// Nobody loads this key: lead.
    New(Place),
    /// Somebody does, or is about to stop.
    Known(K),
}

/// Where a flight stands in the table, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) hash: u64,
    pub(super) number: u64,
}

impl<K: Eq, V, E> Table<K, V, E> {
    pub(super) fn new() -> Table<K, V, E> {
        let shard = |index| Shard { flights: HashTable::new(), last: index, tally: Stats::default() };
        Table { shards: (0..SHARDS as u64).map(|index| Locked(Mutex::new(shard(index)))).collect() }
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

    /// A new flight, unless newcomers already have one of this key to join; then the key comes back.
    pub(super) fn board(&mut self, hash: u64, key: K) -> Boarding<K> {
        let number = self.next_number();
        match self.flights.entry(hash, |entry| !entry.forgotten && entry.key == key, |entry| entry.hash) {
            Slot::Occupied(_) => Boarding::Known(key),
            Slot::Vacant(vacant) => {
                vacant.insert(Entry { key, hash, number, seat: Seat::Alone, forgotten: false });
                self.begun(number);
                Boarding::New(Place { hash, number })
            }
        }
    }

    /// A new flight beside one that newcomers can no longer join.
    pub(super) fn insert(&mut self, hash: u64, key: K) -> Place {
        let number = self.next_number();
        let entry = Entry { key, hash, number, seat: Seat::Alone, forgotten: false };
        self.flights.insert_unique(hash, entry, |entry| entry.hash);
        self.begun(number);
        Place { hash, number }
    }

    fn next_number(&self) -> u64 {
        self.last + SHARDS as u64
    }

    fn begun(&mut self, number: u64) {
        self.last = number;
        self.tally.flights += 1;
    }

    /// The seat of a flight that is still in the air, forgotten or not.
    pub(super) fn seat(&mut self, place: Place) -> Option<&mut Seat<V, E>> {
        self.flights.find_mut(place.hash, |entry| entry.number == place.number).map(|entry| &mut entry.seat)
    }

    /// Takes the flight out.
    pub(super) fn remove(&mut self, place: Place) -> Option<Removed<K, V, E>>
    where
        V: Clone,
    {
        let found = self.flights.find_entry(place.hash, |entry| entry.number == place.number).ok()?;
        let (entry, _) = found.remove();
        Some(entry.into_removed(&mut self.tally))
    }

    /// Takes the flight out, unless it has landed and lingers: then it gives what is shared of it.
    pub(super) fn remove_unless_landed(&mut self, place: Place) -> Option<Ended<K, V, E>>
    where
        V: Clone,
    {
        let found = self.flights.find_entry(place.hash, |entry| entry.number == place.number).ok()?;
        if let Some(lingering) = found.get().seat.landed() {
            return Some(Ended::Lingers(lingering));
        }
        let (entry, _) = found.remove();
        Some(Ended::Removed(entry.into_removed(&mut self.tally)))
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
