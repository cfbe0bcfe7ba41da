//! Fill, the third of three steps: what a load came to, as an entry in memory and as an answer for everybody who waits.
//!
//! There is one way into memory, [`Fill::put`], under the lock of the key's shard. Whoever invalidates or sets a key hides its
//! load from newcomers and changes the entry under one lock. Under the same lock it is seen here whether the load was hidden,
//! and the entry is put in. So either the load is hidden and nothing is put in, or what was put in is removed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use super::{
    Inner,
    engine::Shard,
    entry::{Content, Entry, Life, Other, Phase, Terms, between, scaled},
    load::{Answer, Job},
    outcome::{Keep, Label, Load, Prior},
    policy::Policy,
    s3_fifo::{Gone, Item},
    stats::count,
    tags::{Mark, Tag},
};
use crate::{
    early::{self, scaled_nanos},
    env::{Tick, nanos},
    error::Panic,
    event::Event,
    gate::{Refusal, Span},
    inflight::{HasLoads, Home, Place},
};

/// What a load has come to, for everybody who waits for it.
pub(super) enum Loaded<V, E> {
    Value {
        value: V,
        born: Tick,
        way: Way,
    },
    Absent,
    Failed(Arc<E>),
    /// The load failed in another process, for this reason.
    Elsewhere(Arc<str>),
    TimedOut,
    Refused(Refusal),
    Panicked(Arc<Panic>),
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Loaded,
    /// From the second tier.
    Tier,
    /// From the second tier, past its time and within its grace.
    Stale,
    /// It was there, past its time, and the load failed.
    OnError,
}

/// What a load has come to: for those who wait, and for memory.
pub(super) struct Outcome<V, E> {
    loaded: Loaded<V, E>,
    entry: Option<Entry<V, E>>,
}

/// An entry on its way into memory. What is out of date, or was evicted, stays in here until no lock is held.
pub(super) struct Fill<K, V, E> {
    /// Absent once it is in.
    cargo: Option<(K, Option<Entry<V, E>>)>,
    weight: u64,
    place: Place,
    /// When the load began: the instant, and which tags had been expired.
    asked: Tick,
    mark: Mark,
    gone: Gone<K, V, E>,
    replaced: Option<Arc<Other<V, E>>>,
    is_fenced: bool,
}

impl<K, V, E> Fill<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Weighs the entry; the weigher may panic.
    #[inline(always)]
    fn new(cache: &Inner<K, V, E>, key: K, job: (Place, Tick, Mark), entry: Option<Entry<V, E>>) -> Fill<K, V, E> {
        let (place, asked, mark) = job;
        let weight = entry.as_ref().map_or(0, |entry| cache.engine.scales.weight(&key, entry));
        Fill {
            cargo: Some((key, entry)),
            weight,
            place,
            asked,
            mark,
            gone: Gone::default(),
            replaced: None,
            is_fenced: false,
        }
    }

    /// The fill of a load that has ended, and what those who wait are told.
    #[inline(always)]
    pub(super) fn at_end(
        cache: &Inner<K, V, E>,
        job: Job<K, V, E>,
        outcome: Outcome<V, E>,
    ) -> (Fill<K, V, E>, Loaded<V, E>) {
        let Job { key, place, asked, mark, .. } = job;
        (Fill::new(cache, key, (place, asked, mark), outcome.entry), outcome.loaded)
    }

    /// Puts the entry in, unless the key was invalidated or set, or one of its tags expired, since the load began. If nothing is
    /// put in, what is there may be refreshed again at once.
    ///
    /// The key's `Eq` and `Hash` may panic here, and nothing else of the user runs; then nothing is put in, and the lead ends the
    /// load for everybody.
    #[inline(always)]
    pub(super) fn put(&mut self, cache: &Inner<K, V, E>, shard: &mut Shard<K, V, E>) {
        let hash = self.place.hash;
        let is_known = shard.loads().is_findable(self.place);
        let is_current = |entry: &Entry<V, E>| is_known && !cache.tags.expired_since(entry.tags(), self.mark);
        match self.cargo.take() {
            Some((key, Some(mut entry))) if is_current(&entry) => {
                self.replaced = cache.doubt(&key, &mut entry, self.asked);
                shard.entries.put(hash, Item { key, entry }, self.weight, &cache.engine.scales, &mut self.gone);
            }
            Some((key, entry)) => {
                shard.entries.unclaim(hash, &key);
                self.is_fenced = entry.is_some();
                self.cargo = Some((key, entry));
            }
            None => {}
        }
    }

    /// Counts what became of it, without the lock.
    #[inline(always)]
    pub(super) fn count(&self, cache: &Inner<K, V, E>) {
        if self.is_fenced {
            cache.count_fenced();
        }
        cache.count_put(&self.gone);
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The end of a load that runs as a task: fills, and gives what those who wait are to be told.
    pub(super) fn fill(&self, job: Job<K, V, E>, outcome: Outcome<V, E>) -> Loaded<V, E> {
        let (mut fill, loaded) = Fill::at_end(self, job, outcome);
        fill.put(self, &mut self.shard(fill.place.hash));
        fill.count(self);
        loaded
    }

    /// Puts an entry in while the load goes on.
    pub(super) fn fill_meanwhile(&self, job: &Job<K, V, E>, entry: Entry<V, E>) {
        let mut fill = Fill::new(self, job.key.clone(), (job.place, job.asked, job.mark), Some(entry));
        fill.put(self, &mut self.shard(job.place.hash));
        fill.count(self);
    }

    /// Nothing was put in: what is there may be refreshed again at once.
    pub(super) fn unclaim(&self, job: &Job<K, V, E>) {
        self.shard(job.place.hash).entries.unclaim(job.place.hash, &job.key);
    }

    /// Whether the key of a load was invalidated or set since it began.
    pub(super) fn is_out_of_date(&self, place: Place) -> bool {
        !self.shard(place.hash).loads().is_findable(place)
    }
}

impl<K: Hash, V: Clone, E> Inner<K, V, E> {
    /// The outcome of a load that gave a plain value, which most do.
    #[inline(always)]
    pub(super) fn plain(&self, job: &Job<K, V, E>, value: V, span: Span) -> Outcome<V, E> {
        let terms = job.policy.as_deref().map_or(self.terms, Terms::of);
        let draw = self.lives.nth(job.place.number);
        let entry = Entry::plain(span.to, terms, draw, took(job, span), value.clone());
        Outcome { loaded: Loaded::Value { value, born: span.to, way: Way::Loaded }, entry: Some(entry) }
    }

    /// What the origin's answer means for those who wait and for memory.
    pub(super) fn outcome(&self, job: &Job<K, V, E>, answer: Answer<Load<V>, E>, span: Span) -> Outcome<V, E> {
        match answer {
            Answer::Gave(Load::Value(value)) => self.plain(job, value, span),
            Answer::Gave(Load::With(value, keep)) => self.kept(job, value, &keep, span),
            Answer::Gave(Load::Uncached(value)) => {
                Outcome { loaded: Loaded::Value { value, born: span.to, way: Way::Loaded }, entry: None }
            }
            Answer::Gave(Load::Absent(ttl)) => self.absent(job, ttl, span),
            Answer::Failed(error) => {
                self.failed(job, Loaded::Failed(Arc::clone(&error)), Content::Failed(error), span.to)
            }
            Answer::Panicked(panic) => {
                self.failed(job, Loaded::Panicked(Arc::clone(&panic)), Content::Panicked(panic), span.to)
            }
            Answer::TimedOut => Outcome { loaded: Loaded::TimedOut, entry: self.put_off(job, span.to) },
            Answer::Refused(refusal) => Outcome { loaded: Loaded::Refused(refusal), entry: self.put_off(job, span.to) },
        }
    }

    fn kept(&self, job: &Job<K, V, E>, value: V, keep: &Keep, span: Span) -> Outcome<V, E> {
        let (life, label) = self.life(&job.key, job.policy(self), keep, span.to, took(job, span));
        let entry = Some(Entry::new(life, Content::Value(value.clone(), label)));
        Outcome { loaded: Loaded::Value { value, born: span.to, way: Way::Loaded }, entry }
    }

    fn absent(&self, job: &Job<K, V, E>, ttl: Option<Duration>, Span { from, to }: Span) -> Outcome<V, E> {
        let policy = job.policy(self);
        let ttl = self.jittered_nanos(policy, nanos(ttl.unwrap_or(policy.absent)));
        // What is not to be remembered takes no room, unless it replaces a value which is no longer true.
        let kept = ttl > 0 || job.prior.is_some();
        let life = || Life::begin(to, ttl, 0, between(from, to), None);
        Outcome { loaded: Loaded::Absent, entry: kept.then(|| Entry::new(life(), Content::Absent)) }
    }

    /// The load failed, by an error or by a panic: what was there is served a little longer, or else the failure is remembered.
    fn failed(&self, job: &Job<K, V, E>, loaded: Loaded<V, E>, failure: Content<V, E>, now: Tick) -> Outcome<V, E> {
        let policy = job.policy(self);
        let remembered = || {
            let ttl = self.jittered_nanos(policy, nanos(policy.failed));
            let life = Life::begin(now, ttl, 0, 0, None);
            (policy.failed > Duration::ZERO).then(|| Entry::new(life, failure))
        };
        Outcome { loaded, entry: self.put_off(job, now).or_else(remembered) }
    }

    /// What was there before, to be served a little longer before the next attempt, if it may be served at all.
    pub(super) fn put_off(&self, job: &Job<K, V, E>, now: Tick) -> Option<Entry<V, E>> {
        let prior = job.prior.as_ref()?;
        let Policy { keep, pause, .. } = *job.policy(self);
        let life = prior.life();
        if prior.value().is_none() || life.phase(now, keep) == Phase::Gone {
            return None;
        }
        let pause = scaled(pause, 1.0 - 0.5 * self.rng.unit());
        Some(Entry::new(life.put_off(now, pause, keep), prior.clone().into_content()))
    }

    /// A time, less what jitter takes of it.
    pub(super) fn jittered(&self, policy: &Policy, time: Duration) -> Duration {
        Duration::from_nanos(self.jittered_nanos(policy, nanos(time)))
    }

    #[inline]
    fn jittered_nanos(&self, policy: &Policy, time: u64) -> u64 {
        if policy.jitter > 0.0 { scaled_nanos(time, 1.0 - policy.jitter * self.rng.unit()) } else { time }
    }

    /// How long a value lives that was loaded or set just now, and its tags.
    pub(super) fn life(
        &self,
        key: &K,
        policy: &Policy,
        keep: &Keep,
        now: Tick,
        load: u64,
    ) -> (Life, Option<Arc<Label>>) {
        let own = |ttl: Option<Duration>| self.jittered_nanos(policy, nanos(ttl.unwrap_or(policy.ttl)));
        let ttl = keep.in_memory.map_or_else(|| own(keep.ttl), nanos);
        let grace = keep.grace.unwrap_or(policy.grace);
        let label = self.label(keep);
        let born = match label {
            Some(_) => self.tags.birth(now, now + Duration::from_nanos(ttl) + grace.max(policy.keep)),
            None => now,
        };
        (Life::begin(born, ttl, nanos(grace), load, self.early(key, policy, ttl)), label)
    }

    /// The bits from which it is drawn how long before its end an entry that is fresh for so long is refreshed, if it is.
    ///
    /// Processes that share a second tier must not draw each for itself: then the earliest of them would decide, the earlier the
    /// more there are. They take a hash of the key and of the version, for which the time to live in the tier stands: it has
    /// its jitter, and is the same for all.
    pub(super) fn early(&self, key: &K, policy: &Policy, ttl: u64) -> Option<u64> {
        policy.early.then(|| match &self.second {
            None => self.rng.bits(),
            Some(_) => {
                // Not seeded, as all others here are: it has to be the same in all processes.
                let mut hasher = DefaultHasher::new();
                (key, ttl / 1_000_000).hash(&mut hasher);
                hasher.finish()
            }
        })
    }

    /// What is kept of this beside the times, if it has tags.
    pub(super) fn label(&self, keep: &Keep) -> Option<Arc<Label>> {
        let Keep { ttl, grace, tags, nameless, .. } = keep;
        if tags.is_empty() && nameless.is_empty() {
            return None;
        }
        let tags: Box<[Tag]> = tags.iter().map(|name| self.tags.tag(name)).chain(nameless.iter().copied()).collect();
        let names = if self.second.is_some() { keep.tags.clone() } else { Vec::new() };
        let keep = Keep { ttl: *ttl, grace: *grace, tags: names, ..Keep::default() };
        Some(Arc::new(Label { tags, keep }))
    }

    pub(super) fn count_fenced(&self) {
        count(&self.tally.fenced);
        self.env().tell(&Event::Fenced);
    }

    #[inline(always)]
    pub(super) fn count_put(&self, gone: &Gone<K, V, E>) {
        if gone.evicted > 0 {
            self.env().tell(&Event::CacheEvicted { entries: gone.evicted });
        }
        if gone.too_heavy {
            count(&self.tally.too_heavy);
            self.env().tell(&Event::CacheTooHeavy);
        }
    }
}

/// How long loads of this key take, this one included.
#[inline]
pub(super) fn took<K, V: Clone, E>(job: &Job<K, V, E>, Span { from, to }: Span) -> u64 {
    early::load_nanos(job.prior.as_ref().map(|prior| prior.life().load), between(from, to))
}

impl<V: Clone, E> Entry<V, E> {
    pub(super) fn prior(&self, now: Tick) -> Option<Prior<V>> {
        let label = self.label().map(Arc::clone);
        Some(Prior { value: self.value()?.clone(), age: now - self.life().born(), label })
    }
}

impl<V: Clone, E> Clone for Loaded<V, E> {
    fn clone(&self) -> Self {
        match self {
            Loaded::Value { value, born, way } => Loaded::Value { value: value.clone(), born: *born, way: *way },
            Loaded::Absent => Loaded::Absent,
            Loaded::Failed(error) => Loaded::Failed(Arc::clone(error)),
            Loaded::Elsewhere(why) => Loaded::Elsewhere(Arc::clone(why)),
            Loaded::TimedOut => Loaded::TimedOut,
            Loaded::Refused(refusal) => Loaded::Refused(*refusal),
            Loaded::Panicked(panic) => Loaded::Panicked(Arc::clone(panic)),
        }
    }
}
