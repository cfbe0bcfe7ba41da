//! Where entries are: a fast, weighted, scan-resistant map that knows nothing of time.
//!
//! Expiry is not its business, because an entry past its time may still be wanted. It is `quick_cache`; nothing outside of
//! this file knows.

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use quick_cache::{
    Equivalent, Lifecycle, OptionsBuilder, Weighter,
    sync::{self, EntryAction},
};

use super::entry::Entry;
use crate::env::{Env, MapHasher};

/// What an entry without a value weighs, if the others are weighed: about what it takes.
const NO_VALUE: u64 = 64;

/// Weighs a value, in bytes say.
pub(super) type Weigh<K, V> = Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>;

pub(super) struct Engine<K, V, E> {
    map: sync::Cache<K, Entry<V, E>, Scales<K, V>, MapHasher, Leaving>,
    weigh: Option<Weigh<K, V>>,
    hasher: MapHasher,
    /// What is heavier than this is not kept.
    heaviest: u64,
}

/// How large an engine is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// How many entries are expected.
    pub(super) entries: usize,
    /// What they may weigh together; their number, if they are not weighed.
    pub(super) weight: u64,
    pub(super) shards: usize,
}

/// What came of putting an entry in. What had to go is dropped with it, when no lock is held.
#[must_use]
pub(super) struct Put<K, V, E> {
    /// How many others had to go.
    pub(super) evicted: u64,
    pub(super) too_heavy: bool,
    _gone: Gone<K, V, E>,
}

struct Scales<K, V>(Option<Weigh<K, V>>);

#[derive(Clone)]
struct Leaving(MapHasher);

/// Entries that have left. The first has a place of its own, because most often there is one or none.
struct Gone<K, V, E> {
    /// The hash of the key that was put in. What leaves under it was replaced, or is too heavy itself.
    put: Option<u64>,
    others_left: u64,
    first: Option<(K, Entry<V, E>)>,
    others: Vec<(K, Entry<V, E>)>,
}

/// A key to look for on behalf of `L`, which is nothing but a name: the look-up is compiled once for each, so that it becomes
/// part of its only caller instead of being called by all.
pub(super) struct Sought<'a, Q: ?Sized, L> {
    key: &'a Q,
    by: PhantomData<fn(L)>,
}

impl<'a, Q: ?Sized, L> Sought<'a, Q, L> {
    #[inline]
    pub(super) fn new(key: &'a Q) -> Sought<'a, Q, L> {
        Sought { key, by: PhantomData }
    }
}

impl<Q: Hash + ?Sized, L> Hash for Sought<'_, Q, L> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl<K: Borrow<Q>, Q: Eq + ?Sized, L> Equivalent<K> for Sought<'_, Q, L> {
    #[inline]
    fn equivalent(&self, key: &K) -> bool {
        self.key == key.borrow()
    }
}

impl<K, V, E> Engine<K, V, E>
where
    K: Hash + Eq,
    V: Clone,
{
    pub(super) fn new(env: &Env, size: Size, weigh: Option<Weigh<K, V>>) -> Engine<K, V, E> {
        let Size { entries, weight, shards } = size;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(entries.max(1))
            .weight_capacity(weight.max(1))
            .shards(shards.max(1))
            .build()
            .unwrap_or_else(|_| unreachable!("all that must be said was said"));
        let hasher = env.hasher("cache");
        let map = sync::Cache::with_options(options, Scales(weigh.clone()), hasher.clone(), Leaving(hasher.clone()));
        // An entry has to fit into the part of a shard that is for those in use.
        let capacity = map.shard_capacity();
        let heaviest = capacity / 100 * HOT + capacity % 100 * HOT / 100;
        Engine { map, weigh, hasher, heaviest }
    }

    #[inline]
    pub(super) fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Entry<V, E>> {
        self.map.get(key)
    }

    /// Without counting as a use.
    pub(super) fn peek<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Entry<V, E>> {
        self.map.peek(key)
    }

    pub(super) fn put(&self, key: K, entry: Entry<V, E>) -> Put<K, V, E> {
        let too_heavy = self.weigh.is_some() && self.weight(&key, &entry) > self.heaviest;
        let mut gone = Gone { put: Some(self.hasher.hash_one(&key)), ..Gone::default() };
        self.map.insert_with_lifecycle(key, entry, &mut gone);
        Put { evicted: gone.others_left, too_heavy, _gone: gone }
    }

    pub(super) fn remove<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<(K, Entry<V, E>)> {
        self.map.remove(key)
    }

    pub(super) fn remove_if<Q>(&self, key: &Q, is: impl FnOnce(&Entry<V, E>) -> bool) -> Option<(K, Entry<V, E>)>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.map.remove_if(key, is)
    }

    /// Changes an entry that is there, and which nobody changes meanwhile.
    pub(super) fn update(&self, key: &K, change: impl FnOnce(&mut Entry<V, E>))
    where
        K: Clone,
    {
        // If it is not there any more, what this gives holds a place for it, and gives it up when dropped.
        drop(self.map.entry(key, Some(Duration::ZERO), |_, entry| {
            change(entry);
            EntryAction::Retain(())
        }));
    }

    pub(super) fn clear(&self) {
        self.map.clear();
    }

    /// All entries, each looked up by itself: no lock is held from one to the next.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, Entry<V, E>)>
    where
        K: Clone,
    {
        self.map.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn weighs(&self) -> u64 {
        self.map.weight()
    }

    fn weight(&self, key: &K, entry: &Entry<V, E>) -> u64 {
        weight(self.weigh.as_ref(), key, entry)
    }
}

/// The percentage of an engine that is for entries in use, as `quick_cache` has it unless told otherwise.
const HOT: u64 = 97;

fn weight<K, V: Clone, E>(weigh: Option<&Weigh<K, V>>, key: &K, entry: &Entry<V, E>) -> u64 {
    let Some(weigh) = weigh else { return 1 };
    entry.value().map_or(NO_VALUE, |value| weigh(key, value).max(1))
}

impl<K, V: Clone, E> Weighter<K, Entry<V, E>> for Scales<K, V> {
    fn weight(&self, key: &K, entry: &Entry<V, E>) -> u64 {
        weight(self.0.as_ref(), key, entry)
    }
}

impl<K, V> Clone for Scales<K, V> {
    fn clone(&self) -> Self {
        Scales(self.0.clone())
    }
}

impl<K: Hash, V, E> Lifecycle<K, Entry<V, E>> for Leaving {
    type RequestState = Gone<K, V, E>;

    fn on_evict(&self, gone: &mut Gone<K, V, E>, key: K, entry: Entry<V, E>) {
        gone.others_left += u64::from(gone.put != Some(self.0.hash_one(&key)));
        if gone.first.is_none() {
            gone.first = Some((key, entry));
        } else {
            gone.others.push((key, entry));
        }
    }
}

impl<K, V, E> Default for Gone<K, V, E> {
    fn default() -> Self {
        Gone { put: None, others_left: 0, first: None, others: Vec::new() }
    }
}

impl<K, V, E> fmt::Debug for Engine<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("heaviest", &self.heaviest).finish_non_exhaustive()
    }
}
