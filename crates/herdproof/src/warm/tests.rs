//! What is cold must not get everything at once, and what is warm must not be held back.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{
    env::{Env, Tick, sim::Sim},
    gate::{Ask, Gate, Permit, Span, Verdict},
    schedule::Splay,
};

const SEC: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn ask(env: &Env, at: Duration) -> Ask {
    let mut ask = Ask::new(env);
    ask.at = Tick::ZERO + at;
    ask
}

mod slow_start {
    use super::*;

    proptest! {
        /// envoy#19526: a weight near nothing puts an endpoint so far back that it is not picked even when it is warm.
        #[test]
        fn no_setting_makes_a_weight_of_nothing_or_of_more_than_all(
            age: u64, window: u64, aggression in prop::num::f64::ANY, least in prop::num::f64::ANY,
        ) {
            let slow = SlowStart::over(Duration::from_nanos(window)).aggression(aggression).least(least);
            let weight = slow.weight(Duration::from_nanos(age));
            prop_assert!((0.01..=1.0).contains(&weight), "{weight}");
            prop_assert!(slow.age(aggression) <= Duration::from_nanos(window));
        }

        #[test]
        fn a_weight_grows_with_age_and_its_age_can_be_told(age in 0_u64..60_000, aggression in 0.2..5.0) {
            let slow = SlowStart::default().aggression(aggression).least(0.0);
            let age = MS * u32::try_from(age).unwrap();
            let weight = slow.weight(age);
            prop_assert!(slow.weight(age + SEC) >= weight);
            let told = slow.age(weight);
            prop_assert!((slow.weight(told) - weight).abs() < 1e-6, "{weight} at {age:?}, told {told:?}");
        }
    }

    #[test]
    fn the_formula_is_the_published_one() {
        let slow = SlowStart::default().aggression(2.0);
        assert!((slow.weight(SEC * 15) - 0.5_f64.sqrt()).abs() < 1e-12);
        // The first second counts as a second, and a tenth is the least.
        assert!((slow.weight(Duration::ZERO) - (1.0_f64 / 30.0).sqrt()).abs() < 1e-12);
        assert!((SlowStart::default().weight(SEC * 2) - 0.1).abs() < 1e-12);
        assert!((SlowStart::over(Duration::ZERO).weight(Duration::ZERO) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_group_that_is_all_new_is_given_less_although_its_weights_are_equal() {
        let slow = SlowStart::default();
        assert_eq!(slow.limit(100, [Duration::ZERO; 10]), 10);
        assert_eq!(slow.limit(100, [SEC * 60; 10]), 100);
        // One new among ten takes a tenth of its share, and nothing from the others.
        let one_new = [SEC * 60; 9].into_iter().chain([Duration::ZERO]);
        assert_eq!(slow.limit(100, one_new), 91);
        assert_eq!((slow.limit(100, []), slow.limit(1, [Duration::ZERO]), slow.limit(0, [])), (100, 1, 1));
    }
}

mod opening {
    use super::*;

    #[test]
    fn the_share_that_comes_in_grows_from_little_to_all_and_is_never_a_step() {
        let env = Sim::new(3).env();
        let opening = Opening::new(&env, SlowStart::default());
        for (second, expected) in [(0, 333), (3, 1_000), (15, 5_000), (27, 9_000), (30, 10_000), (90, 10_000)] {
            let at = ask(&env, SEC * second);
            let entered = (0..10_000).filter(|_| opening.try_enter(&at).is_ok()).count();
            // Five standard deviations of a share of ten thousand are 250 at most.
            assert!(entered.abs_diff(expected) <= if expected == 10_000 { 0 } else { 250 }, "{second} s: {entered}");
        }
    }

    #[test]
    fn who_was_let_in_stays_in_and_who_was_not_is_told_its_own_instant() {
        let env = Sim::new(3).env();
        let opening = Opening::new(&env, SlowStart::default().aggression(1.5));
        let mut told = std::collections::BTreeSet::new();
        for id in 0..2_000 {
            let user = Splay::of(&format!("user-{id}"), "opening");
            let mut inside = false;
            for second in 0..31 {
                let entered = opening.try_enter_as(user, &ask(&env, SEC * second)).is_ok();
                assert!(entered || !inside, "{id} was thrown out at {second} s");
                inside = entered;
            }
            if let Err(refusal) = opening.try_enter_as(user, &ask(&env, SEC)) {
                let after = refusal.after.unwrap();
                assert!(told.insert(after), "{id} is told the same instant as somebody else");
                assert!(opening.try_enter_as(user, &ask(&env, SEC + after)).is_ok());
                let early = SEC + after.saturating_sub(MS);
                assert!(early <= SEC * 2 || opening.try_enter_as(user, &ask(&env, early)).is_err());
            }
        }
    }

    #[test]
    fn no_two_of_those_refused_by_a_draw_are_told_the_same_instant() {
        let env = Sim::new(3).env();
        let opening = Opening::new(&env, SlowStart::default());
        let at = ask(&env, SEC * 5);
        let told: Vec<Duration> = (0..1_000).filter_map(|_| opening.try_enter(&at).err()?.after).collect();
        let distinct: std::collections::BTreeSet<_> = told.iter().collect();
        assert_eq!(distinct.len(), told.len());
        assert!(told.len() > 700 && told.iter().all(|after| *after <= SEC * 25 + MS));
    }

    #[test]
    fn what_was_lost_opens_anew() {
        let env = Sim::new(3).env();
        let opening = Opening::new(&env, SlowStart::default());
        let late = Tick::ZERO + SEC * 100;
        assert!((opening.share(late) - 1.0).abs() < 1e-12);
        opening.reopen(late);
        assert!(opening.share(late) < 0.05);
    }
}

mod cold {
    use super::*;

    /// Misses and lookups let in during each of `seconds`, with 1,000 lookups a second and a hit ratio that depends on the
    /// second. A lookup takes 5 ms.
    fn flood(seconds: u32, hit_ratio: impl Fn(u32, u64) -> f64) -> Vec<(u64, u64)> {
        let tenths = flood_of(MS * 5, seconds, hit_ratio);
        let sum = |tenths: &[(u64, u64)]| tenths.iter().fold((0, 0), |sum, tenth| (sum.0 + tenth.0, sum.1 + tenth.1));
        tenths.chunks(10).map(sum).collect()
    }

    /// The same with lookups that take so long, for every tenth of a second.
    fn flood_of(takes: Duration, seconds: u32, hit_ratio: impl Fn(u32, u64) -> f64) -> Vec<(u64, u64)> {
        let env = Sim::new(11).env();
        let rng = env.rng("flood");
        let gate = ColdCache::new(&env, 50.0);
        let mut under_way = std::collections::VecDeque::new();
        let (mut seen, mut misses) = (vec![(0, 0); seconds as usize * 10], 0);
        for ms in 0..seconds * 1000 {
            let now = MS * ms;
            if let Ok(lookup) = gate.try_enter(&ask(&env, now)) {
                under_way.push_back((now, lookup));
                seen[(ms / 100) as usize].1 += 1;
            }
            while under_way.front().is_some_and(|(began, _)| *began + takes <= now) {
                let (_, mut lookup) = under_way.pop_front().unwrap();
                if rng.chance(hit_ratio(ms / 1000, misses)) {
                    lookup.hit();
                } else {
                    lookup.missed();
                    misses += 1;
                    seen[(ms / 100) as usize].0 += 1;
                }
                lookup.settle(&Verdict::Ok, Span { from: Tick::ZERO, to: Tick::ZERO });
            }
        }
        seen
    }

    #[test]
    fn a_cold_cache_lets_in_only_as_many_as_the_origin_can_serve() {
        let seen = flood(20, |_, _| 0.0);
        for (second, (misses, _)) in seen.iter().enumerate() {
            assert!(*misses <= 56, "{misses} misses in second {second}");
        }
        let all: u64 = seen.iter().map(|(misses, _)| misses).sum();
        assert!((990..=1_006).contains(&all), "the origin could have served 1,000: {all}");
    }

    #[test]
    fn as_the_cache_fills_everybody_comes_in_without_more_misses() {
        // Every miss fills one of 500 equally likely entries.
        let seen = flood(60, |_, misses| 1.0 - (-(misses as f64) / 500.0).exp());
        let worst = seen.iter().map(|(misses, _)| *misses).max().unwrap();
        assert!(worst <= 70, "{worst} misses in one second");
        assert!(seen[0].1 < 100 && seen[59].1 == 1_000, "{seen:?}");
    }

    #[test]
    fn a_cache_that_is_lost_closes_the_gate_by_itself() {
        let seen = flood(40, |second, _| if second < 20 { 0.99 } else { 0.0 });
        assert!(seen[19].1 == 1_000, "{seen:?}");
        let misses: u64 = seen[20..].iter().map(|(misses, _)| misses).sum();
        // The rate, the burst, and the handful that was let in before the loss was noticed.
        assert!((900..=1_000 + 5 + 80).contains(&misses), "{misses}");
        assert!(seen[21..].iter().all(|(misses, _)| *misses <= 56), "{seen:?}");
    }

    #[test]
    fn once_a_loss_is_known_misses_do_not_come_in_clumps() {
        let seen = flood_of(MS * 100, 60, |second, _| if second < 20 { 0.99 } else { 0.0 });
        // Charged for what a hit costs, a hundred would come in before the first of them is known to have missed.
        let worst = seen[400..].iter().map(|(misses, _)| *misses).max().unwrap();
        assert!(worst <= 15, "{worst} misses in a tenth of a second, at 50 a second");
    }

    #[test]
    fn a_lookup_that_does_not_begin_gives_back_what_it_was_charged_and_one_that_began_does_not() {
        let env = Sim::new(1).env();
        let gate = ColdCache::new(&env, 1.0);
        let now = ask(&env, SEC);
        drop(gate.try_reserve(&now).unwrap());
        drop(gate.try_enter(&now).unwrap());
        assert!(gate.try_enter(&now).is_err(), "the cache, and maybe the origin, has had the work of it");
    }

    #[test]
    fn asked_ten_thousand_times_in_a_loop_a_cold_cache_lets_in_its_rate() {
        let env = Sim::new(1).env();
        let gate = ColdCache::new(&env, 10.0);
        let went = (0..10_000u32).filter(|n| gate.try_enter(&ask(&env, SEC + SEC * *n / 10_000)).is_ok()).count();
        assert!((10..=11).contains(&went), "{went} in a second");
    }

    #[test]
    fn saying_it_twice_counts_once() {
        let env = Sim::new(1).env();
        let gate = ColdCache::new(&env, 1.0);
        let mut lookup = gate.try_enter(&ask(&env, SEC)).unwrap();
        lookup.missed();
        lookup.missed();
        lookup.hit();
        drop(lookup);
        assert!(gate.try_enter(&ask(&env, SEC)).is_err());
        assert!(gate.try_enter(&ask(&env, SEC * 2)).is_ok());
    }

    #[test]
    fn no_two_refused_lookups_are_told_the_same_instant_and_none_before_there_is_room() {
        let env = Sim::new(1).env();
        let gate = ColdCache::new(&env, 10.0);
        let now = ask(&env, SEC);
        let mut held = Vec::new();
        let told: Vec<Duration> = (0..500)
            .filter_map(|_| match gate.try_enter(&now) {
                Ok(lookup) => {
                    held.push(lookup);
                    None
                }
                Err(refusal) => refusal.after,
            })
            .collect();
        let distinct: std::collections::BTreeSet<_> = told.iter().collect();
        assert_eq!((held.len(), told.len(), distinct.len()), (1, 499, 499));
        assert!(told.iter().all(|after| *after >= MS * 100));
    }

    #[test]
    fn a_rate_without_sense_is_made_one() {
        let env = Sim::new(1).env();
        for rate in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!(ColdCache::new(&env, rate).try_enter(&ask(&env, SEC)).is_ok(), "{rate}");
        }
    }
}
