//! One client turns what protects everybody against everybody.
//!
//! A cache that remembers failures, a breaker, a line for seats, a learner that lets private pages pass: each reacts to what it
//! sees, and what it sees is what clients send. One client with a header that the origin cannot bear makes any page answer 500.
//! If that answer is shared and remembered, all who want the page have it; if the breaker counts it, nobody reaches any page;
//! who asks for a few private pages switches coalescing off for the route they are in; and who asks for slow ones has all seats.
//! Fifty requests a second do what an attack on the origin would need thousands for.
//!
//! The rule against it is one: what one client causes, one client suffers. Before a failure is everybody's, the proxy asks with
//! a request of its own, without that client's headers. What was learned to be private widens a gate and does not open it, so
//! that a page which can be shared after all costs eight requests and not one for each user. The breaker hears whether there are
//! connections, which no request can change. And the client that holds most seats at the origin gets the next one last.
//!
//! The decisions are made by the proxy's `failing`, `learn` and `widen` and by the library's breaker and queue, with its defaults.
//! In what order the proxy asks them is repeated here in short; the origin, the attacker and the users are models. The arms of
//! a pair have the same arrivals.

mod failures;
mod gates;
mod routes;
mod world;

use std::time::Duration;

use failures::{Fails, Memory};
use gates::{Fault, Seats};
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
    /// How many slow requests the attacker has under way all the time, where it is after the seats.
    slow_calls: u64 = 300, 1..=5_000;
    /// How long each of them takes.
    slow_load: Duration = SECOND * 4, MS..=SECOND * 10;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "turned-shield",
    title: "one client feeds the cache, the breaker and the line: they fail everybody, or that client only",
    knobs: Knobs::all,
    run,
};

/// One arm.
#[derive(Clone, Copy, Debug)]
enum Way {
    Failures(Memory, Fails),
    Routes(Gate, routes::Page),
    Breaker(Fault),
    Seats(Seats),
}

const WAYS: [(&str, Way); 11] = [
    ("failures: shared, remembered", Way::Failures(Memory::Shared, Fails::ForOne)),
    ("failures: a request of our own", Way::Failures(Memory::Own, Fails::ForOne)),
    ("fails for all: a request of our own", Way::Failures(Memory::Own, Fails::ForAll)),
    ("private route: passes", Way::Routes(Gate::Open, routes::Page::Shareable)),
    ("private route: a gate that widens", Way::Routes(Gate::Widening, routes::Page::Shareable)),
    ("private pages: no gate", Way::Routes(Gate::Open, routes::Page::Private)),
    ("private pages: a gate that widens", Way::Routes(Gate::Widening, routes::Page::Private)),
    ("breaker: fed with 5xx", Way::Breaker(Fault::Status)),
    ("breaker: fed with connections", Way::Breaker(Fault::Connection)),
    ("seats: one line", Way::Seats(Seats::OneLine)),
    ("seats: fair by client", Way::Seats(Seats::Fair)),
];

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let seed = settings.seed;
    let outcomes = settings.arms(&WAYS, |arm, (_, way)| {
        let tap = settings.tap(arm);
        match *way {
            Way::Failures(memory, fails) => failures::run(seed, knobs, memory, fails, tap),
            Way::Routes(gate, page) => routes::run(seed, knobs, gate, page, tap),
            Way::Breaker(fault) => gates::breaker(seed, knobs, fault, true, tap),
            Way::Seats(seats) => gates::seats(seed, knobs, seats, tap),
        }
    });
    let [shared, own, _, passes, widens, _, _, closed, open, line, fair] = &outcomes;
    let summary = format!(
        "one client with {:.0} requests a second fails {:.0} % of the users where its failures are shared and remembered, and \
         {:.0} % where a request of our own decides (99 of 100 wait for {:.0} ms at most); {:.0} % where they trip the breaker, and \
         {:.0} % where only lost connections do. Five herds of {} at pages of a route that it made look private cost {} \
         requests, or {} through a gate that widens. With {} slow requests under way it fails {:.0} % in one line for the \
         seats, and {:.0} % where they are shared fairly.",
        knobs.attack,
        Outcome::failed_percent(shared),
        Outcome::failed_percent(own),
        own.wait(99).as_secs_f64() * 1e3,
        Outcome::failed_percent(closed),
        Outcome::failed_percent(open),
        knobs.herd,
        passes.for_users(),
        widens.for_users(),
        knobs.slow_calls,
        Outcome::failed_percent(line),
        Outcome::failed_percent(fair),
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

fn checks(settings: &Settings, knobs: Knobs, outcomes: &[Outcome; WAYS.len()]) -> Vec<Check> {
    let [_, own, for_all, passes, widens, no_gate, gate, closed, open, line, fair] = outcomes;
    let herds = failures::run(settings.seed, knobs, Memory::Own, Fails::ForHerds, Tap::default());
    let unreachable = gates::breaker(settings.seed, knobs, Fault::Connection, false, Tap::default());
    let per_herd = |outcome: &Outcome| outcome.for_users() as f64 / HERDS as f64;
    let demand = (knobs.attack + knobs.users) * LAST.as_secs_f64();
    let unkept = Knobs { fresh: Duration::ZERO, ..knobs };
    let unkept = |memory| failures::run(settings.seed, unkept, memory, Fails::ForOne, Tap::default());
    let (unkept_shared, unkept_own) = (unkept(Memory::Shared), unkept(Memory::Own));
    let behind_one = failures::run(settings.seed, knobs, Memory::Own, Fails::BehindOneAddress, Tap::default());
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let checks = vec![
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
            Source::Formula,
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
        Check::at_least(
            Source::Formula,
            "one line for the seats: percent of the users that slow requests of one client keep out",
            50.0,
            line.failed_percent(),
        ),
        Check::equal(Source::Promise, "fair seats: users that they keep out", &0, &fair.failed()),
        Check::at_most(
            Source::Promise,
            "... p99 of the users, in loads",
            1.25,
            fair.wait(99).as_secs_f64() / knobs.load.as_secs_f64(),
        ),
    ];
    // Of ARCHITECTURE.md: what one client causes, one client suffers.
    checks.into_iter().map(|check| check.cites("invariant 12")).collect()
}
