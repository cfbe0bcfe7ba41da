//! Ten clients want ten times what an origin can do; then it is out for a while; then it could serve everybody.
//!
//! Without a throttle all they want reaches the origin, which refuses nine of ten. With one they send about twice what is
//! accepted. The price is paid after the outage: a client that has seen nothing accepted for a whole window sends little, so
//! it learns slowly that it could send more. How little is what the cap decides, how slowly the window.
//!
//! Corrects: that a throttle without a cap can refuse for ever. It always sends about one request in a window, and what is
//! accepted doubles every 42 s (the window, times ln 2, over K), so it comes back after ten minutes or so; but its cause
//! was over long before.

use std::time::Duration;

use herdproof::{
    Sim, Throttle, Tick,
    gate::{Ask, Gate, Permit, Span, Verdict},
};

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source},
    service::{Plan, Service},
    timeline::Timeline,
};

const SECOND: Duration = Duration::from_secs(1);
const OUT: u32 = 360;
const BACK: u32 = 600;
const END: u32 = 1_860;

#[derive(Clone, Copy)]
struct Setting {
    /// The largest probability of refusing.
    most: f64,
    window: Duration,
}

struct Outcome {
    demand: f64,
    calls: Timeline,
    served: Timeline,
}

knobs! {
    /// How many clients there are, each with a throttle of its own.
    clients: u64 = 10, 1..=1_000;
    /// What they want, a second.
    demand: f64 = 100.0, 1.0..=500.0;
    /// How long the origin takes for a call.
    service_time: Duration = Duration::from_millis(200), Duration::from_millis(1)..=SECOND * 2;
    /// How many calls it works on at a time while it is overloaded.
    busy: usize = 2, 1..=100;
    /// How many when it is back.
    ample: usize = 40, 1..=1_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "throttle",
    title: "clients that ask an overloaded origin less, and how long they remember an outage",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let usual = Setting { most: 0.9, window: SECOND * 120 };
    let uncapped = Setting { most: 1.0, ..usual };
    let short = Setting { window: SECOND * 30, ..usual };
    let ways = [None, Some(uncapped), Some(usual), Some(short)];
    let [naive, uncapped, capped, short] =
        settings.arms(&ways, |arm, way| herd(settings.seed, knobs, *way, settings.tap(arm)));
    let seconds = |outcome: &Outcome| outcome.recovered().as_secs_f64();
    let checks = vec![
        Check::within(
            Source::Formula,
            "no throttle: sent for each accepted is demand over capacity",
            knobs.demand / knobs.overloaded().capacity(),
            0.5,
            naive.sent_per_accepted(),
        )
        .cites("T14"),
        Check::within(Source::Published, "throttle: it is K", 2.0, 0.25, capped.sent_per_accepted())
            .cites("SRE book")
            .cites("T14"),
        Check::within(Source::Published, "throttle, 30 s: it is K", 2.0, 0.25, short.sent_per_accepted())
            .cites("SRE book")
            .cites("T14"),
        Check::within(
            Source::Formula,
            "throttle: share of the demand sent in the second half of the outage is one less the cap",
            0.1,
            0.02,
            capped.sent_late_in_outage(),
        )
        .cites("T14"),
        Check::at_most(
            Source::Formula,
            "no cap: share of the demand sent then is next to nothing",
            0.01,
            uncapped.sent_late_in_outage(),
        )
        .cites("T14"),
        Check::at_least(
            Source::Promise,
            "no cap: the outage outlasts its cause by so many times as long",
            2.0,
            seconds(&uncapped) / seconds(&capped),
        )
        .cites("T14"),
        Check::at_most(Source::Promise, "throttle, 30 s: seconds until everybody is served", 90.0, seconds(&short))
            .cites("T14"),
    ];
    let summary = format!(
        "the overloaded origin was sent {:.1} requests for each it accepted, {:.1} with a throttle. After the outage, \
         everybody was served again after {:?} without a cap, {:?} with one of 0.9, and {:?} with that and a window of \
         30 s.",
        naive.sent_per_accepted(),
        capped.sent_per_accepted(),
        uncapped.recovered(),
        capped.recovered(),
        short.recovered(),
    );
    Report {
        scenario: "throttle",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("overloaded", format!("{}/s", knobs.overloaded().capacity())),
            Parameter::new("back", format!("with {}/s", knobs.back().capacity())),
            Parameter::new("K", 2),
        ],
        arms: vec![
            naive.arm("no throttle"),
            uncapped.arm("throttle, no cap"),
            capped.arm("throttle, capped"),
            short.arm("throttle, capped, 30 s window"),
        ],
        span: Duration::ZERO,
        marks: vec![
            Mark { at: SECOND * OUT, what: "the origin is out" },
            Mark { at: SECOND * BACK, what: "it is back, and could serve everybody" },
        ],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// A line of a second, with the numbers of the catalogue.
    fn overloaded(self) -> Plan {
        Plan { line: 10, ..Plan::new(self.busy, self.service_time) }
    }

    fn back(self) -> Plan {
        Plan { line: 200, ..Plan::new(self.ample, self.service_time) }
    }
}

fn herd(seed: u64, knobs: Knobs, setting: Option<Setting>, tap: Tap) -> Outcome {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service::tapped(&env, "origin", SECOND, knobs.overloaded(), tap);
    let (clock, origin) = (env.clone(), service.clone());
    env.spawn(async move {
        clock.sleep_until(Tick::ZERO + SECOND * OUT).await;
        origin.change(|plan| plan.down = true);
        clock.sleep_until(Tick::ZERO + SECOND * BACK).await;
        origin.change(|plan| *plan = knobs.back());
    })
    .detach();
    let throttle = |id| {
        let Setting { most, window } = setting?;
        Some(Throttle::builder(&env.scope(id)).most_refused(most).window(window).build())
    };
    let throttles: Vec<Option<Throttle>> = (0..knobs.clients).map(throttle).collect();
    let (users, who) = (env.rng("users"), env.rng("who"));
    sim.run(poisson(
        &env,
        &users,
        Tick::ZERO + SECOND * END,
        |_| knobs.demand,
        |_| {
            let id = who.below(knobs.clients);
            let throttle = &throttles[usize::try_from(id).unwrap_or(0)];
            let ask = Ask::new(&env);
            if let Ok(permit) = throttle.try_enter(&ask) {
                let (clock, service) = (env.clone(), service.clone());
                env.spawn(async move {
                    let verdict = match service.call_from(Caller::of(id, "/")).await {
                        Ok(()) => Verdict::Ok,
                        Err(_) => Verdict::Overload { after: None },
                    };
                    permit.settle(&verdict, Span { from: ask.at, to: clock.now() });
                })
                .detach();
            }
        },
    ));
    let seen = service.seen();
    Outcome { demand: knobs.demand, calls: seen.calls, served: seen.served }
}

impl Outcome {
    /// Over the last two minutes before the outage, when everybody has made up their mind.
    fn sent_per_accepted(&self) -> f64 {
        between(&self.calls, OUT - 120, OUT) / between(&self.served, OUT - 120, OUT)
    }

    /// The share of the demand that reached the origin when nothing had been accepted for a window.
    fn sent_late_in_outage(&self) -> f64 {
        between(&self.calls, BACK - 100, BACK) / (self.demand * 100.0)
    }

    /// How long after it was back the first ten seconds ended that had 95 % of the demand served.
    fn recovered(&self) -> Duration {
        let good =
            (BACK..END - 10).find(|&second| between(&self.served, second, second + 10) >= 0.95 * 10.0 * self.demand);
        SECOND * (good.map_or(END, |second| second + 10) - BACK)
    }

    fn arm(self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::number("sent_per_accepted", "sent/accept", self.sent_per_accepted()),
            Figure::number("sent_in_outage_share", "sent in out.", self.sent_late_in_outage()),
            Figure::number("recovered_s", "back after s", self.recovered().as_secs_f64()),
            Figure::count("calls", "calls", self.calls.total()),
        ];
        Arm::new(name, figures, self.calls)
    }
}

/// How many there were from one second to another.
fn between(timeline: &Timeline, from: u32, to: u32) -> f64 {
    timeline.counts().iter().take(to as usize).skip(from as usize).sum::<u64>() as f64
}
