//! All of it, in the order that works.
//!
//! Retries outside a breaker or inside, the limit before the queue or after, the timeout around the retries or around each:
//! most orders are wrong, and what is wrong shows in the next outage. A [`Shield`] is one upstream's policies in the
//! recommended order behind one call, with defaults that are safe for what the upstream is.
//!
//! ```
//! use herdproof::{Env, gate::{Ask, result}, shield::Shield};
//! # use std::io::Error;
//! # async fn get(_: Ask) -> Result<u32, Error> { Ok(42) }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let orders = Shield::for_http(&env).build(); // one for each upstream
//! let answer = orders.run(result, Ask::new(&env), |ask, _which| get(ask)).await;
//! assert_eq!(answer.unwrap(), 42);
//! # });
//! ```
//!
//! From the outside in, and this file is the only one that knows it:
//!
//! | | what it does | why there |
//! |---|---|---|
//! | deadline | nothing is begun that would come too late | before anything is paid for |
//! | [`retry`](crate::retry) | tries again, within the budget | around everything that may say no: every attempt asks anew, and no permit is held through a backoff |
//! | [`hedge`](crate::hedge) | a second attempt beside a slow one | inside the retry, so that a retry is hedged as one attempt; charged to the same budget |
//! | [`throttle`](crate::throttle) | asks less while the origin refuses | before the breaker: it acts while things still work |
//! | [`breaker`](crate::breaker) | stops asking | before the limits, so that refused calls take no room |
//! | [`limit`](crate::limit): rate | so many in a second | before those at once: who waits for a slot takes no room |
//! | [`limit`](crate::limit): at once | so many at once, fixed or found | last, so that it counts what is really under way |
//! | breaker again | asked anew if it changed | for those who waited meanwhile: a line is not led to an origin that went down |
//! | timeout | bounds one attempt | innermost: a timeout is a fault of the origin, and all of the above learn of it |
//!
//! A cache and a [`flight`](crate::flight) stand outside all of this: one leader's retries serve all of its followers.
//!
//! | preset | attempts | timeout | at once | throttle | hedge |
//! |---|---|---|---|---|---|
//! | [`for_http`](Shield::for_http) | 3 | 10 s | found by itself | yes | if asked for |
//! | [`for_database`](Shield::for_database) | 2 | 5 s | 20, and a line | no | no |
//! | [`for_cache`](Shield::for_cache) | 1 | 100 ms | found by itself | no | yes |

#![expect(clippy::manual_async_fn, reason = "an async fn moves its arguments once more than an async block")]

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    breaker::{Breaker, BreakerBuilder},
    budget::Budget,
    env::{Env, Tick},
    gate::{Ask, Classify, Gate, Permit, Refusal, Span, Verdict, Why},
    hedge::{Hedge, HedgeBuilder, Lesson, Which},
    limit::{AdaptiveLimit, Bulkhead, Rate, RateLimit},
    retry::{Failure, GaveUp, Retry, RetryBuilder, by},
    throttle::Throttle,
};

/// One upstream's policies in their order; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Shield(Arc<Parts>);

/// How a [`Shield`] is made.
#[must_use]
pub struct ShieldBuilder {
    env: Env,
    budget: Budget,
    retry: RetryBuilder,
    hedge: Option<HedgeBuilder>,
    throttle: Option<Throttle>,
    breaker: Option<Breaker>,
    rate: Option<Rate>,
    bulkhead: Option<Bulkhead>,
    adaptive: Option<AdaptiveLimit>,
    timeout: Option<Duration>,
}

struct Parts {
    env: Env,
    budget: Budget,
    retry: Retry,
    hedge: Option<Hedge>,
    throttle: Option<Throttle>,
    breaker: Option<Breaker>,
    rate: Option<RateLimit>,
    bulkhead: Option<Bulkhead>,
    adaptive: Option<AdaptiveLimit>,
    timeout: Option<Duration>,
}

impl ShieldBuilder {
    /// How attempts are repeated; see [`RetryBuilder`]. The budget is the shield's own, whatever is said here.
    pub fn retry(mut self, change: impl FnOnce(RetryBuilder) -> RetryBuilder) -> ShieldBuilder {
        self.retry = change(self.retry);
        self
    }

    /// Sends a second attempt beside a slow one; see [`HedgeBuilder`]. For what may be done twice: it has no part in
    /// [`run_at_most_once`](Shield::run_at_most_once).
    pub fn hedge(mut self, change: impl FnOnce(HedgeBuilder) -> HedgeBuilder) -> ShieldBuilder {
        self.hedge = Some(change(self.hedge.unwrap_or_else(|| Hedge::builder(&self.env))));
        self
    }

    /// What retries and hedges are paid from: the same for every shield of one upstream, and for its refreshes.
    pub fn budget(mut self, budget: &Budget) -> ShieldBuilder {
        self.budget = budget.clone();
        self
    }

    /// When to stop asking; see [`BreakerBuilder`].
    pub fn breaker(mut self, change: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> ShieldBuilder {
        self.breaker = Some(change(Breaker::builder(&self.env)).build());
        self
    }

    /// Asks less while the origin refuses, by this throttle, or not at all.
    pub fn throttle(mut self, throttle: Option<Throttle>) -> ShieldBuilder {
        self.throttle = throttle;
        self
    }

    /// So many in a second.
    pub fn rate(mut self, rate: Rate) -> ShieldBuilder {
        self.rate = Some(rate);
        self
    }

    /// So many at once, a fixed number, and a line for those beyond.
    pub fn at_once(mut self, most: u32) -> ShieldBuilder {
        self.bulkhead = Some(Bulkhead::new(&self.env, most));
        self.adaptive = None;
        self
    }

    /// As many at once as the origin turns out to bear.
    pub fn adaptive(mut self, limit: AdaptiveLimit) -> ShieldBuilder {
        self.adaptive = Some(limit);
        self.bulkhead = None;
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> ShieldBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// The shield.
    pub fn build(self) -> Shield {
        let ShieldBuilder { env, budget, retry, hedge, throttle, breaker, rate, bulkhead, adaptive, timeout } = self;
        let rate = rate.map(|rate| RateLimit::new(&env, rate));
        let hedge = hedge.map(|hedge| {
            let (closed, limit) = (breaker.clone(), adaptive.clone());
            let (clock, rate, room) = (env.clone(), rate.clone(), bulkhead.clone());
            let calm = move || {
                closed.as_ref().is_none_or(Breaker::is_closed)
                    && limit.as_ref().is_none_or(|limit| limit.in_flight() < limit.limit())
                    && room.as_ref().is_none_or(Bulkhead::has_room)
                    && rate.as_ref().is_none_or(|rate| rate.has_slot(clock.now()))
            };
            hedge.budget(&budget).only_if(calm).build()
        });
        let retry = retry.budget(&budget).build();
        Shield(Arc::new(Parts { env, budget, retry, hedge, throttle, breaker, rate, bulkhead, adaptive, timeout }))
    }
}

impl Shield {
    /// Nothing but a breaker and a budget for retries; the rest is to be asked for.
    pub fn builder(env: &Env) -> ShieldBuilder {
        ShieldBuilder {
            env: env.clone(),
            budget: Budget::new(env),
            retry: Retry::builder(env),
            hedge: None,
            throttle: None,
            breaker: Some(Breaker::new(env)),
            rate: None,
            bulkhead: None,
            adaptive: None,
            timeout: None,
        }
    }

    /// For a service that is called over HTTP: three attempts of 10 s, as many at once as it bears, less while it refuses.
    pub fn for_http(env: &Env) -> ShieldBuilder {
        Shield::builder(env)
            .timeout(Duration::from_secs(10))
            .throttle(Some(Throttle::new(env)))
            .adaptive(AdaptiveLimit::new(env))
    }

    /// For a database: as many at once as a pool has connections, two attempts of 5 s, and a breaker that also opens when
    /// most calls take longer than a second. Its calls are few and dear, so it opens after five faults.
    pub fn for_database(env: &Env) -> ShieldBuilder {
        Shield::builder(env)
            .timeout(Duration::from_secs(5))
            .retry(|retry| retry.attempts(2))
            .breaker(|breaker| breaker.faults(5).slow(Duration::from_secs(1), 0.5))
            .at_once(20)
    }

    /// For a cache over the network: an answer within 100 ms or none, no retries (what is behind it is asked instead), and
    /// hedges against the slow one in twenty.
    pub fn for_cache(env: &Env) -> ShieldBuilder {
        Shield::builder(env)
            .timeout(Duration::from_millis(100))
            .retry(|retry| retry.attempts(1))
            .adaptive(AdaptiveLimit::new(env))
            .hedge(|hedge| hedge)
    }

    /// Does the work behind all of it. For what may be done twice.
    ///
    /// The work gets the [`Ask`] of its attempt, with its number and deadline, and which of two attempts beside each other
    /// it is. It is not called before the gates have let the attempt in. What is known of a failure beside its verdict, that it
    /// was never sent or that a layer below has given up, the classifier says by a [`Judgement`](crate::gate::Judgement).
    pub fn run<T, E, C, F>(
        &self,
        classify: C,
        ask: Ask,
        work: impl Fn(Ask, Which) -> F,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, E>>,
    {
        async move {
            let parts = &*self.0;
            let (classify, work) = (&classify, &work);
            let judge = |outcome: &Result<T, E>| classify.judge(outcome);
            match &parts.hedge {
                None => {
                    let attempt = |ask: Ask| parts.attempt(classify, ask, move |ask| work(ask, Which::First));
                    parts.retry.run(&parts.env, judge, ask, attempt).await
                }
                Some(hedge) => {
                    let one = |ask, which| parts.judged(classify, ask, move |ask| work(ask, which));
                    let attempt =
                        |ask: Ask| async move { hedge.race(&parts.env, Judged::says, ask, one).await.outcome };
                    parts.retry.run(&parts.env, judge, ask, attempt).await
                }
            }
        }
    }

    /// As [`run`](Shield::run), for what must not be done twice: tried again only if it was certainly not begun, and never
    /// hedged.
    pub fn run_at_most_once<T, E, C, F>(
        &self,
        classify: C,
        ask: Ask,
        work: impl Fn(Ask) -> F,
    ) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, E>>,
    {
        async move {
            let parts = &*self.0;
            let (classify, work) = (&classify, &work);
            let judge = |outcome: &Result<T, E>| classify.judge(outcome);
            let attempt = |ask: Ask| parts.attempt(classify, ask, work);
            parts.retry.run_at_most_once(&parts.env, judge, ask, attempt).await
        }
    }

    /// What retries and hedges are paid from; for refreshes too.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// The breaker, if there is one: to look at, or to hold open.
    pub fn breaker(&self) -> Option<&Breaker> {
        self.0.breaker.as_ref()
    }

    /// The limit that finds itself, if there is one.
    pub fn adaptive(&self) -> Option<&AdaptiveLimit> {
        self.0.adaptive.as_ref()
    }
}

/// What came of an attempt, what that says, and when.
struct Judged<T, E> {
    outcome: Result<T, Failure<E>>,
    lesson: Lesson,
    over: Tick,
}

impl<T, E> Judged<T, E> {
    #[inline]
    fn says(&self) -> (Lesson, Tick) {
        (self.lesson, self.over)
    }

    /// What our own gates refuse was not begun.
    #[cold]
    fn refused(refusal: Refusal, at: Tick) -> Judged<T, E> {
        Judged { outcome: Err(Failure::Refused(refusal)), lesson: Lesson::Absent { begun: false }, over: at }
    }
}

pin_project! {
    /// An attempt, without what it says. Not an `async` block, which would move it.
    struct Plainly<F> {
        #[pin]
        judged: F,
    }
}

impl<T, E, F: Future<Output = Judged<T, E>>> Future for Plainly<F> {
    type Output = Result<T, Failure<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().judged.poll(cx).map(|judged| judged.outcome)
    }
}

#[inline]
fn on_time(ask: &Ask) -> Result<(), Refusal> {
    if ask.is_late() { Err(Refusal::new(Why::Deadline)) } else { Ok(()) }
}

/// Goes through a gate of ours, or says that it was refused.
macro_rules! pass {
    ($entered:expr, $ask:ident) => {
        match $entered {
            Ok(permit) => permit,
            Err(refusal) => return Judged::refused(refusal, $ask.at),
        }
    };
}

impl Parts {
    #[inline]
    fn attempt<T, E, F>(
        &self,
        classify: &impl Classify<T, E>,
        ask: Ask,
        work: impl FnOnce(Ask) -> F,
    ) -> impl Future<Output = Result<T, Failure<E>>>
    where
        F: Future<Output = Result<T, E>>,
    {
        Plainly { judged: self.judged(classify, ask, work) }
    }

    /// One attempt through all gates, bounded by the timeout.
    ///
    /// Not as one chain of gates, which would move all permits once for each gate; and not as an `async fn`, which would
    /// move its arguments once more.
    #[inline]
    fn judged<T, E, F>(
        &self,
        classify: &impl Classify<T, E>,
        mut ask: Ask,
        work: impl FnOnce(Ask) -> F,
    ) -> impl Future<Output = Judged<T, E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        async move {
            let throttle = pass!(self.throttle.as_ref().map(Throttle::borrowed).try_enter(&ask), ask);
            let mut breaker = pass!(self.breaker.as_ref().map(Breaker::borrowed).try_enter(&ask), ask);
            let rate = match &self.rate {
                Some(rate) => {
                    let permit = pass!(rate.reserve(&ask), ask);
                    if permit.at() > ask.at {
                        ask.at = self.env.sleep_until(permit.at()).await;
                    }
                    Some(permit)
                }
                None => None,
            };
            // Whoever waited may be late by now.
            pass!(on_time(&ask), ask);
            let bulkhead = match &self.bulkhead {
                Some(bulkhead) => Some(pass!(bulkhead.enter(&mut ask).await, ask)),
                None => None,
            };
            pass!(on_time(&ask), ask);
            if breaker.as_ref().is_some_and(|pass| !pass.holds()) {
                // First, so that a probe that has waited for too long does not stand in its own way.
                drop(breaker);
                breaker = pass!(self.breaker.as_ref().map(Breaker::borrowed).try_enter(&ask), ask);
            }
            let adaptive = pass!(self.adaptive.as_ref().map(AdaptiveLimit::borrowed).try_enter(&ask), ask);
            let from = ask.at;
            ask.deadline = self.until(&ask);
            let outcome = by(&self.env, ask.deadline, work(ask)).await;
            let verdict = outcome.as_ref().map_or(Verdict::Fault, |outcome| classify.classify(outcome));
            let over = self.env.now();
            let span = Span { from, to: over };
            adaptive.settle(&verdict, span);
            bulkhead.settle(&verdict, span);
            rate.settle(&verdict, span);
            breaker.settle(&verdict, span);
            throttle.settle(&verdict, span);
            let outcome = outcome.map_or(Err(Failure::TimedOut), |outcome| outcome.map_err(Failure::Failed));
            Judged { lesson: Lesson::of(&verdict, outcome.is_ok()), outcome, over }
        }
    }

    /// Until when an attempt that begins now may take.
    #[inline]
    fn until(&self, ask: &Ask) -> Option<Tick> {
        let timeout = self.timeout.map(|timeout| ask.at + timeout);
        match (ask.deadline, timeout) {
            (Some(deadline), Some(timeout)) => Some(deadline.min(timeout)),
            (deadline, timeout) => deadline.or(timeout),
        }
    }
}

impl fmt::Debug for Shield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { retry, hedge, breaker, adaptive, timeout, .. } = &*self.0;
        f.debug_struct("Shield")
            .field("retry", retry)
            .field("hedge", hedge)
            .field("breaker", breaker)
            .field("adaptive", adaptive)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ShieldBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShieldBuilder { retry, hedge, timeout, .. } = self;
        f.debug_struct("ShieldBuilder")
            .field("retry", retry)
            .field("hedge", hedge)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
