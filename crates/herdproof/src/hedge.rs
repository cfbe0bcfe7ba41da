//! A second attempt beside a slow first one.
//!
//! One request in twenty is slow for no reason of its own: a pause, a lost packet, a busy core. Asking a second time after
//! the time that nineteen in twenty take, and using whichever answers first, cuts off that tail for a twentieth more load.
//! That is so while the origin is well. When *everything* is slow every request is hedged, the load doubles, and the hedge
//! is what keeps the origin slow. So a hedge is sent only if all of this holds:
//!
//! | condition | default |
//! |---|---|
//! | enough is known about how long it takes, or a wait was set for when it is not ([`unknown`](HedgeBuilder::unknown)) | 100 answers lately |
//! | the hedges' own budget | one in twenty first attempts, no floor |
//! | the [`Budget`] shared with retries and refreshes, if one is given | |
//! | few failures lately | fewer than one in ten |
//! | enough time left | more than the median |
//! | whatever else is asked for ([`only_if`](HedgeBuilder::only_if)): breaker closed, limit not binding | |
//!
//! ```
//! use herdproof::{Env, gate::{Ask, result}, hedge::{Hedge, Which}};
//! # use std::io::Error;
//! # async fn get(_host: &str, _: Ask) -> Result<u32, Error> { Ok(42) }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let hedge = Hedge::new(&env); // one for each upstream: it learns how long that takes
//! let answer = hedge.run(&env, result, Ask::new(&env), |ask, which| {
//!     // Not to the same host: if that is what is slow, it will be slow again.
//!     let host = if which == Which::First { "one" } else { "other" };
//!     get(host, ask)
//! });
//! assert_eq!(answer.await.unwrap(), 42);
//! # });
//! ```
//!
//! For what may be done twice only. The attempt that loses is dropped; how long the first had taken by then counts as its
//! time, or the slow ones would never be counted and hedges would come sooner and sooner.

#![expect(clippy::manual_async_fn, reason = "an async fn moves its arguments once more than an async block")]

mod share;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use share::Share;

use crate::{
    budget::{Budget, Extra, Spend},
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Classify, Verdict},
    histogram::Histogram,
};

/// A rule for second attempts; see the [module](self). Cheap to clone, and clones share what they have learned.
#[derive(Clone)]
pub struct Hedge(Arc<Rules>);

/// How a [`Hedge`] is made.
#[must_use]
pub struct HedgeBuilder {
    env: Env,
    quantile: f64,
    fixed: Option<Duration>,
    unknown: Option<Duration>,
    least: Duration,
    samples: u32,
    ratio: f64,
    floor: f64,
    failures: f64,
    budget: Option<Budget>,
    conditions: Vec<Condition>,
}

type Condition = Box<dyn Fn() -> bool + Send + Sync>;

struct Rules {
    quantile: f64,
    /// How long to wait whatever is known.
    fixed: Option<Duration>,
    /// How long to wait while too little is known.
    unknown: Option<Duration>,
    least: Duration,
    samples: u32,
    failures: f64,
    /// What hedges alone may cost.
    own: Budget,
    /// What all extra work together may cost.
    budget: Option<Budget>,
    conditions: Vec<Condition>,
    times: Histogram,
    failed: Share,
}

/// Which of the two attempts it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The one that is always made.
    First,
    /// The one beside it.
    Second,
}

/// What a hedge learns from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    Good,
    Bad,
    /// It has not failed, but how long it took says nothing.
    Neither,
    Nothing,
    /// There is no answer, and that is not the origin's doing.
    Absent {
        /// Whether the origin may have had the work of it all the same.
        begun: bool,
    },
}

/// What is known when a hedge is due.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    /// The share of attempts that failed lately.
    failed: f64,
    median: Option<Duration>,
    /// How much time is left, if there is a deadline.
    left: Option<Duration>,
}

/// Whether a hedge can help and does no harm, as far as this can be told without asking anybody.
fn is_worthwhile(seen: Seen, most_failures: f64) -> bool {
    let in_time = match (seen.median, seen.left) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(median), Some(left)) => left > median,
    };
    in_time && seen.failed < most_failures
}

impl HedgeBuilder {
    /// The share of answers that are quicker than the wait for a hedge; 0.95 unless told otherwise. From 0.5 to 0.999.
    pub fn quantile(mut self, share: f64) -> HedgeBuilder {
        self.quantile = if share.is_nan() { 0.95 } else { share.clamp(0.5, 0.999) };
        self
    }

    /// Waits this long for a hedge, whatever is known. For contrast, and where the time is known better than it can be
    /// learned: a fixed wait hedges everything when everything is slow.
    pub fn at(mut self, wait: Duration) -> HedgeBuilder {
        self.fixed = Some(wait);
        self
    }

    /// Waits this long for a hedge while too little is known to go by; without it there is none until then. An origin whose
    /// first answer never comes would otherwise hold those who share it for as long as they wait.
    pub fn unknown(mut self, wait: Duration) -> HedgeBuilder {
        self.unknown = Some(wait);
        self
    }

    /// The shortest wait for a hedge; 1 ms unless told otherwise.
    pub fn least(mut self, wait: Duration) -> HedgeBuilder {
        self.least = wait;
        self
    }

    /// How many answers must be known before there are hedges; 100 unless told otherwise. From 1 to 1,000.
    pub fn samples(mut self, least: u32) -> HedgeBuilder {
        self.samples = least.clamp(1, 1000);
        self
    }

    /// How many hedges there may be for each first attempt; 0.05 unless told otherwise. From 0 to 1.
    pub fn ratio(mut self, ratio: f64) -> HedgeBuilder {
        self.ratio = if ratio.is_nan() { 0.0 } else { ratio.clamp(0.0, 1.0) };
        self
    }

    /// How many hedges a second there may be anyway; none unless told otherwise. A share of nearly nothing is nothing: where
    /// first attempts are few, as behind a cache, this is what pays for a hedge.
    pub fn floor(mut self, per_second: f64) -> HedgeBuilder {
        self.floor = per_second;
        self
    }

    /// The share of attempts that may have failed lately; 0.1 unless told otherwise.
    pub fn failures(mut self, most: f64) -> HedgeBuilder {
        self.failures = most;
        self
    }

    /// Charges hedges to this budget too. It is fed by whoever counts first attempts.
    pub fn budget(mut self, budget: &Budget) -> HedgeBuilder {
        self.budget = Some(budget.clone());
        self
    }

    /// Sends hedges only if this holds: a breaker that is closed, a limit that does not bind. May be said several times.
    pub fn only_if(mut self, condition: impl Fn() -> bool + Send + Sync + 'static) -> HedgeBuilder {
        self.conditions.push(Box::new(condition));
        self
    }

    /// The rule.
    pub fn build(self) -> Hedge {
        let HedgeBuilder { env, quantile, fixed, unknown, least, samples, ratio, floor, failures, budget, conditions } =
            self;
        let own = Budget::builder(&env).ratio(ratio).floor(floor).without_circuit().build();
        Hedge(Arc::new(Rules {
            quantile,
            fixed,
            unknown,
            least,
            samples,
            failures,
            own,
            budget,
            conditions,
            times: Histogram::new(4096),
            failed: Share::new(512),
        }))
    }
}

impl Hedge {
    /// The usual rule.
    pub fn new(env: &Env) -> Hedge {
        Hedge::builder(env).build()
    }

    /// A rule in the making.
    pub fn builder(env: &Env) -> HedgeBuilder {
        HedgeBuilder {
            env: env.clone(),
            quantile: 0.95,
            fixed: None,
            unknown: None,
            least: Duration::from_millis(1),
            samples: 100,
            ratio: 0.05,
            floor: 0.0,
            failures: 0.1,
            budget: None,
            conditions: Vec::new(),
        }
    }

    /// Does the work, and a second time beside it if it is slow and nothing speaks against that. Whichever succeeds first
    /// is the answer; if both fail, the first failure is. An error that is [`Ignored`](Verdict::Ignored), such as a refusal
    /// by a gate of our own, does not end the other attempt, and is the answer only if that has none either.
    pub fn run<T, E, C, F>(
        &self,
        env: &Env,
        classify: C,
        ask: Ask,
        work: impl FnMut(Ask, Which) -> F,
    ) -> impl Future<Output = Result<T, E>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, E>>,
    {
        let judge = move |outcome: &Result<T, E>| (Lesson::of(&classify.classify(outcome), outcome.is_ok()), env.now());
        self.race(env, judge, ask, work)
    }

    /// The same, for outcomes that know when they came: a reading of the clock is most of what a ready answer costs.
    #[inline]
    pub(crate) fn race<T, F>(
        &self,
        env: &Env,
        judge: impl Fn(&T) -> (Lesson, Tick),
        ask: Ask,
        mut work: impl FnMut(Ask, Which) -> F,
    ) -> impl Future<Output = T>
    where
        F: Future<Output = T>,
    {
        async move {
            let rules = &*self.0;
            rules.own.first(ask.at);
            let learn = |outcome: &T, from: Tick| {
                let (lesson, over) = judge(outcome);
                rules.learn(lesson, over - from);
                lesson
            };
            let mut first = pin!(work(ask.clone(), Which::First));
            let mut timer = pin!(None);
            let timely = poll_fn(|cx| {
                if let Poll::Ready(outcome) = first.as_mut().poll(cx) {
                    return Poll::Ready(Some(outcome));
                }
                if timer.is_none() {
                    // Not before it is known that there is something to wait for: a timer costs more than a ready answer.
                    timer.set(Some(env.sleep_until(rules.wait().map_or(Tick::MAX, |wait| ask.at + wait))));
                }
                let due = timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready());
                if due { Poll::Ready(None) } else { Poll::Pending }
            });
            if let Some(outcome) = timely.await {
                learn(&outcome, ask.at);
                return outcome;
            }
            timer.set(None);
            let now = env.now();
            let Some(extras) = rules.allow(now, &ask) else {
                let outcome = first.await;
                learn(&outcome, ask.at);
                return outcome;
            };
            env.tell(&Event::Hedge);
            let mut second = pin!(work(Ask { at: now, ..ask.clone() }, Which::Second));
            let (which, outcome) = either(first.as_mut(), second.as_mut()).await;
            let since = |which| if which == Which::First { ask.at } else { now };
            let lesson = learn(&outcome, since(which));
            if lesson.is_the_end() {
                if which == Which::Second {
                    rules.times.record(env.now() - ask.at);
                }
                return outcome;
            }
            if (which, lesson) == (Which::Second, Lesson::Absent { begun: false }) {
                extras.into_iter().flatten().for_each(Extra::give_back);
            }
            let (other, last) = match which {
                Which::First => (Which::Second, second.await),
                Which::Second => (Which::First, first.await),
            };
            let lessons = (lesson, learn(&last, since(other)));
            if lessons.0 == Lesson::Bad && !lessons.1.is_the_end() { outcome } else { last }
        }
    }

    /// How long an attempt may take before a hedge is due; `None` while too little is known.
    pub fn wait(&self) -> Option<Duration> {
        self.0.wait()
    }
}

/// Whichever is over first; the first if both are.
async fn either<F: Future>(mut first: Pin<&mut F>, mut second: Pin<&mut F>) -> (Which, F::Output) {
    poll_fn(|cx| {
        if let Poll::Ready(output) = first.as_mut().poll(cx) {
            return Poll::Ready((Which::First, output));
        }
        second.as_mut().poll(cx).map(|output| (Which::Second, output))
    })
    .await
}

impl Rules {
    fn wait(&self) -> Option<Duration> {
        if self.fixed.is_some() {
            return self.fixed;
        }
        let known = self.times.len() >= self.samples;
        let usual = known.then(|| self.times.quantile(self.quantile)).flatten();
        usual.map(|time| time.max(self.least)).or(self.unknown)
    }

    /// What pays for a hedge, if it may be sent.
    fn allow(&self, now: Tick, ask: &Ask) -> Option<[Option<Extra>; 2]> {
        let left = ask.deadline.map(|deadline| deadline - now);
        // Where nothing is known but how long to wait, that is the guess.
        let median = self.times.quantile(0.5).or(self.unknown);
        let seen = Seen { failed: self.failed.get(), median, left };
        if !is_worthwhile(seen, self.failures) || !self.conditions.iter().all(|holds| holds()) {
            return None;
        }
        let mut own = self.own.try_spend(now, Spend::Hedge).ok()?;
        let mut shared = self.budget.as_ref().map(|budget| budget.try_spend(now, Spend::Hedge)).transpose().ok()?;
        own.begin();
        if let Some(extra) = &mut shared {
            extra.begin();
        }
        Some([Some(own), shared])
    }

    /// An attempt is over.
    #[inline]
    fn learn(&self, lesson: Lesson, took: Duration) {
        match lesson {
            Lesson::Good => self.times.record(took),
            Lesson::Nothing | Lesson::Absent { .. } => return,
            Lesson::Bad | Lesson::Neither => {}
        }
        self.failed.add(lesson == Lesson::Bad);
    }
}

impl Lesson {
    /// What a verdict says, on an answer or on an error.
    #[inline]
    pub(crate) fn of(verdict: &Verdict, answered: bool) -> Lesson {
        match verdict {
            Verdict::Ok => Lesson::Good,
            Verdict::Fault | Verdict::Overload { .. } => Lesson::Bad,
            Verdict::Final => Lesson::Neither,
            Verdict::Ignored if answered => Lesson::Nothing,
            Verdict::Ignored => Lesson::Absent { begun: true },
        }
    }

    /// Whether the other attempt could bring nothing better.
    #[inline]
    fn is_the_end(self) -> bool {
        match self {
            Lesson::Good | Lesson::Neither | Lesson::Nothing => true,
            Lesson::Bad | Lesson::Absent { .. } => false,
        }
    }
}

impl fmt::Debug for Hedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge")
            .field("wait", &self.wait())
            .field("failed", &self.0.failed.get())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HedgeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HedgeBuilder { quantile, least, samples, ratio, failures, .. } = self;
        f.debug_struct("HedgeBuilder")
            .field("quantile", quantile)
            .field("least", least)
            .field("samples", samples)
            .field("ratio", ratio)
            .field("failures", failures)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
