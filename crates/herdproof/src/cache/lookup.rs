//! Look-up, the first of three steps: what a caller gets of what is in memory, and whether it has to be loaded.
//!
//! A hit only reads, and so does a stale hit while its refresh is claimed.

use std::{borrow::Borrow, future::Future, hash::BuildHasher, hash::Hash, time::Duration};

use super::{
    Cache, Inner,
    engine::Found,
    entry::{Content, Entry, Life, Phase},
    get::Get,
    hot,
    load::Purpose,
    outcome::{Got, Load, Prior, Source},
};
use crate::{env::Tick, event::Event};

/// What a caller gets, and what there is to do.
pub(super) enum Lookup<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    Known(Get<V, E>),
    /// It is served, and to be refreshed unless somebody else claims that.
    Refresh(Got<V>, Due),
    /// It has to be waited for. This is served if the load fails, or is slow.
    Load(Option<Got<V>>),
}

/// Why a load is to begin: the entry that was there called for it from the one tick on, and was seen at the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) look_at: Tick,
    pub(super) seen: Tick,
    /// How long loads of it take, in nanoseconds.
    pub(super) load: u64,
}

impl Due {
    /// Nothing that can be served is there.
    pub(super) fn now(now: Tick) -> Due {
        Due { look_at: now, seen: now, load: 0 }
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The way of every `get`: a plain value ends here if it is fresh, or stale while somebody else refreshes it.
    #[inline(always)]
    pub(super) fn look_up<Q, F, L>(&self, key: &Q, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &*self.0;
        let hash = cache.engine.hash(key);
        let Some(found) = cache.engine.get_again(hash, key) else {
            return Get::of_apart(self.find_or_load(hash, key, load).into_apart());
        };
        // The clock is read after the look-up: its instructions run while the entry comes from memory.
        let now = cache.env().coarse();
        let Found { entry, state } = found;
        let entry = match entry {
            Entry::Value { look_at, times, value } => {
                if now < look_at && !times.is_put_off() {
                    cache.serve_fresh(key);
                    return Get::hit(Got::served(value, Source::Memory, look_at, times.ends(), now));
                }
                if state.is_claimed(now) && times.is_stale(look_at, now) {
                    let got = Got::served(value, Source::Stale, look_at, times.ends(), now);
                    cache.serve_stale(key, || got.age());
                    return Get::hit(got);
                }
                Entry::Value { look_at, times, value }
            }
            other @ Entry::Other(_) => other,
        };
        Get::of_apart(self.serve(hash, key, Found { entry, state }, now, load).into_apart())
    }

    /// Serves what was found, if it can be, and begins what has to be loaded.
    #[inline(never)]
    pub(super) fn serve<Q, F, L>(&self, hash: u64, key: &Q, found: Found<V, E>, now: Tick, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        match self.0.decide(key, found, now) {
            Lookup::Known(get) => get,
            Lookup::Refresh(got, due) => {
                self.refresh(hash, key, due, load);
                Get::hit(got)
            }
            Lookup::Load(fallback) => self.load(hash, key.to_owned(), now, fallback, Purpose::Miss, load),
        }
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// What an entry means at this moment.
    #[inline]
    pub(super) fn decide<Q>(&self, key: &Q, found: Found<V, E>, now: Tick) -> Lookup<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let Found { entry, state } = found;
        let life = self.expired_by_tag(&entry, key);
        if now < life.look_at {
            if entry.is_failure() {
                // Nothing was served, and during an outage most look-ups are of these.
                self.count_miss();
            } else if life.is_put_off(now) {
                self.serve_stale(key, || now - life.born());
            } else {
                self.serve_fresh(key);
            }
            return Lookup::Known(Get::known(entry, now));
        }
        let Content::Value(value, _) = entry.into_content() else { return Lookup::Load(None) };
        let got = |source| Got::new(value, source, life.born(), now);
        let served = match life.phase(now, Duration::ZERO) {
            Phase::Fresh | Phase::Early => got(self.serve_fresh(key)),
            Phase::Stale => {
                self.serve_stale(key, || now - life.born());
                got(Source::Stale)
            }
            Phase::Kept | Phase::Gone => {
                let keep = self.policy(self.own_policy(&key.to_owned()).as_deref()).keep;
                let kept = life.phase(now, keep) == Phase::Kept;
                return Lookup::Load(kept.then(|| got(Source::StaleOnError)));
            }
        };
        if state.is_claimed(now) {
            return Lookup::Known(Get::hit(served));
        }
        Lookup::Refresh(served, Due { look_at: life.look_at, seen: now, load: life.load })
    }

    #[inline]
    pub(super) fn serve_fresh<Q: Hash + ?Sized>(&self, key: &Q) -> Source {
        let number = self.tally.hit();
        if self.hot.is_some() && hot::is_sample(number) {
            self.sample(key);
        }
        self.env().tell(&Event::CacheHit);
        Source::Memory
    }

    #[inline]
    pub(super) fn serve_stale<Q: Hash + ?Sized>(&self, key: &Q, age: impl FnOnce() -> Duration) {
        let number = self.tally.stale();
        if self.hot.is_some() && hot::is_sample(number) {
            self.sample(key);
        }
        self.env().tell_of(|| Event::CacheStale { age: age() });
    }

    /// The value of an entry, if it can be served at once.
    pub(super) fn servable<Q: Hash + ?Sized>(&self, key: &Q, entry: &Entry<V, E>) -> Option<Got<V>> {
        let now = self.env().now();
        let life = self.expired_by_tag(entry, key);
        let source = match life.phase(now, Duration::ZERO) {
            _ if life.is_put_off(now) => Source::StaleOnError,
            Phase::Fresh | Phase::Early => Source::Memory,
            Phase::Stale => Source::Stale,
            Phase::Kept | Phase::Gone => return None,
        };
        Some(Got::new(entry.value()?.clone(), source, life.born(), now))
    }

    pub(super) fn count_miss(&self) {
        self.tally.miss();
        self.env().tell(&Event::CacheMiss);
    }

    /// The times of an entry, with the expiry of its tags.
    pub(super) fn expired_by_tag<Q: Hash + ?Sized>(&self, entry: &Entry<V, E>, key: &Q) -> Life {
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
