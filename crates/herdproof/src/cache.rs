//! A cache that cannot stampede.
//!
//! A cache hides its origin until the moment an entry expires, and then shows it everybody at once. This one has an answer
//! for each way in which that happens:
//!
//! | what lines callers up | what is done |
//! |---|---|
//! | a missing key | one load, whatever callers do (see [`flight`](crate::flight)) |
//! | an entry that expires while it is in use | the first hit near its end refreshes it ([`early`](Policy::early)) |
//! | ... and its load is slow | it is served stale while it is loaded again ([`grace`](Policy::grace)) |
//! | entries that were stored together | they do not expire together ([`jitter`](Policy::jitter)) |
//! | an origin that fails | what is there is served for longer ([`on_error`](Policy::on_error)), and the origin is asked once in a [`pause`](Policy::pause) |
//! | an origin that is slower than its callers are patient | the load goes on without them and fills the cache |
//! | 100,000 different keys at once | a limit for all loads, in which misses come before refreshes ([`load_limit`](CacheBuilder::load_limit)) |
//! | one tag on all of them | their expiry is smeared ([`expire_tag`](Cache::expire_tag)) |
//! | fifty processes with a cache each | one of them loads, the others get the value ([`tier`](CacheBuilder::tier)) |
//!
//! And what is loaded is never older than what is known: a load that was under way when its key was
//! [`invalidate`](Cache::invalidate)d or [`set`](Cache::set), or its tag expired, fills nothing.
//!
//! ```
//! use std::time::Duration;
//! use herdproof::{Cache, Env, cache::{Policy, Source}};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let minute = Duration::from_secs(60);
//! let cache: Cache<String, u64> = Cache::builder(&Env::system()).policy(Policy::new(minute).grace(5 * minute)).build();
//! let odds = cache.get("odds/42", || async { Ok(17) }).await.unwrap();
//! assert_eq!((odds.value, odds.source), (17, Source::Loaded));
//! let odds = cache.get("odds/42", || async { unreachable!("it is there") }).await.unwrap();
//! assert_eq!((odds.value, odds.source), (17, Source::Memory));
//! # });
//! ```
//!
//! An entry is *fresh* for its time to live, then *stale* for its grace, then kept for errors only, then gone:
//!
//! ```text
//!        |<------- ttl ------->|<------- grace ------->|
//!        |                     |<------------- on_error ------------>|
//!  loaded            early     expires                                gone
//!        fresh ....... fresh,  stale: served, and       served if the
//!                      loaded  loaded again             load fails
//!                      again
//! ```

mod admission;
mod batch;
mod blocking;
mod builder;
mod call;
mod engine;
mod entry;
mod fill;
mod get;
mod hint;
mod hot;
mod load;
mod lookup;
mod news;
mod outcome;
mod policy;
mod prime;
mod queued;
mod s3_fifo;
mod second;
mod stats;
mod sweep;
mod tags;
mod tiered;

use std::{
    borrow::Borrow,
    convert::Infallible,
    error::Error,
    fmt,
    future::Future,
    hash::Hash,
    ops::DerefMut,
    sync::{Arc, OnceLock},
    time::Duration,
};

use admission::Admission;
pub use batch::{Batch, GetMany};
pub use builder::CacheBuilder;
use call::Plain;
use engine::{Engine, Shard};
use entry::{Content, Entry, Terms};
use fill::Loaded;
pub use get::Get;
pub use hint::Hint;
pub use hot::HotKey;
use hot::Sketch;
pub use outcome::{GetError, Got, Keep, Load, Prior, Source};
pub use policy::Policy;
pub use prime::Primed;
use queued::Queued;
use second::{Attached, Change, Second};
pub use second::{Link, TierStats};
pub use stats::Stats;
use stats::Tally;
use tags::Tags;

use crate::{
    env::{Env, MapHasher, Rng},
    inflight::{Home, Settings},
};

/// Any error at all; what loads fail with unless a cache is told otherwise.
pub type AnyError = Box<dyn Error + Send + Sync>;

/// A cache that cannot stampede; see the [module](self). Cheap to clone, and clones share.
pub struct Cache<K, V, E = AnyError>(Arc<Inner<K, V, E>>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static;

type Policies<K> = Box<dyn Fn(&K) -> Option<Policy> + Send + Sync>;

struct Inner<K, V, E> {
    settings: Settings,
    rng: Rng,
    /// For how long what was loaded lives: the draw of a load is that of its number.
    lives: Rng,
    /// Hashes keys for the place of each within a smear.
    places: MapHasher,
    policy: Policy,
    /// The same for plain values.
    terms: Terms,
    policies: Option<Policies<K>>,
    engine: Engine<K, V, E>,
    tags: Tags,
    limit: Option<Arc<dyn Admission>>,
    queued: Arc<Queued>,
    second: Option<Arc<Second<K, V>>>,
    /// Written once, when the cache is built.
    attached: OnceLock<Attached<K, V>>,
    tally: Tally,
    hot: Option<Sketch>,
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The value of a key, loaded if need be. What is there is looked up before this returns.
    ///
    /// `load` is called only if it has to be and nobody else loads the key; see [`Group::run`](crate::flight::Group::run).
    #[inline]
    pub fn get<Q, F, L>(&self, key: &Q, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnOnce() -> F,
    {
        self.get_with(key, |_| Plain { load: load() })
    }

    /// As [`get`](Cache::get), with a load that knows what was there before, and says how what it found is to be kept.
    #[inline]
    pub fn get_with<Q, F, L>(&self, key: &Q, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        self.look_up(key, load)
    }

    /// The value of a key, if it can be served at once, fresh or stale. Never loads.
    pub fn peek<Q>(&self, key: &Q) -> Option<Got<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.servable(key, &self.0.engine.peek(key)?)
    }

    /// As [`peek`](Cache::peek), and a use of the entry: what is found often is kept longer, and hits and misses are counted.
    /// For who loads by other means, and keeps with [`set_with`](Cache::set_with).
    pub fn find<Q>(&self, key: &Q) -> Option<Got<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found =
            self.0.engine.get(self.0.engine.hash(key), key).and_then(|found| self.0.servable(key, &found.entry));
        match &found {
            Some(got) if got.is_stale() => self.0.serve_stale(key, || got.age()),
            Some(_) => drop(self.0.serve_fresh(key)),
            None => self.0.count_miss(),
        }
        found
    }

    /// As [`find`](Cache::find), if what is there is fresh and will do. Else it is as if nobody had asked, for who asks again.
    pub fn find_if<Q>(&self, key: &Q, will_do: impl FnOnce(&V) -> bool) -> Option<Got<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.0.env().coarse();
        let found = match self.0.engine.get(self.0.engine.hash(key), key)?.entry {
            Entry::Value { look_at, times, value } if now < look_at && !times.is_put_off() => {
                Got::served(value, Source::Memory, look_at, times.ends(), now)
            }
            entry => self.0.servable(key, &entry).filter(|found| !found.is_stale())?,
        };
        if !will_do(&found.value) {
            return None;
        }
        self.0.serve_fresh(key);
        Some(found)
    }

    /// Says what the value of a key is. A load of it that is under way fills nothing.
    pub fn set(&self, key: K, value: V) {
        self.set_with(key, value, &Keep::default());
    }

    /// As [`set`](Cache::set), kept as told.
    pub fn set_with(&self, key: K, value: V, keep: &Keep) {
        let cache = &*self.0;
        let own = cache.own_policy(&key);
        let load = cache.engine.peek(&key).map_or(0, |entry| entry.life().load);
        let (policy, now) = (cache.policy(own.as_deref()), cache.env().now());
        let Some(second) = &cache.second else {
            let (life, label) = cache.life(&key, policy, keep, now, load);
            cache.put(key, Entry::new(life, Content::Value(value, label)));
            return;
        };
        let stored = cache.to_store(policy, value.clone(), keep, Duration::from_nanos(load));
        // The same in both tiers.
        let in_memory = Some(stored.ttl.min(second.link.in_memory(|| cache.is_hot(&key))));
        let (life, label) = cache.life(&key, policy, &Keep { in_memory, ..keep.clone() }, now, load);
        cache.second_hears(|| Change::Put(key.clone(), stored));
        cache.put(key, Entry::new(life, Content::Value(value, label)));
    }

    /// Takes the entry of a key away, because its value has changed. A load of it that is under way still answers those who
    /// wait for it, and fills nothing; whoever asks from now on begins a new one.
    pub fn invalidate<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.0.second_hears(|| Change::Invalidate(key.to_owned()));
        drop(self.0.engine.remove(key));
    }

    /// Takes all entries in memory away, here and nowhere else: for tests, and to give memory back. Loads that are under way
    /// fill nothing, and the next ones start from nothing, or from what is in the second tier.
    ///
    /// That stays, and so does what other processes have in memory. To take everything from everybody at one moment is to
    /// send everybody to the origin at one moment. For values that turned out to be wrong there is a tag on all entries,
    /// [expired](Cache::expire_tag) over as long as the origin needs for them: that reaches all tiers and all processes.
    pub fn clear(&self) {
        self.0.engine.clear();
    }

    /// Expires all entries with this tag, each at its own moment within `smear`: then it is as if its time to live were over,
    /// so it is served stale where there is grace. Loads of such entries that are under way fill nothing, and who has to wait
    /// from now on begins a new one.
    ///
    /// The tags of an entry are known once it is there. Where nothing is, those who ask during its first load still join that:
    /// should its value turn out to have the tag, they get it, and it fills nothing.
    pub fn expire_tag(&self, tag: &str, smear: Duration) {
        let cache = &*self.0;
        cache.second_hears(|| Change::ExpireTag(tag.into(), smear));
        cache.tags.expire(cache.tags.tag(tag), || cache.env().now(), smear);
    }

    /// What its second tier has done so far, if it has one.
    pub fn tier_stats(&self) -> Option<TierStats> {
        self.0.second.as_ref().map(|second| second.stats())
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let Inner { tally, engine, .. } = &*self.0;
        Stats { evictions: engine.evicted(), entries: engine.len() as u64, weight: engine.weighs(), ..tally.stats() }
    }

    /// How many entries there are, past their time or not.
    pub fn len(&self) -> usize {
        self.0.engine.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// What holds for this key alone, if anything does.
    fn own_policy(&self, key: &K) -> Option<Box<Policy>> {
        self.policies.as_ref().and_then(|policies| policies(key)).map(Box::new)
    }

    fn policy<'a>(&'a self, own: Option<&'a Policy>) -> &'a Policy {
        own.unwrap_or(&self.policy)
    }

    /// Says that something is about to change here, if there is anybody to say it to. Before it does: whoever asks between
    /// the two would get the old value from the second tier and keep it, and nobody would say so later, because a node does
    /// not hear of its own changes.
    fn second_hears(&self, change: impl FnOnce() -> Change<K, V>) {
        if let Some(second) = &self.second {
            second.tell(change());
        }
    }

    /// Puts an entry in. A load of it that is under way fills nothing.
    fn put(&self, key: K, entry: Entry<V, E>) {
        self.count_put(&self.engine.put(key, entry));
    }
}

impl<K, V, E> Inner<K, V, E> {
    #[inline(always)]
    fn env(&self) -> &Env {
        &self.settings.env
    }
}

impl<K, V, E> Home for Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Key = K;
    type Value = Loaded<V, E>;
    type Error = Infallible;
    type Shard = Shard<K, V, E>;

    #[inline(always)]
    fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which tags had been expired.
    #[inline(always)]
    fn stamp(&self) -> u64 {
        self.tags.mark().0
    }

    #[inline(always)]
    fn shard(&self, hash: u64) -> impl DerefMut<Target = Shard<K, V, E>> {
        self.engine.shard(hash)
    }
}

impl<K, V, E> Clone for Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        Cache(Arc::clone(&self.0))
    }
}

impl<K, V, E> fmt::Debug for Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("policy", &self.0.policy).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, feature = "tracing"))]
mod spans;

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
