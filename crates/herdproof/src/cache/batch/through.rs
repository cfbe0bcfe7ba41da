//! A batch that asks the second tier first.
//!
//! Two nodes with overlapping batches are the hazard: each holds the lease of some keys and waits for the others. Were a batch
//! to load only when all its keys are settled, they would wait for each other. So it loads at once what it has a lease for,
//! and whatever it waits for comes by itself, or is loaded later with whatever else is due by then.

use std::{
    future::{Future, poll_fn},
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use super::Part;
use crate::{
    cache::{
        Inner,
        load::{Purpose, Ran},
        outcome::Load,
        second::{Found, Holding, Second, Seen},
        tiered::Ashore,
    },
    env::Tick,
    gate::Span,
    join::all,
};

/// A key that another process loads, and what comes of it.
type Following<K, V, E> = Pin<Box<dyn Future<Output = (Part<K, V, E>, Found<K, V>)> + Send>>;

/// One key that is to be loaded here.
struct Due<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    part: Part<K, V, E>,
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
        let from = self.env.now();
        let keys: Vec<_> = parts.iter().map(|part| (part.errand.key.clone(), part.errand.sought())).collect();
        let seen = second.look_many(&keys).await;
        let (mut due, mut trips, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (part, seen) in parts.into_iter().zip(seen) {
            match seen {
                Seen::Over(found) => due.extend(part.arrive(&second, found)),
                seen @ Seen::Wait(..) => waiting.push(part.follow(Arc::clone(&second), seen, from)),
            }
        }
        loop {
            if !due.is_empty() {
                let (cache, second, load) = (Arc::clone(&self), Arc::clone(&second), load.clone());
                trips.push(Box::pin(cache.carry_due(second, std::mem::take(&mut due), load)));
            }
            poll_fn(|cx| {
                trips.retain_mut(|trip| trip.as_mut().poll(cx).is_pending());
                waiting.retain_mut(|wait: &mut Following<K, V, E>| match wait.as_mut().poll(cx) {
                    Poll::Ready((part, found)) => {
                        due.extend(part.arrive(&second, found));
                        false
                    }
                    Poll::Pending => true,
                });
                let idle = due.is_empty() && !(trips.is_empty() && waiting.is_empty());
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
        let trip = self.trip(due.iter().map(|due| &due.part.errand));
        let keys = due.iter().map(|due| due.part.errand.key.clone()).collect();
        let load = async move { load(keys).await };
        let places: Vec<_> = due.iter().map(|due| due.part.errand.place).collect();
        let admitted = self.admit(trip.purpose, self.env.now(), trip.timeout, &places, load);
        let (ran, span) = second.during(due.iter().filter_map(|due| due.holding.as_ref()), admitted).await;
        let shares = self.share_out(due.iter().map(|due| &due.part.errand.key), ran);
        let ends = due.into_iter().zip(shares).map(|(due, ran)| due.depart(&second, ran, span));
        all(ends.collect()).await;
    }
}

impl<K, V, E> Part<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Waits for the load in another process.
    fn follow(self, second: Arc<Second<K, V>>, seen: Seen<K, V>, from: Tick) -> Following<K, V, E> {
        Box::pin(async move {
            let found = second.follow(&self.errand.key, self.errand.sought(), seen, from).await;
            (self, found)
        })
    }

    /// Lands it with what was found, unless it is to be loaded.
    fn arrive(mut self, second: &Second<K, V>, found: Found<K, V>) -> Option<Due<K, V, E>> {
        let mut ashore = match self.errand.purpose {
            Purpose::Miss => Ashore::Waiting(self.ticket.landing()),
            Purpose::Refresh | Purpose::Prime => Ashore::Nobody,
        };
        match self.errand.arrive(second, found, &mut ashore) {
            Ok(holding) => Some(Due { part: self, ashore, holding }),
            Err(loaded) => {
                self.ticket.land(loaded);
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
    /// To the tier and into memory with what was loaded.
    async fn depart(self, second: &Second<K, V>, ran: Ran<Load<V>, E>, span: Span) {
        let Due { part: Part { errand, ticket }, mut ashore, holding } = self;
        let loaded = errand.depart(second, holding, ran, span, &mut ashore).await;
        drop(ashore);
        ticket.land(loaded);
    }
}
