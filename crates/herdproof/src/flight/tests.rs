//! One load per key, whatever callers do: each hazard once, in virtual time.
//!
//! What Go's `singleflight` tests pin, and where it is pinned here:
//!
//! | there | here |
//! |---|---|
//! | `TestDo` | `a_ready_load_gives_its_value_and_leaves_nothing` |
//! | `TestDoErr` | `an_error_reaches_everybody_as_the_same_error` |
//! | `TestDoDupSuppress` | `a_crowd_makes_one_load` |
//! | `TestForget` | `forgetting_lets_a_newcomer_begin_and_the_old_end_does_not_remove_the_new_flight` |
//! | `TestDoChan` | `a_channel_gets_the_answer_though_nobody_polls` |
//! | `TestPanicDo` | `a_panic_reaches_everybody_and_poisons_nothing` |
//! | `TestPanicErrorUnwrap` | `a_panic_reaches_everybody_and_poisons_nothing` (the error's source is the panic) |
//! | `TestGoexitDo` | no counterpart: what unwinds is a panic |
//! | `TestPanicDoChan`, `TestPanicDoSharedByDoChan` | `a_panic_reaches_a_channel_as_an_answer`: nothing crashes |
//! | `ExampleGroup` | `a_crowd_makes_one_load` (the shared flag) |

mod model;

use std::{
    error::Error,
    future::{pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::*;
use crate::{
    env::{Task, Tick, sim::Sim},
    error::Panic,
    event::{Counts, Metric},
};

const MS: Duration = Duration::from_millis(1);

type Answer = Result<Landed<u32>, FlightError<String>>;

/// A group in a simulated world, whose loads take a while and are counted.
struct Scene {
    sim: Sim,
    env: Env,
    group: Group<&'static str, u32, String>,
    loads: Arc<AtomicU32>,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(|builder| builder)
    }

    fn with(settings: impl FnOnce(GroupBuilder) -> GroupBuilder) -> Scene {
        let sim = Sim::new(1);
        let env = sim.env();
        let group = settings(Group::builder(&env)).build();
        Scene { sim, env, group, loads: Arc::default() }
    }

    /// A load that takes this long and gives the number of the load, from one.
    fn load(&self, takes: Duration) -> impl Future<Output = Result<u32, String>> + Send + use<> {
        let (env, loads) = (self.env.clone(), Arc::clone(&self.loads));
        async move {
            let number = loads.fetch_add(1, Ordering::Relaxed) + 1;
            env.sleep(takes).await;
            Ok(number)
        }
    }

    fn run(&self, takes: Duration) -> Flight<u32, String> {
        self.group.run("key", || self.load(takes))
    }

    fn loads(&self) -> u32 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Lets this much time pass.
    fn pass(&mut self, time: Duration) {
        let until = self.env.now() + time;
        self.sim.run_until(until);
    }

    /// Callers of one key, each a task.
    fn crowd(&self, callers: u32, takes: Duration) -> Vec<Task<Answer>> {
        (0..callers).map(|_| self.env.spawn(self.run(takes))).collect()
    }

    fn answers(&mut self, tasks: Vec<Task<Answer>>) -> Vec<Answer> {
        self.sim.run(async {
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.expect("callers neither panic nor are aborted"));
            }
            answers
        })
    }

    fn check_nothing_is_left(&self) {
        assert_eq!(self.group.stats().in_air, 0, "keys are left in the table");
    }
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_ready_load_gives_its_value_and_leaves_nothing() {
    let mut scene = Scene::new();
    let flight = scene.group.run("key", || async { Ok(7) });
    let landed = scene.sim.run(flight).unwrap();
    assert_eq!(landed, Landed { value: 7, led: true, shared: false, waited: Duration::ZERO });
    scene.check_nothing_is_left();
    assert!(scene.sim.finish().is_ok(), "a ready load needs no task");
}

#[test]
fn nothing_of_a_ready_load_is_kept_in_the_place_that_is_used_again() {
    let mut scene = Scene::new();
    let owned = Arc::new(());
    for round in 0..3 {
        let (one, other) = (Arc::clone(&owned), Arc::clone(&owned));
        // It holds on to what it captured until it is dropped.
        let ready = scene.group.run("key", || {
            poll_fn(move |_| {
                assert!(Arc::strong_count(&one) > 1);
                Poll::Ready(Ok(round))
            })
        });
        assert_eq!(scene.sim.run(ready).unwrap().value, round);
        // Of another kind, and much larger than what is worth keeping.
        let large = [round; 2048];
        let ready = scene.group.run("key", || async move {
            drop(other);
            Ok(large[1000])
        });
        assert_eq!(scene.sim.run(ready).unwrap().value, round);
        let pending = scene.run(MS);
        assert_eq!(scene.sim.run(pending).unwrap().value, round + 1, "a load that has to wait moves out");
    }
    assert_eq!(Arc::strong_count(&owned), 1, "what the loads captured is gone");
    let failed = scene.group.run("key", || async { panic!("at once") });
    assert!(catch_unwind(AssertUnwindSafe(|| scene.sim.run(failed))).is_err());
    let ready = scene.group.run("key", || async { Ok(9) });
    assert_eq!(scene.sim.run(ready).unwrap().value, 9);
}

#[test]
fn an_observer_hears_of_loads_and_of_who_shared_them() {
    let mut scene = Scene::new();
    let counts = Arc::new(Counts::default());
    scene.group = Group::builder(&scene.env.observed_by(Arc::clone(&counts))).max_followers(4).build();
    let crowd = scene.crowd(6, MS);
    let refused = scene.answers(crowd).iter().filter(|answer| answer.is_err()).count();
    let alone = scene.group.run("other", || async { Ok(1) });
    scene.sim.run(alone).unwrap();
    let heard = [Metric::Loads, Metric::FlightShared, Metric::Refusals].map(|metric| counts.get(metric));
    assert_eq!((heard, refused), ([2, 4, 1], 1));
}

#[test]
fn a_crowd_makes_one_load() {
    let mut scene = Scene::new();
    let crowd = scene.crowd(100, MS * 50);
    let answers: Vec<Landed<u32>> = scene.answers(crowd).into_iter().map(Result::unwrap).collect();
    assert_eq!(scene.loads(), 1);
    assert!(answers.iter().all(|landed| landed.value == 1 && landed.shared && landed.waited == MS * 50));
    assert_eq!(answers.iter().filter(|landed| landed.led).count(), 1);
    let stats = scene.group.stats();
    assert_eq!((stats.flights, stats.joins, stats.largest, stats.unshared), (1, 99, 99, 0));
    assert!((stats.joins_per_flight() - 99.0).abs() < f64::EPSILON);
    scene.check_nothing_is_left();
}

#[test]
fn it_is_not_a_cache() {
    let mut scene = Scene::new();
    for expected in 1..=3 {
        let flight = scene.run(MS);
        assert_eq!(scene.sim.run(flight).unwrap().value, expected);
    }
    assert_eq!(scene.group.stats().unshared, 3);
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let mut scene = Scene::new();
    let slow = scene.run(MS * 1000);
    let fast = scene.group.run("other", || scene.load(MS));
    assert_eq!(scene.sim.run(fast).unwrap().waited, MS);
    drop(slow);
}

#[test]
fn an_error_reaches_everybody_as_the_same_error() {
    let mut scene = Scene::new();
    let crowd: Vec<_> = (0..50)
        .map(|_| {
            let (env, loads) = (scene.env.clone(), Arc::clone(&scene.loads));
            scene.env.spawn(scene.group.run("key", || async move {
                loads.fetch_add(1, Ordering::Relaxed);
                env.sleep(MS * 50).await;
                Err("down".to_string())
            }))
        })
        .collect();
    let errors: Vec<Arc<String>> = scene
        .answers(crowd)
        .into_iter()
        .map(|answer| match answer {
            Err(FlightError::Load(error)) => error,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(errors.iter().all(|error| Arc::ptr_eq(error, &errors[0])));
    // Experiment B: one load, and everybody has the answer when it ends, not one after another.
    assert_eq!((scene.loads(), scene.env.now()), (1, Tick::ZERO + MS * 50));
    scene.check_nothing_is_left();
}

#[test]
fn impatient_callers_neither_stop_nor_restart_a_slow_load() {
    // Experiment A: a caller every 10 ms for a second, each with 40 ms of patience, and a load that takes 100 ms and keeps
    // its value.
    let mut scene = Scene::new();
    let kept: Arc<parking_lot::Mutex<Option<u32>>> = Arc::default();
    let mut callers = Vec::new();
    for n in 0..100 {
        let (env, group, kept) = (scene.env.clone(), scene.group.clone(), Arc::clone(&kept));
        let load = scene.load(MS * 100);
        callers.push(scene.env.spawn(async move {
            env.sleep(MS * 10 * n).await;
            if let Some(value) = *kept.lock() {
                return Ok(value);
            }
            let keep = async move { load.await.inspect(|value| *kept.lock() = Some(*value)) };
            group.run("key", || keep).by(env.now() + MS * 40).await.map(|landed| landed.value)
        }));
    }
    let answers = scene.sim.run(async {
        let mut answers = Vec::new();
        for caller in callers {
            answers.push(caller.await.unwrap());
        }
        answers
    });
    let late = answers.iter().filter(|answer| matches!(answer, Err(FlightError::Deadline))).count();
    // Only those who left before the first load could end are not served.
    assert_eq!((scene.loads(), late, answers.iter().filter(|answer| answer.is_ok()).count()), (1, 6, 94));
    scene.check_nothing_is_left();
}

#[test]
fn a_thousand_leaders_in_a_row_that_leave_do_not_stop_the_load() {
    let mut scene = Scene::new();
    let patient = scene.run(MS * 2_000);
    for _ in 0..1_000 {
        let leaver = scene.env.spawn(scene.run(MS));
        scene.pass(MS);
        leaver.abort();
    }
    assert_eq!(scene.sim.run(patient).unwrap().value, 1);
    assert_eq!((scene.loads(), scene.env.now()), (1, Tick::ZERO + MS * 2_000));
    scene.check_nothing_is_left();
}

#[test]
fn the_leader_leaving_first_leaves_the_load_to_the_others() {
    let mut scene = Scene::new();
    let leader = scene.run(MS * 10);
    let follower = scene.run(MS * 10);
    scene.pass(MS);
    drop(leader);
    let landed = scene.sim.run(follower).unwrap();
    assert_eq!((landed.value, landed.led, landed.waited), (1, false, MS * 10));
    assert_eq!(scene.loads(), 1);
}

#[test]
fn a_caller_parked_unpolled_does_not_hold_up_the_others() {
    let mut scene = Scene::new();
    let parked = scene.run(MS * 10); // never polled until the end
    let others = scene.crowd(10, MS);
    let answers = scene.answers(others);
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|landed| landed.waited == MS * 10)));
    assert!(matches!(poll_once(pin!(parked)), Poll::Ready(Ok(landed)) if landed.led));
}

#[test]
fn when_the_last_caller_leaves_the_load_is_dropped() {
    let mut scene = Scene::new();
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let flight = scene.group.run("key", || async move {
        pending::<()>().await;
        drop(inside);
        Ok(1)
    });
    let follower = scene.run(MS);
    scene.pass(MS);
    drop(flight);
    assert_eq!(Arc::strong_count(&held), 2, "somebody still waits");
    drop(follower);
    assert_eq!(Arc::strong_count(&held), 1, "nobody waits");
    scene.check_nothing_is_left();
    assert_eq!(scene.group.stats().abandoned, 1);
    let again = scene.run(MS);
    assert_eq!(scene.sim.run(again).unwrap().value, 1, "a newcomer begins anew");
}

#[test]
fn a_load_allowed_to_finish_does_and_can_be_joined_meanwhile() {
    let mut scene = Scene::with(|builder| builder.abandon(Abandon::Finish { within: MS * 100 }));
    drop(scene.run(MS * 50));
    scene.pass(MS * 20);
    assert_eq!(scene.group.stats().in_air, 1);
    let newcomer = scene.run(MS);
    let landed = scene.sim.run(newcomer).unwrap();
    assert_eq!((landed.value, landed.waited, landed.led), (1, MS * 30, false));
    scene.check_nothing_is_left();
    assert_eq!((scene.loads(), scene.group.stats().abandoned), (1, 0));
}

#[test]
fn a_load_that_nobody_waits_for_leaves_nobody_watching_it_once_it_has_landed() {
    let mut scene = Scene::with(|builder| builder.abandon(Abandon::Finish { within: MS * 1_000_000 }));
    drop(scene.run(MS * 50));
    scene.pass(MS * 60);
    scene.check_nothing_is_left();
    assert_eq!(scene.sim.finish().unwrap(), Tick::ZERO + MS * 60);
}

#[test]
fn a_load_that_outlives_the_patience_for_it_is_dropped() {
    let mut scene = Scene::with(|builder| builder.abandon(Abandon::Finish { within: MS * 100 }));
    drop(scene.run(MS * 1_000));
    scene.pass(MS * 99);
    assert_eq!(scene.group.stats().in_air, 1);
    let visitor = scene.run(MS); // whoever joins and leaves again starts the patience anew
    scene.pass(MS * 50);
    drop(visitor);
    scene.pass(MS * 99);
    assert_eq!(scene.group.stats().in_air, 1);
    scene.pass(MS * 2);
    scene.check_nothing_is_left();
    assert_eq!(scene.group.stats().abandoned, 1);
    assert!(scene.sim.finish().is_ok());
}

#[test]
fn forgetting_lets_a_newcomer_begin_and_the_old_end_does_not_remove_the_new_flight() {
    let mut scene = Scene::new();
    let first = scene.run(MS * 10);
    scene.pass(MS);
    assert!(scene.group.forget(&"key"));
    assert!(!scene.group.forget(&"key"), "nobody is left to forget");
    let second = scene.run(MS * 100);
    assert_eq!(scene.sim.run(first).unwrap().value, 1, "those aboard stay aboard");
    let third = scene.run(MS);
    let third = scene.sim.run(third).unwrap();
    assert_eq!((third.value, third.led), (2, false), "the third joins the second");
    assert_eq!(scene.sim.run(second).unwrap().value, 2);
    assert_eq!(scene.loads(), 2);
    scene.check_nothing_is_left();
}

#[test]
fn forgetting_a_load_while_it_is_polled_in_place_keeps_its_followers() {
    let scene = Scene::new();
    let group = scene.group.clone();
    let follower = Arc::new(parking_lot::Mutex::new(None));
    let (inner, slot) = (group.clone(), Arc::clone(&follower));
    let leader = group.run("key", || async move {
        // Another thread would do this; from inside, joining is refused, so it joins from a fresh thread.
        std::thread::scope(|scope| {
            scope.spawn(|| *slot.lock() = Some(inner.run("key", || async { Ok(2) })));
        });
        assert!(inner.forget(&"key"));
        Ok(1)
    });
    assert!(matches!(poll_once(pin!(leader)), Poll::Ready(Ok(landed)) if landed.value == 1 && landed.shared));
    let follower = follower.lock().take().unwrap();
    assert!(matches!(poll_once(pin!(follower)), Poll::Ready(Ok(landed)) if landed.value == 1 && !landed.led));
    scene.check_nothing_is_left();
}

#[test]
fn a_panic_reaches_everybody_and_poisons_nothing() {
    let mut scene = Scene::new();
    let env = scene.env.clone();
    let leader = scene.group.run("key", || async move {
        env.sleep(MS).await;
        panic!("no such table")
    });
    let crowd = scene.crowd(20, MS);
    for answer in scene.answers(crowd) {
        let Err(FlightError::Panicked(panic)) = answer else { panic!("{answer:?}") };
        assert_eq!(panic.message(), "no such table");
        let error: FlightError<std::io::Error> = FlightError::Panicked(panic);
        assert_eq!(error.source().unwrap().to_string(), "panicked: no such table");
    }
    let resumed = catch_unwind(AssertUnwindSafe(|| poll_once(pin!(leader)))).unwrap_err();
    assert_eq!(Panic::new(resumed).message(), "no such table");
    scene.check_nothing_is_left();
    let again = scene.run(MS);
    assert_eq!(scene.sim.run(again).unwrap().value, 1, "the key is not poisoned");
}

#[test]
fn a_panic_before_the_first_await_is_the_callers_own() {
    let scene = Scene::new();
    for flight in [
        scene.group.run("key", || async { panic!("at once") }),
        scene.group.run("key", || -> std::future::Ready<Result<u32, String>> { panic!("at once") }),
    ] {
        let resumed = catch_unwind(AssertUnwindSafe(|| poll_once(pin!(flight)))).unwrap_err();
        assert_eq!(Panic::new(resumed).message(), "at once");
        scene.check_nothing_is_left();
    }
}

#[test]
fn a_panic_reaches_a_channel_as_an_answer() {
    let mut scene = Scene::new();
    let env = scene.env.clone();
    let answers = scene.group.run("key", || async move {
        env.sleep(MS).await;
        panic!("boom")
    });
    let answers = answers.channel();
    scene.sim.finish().unwrap();
    assert!(matches!(answers.try_recv(), Ok(Err(FlightError::Panicked(panic))) if panic.message() == "boom"));
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "while being dropped");
    }
}

#[test]
fn a_load_that_panics_while_being_dropped_takes_nobody_along() {
    let mut scene = Scene::new();
    for takes in [Duration::ZERO, MS] {
        let env = scene.env.clone();
        let flight = scene.group.run("key", || {
            let grenade = Grenade;
            let work = async move {
                env.sleep(takes).await;
                Ok(5)
            };
            Held(Box::pin(work), grenade)
        });
        assert_eq!(scene.sim.run(flight).unwrap().value, 5);
    }
    let left = scene.group.run("key", || Held(Box::pin(pending::<Result<u32, String>>()), Grenade));
    scene.pass(MS);
    drop(left);
    scene.check_nothing_is_left();
}

/// A future with something else to drop.
struct Held<F>(Pin<Box<F>>, Grenade);

impl<F: Future> Future for Held<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.0.as_mut().poll(cx)
    }
}

#[test]
fn every_caller_has_a_deadline_of_its_own() {
    let mut scene = Scene::new();
    let slow = scene.crowd(1, MS * 30_000);
    let hasty: Vec<_> = (0..100).map(|_| scene.env.spawn(scene.run(MS).by(Tick::ZERO + MS * 1_000))).collect();
    let answers = scene.answers(hasty);
    assert!(answers.iter().all(|answer| matches!(answer, Err(FlightError::Deadline))));
    assert_eq!(scene.env.now(), Tick::ZERO + MS * 1_000);
    assert!(scene.answers(slow)[0].is_ok());
    assert_eq!(scene.loads(), 1);
}

#[test]
fn followers_that_come_and_go_leave_no_slots_behind() {
    let mut scene = Scene::new();
    let patient = scene.run(MS * 100_000);
    for _ in 0..1_000 {
        let mut visitors: Vec<_> = (0..10).map(|_| Box::pin(scene.run(MS))).collect();
        for visitor in &mut visitors {
            assert!(poll_once(visitor.as_mut()).is_pending());
        }
    }
    let slots = patient.slots();
    assert!(slots <= 11, "{slots} slots for at most 11 callers at a time");
    drop(patient);
    scene.check_nothing_is_left();
    scene.sim.finish().unwrap();
}

#[test]
fn beyond_the_cap_callers_are_told_at_once() {
    let mut scene = Scene::with(|builder| builder.max_followers(10));
    let crowd = scene.crowd(50, MS * 10);
    let answers = scene.answers(crowd);
    let refused = answers.iter().filter(|answer| matches!(answer, Err(FlightError::Overloaded))).count();
    assert_eq!((refused, answers.len() - refused), (39, 11));
    assert_eq!((scene.group.stats().overloaded, scene.group.stats().joins), (39, 10));
}

/// A key that asks its own group something when it is dropped.
#[derive(Clone)]
struct Nosy(Group<Nosy, u32, String>);

impl std::hash::Hash for Nosy {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        1.hash(state);
    }
}

impl PartialEq for Nosy {
    fn eq(&self, _: &Nosy) -> bool {
        true
    }
}

impl Eq for Nosy {}

impl Drop for Nosy {
    fn drop(&mut self) {
        self.0.stats();
    }
}

#[test]
fn a_key_is_never_dropped_under_the_lock() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let group: Group<Nosy, u32, String> = Group::builder(&env).max_followers(1).build();
    let key = || Nosy(group.clone());
    let sleeper = env.clone();
    let inner = group.clone();
    let leader = group.run(key(), || async move {
        sleeper.sleep(MS).await;
        let nested = inner.run(Nosy(inner.clone()), || async { Ok(1) }).await;
        assert!(matches!(nested, Err(FlightError::Reentrant)));
        Ok(2)
    });
    let follower = group.run(key(), || async { Ok(3) });
    let refused = group.run(key(), || async { Ok(4) });
    assert!(matches!(sim.run(refused), Err(FlightError::Overloaded)));
    assert_eq!(sim.run(follower).unwrap().value, 2);
    assert_eq!(sim.run(leader).unwrap().value, 2);
    drop(group.run(key(), pending)); // given up
    assert_eq!(group.stats().in_air, 0);
}

#[test]
fn leaving_makes_room_under_the_cap() {
    let mut scene = Scene::with(|builder| builder.max_followers(1));
    let leader = scene.run(MS * 10);
    drop(scene.run(MS));
    let second = scene.run(MS);
    assert!(scene.sim.run(second).is_ok());
    drop(leader);
}

#[test]
fn a_load_that_asks_for_its_own_key_is_refused_not_left_waiting() {
    let mut scene = Scene::new();
    for takes in [None, Some(MS)] {
        let (env, group) = (scene.env.clone(), scene.group.clone());
        let flight = scene.group.run("key", || async move {
            if let Some(takes) = takes {
                env.sleep(takes).await; // from here on it is a task of its own
            }
            match group.run("key", || async { Ok(1) }).await {
                Err(FlightError::Reentrant) => Ok(99),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(scene.sim.run(flight).unwrap().value, 99);
    }
    scene.check_nothing_is_left();
}

#[test]
fn a_load_that_asks_for_its_own_key_by_way_of_another_is_refused_too() {
    let mut scene = Scene::new();
    let (env, outer) = (scene.env.clone(), scene.group.clone());
    let inner = outer.clone();
    let flight = scene.group.run("a", || async move {
        env.sleep(MS).await;
        let nested = outer.run("b", || async move {
            env.sleep(MS).await;
            match inner.run("a", || async { Ok(1) }).await {
                Err(FlightError::Reentrant) => Ok(77),
                other => panic!("{other:?}"),
            }
        });
        nested.await.map(|landed| landed.value).map_err(|error| error.to_string())
    });
    assert_eq!(scene.sim.run(flight).unwrap().value, 77);
}

#[test]
fn a_load_may_ask_for_another_key_or_another_group() {
    let mut scene = Scene::new();
    let (group, other) = (scene.group.clone(), Group::<&str, u32, String>::new(&scene.env));
    let flight = scene.group.run("key", || async move {
        let one = group.run("another", || async { Ok(1) }).await.unwrap().value;
        let two = other.run("key", || async { Ok(2) }).await.unwrap().value;
        Ok(one + two)
    });
    assert_eq!(scene.sim.run(flight).unwrap().value, 3);
}

#[test]
fn a_channel_gets_the_answer_though_nobody_polls() {
    let mut scene = Scene::new();
    let leader = scene.run(MS).channel();
    let follower = scene.run(MS).channel();
    assert!(leader.try_recv().is_err(), "not yet");
    scene.sim.finish().unwrap();
    assert!(leader.try_recv().unwrap().unwrap().led);
    assert!(!follower.try_recv().unwrap().unwrap().led);
    let ready = scene.group.run("key", || async { Ok(3) }).channel();
    assert_eq!(ready.try_recv().unwrap().unwrap().value, 3);
    drop(scene.run(MS).channel()); // a receiver that is gone
    scene.sim.finish().unwrap();
    scene.check_nothing_is_left();
}

#[test]
fn a_detached_load_goes_on_to_its_end() {
    let mut scene = Scene::new();
    scene.run(MS * 10).detach();
    scene.pass(MS * 5);
    let late = scene.run(MS);
    assert_eq!(scene.sim.run(late).unwrap().waited, MS * 5);
    scene.run(MS * 10).detach();
    scene.sim.finish().unwrap();
    assert_eq!(scene.loads(), 2);
    scene.check_nothing_is_left();
}

#[test]
fn one_blip_does_not_fail_everybody_when_retries_are_allowed() {
    let mut scene = Scene::new();
    let retries = Retries::new(&scene.env, 5);
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let (env, loads) = (scene.env.clone(), Arc::clone(&scene.loads));
            let load = move || {
                let (env, loads) = (env.clone(), Arc::clone(&loads));
                async move {
                    env.sleep(MS).await;
                    let number = loads.fetch_add(1, Ordering::Relaxed) + 1;
                    if number < 3 { Err(format!("blip {number}")) } else { Ok(number) }
                }
            };
            scene.env.spawn(scene.group.run_retrying("key", &retries, load))
        })
        .collect();
    assert!(scene.answers(crowd).into_iter().all(|answer| answer.unwrap().value == 3));
    assert_eq!(scene.loads(), 3, "the load is repeated inside the flight, not by each caller");
    scene.loads.store(0, Ordering::Relaxed);
    let loads = Arc::clone(&scene.loads);
    let failing = scene.group.run_retrying("key", &Retries::new(&scene.env, 2), move || {
        let number = loads.fetch_add(1, Ordering::Relaxed) + 1;
        async move { Err(format!("blip {number}")) }
    });
    assert!(matches!(scene.sim.run(failing), Err(FlightError::Load(error)) if *error == "blip 3"));
}

#[test]
fn a_load_that_fails_is_tried_again_after_a_while_and_not_for_ever_if_everything_fails() {
    let mut scene = Scene::new();
    let retries = Retries::new(&scene.env, 3);
    let begun = scene.env.now();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let loads = Arc::clone(&scene.loads);
        let failing = scene.group.run_retrying(key, &retries, move || {
            loads.fetch_add(1, Ordering::Relaxed);
            async { Err("down".to_owned()) }
        });
        assert!(scene.sim.run(failing).is_err());
    }
    assert!(scene.env.now() - begun >= MS, "not in a tight loop");
    assert!(scene.loads() <= 8 + 5, "{}: with half of its tokens spent the circuit is open", scene.loads());
}

#[test]
fn newcomers_get_a_landed_value_for_as_long_as_it_lingers() {
    let mut scene = Scene::new();
    let env = scene.env.clone();
    let first = scene.group.run_landing("key", |landing| async move {
        env.sleep(MS * 10).await;
        let linger = landing.land(42); // the headers are here
        env.sleep(MS * 50).await; // the body comes in
        drop(linger);
        env.sleep(MS * 50).await;
        Ok(())
    });
    let waiting = scene.crowd(5, MS);
    assert_eq!(scene.sim.run(first).unwrap().waited, MS * 10, "callers go on at the landing");
    assert!(scene.answers(waiting).iter().all(|answer| answer.as_ref().unwrap().value == 42));
    scene.pass(MS * 30);
    let newcomer = scene.run(MS);
    assert!(matches!(poll_once(pin!(newcomer)), Poll::Ready(Ok(landed)) if landed.value == 42 && !landed.led));
    drop(scene.run(MS)); // leaving unpolled does not end it for others
    assert!(matches!(poll_once(pin!(scene.run(MS))), Poll::Ready(Ok(landed)) if landed.value == 42));
    scene.pass(MS * 30);
    let after = scene.run(MS);
    assert_eq!(scene.sim.run(after).unwrap().value, 1, "it lingers no more");
    assert!(scene.sim.finish().is_ok());
    scene.check_nothing_is_left();
}

#[test]
fn what_was_forgotten_while_it_lingered_is_not_kept() {
    for forgets in [false, true] {
        let mut scene = Scene::new();
        let env = scene.env.clone();
        let kept = Arc::new(AtomicU32::new(0));
        let keeping = Arc::clone(&kept);
        let flight = scene.group.run_landing("key", |landing| async move {
            let linger = landing.land(42);
            env.sleep(MS * 50).await;
            let acted = linger.unless_forgotten(|| keeping.store(42, Ordering::Relaxed));
            assert_eq!(acted, !forgets);
            Ok(())
        });
        assert_eq!(scene.sim.run(flight).unwrap().value, 42);
        if forgets {
            assert!(scene.group.forget(&"key"));
        }
        scene.pass(MS * 60);
        assert_eq!(kept.load(Ordering::Relaxed), if forgets { 0 } else { 42 });
    }
}

#[test]
fn what_was_forgotten_before_it_landed_is_not_kept() {
    for forgets in [false, true] {
        let mut scene = Scene::new();
        let env = scene.env.clone();
        let kept = Arc::new(AtomicU32::new(0));
        let keeping = Arc::clone(&kept);
        let flight = scene.group.run_landing("key", |landing| async move {
            env.sleep(MS * 50).await;
            let acted = landing.unless_forgotten(|| keeping.store(42, Ordering::Relaxed));
            assert_eq!(acted, !forgets);
            drop(landing.land(42));
            Ok(())
        });
        if forgets {
            assert!(scene.group.forget(&"key"));
        }
        assert_eq!(scene.sim.run(flight).unwrap().value, 42, "those aboard have it");
        assert_eq!(kept.load(Ordering::Relaxed), if forgets { 0 } else { 42 });
    }
}

#[test]
fn a_load_that_fails_before_landing_gives_its_error_and_one_that_never_lands_is_abandoned() {
    let mut scene = Scene::new();
    let env = scene.env.clone();
    let failing = scene.group.run_landing("key", |landing| async move {
        env.sleep(MS).await;
        drop(landing);
        Err("no headers".to_string())
    });
    assert!(matches!(scene.sim.run(failing), Err(FlightError::Load(error)) if *error == "no headers"));
    let forgetful = scene.group.run_landing("key", |_landing| async { Ok(()) });
    assert!(matches!(scene.sim.run(forgetful), Err(FlightError::Abandoned)));
    scene.check_nothing_is_left();
}

#[test]
fn a_load_that_lands_and_is_over_at_once_gives_its_value_and_not_that_it_was_abandoned() {
    let mut scene = Scene::new();
    let over = scene.group.run_landing("key", |landing| async move {
        drop(landing.land(42));
        Ok(())
    });
    let landed = scene.sim.run(over).unwrap();
    assert_eq!((landed.value, landed.led, landed.shared), (42, true, false));
    scene.check_nothing_is_left();
    let failing = scene.group.run_landing("key", |landing| async move {
        drop(landing.land(43));
        Err("too late to matter".to_owned())
    });
    assert_eq!(scene.sim.run(failing).unwrap().value, 43);
    let lingering = scene.group.run_landing("key", |landing| async move {
        std::mem::forget(landing.land(44));
        Ok(())
    });
    assert_eq!(scene.sim.run(lingering).unwrap().value, 44);
    let newcomer = scene.run(MS);
    assert_eq!(scene.sim.run(newcomer).unwrap().value, 44, "it was not told to leave");
}

#[test]
fn a_crowd_of_cancelled_keys_leaves_nothing() {
    let sim = Sim::new(1);
    let group: Group<u32, u32> = Group::new(&sim.env());
    for key in 0..100_000 {
        drop(group.run(key, pending));
    }
    assert_eq!(group.stats().in_air, 0);
    assert_eq!(group.stats().abandoned, 100_000);
}

#[test]
fn the_end_of_the_runtime_is_an_answer_too() {
    let scene = Scene::new();
    let mut waiting = pin!(scene.run(MS));
    assert!(poll_once(waiting.as_mut()).is_pending());
    let Scene { sim, group, .. } = scene;
    drop(sim);
    assert!(matches!(poll_once(waiting), Poll::Ready(Err(FlightError::Abandoned))));
    assert_eq!(group.stats().in_air, 0);
}

#[test]
fn a_flight_outlives_the_group_that_began_it() {
    let Scene { mut sim, env, group, .. } = Scene::new();
    let sleeper = env.clone();
    let flight = group.run("key", || async move {
        sleeper.sleep(MS).await;
        Ok(8)
    });
    drop(group);
    assert_eq!(sim.run(flight).unwrap().value, 8);
}

#[test]
fn a_local_load_that_borrows_is_shared_and_begun_again_if_its_caller_leaves() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let group: LocalGroup<&str, u32, String> = LocalGroup::new(&env);
    let begun = AtomicU32::new(0); // borrowed by every load
    let load = |takes| {
        let (env, begun) = (env.clone(), &begun);
        move || async move {
            let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
            env.sleep(takes).await;
            Ok(number)
        }
    };
    let landed = sim.run(async {
        let mut leader = Box::pin(group.run("key", load(MS * 100)));
        let mut first = Box::pin(group.run("key", load(MS * 10)));
        let mut second = Box::pin(group.run("key", load(MS * 10)));
        assert!(poll_once(leader.as_mut()).is_pending());
        assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        drop(leader);
        let mut landed = Vec::new();
        poll_fn(|cx| {
            for caller in [&mut first, &mut second].into_iter().skip(landed.len()) {
                if let Poll::Ready(answer) = caller.as_mut().poll(cx) {
                    landed.push(answer.unwrap());
                }
            }
            if landed.len() == 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        landed
    });
    assert!(landed.iter().all(|landed| landed.value == 2 && landed.shared));
    assert_eq!((begun.load(Ordering::Relaxed), group.stats().in_air), (2, 0));
}

#[test]
fn a_local_load_that_asks_for_its_own_key_is_refused() {
    let mut sim = Sim::new(1);
    let group: LocalGroup<&str, u32, String> = LocalGroup::new(&sim.env());
    let landed = sim.run(group.run("key", || async {
        match Box::pin(group.run("key", || async { Ok(1) })).await {
            Err(FlightError::Reentrant) => Ok(2),
            other => panic!("{other:?}"),
        }
    }));
    assert_eq!(landed.unwrap().value, 2);
}

#[test]
fn threads_share_one_load_and_its_ending() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let env = runtime.block_on(async { Env::system() });
    let group: Group<u8, u32, String> = Group::new(&env);
    let loads = AtomicU32::new(0);
    let (began, release, others) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2), 7);
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| {
            group.run_blocking(1, || {
                loads.fetch_add(1, Ordering::Relaxed);
                began.wait();
                release.wait();
                Ok(5)
            })
        });
        began.wait();
        let threads: Vec<_> = (0..others).map(|_| scope.spawn(|| group.run_blocking(1, || Ok(6)))).collect();
        let task = group.run(1, || async { Ok(7) });
        // Everybody is aboard before the load may end.
        while group.stats().joins < others + 1 {
            std::thread::yield_now();
        }
        release.wait();
        assert!(leader.join().unwrap().is_ok_and(|landed| landed.led && landed.shared));
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap().value, 5);
        }
        assert_eq!(runtime.block_on(task).unwrap().value, 5);
    });
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    assert_eq!(group.stats().in_air, 0);
}

#[test]
fn a_load_polled_in_place_is_not_polled_by_a_thread_without_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let env = runtime.block_on(async { Env::system() });
    let group: Group<u8, u32, String> = Group::new(&env);
    // No runtime on this thread; the load needs one for its timer.
    let sleeper = env.clone();
    let landed = group.run(1, || async move {
        sleeper.sleep(MS).await;
        poll_fn(|_| Poll::Ready(Ok(3))).await
    });
    assert_eq!(landed.wait().unwrap().value, 3);
}

#[test]
fn who_leaves_on_a_thread_without_a_runtime_does_not_panic() {
    let group: Group<u8, u32, String> = Group::builder(&Env::system()).abandon(Abandon::Finish { within: MS }).build();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let inside = runtime.enter();
    let flight = group.run(1, pending);
    drop(inside);
    drop(flight);
    assert_eq!(group.stats().in_air, 1, "the load goes on");
}

/// A key that is like any other, and may panic when it is dropped.
struct Key {
    panics: bool,
}

impl PartialEq for Key {
    fn eq(&self, _: &Key) -> bool {
        true
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl Drop for Key {
    fn drop(&mut self) {
        assert!(!self.panics, "this key panics");
    }
}

#[test]
fn a_key_that_panics_when_it_is_dropped_leaves_no_follower_waiting() {
    let group: Group<Key, u32, String> = Group::new(&Env::system());
    let (joining, mut follower) = (group.clone(), None);
    let load = || {
        // While the leader polls in place, somebody joins from another thread.
        let join = move || joining.run(Key { panics: false }, || async { unreachable!("it is being loaded") });
        follower = Some(std::thread::spawn(join).join().unwrap());
        async { Ok(1) }
    };
    let led = catch_unwind(AssertUnwindSafe(|| drop(group.run(Key { panics: true }, load))));
    assert!(led.is_err(), "the leader's key panics at its leader");
    let polled = Pin::new(&mut follower.unwrap()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(FlightError::Abandoned))), "{polled:?}");
}
