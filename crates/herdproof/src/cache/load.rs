//! One load, from the gate to the entry.

use std::{
    convert::Infallible,
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{
    Inner,
    entry::{Content, Entry, Life, Phase, scaled},
    outcome::{Keep, Load, Prior},
    policy::Policy,
    stats::count,
    tags::{Mark, Tag},
};
use crate::{
    env::Tick,
    error::Panic,
    event::Event,
    flight::Place,
    gate::{Ask, Priority, Refusal, Span, Verdict},
    retry::by,
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
    /// A load of many keys panicked. That of one lets the panic go on in whoever began it.
    Panicked(Arc<Panic>),
}

/// What one trip to the origin gave, for one key or for many.
pub(super) enum Ran<T, E> {
    Gave(T),
    Failed(Arc<E>),
    TimedOut,
    Refused(Refusal),
}

impl<T, E> Ran<T, E> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Ran<U, E> {
        match self {
            Ran::Gave(found) => Ran::Gave(to(found)),
            Ran::Failed(error) => Ran::Failed(error),
            Ran::TimedOut => Ran::TimedOut,
            Ran::Refused(refusal) => Ran::Refused(refusal),
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

/// A load that has been given its place in the air.
pub(super) struct Errand<K, V, E> {
    pub(super) cache: Arc<Inner<K, V, E>>,
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
    pub(super) async fn run<F>(self, load: F) -> Loaded<V, E>
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        let (ran, span) = self.attempt(load).await;
        self.end(ran, span)
    }

    /// Through the gate and to the origin.
    pub(super) async fn attempt<F>(&self, load: F) -> (Ran<Load<V>, E>, Span)
    where
        F: Future<Output = Result<Load<V>, E>>,
    {
        self.cache.admit(self.purpose, self.asked, self.policy().load_timeout, load).await
    }

    /// Into memory with what came of the load, if it may be kept.
    pub(super) fn end(self, ran: Ran<Load<V>, E>, span: Span) -> Loaded<V, E> {
        match ran {
            Ran::Gave(found) => self.found(found, span.from, span.to),
            Ran::Failed(error) => self.failed(error, span.to),
            Ran::TimedOut => {
                self.put_off(span.to);
                Loaded::TimedOut
            }
            Ran::Refused(refusal) => {
                self.put_off(span.to);
                Loaded::Refused(refusal)
            }
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        self.policy.as_deref().unwrap_or(&self.cache.policy)
    }

    pub(super) fn found(self, found: Load<V>, from: Tick, now: Tick) -> Loaded<V, E> {
        let (value, keep) = match found {
            Load::Value(value) => (value, Keep::default()),
            Load::With(value, keep) => (value, keep),
            Load::Uncached(value) => return Loaded::Value { value, born: now, way: Way::Loaded },
            Load::Absent(ttl) => {
                let ttl = self.cache.jittered(self.policy(), ttl.unwrap_or(self.policy().absent));
                let life = Life::begin(now, ttl, Duration::ZERO, now - from, 0.0);
                self.fill(life, Content::Absent);
                return Loaded::Absent;
            }
        };
        let took = Life::learn(self.prior.as_ref().map(|prior| prior.life().load), now - from);
        let (life, tags) = self.cache.life(self.policy(), &keep, now, took);
        self.fill(life, Content::Value(value.clone(), tags));
        Loaded::Value { value, born: now, way: Way::Loaded }
    }

    fn failed(self, error: Arc<E>, now: Tick) -> Loaded<V, E> {
        if !self.put_off(now) && self.policy().failed > Duration::ZERO {
            let ttl = self.cache.jittered(self.policy(), self.policy().failed);
            let life = Life::begin(now, ttl, Duration::ZERO, Duration::ZERO, 0.0);
            self.fill(life, Content::Failed(Arc::clone(&error)));
        }
        Loaded::Failed(error)
    }

    /// What was there before is served a little longer before the next attempt, if it may be served at all.
    pub(super) fn put_off(&self, now: Tick) -> bool {
        let Some(prior) = &self.prior else { return false };
        let Policy { keep, pause, .. } = *self.policy();
        let life = prior.life();
        if prior.value().is_none() || life.phase(now, keep) == Phase::Gone {
            return false;
        }
        let pause = scaled(pause, 1.0 - 0.5 * self.cache.rng.unit());
        self.fill(life.put_off(now, pause, keep), prior.clone().into_content());
        true
    }

    /// Keeps it, unless the key was invalidated or set, or one of its tags expired, since the load began. Whoever does that
    /// hides the flight first and removes the entry then; here it is seen under the same lock whether the flight was
    /// hidden, and the entry put in. So either it is hidden and nothing is put in, or what was put in is removed.
    pub(super) fn fill(&self, life: Life, content: Content<V, E>) {
        let Inner { group, engine, tally, env, tags: expired, .. } = &*self.cache;
        let (key, entry) = (self.key.clone(), Entry::new(life, content));
        let put = group.unless_forgotten(self.place, || {
            (!expired.expired_since(entry.tags(), self.mark)).then(|| engine.put(key, entry))
        });
        match put.flatten() {
            Some(put) => self.cache.count_put(&put),
            None => {
                count(&tally.fenced);
                env.tell(&Event::Fenced);
            }
        }
    }
}

impl<K, V, E> Inner<K, V, E> {
    /// Through the gate, and to the origin: the one way there, for one key or for many.
    pub(super) async fn admit<T, F>(
        &self,
        purpose: Purpose,
        asked: Tick,
        timeout: Duration,
        load: F,
    ) -> (Ran<T, E>, Span)
    where
        F: Future<Output = Result<T, E>>,
    {
        let Inner { env, limit, tally, .. } = self;
        let permit = match limit {
            None => None,
            Some(limit) => {
                let priority = match purpose {
                    Purpose::Miss => Priority::Normal,
                    Purpose::Refresh | Purpose::Prime => Priority::Sheddable,
                };
                match limit.enter(Ask::at(asked).priority(priority)).await {
                    Ok(permit) => Some(permit),
                    Err(refusal) => return (Ran::Refused(refusal), Span { from: asked, to: env.now() }),
                }
            }
        };
        let from = if permit.is_some() { env.now() } else { asked };
        count(&tally.loads);
        let outcome = by(env, Some(from + timeout), spanned(load)).await;
        let span = Span { from, to: env.now() };
        let verdict = if matches!(outcome, Some(Ok(_))) { Verdict::Ok } else { Verdict::Fault };
        if let Some(permit) = permit {
            permit.settle(&verdict, span);
        }
        if verdict != Verdict::Ok {
            count(&tally.failures);
        }
        let ran = match outcome {
            Some(Ok(found)) => Ran::Gave(found),
            Some(Err(error)) => Ran::Failed(Arc::new(error)),
            None => Ran::TimedOut,
        };
        (ran, span)
    }

    pub(super) fn jittered(&self, policy: &Policy, time: Duration) -> Duration {
        if policy.jitter > 0.0 { policy.jittered(time, self.rng.unit()) } else { time }
    }

    /// How long a value lives that was loaded or set just now, and its tags.
    pub(super) fn life(&self, policy: &Policy, keep: &Keep, now: Tick, load: Duration) -> (Life, Option<Box<[Tag]>>) {
        let ttl = self.jittered(policy, keep.ttl.unwrap_or(policy.ttl));
        let grace = keep.grace.unwrap_or(policy.grace);
        if keep.tags.is_empty() {
            return (Life::begin(now, ttl, grace, load, policy.beta), None);
        }
        let born = self.tags.birth(now, now + ttl + grace.max(policy.keep));
        let tags = keep.tags.iter().map(|name| self.tags.tag(name)).collect();
        (Life::begin(born, ttl, grace, load, policy.beta), Some(tags))
    }
}

impl<V: Clone, E> Entry<V, E> {
    pub(super) fn prior(&self, now: Tick) -> Option<Prior<V>> {
        Some(Prior { value: self.value()?.clone(), age: now - self.life().born() })
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

pin_project! {
    /// A load, or what somebody else has loaded just before.
    #[project = MaybeProjected]
    pub(super) enum Maybe<F, V, E> {
        Known { loaded: Option<Loaded<V, E>> },
        Load { #[pin] load: F },
    }
}

impl<F, V, E> Future for Maybe<F, V, E>
where
    F: Future<Output = Loaded<V, E>>,
{
    type Output = Result<Loaded<V, E>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            MaybeProjected::Known { loaded } => {
                Poll::Ready(Ok(loaded.take().expect("a future is not polled after it was ready")))
            }
            MaybeProjected::Load { load } => load.poll(cx).map(Ok),
        }
    }
}

pin_project! {
    /// A load that gives a plain value.
    pub(super) struct Plain<F> {
        #[pin]
        pub(super) load: F,
    }
}

impl<V, E, F: Future<Output = Result<V, E>>> Future for Plain<F> {
    type Output = Result<Load<V>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().load.poll(cx).map_ok(Load::Value)
    }
}

impl<K, V, E> Inner<K, V, E> {
    pub(super) fn count_put(&self, put: &super::engine::Put<K, V, E>) {
        if put.evicted > 0 {
            self.tally.evictions.fetch_add(put.evicted, Relaxed);
            self.env.tell(&Event::CacheEvicted { entries: put.evicted });
        }
        if put.too_heavy {
            count(&self.tally.too_heavy);
            self.env.tell(&Event::CacheTooHeavy);
        }
    }
}

/// A load in a span of its own: under that of the caller who began it, though it may end without that caller.
#[cfg(feature = "tracing")]
fn spanned<F: Future>(load: F) -> tracing::instrument::Instrumented<F> {
    tracing::Instrument::instrument(load, tracing::info_span!("load"))
}

#[cfg(not(feature = "tracing"))]
#[inline(always)]
fn spanned<F: Future>(load: F) -> F {
    load
}
