//! What a rate owes to those who go, wait, leave and are refused.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{
    env::{Task, sim::Sim},
    event::{Counts, Metric},
};

const MS: Duration = Duration::from_millis(1);

fn limit(env: &Env, burst: u32) -> RateLimit {
    RateLimit::new(env, Rate::per_second(10).burst(burst))
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn settle(permit: impl Permit, env: &Env) {
    permit.settle(&Verdict::Ok, Span { from: env.now(), to: env.now() });
}

/// Callers that all ask now and wait; each gives when it went, in milliseconds.
fn crowd(env: &Env, limit: &RateLimit, callers: u32) -> Vec<Task<Result<u128, Refusal>>> {
    let one = |_| {
        let (limit, clock) = (limit.clone(), env.clone());
        env.spawn(async move {
            let mut ask = Ask::new(&clock);
            let permit = limit.enter(&mut ask).await?;
            settle(permit, &clock);
            assert_eq!(ask.at, clock.now(), "the next gate would judge by the past");
            Ok((ask.at - Tick::ZERO).as_millis())
        })
    };
    (0..callers).map(one).collect()
}

fn gather<T: Send + 'static>(sim: &mut Sim, tasks: Vec<Task<T>>) -> Vec<T> {
    sim.run(async {
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.expect("callers neither panic nor are aborted"));
        }
        all
    })
}

#[test]
fn waiters_go_one_after_another_and_not_at_an_edge() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let tasks = crowd(&env, &limit(&env, 2), 6);
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 0, 100, 200, 300, 400]);
}

#[test]
fn what_a_check_admits_is_spent() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let (limit, keyed) = (limit(&env, 1), crate::limit::KeyedRate::<u8>::new(&env, Rate::per_second(10).burst(1)));
    let (mut went, mut went_by_key) = (0, 0);
    for _ in 0..10_000 {
        went += u32::from(limit.check().is_ok());
        went_by_key += u32::from(keyed.check(&7).is_ok());
        sim.run_until(env.now() + MS / 10);
    }
    assert!((10..=11).contains(&went) && (10..=11).contains(&went_by_key), "{went} and {went_by_key} in a second");
    limit.check().unwrap();
    let told = limit.check().unwrap_err();
    assert!(told.after.is_some(), "{told:?}");
}

#[test]
fn nobody_is_let_in_without_a_slot_of_its_own() {
    // tower-resilience#363: waiters that woke up were let in without taking a permit.
    let mut sim = Sim::new(1).shuffle_ties();
    let env = sim.env();
    let tasks = crowd(&env, &limit(&env, 1), 50);
    let mut went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    went.sort_unstable();
    assert_eq!(went, (0..50).map(|n| n * 100).collect::<Vec<u128>>());
}

#[test]
fn a_newcomer_does_not_overtake_those_who_wait() {
    // resilience4j#336: whoever asks at the right moment gets the permit of somebody who has waited.
    let sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    settle(limit.try_enter(&Ask::new(&env)).unwrap(), &env);
    let mut ask = Ask::new(&env);
    let mut waiting = pin!(limit.enter(&mut ask));
    assert!(poll_once(waiting.as_mut()).is_pending());
    let mut later = Ask::new(&env);
    later.at = Tick::ZERO + MS * 100;
    let refusal = limit.try_enter(&later).unwrap_err();
    assert_eq!(refusal, Refusal::new(Why::Rate).after(MS * 100));
}

#[test]
fn who_cannot_go_before_its_deadline_is_refused_at_once_and_takes_nothing() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    settle(limit.try_enter(&Ask::new(&env)).unwrap(), &env);
    for deadline in [99, 100] {
        let mut ask = Ask::new(&env).deadline(Tick::ZERO + MS * deadline);
        let refusal = match poll_once(pin!(limit.enter(&mut ask))) {
            Poll::Ready(Err(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal.why, Why::Deadline);
        assert!(refusal.after >= Some(MS * 100));
    }
    let mut ask = Ask::new(&env).deadline(Tick::ZERO + MS * 101);
    settle(sim.run(limit.enter(&mut ask)).unwrap(), &env);
    assert_eq!(ask.at, Tick::ZERO + MS * 100, "what was refused has taken a slot");
}

#[test]
fn the_line_of_waiters_has_an_end() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = RateLimit::new(&env, Rate::per_second(10).burst(1).max_wait(MS * 500));
    let tasks = crowd(&env, &limit, 100);
    let went = gather(&mut sim, tasks);
    assert_eq!(went.iter().filter(|result| result.is_ok()).count(), 6);
    assert!(went.iter().flatten().all(|ms| *ms <= 500));
}

#[test]
fn the_last_to_reserve_gives_its_slot_back_when_it_leaves() {
    let sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    settle(limit.try_enter(&Ask::new(&env)).unwrap(), &env);
    let before = limit.0.tat.0.load(Relaxed);
    {
        let mut ask = Ask::new(&env);
        let mut waiting = pin!(limit.enter(&mut ask));
        assert!(poll_once(waiting.as_mut()).is_pending());
        assert_ne!(limit.0.tat.0.load(Relaxed), before);
    }
    assert_eq!(limit.0.tat.0.load(Relaxed), before);
}

#[test]
fn a_slot_that_somebody_stands_behind_is_not_given_back() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    let mut tasks = crowd(&env, &limit, 3);
    sim.run_until(Tick::ZERO + MS * 50);
    let leaver = tasks.remove(1);
    leaver.abort();
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 200], "the third keeps the time it was given");
    assert!(limit.try_enter(&Ask::new(&env)).is_err());
}

#[test]
fn the_slot_of_a_waiter_who_gives_up_goes_to_the_next_newcomer() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    let mut tasks = crowd(&env, &limit, 5);
    sim.run_until(Tick::ZERO + MS * 50);
    for leaver in [tasks.remove(2), tasks.remove(2)] {
        leaver.abort();
    }
    sim.run_until(Tick::ZERO + MS * 60);
    tasks.extend(crowd(&env, &limit, 3));
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 100, 400, 200, 300, 500], "those before keep their slots, and the holes are filled in turn");
}

#[test]
fn a_hole_whose_time_has_passed_lets_nobody_in_early() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    let mut tasks = crowd(&env, &limit, 4);
    sim.run_until(Tick::ZERO + MS * 50);
    tasks.remove(1).abort();
    sim.run_until(Tick::ZERO + MS * 150);
    assert!(limit.try_enter(&Ask::new(&env)).is_err(), "the slot at 100 ms is gone, and the next is for who waits");
    tasks.extend(crowd(&env, &limit, 1));
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 200, 300, 400]);
}

#[test]
fn asked_ten_thousand_times_in_a_loop_it_lets_in_its_rate() {
    let env = Sim::new(1).env();
    let one_instant = limit(&env, 1);
    let ask = Ask::at(Tick::ZERO + MS * 1_000);
    assert_eq!((0..10_000).filter(|_| one_instant.try_enter(&ask).is_ok()).count(), 1);
    let (one_second, keyed) = (limit(&env, 1), crate::limit::KeyedRate::<u8>::new(&env, Rate::per_second(10).burst(1)));
    let asks = || (0..=10_000u32).map(|n| Ask::at(Tick::ZERO + MS * 1_000 + MS * n / 10));
    assert_eq!(asks().filter(|ask| one_second.try_enter(ask).is_ok()).count(), 11);
    assert_eq!(asks().filter(|ask| keyed.of(&7).try_enter(ask).is_ok()).count(), 11);
}

#[test]
fn a_dropped_permit_is_spent_and_a_dropped_place_is_not() {
    let sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 1);
    drop(limit.try_reserve(&Ask::new(&env)).unwrap());
    limit.try_reserve(&Ask::new(&env)).unwrap().commit();
    assert!(limit.try_enter(&Ask::new(&env)).is_err());
}

#[test]
fn places_of_a_burst_that_are_dropped_can_be_taken_at_once() {
    let sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 10);
    let mut places: Vec<_> = (0..10).map(|_| limit.try_reserve(&Ask::new(&env)).unwrap()).collect();
    places.drain(2..5);
    let entered = (0..100).filter(|_| limit.try_enter(&Ask::new(&env)).is_ok()).count();
    assert_eq!(entered, 3, "as many as were given back");
}

#[test]
fn no_two_refused_callers_are_told_the_same_instant_and_each_finds_its_slot_free() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let counts = Arc::new(Counts::default());
    let limit = limit(&env.observed_by(Arc::clone(&counts)), 1);
    settle(limit.try_enter(&Ask::new(&env)).unwrap(), &env);
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let (limit, clock) = (limit.clone(), env.clone());
            env.spawn(async move {
                let refusal = limit.try_enter(&Ask::new(&clock)).unwrap_err();
                clock.sleep(refusal.after.unwrap()).await;
                settle(limit.try_enter(&Ask::new(&clock)).expect("it was told to come now"), &clock);
                clock.now()
            })
        })
        .collect();
    let mut came = gather(&mut sim, callers);
    came.sort_unstable();
    came.dedup();
    assert_eq!(came.len(), 100);
    assert_eq!(counts.get(Metric::Refusals), 100);
}

#[test]
fn what_costs_more_takes_more_and_more_than_a_burst_is_never_let_in() {
    let sim = Sim::new(1);
    let env = sim.env();
    let limit = limit(&env, 5);
    settle(limit.try_enter(&Ask::new(&env).cost(3)).unwrap(), &env);
    let refusal = limit.try_enter(&Ask::new(&env).cost(3)).unwrap_err();
    assert_eq!(refusal.after, Some(MS * 100));
    settle(limit.try_enter(&Ask::new(&env).cost(2)).unwrap(), &env);
    assert_eq!(limit.try_enter(&Ask::new(&env).cost(6)).unwrap_err(), Refusal::new(Why::Rate));
}

#[test]
fn threads_together_are_let_in_as_often_as_one_would_be() {
    let limit = RateLimit::new(&Env::system(), Rate::every(Duration::from_secs(1_000_000)).burst(1_000));
    let mut ask = Ask::new(&Env::system());
    ask.at = Tick::ZERO + Duration::from_secs(1);
    let let_in: u32 = std::thread::scope(|scope| {
        let thread = || {
            let one = |_: &u32| limit.try_enter(&ask).map(|permit| settle(permit, &Env::system())).is_ok();
            u32::try_from((0..500).filter(one).count()).unwrap()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(let_in, 1_000);
}

#[test]
fn senseless_rates_count_as_the_nearest_that_makes_sense() {
    assert_eq!(Rate::per_second(0), Rate::per_second(1));
    assert_eq!(Rate::per_second(1).burst(0), Rate::per_second(1).burst(1));
    assert_eq!(Rate::per_second(3).interval, Duration::from_nanos(333_333_334));
    assert_eq!((Rate::per_second(1_000).burst, Rate::per_second(2).burst), (100, 1));
    let env = Sim::new(1).env();
    drop(RateLimit::new(&env, Rate::every(Duration::ZERO)).try_enter(&Ask::new(&env)));
    drop(RateLimit::new(&env, Rate::every(Duration::MAX).burst(u32::MAX)).try_enter(&Ask::new(&env)));
}

/// golang/go#56287: whoever came with an older reading of the clock set it back, and the next one was paid for the time in
/// between once more.
#[test]
fn readings_of_the_clock_out_of_order_earn_nothing() {
    let env = Sim::new(1).env();
    let limit = limit(&env, 2);
    let enter = |at: Duration| {
        let permit = limit.try_enter(&Ask::at(Tick::ZERO + at));
        permit.map(|permit| settle(permit, &env)).is_ok()
    };
    let entered = (0..1_000).filter(|n| enter(MS * if n % 2 == 0 { 10_000 } else { 9_000 })).count();
    assert_eq!(entered, 2);
}

/// firecracker#3370: every look at the bucket rounded what had flowed in down to nothing, and began anew.
#[test]
fn asking_often_does_not_keep_it_from_filling() {
    let env = Sim::new(1).env();
    let limit = limit(&env, 1);
    let enter = |at: Duration| limit.try_enter(&Ask::at(Tick::ZERO + at)).map(|permit| settle(permit, &env)).is_ok();
    let entered = (0..100_000).filter(|n| enter(Duration::from_micros(10) * *n)).count();
    assert_eq!(entered, 10, "in a second, whoever asks how often");
}

#[test]
fn what_every_thread_writes_is_on_no_line_with_what_all_of_them_read() {
    use std::mem::{offset_of, size_of};
    let line = |offset: usize| offset / 64;
    let (tat, promises) = (offset_of!(Inner, tat), offset_of!(Inner, promises));
    let read = [offset_of!(Inner, env), offset_of!(Inner, gcra), offset_of!(Inner, gcra) + size_of::<Gcra>() - 1];
    assert!(read.iter().all(|&field| line(field) != line(tat) && line(field) != line(promises)));
    assert_ne!(line(tat), line(promises));
    assert_eq!(size_of::<Promises>(), 2 * 64, "a line for the draws, and one for what is promised");
}
