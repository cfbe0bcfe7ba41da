//! Limits, breakers, throttles, retries within a budget, and all of them as one shield: what a call pays while all is well.
//! needs: valgrind
//!
//! Policies stand in front of every call, so what they cost is paid all day, by calls that need none of them. Most of it is
//! the clock: a reading costs more than everything else a limit does. Our gates read none. They are told the instant by the
//! `Ask`, which is read once for all of them, and its end once by whoever settles; peers read their own. So rows say who
//! pays for it:
//!
//! - `herdproof` reads the clock for each call, once on the way in and, where there is something to settle, once on the way
//!   out. `herdproof, given` is told the instant, as a gate behind another is; `governor, given` has a clock that only
//!   moves when told. `clock` is what the readings alone cost.
//! - `herdproof, coarse` reads the coarse clock on the way in, as the documentation of retries and breakers says to. The other
//!   row of ours there reads the exact one.
//! - Goals compare like with like: the rate limits are given their clocks. A recloser that is closed reads no clock, so it is
//!   measured against our breaker with the clock given; one that is open does, and so does ours there, coarsely. The
//!   others pay for their own clocks, and so do we.
//! - `herdproof, owned` has permits that may outlive the gate, and the clock given; the permits of the others borrow it.
//!
//! Calls on one thread are CPU time, calls on two are wall time: `wall ns/call` is from one call of a thread to its next.
#[path = "toolbox/breakers.rs"]
mod breakers;
#[path = "toolbox/calls.rs"]
mod calls;
#[path = "toolbox/others.rs"]
mod others;
#[path = "toolbox/rates.rs"]
mod rates;

use std::process::ExitCode;

use calls::{All, Coarse, Given, alone, on_two_threads};
use herdproof::{Env, shield::Shield};
use herdproof_bench::{Bench, Case, Counting, Goal, Run, Subject, Value};
use others::asynchronous;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OURS: &str = "herdproof";
const OURS_COARSE: &str = "herdproof, coarse";
const OURS_GIVEN: &str = "herdproof, given";
const OURS_OWNED: &str = "herdproof, owned";
const GOVERNOR: &str = "governor";
const GOVERNOR_GIVEN: &str = "governor, given";
const RECLOSER: &str = "recloser";
const CLOCK: &str = "clock";
const COARSE_CLOCK: &str = "clock, coarse";

/// Subjects that are called on one thread, each made of an `Env` that lives as long as it does.
macro_rules! alone {
    ($all:ident: $($name:expr => |$env:ident| $call:expr),+ $(,)?) => {
        vec![$(Subject {
            name: $name,
            run: Run::Here(|ops| {
                let $env = &Env::system();
                alone(All::$all, ops, || $call)
            }),
        }),+]
    };
}

/// The same, called on two.
macro_rules! on_two_threads {
    ($all:ident: $($name:expr => |$env:ident| $call:expr),+ $(,)?) => {
        vec![$(Subject {
            name: $name,
            run: Run::Here(|ops| {
                let $env = &Env::system();
                on_two_threads(All::$all, ops, $call)
            }),
        }),+]
    };
}

fn main() -> ExitCode {
    let cases = [rate_direct(), rate_keyed(), breaker(), adaptive(), retry_and_shield()];
    herdproof_bench::main(&Bench { name: "toolbox", cases: cases.into_iter().flatten().collect() })
}

fn rate_direct() -> Vec<Case> {
    let no_slower = |unit| vec![at_most(1.0, GOVERNOR_GIVEN, unit)];
    vec![
        one(
            "rate-allowed",
            no_slower("ns/op"),
            alone!(LetIn:
                OURS_GIVEN => |env| asynchronous(rates::herdproof(All::LetIn, env, Given)),
                OURS => |env| asynchronous(rates::herdproof(All::LetIn, env, env)),
                OURS_OWNED => |env| asynchronous(rates::herdproof_owned(env, Given)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_given(All::LetIn)),
                GOVERNOR => |_env| asynchronous(rates::governor(All::LetIn)),
                "leaky-bucket" => |_env| asynchronous(rates::leaky_bucket(All::LetIn)),
                "tower RateLimit" => |_env| rates::tower(),
                CLOCK => |env| asynchronous(others::readings(env, 1)),
            ),
        ),
        one(
            "rate-denied",
            no_slower("ns/op"),
            alone!(Refused:
                OURS_GIVEN => |env| asynchronous(rates::herdproof(All::Refused, env, Given)),
                OURS => |env| asynchronous(rates::herdproof(All::Refused, env, env)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_given(All::Refused)),
                GOVERNOR => |_env| asynchronous(rates::governor(All::Refused)),
                "leaky-bucket" => |_env| asynchronous(rates::leaky_bucket(All::Refused)),
            ),
        ),
        two(
            "rate-allowed-2",
            no_slower(WALL),
            on_two_threads!(LetIn:
                OURS_GIVEN => |env| asynchronous(rates::herdproof(All::LetIn, env, Given)),
                OURS => |env| asynchronous(rates::herdproof(All::LetIn, env, env)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_given(All::LetIn)),
                GOVERNOR => |_env| asynchronous(rates::governor(All::LetIn)),
                "leaky-bucket" => |_env| asynchronous(rates::leaky_bucket(All::LetIn)),
                CLOCK => |env| asynchronous(others::readings(env, 1)),
            ),
        ),
        two(
            "rate-denied-2",
            no_slower(WALL),
            on_two_threads!(Refused:
                OURS_GIVEN => |env| asynchronous(rates::herdproof(All::Refused, env, Given)),
                OURS => |env| asynchronous(rates::herdproof(All::Refused, env, env)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_given(All::Refused)),
                GOVERNOR => |_env| asynchronous(rates::governor(All::Refused)),
                "leaky-bucket" => |_env| asynchronous(rates::leaky_bucket(All::Refused)),
            ),
        ),
    ]
}

fn rate_keyed() -> Vec<Case> {
    vec![
        one(
            "rate-keyed",
            vec![at_most(0.6, GOVERNOR_GIVEN, "ns/op")],
            alone!(LetIn:
                OURS_GIVEN => |env| asynchronous(rates::herdproof_keyed(env, Given)),
                OURS => |env| asynchronous(rates::herdproof_keyed(env, env)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_keyed_given()),
                "governor, foldhash" => |_env| asynchronous(rates::governor_keyed_given_foldhash()),
                GOVERNOR => |_env| asynchronous(rates::governor_keyed()),
            ),
        ),
        two(
            "rate-keyed-2",
            vec![at_most(0.6, GOVERNOR_GIVEN, WALL)],
            on_two_threads!(LetIn:
                OURS_GIVEN => |env| asynchronous(rates::herdproof_keyed(env, Given)),
                OURS => |env| asynchronous(rates::herdproof_keyed(env, env)),
                GOVERNOR_GIVEN => |_env| asynchronous(rates::governor_keyed_given()),
                "governor, foldhash" => |_env| asynchronous(rates::governor_keyed_given_foldhash()),
                GOVERNOR => |_env| asynchronous(rates::governor_keyed()),
            ),
        ),
        memory("rate-memory", 64.0, &[(OURS, rates::herdproof_memory), (GOVERNOR, rates::governor_memory)]),
    ]
}

fn breaker() -> Vec<Case> {
    vec![
        one(
            "breaker-closed",
            vec![at_most(0.6, RECLOSER, "ns/op")],
            alone!(LetIn:
                OURS_GIVEN => |env| asynchronous(breakers::herdproof(All::LetIn, env, Given)),
                OURS => |env| asynchronous(breakers::herdproof(All::LetIn, env, env)),
                OURS_OWNED => |env| asynchronous(breakers::herdproof_owned(All::LetIn, env, Given)),
                RECLOSER => |_env| asynchronous(breakers::recloser(All::LetIn)),
                "failsafe" => |_env| asynchronous(breakers::failsafe(All::LetIn)),
                "failsafe, in a row" => |_env| asynchronous(breakers::failsafe_in_a_row(All::LetIn)),
                "tower-resilience" => |_env| breakers::tower_resilience(All::LetIn),
                CLOCK => |env| asynchronous(others::readings(env, 2)),
            ),
        ),
        two(
            "breaker-closed-2",
            vec![at_most(0.5, RECLOSER, WALL)],
            on_two_threads!(LetIn:
                OURS_GIVEN => |env| asynchronous(breakers::herdproof(All::LetIn, env, Given)),
                OURS => |env| asynchronous(breakers::herdproof(All::LetIn, env, env)),
                OURS_OWNED => |env| asynchronous(breakers::herdproof_owned(All::LetIn, env, Given)),
                RECLOSER => |_env| asynchronous(breakers::recloser(All::LetIn)),
                "failsafe" => |_env| asynchronous(breakers::failsafe(All::LetIn)),
                "failsafe, in a row" => |_env| asynchronous(breakers::failsafe_in_a_row(All::LetIn)),
            ),
        ),
        one(
            "breaker-open",
            vec![at_most(0.5, RECLOSER, "ns/op")],
            alone!(Refused:
                OURS_COARSE => |env| asynchronous(breakers::herdproof(All::Refused, env, Coarse(env))),
                OURS => |env| asynchronous(breakers::herdproof(All::Refused, env, env)),
                OURS_GIVEN => |env| asynchronous(breakers::herdproof(All::Refused, env, Given)),
                RECLOSER => |_env| asynchronous(breakers::recloser(All::Refused)),
                "failsafe" => |_env| asynchronous(breakers::failsafe(All::Refused)),
                "tower-resilience" => |_env| breakers::tower_resilience(All::Refused),
            ),
        ),
        memory(
            "breaker-memory",
            256.0,
            &[
                (OURS, breakers::herdproof_memory),
                ("dashmap+recloser", breakers::recloser_memory),
                ("dashmap+failsafe", breakers::failsafe_memory),
            ],
        ),
    ]
}

fn adaptive() -> Vec<Case> {
    vec![
        one(
            "adaptive",
            vec![at_most(0.3, "congestion-limiter", "ns/op"), Goal { peer: "limit", unit: "allocs/op", at_least: 0.0 }],
            alone!(LetIn:
                OURS => |env| asynchronous(others::adaptive(env, env)),
                OURS_GIVEN => |env| asynchronous(others::adaptive(env, Given)),
                "congestion-limiter" => |_env| others::congestion_aimd(),
                "congestion, Vegas" => |_env| others::congestion_vegas(),
                "tower Concurrency" => |_env| others::tower_concurrency(),
                CLOCK => |env| asynchronous(others::readings(env, 2)),
            ),
        ),
        two(
            "adaptive-2",
            vec![],
            on_two_threads!(LetIn:
                OURS => |env| asynchronous(others::adaptive(env, env)),
                OURS_GIVEN => |env| asynchronous(others::adaptive(env, Given)),
                "congestion-limiter" => |_env| others::congestion_aimd(),
            ),
        ),
        one(
            "throttle",
            vec![],
            alone!(LetIn:
                OURS => |env| asynchronous(others::throttle(env, env)),
                OURS_GIVEN => |env| asynchronous(others::throttle(env, Given)),
                CLOCK => |env| asynchronous(others::readings(env, 2)),
            ),
        ),
    ]
}

fn retry_and_shield() -> Vec<Case> {
    vec![
        one(
            "retry",
            vec![at_most(0.4, "tower Retry", "ns/op")],
            alone!(LetIn:
                OURS_COARSE => |env| others::retry(env, Coarse(env)),
                OURS => |env| others::retry(env, env),
                OURS_GIVEN => |env| others::retry(env, Given),
                "tower Retry" => |_env| others::tower_retry(),
                "backon" => |_env| others::backon(),
                "tokio-retry" => |_env| others::tokio_retry(),
                "plain call" => |_env| others::plain(),
                CLOCK => |env| asynchronous(others::readings(env, 1)),
                COARSE_CLOCK => |env| asynchronous(others::coarse_reading(env)),
            ),
        ),
        one(
            "shield",
            vec![Goal { peer: "limit", unit: "ns/op", at_least: 150.0 }],
            alone!(LetIn:
                OURS => |env| others::shield(others::everything(env), env),
                "herdproof, HTTP" => |env| others::shield(Shield::for_http(env), env),
                "herdproof, database" => |env| others::shield(Shield::for_database(env), env),
                "herdproof, cache" => |env| others::shield(Shield::for_cache(env), env),
                "tower stack" => |_env| others::tower_stack(),
                "plain call" => |_env| others::plain(),
                CLOCK => |env| asynchronous(others::readings(env, 3)),
            ),
        ),
    ]
}

const WALL: &str = "wall ns/call";

fn one(name: &'static str, goals: Vec<Goal>, subjects: Vec<Subject>) -> Case {
    Case { name, subjects, goals, ops: 2_000_000, instructions: true }
}

fn two(name: &'static str, goals: Vec<Goal>, subjects: Vec<Subject>) -> Case {
    Case { name, subjects, goals, ops: 2_000_000, instructions: false }
}

fn memory(name: &'static str, most: f64, subjects: &[(&'static str, fn(u64) -> Vec<Value>)]) -> Case {
    let subjects = subjects.iter().map(|&(name, run)| Subject { name, run: Run::Here(run) }).collect();
    let goals = vec![Goal { peer: "limit", unit: "bytes/key", at_least: most }];
    Case { name, subjects, goals, ops: 1_000_000, instructions: false }
}

/// Our part of what the peer needs.
fn at_most(share: f64, peer: &'static str, unit: &'static str) -> Goal {
    Goal { peer, unit, at_least: 1.0 / share }
}
