//! One blip at the origin, and everybody who shared the load has an error.
//!
//! Sharing a load means sharing its failure. The usual cure, letting each waiter try for itself, turns a failing origin
//! into a convoy of serial loads. Trying again inside the flight is neither.
//!
//! And a load may panic. In the 25 lines that an article has for sharing a load, nobody is told then: those who wait, wait for ever, and so
//! does whoever comes later, since the load is still on the map. A flight that has crashed is over, and says so.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use herdproof::{Env, Group, Sim, flight::Retries, timeout::by};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::{
    Scenario,
    callers::{Callers, timed},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Check, Parameter, Report, Source},
    slowdown::Slowdown,
};

const MS: Duration = Duration::from_millis(1);
/// How many loads long a caller waits where it might wait for ever.
const PATIENCE: u32 = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Everybody loads.
    Naive,
    /// One loads, and its error is everybody's.
    Share,
    /// One loads; if that fails, every follower tries again, one after another.
    Convoy,
    /// One loads, and tries once more before it gives up.
    Retry,
    /// The article's 25 lines, and the first load panics.
    LinesPanic,
    /// The flight, and the first load panics.
    FlightPanics,
}

knobs! {
    /// How many share a load.
    clients: u64 = 20, 1..=5_000;
    /// How long it takes.
    load: Duration = MS * 50, MS..=MS * 10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "shared-failure",
    title: "one failed load fails everybody who shared it, unless it is tried again inside",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let Knobs { clients, load } = knobs;
    let blip = |arm, policy| herd(settings.seed, knobs, policy, 1, settings.tap(arm));
    let outage = |tap, policy| herd(settings.seed, knobs, policy, u64::MAX, tap);
    let (naive, share, retry) = (blip(0, Policy::Naive), blip(1, Policy::Share), blip(2, Policy::Retry));
    let convoy = outage(settings.tap(3), Policy::Convoy);
    let shared_outage = outage(settings.tap(4), Policy::Share);
    let retried_outage = outage(Tap::default(), Policy::Retry);
    let panic = |arm, policy| herd(settings.seed, knobs, policy, 0, settings.tap(arm));
    let (lines, flight) = (panic(5, Policy::LinesPanic), panic(6, Policy::FlightPanics));
    let figures = |callers: &Callers<u64>| [callers.origin.calls(), callers.errors()];
    let loads = u32::try_from(clients).unwrap_or(u32::MAX);
    let checks = vec![
        Check::equal(Source::Formula, "one blip, naive: calls, errors", &[clients, 1], &figures(&naive)).cites("H27"),
        Check::equal(Source::Article, "one blip, shared: calls, errors", &[1, clients], &figures(&share)).cites("H27"),
        Check::equal(Source::Formula, "one blip, retry inside: calls, errors", &[2, 0], &figures(&retry))
            .cites("H27")
            .cites("T5"),
        Check::equal(Source::Formula, "outage, shared: calls, errors", &[1, clients], &figures(&shared_outage))
            .cites("H27"),
        Check::equal(Source::Formula, "outage, retry inside: calls, errors", &[2, clients], &figures(&retried_outage))
            .cites("H27")
            .cites("T5"),
        Check::equal(Source::Formula, "outage, convoy: calls, errors", &[clients, clients], &figures(&convoy))
            .cites("H27")
            .cites("C8"),
        Check::equal(
            Source::Formula,
            "outage, convoy: the last waits for every load",
            &(load * loads),
            &convoy.quantile(100),
        )
        .cites("H27")
        .cites("C8"),
        Check::equal(
            Source::Article,
            "25 lines, the load panics: (calls, errors), also of who comes when that is long over",
            &[1, clients],
            &figures(&lines),
        )
        .cites("C2"),
        Check::equal(
            Source::Article,
            "... nobody is told: those who wait give up when their patience is over",
            &(load * PATIENCE),
            &lines.quantile(50),
        )
        .cites("C2"),
        Check::equal(
            Source::Article,
            "25 lines: who was waiting and asks again at once gets the same answer again, as it is taken off the map too late",
            &[clients - 1, 0],
            &[true, false].map(|lines| asked_again(settings.seed, knobs, lines)),
        )
        .cites("C2"),
        Check::equal(
            Source::Promise,
            "flight, the load panics: (calls, errors); who comes later has a load of its own",
            &[2, clients - 1],
            &figures(&flight),
        )
        .cites("C4"),
        Check::equal(Source::Promise, "... and everybody is told when it is over", &load, &flight.quantile(100))
            .cites("C4"),
    ];
    let summary = format!(
        "one failed call became {} errors when shared, and none when tried again inside the flight, for {} calls instead \
         of {}.",
        share.errors(),
        retry.origin.calls(),
        naive.origin.calls(),
    );
    Report {
        scenario: "shared-failure",
        seed: settings.seed,
        parameters: vec![Parameter::new("failures", "the first call; in an outage, every call")],
        arms: vec![
            naive.arm("naive, one blip"),
            share.arm("shared, one blip"),
            retry.arm("retry inside, one blip"),
            convoy.arm("convoy, outage").sample("C8"),
            shared_outage.arm("shared, outage"),
            lines.arm("25 lines, a panic").sample("C2"),
            flight.arm("flight, a panic").sample("C4"),
        ],
        span: Duration::ZERO,
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(seed: u64, knobs: Knobs, policy: Policy, failures: u64, tap: Tap) -> Callers<u64> {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, Slowdown::alone(knobs.load)).failing(failures).tapped(tap);
    let group: Group<&str, u64, Down> = Group::new(&env);
    let retries = Retries::new(&env, 1);
    let lines = Lines::default();
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let tasks = (0..knobs.clients)
        .map(|id| {
            let caller = Caller::of(id, "/key").in_wave("ttl", 0);
            let (origin, group, turn) = (origin.clone(), group.clone(), turn.clone());
            let retries = retries.clone();
            let panics = matches!(policy, Policy::LinesPanic | Policy::FlightPanics);
            let load = move || {
                let origin = origin.clone();
                async move {
                    let answer = origin.call_from(caller).await;
                    if panics && answer == Ok(1) {
                        // As a panic, but without a word on the terminal.
                        resume_unwind(Box::new("the first load"));
                    }
                    answer
                }
            };
            let (clock, lines) = (env.clone(), lines.clone());
            let is_late = panics && id + 1 == knobs.clients;
            let call = async move {
                match policy {
                    Policy::Naive => load().await.map_err(|_| ()),
                    Policy::Share => group.run("key", load).await.map(|landed| landed.value).map_err(|_| ()),
                    Policy::Retry => {
                        group.run_retrying("key", &retries, load).await.map(|landed| landed.value).map_err(|_| ())
                    }
                    Policy::LinesPanic | Policy::FlightPanics => {
                        let (deadline, env) = (clock.now() + knobs.load * PATIENCE, clock.clone());
                        // Whoever began the load has its panic.
                        let call = clock.spawn(async move {
                            if policy == Policy::LinesPanic {
                                return lines.run(&env, load()).await;
                            }
                            group.run("key", load).await.map(|landed| landed.value).map_err(|_| Down)
                        });
                        by(&clock, Some(deadline), call).await.and_then(Result::ok).unwrap_or(Err(Down)).map_err(|_| ())
                    }
                    Policy::Convoy => {
                        let _turn = turn.lock().await;
                        load().await.map_err(|_| ())
                    }
                }
            };
            let clock = env.clone();
            env.spawn(async move {
                if is_late {
                    clock.sleep(knobs.load * 2).await;
                }
                timed(clock, call).await
            })
        })
        .collect();
    Callers::gather(&mut sim, &origin, tasks)
}

/// The 25 lines of the article: whoever finds no call on the map makes one, the others wait until it is done. As there, nothing is done
/// about a load that panics, and a call is done before it is taken off the map. Clones share.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Option<Arc<Call>>>>);

struct Call {
    answer: Mutex<Result<u64, Down>>,
    /// Closed when it is done.
    done: Semaphore,
}

impl Lines {
    async fn run(&self, env: &Env, load: impl Future<Output = Result<u64, Down>>) -> Result<u64, Down> {
        let found = self.0.lock().clone();
        if let Some(call) = found {
            // Closed, or it would wait for ever.
            drop(call.done.acquire().await);
            return *call.answer.lock();
        }
        let call = Arc::new(Call { answer: Mutex::new(Err(Down)), done: Semaphore::new(0) });
        *self.0.lock() = Some(Arc::clone(&call));
        let answer = load.await;
        *call.answer.lock() = answer;
        call.done.close();
        // Between these two lines others run.
        env.sleep(Duration::from_nanos(1)).await;
        *self.0.lock() = None;
        answer
    }
}

/// How many of those who waited for a load, and ask again as soon as they have the answer, get the same one.
fn asked_again(seed: u64, knobs: Knobs, by_lines: bool) -> u64 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, MS, Slowdown::alone(knobs.load));
    let (group, lines): (Group<&str, u64, Down>, _) = (Group::new(&env), Lines::default());
    let callers: Vec<_> = (0..knobs.clients)
        .map(|_| {
            let (clock, origin, group, lines) = (env.clone(), origin.clone(), group.clone(), lines.clone());
            env.spawn(async move {
                let ask = async || {
                    let load = {
                        let origin = origin.clone();
                        async move { origin.call().await }
                    };
                    if by_lines {
                        return lines.run(&clock, load).await;
                    }
                    group.run("key", || load).await.map(|landed| landed.value).map_err(|_| Down)
                };
                ask().await == ask().await
            })
        })
        .collect();
    sim.run(async {
        let mut same = 0;
        for caller in callers {
            same += u64::from(caller.await.expect("a caller neither panics nor is aborted"));
        }
        same
    })
}
