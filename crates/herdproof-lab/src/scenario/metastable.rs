//! A service that stays down after what took it down is gone.
//!
//! It can serve half as much again as is asked of it. For ten seconds it loses most of its workers. Callers give up after a
//! second and try again, three times in all; what they gave up on still stands in the line and is served to nobody. When
//! the workers are back the line is long, everybody waits longer than a second, everybody tries three times, and three
//! times the demand is more than the service can do. Nothing is broken any more, and nobody is served.
//!
//! It is vulnerable where `demand < capacity < demand x tries`. Jitter does not help: it is not the timing of retries that
//! keeps it down but their number. With a budget the demand never comes to more than a tenth above what users ask, and
//! the service comes back as soon as without any retries.
//!
//! The floor of a budget counts for each client: here there is one. A thousand clients with a floor of three a second are
//! 3,000 a second of extra demand.
//!
//! The second model is Marc Brooker's (`simple_collapse_sim`): no line, but each request takes ten milliseconds longer for
//! every other one in flight, and users come and go in a ramp. His figures are means of ten runs.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use herdproof::{
    Backoff, Env, Sim, Tick,
    gate::{Ask, result},
    retry::{Failure, Retry, RetryBuilder},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, say, spell},
    service::{Plan, Service},
    timeline::Timeline,
};

const SEC: Duration = Duration::from_secs(1);
/// When the trigger comes.
const TRIGGER: Duration = Duration::from_secs(10);
/// How long is watched after the trigger is gone.
const AFTER: Duration = Duration::from_secs(40);
/// The sizes and durations of the frontier: percent of the workers, and seconds.
const PERCENT: [usize; 3] = [50, 80, 100];
const DURATIONS: [u32; 4] = [1, 2, 4, 8];

/// How many runs of Brooker's model are averaged, as there, whatever the run's own seed.
const COLLAPSES: u64 = 10;

/// So many of the workers are gone for so long.
#[derive(Clone, Copy)]
struct Trigger {
    lost: usize,
    lasts: Duration,
}

/// A way of trying again.
type Rule = dyn Fn(RetryBuilder) -> RetryBuilder;

knobs! {
    /// Users a second.
    demand: f64 = 20.0, 1.0..=100.0;
    /// How often each tries.
    tries: u32 = 3, 1..=10;
    /// How long a try may take.
    timeout: Duration = SEC, SEC / 10..=SEC * 10;
    /// How many calls the service works on at a time.
    workers: usize = 10, 1..=100;
    /// How long it takes for one.
    service_time: Duration = Duration::from_millis(333), Duration::from_millis(10)..=SEC * 2;
    /// How many workers are lost from 10 s on; no more than there are.
    lost: usize = 8, 0..=100;
    /// For how long they are gone.
    lasts: Duration = SEC * 10, SEC / 10..=SEC * 60;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "metastable",
    title: "a service that stays down after what took it down is gone",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let tries = u16::try_from(knobs.tries).unwrap_or(u16::MAX);
    let at_once: &Rule = &move |rule| rule.attempts(tries).backoff(Backoff::constant(Duration::ZERO)).without_budget();
    let jitter: &Rule = &move |rule| rule.attempts(tries).without_budget();
    let never: &Rule = &|rule| rule.attempts(1).without_budget();
    let ours: &Rule = &|rule| rule;
    let rules = [at_once, jitter, never, ours];
    let [naive, jittered, single, budgeted] =
        std::array::from_fn(|arm| Run::new(seed, knobs, knobs.trigger(), rules[arm], settings.tap(arm)));
    let frontier = |rule| knobs.sizes().map(|lost| longest_survived(seed, knobs, lost, rule));
    let frontiers = (!settings.is_bare()).then(|| rules.map(frontier));
    let checks = frontiers.map_or_else(Vec::new, |frontiers| {
        let mut checks = checks(knobs, [&naive, &jittered, &single, &budgeted], &frontiers);
        let published: &Rule = &|rule| rule.attempts(3).backoff(Backoff::constant(Duration::ZERO)).without_budget();
        let collapses: Vec<Collapse> = (0..COLLAPSES).map(|seed| Collapse::new(seed, published)).collect();
        checks.extend(collapse_checks(&collapses, &Collapse::new(seed, ours)));
        checks
    });
    let left = 1.0 - knobs.trigger().lost as f64 / knobs.workers as f64;
    let left = if (left - 0.2).abs() < 1e-9 { "a fifth".to_owned() } else { format!("{:.0} %", 100.0 * left) };
    let summary = format!(
        "{} with {left} of the workers, and {} tries: forty seconds after the workers are back {:.0} % of the \
         users are served, {:.0} % with jitter. With a budget all are, from {:.0} s after; without retries from {:.0} s after.",
        knobs.said(),
        spell(knobs.tries.into()),
        100.0 * naive.share_at_end(),
        100.0 * jittered.share_at_end(),
        budgeted.recovered_after().map_or(f64::NAN, |after| after.as_secs_f64()),
        single.recovered_after().map_or(f64::NAN, |after| after.as_secs_f64()),
    );
    let [a, b, c, d] = frontiers.map_or([None; 4], |frontiers| frontiers.map(Some));
    let [several, with_jitter] = match tries {
        3 => ["three tries", "three tries, jitter"],
        _ => ["several tries", "several tries, jitter"],
    };
    Report {
        scenario: "metastable",
        seed,
        parameters: vec![Parameter::new("frontier", format!("50, 80, 100 % of the workers for {DURATIONS:?} s"))],
        arms: vec![
            naive.arm(several, a),
            jittered.arm(with_jitter, b),
            single.arm("one try", c),
            budgeted.arm("defaults, with budget", d),
        ],
        span: Duration::ZERO,
        marks: vec![
            Mark { at: TRIGGER, what: "workers are lost" },
            Mark { at: TRIGGER + knobs.lasts, what: "they are back" },
        ],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn healthy(self) -> Plan {
        Plan::new(self.workers, self.service_time)
    }

    fn trigger(self) -> Trigger {
        Trigger { lost: self.lost.min(self.workers), lasts: self.lasts }
    }

    /// How long the trigger is, in words if they are whole seconds.
    fn said(self) -> String {
        if self.lasts.subsec_nanos() == 0 && self.lasts.as_secs() < 60 {
            format!("{} seconds", spell(self.lasts.as_secs()))
        } else {
            say(self.lasts)
        }
    }

    /// How many workers the triggers of the frontier take.
    fn sizes(self) -> [usize; 3] {
        PERCENT.map(|percent| self.workers * percent / 100)
    }
}

/// How a trigger went.
struct Run {
    trigger: Trigger,
    calls: Timeline,
    wasted: u64,
    users: ByArrival,
}

/// Users by the second they came in: how many, and how many were served.
#[derive(Clone, Default)]
struct ByArrival(Vec<[u32; 2]>);

impl Run {
    fn new(seed: u64, knobs: Knobs, trigger: Trigger, rule: &Rule, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let service = Service::tapped(&env, "service", SEC, knobs.healthy(), tap);
        let retry = rule(Retry::builder(&env).timeout(knobs.timeout)).build();
        let (plan, clock) = (service.clone(), env.clone());
        env.spawn(async move {
            clock.sleep(TRIGGER).await;
            plan.change(|plan| plan.workers -= trigger.lost);
            clock.sleep(trigger.lasts).await;
            plan.change(|plan| plan.workers += trigger.lost);
        })
        .detach();
        let until = TRIGGER + trigger.lasts + AFTER;
        let call = service.clone();
        let users = users(
            &mut sim,
            &retry,
            until,
            knobs.timeout * 10,
            |_| knobs.demand,
            move |caller| {
                let call = call.clone();
                async move { call.call_from(caller).await.is_ok() }
            },
        );
        let seen = service.seen();
        Run { trigger, calls: seen.calls, wasted: seen.wasted, users }
    }

    /// The first second in which the trigger is gone.
    fn gone(&self) -> usize {
        let whole = (TRIGGER + self.trigger.lasts).as_nanos().div_ceil(SEC.as_nanos());
        usize::try_from(whole).unwrap_or(usize::MAX)
    }

    /// The share of users served who came in the last ten seconds.
    fn share_at_end(&self) -> f64 {
        let end = self.gone() + usize::try_from(AFTER.as_secs()).unwrap_or(0);
        self.users.share(end - 10, end)
    }

    /// When everybody was served again, counted from the end of the trigger: nine in ten in every second from then on.
    fn recovered_after(&self) -> Option<Duration> {
        let end = self.users.0.len();
        let bad = (0..end).rev().find(|second| self.users.share(*second, second + 1) < 0.9);
        let first = bad.map_or(0, |bad| bad + 1);
        (first < end).then(|| SEC * u32::try_from(first.saturating_sub(self.gone())).unwrap_or(u32::MAX))
    }

    fn arm(&self, name: &'static str, survived: Option<[u32; 3]>) -> Arm {
        let before = usize::try_from(TRIGGER.as_secs()).unwrap_or(0);
        let mut figures = vec![
            Figure::count("calls", "calls", self.calls.total()),
            Figure::count("wasted", "for nobody", self.wasted),
            Figure::number("served_before_percent", "before %", 100.0 * self.users.share(0, before)),
            Figure::number("served_at_end_percent", "at end %", 100.0 * self.share_at_end()),
        ];
        if let Some([half, most, all]) = survived {
            figures.extend([
                Figure::count("survives_50_percent_for_s", "-50 % s", u64::from(half)),
                Figure::count("survives_80_percent_for_s", "-80 % s", u64::from(most)),
                Figure::count("survives_100_percent_for_s", "-100 % s", u64::from(all)),
            ]);
        }
        Arm::new(name, figures, self.calls.clone())
    }
}

/// The longest trigger of this size, in seconds, from which it recovers; zero if from none.
fn longest_survived(seed: u64, knobs: Knobs, lost: usize, rule: &Rule) -> u32 {
    let survives = |lasts: &&u32| {
        let trigger = Trigger { lost, lasts: SEC * **lasts };
        Run::new(seed, knobs, trigger, rule, Tap::default()).share_at_end() > 0.9
    };
    DURATIONS.iter().take_while(survives).last().copied().unwrap_or(0)
}

/// Users who come until then whether or not the others are served, each of whom calls through the one client. The last of
/// them are waited for.
fn users<F>(
    sim: &mut Sim,
    retry: &Retry,
    until: Duration,
    patience: Duration,
    rate: impl Fn(f64) -> f64,
    call: impl Fn(Caller) -> F + Clone + Send + Sync + 'static,
) -> ByArrival
where
    F: Future<Output = bool> + Send + 'static,
{
    let env = sim.env();
    let users = Arc::new(Mutex::new(ByArrival::default()));
    let arrive = |user| {
        let (env, retry, users, call) = (env.clone(), retry.clone(), Arc::clone(&users), call.clone());
        let second = (env.now() - Tick::ZERO).as_secs();
        users.lock().count(second, 0);
        env.clone()
            .spawn(async move {
                let caller = |ask: Ask| Caller::of(user, "/").trying(ask.attempt);
                let work = async |ask| if call(caller(ask)).await { Ok(()) } else { Err(Failure::Failed(())) };
                if retry.run(&env, result, Ask::new(&env), work).await.is_ok() {
                    users.lock().count(second, 1);
                }
            })
            .detach();
    };
    let end = Tick::ZERO + until;
    sim.run(poisson(&env, &env.rng("users"), end, |at| rate((at - Tick::ZERO).as_secs_f64()), arrive));
    // Those who came last are served or give up.
    sim.run_until(end + patience);
    let users = users.lock();
    users.clone()
}

impl ByArrival {
    fn count(&mut self, second: u64, which: usize) {
        let second = usize::try_from(second).unwrap_or(0);
        if self.0.len() <= second {
            self.0.resize(second + 1, [0; 2]);
        }
        self.0[second][which] += 1;
    }

    /// The share served of those who came from one second until another; all of nobody.
    fn share(&self, from: usize, to: usize) -> f64 {
        let seconds = self.0.iter().take(to).skip(from);
        let [came, served] = seconds.fold([0, 0], |[came, served], [c, s]| [came + c, served + s]);
        if came == 0 { 1.0 } else { f64::from(served) / f64::from(came) }
    }
}

fn checks(knobs: Knobs, [naive, jittered, single, ours]: [&Run; 4], frontiers: &[[u32; 3]; 4]) -> Vec<Check> {
    let secs = |run: &Run| run.recovered_after().map_or(f64::INFINITY, |after| after.as_secs_f64());
    let [at_once, jitter, never, budget] = frontiers;
    let (capacity, tries) = (knobs.healthy().capacity(), spell(knobs.tries.into()));
    vec![
        Check::equal(
            Source::Formula,
            "vulnerable: demand < capacity < demand x tries",
            &true,
            &(knobs.demand < capacity && capacity < knobs.demand * f64::from(knobs.tries)),
        )
        .cites("H4")
        .cites("H13"),
        Check::at_least(Source::Formula, "before the trigger everybody is served, in the naive arm too (%)", 99.0, {
            100.0 * naive.users.share(0, 9)
        })
        .cites("H4"),
        Check::at_most(
            Source::Published,
            format!("{tries} tries: the collapse outlasts its trigger (OSDI 2022; % served 40 s later)"),
            5.0,
            100.0 * naive.share_at_end(),
        )
        .cites("OSDI 2022")
        .cites("H4"),
        Check::at_most(Source::Promise, "jitter alone does not end it (% served 40 s later)", 5.0, {
            100.0 * jittered.share_at_end()
        })
        .cites("T2"),
        Check::at_least(Source::Promise, "with the budget everybody is served again (%)", 99.0, {
            100.0 * ours.share_at_end()
        })
        .cites("T18"),
        Check::at_most(
            Source::Promise,
            "with the budget: seconds to recover, at most three more than without retries",
            secs(single) + 3.0,
            secs(ours),
        )
        .cites("T18"),
        Check::at_least(
            Source::Published,
            "frontier: the larger the trigger, the shorter the one that is survived (OSDI 2022)",
            f64::from(at_once[2]).max(f64::from(jitter[2])),
            f64::from(at_once[0].min(jitter[0])),
        )
        .cites("OSDI 2022"),
        Check::at_most(
            Source::Published,
            format!("frontier: {tries} tries do not survive 80 % for 8 s"),
            4.0,
            f64::from(at_once[1]),
        )
        .cites("OSDI 2022"),
        Check::equal(Source::Promise, "frontier: with the budget, as without retries", never, budget).cites("T18"),
    ]
}

/// Brooker's model: what is served, by the second of the answer, and users by the second of their coming.
struct Collapse {
    successes: Timeline,
    users: ByArrival,
}

/// A server that takes longer the more it has in flight, whether or not anybody still waits for it.
struct Server {
    env: Env,
    rng: herdproof::env::Rng,
    in_flight: AtomicU32,
    successes: Mutex<Timeline>,
}

impl Server {
    async fn call(self: Arc<Self>) -> bool {
        let server = Arc::clone(&self);
        let work = self.env.spawn(async move {
            server.network().await;
            let others = server.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
            server.env.sleep(SEC + Duration::from_millis(10) * others).await;
            server.in_flight.fetch_sub(1, Ordering::Relaxed);
            server.network().await;
        });
        let answered = work.await.is_ok();
        self.successes.lock().record(self.env.now());
        answered
    }

    async fn network(&self) {
        self.env.sleep(Duration::from_millis(100).mul_f64(-(1.0 - self.rng.unit()).ln())).await;
    }
}

impl Collapse {
    fn new(seed: u64, rule: &Rule) -> Collapse {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let server = Arc::new(Server {
            env: env.clone(),
            rng: env.rng("server"),
            in_flight: AtomicU32::new(0),
            successes: Mutex::new(Timeline::new(SEC)),
        });
        let retry = rule(Retry::builder(&env).timeout(SEC * 3)).build();
        let called = Arc::clone(&server);
        let ramp = |at: f64| 80.0 - 1.6 * (at - 25.0).abs();
        let users = users(&mut sim, &retry, SEC * 75, SEC * 10, ramp, move |_| Arc::clone(&called).call());
        let successes = server.successes.lock().clone();
        Collapse { successes, users }
    }

    /// Successes in the second that begins then.
    fn successes_at(&self, second: usize) -> f64 {
        self.successes.counts().get(second).copied().unwrap_or(0) as f64
    }
}

fn collapse_checks(naive: &[Collapse], ours: &Collapse) -> Vec<Check> {
    let published = |second: usize, successes: f64, error: f64| {
        let what = format!("simple_collapse: successes in second {second}, three tries, mean of {COLLAPSES} runs");
        let mean = naive.iter().map(|run| run.successes_at(second)).sum::<f64>() / COLLAPSES as f64;
        Check::within(Source::Published, what, successes, error, mean).cites("Brooker")
    };
    vec![
        published(15, 56.0, 6.0),
        published(22, 27.0, 15.0),
        published(30, 0.0, 1.0),
        published(70, 0.0, 1.0),
        Check::at_least(
            Source::Promise,
            "simple_collapse: with the budget, who comes after 55 s is served (%)",
            95.0,
            100.0 * ours.users.share(55, 75),
        )
        .cites("T18"),
    ]
}
