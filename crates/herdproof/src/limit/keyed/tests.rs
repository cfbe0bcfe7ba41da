//! A rate for each key, and no more memory than was allowed.

use std::time::Duration;

use super::*;
use crate::env::sim::Sim;

const MS: Duration = Duration::from_millis(1);

fn ask(env: &Env, at: Duration) -> Ask {
    let mut ask = Ask::new(env);
    ask.at = Tick::ZERO + at;
    ask
}

#[test]
fn one_key_does_not_pay_for_another() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(2));
    for key in 0..1_000 {
        for _ in 0..2 {
            limits.of(&key).try_enter(&ask(&env, MS)).unwrap();
        }
        let refusal = limits.of(&key).try_enter(&ask(&env, MS)).unwrap_err();
        assert_eq!(refusal, Refusal::new(Why::Rate).after(MS * 100));
    }
}

#[test]
fn the_waiters_of_a_key_have_slots_of_their_own() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limits: KeyedRate<String> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
    let callers: Vec<_> = (0..6)
        .map(|caller| {
            let (limits, clock) = (limits.clone(), env.clone());
            env.spawn(async move {
                let key = if caller % 2 == 0 { "a" } else { "b" };
                let mut ask = Ask::new(&clock);
                limits.of(key).enter(&mut ask).await.unwrap();
                (clock.now() - Tick::ZERO).as_millis()
            })
        })
        .collect();
    let went = sim.run(async {
        let mut went = Vec::new();
        for caller in callers {
            went.push(caller.await.unwrap());
        }
        went
    });
    assert_eq!(went, [0, 0, 100, 100, 200, 200]);
}

#[test]
fn a_place_that_is_dropped_is_given_back_to_its_own_key_and_no_other() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
    let now = ask(&env, MS);
    let place = limits.of(&0).try_reserve(&now).unwrap();
    // All of these stand at the same number as the one that is dropped.
    for key in 1..500 {
        limits.of(&key).try_enter(&now).unwrap();
    }
    drop(place);
    assert!((1..500).all(|key| limits.of(&key).try_enter(&now).is_err()));
    assert!(limits.of(&0).try_enter(&now).is_ok());
}

#[test]
fn a_slot_of_a_key_that_somebody_stands_behind_is_not_given_back() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(2));
    let now = ask(&env, MS);
    let (first, second) = (limits.of(&1).try_reserve(&now).unwrap(), limits.of(&1).try_reserve(&now).unwrap());
    drop(first);
    assert!(limits.of(&1).try_enter(&now).is_err(), "the second stands where the first would have been moved to");
    drop(second);
    assert!(limits.of(&1).try_enter(&now).is_ok());
}

#[test]
fn keys_whose_burst_is_whole_again_are_forgotten() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
    for key in 0..100_000 {
        limits.of(&key).try_enter(&ask(&env, MS * u32::try_from(key).unwrap())).unwrap();
    }
    // A hundred are within their interval at a time; a shard keeps a few more until somebody comes.
    assert!(limits.len() < 10_000, "{} keys are kept", limits.len());
}

#[test]
fn what_refused_callers_were_told_is_forgotten_too_when_its_time_has_come() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::every(Duration::from_secs(10)));
    for key in 0..20_000 {
        let now = ask(&env, MS * 100 * u32::try_from(key).unwrap());
        limits.of(&key).try_enter(&now).unwrap();
        assert!((0..10).all(|_| limits.of(&key).try_enter(&now).is_err()));
    }
    // Four hundred are told of an instant to come at a time.
    assert!(limits.len() < 4_000, "{} keys are kept", limits.len());
}

#[test]
fn nobody_is_told_an_instant_that_was_told_before_the_burst_was_whole_again() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
    let told = |at: Duration| {
        let ask = ask(&env, at);
        limits.of(&1).try_enter(&ask).unwrap();
        let refused = (0..20).map(|_| at + limits.of(&1).try_enter(&ask).unwrap_err().after.unwrap());
        refused.collect::<std::collections::BTreeSet<Duration>>()
    };
    let before = told(MS);
    // Whoever comes looks for keys to forget.
    for key in 1_000..3_000 {
        limits.of(&key).try_enter(&ask(&env, MS * 500)).unwrap();
    }
    let after = told(MS * 501);
    assert!(before.is_disjoint(&after), "{before:?} {after:?}");
}

#[test]
fn whoever_invents_keys_neither_fills_memory_nor_frees_those_who_are_refused() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::bounded(&env, Rate::per_second(1).burst(10), 1_000);
    let now = ask(&env, MS);
    // Three that have used up their burst stand ten intervals ahead; inventions stand one ahead.
    for key in 0..3 {
        for _ in 0..10 {
            limits.of(&key).try_enter(&now).unwrap();
        }
    }
    for key in 1_000..20_000 {
        limits.of(&key).try_enter(&now).unwrap();
    }
    assert!(limits.len() <= 1_000);
    assert!((0..3).all(|key| limits.of(&key).try_enter(&now).is_err()), "a flood of keys bought somebody a new burst");
}

#[test]
fn no_two_refused_callers_of_a_key_are_told_the_same_instant() {
    let env = Sim::new(1).env();
    let limits: KeyedRate<u64> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
    limits.of(&1).try_enter(&ask(&env, MS)).unwrap();
    let told: Vec<Duration> =
        (0..50).map(|_| limits.of(&1).try_enter(&ask(&env, MS)).unwrap_err().after.unwrap()).collect();
    let slots: Vec<Duration> = (1..=50).map(|n| MS * 100 * n).collect();
    assert_eq!(told, slots);
}
