//! A store of many nodes, each key on one of them: asked directly, or as the second tier of a cache.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Tick,
    tier::{Fault, Feed, Filled, Lease, Lookup, SharedTier, Stored, Tier, TierError, Want},
};
use parking_lot::Mutex;

use crate::{
    log::{Caller, Tap},
    service::{Plan, Service, Unserved},
    timeline::Timeline,
};

/// The nodes. Clones share.
#[derive(Clone)]
pub(super) struct Store {
    env: Env,
    nodes: Arc<Vec<Service>>,
    watched: u64,
    seen: Arc<Mutex<Timeline>>,
}

impl Store {
    /// So many nodes, which note when they were asked for one key in particular.
    pub(super) fn new(env: &Env, bin: Duration, nodes: u64, plan: Plan, watched: u64, tap: &Tap) -> Store {
        let nodes =
            (0..nodes.max(1)).map(|id| Service::tapped(&env.scope(id), "node", bin, plan, tap.clone())).collect();
        let seen = Arc::new(Mutex::new(Timeline::new(bin)));
        Store { env: env.clone(), nodes: Arc::new(nodes), watched, seen }
    }

    pub(super) fn nodes(&self) -> &[Service] {
        &self.nodes
    }

    /// When somebody asked for the key in particular.
    pub(super) fn watched(&self) -> Timeline {
        self.seen.lock().clone()
    }

    /// Which node has a key.
    pub(super) fn place(&self, key: u64) -> usize {
        usize::try_from(key % self.nodes.len() as u64).unwrap_or(0)
    }

    /// A server asks a node for a key.
    pub(super) async fn ask(&self, server: u64, key: u64, node: usize) -> Result<(), Unserved> {
        let is_watched = key == self.watched;
        if is_watched {
            self.seen.lock().record(self.env.now());
        }
        let caller = Caller::of(server, "/key").item(key).in_wave_if("hot-key", is_watched.then_some(0));
        self.nodes[node].call_from(caller).await
    }

    /// The store as a server's second tier, with what is in it: every question is one to the node that has the key.
    pub(super) fn tier(&self, server: u64, tier: SharedTier<u64, Tick>) -> Sharded {
        Sharded { server, tier, store: self.clone() }
    }
}

pub(super) struct Sharded {
    server: u64,
    tier: SharedTier<u64, Tick>,
    store: Store,
}

impl Tier<u64, Tick> for Sharded {
    async fn lookup(&self, key: &u64, want: Want) -> Result<Lookup<Tick>, TierError> {
        let answered = self.store.ask(self.server, *key, self.store.place(*key)).await;
        answered.map_err(|_| TierError::Refused("its line is full".into()))?;
        self.tier.lookup(key, want).await
    }

    async fn fill(&self, key: &u64, lease: Lease, stored: Stored<Tick>) -> Result<Filled, TierError> {
        self.tier.fill(key, lease, stored).await
    }

    async fn fail(&self, key: &u64, lease: Lease, fault: Fault) -> Result<(), TierError> {
        self.tier.fail(key, lease, fault).await
    }

    async fn renew(&self, key: &u64, lease: Lease, time: Duration) -> Result<Filled, TierError> {
        self.tier.renew(key, lease, time).await
    }

    async fn put(&self, key: &u64, stored: Stored<Tick>) -> Result<(), TierError> {
        self.tier.put(key, stored).await
    }

    async fn invalidate(&self, key: &u64) -> Result<(), TierError> {
        self.tier.invalidate(key).await
    }

    async fn expire_tag(&self, tag: &str, smear: Duration) -> Result<(), TierError> {
        self.tier.expire_tag(tag, smear).await
    }

    fn listen(&self) -> Feed<u64> {
        self.tier.listen()
    }
}
