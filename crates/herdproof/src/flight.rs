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

mod local;
mod retries;

use std::{
    convert::Infallible,
    fmt,
    future::{Future, ready},
    hash::{BuildHasher, Hash},
    ops::DerefMut,
    sync::Arc,
};

pub use local::LocalGroup;
pub use retries::Retries;

pub use crate::inflight::{Abandon, Flight, FlightError, Landed, Landing, Linger, Stats};
use crate::{
    env::{Env, MapHasher, part_of},
    event::Event,
    inflight::{Home, Lead, Loads, Settings, follow},
    sync::Mutex,
};

/// Enough that two threads rarely meet, few enough to cost nothing when idle.
const SHARDS: usize = 32;

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
    settings: Settings,
    hasher: MapHasher,
    shards: Box<[Shard<K, V, E>]>,
}

/// The lead of a new load, or a place among the followers of the one in progress and the key.
type LeadOrFollow<'a, K, V, E> = Result<Lead<'a, Inner<K, V, E>>, (Flight<V, E>, K)>;

/// Keeps neighbours off each other's cache lines.
#[repr(align(128))]
struct Shard<K, V, E>(Mutex<Loads<K, V, E>>);

impl GroupBuilder {
    /// What becomes of a load when the last caller leaves. Default: [`Abandon::Cancel`].
    pub fn abandon(mut self, abandon: Abandon) -> GroupBuilder {
        self.abandon = abandon;
        self
    }

    /// How many callers may wait for one key beside the first. Beyond that, callers get [`FlightError::Overloaded`] at once.
    /// Default: a million.
    pub fn max_followers(mut self, most: u32) -> GroupBuilder {
        self.max_followers = most;
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
        let shards = SHARDS as u64;
        Group(Arc::new(Inner {
            hasher: env.hasher("flight"),
            settings: Settings::new(env, abandon, max_followers),
            shards: (0..shards).map(|shard| Shard(Mutex::new(Loads::new(shard, shards)))).collect(),
        }))
    }
}

impl Group<(), (), ()> {
    /// A builder with the default settings.
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
    /// A group with the default settings.
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
        let hash = self.0.hasher.hash_one(&key);
        match follow(&self.0, self.0.shard(hash), hash, &key) {
            Ok(flight) => flight,
            Err(shard) => self.begin(shard, hash, key).run(load),
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
        match self.lead(key) {
            Ok(mut lead) => lead.run_landing(load),
            Err((flight, _)) => flight,
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
        self.run(key, || ready(load())).wait()
    }

    /// Lets the next caller of this key begin anew. Those aboard stay aboard, and when their load ends it does not touch
    /// the new one. False if nobody was loading it.
    pub fn forget(&self, key: &K) -> bool {
        let hash = self.0.hasher.hash_one(key);
        self.0.shard(hash).forget(hash, key)
    }

    /// How much was shared.
    pub fn stats(&self) -> Stats {
        self.0.shards.iter().map(|shard| shard.0.lock().stats()).sum()
    }

    /// Leads the load of this key, or follows it.
    #[inline(always)]
    fn lead(&self, key: K) -> LeadOrFollow<'_, K, V, E> {
        let hash = self.0.hasher.hash_one(&key);
        match follow(&self.0, self.0.shard(hash), hash, &key) {
            Ok(flight) => Err((flight, key)),
            Err(shard) => Ok(self.begin(shard, hash, key)),
        }
    }

    #[inline(always)]
    fn begin(&self, shard: impl DerefMut<Target = Loads<K, V, E>>, hash: u64, key: K) -> Lead<'_, Inner<K, V, E>> {
        let lead = Lead::begin(&self.0, shard, hash, key);
        self.0.settings.env.tell(&Event::Load);
        lead
    }
}

impl<K, V, E> Home for Inner<K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Key = K;
    type Value = V;
    type Error = E;
    type Shard = Loads<K, V, E>;

    #[inline(always)]
    fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline(always)]
    fn shard(&self, hash: u64) -> impl DerefMut<Target = Loads<K, V, E>> {
        self.shards[part_of(hash, self.shards.len())].0.lock()
    }
}

impl<K, V, E> Clone for Group<K, V, E> {
    fn clone(&self) -> Self {
        Group(Arc::clone(&self.0))
    }
}

impl<K, V, E> fmt::Debug for Group<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { abandon, max_followers, .. } = &self.0.settings;
        f.debug_struct("Group").field("abandon", abandon).field("max_followers", max_followers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
