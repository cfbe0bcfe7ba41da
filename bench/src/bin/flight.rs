//! One load per key: what it costs alone, in a crowd, on two threads, and when loads fail or callers leave.
//! needs: valgrind
//!
//! Sharing a load has four prices, and a library that is good at one is often bad at another. Most keys are asked for by
//! one caller, so the lonely call is what a service pays all day (`uncontended`). The herd is what it is for, and there
//! it matters what one more follower costs, in time to join, in time to be woken and in memory, and whether that grows
//! with the crowd (`herd-*`). Errors and cancelled callers are when things go wrong in production: a failing origin must
//! not be asked once per caller (`failing`), and a key nobody waits for any more must not stay (`leftovers`).
//!
//! What callers are promised when things go wrong is not faster or slower but right or wrong (`semantics`). Three follow a
//! leader whose load waits, and what is counted is how many loads were begun and how many of the three were answered:
//!
//! - `leave`: the leader is dropped. The load should not begin again, and the followers have its value.
//! - `panic`: every load panics. The followers should have an error, without a load and a panic each, and `later` is
//!   whether the key still works for a load that does not panic.
//! - `fail`: every load fails. The followers should have the load's own error from one load.
//! - `deadline`: the leader has a deadline, by what the peer offers or else by tokio's timeout. It should leave with an
//!   error (`left`), and the load go on for the others.
//! - `forget`: whether a newcomer begins a load of its own after `forget`, or `remove` or `invalidate` where that is what
//!   there is.
//! - `shared`: whether callers are told that the answer was shared, the leader included, and that it was not when the
//!   leader was alone.
//! - `choice`: whether one can choose that a load nobody waits for is cancelled, and that it finishes.
//!
//! Peers keep what they promise in different ways, which the rows show but do not explain:
//!
//! - moka, `quick_cache` and foyer are caches: in `uncontended` they also pay for insertion and eviction, and in the herd
//!   for insertion. They take no part in `threads-2`, where they would answer from memory.
//! - foyer and herdproof run a load that is not ready at once as a task of its own, so that no caller can stop it; with
//!   all the others the first caller drives the load. For foyer's `leftovers` that means loads that still run.
//! - `dashmap+Shared` is the recipe people write by hand: a `DashMap` of `futures::Shared`. The leader takes the key out,
//!   so where it left, the followers have their value but later callers have the same one for ever, and where the key was
//!   forgotten, it takes out the newcomer's load. `semantics` does not look that far.
//! - moka tells whether the value came from the caller's own load, which does not tell a leader that it had followers.
//! - `floor` is a list of wakers and no more. It shows what a herd of tasks costs whatever they wait for: a million of them
//!   do not fit into a processor's cache, so waking one costs more than in a small crowd, with anybody.
//! - `Go x/sync` is measured in CPU time of the whole process, since its collector runs beside it, and has string keys.
//!   Its calls cannot be cancelled, so it leaves nothing over, and is not in `semantics`. It takes part where the Debian
//!   packages `golang-go` and `golang-golang-x-sync-dev` are installed.

#[path = "flight/peers.rs"]
mod peers;
#[path = "flight/scenes.rs"]
mod scenes;
#[path = "flight/semantics.rs"]
mod semantics;

use std::process::ExitCode;

use herdproof_bench::{Bench, Case, Counting, FLOOR, Goal, Run, Subject};
use peers::{
    AsyncSingleflight, Floor, Foyer, Herdproof, Moka, Peer, QuickCache, SharedFuture, SingleflightAsync, Uniflight,
};
use scenes::{failing, herd, leftovers, threads, uncontended};
use semantics::semantics;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

macro_rules! subjects {
    ($scene:ident: $($peer:ty),+) => {
        vec![$(Subject { name: <$peer>::NAME, run: Run::Here($scene::<$peer>) }),+]
    };
}

fn main() -> ExitCode {
    herdproof_bench::main(&Bench {
        name: "flight",
        cases: vec![
            Case {
                name: "uncontended",
                subjects: with_go(
                    &["uncontended"],
                    subjects!(uncontended: Herdproof, SingleflightAsync, Uniflight, SharedFuture, AsyncSingleflight,
                              QuickCache, Foyer, Moka),
                ),
                goals: twice_as_good_as_the_pure_ones(),
                ops: 400_000,
                instructions: true,
            },
            Case {
                name: "herd-10000",
                subjects: with_go(
                    &["herd"],
                    subjects!(herd: Herdproof, SharedFuture, Foyer, QuickCache, SingleflightAsync, AsyncSingleflight,
                              Moka, Uniflight, Floor),
                ),
                goals: crowd(),
                ops: 10_000,
                instructions: false,
            },
            Case {
                name: "herd-100000",
                subjects: with_go(
                    &["herd"],
                    subjects!(herd: Herdproof, SharedFuture, Foyer, QuickCache, SingleflightAsync, AsyncSingleflight,
                              Moka, Uniflight, Floor),
                ),
                goals: crowd(),
                ops: 100_000,
                instructions: false,
            },
            Case {
                name: "herd-1000000",
                // Without uniflight: each join walks the list of all that joined before, which a million do not survive.
                subjects: with_go(
                    &["herd"],
                    subjects!(herd: Herdproof, SharedFuture, Foyer, QuickCache, SingleflightAsync, AsyncSingleflight,
                              Moka, Floor),
                ),
                goals: crowd().into_iter().chain(flat_from("herd-10000")).collect(),
                ops: 1_000_000,
                instructions: false,
            },
            Case {
                name: "threads-2",
                // Without the caches, which would answer all but the first 64 calls from memory.
                subjects: with_go(
                    &["threads"],
                    subjects!(threads: Herdproof, SingleflightAsync, Uniflight, SharedFuture, AsyncSingleflight),
                ),
                goals: vec![],
                ops: 2_000_000,
                instructions: false,
            },
            Case {
                name: "failing",
                subjects: with_go(
                    &["failing"],
                    subjects!(failing: Herdproof, SingleflightAsync, Uniflight, SharedFuture, AsyncSingleflight,
                              QuickCache, Foyer, Moka),
                ),
                goals: vec![Goal { peer: "limit", unit: "calls", at_least: 1.0 }],
                ops: 1_001,
                instructions: false,
            },
            Case {
                name: "leftovers",
                subjects: subjects!(leftovers: Herdproof, SingleflightAsync, Uniflight, SharedFuture,
                                    AsyncSingleflight, QuickCache, Foyer, Moka),
                goals: vec![Goal { peer: "limit", unit: "bytes/key", at_least: 1.0 }],
                ops: 100_000,
                instructions: false,
            },
            Case {
                name: "semantics",
                subjects: subjects!(semantics: Herdproof, SingleflightAsync, Uniflight, SharedFuture,
                                    AsyncSingleflight, QuickCache, Foyer, Moka),
                goals: semantics::right(3).map(|(unit, at_least)| Goal { peer: "exactly", unit, at_least }).into(),
                ops: 3,
                instructions: false,
            },
        ],
    })
}

const GO: &str = "Go x/sync";

fn with_go(args: &'static [&'static str], mut subjects: Vec<Subject>) -> Vec<Subject> {
    subjects.push(Subject { name: GO, run: Run::Go { program: "peers/go/flight.go", args } });
    subjects
}

/// The caches do more than share a load, so to be faster than they are says nothing.
fn twice_as_good_as_the_pure_ones() -> Vec<Goal> {
    let pure = [SingleflightAsync::NAME, Uniflight::NAME, SharedFuture::NAME, AsyncSingleflight::NAME, GO];
    let times = pure.map(|peer| Goal { peer, unit: "ns/op", at_least: 2.0 });
    let instructions = pure.map(|peer| Goal { peer, unit: "instructions/op", at_least: 2.0 });
    let memory = Goal { peer: "limit", unit: "allocs/op", at_least: 2.0 };
    times.into_iter().chain(instructions).chain([memory]).collect()
}

fn crowd() -> Vec<Goal> {
    vec![
        Goal { peer: "best", unit: "join ns", at_least: 1.0 },
        Goal { peer: "best", unit: "wake ns", at_least: 0.91 },
        Goal { peer: "limit", unit: "bytes/follower", at_least: 400.0 },
    ]
}

/// To join a large crowd costs no more than half as much again as to join this small one. To be woken out of it costs no
/// more than tasks cost anyway: those of a million are not in any cache.
fn flat_from(small: &'static str) -> Vec<Goal> {
    vec![Goal { peer: small, unit: "join ns", at_least: 0.667 }, Goal { peer: FLOOR, unit: "wake ns", at_least: 0.91 }]
}
