//! Loads that borrow.
//!
//! A load that is to outlive the caller that began it cannot borrow from that caller. Where it must borrow, the caller runs
//! it itself, and if that caller leaves the load is lost: one of the others begins its own from the start. That is what
//! most singleflight libraries do always, and with a slow origin and impatient callers it is how a herd grows; use
//! [`Group`] where the load can be `'static`.

use std::{
    future::{Future, poll_fn},
    hash::Hash,
    pin::pin,
};

use super::{FlightError, Group, GroupBuilder, Landed, Stats};
use crate::env::Env;

/// Loads in progress, one for each key, each run by the caller that began it.
///
/// ```
/// use herdproof::{Env, flight::LocalGroup};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let group: LocalGroup<u32, usize, ()> = LocalGroup::new(&Env::system());
/// let text = String::from("borrowed, not moved");
/// let landed = group.run(7, || async { Ok(text.len()) }).await.unwrap();
/// assert_eq!(landed.value, text.len());
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct LocalGroup<K, V, E>(Group<K, V, E>);

impl<K, V, E> LocalGroup<K, V, E>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// A group with the usual settings.
    pub fn new(env: &Env) -> LocalGroup<K, V, E> {
        LocalGroup::build(Group::builder(env))
    }

    /// A group with these settings. What becomes of an abandoned load is not among them: it is lost.
    pub fn build(settings: GroupBuilder) -> LocalGroup<K, V, E> {
        LocalGroup(settings.build())
    }

    /// Shares the load of this key, or runs it. If the caller that runs it is dropped, one of those who wait runs its own
    /// load instead, from the start.
    pub async fn run<F, L>(&self, key: K, load: L) -> Result<Landed<V>, FlightError<E>>
    where
        F: Future<Output = Result<V, E>>,
        L: FnOnce() -> F,
    {
        let mut key = key;
        let mut lead = loop {
            key = match self.0.lead(key) {
                Ok(lead) => break lead,
                Err((flight, key)) => match flight.await {
                    // The caller that ran the load has left.
                    Err(FlightError::Abandoned) => key,
                    answer => return answer,
                },
            };
        };
        let mut load = pin!(async { load().await });
        let ending = poll_fn(|cx| lead.poll_inside(load.as_mut(), cx)).await;
        lead.end(ending).await
    }

    /// How much was shared.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}
