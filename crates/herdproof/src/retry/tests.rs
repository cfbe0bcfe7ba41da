//! When there is another attempt, when there is not, and what it costs.

use std::{
    cell::RefCell,
    future::{pending, poll_fn, ready},
    pin::pin,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll},
};

use parking_lot::Mutex;

use super::*;
use crate::{
    backoff::Jitter,
    env::{Tick, sim::Sim},
    event::{Counts, Metric},
    gate::{Gate, Judgement, Permit, Place, Refusal, Span, Verdict, Why, guard, result},
    timeout::by,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

type Outcome = Result<u8, Failure<&'static str>>;

/// The usual rule, with delays that can be foreseen.
fn steady(env: &Env) -> RetryBuilder {
    Retry::builder(env)
        .backoff(Backoff::constant(MS * 10).jitter(Jitter::None))
        .overload_backoff(Backoff::constant(MS * 100).jitter(Jitter::None))
}

/// `"busy"` and `"busy 2s"` are overloads, `"bad"` is final, everything else a fault.
fn sort(outcome: &Result<u8, &'static str>) -> Verdict {
    match *outcome {
        Ok(_) => Verdict::Ok,
        Err("busy") => Verdict::Overload { after: None },
        Err("busy 2s") => Verdict::Overload { after: Some(SEC * 2) },
        Err("bad") => Verdict::Final,
        Err(_) => Verdict::Fault,
    }
}

/// What came of it, and when each attempt was made.
struct Told {
    result: Result<u8, GaveUp<&'static str>>,
    asks: Vec<Ask>,
    end: Tick,
}

impl Told {
    fn at_ms(&self) -> Vec<u128> {
        self.asks.iter().map(|ask| (ask.at - Tick::ZERO).as_millis()).collect()
    }

    fn why(&self) -> Option<Stop> {
        self.result.as_ref().err().map(|gave_up| gave_up.why)
    }
}

/// Attempts that end this way one after another, the last for ever.
fn play(rule: impl FnOnce(RetryBuilder) -> RetryBuilder, outcomes: &[Outcome]) -> Told {
    play_ask(rule, |ask| ask, outcomes)
}

fn play_ask(
    rule: impl FnOnce(RetryBuilder) -> RetryBuilder,
    ask: impl FnOnce(Ask) -> Ask,
    outcomes: &[Outcome],
) -> Told {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = rule(steady(&env)).build();
    let asks = RefCell::new(Vec::new());
    let result = sim.run(retry.run(&env, sort, ask(Ask::new(&env)), async |ask| {
        asks.borrow_mut().push(ask);
        outcomes[(asks.borrow().len() - 1).min(outcomes.len() - 1)].clone()
    }));
    Told { result, asks: asks.into_inner(), end: env.now() }
}

fn failed(error: &'static str) -> Outcome {
    Err(Failure::Failed(error))
}

#[test]
fn a_blip_is_tried_again_and_every_attempt_knows_its_number() {
    let told = play(|rule| rule, &[failed("a"), failed("b"), Ok(7)]);
    assert_eq!(told.result, Ok(7));
    assert_eq!(told.at_ms(), [0, 10, 20]);
    assert_eq!(told.asks.iter().map(|ask| ask.attempt).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn after_the_last_attempt_its_error_is_what_there_is() {
    let told = play(|rule| rule, &[failed("a"), failed("b"), failed("c"), Ok(7)]);
    let gave_up = told.result.unwrap_err();
    assert_eq!(gave_up, GaveUp { failure: Failure::Failed("c"), why: Stop::Attempts, attempts: 3 });
    assert!(gave_up.no_retry());
    assert_eq!(gave_up.to_string(), "c (3 attempts; not tried again: it was tried often enough)");
    assert_eq!(play(|rule| rule.attempts(0), &[failed("a")]).asks.len(), 1);
}

#[test]
fn what_is_final_is_not_tried_again_and_says_nothing_to_those_above() {
    let told = play(|rule| rule, &[failed("bad"), Ok(7)]);
    assert_eq!(told.why(), Some(Stop::Final));
    assert!(!told.result.unwrap_err().no_retry());
}

#[test]
fn a_layer_below_that_gave_up_is_believed() {
    let told = play(|rule| rule, &[Err(Failure::NoRetry("busy")), Ok(7)]);
    assert_eq!(told.why(), Some(Stop::Told));
    assert!(told.result.unwrap_err().no_retry());
}

#[test]
fn a_refused_extra_gives_the_original_error_at_once() {
    let env = Sim::new(1).env();
    let empty = Budget::builder(&env).floor(0.0).ratio(0.0).build();
    let told = play(|rule| rule.budget(&empty), &[failed("the real reason"), Ok(7)]);
    let gave_up = told.result.unwrap_err();
    assert_eq!((&gave_up.failure, gave_up.why), (&Failure::Failed("the real reason"), Stop::Budget));
    assert_eq!(told.end, Tick::ZERO);
}

#[test]
fn our_own_gates_are_not_asked_again_unless_they_say_when() {
    let no = Refusal::new(Why::Tripped);
    let told = play(|rule| rule, &[Err(Failure::Refused(no)), Ok(7)]);
    assert_eq!((told.why(), told.end), (Some(Stop::Refused), Tick::ZERO));

    let script = [Err(Failure::Refused(no.after(MS * 40))), Ok(7)];
    let told = play_ask(|rule| rule, |ask| ask.deadline(Tick::ZERO + MS * 100), &script);
    assert_eq!(told.result, Ok(7));
    assert!((40..=41).contains(&told.at_ms()[1]), "{:?}", told.at_ms());
}

/// Behind a breaker that is open for half a minute, everybody would sleep until then.
#[test]
fn without_a_deadline_nobody_sleeps_until_a_gate_of_ours_opens() {
    let no = Refusal::new(Why::Tripped).after(MS * 40);
    let told = play(|rule| rule, &[Err(Failure::Refused(no)), Ok(7)]);
    assert_eq!((told.why(), told.end), (Some(Stop::Refused), Tick::ZERO));
    let gave_up = told.result.unwrap_err();
    assert_eq!(gave_up.failure, Failure::Refused(no), "it says when to come back");
}

#[test]
fn what_our_own_gates_refused_neither_costs_credit_nor_speaks_against_the_origin() {
    let env = Sim::new(1).env();
    let budget = Budget::builder(&env).floor(0.0).ratio(0.0).circuit(1.0, 0.1).build();
    let no = Err(Failure::Refused(Refusal::new(Why::Rate).after(MS * 40)));
    let told =
        play_ask(|rule| rule.budget(&budget), |ask| ask.deadline(Tick::ZERO + MS * 200), &[no.clone(), no, Ok(7)]);
    assert_eq!(told.result, Ok(7));
    assert!(!budget.is_open());
}

#[test]
fn nobody_waits_for_an_attempt_that_would_come_too_late() {
    let deadline = |ms: u32| move |ask: Ask| ask.deadline(Tick::ZERO + MS * ms);
    let told = play_ask(|rule| rule, deadline(10), &[failed("a"), Ok(7)]);
    assert_eq!((told.why(), told.end), (Some(Stop::Deadline), Tick::ZERO), "10 ms of backoff, and 10 ms left");
    assert_eq!(play_ask(|rule| rule, deadline(11), &[failed("a"), Ok(7)]).result, Ok(7));
    let told = play_ask(|rule| rule, deadline(0), &[Ok(7)]);
    assert_eq!((told.why(), told.asks.len()), (Some(Stop::Deadline), 0));
}

#[test]
fn a_late_caller_is_not_charged_for_the_attempt_that_was_not_made() {
    let env = Sim::new(1).env();
    let budget = Budget::new(&env);
    let deadline = |ask: Ask| ask.deadline(Tick::ZERO + MS * 5);
    play_ask(|rule| rule.budget(&budget), deadline, &[failed("a")]);
    assert_eq!(budget.stats(), crate::budget::Stats::default());
}

#[test]
fn a_timer_that_wakes_after_the_deadline_begins_nothing_and_gives_the_credit_back() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).build();
    let calls = RefCell::new(0);
    let ask = Ask::new(&env).deadline(Tick::ZERO + MS * 20);
    let mut run = pin!(retry.run(&env, sort, ask, async |_| {
        *calls.borrow_mut() += 1;
        failed("a")
    }));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(run.as_mut().poll(&mut cx).is_pending());
    sim.run_until(Tick::ZERO + MS * 20);
    let late = GaveUp { failure: Failure::Failed("a"), why: Stop::Deadline, attempts: 1 };
    assert_eq!((run.poll(&mut cx), *calls.borrow()), (Poll::Ready(Err(late)), 1));
    let stats = retry.budget().unwrap().stats();
    assert_eq!((stats.held, stats.given_back, stats.retries), (0, 1, 0));
}

#[test]
fn an_overload_is_given_more_time_and_what_the_server_asks_for() {
    assert_eq!(play(|rule| rule, &[failed("busy"), Ok(7)]).at_ms(), [0, 100]);
    let told = play(|rule| rule, &[failed("busy 2s"), Ok(7)]);
    assert!((2000..=3000).contains(&told.at_ms()[1]), "{:?}", told.at_ms());
    // A fault after an overload goes back to the pace of faults.
    assert_eq!(play(|rule| rule, &[failed("busy"), failed("a"), Ok(7)]).at_ms(), [0, 100, 110]);
}

#[test]
fn an_overload_after_a_fault_is_not_treated_as_the_first_trouble() {
    let double = |ms| Backoff::exponential(MS * ms).jitter(Jitter::None);
    let rule = |rule: RetryBuilder| rule.backoff(double(10)).overload_backoff(double(100));
    assert_eq!(play(rule, &[failed("a"), failed("busy"), Ok(7)]).at_ms(), [0, 10, 210]);
}

#[test]
fn a_caller_that_is_retrying_gets_one_attempt_and_earns_nothing() {
    let env = Sim::new(1).env();
    let budget = Budget::builder(&env).ratio(1.0).floor(0.0).build();
    let told = play_ask(|rule| rule.budget(&budget), |ask| ask.attempt(2), &[failed("a"), Ok(7)]);
    assert_eq!((told.why(), told.asks[0].attempt), (Some(Stop::Caller), 2));
    assert!(told.result.unwrap_err().no_retry());
    assert!(budget.credit(Tick::ZERO).abs() < 1e-9);
    play(|rule| rule.budget(&budget), &[Ok(7)]);
    assert!((budget.credit(Tick::ZERO) - 1.0).abs() < 1e-9, "a first attempt earns");
}

#[test]
fn what_must_not_be_done_twice_is_tried_again_only_if_it_was_never_sent() {
    let once = |first: Outcome| {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let retry = steady(&env).build();
        let mut left = vec![Ok(7), first];
        let ask = Ask::new(&env).deadline(env.now() + MS * 100);
        let result = sim.run(retry.run_at_most_once(&env, sort, ask, |_| ready(left.pop().unwrap())));
        result.map_err(|gave_up| (gave_up.why, gave_up.attempts))
    };
    assert_eq!(once(failed("reset while waiting")), Err((Stop::Begun, 1)));
    assert_eq!(once(failed("busy")), Err((Stop::Begun, 1)));
    assert_eq!(once(Err(Failure::TimedOut)), Err((Stop::Begun, 1)));
    assert_eq!(once(Err(Failure::Unsent("no connection"))), Ok(7));
    assert_eq!(once(Err(Failure::Refused(Refusal::new(Why::Rate).after(MS)))), Ok(7));
}

/// By status: 503 is an overload below which somebody has given up, 425 was never begun, other errors say nothing more.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a classifier takes a reference")]
fn by_status(outcome: &Result<u16, u16>) -> Judgement {
    let (Ok(status) | Err(status)) = *outcome;
    match status {
        200 => Verdict::Ok.into(),
        503 => Judgement::NoRetry(Verdict::Overload { after: None }),
        425 => Judgement::Unsent(Verdict::Fault),
        _ => Verdict::Fault.into(),
    }
}

/// What comes of these outcomes one after another, and after how many attempts.
fn judged(once: bool, outcomes: &[Result<u16, Failure<u16>>]) -> (Result<u16, (Failure<u16>, Stop)>, usize) {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).build();
    let mut left = outcomes.iter().cloned();
    let work = |_| ready(left.next().unwrap());
    let result = if once {
        sim.run(retry.run_at_most_once(&env, by_status, Ask::new(&env), work))
    } else {
        sim.run(retry.run(&env, by_status, Ask::new(&env), work))
    };
    (result.map_err(|gave_up| (gave_up.failure, gave_up.why)), outcomes.len() - left.len())
}

#[test]
fn an_answer_that_says_not_to_try_again_is_the_result_at_once() {
    assert_eq!(judged(false, &[Ok(503), Ok(200)]), (Ok(503), 1));
    assert_eq!(judged(false, &[Ok(500), Ok(503), Ok(200)]), (Ok(503), 2), "a blip first, and then it was told");
    assert_eq!(judged(true, &[Ok(503), Ok(200)]), (Ok(503), 1));
}

#[test]
fn an_error_that_says_not_to_try_again_is_told_as_such() {
    let told = (Err((Failure::NoRetry(503), Stop::Told)), 1);
    assert_eq!(judged(false, &[Err(Failure::Failed(503)), Ok(200)]), told);
}

#[test]
fn what_must_not_be_done_twice_is_tried_again_if_it_is_judged_unsent() {
    assert_eq!(judged(true, &[Err(Failure::Failed(425)), Ok(200)]), (Ok(200), 2));
    assert_eq!(judged(true, &[Ok(425), Ok(200)]), (Ok(200), 2), "an answer may say so too");
    let begun = (Err((Failure::Failed(500), Stop::Begun)), 1);
    assert_eq!(judged(true, &[Err(Failure::Failed(500)), Ok(200)]), begun);
    let last = (Err((Failure::Unsent(425), Stop::Attempts)), 3);
    assert_eq!(judged(true, &vec![Err(Failure::Failed(425)); 3]), last);
}

#[test]
fn what_the_work_knows_of_its_failure_stands_whatever_is_judged() {
    assert_eq!(judged(true, &[Err(Failure::Unsent(500)), Ok(200)]), (Ok(200), 2));
    assert_eq!(judged(true, &[Err(Failure::Unsent(503)), Ok(200)]), (Ok(200), 2));
    let told = (Err((Failure::NoRetry(425), Stop::Told)), 1);
    assert_eq!(judged(true, &[Err(Failure::NoRetry(425)), Ok(200)]), told);
}

#[test]
fn an_answer_that_speaks_against_the_origin_is_tried_again_and_kept_if_nothing_better_comes() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).build();
    let status = |outcome: &Result<u16, ()>| if *outcome == Ok(503) { Verdict::Fault } else { Verdict::Ok };
    let mut answers = vec![200, 503];
    assert_eq!(sim.run(retry.run(&env, status, Ask::new(&env), |_| ready(Ok(answers.pop().unwrap())))), Ok(200));
    assert_eq!(sim.run(retry.run(&env, status, Ask::new(&env), async |_| Ok(503))), Ok(503));
    assert_eq!(retry.budget().unwrap().stats().retries, 3);
}

#[test]
fn an_attempt_that_hangs_is_cut_off_and_tried_again() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).timeout(MS * 50).build();
    let asks = RefCell::new(Vec::new());
    let result = sim.run(retry.run(&env, sort, Ask::new(&env), async |ask| {
        asks.borrow_mut().push((ask.at, ask.deadline.unwrap()));
        if ask.attempt < 2 { pending().await } else { Ok(7) }
    }));
    assert_eq!(result, Ok(7));
    let ms = |n: u32| Tick::ZERO + MS * n;
    assert_eq!(asks.into_inner(), [(ms(0), ms(50)), (ms(60), ms(110)), (ms(120), ms(170))]);
}

#[test]
fn nobody_hangs_beyond_the_deadline() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).timeout(MS * 50).build();
    let ask = Ask::new(&env).deadline(Tick::ZERO + MS * 80);
    let result: Result<u8, _> = sim.run(retry.run(&env, sort, ask, async |_| pending().await));
    assert_eq!(result.unwrap_err(), GaveUp { failure: Failure::TimedOut, why: Stop::Deadline, attempts: 2 });
    assert_eq!(env.now(), Tick::ZERO + MS * 80);
}

/// Counts who is inside, and who was cancelled there.
#[derive(Default)]
struct Room {
    inside: Arc<AtomicU32>,
    settled: Arc<Mutex<Vec<Verdict>>>,
}

struct Guest(Arc<AtomicU32>, Arc<Mutex<Vec<Verdict>>>);

impl Gate for Room {
    type Place = Guest;

    fn try_reserve(&self, _: &Ask) -> Result<Guest, Refusal> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        Ok(Guest(Arc::clone(&self.inside), Arc::clone(&self.settled)))
    }
}

impl Place for Guest {
    type Permit = Guest;

    fn commit(self) -> Guest {
        self
    }
}

impl Permit for Guest {
    fn settle(self, verdict: &Verdict, _: Span) {
        self.1.lock().push(*verdict);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn every_attempt_passes_the_gates_and_no_permit_is_held_through_a_backoff() {
    async fn work(env: &Env) -> Result<u8, &'static str> {
        env.sleep(MS).await;
        Err("a")
    }
    let mut sim = Sim::new(1);
    let env = sim.env();
    let (retry, room) = (steady(&env).build(), Room::default());
    let (inside, settled) = (Arc::clone(&room.inside), Arc::clone(&room.settled));
    let clock = env.clone();
    let task = env.spawn(async move {
        let env = clock;
        retry.run(&env, sort, Ask::new(&env), async |ask| Ok(guard(&env, &room, sort, ask, || work(&env)).await?)).await
    });
    // Attempts at 0, 11 and 22 ms take a millisecond each.
    for (at, within) in [(0, 1), (5, 0), (11, 1), (15, 0), (22, 1), (30, 0)] {
        sim.run_until(Tick::ZERO + MS * at);
        assert_eq!(inside.load(Ordering::Relaxed), within, "at {at} ms");
    }
    assert_eq!(sim.run(task).unwrap().unwrap_err().why, Stop::Attempts);
    assert_eq!(*settled.lock(), [Verdict::Fault; 3]);
}

#[test]
fn a_timeout_inside_the_gates_is_a_fault_to_them_and_one_outside_is_a_cancellation() {
    let settled = |inside: bool| {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let (retry, room) = (steady(&env).timeout(MS * 50).attempts(1).build(), Room::default());
        let result: Result<u8, _> = sim.run(retry.run(&env, sort, Ask::new(&env), async |ask| {
            let until = ask.deadline.filter(|_| inside);
            let work = async || by(&env, until, pending()).await.unwrap_or(Err("too slow"));
            Ok(guard(&env, &room, sort, ask, work).await?)
        }));
        assert!(result.is_err());
        room.settled.lock().clone()
    };
    assert_eq!(settled(true), [Verdict::Fault]);
    assert_eq!(settled(false), []);
}

#[test]
fn a_retry_that_a_gate_refuses_costs_nothing() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).build();
    let outcome = sim.run(retry.run(&env, sort, Ask::new(&env), async |ask| match ask.attempt {
        0 => failed("a"),
        _ => Err(Failure::Refused(Refusal::new(Why::Concurrency))),
    }));
    assert_eq!(outcome.unwrap_err().why, Stop::Refused);
    let stats = retry.budget().unwrap().stats();
    assert_eq!((stats.held, stats.given_back, stats.retries), (0, 1, 0));
}

#[test]
fn a_caller_that_leaves_during_the_backoff_gets_its_credit_back() {
    let env = Sim::new(1).env();
    let retry = steady(&env).build();
    {
        let run = pin!(retry.run(&env, sort, Ask::new(&env), async |_| failed("a")));
        assert!(run.poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
        assert_eq!(retry.budget().unwrap().stats().held, 1);
    }
    let stats = retry.budget().unwrap().stats();
    assert_eq!((stats.held, stats.given_back, stats.retries), (0, 1, 0));
}

/// This many callers at once, all of whom fail: how many calls that makes.
fn crowd(callers: u32, rule: impl FnOnce(RetryBuilder) -> RetryBuilder) -> (u32, Retry) {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = rule(Retry::builder(&env)).build();
    let calls = Rc::new(RefCell::new(0));
    let everybody = (0..callers).map(|_| {
        let (retry, env, calls) = (retry.clone(), env.clone(), Rc::clone(&calls));
        Box::pin(async move {
            let work = async |_| {
                *calls.borrow_mut() += 1;
                env.sleep(MS).await;
                failed("down")
            };
            drop(retry.run(&env, sort, Ask::new(&env), work).await);
        })
    });
    let mut everybody: Vec<_> = everybody.collect();
    sim.run(poll_fn(|cx| {
        everybody.retain_mut(|caller| caller.as_mut().poll(cx).is_pending());
        if everybody.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    let calls = *calls.borrow();
    (calls, retry)
}

#[test]
fn callers_that_fail_together_are_charged_before_their_backoff_not_after() {
    let credit = |env: &Env| Budget::builder(env).without_circuit().build();
    let (calls, _) = crowd(1000, |rule| rule.budget(&credit(&Sim::new(1).env())));
    // A tenth of a thousand, and three a second for ten seconds.
    assert_eq!(calls, 1000 + 100 + 30);
    assert_eq!(crowd(1000, |rule| rule).0, 1000 + 4, "five failures are enough to see that all is lost");
    assert_eq!(crowd(1000, RetryBuilder::without_budget).0, 3000);
}

#[test]
fn nobody_has_to_ask_for_a_budget_and_two_upstreams_do_not_share_one() {
    let (_, exhausted) = crowd(100, |rule| rule);
    assert!(exhausted.budget().unwrap().is_open());
    let env = Sim::new(1).env();
    assert!(!Retry::new(&env).budget().unwrap().is_open());
}

#[test]
fn retries_return_after_an_outage_without_a_restart() {
    let (_, retry) = crowd(1000, |rule| rule);
    let mut sim = Sim::new(2);
    let env = sim.env();
    sim.run_until(Tick::ZERO + SEC * 20);
    // Fifty successes bring it to where it opens, and the blip takes one.
    for _ in 0..70 {
        assert_eq!(sim.run(retry.run(&env, sort, Ask::new(&env), async |_| Ok(7))), Ok(7));
    }
    let mut outcomes = vec![Ok(7), failed("blip")];
    assert_eq!(sim.run(retry.run(&env, sort, Ask::new(&env), |_| ready(outcomes.pop().unwrap()))), Ok(7));
}

#[test]
fn somebody_hears_of_each_retry() {
    let mut sim = Sim::new(1);
    let counts = Arc::new(Counts::default());
    let env = sim.env().observed_by(Arc::clone(&counts));
    let retry = Retry::new(&env);
    drop(sim.run(retry.run(&env, sort, Ask::new(&env), async |_| failed("a"))));
    assert_eq!((counts.get(Metric::Retries), counts.get(Metric::Refusals)), (2, 0));
}

#[test]
fn with_jitter_two_callers_do_not_come_back_together() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = Retry::new(&env);
    let mut second = || {
        let mut at = Vec::new();
        let began = env.now();
        drop(sim.run(retry.run(&env, sort, Ask::new(&env), |ask| {
            at.push(ask.at - began);
            ready(failed("a"))
        })));
        at[1]
    };
    let (a, b) = (second(), second());
    assert!(a != b && a <= MS * 50 && b <= MS * 50, "{a:?} {b:?}");
}

#[test]
fn a_run_can_be_a_task_whatever_kind_of_closure_it_has() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    /// As a caller that is generic over the work would have it.
    async fn generic<F: Future<Output = Outcome> + Send>(
        retry: Retry,
        env: Env,
        work: impl FnMut(Ask) -> F + Send,
    ) -> bool {
        is_send(retry.run(&env, result, Ask::new(&env), work)).await.is_ok()
    }
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = steady(&env).build();
    let calls = AtomicU32::new(0);
    let borrowing = async |_: Ask| {
        calls.fetch_add(1, Ordering::Relaxed);
        env.sleep(MS).await;
        Ok::<u8, Failure<()>>(7)
    };
    assert!(sim.run(is_send(retry.run(&env, result, Ask::new(&env), borrowing))).is_ok());
    let task = env.spawn(generic(retry.clone(), env.clone(), |_| async { Ok(7) }));
    assert!(sim.run(task).unwrap());
}

#[test]
fn every_reason_has_a_word_and_a_sentence_of_its_own() {
    let words: std::collections::BTreeSet<&str> = Stop::ALL.iter().map(|why| why.as_str()).collect();
    let sentences: std::collections::BTreeSet<String> = Stop::ALL.iter().map(ToString::to_string).collect();
    assert_eq!((words.len(), sentences.len()), (Stop::ALL.len(), Stop::ALL.len()));
}

/// The exact clock is read when a retry is scheduled, whatever the first attempt was told.
#[test]
fn an_operation_that_was_asked_for_milliseconds_ago_is_cut_off_and_tried_again_as_any_other() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let told = sim.run(async move {
        env.sleep(SEC).await;
        let (began, asks) = (env.now(), Mutex::new(Vec::new()));
        let retry = steady(&env).timeout(MS * 20).attempts(2).build();
        let coarse = Ask::at(Tick::ZERO + MS * 996);
        let run = retry.run(&env, result, coarse, |ask| {
            asks.lock().push(ask);
            pending::<Outcome>()
        });
        let gave_up = run.await.expect_err("nothing ever comes");
        assert_eq!((gave_up.why, gave_up.attempts), (Stop::Attempts, 2));
        asks.into_inner().iter().map(|ask| (ask.at - began, ask.deadline.unwrap() - began)).collect::<Vec<_>>()
    });
    // Cut off 4 ms early, 10 ms of backoff, and then exactly.
    assert_eq!(told, [(Duration::ZERO, MS * 16), (MS * 26, MS * 46)]);
}
