//! Twelve times as many prefetches as usual, before a service that can do a fifth of them.
//!
//! Netflix has published what this did to them once priorities were in place: availability of what users asked for stayed
//! above 99.4 %, that of prefetching fell to 20 %. Without priorities the one is refused as often as the other. The sizes
//! here are chosen so that users leave room for a fifth of the prefetches: that figure is arithmetic, the other is not.
//!
//! A line that serves the more important first is enough for that. The cut does something else: it refuses at the door
//! instead of after a wait, and refuses some users' prefetches altogether rather than four in five of everybody's.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Halt, Priority, guard, result},
    shed::Queue,
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

/// When the spike begins and ends, in seconds.
const BEGIN: u64 = 5;
const END: u64 = 55;
/// By then the cut is where it should be.
const SETTLED: u64 = 35;
const LAST: u64 = 60;
const BIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    None,
    Priorities,
    Cut,
}

knobs! {
    /// How many calls the service works on at a time.
    workers: u32 = 16, 1..=200;
    /// How long it takes for one.
    service_time: Duration = Duration::from_millis(50), Duration::from_millis(1)..=Duration::from_secs(1);
    /// Users' calls a second.
    users: f64 = 200.0, 1.0..=2_000.0;
    /// Prefetches a second.
    prefetch: f64 = 50.0, 1.0..=500.0;
    /// How many times as many there are from 5 to 55 s.
    spike: f64 = 12.0, 1.0..=100.0;
    /// How many users prefetch.
    prefetchers: u64 = 200, 1..=100_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "priority-shedding",
    title: "twelve times the prefetching: users are refused with it, or do not notice",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let herd = |arm, remedy| herd(settings.seed, knobs, remedy, &settings.tap(arm));
    let (none, line, cut) = (herd(0, Remedy::None), herd(1, Remedy::Priorities), herd(2, Remedy::Cut));
    let summary = format!(
        "without priorities users get {:.1} % of their answers in the spike; with them {:.2} %, and prefetching {:.0} %. \
         The cut tells the others after {:.1} ms instead of {:.1}.",
        none.users.share() * 100.0,
        line.users.share() * 100.0,
        line.prefetch.share() * 100.0,
        cut.prefetch.mean_refusal().as_secs_f64() * 1e3,
        line.prefetch.mean_refusal().as_secs_f64() * 1e3,
    );
    Report {
        scenario: "priority-shedding",
        seed: settings.seed,
        marks: vec![
            Mark { at: Duration::from_secs(BEGIN), what: "the spike begins" },
            Mark { at: Duration::from_secs(END), what: "and ends" },
        ],
        checks: checks(knobs, &none, &line, &cut),
        arms: vec![none.arm("no priorities"), line.arm("priorities"), cut.arm("priorities + cut")],
        span: Duration::from_secs(LAST),
        summary,
        ..Report::default()
    }
}

/// What became of one kind of calls during the spike.
#[derive(Debug, Default)]
struct Kind {
    came: u64,
    served: u64,
    refused: u32,
    until_refused: Duration,
}

#[derive(Debug)]
struct Spike {
    users: Kind,
    prefetch: Kind,
    /// How many prefetches of each user came and were served, once the cut had time to settle.
    by_user: BTreeMap<u64, (u64, u64)>,
    served: Timeline,
}

impl Knobs {
    fn service(self) -> Plan {
        Plan::new(self.workers as usize, self.service_time)
    }
}

fn herd(seed: u64, knobs: Knobs, remedy: Remedy, tap: &Tap) -> Spike {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service::new(&env, "service", BIN, knobs.service());
    let queue = Queue::builder(&env, knobs.workers);
    let queue = if remedy == Remedy::Cut { queue.cut() } else { queue }.build();
    let spike = Arc::new(Mutex::new(Spike {
        users: Kind::default(),
        prefetch: Kind::default(),
        by_user: BTreeMap::new(),
        served: Timeline::new(BIN),
    }));
    for (name, prefetch) in [("users", false), ("prefetch", true)] {
        let (queue, service, spike, tap) = (queue.clone(), service.clone(), Arc::clone(&spike), tap.clone());
        let server = Server { queue, service, spike, remedy, tap };
        let env = env.clone();
        env.clone()
            .spawn(async move {
                let rng = env.rng(name);
                let rate = |at: Tick| match (prefetch, is_spike(at)) {
                    (false, _) => knobs.users,
                    (true, false) => knobs.prefetch,
                    (true, true) => knobs.prefetch * knobs.spike,
                };
                let arrive = |_| {
                    let user = rng.below(knobs.prefetchers);
                    env.spawn(server.clone().call(env.clone(), prefetch, user)).detach();
                };
                poisson(&env, &rng, Tick::ZERO + Duration::from_secs(LAST), rate, arrive).await;
            })
            .detach();
    }
    sim.finish().expect("everybody is served or refused");
    drop((sim, queue, service));
    Arc::into_inner(spike).expect("the callers are gone").into_inner()
}

fn is_spike(at: Tick) -> bool {
    (BEGIN..END).contains(&(at - Tick::ZERO).as_secs())
}

#[derive(Clone, Debug)]
struct Server {
    queue: Queue,
    service: Service,
    spike: Arc<Mutex<Spike>>,
    remedy: Remedy,
    tap: Tap,
}

impl Server {
    async fn call(self, env: Env, prefetch: bool, user: u64) {
        let mut ask = Ask::new(&env).user(user);
        if prefetch && self.remedy != Remedy::None {
            ask = ask.priority(Priority::Sheddable);
        }
        let came = ask.at;
        let path = if prefetch { "/prefetch" } else { "/play" };
        let who = Caller::of(user, path).in_wave_if("burst", (prefetch && is_spike(came)).then_some(0));
        let answer = guard(&env, &self.queue, result, ask, || self.service.call());
        let answer = self.tap.door(&env, who, answer).await;
        let mut spike = self.spike.lock();
        if answer.is_ok() {
            spike.served.record(env.now());
        }
        if !is_spike(came) {
            return;
        }
        if prefetch && (came - Tick::ZERO).as_secs() >= SETTLED {
            let of_user = spike.by_user.entry(user).or_default();
            of_user.0 += 1;
            of_user.1 += u64::from(answer.is_ok());
        }
        let kind = if prefetch { &mut spike.prefetch } else { &mut spike.users };
        kind.came += 1;
        match answer {
            Ok(()) => kind.served += 1,
            Err(Halt::Refused(_)) => {
                kind.refused += 1;
                kind.until_refused += env.now() - came;
            }
            Err(Halt::Unsent(_) | Halt::Failed(_)) => {}
        }
    }
}

impl Kind {
    fn share(&self) -> f64 {
        self.served as f64 / self.came.max(1) as f64
    }

    fn mean_refusal(&self) -> Duration {
        self.until_refused / self.refused.max(1)
    }
}

impl Spike {
    /// The share of users whose prefetches were nearly all served or nearly all refused.
    fn whole(&self) -> f64 {
        let whole = |(came, served): &&(u64, u64)| served * 10 >= came * 9 || served * 10 <= *came;
        self.by_user.values().filter(whole).count() as f64 / self.by_user.len().max(1) as f64
    }

    fn arm(self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::number("users_served_share", "users", self.users.share()),
            Figure::number("prefetch_served_share", "prefetch", self.prefetch.share()),
            Figure::time("prefetch_refused_after_ms", "refused after", self.prefetch.mean_refusal()),
            Figure::number("all_or_nothing_share", "all or nothing", self.whole()),
            Figure::count("served", "served", self.served.total()),
        ];
        Arm::new(name, figures, self.served)
    }
}

fn checks(knobs: Knobs, none: &Spike, line: &Spike, cut: &Spike) -> Vec<Check> {
    let left = (knobs.service().capacity() - knobs.users) / (knobs.prefetch * knobs.spike);
    let all = knobs.service().capacity() / (knobs.users + knobs.prefetch * knobs.spike);
    vec![
        Check::within(Source::Formula, "no priorities: users get what everybody gets", all, 0.03, none.users.share())
            .cites("T17"),
        Check::at_least(Source::Published, "priorities: users served (Netflix)", 0.994, line.users.share())
            .cites("Netflix")
            .cites("T17"),
        Check::within(
            Source::Formula,
            "priorities: prefetches served, what users leave (as at Netflix, 20 %)",
            left,
            0.03,
            line.prefetch.share(),
        )
        .cites("Netflix")
        .cites("T17"),
        Check::at_least(Source::Promise, "priorities + cut: users served", 0.994, cut.users.share()).cites("T17"),
        Check::at_most(
            Source::Promise,
            "priorities + cut: prefetches are refused in half the time",
            line.prefetch.mean_refusal().as_secs_f64() * 500.0,
            cut.prefetch.mean_refusal().as_secs_f64() * 1e3,
        )
        .cites("T17"),
        Check::at_least(
            Source::Promise,
            "priorities + cut: most users' prefetches are all served or all refused",
            0.75,
            cut.whole(),
        )
        .cites("T17"),
        Check::at_most(Source::Formula, "priorities alone: hardly any user's are", 0.25, line.whole()).cites("T17"),
    ]
}
