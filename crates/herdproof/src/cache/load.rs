//! One load, from the gate to the entry.

use std::{
    any::Any,
    convert::Infallible,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use super::{
    Inner,
    entry::{Content, Entry, Life, Phase, Terms, between, scaled, scaled_nanos},
    outcome::{Keep, Label, Load, Prior},
    policy::Policy,
    shelf::{Gone, Shelf},
    stats::count,
    tags::{Mark, Tag},
    trip::{Run, Spanned, Trip, spanned},
};
use crate::{
    early,
    env::{Tick, nanos},
    error::Panic,
    event::Event,
    flight::{Afloat, Ending, Place, Settle},
    gate::{Refusal, Span},
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

/// What one trip to the origin gave, for one key or for many.
pub(super) enum Ran<T, E> {
    Gave(T),
    Failed(Arc<E>),
    TimedOut,
    Refused(Refusal),
    Panicked(Arc<Panic>),
}

impl<T, E> Ran<T, E> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Ran<U, E> {
        match self {
            Ran::Gave(found) => Ran::Gave(to(found)),
            Ran::Failed(error) => Ran::Failed(error),
            Ran::TimedOut => Ran::TimedOut,
            Ran::Refused(refusal) => Ran::Refused(refusal),
            Ran::Panicked(panic) => Ran::Panicked(panic),
        }
    }
}

impl<T: Clone, E> Clone for Ran<T, E> {
    fn clone(&self) -> Self {
        match self {
            Ran::Gave(found) => Ran::Gave(found.clone()),
            Ran::Failed(error) => Ran::Failed(Arc::clone(error)),
            Ran::TimedOut => Ran::TimedOut,
            Ran::Refused(refusal) => Ran::Refused(*refusal),
            Ran::Panicked(panic) => Ran::Panicked(Arc::clone(panic)),
        }
    }
}

/// How a value was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It was loaded.
    Loaded,
    /// Somebody else had loaded it just before.
    Memory,
    /// It was in the second tier.
    Tier,
    /// It was there, past its time and within its grace.
    Stale,
    /// It was there, past its time, and the load failed.
    OnError,
}

/// Whom a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For somebody who waits.
    Miss,
    /// For whoever comes next.
    Refresh,
    /// For whoever comes first.
    Prime,
}

/// A load that has been given its place in the air. It has its cache to itself, as a rule; one that is ready at once can do
/// with a borrowed one.
pub(super) struct Errand<K, V, E, C = Arc<Inner<K, V, E>>> {
    pub(super) cache: C,
    pub(super) key: K,
    pub(super) place: Place,
    /// Of this key alone; the cache's own, if there is none.
    pub(super) policy: Option<Box<Policy>>,
    pub(super) purpose: Purpose,
    /// When it was asked for.
    pub(super) asked: Tick,
    /// What was there before, if it is of any use still.
    pub(super) prior: Option<Entry<V, E>>,
    /// Which tags had been expired when it began.
    pub(super) mark: Mark,
}

impl<K, V, E> Errand<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Through the gate, to the origin, and into memory.
    #[inline]
    pub(super) fn run<F>(self, load: F) -> Run<K, V, E, Spanned<F>>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        let load = spanned(load);
        Run { trip: Trip::new(self.purpose, self.asked, self.policy().load_timeout, load), errand: Some(self) }
    }

    /// Through the gate and to the origin.
    pub(super) async fn attempt<F>(&self, load: F) -> (Ran<Load<V>, E>, Span)
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        self.cache.admit(self.purpose, self.asked, self.policy().load_timeout, &[self.place], load).await
    }

    /// Keeps it, unless it is out of date, before the flight ends.
    pub(super) fn fill(&self, entry: Entry<V, E>) {
        let mut filling = Filling::new(&self.cache, self.key.clone(), self.place, self.mark, entry);
        self.cache.engine.loads.unless_forgotten(self.place, |shelf| {
            if let Some((key, entry)) = &mut filling.cargo {
                self.cache.doubt(key, entry, self.asked);
            }
            filling.put_in(shelf);
        });
        filling.tell();
    }
}

impl<K, V, E> Errand<K, V, E, &Arc<Inner<K, V, E>>> {
    /// With a cache of its own.
    pub(super) fn owned(self) -> Errand<K, V, E> {
        let Errand { cache, key, place, policy, purpose, asked, prior, mark } = self;
        Errand { cache: Arc::clone(cache), key, place, policy, purpose, asked, prior, mark }
    }
}

impl<K, V, E, C> Errand<K, V, E, C>
where
    K: Hash,
    V: Clone,
    C: AsRef<Inner<K, V, E>>,
{
    /// What came of the load, for those who wait and for memory.
    pub(super) fn end(&self, ran: Ran<Load<V>, E>, span: Span) -> Parting<V, E> {
        match ran {
            Ran::Gave(found) => self.found(found, span.from, span.to),
            Ran::Failed(error) => self.failed(Loaded::Failed(Arc::clone(&error)), Content::Failed(error), span.to),
            Ran::Panicked(panic) => {
                self.failed(Loaded::Panicked(Arc::clone(&panic)), Content::Panicked(panic), span.to)
            }
            Ran::TimedOut => Parting { loaded: Loaded::TimedOut, entry: self.put_off(span.to) },
            Ran::Refused(refusal) => Parting { loaded: Loaded::Refused(refusal), entry: self.put_off(span.to) },
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        self.policy.as_deref().unwrap_or(&self.cache.as_ref().policy)
    }

    pub(super) fn found(&self, found: Load<V>, from: Tick, now: Tick) -> Parting<V, E> {
        let (value, keep) = match found {
            Load::Value(value) => {
                let entry = self.cache.as_ref().plain(
                    self.policy.as_deref(),
                    self.place,
                    self.took(from, now),
                    now,
                    value.clone(),
                );
                return Parting { loaded: Loaded::Value { value, born: now, way: Way::Loaded }, entry: Some(entry) };
            }
            Load::With(value, keep) => (value, keep),
            Load::Uncached(value) => {
                return Parting { loaded: Loaded::Value { value, born: now, way: Way::Loaded }, entry: None };
            }
            Load::Absent(ttl) => return self.found_nothing(ttl, from, now),
        };
        let (life, label) = self.cache.as_ref().life(&self.key, self.policy(), &keep, now, self.took(from, now));
        let entry = Some(Entry::new(life, Content::Value(value.clone(), label)));
        Parting { loaded: Loaded::Value { value, born: now, way: Way::Loaded }, entry }
    }

    /// How long loads take, this one included.
    #[inline]
    pub(super) fn took(&self, from: Tick, now: Tick) -> u64 {
        took(self.prior.as_ref(), from, now)
    }

    fn found_nothing(&self, ttl: Option<Duration>, from: Tick, now: Tick) -> Parting<V, E> {
        let ttl = self.cache.as_ref().jittered_nanos(self.policy(), nanos(ttl.unwrap_or(self.policy().absent)));
        // What is not to be remembered takes no room, unless it takes that of a value which is no longer true.
        let kept = ttl > 0 || self.prior.is_some();
        let life = || Life::begin(now, ttl, 0, between(from, now), None);
        Parting { loaded: Loaded::Absent, entry: kept.then(|| Entry::new(life(), Content::Absent)) }
    }

    /// The load failed, by an error or by a panic: what was there is served a little longer, or else the failure is remembered.
    fn failed(&self, loaded: Loaded<V, E>, failure: Content<V, E>, now: Tick) -> Parting<V, E> {
        let remembered = || {
            let ttl = self.cache.as_ref().jittered_nanos(self.policy(), nanos(self.policy().failed));
            let life = Life::begin(now, ttl, 0, 0, None);
            (self.policy().failed > Duration::ZERO).then(|| Entry::new(life, failure))
        };
        Parting { loaded, entry: self.put_off(now).or_else(remembered) }
    }

    /// What was there before, to be served a little longer before the next attempt, if it may be served at all.
    pub(super) fn put_off(&self, now: Tick) -> Option<Entry<V, E>> {
        let prior = self.prior.as_ref()?;
        let Policy { keep, pause, .. } = *self.policy();
        let life = prior.life();
        if prior.value().is_none() || life.phase(now, keep) == Phase::Gone {
            return None;
        }
        let pause = scaled(pause, 1.0 - 0.5 * self.cache.as_ref().rng.unit());
        Some(Entry::new(life.put_off(now, pause, keep), prior.clone().into_content()))
    }

    /// At its end, with all that is to be kept.
    pub(super) fn come_home(self, Parting { loaded, entry }: Parting<V, E>) -> Homecoming<K, V, E, C> {
        let Errand { cache, key, place, mark, .. } = self;
        Homecoming { loaded, filling: entry.map(|entry| Filling::new(cache, key, place, mark, entry)) }
    }
}

impl<'a, K, V, E> Errand<K, V, E, &'a Arc<Inner<K, V, E>>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Of a load without a gate that was ready at once.
    pub(super) fn now(self, found: Result<Load<V>, E>) -> Homecoming<K, V, E, &'a Arc<Inner<K, V, E>>> {
        let span = Span { from: self.asked, to: self.cache.env.coarse() };
        let parting = self.end(self.cache.came_to(Some(found)), span);
        self.come_home(parting)
    }

    /// Of one that panicked at once.
    #[cold]
    pub(super) fn panicked(self, payload: Box<dyn Any + Send>) -> Homecoming<K, V, E, &'a Arc<Inner<K, V, E>>> {
        let span = Span { from: self.asked, to: self.cache.env.coarse() };
        let parting = self.end(self.cache.panicked(payload), span);
        self.come_home(parting)
    }

    /// Of one that was not.
    pub(super) fn later<F>(self, load: Afloat<F>) -> Run<K, V, E, Afloat<F>> {
        let trip = Trip::under_way(self.purpose, self.asked, self.policy().load_timeout, load);
        Run { trip, errand: Some(self.owned()) }
    }
}

/// How long loads take, this one included, if this was there before.
#[inline]
pub(super) fn took<V: Clone, E>(prior: Option<&Entry<V, E>>, from: Tick, now: Tick) -> u64 {
    early::load_nanos(prior.map(|prior| prior.life().load), between(from, now))
}

/// What a load has come to: for those who wait, and for memory.
pub(super) struct Parting<V, E> {
    loaded: Loaded<V, E>,
    entry: Option<Entry<V, E>>,
}

impl<V, E> Parting<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Keeps what is to be kept.
    pub(super) fn fill<K>(self, errand: &Errand<K, V, E>) -> Loaded<V, E>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
    {
        if let Some(entry) = self.entry {
            errand.fill(entry);
        }
        self.loaded
    }
}

/// An entry on its way into memory. What is out of date, or had to make room, stays in here until no lock is held.
pub(super) struct Filling<K, V, E, C = Arc<Inner<K, V, E>>> {
    cache: C,
    /// Absent once it is in.
    cargo: Option<(K, Entry<V, E>)>,
    /// Whether nothing was there when the flight began whose end this is.
    is_new: bool,
    hash: u64,
    /// Which tags had been expired when its load began.
    mark: Mark,
    gone: Gone<K, V, E>,
}

impl<K, V, E, C> Filling<K, V, E, C> {
    #[inline(always)]
    pub(super) fn new(cache: C, key: K, place: Place, mark: Mark, entry: Entry<V, E>) -> Filling<K, V, E, C> {
        Filling { cache, cargo: Some((key, entry)), is_new: false, hash: place.hash, mark, gone: Gone::default() }
    }

    /// At the end of a flight that nothing was there for when it began.
    #[inline(always)]
    pub(super) fn with_new(self, is_new: bool) -> Filling<K, V, E, C> {
        Filling { is_new, ..self }
    }
}

impl<K, V, E, C> Filling<K, V, E, C>
where
    C: AsRef<Inner<K, V, E>>,
{
    /// Keeps the entry, unless one of its tags has expired since the load began. Only if the key was neither invalidated nor
    /// set since then: whoever does that hides the flight and changes the entry under one lock; under the same lock it is seen
    /// whether the flight was hidden, and the entry put in. So either it is hidden and nothing is put in, or what was put in
    /// is removed.
    #[inline(always)]
    fn put_in(&mut self, shelf: &mut Shelf<K, V, E>)
    where
        K: Hash + Eq,
        V: Clone,
    {
        let cache = self.cache.as_ref();
        let is_current = |cargo: &mut (K, Entry<V, E>)| !cache.tags.expired_since(cargo.1.tags(), self.mark);
        if let Some((key, entry)) = self.cargo.take_if(is_current) {
            let (scales, gone) = (&cache.engine.scales, &mut self.gone);
            if self.is_new {
                shelf.put_new(self.hash, key, entry, scales, gone);
            } else {
                shelf.put(self.hash, key, entry, scales, gone);
            }
        }
    }

    /// Counts what became of it: it was put in, or is there still.
    #[inline(always)]
    pub(super) fn tell(&self) {
        let cache = self.cache.as_ref();
        if self.cargo.is_some() {
            count(&cache.tally.fenced);
            cache.env.tell(&Event::Fenced);
        } else {
            cache.count_put(&self.gone);
        }
    }
}

/// It is put in when the flight ends, under the same lock.
impl<K, V, E, C> Settle<Shelf<K, V, E>> for Filling<K, V, E, C>
where
    K: Hash + Eq,
    V: Clone,
    C: AsRef<Inner<K, V, E>>,
{
    #[inline(always)]
    fn settle(&mut self, shelf: &mut Shelf<K, V, E>, is_known: impl FnOnce() -> bool) {
        if is_known() {
            self.put_in(shelf);
        }
    }
}

/// A load at its end: for those who wait, and for memory, if there is anything to keep.
pub(super) struct Homecoming<K, V, E, C = Arc<Inner<K, V, E>>> {
    loaded: Loaded<V, E>,
    filling: Option<Filling<K, V, E, C>>,
}

impl<K, V, E, C> Homecoming<K, V, E, C> {
    pub(super) fn new(loaded: Loaded<V, E>, filling: Filling<K, V, E, C>) -> Homecoming<K, V, E, C> {
        Homecoming { loaded, filling: Some(filling) }
    }
}

impl<K, V, E> Homecoming<K, V, E> {
    /// With nothing to keep.
    pub(super) fn known(loaded: Loaded<V, E>) -> Homecoming<K, V, E> {
        Homecoming { loaded, filling: None }
    }
}

impl<K, V, E, C> Settle<Shelf<K, V, E>> for Homecoming<K, V, E, C>
where
    K: Hash + Eq,
    V: Clone,
    C: AsRef<Inner<K, V, E>>,
{
    fn settle(&mut self, shelf: &mut Shelf<K, V, E>, is_known: impl FnOnce() -> bool) {
        if let Some(filling) = &mut self.filling {
            filling.settle(shelf, is_known);
        }
    }
}

impl<K, V, E, C: AsRef<Inner<K, V, E>>> From<Homecoming<K, V, E, C>> for Ending<Loaded<V, E>, Infallible> {
    fn from(homecoming: Homecoming<K, V, E, C>) -> Self {
        if let Some(filling) = &homecoming.filling {
            filling.tell();
        }
        Ending::Value(homecoming.loaded)
    }
}

impl<K, V, E> Inner<K, V, E> {
    /// A time, less what chance takes of it.
    pub(super) fn jittered(&self, policy: &Policy, time: Duration) -> Duration {
        Duration::from_nanos(self.jittered_nanos(policy, nanos(time)))
    }

    #[inline]
    fn jittered_nanos(&self, policy: &Policy, time: u64) -> u64 {
        if policy.jitter > 0.0 { scaled_nanos(time, 1.0 - policy.jitter * self.rng.unit()) } else { time }
    }

    /// What is kept of a plain value that was loaded just now.
    #[inline(always)]
    pub(super) fn plain(&self, own: Option<&Policy>, place: Place, took: u64, now: Tick, value: V) -> Entry<V, E> {
        let terms = own.map_or(self.terms, Terms::of);
        Entry::plain(now, terms, self.lives.nth(place.number), took, value)
    }

    /// How long a value lives that was loaded or set just now, and its tags.
    pub(super) fn life(&self, key: &K, policy: &Policy, keep: &Keep, now: Tick, load: u64) -> (Life, Option<Arc<Label>>)
    where
        K: Hash,
    {
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
    pub(super) fn early(&self, key: &K, policy: &Policy, ttl: u64) -> Option<u64>
    where
        K: Hash,
    {
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

    /// Counts a panic, which is a failure like any other.
    #[cold]
    pub(super) fn panicked<T>(&self, payload: Box<dyn Any + Send>) -> Ran<T, E> {
        count(&self.tally.failures);
        Ran::Panicked(Arc::new(Panic::new(payload)))
    }

    /// Counts a failure.
    pub(super) fn came_to<T>(&self, outcome: Option<Result<T, E>>) -> Ran<T, E> {
        match outcome {
            Some(Ok(found)) => Ran::Gave(found),
            Some(Err(error)) => {
                count(&self.tally.failures);
                Ran::Failed(Arc::new(error))
            }
            None => {
                count(&self.tally.failures);
                Ran::TimedOut
            }
        }
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

impl<K, V, E> Inner<K, V, E> {
    #[inline(always)]
    pub(super) fn count_put(&self, gone: &Gone<K, V, E>) {
        if gone.evicted > 0 {
            self.env.tell(&Event::CacheEvicted { entries: gone.evicted });
        }
        if gone.too_heavy {
            count(&self.tally.too_heavy);
            self.env.tell(&Event::CacheTooHeavy);
        }
    }
}
