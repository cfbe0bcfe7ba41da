//! Everything that may say no, in one shape.
//!
//! Limits, breakers and throttles are usually all different: one returns a bare error, one panics when its guard is used
//! twice, one refunds a cancelled call that the origin has had the work of. Here each of them is a [`Gate`]. It gives a
//! [`Place`], then a [`Permit`], or a [`Refusal`] that says why and, where a time is known, when to come back.
//!
//! | | held while | dropped |
//! |---|---|---|
//! | [`Place`], from [`reserve`](Gate::reserve) | waiting, or collecting the places of several gates | as if nobody had asked: a seat is free, a rate slot goes to the next newcomer |
//! | [`Permit`], from [`Place::commit`] or [`enter`](Gate::enter) | the work runs | the work was cancelled: a seat is free, a rate slot is spent |
//!
//! A caller who asks one gate needs only [`try_enter`](Gate::try_enter) or [`enter`](Gate::enter). A permit is settled with how
//! the work went; one that is dropped counts as [`Ignored`](Verdict::Ignored).
//!
//! ```
//! use herdproof::gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why, guard, result};
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
//! /// What was given out stays given out, so a ticket is its own place.
//! impl Place for Ticket {
//!     type Permit = Ticket;
//!     fn commit(self) -> Ticket {
//!         self
//!     }
//! }
//!
//! impl Gate for Three {
//!     type Place = Ticket;
//!     fn try_reserve(&self, _: &Ask) -> Result<Ticket, Refusal> {
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
    /// What is held until the work begins.
    type Place: Place;

    /// Reserves a place, without waiting.
    fn try_reserve(&self, ask: &Ask) -> Result<Self::Place, Refusal>;

    /// Reserves a place, waiting if this gate has a queue, but not beyond the deadline.
    ///
    /// A gate that waited leaves the tick it went on at in [`Ask::at`], so that the next one does not judge by the past.
    fn reserve(&self, ask: &mut Ask) -> impl Future<Output = Result<Self::Place, Refusal>> + Send {
        let reserved = self.try_reserve(ask);
        async { reserved }
    }

    /// Asks again for a caller who has a place and has waited behind another gate since. A gate whose answer is still good leaves
    /// the place as it is; one that has changed puts another there, or refuses, and then the place is good for nothing but to be
    /// dropped. A gate around another passes it on.
    #[inline]
    fn renew(&self, _place: &mut Self::Place, _ask: &Ask) -> Result<(), Refusal> {
        Ok(())
    }

    /// Enters without waiting: a place, committed.
    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<PermitOf<Self>, Refusal> {
        self.try_reserve(ask).map(Place::commit)
    }

    /// Enters, waiting if this gate has a queue: a place, committed.
    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<PermitOf<Self>, Refusal>> + Send {
        async { self.reserve(ask).await.map(Place::commit) }
    }

    /// This gate, then another. If the inner one refuses, the outer place is dropped, which gives it back. A caller who had to wait
    /// for the inner one asks the outer one again ([`renew`](Gate::renew)): a line behind a breaker is not led to an origin that
    /// went down meanwhile.
    ///
    /// A rate goes last, behind whatever has a line: callers who stand in line with a slot in hand all leave at once when the
    /// line moves again.
    fn and<G: Gate>(self, inner: G) -> And<Self, G>
    where
        Self: Sized,
    {
        And::new(self, inner)
    }
}

/// The permits of a gate.
pub type PermitOf<G> = <<G as Gate>::Place as Place>::Permit;

/// What one holds before the work begins. Dropping it gives it back, as if nobody had asked.
///
/// Where a permit that is dropped takes nothing either, one type is both, and [`commit`](Place::commit) returns itself.
pub trait Place: Send {
    /// The right to begin.
    type Permit: Permit;

    /// The work begins.
    fn commit(self) -> Self::Permit;
}

/// The right to do one piece of work. Dropping it unsettled says that the work was cancelled, after it began.
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

    /// Somebody was let in. Only needed by those that count themselves.
    fn begun(&self) {}

    /// It is known how it went, while so many were inside, this one among them.
    fn over(&self, verdict: &Verdict, span: Span, inside: u32);

    /// What was begun at this tick was cancelled.
    fn cancelled(&self, _from: Tick) {}

    /// Somebody was not let in at once, because as many were under way as may be.
    fn binds(&self);
}

/// Does the work if the gate lets it in, and settles the permit with how it went.
///
/// Dropping the future before the work begins gives the place back; dropping it after that drops the permit: cancelled.
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
    let place = gate.reserve(&mut ask).await.map_err(Halt::Refused)?;
    ask.on_time().map_err(Halt::Refused)?;
    let permit = place.commit();
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

    /// For a caller who has waited, and may be late by now.
    #[inline]
    pub(crate) fn on_time(&self) -> Result<(), Refusal> {
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
    type Place = G::Place;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<G::Place, Refusal> {
        (**self).try_reserve(ask)
    }

    fn reserve(&self, ask: &mut Ask) -> impl Future<Output = Result<G::Place, Refusal>> + Send {
        (**self).reserve(ask)
    }

    #[inline]
    fn renew(&self, place: &mut G::Place, ask: &Ask) -> Result<(), Refusal> {
        (**self).renew(place, ask)
    }

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<PermitOf<G>, Refusal> {
        (**self).try_enter(ask)
    }
}

impl<G: Gate> Gate for Arc<G> {
    type Place = G::Place;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<G::Place, Refusal> {
        (**self).try_reserve(ask)
    }

    fn reserve(&self, ask: &mut Ask) -> impl Future<Output = Result<G::Place, Refusal>> + Send {
        (**self).reserve(ask)
    }

    #[inline]
    fn renew(&self, place: &mut G::Place, ask: &Ask) -> Result<(), Refusal> {
        (**self).renew(place, ask)
    }

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<PermitOf<G>, Refusal> {
        (**self).try_enter(ask)
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
    type Place = Option<G::Place>;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Option<G::Place>, Refusal> {
        self.as_ref().map(|gate| gate.try_reserve(ask)).transpose()
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<Option<G::Place>, Refusal> {
        match self {
            Some(gate) => gate.reserve(ask).await.map(Some),
            None => Ok(None),
        }
    }

    #[inline]
    fn renew(&self, place: &mut Option<G::Place>, ask: &Ask) -> Result<(), Refusal> {
        match (self, place) {
            (Some(gate), Some(place)) => gate.renew(place, ask),
            _ => Ok(()),
        }
    }
}

impl<P: Place> Place for Option<P> {
    type Permit = Option<P::Permit>;

    #[inline]
    fn commit(self) -> Option<P::Permit> {
        self.map(P::commit)
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
