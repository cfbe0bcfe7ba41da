//! What keeps a timetable from lining up a crowd.

use std::{
    cell::{Cell, RefCell},
    future::{pending, ready},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    backoff::Backoff,
    env::{Env, Tick, sim::Sim},
    event::{Counts, Metric},
};

const SEC: Duration = Duration::from_secs(1);
const MIN: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// How often the fullest of `bins` equal bins of the unit interval is hit, relative to the mean.
fn unevenness(units: impl Iterator<Item = f64>, bins: usize) -> f64 {
    let mut counts = vec![0_u32; bins];
    let mut total = 0;
    for unit in units {
        assert!((0.0..1.0).contains(&unit), "{unit}");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let bin = (unit * bins as f64) as usize;
        counts[bin] += 1;
        total += 1;
    }
    f64::from(counts.into_iter().max().unwrap_or(0)) * bins as f64 / f64::from(total)
}

mod splay {
    use super::*;

    #[test]
    fn a_new_version_or_a_restart_does_not_move_anybody() {
        // FNV-1a and the finalizer of SplitMix64, computed elsewhere.
        let expected = [("web-17", 2_078_757), ("web-18", 3_589_918), ("web-19", 124_051)];
        for (instance, millis) in expected {
            assert_eq!(Splay::of(instance, "report").offset(HOUR).as_millis(), millis, "{instance}");
        }
    }

    #[test]
    fn names_that_differ_in_a_digit_are_spread_over_the_whole_period() {
        for name in ["web-", "ip-10-0-0-", ""] {
            let units = (0..20_000).map(|id| Splay::of(&format!("{name}{id}"), "report").unit());
            // A bin holds 200 on average; five standard deviations are a third of that.
            let unevenness = unevenness(units, 100);
            assert!(unevenness < 1.36, "{name}: the fullest bin has {unevenness} of the mean");
        }
    }

    #[test]
    fn two_jobs_of_one_instance_do_not_meet_nor_do_names_that_join_alike() {
        assert_ne!(Splay::of("web-1", "report"), Splay::of("web-1", "backup"));
        assert_ne!(Splay::of("ab", "c"), Splay::of("a", "bc"));
        assert_ne!(Splay::of("", "a"), Splay::of("a", ""));
    }

    #[test]
    fn the_place_is_inside_the_period_however_long_or_short() {
        for id in 0..100 {
            let splay = Splay::of(&id.to_string(), "x");
            assert_eq!(splay.offset(Duration::ZERO), Duration::ZERO);
            assert!(splay.offset(Duration::from_nanos(1)) < Duration::from_nanos(1));
            assert!(splay.offset(Duration::MAX) <= Duration::from_nanos(u64::MAX));
        }
    }
}

mod cron {
    use super::*;

    proptest! {
        #[test]
        fn nobody_runs_before_it_is_due_nor_later_than_the_bound(
            period in 1_u64..100_000, at in 0_u64..100_000, bound in 0_u64..200_000, jitter in -1.0..2.0, n in 0_u64..1_000_000,
        ) {
            let period = Duration::from_secs(period);
            for id in 0..20 {
                let drawn = Cron::every(period).at(Duration::from_secs(at)).within(Duration::from_secs(bound)).jitter(jitter);
                for cron in [drawn, drawn.splay(Splay::of(&id.to_string(), "job"))] {
                    let due = period.as_nanos() * u128::from(n) + Duration::from_secs(at).min(period).as_nanos();
                    let latest = due + Duration::from_secs(bound).min(period).as_nanos();
                    let window = cron.window(n);
                    prop_assert!(window.start() <= window.end());
                    prop_assert!(window.start().as_nanos() >= due && window.end().as_nanos() <= latest);
                }
            }
        }

        #[test]
        fn the_next_run_is_the_first_that_has_not_begun(period in 1_u64..5_000, at in 0_u64..5_000, now in 0_u64..10_000_000) {
            let now = Duration::from_millis(now);
            for id in 0..5 {
                let cron = Cron::every(Duration::from_secs(period)).at(Duration::from_secs(at)).splay(Splay::of(&id.to_string(), "j"));
                let n = cron.next(now);
                prop_assert!(*cron.window(n).start() >= now);
                prop_assert!(n == 0 || *cron.window(n - 1).start() < now);
            }
        }
    }

    /// When each run began, in a simulation that starts at a full hour; the job takes `work`.
    fn runs(cron: Cron, work: Duration, count: usize) -> Vec<Duration> {
        let mut sim = Sim::new(3);
        let env = sim.env();
        let seen = RefCell::new(Vec::new());
        sim.run(cron.run(&env, pending::<()>(), || {
            seen.borrow_mut().push(env.now() - Tick::ZERO);
            let more = seen.borrow().len() < count;
            let sleep = env.sleep(work);
            async move {
                sleep.await;
                if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }
        }));
        seen.into_inner()
    }

    #[test]
    fn a_job_that_takes_time_does_not_drift_and_keeps_its_slot() {
        let cron = Cron::every(HOUR).within(MIN * 10).splay(Splay::of("web-19", "report"));
        let runs = runs(cron, MIN * 20, 100);
        // The slot is a tenth of ten minutes wide and begins at 124/3600 of the other nine.
        let slot = Splay::of("web-19", "report").offset(MIN * 9);
        for (hour, run) in (0..).zip(&runs) {
            let late = run.checked_sub(HOUR * hour).expect("no run is early");
            assert!(late >= slot && late <= slot + MIN, "run {hour} came {late:?} after the hour");
        }
    }

    #[test]
    fn a_run_that_was_missed_is_not_caught_up() {
        let cron = Cron::every(HOUR).within(MIN).splay(Splay::of("web-19", "report"));
        let hours: Vec<u64> = runs(cron, HOUR * 5 / 2, 3).iter().map(|run| run.as_secs() / 3600).collect();
        assert_eq!(hours, [0, 3, 6]);
    }

    #[test]
    fn a_slot_without_width_is_not_run_twice_in_one_instant() {
        let cron = Cron::every(HOUR).within(Duration::ZERO).jitter(0.0);
        assert_eq!(runs(cron, Duration::ZERO, 3), [Duration::ZERO, HOUR, HOUR * 2]);
    }

    #[test]
    fn without_a_splay_each_run_has_a_place_of_its_own_in_its_period() {
        let runs = runs(Cron::every(HOUR), Duration::ZERO, 2_000);
        let mut places = Vec::new();
        for (hour, run) in (0..).zip(&runs) {
            // The first window begins with the simulation.
            places.push(run.abs_diff(HOUR * hour).as_secs_f64() / 3600.0);
        }
        assert!(unevenness(places.into_iter(), 10) < 1.36);
    }

    #[test]
    fn settings_without_sense_neither_panic_nor_spin() {
        let cron = Cron::every(Duration::ZERO).within(HOUR).jitter(f64::NAN);
        assert_eq!(cron.window(7), SEC * 7..=SEC * 8);
        assert!(*Cron::every(Duration::MAX).window(u64::MAX).end() >= HOUR);
        assert_eq!(Cron::every(HOUR).next(Duration::ZERO), 0);
        let _ = Cron::every(SEC).next(Duration::MAX);
    }

    #[test]
    fn word_to_stop_ends_the_sleep() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let cron = Cron::every(HOUR).at(MIN * 30).within(SEC);
        sim.run(cron.run(&env, env.sleep(MIN), || ready(ControlFlow::Continue(()))));
        assert_eq!(env.now(), Tick::ZERO + MIN);
    }
}

mod refresh {
    use super::*;

    proptest! {
        #[test]
        fn the_window_ends_before_the_expiry_and_is_never_a_single_instant(
            life in 1_000_u64..100_000_000, margin in 0_u64..200_000_000, from in -1.0..2.0, first: bool,
        ) {
            let (life, margin) = (Duration::from_millis(life), Duration::from_millis(margin));
            let window = Refresher::new().margin(margin).from(from).window(life, first);
            prop_assert!(*window.end() <= life);
            prop_assert!(*window.end() >= *window.start() + life / 21, "{window:?} of {life:?}");
        }
    }

    /// Tries with these results in turn, then succeeds for ever; gives how it ended and when attempts were made.
    fn attempts(
        fail: impl Fn(Tick) -> bool,
        until: Duration,
    ) -> (Result<(), Expired<&'static str>>, Vec<Duration>, Env) {
        let mut sim = Sim::new(5);
        let env = sim.env();
        let seen = RefCell::new(Vec::new());
        let ended = sim.run(Refresher::new().run(&env, HOUR, env.sleep(until), || {
            seen.borrow_mut().push(env.now() - Tick::ZERO);
            ready(if fail(env.now()) { Err("no") } else { Ok(HOUR) })
        }));
        (ended, seen.into_inner(), env)
    }

    #[test]
    fn no_refresh_comes_after_the_expiry() {
        let (ended, seen, _) = attempts(|_| false, HOUR * 24 * 30);
        assert_eq!(ended, Ok(()));
        assert!(seen[0] <= MIN * 59);
        for pair in seen.windows(2) {
            assert!((MIN * 30..=MIN * 59).contains(&pair[1].abs_diff(pair[0])), "{pair:?}");
        }
    }

    #[test]
    fn a_failure_is_tried_again_in_time_and_the_next_cycle_is_as_before() {
        let outage = Tick::ZERO + HOUR..Tick::ZERO + HOUR + MIN * 2;
        let (ended, seen, _) = attempts(|now| outage.contains(&now), HOUR * 10);
        assert_eq!(ended, Ok(()));
        assert!(seen.windows(2).all(|pair| pair[1].abs_diff(pair[0]) <= MIN * 59));
    }

    #[test]
    fn an_outage_that_outlasts_the_token_is_said_at_the_expiry_and_no_attempt_is_made_after_it() {
        let (ended, seen, env) = attempts(|_| true, HOUR * 10);
        let expired = ended.unwrap_err();
        assert_eq!((expired.error, expired.failures as usize), ("no", seen.len()));
        assert!(
            expired.to_string().starts_with("expired after ") && expired.to_string().ends_with(" failed attempts: no")
        );
        assert_eq!(env.now(), Tick::ZERO + HOUR);
        assert!(seen.iter().all(|at| *at < HOUR));
        // The backoff grows to 15 s on average: no flurry as the expiry comes near.
        assert!(seen.iter().filter(|at| **at + SEC * 2 > HOUR).count() <= 3);
    }

    #[test]
    fn instances_that_began_together_are_apart_at_their_first_refresh() {
        let mut sim = Sim::new(9);
        let env = sim.env();
        let refresher = Refresher::new().margin(MIN * 12);
        let firsts: Vec<_> = (0..2_000)
            .map(|id| {
                let (env, refresher) = (env.scope(id), refresher.clone());
                env.clone().spawn(async move {
                    let first = Arc::new(parking_lot::Mutex::new(None));
                    let seen = Arc::clone(&first);
                    let clock = env.clone();
                    let refresh = move || {
                        seen.lock().get_or_insert(clock.now());
                        ready(Ok::<_, ()>(HOUR))
                    };
                    assert_eq!(refresher.run(&env, HOUR, env.sleep(HOUR), refresh).await, Ok(()));
                    first.lock().expect("there was a refresh") - Tick::ZERO
                })
            })
            .collect();
        let places: Vec<f64> = sim.run(async {
            let mut places = Vec::new();
            for first in firsts {
                places.push(first.await.unwrap().as_secs_f64() / (MIN * 48).as_secs_f64());
            }
            places
        });
        assert!(unevenness(places.into_iter(), 10) < 1.36);
    }

    #[test]
    fn an_issuer_that_gives_tokens_of_no_life_is_not_asked_without_pause() {
        let mut sim = Sim::new(5);
        let env = sim.env();
        let asked = Cell::new(0);
        let stop = env.sleep(MIN);
        let ended = sim.run(Refresher::new().run(&env, Duration::ZERO, stop, || {
            asked.set(asked.get() + 1);
            ready(Ok::<_, ()>(Duration::ZERO))
        }));
        assert_eq!(ended, Ok(()));
        assert!(asked.get() <= 120, "{}", asked.get());
    }

    #[test]
    fn the_expiry_counts_from_the_asking_not_from_the_answer() {
        let mut sim = Sim::new(5);
        let env = sim.env();
        let asked = RefCell::new(Vec::new());
        let refresher = Refresher::new().backoff(Backoff::constant(SEC));
        let ended = sim.run(refresher.run(&env, MIN * 10, pending::<()>(), || {
            asked.borrow_mut().push(env.now());
            let first = asked.borrow().len() == 1;
            let answer = env.sleep(if first { MIN } else { Duration::ZERO });
            async move {
                answer.await;
                if first { Ok(MIN * 10) } else { Err("no") }
            }
        }));
        assert!(ended.is_err());
        assert_eq!(env.now(), asked.borrow()[0] + MIN * 10);
    }

    #[test]
    fn refreshes_and_retries_are_told_apart() {
        let mut sim = Sim::new(5);
        let counts = Arc::new(Counts::default());
        let env = sim.env().observed_by(Arc::clone(&counts));
        let (calls, stop) = (Cell::new(0), env.sleep(HOUR * 3 / 2));
        let ended = sim.run(Refresher::new().run(&env, HOUR, stop, || {
            calls.set(calls.get() + 1);
            ready(if calls.get() < 4 { Err(()) } else { Ok(HOUR * 10) })
        }));
        assert_eq!(ended, Ok(()));
        assert_eq!((counts.get(Metric::Refreshes), counts.get(Metric::Retries)), (1, 3));
    }
}

mod poll {
    use super::*;

    #[test]
    fn pauses_grow_while_there_is_nothing_and_are_short_again_at_once() {
        let poller = Poller::every(SEC).slowest(SEC * 12);
        let mut pace = Pace::default();
        let mut tops = Vec::new();
        for _ in 0..40 {
            let (range, next) = poller.pause(pace, Found::Nothing);
            assert_eq!(*range.start(), *range.end() / 3);
            tops.push(*range.end());
            pace = next;
        }
        assert_eq!(tops[..4], [SEC * 3, SEC * 6, SEC * 12, SEC * 12]);
        assert_eq!(tops[39], SEC * 12);
        let some = poller.pause(pace, Found::Some);
        assert_eq!(some, (SEC / 2..=SEC * 3 / 2, Pace::default()));
        assert_eq!(poller.pause(pace, Found::Full).0, Duration::ZERO..=Duration::ZERO);
    }

    #[test]
    fn a_period_without_end_is_a_pause_without_end() {
        for period in [Duration::MAX, Duration::MAX / 2] {
            for found in [Found::Full, Found::Some, Found::Nothing] {
                let range = Poller::every(period).pause(Pace::default(), found).0;
                assert!(found == Found::Full || *range.start() >= period / 3, "{found:?}: {range:?}");
            }
        }
    }

    #[test]
    fn a_bound_below_the_period_does_not_make_empty_polls_faster_than_full_ones() {
        let poller = Poller::every(SEC).slowest(Duration::ZERO);
        assert_eq!(poller.pause(Pace::default(), Found::Nothing).0, SEC / 2..=SEC * 3 / 2);
        let fastest = Poller::every(Duration::ZERO).pause(Pace::default(), Found::Nothing).0;
        assert!(!fastest.start().is_zero());
    }

    #[test]
    fn nobody_is_pinned_to_the_longest_pause() {
        let rng = Sim::new(1).env().rng("poll");
        let poller = Poller::every(SEC);
        let pace = (0..30).fold(Pace::default(), |pace, _| poller.pause(pace, Found::Nothing).1);
        let (range, _) = poller.pause(pace, Found::Nothing);
        let at_bound = (0..10_000).filter(|_| draw(&rng, &range) == SEC * 10).count();
        assert_eq!((*range.end(), at_bound), (SEC * 10, 0));
    }

    #[test]
    fn pollers_that_start_together_are_apart_from_the_first_poll_on() {
        let mut firsts = Vec::new();
        for id in 0..200 {
            let mut sim = Sim::new(1);
            let env = sim.env().scope(id);
            let first = Cell::new(None);
            let stop = env.sleep(SEC * 2);
            sim.run(Poller::every(SEC).run(&env, stop, || {
                first.set(first.get().or(Some(env.now())));
                ready(Found::Nothing)
            }));
            firsts.push(first.get().unwrap() - Tick::ZERO);
        }
        let in_the_first_tenth = firsts.iter().filter(|first| **first < SEC / 10).count();
        assert!((5..40).contains(&in_the_first_tenth), "{in_the_first_tenth} of 200");
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 200);
    }

    #[test]
    fn word_to_stop_ends_a_pause_but_not_a_poll() {
        let mut sim = Sim::new(2);
        let env = sim.env();
        let (begun, ended) = (Cell::new(0), Cell::new(0));
        let stop = env.sleep(SEC * 30);
        sim.run(Poller::every(SEC).run(&env, stop, || {
            begun.set(begun.get() + 1);
            let (sleep, ended) = (env.sleep(MIN), &ended);
            async move {
                sleep.await;
                ended.set(ended.get() + 1);
                Found::Full
            }
        }));
        assert_eq!((begun.get(), ended.get()), (1, 1));
        assert!(env.now() >= Tick::ZERO + MIN);
    }
}

mod stagger {
    use super::*;

    #[test]
    fn no_batch_starts_before_the_last_one_has_had_its_gap() {
        let stagger = Stagger::new(5, SEC * 10);
        let rng = Sim::new(1).env().rng("stagger");
        for i in 0..50 {
            let start = stagger.start(i, &rng);
            let batch = i / 5;
            assert!(start >= SEC * 10 * batch && start <= SEC * 10 * batch + SEC * 5, "{i}: {start:?}");
        }
        assert_eq!((stagger.total(50), stagger.total(51)), (SEC * 100, SEC * 110));
    }

    #[test]
    fn settings_without_sense_neither_panic_nor_lose_anybody() {
        assert_eq!(Stagger::new(0, SEC).jitter(f64::NAN).window(3), SEC * 3..=SEC * 3);
        assert_eq!(*Stagger::new(1, Duration::MAX).jitter(9.0).window(u32::MAX).end(), Duration::MAX);
    }
}

mod spread {
    use super::*;

    #[test]
    fn a_crowd_is_spread_over_as_long_as_the_origin_needs_for_it() {
        assert_eq!(Spread::of_crowd(20_000, 1_000.0), Spread::over(SEC * 20));
        assert_eq!(Spread::of_crowd(20, 0.0), Spread::over(SEC * 20));
        assert_eq!(Spread::of_crowd(20, f64::NAN), Spread::over(SEC * 20));
        assert_eq!(Spread::of_crowd(u64::MAX, f64::MIN_POSITIVE), Spread::over(Duration::MAX));
    }

    #[test]
    fn an_instance_that_asks_for_it_reacts_after_the_same_time_every_time() {
        let spread = Spread::over(MIN);
        assert_eq!(spread.delay_of(Splay::of("a", "flags")), spread.delay_of(Splay::of("a", "flags")));
        let rng = Sim::new(1).env().rng("spread");
        assert_ne!(spread.delay(&rng), spread.delay(&rng));
        let units =
            (0..20_000).map(|id| spread.delay_of(Splay::of(&format!("web-{id}"), "flags")).as_secs_f64() / 60.0);
        assert!(unevenness(units, 100) < 1.36);
    }
}
