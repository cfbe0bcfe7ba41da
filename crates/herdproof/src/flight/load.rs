//! The load itself: polled once in place, and only if it is not ready then, run on its own.

use std::{
    any::Any,
    future::Future,
    hash::Hash,
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    Inner,
    berth::{Berth, Pinned, Spare},
    follower::Flight,
    nest::{self, Chain, FlightId},
    outcome::Ending,
    shared::{Home, Joined, Removal, Shared},
    table::{Begun, Place, Shard},
};
use crate::error::Panic;

/// What a leader owes everybody who joins while it begins the load: an ending, or a task that will bring one. Dropped
/// unpaid, which takes a panic in between, it ends the flight as abandoned.
pub(super) struct Lead<'a, K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    group: &'a Arc<Inner<K, V, E, X>>,
    place: Place,
    /// A place that a load has left, perhaps one that fits this load.
    spare: Option<Spare>,
    owed: bool,
}

impl<'a, K, V, E, X> Lead<'a, K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    #[inline]
    pub(super) fn new(group: &'a Arc<Inner<K, V, E, X>>, begun: Begun) -> Lead<'a, K, V, E, X> {
        let Begun { place, spare } = begun;
        Lead { group, place, spare, owed: true }
    }

    /// Polls the load once in place; if it is not ready, it becomes a task that everybody follows. Should it turn out that there
    /// is nothing to load, what is known is what the flight ends with.
    #[inline(always)]
    pub(super) fn run<F, A, L>(mut self, begin: L) -> Over<A::Now, V, E>
    where
        F: Future + Send + 'static,
        A: After<F>,
        A::Now: Into<Ending<V, E>> + Settle<X>,
        A::Later: Future<Output: Into<Ending<V, E>> + Settle<X>>,
        L: FnOnce() -> Result<(F, A), A::Now>,
    {
        let id = self.group.id(self.place);
        let mut berth = Berth::find(&mut self.spare);
        let polled = nest::within(id, || {
            let poll = || {
                let (load, after) = match begin() {
                    Ok(begun) => begun,
                    Err(known) => return Ok(known),
                };
                match berth.board(load).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(found) => Ok(after.now(found)),
                    Poll::Pending => Err(after),
                }
            };
            catch_unwind(AssertUnwindSafe(poll))
        });
        match polled {
            Ok(Ok(output)) => {
                let left = if needs_drop::<F>() { quietly(|| berth.vacate()).flatten() } else { berth.vacate() };
                self.spare = self.spare.take().or(left);
                self.over(output)
            }
            Ok(Err(after)) => match berth.into_pinned() {
                Some(load) => Over::Flight(self.spawn(after.later(Afloat(load)), id)),
                None => Over::Flight(self.over::<Ending<V, E>>(Ending::Abandoned).into()),
            },
            Err(payload) => {
                quietly(|| drop(berth));
                Over::Flight(self.over::<Ending<V, E>>(Ending::panicked(payload)).into())
            }
        }
    }

    /// Runs the load to its end on this thread.
    pub(super) fn run_here(mut self, load: impl FnOnce() -> Result<V, E>) -> Flight<V, E> {
        let ended = nest::within(self.group.id(self.place), || catch_unwind(AssertUnwindSafe(load)));
        self.over::<Ending<V, E>>(ended.map_or_else(Ending::panicked, Ending::from)).into()
    }

    /// What those aboard share, made now if nobody has joined yet.
    pub(super) fn share(&mut self) -> Lander<V, E> {
        let mut shard = self.group.table.shard(self.place.hash);
        let unneeded = shard.air().keep(self.spare.take());
        let seat = shard.air().seat(self.place);
        let shared = seat.map(|seat| Arc::clone(seat.share(|| self.group.shared(self.place))));
        drop(shard);
        drop(unneeded);
        // Only the leader takes its flight out, so it is there.
        let shared = shared.unwrap_or_else(|| Arc::new(self.group.shared(self.place)));
        Lander { shared, home: Arc::clone(self.group) as Arc<dyn Home> }
    }

    /// What it takes to end the flight, which is now owed by whoever has it.
    pub(super) fn into_lander(mut self) -> Lander<V, E> {
        let lander = self.share();
        self.owed = false;
        lander
    }

    /// The load has ended in place.
    #[inline(always)]
    pub(super) fn over<O>(&mut self, output: O) -> Over<O, V, E>
    where
        O: Into<Ending<V, E>> + Settle<X>,
    {
        self.owed = false;
        let mut closing = Closing::Open(output);
        let place = self.place;
        let settle = |shard: &mut Shard<K, V, E, X>| shard.settle(place, &mut closing);
        match (self.group.ended(place, self.spare.take(), settle), closing) {
            (None, Closing::Open(output)) => Over::Alone(output),
            (None, closing) => Over::Flight(Flight::alone(closing.ending())),
            (Some(shared), closing) => {
                shared.land(closing.ending());
                Over::Flight(Flight::aboard(shared, Joined { led: true, at: self.group.env.coarse() }))
            }
        }
    }

    /// The debt cannot be paid any more.
    #[cold]
    fn default(&mut self) {
        if let Some(shared) = self.group.ended(self.place, self.spare.take(), |_| ()) {
            shared.land(Ending::Abandoned);
        }
    }

    fn spawn<F>(&mut self, load: F, id: FlightId) -> Flight<V, E>
    where
        F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Unpin + Send + 'static,
    {
        let lander = self.share();
        let shared = Arc::clone(&lander.shared);
        self.owed = false;
        let chain = Chain::ending_in(id);
        let joined = Joined { led: true, at: self.group.env.coarse() };
        let group = Arc::clone(self.group);
        shared.runs_as(self.group.env.spawn(LoadTask { load: Some(load), chain, lander, group }));
        Flight::aboard(shared, joined)
    }
}

impl<K, V, E, X> Drop for Lead<'_, K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    #[inline]
    fn drop(&mut self) {
        if self.owed {
            self.default();
        }
    }
}

/// How a load that was polled in place has ended.
pub(crate) enum Over<O, V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Before anybody could share it: this is all there is of it.
    Alone(O),
    /// Or not at all yet.
    Flight(Flight<V, E>),
}

impl<O, V, E> From<Over<O, V, E>> for Flight<V, E>
where
    O: Into<Ending<V, E>>,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    #[inline(always)]
    fn from(over: Over<O, V, E>) -> Flight<V, E> {
        match over {
            Over::Alone(output) => Flight::alone(output.into()),
            Over::Flight(flight) => flight,
        }
    }
}

/// What is to be done with what a load gives. Most loads that are ready when they are polled first never have to be moved
/// together with it, and it can borrow what others have to own.
pub(crate) trait After<F: Future>: Sized {
    /// What a load comes to that is ready at once.
    type Now;
    /// What becomes of one that is not.
    type Later: Future + Unpin + Send + 'static;

    fn now(self, found: F::Output) -> Self::Now;
    fn later(self, load: Afloat<F>) -> Self::Later;
}

/// Nothing is to be done.
pub(crate) struct AsItIs;

impl<F: Future + Send + 'static> After<F> for AsItIs {
    type Now = F::Output;
    type Later = Afloat<F>;

    #[inline(always)]
    fn now(self, found: F::Output) -> F::Output {
        found
    }

    fn later(self, load: Afloat<F>) -> Afloat<F> {
        load
    }
}

/// A load that was polled and stays where it is.
pub(crate) struct Afloat<F>(Pinned<F>);

impl<F: Future> Future for Afloat<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(load) = self.0.as_mut().as_pin_mut() else { unreachable!("what is afloat has a load") };
        load.poll(cx)
    }
}

/// What it takes to end a flight.
pub(super) struct Lander<V: Clone, E> {
    pub(super) shared: Arc<Shared<V, E>>,
    pub(super) home: Arc<dyn Home>,
}

impl<V: Clone, E> Lander<V, E> {
    pub(super) fn unless_forgotten(&self, act: impl FnOnce()) -> bool {
        let mut act = Some(act);
        self.home.unless_forgotten(self.shared.place, &mut || act.take().into_iter().for_each(|act| act()))
    }

    /// The load has ended: newcomers begin anew, and those aboard have their ending, unless they had it before.
    pub(super) fn end(&self, ending: Ending<V, E>) {
        if !self.shared.is_landed() {
            self.home.remove(self.shared.place, Removal::Landed);
            self.shared.land(ending);
        }
    }
}

/// What is to be done with what a load has come to while nobody can begin another, nor say that it is out of date.
pub(crate) trait Settle<X> {
    /// Called with what the group keeps for the key, and how to ask whether newcomers could find the flight until now: those
    /// who forgot it meant that nothing of it is to be kept.
    fn settle(&mut self, kept: &mut X, is_known: impl FnOnce() -> bool);
}

/// Nothing, as a rule.
impl<X, V, E> Settle<X> for Result<V, E> {
    #[inline(always)]
    fn settle(&mut self, _: &mut X, _: impl FnOnce() -> bool) {}
}

impl<X, V, E> Settle<X> for Ending<V, E> {
    #[inline(always)]
    fn settle(&mut self, _: &mut X, _: impl FnOnce() -> bool) {}
}

/// What a load has come to on the way to its ending. Should it panic there, that is its ending.
pub(super) enum Closing<O> {
    Open(O),
    Panicked(Box<dyn Any + Send>),
}

impl<O> Closing<O> {
    #[inline(always)]
    pub(super) fn settle<X>(&mut self, kept: &mut X, is_known: impl FnOnce() -> bool)
    where
        O: Settle<X>,
    {
        if let Closing::Open(output) = self
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| output.settle(kept, is_known)))
        {
            *self = Closing::Panicked(payload);
        }
    }

    #[inline(always)]
    fn ending<V, E>(self) -> Ending<V, E>
    where
        O: Into<Ending<V, E>>,
    {
        let ending = match self {
            Closing::Open(output) => catch_unwind(AssertUnwindSafe(|| output.into())),
            Closing::Panicked(payload) => Err(payload),
        };
        ending.unwrap_or_else(Ending::panicked)
    }
}

/// A load that runs on its own and ends the flight, however it ends itself.
struct LoadTask<K, F, V: Clone, E, X> {
    /// Absent once it has ended.
    load: Option<F>,
    /// The flights that were around it when it began, and itself.
    chain: Chain,
    lander: Lander<V, E>,
    group: Arc<Inner<K, V, E, X>>,
}

impl<K, F, V, E, X> Future for LoadTask<K, F, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Unpin,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let LoadTask { load, chain, lander, group } = &mut *self;
        let Some(running) = load else { return Poll::Ready(()) };
        let polled = nest::exactly(chain, || catch_unwind(AssertUnwindSafe(|| Pin::new(running).poll(cx))));
        let mut closing = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Closing::Open(output),
            Err(payload) => Closing::Panicked(payload),
        };
        quietly(|| *load = None);
        group.table.shard(lander.shared.place.hash).settle(lander.shared.place, &mut closing);
        lander.end(closing.ending());
        Poll::Ready(())
    }
}

// Nothing of it is pinned.
impl<K, F, V: Clone, E, X> Unpin for LoadTask<K, F, V, E, X> {}

impl<K, F, V: Clone, E, X> Drop for LoadTask<K, F, V, E, X> {
    fn drop(&mut self) {
        quietly(|| self.load = None);
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

/// Runs what drops a load: one that panics then has still loaded what it loaded, and must not take its caller along.
#[inline]
fn quietly<T>(drops: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(drops)) {
        Ok(done) => Some(done),
        Err(payload) => {
            // Said once, by the panic hook; the payload's own drop might panic again.
            std::mem::forget(Panic::new(payload));
            None
        }
    }
}
