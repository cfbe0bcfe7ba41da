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
    /// Apart, so that a hit is small.
    Waiting(Box<Waiting<V, E>>),
}

struct Waiting<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
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

    /// The same, built anew: else a hit would be written to where the other is returned, and moved from there.
    #[inline]
    pub(super) fn apart(get: Get<V, E>) -> Get<V, E> {
        Get(match get.0 {
            State::Hit(got) => State::Hit(got),
            State::Failed(error) => State::Failed(error),
            State::Waiting(waiting) => State::Waiting(waiting),
        })
    }

    pub(super) fn failed(error: GetError<E>) -> Get<V, E> {
        Get(State::Failed(Some(error)))
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
            _ => wait(self),
        }
    }

    /// Whatever is not a hit.
    #[inline(never)]
    fn poll_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<Got<V>, GetError<E>>> {
        match &mut self.0 {
            State::Hit(_) => unreachable!("a future is not polled after it was ready"),
            State::Failed(error) => Poll::Ready(Err(error.take().expect("a future is not polled after it was ready"))),
            State::Waiting(waiting) => waiting.poll(cx),
        }
    }
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
        let get = self.get_mut();
        if let State::Hit(got) = &mut get.0
            && let Some(got) = got.take()
        {
            return Poll::Ready(Ok(got));
        }
        get.poll_on(cx)
    }
}

// Values are moved, never pinned.
impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Unpin for Get<V, E> {}

impl<V, E> Waiting<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Got<V>, GetError<E>>> {
        // A panic too: what is kept for errors is served then.
        if let Poll::Ready((landed, _)) = self.flight.poll_calmly(cx) {
            return Poll::Ready(resolve(landed, self.fallback.take(), &self.env));
        }
        let Some(patience) = &mut self.patience else { return Poll::Pending };
        if Pin::new(patience).poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.patience = None;
        self.fallback.take().map_or(Poll::Pending, |fallback| Poll::Ready(Ok(fallback)))
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
