//! 20,000 clients are refused at one instant. When do they come back?
//!
//! The server is fine: it has 200 calls a second to spare. But "come back in 5 seconds" is an appointment with all of them
//! at once, of which it can keep a few dozen. Random whole seconds make ten such crowds, because the fraction of the
//! second at which they were refused is the same for all. Random milliseconds help as far as the range fits the crowd,
//! which nobody knows; clients that spread themselves begin too eagerly. Slots that are given out at the rate at which the
//! server can serve those who return need two requests for each that is served: the one that was refused, and the one
//! that was not. About one in twelve is refused again, because a headroom that is all given out leaves no slack; they get slots after
//! everybody else's, which is why the last is served some seconds after the formula's.
//!
//! The server is the library's `Queue` before a modelled service. In the first three arms clients obey to the letter; in
//! the last two they are the library's `Backoff`.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Backoff, Env, Sim, Tick,
    backoff::RetryAfter,
    env::Rng,
    gate::{Ask, Halt, guard, result},
    shed::Queue,
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

/// Of the clients' own backoff, for a refusal.
const BASE: Duration = Duration::from_secs(1);
const BURST: Tick = Tick::from_nanos(5_000_000_000);
const BIN: Duration = Duration::from_millis(100);
/// Arms that do not serve everybody are looked at for this long; the formula says the last slot is after 101 s.
const END: Duration = Duration::from_secs(125);
/// The two that hardly serve anybody are not worth so much.
const HOPELESS: Duration = Duration::from_secs(16);

/// Who says when to come back, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// The server: always the same.
    Fixed,
    /// The server: whole seconds at random.
    WholeSeconds,
    /// The server: milliseconds at random.
    Millis,
    /// Nobody: clients back off by themselves.
    Client,
    /// The server: each a slot of its own.
    Appointment,
}

knobs! {
    /// How many are refused at one instant.
    crowd: u64 = 20_000, 1..=30_000;
    /// How many calls the service works on at a time.
    workers: u32 = 5, 1..=100;
    /// How long it takes for one.
    service_time: Duration = Duration::from_millis(20), Duration::from_millis(1)..=Duration::from_secs(1);
    /// What comes all the time, a second.
    usual: f64 = 50.0, 0.0..=200.0;
    /// How many may wait: as many as are served in a tenth of a second.
    line: u32 = 25, 1..=10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "shed-and-return",
    title: "a crowd is refused and comes back: together, or each at an appointment",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let ways = [
        (Advice::Fixed, HOPELESS),
        (Advice::WholeSeconds, HOPELESS),
        (Advice::Millis, END),
        (Advice::Client, END),
        (Advice::Appointment, END),
    ];
    let [fixed, whole, millis, client, ours] =
        settings.arms(&ways, |arm, (advice, watched)| herd(settings.seed, knobs, *advice, *watched, settings.tap(arm)));
    let summary = format!(
        "told \"5 seconds\", {} clients send {:.0} requests for each that is served; with an appointment {:.2}, and \
         never more than {:.1} times what the server has to spare.",
        knobs.crowd,
        fixed.per_served(),
        ours.per_served(),
        ours.worst_burst(),
    );
    Report {
        scenario: "shed-and-return",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("headroom", format!("{} a second", knobs.headroom())),
            Parameter::new("watched for", format!("{END:?}; the first two arms {HOPELESS:?}")),
        ],
        marks: vec![Mark { at: BURST - Tick::ZERO, what: "the crowd is refused" }],
        checks: checks(knobs, &fixed, &whole, &millis, &client, &ours),
        arms: vec![
            fixed.arm("fixed: 5 s"),
            whole.arm("server: 1 to 10 whole s"),
            millis.arm("server: 0 to 10 s in ms"),
            client.arm("client: full jitter"),
            ours.arm("appointments"),
        ],
        span: END,
        summary,
        ..Report::default()
    }
}

/// What became of the crowd.
#[derive(Debug)]
struct Crowd {
    /// What the server has to spare, a second.
    headroom: f64,
    sent: Timeline,
    served: u64,
    last: Tick,
}

impl Knobs {
    fn service(self) -> Plan {
        Plan::new(self.workers as usize, self.service_time)
    }

    /// What the service has to spare, a second. One that has nothing to spare still keeps an appointment now and then.
    fn headroom(self) -> f64 {
        (self.service().capacity() - self.usual).max(1.0)
    }
}

fn herd(seed: u64, knobs: Knobs, advice: Advice, watched: Duration, tap: Tap) -> Crowd {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let end = BURST + watched;
    let server = Server {
        service: Service::new(&env, "service", BIN, knobs.service()),
        queue: Queue::builder(&env, knobs.workers).line(knobs.line).build(),
        advice,
        rng: Arc::new(env.rng("advice")),
        end,
        tap,
    };
    let crowd = Arc::new(Mutex::new(Crowd {
        headroom: knobs.headroom(),
        sent: Timeline::new(BIN),
        served: 0,
        last: Tick::ZERO,
    }));
    for id in 0..knobs.crowd {
        let (client, server, crowd) = (env.scope(id), server.clone(), Arc::clone(&crowd));
        env.spawn(async move {
            client.sleep_until(BURST).await;
            server.client(client, id, Some(&crowd)).await;
        })
        .detach();
    }
    let usual = env.clone();
    env.spawn(async move {
        let rng = usual.rng("usual");
        let arrive = |id| {
            let (client, server) = (usual.scope(knobs.crowd + id), server.clone());
            usual.spawn(async move { server.client(client, knobs.crowd + id, None).await }).detach();
        };
        poisson(&usual, &rng, end, |_| knobs.usual, arrive).await;
    })
    .detach();
    sim.finish().expect("everybody is served or gives up at the end");
    drop(sim);
    Arc::into_inner(crowd).expect("the clients are gone").into_inner()
}

#[derive(Clone, Debug)]
struct Server {
    service: Service,
    queue: Queue,
    advice: Advice,
    rng: Arc<Rng>,
    end: Tick,
    tap: Tap,
}

impl Server {
    /// A client that comes back as it is told until it is served.
    async fn client(&self, env: Env, id: u64, crowd: Option<&Mutex<Crowd>>) {
        let rng = env.rng("client");
        let mut delays = Backoff::exponential(BASE).delays();
        for attempt in 0.. {
            let ask = Ask::new(&env).attempt(attempt);
            let mut who = Caller::of(id, "/").trying(attempt);
            if let Some(crowd) = crowd {
                crowd.lock().sent.record(ask.at);
                who = Caller::of(id, "/crowd").in_wave("retry", attempt.into());
            }
            let answer = guard(&env, &self.queue, result, ask, || self.service.call());
            let refusal = match self.tap.door(&env, who, answer).await {
                Err(Halt::Refused(refusal)) => refusal,
                answer => {
                    answer.expect("the service serves whom the queue lets in");
                    if let Some(crowd) = crowd {
                        let mut crowd = crowd.lock();
                        crowd.served += 1;
                        crowd.last = env.now();
                    }
                    return;
                }
            };
            let wait = match self.advice {
                Advice::Fixed => Duration::from_secs(5),
                Advice::WholeSeconds => Duration::from_secs(1 + self.rng.below(10)),
                Advice::Millis => self.rng.between(Duration::ZERO, Duration::from_secs(10)),
                Advice::Client => delays.next(&rng),
                Advice::Appointment => {
                    let after = refusal.after.unwrap_or_default().as_nanos().div_ceil(1_000_000);
                    delays.next_after(RetryAfter::millis(u64::try_from(after).unwrap_or(u64::MAX)), &rng)
                }
            };
            if env.now() + wait >= self.end {
                return;
            }
            env.sleep(wait).await;
        }
    }
}

impl Crowd {
    fn per_served(&self) -> f64 {
        self.sent.total() as f64 / self.served.max(1) as f64
    }

    /// The most requests in a tenth of a second after the first, as a multiple of what can be served in it.
    fn worst_burst(&self) -> f64 {
        self.worst() as f64 / (self.headroom * BIN.as_secs_f64())
    }

    fn worst(&self) -> u64 {
        let first = usize::try_from((BURST - Tick::ZERO).as_nanos() / BIN.as_nanos()).unwrap_or(0);
        self.sent.counts().iter().skip(first + 1).copied().max().unwrap_or(0)
    }

    fn arm(self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("requests", "requests", self.sent.total()),
            Figure::count("served", "served", self.served),
            Figure::number("requests_per_served", "per served", self.per_served()),
            Figure::count("worst_per_100ms", "worst 100 ms", self.worst()),
            Figure::number("worst_per_headroom", "x headroom", self.worst_burst()),
            Figure::time("last_served_ms", "last served", self.last - Tick::ZERO),
        ];
        Arm::new(name, figures, self.sent)
    }
}

fn checks(knobs: Knobs, fixed: &Crowd, whole: &Crowd, millis: &Crowd, client: &Crowd, ours: &Crowd) -> Vec<Check> {
    let rest = [whole, millis, client].map(Crowd::per_served).into_iter().fold(f64::INFINITY, f64::min);
    let slots = (ours.last - BURST).as_secs_f64();
    vec![
        Check::at_least(Source::Formula, "fixed: hundreds of requests for each served", 200.0, fixed.per_served())
            .cites("T17")
            .cites("H11"),
        Check::at_least(
            Source::Formula,
            "whole seconds: the crowd returns as ten, not as a curve (worst burst, x headroom)",
            50.0,
            whole.worst_burst(),
        )
        .cites("T17"),
        Check::at_most(Source::Promise, "appointments: requests for each served", 2.5, ours.per_served()).cites("T17"),
        Check::at_most(Source::Promise, "appointments: worst 100 ms, x headroom", 2.0, ours.worst_burst()).cites("T17"),
        Check::at_least(
            Source::Promise,
            "appointments: all but a hundredth served",
            (knobs.crowd - knobs.crowd / 100) as f64,
            ours.served as f64,
        )
        .cites("T17"),
        Check::within(
            Source::Formula,
            "appointments: the last after 1 s + crowd / headroom",
            1.0 + knobs.crowd as f64 / knobs.headroom(),
            20.0,
            slots,
        )
        .cites("T17"),
        Check::at_least(Source::Promise, "every other arm sends more for each served", ours.per_served() * 2.0, rest)
            .cites("T17"),
    ]
}
