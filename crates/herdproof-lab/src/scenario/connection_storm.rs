//! A load balancer restarts, and every client dials again.
//!
//! A server that makes `H` handshakes a second needs `N / H` seconds for `N` clients whatever they do. What they do decides
//! how often it is asked, and how much of its work is for somebody.
//!
//! - Dialling at once overflows the accept queue. A client that was dropped finds out by its timeout and dials again, with
//!   everybody else. Between two waves the server has emptied its queue and is idle.
//! - A fixed pause makes the waves rarer, and the server idle for longer.
//! - A longer queue is no remedy. If it holds more than can be served within the clients' timeout, those at its end have
//!   given up when it is their turn, their handshakes are made for nobody, and after the first wave nobody gets in at all.
//!   corrects: "set the backlog to 4096"; it has to be less than `H x timeout`.
//! - Full jitter after failures spreads the later attempts, but not the first, which is the whole crowd.
//! - Spread over `W >= N / H` from the first attempt on there is no queue to speak of.
//!
//! Scaled from 100,000 clients to 10,000; the server and its queue are scaled with them.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use herdproof::{Backoff, Env, Sim, Tick, backoff::Jitter, connect::Reconnect};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Scenario, Settings};
use crate::{
    report::{Arm, Check, Figure, Parameter, Report, Source},
    service::{Plan, Service, Unserved},
    timeline::Timeline,
};

const CLIENTS: u64 = 10_000;
const CORES: usize = 8;
const HANDSHAKE: Duration = Duration::from_millis(16);
const PER_SECOND: f64 = 500.0;
const QUEUE: usize = 410;
const LONG_QUEUE: usize = 2_000;
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(5);
const BIN: Duration = Duration::from_millis(250);
/// After this long, those who are not connected are counted as such.
const LIMIT: Duration = Duration::from_secs(250);
const SHORT_LIMIT: Duration = Duration::from_secs(40);

/// What a storm did.
struct Storm {
    dials: Timeline,
    connected: Timeline,
    dropped: u64,
    wasted: u64,
    longest_queue: usize,
    /// When the last client was connected; `None` if some were not in the end.
    over: Option<Duration>,
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "connection-storm",
    title: "every connection is lost at once: dialling again in waves, or spread over as long as it takes",
    knobs: Vec::new,
    run,
};

fn run(settings: &Settings) -> Report {
    let storm = |queue, limit, reconnect: Reconnect| storm(settings.seed, queue, limit, &reconnect);
    let fixed = |pause| {
        let backoff = Backoff::constant(pause).jitter(Jitter::None);
        Reconnect::new().spread(Duration::ZERO).backoff(backoff)
    };
    let at_once = storm(QUEUE, LIMIT, fixed(Duration::ZERO));
    let long = storm(LONG_QUEUE, SHORT_LIMIT, fixed(Duration::ZERO));
    let waves = storm(QUEUE, LIMIT, fixed(PAUSE));
    let jitter = storm(QUEUE, LIMIT, Reconnect::new().spread(Duration::ZERO));
    let spread = storm(QUEUE, LIMIT, Reconnect::new().crowd(CLIENTS, PER_SECOND * 0.8));
    let summary = format!(
        "dialling at once takes {} dials and {:.0} s; with a pause of 5 s {:.0} s; with full jitter {} dials and {:.0} s; spread \
         over 25 s from the first attempt on {} dials, {:.0} s, and {} dropped.",
        at_once.dials.total(),
        at_once.seconds(),
        waves.seconds(),
        jitter.dials.total(),
        jitter.seconds(),
        spread.dials.total(),
        spread.seconds(),
        spread.dropped,
    );
    Report {
        scenario: "connection-storm",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("clients", CLIENTS),
            Parameter::new("handshakes/s", PER_SECOND),
            Parameter::new("accept queue", QUEUE),
            Parameter::new("long queue", LONG_QUEUE),
            Parameter::new("connect timeout", format!("{TIMEOUT:?}")),
        ],
        checks: checks(&at_once, &long, &waves, &jitter, &spread),
        arms: vec![
            at_once.arm("at once"),
            long.arm("at once, long queue"),
            waves.arm("fixed pause of 5 s"),
            jitter.arm("full jitter"),
            spread.arm("spread over 25 s"),
        ],
        span: Duration::from_secs(62),
        summary,
        ..Report::default()
    }
}

fn storm(seed: u64, queue: usize, limit: Duration, reconnect: &Reconnect) -> Storm {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let server = Service::new(&env, "server", BIN, Plan { line: queue, ..Plan::new(CORES, HANDSHAKE) });
    let seen = Arc::new(Mutex::new((Timeline::new(BIN), 0, Tick::ZERO)));
    for id in 0..CLIENTS {
        // The connection that was lost had been steady.
        let reconnect = reconnect.clone().steady(Duration::ZERO);
        env.spawn(client(env.scope(id), reconnect, server.clone(), Arc::clone(&seen))).detach();
    }
    sim.run_until(Tick::ZERO + limit);
    let (connected, dropped, last) = seen.lock().clone();
    let server = server.seen();
    Storm {
        over: (connected.total() == CLIENTS).then_some(last - Tick::ZERO),
        dials: server.calls,
        connected,
        dropped,
        wasted: server.wasted,
        longest_queue: server.longest_line,
    }
}

/// Has a connection, loses it at once, and keeps dialling until it has another.
async fn client(env: Env, reconnect: Reconnect, server: Service, seen: Arc<Mutex<(Timeline, u64, Tick)>>) {
    let (connected, stop) = oneshot::channel::<()>();
    let mut connected = Some(connected);
    let mut first = true;
    let connect = || {
        let had_one = std::mem::take(&mut first);
        let (env, server, seen) = (env.clone(), server.clone(), Arc::clone(&seen));
        async move { if had_one { Ok(false) } else { dial(&env, &server, &seen).await.map(|()| true) } }
    };
    let serve = |again| {
        if again {
            // The loop stops with this, before it sees the connection end.
            connected.take();
        }
        std::future::ready(())
    };
    let ended = reconnect.run(&env, stop, connect, serve).await;
    debug_assert_eq!(ended, Ok(()), "nobody gives up");
}

/// A connection, or nothing for as long as the timeout: the kernel drops what does not fit into the accept queue.
async fn dial(env: &Env, server: &Service, seen: &Mutex<(Timeline, u64, Tick)>) -> Result<(), Unserved> {
    let mut late = pin!(env.sleep(TIMEOUT));
    let mut call = pin!(async {
        let served = server.call().await;
        if served == Err(Unserved::Full) {
            seen.lock().1 += 1;
            pending::<()>().await;
        }
        served
    });
    let served = poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Pending => late.as_mut().poll(cx).map(|_| Err(Unserved::Down)),
        Poll::Ready(served) => Poll::Ready(served),
    })
    .await;
    if served.is_ok() {
        let (connected, _, last) = &mut *seen.lock();
        *last = env.now();
        connected.record(*last);
    }
    served
}

impl Storm {
    fn seconds(&self) -> f64 {
        self.over.map_or(f64::INFINITY, |over| over.as_secs_f64())
    }

    /// How many were connected from this second on.
    fn connected_from(&self, second: usize) -> u64 {
        self.connected.counts().iter().skip(second * 4).sum()
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("dials", "dials", self.dials.total()),
            Figure::count("peak_per_250_ms", "peak/250 ms", self.dials.peak()),
            Figure::count("dropped", "dropped", self.dropped),
            Figure::count("for_nobody", "for nobody", self.wasted),
            Figure::count("longest_queue", "queue", self.longest_queue as u64),
            Figure::count("connected", "connected", self.connected.total()),
            Figure::number("over_s", "over after, s", self.seconds()),
        ];
        Arm::new(name, figures, self.dials.clone())
    }
}

fn checks(at_once: &Storm, long: &Storm, waves: &Storm, jitter: &Storm, spread: &Storm) -> Vec<Check> {
    let least = CLIENTS as f64 / PER_SECOND;
    let in_wave = (QUEUE + CORES) as f64;
    let waves_needed = (CLIENTS as f64 / in_wave).ceil() - 1.0;
    let first = |storm: &Storm| storm.dials.counts().first().copied().unwrap_or(0);
    let mean = CLIENTS as f64 / 25.0 * BIN.as_secs_f64();
    vec![
        Check::equal(
            Source::Article,
            "at once, with a pause, with full jitter: the first attempt is everybody's",
            &[CLIENTS; 3],
            &[at_once, waves, jitter].map(|storm| storm.dials.counts()[0].min(CLIENTS)),
        ),
        Check::within(
            Source::Formula,
            "at once: one queue in each timeout, 2 s x (N / (queue + cores) - 1) and a bit",
            TIMEOUT.as_secs_f64() * waves_needed,
            2.0,
            at_once.seconds(),
        ),
        Check::within(
            Source::Formula,
            "fixed pause: one queue in each timeout and pause",
            (TIMEOUT + PAUSE).as_secs_f64() * waves_needed,
            2.0,
            waves.seconds(),
        ),
        Check::within(
            Source::Formula,
            "long queue: those who are served within the timeout, H x 2 s",
            PER_SECOND * TIMEOUT.as_secs_f64(),
            CORES as f64,
            long.connected.total() as f64,
        ),
        Check::equal(Source::Formula, "long queue: connected after that", &0, &long.connected_from(3)),
        Check::at_least(Source::Formula, "nobody is done before N / H (s)", least, {
            at_once.seconds().min(jitter.seconds()).min(spread.seconds())
        }),
        Check::at_most(
            Source::Promise,
            "spread: never more than six standard deviations above N / W dials in 250 ms",
            (mean + 6.0 * mean.sqrt()).ceil(),
            spread.dials.peak() as f64,
        ),
        Check::equal(
            Source::Promise,
            "spread: (dropped, for nobody, dials)",
            &(0, 0, CLIENTS),
            &(spread.dropped, spread.wasted, spread.dials.total()),
        ),
        Check::at_most(Source::Promise, "spread: over after W and a bit (s)", 26.0, spread.seconds()),
        Check::at_most(
            Source::Promise,
            "full jitter: fewer dials than at once, first wave apart",
            (at_once.dials.total() - first(at_once)) as f64,
            (jitter.dials.total() - first(jitter)) as f64,
        ),
    ]
}
