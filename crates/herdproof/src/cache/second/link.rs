//! How a cache uses its second tier.

use std::time::Duration;

use crate::breaker::Breaker;

/// How many times as long as others hot entries are fresh in memory.
const HOTTER: u32 = 4;

/// How a cache uses its second tier; for [`CacheBuilder::tier_with`](crate::cache::CacheBuilder::tier_with).
///
/// | | default |
/// |---|---|
/// | [`timeout`](Link::timeout) | 250 ms |
/// | [`lease`](Link::lease) | 3 s, renewed while the load goes on |
/// | [`wait`](Link::wait) | 10 s |
/// | [`attempts`](Link::attempts) | 3 |
/// | [`memory`](Link::memory) | as long as in the tier |
/// | [`hot`](Link::hot) | four times as long as others |
/// | [`smear`](Link::smear) | 10 s |
/// | [`breaker`](Link::breaker) | the usual [`Breaker`] |
#[derive(Clone, Debug)]
#[must_use]
pub struct Link {
    pub(in crate::cache) timeout: Duration,
    pub(in crate::cache) lease: Duration,
    pub(in crate::cache) wait: Duration,
    pub(in crate::cache) attempts: u32,
    memory: Duration,
    hot: Option<Duration>,
    pub(in crate::cache) smear: Duration,
    pub(in crate::cache) breaker: Option<Breaker>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            timeout: Duration::from_millis(250),
            lease: Duration::from_secs(3),
            wait: Duration::from_secs(10),
            attempts: 3,
            memory: Duration::MAX,
            hot: None,
            smear: Duration::from_secs(10),
            breaker: None,
        }
    }
}

impl Link {
    /// When a call to the tier has failed.
    pub fn timeout(mut self, timeout: Duration) -> Link {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long the fleet waits for a node that does not say any more that it is loading. After each third of it that node
    /// renews it, and those who wait ask whether it still does.
    pub fn lease(mut self, lease: Duration) -> Link {
        self.lease = lease.max(Duration::from_millis(10));
        self
    }

    /// How long to wait for a load in another process before loading it here as well, within the load limit. Longer than the
    /// lease, or nobody waits for who comes after a node that died.
    pub fn wait(mut self, wait: Duration) -> Link {
        self.wait = wait;
        self
    }

    /// How many nodes may try one after another to load a key before all who wait are told that it failed.
    pub fn attempts(mut self, attempts: u32) -> Link {
        self.attempts = attempts.max(1);
        self
    }

    /// How long an entry is fresh in memory at most, before the tier is asked whether there is anything newer.
    pub fn memory(mut self, most: Duration) -> Link {
        self.memory = most;
        self
    }

    /// The same for [hot](crate::cache::CacheBuilder::hot) keys; default: four times as long as others. A key that is read
    /// everywhere is asked for by every node, and mostly it has not changed. They hear of it if it has, and it lives no
    /// longer than in the tier in any case.
    pub fn hot(mut self, most: Duration) -> Link {
        self.hot = Some(most);
        self
    }

    /// How long an entry is fresh in memory at most, before the tier is asked again.
    pub(in crate::cache) fn in_memory(&self, is_hot: impl FnOnce() -> bool) -> Duration {
        let hot = self.hot.unwrap_or(self.memory.saturating_mul(HOTTER)).max(self.memory);
        if hot > self.memory && is_hot() { hot } else { self.memory }
    }

    /// Over how long entries in memory are looked up again after news may have been missed.
    pub fn smear(mut self, smear: Duration) -> Link {
        self.smear = smear;
        self
    }

    /// What stands before the calls to the tier.
    pub fn breaker(mut self, breaker: Breaker) -> Link {
        self.breaker = Some(breaker);
        self
    }
}
