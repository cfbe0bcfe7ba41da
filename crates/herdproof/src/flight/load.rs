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
    nest::{self, Chain},
    outcome::Ending,
    shared::{Home, Joined, Removal, Shared},
    table::{Begun, Place, Shard},
};
use crate::error::quietly;

/// What a leader owes everybody who joins while it begins the load: an ending, or a task that will bring one. Dropped
/// unpaid, which takes a panic in between, it ends the flight as abandoned.
pub(crate) struct Lead<'a, K, V, E, X>
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
    pub(super) fn run<F, L>(mut self, load: L) -> Flight<V, E>
    where
        F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Send + 'static,
        L: FnOnce() -> Result<F, F::Output>,
    {
        let (mut berth, mut polled) = (self.berth(), Poll::Pending);
        if let Err(payload) = self.poll(&mut berth, &mut polled, load) {
            return self.panicked(berth, payload);
        }
        match polled {
            Poll::Ready(output) => {
                self.leave(berth);
                self.over(output)
            }
            Poll::Pending => self.go_on(berth.into_afloat()),
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Where the load is to be polled.
    #[inline(always)]
    pub(crate) fn berth<F: Send + 'static>(&mut self) -> Berth<F> {
        Berth::find(&mut self.spare)
    }

    /// Begins the load, if there is anything to load, and polls it for the first time. What it gives is written to where the
    /// caller reads it: it would be copied a few times on its way through where a panic is caught, and that is slow.
    #[inline(always)]
    pub(crate) fn poll<F, L>(
        &self,
        berth: &mut Berth<F>,
        polled: &mut Poll<F::Output>,
        load: L,
    ) -> Result<(), Box<dyn Any + Send>>
    where
        F: Future + Send + 'static,
        L: FnOnce() -> Result<F, F::Output>,
    {
        let poll = || match load() {
            Ok(load) => *polled = berth.board(load).poll(&mut Context::from_waker(Waker::noop())),
            Err(known) => *polled = Poll::Ready(known),
        };
        let poll = || self.group.env.poll_in_place(poll);
        nest::within(self.group.id(self.place), || catch_unwind(AssertUnwindSafe(poll)))
    }

    /// The load was ready at once; its place is for the next.
    #[inline(always)]
    pub(crate) fn leave<F: Send + 'static>(&mut self, berth: Berth<F>) {
        let left = if needs_drop::<F>() { quietly(|| berth.vacate()).flatten() } else { berth.vacate() };
        self.spare = self.spare.take().or(left);
    }

    /// The load has panicked at once.
    #[cold]
    pub(crate) fn panicked<F: Send + 'static>(
        &mut self,
        berth: Berth<F>,
        payload: Box<dyn Any + Send>,
    ) -> Flight<V, E> {
        quietly(|| drop(berth));
        self.over::<Ending<V, E>>(Ending::panicked(payload))
    }

    /// The load was not ready, and goes on as a task.
    pub(crate) fn go_on<F>(&mut self, load: F) -> Flight<V, E>
    where
        F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Unpin + Send + 'static,
    {
        let lander = self.share();
        let shared = Arc::clone(&lander.shared);
        self.owed = false;
        let chain = Chain::ending_in(self.group.id(self.place));
        let joined = Joined { led: true, at: self.group.env.coarse() };
        let group = Arc::clone(self.group);
        shared.runs_as(self.group.env.spawn(LoadTask { load: Some(load), chain, lander, group }));
        Flight::aboard(shared, joined)
    }

    /// Runs the load to its end on this thread.
    pub(super) fn run_here(mut self, load: impl FnOnce() -> Result<V, E>) -> Flight<V, E> {
        let ended = nest::within(self.group.id(self.place), || catch_unwind(AssertUnwindSafe(load)));
        self.over::<Ending<V, E>>(ended.map_or_else(Ending::panicked, Ending::from))
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
    pub(crate) fn over<O>(&mut self, mut output: O) -> Flight<V, E>
    where
        O: Into<Ending<V, E>> + Settle<X>,
    {
        match self.close(&mut output) {
            Over::Alone => Flight::alone(output.into()),
            Over::Otherwise(unsaid) => self.land(unsaid, output),
        }
    }

    /// The load has ended in place: settles what it has come to, and takes the flight out of the table.
    #[inline(always)]
    pub(crate) fn close<O: Settle<X>>(&mut self, output: &mut O) -> Over<V, E> {
        self.owed = false;
        let (place, mut settled) = (self.place, Ok(()));
        let settle = |shard: &mut Shard<K, V, E, X>| settled = shard.settle(place, output);
        match (self.group.ended(place, self.spare.take(), settle), settled) {
            (None, Ok(())) => Over::Alone,
            (shared, settled) => Over::Otherwise(Unsaid { shared, settled }),
        }
    }

    /// Gives everybody aboard what the load has come to.
    #[inline(never)]
    pub(crate) fn land<O: Into<Ending<V, E>>>(&mut self, unsaid: Unsaid<V, E>, output: O) -> Flight<V, E> {
        let Unsaid { shared, settled } = unsaid;
        let ending = ending_of(output, settled);
        let Some(shared) = shared else { return Flight::alone(ending) };
        shared.land(ending);
        Flight::aboard(shared, Joined { led: true, at: self.group.env.coarse() })
    }

    /// The debt cannot be paid any more.
    #[cold]
    fn default(&mut self) {
        if let Some(shared) = self.group.ended(self.place, self.spare.take(), |_| ()) {
            shared.land(Ending::Abandoned);
        }
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

/// A flight that has left the table.
pub(crate) enum Over<V, E> {
    /// Nobody had joined, so what the load has come to is for its leader alone.
    Alone,
    /// Somebody had, or it could not be settled.
    Otherwise(Unsaid<V, E>),
}

/// What those aboard are still to be told.
pub(crate) struct Unsaid<V, E> {
    shared: Option<Arc<Shared<V, E>>>,
    settled: Settled,
}

/// A load that was polled and stays where it is.
pub(crate) struct Afloat<F>(pub(super) Pinned<F>);

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

/// Whether what a load has come to could be settled; if that panicked, this is its ending.
pub(super) type Settled = Result<(), Box<dyn Any + Send>>;

fn ending_of<V, E>(output: impl Into<Ending<V, E>>, settled: Settled) -> Ending<V, E> {
    settled.and_then(|()| catch_unwind(AssertUnwindSafe(|| output.into()))).unwrap_or_else(Ending::panicked)
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
        let polled = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(payload),
        };
        quietly(|| *load = None);
        let place = lander.shared.place;
        lander.end(match polled {
            Ok(mut output) => {
                let settled = group.table.shard(place.hash).settle(place, &mut output);
                ending_of(output, settled)
            }
            Err(payload) => Ending::panicked(payload),
        });
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
