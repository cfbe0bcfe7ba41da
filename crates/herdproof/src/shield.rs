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
//! | [`queue`](crate::shed::Queue) | so many at once, fixed or found by itself, and a line before them | behind the breaker: while the origin is down nobody stands in it |
//! | [`rate`](crate::limit::RateLimit) | so many in a second | behind the line: callers who stood in it with a slot in hand would all leave at once after a stall |
//! | breaker again | asked anew if it changed | for those who waited meanwhile: a line is not led to an origin that went down |
//! | timeout | bounds one attempt | innermost: a timeout is a fault of the origin, and all of the above learn of it |
//!
//! Up to the breaker's second answer an attempt holds [places](crate::gate::Place), which cost nothing if one of the gates refuses;
//! then all are committed together. A hedge needs a seat and a slot of its own that are free at once: it does not wait.
//!
//! A cache and a [`flight`](crate::flight) stand outside all of this: one leader's retries serve all of its followers.
//!
//! | preset | attempts | timeout | at once | throttle | hedge |
//! |---|---|---|---|---|---|
//! | [`for_http`](Shield::for_http) | 3 | 10 s | found by itself, 20 at first | yes | if asked for |
//! | [`for_database`](Shield::for_database) | 2 | 5 s | 20 | no | no |
//! | [`for_cache`](Shield::for_cache) | 1 | 100 ms | found by itself, 20 at first | no | yes |
//!
//! A thousand may stand in the line, each for as long as an attempt may take (10 s without a timeout). A line that stands for that
//! long is an overload: then the newest are served first and the oldest are refused, and told when to come back.

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
    gate::{Ask, Classify, Gate, Permit, Place, Refusal, Span, Verdict},
    hedge::{Hedge, HedgeBuilder, Lesson, Which},
    limit::{AdaptiveLimit, Rate, RateLimit},
    retry::{Failure, GaveUp, Retry, RetryBuilder},
    shed::Queue,
    throttle::Throttle,
    timeout::by,
};

/// How long anybody stands in line where attempts have no timeout.
const PATIENCE: Duration = Duration::from_secs(10);

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
    at_once: Option<AtOnce>,
    timeout: Option<Duration>,
}

/// What decides how many there are at once.
enum AtOnce {
    Fixed(u32),
    Adaptive(AdaptiveLimit),
    Queue(Queue),
}

struct Parts {
    env: Env,
    budget: Budget,
    retry: Retry,
    hedge: Option<Hedge>,
    throttle: Option<Throttle>,
    breaker: Option<Breaker>,
    rate: Option<RateLimit>,
    queue: Option<Queue>,
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
        self.at_once = Some(AtOnce::Fixed(most));
        self
    }

    /// As many at once as the origin turns out to bear, and a line for those beyond. A limit for this shield alone: shields that
    /// share one share a [`queue`](ShieldBuilder::queue).
    pub fn adaptive(mut self, limit: AdaptiveLimit) -> ShieldBuilder {
        self.at_once = Some(AtOnce::Adaptive(limit));
        self
    }

    /// As many at once as this queue has seats, with its line.
    pub fn queue(mut self, queue: Queue) -> ShieldBuilder {
        self.at_once = Some(AtOnce::Queue(queue));
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> ShieldBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// The shield.
    pub fn build(self) -> Shield {
        let ShieldBuilder { env, budget, retry, hedge, throttle, breaker, rate, at_once, timeout } = self;
        let rate = rate.map(|rate| RateLimit::new(&env, rate));
        let queue = at_once.map(|at_once| at_once.queue(&env, timeout.unwrap_or(PATIENCE)));
        let hedge = hedge.map(|hedge| {
            let (clock, closed, queue, rate) = (env.clone(), breaker.clone(), queue.clone(), rate.clone());
            let calm = move || {
                closed.as_ref().is_none_or(Breaker::is_closed)
                    && queue.as_ref().is_none_or(|queue| queue.inside() < queue.seats())
                    && rate.as_ref().is_none_or(|rate| rate.has_slot(clock.now()))
            };
            hedge.budget(&budget).only_if(calm).build()
        });
        let retry = retry.budget(&budget).build();
        Shield(Arc::new(Parts { env, budget, retry, hedge, throttle, breaker, rate, queue, timeout }))
    }
}

impl AtOnce {
    /// The seats, and a line before them in which a rush as long as `patience` is sat out.
    fn queue(self, env: &Env, patience: Duration) -> Queue {
        let builder = match self {
            AtOnce::Queue(queue) => return queue,
            AtOnce::Fixed(most) => Queue::builder(env, most),
            AtOnce::Adaptive(limit) => Queue::builder(env, u32::MAX).adaptive(limit),
        };
        // It takes a line 20 targets to be an overload.
        builder.patience(patience).target(patience / 20).build()
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
            at_once: None,
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
                    let one = |ask, which| parts.judged(classify, ask, which, move |ask| work(ask, which));
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

    /// How many are under way and how many wait, if there is a limit on how many at once.
    pub fn queue(&self) -> Option<&Queue> {
        self.0.queue.as_ref()
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
        Plainly { judged: self.judged(classify, ask, Which::First, work) }
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
        which: Which,
        work: impl FnOnce(Ask) -> F,
    ) -> impl Future<Output = Judged<T, E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        async move {
            let throttle = pass!(self.throttle.as_ref().map(Throttle::borrowed).try_reserve(&ask), ask);
            let breakers = self.breaker.as_ref().map(Breaker::borrowed);
            let mut breaker = pass!(breakers.try_reserve(&ask), ask);
            // Not by `reserve`, whose future would be moved even if there is nothing to wait for.
            let seat = match (&self.queue, which) {
                (Some(queue), Which::First) => match queue.seat_or_line(&ask) {
                    Ok(seat) => Some(pass!(seat, ask)),
                    Err(line) => Some(pass!(queue.wait(line, &mut ask).await, ask)),
                },
                (queue, _) => pass!(queue.try_reserve(&ask), ask),
            };
            let slot = match (&self.rate, which) {
                (Some(rate), Which::First) => {
                    let slot = pass!(rate.slot(&ask), ask);
                    if slot.at() > ask.at {
                        ask.at = self.env.sleep_until(slot.at()).await;
                    }
                    Some(slot)
                }
                (rate, _) => pass!(rate.try_reserve(&ask), ask),
            };
            // Whoever waited may be late by now.
            pass!(ask.on_time(), ask);
            pass!(breakers.renew(&mut breaker, &ask), ask);
            let (throttle, breaker, seat, slot) = (throttle.commit(), breaker.commit(), seat.commit(), slot.commit());
            let from = ask.at;
            ask.deadline = self.until(&ask);
            let outcome = by(&self.env, ask.deadline, work(ask)).await;
            let verdict = outcome.as_ref().map_or(Verdict::Fault, |outcome| classify.classify(outcome));
            let over = self.env.now();
            let span = Span { from, to: over };
            slot.settle(&verdict, span);
            seat.settle(&verdict, span);
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
        let Parts { retry, hedge, breaker, queue, timeout, .. } = &*self.0;
        f.debug_struct("Shield")
            .field("retry", retry)
            .field("hedge", hedge)
            .field("breaker", breaker)
            .field("queue", queue)
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
