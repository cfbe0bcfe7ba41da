//! Everybody who shares loads, behind one call.
//!
//! Each is used as its documentation says and with its defaults. All live for the whole program, so that nobody pays for
//! handles, and every call is a future that begins when it is polled.

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn, ready},
    sync::{Arc, Mutex, OnceLock},
    task::{Poll, Waker},
    time::Duration,
};

use dashmap::{DashMap, Entry};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use herdproof::{
    Env,
    flight::{Abandon, FlightError, Group},
};

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

/// Why a caller has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The load failed, and the caller has the load's own error.
    Refused,
    /// Anything else, such as that somebody's load has failed or panicked.
    Other,
}

impl From<Refused> for Why {
    fn from(_: Refused) -> Self {
        Why::Refused
    }
}

/// Fewer than the keys of a scene, so that the caches evict as they do in production.
const CAPACITY: usize = 10_000;

pub(crate) trait Peer: Send + Sync + Sized + 'static {
    const NAME: &'static str;

    fn new() -> Self;

    /// Joins the load of this key, or begins it.
    fn call<L, F>(&'static self, key: u64, load: L) -> impl Future<Output = Result<u64, Why>> + Send
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static;

    /// As `call`, for a caller that waits no longer than this.
    fn call_within<L, F>(
        &'static self,
        limit: Duration,
        key: u64,
        load: L,
    ) -> impl Future<Output = Result<u64, Why>> + Send
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        async move { tokio::time::timeout(limit, self.call(key, load)).await.unwrap_or(Err(Why::Other)) }
    }

    /// As `call`, for what it says of whether the answer was shared; `None` where it says nothing.
    fn call_told<L, F>(&'static self, key: u64, load: L) -> impl Future<Output = Option<bool>> + Send
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.call(key, load).map(|_| None)
    }

    /// Lets the next caller of this key begin anew, by whatever comes closest to that.
    fn forget(&'static self, _key: u64) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// One that does so with a load when its last caller leaves; `None` where it cannot be chosen.
    fn abandoning(_how: Abandon) -> Option<Self> {
        None
    }
}

pub(crate) type Herdproof = Group<u64, u64, Refused>;

impl Peer for Herdproof {
    const NAME: &'static str = "herdproof";

    fn new() -> Self {
        Group::new(&Env::system())
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.run(key, load).await?.value)
    }

    async fn call_within<L, F>(&'static self, limit: Duration, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.run(key, load).by(Env::system().now() + limit).await?.value)
    }

    async fn call_told<L, F>(&'static self, key: u64, load: L) -> Option<bool>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.run(key, load).await.ok().map(|landed| landed.shared)
    }

    async fn forget(&'static self, key: u64) {
        Group::forget(self, &key);
    }

    fn abandoning(how: Abandon) -> Option<Self> {
        Some(Group::builder(&Env::system()).abandon(how).build())
    }
}

impl From<FlightError<Refused>> for Why {
    fn from(error: FlightError<Refused>) -> Self {
        if matches!(error, FlightError::Load(_)) { Why::Refused } else { Why::Other }
    }
}

/// Not a peer but the least there is: one load, whatever the key, and a list of wakers. What it costs is what tasks cost.
#[derive(Default)]
pub(crate) struct Floor {
    answer: OnceLock<Answer>,
    followers: Mutex<Option<Vec<Waker>>>,
}

impl Peer for Floor {
    const NAME: &'static str = herdproof_bench::FLOOR;

    fn new() -> Self {
        Self::default()
    }

    async fn call<L, F>(&'static self, _key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let leads = {
            let mut followers = self.followers.lock().expect("nobody panics");
            let leads = followers.is_none();
            followers.get_or_insert_default();
            leads
        };
        let answer = if leads {
            let answer = load().await;
            self.answer.set(answer.clone()).expect("one leads");
            let followers = self.followers.lock().expect("nobody panics").take();
            followers.into_iter().flatten().for_each(Waker::wake);
            answer
        } else {
            poll_fn(|cx| match self.answer.get() {
                Some(answer) => Poll::Ready(answer.clone()),
                None => {
                    let mut followers = self.followers.lock().expect("nobody panics");
                    followers.get_or_insert_default().push(cx.waker().clone());
                    Poll::Pending
                }
            })
            .await
        };
        answer.map_err(|Refused| Why::Refused)
    }
}

pub(crate) type SingleflightAsync = singleflight_async::SingleFlight<u64, Answer>;

impl Peer for SingleflightAsync {
    const NAME: &'static str = "singleflight-async";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.work(key, load).await?)
    }
}

pub(crate) type Uniflight = uniflight::Merger<u64, Answer>;

impl Peer for Uniflight {
    const NAME: &'static str = "uniflight";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.execute(&key, load).await??)
    }
}

impl From<uniflight::LeaderPanicked> for Why {
    fn from(_: uniflight::LeaderPanicked) -> Self {
        Why::Other
    }
}

pub(crate) type SharedFuture = DashMap<u64, Shared<BoxFuture<'static, Answer>>>;

impl Peer for SharedFuture {
    const NAME: &'static str = "dashmap+Shared";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
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
        Ok(answer?)
    }

    async fn forget(&'static self, key: u64) {
        self.remove(&key);
    }
}

pub(crate) type AsyncSingleflight = async_singleflight::Group<u64, u64, Refused>;

impl Peer for AsyncSingleflight {
    const NAME: &'static str = "async_singleflight";

    fn new() -> Self {
        Self::new()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.work(&key, load()).await?)
    }
}

impl From<Option<Refused>> for Why {
    fn from(error: Option<Refused>) -> Self {
        error.map_or(Why::Other, Why::from)
    }
}

pub(crate) type QuickCache = quick_cache::sync::Cache<u64, u64>;

impl Peer for QuickCache {
    const NAME: &'static str = "quick_cache";

    fn new() -> Self {
        Self::new(CAPACITY)
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.get_or_insert_async(&key, load()).await?)
    }

    async fn forget(&'static self, key: u64) {
        self.remove(&key);
    }
}

pub(crate) type Foyer = foyer::Cache<u64, u64>;

impl Peer for Foyer {
    const NAME: &'static str = "foyer";

    fn new() -> Self {
        foyer::CacheBuilder::new(CAPACITY).build()
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(*self.get_or_fetch(&key, load).await?)
    }

    async fn forget(&'static self, key: u64) {
        self.remove(&key);
    }
}

impl From<foyer::Error> for Why {
    fn from(error: foyer::Error) -> Self {
        error.downcast_ref().map_or(Why::Other, |_: &Refused| Why::Refused)
    }
}

pub(crate) type Moka = moka::future::Cache<u64, u64>;

impl Peer for Moka {
    const NAME: &'static str = "moka";

    fn new() -> Self {
        Self::new(CAPACITY as u64)
    }

    async fn call<L, F>(&'static self, key: u64, load: L) -> Result<u64, Why>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        Ok(self.try_get_with(key, load()).await?)
    }

    /// What it says is whether this caller's own load gave the value.
    async fn call_told<L, F>(&'static self, key: u64, load: L) -> Option<bool>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        self.entry(key).or_try_insert_with(load()).await.ok().map(|entry| !entry.is_fresh())
    }

    async fn forget(&'static self, key: u64) {
        self.invalidate(&key).await;
    }
}

impl From<Arc<Refused>> for Why {
    fn from(_: Arc<Refused>) -> Self {
        Why::Refused
    }
}
