//! An origin that works, and one that is down.

use std::time::Duration;

use dashmap::DashMap;
use failsafe::{CircuitBreaker, Config, backoff, failure_policy};
use herdproof::{
    Env,
    breaker::{Breaker, BreakerBuilder},
    gate::{Ask, Gate, Permit, Span, Verdict},
};
use herdproof_bench::Value;
use recloser::Recloser;
use tower::{Service, ServiceExt, service_fn};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

use crate::{
    calls::{All, Clock, Given},
    rates::bytes_per_key,
};

const HOUR: Duration = Duration::from_secs(3600);
const SLOW: Duration = Duration::from_secs(1);

/// What the origin does: it works at once, or it fails, and then nobody should call it.
fn call(works: bool) -> Result<(), ()> {
    if std::hint::black_box(works) { Ok(()) } else { Err(()) }
}

/// Counts slow calls too, which is not the default but what the others are measured against.
fn ours(env: &Env) -> BreakerBuilder {
    Breaker::builder(env).slow(SLOW, 0.5).open(HOUR, HOUR)
}

fn go(gate: &impl Gate, clock: impl Clock) -> bool {
    let ask = clock.ask();
    match gate.try_enter(&ask) {
        Ok(permit) => {
            let verdict = if call(true).is_ok() { Verdict::Ok } else { Verdict::Fault };
            permit.settle(&verdict, Span { from: ask.at, to: clock.now() });
            true
        }
        Err(_) => false,
    }
}

fn trip(breaker: &Breaker, clock: impl Clock) {
    while breaker.is_closed() {
        let ask: Ask = clock.ask();
        if let Ok(permit) = breaker.try_enter(&ask) {
            permit.settle(&Verdict::Fault, Span { from: ask.at, to: ask.at });
        }
    }
}

fn breaker<C: Clock>(all: All, env: &Env, clock: C) -> Breaker {
    let breaker = ours(env).build();
    if all == All::Refused {
        trip(&breaker, clock);
    }
    breaker
}

pub(crate) fn herdproof<C: Clock>(all: All, env: &Env, clock: C) -> impl Fn() -> bool {
    let breaker = breaker(all, env, clock);
    move || go(&breaker.borrowed(), clock)
}

/// With permits that keep the breaker alive.
pub(crate) fn herdproof_owned<C: Clock>(all: All, env: &Env, clock: C) -> impl Fn() -> bool {
    let breaker = breaker(all, env, clock);
    move || go(&breaker, clock)
}

pub(crate) fn recloser(all: All) -> impl Fn() -> bool {
    let breaker = Recloser::custom().open_wait(HOUR).build();
    if all == All::Refused {
        while !matches!(breaker.call(|| call(false)), Err(recloser::Error::Rejected)) {}
    }
    move || breaker.call(|| call(true)).is_ok()
}

/// As it is by default: a success rate over a window of time, or so many in a row.
pub(crate) fn failsafe(all: All) -> impl Fn() -> bool {
    let breaker = Config::new().build();
    if all == All::Refused {
        fail(&breaker);
    }
    move || breaker.call(|| call(true)).is_ok()
}

/// So many in a row only, without a window.
pub(crate) fn failsafe_in_a_row(all: All) -> impl Fn() -> bool {
    let breaker =
        Config::new().failure_policy(failure_policy::consecutive_failures(7, backoff::constant(HOUR))).build();
    if all == All::Refused {
        fail(&breaker);
    }
    move || breaker.call(|| call(true)).is_ok()
}

fn fail(breaker: &impl CircuitBreaker) {
    while breaker.is_call_permitted() {
        let _ = breaker.call(|| call(false));
    }
}

/// With a window of the last hundred calls; its window of time goes through all calls in it at each call.
pub(crate) fn tower_resilience(all: All) -> impl AsyncFnMut() -> bool {
    let layer = CircuitBreakerLayer::builder()
        .sliding_window_size(100)
        .minimum_number_of_calls(20)
        .slow_call_duration_threshold(SLOW)
        .slow_call_rate_threshold(0.5)
        .wait_duration_in_open(HOUR)
        .build()
        .expect("it makes sense");
    let mut service = layer.layer_fn(service_fn(async |works: bool| call(works)));
    let mut tripped = all == All::LetIn;
    async move || {
        if !tripped {
            tripped = true;
            for _ in 0..100 {
                if let Ok(ready) = service.ready().await {
                    let _ = ready.call(false).await;
                }
            }
        }
        match service.ready().await {
            Ok(ready) => ready.call(true).await.is_ok(),
            Err(_) => false,
        }
    }
}

pub(crate) fn herdproof_memory(keys: u64) -> Vec<Value> {
    let env = Env::system();
    bytes_per_key(keys, || {
        let breakers = ours(&env).build_keyed(usize::try_from(keys + keys / 4).expect("it fits"));
        for key in 0..keys {
            assert!(go(&breakers.of(&key), Given), "nobody was here before");
        }
        let len = breakers.len();
        (breakers, len)
    })
}

/// What one writes who needs one for each host: none of them has it.
pub(crate) fn recloser_memory(keys: u64) -> Vec<Value> {
    memory(keys, || Recloser::custom().build(), |breaker| breaker.call(|| call(true)).is_ok())
}

pub(crate) fn failsafe_memory(keys: u64) -> Vec<Value> {
    memory(keys, || Config::new().build(), |breaker| breaker.call(|| call(true)).is_ok())
}

fn memory<B>(keys: u64, make: impl Fn() -> B, go: impl Fn(&B) -> bool) -> Vec<Value> {
    bytes_per_key(keys, || {
        let breakers = DashMap::new();
        for key in 0..keys {
            assert!(go(&breakers.entry(key).or_insert_with(&make)), "nobody was here before");
        }
        let len = breakers.len();
        (breakers, len)
    })
}
