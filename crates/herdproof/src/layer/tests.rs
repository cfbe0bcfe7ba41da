//! The contract: through a layer, the same happens as without, call by call.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tower::{ServiceBuilder, ServiceExt, service_fn};

use super::*;
use crate::{
    breaker::Breaker,
    env::{Tick, sim::Sim},
    gate::{Judgement, Verdict, Why, guard, result},
    limit::{Bulkhead, Rate, RateLimit},
    retry::{Stop, wire},
};

const MS: Duration = Duration::from_millis(1);

/// An origin that fails in a fixed pattern and takes a while; every call is written down.
#[derive(Clone)]
struct Origin {
    env: Env,
    calls: Arc<Mutex<Vec<(u32, u64)>>>,
}

impl Origin {
    fn new(env: &Env) -> Origin {
        Origin { env: env.clone(), calls: Arc::default() }
    }

    async fn call(self, request: u32) -> Result<u32, String> {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push((request, self.env.now().as_nanos()));
            calls.len()
        };
        let slow = if number % 17 == 0 { 30 } else { 1 };
        self.env.sleep(MS * slow).await;
        if number % 5 < 2 { Err(format!("call {number}")) } else { Ok(request + 1) }
    }

    fn calls(&self) -> Vec<(u32, u64)> {
        self.calls.lock().unwrap().clone()
    }
}

/// Two worlds alike: what is done to the origin of one by hand, is done to the other's by a service.
fn both<T: PartialEq + std::fmt::Debug + 'static, A: Future<Output = T>, B: Future<Output = T>>(
    plain: impl FnOnce(Env, Origin) -> A,
    layered: impl FnOnce(Env, Origin) -> B,
) {
    let mut worlds = [Sim::new(7), Sim::new(7)];
    let envs = [worlds[0].env(), worlds[1].env()];
    let origins = [Origin::new(&envs[0]), Origin::new(&envs[1])];
    let one = worlds[0].run(plain(envs[0].clone(), origins[0].clone()));
    let other = worlds[1].run(layered(envs[1].clone(), origins[1].clone()));
    assert_eq!(one, other);
    assert_eq!(origins[0].calls(), origins[1].calls(), "the same calls at the same instants");
    assert!(origins[0].calls().len() > 20, "something was done");
    assert_eq!(envs[0].now(), envs[1].now());
}

const REQUESTS: std::ops::Range<u32> = 0..200;

#[test]
fn a_gate_is_the_same_gate_through_its_layer() {
    let faults = |env: &Env| Breaker::builder(env).faults(2).build();
    both(
        |env, origin| async move {
            let breaker = faults(&env);
            let mut answers = Vec::new();
            for request in REQUESTS {
                let work = || origin.clone().call(request);
                answers.push(guard(&env, &breaker, result, Ask::new(&env), work).await);
                env.sleep(MS * 1000).await;
            }
            answers
        },
        |env, origin| async move {
            let mut service = ServiceBuilder::new()
                .layer(GateLayer::new(&env, faults(&env), result))
                .service(service_fn(move |request| origin.clone().call(request)));
            let mut answers = Vec::new();
            for request in REQUESTS {
                answers.push(service.ready().await.unwrap().call(request).await);
                env.sleep(MS * 1000).await;
            }
            answers
        },
    );
}

#[test]
fn a_retry_is_the_same_retry_through_its_layer() {
    both(
        |env, origin| async move {
            let retry = Retry::new(&env);
            let mut answers = Vec::new();
            for request in REQUESTS {
                let work = |_: Ask| {
                    let origin = origin.clone();
                    async move { origin.call(request).await.map_err(Failure::Failed) }
                };
                answers.push(retry.run(&env, result, Ask::new(&env), work).await);
            }
            answers
        },
        |env, origin| async move {
            let service = ServiceBuilder::new()
                .layer(RetryLayer::new(&env, Retry::new(&env), result))
                .service(service_fn(move |request| origin.clone().call(request)));
            let mut answers = Vec::new();
            for request in REQUESTS {
                answers.push(service.clone().oneshot(request).await);
            }
            answers
        },
    );
}

#[test]
fn a_hedge_is_the_same_hedge_through_its_layer() {
    let often = |env: &Env| Hedge::builder(env).samples(10).failures(2.0).ratio(1.0).build();
    both(
        |env, origin| async move {
            let hedge = often(&env);
            let mut answers = Vec::new();
            for request in REQUESTS {
                let work = |_, _| origin.clone().call(request);
                answers.push(hedge.run(&env, result, Ask::new(&env), work).await);
            }
            answers
        },
        |env, origin| async move {
            let service = ServiceBuilder::new()
                .layer(HedgeLayer::new(&env, often(&env), result))
                .service(service_fn(move |request| origin.clone().call(request)));
            let mut answers = Vec::new();
            for request in REQUESTS {
                answers.push(service.clone().oneshot(request).await);
            }
            answers
        },
    );
}

#[test]
fn a_shield_is_the_same_shield_through_its_layer() {
    let shield = |env: &Env| Shield::for_http(env).hedge(|hedge| hedge.samples(10).failures(2.0)).build();
    both(
        |env, origin| async move {
            let shield = shield(&env);
            let mut answers = Vec::new();
            for request in REQUESTS {
                let work = |_, _| origin.clone().call(request);
                answers.push(shield.run(result, Ask::new(&env), work).await);
            }
            answers
        },
        |env, origin| async move {
            let service = ServiceBuilder::new()
                .layer(ShieldLayer::new(&env, shield(&env), result))
                .service(service_fn(move |request| origin.clone().call(request)));
            let mut answers = Vec::new();
            for request in REQUESTS {
                answers.push(service.clone().oneshot(request).await);
            }
            answers
        },
    );
}

#[test]
fn requests_of_one_key_share_one_answer() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let origin = Origin::new(&env);
    let counted = origin.clone();
    let service = ServiceBuilder::new()
        .layer(FlightLayer::new(Group::new(&env), |request: &u32| request / 10))
        .service(service_fn(move |request| origin.clone().call(request)));
    let calls: Vec<_> = (20..30).map(|request| env.spawn(service.clone().oneshot(request))).collect();
    let shared = sim.run(async {
        let mut shared = 0;
        for call in calls {
            shared += u32::from(matches!(call.await.unwrap(), Err(FlightError::Load(error)) if *error == "call 1"));
        }
        shared
    });
    assert_eq!((shared, counted.calls().len()), (10, 1));
}

#[test]
fn what_a_gate_refuses_is_not_an_attempt() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let origin = Origin::new(&env);
    let counted = origin.clone();
    let breaker = Breaker::new(&env);
    breaker.hold_open();
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(&env, Retry::new(&env), result).behind_gate())
        .layer(GateLayer::new(&env, breaker.clone(), result))
        .service(service_fn(move |request| origin.clone().call(request)));
    let refused = sim.run(service.clone().oneshot(1)).unwrap_err();
    assert!(matches!(refused.failure, Failure::Refused(refusal) if refusal.why == Why::Tripped), "{refused:?}");
    assert_eq!((refused.why, counted.calls().len()), (Stop::Refused, 0));
    breaker.hold_closed();
    assert_eq!(sim.run(service.oneshot(1)), Ok(2), "the first two calls fail, and the third works");
}

#[test]
fn deadlines_are_read_off_the_request() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let origin = Origin::new(&env);
    let service = ServiceBuilder::new()
        .layer(
            RetryLayer::new(&env, Retry::new(&env), |_: &Result<u32, String>| Verdict::Fault)
                .asking(|env, request: &u32| Ask::new(env).deadline(env.now() + MS * *request)),
        )
        .service(service_fn(move |request| origin.clone().call(request)));
    let late = sim.run(service.oneshot(0)).unwrap_err();
    assert_eq!((late.why, late.attempts), (Stop::Deadline, 0));
}

#[test]
fn a_service_that_is_not_ready_is_waited_for() {
    /// Ready at the second look, and callable only after that.
    #[derive(Clone, Default)]
    struct Slow {
        looks: Arc<AtomicU32>,
        ready: bool,
    }
    impl Service<()> for Slow {
        type Response = u32;
        type Error = String;
        type Future = std::future::Ready<Result<u32, String>>;
        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
            cx.waker().wake_by_ref();
            self.ready = self.looks.fetch_add(1, Ordering::Relaxed) % 2 == 1;
            if self.ready { Poll::Ready(Ok(())) } else { Poll::Pending }
        }
        fn call(&mut self, (): ()) -> Self::Future {
            let ready = std::mem::take(&mut self.ready);
            std::future::ready(if ready { Ok(1) } else { Err("not ready".into()) })
        }
    }
    let mut sim = Sim::new(1);
    let env = sim.env();
    let gated = GateLayer::new(&env, None::<Breaker>, result).layer(Slow::default());
    assert_eq!(sim.run(gated.oneshot(())), Ok(1));
    let retried = RetryLayer::new(&env, Retry::new(&env), result).layer(Slow::default());
    assert_eq!(sim.run(retried.oneshot(())), Ok(1));
    let hedged = HedgeLayer::new(&env, Hedge::new(&env), result).layer(Slow::default());
    assert_eq!(sim.run(hedged.oneshot(())), Ok(1));
}

/// A request with what was written onto it: the attempt, and the milliseconds that are left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Letter {
    told: Vec<(&'static str, u64)>,
}

impl Letter {
    fn stamp(env: &Env, letter: &mut Letter, ask: &Ask) {
        letter.told.clear();
        wire::write(ask, env.now(), |name, value| letter.told.push((name, value)));
    }

    /// Every letter has 100 ms.
    fn ask(env: &Env, _: &Letter) -> Ask {
        Ask::new(env).deadline(env.now() + MS * 100)
    }

    fn in_ms(left: u64) -> Letter {
        Letter { told: vec![(wire::DEADLINE, left)] }
    }

    fn again(left: u64, attempt: u64) -> Letter {
        Letter { told: vec![(wire::DEADLINE, left), (wire::ATTEMPT, attempt)] }
    }
}

/// What came to the origin, which takes this long and answers like this, the last for ever.
#[derive(Clone)]
struct Desk {
    env: Env,
    takes: Duration,
    answers: &'static [Result<u32, u32>],
    came: Arc<Mutex<Vec<Letter>>>,
}

impl Desk {
    fn new(env: &Env, takes: Duration, answers: &'static [Result<u32, u32>]) -> Desk {
        Desk { env: env.clone(), takes, answers, came: Arc::default() }
    }

    async fn call(self, letter: Letter) -> Result<u32, u32> {
        let number = {
            let mut came = self.came.lock().unwrap();
            came.push(letter);
            came.len() - 1
        };
        self.env.sleep(self.takes).await;
        self.answers[number.min(self.answers.len() - 1)]
    }

    /// What comes of one letter through this layer, and what has come here.
    fn through<L>(&self, sim: &mut Sim, layer: &L) -> (Result<u32, L::Err>, Vec<Letter>)
    where
        L: Through,
    {
        let result = sim.run(layer.send(self.clone()));
        (result, std::mem::take(&mut *self.came.lock().unwrap()))
    }
}

/// A layer around a desk.
trait Through {
    type Err;
    fn send(&self, desk: Desk) -> impl Future<Output = Result<u32, Self::Err>>;
}

macro_rules! through {
    ($layer:ty, $error:ty) => {
        impl<C> Through for $layer
        where
            C: Classify<u32, u32> + Clone + 'static,
        {
            type Err = $error;
            fn send(&self, desk: Desk) -> impl Future<Output = Result<u32, $error>> {
                self.layer(service_fn(move |letter| desk.clone().call(letter))).oneshot(Letter::default())
            }
        }
    };
}

through! { RetryLayer<C, Letter>, GaveUp<u32> }
through! { ShieldLayer<C, Letter>, GaveUp<u32> }
through! { HedgeLayer<C, Letter>, u32 }

/// No jitter, so that what is left can be told.
fn steady(env: &Env) -> Retry {
    let tenth = crate::Backoff::constant(MS * 10).jitter(crate::backoff::Jitter::None);
    Retry::builder(env).backoff(tenth).build()
}

fn steady_shield(env: &Env) -> Shield {
    let tenth = crate::Backoff::constant(MS * 10).jitter(crate::backoff::Jitter::None);
    Shield::builder(env).retry(|retry| retry.backoff(tenth)).build()
}

#[test]
fn every_attempt_says_which_it_is_and_how_much_time_is_left() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let desk = Desk::new(&env, MS * 5, &[Err(1), Err(1), Ok(7)]);
    let told = vec![Letter::in_ms(100), Letter::again(85, 1), Letter::again(70, 2)];
    let retry = RetryLayer::new(&env, steady(&env), result).asking(Letter::ask).stamping(Letter::stamp);
    assert_eq!(desk.through(&mut sim, &retry), (Ok(7), told.clone()));
    let shield = ShieldLayer::new(&env, steady_shield(&env), result).asking(Letter::ask).stamping(Letter::stamp);
    assert_eq!(desk.through(&mut sim, &shield), (Ok(7), told));
    let silent = RetryLayer::new(&env, steady(&env), result).asking(Letter::ask);
    assert_eq!(desk.through(&mut sim, &silent), (Ok(7), vec![Letter::default(); 3]), "unless nobody asked for it");
}

#[test]
fn a_hedge_does_not_promise_the_time_that_the_first_attempt_had() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let desk = Desk::new(&env, MS * 40, &[Ok(7)]);
    let hedge = || Hedge::builder(&env).at(MS * 20).unknown(MS * 20).floor(10.0);
    let told = vec![Letter::in_ms(100), Letter::in_ms(80)];
    let layer = HedgeLayer::new(&env, hedge().build(), result).asking(Letter::ask).stamping(Letter::stamp);
    assert_eq!(desk.through(&mut sim, &layer), (Ok(7), told.clone()));
    let shield = Shield::builder(&env).hedge(|_| hedge()).build();
    let layer = ShieldLayer::new(&env, shield, result).asking(Letter::ask).stamping(Letter::stamp);
    assert_eq!(desk.through(&mut sim, &layer), (Ok(7), told));
}

#[test]
fn who_waited_at_a_gate_does_not_say_that_it_has_all_of_its_time() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let desk = Desk::new(&env, MS * 30, &[Ok(7)]);
    let (room, came) = (Bulkhead::new(&env, 1), Arc::clone(&desk.came));
    let gated = GateLayer::new(&env, room, result)
        .asking(Letter::ask)
        .stamping(Letter::stamp)
        .layer(service_fn(move |letter| desk.clone().call(letter)));
    let calls = [(); 3].map(|()| env.spawn(gated.clone().oneshot(Letter::default())));
    sim.run(async {
        for call in calls {
            assert_eq!(call.await.unwrap(), Ok(7));
        }
    });
    assert_eq!(*came.lock().unwrap(), [Letter::in_ms(100), Letter::in_ms(70), Letter::in_ms(40)]);
}

/// Errors below 10 were never sent, from 10 on those below have given up, from 20 on nothing is known.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a classifier takes a reference")]
fn judge(outcome: &Result<u32, u32>) -> Judgement {
    match *outcome {
        Ok(_) => Verdict::Ok.into(),
        Err(..10) => Judgement::Unsent(Verdict::Fault),
        Err(10..20) => Judgement::NoRetry(Verdict::Fault),
        Err(_) => Verdict::Fault.into(),
    }
}

#[test]
fn layers_do_not_try_again_what_a_layer_below_has_given_up() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let desk = Desk::new(&env, MS, &[Err(10), Ok(7)]);
    let told = |(result, came): (Result<u32, GaveUp<u32>>, Vec<Letter>)| {
        let gave_up = result.unwrap_err();
        assert_eq!((gave_up.failure, gave_up.why, came.len()), (Failure::NoRetry(10), Stop::Told, 1));
    };
    told(desk.through(&mut sim, &RetryLayer::new(&env, steady(&env), judge)));
    told(desk.through(&mut sim, &ShieldLayer::new(&env, steady_shield(&env), judge)));
    let inside = desk.clone();
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(&env, steady(&env), judge).behind_gate())
        .layer(GateLayer::new(&env, Breaker::new(&env), judge))
        .service(service_fn(move |letter| inside.clone().call(letter)));
    let behind = sim.run(service.oneshot(Letter::default()));
    told((behind, std::mem::take(&mut *desk.came.lock().unwrap())));
}

#[test]
fn what_must_not_be_done_twice_is_repeated_by_no_layer_unless_it_was_never_sent() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let perhaps = Desk::new(&env, MS * 40, &[Err(20), Ok(7)]);
    let unsent = Desk::new(&env, MS * 40, &[Err(0), Ok(7)]);
    let often = || Hedge::builder(&env).at(MS * 20).unknown(MS * 20).floor(10.0);
    let retry = RetryLayer::new(&env, steady(&env), judge).at_most_once(|_| true);
    let shield = Shield::builder(&env).hedge(|_| often()).build();
    let shield = ShieldLayer::new(&env, shield, judge).at_most_once(|_| true);
    let begun = |(result, came): (Result<u32, GaveUp<u32>>, Vec<Letter>)| {
        assert_eq!((result.unwrap_err().why, came.len()), (Stop::Begun, 1));
    };
    begun(perhaps.through(&mut sim, &retry));
    begun(perhaps.through(&mut sim, &shield));
    let hedge = HedgeLayer::new(&env, often().build(), judge).at_most_once(|_| true).stamping(Letter::stamp);
    assert_eq!(perhaps.through(&mut sim, &hedge), (Err(20), vec![Letter::default()]));
    let twice = |(result, came): (Result<u32, GaveUp<u32>>, Vec<Letter>)| assert_eq!((result, came.len()), (Ok(7), 2));
    twice(unsent.through(&mut sim, &retry));
    twice(unsent.through(&mut sim, &shield));
    twice(perhaps.through(&mut sim, &RetryLayer::new(&env, steady(&env), judge).at_most_once(|_| false)));
}

#[test]
fn a_service_that_fails_before_it_is_called_has_not_begun() {
    /// Not ready at the first look, and broken by that.
    #[derive(Clone, Default)]
    struct Broken(Arc<AtomicU32>);
    impl Service<()> for Broken {
        type Response = u32;
        type Error = &'static str;
        type Future = std::future::Ready<Result<u32, &'static str>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            let looks = self.0.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(if looks == 0 { Err("no connection") } else { Ok(()) })
        }
        fn call(&mut self, (): ()) -> Self::Future {
            std::future::ready(Ok(1))
        }
    }
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retried = RetryLayer::new(&env, steady(&env), result).at_most_once(|()| true).layer(Broken::default());
    assert_eq!(sim.run(retried.oneshot(())), Ok(1));
}

/// A service with so many connections. It takes one when it is found ready, and keeps it until it is called or dropped.
struct Pooled {
    free: Arc<AtomicU32>,
    taken: bool,
    env: Env,
    calls: Arc<AtomicU32>,
}

impl Pooled {
    fn new(env: &Env, connections: u32) -> Pooled {
        Pooled { free: Arc::new(AtomicU32::new(connections)), taken: false, env: env.clone(), calls: Arc::default() }
    }
}

impl Clone for Pooled {
    fn clone(&self) -> Pooled {
        Pooled { free: Arc::clone(&self.free), taken: false, env: self.env.clone(), calls: Arc::clone(&self.calls) }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.free.fetch_add(u32::from(self.taken), Ordering::Relaxed);
    }
}

impl Service<()> for Pooled {
    type Response = u32;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<u32, &'static str>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if !self.taken {
            let free = self.free.try_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
            self.taken = free.is_ok();
        }
        Poll::Ready(if self.taken { Ok(()) } else { Err("no connection is free") })
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let mut connection = self.clone();
        connection.taken = std::mem::take(&mut self.taken);
        Box::pin(async move {
            let number = connection.calls.fetch_add(1, Ordering::Relaxed);
            connection.env.sleep(MS * 10).await;
            Ok(number)
        })
    }
}

#[test]
fn who_waits_at_a_gate_holds_nothing_of_the_service_inside() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Pooled::new(&env, 2);
    let gated = GateLayer::new(&env, Bulkhead::new(&env, 1), result).layer(pool.clone());
    let shield = Shield::builder(&env).at_once(1).build();
    let shielded = ShieldLayer::new(&env, shield, result).layer(pool.clone());
    for shielded in [None, Some(shielded)] {
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let (mut gated, shielded) = (gated.clone(), shielded.clone());
                env.spawn(async move {
                    match shielded {
                        None => gated.ready().await.unwrap().call(()).await.is_ok(),
                        Some(mut service) => service.ready().await.unwrap().call(()).await.is_ok(),
                    }
                })
            })
            .collect();
        sim.run_until(env.now() + MS);
        assert_eq!(pool.free.load(Ordering::Relaxed), 1, "one call is under way, and nine wait");
        let served = sim.run(async {
            let mut served = 0;
            for task in tasks {
                served += u32::from(task.await.unwrap());
            }
            served
        });
        assert_eq!((served, pool.free.load(Ordering::Relaxed)), (10, 2));
    }
}

#[test]
fn a_client_that_leaves_after_its_call_began_does_not_get_its_rate_slot_back() {
    let env = Sim::new(1).env();
    let pool = Pooled::new(&env, 1_000);
    let limit = RateLimit::new(&env, Rate::per_second(10).burst(3));
    let mut gated = GateLayer::new(&env, limit, result).layer(pool.clone());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    for _ in 0..1_000 {
        let mut call = gated.call(());
        assert!(call.as_mut().poll(&mut cx).is_pending(), "under way, or in line for a slot");
    }
    assert_eq!(pool.calls.load(Ordering::Relaxed), 3, "as many as may go at once");
}

#[test]
fn a_request_whose_service_is_not_ready_costs_no_slot_and_was_not_begun() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let pool = Pooled::new(&env, 0);
    let limit = RateLimit::new(&env, Rate::per_second(10).burst(1));
    let gated = GateLayer::new(&env, limit.clone(), result).layer(pool.clone());
    assert_eq!(sim.run(gated.clone().oneshot(())), Err(Halt::Unsent("no connection is free")));
    pool.free.store(1, Ordering::Relaxed);
    assert_eq!(sim.run(gated.clone().oneshot(())), Ok(0));
    assert_eq!(env.now() - Tick::ZERO, MS * 10, "the slot was given back");
}

#[test]
fn a_service_that_is_never_ready_is_waited_for_until_the_deadline() {
    #[derive(Clone)]
    struct Never;
    impl Service<()> for Never {
        type Response = u32;
        type Error = ();
        type Future = std::future::Ready<Result<u32, ()>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Pending
        }
        fn call(&mut self, (): ()) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let mut sim = Sim::new(1);
    let env = sim.env();
    let room = Bulkhead::new(&env, 1);
    let layer = GateLayer::new(&env, room.clone(), result);
    let gated = layer.asking(|env, ()| Ask::new(env).deadline(env.now() + MS * 50)).layer(Never);
    let halt = sim.run(gated.oneshot(())).unwrap_err();
    assert!(matches!(halt, Halt::Refused(refusal) if refusal.why == Why::Deadline), "{halt:?}");
    assert_eq!((env.now() - Tick::ZERO, room.taken()), (MS * 50, 0));
}
