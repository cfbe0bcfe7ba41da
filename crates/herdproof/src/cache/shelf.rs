//! One part of the entries: what is kept, and what goes when there is no more room.
//!
//! A cache that forgets what was used longest ago is emptied by one scan over many keys. Here a key has to be asked for twice
//! before it takes room from others. It comes as a *newcomer*, of which there are few: the oldest goes when room is needed,
//! or *settles* if it was used meanwhile. Among those that have settled a hand goes round, as on a clock. What was used since
//! it came by last stays, and the first that was not goes. Of what had to go a trace is kept for some time, and a key that
//! comes again within it settles at once.
//!
//! A look-up writes nothing but a count of uses, and that seldom, so many can be made at the same time. Entries lie in the
//! table itself, where a look-up finds them without a further step through memory. The hand follows the order in which they
//! lie there.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash},
    iter, mem,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use hashbrown::HashTable;

use super::entry::Entry;
use crate::env::MapHasher;

/// The percentage that is for entries that have settled.
const SETTLED: u64 = 97;
/// How often an entry was used counts up to here.
const OFTEN: u8 = 3;
/// In the count of uses: it is a newcomer.
const NEW: u8 = 1 << 7;
/// What an entry without a value weighs, if the others are weighed: about what it takes.
const NO_VALUE: u64 = 64;

/// Weighs a value, in bytes say.
pub(super) type Weigh<K, V> = Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// What is known of keys and entries beside themselves.
pub(super) struct Scales<K, V> {
    pub(super) hasher: MapHasher,
    pub(super) weigh: Option<Weigh<K, V>>,
}

// In this order, because these two are read at every hit, and with the lock before them fill one cache line.
#[repr(C)]
pub(super) struct Shelf<K, V, E> {
    items: HashTable<Item<K, V, E>>,
    /// How often the item of a bucket was used. Apart from the items, of which more lie in a cache line without it.
    uses: Box<[AtomicU8]>,
    /// The buckets of newcomers with their hashes, the oldest first. Some may have been taken away since, and others come in
    /// their place.
    newcomers: VecDeque<(usize, u64)>,
    /// Traces of what had to go, in the places that hashes give them, the latest of each place first. None before anything had
    /// to go; then about as many as there are entries.
    traces: Box<[[u16; 4]]>,
    /// The bucket that the hand looks at next.
    hand: usize,
    room: u64,
    /// Of which so much is for those that have settled.
    settled_room: u64,
    weight: u64,
    settled_weight: u64,
    /// How often the table was laid out anew.
    layout: u64,
    /// How many had to make room so far.
    evicted: u64,
}

struct Item<K, V, E> {
    key: K,
    entry: Entry<V, E>,
}

/// An entry that has left, with its key.
pub(super) type Left<K, V, E> = (K, Entry<V, E>);

/// What came of putting an entry in: those that have left, to be dropped when no lock is held. The first has a place of its own,
/// because most often there is one or none.
pub(super) struct Gone<K, V, E> {
    /// How many had to make room.
    pub(super) evicted: u64,
    /// Whether what was put in was too heavy to be kept.
    pub(super) too_heavy: bool,
    first: Option<Left<K, V, E>>,
    others: Vec<Left<K, V, E>>,
}

impl<K: Hash, V: Clone> Scales<K, V> {
    fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    fn weight<E>(&self, key: &K, entry: &Entry<V, E>) -> u64 {
        let Some(weigh) = &self.weigh else { return 1 };
        entry.value().map_or(NO_VALUE, |value| weigh(key, value).max(1))
    }
}

impl<K, V, E> Shelf<K, V, E>
where
    K: Hash + Eq,
    V: Clone,
{
    /// With room for what weighs so much.
    pub(super) fn new(room: u64) -> Shelf<K, V, E> {
        Shelf {
            items: HashTable::new(),
            uses: Box::default(),
            newcomers: VecDeque::new(),
            traces: Box::default(),
            hand: 0,
            room,
            settled_room: heaviest(room),
            weight: 0,
            settled_weight: 0,
            layout: 0,
            evicted: 0,
        }
    }

    #[inline(always)]
    pub(super) fn peek(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<&Entry<V, E>> {
        self.items.find(hash, |item| is(&item.key)).map(|item| &item.entry)
    }

    /// A copy of the entry of a key that is about to be loaded, not as a use of it.
    #[inline(always)]
    pub(super) fn before_load(&self, hash: u64, key: &K) -> Option<Entry<V, E>> {
        self.peek(hash, |other| other == key).cloned()
    }

    /// As [`peek`](Shelf::peek), and a use of the entry.
    #[inline(always)]
    pub(super) fn get(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<&Entry<V, E>> {
        let bucket = self.items.find_bucket_index(hash, |item| is(&item.key))?;
        let counted = &self.uses[bucket];
        let uses = counted.load(Relaxed);
        if uses & OFTEN < OFTEN {
            // Of two uses at the same moment one may be lost.
            counted.store(uses + 1, Relaxed);
        }
        self.items.get_bucket(bucket).map(|item| &item.entry)
    }

    /// Puts an entry in, or another in its place.
    pub(super) fn put(
        &mut self,
        hash: u64,
        key: K,
        entry: Entry<V, E>,
        scales: &Scales<K, V>,
        gone: &mut Gone<K, V, E>,
    ) {
        let weight = scales.weight(&key, &entry);
        if weight > self.settled_room.max(1) {
            gone.keep(self.remove_if(hash, |other| *other == key, |_| true, scales));
            gone.refuse((key, entry));
            return;
        }
        if let Ok(mut found) = self.items.find_entry(hash, |item| item.key == key) {
            let uses = self.uses[found.bucket_index()].get_mut();
            // What is put in now is not what goes for it.
            *uses = (*uses).max(*uses & NEW | 1);
            let item = found.get_mut();
            let before = scales.weight(&item.key, &item.entry);
            self.weight = self.weight.saturating_sub(before).saturating_add(weight);
            if *uses & NEW == 0 {
                self.settled_weight = self.settled_weight.saturating_sub(before).saturating_add(weight);
            }
            gone.keep(Some((key, mem::replace(&mut item.entry, entry))));
        } else {
            self.insert(hash, key, entry, weight, scales);
        }
        self.make_room(scales, gone);
    }

    /// Puts an entry in of which nothing is there. Whoever leads the flight of a key that was not there when that began knows
    /// so, for as long as newcomers can find it: nobody else puts anything in for the key without hiding the flight.
    #[inline]
    pub(super) fn put_new(
        &mut self,
        hash: u64,
        key: K,
        entry: Entry<V, E>,
        scales: &Scales<K, V>,
        gone: &mut Gone<K, V, E>,
    ) {
        debug_assert!(self.peek(hash, |other| *other == key).is_none(), "somebody has put it in meanwhile");
        let weight = scales.weight(&key, &entry);
        if weight > self.settled_room.max(1) {
            gone.refuse((key, entry));
            return;
        }
        self.insert(hash, key, entry, weight, scales);
        self.make_room(scales, gone);
    }

    #[inline]
    fn insert(&mut self, hash: u64, key: K, entry: Entry<V, E>, weight: u64, scales: &Scales<K, V>) {
        self.make_place(scales);
        let settles = self.settled_weight.saturating_add(weight) <= self.settled_room || self.takes_trace(hash);
        let item = self.items.insert_unique(hash, Item { key, entry }, |item| scales.hash(&item.key));
        let bucket = item.bucket_index();
        *self.uses[bucket].get_mut() = if settles { 0 } else { NEW };
        self.weight = self.weight.saturating_add(weight);
        if settles {
            self.settled_weight = self.settled_weight.saturating_add(weight);
        } else {
            self.newcomers.push_back((bucket, hash));
            if self.newcomers.len() > self.items.len() {
                self.count_newcomers();
            }
        }
    }

    fn make_room(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) {
        while self.weight > self.room {
            let too_many_settled = self.settled_weight > self.settled_room;
            let done = if too_many_settled { self.turn(scales, gone) } else { self.try_newcomer(scales, gone) };
            if !done {
                // Nothing is there, whatever a scale may have said.
                return;
            }
        }
    }

    pub(super) fn remove_if(
        &mut self,
        hash: u64,
        is: impl Fn(&K) -> bool,
        may: impl FnOnce(&Entry<V, E>) -> bool,
        scales: &Scales<K, V>,
    ) -> Option<Left<K, V, E>> {
        let found = self.items.find_entry(hash, |item| is(&item.key)).ok()?;
        if !may(&found.get().entry) {
            return None;
        }
        let uses = *self.uses[found.bucket_index()].get_mut();
        let item = found.remove().0;
        Some(self.let_go(item, uses, scales))
    }

    /// Changes an entry that is there, but not what it weighs.
    pub(super) fn update(&mut self, hash: u64, key: &K, change: impl FnOnce(&mut Entry<V, E>)) {
        if let Some(item) = self.items.find_mut(hash, |item| item.key == *key) {
            change(&mut item.entry);
        }
    }

    /// Takes everything away.
    pub(super) fn clear(&mut self) -> impl Sized + use<K, V, E> {
        self.newcomers.clear();
        self.traces = Box::default();
        (self.hand, self.weight, self.settled_weight) = (0, 0, 0);
        self.layout += 1;
        self.uses = Box::default();
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

    /// The next entry that lies here or after this, and where the one after it may lie.
    pub(super) fn next_from(&self, bucket: usize) -> Option<(usize, &K, &Entry<V, E>)> {
        (bucket..self.items.num_buckets())
            .find_map(|bucket| self.items.get_bucket(bucket).map(|item| (bucket + 1, &item.key, &item.entry)))
    }

    /// Where newcomers are taken away as fast as they come, there is never a need for room, and nobody asks for the oldest.
    #[cold]
    fn count_newcomers(&mut self) {
        let mut seen = vec![false; self.uses.len()];
        let (uses, items) = (&mut self.uses, &self.items);
        self.newcomers.retain(|(bucket, _)| {
            let is_new = items.get_bucket(*bucket).is_some() && *uses[*bucket].get_mut() & NEW != 0;
            is_new && !mem::replace(&mut seen[*bucket], true)
        });
    }

    /// The oldest newcomer settles, or goes; false if nothing is there.
    fn try_newcomer(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) -> bool {
        let Some((bucket, _)) = self.newcomers.pop_front() else { return self.turn(scales, gone) };
        let Ok(found) = self.items.get_bucket_entry(bucket) else { return true };
        let uses = self.uses[bucket].get_mut();
        if *uses == NEW {
            let item = found.remove().0;
            self.leave_trace(scales.hash(&item.key));
            self.evicted += 1;
            gone.make_room(self.let_go(item, NEW, scales));
        } else if *uses > NEW {
            *uses = 0;
            let weight = scales.weight(&found.get().key, &found.get().entry);
            self.settled_weight = self.settled_weight.saturating_add(weight);
        }
        // Else it has settled, in the place of one that was taken away.
        true
    }

    /// Moves the hand on until an entry has to go; false if none has settled.
    fn turn(&mut self, scales: &Scales<K, V>, gone: &mut Gone<K, V, E>) -> bool {
        let buckets = self.items.num_buckets();
        // After so many times round, nobody's uses count any more.
        for _ in 0..=buckets * (usize::from(OFTEN) + 1) {
            let bucket = if self.hand < buckets { self.hand } else { 0 };
            self.hand = bucket + 1;
            let Ok(found) = self.items.get_bucket_entry(bucket) else { continue };
            let uses = self.uses[bucket].get_mut();
            match *uses {
                0 => {
                    let item = found.remove().0;
                    self.leave_trace(scales.hash(&item.key));
                    self.evicted += 1;
                    gone.make_room(self.let_go(item, 0, scales));
                    return true;
                }
                NEW.. => {}
                _ => *uses -= 1,
            }
        }
        false
    }

    fn let_go(&mut self, item: Item<K, V, E>, uses: u8, scales: &Scales<K, V>) -> Left<K, V, E> {
        let Item { key, entry } = item;
        let weight = scales.weight(&key, &entry);
        self.weight = self.weight.saturating_sub(weight);
        if uses & NEW == 0 {
            self.settled_weight = self.settled_weight.saturating_sub(weight);
        }
        if self.items.is_empty() {
            // Should a scale have said now this and now that.
            (self.weight, self.settled_weight) = (0, 0);
        }
        (key, entry)
    }

    /// So that an insertion finds a place. The table would see to that itself, but where many have come and gone it would
    /// make itself twice as large and not only lay itself out anew.
    #[inline]
    fn make_place(&mut self, scales: &Scales<K, V>) {
        if self.items.len() == self.items.capacity() {
            self.lay_out(scales);
        }
    }

    #[cold]
    #[inline(never)]
    fn lay_out(&mut self, scales: &Scales<K, V>) {
        // Of eight buckets a table uses seven. What is lost to those that have gone is worth laying it out anew if it is a
        // sixteenth of that, or more.
        let (len, most) = (self.items.len(), self.items.num_buckets() / 8 * 7);
        let capacity = if len < most / 16 * 15 { most } else { (most + 1).max(len + 1) };
        let mut old = mem::replace(&mut self.items, HashTable::with_capacity(capacity));
        let buckets = self.items.num_buckets();
        let uses = mem::replace(&mut self.uses, iter::repeat_with(AtomicU8::default).take(buckets).collect());
        let mut moved = vec![None; uses.len()];
        for (bucket, (counted, moved)) in uses.into_iter().zip(&mut moved).enumerate() {
            let Ok(found) = old.get_bucket_entry(bucket) else { continue };
            let item = found.remove().0;
            let laid = self.items.insert_unique(scales.hash(&item.key), item, |item| scales.hash(&item.key));
            self.uses[laid.bucket_index()] = counted;
            *moved = Some(laid.bucket_index());
        }
        let newcomers = mem::take(&mut self.newcomers);
        self.newcomers = newcomers.into_iter().filter_map(|(bucket, hash)| Some((moved[bucket]?, hash))).collect();
        self.layout += 1;
    }

    fn leave_trace(&mut self, hash: u64) {
        if self.traces.is_empty() {
            self.traces = vec![[0; 4]; self.items.len().div_ceil(4).next_power_of_two()].into_boxed_slice();
        }
        let (place, trace) = trace(hash, self.traces.len());
        let [first, second, third, _] = self.traces[place];
        self.traces[place] = [trace, first, second, third];
    }

    /// Whether this key had to go a short time ago, which counts once.
    fn takes_trace(&mut self, hash: u64) -> bool {
        if self.traces.is_empty() {
            return false;
        }
        let (place, trace) = trace(hash, self.traces.len());
        let found = self.traces[place].iter_mut().find(|left| **left == trace);
        found.map(|left| *left = 0).is_some()
    }
}

/// Where the trace of a hash is among so many places, and what it looks like there.
#[expect(clippy::cast_possible_truncation, reason = "these are the parts of a hash that are wanted")]
fn trace(hash: u64, places: usize) -> (usize, u16) {
    ((hash >> 8) as usize & (places - 1), (hash >> 40) as u16 | 1)
}

/// What an entry may weigh where there is so much room.
fn heaviest(room: u64) -> u64 {
    room / 100 * SETTLED + room % 100 * SETTLED / 100
}

impl<K, V, E> Gone<K, V, E> {
    /// What was to be put in is too heavy.
    fn refuse(&mut self, item: Left<K, V, E>) {
        self.too_heavy = true;
        self.keep(Some(item));
    }

    fn keep(&mut self, item: Option<Left<K, V, E>>) {
        if self.first.is_none() {
            self.first = item;
        } else {
            self.others.extend(item);
        }
    }

    fn make_room(&mut self, item: Left<K, V, E>) {
        self.evicted += 1;
        self.keep(Some(item));
    }
}

impl<K, V, E> Default for Gone<K, V, E> {
    fn default() -> Self {
        Gone { evicted: 0, too_heavy: false, first: None, others: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, ops::Range};

    use super::{
        super::entry::{Content, Early, Life},
        *,
    };
    use crate::env::{Env, Tick, sim::Sim};

    type Numbers = Shelf<u64, u64, ()>;

    /// A shelf, and what it is used with.
    struct Trial {
        shelf: Numbers,
        scales: Scales<u64, u64>,
        evicted: u64,
    }

    impl Trial {
        fn new(env: &Env, room: u64, weigh: Option<Weigh<u64, u64>>) -> Trial {
            let scales = Scales { hasher: env.hasher("shelf"), weigh };
            Trial { shelf: Shelf::new(room), scales, evicted: 0 }
        }

        fn of(room: u64) -> Trial {
            Trial::new(&Sim::new(1).env(), room, None)
        }

        fn put(&mut self, key: u64, value: u64) -> bool {
            let mut gone = Gone::default();
            self.shelf.put(self.scales.hash(&key), key, entry(value), &self.scales, &mut gone);
            self.evicted += gone.evicted;
            !gone.too_heavy
        }

        fn get(&self, key: u64) -> Option<u64> {
            self.shelf.get(self.scales.hash(&key), |other| *other == key)?.value().copied()
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
            self.shelf.remove_if(self.scales.hash(&key), |other| *other == key, |_| true, &self.scales).is_some()
        }
    }

    fn entry(value: u64) -> Entry<u64, ()> {
        let life = Life::begin(Tick::ZERO, 60_000_000_000, 0, 0, Early::NEVER);
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
    fn a_key_that_had_to_go_and_comes_again_settles_at_once() {
        let mut trial = Trial::of(1_000);
        trial.ask_all(0..2_000);
        // Newcomers are thirty, and these were the last of those that went.
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
            let mut trial = Trial::new(&env, 500, Some(Arc::new(|_, value| value % 7)));
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
                assert!(trial.shelf.weight() <= 500);
            }
            let Shelf { items, uses, weight, settled_weight, .. } = &trial.shelf;
            let weigh = |item: &Item<_, _, _>| trial.scales.weight(&item.key, &item.entry);
            let is_settled = |bucket: usize| uses[bucket].load(Relaxed) & NEW == 0;
            let settled =
                (0..uses.len()).filter(|bucket| is_settled(*bucket)).filter_map(|bucket| items.get_bucket(bucket));
            assert_eq!((items.iter().map(weigh).sum(), settled.map(weigh).sum()), (*weight, *settled_weight), "{seed}");
            assert!(items.len() > 100, "{}", items.len());
        }
    }

    #[test]
    fn what_is_too_heavy_is_not_kept_and_what_it_would_have_replaced_is_gone() {
        let mut trial = Trial::new(&Sim::new(1).env(), 100, Some(Arc::new(|_, value| *value)));
        assert!(trial.put(1, 97) && trial.get(1) == Some(97));
        assert!(!trial.put(1, 98));
        assert_eq!((trial.get(1), trial.shelf.weight(), trial.evicted), (None, 0, 0));
    }

    #[test]
    fn one_who_grows_in_its_place_makes_others_go() {
        let mut trial = Trial::new(&Sim::new(1).env(), 100, Some(Arc::new(|_, value| *value)));
        (0..10).for_each(|key| assert!(trial.put(key, 10)));
        assert!(trial.put(3, 50) && trial.shelf.weight() <= 100);
        assert_eq!((trial.get(3), trial.evicted), (Some(50), 4));
    }

    #[test]
    fn a_table_in_which_many_come_and_go_does_not_become_larger() {
        // As full as one gets.
        let mut trial = Trial::of(6_400);
        trial.ask_all(0..6_400);
        let buckets = trial.shelf.items.num_buckets();
        trial.ask_all(0..500_000);
        assert_eq!(trial.shelf.items.num_buckets(), buckets);
        assert_eq!(trial.shelf.len(), 6_400);
        assert!(trial.shelf.newcomers.len() < 400, "{}", trial.shelf.newcomers.len());
    }

    #[test]
    fn newcomers_that_are_taken_away_as_fast_as_they_come_are_not_remembered_for_ever() {
        let mut trial = Trial::of(1_000);
        trial.ask_all(0..975);
        for key in 0..100_000 {
            trial.ask(10_000 + key);
            assert!(trial.remove(10_000 + key));
        }
        assert!(trial.shelf.newcomers.len() <= 1_000, "{}", trial.shelf.newcomers.len());
        assert_eq!((trial.evicted, trial.shelf.weight()), (0, 975));
    }

    #[test]
    fn what_is_as_heavy_as_can_be_is_weighed_all_the_same() {
        let mut trial = Trial::new(&Sim::new(1).env(), u64::MAX, Some(Arc::new(|_, _| u64::MAX / 2)));
        trial.ask_all(0..10);
        // What would be heavier than can be said is as heavy as that, and fits.
        assert!(trial.get(9).is_some() && trial.shelf.weight() == u64::MAX);
        let mut trial = Trial::new(&Sim::new(1).env(), u64::MAX - 1, Some(Arc::new(|_, _| u64::MAX / 2)));
        trial.ask_all(0..10);
        assert!(trial.shelf.len() <= 2, "{}", trial.shelf.len());
    }

    #[test]
    fn a_room_for_one_holds_one() {
        let mut trial = Trial::of(1);
        for key in 0..100 {
            trial.ask(key);
            trial.ask(key);
            assert!(trial.shelf.len() == 1 && trial.get(key).is_some(), "{key}");
        }
    }
}
