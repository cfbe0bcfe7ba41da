//! Everything that may say no, in one shape.
//!
//! Limits, breakers and throttles are usually all different: one returns a bare error, one panics when its guard is used
//! twice, one forgets to give back what a cancelled call took. Here each of them is a [`Gate`]. Entering gives a
//! [`Permit`] or a [`Refusal`]; the permit is settled with how the work went, and dropping it means the work was
//! cancelled and gives back what it took. A refusal says why and, where a time is known, when to come back.
//!
//! ```
//! use herdproof::gate::{Ask, Gate, Permit, Refusal, Span, Verdict, Why, guard, result};
//! # use std::{io::Error as Failure, sync::atomic::{AtomicU32, Ordering}};
//! # use herdproof::Env;
//!
//! /// Lets three calls in, ever.
//! struct Three(AtomicU32);
//! struct Ticket;
//!
//! impl Permit for Ticket {
//!     fn settle(self, _: &Verdict, _: Span) {}
//! }
//!
//! impl Gate for Three {
//!     type Permit = Ticket;
//!     fn try_enter(&self, _: &Ask) -> Result<Ticket, Refusal> {
//!         match self.0.fetch_add(1, Ordering::Relaxed) {
//!             0..3 => Ok(Ticket),
//!             _ => Err(Refusal::new(Why::Concurrency)),
//!         }
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async {
//! let (env, gate) = (Env::system(), Three(AtomicU32::new(0)));
//! for _ in 0..3 {
//!     let answer = guard(&env, &gate, result, Ask::new(&env), || async { Ok::<_, Failure>(42) }).await;
//!     assert_eq!(answer.unwrap(), 42);
//! }
//! let refused = guard(&env, &gate, result, Ask::new(&env), || async { Ok::<_, Failure>(42) }).await;
//! assert_eq!(refused.unwrap_err().to_string(), "refused: too much at once");
//! # });
//! ```

mod and;
mod classify;
mod refusal;

use std::{future::Future, num::NonZero, sync::Arc, time::Duration};

pub use and::{And, Both};
pub use classify::{Classify, Judgement, result};
pub use refusal::{Halt, Refusal, Why};

use crate::env::{Env, Tick};

/// What may say no; see the [module](self).
pub trait Gate: Send + Sync {
    /// The right to go on.
    type Permit: Permit;

    /// Asks to enter, without waiting.
    fn try_enter(&self, ask: &Ask) -> Result<Self::Permit, Refusal>;

    /// Asks to enter, waiting if this gate has a queue, but not beyond the deadline.
    ///
    /// A gate that waited leaves the tick it went on at in [`Ask::at`], so that the next one does not judge by the past.
    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<Self::Permit, Refusal>> + Send {
        let entered = self.try_enter(ask);
        async { entered }
    }

    /// Asks again for whoever was let in and has waited behind another gate since. A gate whose answer is still good leaves the
    /// permit as it is; one that has changed puts another in its place, or refuses, and then the permit is good for nothing but
    /// to be dropped. A gate around another passes it on.
    #[inline]
    fn renew(&self, _permit: &mut Self::Permit, _ask: &Ask) -> Result<(), Refusal> {
        Ok(())
    }

    /// This gate, then another. If the inner one refuses, the outer permit is dropped, which gives it back. Whoever had to wait
    /// for the inner one asks the outer one again ([`renew`](Gate::renew)): a line behind a breaker is not led to an origin that
    /// went down meanwhile.
    fn and<G: Gate>(self, inner: G) -> And<Self, G>
    where
        Self: Sized,
    {
        And::new(self, inner)
    }
}

/// The right to do one piece of work. Dropping it unsettled says that the work was cancelled.
pub trait Permit: Send {
    /// Says how the work went and when.
    fn settle(self, verdict: &Verdict, span: Span);
}

/// What somebody wants to do.
// In this order, because two neighbouring words are copied as one, and a processor has to wait before it can read as one
// what was just written as two.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ask {
    /// When it was asked: the one reading of the clock on the way in.
    pub at: Tick,
    /// When the answer is of no more use.
    pub deadline: Option<Tick>,
    /// For whom, as a number or a hash: what is refused for one user should be refused as a whole, rather than a little of
    /// everybody's.
    pub user: Option<NonZero<u64>>,
    /// Which load it is for, as a number or a hash, where others may come to wait for the same one.
    pub load: Option<NonZero<u64>>,
    /// How much of the resource it takes, in the gate's own measure.
    pub cost: u32,
    /// Zero for the first attempt, one for the first retry.
    pub attempt: u16,
    /// Who is let in first when not all can be.
    pub priority: Priority,
}

/// How much an answer matters, least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nobody notices if it is refused: prefetching, refreshing ahead of time.
    Sheddable,
    /// Somebody will try again later: batches, background work.
    Background,
    /// Somebody waits for it.
    #[default]
    Normal,
    /// Others cannot go on without it: health, login, payment.
    Critical,
}

/// How the work went, as far as a gate is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It worked.
    Ok,
    /// It failed in a way that speaks against the origin: an error of its own, a timeout.
    Fault,
    /// The origin said that it has too much to do and, maybe, when to come back.
    Overload {
        /// How long it asked to wait.
        after: Option<Duration>,
    },
    /// It failed, and trying again would not help: the request was at fault.
    Final,
    /// It says nothing about the origin.
    Ignored,
}

/// When a piece of work began and ended: the one reading of the clock on the way out is its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it was let in.
    pub from: Tick,
    /// When it was over.
    pub to: Tick,
}

/// Finds how many at once an origin can take, for a gate that lets in as many as it says:
/// [`AdaptiveLimit`](crate::limit::AdaptiveLimit) does, for a [`Queue`](crate::shed::Queue).
pub trait Sizer: Send + Sync {
    /// How many may be under way at present.
    fn limit(&self) -> u32;

    /// Somebody was let in.
    fn begun(&self);

    /// It is known how it went.
    fn over(&self, verdict: &Verdict, span: Span);

    /// What was begun at this tick was cancelled.
    fn cancelled(&self, from: Tick);

    /// Somebody was not let in at once, because as many were under way as may be.
    fn binds(&self);
}

/// Does the work if the gate lets it in, and settles the permit with how it went.
///
/// Dropping the future before the work is done drops the permit: cancelled.
pub async fn guard<G, C, T, E, F>(
    env: &Env,
    gate: &G,
    classify: C,
    mut ask: Ask,
    work: impl FnOnce() -> F,
) -> Result<T, Halt<E>>
where
    G: Gate,
    C: Classify<T, E>,
    F: Future<Output = Result<T, E>>,
{
    if ask.is_late() {
        return Err(Halt::Refused(Refusal::new(Why::Deadline)));
    }
    let permit = gate.enter(&mut ask).await.map_err(Halt::Refused)?;
    ask.on_time().map_err(Halt::Refused)?;
    let outcome = work().await;
    permit.settle(&classify.classify(&outcome), Span { from: ask.at, to: env.now() });
    outcome.map_err(Halt::Failed)
}

impl Ask {
    /// Something ordinary: no deadline, normal priority, first attempt, cost one.
    #[inline]
    pub fn new(env: &Env) -> Ask {
        Ask::at(env.now())
    }

    /// As [`new`](Ask::new), from the [coarse clock](Env::coarse), which costs half or less.
    ///
    /// For retries, budgets, breakers and throttles, whose times are seconds. The instant is some milliseconds old at worst,
    /// so the timeout of a first attempt ends that much too early, a breaker lets its probe in that much too late, and a
    /// call seems to have taken that much longer. Not for rates, adaptive limits and queues: a rate would come back in
    /// steps, and the others go by how long calls take.
    ///
    /// ```
    /// use std::time::Duration;
    /// use herdproof::{Env, gate::Ask};
    ///
    /// let env = Env::system();
    /// let ask = Ask::coarse(&env);
    /// assert!(ask.at <= env.now() && env.now() - ask.at < Duration::from_secs(1));
    /// ```
    #[inline]
    pub fn coarse(env: &Env) -> Ask {
        Ask::at(env.coarse())
    }

    /// As [`new`](Ask::new), for who has read the clock already.
    #[inline]
    pub const fn at(at: Tick) -> Ask {
        Ask { at, deadline: None, priority: Priority::Normal, attempt: 0, cost: 1, user: None, load: None }
    }

    /// The answer is of no use from this tick on.
    #[must_use]
    pub fn deadline(mut self, deadline: Tick) -> Ask {
        self.deadline = Some(deadline);
        self
    }

    /// How much it matters.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Ask {
        self.priority = priority;
        self
    }

    /// Which attempt it is, from zero.
    #[must_use]
    pub fn attempt(mut self, attempt: u16) -> Ask {
        self.attempt = attempt;
        self
    }

    /// How much of the resource it takes.
    #[must_use]
    pub fn cost(mut self, cost: u32) -> Ask {
        self.cost = cost;
        self
    }

    /// For whom it is.
    #[must_use]
    pub fn user(mut self, user: u64) -> Ask {
        // Nobody is not a user, so that an `Ask` is copied in whole words.
        self.user = NonZero::new(user).or(Some(NonZero::<u64>::MAX));
        self
    }

    /// Which load it is for; see [`Queue::joined`](crate::shed::Queue::joined).
    #[must_use]
    pub fn load(mut self, load: u64) -> Ask {
        self.load = NonZero::new(load);
        self
    }

    /// Whether the deadline has come.
    #[inline]
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.at >= deadline)
    }

    /// For whoever has waited, and may be late by now.
    #[inline]
    fn on_time(&self) -> Result<(), Refusal> {
        if self.is_late() { Err(Refusal::new(Why::Deadline)) } else { Ok(()) }
    }
}

impl Span {
    /// How long it took; no time at all if it seems to have ended before it began, because one of the two was read from a
    /// [coarse clock](Ask::coarse).
    #[inline]
    pub fn took(self) -> Duration {
        self.to - self.from
    }
}

impl<G: Gate> Gate for &G {
    type Permit = G::Permit;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<G::Permit, Refusal> {
        (**self).try_enter(ask)
    }

    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<G::Permit, Refusal>> + Send {
        (**self).enter(ask)
    }

    #[inline]
    fn renew(&self, permit: &mut G::Permit, ask: &Ask) -> Result<(), Refusal> {
        (**self).renew(permit, ask)
    }
}

impl<G: Gate> Gate for Arc<G> {
    type Permit = G::Permit;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<G::Permit, Refusal> {
        (**self).try_enter(ask)
    }

    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<G::Permit, Refusal>> + Send {
        (**self).enter(ask)
    }

    #[inline]
    fn renew(&self, permit: &mut G::Permit, ask: &Ask) -> Result<(), Refusal> {
        (**self).renew(permit, ask)
    }
}

/// A gate whose permits borrow it, from the gate's own `borrowed`. They count no references, which is half of what a permit
/// costs while all is well; but they cannot be kept longer than the gate, or given to a task.
#[derive(Debug)]
pub struct Borrowed<'a, G>(pub(crate) &'a G);

impl<G> Clone for Borrowed<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Borrowed<'_, G> {}

/// `None` is a gate that stands open.
impl<G: Gate> Gate for Option<G> {
    type Permit = Option<G::Permit>;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<Option<G::Permit>, Refusal> {
        self.as_ref().map(|gate| gate.try_enter(ask)).transpose()
    }

    async fn enter(&self, ask: &mut Ask) -> Result<Option<G::Permit>, Refusal> {
        match self {
            Some(gate) => gate.enter(ask).await.map(Some),
            None => Ok(None),
        }
    }

    #[inline]
    fn renew(&self, permit: &mut Option<G::Permit>, ask: &Ask) -> Result<(), Refusal> {
        match (self, permit) {
            (Some(gate), Some(permit)) => gate.renew(permit, ask),
            _ => Ok(()),
        }
    }
}

impl<P: Permit> Permit for Option<P> {
    #[inline]
    fn settle(self, verdict: &Verdict, span: Span) {
        if let Some(permit) = self {
            permit.settle(verdict, span);
        }
    }
}

#[cfg(test)]
mod tests;
