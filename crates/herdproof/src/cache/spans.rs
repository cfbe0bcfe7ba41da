//! What somebody who traces sees of a cache: its loads, and nothing else. A span for every hit would cost more than the hit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use crate::{
    cache::{Cache, Policy, Source},
    env::sim::Sim,
    tier::SharedTier,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// Notes the spans there have been, and how many of them somebody is in.
#[derive(Clone, Default)]
struct Seen {
    spans: Arc<Mutex<Vec<&'static str>>>,
    inside: Arc<AtomicU64>,
}

impl Seen {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.spans.lock())
    }
}

impl Subscriber for Seen {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.spans.lock();
        spans.push(span.metadata().name());
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.inside.fetch_add(1, Relaxed);
    }

    fn exit(&self, _: &Id) {
        self.inside.fetch_sub(1, Relaxed);
    }
}

#[test]
fn each_load_has_one_span_and_a_hit_has_none() {
    let seen = Seen::default();
    let inside = Arc::clone(&seen.inside);
    tracing::subscriber::with_default(seen.clone(), || {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let store = SharedTier::new(&env);
        let node = || Cache::builder(&env).policy(Policy::strict(SEC).grace(SEC)).tier(store.node()).build::<String>();
        let alone = Cache::builder(&env).policy(Policy::strict(SEC).grace(SEC)).build::<String>();
        let [one, other] = [node(), node()];
        let load = || {
            let (env, inside) = (env.clone(), Arc::clone(&inside));
            async move {
                env.sleep(MS).await;
                assert_eq!(inside.load(Relaxed), 1, "the load runs in its span");
                Ok(7_u32)
            }
        };
        for (what, cache) in [("alone", &alone), ("with a tier", &one)] {
            let crowd: Vec<_> = (0..10).map(|_| env.spawn(cache.get(&1, load))).collect();
            for get in crowd {
                assert!(sim.run(get).unwrap().is_ok());
            }
            assert_eq!(seen.take(), ["load"], "{what}: one load for ten callers");
            sim.run_until(env.now() + 10 * MS);
            for _ in 0..10 {
                assert_eq!(sim.run(cache.get(&1, load)).unwrap().source, Source::Memory);
            }
            assert!(seen.take().is_empty(), "{what}: hits");
            sim.run_until(env.now() + 1_100 * MS);
            assert!(sim.run(cache.get(&1, load)).unwrap().is_stale());
            sim.run_until(env.now() + 10 * MS);
            assert_eq!(seen.take(), ["load"], "{what}: a refresh");
            let batch = cache.get_many(&[1, 2, 3], |keys| async { Ok(keys.into_iter().map(|key| (key, key))) });
            assert_eq!(sim.run(batch).found.len(), 3);
            assert_eq!(seen.take(), ["load"], "{what}: a batch");
        }
        sim.run_until(env.now() + 10 * MS);
        assert_eq!(sim.run(other.get(&1, load)).unwrap().source, Source::Tier);
        assert!(seen.take().is_empty(), "what another node has loaded");
    });
    assert_eq!(inside.load(Relaxed), 0);
}
