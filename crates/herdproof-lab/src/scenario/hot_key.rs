//! A hot key goes cold, and everybody needs it.
//!
//! Naively everybody loads it, and an origin that slows down under a crowd slows down for all of them. With a flight group
//! one caller loads it and the others share what it gets.

use std::time::Duration;

use herdproof::{Group, Sim, flight::FlightError};

use super::{
    Scenario, Settings,
    callers::{Callers, Got, timed},
};
use crate::{
    origin::{Down, Origin},
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
const LAW: Slowdown = Slowdown::alone(Duration::from_millis(80)).at(800, Duration::from_secs(5));

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hot-key",
    title: "a hot key goes cold and everybody loads it, or one does",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let naive = herd(settings.seed, 100, LAW, false);
    let flight = herd(settings.seed, 100, LAW, true);
    let calls = |callers: u64, law, shared| herd(settings.seed, callers, law, shared).origin.calls();
    let query = Slowdown::alone(Duration::from_millis(200));
    let followers =
        herd(settings.seed, 20, query, true).got.iter().filter(|got| got.result == Ok(Part::Followed)).count();
    let crowd = herd(settings.seed, 800, LAW, false);
    let checks = vec![
        Check::equal(
            Source::Article,
            "100 callers: calls without, with",
            &[100, 1],
            &[naive.origin.calls(), flight.origin.calls()],
        ),
        Check::equal(Source::Article, "20 callers, 200 ms query: calls with", &1, &calls(20, query, true)),
        Check::equal(Source::Article, "20 callers: followers who shared it", &19, &followers),
        Check::equal(
            Source::Article,
            "800 callers: calls without, with",
            &[800, 1],
            &[calls(800, LAW, false), calls(800, LAW, true)],
        ),
        Check::equal(Source::Article, "800 callers without: p50", &Duration::from_secs(5), &crowd.quantile(50)),
        Check::equal(
            Source::Formula,
            "with: everybody waits for the one load, 80 ms",
            &(MS * 80),
            &flight.quantile(100),
        ),
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
        parameters: vec![Parameter::new("clients", 100), Parameter::new("origin", LAW)],
        arms: vec![naive.arm("naive"), flight.arm("flight")],
        span: naive.quantile(100),
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
