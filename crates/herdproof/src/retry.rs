//! Trying again, without becoming the load that keeps the origin down.
//!
//! A retry helps against a blip. Against an origin that is overloaded it is more of what overloads it, from everybody, in
//! step. What makes the difference is not how often one tries but when one does not:
//!
//! - **Only within the budget.** Every retry is charged to a [`Budget`] before its backoff. When the budget says no, the
//!   caller gets the error that was there, at once.
//! - **Only if it can help.** What is [`Final`](Verdict::Final) is not tried again, nor what our own gates refused without
//!   saying when to come back, nor what would come back after the deadline.
//! - **Only if it is safe.** [`run_at_most_once`](Retry::run_at_most_once) tries again only what was certainly never begun.
//! - **Only at one layer.** Three layers with three attempts each are 27 calls. A caller that is itself retrying
//!   ([`Ask::attempt`]) gets one attempt, and who has given up says so to those above; see [`wire`].
//! - **Never in step.** Delays are drawn from the whole range, and what a server asks for is spread ([`Backoff`]).
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
//! let answer = retry.run(&env, result, Ask::new(&env), async |ask| get(ask).await.map_err(Failure::Failed)).await;
//! assert_eq!(answer.unwrap(), 42);
//! # });
//! ```
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
//! do, bound the work inside them with [`by`].
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

#![expect(clippy::manual_async_fn, reason = "an async fn moves its arguments once more than an async block")]

mod decide;
mod failure;
pub mod wire;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use decide::{Made, Next, Pace, Repeat};
pub use failure::{Failure, GaveUp, Stop};
use pin_project_lite::pin_project;

use crate::{
    backoff::{Backoff, Delays, RetryAfter},
    budget::{Budget, Extra, Spend},
    env::{Env, Rng, Sleep, Tick},
    event::Event,
    gate::{Ask, Classify, Refusal, Verdict, Why},
};

/// A rule for trying again; see the [module](self). Cheap to clone, and clones share their budget.
#[derive(Clone)]
pub struct Retry(Arc<Rules>);

/// How a [`Retry`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct RetryBuilder {
    env: Env,
    attempts: u16,
    fault: Backoff,
    overload: Backoff,
    timeout: Option<Duration>,
    payment: Payment,
}

/// What retries are paid from.
#[derive(Clone, Debug)]
enum Payment {
    OwnBudget,
    Budget(Budget),
    Nothing,
}

struct Rules {
    rng: Rng,
    attempts: u16,
    fault: Backoff,
    overload: Backoff,
    timeout: Option<Duration>,
    budget: Option<Budget>,
}

/// The delays of one operation. Both go on with every attempt: an origin that fails first and is overloaded then has been
/// asked twice.
struct Waits {
    fault: Delays,
    overload: Delays,
}

impl RetryBuilder {
    /// How many attempts there are at most, the first included; 3 unless told otherwise. None at all counts as one.
    pub fn attempts(mut self, most: u16) -> RetryBuilder {
        self.attempts = most.max(1);
        self
    }

    /// The delays after a fault; exponential from 50 ms with full jitter unless told otherwise.
    pub fn backoff(mut self, backoff: Backoff) -> RetryBuilder {
        self.fault = backoff;
        self
    }

    /// The delays after an overload; exponential from 1 s with full jitter unless told otherwise. A server that says when
    /// to come back is not asked before that.
    pub fn overload_backoff(mut self, backoff: Backoff) -> RetryBuilder {
        self.overload = backoff;
        self
    }

    /// How long an attempt may take; as long as the deadline allows unless told otherwise.
    pub fn timeout(mut self, timeout: Duration) -> RetryBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// What retries are paid from; a budget of its own unless told otherwise. Give the same to everything that makes extra
    /// calls to the same upstream.
    pub fn budget(mut self, budget: &Budget) -> RetryBuilder {
        self.payment = Payment::Budget(budget.clone());
        self
    }

    /// Lets retries multiply the load as they will. For contrast, and where something else bounds them.
    pub fn without_budget(mut self) -> RetryBuilder {
        self.payment = Payment::Nothing;
        self
    }

    /// The rule.
    pub fn build(self) -> Retry {
        let RetryBuilder { env, attempts, fault, overload, timeout, payment } = self;
        let budget = match payment {
            Payment::OwnBudget => Some(Budget::new(&env)),
            Payment::Budget(budget) => Some(budget),
            Payment::Nothing => None,
        };
        Retry(Arc::new(Rules { rng: env.rng("retry"), attempts, fault, overload, timeout, budget }))
    }
}

impl Retry {
    /// The usual rule.
    pub fn new(env: &Env) -> Retry {
        Retry::builder(env).build()
    }

    /// A rule in the making.
    pub fn builder(env: &Env) -> RetryBuilder {
        RetryBuilder {
            env: env.clone(),
            attempts: 3,
            fault: Backoff::exponential(Duration::from_millis(50)),
            overload: Backoff::exponential(Duration::from_secs(1)),
            timeout: None,
            payment: Payment::OwnBudget,
        }
    }

    /// Does the work, again if need be. For what may be done twice.
    ///
    /// The work gets an [`Ask`] for each attempt: its number, when it began, and until when it may take. It is cut off at
    /// that deadline. What counts is the verdict: an answer that is classified as a fault is tried again too, and is the
    /// result if nothing better came.
    ///
    /// An `async` closure will do that only reads what is around it; one that changes it, or that is `move`, has to be written
    /// as `|ask| async move { .. }`, so that the run can be a task.
    pub fn run<T, E, C, F>(
        &self,
        env: &Env,
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
    pub fn run_at_most_once<T, E, C, F>(
        &self,
        env: &Env,
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

    /// Not an `async fn`, which would move its arguments once more.
    #[inline]
    fn repeat<T, E, C, F>(
        &self,
        env: &Env,
        classify: C,
        mut ask: Ask,
        mut work: impl FnMut(Ask) -> F,
        repeat: Repeat,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
    {
        async move {
            let rules = &*self.0;
            if ask.is_late() {
                let failure = Failure::Refused(Refusal::new(Why::Deadline));
                return Err(GaveUp { failure, why: Stop::Deadline, attempts: 0 });
            }
            let mut made = Made { attempts: 1, most: rules.attempts, by_caller: ask.attempt > 0, repeat };
            if let (Some(budget), false) = (&rules.budget, made.by_caller) {
                budget.first(ask.at);
            }
            let mut extra = None;
            // Boxed, because most operations never wait and all of them would carry it.
            let mut waits = None;
            loop {
                let deadline = earlier(ask.deadline, rules.timeout.map(|timeout| ask.at + timeout));
                let attempt = work(Ask { deadline, ..ask.clone() });
                let outcome = by(env, deadline, attempt).await.unwrap_or(Err(Failure::TimedOut));
                let (verdict, outcome) = judge(&classify, outcome);
                rules.learn(&outcome, &verdict);
                drop(extra.take());
                let next = match &outcome {
                    Ok(_) if verdict == Verdict::Ok => {
                        return outcome.map_err(|failure| made.gave_up(failure, Stop::Final));
                    }
                    Ok(_) => made.next(None, &verdict),
                    Err(failure) => made.next(Some(failure.kind()), &verdict),
                };
                let scheduled = rules.schedule(env.now(), ask.deadline, &mut waits, &next);
                let resume = match scheduled {
                    Ok((resume, charge)) => {
                        extra = charge;
                        resume
                    }
                    Err(why) => return outcome.map_err(|failure| made.gave_up(failure, why)),
                };
                drop(outcome);
                ask.at = env.sleep_until(resume).await;
                extra.iter_mut().for_each(Extra::begin);
                env.tell(&Event::Retry);
                ask.attempt = ask.attempt.saturating_add(1);
                made.attempts += 1;
            }
        }
    }
}

impl Rules {
    #[inline]
    fn learn<T, E>(&self, outcome: &Result<T, Failure<E>>, verdict: &Verdict) {
        // What our own gates refused never reached the origin.
        if let (Some(budget), false) = (&self.budget, matches!(outcome, Err(Failure::Refused(_)))) {
            budget.learn(verdict);
        }
    }

    /// When to go on, paid for; or why not.
    fn schedule(
        &self,
        now: Tick,
        deadline: Option<Tick>,
        waits: &mut Option<Box<Waits>>,
        next: &Next,
    ) -> Result<(Tick, Option<Extra>), Stop> {
        let (pace, after, charged) = match *next {
            Next::Stop(why) => return Err(why),
            Next::Wait { pace, after, charged } => (pace, after, charged),
        };
        let waits = waits.get_or_insert_with(|| Box::new(Waits::new(self)));
        let resume = now + waits.delay(&self.rng, pace, after);
        if deadline.is_some_and(|deadline| resume >= deadline) {
            return Err(Stop::Deadline);
        }
        let extra = match &self.budget {
            Some(budget) if charged => Some(budget.try_spend(now, Spend::Retry).map_err(|_| Stop::Budget)?),
            _ => None,
        };
        Ok((resume, extra))
    }
}

impl Waits {
    fn new(rules: &Rules) -> Waits {
        Waits { fault: rules.fault.delays(), overload: rules.overload.delays() }
    }

    fn delay(&mut self, rng: &Rng, pace: Pace, after: Option<RetryAfter>) -> Duration {
        let (delays, other) = match pace {
            Pace::Fault => (&mut self.fault, &mut self.overload),
            Pace::Overload => (&mut self.overload, &mut self.fault),
        };
        other.next(rng);
        match after {
            Some(after) => delays.next_after(after, rng),
            None => delays.next(rng),
        }
    }
}

pin_project! {
    /// Work that has until a tick, from [`by`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct By<'a, F> {
        env: &'a Env,
        deadline: Option<Tick>,
        #[pin]
        work: F,
        sleep: Option<Sleep>,
    }
}

/// Does the work until this tick at the latest; `None` if it was not done by then, and dropped. Work that is ready at once
/// costs no timer.
#[inline]
pub fn by<F: Future>(env: &Env, deadline: Option<Tick>, work: F) -> By<'_, F> {
    By { env, deadline, work, sleep: None }
}

impl<F: Future> Future for By<'_, F> {
    type Output = Option<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let by = self.project();
        if let Poll::Ready(output) = by.work.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let Some(deadline) = *by.deadline else { return Poll::Pending };
        let sleep = by.sleep.get_or_insert_with(|| by.env.sleep_until(deadline));
        Pin::new(sleep).poll(cx).map(|_| None)
    }
}

/// What the outcome says, by the rule for the answers and errors in it.
#[inline]
fn judge<T, E>(classify: &impl Classify<T, E>, outcome: Result<T, Failure<E>>) -> (Verdict, Result<T, Failure<E>>) {
    let judge = |plain: Result<T, E>, wrap: fn(E) -> Failure<E>| (classify.classify(&plain), plain.map_err(wrap));
    match outcome {
        Ok(value) => judge(Ok(value), Failure::Failed),
        Err(Failure::Failed(error)) => judge(Err(error), Failure::Failed),
        Err(Failure::Unsent(error)) => judge(Err(error), Failure::Unsent),
        Err(Failure::NoRetry(error)) => judge(Err(error), Failure::NoRetry),
        Err(failure @ (Failure::TimedOut | Failure::Refused(_))) => (Verdict::Fault, Err(failure)),
    }
}

fn earlier(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
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
