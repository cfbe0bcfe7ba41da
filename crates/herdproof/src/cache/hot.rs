//! Which keys are hot: a sketch of the few that get much, in room that does not grow with the keys.
//!
//! One key with a tenth of the traffic is one entry in one shard on one node, whatever the cache; whoever is to do something
//! about it has to see it first. About one hit in 64 goes into the sketch, which is the space-saving one of Metwally and
//! others: as many counters as it has, and a newcomer takes the place of the least, with its count. So every key with more
//! than its share is there, and each counter knows how much of it may be somebody else's. It forgets by halves, so that
//! what it says is of the last some hundred thousand hits. Keys are kept as hashes, with a seed that nobody knows.
//!
//! Where there is a second tier, hot entries stay in memory for longer before it is asked again ([`Link::hot`]): they hear of
//! changes like all others. Without one there is nobody to hear of them from, and what the policy says is what holds.
//!
//! [`Link::hot`]: super::Link::hot

use std::{borrow::Borrow, hash::BuildHasher, hash::Hash};

use parking_lot::Mutex;

use super::{Cache, Inner};

/// Counters: with a sample of n, no count is more than n / 256 too high.
const COUNTERS: usize = 256;
/// The smallest share that can be told from the error.
const LEAST_SHARE: f64 = 0.01;
/// When as many hits were sampled, all counts are halved.
const SAMPLES: u32 = 8_192;
/// Fewer sampled hits than this say nothing about a key.
const ENOUGH: u32 = 8;

/// A key that gets a large share of all hits; from [`Cache::hot_keys`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotKey {
    /// Its hash: the same for as long as the cache lives, and of no meaning beyond it.
    pub hash: u64,
    /// At least this share of the hits of late.
    pub share: f64,
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The keys that get the largest shares of the hits of late, from the hottest; none if they are not
    /// [watched for](super::CacheBuilder::hot).
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.0.hot.as_ref().map(Sketch::hot_keys).unwrap_or_default()
    }

    /// Whether a key is one of the hot ones.
    pub fn is_hot<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.is_hot(key)
    }
}

impl<K, V, E> Inner<K, V, E> {
    pub(super) fn is_hot<Q: Hash + ?Sized>(&self, key: &Q) -> bool {
        self.hot.as_ref().is_some_and(|sketch| sketch.is_hot(self.places.hash_one(key)))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn sample<Q: Hash + ?Sized>(&self, key: &Q) {
        if let Some(sketch) = &self.hot {
            sketch.add(self.places.hash_one(key));
        }
    }
}

/// Whether the hit with this number is one of the 64th part that is looked at. Not every 64th: callers who go through their
/// keys in step with that would all show the same key.
#[inline]
pub(super) fn is_sample(number: u64) -> bool {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) < 1 << 58
}

pub(super) struct Sketch {
    /// From which share on a key is hot.
    share: f64,
    counters: Mutex<Counters>,
}

/// Side by side, so that a hash is found by going through two kilobytes.
#[derive(Default)]
struct Counters {
    hashes: Vec<u64>,
    counts: Vec<Count>,
    /// All that was counted.
    samples: u32,
}

#[derive(Clone, Copy)]
struct Count {
    count: u32,
    /// How much of it may belong to those who had this counter before.
    error: u32,
}

impl Count {
    fn sure(self) -> u32 {
        self.count - self.error
    }
}

impl Sketch {
    pub(super) fn new(share: f64) -> Sketch {
        let share = if share.is_nan() { LEAST_SHARE } else { share.clamp(LEAST_SHARE, 1.0) };
        Sketch { share, counters: Mutex::default() }
    }

    /// One more. Nobody waits for a counter: if another is counting just now, this one is not looked at.
    fn add(&self, hash: u64) {
        if let Some(mut counters) = self.counters.try_lock() {
            counters.add(hash);
        }
    }

    fn hot_keys(&self) -> Vec<HotKey> {
        let mut hot: Vec<HotKey> = self.counters.lock().shares().filter(|key| key.share >= self.share).collect();
        hot.sort_unstable_by(|a, b| b.share.total_cmp(&a.share).then(a.hash.cmp(&b.hash)));
        hot
    }

    fn is_hot(&self, hash: u64) -> bool {
        self.counters.lock().shares().any(|key| key.hash == hash && key.share >= self.share)
    }
}

impl Counters {
    fn add(&mut self, hash: u64) {
        let Counters { hashes, counts, samples } = self;
        if let Some(at) = hashes.iter().position(|known| *known == hash) {
            counts[at].count += 1;
        } else if hashes.len() < COUNTERS {
            hashes.push(hash);
            counts.push(Count { count: 1, error: 0 });
        } else if let Some((at, least)) = counts.iter_mut().enumerate().min_by_key(|(_, count)| count.count) {
            hashes[at] = hash;
            *least = Count { count: least.count + 1, error: least.count };
        }
        *samples += 1;
        if *samples >= SAMPLES {
            *samples /= 2;
            for Count { count, error } in counts {
                *count /= 2;
                *error /= 2;
            }
        }
    }

    fn shares(&self) -> impl Iterator<Item = HotKey> {
        let known = self.hashes.iter().zip(&self.counts).filter(|(_, count)| count.sure() >= ENOUGH);
        known.map(|(hash, count)| HotKey { hash: *hash, share: f64::from(count.sure()) / f64::from(self.samples) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        cache::Policy,
        env::{Env, Rng, sim::Sim},
    };

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn cache(env: &Env, keys: u64) -> Cache<u64, u64> {
        let cache = Cache::builder(env).capacity(100_000).policy(Policy::strict(DAY)).hot(0.02).build();
        (0..keys).for_each(|key| cache.set(key, key));
        cache
    }

    /// The hits of a crowd that asks for key zero in this share of all cases, and for any else in the others.
    fn crowd(cache: &Cache<u64, u64>, rng: &Rng, hot: u64, share: f64, hits: u32) {
        for _ in 0..hits {
            let key = if rng.unit() < share { hot } else { 10 + rng.below(50_000) };
            drop(cache.get(&key, || async { unreachable!("it is there") }));
        }
    }

    #[test]
    fn a_key_with_much_of_the_traffic_is_seen_among_very_many_and_the_others_are_not() {
        let env = Sim::new(1).env();
        let cache = cache(&env, 50_010);
        crowd(&cache, &env.rng("crowd"), 3, 0.1, 300_000);
        let hot = cache.hot_keys();
        assert_eq!(hot.len(), 1, "{hot:?}");
        assert!((0.07..=0.11).contains(&hot[0].share), "{hot:?}");
        assert!(cache.is_hot(&3) && !cache.is_hot(&4));
    }

    #[test]
    fn what_was_hot_is_forgotten_when_something_else_is() {
        let env = Sim::new(2).env();
        let (cache, rng) = (cache(&env, 50_010), env.rng("crowd"));
        crowd(&cache, &rng, 3, 0.3, 300_000);
        assert!(cache.is_hot(&3));
        crowd(&cache, &rng, 4, 0.3, 3_000_000);
        assert!(cache.is_hot(&4) && !cache.is_hot(&3), "{:?}", cache.hot_keys());
    }

    #[test]
    fn callers_who_go_round_in_step_with_the_sampling_do_not_make_one_key_look_hot() {
        let env = Sim::new(3).env();
        for keys in [2u64, 16, 32, 64] {
            let cache = cache(&env, 128);
            for n in 0..200_000 {
                drop(cache.get(&(n % keys), || async { unreachable!("it is there") }));
            }
            let fair = 1.0 / keys as f64;
            let hottest = cache.hot_keys().first().map_or(fair, |key| key.share);
            assert!((0.8 * fair..1.25 * fair).contains(&hottest), "{keys}: {hottest}");
        }
    }

    #[test]
    fn one_hit_in_sixty_four_is_looked_at() {
        let samples = (0..1_000_000).filter(|n| is_sample(*n)).count();
        assert!(samples.abs_diff(1_000_000 / 64) < 16, "{samples}");
    }

    #[test]
    fn a_few_hits_make_nothing_hot_nor_does_a_cache_that_is_not_told_to_watch() {
        let env = Sim::new(4).env();
        let watching = cache(&env, 10);
        crowd(&watching, &env.rng("crowd"), 1, 1.0, 256);
        assert!(watching.hot_keys().is_empty());
        let other: Cache<u64, u64> = Cache::builder(&env).build();
        other.set(1, 1);
        crowd(&other, &env.rng("crowd"), 1, 1.0, 10_000);
        assert!(other.hot_keys().is_empty() && !other.is_hot(&1));
    }
}
