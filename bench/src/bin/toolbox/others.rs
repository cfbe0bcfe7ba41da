//! As many at once as are good, again within a budget, and all of it together.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
use congestion_limiter::{
    limiter::{DefaultLimiter, Limiter, Outcome},
    limits::{Aimd, LimitAlgorithm, Vegas},
};
use herdproof::{
    Env, Retry, Throttle,
    gate::{Gate, Permit, Span, Verdict, result},
    limit::{AdaptiveLimit, Rate},
    retry::Failure,
    shield::{Shield, ShieldBuilder},
};
use tower::{
    Service, ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimit,
    retry::{Policy, budget::Budget, budget::TpsBudget},
    service_fn,
};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

use crate::calls::Clock;

/// The work: ready at once.
async fn work(number: u64) -> Result<u64, Infallible> {
    std::hint::black_box(Ok(number))
}

fn go(gate: &impl Gate, clock: impl Clock) -> bool {
    let ask = clock.ask();
    match gate.try_enter(&ask) {
        Ok(permit) => {
            permit.settle(&Verdict::Ok, Span { from: ask.at, to: clock.now() });
            true
        }
        Err(_) => false,
    }
}

pub(crate) fn adaptive<C: Clock>(env: &Env, clock: C) -> impl Fn() -> bool {
    let limit = AdaptiveLimit::new(env);
    move || go(&limit.borrowed(), clock)
}

pub(crate) fn throttle<C: Clock>(env: &Env, clock: C) -> impl Fn() -> bool {
    let throttle = Throttle::new(env);
    move || go(&throttle.borrowed(), clock)
}

pub(crate) fn congestion_aimd() -> impl AsyncFn() -> bool {
    congestion(Aimd::new_with_initial_limit(20))
}

pub(crate) fn congestion_vegas() -> impl AsyncFn() -> bool {
    congestion(Vegas::new_with_initial_limit(20))
}

fn congestion<L: LimitAlgorithm + Sync + std::fmt::Debug>(law: L) -> impl AsyncFn() -> bool {
    let limiter = DefaultLimiter::new(law);
    async move || {
        let Some(token) = limiter.try_acquire().await else { return false };
        limiter.release(token, Some(Outcome::Success)).await > 0
    }
}

/// A fixed number at once: it adapts to nothing, and needs no clock.
pub(crate) fn tower_concurrency() -> impl AsyncFnMut() -> bool {
    let mut service = ConcurrencyLimit::new(service_fn(work), 20);
    async move || match service.ready().await {
        Ok(ready) => ready.call(1).await.is_ok(),
        Err(_) => false,
    }
}

pub(crate) fn retry<C: Clock>(env: &Env, clock: C) -> impl AsyncFn() -> bool {
    let (env, retry) = (env.clone(), Retry::new(env));
    async move || retry.run(&env, result, clock.ask(), async |_| work(1).await.map_err(Failure::Failed)).await.is_ok()
}

/// As tower's documentation writes it.
#[derive(Clone)]
struct WithinBudget(Arc<TpsBudget>);

impl<E> Policy<u64, u64, E> for WithinBudget {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut u64, result: &mut Result<u64, E>) -> Option<Ready<()>> {
        match result {
            Ok(_) => {
                self.0.deposit();
                None
            }
            Err(_) => self.0.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

pub(crate) fn tower_retry() -> impl AsyncFnMut() -> bool {
    let mut service = tower::retry::Retry::new(WithinBudget(Arc::default()), service_fn(work));
    async move || match service.ready().await {
        Ok(ready) => ready.call(1).await.is_ok(),
        Err(_) => false,
    }
}

pub(crate) fn backon() -> impl AsyncFn() -> bool {
    async || (|| work(1)).retry(ExponentialBuilder::default().with_jitter()).await.is_ok()
}

pub(crate) fn tokio_retry() -> impl AsyncFn() -> bool {
    use tokio_retry::strategy::{ExponentialBackoff, jitter};
    async || {
        let delays = ExponentialBackoff::from_millis(10).map(jitter).take(3);
        tokio_retry::Retry::start(delays, || work(1)).await.is_ok()
    }
}

pub(crate) fn plain() -> impl AsyncFn() -> bool {
    async || work(1).await.is_ok()
}

/// Everything that a shield can have.
pub(crate) fn everything(env: &Env) -> ShieldBuilder {
    let rate = Rate::every(Duration::from_nanos(1)).burst(1_000_000_000);
    Shield::for_http(env).rate(rate).breaker(|breaker| breaker.slow(Duration::from_secs(1), 0.5)).hedge(|hedge| hedge)
}

pub(crate) fn shield<C: Clock>(builder: ShieldBuilder, clock: C) -> impl AsyncFn() -> bool {
    let shield = builder.build();
    async move || shield.run(result, clock.ask(), |_, _| work(1)).await.is_ok()
}

/// What comes closest: retries within a budget, a timeout, a breaker, so many at once. No rate, since that has one owner
/// and a retry needs a copy; no throttle, no hedge, no limit that adapts.
pub(crate) fn tower_stack() -> impl AsyncFnMut() -> bool {
    let breaker = CircuitBreakerLayer::builder()
        .slow_call_duration_threshold(Duration::from_secs(1))
        .slow_call_rate_threshold(0.5)
        .build()
        .expect("it makes sense");
    let mut service = ServiceBuilder::new()
        .retry(WithinBudget(Arc::default()))
        .layer(breaker)
        .concurrency_limit(20)
        .timeout(Duration::from_secs(10))
        .service(service_fn(work));
    async move || match service.ready().await {
        Ok(ready) => ready.call(1).await.is_ok(),
        Err(_) => false,
    }
}

/// What the clock costs in a call that reads it so often.
pub(crate) fn readings(env: &Env, times: u32) -> impl Fn() -> bool {
    let env = env.clone();
    move || (0..times).all(|_| env.now() > herdproof::Tick::ZERO)
}

/// The same, of the coarse clock.
pub(crate) fn coarse_reading(env: &Env) -> impl Fn() -> bool {
    let env = env.clone();
    move || env.coarse() > herdproof::Tick::ZERO
}

/// A sync call as the others are.
pub(crate) fn asynchronous(call: impl Fn() -> bool) -> impl AsyncFn() -> bool {
    async move || call()
}
