//! One caller's question.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    load::{Loaded, Way},
    outcome::{GetError, Got, Source},
};
use crate::{
    env::{Env, Sleep, Tick},
    flight::{Flight, FlightError, Landed},
    sync::wait,
};

/// A future of a value, from [`Cache::get`](super::Cache::get).
///
/// What is there was looked up before this was made, and a load is under way whether or not this is polled. Dropping it
/// neither stops nor restarts the load.
#[must_use = "await it, or use `Cache::peek`"]
pub struct Get<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static>(State<V, E>);

enum State<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    /// Empty once polled.
    Hit(Option<Got<V>>),
    /// Empty once polled.
    Failed(Option<GetError<E>>),
    /// On the heap, so that a hit is small.
    Waiting(Box<Waiting<V, E>>),
}

/// What comes of anything but a plain hit. It is laid out unlike a [`Get`] and unlike an answer, on purpose: whoever calls for
/// one of these has to build the other from it, so a hit beside it can stay in registers. Were they the same, the call would
/// write to where the hit belongs, and every hit would be written there too and read again.
#[repr(u8)]
pub(super) enum Apart<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    Hit(Got<V>),
    Failed(GetError<E>),
    Waiting(Box<Waiting<V, E>>),
}

pub(super) struct Waiting<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    env: Env,
    flight: Flight<Loaded<V, E>, Infallible>,
    /// What is served if the load fails, or is slow.
    fallback: Option<Got<V>>,
    patience: Option<Sleep>,
}

impl<V, E> Get<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline]
    pub(super) fn hit(got: Got<V>) -> Get<V, E> {
        Get(State::Hit(Some(got)))
    }

    pub(super) fn failed(error: GetError<E>) -> Get<V, E> {
        Get(State::Failed(Some(error)))
    }

    pub(super) fn into_apart(self) -> Apart<V, E> {
        match self.0 {
            State::Hit(Some(got)) => Apart::Hit(got),
            State::Failed(Some(error)) => Apart::Failed(error),
            State::Waiting(waiting) => Apart::Waiting(waiting),
            State::Hit(None) | State::Failed(None) => over(),
        }
    }

    #[inline(always)]
    pub(super) fn of_apart(apart: Apart<V, E>) -> Get<V, E> {
        Get(match apart {
            Apart::Hit(got) => State::Hit(Some(got)),
            Apart::Failed(error) => State::Failed(Some(error)),
            Apart::Waiting(waiting) => State::Waiting(waiting),
        })
    }

    /// Waits for a flight; with something to serve instead, until then at most.
    pub(super) fn waiting(
        env: &Env,
        flight: Flight<Loaded<V, E>, Infallible>,
        fallback: Option<Got<V>>,
        patience: Option<Tick>,
    ) -> Get<V, E> {
        match flight.at_once() {
            Ok(landed) => match resolve(landed, fallback, env) {
                Ok(got) => Get::hit(got),
                Err(error) => Get::failed(error),
            },
            Err(flight) => {
                let patience = patience.filter(|_| fallback.is_some()).map(|at| env.sleep_until(at));
                Get(State::Waiting(Box::new(Waiting { env: env.clone(), flight, fallback, patience })))
            }
        }
    }

    /// Waits no longer than until this tick, then leaves with [`GetError::Deadline`], or with what is kept for errors. The
    /// load goes on.
    pub fn by(mut self, deadline: Tick) -> Get<V, E> {
        if let State::Waiting(waiting) = self.0 {
            let Waiting { env, flight, fallback, patience } = *waiting;
            let flight = flight.by(deadline);
            self.0 = State::Waiting(Box::new(Waiting { env, flight, fallback, patience }));
        }
        self
    }

    /// Waits with the whole thread; for threads, not for tasks, and not in a simulation.
    #[inline]
    pub fn wait(self) -> Result<Got<V>, GetError<E>> {
        match self.0 {
            State::Hit(Some(got)) => Ok(got),
            State::Failed(Some(error)) => Err(error),
            State::Waiting(waiting) => wait_apart(waiting).into_answer(),
            State::Hit(None) | State::Failed(None) => over(),
        }
    }
}

impl<V, E> Apart<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline(always)]
    fn into_answer(self) -> Result<Got<V>, GetError<E>> {
        match self {
            Apart::Hit(got) => Ok(got),
            Apart::Failed(error) => Err(error),
            Apart::Waiting(_) => over(),
        }
    }
}

impl<V, E> From<Result<Got<V>, GetError<E>>> for Apart<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn from(answer: Result<Got<V>, GetError<E>>) -> Apart<V, E> {
        match answer {
            Ok(got) => Apart::Hit(got),
            Err(error) => Apart::Failed(error),
        }
    }
}

#[cold]
#[inline(never)]
fn over() -> ! {
    panic!("a future is not polled after it was ready")
}

#[inline(never)]
fn wait_apart<V, E>(waiting: Box<Waiting<V, E>>) -> Apart<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    wait(Get(State::Waiting(waiting))).into()
}

impl<V, E> Future for Get<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Output = Result<Got<V>, GetError<E>>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            State::Hit(got) => Poll::Ready(Ok(got.take().unwrap_or_else(|| over()))),
            State::Failed(error) => Poll::Ready(Err(error.take().unwrap_or_else(|| over()))),
            State::Waiting(waiting) => match waiting.poll(cx) {
                Poll::Ready(answer) => Poll::Ready(answer.into_answer()),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

// Values are moved, never pinned.
impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Unpin for Get<V, E> {}

impl<V, E> Waiting<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline(never)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Apart<V, E>> {
        // A panic too: what is kept for errors is served then.
        if let Poll::Ready((landed, _)) = self.flight.poll_calmly(cx) {
            return Poll::Ready(resolve(landed, self.fallback.take(), &self.env).into());
        }
        let Some(patience) = &mut self.patience else { return Poll::Pending };
        if Pin::new(patience).poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.patience = None;
        self.fallback.take().map_or(Poll::Pending, |fallback| Poll::Ready(Apart::Hit(fallback)))
    }
}

/// What a landing is for a caller who has this to fall back on.
fn resolve<V, E>(
    landed: Result<Landed<Loaded<V, E>>, FlightError<Infallible>>,
    fallback: Option<Got<V>>,
    env: &Env,
) -> Result<Got<V>, GetError<E>> {
    let error = match landed {
        Ok(Landed { value: Loaded::Value { value, born, way }, led, .. }) => {
            let source = match way {
                // What was loaded for this caller was loaded just now.
                Way::Loaded if led => return Ok(Got::new(value, Source::Loaded, born, born)),
                Way::Loaded => Source::Joined,
                Way::Memory => Source::Memory,
                Way::Tier => Source::Tier,
                Way::Stale => Source::Stale,
                Way::OnError => Source::StaleOnError,
            };
            return Ok(Got::new(value, source, born, env.coarse()));
        }
        // There is no such thing any more; what was kept is not it.
        Ok(Landed { value: Loaded::Absent, .. }) => return Err(GetError::Absent),
        Ok(Landed { value: Loaded::Failed(error), .. }) => GetError::Load(error),
        Ok(Landed { value: Loaded::Elsewhere(why), .. }) => GetError::Elsewhere(why),
        Ok(Landed { value: Loaded::TimedOut, .. }) => GetError::TimedOut,
        Ok(Landed { value: Loaded::Refused(refusal), .. }) => GetError::Refused(refusal),
        Ok(Landed { value: Loaded::Panicked(panic), .. }) | Err(FlightError::Panicked(panic)) => {
            GetError::Panicked(panic)
        }
        Err(FlightError::Deadline) => GetError::Deadline,
        Err(FlightError::Overloaded) => GetError::Overloaded,
        Err(FlightError::Reentrant) => GetError::Reentrant,
        Err(FlightError::Abandoned) => GetError::Abandoned,
        Err(FlightError::Load(never)) => match *never {},
    };
    fallback.ok_or(error)
}

impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> fmt::Debug for Get<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            State::Hit(_) => "hit",
            State::Failed(_) => "failed",
            State::Waiting(_) => "waiting",
        };
        f.debug_tuple("Get").field(&state).finish()
    }
}
