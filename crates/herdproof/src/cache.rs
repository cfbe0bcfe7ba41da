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
mod engine;
mod entry;
mod fetch;
mod get;
mod hint;
mod hot;
mod load;
mod news;
mod outcome;
mod policy;
mod prime;
mod queued;
mod second;
mod shelf;
mod stats;
mod sweep;
mod tags;
mod tiered;
mod trip;

use std::{
    borrow::Borrow,
    error::Error,
    fmt,
    future::Future,
    hash::{BuildHasher, Hash},
    sync::{Arc, OnceLock},
    time::Duration,
};

use admission::Admission;
pub use batch::{Batch, GetMany};
pub use builder::CacheBuilder;
use engine::Engine;
use entry::{Content, Entry, Life, Phase, Terms};
use get::Apart;
pub use get::Get;
pub use hint::Hint;
pub use hot::HotKey;
use hot::Sketch;
use load::Purpose;
pub use outcome::{GetError, Got, Keep, Load, Prior, Source};
pub use policy::Policy;
pub use prime::Primed;
use queued::Queued;
use second::{Attached, Change, Second};
pub use second::{Link, TierStats};
pub use stats::Stats;
use stats::Tally;
use tags::Tags;
use trip::Plain;

use crate::{
    env::{Env, MapHasher, Rng, Tick},
    event::Event,
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

/// What a caller gets, and what there is to do.
enum Sight<K, V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    Known(Get<V, E>),
    /// It is served, and to be loaded again.
    Again {
        got: Got<V>,
        key: K,
        policy: Option<Box<Policy>>,
        due: Due,
    },
    /// It has to be waited for, unless this stands in for a load that fails.
    Missing(Option<Got<V>>),
}

/// Why a load is to begin: what is there was to be looked at from the one tick on, and somebody did at the other.
#[derive(Clone, Copy, Debug)]
struct Due {
    look_at: Tick,
    seen: Tick,
}

struct Inner<K, V, E> {
    env: Env,
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
        let hash = self.0.engine.hash(key);
        let Some(found) = self.0.engine.get_again(hash, key) else {
            return Get::of_apart(self.miss(hash, key, load));
        };
        // Only now: while an entry comes from far away in memory, the time can be asked for.
        let now = self.0.env.coarse();
        let found = match found {
            Entry::Value { look_at, times, value } => {
                if now < look_at && !times.is_put_off() {
                    self.0.serve_fresh(key);
                    return Get::hit(Got::fresh(value, look_at, times.ends(), now));
                }
                Entry::Value { look_at, times, value }
            }
            other @ Entry::Other(_) => other,
        };
        Get::of_apart(self.look(hash, key, found, now, load))
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
        let found = self.0.engine.get(self.0.engine.hash(key), key).and_then(|entry| self.0.servable(key, &entry));
        match &found {
            Some(got) if got.is_stale() => self.0.serve_stale(key, got.age()),
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
        let now = self.0.env.coarse();
        let found = match self.0.engine.get(self.0.engine.hash(key), key)? {
            Entry::Value { look_at, times, value } if now < look_at && !times.is_put_off() => {
                Got::fresh(value, look_at, times.ends(), now)
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
        let (policy, now) = (cache.policy(own.as_deref()), cache.env.now());
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
    /// so it is served stale where there is grace. Loads of such entries that are under way fill nothing.
    pub fn expire_tag(&self, tag: &str, smear: Duration) {
        let cache = &*self.0;
        cache.second_hears(|| Change::ExpireTag(tag.into(), smear));
        cache.tags.expire(cache.tags.tag(tag), || cache.env.now(), smear);
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

    /// Most likely there is nothing. If whoever came last has changed something, nobody has looked yet: so does this one most
    /// likely, and then the lock that it needs for that is the one to look under, and not a second one.
    #[inline(never)]
    fn miss<Q, F, L>(&self, hash: u64, key: &Q, load: L) -> Apart<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        if self.0.loads_here() {
            return self.find_or_fetch_here(hash, key, load).into_apart();
        }
        let (found, now) = (self.0.engine.get(hash, key), self.0.env.coarse());
        match found {
            None => self.fetch((hash, key), now, None, Purpose::Miss, load).into_apart(),
            Some(found) => self.look(hash, key, found, now, load),
        }
    }

    /// There is something, but not a plain fresh value.
    #[inline(never)]
    fn look<Q, F, L>(&self, hash: u64, key: &Q, found: Entry<V, E>, now: Tick, load: L) -> Apart<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let get = match self.0.see(key, found, now) {
            Sight::Known(get) => get,
            Sight::Again { got, key, policy, due } => {
                self.refresh(key, policy, due, load);
                Get::hit(got)
            }
            Sight::Missing(fallback) => self.fetch((hash, key), now, fallback, Purpose::Miss, load),
        };
        get.into_apart()
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

    /// What a caller who found this gets, and whether it has to be loaded.
    #[inline]
    fn see<Q>(&self, key: &Q, entry: Entry<V, E>, now: Tick) -> Sight<K, V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let life = self.expired_by_tag(&entry, key);
        if now < life.look_at {
            let source =
                if life.is_put_off(now) { self.serve_put_off(key, now - life.born()) } else { self.serve_fresh(key) };
            return Sight::Known(match entry.into_content() {
                Content::Value(value, _) => Get::hit(Got::new(value, source, life.born(), now)),
                Content::Absent => Get::failed(GetError::Absent),
                Content::Failed(error) => Get::failed(GetError::Load(error)),
                Content::Panicked(panic) => Get::failed(GetError::Panicked(panic)),
            });
        }
        let Content::Value(value, _) = entry.into_content() else { return Sight::Missing(None) };
        let due = Due { look_at: life.look_at, seen: now };
        let got = |source| Got::new(value, source, life.born(), now);
        let owned = key.to_owned();
        let own = self.own_policy(&owned);
        let policy = self.policy(own.as_deref());
        match life.phase(now, policy.keep) {
            Phase::Fresh => Sight::Known(Get::hit(got(self.serve_fresh(key)))),
            Phase::Early => {
                let got = got(self.serve_fresh(key));
                Sight::Again { got, key: owned, policy: own, due }
            }
            Phase::Stale => {
                self.serve_stale(key, now - life.born());
                Sight::Again { got: got(Source::Stale), key: owned, policy: own, due }
            }
            Phase::Kept => Sight::Missing(Some(got(Source::StaleOnError))),
            Phase::Gone => Sight::Missing(None),
        }
    }

    #[inline]
    fn serve_fresh<Q: Hash + ?Sized>(&self, key: &Q) -> Source {
        let number = self.tally.hit();
        if self.hot.is_some() && hot::is_sample(number) {
            self.sample(key);
        }
        self.env.tell(&Event::CacheHit);
        Source::Memory
    }

    #[inline]
    fn serve_put_off<Q: Hash + ?Sized>(&self, key: &Q, age: Duration) -> Source {
        self.serve_stale(key, age);
        Source::StaleOnError
    }

    #[inline]
    fn serve_stale<Q: Hash + ?Sized>(&self, key: &Q, age: Duration) {
        let number = self.tally.stale();
        if self.hot.is_some() && hot::is_sample(number) {
            self.sample(key);
        }
        self.env.tell(&Event::CacheStale { age });
    }

    /// The value of an entry, if it can be served at once.
    fn servable<Q: Hash + ?Sized>(&self, key: &Q, entry: &Entry<V, E>) -> Option<Got<V>> {
        let now = self.env.now();
        let life = self.expired_by_tag(entry, key);
        let source = match life.phase(now, Duration::ZERO) {
            _ if life.is_put_off(now) => Source::StaleOnError,
            Phase::Fresh | Phase::Early => Source::Memory,
            Phase::Stale => Source::Stale,
            Phase::Kept | Phase::Gone => return None,
        };
        Some(Got::new(entry.value()?.clone(), source, life.born(), now))
    }

    fn count_miss(&self) {
        self.tally.miss();
        self.env.tell(&Event::CacheMiss);
    }

    /// Puts an entry in. A load of it that is under way fills nothing.
    fn put(&self, key: K, entry: Entry<V, E>) {
        self.count_put(&self.engine.put(key, entry));
    }

    /// The times of an entry, once its tags have had their say.
    fn expired_by_tag<Q: Hash + ?Sized>(&self, entry: &Entry<V, E>, key: &Q) -> Life {
        let (life, tags) = (entry.life(), entry.tags());
        if tags.is_empty() {
            return life;
        }
        match self.tags.stale_from(tags, life.born(), self.places.hash_one(key)) {
            Some(at) => life.expire(at),
            None => life,
        }
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
