//! The shards of a cache: entries, and the loads of them in progress under the same lock.
//!
//! A leader sees under that lock what is there when its load begins, and what was loaded is put in under it when the load
//! ends. So nobody loads what is there already, and nothing comes between a change of an entry and the end of the loads that
//! it makes out of date. Expiry is not decided here, because an entry past its time may still be wanted.

use std::{borrow::Borrow, convert::Infallible, hash::Hash, iter};

use parking_lot::Mutex;

use super::{
    entry::{Entry, Life},
    fill::Loaded,
    s3_fifo::{Gone, Item, S3Fifo, Scales, State, Weigh},
};
use crate::{
    bravo::{BiasedRwLock, WriteGuard},
    env::{Env, Tick, part_of},
    inflight::{HasLoads, Loads},
};

/// How many entries a shard is for, if they are not weighed: two thirds of its table. In a fuller one, most removals leave a
/// tombstone, and the table is rehashed all the time. A rehash is also what holds a shard's lock longest, so it takes as long
/// in a large cache as in a small one.
const FULL: usize = 5600;
/// A shard for fewer would be uneven.
const FEW: usize = 32;
/// More shards than this would take much memory in a cache that has no bound in practice.
const MOST_SHARDS: usize = 4096;

pub(super) struct Engine<K, V, E> {
    shards: Box<[Locked<K, V, E>]>,
    pub(super) scales: Scales<K, V>,
}

/// Keeps neighbours off each other's cache lines.
#[repr(align(128))]
struct Locked<K, V, E>(BiasedRwLock<Shard<K, V, E>>);

// In this order, because the entries are read at every hit: so they are next to the lock.
#[repr(C)]
pub(super) struct Shard<K, V, E> {
    pub(super) entries: S3Fifo<K, V, E>,
    /// Never locked: only who has the shard to write gets at it, so it may hold what is not `Sync`.
    loads: Mutex<Loads<K, Loaded<V, E>, Infallible>>,
}

impl<K, V, E> HasLoads<K, Loaded<V, E>, Infallible> for Shard<K, V, E> {
    #[inline(always)]
    fn loads(&mut self) -> &mut Loads<K, Loaded<V, E>, Infallible> {
        self.loads.get_mut()
    }
}

/// A shard, locked to write.
type Writing<'a, K, V, E> = WriteGuard<'a, Shard<K, V, E>>;

/// An entry as a look-up finds it.
pub(super) struct Found<V, E> {
    pub(super) entry: Entry<V, E>,
    pub(super) state: State,
}

/// How large an engine is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// How many entries are expected.
    pub(super) entries: usize,
    /// What they may weigh together; their number, if they are not weighed.
    pub(super) weight: u64,
    /// How many shards there are at least, unless they would have too few entries each.
    pub(super) shards: usize,
}

impl<K, V, E> Engine<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) fn new(env: &Env, size: Size, weigh: Option<Weigh<K, V>>) -> Engine<K, V, E> {
        let Size { entries, weight, shards } = size;
        // What is weighed may be heavy: with many shards less would fit into each.
        let most = if weigh.is_some() { shards } else { shards.max(entries.div_ceil(FULL)).min(MOST_SHARDS) };
        let shards = most.min(entries / FEW).max(1) as u64;
        let room = weight.max(1).div_ceil(shards);
        let shard = |shard| Shard { entries: S3Fifo::new(room), loads: Mutex::new(Loads::new(shard, shards)) };
        Engine {
            shards: (0..shards).map(|index| Locked(BiasedRwLock::new(shard(index)))).collect(),
            scales: Scales { hasher: env.hasher("cache"), weigh },
        }
    }

    #[inline(always)]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.scales.hash(key)
    }

    #[inline(always)]
    fn locked(&self, hash: u64) -> &BiasedRwLock<Shard<K, V, E>> {
        &self.shards[part_of(hash, self.shards.len())].0
    }

    /// The shard of the keys with this hash, to write.
    #[inline(always)]
    pub(super) fn shard(&self, hash: u64) -> Writing<'_, K, V, E> {
        self.locked(hash).write()
    }

    /// The entry of a key with this hash; a use of it.
    #[inline(always)]
    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<Found<V, E>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.locked(hash).read(|shard| shard.get(hash, key))
    }

    /// As [`get`](Engine::get) if the shard was read since it was written. Else nothing is found: the next to look may well have
    /// to write too, and then looks under that lock.
    #[inline(always)]
    pub(super) fn get_again<Q>(&self, hash: u64, key: &Q) -> Option<Found<V, E>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.locked(hash).find_again(|shard| shard.get(hash, key))
    }

    /// The entry of a key with this hash, looked up under the lock that a load of it needs; without one, that lock.
    #[inline(always)]
    pub(super) fn get_or_lock<Q>(&self, hash: u64, key: &Q) -> Result<Found<V, E>, Writing<'_, K, V, E>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let locked = self.locked(hash);
        let shard = locked.write();
        let Some(found) = shard.get(hash, key) else { return Err(shard) };
        locked.was_read();
        Ok(found)
    }

    /// Not as a use.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<Entry<V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.locked(hash).read(|shard| Some(shard.entries.peek(hash, |other| other.borrow() == key)?.0.clone()))
    }

    /// Claims the refresh of an entry; see [`S3Fifo::claim`].
    pub(super) fn claim<Q>(&self, hash: u64, key: &Q, now: Tick, until: Tick) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.locked(hash).read(|shard| shard.entries.claim(hash, |other| other.borrow() == key, now, until))
    }

    /// Puts an entry in. A load of it that is in progress fills nothing.
    pub(super) fn put(&self, key: K, entry: Entry<V, E>) -> Gone<K, V, E> {
        let (hash, weight, mut gone) = (self.hash(&key), self.scales.weight(&key, &entry), Gone::default());
        let mut shard = self.shard(hash);
        shard.loads().forget(hash, &key);
        shard.entries.put(hash, Item { key, entry }, weight, &self.scales, &mut gone);
        drop(shard);
        gone
    }

    /// Removes an entry. A load of it that is in progress fills nothing.
    pub(super) fn remove<Q>(&self, key: &Q) -> Option<Item<K, V, E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        shard.loads().forget(hash, key);
        shard.entries.remove_if(hash, |other| other.borrow() == key, |_| true)
    }

    /// Removes an entry because it is of no more use. Loads of it are not concerned.
    pub(super) fn remove_if(&self, key: &K, may: impl FnOnce(&Entry<V, E>) -> bool) -> Option<Item<K, V, E>> {
        let hash = self.hash(key);
        self.shard(hash).entries.remove_if(hash, |other| other == key, may)
    }

    /// Changes an entry that is there, but not its weight. What comes of that is given back when no lock is held.
    pub(super) fn update<T>(&self, key: &K, change: impl FnOnce(&mut Entry<V, E>) -> T) -> Option<T> {
        let hash = self.hash(key);
        self.shard(hash).entries.update(hash, key, change)
    }

    /// Removes all entries. Loads that are in progress fill nothing.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.0.write();
            shard.loads().forget_all();
            let gone = shard.entries.clear();
            drop(shard);
            drop(gone);
        }
    }

    /// The keys and times of all entries, each looked up by itself: no lock is held from one to the next. Those that are there
    /// all the while come at least once.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, Life)> {
        let (mut part, mut bucket, mut layout) = (0, 0, None);
        iter::from_fn(move || {
            loop {
                let next = self.shards.get(part)?.0.read(|Shard { entries, .. }| {
                    if layout != Some(entries.layout()) {
                        (bucket, layout) = (0, Some(entries.layout()));
                    }
                    let (next, key, entry) = entries.next_from(bucket)?;
                    bucket = next;
                    Some((key.clone(), entry.life()))
                });
                if next.is_some() {
                    return next;
                }
                (part, layout) = (part + 1, None);
            }
        })
    }

    pub(super) fn len(&self) -> usize {
        self.each(S3Fifo::len).sum()
    }

    pub(super) fn weighs(&self) -> u64 {
        self.each(S3Fifo::weight).sum()
    }

    /// How many entries were evicted so far.
    pub(super) fn evicted(&self) -> u64 {
        self.each(S3Fifo::evicted).sum()
    }

    /// How many loads are in progress.
    #[cfg(test)]
    pub(super) fn in_progress(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.write().loads().stats().in_air).sum()
    }

    fn each<R>(&self, read: impl Fn(&S3Fifo<K, V, E>) -> R) -> impl Iterator<Item = R> {
        self.shards.iter().map(move |shard| shard.0.read(|shard| read(&shard.entries)))
    }
}

impl<K: Hash + Eq, V: Clone, E> Shard<K, V, E> {
    #[inline(always)]
    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<Found<V, E>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let (entry, state) = self.entries.get(hash, |other| other.borrow() == key)?;
        Some(Found { entry: entry.clone(), state })
    }

    /// Not as a use.
    pub(super) fn peek(&self, hash: u64, key: &K) -> Option<Found<V, E>> {
        let (entry, state) = self.entries.peek(hash, |other| other == key)?;
        Some(Found { entry: entry.clone(), state })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        ops::Range,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
        time::Duration,
    };

    use super::{
        super::{
            Cache,
            entry::{Content, Life},
            outcome::{Keep, Label},
        },
        *,
    };
    use crate::env::{Tick, sim::Sim};

    fn entry(value: u64) -> Entry<u64, ()> {
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, None);
        Entry::new(life, Content::Value(value, None))
    }

    #[test]
    fn who_goes_through_all_entries_misses_none_though_the_tables_grow_meanwhile() {
        for seed in 0..20 {
            let (env, size) = (Sim::new(seed).env(), Size { entries: 6_400, weight: 6_400, shards: 1 });
            let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None);
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
        let size = Size { entries: 100, weight: 100, shards: 1 };
        let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None);
        let hash = engine.hash(&1);
        for value in 0..3 {
            drop(engine.put(1, entry(value)));
            assert!(engine.get_again(hash, &1).is_none(), "it looks again, with the other lock");
            let Ok(found) = engine.get_or_lock(hash, &1) else { panic!("it is there") };
            assert_eq!(found.entry.value(), Some(&value));
            assert!(engine.get_again(hash, &1).is_some());
        }
    }

    #[test]
    fn nothing_is_left_of_what_was_cleared() {
        let env = Sim::new(1).env();
        let size = Size { entries: 1_000, weight: 1_000, shards: 4 };
        let engine: Engine<u64, u64, ()> = Engine::new(&env, size, None);
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

    /// A value that counts how often it is cloned and dropped.
    struct Counted(Arc<AtomicU32>);

    impl Clone for Counted {
        fn clone(&self) -> Counted {
            self.0.fetch_add(1, Relaxed);
            Counted(Arc::clone(&self.0))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn an_entry_whose_time_is_cut_short_under_the_lock_has_no_value_dropped_there() {
        let env = Sim::new(1).env();
        let engine: Engine<u64, Counted, ()> = Engine::new(&env, Size { entries: 10, weight: 10, shards: 1 }, None);
        let (count, second) = (Arc::new(AtomicU32::new(0)), Tick::from_nanos(1_000_000_000));
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, None);
        let label = Arc::new(Label { tags: Box::default(), keep: Keep::default() });
        for label in [None, Some(label)] {
            let entry = Entry::new(life, Content::Value(Counted(Arc::clone(&count)), label.clone()));
            drop(engine.put(1, entry));
            count.store(0, Relaxed);
            let expire = |at| {
                let under_the_lock = |entry: &mut Entry<_, _>| (entry.expire(at), count.swap(0, Relaxed));
                engine.update(&1, under_the_lock).unwrap()
            };
            assert!(matches!(expire(second + Duration::from_secs(1)), (None, 0)));
            // Somebody holds it who will let go of it first.
            let held = engine.peek(&1).unwrap();
            count.store(0, Relaxed);
            let at_once = engine.update(&1, |entry| {
                let replaced = entry.expire(second);
                count.store(0, Relaxed);
                drop(held);
                (replaced, count.load(Relaxed))
            });
            assert_eq!(at_once.unwrap().1, u32::from(label.is_none()), "the reader's own clone of a plain value");
            assert_eq!(engine.peek(&1).unwrap().life().fresh_until, second);
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
