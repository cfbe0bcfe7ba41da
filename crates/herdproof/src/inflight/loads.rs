//! The loads in progress of one shard: found by key, taken out by identity.
//!
//! A flight is only ever removed by its own number. Were it removed by key, a flight that was forgotten could, at its end,
//! remove the one that was begun after it, and a third caller would start a third load.

use std::{borrow::Borrow, sync::Arc};

use hashbrown::HashTable;

use super::{HasLoads, shared::Shared, slot::Spare, stats::Stats};
use crate::{env::Env, event::Event};

/// The loads in progress of one shard.
pub(crate) struct Loads<K, V, E> {
    /// One flight, whichever: few shards have more than one at a time, and it is found without a probe.
    first: Option<Entry<K, V, E>>,
    others: HashTable<Entry<K, V, E>>,
    /// The slot of a load that has ended, for the next.
    spare: Option<Spare>,
    /// The number of the last flight; shards count in steps, each from its own start, so no two flights of a home share a
    /// number.
    last: u64,
    step: u64,
    pub(super) tally: Stats,
}

struct Entry<K, V, E> {
    key: K,
    hash: u64,
    number: u64,
    stamp: u64,
    seat: Seat<V, E>,
    /// Newcomers no longer find it; its followers stay.
    forgotten: bool,
}

impl<K, V, E> Entry<K, V, E> {
    fn is_for<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.hash == hash && !self.forgotten && self.key.borrow() == key
    }
}

/// What those who have a part in the flight share. Empty while the leader polls the load in place and nobody has joined.
pub(super) type Seat<V, E> = Option<Arc<Shared<V, E>>>;

/// A flight that was taken out: its key, to be dropped when the lock is not held, and what is shared of it.
pub(super) struct Removed<K, V, E> {
    _key: K,
    shared: Option<Arc<Shared<V, E>>>,
}

impl<K, V: Clone, E> Removed<K, V, E> {
    fn followers(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.followers())
    }

    /// Those who share the load, if anybody does.
    pub(super) fn shared(&self) -> Option<Arc<Shared<V, E>>> {
        self.shared.clone()
    }

    /// Drops the key, and tells of who shared the load. To be called without the lock: both run user code.
    pub(super) fn tell(self, env: &Env) {
        let followers = self.followers();
        drop(self);
        if followers > 0 {
            env.tell(&Event::FlightShared { followers });
        }
    }
}

/// Which flight, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) hash: u64,
    /// No other flight of the home has this one.
    pub(crate) number: u64,
}

impl<K, V, E> HasLoads<K, V, E> for Loads<K, V, E> {
    #[inline(always)]
    fn loads(&mut self) -> &mut Loads<K, V, E> {
        self
    }
}

impl<K: Eq, V: Clone, E> Loads<K, V, E> {
    /// Those of one shard of so many.
    pub(crate) fn new(shard: u64, shards: u64) -> Loads<K, V, E> {
        let (others, tally) = (HashTable::new(), Stats::default());
        Loads { first: None, others, spare: None, last: shard, step: shards, tally }
    }

    /// The flight of this key that newcomers may join.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<(Place, &mut Seat<V, E>)>
    where
        K: Borrow<Q>,
    {
        let entry = self.joinable(hash, key)?;
        Some((Place { hash, number: entry.number }, &mut entry.seat))
    }

    /// Whether the load of this key is in progress.
    #[inline]
    pub(crate) fn has<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.joinable(hash, key).is_some()
    }

    /// What the load of this key that newcomers may join was marked with when it began.
    pub(crate) fn stamp<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        self.joinable(hash, key).map(|entry| entry.stamp)
    }

    #[inline]
    fn joinable<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<&mut Entry<K, V, E>>
    where
        K: Borrow<Q>,
    {
        let wanted = |entry: &Entry<K, V, E>| entry.is_for(hash, key);
        if self.first.as_ref().is_some_and(wanted) {
            return self.first.as_mut();
        }
        if self.others.is_empty() { None } else { self.others.find_mut(hash, wanted) }
    }

    /// A new flight, for a key of which there is none that newcomers may join, and a slot that may fit its load.
    #[inline]
    pub(super) fn begin(&mut self, hash: u64, key: K, stamp: u64) -> (Place, Option<Spare>) {
        let number = self.last + self.step;
        self.last = number;
        self.tally.flights += 1;
        let entry = Entry { key, hash, number, stamp, seat: None, forgotten: false };
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.insert(entry);
        }
        (Place { hash, number }, self.spare.take())
    }

    #[inline(never)]
    fn insert(&mut self, entry: Entry<K, V, E>) {
        self.others.insert_unique(entry.hash, entry, |entry| entry.hash);
    }

    /// Keeps this slot for the next load, unless there is one already: then it comes back.
    #[inline]
    pub(super) fn keep(&mut self, spare: Option<Spare>) -> Option<Spare> {
        if self.spare.is_some() {
            return spare;
        }
        self.spare = spare;
        None
    }

    /// A flight that is still here, forgotten or not.
    #[inline]
    fn entry(&mut self, place: Place) -> Option<&mut Entry<K, V, E>> {
        if self.first.as_ref().is_some_and(|first| first.number == place.number) {
            return self.first.as_mut();
        }
        self.others.find_mut(place.hash, |entry| entry.number == place.number)
    }

    /// The seat of a flight that is still here, forgotten or not.
    pub(super) fn seat(&mut self, place: Place) -> Option<&mut Seat<V, E>> {
        self.entry(place).map(|entry| &mut entry.seat)
    }

    /// Takes the flight out and gives its key if it is the first, and nobody has joined it.
    #[inline]
    pub(super) fn remove_unshared(&mut self, place: Place) -> Option<K> {
        let is_unshared = |first: &mut Entry<K, V, E>| first.number == place.number && first.seat.is_none();
        let first = self.first.take_if(is_unshared)?;
        self.tally.ended(0);
        Some(first.key)
    }

    /// Takes the flight out.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> Option<Removed<K, V, E>> {
        let entry = match self.first.take_if(|first| first.number == place.number) {
            Some(first) => first,
            None => self.others.find_entry(place.hash, |entry| entry.number == place.number).ok()?.remove().0,
        };
        let removed = Removed { _key: entry.key, shared: entry.seat };
        self.tally.ended(removed.followers());
        Some(removed)
    }

    /// Hides the flight of this key from newcomers.
    pub(crate) fn forget<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.joinable(hash, key).map(|entry| entry.forgotten = true).is_some()
    }

    /// Hides all flights from newcomers.
    pub(crate) fn forget_all(&mut self) {
        self.first.iter_mut().chain(self.others.iter_mut()).for_each(|entry| entry.forgotten = true);
    }

    /// Whether newcomers can find this flight.
    #[inline]
    pub(crate) fn is_findable(&mut self, place: Place) -> bool {
        self.entry(place).is_some_and(|entry| !entry.forgotten)
    }

    /// Whether anybody waits for this flight beside its leader.
    pub(crate) fn is_shared(&mut self, place: Place) -> bool {
        self.seat(place).and_then(|seat| seat.as_ref()).is_some_and(|shared| shared.followers() > 0)
    }

    /// Hides this flight from newcomers.
    pub(super) fn hide(&mut self, place: Place) {
        if let Some(entry) = self.entry(place) {
            entry.forgotten = true;
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let in_air = usize::from(self.first.is_some()) + self.others.len();
        Stats { in_air: in_air as u64, ..self.tally }
    }
}
