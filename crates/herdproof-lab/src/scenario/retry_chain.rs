//! Three services, one behind the other, each of which tries three times.
//!
//! Every layer is reasonable by itself, and together they make 27 calls of one when the last one is in trouble. Retrying only
//! at the edge makes three, but a blip at the far end then costs the whole way again. Budgets bound each layer to a
//! tenth more than it was asked, and three layers to a third more. What bounds the whole chain is to say it: who has
//! tried and given up answers `x-no-retry`, who is a retry says `x-retry-attempt`, and only the layer next to the trouble
//! tries again.

use std::{pin::Pin, sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    budget::Budget,
    env::Rng,
    gate::{Ask, result},
    retry::{Failure, Retry, RetryBuilder, wire},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Edge, Figure, Mark, Parameter, Report, Source, spell},
    timeline::Timeline,
};

const HORIZON: Duration = Duration::from_secs(20);
const BIN: Duration = Duration::from_millis(100);

knobs! {
    /// How many services there are, one behind the other.
    services: u64 = 3, 2..=5;
    /// Users a second.
    users: f64 = 50.0, 1.0..=500.0;
    /// The share of calls that fail when nothing is wrong.
    blips: f64 = 0.05, 0.0..=0.9;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "retry-chain",
    title: "three services that each try three times: 27 calls, or one and a little",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let seed = settings.seed;
    let Knobs { services, blips, .. } = Knobs::of(settings);
    let layers = i32::try_from(services).unwrap_or(i32::MAX);
    let naive = Pair::run(settings, 0, false, |rule, _, _| rule.without_budget());
    let edge =
        Pair::run(settings, 1, false, |rule, layer, _| rule.without_budget().attempts(if layer == 0 { 3 } else { 1 }));
    let budget = Pair::run(settings, 2, false, |rule, _, env| {
        rule.budget(&Budget::builder(env).floor(0.0).without_circuit().build())
    });
    let ours = Pair::run(settings, 3, true, |rule, _, _| rule);
    let third = 1.1f64.powi(layers);
    let checks = vec![
        Check::equal(
            Source::Article,
            format!("naive: 3^{services} calls per user when the origin is down"),
            &3f64.powi(layers),
            &naive.down.load(),
        )
        .cites("N30")
        .cites("H15"),
        Check::equal(Source::Formula, "edge only: 3 calls per user", &3.0, &edge.down.load()).cites("H15"),
        Check::within(
            Source::Formula,
            format!("a budget of 10 % at each layer: 1.1^{services}"),
            third,
            0.05,
            budget.down.load(),
        )
        .cites("T18"),
        Check::at_most(Source::Promise, "defaults and headers: calls per user", 1.4, ours.down.load()).cites("T18"),
        Check::at_least(
            Source::Promise,
            format!("defaults and headers: when {:.0} % of calls fail, users served (%)", 100.0 * blips),
            99.0,
            100.0 * ours.blips.success(),
        )
        .cites("T18"),
        Check::within(
            Source::Formula,
            format!("defaults and headers: and calls per user, about 1 / (1 - {blips})"),
            1.0 / (1.0 - blips),
            0.03,
            ours.blips.load(),
        )
        .cites("T18"),
        Check::at_most(
            Source::Promise,
            "defaults and headers: calls between the first two services per user, since the last one has retried",
            1.02,
            ours.blips.per_user(1),
        )
        .cites("H15"),
    ];
    let summary = format!(
        "when the origin is down, one call becomes {:.0} with three tries at each of {} layers, {:.0} with tries at the \
         edge only, {:.2} with budgets alone and {:.2} with budgets and headers; and when {:.0} % of calls fail, the last serves \
         {:.1} % of the users where no retries would serve {:.0} %.",
        naive.down.load(),
        spell(services),
        edge.down.load(),
        budget.down.load(),
        ours.down.load(),
        100.0 * blips,
        100.0 * ours.blips.success(),
        100.0 * (1.0 - blips),
    );
    Report {
        scenario: "retry-chain",
        seed,
        parameters: vec![
            Parameter::new("tries at each", 3),
            Parameter::new("time", format!("{HORIZON:?}")),
            Parameter::new("origin", "down; and again with blips"),
        ],
        arms: vec![
            naive.arm("three tries each"),
            edge.arm("only at the edge"),
            budget.arm("budgets alone"),
            ours.arm("budgets and headers"),
        ],
        span: HORIZON,
        marks: vec![Mark { at: Duration::ZERO, what: "the origin is down" }],
        checks,
        summary,
        ..Report::default()
    }
}

/// One way of retrying, in an outage and in ordinary times.
struct Pair {
    down: Chain,
    blips: Chain,
}

/// What a chain of services did.
struct Chain {
    users: u64,
    served: u64,
    /// Calls that reached each service, and last the origin.
    calls: Vec<u64>,
    timeline: Timeline,
}

/// A service: it answers a call by calling the next, and the last one calls the origin.
struct Layer {
    env: Env,
    number: usize,
    retry: Retry,
    next: Option<Arc<Layer>>,
    origin: Arc<Origin>,
    /// Whether it reads and writes the headers.
    headers: bool,
}

struct Origin {
    env: Env,
    rng: Rng,
    failing: f64,
    tap: Tap,
    seen: Mutex<(Vec<u64>, Timeline)>,
}

/// What is said along with a call.
type Headers = Vec<(&'static str, String)>;

/// An answer that is none, and whether it says `x-no-retry`.
#[derive(Clone, Copy, Debug)]
struct Sorry {
    no_retry: Option<&'static str>,
}

impl Layer {
    /// Boxed, since the next service does the same.
    fn call(
        self: Arc<Self>,
        user: Caller,
        tries: u32,
        told: Headers,
    ) -> Pin<Box<dyn Future<Output = Result<(), Sorry>> + Send>> {
        Box::pin(async move {
            self.origin.seen.lock().0[self.number] += 1;
            let mut ask = Ask::new(&self.env);
            if self.headers {
                let value = |name| told.iter().find(|(told, _)| *told == name).map(|(_, value)| value.as_bytes());
                ask = wire::read(ask, value).expect("services write what can be read");
            }
            let answer = self.retry.run(&self.env, result, ask, async |ask| self.pass_on(user, tries, ask).await).await;
            answer.map_err(|gave_up| Sorry { no_retry: gave_up.no_retry().then_some(wire::OVERLOADED) })
        })
    }

    /// `tries` are those that were in vain before, at all services.
    async fn pass_on(&self, user: Caller, tries: u32, ask: Ask) -> Result<(), Failure<Sorry>> {
        let tries = tries + u32::from(ask.attempt);
        let answer = match &self.next {
            None => self.origin.call(user.trying(tries)).await,
            Some(next) => {
                let mut headers = Headers::new();
                wire::write(&ask, ask.at, |name, value| headers.push((name, value.to_string())));
                Arc::clone(next).call(user, tries, headers).await
            }
        };
        answer.map_err(|sorry| match sorry.no_retry {
            Some(value) if self.headers && wire::parse_no_retry(value.as_bytes()).is_ok() => Failure::NoRetry(sorry),
            _ => Failure::Failed(sorry),
        })
    }
}

impl Origin {
    async fn call(&self, caller: Caller) -> Result<(), Sorry> {
        let request = self.tap.begin(&self.env, caller);
        {
            let mut seen = self.seen.lock();
            seen.1.record(self.env.now());
            *seen.0.last_mut().expect("the origin is the last") += 1;
        }
        self.env.sleep(Duration::from_millis(1)).await;
        let fails = self.rng.chance(self.failing);
        request.end(if fails { 503 } else { 200 });
        if fails { Err(Sorry { no_retry: None }) } else { Ok(()) }
    }
}

impl Chain {
    fn run(
        seed: u64,
        knobs: Knobs,
        failing: f64,
        tap: Tap,
        headers: bool,
        rule: impl Fn(RetryBuilder, u64, &Env) -> RetryBuilder,
    ) -> Chain {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let calls = (0..=knobs.services).map(|_| 0).collect();
        let origin = Arc::new(Origin {
            env: env.clone(),
            rng: env.rng("origin"),
            failing,
            tap,
            seen: Mutex::new((calls, Timeline::new(BIN))),
        });
        let mut first: Option<Arc<Layer>> = None;
        for number in (0..knobs.services).rev() {
            let env = env.scope(number);
            let retry = rule(Retry::builder(&env), number, &env).build();
            let (next, origin) = (first.take(), Arc::clone(&origin));
            let number = usize::try_from(number).unwrap_or(0);
            first = Some(Arc::new(Layer { env, number, retry, next, origin, headers }));
        }
        let edge = first.expect("there are layers");
        let served = Arc::new(Mutex::new(0));
        let arrive = |user| {
            let (edge, served, user) = (Arc::clone(&edge), Arc::clone(&served), Caller::of(user, "/"));
            env.spawn(async move { *served.lock() += u64::from(edge.call(user, 0, Headers::new()).await.is_ok()) })
                .detach();
        };
        sim.run(poisson(&env, &env.rng("users"), Tick::ZERO + HORIZON, |_| knobs.users, arrive));
        sim.finish().expect("every call ends");
        let (calls, timeline) = origin.seen.lock().clone();
        let served = *served.lock();
        Chain { users: calls[0], served, calls, timeline }
    }

    /// From the users to the first service, from each to the next, and from the last to the origin.
    fn edges(&self) -> Vec<Edge> {
        let last = self.calls.len() - 1;
        let service = |nth: usize| ["A", "B", "C", "D", "E"].get(nth).copied().unwrap_or("...");
        let name = |to: usize| {
            let from = to.checked_sub(1).map_or("users", service);
            format!("{from} > {}", if to == last { "origin" } else { service(to) })
        };
        self.calls.iter().enumerate().map(|(to, calls)| Edge { name: name(to), calls: *calls }).collect()
    }

    fn per_user(&self, service: usize) -> f64 {
        self.calls[service] as f64 / self.users as f64
    }

    fn load(&self) -> f64 {
        self.per_user(self.calls.len() - 1)
    }

    fn success(&self) -> f64 {
        self.served as f64 / self.users as f64
    }
}

impl Pair {
    /// Listened to is the outage.
    fn run(
        settings: &Settings,
        arm: usize,
        headers: bool,
        rule: impl Fn(RetryBuilder, u64, &Env) -> RetryBuilder + Copy,
    ) -> Pair {
        let (seed, knobs) = (settings.seed, Knobs::of(settings));
        Pair {
            down: Chain::run(seed, knobs, 1.0, settings.tap(arm), headers, rule),
            blips: Chain::run(seed, knobs, knobs.blips, Tap::default(), headers, rule),
        }
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("calls", "calls", self.down.timeline.total()),
            Figure::number("at_second_service", "at 2nd", self.down.per_user(1)),
            Figure::number("at_third_service", "at 3rd", self.down.per_user(2)),
            Figure::number("at_origin", "at origin", self.down.load()),
            Figure::number("at_origin_with_blips", "blips: calls", self.blips.load()),
            Figure::number("served_with_blips_percent", "served %", 100.0 * self.blips.success()),
        ];
        Arm::new(name, figures, self.down.timeline.clone()).edges(self.down.edges())
    }
}
