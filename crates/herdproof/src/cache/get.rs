//! One caller's question.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    entry::{Content, Entry},
    fill::{Loaded, Way},
    outcome::{GetError, Got, Source},
};
use crate::{
    env::{Env, Sleep, Tick},
    inflight::{Flight, FlightError, Landed},
    sync::wait,
};

/// A future of a value, from [`Cache::get`](super::Cache::get).
///
/// What is there was looked up before this was made, and a load is under way whether or not this is polled. Dropping it
/// neither stops nor restarts the load.
#[must_use = "await it, or use `Cache::peek`"]
pub struct Get<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static>(State<V, E>);

enum State<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    Hit(Got<V>),
    /// There is no such thing.
    Absent,
    /// On the heap, so that a hit is small, and dropping it costs nothing.
    Rare(Box<Rare<V, E>>),
    /// It has been polled to its end.
    Over,
}

/// The result of the slow path. Its layout differs from that of [`Get`], so a hit beside it stays in registers: with one type for
/// both, the call writes to where the hit belongs, and every hit is written there too and read again. Gains 21 % of a hit and 14 %
/// of an awaited one (`bench cache`, `hit` and `loading-hit`).
#[repr(u8)]
pub(super) enum Apart<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    Hit(Got<V>),
    Absent,
    Rare(Box<Rare<V, E>>),
}

/// What is waited for, or has come to nothing.
pub(super) enum Rare<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    Failed(GetError<E>),
    Waiting(Waiting<V, E>),
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
        Get(State::Hit(got))
    }

    pub(super) fn failed(error: GetError<E>) -> Get<V, E> {
        Get(match error {
            GetError::Absent => State::Absent,
            error => State::Rare(Box::new(Rare::Failed(error))),
        })
    }

    pub(super) fn into_apart(self) -> Apart<V, E> {
        match self.0 {
            State::Hit(got) => Apart::Hit(got),
            State::Absent => Apart::Absent,
            State::Rare(rare) => Apart::Rare(rare),
            State::Over => over(),
        }
    }

    #[inline(always)]
    pub(super) fn of_apart(apart: Apart<V, E>) -> Get<V, E> {
        Get(match apart {
            Apart::Hit(got) => State::Hit(got),
            Apart::Absent => State::Absent,
            Apart::Rare(rare) => State::Rare(rare),
        })
    }

    /// What an entry says that was put in a moment ago, without counting a hit.
    pub(super) fn known(entry: Entry<V, E>, now: Tick) -> Get<V, E> {
        let life = entry.life();
        match entry.into_content() {
            Content::Value(value, _) => {
                let source = if life.is_put_off(now) { Source::StaleOnError } else { Source::Memory };
                Get::hit(Got::new(value, source, life.born(), now))
            }
            Content::Absent => Get::failed(GetError::Absent),
            Content::Failed(error) => Get::failed(GetError::Load(error)),
            Content::Panicked(panic) => Get::failed(GetError::Panicked(panic)),
        }
    }

    /// What a load that this caller led and nobody else followed has come to.
    #[inline(always)]
    pub(super) fn led(loaded: Loaded<V, E>, fallback: Option<Got<V>>, env: &Env) -> Get<V, E> {
        match loaded {
            Loaded::Value { value, born, way: Way::Loaded } => Get::hit(Got::new(value, Source::Loaded, born, born)),
            loaded => Get::resolved(loaded, fallback, env),
        }
    }

    #[inline(never)]
    fn resolved(loaded: Loaded<V, E>, fallback: Option<Got<V>>, env: &Env) -> Get<V, E> {
        resolve(loaded, true, fallback, env).map_or_else(Get::failed, Get::hit)
    }

    /// Lets the load go on for others.
    pub(super) fn detach(self) {
        if let State::Rare(rare) = self.0
            && let Rare::Waiting(waiting) = *rare
        {
            waiting.flight.detach();
        }
    }

    /// Waits for a flight; with something to serve instead, until then at most.
    pub(super) fn waiting(
        env: &Env,
        flight: Flight<Loaded<V, E>, Infallible>,
        fallback: Option<Got<V>>,
        patience: Option<Tick>,
    ) -> Get<V, E> {
        match flight.at_once() {
            Ok(landed) => resolve_landed(landed, fallback, env).map_or_else(Get::failed, Get::hit),
            Err(flight) => {
                let patience = patience.filter(|_| fallback.is_some()).map(|at| env.sleep_until(at));
                let waiting = Waiting { env: env.clone(), flight, fallback, patience };
                Get(State::Rare(Box::new(Rare::Waiting(waiting))))
            }
        }
    }

    /// Waits no longer than until this tick, then leaves with [`GetError::Deadline`], or with what is kept for errors. The
    /// load goes on.
    pub fn by(mut self, deadline: Tick) -> Get<V, E> {
        if let State::Rare(rare) = self.0 {
            self.0 = State::Rare(match *rare {
                Rare::Waiting(waiting) => {
                    let flight = waiting.flight.by(deadline);
                    Box::new(Rare::Waiting(Waiting { flight, ..waiting }))
                }
                failed @ Rare::Failed(_) => Box::new(failed),
            });
        }
        self
    }

    /// Waits with the whole thread; for threads, not for tasks, and not in a simulation.
    ///
    /// # Panics
    ///
    /// If it has to wait on a thread that runs tasks of a tokio runtime, where it could wait for itself: inside `block_on` or a
    /// task, other than within `spawn_blocking` or `block_in_place`.
    #[inline]
    #[track_caller]
    pub fn wait(self) -> Result<Got<V>, GetError<E>> {
        match self.0 {
            State::Hit(got) => Ok(got),
            State::Absent => Err(GetError::Absent),
            State::Rare(rare) => wait_apart(rare).into(),
            State::Over => over(),
        }
    }
}

/// An answer whose layout differs from that of a [`Result`], for the same reason as [`Apart`].
#[repr(u8)]
enum Answer<V, E> {
    Got(Got<V>),
    Failed(GetError<E>),
}

impl<V, E> From<Answer<V, E>> for Result<Got<V>, GetError<E>> {
    #[inline(always)]
    fn from(answer: Answer<V, E>) -> Result<Got<V>, GetError<E>> {
        match answer {
            Answer::Got(got) => Ok(got),
            Answer::Failed(error) => Err(error),
        }
    }
}

impl<V, E> From<Result<Got<V>, GetError<E>>> for Answer<V, E> {
    fn from(answer: Result<Got<V>, GetError<E>>) -> Answer<V, E> {
        match answer {
            Ok(got) => Answer::Got(got),
            Err(error) => Answer::Failed(error),
        }
    }
}

#[cold]
#[inline(never)]
fn over() -> ! {
    panic!("a future is not polled after it was ready")
}

#[inline(never)]
#[track_caller]
fn wait_apart<V, E>(rare: Box<Rare<V, E>>) -> Answer<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    wait(Get(State::Rare(rare))).into()
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
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut self.get_mut().0;
        // Asked for before it is taken: then a hit is read field by field, as it was written a moment ago.
        if matches!(state, State::Hit(_))
            && let State::Hit(got) = mem::replace(state, State::Over)
        {
            return Poll::Ready(Ok(got));
        }
        match poll_apart(state, cx) {
            Poll::Ready(answer) => Poll::Ready(answer.into()),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Polls what is not a hit.
#[inline(never)]
fn poll_apart<V, E>(state: &mut State<V, E>, cx: &mut Context<'_>) -> Poll<Answer<V, E>>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    if let State::Rare(rare) = state
        && let Rare::Waiting(waiting) = &mut **rare
    {
        let answer = ready!(waiting.poll(cx));
        *state = State::Over;
        return Poll::Ready(answer.into());
    }
    Poll::Ready(match mem::replace(state, State::Over) {
        State::Hit(got) => Answer::Got(got),
        State::Absent => Answer::Failed(GetError::Absent),
        State::Rare(rare) => match *rare {
            Rare::Failed(error) => Answer::Failed(error),
            Rare::Waiting(_) => unreachable!("it was polled above"),
        },
        State::Over => over(),
    })
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
            return Poll::Ready(resolve_landed(landed, self.fallback.take(), &self.env));
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
fn resolve_landed<V, E>(
    landed: Result<Landed<Loaded<V, E>>, FlightError<Infallible>>,
    fallback: Option<Got<V>>,
    env: &Env,
) -> Result<Got<V>, GetError<E>> {
    let error = match landed {
        Ok(Landed { value, led, .. }) => return resolve(value, led, fallback, env),
        Err(FlightError::Panicked(panic)) => GetError::Panicked(panic),
        Err(FlightError::Deadline) => GetError::Deadline,
        Err(FlightError::Overloaded) => GetError::Overloaded,
        Err(FlightError::Reentrant) => GetError::Reentrant,
        Err(FlightError::Abandoned) => GetError::Abandoned,
        Err(FlightError::Load(never)) => match *never {},
    };
    fallback.ok_or(error)
}

fn resolve<V, E>(loaded: Loaded<V, E>, led: bool, fallback: Option<Got<V>>, env: &Env) -> Result<Got<V>, GetError<E>> {
    let error = match loaded {
        Loaded::Value { value, born, way } => {
            let source = match way {
                // What was loaded for this caller was loaded just now.
                Way::Loaded if led => return Ok(Got::new(value, Source::Loaded, born, born)),
                Way::Loaded => Source::Joined,
                Way::Tier => Source::Tier,
                Way::Stale => Source::Stale,
                Way::OnError => Source::StaleOnError,
            };
            return Ok(Got::new(value, source, born, env.coarse()));
        }
        // Not found any more: what was kept is out of date.
        Loaded::Absent => return Err(GetError::Absent),
        Loaded::Failed(error) => GetError::Load(error),
        Loaded::Elsewhere(why) => GetError::Elsewhere(why),
        Loaded::TimedOut => GetError::TimedOut,
        Loaded::Refused(refusal) => GetError::Refused(refusal),
        Loaded::Panicked(panic) => GetError::Panicked(panic),
    };
    fallback.ok_or(error)
}

impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> fmt::Debug for Get<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            State::Hit(_) => "hit",
            State::Absent => "absent",
            State::Rare(rare) => match &**rare {
                Rare::Failed(_) => "failed",
                Rare::Waiting(_) => "waiting",
            },
            State::Over => "over",
        };
        f.debug_tuple("Get").field(&state).finish()
    }
}
