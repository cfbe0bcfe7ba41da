//! Two tenants of one pool, and the day on which what one of them calls is slow.
//!
//! A pool of connections is shared by calls that have nothing to do with each other. While all is well nobody notices: by
//! Little's law a tenant with `r` calls a second of `s` seconds each holds `r x s` of them. Then one tenant's service takes two seconds
//! instead of ten milliseconds. It wants `r x 2` connections, which is more than there are, and the other one, whose service is as
//! quick as ever, stands in its line. That callers give up does not help: a connection is busy until its answer has come. A larger pool is full a little later, unless it is as large as everybody's worst day together.
//!
//! A bulkhead for each tenant is a part of the pool that is its own. The slow one fills its part and no more; those it has no room
//! for know it at once. The price is that a tenant cannot use what another leaves idle.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Sim, Tick,
    gate::{Ask, Gate, Permit, Span, result},
    limit::Bulkhead,
    timeout::by,
};

use super::{
    Scenario,
    readers::{Crowd, Reads},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, millis},
    service::{Plan, Service},
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(5);
const WELL: Duration = Duration::from_secs(15);
const END: Duration = Duration::from_secs(20);
const BIN: Duration = Duration::from_millis(100);

/// Who has which part of the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Shared,
    SharedTwice,
    Bulkheads,
}

const WAYS: [(Way, &str); 3] =
    [(Way::Shared, "one pool"), (Way::SharedTwice, "twice the pool"), (Way::Bulkheads, "a bulkhead for each")];

knobs! {
    /// Calls a second of the tenant whose service stays quick.
    quick: f64 = 200.0, 1.0..=2_000.0;
    /// Calls a second of the tenant whose service becomes slow.
    slow: f64 = 100.0, 1.0..=2_000.0;
    /// How long a service takes while all is well.
    call: Duration = MS * 10, MS..=SEC;
    /// How long the slow one takes.
    slow_call: Duration = SEC * 2, MS..=SEC * 30;
    /// How long a caller waits.
    timeout: Duration = SEC, MS * 10..=SEC * 10;
    /// How many connections there are.
    pool: u32 = 40, 2..=10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "bulkhead",
    title: "one tenant's service is slow and takes the whole pool, or its own half",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs = std::array::from_fn(|arm| Run::new(settings.seed, knobs, WAYS[arm].0, settings.tap(arm)));
    let [shared, twice, bulkheads] = &runs;
    let summary = format!(
        "while the other tenant's service was slow, {:.0} % of the quick one's calls were served from one pool, {:.0} % from one \
         twice as large, and {:.0} % with a bulkhead for each, the slowest in {:.0} ms.",
        shared.quick_while_slow().percent_served(),
        twice.quick_while_slow().percent_served(),
        bulkheads.quick_while_slow().percent_served(),
        millis(bulkheads.quick_while_slow().quantile(100)),
    );
    Report {
        scenario: "bulkhead",
        seed: settings.seed,
        parameters: vec![Parameter::new("slow", "from second 5 to 15")],
        arms: WAYS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: END,
        marks: vec![Mark { at: SLOW, what: "one service is slow" }, Mark { at: WELL, what: "it is well again" }],
        checks: checks(knobs, &runs),
        summary,
        ..Report::default()
    }
}

fn checks(knobs: Knobs, [shared, twice, bulkheads]: &[Run; 3]) -> Vec<Check> {
    let pool = f64::from(knobs.pool);
    let wanted = knobs.slow * knobs.slow_call.as_secs_f64();
    vec![
        Check::at_least(
            Source::Formula,
            "the slow tenant wants r x s connections: more than twice the pool has",
            2.0 * pool,
            wanted,
        )
        .cites("H30")
        .cites("T31"),
        Check::at_most(
            Source::Article,
            "one pool: the tenant whose service is quick is starved (served, %)",
            50.0,
            shared.quick_while_slow().percent_served(),
        )
        .cites("Q18")
        .cites("H30"),
        Check::at_most(
            Source::Article,
            "twice the pool: it is starved all the same (served, %)",
            50.0,
            twice.quick_while_slow().percent_served(),
        )
        .cites("Q18")
        .cites("T31"),
        Check::equal(
            Source::Promise,
            "a bulkhead for each: calls of the quick tenant that are not served",
            &0,
            &bulkheads.quick.all().errors(),
        )
        .cites("T27")
        .cites("Q18"),
        Check::equal(
            Source::Promise,
            "... and none of them waits for anything but its own service",
            &knobs.call,
            &bulkheads.quick.all().quantile(100),
        )
        .cites("T27"),
        Check::equal(
            Source::Promise,
            "... the slow tenant never holds more than its half",
            &(knobs.pool / 2),
            &bulkheads.most_slow,
        )
        .cites("T27"),
        Check::equal(
            Source::Promise,
            "... those it has no room for know it at once (median wait of those not served and refused)",
            &Duration::ZERO,
            &bulkheads.slow.between(SLOW, WELL).unserved().quantile(50),
        )
        .cites("T27")
        .cites("T17"),
        Check::equal(
            Source::Promise,
            "... and before it was slow nobody was refused",
            &0,
            &bulkheads.slow.between(Duration::ZERO, SLOW).errors(),
        )
        .cites("T27"),
    ]
}

struct Run {
    quick: Reads,
    slow: Reads,
    /// The most connections that the slow tenant held.
    most_slow: u32,
    /// Calls that the quick tenant's service was asked for.
    calls: Timeline,
}

/// One tenant: its service, and its way to it.
struct Tenant {
    env: Env,
    timeout: Duration,
    service: Service,
    pool: Bulkhead,
    reads: Reads,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let pools = match way {
            Way::Shared => shared(&env, knobs.pool),
            Way::SharedTwice => shared(&env, 2 * knobs.pool),
            Way::Bulkheads => [(); 2].map(|()| Bulkhead::new(&env, knobs.pool / 2).max_waiting(0)),
        };
        let plan = Plan::new(usize::MAX, knobs.call);
        // Listened to is the quick one, which suffers.
        let quick = Service::tapped(&env, "quick", BIN, plan, tap);
        let slow = Service::new(&env, "slow", BIN, plan);
        let [for_quick, for_slow] = pools;
        let tenant = |service: &Service, pool| {
            let (env, service) = (env.clone(), service.clone());
            Arc::new(Tenant { env, timeout: knobs.timeout, service, pool, reads: Reads::default() })
        };
        let (a, b) = (tenant(&quick, for_quick), tenant(&slow, for_slow));
        let (clock, service) = (env.clone(), slow.clone());
        env.spawn(async move {
            clock.sleep(SLOW).await;
            service.change(|plan| plan.time = knobs.slow_call);
            clock.sleep(WELL.saturating_sub(SLOW)).await;
            service.change(|plan| plan.time = knobs.call);
        })
        .detach();
        let most = Arc::new(parking_lot::Mutex::new(0));
        let until = Tick::ZERO + END;
        let (clock, tenant, seen) = (env.clone(), Arc::clone(&b), Arc::clone(&most));
        env.spawn(async move {
            let rng = clock.rng("callers/slow");
            let arrive = |id| {
                tenant.call(id);
                let mut most = seen.lock();
                *most = tenant.pool.taken().max(*most);
            };
            poisson(&clock, &rng, until, |_| knobs.slow, arrive).await;
        })
        .detach();
        sim.run(poisson(&env, &env.rng("callers/quick"), until, |_| knobs.quick, |id| a.call(id)));
        sim.run_until(until + knobs.timeout * 2);
        let most_slow = *most.lock();
        Run { quick: a.reads.clone(), slow: b.reads.clone(), most_slow, calls: quick.seen().calls }
    }

    /// From when on the larger pool is full as well.
    fn quick_while_slow(&self) -> Crowd {
        self.quick.between(SLOW + SEC * 2, WELL)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let (quick, slow) = (self.quick_while_slow(), self.slow.between(SLOW, WELL));
        let figures = vec![
            Figure::number("quick_served_percent", "quick, %", quick.percent_served()),
            Figure::time("quick_p50_ms", "p50", quick.quantile(50)),
            Figure::time("quick_p99_ms", "p99", quick.quantile(99)),
            Figure::number("slow_served_percent", "slow, %", slow.percent_served()),
            Figure::time("slow_refused_ms", "refused in", slow.unserved().quantile(50)),
            Figure::count("most_held_by_slow", "held by slow", self.most_slow.into()),
        ];
        Arm::new(name, figures, self.calls.clone()).waits(quick.waits())
    }
}

/// One pool for both, as most are: whoever finds it empty waits until its time is over.
fn shared(env: &Env, size: u32) -> [Bulkhead; 2] {
    let pool = Bulkhead::new(env, size).max_waiting(usize::MAX);
    [pool.clone(), pool]
}

impl Tenant {
    /// One caller, who waits for a connection and for the answer.
    fn call(self: &Arc<Self>, id: u64) {
        let tenant = Arc::clone(self);
        self.env.spawn(async move { tenant.reads.read(&tenant.env, tenant.answer(id)).await }).detach();
    }

    async fn answer(&self, id: u64) -> Result<Tick, ()> {
        let Tenant { env, timeout, service, pool, .. } = self;
        let deadline = env.now() + *timeout;
        let mut ask = Ask::new(env).deadline(deadline);
        let permit = pool.enter(&mut ask).await.map_err(|_| ())?;
        let (clock, service) = (env.clone(), service.clone());
        // Whoever gives up leaves the connection to its answer.
        let work = env.spawn(async move {
            let answer = service.call_from(Caller::of(id, "/")).await;
            permit.settle(&result(&answer), Span { from: ask.at, to: clock.now() });
            clock.now()
        });
        by(env, Some(deadline), work).await.and_then(Result::ok).ok_or(())
    }
}
