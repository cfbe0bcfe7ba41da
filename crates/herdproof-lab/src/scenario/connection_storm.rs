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
//! Scaled from 100,000 clients to 10,000; the server and its queue are scaled with them. The first wave, and the remedy, are run with
//! all of them as well.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use herdproof::{Backoff, Env, Sim, Tick, backoff::Jitter, connect::Reconnect, histogram::Histogram};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, Waits, say},
    service::{Plan, Service, Unserved},
    timeline::Timeline,
};

const PAUSE: Duration = Duration::from_secs(5);
const BIN: Duration = Duration::from_millis(250);
/// After this long, those who are not connected are counted as such.
const LIMIT: Duration = Duration::from_secs(250);
const SHORT_LIMIT: Duration = Duration::from_secs(40);
/// The first wave, and what follows a timeout later.
const TWO_WAVES: Duration = Duration::from_secs(3);
/// How many clients there are where nothing is scaled down; with as many as that, or more, it is what all arms show.
const WHOLE: u64 = 100_000;

/// What all clients share, so that each of them is small.
struct Place {
    reconnect: Reconnect,
    timeout: Duration,
    server: Service,
    seen: Mutex<Ends>,
}

/// How dials ended.
struct Ends {
    connected: Timeline,
    /// How long clients were without a connection.
    without: Histogram,
    dropped: u64,
    last: Tick,
}

/// What a storm did.
struct Storm {
    waits: Option<Waits>,
    dials: Timeline,
    tries: Vec<Timeline>,
    connected: Timeline,
    dropped: u64,
    wasted: u64,
    longest_queue: usize,
    /// When the last client was connected; `None` if some were not in the end.
    over: Option<Duration>,
}

knobs! {
    /// How many clients lose their connection.
    clients: u64 = 10_000, 1..=100_000;
    /// How many handshakes the server makes at a time.
    cores: usize = 8, 1..=256;
    /// How long one takes.
    handshake: Duration = Duration::from_millis(16), Duration::from_millis(1)..=Duration::from_secs(1);
    /// How long the accept queue is.
    queue: usize = 410, 1..=100_000;
    /// How long it is where it is too long.
    long_queue: usize = 2_000, 1..=100_000;
    /// How long a client waits for its connection.
    timeout: Duration = Duration::from_secs(2), Duration::from_secs(1)..=Duration::from_secs(30);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "connection-storm",
    title: "every connection is lost at once: dialling again in waves, or spread over as long as it takes",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let whole = knobs.whole();
    let fixed = |pause| {
        let backoff = Backoff::constant(pause).jitter(Jitter::None);
        Reconnect::new().spread(Duration::ZERO).backoff(backoff)
    };
    let ways = [
        (knobs, knobs.queue, LIMIT, fixed(Duration::ZERO)),
        (knobs, knobs.long_queue, SHORT_LIMIT, fixed(Duration::ZERO)),
        (knobs, knobs.queue, LIMIT, fixed(PAUSE)),
        (knobs, knobs.queue, LIMIT, Reconnect::new().spread(Duration::ZERO)),
        (knobs, knobs.queue, LIMIT, knobs.spread()),
        // Not shown, but claimed: everybody.
        (whole, whole.queue, TWO_WAVES, fixed(Duration::ZERO)),
        (whole, whole.queue, LIMIT, whole.spread()),
    ];
    let [at_once, long, waves, jitter, spread, whole_at_once, whole_spread] =
        settings.arms(&ways, |arm, (knobs, queue, limit, reconnect)| {
            storm(settings.seed, *knobs, *queue, *limit, reconnect, settings.tap(arm))
        });
    let summary = format!(
        "dialling at once takes {} dials and {:.0} s; with a pause of 5 s {:.0} s; with full jitter {} dials and {:.0} s; spread \
         over {:.0} s from the first attempt on {} dials, {:.0} s, and {} dropped.",
        at_once.dials.total(),
        at_once.seconds(),
        waves.seconds(),
        jitter.dials.total(),
        jitter.seconds(),
        knobs.window(),
        spread.dials.total(),
        spread.seconds(),
        spread.dropped,
    );
    Report {
        scenario: "connection-storm",
        seed: settings.seed,
        marks: vec![Mark { at: Duration::ZERO, what: "every connection is lost" }],
        checks: [
            checks(knobs, &at_once, &long, &waves, &jitter, &spread),
            unscaled(whole, &whole_at_once, &whole_spread),
        ]
        .concat(),
        arms: vec![
            at_once.arm("at once"),
            long.arm("at once, long queue"),
            waves.arm("fixed pause of 5 s"),
            jitter.arm("full jitter"),
            spread.arm(if (knobs.window() - 25.0).abs() < 1e-9 {
                "spread over 25 s"
            } else {
                "spread from the first on"
            }),
        ],
        span: Duration::from_secs(62),
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// Handshakes that the server can make in a second.
    fn per_second(self) -> f64 {
        Plan::new(self.cores, self.handshake).capacity()
    }

    /// How many dials a second leave it a fifth to spare.
    fn comfortable(self) -> f64 {
        self.per_second() * 0.8
    }

    /// As many clients as there were, at the server that they had: ten times as many, or fewer where that would be more than all.
    fn whole(self) -> Knobs {
        let scale = (WHOLE / self.clients).clamp(1, 10);
        let times = |size: usize| size.saturating_mul(usize::try_from(scale).unwrap_or(1));
        Knobs { clients: self.clients * scale, cores: times(self.cores), queue: times(self.queue), ..self }
    }

    fn spread(self) -> Reconnect {
        Reconnect::new().crowd(self.clients, self.comfortable())
    }

    /// Over how many seconds everybody's first attempts have to be spread for that.
    fn window(self) -> f64 {
        self.clients as f64 / self.comfortable()
    }
}

fn storm(seed: u64, knobs: Knobs, queue: usize, limit: Duration, reconnect: &Reconnect, tap: Tap) -> Storm {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let plan = Plan { line: queue, ..Plan::new(knobs.cores, knobs.handshake) };
    let place = Arc::new(Place {
        // The connection that was lost had been steady.
        reconnect: reconnect.clone().steady(Duration::ZERO),
        timeout: knobs.timeout,
        server: Service::tapped(&env, "server", BIN, plan, tap),
        seen: Mutex::new(Ends::new()),
    });
    for id in 0..knobs.clients {
        env.spawn(client(env.scope(id), id, Arc::clone(&place))).detach();
    }
    sim.run_until(Tick::ZERO + limit);
    let Ends { connected, without, dropped, last } = &*place.seen.lock();
    let server = place.server.seen();
    Storm {
        waits: Waits::counted(without, *last - Tick::ZERO),
        over: (connected.total() == knobs.clients).then_some(*last - Tick::ZERO),
        dials: server.calls,
        tries: server.tries,
        connected: connected.clone(),
        dropped: *dropped,
        wasted: server.wasted,
        longest_queue: server.longest_line,
    }
}

/// Has a connection, loses it at once, and keeps dialling until it has another.
async fn client(env: Env, id: u64, place: Arc<Place>) {
    let (connected, stop) = oneshot::channel::<()>();
    let mut connected = Some(connected);
    // The connection that was lost, then as many as it takes.
    let mut dials = 0..;
    let (env, place) = (&env, &*place);
    let connect = || {
        let wave = dials.next().unwrap_or(u32::MAX).checked_sub(1);
        async move {
            match wave {
                None => Ok(false),
                Some(wave) => dial(env, place, id, wave).await.map(|()| true),
            }
        }
    };
    let serve = |again| {
        if again {
            // The loop stops with this, before it sees the connection end.
            connected.take();
        }
        std::future::ready(())
    };
    let ended = place.reconnect.run(env, stop, connect, serve).await;
    debug_assert_eq!(ended, Ok(()), "nobody gives up");
}

/// A connection, or nothing for as long as the timeout: the kernel drops what does not fit into the accept queue.
async fn dial(env: &Env, place: &Place, id: u64, wave: u32) -> Result<(), Unserved> {
    let mut late = pin!(env.sleep(place.timeout));
    let mut call = pin!(async {
        let served = place.server.call_from(Caller::of(id, "/connect").in_wave("reconnect", wave)).await;
        if served == Err(Unserved::Full) {
            place.seen.lock().dropped += 1;
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
        let seen = &mut *place.seen.lock();
        seen.last = env.now();
        seen.connected.record(seen.last);
        seen.without.record(seen.last - Tick::ZERO);
    }
    served
}

impl Ends {
    fn new() -> Ends {
        let (connected, without) = (Timeline::new(BIN), Histogram::new(u32::MAX));
        Ends { connected, without, dropped: 0, last: Tick::ZERO }
    }
}

impl Storm {
    fn seconds(&self) -> f64 {
        self.over.map_or(f64::INFINITY, |over| over.as_secs_f64())
    }

    /// How many were connected from this second on.
    fn connected_from(&self, second: usize) -> u64 {
        self.connected.counts().iter().skip(second.saturating_mul(4)).sum()
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
        Arm::new(name, figures, self.dials.clone()).tries(self.tries.clone()).waits(self.waits)
    }
}

fn checks(knobs: Knobs, at_once: &Storm, long: &Storm, waves: &Storm, jitter: &Storm, spread: &Storm) -> Vec<Check> {
    let timeout = say(knobs.timeout);
    let least = knobs.clients as f64 / knobs.per_second();
    let in_wave = (knobs.queue + knobs.cores) as f64;
    let waves_needed = (knobs.clients as f64 / in_wave).ceil() - 1.0;
    let first = |storm: &Storm| storm.dials.counts().first().copied().unwrap_or(0);
    let after_timeout = usize::try_from(knobs.timeout.as_secs() + 1).unwrap_or(usize::MAX);
    let mean = knobs.clients as f64 / knobs.window() * BIN.as_secs_f64();
    vec![
        Check::equal(
            Source::Article,
            "at once, with a pause, with full jitter: the first attempt is everybody's",
            &[knobs.clients; 3],
            &[at_once, waves, jitter].map(|storm| storm.dials.counts()[0].min(knobs.clients)),
        )
        .cites("H9"),
        Check::within(
            Source::Formula,
            format!("at once: one queue in each timeout, {timeout} x (N / (queue + cores) - 1) and a bit"),
            knobs.timeout.as_secs_f64() * waves_needed,
            2.0,
            at_once.seconds(),
        )
        .cites("H9"),
        Check::within(
            Source::Formula,
            "fixed pause: one queue in each timeout and pause",
            (knobs.timeout + PAUSE).as_secs_f64() * waves_needed,
            2.0,
            waves.seconds(),
        )
        .cites("H9"),
        Check::within(
            Source::Formula,
            format!("long queue: those who are served within the timeout, H x {timeout}"),
            knobs.per_second() * knobs.timeout.as_secs_f64(),
            knobs.cores as f64,
            long.connected.total() as f64,
        )
        .cites("H9")
        .cites("T26"),
        Check::equal(Source::Formula, "long queue: connected after that", &0, &long.connected_from(after_timeout))
            .cites("H9")
            .cites("T26"),
        Check::at_least(Source::Formula, "nobody is done before N / H (s)", least, {
            at_once.seconds().min(jitter.seconds()).min(spread.seconds())
        })
        .cites("H9"),
        Check::at_most(
            Source::Promise,
            "spread: never more than six standard deviations above N / W dials in 250 ms",
            (mean + 6.0 * mean.sqrt()).ceil(),
            spread.dials.peak() as f64,
        )
        .cites("T26"),
        Check::equal(
            Source::Promise,
            "spread: (dropped, for nobody, dials)",
            &(0, 0, knobs.clients),
            &(spread.dropped, spread.wasted, spread.dials.total()),
        )
        .cites("T26"),
        Check::at_most(Source::Promise, "spread: over after W and a bit (s)", knobs.window() + 1.0, spread.seconds())
            .cites("T26"),
        Check::at_most(
            Source::Promise,
            "full jitter: fewer dials than at once, first wave apart",
            (at_once.dials.total() - first(at_once)) as f64,
            (jitter.dials.total() - first(jitter)) as f64,
        )
        .cites("T2")
        .cites("T26"),
    ]
}

fn unscaled(knobs: Knobs, at_once: &Storm, spread: &Storm) -> Vec<Check> {
    let Knobs { clients, .. } = knobs;
    vec![
        Check::equal(
            Source::Article,
            format!("all {clients}, at once: dials in one instant"),
            &clients,
            &at_once.dials.peak(),
        )
        .cites("N29")
        .cites("H9"),
        Check::equal(
            Source::Promise,
            format!("all {clients}, spread: (dropped, for nobody, dials)"),
            &(0, 0, clients),
            &(spread.dropped, spread.wasted, spread.dials.total()),
        )
        .cites("N29")
        .cites("T26"),
        Check::at_most(
            Source::Promise,
            format!("all {clients}, spread: over after W and a bit (s)"),
            knobs.window() + 1.0,
            spread.seconds(),
        )
        .cites("N29")
        .cites("T26"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million of them fit where there is a gigabyte.
    #[test]
    fn a_client_is_small() {
        let env = Sim::new(1).env();
        let server = Service::new(&env, "server", BIN, Plan::new(1, BIN));
        let seen = Mutex::new(Ends::new());
        let place = Place { reconnect: Reconnect::new(), timeout: BIN, server, seen };
        let client = client(env, 0, Arc::new(place));
        assert!(size_of_val(&client) <= 750, "{} bytes", size_of_val(&client));
    }
}
