//! The rules of the simulated world, one hazard each.

use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A log that tasks write to, with the virtual time in milliseconds.
#[derive(Clone)]
struct Log(Env, Arc<Mutex<Vec<(u128, String)>>>);

impl Log {
    fn new(env: &Env) -> Log {
        Log(env.clone(), Arc::default())
    }

    fn say(&self, what: impl Into<String>) {
        let at = (self.0.now() - Tick::ZERO).as_millis();
        self.1.lock().push((at, what.into()));
    }

    fn said(&self) -> Vec<(u128, String)> {
        self.1.lock().clone()
    }
}

/// Runs `clients` sleepers with random naps and gives everything they did.
fn herd(mut sim: Sim, clients: u64) -> Vec<(u128, String)> {
    let env = sim.env();
    let log = Log::new(&env);
    for client in 0..clients {
        let (env, log) = (env.scope(client), log.clone());
        env.clone()
            .spawn(async move {
                let rng = env.rng("nap");
                for _ in 0..3 {
                    env.sleep(MS * u32::try_from(rng.below(4)).unwrap()).await;
                    log.say(format!("{client}"));
                }
            })
            .detach();
    }
    sim.finish().unwrap();
    log.said()
}

/// Polls a set of futures through wakers of their own, as `FuturesUnordered` and `join_all` do.
struct Flag(AtomicUsize, Waker);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.wake_by_ref();
    }
}

async fn join_with_own_wakers<F: Future + Unpin>(mut futures: Vec<F>) -> usize {
    let mut flags: Vec<Option<Arc<Flag>>> = futures.iter().map(|_| None).collect();
    let mut left = futures.len();
    let mut woken = 0;
    poll_fn(|cx| {
        for (future, flag) in futures.iter_mut().zip(&mut flags) {
            let flag = match flag {
                Some(flag) if flag.0.swap(0, Ordering::Relaxed) > 0 => {
                    woken += 1;
                    flag
                }
                Some(_) => continue,
                None => flag.insert(Arc::new(Flag(AtomicUsize::new(0), cx.waker().clone()))),
            };
            let waker = Waker::from(Arc::clone(flag));
            if Pin::new(future).poll(&mut Context::from_waker(&waker)).is_ready() {
                left -= 1;
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    woken
}

#[test]
fn a_sleep_ends_at_its_instant_to_the_nanosecond_and_costs_no_real_time() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let year = Duration::from_nanos(31_557_600_000_000_001);
    let woke = sim.run(async { env.sleep(year).await });
    assert_eq!(woke - Tick::ZERO, year);
    assert_eq!(env.now(), woke);
    assert_eq!(env.coarse(), woke);
    assert_eq!(env.wall().duration_since(std::time::UNIX_EPOCH).unwrap(), super::super::SIM_WALL + year);
}

#[test]
fn the_same_seed_repeats_a_herd_event_by_event_and_another_does_not() {
    assert_eq!(herd(Sim::new(3), 200), herd(Sim::new(3), 200));
    assert_ne!(herd(Sim::new(3), 200), herd(Sim::new(4), 200));
    assert_eq!(herd(Sim::new(3).shuffle_ties(), 200), herd(Sim::new(3).shuffle_ties(), 200));
}

#[test]
fn ties_are_served_in_the_order_of_asking_unless_the_seed_is_to_shuffle_them() {
    let order = |mut sim: Sim| {
        let log = Log::new(&sim.env());
        for client in 0..50 {
            let (env, log) = (sim.env(), log.clone());
            env.clone()
                .spawn(async move {
                    env.sleep(MS).await;
                    log.say(format!("{client}"));
                })
                .detach();
        }
        sim.finish().unwrap();
        log.said().into_iter().map(|(_, who)| who.parse().unwrap()).collect::<Vec<u32>>()
    };
    let asked: Vec<u32> = (0..50).collect();
    assert_eq!(order(Sim::new(1)), asked);
    let shuffled = order(Sim::new(1).shuffle_ties());
    assert_ne!(shuffled, asked);
    assert_ne!(shuffled, order(Sim::new(2).shuffle_ties()));
    let mut sorted = shuffled;
    sorted.sort_unstable();
    assert_eq!(sorted, asked);
}

#[test]
fn adding_a_client_or_a_stream_shifts_nobody_elses_chance() {
    let draws = |extra: bool| {
        let sim = Sim::new(5);
        let env = sim.env();
        if extra {
            let newcomer = env.scope(99).rng("retry");
            newcomer.bits();
            env.scope(1).rng("hedge").bits();
        }
        let rng = env.scope(1).rng("retry");
        [rng.bits(), rng.bits()]
    };
    assert_eq!(draws(false), draws(true));
}

#[test]
fn two_streams_of_one_name_do_not_draw_in_step() {
    for env in [Sim::new(5).env(), Env::system()] {
        let firsts: std::collections::BTreeSet<u64> = (0..1000).map(|_| env.rng("connect").bits()).collect();
        assert_eq!(firsts.len(), 1000);
    }
}

#[test]
fn maps_with_the_worlds_hasher_show_the_same_order_for_the_same_seed() {
    let order = |seed| {
        let sim = Sim::new(seed);
        let mut set = std::collections::HashSet::with_hasher(sim.env().hasher("map"));
        set.extend(0..100);
        set.into_iter().collect::<Vec<i32>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn a_cancelled_timer_does_not_move_the_clock() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let mut timeout = pin!(env.sleep(Duration::from_secs(30)));
        let mut work = pin!(env.sleep(MS));
        poll_fn(|cx| {
            assert!(timeout.as_mut().poll(cx).is_pending());
            work.as_mut().poll(cx)
        })
        .await;
    });
    assert_eq!(sim.finish(), Ok(Tick::ZERO + MS));
}

#[test]
fn a_crowd_of_cancelled_timeouts_leaves_nothing_behind() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        for _ in 0..100_000 {
            let mut timeout = pin!(env.sleep(Duration::from_secs(3600)));
            let mut work = pin!(env.sleep(Duration::from_nanos(10)));
            poll_fn(|cx| {
                assert!(timeout.as_mut().poll(cx).is_pending());
                work.as_mut().poll(cx)
            })
            .await;
        }
    });
    assert!(sim.world().lock().timers.pending() < 5_000);
}

#[test]
fn a_sleep_polled_through_another_waker_wakes_that_waker() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let wakes = sim.run(async { join_with_own_wakers((1..=20).map(|n| env.sleep(MS * n)).collect()).await });
    assert_eq!(wakes, 20);
    assert_eq!(env.now(), Tick::ZERO + MS * 20);
}

#[test]
fn a_sleep_that_moves_to_another_task_wakes_that_one() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let woke = sim.run(async {
        let mut sleep = Box::pin(env.sleep(MS * 5));
        poll_fn(|cx| {
            assert!(sleep.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        env.spawn(sleep).await.unwrap()
    });
    assert_eq!(woke, Tick::ZERO + MS * 5);
}

#[test]
fn a_task_with_many_sleeps_at_once_is_woken_for_each() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let mut polls = 0;
    sim.run(async {
        let mut sleeps: Vec<_> = (1..=5).map(|n| Box::pin(env.sleep(MS * n))).collect();
        poll_fn(|cx| {
            polls += 1;
            sleeps.retain_mut(|sleep| sleep.as_mut().poll(cx).is_pending());
            if sleeps.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    assert_eq!(polls, 6);
}

#[test]
fn sleeping_for_ever_is_a_deadlock_not_an_endless_run() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    assert!(sim.try_run(env.sleep_until(Tick::MAX)).is_err());
}

#[test]
fn a_deadlock_names_who_waits_and_since_when() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    env.spawn_named("origin", pending::<()>()).detach();
    env.spawn(pending::<()>()).detach();
    env.spawn(async {}).detach();
    let deadlock = sim.try_run(async {
        env.sleep(MS * 7).await;
        pending::<()>().await;
    });
    let deadlock = deadlock.unwrap_err();
    assert_eq!(deadlock.at, Tick::ZERO + MS * 7);
    assert_eq!(deadlock.waiting.len(), 3, "{deadlock}");
    assert!(deadlock.waiting[0].starts_with("origin (") && deadlock.waiting[0].contains("tests.rs"), "{deadlock}");
    let text = deadlock.to_string();
    assert!(
        text.starts_with("deadlock at 7ms: nothing can run, no timer is pending, and 3 tasks wait: origin"),
        "{text}"
    );
    // The future that was given up is no longer among those who wait.
    assert_eq!(sim.finish().unwrap_err().waiting.len(), 2);
}

#[test]
fn a_run_up_to_an_instant_stops_there_and_can_go_on() {
    let mut sim = Sim::new(1);
    let log = Log::new(&sim.env());
    let (env, inside) = (sim.env(), log.clone());
    sim.env()
        .spawn(async move {
            for _ in 0..3 {
                env.sleep(MS * 10).await;
                inside.say("tick");
            }
        })
        .detach();
    sim.run_until(Tick::ZERO + MS * 25);
    assert_eq!(sim.env().now(), Tick::ZERO + MS * 25);
    assert_eq!(log.said().len(), 2);
    let late = log.clone();
    let env = sim.env();
    sim.env()
        .spawn(async move {
            env.sleep(MS).await;
            late.say("newcomer");
        })
        .detach();
    assert_eq!(sim.finish(), Ok(Tick::ZERO + MS * 30));
    let said: Vec<_> = log.said().into_iter().skip(2).collect();
    assert_eq!(said, [(26, "newcomer".into()), (30, "tick".into())]);
}

#[test]
fn awaiting_a_task_gives_its_output_or_its_panic_or_its_end() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let sleeper = env.clone();
        let answer = env.spawn(async move {
            sleeper.sleep(MS).await;
            42
        });
        assert!(!answer.is_finished());
        assert_eq!(answer.await.unwrap(), 42);

        let failing = env.spawn(async { panic!("no such origin") });
        match failing.await {
            Err(Died::Panicked(panic)) => assert_eq!(panic.message(), "no such origin"),
            other => panic!("{other:?}"),
        }

        let aborted = env.spawn(pending::<()>());
        aborted.abort();
        assert!(aborted.is_finished());
        assert!(matches!(aborted.await, Err(Died::Aborted)));

        let finished = env.spawn(async { 7 });
        env.sleep(MS).await;
        finished.abort();
        assert_eq!(finished.await.unwrap(), 7, "ending what has ended changes nothing");
    });
    assert!(sim.finish().is_ok());
}

#[test]
fn a_task_ended_before_its_first_poll_is_not_ended_twice() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let waiting = env.spawn_named("waiting", pending::<()>());
    let tasks: Vec<_> = (0..10).map(|_| env.spawn(pending::<()>())).collect();
    tasks.iter().for_each(crate::env::Task::abort);
    drop(tasks);
    let successor = env.spawn(async { 42 });
    assert_eq!(sim.finish().unwrap_err().waiting.len(), 1);
    assert_eq!(sim.run(successor).unwrap(), 42);
    waiting.abort();
    assert!(sim.finish().is_ok());
}

#[test]
fn who_waits_for_a_task_of_a_world_that_ended_is_told() {
    let sim = Sim::new(1);
    let mut task = pin!(sim.env().spawn(pending::<()>()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(&mut cx).is_pending());
    drop(sim);
    assert!(task.is_finished());
    assert!(matches!(task.as_mut().poll(&mut cx), Poll::Ready(Err(Died::Aborted))));
}

#[test]
fn a_task_that_aborts_itself_ends_after_its_poll() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let slot: Arc<Mutex<Option<crate::env::Task<()>>>> = Arc::default();
    let own = Arc::clone(&slot);
    let sleeper = env.clone();
    *slot.lock() = Some(env.spawn(async move {
        let me = own.lock().take().unwrap();
        me.abort();
        drop(me);
        sleeper.sleep(MS).await;
        panic!("it went on");
    }));
    assert_eq!(sim.finish(), Ok(Tick::ZERO));
}

#[test]
fn a_panic_nobody_watches_ends_the_run_and_the_world_can_go_on() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    env.spawn(async { panic!("unseen") }).detach();
    let caught = catch_unwind(AssertUnwindSafe(|| sim.run(env.sleep(MS))));
    assert_eq!(Panic::new(caught.unwrap_err()).message(), "unseen");
    let caught = catch_unwind(AssertUnwindSafe(|| sim.run(async { panic!("in the root") })));
    assert_eq!(Panic::new(caught.unwrap_err()).message(), "in the root");
    assert_eq!(sim.run(env.sleep(MS)), Tick::ZERO + MS);
    assert!(sim.finish().is_ok());
}

#[test]
fn a_waker_kept_by_a_finished_task_does_not_wake_its_successor() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let kept: Arc<Mutex<Option<Waker>>> = Arc::default();
    let keep = Arc::clone(&kept);
    env.spawn(poll_fn(move |cx| {
        *keep.lock() = Some(cx.waker().clone());
        Poll::Ready(())
    }))
    .detach();
    sim.finish().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    let successor = env.spawn(poll_fn(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Poll::<()>::Pending
    }));
    assert!(sim.finish().is_err());
    kept.lock().take().unwrap().wake();
    assert!(sim.finish().is_err());
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    successor.abort();
}

#[test]
fn the_end_of_a_world_drops_what_its_tasks_hold_even_if_that_spawns_more() {
    struct SpawnOnDrop(Env, Arc<()>);
    impl Drop for SpawnOnDrop {
        fn drop(&mut self) {
            let held = Arc::clone(&self.1);
            let late = self.0.spawn(async move { drop(held) });
            assert!(late.is_finished());
        }
    }
    let held = Arc::new(());
    let mut sim = Sim::new(1);
    let env = sim.env();
    for _ in 0..10 {
        let guard = SpawnOnDrop(env.clone(), Arc::clone(&held));
        let sleeper = env.clone();
        env.spawn(async move {
            let _guard = guard;
            join_with_own_wakers(vec![sleeper.sleep(MS), sleeper.sleep(MS * 1000)]).await;
        })
        .detach();
    }
    sim.run_until(Tick::ZERO + MS * 10);
    drop(sim);
    assert_eq!(Arc::strong_count(&held), 1);
    drop(env);
}

#[test]
fn without_a_runtime_the_real_world_says_what_it_needs() {
    let env = Env::system();
    let message = |call: &dyn Fn()| {
        let caught = catch_unwind(AssertUnwindSafe(call)).expect_err("it cannot work");
        Panic::new(caught).message().to_string()
    };
    let spawning = message(&|| env.spawn(async {}).detach());
    assert!(spawning.starts_with("Env::system() needs a tokio runtime to spawn a task"), "{spawning}");
    let sleeping = message(&|| {
        let sleep = pin!(env.sleep(MS));
        let _ = sleep.poll(&mut Context::from_waker(Waker::noop())).is_ready();
    });
    assert!(sleeping.starts_with("Env::system() needs a tokio runtime to sleep"), "{sleeping}");
}

#[test]
fn the_real_world_sleeps_spawns_and_joins_on_tokio_even_from_a_thread_outside() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let env = runtime.block_on(async { Env::system() });
    let task = {
        let sleeper = env.clone();
        env.spawn(async move {
            let before = sleeper.now();
            let woke = sleeper.sleep_until(before + MS).await;
            assert!(woke >= before + MS && sleeper.now() >= woke);
            42
        })
    };
    assert_eq!(runtime.block_on(task).unwrap(), 42);
    let failing = env.spawn(async { panic!("real") });
    assert!(matches!(runtime.block_on(failing), Err(Died::Panicked(panic)) if panic.message() == "real"));
    let endless = env.spawn(pending::<()>());
    endless.abort();
    assert!(matches!(runtime.block_on(endless), Err(Died::Aborted)));
}

#[test]
fn the_coarse_clock_is_never_ahead_of_the_fine_one() {
    let env = Env::system();
    for _ in 0..1000 {
        let coarse = env.coarse();
        assert!(coarse <= env.now());
    }
}
