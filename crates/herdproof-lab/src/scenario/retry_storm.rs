//! An origin that answers 500 for two seconds, and a crowd that retries every two seconds.
//!
//! The outage is over when the crowd returns, but the crowd is what fails now: everybody at one instant, a short line, the
//! rest refused and told nothing better than to come back in step. So the origin is idle for most of every two seconds
//! and overrun at the end of them. Doubling the delay makes the spikes rarer, not lower. Jitter fills the time between
//! them. The budget does not come back with the crowd at all: those who failed together learn it at once, and everybody
//! after them finds an origin that works.
//!
//! That is the honest price of a budget: the crowd that hit the outage is not saved by it. Who can wait should wait in a
//! line or for an appointment, not by retrying.
//!
//! Corrects: "spikes at 2, 4, 6 s, each as high as the crowd". With the origin back at 2 s each spike is lower than the last
//! by what the line takes in.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Backoff, Env, Sim, Tick,
    backoff::Jitter,
    budget::Budget,
    gate::{Ask, Verdict, result},
    retry::{Failure, Retry, RetryBuilder},
};
use parking_lot::Mutex;

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, Waits, say},
    service::{Plan, Seen, Service, Unserved},
};

const SEC: Duration = Duration::from_secs(1);
const HORIZON: Duration = Duration::from_secs(40);
const BIN: Duration = Duration::from_millis(100);

knobs! {
    /// How many clients there are, each with a budget of its own.
    clients: u64 = 10, 1..=50;
    /// Callers within each client when the outage begins.
    callers: u64 = 100, 1..=1_000;
    /// Users a second who come anyway.
    users: f64 = 50.0, 0.0..=1_000.0;
    /// How long the origin answers 500, from the beginning on.
    outage: Duration = SEC * 2, Duration::ZERO..=SEC * 20;
    /// The pause between two tries: always this, or doubled after each.
    pause: Duration = SEC * 2, SEC / 10..=SEC * 20;
    /// How long a try may take.
    timeout: Duration = SEC * 2, SEC / 100..=SEC * 20;
    /// How many calls the origin works on at a time.
    workers: usize = 20, 1..=1_000;
    /// How long it takes for one.
    service_time: Duration = SEC / 20, SEC / 1_000..=SEC * 10;
    /// How many may stand in the line before it.
    line: usize = 40, 0..=100_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "retry-storm",
    title: "an outage of two seconds, and a crowd that retries in step long after it",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let herd = |arm, rule: &dyn Fn(RetryBuilder) -> RetryBuilder| herd(seed, knobs, settings.tap(arm), rule);
    let backoff = |backoff: Backoff| move |rule: RetryBuilder| rule.backoff(backoff.clone()).overload_backoff(backoff);
    let persistent = |rule: RetryBuilder| rule.attempts(100).without_budget();
    let fixed = herd(0, &|rule| persistent(backoff(Backoff::constant(knobs.pause).jitter(Jitter::None))(rule)));
    let doubled = herd(1, &|rule| persistent(backoff(Backoff::exponential(knobs.pause).jitter(Jitter::None))(rule)));
    let jittered = herd(2, &|rule| persistent(backoff(Backoff::exponential(knobs.pause))(rule)));
    let ours = herd(3, &|rule| rule);
    let mut claims = Vec::new();
    if !settings.is_bare() {
        claims = checks(knobs, &fixed, &doubled, &jittered, &ours);
        claims.extend(anchors(seed));
    }
    let summary = format!(
        "retrying every {} keeps the origin over its capacity until {:.1} s after an outage of {}, doubling until \
         {:.1} s, full jitter until {:.1} s. With a budget that is over after {:.1} s and the load is {:.2} calls per user \
         instead of {:.2}; {} users got an error, {} of whom came after the outage.",
        say(knobs.pause),
        fixed.over_until().as_secs_f64(),
        say(knobs.outage),
        doubled.over_until().as_secs_f64(),
        jittered.over_until().as_secs_f64(),
        ours.over_until().as_secs_f64(),
        ours.load(),
        fixed.load(),
        ours.failed,
        ours.failed_after,
    );
    Report {
        scenario: "retry-storm",
        seed,
        arms: vec![
            fixed.arm(if knobs.pause == SEC * 2 { "every 2 s" } else { "a fixed pause" }),
            doubled.arm("doubled"),
            jittered.arm("doubled + full jitter"),
            ours.arm("defaults, with budget"),
        ],
        span: HORIZON,
        marks: vec![
            Mark { at: Duration::ZERO, what: "the origin is down" },
            Mark { at: knobs.outage, what: "it is back" },
        ],
        checks: claims,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    fn crowd(self) -> u64 {
        self.clients * self.callers
    }

    fn origin(self) -> Plan {
        Plan { line: self.line, ..Plan::new(self.workers, self.service_time) }
    }
}

/// What a herd did.
struct Herd {
    knobs: Knobs,
    seen: Seen,
    users: u64,
    failed: u64,
    /// Of those, how many came after the outage.
    failed_after: u64,
    /// Of those who were served in the end, with all their tries.
    waits: Option<Waits>,
}

fn herd(seed: u64, knobs: Knobs, tap: Tap, rule: impl Fn(RetryBuilder) -> RetryBuilder) -> Herd {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service::tapped(&env, "origin", BIN, Plan { down: true, ..knobs.origin() }, tap);
    let clients: Vec<(Env, Retry)> = (0..knobs.clients)
        .map(|id| env.scope(id))
        .map(|env| (env.clone(), rule(Retry::builder(&env)).timeout(knobs.timeout).build()))
        .collect();
    // Users, those who failed, and those of them who came after the outage.
    let tally = Arc::new(Mutex::new([0; 3]));
    let waits = Arc::new(Mutex::new(Vec::new()));
    let arrive = |number: u64, in_crowd: bool| {
        let id = if in_crowd { number } else { knobs.crowd() + number };
        let (env, retry) = clients[usize::try_from(number % knobs.clients).unwrap_or(0)].clone();
        let (service, tally, waits) = (service.clone(), Arc::clone(&tally), Arc::clone(&waits));
        tally.lock()[0] += 1;
        let began = env.now();
        let after = began >= Tick::ZERO + knobs.outage;
        env.clone()
            .spawn(async move {
                let ask = Ask::new(&env).deadline(Tick::ZERO + HORIZON + knobs.timeout);
                let call = async |ask: Ask| {
                    let caller = Caller::of(id, "/").trying(ask.attempt);
                    let caller = if in_crowd { caller.in_wave("retry", ask.attempt.into()) } else { caller };
                    service.call_from(caller).await.map_err(Failure::Failed)
                };
                if retry.run(&env, sort, ask, call).await.is_err() {
                    let mut tally = tally.lock();
                    tally[1] += 1;
                    tally[2] += u64::from(after);
                } else {
                    waits.lock().push(env.now() - began);
                }
            })
            .detach();
    };
    let (healer, clock) = (service.clone(), env.clone());
    env.spawn(async move {
        clock.sleep(knobs.outage).await;
        healer.change(|plan| plan.down = false);
    })
    .detach();
    (0..knobs.crowd()).for_each(|number| arrive(number, true));
    sim.run(poisson(&env, &env.rng("users"), Tick::ZERO + HORIZON, |_| knobs.users, |number| arrive(number, false)));
    sim.run_until(Tick::ZERO + HORIZON + knobs.timeout * 2);
    let [users, failed, failed_after] = *tally.lock();
    let waits = Waits::of(waits.lock().clone());
    Herd { knobs, seen: service.seen(), users, failed, failed_after, waits }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "a classification takes a reference")]
fn sort(outcome: &Result<(), Unserved>) -> Verdict {
    match outcome {
        Ok(()) => Verdict::Ok,
        Err(Unserved::Down) => Verdict::Fault,
        Err(Unserved::Full) => Verdict::Overload { after: None },
    }
}

impl Herd {
    fn load(&self) -> f64 {
        self.seen.calls.total() as f64 / self.users as f64
    }

    /// The end of the last tenth of a second in which more calls came than the origin can serve.
    fn over_until(&self) -> Duration {
        let most = self.knobs.origin().capacity() * BIN.as_secs_f64();
        let over = self.seen.calls.occupied().filter(|(_, calls)| *calls as f64 > most).last();
        BIN * over.map_or(0, |(bin, _)| u32::try_from(bin + 1).unwrap_or(u32::MAX))
    }

    fn calls_at(&self, time: Duration) -> u64 {
        let bin = usize::try_from(time.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
        self.seen.calls.counts().get(bin).copied().unwrap_or(0)
    }

    fn spike(&self) -> u64 {
        self.seen.calls.counts().iter().skip(1).copied().max().unwrap_or(0)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("calls", "calls", self.seen.calls.total()),
            Figure::number("calls_per_user", "per user", self.load()),
            Figure::count("peak_after_first_100ms", "later peak", self.spike()),
            Figure::time("over_capacity_until_ms", "over until", self.over_until()),
            Figure::count("served", "served", self.users - self.failed),
            Figure::count("failed", "failed", self.failed),
        ];
        Arm::new(name, figures, self.seen.calls.clone()).tries(self.seen.tries.clone()).waits(self.waits)
    }
}

fn checks(knobs: Knobs, fixed: &Herd, doubled: &Herd, jittered: &Herd, ours: &Herd) -> Vec<Check> {
    // A tenth of the first attempts, and three a second of each client for as long as it ran.
    let floor = 3.0 * knobs.clients as f64 * (HORIZON.as_secs_f64() + 10.0);
    let most = 1.0 + 0.1 + floor / ours.users as f64;
    // What the line and the workers take in at once, and what the workers finish within the tenth of a second.
    let (origin, crowd) = (knobs.origin(), knobs.crowd() as f64);
    let taken = (origin.line + origin.workers) as f64 + origin.capacity() * BIN.as_secs_f64();
    let soonest = [fixed, doubled, jittered].map(Herd::over_until).into_iter().min().unwrap_or_default();
    let doubled_at = [1, 3, 7].map(|pauses| knobs.pause * pauses);
    let at = doubled_at.map(|at| at.as_secs_f64());
    let mut checks = vec![
        Check::at_least(
            Source::Article,
            format!("every {pause}: the spike at {pause} is as high as the crowd", pause = say(knobs.pause)),
            crowd,
            fixed.calls_at(knobs.pause) as f64,
        )
        .cites("N26")
        .cites("H13"),
    ];
    for (spike, at) in [(1.0, knobs.pause * 2), (2.0, knobs.pause * 3)] {
        let (pause, second) = (say(knobs.pause), say(at));
        checks.push(
            Check::at_least(
                Source::Article,
                format!("every {pause}: the spike at {second} is as high as the crowd, less what the line took in"),
                crowd - spike * taken,
                fixed.calls_at(at) as f64,
            )
            .cites("N26")
            .cites("H13"),
        );
    }
    checks.extend([
        Check::at_least(
            Source::Article,
            format!("doubled: the spikes are as high, at {}, {} and {} s (the lowest of them)", at[0], at[1], at[2]),
            crowd - 2.0 * taken,
            doubled_at.map(|at| doubled.calls_at(at)).into_iter().min().unwrap_or(0) as f64,
        )
        .cites("H2")
        .cites("T1"),
        Check::at_most(
            Source::Promise,
            "defaults: calls per user, at most 1 + budget + floor x clients",
            most,
            ours.load(),
        )
        .cites("T18"),
        Check::at_most(
            Source::Promise,
            "defaults: within capacity sooner than in every other arm (s)",
            soonest.saturating_sub(BIN).as_secs_f64(),
            ours.over_until().as_secs_f64(),
        )
        .cites("T18"),
        Check::at_most(
            Source::Promise,
            "defaults: who comes after the outage is served (errors, % of users)",
            0.1,
            100.0 * ours.failed_after as f64 / ours.users as f64,
        )
        .cites("T18"),
    ]);
    checks
}

/// The table of Marc Brooker's retry simulation (brooker.co.za, February 2022), made with the library: clients at ten calls
/// a second against an origin that fails a share of all calls. Its bucket holds five tokens and earns a tenth per call;
/// that is a floor of five per window, and a window as long as the run.
fn anchors(seed: u64) -> Vec<Check> {
    let none = |rule: RetryBuilder, _: &Env| rule.attempts(1).without_budget();
    let three = |rule: RetryBuilder, _: &Env| rule.attempts(4).without_budget();
    let bucket = |rule: RetryBuilder, env: &Env| {
        let bucket = Budget::builder(env).floor(5.0 / 20.0).window(Duration::from_secs(20)).without_circuit();
        rule.attempts(100).budget(&bucket.build())
    };
    let rules: [(&str, &Rule, [Row; 3]); 3] = [
        ("no retries", &none, [(0.1, 0.901, 1.0), (0.5, 0.504, 1.0), (1.0, 0.0, 1.0)]),
        ("three retries", &three, [(0.1, 1.0, 1.11), (0.5, 0.933, 1.88), (1.0, 0.0, 4.0)]),
        ("a bucket of 10 %", &bucket, [(0.1, 0.987, 1.10), (0.5, 0.555, 1.12), (1.0, 0.0, 1.12)]),
    ];
    let mut checks = Vec::new();
    for (name, rule, rows) in rules {
        for (failing, success, load) in rows {
            let (got_success, got_load) = anchor(seed, failing, rule);
            let what = |of: &str| format!("Brooker 2022, {:.0} % of calls fail, {name}: {of}", failing * 100.0);
            checks.push(Check::within(Source::Published, what("success"), success, 0.06, got_success).cites("Brooker"));
            checks.push(Check::within(Source::Published, what("load"), load, 0.05, got_load).cites("Brooker"));
        }
    }
    checks
}

type Rule = dyn Fn(RetryBuilder, &Env) -> RetryBuilder;
/// The share of calls that fail, and what was published for it: success and load.
type Row = (f64, f64, f64);

/// The share of calls that succeed, and the calls at the origin for each.
fn anchor(seed: u64, failing: f64, rule: &Rule) -> (f64, f64) {
    const CLIENTS: u64 = 20;
    const CALLS: u64 = 200;
    let mut sim = Sim::new(seed);
    let chance = sim.env().rng("origin");
    let (mut successes, mut load) = (0, 0);
    for id in 0..CLIENTS {
        let env = sim.env().scope(id);
        let at_once = Backoff::constant(Duration::ZERO).jitter(Jitter::None);
        let retry = rule(Retry::builder(&env).backoff(at_once), &env).build();
        let began = env.now();
        for call in 0..CALLS {
            let work = |_| {
                load += 1;
                std::future::ready(if chance.chance(failing) { Err(Failure::Failed(())) } else { Ok(()) })
            };
            sim.run_until(began + Duration::from_millis(100 * call));
            let ask = Ask::new(&env);
            successes += u64::from(sim.run(retry.run(&env, result, ask, work)).is_ok());
        }
    }
    (successes as f64 / (CLIENTS * CALLS) as f64, f64::from(load) / (CLIENTS * CALLS) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_lost_from_the_books() {
        let knobs = Knobs::of(&Settings::new(1));
        let ours = herd(1, knobs, Tap::default(), |rule| rule);
        assert!(ours.users > knobs.crowd() && ours.failed <= ours.users);
        assert_eq!(ours.seen.wasted, 0, "the line is too short for anybody to time out in it");
        assert!(ours.over_until() >= BIN, "the crowd itself is over capacity");
    }
}
