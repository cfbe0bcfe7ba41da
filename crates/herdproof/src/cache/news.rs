//! What other processes have changed, and what may have been missed of it.

use std::{
    hash::{BuildHasher, Hash},
    sync::Weak,
    time::Duration,
};

use super::{Inner, entry::Entry};
use crate::{
    env::nanos,
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
        match news {
            News::Changed(key) => drop(cache.engine.remove(&key)),
            News::TagExpired { tag, smear } => cache.tags.expire(cache.tags.tag(&tag), || cache.env.now(), smear),
            News::Lost => look_again(&cache, smear).await,
        }
    }
}

/// Something may have changed that nobody said. Every entry is looked up again before it is taken for fresh, each at its own
/// moment: to drop them all would be a herd at the tier, or at the origin behind it.
async fn look_again<K, V, E>(cache: &Inner<K, V, E>, smear: Duration)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    let from = cache.env.now();
    let mut entries = cache.engine.iter();
    loop {
        let mut seen = 0;
        for (key, _) in entries.by_ref().take(AT_ONCE) {
            seen += 1;
            let place = (u128::from(cache.places.hash_one(&key)) * u128::from(nanos(smear))) >> 64;
            let at = from + Duration::from_nanos(u64::try_from(place).unwrap_or(u64::MAX));
            cache.engine.update(&key, |entry| {
                let life = entry.life();
                if life.born() < from && at < life.fresh_until {
                    *entry = Entry::new(life.expire(at), entry.clone().into_content());
                }
            });
        }
        if seen < AT_ONCE {
            return;
        }
        cache.env.sleep(TURN).await;
    }
}
