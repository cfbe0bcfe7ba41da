//! What other processes have changed, and what may have been missed of it.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{
    Inner,
    entry::{Entry, Other},
};
use crate::{
    env::{Tick, below, nanos},
    error::{caught, quietly},
    tier::{Feed, News},
};

/// How many entries are looked at before others get a turn.
const AT_ONCE: usize = 256;
const TURN: Duration = Duration::from_millis(1);

/// Listens for as long as the cache is there.
pub(super) async fn hear<K, V, E>(cache: Weak<Inner<K, V, E>>, mut feed: Feed<K>, smear: Duration)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    while let Some(news) = feed.next().await {
        let Some(cache) = cache.upgrade() else { return };
        // A value that panics when it is dropped has been removed before, and what comes after it is to be heard.
        drop(caught(heard(&cache, news, smear)).await);
    }
}

async fn heard<K, V, E>(cache: &Inner<K, V, E>, news: News<K>, smear: Duration)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    match news {
        News::Changed(key) => drop(cache.engine.remove(&key)),
        News::TagExpired { tag, smear } => cache.tags.expire(cache.tags.tag(&tag), || cache.env().now(), smear),
        News::Lost => {
            let from = cache.env().now();
            if let Some(second) = &cache.second {
                // Before any entry is looked at: what is put in from here on sees it under the lock of its shard.
                second.lost.store(from.as_nanos(), Relaxed);
            }
            look_again(cache, from, smear).await;
        }
    }
}

/// Something may have changed that nobody said. Every entry is looked up again before it is taken for fresh, each at its own
/// moment: to drop them all would be a herd at the tier, or at the origin behind it.
async fn look_again<K, V, E>(cache: &Inner<K, V, E>, from: Tick, smear: Duration)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    let mut entries = cache.engine.iter();
    loop {
        let mut seen = 0;
        for (key, _) in entries.by_ref().take(AT_ONCE) {
            seen += 1;
            let at = moment(cache, &key, from, smear);
            let expire = || cache.engine.update(&key, |entry| (entry.life().born() < from).then(|| entry.expire(at)));
            quietly(|| drop(expire()));
        }
        if seen < AT_ONCE {
            return;
        }
        cache.env().sleep(TURN).await;
    }
}

/// When an entry of which news may have been missed until then is looked up again.
fn moment<K, V, E>(cache: &Inner<K, V, E>, key: &K, from: Tick, smear: Duration) -> Tick
where
    K: Hash,
{
    from + Duration::from_nanos(below(cache.places.hash_one(key), nanos(smear)))
}

impl<K, V, E> Inner<K, V, E>
where
    K: Hash,
    V: Clone,
{
    /// What was under way while news were missed may have been changed by then, and nobody said so: it is looked up again, as
    /// are all that were there. To be called under the lock of its shard; what comes back is to be dropped without it.
    #[must_use]
    pub(super) fn doubt(&self, key: &K, entry: &mut Entry<V, E>, begun: Tick) -> Option<Arc<Other<V, E>>> {
        let second = self.second.as_ref()?;
        let lost = Tick::from_nanos(second.lost.load(Relaxed));
        let is_doubtful = begun <= lost && lost > Tick::ZERO;
        if is_doubtful { entry.expire(moment(self, key, lost, second.link.smear)) } else { None }
    }
}
