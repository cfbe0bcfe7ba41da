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
    env::sim::Sim,
    gate::{Verdict, Why, result},
    retry::Stop,
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
