//! The fair queue in virtual time, and its lock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex as Lock;

use crate::{
    Env,
    env::sim::Sim,
    gate::{Ask, Gate, Permit, Span, Verdict},
    shed::{Queue, QueueBuilder},
};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What good users saw, in order.
#[derive(Clone, Debug, Default)]
struct Seen {
    took: Vec<Duration>,
    failed: usize,
}

impl Seen {
    fn percentile(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took[(took.len() - 1) * percent / 100]
    }
}

async fn call(env: &Env, queue: &Queue, user: u64, work: Duration) -> bool {
    let mut ask = Ask::new(env).user(user);
    let Ok(seat) = queue.enter(&mut ask).await else { return false };
    env.sleep(work).await;
    seat.settle(&Verdict::Ok, Span { from: ask.at, to: env.now() });
    true
}

/// One user keeps 300 calls of 4 s each before 64 seats, and has done so for a second when twenty others begin, each with one
/// call of 100 ms in a second.
fn seats_taken_before(build: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Seen {
    let mut sim = Sim::new(18);
    let env = sim.env();
    let queue = build(Queue::builder(&env, 64).line(10_000).patience(SECOND * 10).target(MS * 100)).build();
    let seen = Arc::new(Lock::new(Seen::default()));
    let end = env.now() + SECOND * 30;
    for _ in 0..300 {
        let (env, queue) = (env.clone(), queue.clone());
        env.clone()
            .spawn(async move {
                while env.now() < end {
                    if !call(&env, &queue, 1, SECOND * 4).await {
                        env.sleep(MS * 100).await;
                    }
                }
            })
            .detach();
    }
    let good: Vec<_> = (0..20u32)
        .map(|n| {
            let (env, queue, seen) = (env.clone(), queue.clone(), Arc::clone(&seen));
            env.clone().spawn(async move {
                env.sleep(SECOND + MS * 50 * n).await;
                while env.now() < end {
                    let began = env.now();
                    let done = call(&env, &queue, 100 + u64::from(n), MS * 100).await;
                    if done {
                        seen.lock().took.push(env.now() - began);
                    } else {
                        seen.lock().failed += 1;
                    }
                    env.sleep_until((began + SECOND).max(env.now())).await;
                }
            })
        })
        .collect();
    sim.run(async {
        for one in good {
            one.await.unwrap();
        }
    });
    seen.lock().clone()
}

#[test]
fn seats_that_one_user_took_before_there_was_a_line_do_not_make_others_wait() {
    let fair = seats_taken_before(QueueBuilder::fair);
    let plain = seats_taken_before(|queue| queue);
    // The guide has these numbers.
    assert_eq!((fair.percentile(50), fair.percentile(100)), (MS * 100, MS * 100));
    assert_eq!((fair.took.len(), fair.failed), (580, 0));
    assert_eq!((plain.percentile(50), plain.took.len(), plain.failed), (MS * 4_100, 21, 99));
}

#[test]
fn a_user_who_is_alone_keeps_four_fifths_of_the_throughput() {
    let served = |build: fn(QueueBuilder) -> QueueBuilder| {
        let mut sim = Sim::new(18);
        let env = sim.env();
        let queue = build(Queue::builder(&env, 100).target(Duration::MAX)).build();
        let end = env.now() + SECOND;
        let calls: Vec<_> = (0..500)
            .map(|_| {
                let (env, queue) = (env.clone(), queue.clone());
                env.clone().spawn(async move {
                    let mut served = 0;
                    while env.now() < end {
                        served += u32::from(call(&env, &queue, 1, MS * 10).await);
                    }
                    served
                })
            })
            .collect();
        sim.run(async {
            let mut served = 0;
            for call in calls {
                served += call.await.unwrap();
            }
            served
        })
    };
    let (plain, fair) = (served(|queue| queue), served(QueueBuilder::fair));
    assert!(fair * 100 >= plain * 78, "{fair} of {plain}");
}

#[test]
fn a_load_in_the_line_of_who_asked_first_is_let_in_when_somebody_else_waits_for_it() {
    let mut sim = Sim::new(3);
    let env = sim.env();
    let queue = Queue::builder(&env, 5).target(Duration::MAX).fair().build();
    let held: Vec<_> = (0..4).map(|_| queue.try_enter(&Ask::new(&env).user(1)).unwrap()).collect();
    let enter = |load: u64| {
        let (env, queue) = (env.clone(), queue.clone());
        env.clone().spawn(async move {
            let mut ask = Ask::new(&env).user(1).load(load);
            queue.enter(&mut ask).await.unwrap()
        })
    };
    let _others: Vec<_> = (0..50).map(|_| enter(0)).collect();
    let load = enter(42);
    sim.run(async {
        env.sleep(MS).await;
        assert_eq!((queue.inside(), queue.waiting()), (4, 51));
        queue.joined(42, &Ask::new(&env).user(2));
        let seat = load.await.unwrap();
        assert_eq!((queue.inside(), queue.waiting()), (5, 50));
        drop(seat);
    });
    drop(held);
}

#[test]
fn seats_that_are_added_reach_those_who_wait_at_their_share() {
    let sim = Sim::new(3);
    let env = sim.env();
    let queue = Queue::builder(&env, 5).fair().build();
    let held: Vec<_> = (0..5).filter_map(|_| queue.try_enter(&Ask::new(&env).user(1)).ok()).collect();
    assert_eq!(held.len(), 4);
    let _waits: Vec<_> = (0..100)
        .map(|_| {
            let (env, queue) = (env.clone(), queue.clone());
            let mut entering = Box::pin(async move {
                let mut ask = Ask::new(&env).user(1);
                queue.enter(&mut ask).await
            });
            let polled = entering.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            entering
        })
        .collect();
    queue.set_seats(100);
    assert_eq!((queue.inside(), queue.waiting()), (80, 24), "more than are woken at a time");
}

#[test]
fn threads_that_come_and_leave_together_neither_hang_nor_lose_a_seat() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let queue = Queue::builder(&env, 3).line(64).target(Duration::MAX).fair().build();
        let tasks: Vec<_> = (0..64u32)
            .map(|task| {
                let (env, queue) = (env.clone(), queue.clone());
                env.clone().spawn(async move {
                    for round in 0..200u32 {
                        let mut ask = Ask::new(&env).user(u64::from(task % 5) + 1).load(u64::from(round % 7));
                        let mut entering = Box::pin(queue.enter(&mut ask));
                        let polled = entering.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()));
                        if (task + round) % 3 == 0 || polled.is_ready() {
                            queue.joined(u64::from(round % 7), &Ask::new(&env).user(9));
                            continue;
                        }
                        if let Ok(seat) = entering.await {
                            tokio::task::yield_now().await;
                            seat.settle(&Verdict::Ok, Span { from: env.now(), to: env.now() });
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!((queue.inside(), queue.waiting()), (0, 0));
    });
}
