//! A tier behind a pointer, so that its type is no parameter of the cache.

use std::{future::Future, pin::Pin};

use super::outbox::Change;
use crate::tier::{Feed, Filled, Lease, Lookup, Stored, Tier, TierError, Want};

pub(super) type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, TierError>> + Send + 'a>>;

/// A call to a tier costs more than the boxes. It begins when it is polled, where its panics are caught.
pub(super) trait AnyTier<K, V>: Send + Sync {
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
        Box::pin(async move { Tier::lookup(self, key, want).await })
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
        Box::pin(async move { Tier::fill(self, key, lease, stored).await })
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
