//! What a queue owes to those who wait, leave, are served and are refused.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;

use super::{plain::BATCH, *};
use crate::{
    env::sim::Sim,
    event::{Counts, Metric},
    gate::{Halt, Permit, Priority, Span, Verdict, guard, result},
};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u32) -> Tick {
    Tick::ZERO + MS * ms
}

/// Somebody who asks to be let in; `poll` shows how far they have come.
type Caller = Pin<Box<dyn Future<Output = (Ask, Result<Seat, Refusal>)> + Send>>;

fn caller(queue: &Queue, mut ask: Ask) -> Caller {
    let queue = queue.clone();
    Box::pin(async move {
        let entered = queue.enter(&mut ask).await;
        (ask, entered)
    })
}

fn poll(caller: &mut Caller) -> Option<Result<Seat, Refusal>> {
    match caller.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready((_, entered)) => Some(entered),
        Poll::Pending => None,
    }
}

/// A queue whose callers are polled by hand, and whose time is what the asks say.
struct Hall {
    /// Kept, because it is the world of the queue.
    sim: Sim,
    queue: Queue,
}

impl Hall {
    fn new(settings: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Hall {
        let sim = Sim::new(7);
        let queue = settings(Queue::builder(&sim.env(), 1)).build();
        Hall { sim, queue }
    }

    fn ask(&self, ms: u32) -> Ask {
        Ask { at: at(ms), ..Ask::new(&self.sim.env()) }
    }

    fn seat(&self, ms: u32) -> Seat {
        self.queue.try_enter(&self.ask(ms)).unwrap()
    }

    /// Somebody who now stands in the line.
    fn waiter(&self, ask: Ask) -> Caller {
        let mut caller = caller(&self.queue, ask);
        assert!(poll(&mut caller).is_none(), "is to wait");
        caller
    }

    /// Settles a seat taken at `from` at `to`.
    fn settle(seat: Seat, from: u32, to: u32) {
        seat.settle(&Verdict::Ok, Span { from: at(from), to: at(to) });
    }

    /// Work takes this long, as far as the queue knows.
    fn learn(&self, ms: u32) {
        for _ in 0..100 {
            self.queue.0.learn(MS * ms);
            self.queue.0.occupied(MS * ms);
        }
    }

    /// As if the line had stood from 0 to 120 ms; the interval then goes on until 201 ms.
    fn overload(&self) {
        let mut state = self.queue.0.state.lock();
        for codel in &mut state.codels {
            (0..=120).for_each(|ms| codel.sample(MS * 50, at(ms)));
        }
        self.queue.0.unmark(&state);
        drop(state);
        assert!(self.queue.is_overloaded());
    }

    fn check_empty(&self) {
        let state = self.queue.0.state.lock();
        assert_eq!((state.line.len(), state.line.slots_held()), (0, 0), "waiting, slots held");
        drop(state);
        assert_eq!(self.queue.inside(), 0, "inside");
    }
}

fn why(entered: Option<Result<Seat, Refusal>>) -> Why {
    entered.expect("has an answer").expect_err("is refused").why
}

#[test]
fn who_comes_first_is_served_first_and_leaves_when_told() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    let (mut first, mut second) = (hall.waiter(hall.ask(1)), hall.waiter(hall.ask(2)));
    Hall::settle(seat, 0, 4);
    assert!(poll(&mut second).is_none());
    let Poll::Ready((ask, entered)) = first.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the first is next");
    };
    assert_eq!(ask.at, at(4), "the next gate judges by the time after the wait");
    drop(entered.unwrap()); // cancelled
    assert!(poll(&mut second).unwrap().is_ok());
    drop((first, second));
    hall.check_empty();
}

#[test]
fn the_more_important_go_first_and_among_equals_the_older() {
    let hall = Hall::new(|queue| queue);
    let mut seat = hall.seat(0);
    let classes = [Priority::Sheddable, Priority::Critical, Priority::Normal, Priority::Critical, Priority::Background];
    let mut callers: Vec<Caller> =
        (1..).zip(classes).map(|(ms, class)| hall.waiter(hall.ask(ms).priority(class))).collect();
    let mut served = Vec::new();
    for _ in 0..callers.len() {
        Hall::settle(seat, 0, 6);
        let (who, entered) =
            callers.iter_mut().enumerate().find_map(|(who, caller)| Some((who, poll(caller)?))).unwrap();
        served.push(who);
        seat = entered.unwrap();
        callers[who] = Box::pin(std::future::pending());
    }
    assert_eq!(served, [1, 3, 2, 4, 0]);
}

#[test]
fn a_seat_kept_for_somebody_who_is_gone_goes_to_the_next() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    let (first, mut second) = (hall.waiter(hall.ask(1)), hall.waiter(hall.ask(2)));
    Hall::settle(seat, 0, 3);
    drop(first); // its seat is kept, and it never looks
    assert!(poll(&mut second).unwrap().is_ok());
    hall.check_empty();
}

#[test]
fn a_seat_kept_for_the_last_who_is_gone_is_free() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    let only = hall.waiter(hall.ask(1));
    Hall::settle(seat, 0, 3);
    assert_eq!(hall.queue.inside(), 1);
    drop(only);
    hall.check_empty();
    drop(hall.seat(4));
}

#[test]
fn a_waiter_that_leaves_leaves_no_trace_and_no_lock_behind() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    let (first, second, third) = (hall.waiter(hall.ask(1)), hall.waiter(hall.ask(1)), hall.waiter(hall.ask(1)));
    drop((second, first, third));
    assert_eq!(hall.queue.waiting(), 0);
    assert_eq!(hall.queue.0.word.load(Relaxed) & SLOW, 0, "nobody takes the lock for those who are gone");
    drop(seat);
    hall.check_empty();
}

#[test]
fn a_full_line_refuses_the_newcomer_unless_it_matters_more() {
    let hall = Hall::new(|queue| queue.line(2));
    let _seat = hall.seat(0);
    let mut old = hall.waiter(hall.ask(1).priority(Priority::Background));
    let mut normal = hall.waiter(hall.ask(2));
    assert_eq!(why(poll(&mut caller(&hall.queue, hall.ask(3).priority(Priority::Background)))), Why::Queue);
    let mut newcomer = hall.waiter(hall.ask(3));
    assert_eq!(why(poll(&mut old)), Why::Queue, "pushed out, though it was there first");
    assert_eq!(why(poll(&mut caller(&hall.queue, hall.ask(4)))), Why::Queue);
    assert!(poll(&mut normal).is_none() && poll(&mut newcomer).is_none());
    assert_eq!(hall.queue.waiting(), 2);
}

#[test]
fn a_full_line_that_stands_pushes_out_the_oldest_of_equals() {
    let hall = Hall::new(|queue| queue.line(1));
    let _seat = hall.seat(0);
    hall.overload();
    let mut old = hall.waiter(hall.ask(121));
    let _new = hall.waiter(hall.ask(122));
    assert_eq!(why(poll(&mut old)), Why::Queue);
}

#[test]
fn while_overloaded_the_old_are_refused_and_the_newest_served() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    hall.overload();
    let mut callers: Vec<Caller> = [121, 139, 145, 147].into_iter().map(|ms| hall.waiter(hall.ask(ms))).collect();
    Hall::settle(seat, 149, 150);
    assert_eq!(why(poll(&mut callers[0])), Why::Shed);
    assert_eq!(why(poll(&mut callers[1])), Why::Shed, "11 ms are more than two targets");
    let newest = poll(&mut callers[3]).unwrap().unwrap();
    assert!(poll(&mut callers[2]).is_none(), "who came before waits on");
    drop(newest);
}

#[test]
fn a_crowd_of_unimportant_calls_does_not_have_an_important_one_refused() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    let mut crowd: Vec<Caller> = (0..9).map(|_| hall.waiter(hall.ask(1).priority(Priority::Sheddable))).collect();
    let mut seats = vec![seat];
    // Every 50 ms the seat goes to somebody of the crowd; the important one comes later, and waits for 20 ms.
    for now in [50, 100, 150] {
        Hall::settle(seats.pop().unwrap(), now - 1, now);
        crowd.retain_mut(|caller| match poll(caller) {
            Some(answer) => {
                seats.extend(answer.ok());
                false
            }
            None => true,
        });
    }
    let (mut first, mut second) = (hall.waiter(hall.ask(151)), hall.waiter(hall.ask(152)));
    Hall::settle(seats.pop().unwrap(), 170, 171);
    assert!(hall.queue.is_overloaded());
    Hall::settle(poll(&mut first).expect("the older of the important is next").unwrap(), 179, 180);
    assert!(poll(&mut second).expect("and then the other, after 28 ms").is_ok());
    assert!(crowd.iter_mut().any(|caller| why(poll(caller)) == Why::Shed));
}

#[test]
fn the_order_can_be_fixed() {
    for (order, served) in [(Order::Oldest, 0), (Order::Newest, 1)] {
        let hall = Hall::new(|queue| queue.order(order));
        let seat = hall.seat(0);
        hall.overload();
        let mut callers: Vec<Caller> = [143, 145].into_iter().map(|ms| hall.waiter(hall.ask(ms))).collect();
        Hall::settle(seat, 149, 150);
        let _seat = poll(&mut callers[served]).expect("is served first").unwrap();
        assert!(poll(&mut callers[1 - served]).is_none(), "{order:?}");
    }
}

#[test]
fn entering_without_a_wait_ends_an_overload() {
    // The fast path tells the line's judge nothing but one bit; that bit must be heard.
    let hall = Hall::new(|queue| queue);
    hall.overload();
    drop(hall.seat(202));
    drop(hall.seat(303));
    assert!(!hall.queue.is_overloaded());
    assert_eq!(hall.queue.0.word.load(Relaxed) & SLOW, 0);
    // A line that stands only in part of an interval, with others let in at once in between, is none.
    for begin in (400..2_000).step_by(60) {
        let seat = hall.seat(begin);
        let _waiter = hall.waiter(hall.ask(begin));
        Hall::settle(seat, begin, begin + 50);
        assert!(!hall.queue.is_overloaded(), "at {begin} ms");
    }
}

#[test]
fn more_than_a_batch_of_old_waiters_are_all_told() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    hall.overload();
    let mut old: Vec<Caller> = (0..BATCH * 3 + 5).map(|_| hall.waiter(hall.ask(121))).collect();
    let mut new = hall.waiter(hall.ask(149));
    Hall::settle(seat, 149, 150);
    assert!(old.iter_mut().all(|caller| why(poll(caller)) == Why::Shed));
    assert!(poll(&mut new).unwrap().is_ok());
    hall.check_empty();
}

#[test]
fn what_would_be_late_is_refused_before_it_takes_a_seat() {
    let hall = Hall::new(|queue| QueueBuilder { seats: 2, ..queue });
    hall.learn(100);
    let _other = hall.seat(0);
    let refused = hall.queue.try_enter(&hall.ask(0).deadline(at(50))).unwrap_err();
    assert_eq!(refused.why, Why::Deadline);
    assert!(hall.queue.try_enter(&hall.ask(0).deadline(at(150))).is_ok());
    let late = hall.ask(9).deadline(at(9));
    assert_eq!(Hall::new(|queue| queue).queue.try_enter(&late).unwrap_err().why, Why::Deadline);
}

#[test]
fn who_can_no_longer_be_in_time_is_skipped_when_a_seat_is_free() {
    let hall = Hall::new(|queue| QueueBuilder { seats: 2, ..queue });
    let (seat, _other) = (hall.seat(0), hall.seat(0));
    let mut hasty = hall.waiter(hall.ask(1).deadline(at(60)));
    let mut patient = hall.waiter(hall.ask(2));
    hall.learn(50);
    Hall::settle(seat, 0, 30);
    assert_eq!(why(poll(&mut hasty)), Why::Deadline);
    assert!(poll(&mut patient).unwrap().is_ok());
}

#[test]
fn a_slow_past_does_not_refuse_for_ever() {
    let hall = Hall::new(|queue| QueueBuilder { seats: 4, ..queue });
    hall.learn(10_000);
    let mut ms = 0;
    // Each one can only wait for 100 ms, and the work takes 5 ms nowadays.
    while hall.queue.0.median() > MS * 50 {
        let probe = hall.queue.try_enter(&hall.ask(ms).deadline(at(ms + 100))).expect("one at least is let in");
        let second = hall.queue.try_enter(&hall.ask(ms).deadline(at(ms + 100)));
        assert_eq!(second.unwrap_err().why, Why::Deadline, "but not more than one");
        Hall::settle(probe, ms, ms + 5);
        ms += 5;
        assert!(ms < 10_000, "does not learn");
    }
}

#[test]
fn a_waiter_leaves_the_line_while_the_caller_still_has_time_to_do_something_else() {
    let mut hall = Hall::new(|queue| queue);
    hall.learn(30);
    let env = hall.sim.env();
    let _seat = hall.seat(0);
    let queue = hall.queue.clone();
    let (ask, refused) = hall.sim.run(async move {
        let mut ask = Ask::new(&env).deadline(at(200));
        let entered = queue.enter(&mut ask).await;
        (ask, entered.unwrap_err())
    });
    assert_eq!(refused.why, Why::Deadline);
    let left = ask.at - Tick::ZERO;
    assert!(left > MS * 160 && left <= MS * 170, "at its deadline less the usual 30 ms: {left:?}");
    assert_eq!(hall.queue.waiting(), 0);
}

#[test]
fn a_waiter_stays_if_the_work_has_become_quicker() {
    let mut hall = Hall::new(|queue| queue);
    hall.learn(150);
    let (env, queue) = (hall.sim.env(), hall.queue.clone());
    let seat = hall.seat(0);
    let waiter = env.spawn({
        let (env, queue) = (env.clone(), queue.clone());
        async move { queue.enter(&mut Ask::new(&env).deadline(at(200))).await.is_ok() }
    });
    hall.sim.run_until(at(20));
    (0..2_000).for_each(|_| queue.0.learn(MS));
    hall.sim.run_until(at(100));
    Hall::settle(seat, 0, 100);
    assert!(hall.sim.run(waiter).unwrap());
}

#[test]
fn asking_without_waiting_is_refused_when_full_and_never_joins_the_line() {
    let hall = Hall::new(|queue| queue);
    let seat = hall.seat(0);
    assert_eq!(hall.queue.try_enter(&hall.ask(1)).unwrap_err().why, Why::Concurrency);
    assert_eq!(hall.queue.waiting(), 0);
    drop(seat);
    assert!(hall.queue.try_enter(&hall.ask(1)).is_ok());
}

#[test]
fn every_refusal_says_when_and_no_two_the_same() {
    let hall = Hall::new(|queue| queue);
    hall.learn(20); // fifty a second
    let _seat = hall.seat(0);
    let mut told: Vec<Duration> =
        (0..1_000).map(|_| hall.queue.try_enter(&hall.ask(1)).unwrap_err().after.unwrap()).collect();
    told.sort_unstable();
    assert!(told[0] >= MS * 1_000);
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]));
    let span = told[999].as_secs_f64() - told[0].as_secs_f64();
    assert!((19.0..24.0).contains(&span), "a thousand at somewhat less than fifty a second, over {span} s");
}

#[test]
fn only_work_that_was_done_counts_for_how_long_it_takes() {
    let hall = Hall::new(|queue| queue);
    for verdict in [Verdict::Fault, Verdict::Overload { after: None }, Verdict::Ignored] {
        hall.seat(0).settle(&verdict, Span { from: at(0), to: at(1) });
    }
    drop(hall.seat(0));
    assert_eq!(hall.queue.capacity(), None);
    Hall::settle(hall.seat(0), 0, 10);
    assert!((hall.queue.capacity().unwrap() - 100.0).abs() < 1.0);
}

#[test]
fn those_who_listen_hear_of_the_line_and_of_refusals() {
    let sim = Sim::new(7);
    let counts = Arc::new(Counts::default());
    let queue = Queue::builder(&sim.env().observed_by(Arc::clone(&counts)), 1).line(1).build();
    let ask = Ask::new(&sim.env());
    let seat = queue.try_enter(&ask).unwrap();
    let mut waiter = caller(&queue, ask.clone());
    assert!(poll(&mut waiter).is_none());
    assert_eq!((counts.get(Metric::QueueDepth), counts.get(Metric::Refusals)), (1, 0));
    drop(waiter);
    assert_eq!(counts.get(Metric::QueueDepth), 0, "who leaves is not counted on");
    let mut waiter = caller(&queue, ask.clone());
    assert!(poll(&mut waiter).is_none());
    assert_eq!(why(poll(&mut caller(&queue, ask))), Why::Queue);
    drop(seat);
    assert_eq!((counts.get(Metric::QueueDepth), counts.get(Metric::Refusals)), (0, 1));
}

#[test]
fn twenty_thousand_who_wait_and_leave_from_the_middle_cost_no_search() {
    let hall = Hall::new(|queue| queue.line(20_000).target(Duration::MAX));
    let mut seat = hall.seat(0);
    let mut callers: Vec<Option<Caller>> = (0..20_000).map(|_| Some(hall.waiter(hall.ask(1)))).collect();
    let mut order: Vec<usize> = (0..10_000).map(|half| half * 2).collect();
    hall.sim.env().rng("leave").shuffle(&mut order);
    for who in order {
        callers[who] = None;
    }
    assert_eq!(hall.queue.waiting(), 10_000);
    for caller in callers.iter_mut().flatten() {
        Hall::settle(seat, 1, 2);
        seat = poll(caller).unwrap().unwrap();
    }
    drop(seat);
    hall.check_empty();
}

#[test]
fn a_burst_is_shed_and_the_line_forgets_it() {
    let mut sim = Sim::new(5);
    let env = sim.env();
    let queue = Queue::new(&env, 4); // 4 x 10 ms: 400 a second
    let call = |wait: Duration| {
        let (env, queue) = (env.clone(), queue.clone());
        async move {
            env.sleep(wait).await;
            let ask = Ask::new(&env);
            guard(&env, &queue, result, ask, || async {
                env.sleep(MS * 10).await;
                Ok::<_, ()>(env.now())
            })
            .await
        }
    };
    // 2,000 a second for a second, then 100 a second for another.
    let burst: Vec<_> = (0..2_000u32).map(|n| env.spawn(call(MS * n / 2))).collect();
    let after: Vec<_> = (0..100u32).map(|n| env.spawn(call(MS * (1_100 + n * 10)))).collect();
    let (served, refused, late) = sim.run(async {
        let (mut served, mut refused, mut late) = (0, 0, 0);
        for task in burst {
            match task.await.unwrap() {
                Ok(_) => served += 1,
                Err(Halt::Refused(refusal)) => {
                    assert!(matches!(refusal.why, Why::Shed | Why::Queue));
                    refused += 1;
                }
                Err(Halt::Unsent(()) | Halt::Failed(())) => unreachable!(),
            }
        }
        for task in after {
            late += u32::from(task.await.unwrap().is_err());
        }
        (served, refused, late)
    });
    assert!((395..=430).contains(&served), "{served} served of what four seats can do in a second");
    assert_eq!(served + refused, 2_000);
    assert_eq!(late, 0, "nobody who came after the burst was refused for it");
    assert!(!queue.is_overloaded());
    assert_eq!((queue.inside(), queue.waiting()), (0, 0));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Come { class: usize, patience: Option<u32>, wait: bool },
    Leave(usize),
    Settle(usize),
    Cancel(usize),
    Look(usize),
    Pass(u32),
    Resize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4usize, prop::option::of(0..50u32), prop::bool::weighted(0.9))
            .prop_map(|(class, patience, wait)| Step::Come { class, patience, wait }),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => any::<usize>().prop_map(Step::Settle),
        1 => any::<usize>().prop_map(Step::Cancel),
        2 => any::<usize>().prop_map(Step::Look),
        2 => (0..40u32).prop_map(Step::Pass),
        1 => (1..6u32).prop_map(Step::Resize),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
    #[test]
    fn whatever_happens_no_seat_is_lost_and_nobody_waits_while_one_is_free(
        seats in 1..4u32, most in 0..6u32, steps in prop::collection::vec(step(), 0..300)
    ) {
        let classes = [Priority::Sheddable, Priority::Background, Priority::Normal, Priority::Critical];
        let hall = Hall::new(|queue| QueueBuilder { seats, ..queue }.line(most));
        let mut now = 0;
        let mut waiting: Vec<Caller> = Vec::new();
        let mut inside: Vec<(u32, Seat)> = Vec::new();
        let mut seats = seats;
        for step in steps {
            let before = hall.queue.inside();
            match step {
                Step::Come { class, patience, wait } => {
                    let mut ask = hall.ask(now).priority(classes[class]);
                    ask.deadline = patience.map(|patience| at(now + patience));
                    if wait {
                        let mut caller = caller(&hall.queue, ask);
                        match poll(&mut caller) {
                            Some(Ok(seat)) => inside.push((now, seat)),
                            Some(Err(refusal)) => prop_assert!(refusal.after.is_some()),
                            None => waiting.push(caller),
                        }
                    } else if let Ok(seat) = hall.queue.try_enter(&ask) {
                        inside.push((now, seat));
                    }
                }
                Step::Leave(who) if !waiting.is_empty() => drop(waiting.swap_remove(who % waiting.len())),
                Step::Settle(who) if !inside.is_empty() => {
                    let (from, seat) = inside.swap_remove(who % inside.len());
                    Hall::settle(seat, from, now);
                }
                Step::Cancel(who) if !inside.is_empty() => drop(inside.swap_remove(who % inside.len())),
                Step::Look(who) if !waiting.is_empty() => {
                    let who = who % waiting.len();
                    if let Some(answer) = poll(&mut waiting[who]) {
                        drop(waiting.swap_remove(who));
                        inside.extend(answer.ok().map(|seat| (now, seat)));
                    }
                }
                Step::Pass(ms) => now += ms,
                Step::Resize(to) => {
                    seats = to;
                    hall.queue.0.set_seats(to, at(now));
                }
                _ => {}
            }
            let queue = &hall.queue;
            prop_assert!(queue.inside() <= seats.max(before), "more come in only while there is room");
            prop_assert!(inside.len() <= queue.inside() as usize, "seats kept for waiters count");
            prop_assert!(queue.waiting() <= most);
            prop_assert!(queue.waiting() == 0 || queue.inside() >= seats, "nobody waits while a seat is free");
            let slow = queue.0.word.load(Relaxed) & SLOW != 0;
            prop_assert_eq!(slow, queue.waiting() > 0 || queue.is_overloaded());
        }
        drop(waiting);
        drop(inside);
        hall.check_empty();
    }
}

#[test]
fn threads_that_come_and_leave_together_neither_hang_nor_lose_a_seat() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let queue = Queue::builder(&env, 3).line(64).target(Duration::MAX).build();
        let tasks: Vec<_> = (0..64u32)
            .map(|task| {
                let (env, queue) = (env.clone(), queue.clone());
                env.clone().spawn(async move {
                    for round in 0..200u32 {
                        let mut entering = caller(&queue, Ask::new(&env));
                        if (task + round) % 3 == 0 && poll(&mut entering).is_none() {
                            continue; // leaves the line, or drops the seat that was just kept for it
                        }
                        let entering = caller(&queue, Ask::new(&env));
                        if let (_, Ok(seat)) = entering.await {
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
        assert_eq!(queue.0.state.lock().line.slots_held(), 0);
    });
}

#[test]
fn the_cut_refuses_the_least_important_at_the_door() {
    let hall = Hall::new(QueueBuilder::cut);
    let _seat = hall.seat(0);
    let cut = hall.queue.0.cut.as_ref().unwrap();
    // Prefetchers come in crowds and wait long; one who matters comes now and then.
    for ms in 1..30_000u32 {
        let mut fetch = caller(&hall.queue, hall.ask(ms).priority(Priority::Sheddable).user(ms.into()));
        drop(poll(&mut fetch));
        if ms % 100 == 0 {
            assert!(poll(&mut caller(&hall.queue, hall.ask(ms))).is_none(), "is let into the line at {ms} ms");
        }
    }
    // A twentieth fewer after each of 29 seconds: a fifth of them still pass.
    assert!((90..128).contains(&cut.cursor()), "{}", cut.cursor());
    let refused = (0..1_000u64).filter(|user| {
        let fetch = hall.ask(30_000).priority(Priority::Sheddable).user(*user);
        poll(&mut caller(&hall.queue, fetch)).is_some_and(|entered| entered.unwrap_err().why == Why::Shed)
    });
    let refused = refused.count();
    assert!((700..900).contains(&refused), "{refused}");
}

#[test]
fn a_limit_that_falls_while_all_are_inside_turns_nobody_out_and_lets_nobody_in() {
    let hall = Hall::new(|queue| QueueBuilder { seats: 3, ..queue });
    let [one, two, three] = [hall.seat(0), hall.seat(0), hall.seat(0)];
    let mut waiter = hall.waiter(hall.ask(1));
    hall.queue.set_seats(1);
    assert_eq!((hall.queue.seats(), hall.queue.inside()), (1, 3));
    Hall::settle(one, 0, 2);
    Hall::settle(two, 0, 3);
    assert!(poll(&mut waiter).is_none(), "the last is still inside");
    assert_eq!(hall.queue.inside(), 1);
    Hall::settle(three, 0, 4);
    drop(poll(&mut waiter).unwrap().unwrap());
    hall.check_empty();
}

#[test]
fn a_limit_that_falls_with_nobody_in_line_holds_for_those_who_come_next() {
    let hall = Hall::new(|queue| QueueBuilder { seats: 2, ..queue });
    let [one, two] = [hall.seat(0), hall.seat(0)];
    hall.queue.set_seats(1);
    Hall::settle(one, 0, 1);
    let mut waiter = hall.waiter(hall.ask(2));
    Hall::settle(two, 0, 3);
    drop(poll(&mut waiter).unwrap().unwrap());
    hall.check_empty();
}

#[test]
fn a_limit_that_rises_wakes_as_many_of_those_who_wait() {
    let hall = Hall::new(|queue| queue.target(Duration::MAX));
    let seat = hall.seat(0);
    let mut waiters: Vec<Caller> = (0..100).map(|_| hall.waiter(hall.ask(1))).collect();
    hall.queue.set_seats(71); // more than are woken at a time
    let inside: Vec<Seat> = waiters.iter_mut().filter_map(|waiter| poll(waiter)?.ok()).collect();
    assert_eq!((inside.len(), hall.queue.inside(), hall.queue.waiting()), (70, 71, 30));
    hall.queue.set_seats(1_000);
    assert_eq!((hall.queue.inside(), hall.queue.waiting()), (101, 0));
    assert_eq!(hall.queue.0.word.load(Relaxed) & SLOW, 0, "nobody waits, so nobody needs the lock");
    drop((waiters, inside, seat));
    hall.check_empty();
}

/// Says what it is told to, and what it hears.
#[derive(Clone)]
struct Echo {
    limit: Arc<AtomicU64>,
    heard: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Sizer for Echo {
    fn limit(&self) -> u32 {
        u32::try_from(self.limit.load(Relaxed)).unwrap()
    }

    fn begun(&self) {
        self.heard.lock().push("begun".to_owned());
    }

    fn over(&self, verdict: &Verdict, span: Span, inside: u32) {
        self.heard.lock().push(format!("{verdict:?} after {} ms, one of {inside}", span.took().as_millis()));
    }

    fn cancelled(&self, from: Tick) {
        self.heard.lock().push(format!("cancelled from {} ms", (from - Tick::ZERO).as_millis()));
    }

    fn binds(&self) {
        self.heard.lock().push("binds".to_owned());
    }
}

#[test]
fn seats_follow_what_is_found_and_each_outcome_is_told_once() {
    let echo = Echo { limit: Arc::new(AtomicU64::new(900)), heard: Arc::default() };
    let hall = Hall::new(|queue| QueueBuilder { seats: 2, ..queue }.adaptive(echo.clone()));
    assert_eq!(hall.queue.seats(), 2, "no more than were asked for");
    let (mut kept, left) = (hall.seat(0), hall.seat(1));
    let mut waiter = hall.waiter(hall.ask(2));
    echo.limit.store(1, Relaxed);
    kept.learn(&Verdict::Ok, Span { from: at(0), to: at(5) });
    assert_eq!((hall.queue.seats(), hall.queue.inside()), (1, 2), "the seat is kept");
    kept.learn(&Verdict::Fault, Span { from: at(0), to: at(6) });
    drop(left);
    assert!(poll(&mut waiter).is_none(), "there is one seat, and it is taken");
    echo.limit.store(0, Relaxed); // as good as one
    kept.settle(&Verdict::Ok, Span { from: at(0), to: at(40) });
    drop(poll(&mut waiter).unwrap());
    assert_eq!(hall.queue.capacity(), Some(25.0), "one seat that is taken for 40 ms");
    let answered = "Ok after 5 ms, one of 2";
    let heard = ["begun", "begun", "binds", answered, "cancelled from 1 ms", "begun", "cancelled from 40 ms"];
    assert_eq!(*echo.heard.lock(), heard);
    hall.check_empty();
}

/// Twenty seats that have served nobody yet: a rush of a thousand at a cold start is told to come back in seconds, not minutes.
#[test]
fn a_rush_at_a_cold_start_is_not_told_to_come_back_in_minutes() {
    let sim = Sim::new(3);
    let env = sim.env();
    let queue = Queue::builder(&env, 20).line(0).build();
    let seats: Vec<Seat> = (0..20).map(|_| queue.try_enter(&Ask::new(&env)).unwrap()).collect();
    let told = |_| queue.try_enter(&Ask::new(&env)).unwrap_err().after.unwrap();
    let last = (0..1_000).map(told).max().unwrap();
    assert!((MS * 5_000..MS * 7_000).contains(&last), "{last:?}: 200 a second, after the first");
    drop(seats);
}

#[test]
fn patience_ends_a_wait_that_no_deadline_does() {
    let mut sim = Sim::new(3);
    let env = sim.env();
    let queue = Queue::builder(&env, 1).patience(MS * 250).target(Duration::MAX).build();
    let seat = queue.try_enter(&Ask::new(&env)).unwrap();
    let mut ask = Ask::new(&env);
    let refusal = sim.run(queue.enter(&mut ask)).unwrap_err();
    assert_eq!((refusal.why, env.now()), (Why::Shed, at(250)));
    assert!(refusal.after.is_some());
    let mut ask = Ask::new(&env).deadline(env.now() + MS * 100);
    assert_eq!(sim.run(queue.enter(&mut ask)).unwrap_err().why, Why::Deadline, "which comes first");
    assert_eq!(queue.waiting(), 0);
    drop(seat);
}
