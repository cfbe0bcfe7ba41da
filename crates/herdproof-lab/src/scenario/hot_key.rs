//! A hot key goes cold, and everybody needs it.
//!
//! Naively everybody loads it, and an origin that slows down under a crowd slows down for all of them. With a flight group
//! one caller loads it and the others share what it gets.
//!
//! What they share is what the key says, no more and no less. With a key that is too fine (the caller is part of it) nothing is
//! shared; with one that is too coarse (what is asked for is not part of it) everybody gets the answer to somebody else's question.

use std::time::Duration;

use herdproof::{Group, Sim, flight::FlightError};

use super::{
    Scenario,
    callers::{Callers, Got, timed},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Report, Source, say},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
/// Of one node of a content delivery network.
const VIEWERS: u64 = 10_000;
/// What everybody wants; and how many things there are to want where the key does not say which.
const ITEM: u64 = 42;
const ITEMS: u64 = 10;

knobs! {
    /// How many want the key at one instant.
    clients: u64 = 100, 1..=20_000;
    /// How long the origin takes for one load alone.
    load: Duration = MS * 80, MS..=MS * 10_000;
    /// The larger crowd, and how many in flight the origin is slow at.
    crowd: u64 = 800, 2..=20_000;
    /// How long a load takes then; no less than alone.
    crowded: Duration = MS * 5_000, MS..=MS * 60_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hot-key",
    title: "a hot key goes cold and everybody loads it, or one does",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let Knobs { clients, crowd, .. } = knobs;
    let law = Slowdown::alone(knobs.load).at(crowd, knobs.crowded);
    let naive = herd(settings.seed, clients, law, Way::Alone, settings.tap(0));
    let flight = herd(settings.seed, clients, law, Way::Shared, settings.tap(1));
    let fine = herd(settings.seed, clients, law, Way::TooFine, settings.tap(2));
    let coarse = herd(settings.seed, clients, law, Way::TooCoarse, settings.tap(3));
    let herd = |callers, law, way| herd(settings.seed, callers, law, way, Tap::default());
    let calls = |callers: u64, law, way| herd(callers, law, way).origin.calls();
    let query = Slowdown::alone(Duration::from_millis(200));
    let followers = herd(20, query, Way::Shared).got.iter().filter(|got| got.result == Ok(Part::Followed)).count();
    let queued = herd(1_000, law, Way::Shared);
    let slow = herd(crowd, law, Way::Alone);
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("{clients} callers: calls without, with"),
            &[clients, 1],
            &[naive.origin.calls(), flight.origin.calls()],
        )
        .cites("N4")
        .cites("H3"),
        Check::equal(Source::Article, "20 callers, 200 ms query: calls with", &1, &calls(20, query, Way::Shared))
            .cites("N18")
            .cites("C15"),
        Check::equal(Source::Article, "20 callers: followers who shared it", &19, &followers).cites("N18").cites("C3"),
        Check::equal(
            Source::Article,
            format!("{crowd} callers: calls without, with"),
            &[crowd, 1],
            &[calls(crowd, law, Way::Alone), calls(crowd, law, Way::Shared)],
        )
        .cites("N5")
        .cites("H3"),
        Check::equal(
            Source::Article,
            "1,000 callers: one asks, and so many wait for its answer (article: at a proxy)",
            &(1, 999),
            &(queued.origin.calls(), queued.got.iter().filter(|got| got.result == Ok(Part::Followed)).count()),
        )
        .cites("N13")
        .cites("T12"),
        Check::equal(
            Source::Article,
            "10,000 viewers of one node: calls without, with",
            &[VIEWERS, 1],
            &[calls(VIEWERS, law, Way::Alone), calls(VIEWERS, law, Way::Shared)],
        )
        .cites("N7")
        .cites("H3"),
        Check::equal(Source::Article, format!("{crowd} callers without: p50"), &law.time(crowd), &slow.quantile(50))
            .cites("N6"),
        Check::equal(
            Source::Formula,
            format!("with: everybody waits for the one load, {}", say(knobs.load)),
            &knobs.load,
            &flight.quantile(100),
        )
        .cites("T5"),
        Check::equal(
            Source::Article,
            "a key for each caller: as many calls as without",
            &(clients, 0),
            &(fine.origin.calls(), wrong(&fine)),
        )
        .cites("C6"),
        Check::equal(
            Source::Article,
            format!("one key for {ITEMS} items: one call, and all who want another item get the wrong one"),
            &(1, clients - clients.div_ceil(ITEMS)),
            &(coarse.origin.calls(), wrong(&coarse)),
        )
        .cites("C6"),
    ];
    let times = naive.quantile(99).as_secs_f64() / flight.quantile(99).as_secs_f64();
    let summary = format!(
        "{} callers made {} calls without and {} with; p99 was {times:.1} times lower.",
        naive.got.len(),
        naive.origin.calls(),
        flight.origin.calls(),
    );
    Report {
        scenario: "hot-key",
        seed: settings.seed,
        arms: vec![
            arm("naive", &naive),
            arm("flight", &flight).sample("C3").sample("C15"),
            arm("flight, a key for each caller", &fine).sample("C6"),
            arm("flight, one key for all items", &coarse).sample("C6"),
        ],
        span: naive.quantile(100),
        marks: vec![Mark { at: Duration::ZERO, what: "the key goes cold" }],
        checks,
        summary,
        ..Report::default()
    }
}

/// What a caller's part in a load was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Led,
    Followed,
    /// It followed, and got what it had not asked for.
    Misled,
}

/// How much callers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each loads for itself.
    Alone,
    /// A key for what they want.
    Shared,
    /// A key for each of them.
    TooFine,
    /// One key, although they want different things.
    TooCoarse,
}

impl Way {
    /// What this caller wants.
    fn item(self, id: u64) -> u64 {
        if self == Way::TooCoarse { id % ITEMS } else { ITEM }
    }

    /// By which key it asks for that.
    fn key(self, id: u64) -> (u64, u64) {
        match self {
            Way::Alone | Way::Shared => (ITEM, 0),
            Way::TooFine => (ITEM, id),
            Way::TooCoarse => (0, 0),
        }
    }
}

fn wrong(callers: &Callers<Part>) -> u64 {
    callers.got.iter().filter(|got| got.result == Ok(Part::Misled)).count() as u64
}

fn arm(name: &'static str, callers: &Callers<Part>) -> Arm {
    let mut arm = callers.arm(name);
    arm.figures.push(Figure::count("wrong", "wrong", wrong(callers)));
    arm
}

/// Callers who all need one key at the same instant.
fn herd(seed: u64, callers: u64, law: Slowdown, way: Way, tap: Tap) -> Callers<Part> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, law).tapped(tap);
    let group: Group<(u64, u64), u64, Down> = Group::new(&env);
    let tasks = (0..callers)
        .map(|id| {
            let (env, origin, group) = (env.scope(id), origin.clone(), group.clone());
            env.clone().spawn(async move {
                let caller = Caller::of(id, "/odds").item(way.item(id)).in_wave("ttl", 0);
                let load = async move { origin.call_from(caller).await.map(|_| way.item(id)) };
                let call = async move {
                    if way == Way::Alone {
                        return load.await.map(|_| Part::Led).map_err(|_| ());
                    }
                    let landed = group.run(way.key(id), || load).await.map_err(|_: FlightError<Down>| ())?;
                    Ok(match landed.led {
                        true => Part::Led,
                        false if landed.value == way.item(id) => Part::Followed,
                        false => Part::Misled,
                    })
                };
                let got: Got<Part> = timed(env, call).await;
                got
            })
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
