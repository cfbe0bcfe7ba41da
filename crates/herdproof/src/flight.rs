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
use load::Lead;
pub use local::LocalGroup;
use nest::FlightId;
use outcome::Ending;
pub use outcome::{FlightError, Landed};
pub use shared::Abandon;
use shared::{Closed, Home, Joined, Removal, Shared};
pub use stats::Stats;
pub(crate) use table::Place;
use table::{Begun, Ended, Removed, Shard, Table};
pub(crate) use ticket::{Ticket, Ticketed};

use crate::{
    env::{Env, MapHasher, Tick},
    event::Event,
    sync::MutexGuard,
};

/// Loads in progress, one for each key; see the [module](self). Cheap to clone, and clones share.
pub struct Group<K, V, E = Infallible>(Arc<Inner<K, V, E>>);

/// How a [`Group`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupBuilder {
    env: Env,
    abandon: Abandon,
    max_followers: u32,
}

struct Inner<K, V, E> {
    env: Env,
    hasher: MapHasher,
    abandon: Abandon,
    max_followers: u32,
    table: Table<K, V, E>,
    /// Itself, for the flights to find their way back.
    home: Weak<dyn Home>,
}

/// Nobody begins to load a key that was forgotten while this is there.
#[must_use]
pub(crate) struct Forgotten<'a, K, V, E> {
    _shard: MutexGuard<'a, Shard<K, V, E>>,
}

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
        let GroupBuilder { env, abandon, max_followers } = self;
        Group(Arc::new_cyclic(|home: &Weak<Inner<K, V, E>>| {
            let home: Weak<dyn Home> = home.clone();
            Inner { hasher: env.hasher("flight"), env, abandon, max_followers, table: Table::new(), home }
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
        match self.0.board(key) {
            Ok(begun) => self.lead(begun).run(load),
            Err(flight) => flight,
        }
    }

    /// As [`run`](Group::run), with a load that may be tried again: up to `retries` times more, inside the flight, so that
    /// one blip does not fail everybody and a failing origin is not called once per caller.
    pub fn run_retrying<F, L>(&self, key: K, retries: u32, mut load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnMut() -> F + Send + 'static,
    {
        self.run(key, move || async move {
            let mut left = retries;
            loop {
                match load().await {
                    Err(_) if left > 0 => left -= 1,
                    outcome => return outcome,
                }
            }
        })
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
        self.run_landing_placed(key, |_, landing| load(landing))
    }

    /// As [`run_landing`](Group::run_landing), with a load that knows its place.
    pub(crate) fn run_landing_placed<F, L>(&self, key: K, load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        L: FnOnce(Place, Landing<V, E>) -> F,
    {
        match self.0.board(key) {
            Ok(begun) => {
                let place = begun.place;
                let mut lead = self.lead(begun);
                let lander = lead.share();
                let (shared, landing) = (Arc::clone(&lander.shared), Landing::new(lander));
                let flight = lead.run(|| {
                    let load = load(place, landing);
                    async move { load.await.map_or_else(Ending::failed, |()| Ending::Abandoned) }
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
    /// If the load panics on this thread.
    pub fn run_blocking<L>(&self, key: K, load: L) -> Result<Landed<V>, FlightError<E>>
    where
        L: FnOnce() -> Result<V, E>,
    {
        match self.0.board(key) {
            Ok(begun) => self.lead(begun).run_here(load).wait(),
            Err(flight) => flight.wait(),
        }
    }

    /// Lets the next caller of this key begin anew. Those aboard stay aboard, and when their load ends it does not touch
    /// the new one. False if nobody was loading it.
    pub fn forget(&self, key: &K) -> bool {
        let hash = self.0.hasher.hash_one(key);
        self.0.table.shard(hash).forget(hash, key)
    }

    /// As [`run`](Group::run), with a load that knows its place, and can ask later whether it was forgotten.
    pub(crate) fn run_placed<F, L>(&self, key: K, load: L) -> Flight<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnOnce(Place) -> F,
    {
        match self.0.board(key) {
            Ok(begun) => {
                let place = begun.place;
                self.lead(begun).run(|| load(place))
            }
            Err(flight) => flight,
        }
    }

    /// As [`run_placed`](Group::run_placed), but only if nobody loads the key.
    pub(crate) fn run_if_idle<F, L>(&self, key: K, load: L) -> Option<Flight<V, E>>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnOnce(Place) -> F,
    {
        let begun = self.begin_if_idle(key)?;
        let place = begun.place;
        Some(self.lead(begun).run(|| load(place)))
    }

    fn begin_if_idle(&self, key: K) -> Option<Begun> {
        let hash = self.0.hasher.hash_one(&key);
        let mut shard = self.0.table.shard(hash);
        if shard.find(hash, &key).is_some() {
            // The lock is not held when the key is dropped, which may do anything.
            drop(shard);
            return None;
        }
        Some(shard.begin(hash, key))
    }

    /// Acts unless the flight was forgotten, and so that it cannot be forgotten meanwhile. `act` must be short, and must not
    /// come back here.
    pub(crate) fn unless_forgotten<R>(&self, place: Place, act: impl FnOnce() -> R) -> Option<R> {
        let mut shard = self.0.table.shard(place.hash);
        shard.is_findable(place).then(act)
    }

    /// As [`forget`](Group::forget), by the borrowed form of a key, and so that nobody begins anew before what this gives is
    /// dropped. That must be soon, and nothing may come back here until then.
    pub(crate) fn forget_held<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Forgotten<'_, K, V, E>
    where
        K: Borrow<Q>,
    {
        let hash = self.0.hasher.hash_one(key);
        let mut shard = self.0.table.shard(hash);
        shard.forget(hash, key);
        Forgotten { _shard: shard }
    }

    /// Forgets all keys.
    pub(crate) fn forget_all(&self) {
        self.0.table.shards().for_each(|mut shard| shard.forget_all());
    }

    /// How much was shared.
    pub fn stats(&self) -> Stats {
        self.0.table.shards().map(|shard| Stats { in_air: shard.len() as u64, ..shard.tally }).sum()
    }

    #[inline]
    fn lead(&self, begun: Begun) -> Lead<'_, K, V, E> {
        self.0.env.tell(&Event::Load);
        Lead::new(&self.0, begun)
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn id(&self, place: Place) -> FlightId {
        FlightId { group: std::ptr::from_ref(self).addr(), number: place.number }
    }

    /// A flight to lead, or a seat in one that is under way.
    #[inline(always)]
    fn board(&self, key: K) -> Result<Begun, Flight<V, E>> {
        let hash = self.hasher.hash_one(&key);
        loop {
            let mut shard = self.table.shard(hash);
            let Some((place, seat)) = shard.find(hash, &key) else { return Ok(shard.begin(hash, key)) };
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

    fn join(&self, shared: &Shared<V, E>, mut shard: MutexGuard<'_, Shard<K, V, E>>) -> Joining {
        if nest::is_inside(self.id(shared.place)) {
            return Joining::Reentrant;
        }
        match shared.join(self.max_followers) {
            Ok(()) => {
                shard.tally.joins += 1;
                drop(shard);
                Joining::Aboard { at: self.env.coarse() }
            }
            Err(Closed::Full) => {
                shard.tally.overloaded += 1;
                Joining::Overloaded
            }
            // Its last caller has just left and is about to take it out.
            Err(Closed::Dead) => {
                shard.hide(shared.place);
                Joining::Gone
            }
        }
    }

    fn shared(&self, place: Place) -> Shared<V, E> {
        Shared::new(self.env.clone(), place, self.home.clone())
    }

    /// The load of a flight has ended: takes it out of the table, unless it lingers there, and gives what is shared of it.
    #[inline(always)]
    fn ended(&self, place: Place, spare: Option<Spare>) -> Option<Arc<Shared<V, E>>> {
        let mut shard = self.table.shard(place.hash);
        let unneeded = shard.keep(spare);
        if let Some(key) = shard.remove_lonely(place) {
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
    fn ended_in_company(&self, mut shard: MutexGuard<'_, Shard<K, V, E>>, place: Place) -> Option<Arc<Shared<V, E>>> {
        let ended = shard.remove_unless_landed(place);
        drop(shard);
        match ended? {
            Ended::Removed(removed) => self.left(removed),
            Ended::Lingers(shared) => Some(shared),
        }
    }
}

impl<K, V, E> Home for Inner<K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn remove(&self, place: Place, why: Removal) {
        let mut shard = self.table.shard(place.hash);
        let Some(removed) = shard.remove(place) else { return };
        shard.tally.abandoned += u64::from(why == Removal::GivenUp);
        drop(shard);
        drop(self.left(removed));
    }

    fn abandon(&self) -> Abandon {
        self.abandon
    }

    fn unless_forgotten(&self, place: Place, act: &mut dyn FnMut()) -> bool {
        let mut shard = self.table.shard(place.hash);
        let known = shard.is_findable(place);
        if known {
            act();
        }
        known
    }
}

impl<K, V, E> Clone for Group<K, V, E> {
    fn clone(&self) -> Self {
        Group(Arc::clone(&self.0))
    }
}

impl<K, V, E> fmt::Debug for Group<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { abandon, max_followers, .. } = &*self.0;
        f.debug_struct("Group").field("abandon", abandon).field("max_followers", max_followers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
