//! Load, the second of three steps: who leads, who follows, and the load itself, in place or as a task.

use std::{borrow::Borrow, convert::Infallible, future::Future, hash::Hash, sync::Arc, task::Poll, time::Duration};

use super::{
    Cache, Inner,
    call::{Call, Started, spanned},
    engine::{Found, Shard},
    entry::{Entry, Life, Phase},
    fill::{Fill, Loaded, Outcome},
    get::Get,
    lookup::Due,
    outcome::{Got, Load, Prior},
    policy::Policy,
    stats::count,
    tags::Mark,
};
use crate::{
    env::Tick,
    error::{Panic, quietly},
    event::Event,
    gate::{Refusal, Span},
    inflight::{Ending, Flight, HasLoads, Lead, Place, follow},
};

/// A claim on a refresh stands for at least this long.
const SHORTEST_CLAIM: Duration = Duration::from_secs(1);
/// ... and else for so many load times,
const CLAIM: u64 = 4;
/// ... but no longer than this; see [`State::is_claimed`](super::s3_fifo::State::is_claimed).
const LONGEST_CLAIM: Duration = Duration::from_secs(60);

/// Whom a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For somebody who waits.
    Miss,
    /// For the next who asks.
    Refresh,
    /// For the first who asks.
    Prime,
}

/// What the origin gave, for one key or for many.
pub(super) enum Answer<T, E> {
    Gave(T),
    Failed(Arc<E>),
    TimedOut,
    Refused(Refusal),
    Panicked(Arc<Panic>),
}

/// One load of one key, from its beginning to its fill.
pub(super) struct Job<K, V, E> {
    pub(super) key: K,
    pub(super) place: Place,
    /// Of this key alone; `None` if the cache's holds.
    pub(super) policy: Option<Box<Policy>>,
    pub(super) purpose: Purpose,
    /// When it was asked for.
    pub(super) asked: Tick,
    /// What was there when the load began, if it is of any use still.
    pub(super) prior: Option<Entry<V, E>>,
    /// Which tags had been expired when it began.
    pub(super) mark: Mark,
}

/// What there is to do for a key that was to be loaded.
pub(super) enum Begun<'a, K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Nothing: it was loaded or set in the meantime.
    Known(Found<V, E>),
    /// Somebody else loads it.
    Follow(Flight<Loaded<V, E>, Infallible>),
    /// The load, from what was there at that moment. What the look-up found counts no longer:
    ///
    /// 1. the look-up finds an old value,
    /// 2. somebody invalidates the key; there is no load to be told,
    /// 3. the load begins, fails, and serves the old value a little longer.
    Lead(Leading<'a, K, V, E>, Option<Entry<V, E>>),
}

pub(super) type Leading<'a, K, V, E> = Lead<'a, Inner<K, V, E>>;

/// The lead of a refresh, and what is there.
type Refresh<'a, K, V, E> = (Leading<'a, K, V, E>, Option<Entry<V, E>>);

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Most likely nothing is there: looks, follows or leads under one lock.
    #[inline(never)]
    pub(super) fn find_or_load<Q, F, L>(&self, hash: u64, key: &Q, load: L) -> Get<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        let shard = match cache.engine.get_or_lock(hash, key) {
            Ok(found) => return self.serve(hash, key, found, cache.env().coarse(), load),
            Err(shard) => shard,
        };
        let lead = match follow(cache, shard, hash, key) {
            Err(shard) => Lead::begin(cache, shard, hash, key.to_owned()),
            Ok(flight) => {
                cache.count_miss();
                cache.count_join(&flight);
                return Get::waiting(cache.env(), flight, None, None);
            }
        };
        let (key, now) = (key.to_owned(), cache.env().coarse());
        let policy = cache.own_policy(&key);
        if !cache.loads_here() {
            cache.count_miss();
            return self.lead(lead, key, policy, Purpose::Miss, now, None, None, load);
        }
        cache.tally.miss_and_load();
        cache.env().tell(&Event::CacheMiss);
        cache.env().tell(&Event::Load);
        let job = cache.job(key, lead.place(), policy, Purpose::Miss, now, None);
        self.run_here(lead, job, None, || load(None))
    }

    /// Loads what has to be waited for, or follows who does.
    #[inline(never)]
    pub(super) fn load<F, L>(
        &self,
        hash: u64,
        key: K,
        now: Tick,
        fallback: Option<Got<V>>,
        purpose: Purpose,
        load: L,
    ) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        let policy = cache.own_policy(&key);
        let begun = cache.begin(hash, &key, policy.as_deref(), Due::now(now));
        if purpose == Purpose::Miss && !matches!(begun, Begun::Known(_)) {
            cache.count_miss();
        }
        match begun {
            Begun::Known(found) if purpose == Purpose::Prime => Get::known(found.entry, now),
            Begun::Known(found) => self.serve(hash, &key, found, now, load),
            Begun::Follow(flight) if purpose == Purpose::Miss => {
                cache.count_join(&flight);
                Get::waiting(cache.env(), flight, fallback, cache.patience(policy.as_deref(), now))
            }
            Begun::Follow(flight) => Get::waiting(cache.env(), flight, fallback, None),
            Begun::Lead(lead, prior) => self.lead(lead, key, policy, purpose, now, prior, fallback, load),
        }
    }

    /// Loads what can still be served, unless somebody does.
    #[inline(never)]
    pub(super) fn refresh<Q, F, L>(&self, hash: u64, key: &Q, due: Due, load: L)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        // The caller, who is served, does not get the panic of a weigher, a clone or a policy. The claim stands until it lapses.
        let refreshed = quietly(|| {
            let key = key.to_owned();
            let policy = cache.own_policy(&key);
            if let Some((lead, prior)) = cache.begin_refresh(hash, &key, policy.as_deref(), due) {
                cache.count_refresh();
                self.lead(lead, key, policy, Purpose::Refresh, due.seen, prior, None, load).detach();
            }
        });
        if refreshed.is_none() {
            count(&cache.tally.failures);
        }
    }

    /// Runs a load that has begun.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the job, which is made where it is used")]
    fn lead<F, L>(
        &self,
        lead: Leading<'_, K, V, E>,
        key: K,
        policy: Option<Box<Policy>>,
        purpose: Purpose,
        asked: Tick,
        prior: Option<Entry<V, E>>,
        fallback: Option<Got<V>>,
        load: L,
    ) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
        L: FnOnce(Option<Prior<V>>) -> F,
    {
        let cache = &self.0;
        cache.env().tell(&Event::Load);
        let before = prior.as_ref().and_then(|prior| prior.prior(asked));
        let job = cache.job(key, lead.place(), policy, purpose, asked, prior);
        if cache.loads_here() {
            cache.tally.load();
            self.run_here(lead, job, fallback, || load(before))
        } else {
            self.run_through(lead, job, fallback, || load(before))
        }
    }

    /// Runs a load that nothing stands before: polled in place, and if it is ready at once, filled in place.
    #[inline(always)]
    fn run_here<F>(
        &self,
        mut lead: Leading<'_, K, V, E>,
        job: Job<K, V, E>,
        fallback: Option<Got<V>>,
        load: impl FnOnce() -> F,
    ) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
    {
        let cache = &self.0;
        let (mut slot, mut polled) = (lead.slot(), Poll::Pending);
        if let Err(payload) = lead.poll(&mut slot, &mut polled, || spanned(load())) {
            quietly(|| drop(slot));
            return self.end_rarely(&mut lead, job, cache.panicked(payload), fallback);
        }
        match polled {
            Poll::Ready(Ok(Load::Value(value))) => {
                lead.leave(slot);
                let outcome = cache.plain(&job, value, cache.span_of(&job));
                self.end(&mut lead, job, outcome, fallback)
            }
            Poll::Ready(found) => {
                lead.leave(slot);
                self.end_rarely(&mut lead, job, cache.answered(Some(found)), fallback)
            }
            Poll::Pending => {
                let (asked, patience) = (job.asked, cache.patience(job.policy.as_deref(), job.asked));
                let timeout = job.policy(cache).load_timeout;
                let call = Call::under_way(job.purpose, asked, timeout, slot.into_load());
                let flight = lead.spawn(Box::pin(Arc::clone(cache).run(job, call)));
                Get::waiting(cache.env(), flight, fallback, patience)
            }
        }
    }

    /// Fills in place. One copy of this is for plain values, so that their parts stay in registers (`bench cache`, `miss`).
    #[inline(always)]
    fn end(
        &self,
        lead: &mut Leading<'_, K, V, E>,
        job: Job<K, V, E>,
        outcome: Outcome<V, E>,
        fallback: Option<Got<V>>,
    ) -> Get<V, E> {
        let cache = &self.0;
        let (mut fill, loaded) = Fill::at_end(cache, job, outcome);
        let company = lead.close(|shard| fill.put(cache, shard));
        fill.count(cache);
        match company {
            None => Get::led(loaded, fallback, cache.env()),
            Some(company) => Get::waiting(cache.env(), company.land(Ending::Value(loaded)), fallback, None),
        }
    }

    /// As [`end`](Cache::end), for anything but a plain value.
    #[inline(never)]
    fn end_rarely(
        &self,
        lead: &mut Leading<'_, K, V, E>,
        job: Job<K, V, E>,
        answer: Answer<Load<V>, E>,
        fallback: Option<Got<V>>,
    ) -> Get<V, E> {
        let outcome = self.0.outcome(&job, answer, self.0.span_of(&job));
        self.end(lead, job, outcome, fallback)
    }

    /// Runs a load through the gate, or through the second tier.
    #[inline(never)]
    fn run_through<F>(
        &self,
        mut lead: Leading<'_, K, V, E>,
        job: Job<K, V, E>,
        fallback: Option<Got<V>>,
        load: impl FnOnce() -> F,
    ) -> Get<V, E>
    where
        F: Future<Output = Result<Load<V>, E>> + Send + 'static,
    {
        let cache = &self.0;
        let patience = cache.patience(job.policy.as_deref(), job.asked);
        // The load is started where it is polled, so that one that asks for its own key is refused.
        let flight = match (&cache.second, job.purpose) {
            (None, _) => lead.run(|| {
                let timeout = job.policy(cache).load_timeout;
                let call = Call::new(job.purpose, job.asked, timeout, spanned(Started::by(load)));
                Arc::clone(cache).run(job, call)
            }),
            (Some(second), Purpose::Refresh) => {
                lead.run(|| Arc::clone(cache).refresh_through(Arc::clone(second), job, Started::by(load)))
            }
            (Some(second), Purpose::Miss | Purpose::Prime) => lead.run_landing(|landing| {
                Arc::clone(cache).load_through(Arc::clone(second), job, Started::by(load), landing)
            }),
        };
        Get::waiting(cache.env(), flight, fallback, patience)
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Follows the load of a key, or leads it if it is to be loaded still: between the look-up and now somebody else may have
    /// loaded or changed it.
    pub(super) fn begin(self: &Arc<Self>, hash: u64, key: &K, own: Option<&Policy>, due: Due) -> Begun<'_, K, V, E> {
        let mut shard = self.engine.shard(hash);
        self.hide_outdated(&mut shard, hash, key);
        let shard = match follow(self, shard, hash, key) {
            Ok(flight) => return Begun::Follow(flight),
            Err(shard) => shard,
        };
        let Some(found) = shard.peek(hash, key) else {
            return Begun::Lead(Lead::begin(self, shard, hash, key.clone()), None);
        };
        let life = self.expired_by_tag(&found.entry, key);
        if due.look_at < life.look_at {
            return Begun::Known(found);
        }
        Begun::Lead(Lead::begin(self, shard, hash, key.clone()), self.prior(found.entry, life, own, due.seen))
    }

    /// As [`begin`](Inner::begin), for a refresh: nobody follows, and only who claims it asks whether it is in progress.
    pub(super) fn begin_refresh(
        self: &Arc<Self>,
        hash: u64,
        key: &K,
        own: Option<&Policy>,
        due: Due,
    ) -> Option<Refresh<'_, K, V, E>> {
        let claim = Duration::from_nanos(due.load.saturating_mul(CLAIM));
        if !self.engine.claim(hash, key, due.seen, due.seen + claim.clamp(SHORTEST_CLAIM, LONGEST_CLAIM)) {
            return None;
        }
        let mut shard = self.engine.shard(hash);
        let found = shard.peek(hash, key);
        let life = found.as_ref().map(|found| self.expired_by_tag(&found.entry, key));
        if life.is_some_and(|life| due.look_at < life.look_at) {
            // It was loaded or set between the look-up and the claim, which is one of the new entry.
            shard.entries.unclaim(hash, key);
            return None;
        }
        if shard.loads().has(hash, key) {
            return None;
        }
        let lead = Lead::begin(self, shard, hash, key.clone());
        let prior = found.zip(life).and_then(|(found, life)| self.prior(found.entry, life, own, due.seen));
        Some((lead, prior))
    }

    /// Hides a load that began before a tag of what is there was expired: who joined it would get what was expired.
    fn hide_outdated(&self, shard: &mut Shard<K, V, E>, hash: u64, key: &K) {
        let Some(mark) = shard.loads().stamp(hash, key) else { return };
        let entry = shard.entries.peek(hash, |other| other == key);
        if entry.is_some_and(|(entry, _)| self.tags.expired_since(entry.tags(), Mark(mark))) {
            shard.loads().forget(hash, key);
        }
    }

    /// What a load may start from and fall back on, if it is of any use still.
    fn prior(&self, entry: Entry<V, E>, life: Life, own: Option<&Policy>, now: Tick) -> Option<Entry<V, E>> {
        let of_use = entry.value().is_some() && life.phase(now, self.policy(own).keep) != Phase::Gone;
        of_use.then(|| Entry::new(life, entry.into_content()))
    }

    /// From when a load was asked for until now.
    fn span_of(&self, job: &Job<K, V, E>) -> Span {
        Span { from: job.asked, to: self.env().coarse() }
    }

    /// Whether loads go neither through a gate nor through a second tier.
    #[inline(always)]
    fn loads_here(&self) -> bool {
        self.second.is_none() && self.limit.is_none()
    }

    /// A load that begins now: tags that are expired from here on make it out of date.
    #[inline(always)]
    pub(super) fn job(
        &self,
        key: K,
        place: Place,
        policy: Option<Box<Policy>>,
        purpose: Purpose,
        asked: Tick,
        prior: Option<Entry<V, E>>,
    ) -> Job<K, V, E> {
        Job { key, place, policy, purpose, asked, prior, mark: self.tags.mark() }
    }

    /// Calls the origin and fills.
    async fn run<F>(self: Arc<Self>, job: Job<K, V, E>, call: Call<F>) -> Ending<Loaded<V, E>, Infallible>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        let (answer, span) = self.call(&[job.place], call).await;
        let outcome = self.outcome(&job, answer, span);
        Ending::Value(self.fill(job, outcome))
    }

    /// Until when a caller who came now waits for a load, if there is something else to serve.
    pub(super) fn patience(&self, own: Option<&Policy>, now: Tick) -> Option<Tick> {
        self.policy(own).patience.map(|patience| now + patience)
    }

    /// A caller waits for a load that somebody else has begun.
    pub(super) fn count_join(&self, flight: &Flight<Loaded<V, E>, Infallible>) {
        if self.limit.is_some()
            && let Some(place) = flight.place()
        {
            self.queued.awaited(place);
        }
        count(&self.tally.joins);
        self.env().tell(&Event::CacheJoin);
    }

    pub(super) fn count_refresh(&self) {
        count(&self.tally.refreshes);
        self.env().tell(&Event::Refresh);
    }
}

impl<K, V, E> Job<K, V, E> {
    pub(super) fn policy<'a>(&'a self, cache: &'a Inner<K, V, E>) -> &'a Policy {
        self.policy.as_deref().unwrap_or(&cache.policy)
    }
}

impl<T, E> Answer<T, E> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Answer<U, E> {
        match self {
            Answer::Gave(found) => Answer::Gave(to(found)),
            Answer::Failed(error) => Answer::Failed(error),
            Answer::TimedOut => Answer::TimedOut,
            Answer::Refused(refusal) => Answer::Refused(refusal),
            Answer::Panicked(panic) => Answer::Panicked(panic),
        }
    }
}

impl<T: Clone, E> Clone for Answer<T, E> {
    fn clone(&self) -> Self {
        match self {
            Answer::Gave(found) => Answer::Gave(found.clone()),
            Answer::Failed(error) => Answer::Failed(Arc::clone(error)),
            Answer::TimedOut => Answer::TimedOut,
            Answer::Refused(refusal) => Answer::Refused(*refusal),
            Answer::Panicked(panic) => Answer::Panicked(Arc::clone(panic)),
        }
    }
}
