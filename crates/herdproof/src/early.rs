//! When to refresh a value before its end, so that nobody waits for the load.
//!
//! `XFetch` (Vattani et al. 2015) lets every reader throw dice near the end of an entry. The more readers there are, the
//! earlier one of them wins: with `N` reads in a load time the refresh starts about `load * (ln N + 0.577)` before the end,
//! so a busy key is loaded more often than a quiet one. The dice are for readers who cannot see each other. Readers of one
//! cache can: here the lead is drawn once, when the value is stored, and does not depend on traffic. `lab run xfetch` shows
//! both.
//!
//! ```
//! use std::time::Duration;
//! use herdproof::{Env, early};
//!
//! let rng = Env::system().rng("early");
//! let (ttl, took) = (Duration::from_secs(60), Duration::from_millis(80));
//! let load = early::load_time(None, took);
//! let lead = early::lead(ttl, Duration::ZERO, load, rng.bits());
//! assert!(lead >= took.mul_f64(1.25) && lead <= took.mul_f64(3.25));
//! // While it is served stale, nobody waits anyway.
//! assert_eq!(early::lead(ttl, 2 * took, load, rng.bits()), Duration::ZERO);
//! ```

use std::time::Duration;

use crate::env::nanos;

/// A load that took less counts as one that took this long: a lead in which no reader comes is none.
const SHORTEST_LOAD: u64 = 1_000_000;
/// How much of the expected load time is what was expected before, where loads have become faster.
const MEMORY: f64 = 0.7;
/// The shortest lead, in load times: a load that takes a quarter longer than expected is still in time.
const LEAST: f64 = 1.25;
/// The mean of what chance adds, in load times.
const SPREAD: f64 = 0.5;
/// How much of the exponential distribution is below 4, where it is cut off: `1 - e^-4`.
const BELOW_4: f64 = 0.981_684_361_111_265_8;

/// How long the next load is expected to take, given what was expected before and how long the last one took: a peak EWMA. It
/// follows a slower load at once and a faster one by and by, since a lead that is too short makes readers wait and one that is
/// too long costs little.
pub fn load_time(before: Option<Duration>, took: Duration) -> Duration {
    Duration::from_nanos(load_nanos(before.map(nanos), nanos(took)))
}

/// How long before its end a value is to be refreshed that is fresh for `ttl` and may be served for `grace` after that, if a load
/// of it takes `load`: from 1.25 to 3.25 load times, but no longer than half of its time to live. Zero if the grace is at least
/// two load times: then the refresh can begin at the end, and nobody waits for it.
///
/// `bits` are 64 random bits, from [`Rng::bits`](crate::env::Rng::bits). Processes that share a value take them from a hash of
/// its key and version, so that all have the same lead; else the earliest of them all decides.
///
/// Where a load takes half of the time to live or longer, no lead is long enough, and some readers wait.
pub fn lead(ttl: Duration, grace: Duration, load: Duration, bits: u64) -> Duration {
    Duration::from_nanos(lead_nanos(nanos(ttl), nanos(grace), nanos(load), bits))
}

/// As [`load_time`].
#[inline]
pub(crate) fn load_nanos(before: Option<u64>, took: u64) -> u64 {
    before
        .map_or(took, |before| took.max(scaled_nanos(before, MEMORY).saturating_add(scaled_nanos(took, 1.0 - MEMORY))))
}

/// As [`lead`].
#[inline]
pub(crate) fn lead_nanos(ttl: u64, grace: u64, load: u64, bits: u64) -> u64 {
    let load = load.max(SHORTEST_LOAD);
    if grace >= load.saturating_mul(2) {
        return 0;
    }
    scaled_nanos(load, LEAST + SPREAD * exponential(bits)).min(ttl / 2)
}

/// Exponential with mean 1, truncated at 4: the inverse of its distribution function at a uniform draw.
#[inline]
fn exponential(bits: u64) -> f64 {
    let uniform = (bits >> 11) as f64 / (1u64 << 53) as f64;
    -(-uniform * BELOW_4).ln_1p()
}

/// So many times as many nanoseconds.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "out of range is zero or for ever")]
pub(crate) fn scaled_nanos(nanos: u64, by: f64) -> u64 {
    (nanos as f64 * by) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Rng, sim::Sim};

    const MS: u64 = 1_000_000;
    const SEC: u64 = 1_000 * MS;

    fn rng() -> Rng {
        Sim::new(1).env().rng("early")
    }

    /// From nothing to for ever, each order of magnitude as likely as another.
    fn some_time(rng: &Rng) -> u64 {
        match rng.below(20) {
            0 => 0,
            1 => u64::MAX,
            _ => rng.bits() >> rng.below(64),
        }
    }

    #[test]
    fn a_slower_load_counts_at_once_and_a_faster_one_by_and_by() {
        assert_eq!(load_nanos(None, 80 * MS), 80 * MS);
        assert_eq!(load_nanos(Some(80 * MS), 200 * MS), 200 * MS);
        assert_eq!(load_nanos(Some(200 * MS), 80 * MS) / MS, 164);
        let settled = (0..30).fold(200 * MS, |load, _| load_nanos(Some(load), 80 * MS));
        assert!((80 * MS..81 * MS).contains(&settled), "{settled}");
    }

    #[test]
    fn whatever_loads_took_the_next_is_not_expected_to_be_faster_than_the_last() {
        let rng = rng();
        for _ in 0..10_000 {
            let (before, took) = (some_time(&rng), some_time(&rng));
            let load = load_nanos(Some(before), took);
            assert!(load >= took && load <= before.max(took).saturating_add(1 << 12), "{before} {took}: {load}");
        }
    }

    #[test]
    fn whatever_the_times_the_lead_is_within_half_of_the_time_to_live_and_three_and_a_quarter_loads() {
        let rng = rng();
        for _ in 0..10_000 {
            let (ttl, grace, load, bits) = (some_time(&rng), some_time(&rng), some_time(&rng), rng.bits());
            let lead = lead_nanos(ttl, grace, load, bits);
            assert!(lead <= ttl / 2, "{ttl} {grace} {load}: {lead}");
            let load = load.max(MS);
            assert!(lead as f64 <= load as f64 * 3.25, "{ttl} {grace} {load}: {lead}");
            let is_long_enough = grace >= load.saturating_mul(2);
            if is_long_enough {
                assert_eq!(lead, 0, "{ttl} {grace} {load}");
            } else {
                assert!(lead as f64 >= (load as f64 * 1.249).min((ttl / 2) as f64), "{ttl} {grace} {load}: {lead}");
            }
        }
    }

    #[test]
    fn who_is_served_stale_for_two_loads_needs_no_lead() {
        let lead = |grace| lead_nanos(60 * SEC, grace, 80 * MS, 0);
        assert_eq!((lead(160 * MS), lead(160 * MS - 1), lead(0)), (0, 100 * MS, 100 * MS));
    }

    #[test]
    fn a_load_of_no_time_has_a_lead_all_the_same() {
        assert_eq!(lead_nanos(60 * SEC, 0, 0, 0), 1_250_000);
    }

    /// The mean of an exponential variable cut off at 4 is `1 - 4 e^-4 / (1 - e^-4)`, 0.925.
    #[test]
    fn what_chance_adds_is_exponential_and_never_more_than_four() {
        assert!(exponential(0).abs() < f64::EPSILON && (exponential(u64::MAX) - 4.0).abs() < 1e-9);
        let rng = rng();
        let draws: Vec<f64> = (0..20_000).map(|_| exponential(rng.bits())).collect();
        assert!(draws.iter().all(|draw| (0.0..=4.0 + 1e-9).contains(draw)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.925_37).abs() < 0.02, "{mean}");
        let below_1 = draws.iter().filter(|draw| **draw < 1.0).count() as f64 / draws.len() as f64;
        assert!((below_1 - (1.0 - (-1f64).exp()) / BELOW_4).abs() < 0.02, "{below_1}");
    }

    #[test]
    fn the_same_bits_give_the_same_lead_and_others_another() {
        let lead = |bits| lead_nanos(60 * SEC, 0, 80 * MS, bits);
        assert_eq!(lead(7 << 40), lead(7 << 40));
        assert_ne!(lead(7 << 40), lead(7 << 60));
    }
}
