//! Chance that can be replayed, and that no neighbour disturbs.
//!
//! With one generator per process, a policy that draws once more shifts the randomness of every other policy, and two
//! runs of an experiment stop being comparable. Here draw `n` of a stream is a pure function of
//! (seed, scope, stream name, n): adding a policy, a client or a thread leaves everybody else's draws as they were.
//!
//! Asking twice for the same name gives two different streams. Were they the same, a thousand connections built by one
//! line of code would all wait the same "random" time, which is the herd this library is against.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::tick::nanos;

/// One stream of random numbers, from [`Env::rng`](super::Env::rng).
///
/// Drawing takes `&self`, so a policy shared by many tasks holds one stream and needs no lock.
///
/// ```
/// use std::time::Duration;
/// use herdproof::Env;
///
/// let rng = Env::system().rng("poll/inventory");
/// let pause = rng.between(Duration::from_secs(27), Duration::from_secs(33));
/// assert!(pause >= Duration::from_secs(27) && pause <= Duration::from_secs(33));
/// ```
#[derive(Debug)]
pub struct Rng {
    key: u64,
    /// How many draws were taken. Nobody reads it to synchronize, so it is always `Relaxed`.
    drawn: AtomicU64,
}

impl Rng {
    pub(super) fn new(key: u64) -> Rng {
        Rng { key, drawn: AtomicU64::new(0) }
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&self) -> u64 {
        draw(self.key, self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// The 64 random bits of this number, for who has a number: nothing is counted. A stream is for this or for the other
    /// draws, not for both.
    #[inline]
    pub(crate) fn nth(&self, number: u64) -> u64 {
        draw(self.key, number)
    }

    /// Uniform in `0..n`; 0 if `n` is 0. The bias is at most `n / 2^64`.
    #[inline]
    pub fn below(&self, n: u64) -> u64 {
        below(self.bits(), n)
    }

    /// Uniform in `[0, 1)`, with 53 bits.
    #[inline]
    pub fn unit(&self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`: always from 1 on, never at 0 or below, nor for NaN.
    pub fn chance(&self, p: f64) -> bool {
        self.unit() < p
    }

    /// Uniform to the nanosecond in `lo..=hi`; `lo` if the range is empty.
    pub fn between(&self, lo: Duration, hi: Duration) -> Duration {
        let span = nanos(hi.saturating_sub(lo)).saturating_add(1);
        lo + Duration::from_nanos(self.below(span))
    }

    /// Puts the items into a random order, each order equally likely.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(last);
            items.swap(last, other);
        }
    }
}

/// The key of a scope inside another.
pub(super) fn scope_key(scope: u64, id: u64) -> u64 {
    mix(scope ^ mix(id.wrapping_add(GAMMA)))
}

/// The key of the stream called `name` in a scope.
pub(super) fn stream_key(seed: u64, scope: u64, name: &str) -> u64 {
    let mut key = mix(seed ^ mix(scope));
    for chunk in name.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        key = mix(key ^ u64::from_le_bytes(word)).wrapping_add(GAMMA);
    }
    mix(key ^ name.len() as u64)
}

/// The key of the `again`th stream that was asked for under the same name and scope.
pub(super) fn repeated_key(key: u64, again: u64) -> u64 {
    if again == 0 { key } else { scope_key(key, again) }
}

/// Draw `n` of the stream `key`. The key goes in twice, so that no stream is a shifted window of another.
fn draw(key: u64, n: u64) -> u64 {
    mix(mix(n.wrapping_mul(GAMMA).wrapping_add(key)) ^ key.rotate_left(32))
}

/// As much of `n` as these are of all 64 bits: uniform below it if they are drawn, always the same of a hash.
#[inline]
pub(crate) fn below(bits: u64, n: u64) -> u64 {
    // The upper half of the product is below n.
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}

/// A place within a time: as far into it as these are of all 64 bits.
#[inline]
pub(crate) fn within(time: Duration, bits: u64) -> Duration {
    Duration::from_nanos(below(bits, nanos(time)))
}

/// The golden ratio's fraction in 64 bits: consecutive counters land far apart.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection in which every bit of the input flips about half the bits of the output (the finalizer of `SplitMix64`).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seed: u64, scope: u64, name: &str) -> Rng {
        Rng::new(stream_key(seed, scope, name))
    }

    /// Chi-square over 256 cells; 99.99 % of fair generators stay within 350 at 255 degrees of freedom.
    fn check_uniform(draws: impl Iterator<Item = u64>) {
        let mut cells = [0u32; 256];
        let mut total = 0u32;
        for bits in draws {
            cells[usize::try_from(bits >> 56).unwrap()] += 1;
            total += 1;
        }
        let expected = f64::from(total) / 256.0;
        let chi: f64 = cells.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        assert!(chi < 350.0, "chi-square {chi} over {total} draws");
    }

    #[test]
    fn draws_of_one_stream_are_uniform() {
        let rng = stream(1, 0, "a");
        check_uniform((0..100_000).map(|_| rng.bits()));
    }

    #[test]
    fn the_first_draws_of_many_clients_are_uniform() {
        let env = scope_key(0, 7);
        check_uniform((0..100_000).map(|client| stream(1, scope_key(env, client), "retry").bits()));
    }

    #[test]
    fn the_same_draw_of_many_seeds_is_uniform() {
        check_uniform((0..100_000).map(|seed| stream(seed, 0, "retry").bits()));
    }

    #[test]
    fn neighbouring_clients_do_not_draw_alike() {
        let a: Vec<Rng> = (0..1000).map(|id| stream(1, scope_key(0, id), "x")).collect();
        let differing: u32 = a.windows(2).map(|pair| (pair[0].bits() ^ pair[1].bits()).count_ones()).sum();
        let mean = f64::from(differing) / 999.0;
        assert!((31.0..33.0).contains(&mean), "on average {mean} of 64 bits differ");
    }

    #[test]
    fn names_that_share_a_prefix_have_streams_of_their_own() {
        let names = ["", "a", "a\0", "aaaaaaaa", "aaaaaaaaa", "retry/orders", "retry/order", "retry/orders2"];
        let mut firsts: Vec<u64> = names.iter().map(|name| stream(1, 0, name).bits()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), names.len());
    }

    #[test]
    fn draws_are_the_same_on_every_machine() {
        let rng = stream(42, 0, "retry/orders");
        assert_eq!([rng.bits(), rng.bits()], [0x9e56_81b0_851f_7afb, 0xe176_be57_c359_1123]);
    }

    #[test]
    fn a_range_includes_both_ends_and_survives_being_empty_or_huge() {
        let rng = stream(3, 0, "r");
        let ns = Duration::from_nanos;
        let mut seen = [false; 3];
        for _ in 0..200 {
            seen[usize::try_from(rng.between(ns(10), ns(12)).as_nanos() - 10).unwrap()] = true;
        }
        assert_eq!(seen, [true; 3]);
        assert_eq!(rng.between(ns(5), ns(1)), ns(5));
        assert!(rng.between(ns(0), Duration::MAX) <= ns(u64::MAX));
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn chance_is_never_at_zero_and_always_at_one() {
        let rng = stream(3, 0, "c");
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0) && !rng.chance(f64::NAN)));
    }

    #[test]
    fn shuffling_loses_nothing_and_every_order_occurs() {
        let rng = stream(3, 0, "s");
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            rng.shuffle(&mut items);
            orders.insert(items);
        }
        assert_eq!(orders.len(), 6);
    }
}
