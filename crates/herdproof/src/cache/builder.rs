//! How a cache is made.

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{
    AnyError, Cache, Inner, Policies,
    admission::Admission,
    engine::{Engine, Size},
    entry::Terms,
    hot::Sketch,
    news,
    policy::Policy,
    s3_fifo::Weigh,
    second::{Attached, Link, Second, Tiered},
    stats::Tally,
    sweep,
    tags::Tags,
};
use crate::{
    env::Env,
    gate::{Gate, PermitOf},
    inflight::{Abandon, Settings},
    tier::Tier,
};

/// How a [`Cache`] is made.
#[must_use]
pub struct CacheBuilder<K, V> {
    pub(super) env: Env,
    size: Size,
    weigh: Option<Weigh<K, V>>,
    policy: Policy,
    policies: Option<Policies<K>>,
    limit: Option<Arc<dyn Admission>>,
    tier: Option<Tiered<K, V>>,
    max_followers: u32,
    sweep: Duration,
    hot: Option<f64>,
}

impl<K, V> CacheBuilder<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// How many entries there may be, one at least. Default: 10,000.
    pub fn capacity(mut self, entries: usize) -> Self {
        self.size.entries = entries;
        self.size.weight = entries as u64;
        self.weigh = None;
        self
    }

    /// What all entries may weigh, in bytes say, how many of them are expected, and how one is weighed: its key, and its value if
    /// it has one. What is absent and what failed has none, and counts as 64 at least; its key is as large as its caller chose.
    ///
    /// An entry is weighed once, before it is put in. What a value grows by later is not counted.
    ///
    /// What weighs more than its shard has room for is not kept; [`Stats::too_heavy`](super::Stats::too_heavy) counts that. A cache that
    /// expects a thousand entries or more has up to sixteen shards, so that is about a sixteenth of the whole; with fewer there are
    /// fewer shards.
    pub fn weighed(
        mut self,
        capacity: u64,
        entries: usize,
        weigh: impl Fn(&K, Option<&V>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.size.entries = entries;
        self.size.weight = capacity;
        self.weigh = Some(Arc::new(weigh));
        self
    }

    /// What holds for all entries; fresh for a minute unless told otherwise.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// What holds for some entries: asked before each load, and where it has no answer the policy for all holds.
    pub fn policies(mut self, policies: impl Fn(&K) -> Option<Policy> + Send + Sync + 'static) -> Self {
        self.policies = Some(Box::new(policies));
        self
    }

    /// What every load has to pass, whatever its key: a [`Bulkhead`](crate::limit::Bulkhead), say. Loads that somebody waits
    /// for come with normal priority, refreshes as what can be shed.
    pub fn load_limit<G>(mut self, gate: G) -> Self
    where
        G: Gate + 'static,
        PermitOf<G>: 'static,
    {
        self.limit = Some(Arc::new(gate));
        self
    }

    /// What is asked before anything is loaded, and given what was: a store that other caches share. Then one of them loads,
    /// and what is set, invalidated or expired in one is heard by the others. Needs a runtime.
    ///
    /// While the store is away, everything goes on without it. A load's future is made before it is known whether it is
    /// needed, and dropped unpolled if the store has the value.
    pub fn tier(self, tier: impl Tier<K, V>) -> Self {
        self.tier_with(tier, Link::default())
    }

    /// As [`tier`](CacheBuilder::tier), used as told.
    pub fn tier_with(mut self, tier: impl Tier<K, V>, link: Link) -> Self {
        self.tier = Some(Tiered::new(tier, link));
        self
    }

    /// How many callers may wait for one key beside the first; a million unless told otherwise.
    pub fn max_followers(mut self, most: u32) -> Self {
        self.max_followers = most;
        self
    }

    /// How often what is past its time is taken away; about once a minute unless told otherwise.
    pub fn sweep(mut self, every: Duration) -> Self {
        self.sweep = every.max(Duration::from_millis(1));
        self
    }

    /// Watches for hot keys: those with at least this share of all hits, a hundredth at the least. Not watched for unless
    /// told; see [`hot_keys`](Cache::hot_keys).
    pub fn hot(mut self, share: f64) -> Self {
        self.hot = Some(share);
        self
    }

    /// The cache. Its sweeper is a task; where there is no runtime, there is none, and entries make room when it is needed.
    pub fn build<E: Send + Sync + 'static>(self) -> Cache<K, V, E> {
        let CacheBuilder { env, size, weigh, policy, policies, limit, tier, max_followers, sweep, hot } = self;
        // A load goes on without its callers, for as long as it may take; it has its own timeout.
        let abandon = Abandon::Finish { within: Duration::from_secs(24 * 3600) };
        let cache = Arc::new(Inner {
            rng: env.rng("cache"),
            lives: env.rng("cache/lives"),
            places: env.hasher("cache/places"),
            terms: Terms::of(&policy),
            policy,
            policies,
            engine: Engine::new(&env, size, weigh),
            tags: Tags::new(&env),
            limit,
            queued: Arc::default(),
            second: tier.map(|tier| Second::new(&env, tier)),
            attached: OnceLock::new(),
            tally: Tally::new(),
            hot: hot.map(Sketch::new),
            settings: Settings::new(env.clone(), abandon, max_followers),
        });
        if let Some(second) = &cache.second {
            let (weak, smear) = (Arc::downgrade(&cache), second.link.smear);
            cache.attached.get_or_init(|| Attached::new(Arc::clone(second), |feed| news::hear(weak, feed, smear)));
        }
        if env.can_spawn() {
            env.spawn_named("cache sweeper", sweep::sweep(env.clone(), Arc::downgrade(&cache), sweep)).detach();
        }
        Cache(cache)
    }
}

impl<K, V> Cache<K, V, AnyError>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// A cache in the making.
    pub fn builder(env: &Env) -> CacheBuilder<K, V> {
        CacheBuilder {
            env: env.clone(),
            size: Size { entries: 10_000, weight: 10_000, shards: 16 },
            weigh: None,
            policy: Policy::default(),
            policies: None,
            limit: None,
            tier: None,
            max_followers: 1_000_000,
            sweep: Duration::from_secs(60),
            hot: None,
        }
    }
}

impl<K, V> fmt::Debug for CacheBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheBuilder { size, policy, .. } = self;
        f.debug_struct("CacheBuilder").field("size", size).field("policy", policy).finish_non_exhaustive()
    }
}
