//! The lease of a load: kept while the load goes on, filled when it ends, given up if it does not.

use std::{future::Future, hash::Hash, pin::pin, sync::Arc, time::Duration};

use super::{Second, outbox::Change};
use crate::{
    event::Event,
    tier::{Fault, Filled, Lease, Stored},
    timeout::by,
};

/// The lease of a load. Dropped unfilled, it says that the load failed.
pub(in crate::cache) struct Holding<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    second: Arc<Second<K, V>>,
    key: K,
    /// Absent once it was used.
    lease: Option<Lease>,
    pub(in crate::cache) why: &'static str,
    /// For how long a failure is remembered.
    pub(in crate::cache) remember: Duration,
}

impl<K, V> Second<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn hold(self: &Arc<Self>, key: &K, lease: Lease) -> Holding<K, V> {
        self.count(&self.tally.leases, &Event::TierLease);
        Holding {
            second: Arc::clone(self),
            key: key.clone(),
            lease: Some(lease),
            why: "the load was dropped",
            remember: Duration::ZERO,
        }
    }

    /// Works, and keeps these leases meanwhile.
    pub(in crate::cache) async fn during<'a, F: Future>(
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
}

impl<K, V> Holding<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Stores what was loaded; nothing, if the tier is away.
    pub(in crate::cache) async fn fill(mut self, stored: Stored<V>) -> Option<Filled> {
        let lease = self.lease.take()?;
        let filled = self.second.call(true, self.second.tier.fill(&self.key, lease, stored)).await.ok();
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
