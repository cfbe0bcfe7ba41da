//! What is done with each cache.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use herdproof_bench::{
    Value,
    calls::{All, alone, on_two_threads},
    live_bytes,
};

use crate::peers::{Loading, Peer};

const KEYS: usize = 100_000;
/// More than the keys: nothing is evicted.
const ROOM: usize = 200_000;
/// Drawn before anything is measured. A power of two.
const DRAWN: usize = 1 << 20;

pub(crate) fn hit<P: Peer>(ops: u64) -> Vec<Value> {
    let keys = drawn();
    alone(All::LetIn, ops, || {
        let cache: P = filled();
        async move || cache.get(next(&keys)).is_some()
    })
}

pub(crate) fn hit_on_two_threads<P: Peer>(ops: u64) -> Vec<Value> {
    let (keys, cache): (_, P) = (drawn(), filled());
    on_two_threads(All::LetIn, ops, async || cache.get(next(&keys)).is_some())
}

/// The key that everybody wants.
pub(crate) fn hot_hit<P: Peer>(ops: u64) -> Vec<Value> {
    alone(All::LetIn, ops, || {
        let cache: P = holding(1, ROOM);
        async move || cache.get(0).is_some()
    })
}

pub(crate) fn hot_hit_on_two_threads<P: Peer>(ops: u64) -> Vec<Value> {
    let cache: P = holding(1, ROOM);
    on_two_threads(All::LetIn, ops, async || cache.get(0).is_some())
}

pub(crate) fn loading_hit<P: Loading>(ops: u64) -> Vec<Value> {
    let keys = drawn();
    alone(All::LetIn, ops, || {
        let cache: P = filled();
        async move || {
            let key = next(&keys);
            cache.get_or_load(key).await == key
        }
    })
}

pub(crate) fn loading_hit_on_two_threads<P: Loading>(ops: u64) -> Vec<Value> {
    let (keys, cache): (_, P) = (drawn(), filled());
    on_two_threads(All::LetIn, ops, async || {
        let key = next(&keys);
        cache.get_or_load(key).await == key
    })
}

pub(crate) fn miss<P: Loading>(ops: u64) -> Vec<Value> {
    let fresh = AtomicU64::new(KEYS as u64);
    alone(All::LetIn, ops, || {
        // Full: each miss evicts.
        let cache: P = holding(KEYS, KEYS);
        async move || {
            let key = fresh.fetch_add(1, Relaxed);
            cache.get_or_load(key).await == key
        }
    })
}

pub(crate) fn memory<P: Peer>(entries: u64) -> Vec<Value> {
    let before = live_bytes();
    // Some room to spare: a cache in shards has some that are fuller than others.
    let room = usize::try_from(entries + entries / 20).expect("it fits");
    let cache = P::new(room);
    (0..entries).for_each(|key| cache.insert(key, key));
    let bytes = live_bytes() - before;
    let kept = (0..entries).filter(|key| cache.get(*key).is_some()).count();
    assert!(kept as u64 > entries / 100 * 99, "only {kept} are kept");
    // Beside a key and a value of eight bytes each.
    vec![Value { unit: "bytes/entry", value: bytes as f64 / kept as f64 - 16.0 }]
}

const WIDE: usize = 1_000_000;

pub(crate) fn power_law<P: Peer>(ops: u64) -> Vec<Value> {
    let power = Power::new(WIDE, 0.9);
    misses::<P>(ops, |_, draw| power.key(draw.unit()))
}

pub(crate) fn scanned<P: Peer>(ops: u64) -> Vec<Value> {
    let power = Power::new(WIDE, 0.9);
    misses::<P>(ops, |request, draw| if request % 5 == 0 { WIDE as u64 + request } else { power.key(draw.unit()) })
}

pub(crate) fn shifting<P: Peer>(ops: u64) -> Vec<Value> {
    let power = Power::new(WIDE, 0.9);
    // A favourite is one for a hundred thousand requests or so.
    misses::<P>(ops, |request, draw| (power.key(draw.unit()) + request / 10_000 * 7) % WIDE as u64)
}

/// The share of requests that miss, in percent, in a cache for a tenth of the keys.
fn misses<P: Peer>(ops: u64, key: impl Fn(u64, &mut Draw) -> u64) -> Vec<Value> {
    let cache = P::new(WIDE / 10);
    let mut draw = Draw(17);
    let (warm_up, mut missed) = (ops / 5 * 2, 0);
    for request in 0..ops {
        let key = key(request, &mut draw);
        if cache.get(key).is_none() {
            cache.insert(key, key);
            missed += u64::from(request >= warm_up);
        }
    }
    vec![Value { unit: "misses", value: 100.0 * missed as f64 / (ops - warm_up) as f64 }]
}

fn filled<P: Peer>() -> P {
    holding(KEYS, ROOM)
}

fn holding<P: Peer>(keys: usize, room: usize) -> P {
    let cache = P::new(room);
    (0..keys as u64).for_each(|key| cache.insert(key, key));
    cache
}

fn drawn() -> Vec<u64> {
    let (power, mut draw) = (Power::new(KEYS, 0.99), Draw(1));
    (0..DRAWN).map(|_| power.key(draw.unit())).collect()
}

thread_local! {
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

fn next(keys: &[u64]) -> u64 {
    let index = NEXT.get();
    NEXT.set(index + 1);
    keys[index & (DRAWN - 1)]
}

/// Numbers that look random, the same every time.
struct Draw(u64);

impl Draw {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Keys of which the first is the most wanted, the second less so by a power, and so on; in no order of their numbers.
struct Power(Vec<f64>);

impl Power {
    fn new(keys: usize, power: f64) -> Power {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-power);
            sum
        });
        Power(sums.collect())
    }

    fn key(&self, unit: f64) -> u64 {
        let all = self.0.last().copied().unwrap_or(0.0);
        let rank = self.0.partition_point(|sum| *sum <= unit * all).min(self.0.len() - 1) as u64;
        // Odd, so that no two ranks meet.
        rank.wrapping_mul(7_919) % self.0.len() as u64
    }
}
