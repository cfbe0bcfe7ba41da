//! The caches, each in its own words.

use std::{convert::Infallible, future::pending, num::NonZeroUsize, sync::Mutex, time::Duration};

use futures_util::FutureExt as _;
use herdproof::{
    Cache, Env,
    cache::{Got, Keep, Policy, Source},
};

const HOUR: Duration = Duration::from_secs(3600);

/// A cache of numbers.
pub(crate) trait Peer: Send + Sync {
    const NAME: &'static str;

    /// With room for so many.
    fn new(capacity: usize) -> Self;
    fn get(&self, key: u64) -> Option<u64>;
    fn insert(&self, key: u64, value: u64);
}

/// A cache that loads what is not there.
pub(crate) trait Loading: Peer {
    /// The value, and whether it was there. What is loaded is the key itself.
    async fn get_or_load(&self, key: u64) -> u64;
}

pub(crate) struct Herdproof(Cache<u64, u64, Infallible>);

impl Peer for Herdproof {
    const NAME: &'static str = "herdproof";

    fn new(capacity: usize) -> Self {
        let policy = Policy::new(HOUR).grace(HOUR);
        Herdproof(Cache::builder(&Env::system()).capacity(capacity).policy(policy).build())
    }

    fn get(&self, key: u64) -> Option<u64> {
        // Never loads: what is not there is absent, and not remembered as such either.
        let got = self.0.get_with(&key, |_| async { Ok(herdproof::cache::Load::Absent(Some(Duration::ZERO))) }).wait();
        got.ok().map(|got| got.value)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.set(key, value);
    }
}

impl Loading for Herdproof {
    async fn get_or_load(&self, key: u64) -> u64 {
        fresh(self.0.get(&key, || async move { Ok(key) }).await.expect("nothing fails"))
    }
}

fn fresh(got: Got<u64>) -> u64 {
    assert!(got.source != Source::Stale, "nothing is stale");
    got.value
}

/// The same with entries that are past their time and within their grace, while a load that does not end refreshes them.
pub(crate) struct HerdproofStale(Herdproof);

impl Peer for HerdproofStale {
    const NAME: &'static str = "herdproof, stale";

    fn new(capacity: usize) -> Self {
        HerdproofStale(Herdproof::new(capacity))
    }

    fn get(&self, key: u64) -> Option<u64> {
        let got = self.0.0.get(&key, pending).wait().expect("it can be served");
        (got.source == Source::Stale).then_some(got.value)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.0.set_with(key, value, &Keep::ttl(Duration::ZERO).grace(HOUR));
        // Until the coarse clock has passed its end too.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same, by a thread that waits instead of a task.
pub(crate) struct HerdproofWaiting(Herdproof);

impl Peer for HerdproofWaiting {
    const NAME: &'static str = "herdproof, waiting";

    fn new(capacity: usize) -> Self {
        HerdproofWaiting(Herdproof::new(capacity))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

impl Loading for HerdproofWaiting {
    async fn get_or_load(&self, key: u64) -> u64 {
        fresh(self.0.0.get(&key, || async move { Ok(key) }).wait().expect("nothing fails"))
    }
}

pub(crate) struct QuickCache(quick_cache::sync::Cache<u64, u64>);

impl Peer for QuickCache {
    const NAME: &'static str = "quick_cache";

    fn new(capacity: usize) -> Self {
        QuickCache(quick_cache::sync::Cache::new(capacity))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

impl Loading for QuickCache {
    async fn get_or_load(&self, key: u64) -> u64 {
        self.0.get_or_insert_with(&key, || Ok::<_, Infallible>(key)).expect("nothing fails")
    }
}

pub(crate) struct QuickCacheAsync(QuickCache);

impl Peer for QuickCacheAsync {
    const NAME: &'static str = "quick_cache, async";

    fn new(capacity: usize) -> Self {
        QuickCacheAsync(QuickCache::new(capacity))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

impl Loading for QuickCacheAsync {
    async fn get_or_load(&self, key: u64) -> u64 {
        self.0.0.get_or_insert_async(&key, async { Ok::<_, Infallible>(key) }).await.expect("nothing fails")
    }
}

pub(crate) struct Lru(Mutex<lru::LruCache<u64, u64>>);

impl Peer for Lru {
    const NAME: &'static str = "lru in a mutex";

    fn new(capacity: usize) -> Self {
        Lru(Mutex::new(lru::LruCache::new(NonZeroUsize::new(capacity).expect("not zero"))))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.lock().expect("nobody panics").get(&key).copied()
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.lock().expect("nobody panics").put(key, value);
    }
}

pub(crate) struct Foyer(foyer::Cache<u64, u64>);

impl Peer for Foyer {
    const NAME: &'static str = "foyer";

    fn new(capacity: usize) -> Self {
        Foyer(foyer::CacheBuilder::new(capacity).with_eviction_config(foyer::S3FifoConfig::default()).build())
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| *entry.value())
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

impl Loading for Foyer {
    async fn get_or_load(&self, key: u64) -> u64 {
        *self.0.get_or_fetch(&key, || async move { Ok::<_, Infallible>(key) }).await.expect("nothing fails").value()
    }
}

pub(crate) struct MiniMoka(mini_moka::sync::Cache<u64, u64>);

impl Peer for MiniMoka {
    const NAME: &'static str = "mini-moka";

    fn new(capacity: usize) -> Self {
        MiniMoka(mini_moka::sync::Cache::new(capacity as u64))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

pub(crate) struct Moka(moka::sync::Cache<u64, u64>);

impl Peer for Moka {
    const NAME: &'static str = "moka";

    fn new(capacity: usize) -> Self {
        Moka(moka::sync::Cache::new(capacity as u64))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

impl Loading for Moka {
    async fn get_or_load(&self, key: u64) -> u64 {
        self.0.get_with(key, || key)
    }
}

pub(crate) struct MokaTtl(Moka);

impl Peer for MokaTtl {
    const NAME: &'static str = "moka, TTL";

    fn new(capacity: usize) -> Self {
        MokaTtl(Moka(moka::sync::Cache::builder().max_capacity(capacity as u64).time_to_live(HOUR).build()))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }
}

pub(crate) struct MokaFuture(moka::future::Cache<u64, u64>);

impl Peer for MokaFuture {
    const NAME: &'static str = "moka, async";

    fn new(capacity: usize) -> Self {
        MokaFuture(moka::future::Cache::builder().max_capacity(capacity as u64).time_to_live(HOUR).build())
    }

    fn get(&self, _: u64) -> Option<u64> {
        None
    }

    fn insert(&self, key: u64, value: u64) {
        // Nobody else is there to be waited for.
        self.0.insert(key, value).now_or_never().expect("it is ready at once");
    }
}

impl Loading for MokaFuture {
    async fn get_or_load(&self, key: u64) -> u64 {
        self.0.get_with(key, async move { key }).await
    }
}
