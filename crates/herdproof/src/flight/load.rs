//! The load itself: polled once in place, and only if it is not ready then, run on its own.

use std::{
    future::Future,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    Inner,
    follower::Flight,
    nest::{self, FlightId},
    outcome::{Ending, Landed},
    shared::{Home, Joined, Removal, Shared},
    table::Place,
};
use crate::error::Panic;

/// What a leader owes everybody who joins while it begins the load: an ending, or a task that will bring one. Dropped
/// unpaid, which takes a panic in between, it ends the flight as abandoned.
pub(super) struct Lead<'a, K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    group: &'a Arc<Inner<K, V, E>>,
    place: Place,
    owed: bool,
}

impl<'a, K, V, E> Lead<'a, K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) fn new(group: &'a Arc<Inner<K, V, E>>, place: Place) -> Lead<'a, K, V, E> {
        Lead { group, place, owed: true }
    }

    /// Polls the load once in place; if it is not ready, it becomes a task that everybody follows.
    pub(super) fn run<F, L>(self, load: L) -> Flight<V, E>
    where
        F: Future + Send + 'static,
        F::Output: Into<Ending<V, E>>,
        L: FnOnce() -> F,
    {
        let id = self.group.id(self.place);
        let mut begun: Option<Pin<Box<F>>> = None;
        let polled = nest::within(id, || {
            let poll = || begun.insert(Box::pin(load())).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            catch_unwind(AssertUnwindSafe(poll))
        });
        match (polled, begun) {
            (Ok(Poll::Pending), Some(load)) => self.spawn(load, id),
            (Ok(Poll::Pending), None) => self.over(Ending::Abandoned),
            (Ok(Poll::Ready(output)), load) => {
                drop_quietly(load);
                self.over(output.into())
            }
            (Err(payload), load) => {
                drop_quietly(load);
                self.over(Ending::panicked(payload))
            }
        }
    }

    /// Runs the load to its end on this thread.
    pub(super) fn run_here(self, load: impl FnOnce() -> Result<V, E>) -> Flight<V, E> {
        let ended = nest::within(self.group.id(self.place), || catch_unwind(AssertUnwindSafe(load)));
        self.over(ended.map_or_else(Ending::panicked, Ending::from))
    }

    /// What those aboard share, made now if nobody has joined yet.
    pub(super) fn share(&self) -> Lander<V, E> {
        let shared = self
            .group
            .table
            .shard(self.place.hash)
            .seat(self.place)
            .map(|seat| Arc::clone(seat.share(|| self.group.shared(self.place))));
        // Only the leader takes its flight out, so it is there.
        let shared = shared.unwrap_or_else(|| Arc::new(self.group.shared(self.place)));
        Lander { shared, home: Arc::clone(self.group) as Arc<dyn Home> }
    }

    /// The load has ended in place.
    #[inline]
    pub(super) fn over(mut self, ending: Ending<V, E>) -> Flight<V, E> {
        self.owed = false;
        match self.group.ended(self.place) {
            None => Flight::over(Result::from(ending).map(|value| Landed {
                value,
                led: true,
                shared: false,
                waited: Duration::ZERO,
            })),
            Some(shared) => {
                shared.land(ending);
                Flight::aboard(shared, Joined { led: true, at: self.group.env.coarse() })
            }
        }
    }

    /// The debt cannot be paid any more.
    #[cold]
    fn default(&self) {
        if let Some(shared) = self.group.ended(self.place) {
            shared.land(Ending::Abandoned);
        }
    }

    fn spawn<F>(mut self, load: Pin<Box<F>>, id: FlightId) -> Flight<V, E>
    where
        F: Future + Send + 'static,
        F::Output: Into<Ending<V, E>>,
    {
        let lander = self.share();
        let shared = Arc::clone(&lander.shared);
        self.owed = false;
        let mut chain = nest::chain();
        chain.push(id);
        let joined = Joined { led: true, at: self.group.env.coarse() };
        shared.runs_as(self.group.env.spawn(LoadTask { load: Some(load), chain, lander }));
        Flight::aboard(shared, joined)
    }
}

impl<K, V, E> Drop for Lead<'_, K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline]
    fn drop(&mut self) {
        if self.owed {
            self.default();
        }
    }
}

/// What it takes to end a flight.
pub(super) struct Lander<V: Clone, E> {
    pub(super) shared: Arc<Shared<V, E>>,
    pub(super) home: Arc<dyn Home>,
}

impl<V: Clone, E> Lander<V, E> {
    /// The load has ended: newcomers begin anew, and those aboard have their ending, unless they had it before.
    fn end(&self, ending: Ending<V, E>) {
        if !self.shared.is_landed() {
            self.home.remove(self.shared.place, Removal::Landed);
            self.shared.land(ending);
        }
    }
}

/// A load that runs on its own and ends the flight, however it ends itself.
struct LoadTask<F, V: Clone, E> {
    /// Absent once it has ended.
    load: Option<Pin<Box<F>>>,
    /// The flights that were around it when it began, and itself.
    chain: Vec<FlightId>,
    lander: Lander<V, E>,
}

impl<F, V, E> Future for LoadTask<F, V, E>
where
    F: Future,
    F::Output: Into<Ending<V, E>>,
    V: Clone,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let LoadTask { load, chain, lander } = &mut *self;
        let Some(running) = load else { return Poll::Ready(()) };
        let Poll::Ready(ending) = nest::exactly(chain, || poll_caught(running.as_mut(), cx)) else {
            return Poll::Pending;
        };
        drop_quietly(load.take());
        lander.end(ending);
        Poll::Ready(())
    }
}

// The load is boxed, so the task can be moved.
impl<F, V: Clone, E> Unpin for LoadTask<F, V, E> {}

impl<F, V: Clone, E> Drop for LoadTask<F, V, E> {
    fn drop(&mut self) {
        drop_quietly(self.load.take());
        self.lander.end(Ending::Abandoned);
    }
}

/// What one poll of a load came to; a panic is an ending like any other.
pub(super) fn poll_caught<F, V, E>(load: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<Ending<V, E>>
where
    F: Future,
    F::Output: Into<Ending<V, E>>,
{
    match catch_unwind(AssertUnwindSafe(|| load.poll(cx))) {
        Ok(polled) => polled.map(Into::into),
        Err(payload) => Poll::Ready(Ending::panicked(payload)),
    }
}

/// A load that panics while it is dropped has still loaded what it loaded, and must not take its caller along.
fn drop_quietly<T>(load: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(load))) {
        // Said once, by the panic hook; the payload's own drop might panic again.
        std::mem::forget(Panic::new(payload));
    }
}
