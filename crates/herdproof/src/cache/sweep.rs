//! Takes away what is past its time, so that it takes no room from what is not.
//!
//! Nobody who asks needs this: they see themselves that an entry is past its time. It goes through the entries one by one,
//! a few at a time, and holds a lock for no longer than a lookup does.

use std::{
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    Inner,
    entry::{Phase, scaled},
    stats::count,
};
use crate::{env::Env, error::quietly};

/// How many entries are looked at before others get a turn.
const AT_ONCE: usize = 256;
const TURN: Duration = Duration::from_millis(1);

/// Sweeps every so often, for as long as the cache is there.
pub(super) async fn sweep<K, V, E>(env: Env, cache: Weak<Inner<K, V, E>>, every: Duration)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    let rng = env.rng("cache/sweep");
    loop {
        // Not all caches of a process at once.
        env.sleep(scaled(every, 0.75 + 0.5 * rng.unit())).await;
        let Some(cache) = cache.upgrade() else { return };
        pass(&env, &cache).await;
    }
}

async fn pass<K, V, E>(env: &Env, cache: &Arc<Inner<K, V, E>>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    let mut entries = cache.engine.iter();
    loop {
        let now = env.now();
        let mut seen = 0;
        for (key, life) in entries.by_ref().take(AT_ONCE) {
            seen += 1;
            // A value that panics when it is dropped, or a policy that panics, concerns this key alone.
            quietly(|| {
                let keep = cache.policy(cache.own_policy(&key).as_deref()).keep;
                let gone = |life: super::entry::Life| now >= life.look_at && life.phase(now, keep) == Phase::Gone;
                let removed = if gone(life) { cache.engine.remove_if(&key, |entry| gone(entry.life())) } else { None };
                if removed.is_some() {
                    count(&cache.tally.swept);
                }
            });
        }
        if seen < AT_ONCE {
            return;
        }
        env.sleep(TURN).await;
    }
}
