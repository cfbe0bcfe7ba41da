//! What happens next, out of a million things that will.
//!
//! A binary heap touches twenty scattered cache lines per event at a million pending timers, and a wheel of linked
//! lists touches one scattered line per link. This queue moves events through contiguous buckets instead, and each event
//! is moved about three times in its life, sequentially:
//!
//! 1. A pushed event goes into one of 256 buckets on one of eight levels: the level is the highest byte in which its
//!    tick differs from the queue's `base`, the bucket is that byte (a radix heap with base 256).
//! 2. When the front runs dry, the first bucket of the lowest level is next. If it is small it is sorted and becomes the
//!    front; otherwise its events are dealt out to the level below.
//! 3. Events leave from the front. What is pushed before the front's edge is inserted there in order; should that make
//!    the front long, it is dealt out to finer buckets.
//!
//! Events of the same tick leave in the order in which they came. No sequence number is stored for that: they are always
//! in the same bucket, and every step keeps a bucket's order.

use std::ops::RangeInclusive;

/// A bucket of at most this many events is sorted at once rather than dealt out.
const SORT: usize = 96;
/// A front that has grown beyond this by insertions is dealt out to finer buckets.
const SPILL: usize = 384;
/// Events per chunk of a bucket: one KiB of the executor's 16-byte events.
const CHUNK: usize = 64;
const LEVELS: usize = 8;
const NONE: u32 = u32::MAX;

type Event<T> = (u64, T);

/// A queue of events ordered by (tick, order of arrival).
///
/// It is what [`Sim`](super::Sim) runs on, and can be used alone for a model that needs no tasks.
///
/// ```
/// use herdproof::env::sim::EventQueue;
///
/// let mut queue = EventQueue::new();
/// queue.push(30, "last");
/// queue.push(10, "first");
/// queue.push(10, "second");
/// assert_eq!(queue.pop(), Some((10, "first")));
/// assert_eq!(queue.pop(), Some((10, "second")));
/// assert_eq!(queue.pop(), Some((30, "last")));
/// assert_eq!(queue.pop(), None);
/// ```
#[derive(Debug)]
pub struct EventQueue<T> {
    /// Sorted; everything before `head` has left.
    front: Vec<Event<T>>,
    head: usize,
    /// Every event up to this tick is in the front, every later one in a bucket.
    edge: u64,
    /// What buckets are reckoned from: no event in a bucket is before it.
    base: u64,
    /// Whether the front spans more than one tick, so that dealing it out can make it shorter.
    divisible: bool,
    /// `LEVELS` times 256.
    buckets: Vec<[Bucket; 256]>,
    /// One bit per bucket that holds something.
    occupied: [[u64; 4]; LEVELS],
    chunks: Vec<Chunk<T>>,
    /// The first of the chunks that no bucket uses.
    spare: u32,
    len: usize,
}

/// A chain of chunks, filled at the tail.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    head: u32,
    tail: u32,
    len: u32,
}

#[derive(Debug)]
struct Chunk<T> {
    /// Never grows beyond `CHUNK`, so it is allocated once.
    events: Vec<Event<T>>,
    next: u32,
}

const EMPTY: Bucket = Bucket { head: NONE, tail: NONE, len: 0 };

impl<T: Copy> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> EventQueue<T> {
        EventQueue {
            front: Vec::new(),
            head: 0,
            edge: 0,
            base: 0,
            divisible: false,
            buckets: vec![[EMPTY; 256]; LEVELS],
            occupied: [[0; 4]; LEVELS],
            chunks: Vec::new(),
            spare: NONE,
            len: 0,
        }
    }

    /// How many events are pending.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event. One that lies before the last that was popped is the next to leave.
    #[inline]
    pub fn push(&mut self, tick: u64, item: T) {
        self.len += 1;
        if tick > self.edge {
            self.put(tick, item);
        } else {
            self.insert(tick, item);
        }
    }

    /// Removes the earliest event; of those with the same tick, the one that was pushed first.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, T)> {
        self.pop_until(u64::MAX)
    }

    /// Removes the earliest event if its tick is at most `limit`. Having looked costs later pushes nothing.
    #[inline]
    pub fn pop_until(&mut self, limit: u64) -> Option<(u64, T)> {
        self.load(limit);
        let event = *self.front.get(self.head)?;
        if event.0 > limit {
            return None;
        }
        self.head += 1;
        self.len -= 1;
        Some(event)
    }

    /// Sees to it that some events are [`upcoming`](EventQueue::upcoming), if any are due by `limit`.
    ///
    /// A model with much state can read what these events will touch before it pops the first of them: reads that do not
    /// depend on each other are fetched side by side, and waiting for memory is most of what a large model does.
    #[inline]
    pub fn load(&mut self, limit: u64) {
        if self.head == self.front.len() {
            self.refill(limit);
        }
    }

    /// The events that are next for certain, earliest first; empty where finding more would take work.
    pub fn upcoming(&self) -> &[(u64, T)] {
        &self.front[self.head..]
    }

    /// Keeps only the events for which `keep` says so, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.front.drain(..self.head);
        self.head = 0;
        self.front.retain(|event| keep(&event.1));
        self.len = self.front.len();
        for level in 0..LEVELS {
            for index in 0..256 {
                let mut chunk = self.take(level, index).head;
                while chunk != NONE {
                    chunk = self.unload(chunk, |queue, (tick, item)| {
                        if keep(&item) {
                            queue.len += 1;
                            queue.put(tick, item);
                        }
                    });
                }
            }
        }
    }

    fn insert(&mut self, tick: u64, item: T) {
        let place = self.head + self.front[self.head..].partition_point(|event| event.0 <= tick);
        if place == self.front.len() && self.head * 2 > place {
            // The common push at the very end of a front that is mostly used up: make room in place.
            self.front.drain(..self.head);
            self.head = 0;
            self.front.push((tick, item));
        } else {
            self.front.insert(place, (tick, item));
        }
        if self.divisible && self.front.len() - self.head > SPILL {
            self.spill();
        }
    }

    /// Deals the front out to buckets reckoned from its own first tick, all but the events of that tick.
    fn spill(&mut self) {
        let mut front = std::mem::take(&mut self.front);
        front.drain(..self.head);
        self.head = 0;
        // An event pushed into the past may lie before the base, which must not move back under the buckets.
        self.base = self.base.max(front[0].0);
        self.edge = self.base;
        self.divisible = false;
        let stay = front.partition_point(|event| event.0 <= self.edge);
        for (tick, item) in front.drain(stay..) {
            self.put(tick, item);
        }
        self.front = front;
    }

    /// Makes the earliest bucket that begins by `limit` the front, along with small ones right behind it.
    fn refill(&mut self, limit: u64) {
        self.front.clear();
        self.head = 0;
        while let Some((level, index)) = self.first_bucket() {
            let ticks = self.ticks_of(level, index);
            let bucket = self.buckets[level][index];
            let full = !self.front.is_empty() && self.front.len() + bucket.len as usize > SORT;
            if *ticks.start() > limit || full {
                return;
            }
            if self.front.is_empty() {
                self.base = *ticks.start();
                self.edge = self.edge.max(self.base.saturating_sub(1));
            }
            let ready = level == 0 || bucket.len as usize <= SORT || self.is_one_tick(bucket);
            let loaded = self.front.len();
            let mut chunk = self.take(level, index).head;
            while chunk != NONE {
                chunk = if ready {
                    self.unload(chunk, |queue, event| queue.front.push(event))
                } else {
                    self.unload(chunk, |queue, (tick, item)| queue.put(tick, item))
                };
            }
            if ready {
                self.edge = *ticks.end();
                self.divisible = level > 0 || loaded > 0;
                self.front[loaded..].sort_by_key(|event| event.0);
            }
        }
    }

    /// Whether a crowd is waiting for one instant; dealing it out level by level would only move it.
    fn is_one_tick(&self, bucket: Bucket) -> bool {
        let tick = self.chunks[bucket.head as usize].events[0].0;
        let mut chunk = bucket.head;
        while chunk != NONE {
            let Chunk { events, next } = &self.chunks[chunk as usize];
            if events.iter().any(|event| event.0 != tick) {
                return false;
            }
            chunk = *next;
        }
        true
    }

    /// The ticks that belong to a bucket, reckoned from the present base.
    fn ticks_of(&self, level: usize, index: usize) -> RangeInclusive<u64> {
        let below = (1u64 << (8 * level)) - 1;
        let within = below << 8 | 0xff;
        let start = self.base & !within | (index as u64) << (8 * level);
        start..=start | below
    }

    fn first_bucket(&self) -> Option<(usize, usize)> {
        self.occupied.iter().enumerate().find_map(|(level, words)| {
            let word = words.iter().position(|&word| word != 0)?;
            Some((level, word * 64 + words[word].trailing_zeros() as usize))
        })
    }

    #[inline]
    fn put(&mut self, tick: u64, item: T) {
        let level = (63 - ((tick ^ self.base) | 1).leading_zeros() as usize) / 8;
        let index = usize::from((tick >> (8 * level)).to_le_bytes()[0]);
        let bucket = &mut self.buckets[level][index];
        if (bucket.len as usize).is_multiple_of(CHUNK) {
            let chunk = match self.spare {
                NONE => {
                    self.chunks.push(Chunk { events: Vec::with_capacity(CHUNK), next: NONE });
                    u32::try_from(self.chunks.len() - 1).expect("fewer than 2^38 pending events")
                }
                spare => {
                    self.spare = std::mem::replace(&mut self.chunks[spare as usize].next, NONE);
                    spare
                }
            };
            if bucket.len == 0 {
                bucket.head = chunk;
                self.occupied[level][index / 64] |= 1 << (index % 64);
            } else {
                self.chunks[bucket.tail as usize].next = chunk;
            }
            bucket.tail = chunk;
        }
        bucket.len += 1;
        self.chunks[bucket.tail as usize].events.push((tick, item));
    }

    /// Empties a bucket; the caller unloads its chunks.
    fn take(&mut self, level: usize, index: usize) -> Bucket {
        self.occupied[level][index / 64] &= !(1 << (index % 64));
        std::mem::replace(&mut self.buckets[level][index], EMPTY)
    }

    /// Hands the chunk's events on, frees it, and gives the next of its chain.
    fn unload(&mut self, chunk: u32, mut each: impl FnMut(&mut Self, Event<T>)) -> u32 {
        let slot = chunk as usize;
        let mut events = std::mem::take(&mut self.chunks[slot].events);
        for event in events.drain(..) {
            each(self, event);
        }
        self.chunks[slot].events = events;
        let next = std::mem::replace(&mut self.chunks[slot].next, self.spare);
        self.spare = chunk;
        next
    }
}

impl<T: Copy> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::env::rng::{Rng, stream_key};

    /// The obvious queue: a map from (tick, sequence).
    #[derive(Default)]
    struct Model {
        events: BTreeMap<(u64, u32), u32>,
        pushed: u32,
    }

    impl Model {
        fn push(&mut self, tick: u64) -> u32 {
            self.pushed += 1;
            self.events.insert((tick, self.pushed), self.pushed);
            self.pushed
        }

        fn pop(&mut self) -> Option<(u64, u32)> {
            self.events.pop_first().map(|((tick, _), item)| (tick, item))
        }
    }

    /// Plays a hold model in which every popped event pushes `fan` more until `pushes` are spent.
    fn check(seed: u64, start: usize, pushes: usize, delay: impl Fn(&Rng) -> u64) {
        let rng = Rng::new(stream_key(seed, 0, "queue"));
        let (mut queue, mut model) = (EventQueue::new(), Model::default());
        for _ in 0..start {
            let tick = delay(&rng);
            queue.push(tick, model.push(tick));
        }
        for _ in 0..pushes {
            let popped = queue.pop();
            assert_eq!(popped, model.pop());
            let Some((now, _)) = popped else { break };
            let tick = now.saturating_add(delay(&rng));
            queue.push(tick, model.push(tick));
            assert_eq!(queue.len(), model.events.len());
        }
        while let Some(event) = model.pop() {
            assert_eq!(queue.pop(), Some(event));
        }
        assert_eq!(queue.pop(), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_crowd_with_spread_delays_leaves_in_order() {
        check(1, 20_000, 60_000, |rng| rng.below(1_000_000_000));
    }

    #[test]
    fn a_crowd_on_few_ticks_leaves_first_come_first_served() {
        check(2, 5_000, 20_000, |rng| rng.below(4) * 10_000_000);
    }

    #[test]
    fn a_burst_that_lands_inside_the_front_is_dealt_out_in_order() {
        check(3, 20_000, 40_000, |rng| if rng.chance(0.9) { rng.below(2_000_000) } else { rng.below(1 << 34) });
    }

    #[test]
    fn ticks_at_the_end_of_time_are_reached() {
        check(4, 1_000, 3_000, |rng| if rng.chance(0.5) { u64::MAX - rng.below(3) } else { rng.bits() });
    }

    #[test]
    fn events_for_now_keep_their_order_behind_those_already_there() {
        check(5, 3_000, 6_000, |rng| rng.below(2));
    }

    #[test]
    fn an_event_in_the_past_is_the_next_to_leave() {
        let mut queue = EventQueue::new();
        queue.push(1_000_000, 'b');
        queue.push(2_000_000, 'c');
        assert_eq!(queue.pop(), Some((1_000_000, 'b')));
        queue.push(5, 'a');
        assert_eq!(queue.pop(), Some((5, 'a')));
        assert_eq!(queue.pop(), Some((2_000_000, 'c')));
    }

    #[test]
    fn looking_ahead_does_not_make_earlier_events_late() {
        let mut queue = EventQueue::new();
        queue.push(5_000_000_000, 'z');
        assert_eq!(queue.pop_until(4_999_999_999), None);
        for tick in [3_000_000_000, 4_000_000_000, 10] {
            queue.push(tick, 'a');
        }
        let ticks: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|event| event.0).collect();
        assert_eq!(ticks, [10, 3_000_000_000, 4_000_000_000, 5_000_000_000]);
    }

    #[test]
    fn purging_keeps_the_rest_in_order() {
        let rng = Rng::new(9);
        let (mut queue, mut model) = (EventQueue::new(), Model::default());
        for _ in 0..10_000 {
            let tick = rng.below(1 << 32) & !0xff_ffff;
            queue.push(tick, model.push(tick));
        }
        for _ in 0..100 {
            assert_eq!(queue.pop(), model.pop());
        }
        queue.retain(|item| item % 3 == 0);
        model.events.retain(|_, item| *item % 3 == 0);
        assert_eq!(queue.len(), model.events.len());
        while let Some(event) = model.pop() {
            assert_eq!(queue.pop(), Some(event));
        }
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_long_run_reuses_its_chunks() {
        let rng = Rng::new(9);
        let mut queue = EventQueue::new();
        for _ in 0..2_000 {
            queue.push(rng.below(1 << 30), ());
        }
        let mut high = 0;
        for round in 0..200_000 {
            let (now, ()) = queue.pop().unwrap();
            queue.push(now + rng.below(1 << 30), ());
            if round == 20_000 {
                high = queue.chunks.len();
            }
        }
        assert!(queue.chunks.len() <= high + high / 4, "{} chunks after {high}", queue.chunks.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
        #[test]
        fn any_mix_of_pushes_and_pops_agrees_with_the_obvious_queue(
            steps in prop::collection::vec((0..5u8, 0..64u32, any::<u64>()), 0..800)
        ) {
            let (mut queue, mut model) = (EventQueue::new(), Model::default());
            for (kind, shift, bits) in steps {
                let tick = bits >> shift;
                match kind {
                    0..3 => queue.push(tick, model.push(tick)),
                    3 => prop_assert_eq!(queue.pop(), model.pop()),
                    _ => {
                        let next = model.events.first_key_value().map(|((tick, _), _)| *tick);
                        let due = next.is_some_and(|next| next <= tick);
                        prop_assert_eq!(queue.pop_until(tick), if due { model.pop() } else { None });
                    }
                }
                prop_assert_eq!(queue.len(), model.events.len());
            }
            while let Some(event) = model.pop() {
                prop_assert_eq!(queue.pop(), Some(event));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
