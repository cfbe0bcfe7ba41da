//! One caller's place aboard.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    task::{Context, Poll, ready},
};

use super::{
    loads::Place,
    outcome::{Ending, FlightError, Landed},
    shared::{Joined, Shared},
    wakers::Slot,
};
use crate::{
    env::{Sleep, Tick},
    sync::wait,
};

/// A caller's place aboard a flight, from [`Group::run`](crate::flight::Group::run): a future of the [`Landed`] value.
///
/// The load runs whether or not this is polled. Dropping it leaves the flight; the last to leave decides what becomes of
/// the load ([`Abandon`](crate::flight::Abandon)).
#[must_use = "a flight that is dropped is left; await it, or `detach` it to let the load finish"]
pub struct Flight<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static>(State<V, E>);

/// What a caller gets.
type Answer<V, E> = Result<Landed<V>, FlightError<E>>;

enum State<V, E> {
    /// It landed before anybody could share it. Empty once polled.
    Alone(Option<V>),
    /// It failed before anybody could share it, or never began. Empty once polled.
    Refused(Option<FlightError<E>>),
    Aboard(Aboard<V, E>),
}

struct Aboard<V, E> {
    shared: Arc<Shared<V, E>>,
    at: Tick,
    /// Most callers have none, so it is kept apart.
    deadline: Option<Box<Sleep>>,
    slot: Option<Slot>,
    led: bool,
    /// Whether the answer was given.
    done: bool,
}

impl<V, E> Flight<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline]
    pub(super) fn alone(ending: Ending<V, E>) -> Flight<V, E> {
        match Result::from(ending) {
            Ok(value) => Flight(State::Alone(Some(value))),
            Err(error) => Flight::refused(error),
        }
    }

    pub(super) fn refused(error: FlightError<E>) -> Flight<V, E> {
        Flight(State::Refused(Some(error)))
    }

    /// How many slots for waiters the flight has made.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        match &self.0 {
            State::Alone(_) | State::Refused(_) => 0,
            State::Aboard(aboard) => aboard.shared.slots(),
        }
    }

    pub(super) fn aboard(shared: Arc<Shared<V, E>>, joined: Joined) -> Flight<V, E> {
        Flight(State::Aboard(Aboard {
            shared,
            at: joined.at,
            deadline: None,
            slot: None,
            led: joined.led,
            done: false,
        }))
    }

    /// The leader's.
    #[inline]
    pub(super) fn led(shared: Arc<Shared<V, E>>) -> Flight<V, E> {
        let joined = Joined { led: true, at: shared.env.coarse() };
        Flight::aboard(shared, joined)
    }

    /// Which flight it is, if it is more than an answer.
    pub(crate) fn place(&self) -> Option<Place> {
        match &self.0 {
            State::Alone(_) | State::Refused(_) => None,
            State::Aboard(aboard) => Some(aboard.shared.place),
        }
    }

    /// The answer, if it was there before anybody could share it.
    #[inline]
    pub(crate) fn at_once(mut self) -> Result<Result<Landed<V>, FlightError<E>>, Flight<V, E>> {
        let answer = match &mut self.0 {
            State::Alone(value) => value.take().map(|value| Ok(Landed::alone(value))),
            State::Refused(error) => error.take().map(Err),
            State::Aboard(_) => None,
        };
        answer.ok_or(self)
    }

    /// Waits no longer than until this tick, then leaves with [`FlightError::Deadline`]. The load goes on for the others.
    pub fn by(mut self, deadline: Tick) -> Flight<V, E> {
        if let State::Aboard(aboard) = &mut self.0 {
            aboard.deadline = Some(Box::new(aboard.shared.env.sleep_until(deadline)));
        }
        self
    }

    /// Leaves without being counted as leaving: the load goes on to its end even if nobody waits for it.
    pub fn detach(mut self) {
        if let State::Aboard(aboard) = &mut self.0 {
            aboard.done = true;
        }
    }

    /// The answer on a channel instead of a future, for code that selects on channels. The load goes on to its end.
    pub fn channel(self) -> Receiver<Result<Landed<V>, FlightError<E>>> {
        let (to, from) = sync_channel(1);
        match self.at_once() {
            Ok(answer) => drop(to.try_send(answer)),
            Err(flight) => {
                if let State::Aboard(aboard) = &flight.0 {
                    aboard.shared.send(to, aboard.joined());
                }
                flight.detach();
            }
        }
        from
    }

    /// Waits for the answer with the whole thread; for threads, not for tasks, and not in a simulation.
    ///
    /// # Panics
    ///
    /// If it has to wait on a thread that runs tasks of a tokio runtime, where it could wait for itself: inside `block_on` or a
    /// task, other than within `spawn_blocking` or `block_in_place`.
    #[track_caller]
    pub fn wait(self) -> Result<Landed<V>, FlightError<E>> {
        wait(self)
    }
}

impl<V, E> Aboard<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn joined(&self) -> Joined {
        Joined { led: self.led, at: self.at }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Landed<V>, FlightError<E>>> {
        if let Some(answer) = self.shared.answer(self.joined()) {
            self.done = true;
            return Poll::Ready(answer);
        }
        if let Some(deadline) = &mut self.deadline
            && Pin::new(&mut **deadline).poll(cx).is_ready()
        {
            self.done = true;
            self.shared.leave(self.slot.take());
            return Poll::Ready(Err(FlightError::Deadline));
        }
        if self.shared.wait(&mut self.slot, cx.waker()) {
            return Poll::Pending;
        }
        self.done = true;
        self.shared.answer(self.joined()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<V, E> Future for Flight<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Output = Result<Landed<V>, FlightError<E>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Alone(value) = &mut self.0
            && let Some(value) = value.take()
        {
            return Poll::Ready(Ok(Landed::alone(value)));
        }
        self.poll_further(cx)
    }
}

impl<V, E> Flight<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn poll_further(&mut self, cx: &mut Context<'_>) -> Poll<Result<Landed<V>, FlightError<E>>> {
        match ready!(self.poll_calmly(cx)) {
            // The one who began the load is the one in whose code it panicked.
            (Err(FlightError::Panicked(panic)), true) => panic.resume(),
            (answer, _) => Poll::Ready(answer),
        }
    }

    /// As a future, but a panic is an error for whoever began the load too; and whether this is who did.
    pub(crate) fn poll_calmly(&mut self, cx: &mut Context<'_>) -> Poll<(Answer<V, E>, bool)> {
        Poll::Ready(match &mut self.0 {
            State::Alone(value) => (Ok(Landed::alone(value.take().expect("a flight gives its answer once"))), true),
            State::Refused(error) => (Err(error.take().expect("a flight gives its answer once")), true),
            State::Aboard(aboard) => (ready!(aboard.poll(cx)), aboard.led),
        })
    }
}

// Nothing is pinned: the sleep can be moved, and the rest is shared.
impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Unpin for Flight<V, E> {}

impl<V, E> Drop for Flight<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn drop(&mut self) {
        if let State::Aboard(aboard) = &mut self.0
            && !aboard.done
        {
            aboard.shared.leave(aboard.slot.take());
        }
    }
}

impl<V, E> fmt::Debug for Flight<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let landed = match &self.0 {
            State::Alone(_) | State::Refused(_) => true,
            State::Aboard(aboard) => aboard.shared.is_landed(),
        };
        f.debug_struct("Flight").field("landed", &landed).finish_non_exhaustive()
    }
}
