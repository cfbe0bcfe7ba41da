//! A hot key goes cold, and everybody needs it.
//!
//! Naively everybody loads it, and an origin that slows down under a crowd slows down for all of them. With a flight group
//! one caller loads it and the others share what it gets.

use std::time::Duration;

use herdproof::{Group, Sim, flight::FlightError};

use super::{
    Scenario,
    callers::{Callers, Got, timed},
};
use crate::{
    knob::{Settings, knobs},
    origin::{Down, Origin},
    report::{Check, Mark, Report, Source, say},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
/// Of one node of a content delivery network.
const VIEWERS: u64 = 10_000;

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
    let naive = herd(settings.seed, clients, law, false);
    let flight = herd(settings.seed, clients, law, true);
    let calls = |callers: u64, law, shared| herd(settings.seed, callers, law, shared).origin.calls();
    let query = Slowdown::alone(Duration::from_millis(200));
    let followers =
        herd(settings.seed, 20, query, true).got.iter().filter(|got| got.result == Ok(Part::Followed)).count();
    let queued = herd(settings.seed, 1_000, law, true);
    let slow = herd(settings.seed, crowd, law, false);
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("{clients} callers: calls without, with"),
            &[clients, 1],
            &[naive.origin.calls(), flight.origin.calls()],
        )
        .cites("N4")
        .cites("H3"),
        Check::equal(Source::Article, "20 callers, 200 ms query: calls with", &1, &calls(20, query, true))
            .cites("N18")
            .cites("C15"),
        Check::equal(Source::Article, "20 callers: followers who shared it", &19, &followers).cites("N18").cites("C3"),
        Check::equal(
            Source::Article,
            format!("{crowd} callers: calls without, with"),
            &[crowd, 1],
            &[calls(crowd, law, false), calls(crowd, law, true)],
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
            &[calls(VIEWERS, law, false), calls(VIEWERS, law, true)],
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
        arms: vec![naive.arm("naive"), flight.arm("flight")],
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
}

/// Callers who all need one key at the same instant.
fn herd(seed: u64, callers: u64, law: Slowdown, shared: bool) -> Callers<Part> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, law);
    let group: Group<&str, u64, Down> = Group::new(&env);
    let tasks = (0..callers)
        .map(|id| {
            let (env, origin, group) = (env.scope(id), origin.clone(), group.clone());
            env.clone().spawn(async move {
                let load = async move { origin.call().await };
                let call = async move {
                    if !shared {
                        return load.await.map(|_| Part::Led).map_err(|_| ());
                    }
                    let landed = group.run("odds/42", || load).await.map_err(|_: FlightError<Down>| ())?;
                    Ok(if landed.led { Part::Led } else { Part::Followed })
                };
                let got: Got<Part> = timed(env, call).await;
                got
            })
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}
