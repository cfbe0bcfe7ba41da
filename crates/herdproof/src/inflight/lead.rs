//! The lead of a load: polled once in place, and only if it is not ready then, run as a task.

use std::{
    any::Any,
    future::Future,
    mem::needs_drop,
    ops::DerefMut,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    HasLoads, Home, Table,
    follower::Flight,
    id_of,
    landing::Landing,
    loads::{Place, Removed},
    nest::{self, Chain, FlightId},
    outcome::Ending,
    shared::{Removal, Shared},
    shared_of,
    slot::{Pinned, Slot, Spare},
};
use crate::error::quietly;

/// The obligation to end a load that followers may join, or to run it as a task that does. Dropped before that, it ends the load
/// as abandoned.
pub(crate) struct Lead<'a, H: Home> {
    home: &'a Arc<H>,
    place: Place,
    /// The slot of an earlier load; it may fit this one.
    spare: Option<Spare>,
    owed: bool,
}

impl<'a, H: Home> Lead<'a, H> {
    /// Begins a load that is not in progress, and lets go of the lock.
    #[inline(always)]
    pub(crate) fn begin(
        home: &'a Arc<H>,
        mut shard: impl DerefMut<Target = H::Shard>,
        hash: u64,
        key: H::Key,
    ) -> Lead<'a, H> {
        let (place, spare) = shard.loads().begin(hash, key, home.stamp());
        drop(shard);
        Lead { home, place, spare, owed: true }
    }

    /// Polls the load once in place; if it is not ready, it becomes a task that everybody follows.
    #[inline(always)]
    pub(crate) fn run<F>(&mut self, load: impl FnOnce() -> F) -> Flight<H::Value, H::Error>
    where
        F: Future<Output: Into<Ending<H::Value, H::Error>>> + Send + 'static,
    {
        let (mut slot, mut polled) = (self.slot(), Poll::Pending);
        if let Err(payload) = self.poll(&mut slot, &mut polled, load) {
            quietly(|| drop(slot));
            return self.end(Ending::panicked(payload));
        }
        match polled {
            Poll::Ready(output) => {
                self.leave(slot);
                self.end(output.into())
            }
            Poll::Pending => self.spawn(slot.into_load()),
        }
    }

    /// As [`run`](Lead::run), with a load that may land before it is over.
    pub(crate) fn run_landing<F>(
        &mut self,
        load: impl FnOnce(Landing<H::Value, H::Error>) -> F,
    ) -> Flight<H::Value, H::Error>
    where
        F: Future<Output = Result<(), H::Error>> + Send + 'static,
    {
        let lead = self.own();
        let (chain, flight, landing) = (Chain::around([lead.id]), lead.follow(), lead.landing());
        let begin = || self.home.settings().env.poll_in_place(|| load(landing));
        let load = match nest::within(lead.id, || catch_unwind(AssertUnwindSafe(begin))) {
            Ok(load) => Box::pin(async { load.await.map_or_else(Ending::failed, |()| Ending::Abandoned) }),
            Err(payload) => {
                lead.flight.end(Ending::panicked(payload));
                return flight;
            }
        };
        LoadTask { load: Some(load), chain, lead }.start();
        flight
    }

    #[inline(always)]
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Where the load is to be polled.
    #[inline(always)]
    pub(crate) fn slot<F: Send + 'static>(&mut self) -> Slot<F> {
        Slot::find(&mut self.spare)
    }

    /// Begins the load and polls it for the first time. What it gives is written to where the caller reads it: returned through
    /// the closure that catches panics it would be copied three times.
    #[inline(always)]
    pub(crate) fn poll<F: Future + Send + 'static>(
        &self,
        slot: &mut Slot<F>,
        polled: &mut Poll<F::Output>,
        load: impl FnOnce() -> F,
    ) -> Result<(), Box<dyn Any + Send>> {
        let poll = || *polled = slot.put(load()).poll(&mut Context::from_waker(Waker::noop()));
        let poll = || self.home.settings().env.poll_in_place(poll);
        nest::within(id_of(self.home, self.place), || catch_unwind(AssertUnwindSafe(poll)))
    }

    /// The load was ready at once; its slot is for the next.
    #[inline(always)]
    pub(crate) fn leave<F: Send + 'static>(&mut self, slot: Slot<F>) {
        let left = if needs_drop::<F>() { quietly(|| slot.vacate()).flatten() } else { slot.vacate() };
        self.spare = self.spare.take().or(left);
    }

    /// Runs the load, which was not ready, as a task that ends it for everybody.
    pub(crate) fn spawn<F>(&mut self, load: F) -> Flight<H::Value, H::Error>
    where
        F: Future<Output: Into<Ending<H::Value, H::Error>>> + Unpin + Send + 'static,
    {
        Flight::led(self.spawn_shared(load))
    }

    /// As [`Company::tell`]: what the `Flight` is made of.
    #[inline(never)]
    fn spawn_shared<F>(&mut self, load: F) -> Arc<Shared<H::Value, H::Error>>
    where
        F: Future<Output: Into<Ending<H::Value, H::Error>>> + Unpin + Send + 'static,
    {
        let lead = self.own();
        let (chain, shared) = (Chain::around([lead.id]), Arc::clone(&lead.flight.shared));
        LoadTask { load: Some(load), chain, lead }.spawn();
        shared
    }

    /// As one poll of a load that its leader keeps polling itself; a panic is an ending.
    pub(crate) fn poll_inside<F>(&self, load: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<Ending<H::Value, H::Error>>
    where
        F: Future<Output: Into<Ending<H::Value, H::Error>>>,
    {
        let poll = || catch_unwind(AssertUnwindSafe(|| load.poll(cx)));
        match nest::within(id_of(self.home, self.place), poll) {
            Ok(polled) => polled.map(Into::into),
            Err(payload) => Poll::Ready(Ending::panicked(payload)),
        }
    }

    /// The same obligation for a task to keep, with what followers share.
    pub(crate) fn own(&mut self) -> OwnedLead<H::Value, H::Error> {
        let mut shard = self.home.shard(self.place.hash);
        let unneeded = shard.loads().keep(self.spare.take());
        let seat = shard.loads().seat(self.place);
        let shared = seat.map(|seat| Arc::clone(seat.get_or_insert_with(|| shared_of(self.home, self.place))));
        drop(shard);
        drop(unneeded);
        // Only the leader takes its flight out, so it is there.
        let shared = shared.unwrap_or_else(|| shared_of(self.home, self.place));
        self.owed = false;
        let home = Arc::clone(self.home) as Arc<dyn Table>;
        OwnedLead { flight: FlightRef { shared, home }, id: id_of(self.home, self.place) }
    }

    /// The load has ended in place.
    #[inline(always)]
    pub(crate) fn end(&mut self, ending: Ending<H::Value, H::Error>) -> Flight<H::Value, H::Error> {
        match self.close(|_| ()) {
            None => Flight::alone(ending),
            Some(company) => company.land(ending),
        }
    }

    /// The load has ended in place: takes it out of the shard, after `last` was done under the same lock. What is given is to be
    /// told how it ended.
    #[inline(always)]
    pub(crate) fn close(&mut self, last: impl FnOnce(&mut H::Shard)) -> Option<Company<H::Value, H::Error>> {
        let mut shard = self.home.shard(self.place.hash);
        last(&mut shard);
        self.owed = false;
        let unneeded = shard.loads().keep(self.spare.take());
        if let Some(key) = shard.loads().remove_unshared(self.place) {
            drop(shard);
            drop((key, unneeded));
            return None;
        }
        let removed = shard.loads().remove(self.place);
        drop(shard);
        // Before user code runs, which may panic.
        let company = removed.as_ref().and_then(Removed::shared).map(Company);
        drop(unneeded);
        if let Some(removed) = removed {
            removed.tell(&self.home.settings().env);
        }
        company
    }
}

impl<H: Home> Drop for Lead<'_, H> {
    #[inline]
    fn drop(&mut self) {
        #[cold]
        fn abandon<H: Home>(lead: &mut Lead<'_, H>) {
            drop(lead.end(Ending::Abandoned));
        }
        if self.owed {
            abandon(self);
        }
    }
}

/// Those who share a load that has left its shard, its leader among them. Dropped untold, which takes a panic in between, they
/// are told that it was abandoned.
pub(crate) struct Company<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static>(Arc<Shared<V, E>>);

impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Drop for Company<V, E> {
    fn drop(&mut self) {
        self.0.land(Ending::Abandoned);
    }
}

impl<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Company<V, E> {
    /// Tells everybody how the load ended; the leader's part of it comes back.
    #[inline(always)]
    pub(crate) fn land(self, ending: Ending<V, E>) -> Flight<V, E> {
        Flight::led(self.tell(ending))
    }

    /// Gives what the leader's `Flight` is made of, not the `Flight`: so that of a leader without followers stays in registers.
    #[inline(never)]
    fn tell(self, ending: Ending<V, E>) -> Arc<Shared<V, E>> {
        self.0.land(ending);
        Arc::clone(&self.0)
    }
}

/// What it takes to end a flight, whoever is obliged to.
pub(super) struct FlightRef<V: Clone, E> {
    pub(super) shared: Arc<Shared<V, E>>,
    pub(super) home: Arc<dyn Table>,
}

impl<V: Clone, E> FlightRef<V, E> {
    pub(super) fn unless_forgotten(&self, act: impl FnOnce()) -> bool {
        let mut act = Some(act);
        self.home.unless_forgotten(self.shared.place, &mut || act.take().into_iter().for_each(|act| act()))
    }

    /// The load has ended: newcomers begin anew, and followers have their ending, unless they had it before.
    pub(super) fn end(&self, ending: Ending<V, E>) {
        if !self.shared.is_landed() {
            self.home.remove(self.shared.place, Removal::Landed);
            self.shared.land(ending);
        }
    }
}

impl<V: Clone, E> Clone for FlightRef<V, E> {
    fn clone(&self) -> Self {
        FlightRef { shared: Arc::clone(&self.shared), home: Arc::clone(&self.home) }
    }
}

/// As [`Lead`], for a load that does not end where it began. Dropped, it ends the load as abandoned.
pub(crate) struct OwnedLead<V: Clone, E> {
    pub(super) flight: FlightRef<V, E>,
    id: FlightId,
}

impl<V: Clone, E> OwnedLead<V, E> {
    pub(crate) fn id(&self) -> FlightId {
        self.id
    }

    /// The leader's own place among those who share the load.
    pub(crate) fn follow(&self) -> Flight<V, E>
    where
        V: Send + Sync + 'static,
        E: Send + Sync + 'static,
    {
        Flight::led(Arc::clone(&self.flight.shared))
    }

    /// The right to land it before the load is over. Whatever becomes of that, the obligation stays here.
    pub(crate) fn landing(&self) -> Landing<V, E> {
        Landing::new(self.flight.clone())
    }

    /// Gives everybody this value, unless they have one; newcomers begin anew.
    pub(crate) fn land(self, value: V) {
        self.flight.end(Ending::Value(value));
    }
}

impl<V: Clone, E> Drop for OwnedLead<V, E> {
    fn drop(&mut self) {
        self.flight.end(Ending::Abandoned);
    }
}

/// A load that was polled once and stays where it is in memory.
pub(crate) struct InProgress<F>(pub(super) Pinned<F>);

impl<F: Future> Future for InProgress<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(load) = self.0.as_mut().as_pin_mut() else { unreachable!("a load in progress is there") };
        load.poll(cx)
    }
}

/// A load that runs as a task and ends the flight, however it ends itself.
struct LoadTask<F, V: Clone, E> {
    /// Absent once it has ended.
    load: Option<F>,
    /// The flights that were around it when it began, and itself.
    chain: Chain,
    lead: OwnedLead<V, E>,
}

impl<F, V: Clone, E> Future for LoadTask<F, V, E>
where
    F: Future<Output: Into<Ending<V, E>>> + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let LoadTask { load, chain, lead } = &mut *self;
        let Some(running) = load else { return Poll::Ready(()) };
        let polled = nest::exactly(chain, || catch_unwind(AssertUnwindSafe(|| Pin::new(running).poll(cx))));
        let ending = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => output.into(),
            Err(payload) => Ending::panicked(payload),
        };
        quietly(|| *load = None);
        lead.flight.end(ending);
        Poll::Ready(())
    }
}

impl<F, V, E> LoadTask<F, V, E>
where
    F: Future<Output: Into<Ending<V, E>>> + Unpin + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn spawn(self) {
        let shared = Arc::clone(&self.lead.flight.shared);
        shared.runs_as(shared.env.spawn(self));
    }

    /// Polls the load once in place, and spawns it only if it is not ready.
    fn start(mut self) {
        let env = self.lead.flight.shared.env.clone();
        let first = || Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop()));
        if env.poll_in_place(first).is_pending() {
            self.spawn();
        }
    }
}

// Nothing of it is pinned.
impl<F, V: Clone, E> Unpin for LoadTask<F, V, E> {}

impl<F, V: Clone, E> Drop for LoadTask<F, V, E> {
    fn drop(&mut self) {
        quietly(|| self.load = None);
    }
}
