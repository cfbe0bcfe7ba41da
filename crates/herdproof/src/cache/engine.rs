//! Where entries are, and loads of them on their way: a fast, weighted, scan-resistant map that knows nothing of time.
//!
//! Expiry is not its business, because an entry past its time may still be wanted. It is made of [shelves](super::shelf), so
//! that many can be at it at once. The lock of a shelf is that of the loads of its keys too: whoever begins a load sees under
//! it what is there, and what was loaded is put in under it when the load ends. So nobody loads what is there already, and
//! nothing comes between a change of an entry and the end of the loads that it makes out of date.

use std::{borrow::Borrow, convert::Infallible, hash::Hash, iter};

use super::{
    entry::Entry,
    load::Loaded,
    shelf::{Gone, Scales, Shelf, Weigh},
};
use crate::{
    env::Env,
    flight::{Group, GroupBuilder, Lead},
};

/// How many entries a shelf is for, if they are not weighed: two thirds of its table. In one that is fuller, most of those
/// that go leave a gap that no other can take, and it has to be laid out anew all the time. That is also what takes longest,
/// and so it takes as long in a large cache as in a small one.
const FULL: usize = 5600;
/// A shelf for fewer would be uneven.
const FEW: usize = 32;
/// More shelves than this would take much memory in a cache that has no bound in practice.
const SHELVES: usize = 4096;

/// Loads on their way, with the shelves that their keys belong to.
type Loads<K, V, E> = Group<K, Loaded<V, E>, Infallible, Shelf<K, V, E>>;
/// A load that is to begin.
pub(super) type Leading<'a, K, V, E> = Lead<'a, K, Loaded<V, E>, Infallible, Shelf<K, V, E>>;
/// An entry, or the lead of a load, unless there is one.
type EntryOrLead<'a, K, V, E> = Result<Option<Leading<'a, K, V, E>>, Entry<V, E>>;

pub(super) struct Engine<K, V, E> {
    pub(super) loads: Loads<K, V, E>,
    pub(super) scales: Scales<K, V>,
}

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

impl<K, V, E> Engine<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) fn new(env: &Env, size: Size, weigh: Option<Weigh<K, V>>, loads: GroupBuilder) -> Engine<K, V, E> {
        let Size { entries, weight, shelves } = size;
        // What is weighed may be heavy: with many shelves less would fit into each.
        let most = if weigh.is_some() { shelves } else { shelves.max(entries.div_ceil(FULL)).min(SHELVES) };
        let shelves = most.min(entries / FEW).max(1);
        let room = weight.max(1).div_ceil(shelves as u64);
        let hasher = env.hasher("cache");
        Engine {
            loads: loads.build_keeping(hasher.clone(), shelves, || Shelf::new(room)),
            scales: Scales { hasher, weigh },
        }
    }

    #[inline(always)]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.loads.hash(key)
    }

    /// The entry of a key with this hash.
    #[inline(always)]
    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.loads.read(hash, |shelf| shelf.get(hash, |other| other.borrow() == key).cloned())
    }

    /// As [`get`](Engine::get), but it may not find what is there, if whoever came last has changed something.
    #[inline(always)]
    pub(super) fn get_again<Q>(&self, hash: u64, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.loads.find_again(hash, |shelf| shelf.get(hash, |other| other.borrow() == key).cloned())
    }

    /// The entry of a key with this hash, or else the lead of a load of it, unless there is one already.
    #[inline(always)]
    pub(super) fn get_or_lead<Q>(&self, hash: u64, key: &Q) -> EntryOrLead<'_, K, V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.loads.find_or_lead(hash, key, |shelf| shelf.get(hash, |other| other.borrow() == key).cloned())
    }

    /// Without counting as a use.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.loads.read(hash, |shelf| shelf.peek(hash, |other| other.borrow() == key).cloned())
    }

    /// Puts an entry in. A load of it that is under way fills nothing.
    pub(super) fn put(&self, key: K, entry: Entry<V, E>) -> Gone<K, V, E> {
        // Kept until the lock is not held any more, because to drop it may do anything.
        let sought = key.clone();
        let mut gone = Gone::default();
        self.loads.forget_and(&sought, |hash, shelf| shelf.put(hash, key, entry, &self.scales, &mut gone));
        gone
    }

    /// Takes an entry away. A load of it that is under way fills nothing.
    pub(super) fn remove<Q>(&self, key: &Q) -> Option<(K, Entry<V, E>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.loads
            .forget_and(key, |hash, shelf| shelf.remove_if(hash, |other| other.borrow() == key, |_| true, &self.scales))
    }

    /// Takes an entry away because it is of no more use. Loads of it are not concerned.
    pub(super) fn remove_if(&self, key: &K, may: impl FnOnce(&Entry<V, E>) -> bool) -> Option<(K, Entry<V, E>)> {
        let hash = self.hash(key);
        self.loads.write(hash, |shelf| shelf.remove_if(hash, |other| other == key, may, &self.scales))
    }

    /// Changes an entry that is there, and which nobody changes meanwhile; but not what it weighs.
    pub(super) fn update(&self, key: &K, change: impl FnOnce(&mut Entry<V, E>)) {
        let hash = self.hash(key);
        self.loads.write(hash, |shelf| shelf.update(hash, key, change));
    }

    /// Takes all entries away. Loads that are under way fill nothing.
    pub(super) fn clear(&self) {
        self.loads.forget_all_and(Shelf::clear);
    }

    /// All entries, each looked up by itself: no lock is held from one to the next. Those that are there all the while come at
    /// least once.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, Entry<V, E>)> {
        let (mut part, mut bucket, mut layout) = (0, 0, None);
        iter::from_fn(move || {
            loop {
                let next = self.loads.read_nth(part, |shelf| {
                    if layout != Some(shelf.layout()) {
                        (bucket, layout) = (0, Some(shelf.layout()));
                    }
                    let (next, key, entry) = shelf.next_from(bucket)?;
                    bucket = next;
                    Some((key.clone(), entry.clone()))
                })?;
                if next.is_some() {
                    return next;
                }
                (part, layout) = (part + 1, None);
            }
        })
    }

    pub(super) fn len(&self) -> usize {
        self.each(Shelf::len).sum()
    }

    pub(super) fn weighs(&self) -> u64 {
        self.each(Shelf::weight).sum()
    }

    /// How many entries had to make room so far.
    pub(super) fn evicted(&self) -> u64 {
        self.each(Shelf::evicted).sum()
    }

    fn each<R>(&self, read: impl Fn(&Shelf<K, V, E>) -> R) -> impl Iterator<Item = R> {
        (0..).map_while(move |part| self.loads.read_nth(part, &read))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        ops::Range,
        sync::{Arc, Mutex},
    };

    use super::{
        super::{
            Cache,
            entry::{Content, Early, Life},
        },
        *,
    };
    use crate::env::{Tick, sim::Sim};

    fn entry(value: u64) -> Entry<u64, ()> {
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, Early::NEVER);
        Entry::new(life, Content::Value(value, None))
    }

    #[test]
    fn who_goes_through_all_entries_misses_none_though_the_tables_grow_meanwhile() {
        for seed in 0..20 {
            let (env, size) = (Sim::new(seed).env(), Size { entries: 6_400, weight: 6_400, shelves: 1 });
            let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None, Group::builder(&env));
            let put = |keys: Range<u64>| keys.for_each(|key| drop(engine.put(key, entry(key))));
            // As full as its table can be, so that many lie behind where they belong, and go back there when it grows.
            put(0..3_580);
            let mut entries = engine.iter();
            let mut seen: HashSet<u64> = entries.by_ref().take(1_800).map(|(key, _)| key).collect();
            put(10_000..10_010);
            seen.extend(entries.map(|(key, _)| key));
            assert!((0..3_580).all(|key| seen.contains(&key)), "seed {seed}");
        }
    }

    #[test]
    fn only_the_first_look_after_a_change_is_under_the_lock_that_changes_need() {
        let env = Sim::new(1).env();
        let size = Size { entries: 100, weight: 100, shelves: 1 };
        let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None, Group::builder(&env));
        let hash = engine.hash(&1);
        for value in 0..3 {
            drop(engine.put(1, entry(value)));
            assert!(engine.get_again(hash, &1).is_none(), "it looks again, with the other lock");
            let found = engine.get_or_lead(hash, &1).err().unwrap();
            assert_eq!(found.value(), Some(&value));
            assert!(engine.get_again(hash, &1).is_some());
        }
    }

    #[test]
    fn nothing_is_left_of_what_was_cleared() {
        let env = Sim::new(1).env();
        let size = Size { entries: 1_000, weight: 1_000, shelves: 4 };
        let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None, Group::builder(&env));
        (0..1_000).for_each(|key| drop(engine.put(key, entry(key))));
        engine.clear();
        assert_eq!((engine.iter().count(), engine.len(), engine.weighs()), (0, 0, 0));
    }

    #[test]
    fn a_cache_without_a_bound_in_practice_takes_no_room_beforehand() {
        let env = Sim::new(1).env();
        let cache: Cache<u64, u64> = Cache::builder(&env).capacity(usize::MAX).build();
        (0..1_000).for_each(|key| cache.set(key, key));
        assert_eq!((cache.len(), cache.stats().evictions), (1_000, 0));
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
