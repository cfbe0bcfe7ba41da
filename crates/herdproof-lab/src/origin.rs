//! The origin: what clients call, and what suffers.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env,
    event::{Counts, Event, Metric, Observer},
};
use parking_lot::Mutex;

use crate::timeline::Timeline;

/// An origin that is down: every call fails at once and is written down.
#[derive(Clone, Debug)]
pub struct Origin {
    env: Env,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    counts: Counts,
    calls: Mutex<Timeline>,
}

/// What a call to an origin that is down gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down;

impl Origin {
    /// An origin in this world, whose calls are counted in bins of this width.
    pub fn down(env: &Env, bin: Duration) -> Origin {
        let seen = Seen { counts: Counts::default(), calls: Mutex::new(Timeline::new(bin)) };
        Origin { env: env.clone(), seen: Arc::new(seen) }
    }

    /// A call, which fails.
    pub fn call(&self) -> Result<(), Down> {
        self.seen.counts.observe(&Event::OriginRequest);
        self.seen.counts.observe(&Event::OriginAnswer { ok: false, took: Duration::ZERO });
        self.seen.calls.lock().record(self.env.now());
        Err(Down)
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.seen.counts.get(Metric::OriginRequests)
    }

    /// When the calls were.
    pub fn timeline(&self) -> Timeline {
        self.seen.calls.lock().clone()
    }
}
