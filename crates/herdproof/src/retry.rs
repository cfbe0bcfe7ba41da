//! Trying again, without becoming the load that keeps the origin down.
//!
//! A retry helps against a blip. Against an origin that is overloaded it is more of what overloads it, from everybody, in
//! step. What makes the difference is not how often one tries but when one does not:
//!
//! - **Only within the budget.** Every retry is charged to a [`Budget`] before its backoff. When the budget says no, the
//!   caller gets the error that was there, at once.
//! - **Only if it can help.** What is [`Final`](crate::gate::Verdict::Final) is not tried again, nor what our own gates refused without
//!   saying when to come back, nor what would come back after the deadline.
//! - **Only if it is safe.** [`run_at_most_once`](Retry::run_at_most_once) tries again only what was certainly never begun.
//! - **Only at one layer.** Three layers with three attempts each are 27 calls. A caller that is itself retrying
//!   ([`Ask::attempt`]) gets one attempt, and who has given up says so to those above; see [`wire`].
//! - **Never in step.** Delays are drawn from the whole range, and what a server asks for is spread ([`Backoff`]).
//!
//! That an attempt was never begun, or that those below have given up, is said by the work, as a [`Failure`], or by the
//! classifier, as a [`Judgement`](crate::gate::Judgement).
//!
//! ```
//! use herdproof::{Env, gate::{Ask, result}, retry::{Failure, Retry}};
//! # use std::io::Error;
//! # async fn get(_: Ask) -> Result<u32, Error> { Ok(42) }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let retry = Retry::new(&env); // one for each upstream: it has a budget of its own
//! let answer = retry.run(&env, result, Ask::coarse(&env), async |ask| get(ask).await.map_err(Failure::Failed)).await;
//! assert_eq!(answer.unwrap(), 42);
//! # });
//! ```
//!
//! Most of what a first attempt that succeeds pays for is the reading of the clock, so it is [`Ask::coarse`] here: its timeout
//! and its deadline may come a few milliseconds early. Later attempts begin when the timer of their backoff says. Where a rate
//! or an adaptive limit stands inside, or milliseconds matter, ask with [`Ask::new`].
//!
//! | setting | default | from |
//! |---|---|---|
//! | attempts | 3 | AWS SDKs, retry mode 2.1 |
//! | backoff after a fault | full jitter, base 50 ms, cap 20 s | the same |
//! | backoff after an overload | full jitter, base 1 s, cap 20 s, and not before what the server asked for | the same |
//! | budget | a tenth, and 3 a second; none while more than one in eleven fails | Finagle's shape, gRPC's throttle |
//! | timeout of an attempt | none | |
//!
//! Gates stand inside: each attempt passes them anew, and no permit is held through a backoff. An attempt that is cut off
//! by [`timeout`](RetryBuilder::timeout) is cancelled, which gates do not hold against the origin; for a timeout that they
//! do, bound the work inside them with [`timeout::by`](crate::timeout::by).
//!
//! ```
//! use herdproof::{Env, gate::{Ask, Gate, guard, result}, retry::{GaveUp, Retry}};
//! # use std::io::Error;
//! # async fn get(_: &Ask) -> Result<u32, Error> { Ok(42) }
//!
//! async fn guarded(env: &Env, retry: &Retry, gates: &impl Gate) -> Result<u32, GaveUp<Error>> {
//!     retry.run(env, result, Ask::new(env), async |ask| {
//!         Ok(guard(env, gates, result, ask.clone(), || get(&ask)).await?)
//!     })
//!     .await
//! }
//! ```

mod builder;
mod decide;
mod failure;
mod run;
pub mod wire;

use std::{fmt, future::Future, sync::Arc, time::Duration};

pub use builder::RetryBuilder;
use decide::Repeat;
pub use failure::{Failure, GaveUp, Stop};
use run::Operation;

use crate::{
    backoff::Backoff,
    budget::Budget,
    env::{Env, Rng},
    gate::{Ask, Classify},
};

/// A rule for trying again; see the [module](self). Cheap to clone, and clones share their budget.
#[derive(Clone)]
pub struct Retry(Arc<Rules>);

struct Rules {
    rng: Rng,
    attempts: u16,
    fault: Backoff,
    overload: Backoff,
    timeout: Option<Duration>,
    budget: Option<Budget>,
}

impl Retry {
    /// The usual rule.
    pub fn new(env: &Env) -> Retry {
        Retry::builder(env).build()
    }

    /// Does the work, again if need be. For what may be done twice.
    ///
    /// The work gets an [`Ask`] for each attempt: its number, when it began, and until when it may take. It is cut off at
    /// that deadline. What counts is the verdict: an answer that is classified as a fault is tried again too, and is the
    /// result if it is the last. Before another attempt it is dropped, since it may hold the connection that is needed for
    /// that; should the next one have no answer at all, that is the result.
    ///
    /// An `async` closure will do that only reads what is around it; one that changes it, or that is `move`, has to be written
    /// as `|ask| async move { .. }`, so that the run can be a task.
    pub fn run<'a, T, E, C, F>(
        &'a self,
        env: &'a Env,
        classify: C,
        ask: Ask,
        work: impl FnMut(Ask) -> F,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
    {
        self.repeat(env, classify, ask, work, Repeat::Always)
    }

    /// As [`run`](Retry::run), for what must not be done twice: another attempt is made only if the last was certainly
    /// never begun, because one of our own gates refused it or because it was never sent ([`Failure::Unsent`]).
    pub fn run_at_most_once<'a, T, E, C, F>(
        &'a self,
        env: &'a Env,
        classify: C,
        ask: Ask,
        work: impl FnMut(Ask) -> F,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
    {
        self.repeat(env, classify, ask, work, Repeat::IfUnbegun)
    }

    /// What retries are paid from.
    pub fn budget(&self) -> Option<&Budget> {
        self.0.budget.as_ref()
    }

    #[inline]
    fn repeat<'a, T, E, C, F, W>(
        &'a self,
        env: &'a Env,
        classify: C,
        ask: Ask,
        work: W,
        repeat: Repeat,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
        W: FnMut(Ask) -> F,
    {
        Operation { rules: &self.0, env, classify, ask, work, repeat }.run()
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { rng: _, attempts, fault, overload, timeout, budget } = &*self.0;
        f.debug_struct("Retry")
            .field("attempts", attempts)
            .field("fault", fault)
            .field("overload", overload)
            .field("timeout", timeout)
            .field("budget", budget)
            .finish()
    }
}

#[cfg(test)]
mod tests;
