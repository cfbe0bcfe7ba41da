//! One operation: its first attempt, and those after it.

use std::{future::Future, time::Duration};

use super::{
    Rules,
    decide::{Kind, Made, Next, Pace, Repeat},
    failure::{Failure, GaveUp, Stop},
};
use crate::{
    backoff::{Delays, RetryAfter},
    budget::{Extra, Spend},
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Classify, Judgement, Refusal, Verdict, Why},
    timeout::by,
};

/// What is to be done, and by which rules.
pub(super) struct Operation<'a, C, W> {
    pub(super) rules: &'a Rules,
    pub(super) env: &'a Env,
    pub(super) classify: C,
    pub(super) ask: Ask,
    pub(super) work: W,
    pub(super) repeat: Repeat,
}

impl<C, W> Operation<'_, C, W> {
    /// The first attempt, and whatever comes after it: on the heap, because most operations never come to it.
    #[inline]
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments once more, which takes 60 % longer (`toolbox retry`)"
    )]
    pub(super) fn run<T, E, F>(mut self) -> impl Future<Output = Result<T, GaveUp<E>>>
    where
        C: Classify<T, E>,
        F: Future<Output = Result<T, Failure<E>>>,
        W: FnMut(Ask) -> F,
    {
        async move {
            if self.ask.is_late() {
                let failure = Failure::Refused(Refusal::new(Why::Deadline));
                return Err(GaveUp { failure, why: Stop::Deadline, attempts: 0 });
            }
            self.begin();
            let attempt = self.attempt();
            let came = by(self.env, attempt.deadline, (self.work)(attempt)).await;
            let (judgement, outcome) = self.judge(came);
            if let (Ok(_), Verdict::Ok) = (&outcome, judgement.verdict()) {
                return outcome.map_err(|failure| GaveUp { failure, why: Stop::Final, attempts: 1 });
            }
            Box::pin(self.again(judgement, outcome)).await
        }
    }

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
            if matches!(outcome, Err(Failure::Refused(_))) {
                // Nothing was begun, so nothing is paid for.
                extra.into_iter().for_each(Extra::give_back);
            }
        }
    }
}

/// The delays of one operation. Both go on with every attempt: an origin that fails first and is overloaded then has been
/// asked twice.
struct Waits {
    fault: Delays,
    overload: Delays,
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
        // Nobody knows how long the caller would wait for a gate. Origins that are down keep theirs shut for long, and then all would sleep.
        if !charged && deadline.is_none() {
            return Err(Stop::Refused);
        }
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
