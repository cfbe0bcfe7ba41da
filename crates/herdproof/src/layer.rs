//! The policies as tower layers, for services that are built of those.
//!
//! A layer here is not another implementation: it holds the same object that is used without tower, and calls the same
//! function. A [`Breaker`](crate::breaker::Breaker) that guards a tower client and one that guards a database pool are the
//! same breaker, and can be one.
//!
//! ```
//! use herdproof::{Env, breaker::Breaker, gate, layer::{GateLayer, RetryLayer}, retry::Retry};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # use std::io::Error;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let client = ServiceBuilder::new()
//!     .layer(RetryLayer::new(&env, Retry::new(&env), gate::result).behind_gate()) // a refusal is no fault
//!     .layer(GateLayer::new(&env, Breaker::new(&env), gate::result)) // inside: every attempt passes it
//!     .service(service_fn(|order: u32| async move { Ok::<_, Error>(order + 1) }));
//! assert_eq!(client.oneshot(41).await.unwrap(), 42);
//! # });
//! ```
//!
//! | layer | the same as | its error |
//! |---|---|---|
//! | [`GateLayer`] | [`guard`](crate::gate::guard) | [`Halt`]: refused, or failed |
//! | [`RetryLayer`] | [`Retry::run`] | [`GaveUp`]; what is inside may be a gate, whose refusals are no attempts |
//! | [`HedgeLayer`] | [`Hedge::run`] | that of the service |
//! | [`FlightLayer`] | [`Group::run`] | [`FlightError`] |
//! | [`ShieldLayer`] | [`Shield::run`] | [`GaveUp`] |
//!
//! A gate says no to a request, not to the service: a layer is always ready, and a refusal is an error of the call. Tower's own
//! limits make everybody wait until there is room, without a bound on how many wait or how long. The service inside is asked
//! whether it is ready when the gates have let the request in, so that a request in line holds nothing of it: no connection, no
//! permit of a `ConcurrencyLimit`.
//!
//! What a layer cannot know of a request, it is told:
//!
//! | | says | unless told otherwise |
//! |---|---|---|
//! | the classifier | what an outcome says about the origin; as a [`Judgement`](crate::gate::Judgement), also that it was never sent, or that those below have given up | |
//! | [`asking`](RetryLayer::asking) | the request's deadline, priority and cost, and which attempt of its caller it is | ordinary |
//! | [`stamping`](RetryLayer::stamping) | what is written onto the request of each attempt, for whoever gets it | nothing |
//! | [`at_most_once`](RetryLayer::at_most_once) | whether it must not be done twice | it may be |
//!
//! Where one layer stands inside another, the innermost should stamp, since it knows best how much time is left; the others stamp
//! what the inner ones ask by. For requests and responses of the `http` crate, all four are in `herdproof::http` (feature `http`).
//!
//! Each call is boxed once. Requests that are repeated are cloned.

mod hooks;

use std::{
    future::{Future, poll_fn},
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hooks::Hooks;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    env::Env,
    flight::{FlightError, Group, Landed},
    gate::{Ask, Classify, Gate, Halt, Permit, Place, Span},
    hedge::Hedge,
    retry::{Failure, GaveUp, Retry},
    shield::Shield,
    timeout::by,
};

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Lets requests through a [`Gate`]; see the [module](self).
pub struct GateLayer<G, C, R> {
    env: Env,
    gate: Arc<G>,
    classify: C,
    hooks: Hooks<R>,
}

/// A service behind a gate, from a [`GateLayer`].
pub struct Gated<S, G, C, R> {
    inner: S,
    layer: GateLayer<G, C, R>,
}

/// Tries requests again; see the [module](self).
pub struct RetryLayer<C, R, X = Plain> {
    env: Env,
    retry: Retry,
    classify: C,
    hooks: Hooks<R>,
    inside: X,
}

/// A service whose requests are tried again, from a [`RetryLayer`].
pub struct Retried<S, C, R, X> {
    inner: S,
    layer: RetryLayer<C, R, X>,
}

/// Sends requests a second time if they are slow; see the [module](self).
pub struct HedgeLayer<C, R> {
    env: Env,
    hedge: Hedge,
    classify: C,
    hooks: Hooks<R>,
}

/// A service whose slow requests are sent a second time, from a [`HedgeLayer`].
pub struct Hedged<S, C, R> {
    inner: S,
    layer: HedgeLayer<C, R>,
}

/// Puts requests behind a whole [`Shield`]; see the [module](self).
pub struct ShieldLayer<C, R> {
    env: Env,
    shield: Shield,
    classify: C,
    hooks: Hooks<R>,
}

/// A service behind a shield, from a [`ShieldLayer`].
pub struct Shielded<S, C, R> {
    inner: S,
    layer: ShieldLayer<C, R>,
}

/// Lets requests of the same key share one answer; see the [module](self).
pub struct FlightLayer<K, V, E, N> {
    group: Group<K, V, E>,
    key: N,
}

/// A service whose requests share answers, from a [`FlightLayer`].
pub struct Shared<S, K, V, E, N> {
    inner: S,
    layer: FlightLayer<K, V, E, N>,
}

/// How the errors of a service are failures of attempts.
pub trait Inside<S>: Copy + Send + Sync + 'static {
    /// The error of the work itself.
    type Error;

    /// What this error says about the attempt.
    fn failure(error: S) -> Failure<Self::Error>;
}

/// Inside is what does the work: every error is one of its own.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// Inside is a gate: what it refuses was never begun.
#[derive(Clone, Copy, Debug)]
pub struct BehindGate;

impl<E> Inside<E> for Plain {
    type Error = E;

    fn failure(error: E) -> Failure<E> {
        Failure::Failed(error)
    }
}

impl<E> Inside<Halt<E>> for BehindGate {
    type Error = E;

    fn failure(error: Halt<E>) -> Failure<E> {
        error.into()
    }
}

impl<G, C, R> GateLayer<G, C, R> {
    /// Requests pass this gate, and what becomes of them is classified so.
    pub fn new(env: &Env, gate: G, classify: C) -> GateLayer<G, C, R> {
        GateLayer { env: env.clone(), gate: Arc::new(gate), classify, hooks: Hooks::default() }
    }
}

impl<C, R> RetryLayer<C, R, Plain> {
    /// Requests are tried again by this rule, and what becomes of them is classified so.
    pub fn new(env: &Env, retry: Retry, classify: C) -> RetryLayer<C, R, Plain> {
        RetryLayer { env: env.clone(), retry, classify, hooks: Hooks::default(), inside: Plain }
    }

    /// The same around a [`GateLayer`]: what the gate refuses is no attempt, and is tried again only if it said when.
    pub fn behind_gate(self) -> RetryLayer<C, R, BehindGate> {
        let RetryLayer { env, retry, classify, hooks, inside: Plain } = self;
        RetryLayer { env, retry, classify, hooks, inside: BehindGate }
    }
}

impl<C, R> HedgeLayer<C, R> {
    /// Slow requests are sent a second time by this rule, and what becomes of them is classified so.
    pub fn new(env: &Env, hedge: Hedge, classify: C) -> HedgeLayer<C, R> {
        HedgeLayer { env: env.clone(), hedge, classify, hooks: Hooks::default() }
    }
}

impl<C, R> ShieldLayer<C, R> {
    /// Requests go behind this shield, and what becomes of them is classified so.
    pub fn new(env: &Env, shield: Shield, classify: C) -> ShieldLayer<C, R> {
        ShieldLayer { env: env.clone(), shield, classify, hooks: Hooks::default() }
    }
}

impl<K, V, E, N> FlightLayer<K, V, E, N> {
    /// Requests with the same key share one answer of this group.
    pub fn new(group: Group<K, V, E>, key: N) -> FlightLayer<K, V, E, N> {
        FlightLayer { group, key }
    }
}

macro_rules! hooked {
    ($($layer:ident<$($of:ident),*>)*) => {$(
        impl<$($of),*> $layer<$($of),*> {
            /// How a request's deadline, priority and cost are read off it, and whether its caller is itself trying again. All
            /// are ordinary unless told otherwise.
            #[must_use]
            pub fn asking(mut self, ask: impl Fn(&Env, &R) -> Ask + Send + Sync + 'static) -> Self {
                self.hooks.asking = Arc::new(ask);
                self
            }

            /// What is written onto each request that is sent, by the [`Ask`] of its attempt: how much time it has, and which
            /// attempt it is. Called at the last moment, when the service is ready and the gates have let it in.
            #[must_use]
            pub fn stamping(mut self, stamp: impl Fn(&Env, &mut R, &Ask) + Send + Sync + 'static) -> Self {
                self.hooks.stamping = Some(Arc::new(stamp));
                self
            }
        }
    )*};
}

hooked! { GateLayer<G, C, R> RetryLayer<C, R, X> HedgeLayer<C, R> ShieldLayer<C, R> }

macro_rules! repeating {
    ($($layer:ident<$($of:ident),*>)*) => {$(
        impl<$($of),*> $layer<$($of),*> {
            /// Which requests must not be done twice; none unless told otherwise. They are tried again only if they were certainly
            /// never begun, and never hedged.
            #[must_use]
            pub fn at_most_once(mut self, which: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
                self.hooks.at_most_once = Some(Arc::new(which));
                self
            }
        }
    )*};
}

repeating! { RetryLayer<C, R, X> HedgeLayer<C, R> ShieldLayer<C, R> }

/// Waits until the service is ready, or the deadline has come.
async fn ready<S: Service<R>, R>(env: &Env, service: &mut S, ask: &mut Ask) -> Result<(), Halt<S::Error>> {
    let mut waited = false;
    let ready = poll_fn(|cx| {
        let ready = service.poll_ready(cx);
        waited |= ready.is_pending();
        ready
    });
    let ready = by(env, ask.deadline, ready).await;
    if waited {
        ask.at = env.now();
    }
    ready.unwrap_or(Ok(())).map_err(Halt::Unsent)?;
    ask.on_time().map_err(Halt::Refused)
}

impl<S, G, C, R> Service<R> for Gated<S, G, C, R>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    G: Gate + 'static,
    C: Classify<S::Response, S::Error> + Clone + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = Halt<S::Error>;
    type Future = Answer<S::Response, Halt<S::Error>>;

    /// Always ready: who waits at the gate holds nothing of the service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: R) -> Self::Future {
        let GateLayer { env, gate, classify, hooks } = self.layer.clone();
        let mut inner = self.inner.clone();
        Box::pin(async move {
            let mut ask = hooks.ask(&env, &request);
            ask.on_time().map_err(Halt::Refused)?;
            let mut place = gate.reserve(&mut ask).await.map_err(Halt::Refused)?;
            ready(&env, &mut inner, &mut ask).await?;
            gate.renew(&mut place, &ask).map_err(Halt::Refused)?;
            let permit = place.commit();
            hooks.stamp(&env, &mut request, &ask);
            let outcome = inner.call(request).await;
            permit.settle(&classify.classify(&outcome), Span { from: ask.at, to: env.now() });
            outcome.map_err(Halt::Failed)
        })
    }
}

impl<S, C, R, X> Service<R> for Retried<S, C, R, X>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    X: Inside<S::Error>,
    X::Error: Send,
    C: Classify<S::Response, X::Error> + Clone + 'static,
    R: Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = GaveUp<X::Error>;
    type Future = Answer<S::Response, GaveUp<X::Error>>;

    /// Always ready: each attempt waits for the service itself, so that one that is not ready can be tried again.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let RetryLayer { env, retry, classify, hooks, inside: _ } = self.layer.clone();
        let inner = self.inner.clone();
        Box::pin(async move {
            let (ask, once) = (hooks.ask(&env, &request), hooks.is_at_most_once(&request));
            let stamper = (&env, &hooks);
            let attempt = move |ask: Ask| attempt::<S, R, X>(inner.clone(), request.clone(), stamper, ask);
            if once {
                retry.run_at_most_once(&env, classify, ask, attempt).await
            } else {
                retry.run(&env, classify, ask, attempt).await
            }
        })
    }
}

async fn attempt<S, R, X>(
    mut service: S,
    mut request: R,
    (env, hooks): (&Env, &Hooks<R>),
    ask: Ask,
) -> Result<S::Response, Failure<X::Error>>
where
    S: Service<R>,
    X: Inside<S::Error>,
{
    // What was not called was certainly not begun.
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(|error| match X::failure(error) {
        Failure::Failed(error) => Failure::Unsent(error),
        failure => failure,
    })?;
    hooks.stamp(env, &mut request, &ask);
    service.call(request).await.map_err(X::failure)
}

impl<S, C, R> Service<R> for Hedged<S, C, R>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    C: Classify<S::Response, S::Error> + Clone + 'static,
    R: Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answer<S::Response, S::Error>;

    /// Always ready: each attempt waits for the service itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let HedgeLayer { env, hedge, classify, hooks } = self.layer.clone();
        let inner = self.inner.clone();
        Box::pin(async move {
            let ask = hooks.ask(&env, &request);
            let stamper = (&env, &hooks);
            if hooks.is_at_most_once(&request) {
                return stamped(inner, request, stamper, ask).await;
            }
            hedge.run(&env, classify, ask, move |ask, _| stamped(inner.clone(), request.clone(), stamper, ask)).await
        })
    }
}

async fn plainly<S: Service<R>, R>(mut service: S, request: R) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}

async fn stamped<S: Service<R>, R>(
    mut service: S,
    mut request: R,
    (env, hooks): (&Env, &Hooks<R>),
    ask: Ask,
) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    hooks.stamp(env, &mut request, &ask);
    service.call(request).await
}

impl<S, C, R> Service<R> for Shielded<S, C, R>
where
    S: Service<R> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    C: Classify<S::Response, S::Error> + Clone + 'static,
    R: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = GaveUp<S::Error>;
    type Future = Answer<S::Response, GaveUp<S::Error>>;

    /// Always ready: each attempt waits for the service itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let ShieldLayer { env, shield, classify, hooks } = self.layer.clone();
        let inner = self.inner.clone();
        Box::pin(async move {
            let (ask, once) = (hooks.ask(&env, &request), hooks.is_at_most_once(&request));
            let stamper = (&env, &hooks);
            let work = move |ask: Ask| stamped(inner.clone(), request.clone(), stamper, ask);
            if once {
                shield.run_at_most_once(classify, ask, work).await
            } else {
                shield.run(classify, ask, move |ask, _| work(ask)).await
            }
        })
    }
}

impl<S, K, E, N, R> Service<R> for Shared<S, K, S::Response, E, N>
where
    S: Service<R, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Clone + Send + Sync + 'static,
    K: Hash + Eq + Send + 'static,
    E: Send + Sync + 'static,
    N: Fn(&R) -> K,
    R: Send + 'static,
{
    type Response = Landed<S::Response>;
    type Error = FlightError<E>;
    type Future = crate::flight::Flight<S::Response, E>;

    /// Always ready: who joins a load needs nothing of the service, and the load waits for it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let key = (self.layer.key)(&request);
        let inner = &self.inner;
        self.layer.group.run(key, || plainly(inner.clone(), request))
    }
}

macro_rules! layers {
    ($($layer:ident<$($of:ident),*> wraps $service:ident { $($shared:ident),* } where { $($bound:tt)* })*) => {$(
        impl<S, $($of),*> Layer<S> for $layer<$($of),*>
        where
            $($bound)*
        {
            type Service = $service<S, $($of),*>;

            fn layer(&self, inner: S) -> Self::Service {
                $service { inner, layer: self.clone() }
            }
        }

        impl<$($of),*> Clone for $layer<$($of),*>
        where
            $($bound)*
        {
            fn clone(&self) -> Self {
                $layer { $($shared: self.$shared.clone()),* }
            }
        }

        impl<S: Clone, $($of),*> Clone for $service<S, $($of),*>
        where
            $($bound)*
        {
            fn clone(&self) -> Self {
                $service { inner: self.inner.clone(), layer: self.layer.clone() }
            }
        }

        impl<$($of),*> std::fmt::Debug for $layer<$($of),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($layer))
            }
        }

        impl<S: std::fmt::Debug, $($of),*> std::fmt::Debug for $service<S, $($of),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($service)).field(&self.inner).finish()
            }
        }
    )*};
}

layers! {
    GateLayer<G, C, R> wraps Gated { env, gate, classify, hooks } where { C: Clone }
    RetryLayer<C, R, X> wraps Retried { env, retry, classify, hooks, inside } where { C: Clone, X: Clone }
    HedgeLayer<C, R> wraps Hedged { env, hedge, classify, hooks } where { C: Clone }
    ShieldLayer<C, R> wraps Shielded { env, shield, classify, hooks } where { C: Clone }
    FlightLayer<K, V, E, N> wraps Shared { group, key } where { N: Clone }
}

#[cfg(test)]
mod tests;
