//! A cache: what a hit, a hit that would load, a miss and an entry cost, and how often what is asked for is there.
//! needs: valgrind
//!
//! A hit is what a service pays all day, so it is measured against the fastest map of the kind (`quick_cache`'s `get`, which
//! checks no time at all) and against caches that do check one (`hit`). Callers do not know that it will be a hit, so the
//! same with a load at hand is measured too (`loading-hit`): here a future must not cost more than a plain call. A miss is
//! a load that is ready at once, for a key that was never asked for, in a full cache (`miss`).
//!
//! - Each has its own default hasher; moka's is the slow and safe one, and part of its price.
//! - herdproof checks both of an entry's times, counts hits, and has the entry's age with it. `quick_cache`, foyer, lru and
//!   moka without TTL check none; nor does anybody count, but moka with its housekeeping.
//! - `hit` is a hundred thousand keys drawn by a power law (0.99), of which the cache holds all.
//! - `stale-hit` is one key that everybody wants, past its time, while its refresh is under way; beside it the same key fresh.
//! - `ratio-*` is the share of five million requests that miss (the last three million count) with room for a tenth of the
//!   keys: a power law; the same with every fifth request for a key that never comes again; a power law whose favourites
//!   change all the time.

#[path = "cache/peers.rs"]
mod peers;
#[path = "cache/scenes.rs"]
mod scenes;

use std::process::ExitCode;

use herdproof_bench::{Bench, Case, Counting, Goal, Run, Subject};
use peers::{
    Foyer, Herdproof, HerdproofStale, HerdproofWaiting, Lru, MiniMoka, Moka, MokaFuture, MokaTtl, Peer, QuickCache, QuickCacheAsync,
};
use scenes::{
    hit, hit_on_two_threads, hot_hit, hot_hit_on_two_threads, loading_hit, loading_hit_on_two_threads, memory, miss, power_law, scanned, shifting,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

macro_rules! subjects {
    ($scene:ident: $($peer:ty),+) => {
        vec![$(Subject { name: <$peer>::NAME, run: Run::Here($scene::<$peer>) }),+]
    };
}

fn goal(peer: &'static str, unit: &'static str, at_least: f64) -> Goal {
    Goal { peer, unit, at_least }
}

fn main() -> ExitCode {
    let ratio = |name, subjects| Case {
        name,
        subjects,
        // Half a point of misses, of about half.
        goals: vec![goal("quick_cache", "misses", 0.99)],
        ops: 5_000_000,
        instructions: false,
    };
    herdproof_bench::main(&Bench {
        name: "cache",
        cases: vec![
            Case {
                name: "hit",
                subjects: subjects!(hit: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka, MokaTtl),
                goals: vec![goal("quick_cache", "ns/op", 1.0 / 1.5), goal("moka, TTL", "ns/op", 10.0)],
                ops: 4_000_000,
                instructions: true,
            },
            Case {
                name: "hit-2",
                subjects: subjects!(hit_on_two_threads: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka, MokaTtl),
                goals: vec![goal("quick_cache", "wall ns/call", 1.0 / 1.5), goal("moka, TTL", "wall ns/call", 10.0)],
                ops: 4_000_000,
                instructions: false,
            },
            Case {
                name: "stale-hit",
                subjects: subjects!(hot_hit: HerdproofStale, Herdproof),
                goals: vec![goal("herdproof", "ns/op", 1.0 / 1.3)],
                ops: 4_000_000,
                instructions: true,
            },
            Case {
                name: "stale-hit-2",
                subjects: subjects!(hot_hit_on_two_threads: HerdproofStale, Herdproof),
                goals: vec![goal("herdproof", "wall ns/call", 1.0 / 1.3)],
                ops: 4_000_000,
                instructions: false,
            },
            Case {
                name: "loading-hit",
                subjects: subjects!(loading_hit: Herdproof, HerdproofWaiting, QuickCache, QuickCacheAsync, Foyer, Moka, MokaFuture),
                goals: vec![goal("quick_cache", "ns/op", 1.0 / 1.5), goal("herdproof, waiting", "ns/op", 1.0)],
                ops: 4_000_000,
                instructions: true,
            },
            Case {
                name: "loading-hit-2",
                subjects: subjects!(loading_hit_on_two_threads: Herdproof, QuickCache, QuickCacheAsync, Foyer, Moka, MokaFuture),
                goals: vec![],
                ops: 4_000_000,
                instructions: false,
            },
            Case {
                name: "miss",
                subjects: subjects!(miss: Herdproof, HerdproofWaiting, QuickCache, QuickCacheAsync, Foyer, Moka, MokaFuture),
                goals: vec![goal("quick_cache, async", "ns/op", 1.0), goal("limit", "allocs/op", 3.0)],
                ops: 1_000_000,
                instructions: true,
            },
            Case {
                name: "memory",
                subjects: subjects!(memory: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka, MokaTtl),
                goals: vec![goal("limit", "bytes/entry", 64.0)],
                ops: 1_000_000,
                instructions: false,
            },
            ratio("ratio-power", subjects!(power_law: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka)),
            ratio("ratio-scan", subjects!(scanned: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka)),
            ratio("ratio-shift", subjects!(shifting: Herdproof, QuickCache, Lru, Foyer, MiniMoka, Moka)),
        ],
    })
}
