//! Fifty nodes, one hot key, and a store between them that dies and comes back.
//!
//! A cache in each node makes one load of its own herd, and the fleet makes one for each node, every time the key expires. With
//! a second tier one node has the lease and loads, and the others get what it has loaded.
//!
//! Then the tier stops answering for fifteen seconds, and comes back with nothing in it. Meanwhile it is as if there were
//! none: each node loads for itself, one load at a time, and every caller is served. What the outage costs is a timeout for
//! some, until the breaker has seen enough, and half a lease for those who just then waited for another node and were never
//! told. When it is back, the nodes return to it by and by.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Breaker, Cache, Env, Sim, Tick,
    cache::{Link, Policy},
    limit::Bulkhead,
    tier::{
        SharedTier,
        contract::{Faults, Faulty},
    },
};

use super::Scenario;
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Parameter, Report, Source},
    slowdown::Slowdown,
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const KILLED: u32 = 15;
const BACK: u32 = 30;
const END: u32 = 60;
/// From when on everything is as it was.
const SETTLED: u32 = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    NodesAlone,
    Tier,
    TierDies,
}

knobs! {
    /// How many nodes have a cache of their own.
    nodes: u64 = 50, 1..=500;
    /// Readers a second, all of one key.
    readers: f64 = 1_000.0, 1.0..=5_000.0;
    /// How long it is fresh; no grace, no early refresh.
    ttl: Duration = SECOND * 2, SECOND / 10..=SECOND * 30;
    /// How long the origin takes for one load alone.
    load: Duration = MS * 80, MS..=SECOND;
    /// How long with 800 in flight; no less than alone.
    crowded: Duration = SECOND * 5, MS..=SECOND * 60;
    /// How long the tier takes to answer.
    latency: Duration = MS, MS / 10..=MS * 200;
    /// After how long it is given up.
    timeout: Duration = MS * 250, MS * 10..=SECOND * 5;
    /// How long a node may take for a load that others wait for.
    lease: Duration = SECOND * 3, MS * 100..=SECOND * 30;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "fleet-stampede",
    title: "a hot key expires on every node: one load for each, or one for all, also when the store dies",
    knobs: Knobs::all,
    run,
};

/// What came of it.
struct Outcome {
    asked: u64,
    served: u64,
    /// The longest that a caller waited.
    longest: Duration,
    in_flight: u64,
    calls: Timeline,
}

impl Outcome {
    /// Loads from one second to another.
    fn loads(&self, from: u32, to: u32) -> u64 {
        self.calls
            .occupied()
            .filter(|(bin, _)| (from as usize..to as usize).contains(&(bin / 10)))
            .map(|(_, n)| n)
            .sum()
    }

    /// The most loads in a tenth of a second, from one second to another.
    fn peak(&self, from: u32, to: u32) -> u64 {
        let bins = self.calls.occupied().filter(|(bin, _)| (from as usize..to as usize).contains(&(bin / 10)));
        bins.map(|(_, count)| count).max().unwrap_or(0)
    }
}

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let nodes = knobs.nodes;
    let [alone, tier, dies] = {
        let ways = [Way::NodesAlone, Way::Tier, Way::TierDies];
        std::array::from_fn(|arm| fleet(settings.seed, knobs, ways[arm], settings.tap(arm)))
    };
    // A load, and the wait for the next reader, come on top of each time to live.
    let expiries = f64::from(END) / knobs.ttl.as_secs_f64();
    let checks = vec![
        Check::equal(Source::Promise, "first miss: loads without a tier, with one", &[knobs.nodes, 1], &{
            [alone.loads(0, 1), tier.loads(0, 1)]
        }).cites("H3").cites("T8"),
        Check::at_least(
            Source::Formula,
            "without a tier: loads, one for each node and expiry",
            0.85 * knobs.nodes as f64 * expiries,
            alone.loads(0, END) as f64,
        ).cites("H3"),
        Check::at_most(Source::Promise, "with: loads, one for each expiry", expiries, tier.loads(0, END) as f64).cites("T8"),
        Check::equal(Source::Promise, "with: never two at once", &1, &tier.in_flight).cites("T8"),
        Check::equal(
            Source::Promise,
            "callers that were not served, in each arm",
            &[0, 0, 0],
            &[&alone, &tier, &dies].map(|outcome| outcome.asked - outcome.served),
        ).cites("T8"),
        Check::at_most(
            Source::Promise,
            "the tier dies: loads under way, one for each node at most",
            knobs.nodes as f64,
            dies.in_flight as f64,
        ).cites("H20"),
        Check::at_most(
            Source::Promise,
            format!("... milliseconds that a caller waits at most: half a lease, a timeout, a load among {nodes}, some answers"),
            crate::report::millis(knobs.lease / 2 + knobs.timeout + knobs.law().time(knobs.nodes) + 4 * knobs.latency),
            crate::report::millis(dies.longest),
        ).cites("H20").cites("T8"),
        Check::at_most(
            Source::Promise,
            "the tier is back: most loads in 100 ms, compared with those while it was away",
            dies.peak(KILLED, BACK) as f64,
            dies.peak(BACK, END) as f64,
        ).cites("H20"),
        Check::at_most(
            Source::Promise,
            format!("... and from second {SETTLED} on one for each expiry again"),
            f64::from(END - SETTLED) / knobs.ttl.as_secs_f64() + 1.0,
            dies.loads(SETTLED, END) as f64,
        ).cites("H20"),
    ];
    let summary = format!(
        "in a minute {nodes} nodes made {} loads of one key, and {} with a tier between them. When that died for {} s they \
         made {}, no caller went without, and after its return {}.",
        alone.loads(0, END),
        tier.loads(0, END),
        BACK - KILLED,
        dies.loads(KILLED, BACK),
        dies.loads(BACK, END),
    );
    Report {
        scenario: "fleet-stampede",
        seed: settings.seed,
        parameters: vec![
            Parameter::new("load limit", "1 for each node"),
            Parameter::new("tier dies", format!("from second {KILLED} to {BACK}, and is empty then")),
            Parameter::new("breaker", "3 faults in a row, open for 1 s, 2 s, 4 s"),
        ],
        arms: vec![arm("cache per node", alone), arm("and a tier", tier), arm("and the tier dies", dies)],
        span: SECOND * END,
        checks,
        summary,
        ..Report::default()
    }
}

fn arm(name: &'static str, outcome: Outcome) -> Arm {
    let figures = vec![
        Figure::count("loads_before", "before", outcome.loads(0, KILLED)),
        Figure::count("loads_while_away", "while away", outcome.loads(KILLED, BACK)),
        Figure::count("loads_after", "after", outcome.loads(BACK, END)),
        Figure::count("loads_at_the_end", "at the end", outcome.loads(SETTLED, END)),
        Figure::count("in_flight", "in flight", outcome.in_flight),
        Figure::count("not_served", "not served", outcome.asked - outcome.served),
        Figure::time("longest_ms", "longest wait", outcome.longest),
    ];
    Arm::new(name, figures, outcome.calls)
}

impl Knobs {
    fn law(self) -> Slowdown {
        Slowdown::alone(self.load).at(800, self.crowded)
    }
}

fn fleet(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Outcome {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::up(&env, 100 * MS, knobs.law()).tapped(tap);
    let (tier, faults) = (SharedTier::new(&env), Faults::default());
    faults.latency(knobs.latency);
    let nodes: Vec<_> = (0..knobs.nodes).map(|id| node(&env.scope(id), knobs, way, &tier, &faults)).collect();
    if way == Way::TierDies {
        let env = env.clone();
        let outage = async move {
            env.clone().sleep(SECOND * KILLED).await;
            faults.silent();
            env.sleep(SECOND * (BACK - KILLED)).await;
            tier.wipe();
            faults.up();
        };
        sim.env().spawn(outage).detach();
    }
    let [served, longest] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let mut asked = 0;
    let mut ask = |node: usize| {
        asked += 1;
        let (env, origin, from) = (env.clone(), origin.clone(), env.now());
        let (served, longest) = (Arc::clone(&served), Arc::clone(&longest));
        let wave = u32::try_from((from - Tick::ZERO).as_nanos() / knobs.ttl.as_nanos()).unwrap_or(u32::MAX);
        let caller = Caller::of(node as u64, "/odds").item(42).in_wave("ttl", wave);
        let get = nodes[node].get(&"odds/42", || async move { origin.call_from(caller).await });
        env.clone()
            .spawn(async move {
                served.fetch_add(u64::from(get.await.is_ok()), Relaxed);
                let waited = u64::try_from((env.now() - from).as_nanos()).unwrap_or(u64::MAX);
                longest.fetch_max(waited, Relaxed);
            })
            .detach();
    };
    (0..nodes.len()).for_each(&mut ask);
    let (users, who) = (env.rng("users"), env.rng("who"));
    let end = Tick::ZERO + SECOND * END;
    sim.run(poisson(
        &env,
        &users,
        end,
        |_| knobs.readers,
        |_| ask(usize::try_from(who.below(knobs.nodes)).unwrap_or(0)),
    ));
    sim.run_until(end + SECOND);
    Outcome {
        asked,
        served: served.load(Relaxed),
        longest: Duration::from_nanos(longest.load(Relaxed)),
        in_flight: origin.peak_in_flight(),
        calls: origin.timeline(),
    }
}

fn node(
    env: &Env,
    knobs: Knobs,
    way: Way,
    tier: &SharedTier<&'static str, u64>,
    faults: &Faults<&'static str>,
) -> Cache<&'static str, u64, Down> {
    let cache = Cache::builder(env).policy(Policy::strict(knobs.ttl)).load_limit(Bulkhead::new(env, 1));
    if way == Way::NodesAlone {
        return cache.build();
    }
    let breaker = Breaker::builder(env).faults(3).open(SECOND, 4 * SECOND).build();
    let link = Link::default().timeout(knobs.timeout).lease(knobs.lease).breaker(breaker);
    cache.tier_with(Faulty::new(env, tier.node(), faults), link).build()
}
