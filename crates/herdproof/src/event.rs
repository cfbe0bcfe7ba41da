//! What happened, said once, for every kind of listener.
//!
//! A herd is seen by comparing two counters, what callers asked for and what reached the origin; if each part of a system
//! names them in its own way nobody compares them. Policies tell the [`Observer`] of their
//! [`Env`](crate::Env::observed_by) what happened, as [`Event`]s. This file
//! is the only one that knows which [`Metric`] an event belongs to and what that is called, so the library, the proxy,
//! the lab and the dashboard count the same things under the same names.
//!
//! ```
//! use herdproof::event::{Counts, Event, Metric, Observer};
//!
//! let counts = Counts::default();
//! for _ in 0..100 {
//!     counts.observe(&Event::EdgeRequest);
//! }
//! counts.observe(&Event::OriginRequest);
//! assert_eq!(counts.get(Metric::EdgeRequests), 100);
//! assert_eq!(Metric::EdgeRequests.name(), "herdproof_edge_requests_total");
//! assert_eq!(counts.collapse_ratio(), Some(100.0));
//! ```

#[cfg(feature = "metrics")]
mod facade;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[cfg(feature = "metrics")]
pub use facade::Facade;

/// Something that happened and that somebody may want to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A caller asked for something.
    EdgeRequest,
    /// A request was sent to the origin, whatever for.
    OriginRequest,
    /// The origin answered, or did not, in this time.
    OriginAnswer {
        /// Whether the answer was of use.
        ok: bool,
        /// How long it took.
        took: Duration,
    },
    /// A load was begun.
    Load,
    /// A flight landed and this many callers shared it beyond the first.
    FlightShared {
        /// How many followers there were.
        followers: u64,
    },
    /// A lookup was answered from memory.
    CacheHit,
    /// A lookup was answered from memory with a value past its time.
    CacheStale {
        /// How long ago it was loaded.
        age: Duration,
    },
    /// A lookup found nothing to serve.
    CacheMiss,
    /// A lookup that found nothing to serve shares a load that is under way.
    CacheJoin,
    /// Entries had to go to make room.
    CacheEvicted {
        /// How many.
        entries: u64,
    },
    /// An entry was not kept, because it alone would take too much room.
    CacheTooHeavy,
    /// An entry is loaded again while it can still be served.
    Refresh,
    /// What was loaded was not kept: the key was invalidated or set, or its tag expired, in the meantime.
    Fenced,
    /// Keys were looked up in a second tier.
    TierLookup {
        /// How many.
        keys: u64,
    },
    /// A value came from a second tier.
    TierHit,
    /// A load in another process is waited for.
    TierWait,
    /// A second tier gave the right to load.
    TierLease,
    /// A second tier did not keep what was loaded, because the key had changed meanwhile.
    TierFenced,
    /// A call to a second tier failed or took too long.
    TierFailure,
    /// A call to a second tier was not made, because too many had failed before.
    TierRefusal,
    /// A load is begun without a lease, because the tier was away or its lease holder too slow.
    TierAlone,
    /// A change was never delivered to a second tier, because there was no room to remember it.
    TierDropped,
    /// An attempt is made again.
    Retry,
    /// A second attempt is raced against a slow first.
    Hedge,
    /// A gate said no.
    Refusal,
    /// A breaker opened.
    Trip,
    /// Somebody tried to take a lock or a lease.
    LockAttempt,
    /// A connection was made.
    Handshake,
    /// How many wait in a line now.
    QueueDepth(u64),
    /// How much is under way now.
    InFlight(u64),
}

/// Hears of events. Called on hot paths: it should count and return.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn observe(&self, event: &Event);
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, event: &Event) {
        (**self).observe(event);
    }
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is what it was last said to be.
    Gauge,
    /// Times, of which [`Counts`] has the sum in nanoseconds and a recorder a histogram in seconds.
    Time,
}

macro_rules! metrics {
    ($($variant:ident $kind:ident $name:literal $help:literal)*) => {
        /// A number that somebody can watch; its name is fixed here and nowhere else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Metric {
            $(#[doc = $help] $variant,)*
        }

        impl Metric {
            /// Every metric there is, in the order of the reference.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant),*];

            /// The name it is exported under.
            pub const fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name,)* }
            }

            /// What it counts, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Metric::$variant => $help,)* }
            }

            /// How it changes.
            pub const fn kind(self) -> Kind {
                match self { $(Metric::$variant => Kind::$kind,)* }
            }
        }
    };
}

metrics! {
    EdgeRequests   Counter "herdproof_edge_requests_total"         "Requests that callers made."
    OriginRequests Counter "herdproof_origin_requests_total"       "Requests that reached the origin."
    OriginFailures Counter "herdproof_origin_failures_total"       "Requests to the origin that failed."
    OriginTime     Time    "herdproof_origin_seconds"              "How long the origin took to answer, or not to."
    Loads          Counter "herdproof_loads_total"                 "Loads that were begun."
    FlightShared   Counter "herdproof_flight_shared_total"         "Callers answered by a load that another caller began."
    CacheHits      Counter "herdproof_cache_hits_total"            "Lookups answered from memory with a fresh value."
    CacheStale     Counter "herdproof_cache_stale_total"           "Lookups answered from memory with a stale value."
    CacheStaleAge  Time    "herdproof_cache_stale_age_seconds"     "How long ago stale values had been loaded when they were served."
    CacheMisses    Counter "herdproof_cache_misses_total"          "Lookups that found nothing to serve."
    CacheJoins     Counter "herdproof_cache_joins_total"           "Lookups that found nothing to serve and shared a load that was under way."
    CacheEvictions Counter "herdproof_cache_evictions_total"       "Entries that had to go to make room."
    CacheTooHeavy  Counter "herdproof_cache_too_heavy_total"       "Entries that were not kept because one alone would take too much room."
    Refreshes      Counter "herdproof_refreshes_total"             "Loads begun while the entry could still be served."
    Fenced         Counter "herdproof_fenced_fills_total"          "Loads whose value was out of date before it could be kept."
    TierLookups    Counter "herdproof_tier_lookups_total"          "Keys looked up in a second tier."
    TierHits       Counter "herdproof_tier_hits_total"             "Values that came from a second tier."
    TierWaits      Counter "herdproof_tier_waits_total"            "Times that a load in another process was waited for."
    TierLeases     Counter "herdproof_tier_leases_total"           "Leases to load that a second tier gave."
    TierFenced     Counter "herdproof_tier_fenced_fills_total"     "Fills that a second tier refused, because the key had changed meanwhile."
    TierFailures   Counter "herdproof_tier_failures_total"         "Calls to a second tier that failed or took too long."
    TierRefusals   Counter "herdproof_tier_refusals_total"         "Calls to a second tier that were not made, because too many had failed before."
    TierAlone      Counter "herdproof_tier_alone_total"            "Loads begun without a lease, because the second tier was away or its lease holder too slow."
    TierDropped    Counter "herdproof_tier_dropped_changes_total"  "Changes that were never delivered to a second tier, because there was no room to remember them."
    Retries        Counter "herdproof_retries_total"               "Attempts made again after a failure."
    Hedges         Counter "herdproof_hedges_total"                "Second attempts raced against a slow first."
    Refusals       Counter "herdproof_refusals_total"              "Requests that a gate refused."
    Trips          Counter "herdproof_breaker_trips_total"         "Times a breaker opened."
    LockAttempts   Counter "herdproof_lock_attempts_total"         "Attempts to take a lock or a lease."
    Handshakes     Counter "herdproof_handshakes_total"            "Connections that were made."
    QueueDepth     Gauge   "herdproof_queue_depth"                 "Callers waiting in a line."
    InFlight       Gauge   "herdproof_in_flight"                   "Work under way."
}

/// Counts every event, without a lock: for tests, experiments, and as the source of an exporter.
#[derive(Debug)]
pub struct Counts([AtomicU64; Metric::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Counts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counts {
    /// What the metric stands at.
    pub fn get(&self, metric: Metric) -> u64 {
        self.0[metric as usize].load(Ordering::Relaxed)
    }

    /// Requests that callers made per request that reached the origin; `None` before the first of those.
    pub fn collapse_ratio(&self) -> Option<f64> {
        let origin = self.get(Metric::OriginRequests);
        (origin > 0).then(|| self.get(Metric::EdgeRequests) as f64 / origin as f64)
    }

    fn add(&self, metric: Metric, n: u64) {
        self.0[metric as usize].fetch_add(n, Ordering::Relaxed);
    }

    fn set(&self, metric: Metric, n: u64) {
        self.0[metric as usize].store(n, Ordering::Relaxed);
    }
}

impl Event {
    /// The metrics it moves, and by how much, times in nanoseconds; a gauge is moved to that number.
    fn moves(&self, mut to: impl FnMut(Metric, u64)) {
        match *self {
            Event::EdgeRequest => to(Metric::EdgeRequests, 1),
            Event::OriginRequest => to(Metric::OriginRequests, 1),
            Event::OriginAnswer { ok, took } => {
                to(Metric::OriginFailures, u64::from(!ok));
                to(Metric::OriginTime, nanos(took));
            }
            Event::Load => to(Metric::Loads, 1),
            Event::FlightShared { followers } => to(Metric::FlightShared, followers),
            Event::CacheHit => to(Metric::CacheHits, 1),
            Event::CacheStale { age } => {
                to(Metric::CacheStale, 1);
                to(Metric::CacheStaleAge, nanos(age));
            }
            Event::CacheMiss => to(Metric::CacheMisses, 1),
            Event::CacheJoin => to(Metric::CacheJoins, 1),
            Event::CacheEvicted { entries } => to(Metric::CacheEvictions, entries),
            Event::CacheTooHeavy => to(Metric::CacheTooHeavy, 1),
            Event::Refresh => to(Metric::Refreshes, 1),
            Event::Fenced => to(Metric::Fenced, 1),
            Event::TierLookup { keys } => to(Metric::TierLookups, keys),
            Event::TierHit => to(Metric::TierHits, 1),
            Event::TierWait => to(Metric::TierWaits, 1),
            Event::TierLease => to(Metric::TierLeases, 1),
            Event::TierFenced => to(Metric::TierFenced, 1),
            Event::TierFailure => to(Metric::TierFailures, 1),
            Event::TierRefusal => to(Metric::TierRefusals, 1),
            Event::TierAlone => to(Metric::TierAlone, 1),
            Event::TierDropped => to(Metric::TierDropped, 1),
            Event::Retry => to(Metric::Retries, 1),
            Event::Hedge => to(Metric::Hedges, 1),
            Event::Refusal => to(Metric::Refusals, 1),
            Event::Trip => to(Metric::Trips, 1),
            Event::LockAttempt => to(Metric::LockAttempts, 1),
            Event::Handshake => to(Metric::Handshakes, 1),
            Event::QueueDepth(depth) => to(Metric::QueueDepth, depth),
            Event::InFlight(depth) => to(Metric::InFlight, depth),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Observer for Counts {
    fn observe(&self, event: &Event) {
        event.moves(|metric, n| match metric.kind() {
            Kind::Counter | Kind::Time => self.add(metric, n),
            Kind::Gauge => self.set(metric, n),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_kind_they_are() {
        let names: std::collections::BTreeSet<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), Metric::ALL.len());
        for metric in Metric::ALL {
            let name = metric.name();
            assert!(name.starts_with("herdproof_"), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind() == Kind::Counter, "{name}");
        }
    }

    #[test]
    fn every_event_moves_its_own_metric_and_no_other() {
        let took = Duration::from_nanos(5);
        let cases: [(Event, &[Metric]); Metric::ALL.len() - 1] = [
            (Event::EdgeRequest, &[Metric::EdgeRequests]),
            (Event::OriginRequest, &[Metric::OriginRequests]),
            (Event::OriginAnswer { ok: false, took: Duration::ZERO }, &[Metric::OriginFailures]),
            (Event::OriginAnswer { ok: true, took }, &[Metric::OriginTime]),
            (Event::Load, &[Metric::Loads]),
            (Event::FlightShared { followers: 3 }, &[Metric::FlightShared]),
            (Event::CacheHit, &[Metric::CacheHits]),
            (Event::CacheStale { age: took }, &[Metric::CacheStale, Metric::CacheStaleAge]),
            (Event::CacheMiss, &[Metric::CacheMisses]),
            (Event::CacheJoin, &[Metric::CacheJoins]),
            (Event::CacheEvicted { entries: 2 }, &[Metric::CacheEvictions]),
            (Event::CacheTooHeavy, &[Metric::CacheTooHeavy]),
            (Event::Refresh, &[Metric::Refreshes]),
            (Event::Fenced, &[Metric::Fenced]),
            (Event::TierLookup { keys: 2 }, &[Metric::TierLookups]),
            (Event::TierHit, &[Metric::TierHits]),
            (Event::TierWait, &[Metric::TierWaits]),
            (Event::TierLease, &[Metric::TierLeases]),
            (Event::TierFenced, &[Metric::TierFenced]),
            (Event::TierFailure, &[Metric::TierFailures]),
            (Event::TierRefusal, &[Metric::TierRefusals]),
            (Event::TierAlone, &[Metric::TierAlone]),
            (Event::TierDropped, &[Metric::TierDropped]),
            (Event::Retry, &[Metric::Retries]),
            (Event::Hedge, &[Metric::Hedges]),
            (Event::Refusal, &[Metric::Refusals]),
            (Event::Trip, &[Metric::Trips]),
            (Event::LockAttempt, &[Metric::LockAttempts]),
            (Event::Handshake, &[Metric::Handshakes]),
            (Event::QueueDepth(4), &[Metric::QueueDepth]),
            (Event::InFlight(2), &[Metric::InFlight]),
        ];
        for (event, moved) in cases {
            let counts = Counts::default();
            counts.observe(&event);
            for metric in Metric::ALL {
                assert_eq!(counts.get(*metric) > 0, moved.contains(metric), "{event:?} and {metric:?}");
            }
        }
        let moved = |metric: &Metric| cases.iter().any(|(_, moved)| moved.contains(metric));
        assert!(Metric::ALL.iter().all(moved));
    }

    #[test]
    fn a_gauge_forgets_what_it_was_and_a_counter_does_not() {
        let counts = Counts::default();
        for depth in [9, 4] {
            counts.observe(&Event::QueueDepth(depth));
            counts.observe(&Event::Retry);
        }
        assert_eq!((counts.get(Metric::QueueDepth), counts.get(Metric::Retries)), (4, 2));
        assert_eq!(counts.collapse_ratio(), None);
    }
}
