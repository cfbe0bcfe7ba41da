//! A store that many processes share, and what it must offer so that one of them loads and the others get the value.
//!
//! A flight makes one load of a herd, in one process. A fleet of fifty makes fifty, at the same moment, for every key that
//! expires. A store between them helps only if it says more than "nothing here": the fifty would all be told so. A [`Tier`]
//! answers one question, [`lookup`](Tier::lookup), with what to do next:
//!
//! | answer | what it means |
//! |---|---|
//! | [`Hit`](Lookup::Hit) | fresh: take it |
//! | [`Stale`](Lookup::Stale) | past its time, and another process loads it: serve it meanwhile |
//! | [`Refresh`](Lookup::Refresh) | past its time, or close to its end: serve it if you may, and you load it |
//! | [`Fill`](Lookup::Fill) | nobody has it: you load it |
//! | [`Wait`](Lookup::Wait) | nobody has it, and another process loads it: you will be told |
//! | [`Failed`](Lookup::Failed) | it was tried just now, and failed: do not try again yet |
//!
//! Who is to load has a [`Lease`]. It is there for efficiency: if its holder dies, it expires, and the next who asks gets
//! another. That no old value gets in is the business of its token: [`invalidate`](Tier::invalidate) and
//! [`put`](Tier::put) end the lease, and a [`fill`](Tier::fill) under a lease that has ended is
//! [`Fenced`](Filled::Fenced). A load that [`fail`](Tier::fail)s passes its lease to one of those who wait, not to all.
//!
//! Versions, leases and times are the store's, on its clock. What crosses the wire is how long is left, never an instant, so
//! processes need not agree on the time.
//!
//! [`SharedTier`] is a tier in memory, for the caches of one process and for simulations:
//!
//! ```
//! use std::time::Duration;
//! use herdproof::{Cache, Env, cache::{Policy, Source}, tier::SharedTier};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let tier = SharedTier::new(&env);
//! let node = || Cache::builder(&env).policy(Policy::new(Duration::from_secs(60))).tier(tier.node()).build();
//! let [one, other]: [Cache<String, u64>; 2] = [node(), node()];
//! one.get("odds/42", || async { Ok(17) }).await.unwrap();
//! let odds = other.get("odds/42", || async { unreachable!("another node has loaded it") }).await.unwrap();
//! assert_eq!((odds.value, odds.source), (17, Source::Tier));
//! # });
//! ```

#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod feed;
mod shared;
mod slot;

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

pub use feed::{Feed, News, Speaker, feed};
pub use shared::SharedTier;

use crate::join::all;

/// A store that many processes share; see the [module](self).
///
/// A call may be dropped before it is over, and may then have had its effect or not. What cannot be read (another schema,
/// a broken checksum) is not there: never an error.
pub trait Tier<K, V>: Send + Sync + 'static {
    /// What is there, and what to do about it. A fresh value costs one question to the store.
    fn lookup(&self, key: &K, want: Want) -> impl Future<Output = Result<Lookup<V>, TierError>> + Send;

    /// As [`lookup`](Tier::lookup) for many keys, no two of them the same: an answer for each, in their order. One by one and
    /// all at once, unless the store can be asked for many in one go.
    fn lookup_many(&self, wanted: &[(K, Want)]) -> impl Future<Output = Vec<Result<Lookup<V>, TierError>>> + Send
    where
        K: Sync,
        V: Send,
    {
        all(wanted.iter().map(|(key, want)| self.lookup(key, *want)).collect())
    }

    /// Stores what was loaded under a lease, ends the lease, and gives it to all who wait. A time to live of zero gives it to
    /// those who wait and keeps nothing.
    fn fill(&self, key: &K, lease: Lease, stored: Stored<V>) -> impl Future<Output = Result<Filled, TierError>> + Send;

    /// The load under this lease has failed. The lease goes to one of those who wait, if it may be tried again; else all of
    /// them are told.
    fn fail(&self, key: &K, lease: Lease, fault: Fault) -> impl Future<Output = Result<(), TierError>> + Send;

    /// The load takes longer: the lease lasts for this long from now on, if it has not ended.
    fn renew(&self, key: &K, lease: Lease, time: Duration) -> impl Future<Output = Result<Filled, TierError>> + Send;

    /// Says what the value of a key is, whoever holds a lease, and gives it to all who wait. The other processes hear of it.
    fn put(&self, key: &K, stored: Stored<V>) -> impl Future<Output = Result<(), TierError>> + Send;

    /// Takes the value of a key away, and whoever loads it now may not fill it. The other processes hear of it.
    fn invalidate(&self, key: &K) -> impl Future<Output = Result<(), TierError>> + Send;

    /// Expires all values with this tag, each at its own moment within `smear`. Whoever loads one of them now may not fill
    /// it. The other processes hear of it.
    fn expire_tag(&self, tag: &str, smear: Duration) -> impl Future<Output = Result<(), TierError>> + Send;

    /// What the other processes change, from now on.
    fn listen(&self) -> Feed<K>;
}

/// What somebody who looks up wants, beside the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// How long a lease is to last, if there is one to be had.
    pub lease: Duration,
    /// A fresh value with no more than this left is to be loaded again by whoever asks first.
    pub early: Duration,
}

/// What a store answers; see the [module](self).
#[derive(Debug)]
pub enum Lookup<V> {
    /// Fresh.
    Hit(Held<V>),
    /// Past its time and within its grace, or closer to its end than was wanted; another process loads it, and what comes of
    /// that can be waited for.
    Stale(Held<V>, Wait<V>),
    /// To be loaded by who asked. The value can be served meanwhile if it is [servable](Held::is_servable), else if the
    /// load fails.
    Refresh(Held<V>, Lease),
    /// Nothing there; to be loaded by who asked.
    Fill(Lease),
    /// Nothing there that could be served; another process loads it.
    Wait(Wait<V>),
    /// The last load failed, and it is not to be tried again yet.
    Failed(Failure<V>),
}

/// The right to fill a key, by its token. Tokens of a key only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub u64);

/// What a store holds for a key, seen at the moment it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<V> {
    /// The value; `None` if it is known that there is no such thing.
    pub value: Option<V>,
    /// How long ago it was stored.
    pub age: Duration,
    /// For how long it is fresh; zero once it is not.
    pub left: Duration,
    /// For how long it has not been fresh; zero while it is.
    pub past: Duration,
    /// How long after its freshness it may be served while it is loaded again.
    pub grace: Duration,
    /// How long a load of it takes.
    pub load: Duration,
    /// Its tags.
    pub tags: Vec<String>,
}

impl<V> Held<V> {
    /// Whether it is fresh or within its grace.
    pub fn is_servable(&self) -> bool {
        self.left > Duration::ZERO || self.past < self.grace
    }
}

/// What is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<V> {
    /// The value; `None` if there is no such thing.
    pub value: Option<V>,
    /// For how long it is fresh.
    pub ttl: Duration,
    /// How long after that it may be served while it is loaded again.
    pub grace: Duration,
    /// How long after its freshness it is kept in case loads fail, if that is longer than the grace.
    pub keep: Duration,
    /// How long a load of it takes.
    pub load: Duration,
    /// By which it can be expired.
    pub tags: Vec<String>,
}

/// What came of filling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Done.
    Kept,
    /// The lease has ended: it expired, or the key was invalidated, put, or expired by a tag since it was given. What was
    /// loaded under it may be out of date.
    Fenced,
}

/// A load that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why, in words.
    pub why: Arc<str>,
    /// How long nobody is to try again, once nobody is left to try.
    pub remember: Duration,
    /// How many processes may try one after another, this one included.
    pub attempts: u32,
}

/// A load that failed in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure<V> {
    /// Why, in words.
    pub why: Arc<str>,
    /// For how long it is not to be tried again.
    pub left: Duration,
    /// What is there all the same, past its time.
    pub held: Option<Held<V>>,
}

/// What those who wait are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed<V> {
    /// The value.
    Filled(Held<V>),
    /// The load failed, and so did those after it.
    Failed(Failure<V>),
    /// The load failed, and this one is next to try.
    Lease(Lease),
    /// Look up again: the key was invalidated, or the store lost track.
    Again,
}

/// A place among those who wait for a load in another process; a future of what comes of it. Dropping it gives the place up,
/// and a lease with it that came and was not taken.
#[must_use = "nobody else gets what is pushed to it"]
pub struct Wait<V> {
    left: Duration,
    pushed: Pin<Box<dyn Future<Output = Pushed<V>> + Send>>,
}

impl<V> Wait<V> {
    /// A place that this future tells what comes of it, while the lease has so long left.
    pub fn new(left: Duration, pushed: impl Future<Output = Pushed<V>> + Send + 'static) -> Wait<V> {
        Wait { left, pushed: Box::pin(pushed) }
    }

    /// How long the lease of who loads it lasts, if it is not renewed. Who hears nothing for longer looks up again: the
    /// holder may be dead, or the message lost.
    pub fn left(&self) -> Duration {
        self.left
    }
}

impl<V> Future for Wait<V> {
    type Output = Pushed<V>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pushed<V>> {
        self.pushed.as_mut().poll(cx)
    }
}

impl<V> fmt::Debug for Wait<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("left", &self.left).finish_non_exhaustive()
    }
}

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierError {
    /// It could not be reached.
    Away,
    /// It answered that it cannot do this now, and why.
    Refused(Box<str>),
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierError::Away => f.write_str("the store could not be reached"),
            TierError::Refused(why) => write!(f, "the store refused: {why}"),
        }
    }
}

impl Error for TierError {}
