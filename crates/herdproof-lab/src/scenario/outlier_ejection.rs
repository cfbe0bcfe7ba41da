//! One of ten backends is sick, then all of them are: clients that eject what fails.
//!
//! **One is sick.** It fails every call for twenty seconds and is back cold: it gets faster with the calls that it serves.
//! Clients that do nothing fail a tenth of their calls as long as it is down. Clients that eject it after five faults in a
//! row, for thirty seconds each, spare most of that; but they noticed together, so they are back together, with the full
//! share. It cannot bear that yet, fails, and is ejected by all of them for another thirty seconds, hardly warmer than
//! before. With a random time they come back one by one, and with slow start each of them little by little.
//!
//! **All are sick.** What the backends share fails most of their calls. That is no reason to eject any of them, but each
//! has five faults in a row sooner or later. Without a bound a client ejects them one after another: those that are left
//! get the load of all, and when nobody is left nothing works that would have worked, until long after the trouble is over.
//! With at most a tenth out at one time it is as if there were no ejection.
//!
//! The first kind of ejection is written out here, as libraries without a bound have it; the other is this one's.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdproof::{
    Env, Sim, Tick,
    breaker::ejection::{Call, Ejection},
    env::Rng,
    gate::{Ask, Gate, Permit, Span, Verdict},
    timeout::by,
    warm::SlowStart,
};
use parking_lot::Mutex;

use super::{Scenario, away::Away};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
const BACKENDS: usize = 10;
const SICK: usize = 0;
/// How long all is well before one, or what all share, is sick; how long that lasts; and how long it is watched after that.
const WELL: Duration = Duration::from_secs(10);
const TROUBLE: Duration = Duration::from_secs(20);
const AFTER_ONE: Duration = Duration::from_secs(94);
const AFTER_ALL: Duration = Duration::from_secs(30);

/// How clients eject.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Never,
    InStep,
    Bounded,
    BoundedAndRamp,
}

/// What is sick.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    One,
    All,
}

/// What came of it.
struct Outcome {
    /// Calls that failed while there was trouble, and after it.
    failed: [u64; 2],
    /// The share of all calls that worked in those times.
    worked: [f64; 2],
    /// When the one that was sick first served nearly all of its share for five seconds, after it was well.
    recovered: Option<Duration>,
    calls: Timeline,
}

knobs! {
    /// How many clients there are, each with a view of its own.
    clients: u64 = 12, 1..=500;
    /// Calls a second, to ten backends.
    demand: f64 = 300.0, 1.0..=1_500.0;
    /// How long a backend takes for a call.
    service_time: Duration = Duration::from_millis(100), Duration::from_millis(1)..=SECOND;
    /// How many it works on at a time when it is warm.
    warm: usize = 6, 1..=100;
    /// How many when it is back cold; no more than warm.
    cold: usize = 1, 1..=100;
    /// So many calls served make it do one more at a time.
    warms_up: u64 = 40, 1..=10_000;
    /// How many may stand in its line.
    line: usize = 20, 0..=1_000;
    /// How long a call may take.
    timeout: Duration = Duration::from_millis(500), Duration::from_millis(1)..=SECOND * 10;
    /// After how many faults in a row a backend is ejected.
    faults: u32 = 5, 1..=100;
    /// For how long.
    out: Duration = SECOND * 30, SECOND..=SECOND * 120;
    /// The share of calls that fail when all are sick.
    failing: f64 = 0.7, 0.0..=1.0;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "outlier-ejection",
    title: "one bad backend is ejected and comes back: in step, or one client after another; and when all are bad",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    // Listened to is the one that is sick.
    let both = |arm, way| {
        let herd = |trouble, tap: &Tap| herd(settings.seed, knobs, way, trouble, tap);
        [herd(Trouble::One, &settings.tap(arm)), herd(Trouble::All, &Tap::default())]
    };
    let (never, in_step) = (both(0, Way::Never), both(1, Way::InStep));
    let (bounded, ours) = (both(2, Way::Bounded), both(3, Way::BoundedAndRamp));
    let summary = format!(
        "while one of ten is down {} calls fail without ejection and {} with ours. When it is back cold, ejecting in step fails {} \
         more and it {}; a random time {}; with slow start {}, and it has its share again after {:.0} s. When all are sick for \
         {:?}, {:.0} % of the calls work without ejection, {:.0} % with one that has no bound, and {:.0} % with ours; in the \
         {:?} after that {:.0}, {:.0} and {:.0} %.",
        never[0].failed[0],
        ours[0].failed[0],
        in_step[0].failed[1],
        in_step[0].recovered.map_or(format!("does not have its share again in {AFTER_ONE:?}"), |after| format!(
            "has its share after {after:?}"
        )),
        bounded[0].failed[1],
        ours[0].failed[1],
        ours[0].seconds(),
        TROUBLE,
        never[1].worked[0] * 100.0,
        in_step[1].worked[0] * 100.0,
        ours[1].worked[0] * 100.0,
        AFTER_ALL,
        never[1].worked[1] * 100.0,
        in_step[1].worked[1] * 100.0,
        ours[1].worked[1] * 100.0,
    );
    Report {
        scenario: "outlier-ejection",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("backends", BACKENDS),
            Parameter::new("sick", format!("for {TROUBLE:?} after {WELL:?}")),
        ],
        marks: vec![Mark { at: WELL, what: "one is sick" }, Mark { at: WELL + TROUBLE, what: "it is well, and cold" }],
        checks: checks(knobs, &never, &in_step, &ours),
        arms: vec![
            arm("no ejection", never),
            arm("in step, no bound", in_step),
            arm("random time, bounded", bounded),
            arm("the same, slow start", ours),
        ],
        span: WELL + TROUBLE + AFTER_ONE,
        summary,
        ..Report::default()
    }
}

type Both = [Outcome; 2];

fn checks(knobs: Knobs, never: &Both, in_step: &Both, ours: &Both) -> Vec<Check> {
    let of = |part: u64, all: u64| part as f64 / all as f64;
    vec![
        Check::within(
            Source::Formula,
            "one sick, no ejection: a tenth of the calls fail while it is down",
            knobs.demand * TROUBLE.as_secs_f64() / BACKENDS as f64,
            150.0,
            never[0].failed[0] as f64,
        )
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "one sick: share of those that are left with our ejection",
            0.35,
            of(ours[0].failed[0], never[0].failed[0]),
        )
        .cites("T16"),
        Check::at_most(
            Source::Promise,
            "its return: failed calls with slow start too, as a share of those in step",
            0.5,
            of(ours[0].failed[1], in_step[0].failed[1]),
        )
        .cites("T16")
        .cites("T22"),
        Check::at_most(
            Source::Promise,
            "its return: seconds until it has its share again, two ejections at most",
            2.5 * knobs.out.as_secs_f64(),
            ours[0].seconds(),
        )
        .cites("T16")
        .cites("T22"),
        Check::within(
            Source::Formula,
            "all sick, no ejection: what works",
            1.0 - knobs.failing,
            0.03,
            never[1].worked[0],
        )
        .cites("T16"),
        Check::at_most(
            Source::Formula,
            "all sick, no bound: less works than without ejection",
            0.25,
            in_step[1].worked[0],
        )
        .cites("T16"),
        Check::at_most(
            Source::Formula,
            "and after the trouble is over hardly anything, as everybody is out",
            0.7,
            in_step[1].worked[1],
        )
        .cites("T16"),
        Check::at_least(
            Source::Promise,
            "all sick, bounded: what works",
            1.0 - knobs.failing - 0.05,
            ours[1].worked[0],
        )
        .cites("T16"),
        Check::at_least(Source::Promise, "and after the trouble is over", 0.99, ours[1].worked[1]).cites("T16"),
    ]
}

fn arm(name: &'static str, [one, all]: Both) -> Arm {
    let figures = vec![
        Figure::count("one_failed_sick", "failed, sick", one.failed[0]),
        Figure::count("one_failed_back", "failed, back", one.failed[1]),
        Figure::number("one_share_after_s", "share after s", one.seconds()),
        Figure::number("all_worked_sick", "all sick: work", all.worked[0]),
        Figure::number("all_worked_back", "after: work", all.worked[1]),
    ];
    Arm::new(name, figures, one.calls)
}

impl Outcome {
    fn seconds(&self) -> f64 {
        self.recovered.unwrap_or(AFTER_ONE).as_secs_f64()
    }
}

/// One client's view of the backends.
enum Client {
    Never,
    InStep(Mutex<[Naive; BACKENDS]>, Rule),
    Bounded(Ejection, Option<SlowStart>),
}

/// When the first kind ejects, and for how long.
#[derive(Clone, Copy)]
struct Rule {
    faults: u32,
    out: Duration,
}

/// So many faults in a row, and until when it is out.
#[derive(Clone, Copy, Default)]
struct Naive {
    faults: u32,
    until: Tick,
}

impl Client {
    fn new(env: &Env, knobs: Knobs, way: Way) -> Client {
        let ejection =
            || Ejection::builder(env).faults(knobs.faults).out_for(knobs.out, knobs.out * 10).build(BACKENDS);
        match way {
            Way::Never => Client::Never,
            Way::InStep => Client::InStep(Mutex::default(), Rule { faults: knobs.faults, out: knobs.out }),
            Way::Bounded => Client::Bounded(ejection(), None),
            Way::BoundedAndRamp => Client::Bounded(ejection(), Some(SlowStart::over(knobs.out))),
        }
    }

    /// How much a backend is given at this time.
    fn weight(&self, which: usize, now: Tick) -> f64 {
        match self {
            Client::Never => 1.0,
            Client::InStep(naive, _) => f64::from(u8::from(now >= naive.lock()[which].until)),
            Client::Bounded(ejection, _) if ejection.is_out(which, now) => 0.0,
            Client::Bounded(ejection, slow) => match (slow, ejection.back_since(which, now)) {
                (Some(slow), Some(back)) => slow.weight(now - back),
                _ => 1.0,
            },
        }
    }

    fn pick(&self, now: Tick, rng: &Rng) -> Option<usize> {
        let weights: [f64; BACKENDS] = std::array::from_fn(|which| self.weight(which, now));
        let mut place = rng.unit() * weights.iter().sum::<f64>();
        weights.iter().position(|weight| {
            place -= weight;
            place < 0.0
        })
    }

    /// The permit, where there is one.
    fn enter(&self, which: usize, ask: &Ask) -> Option<Call> {
        match self {
            Client::Bounded(ejection, _) => ejection.endpoint(which)?.try_enter(ask).ok(),
            Client::Never | Client::InStep(..) => None,
        }
    }

    fn settle(&self, which: usize, call: Option<Call>, worked: bool, span: Span) {
        if let Some(call) = call {
            call.settle(if worked { &Verdict::Ok } else { &Verdict::Fault }, span);
        }
        if let Client::InStep(naive, rule) = self {
            let Naive { faults, until } = &mut naive.lock()[which];
            *faults = if worked { 0 } else { *faults + 1 };
            if *faults >= rule.faults && span.to >= *until {
                (*faults, *until) = (0, span.to + rule.out);
            }
        }
    }
}

fn herd(seed: u64, knobs: Knobs, way: Way, trouble: Trouble, tap: &Tap) -> Outcome {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let plan = Plan { line: knobs.line, ..Plan::new(knobs.warm, knobs.service_time) };
    let backend = |which| {
        let tap = if which == SICK { tap.clone() } else { Tap::default() };
        Service::tapped(&env, "backend", SECOND, plan, tap)
    };
    let backends: Vec<Service> = (0..BACKENDS).map(backend).collect();
    let clients: Vec<Arc<Client>> =
        (0..knobs.clients).map(|id| Arc::new(Client::new(&env.scope(id), knobs, way))).collect();
    let served = Arc::new(AtomicU64::new(0));
    if trouble == Trouble::One {
        env.spawn(fall_sick(env.clone(), knobs, backends[SICK].clone(), Arc::clone(&served))).detach();
    }
    let after = if trouble == Trouble::One { AFTER_ONE } else { AFTER_ALL };
    let (users, who, whom, luck) = (env.rng("users"), env.rng("who"), env.rng("whom"), env.rng("luck"));
    let asked = Cell::new([0u64; 2]);
    let mut away: Vec<Away> = clients.iter().map(|_| Away::default()).collect();
    let failed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    sim.run(poisson(
        &env,
        &users,
        Tick::ZERO + WELL + TROUBLE + after,
        |_| knobs.demand,
        |_| {
            let ask = Ask::new(&env);
            let id = who.below(knobs.clients);
            let client = Arc::clone(&clients[usize::try_from(id).unwrap_or_default()]);
            let unlucky = luck.chance(knobs.failing) && trouble == Trouble::All && phase(ask.at) == Some(0);
            let picked = client.pick(ask.at, &whom);
            let away = &mut away[usize::try_from(id).unwrap_or_default()];
            if client.weight(SICK, ask.at) <= 0.0 {
                away.kept_away(ask.at);
            }
            let phase = phase(ask.at);
            if let Some(phase) = phase {
                let mut so_far = asked.get();
                so_far[phase] += 1;
                asked.set(so_far);
            }
            let count = move |failed: &[AtomicU64; 2]| {
                phase.map(|phase| failed[phase].fetch_add(1, Ordering::Relaxed));
            };
            // Nobody is left to ask.
            let Some(which) = picked else { return count(&failed) };
            let wave = if which == SICK { away.let_in(ask.at) } else { None };
            let caller = Caller::of(id, "/").in_wave_if("ejection", wave);
            let call = client.enter(which, &ask);
            let (env, backend, failed) = (env.clone(), backends[which].clone(), Arc::clone(&failed));
            let served = (which == SICK).then(|| Arc::clone(&served));
            env.clone()
                .spawn(async move {
                    let answer = by(&env, Some(ask.at + knobs.timeout), backend.call_from(caller)).await;
                    let worked = answer == Some(Ok(())) && !unlucky;
                    client.settle(which, call, worked, Span { from: ask.at, to: env.now() });
                    if worked {
                        if let Some(served) = &served {
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                    } else {
                        count(&failed);
                    }
                })
                .detach();
        },
    ));
    let failed = [0, 1].map(|phase| failed[phase].load(Ordering::Relaxed));
    let asked = asked.get();
    let worked = [0, 1].map(|phase| 1.0 - failed[phase] as f64 / asked[phase].max(1) as f64);
    let seen = backends[SICK].seen();
    Outcome { failed, worked, recovered: recovered(&seen.served, knobs.demand), calls: seen.calls }
}

/// Zero during the trouble, one after it.
fn phase(at: Tick) -> Option<usize> {
    let at = at - Tick::ZERO;
    (at >= WELL).then_some(usize::from(at >= WELL + TROUBLE))
}

/// Is well, down, and back: the faster the more it has served since.
async fn fall_sick(env: Env, knobs: Knobs, backend: Service, served: Arc<AtomicU64>) {
    env.sleep(WELL).await;
    backend.change(|plan| plan.down = true);
    env.sleep(TROUBLE).await;
    let before = served.load(Ordering::Relaxed);
    loop {
        let warmer = usize::try_from((served.load(Ordering::Relaxed) - before) / knobs.warms_up).unwrap_or(knobs.warm);
        backend.change(|plan| (plan.down, plan.workers) = (false, knobs.warm.min(knobs.cold + warmer)));
        env.sleep(SECOND / 10).await;
    }
}

/// How long after it was well the first five seconds ended in which it served nine tenths of its share.
fn recovered(served: &Timeline, demand: f64) -> Option<Duration> {
    let well = usize::try_from((WELL + TROUBLE).as_secs()).unwrap_or_default();
    let share = demand / BACKENDS as f64;
    let after = served.counts().get(well..)?;
    let first = after.windows(5).position(|five| five.iter().sum::<u64>() as f64 >= 0.9 * 5.0 * share)?;
    Some(SECOND * u32::try_from(first + 5).unwrap_or(u32::MAX))
}
