//! Delays against their formulas.

use proptest::prelude::*;

use super::*;
use crate::env::Env;

const MS: Duration = Duration::from_millis(1);

fn env() -> Env {
    crate::env::sim::Sim::new(7).env()
}

fn ms(n: u32) -> Duration {
    MS * n
}

fn exponential(jitter: Jitter) -> Backoff {
    Backoff::exponential(ms(100)).cap(ms(10_000)).jitter(jitter)
}

/// Delay `attempt` of many independent operations, in milliseconds.
fn sample(backoff: &Backoff, attempt: usize) -> Vec<f64> {
    let rng = env().rng("sample");
    let delay = |_| {
        let mut delays = backoff.delays();
        let mut last = Duration::ZERO;
        for _ in 0..=attempt {
            last = delays.next(&rng);
        }
        last.as_secs_f64() * 1e3
    };
    (0..20_000).map(delay).collect()
}

/// The share of the samples in the fullest bin of `width` milliseconds.
fn fullest_bin(samples: &[f64], width: f64) -> f64 {
    let mut bins = std::collections::BTreeMap::new();
    for sample in samples {
        *bins.entry((sample / width).floor().to_bits()).or_insert(0.0) += 1.0;
    }
    bins.into_values().fold(0.0, f64::max) / samples.len() as f64
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Uniform on `lo..hi`: mean and variance within five standard errors, nothing outside.
fn check_uniform(samples: &[f64], lo: f64, hi: f64) {
    let (n, mean) = (samples.len() as f64, mean(samples));
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let expected = (hi - lo).powi(2) / 12.0;
    assert!(samples.iter().all(|x| (lo..=hi).contains(x)));
    assert!((mean - f64::midpoint(lo, hi)).abs() < 5.0 * (expected / n).sqrt(), "mean {mean} of {lo}..{hi}");
    // The variance of a uniform sample's variance is (1/80 - 1/144) range^4 / n.
    let error = (hi - lo).powi(2) * (0.005_556 / n).sqrt();
    assert!((variance - expected).abs() < 5.0 * error, "variance {variance}, expected {expected}");
}

#[test]
fn growth_follows_its_formula_up_to_the_cap() {
    let delays = |backoff: Backoff| -> Vec<u128> {
        let backoff = backoff.jitter(Jitter::None);
        (0..6).map(|n| backoff.range(n, Duration::ZERO).end().as_millis()).collect()
    };
    assert_eq!(delays(Backoff::constant(ms(30))), [30; 6]);
    assert_eq!(delays(Backoff::linear(ms(30))), [30, 60, 90, 120, 150, 180]);
    assert_eq!(delays(Backoff::exponential(ms(30)).cap(ms(500))), [30, 60, 120, 240, 480, 500]);
}

#[test]
fn full_jitter_is_uniform_from_zero_at_every_attempt_and_at_the_cap() {
    for (attempt, top) in [(0, 100.0), (3, 800.0), (12, 10_000.0), (40, 10_000.0)] {
        check_uniform(&sample(&exponential(Jitter::Full), attempt), 0.0, top);
    }
}

#[test]
fn equal_jitter_is_uniform_over_the_upper_half_and_at_the_cap() {
    for (attempt, top) in [(0, 100.0), (3, 800.0), (12, 10_000.0)] {
        check_uniform(&sample(&exponential(Jitter::Equal), attempt), top / 2.0, top);
    }
}

#[test]
fn decorrelated_jitter_grows_by_half_while_far_from_the_cap() {
    let backoff = exponential(Jitter::Decorrelated).cap(Duration::from_secs(1 << 20));
    check_uniform(&sample(&backoff, 0), 100.0, 300.0);
    // E[d(n+1) | d(n)] = (base + 3 d(n)) / 2, so the means follow m' = (100 + 3 m) / 2 from m = 200.
    for (attempt, expected) in [(1, 350.0), (2, 575.0), (3, 912.5)] {
        let mean = mean(&sample(&backoff, attempt));
        assert!((mean / expected - 1.0).abs() < 0.03, "mean {mean}, expected {expected}");
    }
}

#[test]
fn no_draw_is_pinned_to_the_cap() {
    // A draw that is clamped puts 24 % (decorrelated) to 100 % of all clients on the cap by attempt 12.
    for (jitter, most) in [(Jitter::Full, 0.02), (Jitter::Equal, 0.03), (Jitter::Decorrelated, 0.07)] {
        let samples = sample(&exponential(jitter), 12);
        let pinned = samples.iter().filter(|delay| **delay >= 9_999.999).count();
        assert!(pinned <= 2, "{jitter:?}: {pinned} of {} on the cap", samples.len());
        let crowd = fullest_bin(&samples, 100.0);
        assert!(crowd <= most, "{jitter:?}: {crowd} of the clients within the same 100 ms");
        let crowd = fullest_bin(&samples, 1.0);
        assert!(crowd <= 0.01, "{jitter:?}: {crowd} of the clients within the same millisecond");
    }
}

#[test]
fn without_jitter_everybody_returns_at_once() {
    let crowd = fullest_bin(&sample(&exponential(Jitter::None), 12), 100.0);
    assert!((crowd - 1.0).abs() < f64::EPSILON);
}

#[test]
fn a_retry_after_in_whole_seconds_is_spread_over_the_second_that_follows() {
    let rng = env().rng("hint");
    let backoff = Backoff::exponential(MS);
    let waits: Vec<f64> =
        (0..20_000).map(|_| backoff.delays().next_after(RetryAfter::secs(2), &rng).as_secs_f64() * 1e3).collect();
    check_uniform(&waits, 2_000.0, 3_000.0);
    let appointments: Vec<f64> =
        (0..2_000).map(|_| backoff.delays().next_after(RetryAfter::millis(1_234), &rng).as_secs_f64()).collect();
    assert!(appointments.iter().all(|wait| (1.234..=1.235).contains(wait)));
}

#[test]
fn a_hint_never_makes_a_client_more_eager_than_its_own_backoff() {
    let rng = env().rng("hint");
    let mut delays = Backoff::constant(ms(5_000)).jitter(Jitter::None).delays();
    assert_eq!(delays.next_after(RetryAfter::secs(1), &rng), ms(5_000));
    assert_eq!(delays.attempt(), 1);
}

#[test]
fn a_server_that_says_tomorrow_neither_stops_nor_lines_up_its_clients() {
    let rng = env().rng("hint");
    let backoff = Backoff::exponential(MS).trust(ms(10_000));
    for hint in [RetryAfter::secs(86_400), RetryAfter::secs(u64::MAX)] {
        let waits: Vec<f64> =
            (0..20_000).map(|_| backoff.delays().next_after(hint, &rng).as_secs_f64() * 1e3).collect();
        check_uniform(&waits, 5_000.0, 10_000.0);
    }
}

#[test]
fn headers_are_read_as_their_grammar_says() {
    let wall = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let parse = |value| RetryAfter::parse(value, wall);
    assert_eq!(parse("0"), Ok(RetryAfter::secs(0)));
    assert_eq!(parse(" 120 "), Ok(RetryAfter::secs(120)));
    assert_eq!(parse("99999999999999999999999"), Ok(RetryAfter::secs(u64::MAX)));
    assert_eq!(parse("Sun, 06 Nov 1994 08:49:47 GMT"), Ok(RetryAfter::secs(10)));
    for bad in ["", "-1", "1.5", "+3", "soon", "١٢"] {
        assert!(parse(bad).is_err(), "{bad:?} was taken");
    }
}

#[test]
fn starting_over_forgets_how_bad_it_was() {
    let rng = env().rng("reset");
    let mut delays = Backoff::exponential(MS).jitter(Jitter::None).delays();
    let first: Vec<Duration> = (0..3).map(|_| delays.next(&rng)).collect();
    delays.reset();
    let again: Vec<Duration> = (0..3).map(|_| delays.next(&rng)).collect();
    assert_eq!(first, again);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]
    #[test]
    fn no_header_is_read_with_a_panic(header in any::<String>(), digits in "[0-9]{1,30}", days in any::<u32>()) {
        let wall = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(days) * 86_400);
        let rng = env().rng("any");
        for value in [header.as_str(), &digits, &format!("{digits} GMT")] {
            if let Ok(hint) = RetryAfter::parse(value, wall) {
                let wait = Backoff::exponential(MS).delays().next_after(hint, &rng);
                prop_assert!(wait <= ms(121_000));
            }
        }
        prop_assert!(RetryAfter::parse(&digits, wall).is_ok());
    }

    #[test]
    fn whatever_the_numbers_the_range_is_ordered_and_within_the_cap(
        base in any::<u64>(), cap in any::<u64>(), previous in any::<u64>(), attempt in any::<u32>(),
        growth in 0..3, jitter in 0..4usize
    ) {
        let base = Duration::from_nanos(base);
        let cap = Duration::from_nanos(cap);
        let backoff = match growth {
            0 => Backoff::constant(base),
            1 => Backoff::linear(base),
            _ => Backoff::exponential(base),
        };
        let jitter = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated][jitter];
        let range = backoff.cap(cap).jitter(jitter).range(attempt, Duration::from_nanos(previous));
        prop_assert!(range.start() <= range.end());
        prop_assert!(*range.end() <= cap);
    }
}
