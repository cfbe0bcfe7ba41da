//! A batch that asks the second tier first.
//!
//! Two nodes with overlapping batches are the hazard: each holds the lease of some keys and waits for the others. Were a batch
//! to load only when all its keys are settled, they would wait for each other. So it loads at once what it has a lease for,
//! and whatever it waits for comes by itself, or is loaded later with whatever else is due by then.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use super::Part;
use crate::{
    cache::{
        Inner,
        fill::Loaded,
        load::{Answer, Purpose},
        outcome::Load,
        second::{Found, Holding, Second, Seen},
        tiered::{Ashore, Through},
    },
    env::Tick,
    error::{Panic, caught},
    gate::Span,
    inflight::OwnedLead,
    join::all,
};

/// A key that another process loads, and what comes of it.
type Following<K, V, E> = Pin<Box<dyn Future<Output = (Key<K, V, E>, Found<K, V>)> + Send>>;

/// One key of the batch.
struct Key<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    through: Through<K, V, E>,
    lead: OwnedLead<Loaded<V, E>, Infallible>,
}

/// One key that is to be loaded here.
struct Due<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    key: Key<K, V, E>,
    ashore: Ashore<V, E>,
    holding: Option<Holding<K, V>>,
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Takes what the tier has, loads what it has not, and waits for what others are loading.
    pub(super) async fn carry_through<F, L, B, T>(
        self: Arc<Self>,
        second: Arc<Second<K, V>>,
        parts: Vec<Part<K, V, E>>,
        load: L,
    ) where
        F: Future<Output = Result<B, E>> + Send + 'static,
        L: FnOnce(Vec<K>) -> F + Clone + Send + 'static,
        B: IntoIterator<Item = (K, T)> + 'static,
        T: Into<Load<V>>,
    {
        let from = self.env().now();
        let keys: Vec<_> = parts
            .into_iter()
            .map(|Part { job, lead }| {
                let (cache, second) = (Arc::clone(&self), Arc::clone(&second));
                Key { through: Through { cache, second, job }, lead }
            })
            .collect();
        let sought: Vec<_> = keys.iter().map(|key| (key.through.job.key.clone(), key.through.sought())).collect();
        let seen = second.look_many(&sought).await;
        let (mut due, mut calls, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (key, seen) in keys.into_iter().zip(seen) {
            match seen {
                Seen::Over(found) => due.extend(key.arrive(found)),
                seen @ Seen::Wait(..) => waiting.push(key.follow(seen, from)),
            }
        }
        loop {
            if !due.is_empty() {
                let (cache, second, load) = (Arc::clone(&self), Arc::clone(&second), load.clone());
                calls.push(Box::pin(cache.carry_due(second, std::mem::take(&mut due), load)));
            }
            poll_fn(|cx| {
                calls.retain_mut(|call| call.as_mut().poll(cx).is_pending());
                waiting.retain_mut(|wait: &mut Following<K, V, E>| match wait.as_mut().poll(cx) {
                    Poll::Ready((key, found)) => {
                        due.extend(key.arrive(found));
                        false
                    }
                    Poll::Pending => true,
                });
                let idle = due.is_empty() && !(calls.is_empty() && waiting.is_empty());
                if idle { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            if due.is_empty() {
                return;
            }
        }
    }

    /// Loads all these with one load, and gives it to the tier.
    async fn carry_due<F, L, B, T>(self: Arc<Self>, second: Arc<Second<K, V>>, due: Vec<Due<K, V, E>>, load: L)
    where
        F: Future<Output = Result<B, E>> + Send + 'static,
        L: FnOnce(Vec<K>) -> F + Send + 'static,
        B: IntoIterator<Item = (K, T)> + 'static,
        T: Into<Load<V>>,
    {
        let keys = due.iter().map(|due| due.key.through.job.key.clone()).collect();
        let load = async move { load(keys).await };
        let call = self.call_of(due.iter().map(|due| &due.key.through.job), self.env().now(), load);
        let places: Vec<_> = due.iter().map(|due| due.key.through.job.place).collect();
        let holdings = due.iter().filter_map(|due| due.holding.as_ref());
        let (answer, span) = second.during(holdings, self.call(&places, call)).await;
        let answers = self.share_out(due.iter().map(|due| &due.key.through.job.key), answer);
        let ends = due.into_iter().zip(answers).map(|(due, answer)| due.depart(answer, span));
        all(ends.collect()).await;
    }
}

impl<K, V, E> Key<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Waits for the load in another process.
    fn follow(self, seen: Seen<K, V>, from: Tick) -> Following<K, V, E> {
        Box::pin(async move {
            let Through { second, job, .. } = &self.through;
            let found = second.follow(&job.key, self.through.sought(), seen, from).await;
            (self, found)
        })
    }

    /// Lands it with what was found, unless it is to be loaded.
    fn arrive(mut self, found: Found<K, V>) -> Option<Due<K, V, E>> {
        let mut ashore = match self.through.job.purpose {
            Purpose::Miss => Ashore::Waiting(self.lead.landing()),
            Purpose::Refresh | Purpose::Prime => Ashore::Nobody,
        };
        let arrived = catch_unwind(AssertUnwindSafe(|| self.through.arrive(found, &mut ashore)));
        match arrived.unwrap_or_else(|payload| Err(Loaded::Panicked(Arc::new(Panic::new(payload))))) {
            Ok(holding) => Some(Due { key: self, ashore, holding }),
            Err(loaded) => {
                self.lead.land(loaded);
                None
            }
        }
    }
}

impl<K, V, E> Due<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// To the tier and into memory with what was loaded. What panics on the way is of one key.
    async fn depart(self, answer: Answer<Load<V>, E>, span: Span) {
        let Due { key: Key { through, lead }, mut ashore, holding } = self;
        let loaded = caught(through.depart(holding, answer, span, &mut ashore)).await;
        drop(ashore);
        lead.land(loaded.unwrap_or_else(|panic| Loaded::Panicked(Arc::new(panic))));
    }
}
