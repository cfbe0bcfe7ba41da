//! One client turns what protects everybody against everybody.
//!
//! A cache that remembers failures, a breaker, a learner that lets private pages pass: each reacts to what it sees, and what it
//! sees is what clients send. One client with a header that the origin cannot bear makes any page answer 500. If that answer is
//! shared and remembered, all who want the page have it; if the breaker counts it, nobody reaches any page; and who asks for a
//! few private pages switches coalescing off for the route they are in. Fifty requests a second do what an attack on the
//! origin would need thousands for.
//!
//! The rule against it is one: what one client causes, one client suffers. Before a failure is everybody's, the proxy asks with
//! a request of its own, without that client's headers. What was learned to be private widens a gate and does not open it, so
//! that a page which can be shared after all costs eight requests and not one for each user. The breaker hears of connections,
//! which no request can break.
//!
//! What is decided here is decided by the proxy's own code; the origin, the attacker and the users are models. Every pair of arms
//! has the same arrivals.

mod failures;
mod gates;
mod routes;
mod world;

use std::time::Duration;

use failures::Memory;
use gates::Fault;
use routes::Gate;
use world::{HERDS, Outcome};

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::Tap,
    report::{Check, Report, Source},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// How long requests come.
const LAST: Duration = Duration::from_secs(30);

knobs! {
    /// The attacker's requests a second.
    attack: f64 = 50.0, 1.0..=500.0;
    /// Users a second, where they come one by one.
    users: f64 = 20.0, 1.0..=500.0;
    /// How many of them come at once, where they come in herds.
    herd: u64 = 400, 1..=5_000;
    /// How long the origin works on a request.
    load: Duration = MS * 80, MS..=SECOND * 2;
    /// On how many it works at a time.
    workers: usize = 64, 1..=1_000;
    /// How long a page is fresh.
    fresh: Duration = SECOND, Duration::ZERO..=SECOND * 30;
    /// How many come at once for pages that are each user's own.
    private_herd: u64 = 800, 1..=5_000;
    /// How long the origin works on such a page on average.
    private_load: Duration = MS * 200, MS..=SECOND * 2;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "turned-shield",
    title: "one client feeds the cache, the gate and the breaker: they refuse everybody, or only that client",
    knobs: Knobs::all,
    run,
};

/// One arm.
#[derive(Clone, Copy, Debug)]
enum Way {
    Failures(Memory, failures::Page),
    Routes(Gate, routes::Page),
    Breaker(Fault),
}

const WAYS: [(&str, Way); 9] = [
    ("failures: shared, remembered", Way::Failures(Memory::Shared, failures::Page::FailsForOne)),
    ("failures: a request of our own", Way::Failures(Memory::Own, failures::Page::FailsForOne)),
    ("fails for all: a request of our own", Way::Failures(Memory::Own, failures::Page::FailsForAll)),
    ("private route: passes", Way::Routes(Gate::Open, routes::Page::Shareable)),
    ("private route: a gate that widens", Way::Routes(Gate::Widening, routes::Page::Shareable)),
    ("private pages: no gate", Way::Routes(Gate::Open, routes::Page::Private)),
    ("private pages: a gate that widens", Way::Routes(Gate::Widening, routes::Page::Private)),
    ("breaker: fed with 5xx", Way::Breaker(Fault::Status)),
    ("breaker: fed with connections", Way::Breaker(Fault::Connection)),
];

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let seed = settings.seed;
    let outcomes = settings.arms(&WAYS, |arm, (_, way)| {
        let tap = settings.tap(arm);
        match *way {
            Way::Failures(memory, page) => failures::run(seed, knobs, memory, page, tap),
            Way::Routes(gate, page) => routes::run(seed, knobs, gate, page, tap),
            Way::Breaker(fault) => gates::breaker(seed, knobs, fault, true, tap),
        }
    });
    let [shared, own, .., closed, open] = &outcomes;
    let [_, _, _, passes, widens, ..] = &outcomes;
    let summary = format!(
        "one client with {:.0} requests a second fails {:.0} % of the users where its failures are shared and remembered, and \
         {:.0} % where a request of our own decides (99 of 100 wait for {:.0} ms at most); {:.0} % where they trip the breaker, and \
         {:.0} % where only lost connections do. Five herds of {} at pages of a route that it made look private cost {} \
         requests, or {} through a gate that widens.",
        knobs.attack,
        Outcome::failed_percent(shared),
        Outcome::failed_percent(own),
        own.wait(99).as_secs_f64() * 1e3,
        Outcome::failed_percent(closed),
        Outcome::failed_percent(open),
        knobs.herd,
        passes.for_users(),
        widens.for_users(),
    );
    let arms = WAYS.iter().zip(&outcomes).map(|((name, _), outcome)| outcome.arm(name)).collect();
    Report {
        scenario: "turned-shield",
        seed,
        arms,
        span: LAST,
        checks: checks(settings, knobs, &outcomes),
        summary,
        ..Report::default()
    }
}

fn checks(settings: &Settings, knobs: Knobs, outcomes: &[Outcome; 9]) -> Vec<Check> {
    let [_, own, for_all, passes, widens, no_gate, gate, closed, open] = outcomes;
    let herds = failures::run(settings.seed, knobs, Memory::Own, failures::Page::FailsForHerds, Tap::default());
    let unreachable = gates::breaker(settings.seed, knobs, Fault::Connection, false, Tap::default());
    let per_herd = |outcome: &Outcome| outcome.for_users() as f64 / HERDS as f64;
    let demand = (knobs.attack + knobs.users) * LAST.as_secs_f64();
    let unkept = Knobs { fresh: Duration::ZERO, ..knobs };
    let unkept = |memory| failures::run(settings.seed, unkept, memory, failures::Page::FailsForOne, Tap::default());
    let (unkept_shared, unkept_own) = (unkept(Memory::Shared), unkept(Memory::Own));
    let behind_one = failures::Page::FailsBehindOneAddress;
    let behind_one = failures::run(settings.seed, knobs, Memory::Own, behind_one, Tap::default());
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    vec![
        Check::within(
            Source::Formula,
            "failures shared and remembered: percent of the users that one client fails, by who comes first (16 runs)",
            failures::shared_by_arithmetic(knobs).round(),
            8.0,
            failures::shared_by_runs(settings.seed, knobs),
        ),
        Check::at_least(
            Source::Formula,
            "... and of a page that may be shared, but not kept",
            85.0,
            unkept_shared.failed_percent(),
        ),
        Check::equal(
            Source::Promise,
            "a request of our own decides: users that one client fails; the same of a page that is not kept, and behind one address",
            &[0; 3],
            &[own.failed(), unkept_own.failed(), behind_one.failed()],
        ),
        Check::at_most(
            Source::Promise,
            "... milliseconds that anybody waits: the pace of 2 a second, and two loads",
            500.0 + 2.0 * millis(knobs.load),
            [own, &unkept_own, &behind_one].map(|run| millis(run.wait(100))).into_iter().fold(0.0, f64::max),
        ),
        Check::at_most(
            Source::Promise,
            "a page that fails for all: requests in any second",
            3.0,
            for_all.most_in_a_second() as f64,
        ),
        Check::equal(
            Source::Promise,
            "herds at a page that fails for all: requests for each herd",
            &2.0,
            &per_herd(&herds),
        ),
        Check::equal(
            Source::Formula,
            "a route that is taken for private passes: requests for each herd",
            &(knobs.herd as f64),
            &per_herd(passes),
        ),
        Check::at_most(Source::Promise, "a gate that widens: requests for each herd", 8.0, per_herd(widens)),
        Check::equal(
            Source::Promise,
            "private pages: through the gate everybody gets one, as without",
            &no_gate.for_users(),
            &gate.for_users(),
        ),
        Check::at_most(
            Source::Promise,
            "... p99 through the gate, as a share of that without",
            1.15,
            gate.wait(99).as_secs_f64() / no_gate.wait(99).as_secs_f64(),
        ),
        Check::at_least(
            Source::Promise,
            "breaker fed with 5xx: percent of the users that it refuses",
            80.0,
            closed.failed_percent(),
        ),
        Check::equal(Source::Promise, "breaker fed with connections: users that it refuses", &0, &open.failed()),
        Check::at_most(
            Source::Promise,
            "... and if there are no connections: the share of all requests that are tried",
            0.05,
            unreachable.calls() as f64 / demand,
        ),
    ]
}
