//! One load per key, whatever callers do.
//!
//! When a hot key is missing, everybody who needs it loads it: 800 callers, 800 loads, and an origin that answers one in
//! 80 ms answers none in five seconds. A [`Group`] lets the first caller of a key begin the load and everybody else share
//! it. What makes the difference between such a thing in a demo and in production is what happens when callers leave,
//! loads fail, panic or hang:
//!
//! - **The load belongs to nobody.** It is polled once in place, so a load that is ready costs no task; if it is not, it
//!   moves to a task of its own and every caller, the first included, follows it. A caller that times out, is dropped, or
//!   sits unpolled in a `select!` neither stops nor restarts it.
//! - **Nobody hangs.** An error reaches everybody, and so does a panic, as [`FlightError::Panicked`]; the caller that began
//!   the load gets the panic itself. A key is never poisoned. Every caller can have a deadline of its own.
//! - **Nothing is left.** When the last caller leaves, the load is dropped, or allowed to finish ([`Abandon`]), and the key
//!   is gone from the table.
//! - **Crowds are bounded.** [`max_followers`](GroupBuilder::max_followers) caps how many wait for one key.
//!
//! ```
//! use herdproof::{Env, flight::Group};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let group: Group<String, u64, std::io::Error> = Group::new(&Env::system());
//! let landed = group.run("odds/42".into(), || async { Ok(17) }).await.unwrap();
//! assert_eq!((landed.value, landed.led, landed.shared), (17, true, false));
//! # });
//! ```
//!
//! It is not a cache: when the load has landed, the next caller begins another.
//!
//! For those who know Go's `singleflight`:
//!
//! | there | here |
//! |---|---|
//! | `Do` | `run(..).await`, or [`run_blocking`](Group::run_blocking) on a thread |
//! | `DoChan` | [`Flight::channel`]; the future itself can be selected on |
//! | `Forget` | [`forget`](Group::forget): those aboard stay aboard, and the old flight's end does not touch the new one |
//! | `shared` | [`Landed::shared`], true for the leader too if anybody joined |
//! | a panic in every caller; the process crashes if `DoChan` was used | the panic in the caller that began the load, [`FlightError::Panicked`] for the others |
//! | `runtime.Goexit` in every caller | does not exist here; what unwinds is a panic |

mod berth;
mod follower;
mod landing;
mod load;
mod local;
mod nest;
mod outcome;
mod retries;
mod shared;
mod stats;
mod table;
mod ticket;
mod wakers;

use std::{
    borrow::Borrow,
    convert::Infallible,
    fmt,
    future::Future,
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
};

use berth::Spare;
pub use follower::Flight;
pub use landing::{Landing, Linger};
pub(crate) use load::{Afloat, Lead, Over, Settle};
pub use local::LocalGroup;
use nest::FlightId;
pub(crate) use outcome::Ending;
pub use outcome::{FlightError, Landed};
pub use retries::Retries;
pub use shared::Abandon;
use shared::{Closed, Home, Joined, Removal, Shared};
pub use stats::Stats;
pub(crate) use table::Place;
use table::{Begun, Ended, Removed, SHARDS, Seat, Shard, Table};
pub(crate) use ticket::{Ticket, Ticketed};

use crate::{
    bravo::WriteGuard,
    env::{Env, MapHasher, Tick},
    event::Event,
};

/// Loads in progress, one for each key; see the [module](self). Cheap to clone, and clones share.
///
/// `X` is what the [cache](crate::cache) keeps under the same locks; a group by itself keeps nothing.
pub struct Group<K, V, E = Infallible, X = ()>(Arc<Inner<K, V, E, X>>);

/// How a [`Group`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupBuilder {
    env: Env,
    abandon: Abandon,
    max_followers: u32,
}

struct Inner<K, V, E, X> {
    env: Env,
    hasher: MapHasher,
    abandon: Abandon,
    max_followers: u32,
    table: Table<K, V, E, X>,
    /// Itself, for the flights to find their way back.
    home: Weak<dyn Home>,
}

/// A flight to be led, with what was kept when it began, or a seat in one that is under way.
type Led<'a, K, V, E, X, R> = Result<(Lead<'a, K, V, E, X>, R), Flight<V, E>>;

/// What came of asking to be let into a flight.
enum Joining {
    Aboard {
        at: Tick,
    },
    Overloaded,
    Reentrant,
    /// It was given up. Newcomers no longer find it.
    Gone,
}

impl GroupBuilder {
    /// What becomes of a load when the last caller leaves; [`Abandon::Cancel`] unless told otherwise.
    pub fn abandon(mut self, abandon: Abandon) -> GroupBuilder {
        self.abandon = abandon;
        self
    }

    /// How many callers may wait for one key beside the first; a million unless told otherwise. Beyond that, callers get
    /// [`FlightError::Overloaded`] at once.
    pub fn max_followers(mut self, most: u32) -> GroupBuilder {
        // The largest number means "given up".
        self.max_followers = most.min(u32::MAX - 2);
        self
    }

    /// The group.
    pub fn build<K, V, E>(self) -> Group<K, V, E>
    where
        K: Hash + Eq + Send + 'static,
        V: Clone + Send + Sync + 'static,
        E: Send + Sync + 'static,
    {
        let hasher = self.env.hasher("flight");
        self.build_keeping(hasher, SHARDS, || ())
    }

    /// A group that keeps something for its keys, in so many parts, each under the lock of the loads of its keys.
    pub(crate) fn build_keeping<K, V, E, X>(
        self,
        hasher: MapHasher,
        parts: usize,
        kept: impl FnMut() -> X,
    ) -> Group<K, V, E, X>
    where
        K: Hash + Eq + Send + 'static,
        V: Clone + Send + Sync + 'static,
        E: Send + Sync + 'static,
        X: Send + Sync + 'static,
    {
        let GroupBuilder { env, abandon, max_followers } = self;
        let table = Table::new(parts, kept);
        Group(Arc::new_cyclic(|home: &Weak<Inner<K, V, E, X>>| {
            let home: Weak<dyn Home> = home.clone();
            Inner { env, hasher, abandon, max_followers, table, home }
        }))
    }
}

impl Group<(), (), ()> {
    /// A group in the making.
    pub fn builder(env: &Env) -> GroupBuilder {
        GroupBuilder { env: env.clone(), abandon: Abandon::default(), max_followers: 1_000_000 }
    }
}

impl<K, V, E> Group<K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// A group with the usual settings.
    pub fn new(env: &Env) -> Group<K, V, E> {
        Group::builder(env).build()
    }
}

impl<K, V, E, X> Group<K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    /// Joins the load of this key, or begins it. By the time this returns, the load is under way or over; the [`Flight`]
    /// is a future of its answer.
    ///
    /// `load` is called only if nobody loads the key. Its future is polled once here; if it is not ready it goes on as a
    /// task of its own, outside of this task's context (task-locals, tracing spans).
    pub fn run<F, L>(&self, key: K, load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnOnce() -> F,
    {
        match self.0.board(self.hash(&key), key, |_, _, _| ()) {
            Ok((begun, ())) => self.lead(begun).run(|| Ok(load())),
            Err(flight) => flight,
        }
    }

    /// As [`run`](Group::run), with a load that may be tried again, inside the flight, so that one blip does not fail everybody and a
    /// failing origin is not called once per caller.
    pub fn run_retrying<F, L>(&self, key: K, retries: &Retries, load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnMut() -> F + Send + 'static,
    {
        self.run(key, || retries.clone().run(load))
    }

    /// As [`run`](Group::run), with a load that lands the flight before it is over, by [`Landing::land`]. Callers go on with
    /// the value at once; newcomers get it too, until the load drops the [`Linger`] it was given for it.
    ///
    /// For a response whose headers are known long before its body is stored, say. A load that ends without having landed
    /// is [`FlightError::Abandoned`], or its error. After the landing, callers who leave no longer end the load.
    pub fn run_landing<F, L>(&self, key: K, load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        L: FnOnce(Landing<V, E>) -> F,
    {
        self.run_landing_placed(self.hash(&key), key, |_, _, _| (), |_, (), landing| load(landing))
    }

    /// As [`run_landing`](Group::run_landing), with a load that knows its place, and what was kept when it got that.
    pub(crate) fn run_landing_placed<R, F, L>(
        &self,
        hash: u64,
        key: K,
        look: impl FnOnce(&X, u64, &K) -> R,
        load: L,
    ) -> Flight<V, E>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        L: FnOnce(Place, R, Landing<V, E>) -> F,
    {
        match self.0.board(hash, key, look) {
            Ok((begun, seen)) => {
                let place = begun.place;
                let mut lead = self.lead(begun);
                let lander = lead.share();
                let (shared, landing) = (Arc::clone(&lander.shared), Landing::new(lander));
                let flight = lead.run(|| {
                    let load = load(place, seen, landing);
                    Ok(async move { load.await.map_or_else(Ending::failed, |()| Ending::Abandoned) })
                });
                if !shared.is_landed() {
                    return flight;
                }
                // It may be over as well, and have left the table before its leader looked for it there.
                flight.detach();
                Flight::aboard(shared, Joined { led: true, at: self.0.env.coarse() })
            }
            Err(flight) => flight,
        }
    }

    /// As [`run`](Group::run), for threads: the first caller runs the load on its own thread, the others wait with theirs.
    ///
    /// # Panics
    ///
    /// If the load panics on this thread; or, as [`Flight::wait`], if it has to wait on a thread that runs tasks of a tokio runtime.
    #[track_caller]
    pub fn run_blocking<L>(&self, key: K, load: L) -> Result<Landed<V>, FlightError<E>>
    where
        L: FnOnce() -> Result<V, E>,
    {
        match self.0.board(self.hash(&key), key, |_, _, _| ()) {
            Ok((begun, ())) => self.lead(begun).run_here(load).wait(),
            Err(flight) => flight.wait(),
        }
    }

    /// Lets the next caller of this key begin anew. Those aboard stay aboard, and when their load ends it does not touch
    /// the new one. False if nobody was loading it.
    pub fn forget(&self, key: &K) -> bool {
        let hash = self.0.hasher.hash_one(key);
        self.0.table.shard(hash).air().forget(hash, key)
    }

    /// Joins the load of this key, or gives the lead of a flight to whoever asks.
    #[inline(always)]
    pub(crate) fn lead_placed<R>(
        &self,
        hash: u64,
        key: K,
        look: impl FnOnce(&X, u64, &K) -> R,
    ) -> Led<'_, K, V, E, X, R> {
        self.0.board(hash, key, look).map(|(begun, seen)| (self.lead(begun), seen))
    }

    /// What is found, or else the lead of a flight, unless there is one already.
    #[inline(always)]
    pub(crate) fn find_or_lead<Q, R>(
        &self,
        hash: u64,
        key: &Q,
        find: impl FnOnce(&X) -> Option<R>,
    ) -> Result<Option<Lead<'_, K, V, E, X>>, R>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let begun = self.0.table.find_or_begin(hash, key, find)?;
        Ok(begun.map(|begun| self.lead(begun)))
    }

    /// As [`run`](Group::run), with a load that knows its place and what was kept when it got that, and which is told when it
    /// is over whether it was forgotten. There may turn out to be nothing to load.
    pub(crate) fn run_placed<R, F, L>(
        &self,
        hash: u64,
        key: K,
        look: impl FnOnce(&X, u64, &K) -> R,
        begin: L,
    ) -> Flight<V, E>
    where
        F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Send + 'static,
        L: FnOnce(Place, R) -> Result<F, F::Output>,
    {
        match self.lead_placed(hash, key, look) {
            Ok((lead, seen)) => {
                let place = lead.place();
                lead.run(|| begin(place, seen))
            }
            Err(flight) => flight,
        }
    }

    /// As [`run_placed`](Group::run_placed), but only if nobody loads the key.
    pub(crate) fn run_if_idle<R, F, L>(
        &self,
        key: K,
        look: impl FnOnce(&X, u64, &K) -> R,
        begin: L,
    ) -> Option<Flight<V, E>>
    where
        F: Future<Output: Into<Ending<V, E>> + Settle<X>> + Send + 'static,
        L: FnOnce(Place, R) -> Result<F, F::Output>,
    {
        let (begun, seen) = self.begin_if_idle(key, look)?;
        let place = begun.place;
        Some(self.lead(begun).run(|| begin(place, seen)))
    }

    fn begin_if_idle<R>(&self, key: K, look: impl FnOnce(&X, u64, &K) -> R) -> Option<(Begun, R)> {
        let hash = self.hash(&key);
        let mut shard = self.0.table.shard(hash);
        if shard.air().find(hash, &key).is_some() {
            // The lock is not held when the key is dropped, which may do anything.
            drop(shard);
            return None;
        }
        let seen = look(&shard.kept, hash, &key);
        Some((shard.air().begin(hash, key), seen))
    }

    /// The hash of a key, for whoever asks more than once.
    #[inline(always)]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.0.hasher.hash_one(key)
    }

    /// Reads what is kept for the key with this hash. As with all that follow, this must be short, and must not come back here.
    #[inline(always)]
    pub(crate) fn read<R>(&self, hash: u64, read: impl FnOnce(&X) -> R) -> R {
        self.0.table.read(hash, read)
    }

    /// As [`read`](Group::read), if somebody has read since it was changed.
    #[inline(always)]
    pub(crate) fn find_again<R>(&self, hash: u64, find: impl FnOnce(&X) -> Option<R>) -> Option<R> {
        self.0.table.find_again(hash, find)
    }

    /// Reads what is kept in one of the parts.
    pub(crate) fn read_nth<R>(&self, part: usize, read: impl FnOnce(&X) -> R) -> Option<R> {
        self.0.table.read_nth(part, read)
    }

    /// Changes what is kept for the key with this hash.
    pub(crate) fn write<R>(&self, hash: u64, write: impl FnOnce(&mut X) -> R) -> R {
        write(&mut self.0.table.shard(hash).kept)
    }

    /// Whether anybody waits for this flight beside whoever began it.
    pub(crate) fn is_shared(&self, place: Place) -> bool {
        let mut shard = self.0.table.shard(place.hash);
        shard.air().seat(place).is_some_and(|seat| matches!(seat, Seat::Shared(shared) if shared.followers() > 0))
    }

    /// As [`write`](Group::write), unless the flight was forgotten, and so that it cannot be forgotten meanwhile.
    pub(crate) fn unless_forgotten<R>(&self, place: Place, write: impl FnOnce(&mut X) -> R) -> Option<R> {
        let mut shard = self.0.table.shard(place.hash);
        shard.air().is_findable(place).then(|| write(&mut shard.kept))
    }

    /// As [`write`](Group::write) and, at the same moment, [`forget`](Group::forget).
    pub(crate) fn forget_and<Q, R>(&self, key: &Q, write: impl FnOnce(u64, &mut X) -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut shard = self.0.table.shard(hash);
        shard.air().forget(hash, key);
        write(hash, &mut shard.kept)
    }

    /// Forgets all keys, and changes what is kept for them at the same moment, part by part. What comes of a part is dropped
    /// without its lock.
    pub(crate) fn forget_all_and<R>(&self, mut write: impl FnMut(&mut X) -> R) {
        for mut shard in self.0.table.shards() {
            shard.air().forget_all();
            let gone = write(&mut shard.kept);
            drop(shard);
            drop(gone);
        }
    }

    /// How much was shared.
    pub fn stats(&self) -> Stats {
        self.0.table.shards().map(|mut shard| shard.air().stats()).sum()
    }

    #[inline]
    fn lead(&self, begun: Begun) -> Lead<'_, K, V, E, X> {
        self.0.env.tell(&Event::Load);
        Lead::new(&self.0, begun)
    }
}

impl<K, V, E, X> Inner<K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    fn id(&self, place: Place) -> FlightId {
        FlightId { group: std::ptr::from_ref(self).addr(), number: place.number }
    }

    /// A flight to lead, or a seat in one that is under way.
    #[inline(always)]
    fn board<R>(&self, hash: u64, key: K, look: impl FnOnce(&X, u64, &K) -> R) -> Result<(Begun, R), Flight<V, E>> {
        loop {
            let mut shard = self.table.shard(hash);
            let Some((place, seat)) = shard.air().find(hash, &key) else {
                let seen = look(&shard.kept, hash, &key);
                return Ok((shard.air().begin(hash, key), seen));
            };
            let shared = Arc::clone(seat.share(|| self.shared(place)));
            // The lock is not held when the key is dropped, which may do anything.
            match self.join(&shared, shard) {
                Joining::Aboard { at } => return Err(Flight::aboard(shared, Joined { led: false, at })),
                Joining::Overloaded => {
                    self.env.tell(&Event::Refusal);
                    return Err(Flight::refused(FlightError::Overloaded));
                }
                Joining::Reentrant => return Err(Flight::refused(FlightError::Reentrant)),
                Joining::Gone => {}
            }
        }
    }

    fn join(&self, shared: &Shared<V, E>, mut shard: WriteGuard<'_, Shard<K, V, E, X>>) -> Joining {
        if nest::is_inside(self.id(shared.place)) {
            return Joining::Reentrant;
        }
        match shared.join(self.max_followers) {
            Ok(()) => {
                shard.air().tally.joins += 1;
                drop(shard);
                Joining::Aboard { at: self.env.coarse() }
            }
            Err(Closed::Full) => {
                shard.air().tally.overloaded += 1;
                Joining::Overloaded
            }
            // Its last caller has just left and is about to take it out.
            Err(Closed::Dead) => {
                shard.air().hide(shared.place);
                Joining::Gone
            }
        }
    }

    fn shared(&self, place: Place) -> Shared<V, E> {
        Shared::new(self.env.clone(), place, self.home.clone())
    }

    /// The load of a flight has ended: settles it, takes it out of the table, unless it lingers there, and gives what is shared
    /// of it.
    #[inline(always)]
    fn ended(
        &self,
        place: Place,
        spare: Option<Spare>,
        settle: impl FnOnce(&mut Shard<K, V, E, X>),
    ) -> Option<Arc<Shared<V, E>>> {
        let mut shard = self.table.shard(place.hash);
        settle(&mut shard);
        let unneeded = shard.air().keep(spare);
        if let Some(key) = shard.air().remove_lonely(place) {
            drop(shard);
            drop((key, unneeded));
            return None;
        }
        self.ended_in_company(shard, place)
    }

    /// A flight has left the table; gives what is shared of it. To be called without the lock: the key is dropped.
    fn left(&self, Removed { key, shared }: Removed<K, V, E>) -> Option<Arc<Shared<V, E>>> {
        drop(key);
        let followers = shared.as_ref().map_or(0, |shared| shared.followers());
        if followers > 0 {
            self.env.tell(&Event::FlightShared { followers });
        }
        shared
    }

    #[inline(never)]
    fn ended_in_company(
        &self,
        mut shard: WriteGuard<'_, Shard<K, V, E, X>>,
        place: Place,
    ) -> Option<Arc<Shared<V, E>>> {
        let ended = shard.air().remove_unless_landed(place);
        drop(shard);
        match ended? {
            Ended::Removed(removed) => self.left(removed),
            Ended::Lingers(shared) => Some(shared),
        }
    }
}

impl<K, V, E, X> Home for Inner<K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    fn remove(&self, place: Place, why: Removal) {
        let mut shard = self.table.shard(place.hash);
        let Some(removed) = shard.air().remove(place) else { return };
        shard.air().tally.abandoned += u64::from(why == Removal::GivenUp);
        drop(shard);
        drop(self.left(removed));
    }

    fn abandon(&self) -> Abandon {
        self.abandon
    }

    fn unless_forgotten(&self, place: Place, act: &mut dyn FnMut()) -> bool {
        let mut shard = self.table.shard(place.hash);
        let known = shard.air().is_findable(place);
        if known {
            act();
        }
        known
    }
}

impl<K, V, E, X> Clone for Group<K, V, E, X> {
    fn clone(&self) -> Self {
        Group(Arc::clone(&self.0))
    }
}

impl<K, V, E, X> fmt::Debug for Group<K, V, E, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { abandon, max_followers, .. } = &*self.0;
        f.debug_struct("Group").field("abandon", abandon).field("max_followers", max_followers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
