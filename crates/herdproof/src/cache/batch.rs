//! Many keys with one load.
//!
//! An origin that can answer for a hundred keys at once should be asked once, not a hundred times. But a batch that goes
//! past the flights of its keys is a herd of its own: two pages that share ninety products load them twice, and beside
//! whoever loads one of them alone. Here each key of a batch is a flight of its own, and the batch lands them: it asks for
//! just those that nobody is loading, whoever comes for one of them later joins it, and each is kept, or not, by its own
//! policy and its own fence. With a second tier, so it is in the whole fleet; see [`through`].

mod through;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    fmt,
    future::Future,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use super::{
    Cache, Inner,
    call::{Call, Spanned, Started, spanned},
    fill::Loaded,
    get::Get,
    load::{Answer, Begun, Job, Purpose},
    lookup::{Due, Lookup},
    outcome::{GetError, Got, Load},
};
use crate::{
    env::{MapHasher, Tick},
    error::Panic,
    event::Event,
    gate::Span,
    inflight::{Chain, OwnedLead},
    sync::wait,
};

/// What came of many keys: each is in one of the three, once, in the order in which they were asked for.
#[derive(Debug)]
pub struct Batch<K, V, E> {
    /// Those that have a value.
    pub found: Vec<(K, Got<V>)>,
    /// Those of which there is no such thing.
    pub absent: Vec<K>,
    /// Those that could not be had.
    pub failed: Vec<(K, GetError<E>)>,
}

/// A future of many values, from [`Cache::get_many`].
///
/// What is there was looked up before this was made, and the load is under way whether or not this is polled. Dropping it
/// neither stops nor restarts the load.
#[must_use = "await it"]
pub struct GetMany<K, V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    /// Those without an answer yet.
    asked: VecDeque<(K, Get<V, E>)>,
    batch: Batch<K, V, E>,
}

/// One key of a load of many.
struct Part<K, V: Clone, E> {
    job: Job<K, V, E>,
    lead: OwnedLead<Loaded<V, E>, Infallible>,
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// The values of many keys, with one load at most. What is there is looked up before this returns; a key that is given
    /// twice counts once.
    ///
    /// `load` is called only if it has to be, with the keys that nobody is loading: those that are missing, and those that
    /// are served and due to be loaded again. It gives pairs of a key and a value, or a [`Load`]; a key it says nothing of is
    /// absent. It passes the cache's limit once, it must be over within the shortest of its keys' load timeouts, and if it
    /// fails or panics, all its keys have failed.
    ///
    /// With a second tier, it is called with those keys that are missing there too and that nobody in the fleet is loading.
    /// The others come from there, or from whoever loads them. Should that fail, they are loaded after all, by a clone of
    /// `load`.
    ///
    /// ```
    /// # use herdproof::{Cache, Env};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let prices: Cache<u32, u64> = Cache::builder(&Env::system()).build();
    /// prices.set(2, 200);
    /// let batch = prices
    ///     .get_many(&[1, 2, 3], |missing| async move {
    ///         assert_eq!(missing, [1, 3]);
    ///         Ok(vec![(1, 100_u64)])
    ///     })
    ///     .await;
    /// let found: Vec<_> = batch.found.iter().map(|(key, got)| (*key, got.value)).collect();
    /// assert_eq!((found, batch.absent), (vec![(1, 100), (2, 200)], vec![3]));
    /// # });
    /// ```
    pub fn get_many<F, L, B, T>(&self, keys: &[K], load: L) -> GetMany<K, V, E>
    where
        F: Future<Output = Result<B, E>> + Send + 'static,
        L: FnOnce(Vec<K>) -> F + Clone + Send + 'static,
        B: IntoIterator<Item = (K, T)> + 'static,
        T: Into<Load<V>> + 'static,
    {
        let cache = &self.0;
        let now = cache.env().now();
        let mut parts = Vec::new();
        let mut seen = HashSet::with_capacity_and_hasher(keys.len(), cache.places.clone());
        let asked = keys.iter().filter(|key| seen.insert(*key));
        let asked = asked.map(|key| (key.clone(), cache.ask(key, now, &mut parts))).collect();
        if !parts.is_empty() {
            cache.carry(parts, now, load);
        }
        GetMany { asked, batch: Batch { found: Vec::new(), absent: Vec::new(), failed: Vec::new() } }
    }
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// One key's question. If it is for this batch to load it, it becomes one of its parts.
    fn ask(self: &Arc<Self>, key: &K, now: Tick, parts: &mut Vec<Part<K, V, E>>) -> Get<V, E> {
        let hash = self.engine.hash(key);
        let found = self.engine.get(hash, key);
        match found.map_or(Lookup::Load(None), |found| self.decide(key, found, now)) {
            Lookup::Known(get) => get,
            Lookup::Refresh(got, due) => {
                let policy = self.own_policy(key);
                if let Some((mut lead, prior)) = self.begin_refresh(hash, key, policy.as_deref(), due) {
                    let job = self.job(key.clone(), lead.place(), policy, Purpose::Refresh, now, prior);
                    parts.push(Part { job, lead: lead.own() });
                }
                Get::hit(got)
            }
            Lookup::Load(fallback) => {
                let policy = self.own_policy(key);
                let patience = self.patience(policy.as_deref(), now);
                let flight = match self.begin(hash, key, policy.as_deref(), Due::now(now)) {
                    Begun::Known(found) => match self.decide(key, found, now) {
                        Lookup::Known(get) => return get,
                        Lookup::Refresh(got, _) => return Get::hit(got),
                        // One of its tags was expired a moment ago.
                        Lookup::Load(_) => return self.ask(key, now, parts),
                    },
                    Begun::Follow(flight) => {
                        self.count_miss();
                        self.count_join(&flight);
                        flight
                    }
                    Begun::Lead(mut lead, prior) => {
                        self.count_miss();
                        let job = self.job(key.clone(), lead.place(), policy, Purpose::Miss, now, prior);
                        let lead = lead.own();
                        let flight = lead.follow();
                        parts.push(Part { job, lead });
                        flight
                    }
                };
                Get::waiting(self.env(), flight, fallback, patience)
            }
        }
    }

    /// Loads all these with one load: polled once in place, and only if it is not ready then, run as a task.
    fn carry<F, L, B, T>(self: &Arc<Self>, parts: Vec<Part<K, V, E>>, asked: Tick, load: L)
    where
        F: Future<Output = Result<B, E>> + Send + 'static,
        L: FnOnce(Vec<K>) -> F + Clone + Send + 'static,
        B: IntoIterator<Item = (K, T)> + 'static,
        T: Into<Load<V>> + 'static,
    {
        let chain = Chain::around(parts.iter().map(|part| part.lead.id()));
        let cache = Arc::clone(self);
        if let Some(second) = &self.second {
            self.set_out(chain.run(cache.carry_through(Arc::clone(second), parts, load)));
            return;
        }
        self.set_out(chain.run(async move {
            let keys = parts.iter().map(|part| part.job.key.clone()).collect();
            let call = cache.call_of(parts.iter().map(|part| &part.job), asked, Started::by(|| load(keys)));
            let places: Vec<_> = parts.iter().map(|part| part.job.place).collect();
            let (answer, span) = cache.call(&places, call).await;
            cache.deliver(parts, answer, span);
        }));
    }

    fn set_out(&self, carried: impl Future<Output = ()> + Send + 'static) {
        let mut carried = Box::pin(carried);
        let first = || carried.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if self.env().poll_in_place(first).is_pending() {
            self.env().spawn_named("cache batch", carried).detach();
        }
    }

    /// One call of the origin begins, for all of these.
    fn call_of<'a, F>(
        &self,
        jobs: impl Iterator<Item = &'a Job<K, V, E>> + Clone,
        asked: Tick,
        load: F,
    ) -> Call<Spanned<F>>
    where
        K: 'a,
        V: 'a,
        E: 'a,
    {
        let awaited = jobs.clone().any(|job| job.purpose == Purpose::Miss);
        let purpose = if awaited { Purpose::Miss } else { Purpose::Refresh };
        self.env().tell(&Event::Load);
        if purpose == Purpose::Refresh {
            self.count_refresh();
        }
        let timeout = jobs.map(|job| job.policy(self).load_timeout).min().unwrap_or_default();
        Call::new(purpose, asked, timeout, spanned(load))
    }

    /// Gives each its part.
    fn deliver<B, T>(&self, parts: Vec<Part<K, V, E>>, answer: Answer<B, E>, span: Span)
    where
        B: IntoIterator<Item = (K, T)>,
        T: Into<Load<V>>,
    {
        let answers = self.share_out(parts.iter().map(|part| &part.job.key), answer);
        for (Part { job, lead }, answer) in parts.into_iter().zip(answers) {
            // What panics here (a clone, the drop of what was evicted) is of one key.
            let fill = || {
                let outcome = self.outcome(&job, answer, span);
                self.fill(job, outcome)
            };
            let panicked = |payload| Loaded::Panicked(Arc::new(Panic::new(payload)));
            lead.land(catch_unwind(AssertUnwindSafe(fill)).unwrap_or_else(panicked));
        }
    }

    /// What one answer means for each of these keys.
    fn share_out<'a, B, T>(&self, keys: impl Iterator<Item = &'a K>, answer: Answer<B, E>) -> Vec<Answer<Load<V>, E>>
    where
        B: IntoIterator<Item = (K, T)>,
        T: Into<Load<V>>,
        K: 'a,
    {
        let mut found: HashMap<K, T, MapHasher> = HashMap::with_hasher(self.places.clone());
        let answer = match answer {
            Answer::Gave(pairs) => match catch_unwind(AssertUnwindSafe(|| found.extend(pairs))) {
                Ok(()) => Answer::Gave(()),
                Err(payload) => self.panicked(payload),
            },
            failed => failed.map(drop),
        };
        keys.map(|key| answer.clone().map(|()| found.remove(key).map_or(Load::Absent(None), Into::into))).collect()
    }
}

impl<K, V, E> GetMany<K, V, E>
where
    K: Unpin,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Waits no longer than until this tick; what is not there by then has failed with [`GetError::Deadline`], or is what
    /// is kept for errors. The load goes on.
    pub fn by(mut self, deadline: Tick) -> GetMany<K, V, E> {
        self.asked = self.asked.into_iter().map(|(key, get)| (key, get.by(deadline))).collect();
        self
    }

    /// Waits with the whole thread; for threads, not for tasks, and not in a simulation.
    ///
    /// # Panics
    ///
    /// If it has to wait on a thread that runs tasks of a tokio runtime, where it could wait for itself: inside `block_on` or a
    /// task, other than within `spawn_blocking` or `block_in_place`.
    #[track_caller]
    pub fn wait(self) -> Batch<K, V, E> {
        wait(self)
    }
}

impl<K, V, E> Future for GetMany<K, V, E>
where
    K: Unpin,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Output = Batch<K, V, E>;

    /// One after the other: it is over when the last is, and until then one waker is enough.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Batch<K, V, E>> {
        let GetMany { asked, batch } = self.get_mut();
        let Batch { found, absent, failed } = batch;
        while let Some((_, get)) = asked.front_mut() {
            let answer = ready!(Pin::new(get).poll(cx));
            let Some((key, _)) = asked.pop_front() else { break };
            match answer {
                Ok(got) => found.push((key, got)),
                Err(GetError::Absent) => absent.push(key),
                Err(error) => failed.push((key, error)),
            }
        }
        let (found, absent, failed) = (std::mem::take(found), std::mem::take(absent), std::mem::take(failed));
        Poll::Ready(Batch { found, absent, failed })
    }
}

// Values are moved, never pinned.
impl<K, V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Unpin for GetMany<K, V, E> {}

impl<K, V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> fmt::Debug for GetMany<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetMany").field("unanswered", &self.asked.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
