//! The way to the second tier: bounded in time, behind a breaker, and with nothing said to it lost.
//!
//! A broken tier costs efficiency, never availability: every call to it ends within a timeout, and when several have failed
//! it is not called for a while. Then everything goes on as if there were none. When it is back, the breaker's ramp lets a
//! share of the calls through at first.

mod lease;
mod link;
mod outbox;
mod port;

use std::{
    future::Future,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

pub(super) use lease::Holding;
pub use link::Link;
pub(super) use outbox::Change;
use outbox::{Outbox, Subject};
use parking_lot::Mutex;
use port::{Answering, AnyTier};

use super::stats::count;
use crate::{
    breaker::Breaker,
    env::{Env, Rng, Task, Tick},
    error::caught,
    event::Event,
    gate::{Ask, Gate, Permit, Span, Verdict},
    tier::{Failure, Feed, Held, Lookup, Pushed, Tier, Wait, Want},
    timeout::by,
};

/// What a cache's second tier has done so far; from [`Cache::tier_stats`](super::Cache::tier_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Lookups that were sent to it.
    pub lookups: u64,
    /// Values that came from it, pushed ones included.
    pub hits: u64,
    /// Times that a load in another process was waited for.
    pub waits: u64,
    /// Leases to load that this process was given.
    pub leases: u64,
    /// Fills that it refused, because the key had changed meanwhile.
    pub fenced: u64,
    /// Calls that failed or took too long.
    pub failures: u64,
    /// Calls that were not made, because too many had failed before.
    pub refused: u64,
    /// Loads begun without a lease, because the tier was away or its lease holder too slow.
    pub alone: u64,
    /// Changes that were never delivered, because there was no room to remember them, or their delivery panicked.
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(super) struct TierTally {
    lookups: AtomicU64,
    hits: AtomicU64,
    waits: AtomicU64,
    leases: AtomicU64,
    fenced: AtomicU64,
    failures: AtomicU64,
    refused: AtomicU64,
    alone: AtomicU64,
    dropped: AtomicU64,
}

pub(super) struct Second<K, V> {
    env: Env,
    rng: Rng,
    tier: Box<dyn AnyTier<K, V>>,
    pub(super) link: Link,
    breaker: Breaker,
    outbox: Mutex<Outbox<K, V>>,
    tally: TierTally,
    /// When it was known last that news were missed.
    pub(super) lost: AtomicU64,
}

/// What whoever looks for a key can do with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    /// How much a fresh value may have left and still be loaded again.
    pub(super) early: Duration,
    pub(super) may_be_stale: bool,
}

/// What the tier says of a key.
pub(super) enum Seen<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    Over(Found<K, V>),
    /// Another process loads it; known since then.
    Wait(Wait<V>, Tick),
}

/// Why the tier gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// It was not called, failed, or took too long.
    Away,
    /// The call panicked, and would again.
    Panicked,
}

/// What came of looking for a key in the tier.
pub(super) enum Found<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// It was there when the lookup was sent, or a push came.
    Here {
        held: Held<V>,
        at: Tick,
    },
    /// It is to be loaded.
    Load {
        holding: Option<Holding<K, V>>,
        held: Option<(Held<V>, Tick)>,
    },
    Failed {
        failure: Failure<V>,
        at: Tick,
    },
}

impl<K, V> Second<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new(env: &Env, tier: Tiered<K, V>) -> Arc<Second<K, V>> {
        let Tiered { tier, link } = tier;
        Arc::new(Second {
            env: env.clone(),
            rng: env.rng("cache/tier"),
            tier,
            breaker: link.breaker.clone().unwrap_or_else(|| Breaker::new(env)),
            link,
            outbox: Mutex::new(Outbox::new(env)),
            tally: TierTally::default(),
            lost: AtomicU64::new(0),
        })
    }

    /// One call to the tier, if the breaker allows it; no answer if it fails. What is owed is said in any case: whoever was
    /// given a lease while the breaker lets only some calls through, and then could not fill, would keep the fleet waiting.
    async fn call<T>(&self, owed: bool, call: Answering<'_, T>) -> Result<T, Silence> {
        let ask = Ask::new(&self.env);
        let permit = self.breaker.try_enter(&ask).ok();
        if permit.is_none() && !owed {
            self.count(&self.tally.refused, &Event::TierRefusal);
            return Err(Silence::Away);
        }
        let answer = match by(&self.env, Some(ask.at + self.link.timeout), caught(call)).await {
            Some(Ok(Ok(answer))) => Ok(answer),
            Some(Ok(Err(_))) | None => Err(Silence::Away),
            Some(Err(_)) => Err(Silence::Panicked),
        };
        let verdict = if answer.is_ok() { Verdict::Ok } else { Verdict::Fault };
        permit.settle(&verdict, Span { from: ask.at, to: self.env.now() });
        if answer.is_err() {
            self.count(&self.tally.failures, &Event::TierFailure);
        }
        answer
    }

    /// Finds a value, or the right to load it. Takes as long as another process needs for its load, but no longer than this
    /// one is willing to wait.
    pub(super) async fn find(self: &Arc<Self>, key: &K, sought: Sought) -> Found<K, V> {
        let from = self.env.now();
        if self.does_not_know(&[Subject::Key(key.clone())]) {
            return self.alone();
        }
        let seen = self.look(key, sought).await;
        self.follow(key, sought, seen, from).await
    }

    /// What the tier says of many keys, by one question to it.
    pub(super) async fn look_many(self: &Arc<Self>, keys: &[(K, Sought)]) -> Vec<Seen<K, V>> {
        let at = self.env.now();
        let wanted: Vec<(K, Want)> = keys
            .iter()
            .filter(|(key, _)| !self.does_not_know(&[Subject::Key(key.clone())]))
            .map(|(key, sought)| (key.clone(), self.want(*sought)))
            .collect();
        self.count_lookups(wanted.len());
        let answers = match &*wanted {
            [] => None,
            wanted => self.call(false, self.tier.lookup_many(wanted)).await.ok(),
        };
        let mut answered = wanted.iter().zip(answers.unwrap_or_default()).peekable();
        keys.iter()
            .map(|(key, sought)| {
                let lookup = answered.next_if(|((of, _), _)| of == key).and_then(|(_, lookup)| lookup);
                self.seen(key, *sought, lookup, at)
            })
            .collect()
    }

    /// One question to the tier.
    async fn look(self: &Arc<Self>, key: &K, sought: Sought) -> Seen<K, V> {
        let at = self.env.now();
        self.count_lookups(1);
        let lookup = self.call(false, self.tier.lookup(key, self.want(sought))).await.ok();
        self.seen(key, sought, lookup, at)
    }

    fn want(&self, sought: Sought) -> Want {
        Want { lease: self.link.lease, early: sought.early }
    }

    /// What an answer means for this process; without one it goes on alone.
    fn seen(self: &Arc<Self>, key: &K, sought: Sought, lookup: Option<Lookup<V>>, at: Tick) -> Seen<K, V> {
        let Some(lookup) = lookup else { return Seen::Over(self.alone()) };
        if !matches!(lookup, Lookup::Hit(_)) {
            self.env.tell(&Event::LockAttempt);
        }
        Seen::Over(match lookup {
            Lookup::Hit(held) => self.here(held, at),
            Lookup::Stale(held, _) if sought.may_be_stale => self.here(held, at),
            Lookup::Refresh(held, lease) => {
                Found::Load { holding: Some(self.hold(key, lease)), held: Some((held, at)) }
            }
            Lookup::Fill(lease) => Found::Load { holding: Some(self.hold(key, lease)), held: None },
            Lookup::Failed(failure) => Found::Failed { failure, at },
            Lookup::Stale(_, wait) | Lookup::Wait(wait) => return Seen::Wait(wait, at),
        })
    }

    /// Waits for the load in another process, if there is one, until what is sought is found.
    pub(super) async fn follow(
        self: &Arc<Self>,
        key: &K,
        sought: Sought,
        mut seen: Seen<K, V>,
        from: Tick,
    ) -> Found<K, V> {
        let give_up = from + self.link.wait;
        loop {
            let (wait, at) = match seen {
                Seen::Over(found) => return found,
                Seen::Wait(wait, at) => (wait, at),
            };
            self.count(&self.tally.waits, &Event::TierWait);
            let silence = self.silence(wait.left(), self.rng.unit());
            // A place that panics knows nothing more.
            let pushed = by(&self.env, Some((at + silence).min(give_up)), caught(wait)).await;
            let pushed = pushed.map(|pushed| pushed.unwrap_or(Pushed::Again));
            let now = self.env.now();
            match pushed {
                Some(Pushed::Filled(held)) => return self.here(held, now),
                Some(Pushed::Failed(failure)) => return Found::Failed { failure, at: now },
                Some(Pushed::Lease(lease)) => {
                    return Found::Load { holding: Some(self.hold(key, lease)), held: None };
                }
                Some(Pushed::Again) | None if now >= give_up => return self.alone(),
                Some(Pushed::Again) => {
                    self.env.sleep(self.link.lease.mul_f64(0.01 * self.rng.unit())).await;
                }
                None => {}
            }
            seen = self.look(key, sought).await;
        }
    }

    /// It is to be loaded, and no other process knows.
    fn alone(&self) -> Found<K, V> {
        self.count(&self.tally.alone, &Event::TierAlone);
        Found::Load { holding: None, held: None }
    }

    /// How long to hear nothing before looking up again: until the lease is over, but not so long that a tier that died
    /// meanwhile goes unnoticed. Not all of those who wait at once.
    fn silence(&self, left: Duration, draw: f64) -> Duration {
        let third = self.link.lease / 3;
        left.min(third) + third.mul_f64(0.5 * draw)
    }

    fn here(&self, held: Held<V>, at: Tick) -> Found<K, V> {
        let tags: Vec<_> = held.tags.iter().map(|tag| Subject::Tag(tag.as_str().into())).collect();
        if self.does_not_know(&tags) {
            return self.alone();
        }
        self.count(&self.tally.hits, &Event::TierHit);
        Found::Here { held, at }
    }

    fn count(&self, counter: &AtomicU64, event: &Event) {
        count(counter);
        self.env.tell(event);
    }

    fn count_lookups(&self, keys: usize) {
        self.tally.lookups.fetch_add(keys as u64, Relaxed);
        self.env.tell(&Event::TierLookup { keys: keys as u64 });
    }

    pub(super) fn stats(&self) -> TierStats {
        let TierTally { lookups, hits, waits, leases, fenced, failures, refused, alone, dropped } = &self.tally;
        let [lookups, hits, waits, leases, fenced, failures, refused, alone, dropped] =
            [lookups, hits, waits, leases, fenced, failures, refused, alone, dropped].map(|count| count.load(Relaxed));
        TierStats { lookups, hits, waits, leases, fenced, failures, refused, alone, dropped }
    }
}

/// A tier and how it is used, until the cache is built.
pub(super) struct Tiered<K, V> {
    tier: Box<dyn AnyTier<K, V>>,
    link: Link,
}

impl<K, V> Tiered<K, V>
where
    K: Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new(tier: impl Tier<K, V>, link: Link) -> Tiered<K, V> {
        Tiered { tier: Box::new(tier), link }
    }
}

/// What a cache holds of its second tier. When the cache goes, so do the tasks.
pub(super) struct Attached<K, V> {
    second: Arc<Second<K, V>>,
    listener: Option<Task<()>>,
}

impl<K, V> Attached<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Begins to deliver, and to listen as `hear` does.
    pub(super) fn new<F>(second: Arc<Second<K, V>>, hear: impl FnOnce(Feed<K>) -> F) -> Attached<K, V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let env = &second.env;
        let listener = env.can_spawn().then(|| {
            env.spawn_named("cache outbox", Arc::clone(&second).deliver()).detach();
            env.spawn_named("cache news", hear(second.tier.listen()))
        });
        Attached { second, listener }
    }
}

impl<K, V> Drop for Attached<K, V> {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        self.second.close();
    }
}
