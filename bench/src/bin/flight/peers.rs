//! Everybody who shares loads, behind one call.
//!
//! Each is used as its documentation says and with its defaults. All live for the whole program, so that nobody pays for
//! handles, and every call is a future that begins when it is polled.

use std::{error::Error, fmt, future::Future};

use dashmap::{DashMap, Entry};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use herdproof::{Env, flight::Group};

/// What a load comes to.
pub(crate) type Answer = Result<u64, Refused>;

#[derive(Clone, Debug)]
pub(crate) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl Error for Refused {}

/// Fewer than the keys of a scene, so that the caches evict as they do in production.
const CAPACITY: usize = 10_000;

pub(crate) trait Peer: Send + Sync + Sized + 'static {
    const NAME: &'static str;

    fn new() -> Self;

    /// Joins the load of this key, or begins it; `None` if it failed.
    fn call<L, F>(&'static self, key: u64, load: L) -> impl Future<Output = Option<u64>> + Send
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static;
}

pub(crate) type Herdproof = Group<u64, u64, Refused>;

impl Peer for Herdproof {
    const NAME: &'static str = "herdproof";

    fn new() -> Self {
        Group::new(&Env::system())
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.run(key, load).await.ok().map(|landed| landed.value)
    }
}

pub(crate) type SingleflightAsync = singleflight_async::SingleFlight<u64, Answer>;

impl Peer for SingleflightAsync {
    const NAME: &'static str = "singleflight-async";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.work(key, load).await.ok()
    }
}

pub(crate) type Uniflight = uniflight::Merger<u64, Answer>;

impl Peer for Uniflight {
    const NAME: &'static str = "uniflight";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.execute(&key, load).await.ok()?.ok()
    }
}

pub(crate) type SharedFuture = DashMap<u64, Shared<BoxFuture<'static, Answer>>>;

impl Peer for SharedFuture {
    const NAME: &'static str = "dashmap+Shared";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let (flight, led) = match self.entry(key) {
            Entry::Occupied(entry) => (entry.get().clone(), false),
            Entry::Vacant(entry) => (entry.insert(load().boxed().shared()).clone(), true),
        };
        let answer = flight.await;
        if led {
            self.remove(&key);
        }
        answer.ok()
    }
}

pub(crate) type AsyncSingleflight = async_singleflight::Group<u64, u64, Refused>;

impl Peer for AsyncSingleflight {
    const NAME: &'static str = "async_singleflight";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.work(&key, load()).await.ok()
    }
}

pub(crate) type QuickCache = quick_cache::sync::Cache<u64, u64>;

impl Peer for QuickCache {
    const NAME: &'static str = "quick_cache";

    fn new() -> Self {
        Self::new(CAPACITY)
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.get_or_insert_async(&key, load()).await.ok()
    }
}

pub(crate) type Foyer = foyer::Cache<u64, u64>;

impl Peer for Foyer {
    const NAME: &'static str = "foyer";

    fn new() -> Self {
        foyer::CacheBuilder::new(CAPACITY).build()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.get_or_fetch(&key, load).await.ok().map(|entry| *entry)
    }
}

pub(crate) type Moka = moka::future::Cache<u64, u64>;

impl Peer for Moka {
    const NAME: &'static str = "moka";

    fn new() -> Self {
        Self::new(CAPACITY as u64)
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Option<u64>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.try_get_with(key, load()).await.ok()
    }
}
