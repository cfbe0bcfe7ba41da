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
//! That an attempt was never begun, or that those below have given up, is said by the work, as a [`Failure`], or by the
//! classifier, as a [`Judgement`].
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

mod decide;
mod failure;
pub mod wire;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use decide::{Kind, Made, Next, Pace, Repeat};
pub use failure::{Failure, GaveUp, Stop};
use pin_project_lite::pin_project;

use crate::{
    backoff::{Backoff, Delays, RetryAfter},
    budget::{Budget, Extra, Spend},
    env::{Env, Rng, Sleep, Tick},
    event::Event,
    gate::{Ask, Classify, Judgement, Refusal, Verdict, Why},
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
        let operation = Operation { rules: &self.0, env, classify, ask, work, repeat };
        Run { operation: Some(operation), step: Step::Unbegun, again: Operation::again }
    }
}

/// What is to be done, and by which rules.
struct Operation<'a, C, W> {
    rules: &'a Rules,
    env: &'a Env,
    classify: C,
    ask: Ask,
    work: W,
    repeat: Repeat,
}

pin_project! {
    /// The first attempt, and whatever comes after it. Written by hand, because an async block keeps all that it might need
    /// in memory from the beginning, and most operations need none of it: their first attempt succeeds.
    struct Run<'a, C, W, F, A, G> {
        // Taken when there is more to do than the first attempt.
        operation: Option<Operation<'a, C, W>>,
        #[pin]
        step: Step<F, A>,
        // `Operation::again`, whose future has no name.
        again: G,
    }
}

pin_project! {
    #[project = StepProjected]
    enum Step<F, A> {
        Unbegun,
        // What `By` would be made of beside this is in the operation.
        First { #[pin] work: F, sleep: Option<Sleep> },
        // On the heap, because most operations never come to it, and all of them would carry it.
        Again { again: Pin<Box<A>> },
    }
}

impl<'a, T, E, C, W, F, A, G> Future for Run<'a, C, W, F, A, G>
where
    C: Classify<T, E>,
    F: Future<Output = Result<T, Failure<E>>>,
    W: FnMut(Ask) -> F,
    A: Future<Output = Result<T, GaveUp<E>>>,
    G: Fn(Operation<'a, C, W>, Judgement, Result<T, Failure<E>>) -> A,
{
    type Output = Result<T, GaveUp<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut run = self.project();
        if let (StepProjected::Unbegun, Some(operation)) = (run.step.as_mut().project(), run.operation.as_mut()) {
            if operation.ask.is_late() {
                let failure = Failure::Refused(Refusal::new(Why::Deadline));
                return Poll::Ready(Err(GaveUp { failure, why: Stop::Deadline, attempts: 0 }));
            }
            let attempt = operation.attempt();
            let work = (operation.work)(attempt);
            run.step.set(Step::First { work, sleep: None });
            // After what was just written is copied, since as far as a compiler knows the budget changes it.
            operation.begin();
        }
        if let (StepProjected::First { work, sleep }, Some(operation)) = (run.step.as_mut().project(), &run.operation) {
            let outcome = match work.poll(cx) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => ready!(cut_off(operation.env, operation.until(), sleep, cx)),
            };
            let (judgement, outcome) = operation.judge(outcome);
            if let (Ok(_), Verdict::Ok) = (&outcome, judgement.verdict()) {
                return Poll::Ready(outcome.map_err(|failure| GaveUp { failure, why: Stop::Final, attempts: 1 }));
            }
            if let Some(operation) = run.operation.take() {
                run.step.set(Step::Again { again: Box::pin((run.again)(operation, judgement, outcome)) });
            }
        }
        match run.step.project() {
            StepProjected::Again { again } => again.as_mut().poll(cx),
            StepProjected::Unbegun | StepProjected::First { .. } => unreachable!("the first attempt is over"),
        }
    }
}

impl<C, W> Operation<'_, C, W> {
    #[inline]
    fn begin(&self) {
        // One that is somebody else's retry is no first attempt.
        if let (Some(budget), 0) = (&self.rules.budget, self.ask.attempt) {
            budget.first(self.ask.at);
        }
    }

    /// When the present attempt is cut off.
    #[inline]
    fn until(&self) -> Option<Tick> {
        earlier(self.ask.deadline, self.rules.timeout.map(|timeout| self.ask.at + timeout))
    }

    /// What the present attempt is told.
    #[inline]
    fn attempt(&self) -> Ask {
        Ask { deadline: self.until(), ..self.ask.clone() }
    }

    /// What an attempt has come to, which the budget is told too.
    #[inline]
    fn judge<T, E>(&self, outcome: Option<Result<T, Failure<E>>>) -> (Judgement, Result<T, Failure<E>>)
    where
        C: Classify<T, E>,
    {
        let (judgement, outcome) = judge(&self.classify, outcome.unwrap_or(Err(Failure::TimedOut)));
        self.rules.learn(&outcome, &judgement.verdict());
        (judgement, outcome)
    }

    /// What comes after a first attempt that did not succeed.
    async fn again<T, E, F>(
        mut self,
        mut judgement: Judgement,
        mut outcome: Result<T, Failure<E>>,
    ) -> Result<T, GaveUp<E>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
        W: FnMut(Ask) -> F,
    {
        let Operation { rules, env, repeat, .. } = self;
        let mut made = Made { attempts: 1, most: rules.attempts, by_caller: self.ask.attempt > 0, repeat };
        let mut waits = Waits::new(rules);
        loop {
            let verdict = judgement.verdict();
            let next = match &outcome {
                Ok(_) if verdict == Verdict::Ok => {
                    return outcome.map_err(|failure| made.gave_up(failure, Stop::Final));
                }
                Ok(_) => made.next(Kind::of_answer(judgement), &verdict),
                Err(failure) => made.next(Some(failure.kind()), &verdict),
            };
            let (resume, mut extra) = match rules.schedule(env.now(), self.ask.deadline, &mut waits, &next) {
                Ok(scheduled) => scheduled,
                Err(why) => return outcome.map_err(|failure| made.gave_up(failure, why)),
            };
            // An answer is not kept: it may hold the very connection that the next attempt needs.
            let error = outcome.err();
            self.ask.at = env.sleep_until(resume).await;
            if self.ask.is_late() {
                // Timers may be late.
                let failure = error.unwrap_or(Failure::Refused(Refusal::new(Why::Deadline)));
                return Err(made.gave_up(failure, Stop::Deadline));
            }
            drop(error);
            extra.iter_mut().for_each(Extra::begin);
            env.tell(&Event::Retry);
            self.ask.attempt = self.ask.attempt.saturating_add(1);
            made.attempts += 1;
            (judgement, outcome) = {
                let attempt = self.attempt();
                let came = by(env, attempt.deadline, (self.work)(attempt)).await;
                self.judge(came)
            };
            drop(extra);
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
        waits: &mut Waits,
        next: &Next,
    ) -> Result<(Tick, Option<Extra>), Stop> {
        let (pace, after, charged) = match *next {
            Next::Stop(why) => return Err(why),
            Next::Wait { pace, after, charged } => (pace, after, charged),
        };
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
        cut_off(by.env, *by.deadline, by.sleep, cx)
    }
}

/// Whether the time of work that is not done yet is over, which is to say that nothing comes of it.
fn cut_off<T>(env: &Env, deadline: Option<Tick>, sleep: &mut Option<Sleep>, cx: &mut Context<'_>) -> Poll<Option<T>> {
    let Some(deadline) = deadline else { return Poll::Pending };
    let sleep = sleep.get_or_insert_with(|| env.sleep_until(deadline));
    Pin::new(sleep).poll(cx).map(|_| None)
}

/// What the outcome says, by the rule for the answers and errors in it. Where the work itself says how it failed, that stands.
#[inline]
fn judge<T, E>(classify: &impl Classify<T, E>, outcome: Result<T, Failure<E>>) -> (Judgement, Result<T, Failure<E>>) {
    let judge = |plain: Result<T, E>, wrap: fn(Judgement, E) -> Failure<E>| {
        let judgement = classify.judge(&plain);
        (judgement, plain.map_err(|error| wrap(judgement, error)))
    };
    match outcome {
        Ok(value) => judge(Ok(value), Failure::judged),
        Err(Failure::Failed(error)) => judge(Err(error), Failure::judged),
        Err(Failure::Unsent(error)) => judge(Err(error), |_, error| Failure::Unsent(error)),
        Err(Failure::NoRetry(error)) => judge(Err(error), |_, error| Failure::NoRetry(error)),
        Err(failure @ (Failure::TimedOut | Failure::Refused(_))) => (Verdict::Fault.into(), Err(failure)),
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
