//! Which arms each cell compares. What the article says is marked only where the notes on it have it on record.

use super::{Compared, Plan, Technique};
use crate::look::Look;

/// An arm, and a parameter that is changed.
#[derive(Clone, Copy)]
struct Place(&'static str, Option<&'static str>);

const fn arm(arm: &'static str) -> Place {
    Place(arm, None)
}

const fn with(set: &'static str, arm: &'static str) -> Place {
    Place(arm, Some(set))
}

const fn of(scenario: &'static str, figure: &'static str, without: Place, with: Place) -> Plan {
    let without = Look { scenario, set: without.1, arm: without.0, figure };
    let with = Look { scenario, set: with.1, arm: with.0, figure };
    Plan::Measured { compared: Compared { without, with }, note: None, article: None }
}

impl Plan {
    const fn note(self, note: &'static str) -> Plan {
        match self {
            Plan::Measured { compared, article, .. } => Plan::Measured { compared, note: Some(note), article },
            Plan::Unmeasured(why) => Plan::Unmeasured(why),
        }
    }

    const fn article(self, says: &'static str) -> Plan {
        match self {
            Plan::Measured { compared, note, .. } => Plan::Measured { compared, note, article: Some(says) },
            Plan::Unmeasured(why) => Plan::Unmeasured(why),
        }
    }
}

pub(super) const TECHNIQUES: [Technique; 8] = [
    Technique {
        name: "jitter",
        cells: [
            of("retry-wall", "peak_after_first_ms", arm("backoff"), arm("backoff + full jitter"))
                .note("not the first attempts, which nothing delays"),
            of("retry-wall", "calls", arm("backoff"), arm("backoff + full jitter")),
            of("retry-wall", "mean_wait_ms", arm("backoff"), arm("backoff + full jitter"))
                .note("full jitter halves the wait of plain backoff")
                .article("jitter does not lower the average wait (its quiz)"),
            of("token-refresh", "refreshed_late", arm("every 60 min"), arm("60 +- 5 min"))
                .note("jitter both ways outlives the token; jitter that only comes earlier does not"),
        ],
        used_for: "whatever many do by the same clock: retries, expiries, timers",
    },
    Technique {
        name: "exponential backoff",
        cells: [
            of("retry-storm", "peak_after_first_100ms", arm("every 2 s"), arm("doubled")),
            of("retry-storm", "calls", arm("every 2 s"), arm("doubled")),
            of("retry-wall", "mean_wait_ms", arm("naive"), arm("backoff")),
            of("retry-storm", "failed", arm("every 2 s"), arm("doubled"))
                .note("who comes back ever more rarely is not served in time"),
        ],
        used_for: "retries, with jitter and a budget, never alone",
    },
    Technique {
        name: "coalescing",
        cells: [
            of("hot-key", "peak_in_flight", arm("naive"), arm("flight")),
            of("hot-key", "calls", arm("naive"), arm("flight")),
            of("hot-key", "p99_ms", arm("naive"), arm("flight"))
                .note("a slow load is everybody's: slow-leader; deadlines of their own"),
            of("shared-failure", "errors", arm("naive, one blip"), arm("shared, one blip"))
                .note("one failure is everybody's, unless it is tried again inside"),
        ],
        used_for: "identical loads of one key",
    },
    Technique {
        name: "stale-while-revalidate",
        cells: [
            of("cascade", "peak_in_flight", arm("check, then load"), arm("... and grace"))
                .note("by the one refresh inside it; where each reader refreshes it does not: swr"),
            of("cascade", "calls", arm("check, then load"), arm("... and grace")).note("by the one refresh inside it"),
            of("cascade", "p99_ms", arm("cache, timeout"), arm("... and grace")),
            of("flash-sale", "stale_inventory", arm("B: TTL and mutex"), arm("stale for all")),
        ],
        used_for: "what may be a little old",
    },
    Technique {
        name: "rate limiting",
        cells: [
            of("limiter-refill", "peak_per_ms", arm("fixed window"), arm("GCRA, reserved slots"))
                .note("with slots of their own; a fixed window is a herd itself"),
            of("limiter-refill", "calls", arm("fixed window"), arm("GCRA, reserved slots")),
            of("limiter-refill", "end_ms", arm("fixed window"), arm("GCRA, reserved slots")),
            Plan::Unmeasured("no scenario has answers behind a rate limit"),
        ],
        used_for: "what one client may ask, and retries",
    },
    Technique {
        name: "circuit breaking",
        cells: [
            of("breaker-reclose", "worst_at_return_per_second", arm("no breaker"), arm("random open time, ramp"))
                .note("of an outage's end; with a fixed open time all breakers close as one"),
            of("outlier-ejection", "one_failed_sick", arm("no ejection"), arm("random time, bounded"))
                .note("calls at the backend that is sick"),
            of("breaker-reclose", "recovered_warm_s", arm("no breaker"), arm("random open time, ramp"))
                .note("until everybody is served again by an origin that needed no caution"),
            of("outlier-ejection", "one_failed_back", arm("no ejection"), arm("random time, bounded"))
                .note("errors; what a default value instead of an answer costs is not modelled"),
        ],
        used_for: "an origin that is not there",
    },
    Technique {
        name: "load shedding",
        cells: [
            of("shed-and-return", "worst_per_100ms", arm("fixed: 5 s"), arm("appointments"))
                .note("with an appointment each; told the same time, the refused come back as one"),
            of("bathtub", "wasted", arm("oldest first"), arm("codel")),
            of("bathtub", "p99_ms", arm("oldest first"), arm("codel")).note("of those who are served"),
            of("bathtub", "refused", arm("oldest first"), arm("codel"))
                .note("refused on purpose; more are served than without"),
        ],
        used_for: "more than can be served, whatever the reason",
    },
    Technique {
        name: "sharded locks",
        cells: [
            of("stampede", "peak_in_flight", with("nodes=1", "mutex"), with("nodes=10", "mutex"))
                .note("ten locks let ten load at once"),
            of("stampede", "calls", with("nodes=1", "mutex"), with("nodes=10", "mutex")),
            of("stampede", "max_if_origin_fails_ms", with("nodes=1", "mutex"), with("nodes=10", "mutex"))
                .note("who waits, waits for a tenth of the others"),
            Plan::Unmeasured("comes with the locks of several processes"),
        ],
        used_for: "waiting for each other without need",
    },
];
