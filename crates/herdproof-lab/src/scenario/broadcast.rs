//! Two hundred thousand clients are told in the same instant that there is something new.
//!
//! A push is quicker than polling, and it is the better synchronizer: where clients that poll once a minute make `N / 60` fetches a
//! second, those that are told make `N` at once, sixty times as many. The server's line takes a second of them, the others are refused,
//! and come again together. It is the same whether they fetch flags, a configuration, or the endpoints of a service.
//!
//! Waiting for a moment of one's own within `D` makes it `N / D` a second; `D` follows from what the server can do, and is the price:
//! the last to know is that late. A delta instead of the whole makes a fetch cheaper and so `D` shorter. And a fetch may fail all the
//! same: here the server is down for a second. Whoever keeps what it had goes on with that and asks again; whoever throws it away at the
//! news has nothing until its fetch succeeds.

use std::{sync::Arc, time::Duration};

use herdproof::{Backoff, Env, Sim, Tick, schedule::Spread};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, say},
    service::{Plan, Seen, Service},
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const BIN: Duration = SEC;
/// When the server is down.
const DOWN: Duration = Duration::from_secs(2);
const UP: Duration = Duration::from_secs(3);
/// How many rounds of those who ask in step are watched.
const WAVES: u32 = 3;
/// What the server can do is not asked of it in full.
const COMFORTABLE: f64 = 5.0 / 6.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    AtOnce,
    Spread,
    Kept,
    Delta,
}

const WAYS: [(Way, &str); 4] = [
    (Way::AtOnce, "all at once"),
    (Way::Spread, "spread"),
    (Way::Kept, "spread, last known good"),
    (Way::Delta, "and a delta"),
];

knobs! {
    /// How many clients are told.
    clients: u64 = 200_000, 1..=200_000;
    /// How often each would ask if nobody told it, and when it asks again if it knows nothing better.
    period: Duration = SEC * 60, SEC * 5..=SEC * 600;
    /// How many fetches the server works on at a time.
    workers: usize = 4, 1..=1_000;
    /// How long one takes.
    fetch: Duration = MS, MS / 100..=SEC;
    /// How many may stand in its line.
    line: usize = 4_000, 1..=1_000_000;
    /// How many times cheaper a delta is than the whole.
    cheaper: u32 = 10, 1..=1_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "broadcast",
    title: "200,000 clients hear of something new at once: sixty times the load, or as much as always",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs = settings.arms(&WAYS, |arm, (way, _)| Run::new(settings.seed, knobs, *way, settings.tap(arm)));
    let [at_once, spread, kept, delta] = &runs;
    let summary = format!(
        "told at once, {} clients make {:.0} times the fetches of clients that poll, and {} are served; spread over {} none is \
         refused while the server is up. A second of outage stops {} clients, and none that keep what they had; with deltas all \
         are up to date after {:.1} s instead of {:.1}.",
        knobs.clients,
        at_once.over_polling(),
        at_once.served_in_first_second(),
        say(knobs.spread(Way::Spread)),
        spread.told.stopped,
        delta.last(),
        kept.last(),
    );
    Report {
        scenario: "broadcast",
        seed: settings.seed,
        parameters: vec![Parameter::new("down", "from second 2 to 3")],
        arms: WAYS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: knobs.period,
        marks: vec![
            Mark { at: Duration::ZERO, what: "everybody is told" },
            Mark { at: DOWN, what: "the server is down" },
            Mark { at: UP, what: "it is back" },
        ],
        checks: checks(knobs, &runs),
        summary,
        ..Report::default()
    }
}

fn checks(knobs: Knobs, [at_once, spread, kept, delta]: &[Run; 4]) -> Vec<Check> {
    let Knobs { clients, .. } = knobs;
    let first = clients.min((knobs.line + knobs.workers) as u64);
    let per_second = |way| clients as f64 / knobs.spread(way).as_secs_f64().max(1e-9);
    let highest = |way| per_second(way) + 5.0 * per_second(way).sqrt();
    let unlucky = per_second(Way::Spread) * UP.saturating_sub(DOWN).as_secs_f64();
    vec![
        Check::equal(
            Source::Article,
            "all at once: the burst over the mean of as many clients that poll once a minute",
            &knobs.period.as_secs_f64(),
            &at_once.over_polling(),
        )
        .cites("N33")
        .cites("H12")
        .cites("H8"),
        Check::equal(
            Source::Formula,
            "... of whom as many are served as the line and the workers hold",
            &first,
            &at_once.served_in_first_second(),
        )
        .cites("H12")
        .cites("H25"),
        Check::equal(
            Source::Formula,
            "... and as many again in each period, for they come again in step",
            &clients.min(first * u64::from(WAVES)),
            &at_once.told.has_it,
        )
        .cites("H12"),
        Check::at_most(
            Source::Article,
            format!(
                "spread over D = {}: N / D fetches in the worst second, and five deviations",
                say(knobs.spread(Way::Spread))
            ),
            highest(Way::Spread),
            spread.seen.calls.counts().iter().take(knobs.window_bins()).copied().max().unwrap_or(0) as f64,
        )
        .cites("T30")
        .cites("N33"),
        Check::equal(
            Source::Promise,
            "... refused while the server was up, whatever is kept",
            &[0, 0],
            &[spread, kept].map(|run| run.told.failed - run.told.failed_while_down),
        )
        .cites("T30"),
        Check::within(
            Source::Formula,
            "... a second of outage stops those whose moment was then, N / D",
            unlucky,
            4.0 * unlucky.sqrt(),
            spread.told.stopped as f64,
        )
        .cites("T30")
        .cites("H25"),
        Check::equal(
            Source::Promise,
            "last known good: clients that a failed fetch stops",
            &[0, 0],
            &[kept, delta].map(|run| run.told.stopped),
        )
        .cites("T30")
        .cites("H25"),
        Check::equal(
            Source::Promise,
            "... and everybody has the news in the end",
            &[clients, clients],
            &[kept, delta].map(|run| run.told.has_it),
        )
        .cites("T30"),
        Check::at_most(
            Source::Promise,
            "... the last after D and a second (s)",
            (knobs.spread(Way::Kept) + SEC).as_secs_f64(),
            kept.last(),
        )
        .cites("T30"),
        Check::at_most(
            Source::Formula,
            format!(
                "a delta that is {} times cheaper: the last knows it in half the time, outage included (s)",
                knobs.cheaper
            ),
            kept.last() / 2.0,
            delta.last(),
        )
        .cites("T30"),
    ]
}

impl Knobs {
    fn server(self, way: Way) -> Plan {
        let fetch = if way == Way::Delta { self.fetch / self.cheaper } else { self.fetch };
        Plan { line: self.line, ..Plan::new(self.workers, fetch.max(Duration::from_nanos(1))) }
    }

    /// Over how long clients spread what they do.
    fn spread(self, way: Way) -> Duration {
        *self.reaction(way).range().end()
    }

    fn reaction(self, way: Way) -> Spread {
        match way {
            Way::AtOnce => Spread::over(Duration::ZERO),
            _ => Spread::of_crowd(self.clients, self.server(way).capacity() * COMFORTABLE),
        }
    }

    /// Until when it is watched: for three rounds of those who ask in step, or until everybody had its moment.
    fn end(self, way: Way) -> Duration {
        let rounds = self.period * (2 * WAVES - 1) / 2;
        if way == Way::AtOnce { rounds } else { rounds.max(self.spread(way) + SEC * 30) }
    }

    /// In how many seconds of the picture the first fetches are.
    fn window_bins(self) -> usize {
        usize::try_from(self.spread(Way::Spread).as_secs()).unwrap_or(usize::MAX).max(1)
    }
}

struct Run {
    knobs: Knobs,
    seen: Seen,
    told: Told,
}

/// What came of all clients.
#[derive(Clone, Copy, Default)]
struct Told {
    has_it: u64,
    last: Duration,
    failed: u64,
    failed_while_down: u64,
    /// Clients that had nothing for a while.
    stopped: u64,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let server = Service::tapped(&env, "server", BIN, knobs.server(way), tap);
        let told = Arc::new(Mutex::new(Told::default()));
        for id in 0..knobs.clients {
            env.spawn(client(env.scope(id), id, knobs, way, server.clone(), Arc::clone(&told))).detach();
        }
        sim.run_until(Tick::ZERO + DOWN);
        server.change(|plan| plan.down = true);
        sim.run_until(Tick::ZERO + UP);
        server.change(|plan| plan.down = false);
        sim.run_until(Tick::ZERO + knobs.end(way));
        let told = *told.lock();
        Run { knobs, seen: server.seen(), told }
    }

    /// How many times the rate of clients that poll the busiest second has.
    fn over_polling(&self) -> f64 {
        self.seen.calls.peak() as f64 * self.knobs.period.as_secs_f64() / self.knobs.clients as f64
    }

    fn served_in_first_second(&self) -> u64 {
        // What is in the line then is served a moment later, and nobody else is: all came at once.
        self.seen.served.counts().iter().take(self.knobs.line_bins()).sum()
    }

    /// When the last client had it, in seconds.
    fn last(&self) -> f64 {
        self.told.last.as_secs_f64()
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("fetches", "fetches", self.seen.calls.total()),
            Figure::count("peak_per_second", "peak/s", self.seen.calls.peak()),
            Figure::number("over_polling", "x polling", self.over_polling()),
            Figure::count("failed", "failed", self.told.failed),
            Figure::count("stopped", "stopped", self.told.stopped),
            Figure::count("up_to_date", "up to date", self.told.has_it),
            Figure::number("last_s", "the last, s", self.last()),
        ];
        Arm::new(name, figures, self.seen.calls.clone())
    }
}

impl Knobs {
    /// Seconds that the server needs for a full line.
    fn line_bins(self) -> usize {
        let line = self.line as f64 / self.server(Way::AtOnce).capacity();
        Duration::try_from_secs_f64(line)
            .map_or(usize::MAX, |time| usize::try_from(time.as_secs()).unwrap_or(usize::MAX) + 1)
    }
}

/// Hears of the news at tick zero, and fetches it until it has it.
async fn client(env: Env, id: u64, knobs: Knobs, way: Way, server: Service, told: Arc<Mutex<Told>>) {
    let rng = env.rng("broadcast");
    if way != Way::AtOnce {
        knobs.reaction(way).wait(&env, &rng).await;
    }
    let mut delays = Backoff::exponential(SEC).cap(knobs.period / 8).delays();
    let mut had_nothing = false;
    let mut waves = 0..;
    let mut fetch = || {
        let wave = waves.next().unwrap_or(u32::MAX);
        server.call_from(Caller::of(id, "/flags").in_wave("broadcast", wave))
    };
    while fetch().await.is_err() {
        let now = env.now() - Tick::ZERO;
        {
            let mut told = told.lock();
            told.failed += 1;
            told.failed_while_down += u64::from((DOWN..UP).contains(&now));
            if matches!(way, Way::AtOnce | Way::Spread) && !had_nothing {
                had_nothing = true;
                told.stopped += 1;
            }
        }
        let pause = if had_nothing { knobs.period } else { delays.next(&rng) };
        env.sleep(pause).await;
    }
    let mut told = told.lock();
    told.has_it += 1;
    told.last = env.now() - Tick::ZERO;
}
