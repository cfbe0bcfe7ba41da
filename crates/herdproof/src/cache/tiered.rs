//! A load that asks the second tier first, and gives it what it has loaded.

use std::{convert::Infallible, future::Future, hash::Hash, sync::Arc, time::Duration};

use super::{
    Inner,
    call::{Call, spanned},
    entry::{Content, Entry, Life, Phase, before, between},
    fill::{Loaded, Way, took},
    load::{Answer, Job, Purpose},
    outcome::{Keep, Load},
    policy::Policy,
    second::{Found, Holding, Second, Sought},
};
use crate::{
    env::{Tick, nanos},
    gate::Span,
    inflight::{Ending, Landing, Linger},
    tier::{Failure, Filled, Held, Stored},
};

/// What a tier takes longer to answer than this is not early any more.
const EARLY: Duration = Duration::from_millis(10);

/// Those who wait for a load: told once, as soon as there is something to tell.
pub(super) enum Ashore<V: Clone, E> {
    Waiting(Landing<Loaded<V, E>, Infallible>),
    /// Newcomers are told the same for as long as the load goes on.
    Told {
        _linger: Linger<Loaded<V, E>, Infallible>,
    },
    /// Nobody waits, or nobody can be told before the end.
    Nobody,
}

impl<V: Clone, E> Ashore<V, E> {
    /// Tells those who wait, unless they have been told something already.
    fn tell(&mut self, loaded: Loaded<V, E>) {
        *self = match std::mem::replace(self, Ashore::Nobody) {
            Ashore::Waiting(landing) => Ashore::Told { _linger: landing.land(loaded) },
            told => told,
        };
    }
}

/// A load on its way through the second tier.
pub(super) struct Through<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    pub(super) cache: Arc<Inner<K, V, E>>,
    pub(super) second: Arc<Second<K, V>>,
    pub(super) job: Job<K, V, E>,
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Loads through the tier, for callers who are told as soon as there is something to tell.
    pub(super) async fn load_through<F>(
        self: Arc<Self>,
        second: Arc<Second<K, V>>,
        job: Job<K, V, E>,
        load: F,
        landing: Landing<Loaded<V, E>, Infallible>,
    ) -> Result<(), Infallible>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        let mut ashore = Ashore::Waiting(landing);
        let loaded = Through { cache: self, second, job }.run(load, &mut ashore).await;
        ashore.tell(loaded);
        Ok(())
    }

    /// Loads through the tier, for nobody who waits.
    pub(super) async fn refresh_through<F>(
        self: Arc<Self>,
        second: Arc<Second<K, V>>,
        job: Job<K, V, E>,
        load: F,
    ) -> Ending<Loaded<V, E>, Infallible>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        Ending::Value(Through { cache: self, second, job }.run(load, &mut Ashore::Nobody).await)
    }
}

impl<K, V, E> Through<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// To the second tier; from there into memory or, with its lease, through the gate to the origin, and from there into
    /// the tier and into memory.
    async fn run<F>(mut self, load: F, ashore: &mut Ashore<V, E>) -> Loaded<V, E>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        let found = self.second.find(&self.job.key, self.sought()).await;
        let holding = match self.arrive(found, ashore) {
            Ok(holding) => holding,
            Err(loaded) => return loaded,
        };
        let Job { purpose, asked, place, .. } = self.job;
        let call = Call::new(purpose, asked, self.policy().load_timeout, spanned(load));
        let (answer, span) = self.second.during(holding.iter(), self.cache.call(&[place], call)).await;
        self.depart(holding, answer, span, ashore).await
    }

    fn policy(&self) -> &Policy {
        self.job.policy(&self.cache)
    }

    /// What to look for in the tier.
    pub(super) fn sought(&self) -> Sought {
        Sought { early: self.early(), may_be_stale: self.job.purpose == Purpose::Miss }
    }

    /// From the tier with what was found there; or it is to be loaded, with this lease if there is one.
    pub(super) fn arrive(
        &mut self,
        found: Found<K, V>,
        ashore: &mut Ashore<V, E>,
    ) -> Result<Option<Holding<K, V>>, Loaded<V, E>> {
        match found {
            Found::Here { held, at } => Err(self.take(held, at)),
            Found::Failed { failure, at } => Err(self.failed_elsewhere(failure, at)),
            Found::Load { holding, held } => {
                if let Some((held, at)) = held {
                    self.take_meanwhile(&held, at, ashore);
                }
                self.job.asked = self.cache.env().now();
                Ok(holding)
            }
        }
    }

    /// To the tier with what came of the load.
    pub(super) async fn depart(
        self,
        holding: Option<Holding<K, V>>,
        answer: Answer<Load<V>, E>,
        span: Span,
        ashore: &mut Ashore<V, E>,
    ) -> Loaded<V, E> {
        match answer {
            Answer::Gave(found) => self.store(holding, found, span, ashore).await,
            answer => self.fall_back(holding, answer, span),
        }
    }

    /// How much a fresh value may have left and still be loaded again. Whoever refreshes early means the value that is in
    /// memory, which the tier has for about as long; if it has a newer one, that will do.
    fn early(&self) -> Duration {
        match (&self.job.prior, self.job.purpose) {
            (Some(prior), Purpose::Refresh) => {
                let life = prior.life();
                (life.fresh_until - self.cache.env().now()) + Duration::from_nanos(life.load).max(EARLY)
            }
            _ => Duration::ZERO,
        }
    }

    /// How long it is fresh in memory at most.
    fn in_memory(&self) -> Duration {
        self.second.link.in_memory(|| self.cache.is_hot(&self.job.key))
    }

    /// Keeps what the tier has.
    fn take(&self, held: Held<V>, at: Tick) -> Loaded<V, E> {
        let policy = self.policy();
        let own = if held.value.is_some() { policy.ttl } else { policy.absent };
        let own = self.cache.jittered(policy, own.min(self.in_memory()));
        let (life, content) = self.entry(&held, at, own);
        let is_servable = held.is_servable();
        let loaded = held.value.map_or(Loaded::Absent, |value| {
            let way = if held.past.is_zero() { Way::Tier } else { Way::Stale };
            Loaded::Value { value, born: before(at, nanos(held.age)), way }
        });
        // What is only for those who wait has no time at all.
        if is_servable {
            self.cache.fill_meanwhile(&self.job, Entry::new(life, content));
        } else {
            self.cache.unclaim(&self.job);
        }
        loaded
    }

    /// Serves what the tier has, if it may be served, while it is loaded again; else keeps it in case that fails.
    fn take_meanwhile(&mut self, held: &Held<V>, at: Tick, ashore: &mut Ashore<V, E>) {
        let (life, content) = self.entry(held, at, Duration::MAX);
        let (entry, born) = (Entry::new(life, content), before(at, nanos(held.age)));
        if let Some(value) = held.value.clone()
            && held.is_servable()
            && matches!(ashore, Ashore::Waiting(_))
        {
            let way = if held.past.is_zero() { Way::Tier } else { Way::Stale };
            self.cache.fill_meanwhile(&self.job, entry.clone());
            ashore.tell(Loaded::Value { value, born, way });
        }
        // What is in memory is the newer one if it was loaded while the tier was away.
        if self.job.prior.as_ref().is_none_or(|prior| prior.life().born() < born) {
            self.job.prior = Some(entry);
        }
    }

    /// The load failed, but there may be something to serve.
    fn fall_back(self, holding: Option<Holding<K, V>>, answer: Answer<Load<V>, E>, span: Span) -> Loaded<V, E> {
        if let Some(mut holding) = holding {
            holding.remember = self.cache.jittered(self.policy(), self.policy().failed);
            holding.why = match answer {
                Answer::Refused(_) => "the load was not begun: the node's limit refused it",
                Answer::TimedOut => "the load took too long",
                Answer::Panicked(_) => "the load panicked",
                Answer::Failed(_) | Answer::Gave(_) => "the load failed",
            };
        }
        let now = self.cache.env().now();
        let kept = self.job.prior.as_ref().and_then(|prior| self.servable(prior, now));
        let outcome = self.cache.outcome(&self.job, answer, span);
        let loaded = self.cache.fill(self.job, outcome);
        kept.unwrap_or(loaded)
    }

    /// Another process has failed; this one does not try.
    fn failed_elsewhere(&mut self, failure: Failure<V>, at: Tick) -> Loaded<V, E> {
        if let Some(held) = failure.held {
            self.take_meanwhile(&held, at, &mut Ashore::Nobody);
        }
        let kept = self.job.prior.as_ref().and_then(|prior| self.servable(prior, at));
        match self.cache.put_off(&self.job, at) {
            Some(put_off) => self.cache.fill_meanwhile(&self.job, put_off),
            None => self.cache.unclaim(&self.job),
        }
        kept.unwrap_or(Loaded::Elsewhere(failure.why))
    }

    fn servable(&self, prior: &Entry<V, E>, now: Tick) -> Option<Loaded<V, E>> {
        let (life, value) = (prior.life(), prior.value()?.clone());
        self.within_keep(&life, now).then_some(Loaded::Value { value, born: life.born(), way: Way::OnError })
    }

    fn within_keep(&self, life: &Life, now: Tick) -> bool {
        life.phase(now, self.policy().keep) != Phase::Gone
    }

    /// Gives those who wait what was loaded, then the tier, then memory.
    async fn store(
        mut self,
        holding: Option<Holding<K, V>>,
        found: Load<V>,
        span: Span,
        ashore: &mut Ashore<V, E>,
    ) -> Loaded<V, E> {
        let (stored, found) = self.stored(found, Duration::from_nanos(took(&self.job, span)));
        let loaded = match &stored.value {
            Some(value) => Loaded::Value { value: value.clone(), born: span.to, way: Way::Loaded },
            None => Loaded::Absent,
        };
        ashore.tell(loaded.clone());
        let fenced = match holding {
            // The tier will hear of what has happened here; until then, this is not to be had there.
            _ if self.cache.is_out_of_date(self.job.place) => true,
            Some(holding) => holding.fill(stored).await == Some(Filled::Fenced),
            None => false,
        };
        if fenced {
            self.cache.unclaim(&self.job);
            self.cache.count_fenced();
            return loaded;
        }
        // The times in `found` have had their jitter.
        self.job.policy = Some(Box::new(self.policy().settled()));
        let outcome = self.cache.outcome(&self.job, Answer::Gave(found), span);
        self.cache.fill(self.job, outcome)
    }

    /// What goes into the tier, and the same for memory.
    fn stored(&self, found: Load<V>, took: Duration) -> (Stored<V>, Load<V>) {
        let policy = self.policy();
        let (value, keep) = match found {
            Load::Value(value) => (value, Keep::default()),
            Load::With(value, keep) => (value, keep),
            Load::Absent(ttl) => {
                let ttl = self.cache.jittered(policy, ttl.unwrap_or(policy.absent));
                let (grace, keep) = (Duration::ZERO, Duration::ZERO);
                let stored = Stored { value: None, ttl, grace, keep, load: took, tags: Vec::new() };
                return (stored, Load::Absent(Some(ttl.min(self.in_memory()))));
            }
            // For those who wait, wherever they do.
            Load::Uncached(value) => {
                let (ttl, grace, keep) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
                let stored = Stored { value: Some(value.clone()), ttl, grace, keep, load: took, tags: Vec::new() };
                return (stored, Load::Uncached(value));
            }
        };
        let stored = self.cache.to_store(policy, value.clone(), &keep, took);
        let ttl = stored.ttl.min(self.in_memory());
        (stored, Load::With(value, Keep { in_memory: Some(ttl), ..keep }))
    }

    /// What the tier has, as it is kept in memory: fresh for as long as it is there, but no longer than `most`.
    fn entry(&self, held: &Held<V>, at: Tick, most: Duration) -> (Life, Content<V, E>) {
        let Held { age, left, past, grace, load, .. } = *held;
        let early = self.cache.early(&self.job.key, self.policy(), nanos(age + left));
        let left = left.min(most);
        let mut life = Life::begin(at, nanos(left), nanos(grace), nanos(load), early);
        if left.is_zero() {
            life.fresh_until = before(at, nanos(past));
            life.look_at = life.fresh_until;
        }
        let content = match &held.value {
            None => Content::Absent,
            Some(value) if held.tags.is_empty() => {
                life.fresh = between(before(at, nanos(age)), life.fresh_until);
                Content::Value(value.clone(), None)
            }
            Some(value) => {
                // It is as old as it is, but what was expired before it came is the tier's business.
                let born = self.cache.tags.birth(self.cache.env().now(), life.end(self.policy().keep));
                life.fresh = between(born, life.fresh_until);
                let keep = Keep { grace: Some(grace), tags: held.tags.clone(), ..Keep::default() };
                Content::Value(value.clone(), self.cache.label(&keep))
            }
        };
        (life, content)
    }
}

impl<K: Hash, V: Clone, E> Inner<K, V, E> {
    /// A value as it goes into the tier. Chance has its share here, so that it is the same in all tiers.
    pub(super) fn to_store(&self, policy: &Policy, value: V, keep: &Keep, load: Duration) -> Stored<V> {
        Stored {
            value: Some(value),
            ttl: self.jittered(policy, keep.ttl.unwrap_or(policy.ttl)),
            grace: keep.grace.unwrap_or(policy.grace),
            keep: policy.keep,
            load,
            tags: keep.tags.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
