//! The entries of one shard, and which of them is evicted: S3-FIFO with a CLOCK as its main queue.
//!
//! An LRU cache is emptied by one scan over many keys. In S3-FIFO ([Yang et al., SOSP 2023](https://doi.org/10.1145/3600006.3613147))
//! a key has to be asked for twice before it takes room from others. It enters a *small* FIFO queue of 3 % of the room. The
//! oldest of that queue is evicted when room is needed, or moves to the *main* part if it was used meanwhile. An evicted key
//! leaves a *ghost*, a fingerprint of its hash, and a key that comes back while its ghost is there enters the main part at
//! once.
//!
//! One in five of those evicted from the main part leaves no ghost, and a key keeps its uses when it moves there: so of a loop over
//! a quarter more keys than fit three fifths are found, not a half, and keys that come in bursts stay longer.
//!
//! The paper's main queue is a FIFO with reinsertion. Here it is a CLOCK: a hand sweeps the buckets of the hash table in their
//! order, evicts the first entry with no uses left, and takes one use from each it passes. So the main part has no queue to
//! store or to write to. A look-up writes nothing but a count of uses, up to 3, and entries are in the table itself, where a
//! look-up finds them without following a pointer.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash},
    iter, mem,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use hashbrown::{HashTable, hash_table::Entry as TableEntry};

use super::entry::Entry;
use crate::env::{MapHasher, Tick};

/// The percentage of the room that is for the main part.
const MAIN: u64 = 97;
/// Of so many that are evicted from the main part, one leaves no ghost.
const GHOSTLESS: u64 = 5;
/// The weight of what is there and of one entry more is never too large to be counted.
const MOST_ROOM: u64 = u64::MAX / 2;
/// The least weight of an entry without a value, if entries are weighed: about what it takes in memory beside its key.
const NO_VALUE: u64 = 64;

/// Weighs a key and its value, in bytes say.
pub(super) type Weigh<K, V> = Arc<dyn Fn(&K, Option<&V>) -> u64 + Send + Sync>;

/// What is known of keys and entries beside themselves.
pub(super) struct Scales<K, V> {
    pub(super) hasher: MapHasher,
    pub(super) weigh: Option<Weigh<K, V>>,
}

// In this order, because these two are read at every hit, and with the lock before them fill one cache line.
#[repr(C)]
pub(super) struct S3Fifo<K, V, E> {
    items: HashTable<Item<K, V, E>>,
    /// The state of each bucket's item. Apart from the items, of which more fit into a cache line without it.
    states: Box<[AtomicU16]>,
    /// The weight of each bucket's item, as it was when it was put in: one that is weighed again may have grown or shrunk. Empty
    /// if entries are not weighed.
    weights: Box<[u64]>,
    /// The buckets of the small queue with their hashes, the oldest first. Some entries may have been removed since, and others
    /// inserted into their buckets.
    small: VecDeque<(usize, u64)>,
    /// Fingerprints of evicted keys, four to a set, the latest first. Empty until the first eviction; then about as many as
    /// there are entries.
    ghosts: Box<[[u16; 4]]>,
    /// The bucket that the hand looks at next.
    hand: usize,
    room: u64,
    /// The part of the room that is for the main part.
    main_room: u64,
    weight: u64,
    main_weight: u64,
    /// How often the table was rehashed.
    layout: u64,
    evicted: u64,
}

pub(super) struct Item<K, V, E> {
    pub(super) key: K,
    pub(super) entry: Entry<V, E>,
}

/// What is kept of an entry beside itself: how often it was used, in which queue it is, and until when it is being refreshed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u16);

impl State {
    /// Uses count up to here, as in the paper.
    const MOST_USES: u16 = 3;
    /// It is in the small queue.
    const SMALL: u16 = 1 << 2;
    const FLAGS: u16 = State::MOST_USES | State::SMALL;
    /// The bits from here on are the claim, an instant in steps of an eighth of a second (2^27 ns), modulo 2^13; zero for none.
    const CLAIM: u32 = 3;
    const STEP: u32 = 27;
    const CYCLE: u16 = 1 << 13;
    /// More steps than the longest claim has.
    const LONGEST: u16 = 512;

    fn uses(self) -> u16 {
        self.0 & State::MOST_USES
    }

    fn is_small(self) -> bool {
        self.0 & State::SMALL != 0
    }

    /// Whether somebody has [claimed](S3Fifo::claim) the refresh and the claim has not lapsed. Claims are for a minute at most. One
    /// that was lost with its load, and that no reader has replaced since, may count as in force again for about a minute, 17
    /// minutes later.
    #[inline]
    pub(super) fn is_claimed(self, now: Tick) -> bool {
        let claim = self.0 >> State::CLAIM;
        claim != 0 && claim.wrapping_sub(State::step(now)) % State::CYCLE < State::LONGEST
    }

    fn claimed(self, until: Tick) -> State {
        State(self.0 & State::FLAGS | State::step(until).max(1) << State::CLAIM)
    }

    #[expect(clippy::cast_possible_truncation, reason = "modulo the cycle")]
    fn step(tick: Tick) -> u16 {
        (tick.as_nanos() >> State::STEP) as u16 % State::CYCLE
    }
}

/// What came of putting an entry in: those that have left, to be dropped when no lock is held. The first has a field of its own,
/// because most often there is one or none.
pub(super) struct Gone<K, V, E> {
    pub(super) evicted: u64,
    /// Whether what was put in was too heavy to be kept.
    pub(super) too_heavy: bool,
    first: Option<Item<K, V, E>>,
    others: Vec<Item<K, V, E>>,
}

impl<K: Hash, V: Clone> Scales<K, V> {
    #[inline(always)]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The weight of an entry that is to be put in. This runs user code, so no lock is held.
    #[inline(always)]
    pub(super) fn weight<E>(&self, key: &K, entry: &Entry<V, E>) -> u64 {
        self.weigh.as_ref().map_or(1, |weigh| {
            let value = entry.value();
            weigh(key, value).max(if value.is_some() { 1 } else { NO_VALUE })
        })
    }
}

impl<K, V, E> S3Fifo<K, V, E>
where
    K: Hash + Eq,
    V: Clone,
{
    /// With room for this weight.
    pub(super) fn new(room: u64) -> S3Fifo<K, V, E> {
        let room = room.min(MOST_ROOM);
        S3Fifo {
            items: HashTable::new(),
            states: Box::default(),
            weights: Box::default(),
            small: VecDeque::new(),
            ghosts: Box::default(),
            hand: 0,
            room,
            main_room: heaviest(room),
            weight: 0,
            main_weight: 0,
            layout: 0,
            evicted: 0,
        }
    }

    pub(super) fn peek(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<(&Entry<V, E>, State)> {
        let bucket = self.items.find_bucket_index(hash, |item| is(&item.key))?;
        let state = State(self.states[bucket].load(Relaxed));
        self.items.get_bucket(bucket).map(|item| (&item.entry, state))
    }

    /// As [`peek`](S3Fifo::peek), and a use of the entry.
    #[inline(always)]
    pub(super) fn get(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<(&Entry<V, E>, State)> {
        let bucket = self.items.find_bucket_index(hash, |item| is(&item.key))?;
        let state = State(self.states[bucket].load(Relaxed));
        if state.uses() < State::MOST_USES {
            // Of two uses at the same moment one may be lost, or a claim: that is found out when its load is to begin.
            self.states[bucket].store(state.0 + 1, Relaxed);
        }
        self.items.get_bucket(bucket).map(|item| (&item.entry, state))
    }

    /// Claims the refresh of an entry until then; false if somebody has claimed it, or it is gone. Until the claim lapses or the
    /// entry is replaced, readers serve the entry without asking whether its load is in progress. So the crowd that finds a
    /// stale entry only reads.
    pub(super) fn claim(&self, hash: u64, is: impl Fn(&K) -> bool, now: Tick, until: Tick) -> bool {
        let Some(bucket) = self.items.find_bucket_index(hash, |item| is(&item.key)) else { return false };
        let claim = |state| (!State(state).is_claimed(now)).then(|| State(state).claimed(until).0);
        self.states[bucket].fetch_update(Relaxed, Relaxed, claim).is_ok()
    }

    /// Ends a claim: the load of this entry has ended and has not replaced it.
    pub(super) fn unclaim(&mut self, hash: u64, key: &K) {
        if let Some(bucket) = self.items.find_bucket_index(hash, |item| item.key == *key) {
            *self.states[bucket].get_mut() &= State::FLAGS;
        }
    }

    /// Puts an entry of this weight in, or another in its place.
    #[inline]
    pub(super) fn put(
        &mut self,
        hash: u64,
        item: Item<K, V, E>,
        weight: u64,
        scales: &Scales<K, V>,
        gone: &mut Gone<K, V, E>,
    ) {
        if weight > self.main_room.max(1) {
            if let Some(old) = self.remove_if(hash, |other| *other == item.key, |_| true) {
                gone.keep(old);
            }
            gone.too_heavy = true;
            gone.keep(item);
            return;
        }
        self.make_bucket(scales);
        match self.items.entry(hash, |other| other.key == item.key, |other| scales.hash(&other.key)) {
            TableEntry::Occupied(found) => {
                let bucket = found.bucket_index();
                self.replace(bucket, item, weight, gone);
            }
            TableEntry::Vacant(free) => {
                let bucket = free.insert(item).bucket_index();
                self.inserted(bucket, hash, weight);
            }
        }
        self.make_room(scales, gone);
    }

    #[inline(never)]
    fn replace(&mut self, bucket: usize, mut new: Item<K, V, E>, weight: u64, gone: &mut Gone<K, V, E>) {
        let before = self.weight_of(bucket);
        let Some(item) = self.items.get_bucket_mut(bucket) else { return };
        let state = self.states[bucket].get_mut();
        // At least one use: the entry that is put in is not the one that is evicted for it. And no claim.
        *state = *state & State::SMALL | State(*state).uses().max(1);
        self.weight = self.weight - before + weight;
        if !State(*state).is_small() {
            self.main_weight = self.main_weight - before + weight;
        }
        mem::swap(&mut item.entry, &mut new.entry);
        gone.keep(new);
        self.weighs(bucket, weight);
    }

    /// An item of this weight was inserted into this bucket.
    #[inline]
    fn inserted(&mut self, bucket: usize, hash: u64, weight: u64) {
        let is_main = self.main_weight + weight <= self.main_room || self.takes_ghost(hash);
        *self.states[bucket].get_mut() = if is_main { 0 } else { State::SMALL };
        self.weighs(bucket, weight);
        self.weight += weight;
        if is_main {
            self.main_weight += weight;
        } else {
            self.small.push_back((bucket, hash));
            if self.small.len() > self.items.len() {
                self.prune_small();
            }
        }
    }

    #[inline]
    fn weight_of(&self, bucket: usize) -> u64 {
        self.weights.get(bucket).copied().unwrap_or(1)
    }

    #[inline]
    fn weighs(&mut self, bucket: usize, weight: u64) {
        if let Some(kept) = self.weights.get_mut(bucket) {
            *kept = weight;
        }
    }

    fn make_room(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) {
        while self.weight > self.room {
            let main_is_full = self.main_weight > self.main_room;
            let done =
                if main_is_full { self.evict_from_main(scales, gone) } else { self.evict_from_small(scales, gone) };
            if !done {
                return;
            }
        }
    }

    pub(super) fn remove_if(
        &mut self,
        hash: u64,
        is: impl Fn(&K) -> bool,
        may: impl FnOnce(&Entry<V, E>) -> bool,
    ) -> Option<Item<K, V, E>> {
        let found = self.items.find_entry(hash, |item| is(&item.key)).ok()?;
        if !may(&found.get().entry) {
            return None;
        }
        let bucket = found.bucket_index();
        let item = found.remove().0;
        self.release(bucket);
        Some(item)
    }

    /// Changes an entry that is there, but not its weight.
    pub(super) fn update<T>(&mut self, hash: u64, key: &K, change: impl FnOnce(&mut Entry<V, E>) -> T) -> Option<T> {
        self.items.find_mut(hash, |item| item.key == *key).map(|item| change(&mut item.entry))
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) -> impl Sized + use<K, V, E> {
        self.small.clear();
        self.ghosts = Box::default();
        (self.hand, self.weight, self.main_weight) = (0, 0, 0);
        self.layout += 1;
        self.states = Box::default();
        self.weights = Box::default();
        mem::take(&mut self.items)
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// A number that changes when entries may have changed their order.
    pub(super) fn layout(&self) -> u64 {
        self.layout
    }

    /// The next entry in this bucket or after it, and the bucket after that.
    pub(super) fn next_from(&self, bucket: usize) -> Option<(usize, &K, &Entry<V, E>)> {
        (bucket..self.items.num_buckets())
            .find_map(|bucket| self.items.get_bucket(bucket).map(|item| (bucket + 1, &item.key, &item.entry)))
    }

    /// Where entries of the small queue are removed as fast as they come, nothing is evicted, and nobody asks for the oldest.
    #[cold]
    fn prune_small(&mut self) {
        let mut seen = vec![false; self.states.len()];
        let (states, items) = (&mut self.states, &self.items);
        self.small.retain(|(bucket, _)| {
            let is_small = items.get_bucket(*bucket).is_some() && State(*states[*bucket].get_mut()).is_small();
            is_small && !mem::replace(&mut seen[*bucket], true)
        });
    }

    /// The oldest of the small queue moves to the main part, or is evicted; false if nothing is there.
    fn evict_from_small(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) -> bool {
        let Some((bucket, hash)) = self.small.pop_front() else { return self.evict_from_main(scales, gone) };
        if self.items.get_bucket(bucket).is_none() {
            return true;
        }
        let weight = self.weight_of(bucket);
        let state = self.states[bucket].get_mut();
        if !State(*state).is_small() {
            // It was inserted into the main part, in the bucket of one that was removed.
        } else if State(*state).uses() == 0 {
            // If another was inserted into this bucket since, the ghost is of the one that was removed: rare, and of little weight.
            // The hash of the key would have to wait for the key to come from memory, and the ghost for that: a tenth of a miss.
            self.evict(bucket, gone);
            self.leave_ghost(hash);
        } else {
            // Its uses stand, and so does a claim.
            *state &= !State::SMALL;
            self.main_weight += weight;
        }
        true
    }

    /// Moves the hand on until an entry is evicted; false if the main part is empty.
    fn evict_from_main(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) -> bool {
        let buckets = self.items.num_buckets();
        // After so many rounds, no entry has a use left.
        for _ in 0..=buckets * (usize::from(State::MOST_USES) + 1) {
            let bucket = if self.hand < buckets { self.hand } else { 0 };
            self.hand = bucket + 1;
            let Some(item) = self.items.get_bucket(bucket) else { continue };
            let state = self.states[bucket].get_mut();
            if State(*state).is_small() {
                continue;
            }
            if State(*state).uses() == 0 {
                let hash = scales.hash(&item.key);
                self.evict(bucket, gone);
                // Were all to leave ghosts, a loop over a few keys more than fit would turn this part over for ever.
                if !(hash >> 33).wrapping_add(self.evicted).is_multiple_of(GHOSTLESS) {
                    self.leave_ghost(hash);
                }
                return true;
            }
            *state -= 1;
        }
        false
    }

    /// Evicts the entry of a bucket. It goes from the table to where it stays, and its parts are read where they are: an item
    /// that is copied right after it was written in parts costs a miss a tenth of its time (`bench cache`, `miss`).
    fn evict(&mut self, bucket: usize, gone: &mut Gone<K, V, E>) {
        let Ok(found) = self.items.get_bucket_entry(bucket) else { return };
        gone.keep(found.remove().0);
        gone.evicted += 1;
        self.evicted += 1;
        self.release(bucket);
    }

    /// The item has left its bucket.
    fn release(&mut self, bucket: usize) {
        let weight = self.weight_of(bucket);
        self.weight -= weight;
        if !State(*self.states[bucket].get_mut()).is_small() {
            self.main_weight -= weight;
        }
    }

    /// Makes sure that an insertion finds a bucket. The table would see to that itself, but where many entries were removed it
    /// would double instead of rehashing in place.
    #[inline]
    fn make_bucket(&mut self, scales: &Scales<K, V>) {
        if self.items.len() == self.items.capacity() {
            self.rehash(scales);
        }
    }

    #[cold]
    #[inline(never)]
    fn rehash(&mut self, scales: &Scales<K, V>) {
        // Of eight buckets a table uses seven. Tombstones are worth a rehash if they are a sixteenth of that, or more.
        let (len, most) = (self.items.len(), self.items.num_buckets() / 8 * 7);
        let capacity = if len < most / 16 * 15 { most } else { (most + 1).max(len + 1) };
        let mut old = mem::replace(&mut self.items, HashTable::with_capacity(capacity));
        let buckets = self.items.num_buckets();
        let states = mem::replace(&mut self.states, iter::repeat_with(AtomicU16::default).take(buckets).collect());
        let weights = match scales.weigh {
            Some(_) => mem::replace(&mut self.weights, vec![0; buckets].into()),
            None => Box::default(),
        };
        let mut moved = vec![None; states.len()];
        for (bucket, (state, moved)) in states.into_iter().zip(&mut moved).enumerate() {
            let Ok(found) = old.get_bucket_entry(bucket) else { continue };
            let item = found.remove().0;
            let inserted = self.items.insert_unique(scales.hash(&item.key), item, |item| scales.hash(&item.key));
            let to = inserted.bucket_index();
            self.states[to] = state;
            *moved = Some(to);
            if let Some(weight) = weights.get(bucket) {
                self.weights[to] = *weight;
            }
        }
        let small = mem::take(&mut self.small);
        self.small = small.into_iter().filter_map(|(bucket, hash)| Some((moved[bucket]?, hash))).collect();
        self.layout += 1;
    }

    fn leave_ghost(&mut self, hash: u64) {
        if self.ghosts.len() * 4 <= self.items.len() {
            self.make_ghosts();
        }
        let (set, ghost) = ghost(hash, self.ghosts.len());
        let [first, second, third, _] = self.ghosts[set];
        self.ghosts[set] = [ghost, first, second, third];
    }

    /// As many as there are entries, which may have become many more by becoming lighter. Those that are there are in both of the
    /// sets that they may belong to now.
    #[cold]
    #[inline(never)]
    fn make_ghosts(&mut self) {
        let sets = (self.items.len() / 4 + 1).next_power_of_two();
        let old = mem::take(&mut self.ghosts);
        let before = old.iter().copied().cycle().take(if old.is_empty() { 0 } else { sets });
        self.ghosts = before.chain(iter::repeat([0; 4])).take(sets).collect();
    }

    /// Whether this key was evicted a short time ago, which counts once.
    fn takes_ghost(&mut self, hash: u64) -> bool {
        if self.ghosts.is_empty() {
            return false;
        }
        let (set, ghost) = ghost(hash, self.ghosts.len());
        let found = self.ghosts[set].iter_mut().find(|left| **left == ghost);
        found.map(|left| *left = 0).is_some()
    }
}

/// The set of a hash's ghost among so many, and its fingerprint there.
#[expect(clippy::cast_possible_truncation, reason = "these are the parts of a hash that are wanted")]
fn ghost(hash: u64, sets: usize) -> (usize, u16) {
    ((hash >> 8) as usize & (sets - 1), (hash >> 40) as u16 | 1)
}

/// The largest weight of an entry where there is so much room.
fn heaviest(room: u64) -> u64 {
    room / 100 * MAIN + room % 100 * MAIN / 100
}

impl<K, V, E> Gone<K, V, E> {
    #[inline]
    fn keep(&mut self, item: Item<K, V, E>) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.others.push(item);
        }
    }
}

impl<K, V, E> Default for Gone<K, V, E> {
    fn default() -> Self {
        Gone { evicted: 0, too_heavy: false, first: None, others: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, ops::Range, sync::atomic::AtomicU64};

    use super::{
        super::entry::{Content, Life},
        *,
    };
    use crate::env::{Env, Tick, sim::Sim};

    type Numbers = S3Fifo<u64, u64, ()>;

    /// One shard's entries, and what they are used with.
    struct Trial {
        entries: Numbers,
        scales: Scales<u64, u64>,
        evicted: u64,
    }

    impl Trial {
        fn new(env: &Env, room: u64, weigh: Option<Weigh<u64, u64>>) -> Trial {
            let scales = Scales { hasher: env.hasher("entries"), weigh };
            Trial { entries: S3Fifo::new(room), scales, evicted: 0 }
        }

        fn of(room: u64) -> Trial {
            Trial::new(&Sim::new(1).env(), room, None)
        }

        fn put(&mut self, key: u64, value: u64) -> bool {
            let mut gone = Gone::default();
            let (hash, item) = (self.scales.hash(&key), Item { key, entry: entry(value) });
            let weight = self.scales.weight(&key, &item.entry);
            self.entries.put(hash, item, weight, &self.scales, &mut gone);
            self.evicted += gone.evicted;
            !gone.too_heavy
        }

        /// That what is counted is the weight of what is there.
        fn check(&self) {
            let S3Fifo { items, states, weight, main_weight, .. } = &self.entries;
            let weigh = |bucket: usize| items.get_bucket(bucket).map_or(0, |_| self.entries.weight_of(bucket));
            let is_main = |bucket: &usize| !State(states[*bucket].load(Relaxed)).is_small();
            let all = (0..states.len()).map(weigh).sum();
            let main = (0..states.len()).filter(is_main).map(weigh).sum();
            assert_eq!((*weight, *main_weight), (all, main));
        }

        fn get(&self, key: u64) -> Option<u64> {
            self.entries.get(self.scales.hash(&key), |other| *other == key)?.0.value().copied()
        }

        /// As a cache does: what is not there is put in. Whether it was there.
        fn ask(&mut self, key: u64) -> bool {
            let hit = self.get(key).is_some();
            if !hit {
                self.put(key, key);
            }
            hit
        }

        fn ask_all(&mut self, keys: Range<u64>) {
            for key in keys {
                self.ask(key);
            }
        }

        fn remove(&mut self, key: u64) -> bool {
            self.entries.remove_if(self.scales.hash(&key), |other| *other == key, |_| true).is_some()
        }
    }

    fn entry(value: u64) -> Entry<u64, ()> {
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, None);
        Entry::new(life, Content::Value(value, None))
    }

    #[test]
    fn a_scan_over_many_keys_takes_nothing_away_that_is_in_use() {
        let mut trial = Trial::of(1_000);
        for round in 0..10 {
            let hits = (0..500).filter(|key| trial.ask(*key)).count();
            assert!(round == 0 || hits > 490, "{hits} in round {round}");
            trial.ask_all(1_000_000 + round * 10_000..1_010_000 + round * 10_000);
        }
    }

    #[test]
    fn a_loop_over_more_keys_than_fit_finds_most_of_what_fits() {
        let mut trial = Trial::of(1_000);
        (0..20).for_each(|_| trial.ask_all(0..1_250));
        let hits: usize = (0..20).map(|_| (0..1_250).filter(|key| trial.ask(*key)).count()).sum();
        assert!(hits > 20 * 650, "{hits}");
    }

    #[test]
    fn what_was_in_use_makes_room_when_it_is_no_longer() {
        let mut trial = Trial::of(1_000);
        for _ in 0..10 {
            trial.ask_all(0..900);
        }
        for _ in 0..20 {
            trial.ask_all(5_000..5_900);
        }
        let hits = (5_000..5_900).filter(|key| trial.ask(*key)).count();
        assert!(hits > 850, "{hits}");
    }

    #[test]
    fn an_evicted_key_that_comes_again_enters_the_main_part_at_once() {
        let mut trial = Trial::of(1_000);
        trial.ask_all(0..2_000);
        // The small queue holds thirty, and these were the last that it evicted.
        (1_900..1_950).for_each(|key| assert!(!trial.ask(key)));
        trial.ask_all(10_000..10_500);
        let kept = (1_900..1_950).filter(|key| trial.get(*key).is_some()).count();
        assert!(kept > 45, "{kept}");
    }

    #[test]
    fn whatever_is_done_it_holds_what_was_put_in_and_never_weighs_more_than_it_may() {
        for seed in 0..20 {
            let env = Sim::new(seed).env();
            let rng = env.rng("trial");
            let mut trial = Trial::new(&env, 500, Some(Arc::new(|_, value| value.map_or(0, |value| value % 7))));
            let mut last = HashMap::new();
            for _ in 0..20_000 {
                let (key, value) = (rng.below(400), rng.bits());
                match rng.below(10) {
                    0 => {
                        trial.remove(key);
                        last.remove(&key);
                    }
                    1..5 => {
                        trial.put(key, value);
                        last.insert(key, value);
                    }
                    _ => assert!(trial.get(key).is_none_or(|found| last.get(&key) == Some(&found))),
                }
                assert!(trial.entries.weight() <= 500);
            }
            trial.check();
            let S3Fifo { items, weight, .. } = &trial.entries;
            let weigh = |item: &Item<_, _, _>| trial.scales.weight(&item.key, &item.entry);
            assert_eq!(items.iter().map(weigh).sum::<u64>(), *weight, "{seed}");
            assert!(items.len() > 100, "{}", items.len());
        }
    }

    #[test]
    fn entries_that_weigh_something_else_later_make_neither_more_room_nor_less() {
        let times = AtomicU64::new(0);
        let weigh = move |_: &u64, _: Option<&u64>| times.fetch_add(1, Relaxed) % 5;
        let mut trial = Trial::new(&Sim::new(1).env(), 100, Some(Arc::new(weigh)));
        for key in 0..1_000 {
            trial.ask(key);
            trial.ask(key % 70);
            trial.put(key % 30, key);
            trial.remove(key % 41);
            trial.check();
            assert!(trial.entries.weight() <= 100 && trial.entries.len() <= 100, "{}", trial.entries.len());
        }
        assert!(trial.entries.len() > 20, "{}", trial.entries.len());
    }

    #[test]
    fn whoever_asks_for_large_keys_that_have_no_value_fills_no_more_than_the_room() {
        let env = Sim::new(1).env();
        let scales: Scales<String, u64> =
            Scales { hasher: env.hasher("entries"), weigh: Some(Arc::new(|key: &String, _| key.len() as u64)) };
        let mut entries: S3Fifo<String, u64, ()> = S3Fifo::new(1_000_000);
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, None);
        let mut put = |key: String| {
            let entry = Entry::new(life, Content::Absent);
            let (hash, weight) = (scales.hash(&key), scales.weight(&key, &entry));
            entries.put(hash, Item { key, entry }, weight, &scales, &mut Gone::default());
            entries.items.iter().map(|item| item.key.len()).sum::<usize>()
        };
        assert!((0..1_000).all(|number| put(format!("{number:08192}")) <= 1_000_000));
        assert!((0..100_000).all(|number| put(number.to_string()) <= 1_000_000));
        assert!(entries.len() <= 1_000_000 / 64, "what has hardly a key takes room too: {}", entries.len());
    }

    #[test]
    fn what_is_too_heavy_is_not_kept_and_what_it_would_have_replaced_is_gone() {
        let mut trial = Trial::new(&Sim::new(1).env(), 100, Some(Arc::new(|_, value| value.copied().unwrap_or(0))));
        assert!(trial.put(1, 97) && trial.get(1) == Some(97));
        assert!(!trial.put(1, 98));
        assert_eq!((trial.get(1), trial.entries.weight(), trial.evicted), (None, 0, 0));
    }

    #[test]
    fn one_who_grows_in_its_place_makes_others_go() {
        let mut trial = Trial::new(&Sim::new(1).env(), 100, Some(Arc::new(|_, value| value.copied().unwrap_or(0))));
        (0..10).for_each(|key| assert!(trial.put(key, 10)));
        assert!(trial.put(3, 50) && trial.entries.weight() <= 100);
        assert_eq!((trial.get(3), trial.evicted), (Some(50), 4));
    }

    #[test]
    fn entries_that_become_lighter_and_so_many_more_have_as_many_ghosts() {
        let mut trial = Trial::new(&Sim::new(1).env(), 100_000, Some(Arc::new(|_, value| value.copied().unwrap_or(0))));
        (0..100).for_each(|key| assert!(trial.put(key, 5_000)));
        let few = trial.entries.ghosts.len();
        (0..100)
            .for_each(|key| drop(trial.entries.remove_if(trial.scales.hash(&key), |other| *other == key, |_| true)));
        (1_000..30_000).for_each(|key| assert!(trial.put(key, 10)));
        assert!(trial.entries.len() > 9_000 && trial.entries.ghosts.len() * 4 >= trial.entries.len(), "{few}");
        // As many as the whole cache holds, evicted a while ago.
        trial.entries.leave_ghost(trial.scales.hash(&7));
        (50_000..52_000).for_each(|key| trial.entries.leave_ghost(trial.scales.hash(&key)));
        assert!(trial.entries.takes_ghost(trial.scales.hash(&7)), "2,000 others do not push it out");
    }

    #[test]
    fn ghosts_are_found_where_there_are_more_of_them() {
        let mut trial = Trial::of(1_000_000);
        (0..100).for_each(|key| trial.entries.leave_ghost(trial.scales.hash(&key)));
        let left: Vec<u64> = (0..100).filter(|key| has_ghost(&trial, *key)).collect();
        trial.ask_all(1_000..10_000);
        trial.entries.leave_ghost(trial.scales.hash(&100));
        assert!(trial.entries.ghosts.len() > 1_000 && !left.is_empty());
        assert!(left.iter().all(|key| has_ghost(&trial, *key)));
    }

    fn has_ghost(trial: &Trial, key: u64) -> bool {
        let (set, ghost) = ghost(trial.scales.hash(&key), trial.entries.ghosts.len());
        trial.entries.ghosts[set].contains(&ghost)
    }

    #[test]
    fn a_table_in_which_many_come_and_go_does_not_become_larger() {
        // As full as one gets.
        let mut trial = Trial::of(6_400);
        trial.ask_all(0..6_400);
        let buckets = trial.entries.items.num_buckets();
        trial.ask_all(0..500_000);
        assert_eq!(trial.entries.items.num_buckets(), buckets);
        assert_eq!(trial.entries.len(), 6_400);
        assert!(trial.entries.small.len() < 400, "{}", trial.entries.small.len());
    }

    #[test]
    fn entries_that_are_removed_as_fast_as_they_come_do_not_fill_the_small_queue() {
        let mut trial = Trial::of(1_000);
        trial.ask_all(0..975);
        for key in 0..100_000 {
            trial.ask(10_000 + key);
            assert!(trial.remove(10_000 + key));
        }
        assert!(trial.entries.small.len() <= 1_000, "{}", trial.entries.small.len());
        assert_eq!((trial.evicted, trial.entries.weight()), (0, 975));
    }

    #[test]
    fn what_is_as_heavy_as_can_be_is_weighed_all_the_same() {
        let mut trial = Trial::new(&Sim::new(1).env(), u64::MAX, Some(Arc::new(|_, _| u64::MAX / 5)));
        for key in 0..100 {
            trial.ask(key);
            trial.check();
            assert!((1..=2).contains(&trial.entries.len()), "{}", trial.entries.len());
        }
    }

    #[test]
    fn a_room_for_one_holds_one() {
        let mut trial = Trial::of(1);
        for key in 0..100 {
            trial.ask(key);
            trial.ask(key);
            assert!(trial.entries.len() == 1 && trial.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn one_reader_claims_a_refresh_until_it_lapses_or_the_entry_is_replaced() {
        let second = std::time::Duration::from_secs(1);
        let mut trial = Trial::of(100);
        let claim = |trial: &Trial, now: Tick| {
            trial.entries.claim(trial.scales.hash(&7), |other| *other == 7, now, now + 2 * second)
        };
        let is_claimed = |trial: &Trial, now: Tick| {
            trial
                .entries
                .get(trial.scales.hash(&7), |other| *other == 7)
                .is_some_and(|(_, state)| state.is_claimed(now))
        };
        // The clock of a claim comes round every eighteen minutes.
        for now in (0..3_000).map(|step| Tick::ZERO + step * second + step * second / 7) {
            trial.put(7, 7);
            assert!(!is_claimed(&trial, now) && claim(&trial, now) && !claim(&trial, now), "{now:?}");
            assert!(is_claimed(&trial, now) && is_claimed(&trial, now + second), "{now:?}");
            assert!(!is_claimed(&trial, now + 600 * second), "not after ten minutes either: {now:?}");
            assert!(!is_claimed(&trial, now + 3 * second) && claim(&trial, now + 3 * second), "{now:?}");
        }
        let now = Tick::ZERO + second;
        trial.put(7, 7);
        assert!(claim(&trial, now));
        trial.ask_all(1_000..1_050);
        assert!(is_claimed(&trial, now), "a larger table changes nothing");
        trial.entries.unclaim(trial.scales.hash(&7), &7);
        assert!(!is_claimed(&trial, now) && claim(&trial, now));
        assert!(trial.remove(7) && !claim(&trial, now), "what is not there has no claim");
        trial.put(7, 7);
        assert!(!is_claimed(&trial, now));
    }
}
