//! How long things are kept, and what is done when they are not fresh any more.

use std::time::Duration;

/// What holds for an entry; see the [module](super) for the words. Made with [`new`](Policy::new) and changed by its setters.
///
/// ```
/// use std::time::Duration;
/// use herdproof::cache::Policy;
///
/// let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
/// let inventory = Policy::strict(second);
/// let description = Policy::new(60 * second).grace(hour).on_error(24 * hour);
/// # let _ = (inventory, description);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Policy {
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
    pub(super) keep: Duration,
    pub(super) jitter: f64,
    pub(super) early: bool,
    pub(super) absent: Duration,
    pub(super) failed: Duration,
    pub(super) pause: Duration,
    pub(super) patience: Option<Duration>,
    pub(super) load_timeout: Duration,
}

impl Policy {
    /// Fresh for this long, never served stale, refreshed a little early when it is in use.
    pub fn new(ttl: Duration) -> Policy {
        Policy {
            ttl,
            grace: Duration::ZERO,
            keep: Duration::ZERO,
            jitter: 0.1,
            early: true,
            absent: ttl.min(Duration::from_secs(10)),
            failed: ttl.min(Duration::from_millis(100)),
            pause: Duration::from_secs(1),
            patience: None,
            load_timeout: Duration::from_secs(30),
        }
    }

    /// Fresh for exactly this long, and nothing else: no grace, no jitter, no early refresh.
    pub fn strict(ttl: Duration) -> Policy {
        Policy::new(ttl).jitter(0.0).early(false)
    }

    /// For how long after its freshness it is served while it is loaded again; not at all unless told otherwise.
    pub fn grace(mut self, grace: Duration) -> Policy {
        self.grace = grace;
        self
    }

    /// For how long after its freshness it is served when the load fails, or is slower than [`patience`](Policy::patience); not
    /// beyond the grace unless told otherwise.
    pub fn on_error(mut self, keep: Duration) -> Policy {
        self.keep = keep;
        self
    }

    /// How much of the time to live is left to chance; 0.1 unless told otherwise, so that entries are fresh for nine tenths
    /// of it to all of it. What is stored together then does not expire together.
    pub fn jitter(mut self, share: f64) -> Policy {
        self.jitter = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self
    }

    /// Whether the first hit near the end of an entry refreshes it, so that nobody waits; default: true. How near is drawn once,
    /// when the entry is stored, and is from 1.25 to 3.25 load times; see [`early`](mod@crate::early). With a
    /// [`grace`](Policy::grace) of at least two load times the refresh begins at the end, since nobody waits for it then.
    pub fn early(mut self, early: bool) -> Policy {
        self.early = early;
        self
    }

    /// For how long it is remembered that there is no such thing; ten seconds unless told otherwise, or the time to live if
    /// that is shorter.
    pub fn absent(mut self, ttl: Duration) -> Policy {
        self.absent = ttl;
        self
    }

    /// For how long a failure is remembered where there is nothing else to serve, so that an origin that fails at once is not
    /// asked once for each caller who comes after the last failure; a tenth of a second unless told otherwise, or the time
    /// to live if that is shorter. Zero for not at all.
    pub fn failed(mut self, ttl: Duration) -> Policy {
        self.failed = ttl;
        self
    }

    /// How long to wait after a failed refresh before the next, from half of this to all of it; one second unless told
    /// otherwise.
    pub fn pause(mut self, pause: Duration) -> Policy {
        self.pause = pause;
        self
    }

    /// How long to wait for a load before what is kept for errors is served instead; the load goes on. For ever unless told
    /// otherwise.
    pub fn patience(mut self, patience: Duration) -> Policy {
        self.patience = Some(patience);
        self
    }

    /// When a load has failed because it takes too long; 30 seconds unless told otherwise.
    pub fn load_timeout(mut self, timeout: Duration) -> Policy {
        self.load_timeout = timeout;
        self
    }

    /// The same once chance has had its share.
    pub(super) fn settled(&self) -> Policy {
        self.clone().jitter(0.0)
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new(Duration::from_secs(60))
    }
}
