//! Which keys are in the air: a sharded table that finds a flight by key, and takes it out by identity.
//!
//! A flight is only ever removed by its own number. Were it removed by key, a flight that was forgotten could, at its end,
//! remove the one that was begun after it, and a third caller would start a third load.

use std::{
    borrow::Borrow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use hashbrown::HashTable;
use parking_lot::Mutex;

use super::{
    berth::Spare,
    load::{Settle, Settled},
    shared::Shared,
    stats::Stats,
};
use crate::{
    bravo::{BiasedRwLock, WriteGuard},
    env::part_of,
};

/// Enough that two threads rarely meet, few enough to cost nothing when idle.
pub(super) const SHARDS: usize = 32;

pub(super) struct Table<K, V, E, X> {
    shards: Box<[Locked<K, V, E, X>]>,
}

/// Keeps neighbours off each other's cache lines.
#[repr(align(128))]
struct Locked<K, V, E, X>(BiasedRwLock<Shard<K, V, E, X>>);

// In this order, because what is kept is read at every hit of a cache: so it lies next to the lock.
#[repr(C)]
pub(super) struct Shard<K, V, E, X> {
    /// What the group's owner keeps under the same lock.
    pub(super) kept: X,
    /// Never locked: it is for those who have the shard to themselves, and so may hold what cannot be read by many at once.
    air: Mutex<Air<K, V, E>>,
}

/// The flights of a shard.
pub(super) struct Air<K, V, E> {
    /// One flight, whichever: few shards have more than one at a time, and it is found without a probe.
    first: Option<Entry<K, V, E>>,
    others: HashTable<Entry<K, V, E>>,
    /// The place of a load that has ended, for the next.
    spare: Option<Spare>,
    /// The number of the last flight; shards count in steps, each from its own start, so no two flights share a number.
    last: u64,
    step: u64,
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

impl<K, V, E> Entry<K, V, E> {
    fn is_for<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.hash == hash && !self.forgotten && self.key.borrow() == key
    }
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

/// A flight to be led.
pub(super) struct Begun {
    pub(super) place: Place,
    /// A place that a load has left, perhaps one that fits this flight's.
    pub(super) spare: Option<Spare>,
}

/// Where a flight stands in the table, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) hash: u64,
    /// No other flight of the group has this one.
    pub(crate) number: u64,
}

impl<K: Eq, V, E, X> Table<K, V, E, X> {
    /// Of so many shards, each with what is kept there.
    pub(super) fn new(shards: usize, mut kept: impl FnMut() -> X) -> Table<K, V, E, X> {
        let step = shards as u64;
        let mut shard = |last| {
            let (others, tally) = (HashTable::new(), Stats::default());
            Shard { kept: kept(), air: Mutex::new(Air { first: None, others, spare: None, last, step, tally }) }
        };
        Table { shards: (0..step).map(|index| Locked(BiasedRwLock::new(shard(index)))).collect() }
    }

    #[inline(always)]
    fn locked(&self, hash: u64) -> &BiasedRwLock<Shard<K, V, E, X>> {
        &self.shards[part_of(hash, self.shards.len())].0
    }

    #[inline(always)]
    pub(super) fn shard(&self, hash: u64) -> WriteGuard<'_, Shard<K, V, E, X>> {
        self.locked(hash).write()
    }

    #[inline(always)]
    pub(super) fn read<R>(&self, hash: u64, read: impl FnOnce(&X) -> R) -> R {
        self.locked(hash).read(|shard| read(&shard.kept))
    }

    /// As [`read`](Table::read), if somebody has read since it was changed.
    #[inline(always)]
    pub(super) fn find_again<R>(&self, hash: u64, find: impl FnOnce(&X) -> Option<R>) -> Option<R> {
        self.locked(hash).find_again(|shard| find(&shard.kept))
    }

    /// What is found, or else a new flight, unless there is one that newcomers may join.
    #[inline(always)]
    pub(super) fn find_or_begin<Q, R>(
        &self,
        hash: u64,
        key: &Q,
        find: impl FnOnce(&X) -> Option<R>,
    ) -> Result<Option<Begun>, R>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let locked = self.locked(hash);
        let mut shard = locked.write();
        if let Some(found) = find(&shard.kept) {
            locked.was_read();
            return Err(found);
        }
        let air = shard.air();
        Ok(if air.find(hash, key).is_none() { Some(air.begin(hash, key.to_owned())) } else { None })
    }

    pub(super) fn read_nth<R>(&self, index: usize, read: impl FnOnce(&X) -> R) -> Option<R> {
        self.shards.get(index).map(|shard| shard.0.read(|shard| read(&shard.kept)))
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = WriteGuard<'_, Shard<K, V, E, X>>> {
        self.shards.iter().map(|shard| shard.0.write())
    }
}

impl<K, V, E, X> Shard<K, V, E, X> {
    #[inline(always)]
    pub(super) fn air(&mut self) -> &mut Air<K, V, E> {
        self.air.get_mut()
    }

    /// Does what is to be done when the load of a flight has ended.
    #[inline(always)]
    pub(super) fn settle<O: Settle<X>>(&mut self, place: Place, output: &mut O) -> Settled
    where
        K: Eq,
    {
        let Shard { kept, air } = self;
        let settle = || output.settle(kept, || air.get_mut().is_findable(place));
        catch_unwind(AssertUnwindSafe(settle))
    }
}

impl<K: Eq, V, E> Air<K, V, E> {
    /// The flight of this key that newcomers may join.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<(Place, &mut Seat<V, E>)>
    where
        K: Borrow<Q>,
    {
        let entry = self.joinable(hash, key)?;
        Some((Place { hash, number: entry.number }, &mut entry.seat))
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

    /// A new flight, for a key of which there is none that newcomers may join.
    #[inline]
    pub(super) fn begin(&mut self, hash: u64, key: K) -> Begun {
        let number = self.last + self.step;
        self.last = number;
        self.tally.flights += 1;
        let entry = Entry { key, hash, number, seat: Seat::Alone, forgotten: false };
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.insert(entry);
        }
        Begun { place: Place { hash, number }, spare: self.spare.take() }
    }

    #[inline(never)]
    fn insert(&mut self, entry: Entry<K, V, E>) {
        self.others.insert_unique(entry.hash, entry, |entry| entry.hash);
    }

    /// Takes the flight out and gives its key if it is the first, and nobody has joined it.
    #[inline]
    pub(super) fn remove_lonely(&mut self, place: Place) -> Option<K> {
        let is_lonely = |first: &mut Entry<K, V, E>| first.number == place.number && matches!(first.seat, Seat::Alone);
        let lonely = self.first.take_if(is_lonely)?;
        self.tally.ended(0);
        Some(lonely.key)
    }

    /// Keeps this place for the next load, unless there is one already: then it comes back.
    #[inline]
    pub(super) fn keep(&mut self, spare: Option<Spare>) -> Option<Spare> {
        if self.spare.is_some() {
            return spare;
        }
        self.spare = spare;
        None
    }

    /// A flight that is still in the air, forgotten or not.
    #[inline]
    fn entry(&mut self, place: Place) -> Option<&mut Entry<K, V, E>> {
        if self.first.as_ref().is_some_and(|first| first.number == place.number) {
            return self.first.as_mut();
        }
        self.others.find_mut(place.hash, |entry| entry.number == place.number)
    }

    /// The seat of a flight that is still in the air, forgotten or not.
    pub(super) fn seat(&mut self, place: Place) -> Option<&mut Seat<V, E>> {
        self.entry(place).map(|entry| &mut entry.seat)
    }

    /// Takes the flight out.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> Option<Removed<K, V, E>>
    where
        V: Clone,
    {
        let entry = match self.first.take_if(|first| first.number == place.number) {
            Some(first) => first,
            None => self.others.find_entry(place.hash, |entry| entry.number == place.number).ok()?.remove().0,
        };
        Some(entry.into_removed(&mut self.tally))
    }

    /// Takes the flight out, unless it has landed and lingers: then it gives what is shared of it.
    #[inline]
    pub(super) fn remove_unless_landed(&mut self, place: Place) -> Option<Ended<K, V, E>>
    where
        V: Clone,
    {
        if let Some(lingering) = self.entry(place)?.seat.landed() {
            return Some(Ended::Lingers(lingering));
        }
        self.remove(place).map(Ended::Removed)
    }

    /// Hides the flight of this key from newcomers.
    pub(super) fn forget<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.joinable(hash, key).map(|entry| entry.forgotten = true).is_some()
    }

    /// Hides all flights from newcomers.
    pub(super) fn forget_all(&mut self) {
        self.first.iter_mut().chain(self.others.iter_mut()).for_each(|entry| entry.forgotten = true);
    }

    /// Whether newcomers can find this flight.
    pub(super) fn is_findable(&mut self, place: Place) -> bool {
        self.entry(place).is_some_and(|entry| !entry.forgotten)
    }

    /// Hides this flight from newcomers.
    pub(super) fn hide(&mut self, place: Place) {
        if let Some(entry) = self.entry(place) {
            entry.forgotten = true;
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let in_air = usize::from(self.first.is_some()) + self.others.len();
        Stats { in_air: in_air as u64, ..self.tally }
    }
}
