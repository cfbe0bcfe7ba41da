//! What a bulkhead owes to those inside and to those in the line.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Wake,
    time::Duration,
};

use super::*;
use crate::{
    env::{Task, Tick, sim::Sim},
    event::{Counts, Metric},
};

const MS: Duration = Duration::from_millis(1);

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Enters, works this long, and gives when it was let in, in milliseconds.
fn work(env: &Env, pool: &Bulkhead, ask: Ask, takes: Duration) -> Task<Result<u128, Refusal>> {
    let (pool, clock) = (pool.clone(), env.clone());
    env.spawn(async move {
        let mut ask = ask;
        let permit = pool.enter(&mut ask).await?;
        assert_eq!(ask.at, clock.now(), "the next gate would judge by the past");
        clock.sleep(takes).await;
        permit.settle(&Verdict::Ok, Span { from: ask.at, to: clock.now() });
        Ok((ask.at - Tick::ZERO).as_millis())
    })
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
fn those_who_wait_go_in_the_order_in_which_they_came() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 2);
    let tasks = (0..6).map(|_| work(&env, &pool, Ask::new(&env), MS * 10)).collect();
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 0, 10, 10, 20, 20]);
    assert_eq!((pool.taken(), pool.waiting()), (0, 0));
}

#[test]
fn what_matters_more_stands_before_what_matters_less() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1);
    let order = [Priority::Normal, Priority::Sheddable, Priority::Normal, Priority::Critical, Priority::Critical];
    let tasks = order.map(|priority| work(&env, &pool, Ask::new(&env).priority(priority), MS * 10)).into();
    let went: Vec<u128> = gather(&mut sim, tasks).into_iter().map(Result::unwrap).collect();
    assert_eq!(went, [0, 40, 30, 10, 20]);
}

#[test]
fn the_line_has_an_end() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let counts = Arc::new(Counts::default());
    let pool = Bulkhead::new(&env.observed_by(Arc::clone(&counts)), 1).max_waiting(2);
    let tasks = (0..5).map(|_| work(&env, &pool, Ask::new(&env), MS)).collect();
    let results = gather(&mut sim, tasks);
    assert_eq!(results[3..], [Err(Refusal::new(Why::Queue)); 2]);
    assert!(results[..3].iter().all(Result::is_ok));
    assert_eq!((counts.get(Metric::Refusals), counts.get(Metric::QueueDepth)), (2, 2));
}

#[test]
fn a_full_line_pushes_out_who_matters_least_and_came_last() {
    use Priority::{Background, Critical, Normal, Sheddable};
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1).max_waiting(3);
    let order = [Normal, Sheddable, Sheddable, Background, Critical, Sheddable, Normal, Normal, Critical];
    let tasks = order.map(|priority| work(&env, &pool, Ask::new(&env).priority(priority), MS * 10)).into();
    let went = gather(&mut sim, tasks);
    let out = Err(Refusal::new(Why::Queue));
    assert_eq!(went, [Ok(0), out, out, out, Ok(10), out, Ok(30), out, Ok(20)], "{order:?}");
    assert_eq!((pool.taken(), pool.waiting()), (0, 0));
}

#[test]
fn who_is_pushed_out_is_told_when_to_come_back_and_owes_nothing_if_it_has_left() {
    let sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1).max_waiting(1);
    let known = pool.try_enter(&Ask::new(&env)).unwrap();
    known.settle(&Verdict::Ok, Span { from: Tick::ZERO, to: Tick::ZERO + MS * 20 });
    let inside = pool.try_enter(&Ask::new(&env)).unwrap();
    let mut asks = [Priority::Sheddable, Priority::Background, Priority::Normal, Priority::Critical]
        .map(|priority| Ask::new(&env).priority(priority));
    let [least, background, normal, critical] = &mut asks;
    let mut told = Box::pin(pool.enter(least));
    assert!(poll_once(told.as_mut()).is_pending());
    let mut left = Box::pin(pool.enter(background));
    assert!(poll_once(left.as_mut()).is_pending());
    let Poll::Ready(Err(refusal)) = poll_once(told.as_mut()) else { panic!("it was pushed out") };
    assert!(refusal.why == Why::Queue && refusal.after.is_some(), "{refusal:?}");
    let mut third = Box::pin(pool.enter(normal));
    assert!(poll_once(third.as_mut()).is_pending());
    drop(left);
    assert_eq!((pool.taken(), pool.waiting()), (1, 1), "who was pushed out had nothing to give back");
    drop(inside);
    let mut last = pin!(pool.enter(critical));
    assert!(poll_once(last.as_mut()).is_pending(), "who was let in already is not pushed out");
    assert!(matches!(poll_once(third.as_mut()), Poll::Ready(Ok(_))));
    drop(third);
    assert!(matches!(poll_once(last.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn nobody_waits_beyond_its_deadline_and_who_leaves_holds_nobody_up() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1);
    let hasty = Ask::new(&env).deadline(Tick::ZERO + MS * 5);
    let tasks = [Ask::new(&env), hasty.clone(), Ask::new(&env)].map(|ask| work(&env, &pool, ask, MS * 10)).into();
    let went = gather(&mut sim, tasks);
    assert_eq!(went, [Ok(0), Err(Refusal::new(Why::Deadline)), Ok(10)]);
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn a_permit_given_to_somebody_who_left_goes_to_the_next() {
    let sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1);
    let inside = pool.try_enter(&Ask::new(&env)).unwrap();
    let (mut first, mut second) = (Ask::new(&env), Ask::new(&env));
    let mut leaver = Box::pin(pool.enter(&mut first));
    let mut next = pin!(pool.enter(&mut second));
    assert!(poll_once(leaver.as_mut()).is_pending());
    assert!(poll_once(next.as_mut()).is_pending());
    drop(inside);
    drop(leaver);
    let permit = poll_once(next.as_mut());
    assert!(matches!(permit, Poll::Ready(Ok(_))), "the permit was lost with who left");
    drop(permit);
    assert_eq!(pool.taken(), 0);
}

#[test]
fn who_leaves_the_line_makes_room_for_smaller_ones_behind() {
    let sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 3);
    let inside = pool.try_enter(&Ask::new(&env)).unwrap();
    let (mut large, mut small) = (Ask::new(&env).cost(3), Ask::new(&env));
    let mut first = Box::pin(pool.enter(&mut large));
    let mut behind = pin!(pool.enter(&mut small));
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(poll_once(behind.as_mut()).is_pending(), "small ones do not overtake: the large one would starve");
    assert!(pool.try_enter(&Ask::new(&env)).is_err());
    drop(first);
    assert!(matches!(poll_once(behind.as_mut()), Poll::Ready(Ok(_))));
    drop(inside);
}

#[test]
fn what_is_larger_than_the_room_is_refused_instead_of_waiting_for_ever() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 0);
    let refusal = sim.run(pool.enter(&mut Ask::new(&env).cost(2))).unwrap_err();
    assert_eq!(refusal.why, Why::Concurrency);
    assert!(pool.try_enter(&Ask::new(&env).cost(0)).is_ok(), "room for none counts as room for one");
}

#[test]
fn waiters_with_short_deadlines_leave_nothing_behind() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 1).max_waiting(10);
    let stuck = pool.try_enter(&Ask::new(&env)).unwrap();
    for _ in 0..1_000 {
        let ask = Ask::new(&env).deadline(env.now() + MS);
        let task = work(&env, &pool, ask, MS);
        assert_eq!(gather(&mut sim, vec![task])[0].unwrap_err().why, Why::Deadline);
    }
    assert_eq!(pool.waiting(), 0);
    drop(stuck);
}

#[test]
fn those_refused_are_told_different_instants_once_it_is_known_how_long_others_stay() {
    let sim = Sim::new(1);
    let env = sim.env();
    let pool = Bulkhead::new(&env, 2).max_waiting(0);
    let ask = Ask::new(&env);
    let one = pool.try_enter(&ask).unwrap();
    let two = pool.try_enter(&ask).unwrap();
    assert_eq!(pool.try_enter(&ask).unwrap_err().after, None, "nobody has left yet, so nobody knows");
    one.settle(&Verdict::Ok, Span { from: ask.at, to: ask.at + MS * 20 });
    let _three = pool.try_enter(&ask).unwrap();
    let mut told: Vec<u128> = (0..3).map(|_| pool.try_enter(&ask).unwrap_err().after.unwrap().as_millis()).collect();
    assert_eq!(told, [10, 20, 30], "two who stay 20 ms: one leaves every 10 ms");
    let refusal = poll_once(pin!(pool.enter(&mut ask.clone())).as_mut());
    let Poll::Ready(Err(refusal)) = refusal else { panic!("there is no line") };
    told.push(refusal.after.unwrap().as_millis());
    assert_eq!((refusal.why, told[3]), (Why::Queue, 40));
    assert_eq!(pool.try_enter(&ask.clone().cost(3)).unwrap_err().after, None, "no time would be right");
    drop(two);
}

#[test]
fn a_clone_that_lets_fewer_wait_still_lets_in_who_matters_more_and_makes_the_line_no_longer() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let many = Bulkhead::new(&env, 1).max_waiting(5);
    let few = many.clone().max_waiting(2);
    let ask = |priority| Ask::new(&env).priority(priority);
    let inside = work(&env, &many, ask(Priority::Normal), MS);
    let waiting: Vec<_> = (0..4).map(|_| work(&env, &many, ask(Priority::Sheddable), MS)).collect();
    sim.run_until(env.now());
    let refused = work(&env, &few, ask(Priority::Sheddable), MS);
    let critical = work(&env, &few, ask(Priority::Critical), MS);
    sim.run_until(env.now());
    assert_eq!(many.waiting(), 4);
    assert_eq!(sim.run(critical).unwrap(), Ok(1));
    assert_eq!(sim.run(refused).unwrap().unwrap_err().why, Why::Queue);
    let let_in = gather(&mut sim, waiting).into_iter().flatten().count();
    assert!(let_in == 3 && sim.run(inside).unwrap().is_ok());
}

#[test]
fn a_waker_that_panics_leaves_nobody_in_the_line_who_is_gone() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("waker");
        }
    }
    let env = Sim::new(1).env();
    let pool = Bulkhead::new(&env, 1).max_waiting(1);
    let inside = pool.try_enter(&Ask::new(&env)).unwrap();
    let (mut low, mut high) = (Ask::new(&env).priority(Priority::Sheddable), Ask::new(&env));
    let mut pushed_out = Box::pin(pool.reserve(&mut low));
    let waker = Waker::from(Arc::new(Panics));
    assert!(pushed_out.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let pushing = catch_unwind(AssertUnwindSafe(|| poll_once(Box::pin(pool.reserve(&mut high)).as_mut())));
    assert!(pushing.is_err());
    drop((pushed_out, inside));
    assert_eq!((pool.waiting(), pool.taken()), (0, 0));
}
