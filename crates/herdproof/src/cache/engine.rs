//! Where entries are: a fast, weighted, scan-resistant map that knows nothing of time.
//!
//! Expiry is not its business, because an entry past its time may still be wanted. It is made of [shelves](super::shelf), so
//! that many can be at it at once.

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash},
    iter,
};

use super::{
    entry::Entry,
    shelf::{Gone, Scales, Shelf, Weigh},
};
use crate::{
    env::{Env, MapHasher},
    sync::RwLock,
};

/// How many entries a shelf is for, if they are not weighed: about as many as fit into its table before that grows. What
/// takes longest, to lay it out anew, takes as long in a large cache as in a small one.
const FULL: usize = 6400;
/// A shelf for fewer would be uneven.
const FEW: usize = 32;

pub(super) struct Engine<K, V, E> {
    shelves: Box<[Locked<K, V, E>]>,
    scales: Scales<K, V>,
}

/// Keeps neighbours off each other's cache lines.
#[repr(align(128))]
struct Locked<K, V, E>(RwLock<Shelf<K, V, E>>);

/// How large an engine is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// How many entries are expected.
    pub(super) entries: usize,
    /// What they may weigh together; their number, if they are not weighed.
    pub(super) weight: u64,
    /// Of how many shelves it is made at least, unless they would have too few entries each.
    pub(super) shelves: usize,
}

/// What came of putting an entry in. What had to go is dropped with it, when no lock is held.
#[must_use]
pub(super) struct Put<K, V, E> {
    pub(super) too_heavy: bool,
    pub(super) gone: Gone<K, V, E>,
}

impl<K, V, E> Engine<K, V, E>
where
    K: Hash + Eq,
    V: Clone,
{
    pub(super) fn new(env: &Env, size: Size, weigh: Option<Weigh<K, V>>) -> Engine<K, V, E> {
        let Size { entries, weight, shelves } = size;
        // What is weighed may be heavy: with many shelves less would fit into each.
        let most = if weigh.is_some() { shelves } else { shelves.max(entries.div_ceil(FULL)) };
        let shelves = most.min(entries / FEW).max(1);
        let (room, entries) = (weight.max(1).div_ceil(shelves as u64), entries.div_ceil(shelves));
        let shelf = |_| Locked(RwLock::new(Shelf::new(room, entries)));
        Engine { shelves: (0..shelves).map(shelf).collect(), scales: Scales { hasher: env.hasher("cache"), weigh } }
    }

    #[inline(always)]
    pub(super) fn get<Q>(&self, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shelf(hash).read().get(hash, |other| other.borrow() == key).cloned()
    }

    /// Without counting as a use.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shelf(hash).read().peek(hash, |other| other.borrow() == key).cloned()
    }

    pub(super) fn put(&self, key: K, entry: Entry<V, E>) -> Put<K, V, E> {
        let hash = self.hash(&key);
        let mut gone = Gone::default();
        let kept = self.shelf(hash).write().put(hash, key, entry, &self.scales, &mut gone);
        Put { too_heavy: !kept, gone }
    }

    pub(super) fn remove<Q>(&self, key: &Q) -> Option<(K, Entry<V, E>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.remove_if(key, |_| true)
    }

    pub(super) fn remove_if<Q>(&self, key: &Q, may: impl FnOnce(&Entry<V, E>) -> bool) -> Option<(K, Entry<V, E>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shelf(hash).write().remove_if(hash, |other| other.borrow() == key, may, &self.scales)
    }

    /// Changes an entry that is there, and which nobody changes meanwhile; but not what it weighs.
    pub(super) fn update(&self, key: &K, change: impl FnOnce(&mut Entry<V, E>)) {
        let hash = self.hash(key);
        self.shelf(hash).write().update(hash, key, change);
    }

    pub(super) fn clear(&self) {
        for shelf in &self.shelves {
            // Bound, so that the lock is not held when it is dropped.
            let gone = shelf.0.write().clear();
            drop(gone);
        }
    }

    /// All entries, each looked up by itself: no lock is held from one to the next. Those that are there all the while come at
    /// least once.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, Entry<V, E>)>
    where
        K: Clone,
    {
        let mut shelves = self.shelves.iter().peekable();
        let (mut bucket, mut layout) = (0, None);
        iter::from_fn(move || {
            loop {
                let shelf = shelves.peek()?.0.read();
                if layout != Some(shelf.layout()) {
                    (bucket, layout) = (0, Some(shelf.layout()));
                }
                if let Some((next, key, entry)) = shelf.next_from(bucket) {
                    bucket = next;
                    return Some((key.clone(), entry.clone()));
                }
                drop(shelf);
                layout = None;
                shelves.next();
            }
        })
    }

    pub(super) fn len(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.0.read().len()).sum()
    }

    pub(super) fn weighs(&self) -> u64 {
        self.shelves.iter().map(|shelf| shelf.0.read().weight()).sum()
    }

    #[inline(always)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher().hash_one(key)
    }

    #[inline(always)]
    fn hasher(&self) -> &MapHasher {
        &self.scales.hasher
    }

    #[inline(always)]
    fn shelf(&self, hash: u64) -> &RwLock<Shelf<K, V, E>> {
        // The table inside uses the low bits and the top seven. Of the others alone, some seeds make parts of which one is a
        // quarter fuller than the rest, so all take part.
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = usize::try_from((mixed * self.shelves.len() as u64) >> 32).unwrap_or(0);
        &self.shelves[index].0
    }
}

impl<K, V, E> fmt::Debug for Engine<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("shelves", &self.shelves.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use super::{
        super::{
            Cache,
            entry::{Content, Life},
        },
        *,
    };
    use crate::env::{Tick, sim::Sim};

    fn entry(value: u64) -> Entry<u64, ()> {
        let life = Life::begin(Tick::ZERO, Duration::from_secs(60), Duration::ZERO, Duration::ZERO, 0.0);
        Entry::new(life, Content::Value(value, None))
    }

    #[test]
    fn who_goes_through_all_entries_misses_none_though_the_tables_grow_meanwhile() {
        let size = Size { entries: 100_000, weight: 100_000, shelves: 4 };
        let engine: Engine<u64, u64, ()> = Engine::new(&Sim::new(1).env(), size, None);
        (0..1_000).for_each(|key| drop(engine.put(key, entry(key))));
        let (mut seen, mut others) = (HashSet::new(), 1_000..60_000);
        for (key, _) in engine.iter() {
            seen.insert(key);
            others.by_ref().take(10).for_each(|key| drop(engine.put(key, entry(key))));
        }
        assert!((0..1_000).all(|key| seen.contains(&key)));
        engine.clear();
        assert_eq!((engine.iter().count(), engine.len(), engine.weighs()), (0, 0, 0));
    }

    /// A value that asks its cache something when it is dropped.
    #[derive(Clone)]
    struct Curious(#[expect(dead_code, reason = "it is dropped")] Arc<Farewell>);

    struct Farewell(Arc<Mutex<Option<Cache<u64, Curious>>>>);

    impl Drop for Farewell {
        fn drop(&mut self) {
            let cache = self.0.lock().unwrap().clone();
            if let Some(cache) = cache {
                (0..64).for_each(|key| drop(cache.peek(&key)));
            }
        }
    }

    #[test]
    fn what_has_to_go_may_come_back_to_the_cache_while_it_is_dropped() {
        let known = Arc::new(Mutex::new(None));
        let cache: Cache<u64, Curious> = Cache::builder(&Sim::new(1).env()).capacity(16).build();
        *known.lock().unwrap() = Some(cache.clone());
        let value = || Curious(Arc::new(Farewell(Arc::clone(&known))));
        (0..64).for_each(|key| cache.set(key, value()));
        (48..64).for_each(|key| cache.set(key, value()));
        cache.invalidate(&60);
        cache.clear();
        assert_eq!(cache.stats().entries, 0);
        known.lock().unwrap().take();
    }
}
