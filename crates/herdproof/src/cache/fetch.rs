//! How a load begins: for somebody who waits, or for whoever comes next.

use std::{borrow::Borrow, convert::Infallible, future::Future, hash::Hash, sync::Arc, task::Poll};

use super::{
    Cache, Due, Inner,
    engine::Leading,
    entry::{Content, Entry, Life, Phase},
    get::Get,
    load::{self, Errand, Filling, Homecoming, Loaded, Purpose, Way},
    outcome::{Got, Load, Prior, Source},
    policy::Policy,
    shelf::Shelf,
    stats::count,
    tiered::Ashore,
    trip::{Begun, spanned},
};
use crate::{
    env::Tick,
    error::quietly,
    event::Event,
    flight::{Flight, Over, Place},
};

/// What somebody is about to load.
struct Order<K> {
    hash: u64,
    key: K,
    now: Tick,
    /// Of this key alone.
    policy: Option<Box<Policy>>,
    purpose: Purpose,
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Loads what can still be served, unless somebody does.
    pub(super) fn refresh<F, L>(&self, key: K, policy: Option<Box<Policy>>, due: Due, load: L)
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        let begin = |place, found, key: K| {
            let prior = cache.left_to_do(&key, found, policy.as_deref(), due)?;
            count(&cache.tally.refreshes);
            cache.env.tell(&Event::Refresh);
            let before = prior.as_ref().and_then(|prior| prior.prior(due.seen));
            let load = Begun::by(|| load(before));
            Ok((cache.errand(key, place, policy, Purpose::Refresh, due.seen, prior).owned(), load))
        };
        let loads = &cache.engine.loads;
        let flight = match &cache.second {
            None => loads.run_if_idle(key.clone(), Shelf::before_load, |place, found| {
                let (errand, load) = begin(place, found, key).map_err(Homecoming::known)?;
                Ok(errand.run(load))
            }),
            Some(second) => loads.run_if_idle(key.clone(), Shelf::before_load, |place, found| {
                let (errand, load) = begin(place, found, key).map_err(Ok)?;
                let second = Arc::clone(second);
                Ok(async move { Ok(errand.run_through(second, load, &mut Ashore::Nobody).await) })
            }),
        };
        if let Some(flight) = flight {
            flight.detach();
        }
    }

    /// Loads what has to be waited for, or joins whoever does.
    #[inline(always)]
    pub(super) fn fetch<Q, F, L>(
        &self,
        (hash, key): (u64, &Q),
        now: Tick,
        fallback: Option<Got<V>>,
        purpose: Purpose,
        load: L,
    ) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        if purpose == Purpose::Miss {
            cache.count_miss();
        }
        let key = key.to_owned();
        let policy = cache.own_policy(&key);
        let order = Order { hash, key, now, policy, purpose };
        if cache.loads_here() {
            self.fetch_here(order, fallback, load)
        } else {
            self.fetch_through(order, fallback, load)
        }
    }

    /// As [`fetch`](Cache::fetch), through a gate or from a second tier.
    #[inline(never)]
    fn fetch_through<F, L>(&self, order: Order<K>, fallback: Option<Got<V>>, load: L) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let (cache, Order { hash, key, now, policy, purpose }) = (&self.0, order);
        let patience = cache.patience(policy.as_deref(), now);
        let loads = &cache.engine.loads;
        let mut led = false;
        let begin = |place, found, key: K| {
            led = true;
            let prior = cache.left_to_do(&key, found, policy.as_deref(), Due { look_at: now, seen: now })?;
            let before = prior.as_ref().and_then(|prior| prior.prior(now));
            Ok((cache.errand(key, place, policy, purpose, now, prior), before))
        };
        let flight = match &cache.second {
            None => loads.run_placed(hash, key.clone(), Shelf::before_load, |place, found| {
                let (errand, before) = begin(place, found, key).map_err(Homecoming::known)?;
                Ok(errand.owned().run(Begun::by(|| load(before))))
            }),
            Some(second) => loads.run_landing_placed(hash, key.clone(), Shelf::before_load, |place, found, landing| {
                let begun = begin(place, found, key);
                let begun = begun.map(|(errand, before)| (errand.owned(), Begun::by(|| load(before))));
                let second = Arc::clone(second);
                async move {
                    match begun {
                        Ok((errand, load)) => errand.run_landing(second, load, landing).await,
                        Err(loaded) => {
                            drop(landing.land(loaded));
                            Ok(())
                        }
                    }
                }
            }),
        };
        if !led && purpose == Purpose::Miss {
            cache.joined(&flight);
        }
        Get::waiting(&cache.env, flight, fallback, patience)
    }

    /// As [`fetch`](Cache::fetch), where there is neither a second tier nor a limit.
    #[inline(never)]
    fn fetch_here<F, L>(&self, order: Order<K>, fallback: Option<Got<V>>, load: L) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let (cache, Order { hash, key, now, policy, purpose }) = (&self.0, &order);
        let (mut lead, found) = match cache.engine.loads.lead_placed(*hash, key.clone(), Shelf::before_load) {
            Ok(begun) => begun,
            Err(flight) => {
                if *purpose == Purpose::Miss {
                    cache.joined(&flight);
                }
                return Get::waiting(&cache.env, flight, fallback, cache.patience(policy.as_deref(), *now));
            }
        };
        let (mut prior, is_new) = (None, found.is_none());
        if !is_new {
            match cache.left_to_do(key, found, policy.as_deref(), Due { look_at: *now, seen: *now }) {
                Ok(of_use) => prior = of_use,
                Err(loaded) => return Get::landed(&cache.env, lead.over(Homecoming::known(loaded)), fallback),
            }
        }
        cache.tally.load();
        self.load_here(&mut lead, order, prior, is_new, fallback, load)
    }

    /// As [`fetch_here`](Cache::fetch_here), for whoever has not found a key, or has not looked.
    #[inline(never)]
    pub(super) fn find_or_fetch_here<Q, F, L>(&self, hash: u64, key: &Q, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        let mut lead = match cache.engine.get_or_lead(hash, key) {
            Ok(Some(lead)) => lead,
            Ok(None) => return self.fetch((hash, key), cache.env.coarse(), None, Purpose::Miss, load),
            Err(found) => return Get::of_apart(self.look(hash, key, found, cache.env.coarse(), load)),
        };
        let (key, now) = (key.to_owned(), cache.env.coarse());
        cache.tally.miss_and_load();
        cache.env.tell(&Event::CacheMiss);
        let policy = cache.own_policy(&key);
        self.load_here(&mut lead, Order { hash, key, now, policy, purpose: Purpose::Miss }, None, true, None, load)
    }

    /// A load is begun by whoever asks for it, and one that is ready at once has cost little more than to keep what it gives.
    #[inline(always)]
    fn load_here<F, L>(
        &self,
        lead: &mut Leading<'_, K, V, E>,
        order: Order<K>,
        prior: Option<Entry<V, E>>,
        is_new: bool,
        fallback: Option<Got<V>>,
        load: L,
    ) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let (cache, Order { key, now, policy, purpose, .. }) = (&self.0, order);
        let before = prior.as_ref().and_then(|prior| prior.prior(now));
        let (place, mark) = (lead.place(), cache.tags.mark());
        let (mut berth, mut polled) = (lead.berth(), Poll::Pending);
        if let Err(payload) = lead.poll(&mut berth, &mut polled, || Ok(spanned(load(before)))) {
            quietly(|| drop(berth));
            let errand = Errand { cache, key, place, policy, purpose, asked: now, prior, mark };
            return Get::landed(&cache.env, lead.over(errand.panicked(payload)), fallback);
        }
        if polled.is_pending() {
            let patience = cache.patience(policy.as_deref(), now);
            let errand = Errand { cache, key, place, policy, purpose, asked: now, prior, mark };
            let flight = lead.go_on(errand.later(berth.into_afloat()));
            return Get::waiting(&cache.env, flight, fallback, patience);
        }
        lead.leave(berth);
        let value = match polled {
            Poll::Ready(Ok(Load::Value(value))) => value,
            Poll::Ready(found) => {
                let errand = Errand { cache, key, place, policy, purpose, asked: now, prior, mark };
                return Get::landed(&cache.env, lead.over(errand.now(found)), fallback);
            }
            Poll::Pending => unreachable!("it goes on elsewhere then"),
        };
        let born = cache.env.coarse();
        let entry = cache.plain(policy.as_deref(), place, load::took(prior.as_ref(), now, born), born, value.clone());
        let mut filling = Filling::new(cache, key, place, mark, entry).with_new(is_new);
        match lead.close(&mut filling) {
            Over::Alone => {
                filling.tell();
                Get::hit(Got::new(value, Source::Loaded, born, born))
            }
            Over::Otherwise(unsaid) => {
                let loaded = Loaded::Value { value, born, way: Way::Loaded };
                Get::landed(&cache.env, lead.land(unsaid, Homecoming::new(loaded, filling)), fallback)
            }
        }
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// A load that is to begin now: whatever is expired from here on, it sees.
    pub(super) fn errand(
        self: &Arc<Self>,
        key: K,
        place: Place,
        policy: Option<Box<Policy>>,
        purpose: Purpose,
        asked: Tick,
        prior: Option<Entry<V, E>>,
    ) -> Errand<K, V, E, &Arc<Self>> {
        Errand { cache: self, key, place, policy, purpose, asked, prior, mark: self.tags.mark() }
    }

    /// Whether loads go neither through a second tier nor through a gate.
    #[inline(always)]
    pub(super) fn loads_here(&self) -> bool {
        self.second.is_none() && self.limit.is_none()
    }

    /// Until when somebody who came now waits for a load, if there is something else to serve.
    fn patience(&self, own: Option<&Policy>, now: Tick) -> Option<Tick> {
        self.policy(own).patience.map(|patience| now + patience)
    }

    /// Somebody waits for a load that another has begun.
    pub(super) fn joined(&self, flight: &Flight<Loaded<V, E>, Infallible>) {
        if self.limit.is_some()
            && let Some(place) = flight.place()
        {
            self.queued.awaited(place);
        }
        count(&self.tally.joins);
        self.env.tell(&Event::CacheJoin);
    }

    /// What a load that has been given its place is to start from, if this was there at that moment, unless there is nothing
    /// left to do: between the lookup and then somebody else may have loaded the key, or changed it. So that which was found
    /// at first counts no longer:
    ///
    /// 1. this finds an old value,
    /// 2. somebody invalidates the key; there is no load to be told,
    /// 3. the load begins, fails, and puts the old value off.
    pub(super) fn left_to_do(
        &self,
        key: &K,
        found: Option<Entry<V, E>>,
        own: Option<&Policy>,
        due: Due,
    ) -> Result<Option<Entry<V, E>>, Loaded<V, E>> {
        let Some(entry) = found else { return Ok(None) };
        let life = self.expired_by_tag(&entry, key);
        if due.look_at < life.look_at {
            return Err(known(life, entry.into_content(), due.seen));
        }
        let of_use = entry.value().is_some() && life.phase(due.seen, self.policy(own).keep) != Phase::Gone;
        Ok(of_use.then(|| Entry::new(life, entry.into_content())))
    }
}

/// What is there, for those who would have waited for it to be loaded.
fn known<V, E>(life: Life, content: Content<V, E>, now: Tick) -> Loaded<V, E> {
    let way = if life.is_put_off(now) { Way::OnError } else { Way::Memory };
    match content {
        Content::Value(value, _) => Loaded::Value { value, born: life.born(), way },
        Content::Absent => Loaded::Absent,
        Content::Failed(error) => Loaded::Failed(error),
        Content::Panicked(panic) => Loaded::Panicked(panic),
    }
}
