//! Readers of a cache: what each of them got, how old that was, and how long it took. And the cache that articles begin with.
//!
//! A value is the tick at which it was loaded, so that everybody can see its age, whichever cache it came from.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdproof::{Env, Tick, env::Task};
use parking_lot::Mutex;

use crate::{
    log::Caller,
    origin::{Down, Origin},
    report::Waits,
};

/// What one reader got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) at: Tick,
    pub(super) waited: Duration,
    /// How old it was when the reader had it; `None` if there was no answer.
    pub(super) age: Option<Duration>,
}

/// What everybody got, in the order in which they had it. Clones share.
#[derive(Clone, Default)]
pub(super) struct Reads(Arc<Mutex<Vec<Read>>>);

/// Some of them.
pub(super) struct Crowd(Vec<Read>);

impl Reads {
    /// Reads once, and notes what came of it.
    pub(super) async fn read<E>(&self, env: &Env, read: impl Future<Output = Result<Tick, E>>) {
        let at = env.now();
        let got = read.await;
        let now = env.now();
        let age = got.ok().map(|loaded| now - loaded);
        self.0.lock().push(Read { at, waited: now - at, age });
    }

    pub(super) fn all(&self) -> Crowd {
        Crowd(self.0.lock().clone())
    }

    /// Those who came from one time until another.
    pub(super) fn between(&self, from: Duration, to: Duration) -> Crowd {
        let (from, to) = (Tick::ZERO + from, Tick::ZERO + to);
        Crowd(self.0.lock().iter().filter(|read| from <= read.at && read.at < to).copied().collect())
    }
}

impl Crowd {
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn count(&self, is: impl Fn(&Read) -> bool) -> u64 {
        self.0.iter().filter(|read| is(read)).count() as u64
    }

    pub(super) fn served(&self) -> u64 {
        self.count(|read| read.age.is_some())
    }

    pub(super) fn errors(&self) -> u64 {
        self.len() - self.served()
    }

    /// Those who were not served.
    pub(super) fn unserved(&self) -> Crowd {
        Crowd(self.0.iter().filter(|read| read.age.is_none()).copied().collect())
    }

    /// How many of a hundred were served; all of nobody.
    pub(super) fn percent_served(&self) -> f64 {
        if self.0.is_empty() { 100.0 } else { 100.0 * self.served() as f64 / self.len() as f64 }
    }

    /// How many had to wait at all.
    pub(super) fn waited(&self) -> u64 {
        self.count(|read| !read.waited.is_zero())
    }

    /// How many got something older than this.
    pub(super) fn older_than(&self, age: Duration) -> u64 {
        self.count(|read| read.age.is_some_and(|old| old > age))
    }

    pub(super) fn oldest(&self) -> Duration {
        self.0.iter().filter_map(|read| read.age).max().unwrap_or_default()
    }

    /// How long they waited.
    pub(super) fn waits(&self) -> Option<Waits> {
        Waits::of(self.0.iter().map(|read| read.waited).collect())
    }

    /// The wait that so many percent did not exceed.
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let mut waits: Vec<Duration> = self.0.iter().map(|read| read.waited).collect();
        waits.sort_unstable();
        let rank = (waits.len() * percent).div_ceil(100).max(1);
        waits.get(rank - 1).copied().unwrap_or_default()
    }
}

/// A load, which the origin works on to the end whether or not anybody still waits for it.
pub(super) fn load(env: &Env, origin: &Origin) -> impl Future<Output = Result<Tick, Down>> + Send + use<> {
    load_by(env, origin, None)
}

/// The same, by a caller who is known, if the origin is to know it.
pub(super) fn load_by(
    env: &Env,
    origin: &Origin,
    caller: Option<Caller>,
) -> impl Future<Output = Result<Tick, Down>> + Send + use<> {
    let (clock, origin) = (env.clone(), origin.clone());
    let call = async move {
        match caller {
            Some(caller) => origin.call_from(caller).await,
            None => origin.call().await,
        }
    };
    let work = move || clock.clone().spawn(async move { call.await.map(|_| clock.now()) });
    async move {
        let work: Task<Result<Tick, Down>> = work();
        work.await.unwrap_or(Err(Down))
    }
}

/// The cache that articles begin with: a map of values and when they expire. Whoever finds nothing loads, and stores what it
/// got if it is still there then. Clones share.
#[derive(Clone)]
pub(super) struct Shelf<K>(Arc<Mutex<BTreeMap<K, Kept>>>);

/// A value, and until when it is fresh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) value: Tick,
    pub(super) until: Tick,
}

impl<K: Ord> Shelf<K> {
    /// What is there, fresh or not.
    pub(super) fn look(&self, key: &K) -> Option<Kept> {
        self.0.lock().get(key).copied()
    }

    /// What is there and fresh.
    pub(super) fn fresh(&self, key: &K, now: Tick) -> Option<Tick> {
        self.look(key).filter(|kept| now < kept.until).map(|kept| kept.value)
    }

    pub(super) fn put(&self, key: K, value: Tick, until: Tick) {
        self.0.lock().insert(key, Kept { value, until });
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Check, then load: the sample that every article warns of.
    pub(super) async fn get<E>(
        &self,
        env: &Env,
        key: K,
        ttl: Duration,
        load: impl Future<Output = Result<Tick, E>>,
    ) -> Result<Tick, E> {
        if let Some(value) = self.fresh(&key, env.now()) {
            return Ok(value);
        }
        let value = load.await?;
        self.put(key, value, env.now() + ttl);
        Ok(value)
    }
}

/// A mutex for each key, as in the articles: whoever has it looks again, and loads. Clones share.
#[derive(Clone)]
pub(super) struct Locks<K>(Arc<Mutex<BTreeMap<K, Arc<tokio::sync::Mutex<()>>>>>);

impl<K: Ord + Clone> Locks<K> {
    pub(super) async fn get<E>(
        &self,
        env: &Env,
        shelf: &Shelf<K>,
        key: K,
        ttl: Duration,
        load: impl Future<Output = Result<Tick, E>>,
    ) -> Result<Tick, E> {
        if let Some(value) = shelf.fresh(&key, env.now()) {
            return Ok(value);
        }
        let lock = Arc::clone(self.0.lock().entry(key.clone()).or_default());
        let _locked = lock.lock().await;
        shelf.get(env, key, ttl, load).await
    }
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Shelf(Arc::default())
    }
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Locks(Arc::default())
    }
}
