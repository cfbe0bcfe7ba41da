//! One small state for each key, for as long as it matters, in bounded memory.
//!
//! A limit for each client, a breaker for each host: a map from key to state, and whoever invents keys decides how large it
//! gets. Here it has a bound, and three rules keep it small and its pauses short:
//!
//! - A state says from when on it holds nothing that a new one would not ([`Fades`]). A rate limit whose burst is whole
//!   again is such a one. Every insertion looks at a few entries and drops those that have faded, so the map holds about
//!   the keys that matter at present, and nobody ever sweeps all of it.
//! - At the bound, with none of those faded, the one among them that would have faded first goes: the least is
//!   forgotten. Its key begins anew.
//! - A shard has at most [`FULL`] entries, however many shards that takes. What takes longest, growing one, takes as long
//!   for a million keys as for a thousand.
//!
//! The bound is kept by each shard for its part. Keys do not fall into shards evenly, so a map within a few percent of its
//! bound drops keys though others have room: set the bound above the number of keys that are expected to matter.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use hashbrown::HashTable;

use crate::{
    env::{Env, MapHasher, Tick, part_of},
    sync::{Mutex, MutexGuard},
};

/// The most entries of a shard: what a table of 8192 buckets holds without growing. With smaller ones a thousand keys would lie
/// scattered over more memory than is near to a core.
const FULL: usize = 7168;
/// Four megabytes of shards, for as many keys as fit into memory; beyond that they are fuller.
const MOST_SHARDS: usize = 1 << 16;
/// How many buckets an insertion looks at.
const LOOKS: usize = 4;
/// Among how many entries the one to drop at the bound is chosen.
const CANDIDATES: usize = 8;

/// What is kept for a key.
pub(crate) trait Fades {
    /// From when on it holds nothing that a new one would not, if nothing happens to it until then.
    fn fades_at(&self) -> Tick;
}

/// A bounded map; see the [module](self).
pub(crate) struct Keyed<K, S> {
    hasher: MapHasher,
    shards: Box<[Locked<K, S>]>,
    /// The most entries of a shard here.
    quota: usize,
}

/// One cache line each.
#[repr(align(64))]
struct Locked<K, S>(Mutex<Shard<K, S>>);

struct Shard<K, S> {
    table: HashTable<Entry<K, S>>,
    /// The bucket to look at next.
    hand: usize,
}

/// The key is hashed again when its shard grows: that is rare, and every entry is eight bytes smaller.
struct Entry<K, S> {
    key: K,
    state: S,
}

/// What was dropped to make room, to be let go of when the lock is not held.
type Gone<K, S> = [Option<Entry<K, S>>; LOOKS];

impl<K: Hash + Eq, S: Fades> Keyed<K, S> {
    /// An empty one with room for this many keys, one at least. The name is that of its hasher's stream.
    pub(crate) fn new(env: &Env, name: &str, most: usize) -> Keyed<K, S> {
        let most = most.max(1);
        let shards = most.div_ceil(FULL).min(MOST_SHARDS);
        let shard = |_| Locked(Mutex::new(Shard { table: HashTable::new(), hand: 0 }));
        Keyed { hasher: env.hasher(name), shards: (0..shards).map(shard).collect(), quota: most / shards }
    }

    /// The key's hash, for [`with`](Keyed::with) and [`with_known`](Keyed::with_known).
    #[inline]
    pub(crate) fn hash<Q>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.hasher.hash_one(key)
    }

    /// Acts on the state of the key with this hash, made first if there is none. The key is copied only then.
    ///
    /// Runs under the lock of the key's shard: `act` must be short and must not come back here.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "else what `act` needs is written to memory, and a lock waits until that is done"
    )]
    pub(crate) fn with<Q, R>(
        &self,
        hash: u64,
        key: &Q,
        now: Tick,
        make: impl FnOnce() -> S,
        act: impl FnOnce(&mut S) -> R,
    ) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut shard = self.shard(hash);
        match shard.table.find_mut(hash, |entry| entry.key.borrow() == key) {
            Some(entry) => act(&mut entry.state),
            None => {
                let mut state = make();
                let result = act(&mut state);
                self.insert(shard, hash, Entry { key: key.to_owned(), state }, now);
                result
            }
        }
    }

    /// Apart from those that are there, who need none of its registers.
    #[cold]
    #[inline(never)]
    fn insert(&self, mut shard: MutexGuard<'_, Shard<K, S>>, hash: u64, entry: Entry<K, S>, now: Tick) {
        let gone = shard.make_room(now, self.quota);
        shard.table.insert_unique(hash, entry, |entry| self.hasher.hash_one(&entry.key));
        drop(shard);
        drop(gone);
    }

    /// Acts on the state of the key with this hash if it is there still. For whoever has come back to settle something and
    /// did not keep the key.
    pub(crate) fn with_known<R>(&self, hash: u64, act: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut shard = self.shard(hash);
        let entry = shard.table.find_mut(hash, |entry| self.hasher.hash_one(&entry.key) == hash)?;
        Some(act(&mut entry.state))
    }

    /// How many keys have a state.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().table.len()).sum()
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, S>> {
        self.shards[part_of(hash, self.shards.len())].0.lock()
    }
}

impl<K, S: Fades> Shard<K, S> {
    /// Looks at the next few buckets and drops what has faded there; at the bound it drops one entry in any case.
    fn make_room(&mut self, now: Tick, quota: usize) -> Gone<K, S> {
        let mut gone = [const { None }; LOOKS];
        let full = self.table.len() >= quota;
        let mut soonest = None;
        let buckets = self.table.num_buckets();
        let (mut looks, mut seen, mut dropped) = (0, 0, 0);
        while looks < buckets && (looks < LOOKS || (full && dropped == 0 && seen < CANDIDATES)) {
            let bucket = self.hand % buckets;
            self.hand = bucket + 1;
            looks += 1;
            let Ok(entry) = self.table.get_bucket_entry(bucket) else { continue };
            let fades = entry.get().state.fades_at();
            seen += 1;
            if fades <= now {
                // Who looks on stops with the first, so there is room for all.
                gone[dropped] = Some(entry.remove().0);
                dropped += 1;
            } else if soonest.is_none_or(|(least, _)| fades < least) {
                soonest = Some((fades, bucket));
            }
        }
        if full
            && dropped == 0
            && let Some((_, bucket)) = soonest
            && let Ok(entry) = self.table.get_bucket_entry(bucket)
        {
            gone[0] = Some(entry.remove().0);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::env::sim::Sim;

    const SECOND: Duration = Duration::from_secs(1);

    /// A state that fades then, and how often its key came.
    struct Until(Tick, u32);

    impl Fades for Until {
        fn fades_at(&self) -> Tick {
            self.0
        }
    }

    fn at(seconds: u32) -> Tick {
        Tick::ZERO + SECOND * seconds
    }

    fn keyed<K: Hash + Eq>(most: usize) -> Keyed<K, Until> {
        Keyed::new(&Sim::new(1).env(), "keyed/test", most)
    }

    /// Comes with this key; gives how often it came before as far as the map remembers.
    fn come(map: &Keyed<u64, Until>, key: u64, now: Tick, until: Tick) -> u32 {
        let make = || Until(until, 0);
        map.with(map.hash(&key), &key, now, make, |state| {
            state.1 += 1;
            state.1 - 1
        })
    }

    #[test]
    fn a_key_finds_its_own_state_again() {
        let map = keyed(10_000);
        for round in 0..3 {
            for key in 0..5_000 {
                assert_eq!(come(&map, key, at(0), at(1)), round, "key {key}");
            }
        }
        assert_eq!(map.len(), 5_000);
    }

    #[test]
    fn invented_keys_do_not_grow_the_map_beyond_its_bound() {
        for most in [1, 2, 7, FULL, FULL + 1, 10_000] {
            let map = keyed(most);
            for key in 0..30_000 {
                come(&map, key, at(0), at(100));
            }
            assert!(map.len() <= most, "{} keys where {most} are allowed", map.len());
            assert!(map.len() * 10 >= most * 9, "{} keys where {most} would have had room", map.len());
        }
    }

    #[test]
    fn what_has_faded_leaves_though_there_is_room() {
        let map = keyed(1_000_000);
        for second in 0..100 {
            for key in 0..1_000 {
                let now = at(second);
                come(&map, u64::from(second) * 1_000 + key, now, now + SECOND * 2);
            }
        }
        // Two seconds' worth matter; without the looks there would be a hundred.
        assert!(map.len() < 8_000, "{} keys are left", map.len());
    }

    #[test]
    fn the_faded_go_before_those_that_matter() {
        let map = keyed(800);
        for key in 0..400 {
            come(&map, key, at(0), at(1_000));
        }
        // Each of these has faded when the next comes.
        for key in 0..20_000 {
            let second = u32::try_from(key).unwrap() / 100;
            come(&map, 1_000 + key, at(second), at(second));
        }
        let kept = (0..400).filter(|key| come(&map, *key, at(200), at(1_000)) > 0).count();
        assert_eq!(kept, 400, "keys that mattered were dropped though faded ones were there");
    }

    #[test]
    fn at_the_bound_who_would_have_faded_first_goes() {
        let map = keyed(500);
        for key in 0..250 {
            come(&map, key, at(0), at(1_000));
        }
        for key in 250..1_500 {
            come(&map, key, at(0), at(10));
        }
        let kept = (0..250).filter(|key| come(&map, *key, at(0), at(1_000)) > 0).count();
        assert!(kept > 230, "only {kept} of 250 that mattered longest are left");
    }

    #[test]
    fn a_key_is_not_dropped_under_the_lock() {
        #[derive(Clone, PartialEq, Eq, Hash)]
        struct Key(u64);
        thread_local! {
            static MAP: std::cell::RefCell<Option<Arc<Keyed<Key, Until>>>> = const { std::cell::RefCell::new(None) };
        }
        impl Drop for Key {
            fn drop(&mut self) {
                MAP.with_borrow(|map| map.as_ref().map(|map| map.len()));
            }
        }
        let map: Arc<Keyed<Key, Until>> = Arc::new(keyed(4));
        MAP.set(Some(Arc::clone(&map)));
        for key in 0..100 {
            map.with(map.hash(&Key(key)), &Key(key), at(0), || Until(at(1), 0), |_| ());
        }
        assert_eq!(map.len(), 4);
        MAP.set(None);
    }

    #[test]
    fn who_kept_only_the_hash_finds_the_state_and_no_other() {
        let map = keyed(10_000);
        for key in 0..1_000 {
            map.with(map.hash(&key), &key, at(0), || Until(at(9), u32::try_from(key).unwrap()), |_| ());
        }
        for key in 0..1_000u64 {
            assert_eq!(map.with_known(map.hash(&key), |state| u64::from(state.1)), Some(key));
        }
        assert_eq!(map.with_known(map.hash(&5_000), |_| ()), None);
    }

    #[test]
    fn room_for_more_keys_than_memory_takes_no_memory_before_they_come() {
        let sim = Sim::new(1);
        let keyed: Keyed<u64, Until> = Keyed::new(&sim.env(), "test", usize::MAX);
        assert!(keyed.shards.len() <= MOST_SHARDS && keyed.quota > FULL);
    }

    #[test]
    fn keys_can_be_looked_up_in_their_borrowed_form() {
        let map: Keyed<String, Until> = keyed(10);
        map.with(map.hash("a"), "a", at(0), || Until(at(1), 7), |_| ());
        assert_eq!(map.with(map.hash("a"), "a", at(0), || Until(at(1), 0), |state| state.1), 7);
    }
}
