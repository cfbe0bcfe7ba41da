//! The way to the second tier: bounded in time, behind a breaker, and with nothing said to it lost.
//!
//! A broken tier costs efficiency, never availability: every call to it ends within a timeout, and when several have failed
//! it is not called for a while. Then everything goes on as if there were none. When it is back, the breaker's ramp lets a
//! share of the calls through at first.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    hash::Hash,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use super::stats::count;
use crate::{
    backoff::Backoff,
    breaker::Breaker,
    env::{Env, MapHasher, Rng, Task, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Span, Verdict},
    tier::{Failure, Fault, Feed, Filled, Held, Lease, Lookup, Pushed, Stored, Tier, TierError, Wait, Want},
    timeout::by,
};

/// How a cache uses its second tier; for [`CacheBuilder::tier_with`](super::CacheBuilder::tier_with).
///
/// | | unless told otherwise |
/// |---|---|
/// | [`timeout`](Link::timeout) | 250 ms |
/// | [`lease`](Link::lease) | 3 s, renewed while the load goes on |
/// | [`wait`](Link::wait) | 10 s |
/// | [`attempts`](Link::attempts) | 3 |
/// | [`memory`](Link::memory) | as long as in the tier |
/// | [`hot`](Link::hot) | four times as long as others |
/// | [`smear`](Link::smear) | 10 s |
/// | [`breaker`](Link::breaker) | the usual [`Breaker`] |
#[derive(Clone, Debug)]
#[must_use]
pub struct Link {
    pub(super) timeout: Duration,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    pub(super) attempts: u32,
    memory: Duration,
    hot: Option<Duration>,
    pub(super) smear: Duration,
    pub(super) breaker: Option<Breaker>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            timeout: Duration::from_millis(250),
            lease: Duration::from_secs(3),
            wait: Duration::from_secs(10),
            attempts: 3,
            memory: Duration::MAX,
            hot: None,
            smear: Duration::from_secs(10),
            breaker: None,
        }
    }
}

impl Link {
    /// When a call to the tier has failed.
    pub fn timeout(mut self, timeout: Duration) -> Link {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long the fleet waits for a node that does not say any more that it is loading. After each third of it that node
    /// renews it, and those who wait ask whether it still does.
    pub fn lease(mut self, lease: Duration) -> Link {
        self.lease = lease.max(Duration::from_millis(10));
        self
    }

    /// How long to wait for a load in another process before loading it here as well, within the load limit. Longer than the
    /// lease, or nobody waits for who comes after a node that died.
    pub fn wait(mut self, wait: Duration) -> Link {
        self.wait = wait;
        self
    }

    /// How many nodes may try one after another to load a key before all who wait are told that it failed.
    pub fn attempts(mut self, attempts: u32) -> Link {
        self.attempts = attempts.max(1);
        self
    }

    /// How long an entry is fresh in memory at most, before the tier is asked whether there is anything newer.
    pub fn memory(mut self, most: Duration) -> Link {
        self.memory = most;
        self
    }

    /// The same for [hot](super::CacheBuilder::hot) keys; four times as long as others unless told otherwise. A key that is read
    /// everywhere is asked for by every node, and mostly it has not changed. They hear of it if it has, and it lives no
    /// longer than in the tier in any case.
    pub fn hot(mut self, most: Duration) -> Link {
        self.hot = Some(most);
        self
    }

    /// How long an entry is fresh in memory at most, before the tier is asked again.
    pub(super) fn in_memory(&self, is_hot: impl FnOnce() -> bool) -> Duration {
        let hot = self.hot.unwrap_or(self.memory.saturating_mul(HOTTER)).max(self.memory);
        if hot > self.memory && is_hot() { hot } else { self.memory }
    }

    /// Over how long entries in memory are looked up again after news may have been missed.
    pub fn smear(mut self, smear: Duration) -> Link {
        self.smear = smear;
        self
    }

    /// What stands before the calls to the tier.
    pub fn breaker(mut self, breaker: Breaker) -> Link {
        self.breaker = Some(breaker);
        self
    }
}

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
    /// Changes that were never delivered, because there was no room to remember them.
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

type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, TierError>> + Send + 'a>>;

/// A tier behind a pointer; a call to one costs more than the boxes.
trait AnyTier<K, V>: Send + Sync {
    fn lookup<'a>(&'a self, key: &'a K, want: Want) -> Answering<'a, Lookup<V>>;
    fn lookup_many<'a>(&'a self, wanted: &'a [(K, Want)]) -> Answering<'a, Vec<Option<Lookup<V>>>>;
    fn fill<'a>(&'a self, key: &'a K, lease: Lease, stored: Stored<V>) -> Answering<'a, Filled>;
    fn deliver<'a>(&'a self, change: &'a Change<K, V>) -> Answering<'a, ()>;
    fn listen(&self) -> Feed<K>;
}

impl<K, V, T> AnyTier<K, V> for T
where
    K: Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    T: Tier<K, V>,
{
    fn lookup<'a>(&'a self, key: &'a K, want: Want) -> Answering<'a, Lookup<V>> {
        Box::pin(Tier::lookup(self, key, want))
    }

    /// It has failed if no key has an answer.
    fn lookup_many<'a>(&'a self, wanted: &'a [(K, Want)]) -> Answering<'a, Vec<Option<Lookup<V>>>> {
        Box::pin(async move {
            let answers = Tier::lookup_many(self, wanted).await;
            if answers.iter().all(Result::is_err) {
                return Err(TierError::Away);
            }
            Ok(answers.into_iter().map(Result::ok).collect())
        })
    }

    fn fill<'a>(&'a self, key: &'a K, lease: Lease, stored: Stored<V>) -> Answering<'a, Filled> {
        Box::pin(Tier::fill(self, key, lease, stored))
    }

    fn deliver<'a>(&'a self, change: &'a Change<K, V>) -> Answering<'a, ()> {
        Box::pin(async move {
            match change {
                Change::Put(key, stored) => self.put(key, stored.clone()).await,
                Change::Invalidate(key) => self.invalidate(key).await,
                Change::ExpireTag(tag, smear) => self.expire_tag(tag, *smear).await,
                Change::Fail(key, lease, fault) => self.fail(key, *lease, fault.clone()).await,
                Change::Renew(key, lease, time) => self.renew(key, *lease, *time).await.map(|_| ()),
            }
        })
    }

    fn listen(&self) -> Feed<K> {
        Tier::listen(self)
    }
}

/// What the tier is to be told, in this order.
pub(super) enum Change<K, V> {
    Put(K, Stored<V>),
    Invalidate(K),
    ExpireTag(Arc<str>, Duration),
    Fail(K, Lease, Fault),
    Renew(K, Lease, Duration),
}

impl<K, V> Change<K, V> {
    /// What the tier does not know the truth about until it was told of this.
    fn subject(&self) -> Option<Subject<K>>
    where
        K: Clone,
    {
        match self {
            Change::Put(key, _) | Change::Invalidate(key) => Some(Subject::Key(key.clone())),
            Change::ExpireTag(tag, _) => Some(Subject::Tag(Arc::clone(tag))),
            Change::Fail(..) | Change::Renew(..) => None,
        }
    }

    /// What is to be said when this could not be said at once; nothing, if it does not matter any more. A value that was put
    /// some time ago may not be the newest, so what remains of it is that there is another.
    fn late(self) -> Option<Change<K, V>> {
        match self {
            Change::Put(key, _) | Change::Invalidate(key) => Some(Change::Invalidate(key)),
            Change::ExpireTag(..) => Some(self),
            Change::Fail(..) | Change::Renew(..) => None,
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Subject<K> {
    Key(K),
    Tag(Arc<str>),
}

/// How many times as long as others hot entries are fresh in memory.
const HOTTER: u32 = 4;
/// How many changes are remembered while the tier is away.
const ROOM: usize = 10_000;

/// What is still to be delivered.
struct Outbox<K, V> {
    changes: VecDeque<Change<K, V>>,
    /// What the tier does not know the truth about yet, and how many changes of it are under way.
    pending: HashMap<Subject<K>, u32, MapHasher>,
    closed: bool,
    waker: Option<Waker>,
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

/// The lease of a load. Dropped unfilled, it says that the load failed.
pub(super) struct Holding<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    second: Arc<Second<K, V>>,
    key: K,
    /// Absent once it was used.
    lease: Option<Lease>,
    pub(super) why: &'static str,
    /// For how long a failure is remembered.
    pub(super) remember: Duration,
}

impl<K, V> Second<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new(env: &Env, tier: Tiered<K, V>) -> Arc<Second<K, V>> {
        let Tiered { tier, link } = tier;
        let pending = HashMap::with_hasher(env.hasher("cache/outbox"));
        let outbox = Outbox { changes: VecDeque::new(), pending, closed: false, waker: None };
        Arc::new(Second {
            env: env.clone(),
            rng: env.rng("cache/tier"),
            tier,
            breaker: link.breaker.clone().unwrap_or_else(|| Breaker::new(env)),
            link,
            outbox: Mutex::new(outbox),
            tally: TierTally::default(),
            lost: AtomicU64::new(0),
        })
    }

    /// One call to the tier, if the breaker allows it; no answer if it fails. What is owed is said in any case: whoever was
    /// given a lease while the breaker lets only some calls through, and then could not fill, would keep the fleet waiting.
    async fn call<T>(&self, owed: bool, call: Answering<'_, T>) -> Option<T> {
        let ask = Ask::new(&self.env);
        let permit = self.breaker.try_enter(&ask).ok();
        if permit.is_none() && !owed {
            self.count(&self.tally.refused, &Event::TierRefusal);
            return None;
        }
        let outcome = by(&self.env, Some(ask.at + self.link.timeout), call).await;
        let verdict = if matches!(outcome, Some(Ok(_))) { Verdict::Ok } else { Verdict::Fault };
        permit.settle(&verdict, Span { from: ask.at, to: self.env.now() });
        let answer = outcome.and_then(Result::ok);
        if answer.is_none() {
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
            wanted => self.call(false, self.tier.lookup_many(wanted)).await,
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
        let lookup = self.call(false, self.tier.lookup(key, self.want(sought))).await;
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
            let pushed = by(&self.env, Some((at + silence).min(give_up)), wait).await;
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

    /// Works, and keeps these leases meanwhile.
    pub(super) async fn during<'a, F: Future>(
        &self,
        holdings: impl Iterator<Item = &'a Holding<K, V>> + Clone,
        work: F,
    ) -> F::Output {
        let Second { env, link, .. } = self;
        let mut work = pin!(work);
        loop {
            let next = env.now() + link.lease / 3;
            if let Some(output) = by(env, Some(next), work.as_mut()).await {
                return output;
            }
            for Holding { key, lease, .. } in holdings.clone() {
                if let Some(lease) = lease {
                    self.tell(Change::Renew(key.clone(), *lease, link.lease));
                }
            }
        }
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

    /// Whether something was changed here that the tier has not been told of yet.
    fn does_not_know(&self, subjects: &[Subject<K>]) -> bool {
        let outbox = self.outbox.lock();
        !outbox.pending.is_empty() && subjects.iter().any(|subject| outbox.pending.contains_key(subject))
    }

    fn hold(self: &Arc<Self>, key: &K, lease: Lease) -> Holding<K, V> {
        self.count(&self.tally.leases, &Event::TierLease);
        Holding {
            second: Arc::clone(self),
            key: key.clone(),
            lease: Some(lease),
            why: "the load was dropped",
            remember: Duration::ZERO,
        }
    }

    /// Tells the tier something, in its turn.
    pub(super) fn tell(&self, change: Change<K, V>) {
        let mut outbox = self.outbox.lock();
        if outbox.closed {
            return;
        }
        let is_full = outbox.changes.len() >= ROOM;
        if is_full {
            let oldest = outbox.changes.pop_front().and_then(|oldest| oldest.subject());
            outbox.done(oldest.as_ref());
        }
        if let Some(subject) = change.subject() {
            *outbox.pending.entry(subject).or_default() += 1;
        }
        outbox.changes.push_back(change);
        let waker = outbox.waker.take();
        drop(outbox);
        if is_full {
            self.count(&self.tally.dropped, &Event::TierDropped);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
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

    /// The next change; `None` once there will be no more.
    async fn next_change(&self) -> Option<Change<K, V>> {
        poll_fn(|cx| {
            let mut outbox = self.outbox.lock();
            match outbox.changes.pop_front() {
                None if !outbox.closed => {
                    outbox.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                change => Poll::Ready(change),
            }
        })
        .await
    }

    /// Delivers what the tier is to be told, one after another. What cannot be delivered is tried again, later each time.
    async fn deliver(self: Arc<Self>) {
        let mut delays = Backoff::exponential(Duration::from_millis(100)).cap(Duration::from_secs(5)).delays();
        while let Some(change) = self.next_change().await {
            let subject = change.subject();
            let mut change = Some(change);
            while let Some(trying) = change.take() {
                let owed = matches!(trying, Change::Fail(..) | Change::Renew(..));
                if self.call(owed, self.tier.deliver(&trying)).await.is_some() {
                    delays.reset();
                    break;
                }
                if self.outbox.lock().closed {
                    break;
                }
                change = trying.late();
                if change.is_some() {
                    self.env.sleep(delays.next(&self.rng)).await;
                }
            }
            self.outbox.lock().done(subject.as_ref());
        }
    }
}

impl<K: Hash + Eq, V> Outbox<K, V> {
    /// A change of this is over.
    fn done(&mut self, subject: Option<&Subject<K>>) {
        let Some(subject) = subject else { return };
        if let Some(count) = self.pending.get_mut(subject) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(subject);
            }
        }
    }
}

impl<K, V> Holding<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Stores what was loaded; nothing, if the tier is away.
    pub(super) async fn fill(mut self, stored: Stored<V>) -> Option<Filled> {
        let lease = self.lease.take()?;
        let filled = self.second.call(true, self.second.tier.fill(&self.key, lease, stored)).await;
        match filled {
            Some(Filled::Kept) => {}
            Some(Filled::Fenced) => self.second.count(&self.second.tally.fenced, &Event::TierFenced),
            // The lease may still stand.
            None => {
                self.lease = Some(lease);
                self.why = "what was loaded could not be stored";
            }
        }
        filled
    }
}

impl<K, V> Drop for Holding<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let fault = Fault { why: self.why.into(), remember: self.remember, attempts: self.second.link.attempts };
        self.second.tell(Change::Fail(self.key.clone(), lease, fault));
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
    ears: Option<Task<()>>,
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
        let ears = env.can_spawn().then(|| {
            env.spawn_named("cache outbox", Arc::clone(&second).deliver()).detach();
            env.spawn_named("cache news", hear(second.tier.listen()))
        });
        Attached { second, ears }
    }
}

impl<K, V> Drop for Attached<K, V> {
    fn drop(&mut self) {
        if let Some(ears) = &self.ears {
            ears.abort();
        }
        let mut outbox = self.second.outbox.lock();
        outbox.closed = true;
        let waker = outbox.waker.take();
        drop(outbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
