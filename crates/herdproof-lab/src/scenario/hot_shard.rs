//! One key that everybody wants, in a store of many nodes: one of them has it.
//!
//! A sharded store spreads keys, not requests. A key that is a thousand times as popular as the others is on one node, which gets
//! all of its readers, and so do the other keys that happen to be there. Twice as many nodes change nothing: the key is on one of them.
//!
//! - A cache in each of `S` servers, fresh for `tau`: the node is asked `S / tau` times a second, however many readers there are. The
//!   price is that a reader may get what was true `tau` ago.
//! - The key on `n` nodes: a read goes to one of them, `1 / n` for each; a write to all of them, `n` times the writes.
//! - A cache with a second tier that watches for hot keys keeps those for longer before it asks again. It hears of writes, so longer
//!   does not mean older. What is hot is known by a hash with a seed of the server's own: no names of users in any list.
//!
//! Scaled from 100,000 requests a second and 1,000 servers to a twentieth of both, and the node with them; the cache in each server is
//! also run at full scale.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use herdproof::{
    Cache, Env, Sim, Tick,
    cache::{Keep, Link, Policy},
    tier::{SharedTier, Stored, Tier},
};
use parking_lot::Mutex;

use super::{Scenario, shards::Store};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, millis, say},
    service::{Plan, Service},
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
const BIN: Duration = Duration::from_millis(100);
/// The popular key; it is on the first node.
const HOT: u64 = 0;
/// How many times as popular it is.
const TIMES: f64 = 1_000.0;
/// When everything is in its stride: after the writes and the sketch have settled, and for one round of writes.
const FROM: Duration = Duration::from_millis(10_500);
const TO: Duration = Duration::from_millis(20_500);
const WRITES: Duration = Duration::from_secs(10);
/// The share of the hits that makes a key a hot one.
const SHARE: f64 = 0.1;
/// How many times longer hot keys are kept.
const LONGER: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OneNode,
    MoreNodes,
    Replicated,
    EachServer,
    KeptLonger,
}

const WAYS: [(Way, &str); 5] = [
    (Way::OneNode, "one node has it"),
    (Way::MoreNodes, "twice the nodes"),
    (Way::Replicated, "on several nodes"),
    (Way::EachServer, "a cache in each server"),
    (Way::KeptLonger, "hot keys kept longer"),
];

knobs! {
    /// Requests a second, of all keys.
    requests: f64 = 5_000.0, 100.0..=10_000.0;
    /// How many servers ask.
    servers: u64 = 50, 1..=1_000;
    /// How many other keys there are.
    others: u64 = 250, 10..=10_000;
    /// How many nodes the store has.
    nodes: u64 = 10, 1..=100;
    /// How long a node takes for one request, one at a time.
    service_time: Duration = MS, MS / 100..=MS * 100;
    /// How many may stand in a node's line.
    line: usize = 100, 1..=10_000;
    /// On how many nodes the key is where it is replicated; no more than there are.
    copies: u64 = 8, 1..=100;
    /// How long a server's cache keeps a value.
    tau: Duration = SEC * 2, SEC / 10..=SEC * 5;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hot-shard",
    title: "one key a thousand times as popular: its node drowns however many there are, unless it is asked less",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs = settings.arms(&WAYS, |arm, (way, _)| Run::new(settings.seed, knobs, *way, &settings.tap(arm)));
    let [one, more, replicated, each, longer] = &runs;
    let summary = format!(
        "the node of the hot key is asked {:.0} times a second and serves {:.0} % of its readers; with twice the nodes {:.0} %; with \
         the key on {} nodes it is asked {:.0} times, with a cache in each server {:.0} times, with hot keys kept longer {:.0}.",
        one.busiest(),
        one.tally.hot.percent(),
        more.tally.hot.percent(),
        knobs.copies(),
        replicated.busiest(),
        each.busiest(),
        longer.busiest(),
    );
    let mut checks = checks(knobs, &runs);
    checks.extend(in_each_server(settings.seed, knobs, each));
    checks.extend(kept_longer(knobs, longer));
    Report {
        scenario: "hot-shard",
        seed: settings.seed,
        arms: WAYS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: TO,
        marks: vec![Mark { at: WRITES, what: "a write" }, Mark { at: WRITES * 2, what: "a write" }],
        checks,
        summary,
        ..Report::default()
    }
}

fn checks(knobs: Knobs, [one, more, replicated, each, longer]: &[Run; 5]) -> Vec<Check> {
    let capacity = knobs.node().capacity();
    // Give or take four deviations of a count in the window.
    let error = |rate: f64| 4.0 * (rate / window()).sqrt();
    let (hot, rest) = (knobs.hot(), knobs.rest());
    let served = |nodes: u64| 100.0 * capacity / (hot + rest / nodes as f64);
    let popular = one.tally.hot.asked as f64
        / ((one.tally.neighbours.asked + one.tally.elsewhere.asked) as f64 / knobs.others as f64);
    let deviation =
        TIMES * (1.0 / one.tally.hot.asked as f64 + 1.0 / (one.tally.elsewhere.asked as f64).max(1.0)).sqrt();
    let spread = hot / knobs.copies() as f64 + rest / knobs.nodes as f64;
    let busiest_of = knobs.nodes as f64;
    vec![
        Check::within(
            Source::Article,
            "the hot key is 1,000 times as popular as another",
            TIMES,
            4.0 * deviation,
            popular,
        )
        .cites("N31")
        .cites("H19"),
        Check::within(
            Source::Formula,
            "one node has it: asked for the key and its share of the others, a second",
            hot + rest / knobs.nodes as f64,
            error(hot),
            one.busiest(),
        )
        .cites("H19")
        .cites("N16"),
        Check::within(
            Source::Formula,
            "... of which it serves what it can (%)",
            served(knobs.nodes),
            2.0,
            one.tally.hot.percent(),
        )
        .cites("H19"),
        Check::at_most(
            Source::Formula,
            "... and no more of the other keys that are there (%)",
            served(knobs.nodes) + 5.0,
            one.tally.neighbours.percent(),
        )
        .cites("H19"),
        Check::equal(
            Source::Formula,
            "... while the other nodes serve everybody (%)",
            &100.0,
            &one.tally.elsewhere.percent(),
        )
        .cites("H19"),
        Check::within(
            Source::Article,
            "twice the nodes: as many of its readers are served, but for what its neighbours leave (%)",
            served(2 * knobs.nodes),
            2.0,
            more.tally.hot.percent(),
        )
        .cites("Q6")
        .cites("T31"),
        // The busiest of so many nodes has some deviations more than the mean.
        Check::within(
            Source::Article,
            format!("on {} nodes: the busiest is asked for the n-th part of it", knobs.copies()),
            spread,
            error(spread) * (1.0 + busiest_of.ln() / 4.0),
            replicated.busiest(),
        )
        .cites("T21")
        .cites("H19"),
        Check::equal(
            Source::Article,
            "... and two writes are 2 n writes",
            &[2, 2 * knobs.copies()],
            &[one.writes, replicated.writes],
        )
        .cites("T21"),
        Check::at_least(
            Source::Promise,
            "with the key on several nodes, or a cache: readers that are served, the least of the three (%)",
            99.0,
            [replicated, each, longer].iter().map(|run| run.tally.hot.percent()).fold(100.0, f64::min),
        )
        .cites("T19")
        .cites("T21"),
    ]
}

/// A cache in each server, asked for the key, also with the article's own numbers.
fn in_each_server(seed: u64, knobs: Knobs, each: &Run) -> Vec<Check> {
    let servers = knobs.servers as f64;
    let full = full_scale(seed);
    vec![
        Check::within(
            Source::Formula,
            format!(
                "a cache in each server: S / tau = {} / {} questions for it a second",
                knobs.servers,
                say(knobs.tau)
            ),
            servers / knobs.tau.as_secs_f64(),
            0.1 * servers / knobs.tau.as_secs_f64(),
            each.hot_rate(),
        )
        .cites("N16")
        .cites("T19"),
        Check::within(
            Source::Article,
            "... at full scale, 1,000 servers, 100,000 requests a second, 2 s: 500 a second",
            500.0,
            10.0,
            full,
        )
        .cites("N16")
        .cites("T19"),
        Check::within(
            Source::Formula,
            "... 200 times less (article: several orders of magnitude; that is two, and a bit)",
            200.0,
            4.0,
            FULL_REQUESTS / full,
        )
        .cites("N16"),
        Check::at_most(
            Source::Promise,
            "... and nobody gets what has been out of date for longer than tau (ms)",
            millis(knobs.tau),
            millis(each.tally.out_of_date),
        )
        .cites("T19"),
    ]
}

/// The same with a second tier, that finds what is hot.
fn kept_longer(knobs: Knobs, longer: &Run) -> Vec<Check> {
    vec![
        Check::within(
            Source::Promise,
            "hot keys kept four times as long: one question for a write, and one for each 4 tau between two (for each server, in 10 s)",
            2.0,
            0.1,
            longer.hot_rate() * window() / knobs.servers as f64,
        )
        .cites("T29"),
        Check::at_most(
            Source::Promise,
            "... and as they hear of writes, nobody gets what is out of date for longer than a question takes (ms)",
            millis(knobs.service_time * u32::try_from(knobs.line + 1).unwrap_or(u32::MAX)),
            millis(longer.tally.out_of_date),
        )
        .cites("T29"),
        Check::equal(
            Source::Promise,
            "... servers whose sketch names this key and no other",
            &knobs.servers,
            &(longer.found.iter().flatten().count() as u64),
        )
        .cites("T32")
        .cites("T29"),
        Check::equal(
            Source::Promise,
            "... by hashes that no two of them have in common",
            &knobs.servers,
            &longer.names(),
        )
        .cites("T32")
        .cites("Q23"),
    ]
}

impl Knobs {
    fn node(self) -> Plan {
        Plan { line: self.line, ..Plan::new(1, self.service_time) }
    }

    fn copies(self) -> u64 {
        self.copies.min(self.nodes)
    }

    /// Requests for the hot key, a second.
    fn hot(self) -> f64 {
        self.requests * TIMES / (TIMES + self.others as f64)
    }

    /// Requests for all others.
    fn rest(self) -> f64 {
        self.requests - self.hot()
    }
}

/// How many asked, and how many were served.
#[derive(Clone, Copy, Default)]
struct Share {
    asked: u64,
    served: u64,
}

impl Share {
    fn count(&mut self, served: bool) {
        self.asked += 1;
        self.served += u64::from(served);
    }

    fn percent(self) -> f64 {
        if self.asked == 0 { 100.0 } else { 100.0 * self.served as f64 / self.asked as f64 }
    }
}

#[derive(Clone, Copy, Default)]
struct Tally {
    hot: Share,
    /// Other keys on the node of the hot one.
    neighbours: Share,
    elsewhere: Share,
    /// For how long what somebody got had been out of date.
    out_of_date: Duration,
}

struct Run {
    /// When each node was asked.
    nodes: Vec<Timeline>,
    /// When somebody asked the store for the hot key.
    for_hot: Timeline,
    writes: u64,
    tally: Tally,
    /// The hash by which each server's sketch names the hot key, if it names that and nothing else.
    found: Vec<Option<u64>>,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: &Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let nodes = if way == Way::MoreNodes { 2 * knobs.nodes } else { knobs.nodes };
        let store = Store::new(&env, BIN, nodes, knobs.node(), HOT, tap);
        let world = Arc::new(World::new(&env, knobs, way, &store));
        sim.run(world.fill());
        let (clock, writer) = (env.clone(), Arc::clone(&world));
        env.spawn(async move {
            loop {
                clock.sleep(WRITES).await;
                writer.write().await;
            }
        })
        .detach();
        let (who, which, copies) = (env.rng("servers"), env.rng("keys"), env.rng("copies"));
        let share = knobs.hot() / knobs.requests;
        let ask = |_| {
            let key = if which.chance(share) { HOT } else { 1 + which.below(knobs.others) };
            let server = usize::try_from(who.below(knobs.servers)).unwrap_or(0);
            let copy = copies.below(knobs.copies());
            let world = Arc::clone(&world);
            env.spawn(async move { world.ask(server, key, copy).await }).detach();
        };
        sim.run(poisson(&env, &env.rng("users"), Tick::ZERO + TO, |_| knobs.requests, ask));
        sim.run_until(Tick::ZERO + TO + SEC);
        let named = |cache: &Cache<u64, Tick, ()>| match &cache.hot_keys()[..] {
            [only] if cache.is_hot(&HOT) => Some(only.hash),
            _ => None,
        };
        let (tally, writes, for_hot) = (*world.tally.lock(), *world.writes.lock(), store.watched());
        Run {
            nodes: store.nodes().iter().map(|node| node.seen().calls).collect(),
            for_hot,
            writes,
            tally,
            found: world.servers.iter().map(named).collect(),
        }
    }

    /// Questions a second at the node that has the most.
    fn busiest(&self) -> f64 {
        self.nodes.iter().map(rate).fold(0.0, f64::max)
    }

    /// Questions for the hot key a second, at all nodes.
    fn hot_rate(&self) -> f64 {
        rate(&self.for_hot)
    }

    /// By how many different hashes the hot key is named.
    fn names(&self) -> u64 {
        self.found.iter().flatten().collect::<BTreeSet<_>>().len() as u64
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::number("busiest_per_second", "busiest/s", self.busiest()),
            Figure::number("hot_per_second", "for it/s", self.hot_rate()),
            Figure::number("served_percent", "served %", self.tally.hot.percent()),
            Figure::number("neighbours_served_percent", "neighbours %", self.tally.neighbours.percent()),
            Figure::number("others_served_percent", "others %", self.tally.elsewhere.percent()),
            Figure::count("writes", "writes", self.writes),
            Figure::time("out_of_date_ms", "out of date", self.tally.out_of_date),
            Figure::count("named_by", "named by", self.found.iter().flatten().count() as u64),
            Figure::count("names", "names", self.names()),
        ];
        let busiest = self.nodes.iter().max_by_key(|calls| calls.total());
        Arm::new(name, figures, busiest.cloned().unwrap_or_else(|| Timeline::new(BIN)))
    }
}

/// Events a second in the window that counts.
fn rate(timeline: &Timeline) -> f64 {
    let bin = |time: Duration| usize::try_from(time.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
    let count: u64 = timeline.counts().iter().take(bin(TO)).skip(bin(FROM)).sum();
    count as f64 / window()
}

/// How many seconds that is.
fn window() -> f64 {
    TO.saturating_sub(FROM).as_secs_f64()
}

/// Everything on this side of the store.
struct World {
    env: Env,
    way: Way,
    knobs: Knobs,
    store: Store,
    tier: SharedTier<u64, Tick>,
    servers: Vec<Cache<u64, Tick, ()>>,
    /// When the hot key was written.
    written: Mutex<Vec<Tick>>,
    writes: Mutex<u64>,
    tally: Mutex<Tally>,
}

impl World {
    fn new(env: &Env, knobs: Knobs, way: Way, store: &Store) -> World {
        let tier = SharedTier::new(env);
        let server = |id| {
            let cache = Cache::builder(&env.scope(id)).capacity(1_000);
            if way == Way::EachServer {
                return cache.policy(Policy::strict(knobs.tau)).build();
            }
            // In the store it is for ever; in memory for as long as the link says.
            let cache = cache.policy(Policy::strict(DAY));
            let link = Link::default().memory(knobs.tau).hot(knobs.tau * LONGER);
            cache.hot(SHARE).tier_with(store.tier(id, tier.node()), link).build()
        };
        let servers = if matches!(way, Way::EachServer | Way::KeptLonger) { knobs.servers } else { 0 };
        World {
            env: env.clone(),
            way,
            knobs,
            store: store.clone(),
            servers: (0..servers).map(server).collect(),
            tier,
            written: Mutex::new(vec![env.now()]),
            writes: Mutex::new(0),
            tally: Mutex::default(),
        }
    }

    /// As it is after some time: the store has everything, and the servers' entries come to their end one after another.
    async fn fill(&self) {
        for key in 0..=self.knobs.others {
            self.put(key).await;
        }
        if self.way == Way::EachServer {
            stagger(&self.servers, self.env.now(), self.knobs.tau);
        }
    }

    /// Puts what is true now into the store.
    async fn put(&self, key: u64) {
        let stored = Stored {
            value: Some(self.env.now()),
            ttl: DAY,
            grace: Duration::ZERO,
            keep: Duration::ZERO,
            load: Duration::ZERO,
            tags: Vec::new(),
        };
        // A tier in memory does not fail.
        drop(self.tier.put(&key, stored).await);
    }

    /// Writes the hot key, on each node that has it.
    async fn write(&self) {
        let copies = if self.way == Way::Replicated { self.knobs.copies() } else { 1 };
        for node in self.store.nodes().iter().take(usize::try_from(copies).unwrap_or(usize::MAX)) {
            // A node that has no room for it gets it when it has: what is told here is who is asked.
            _ = node.call_from(Caller::of(self.knobs.servers, "/write").item(HOT)).await;
            *self.writes.lock() += 1;
        }
        self.written.lock().push(self.env.now());
        self.put(HOT).await;
    }

    /// One request at one server.
    async fn ask(&self, server: usize, key: u64, copy: u64) {
        let place = self.store.place(key);
        let got = match self.way {
            Way::OneNode | Way::MoreNodes => self.read(server, key, place).await,
            Way::Replicated => {
                let node = if key == HOT { usize::try_from(copy).unwrap_or(0) } else { place };
                self.read(server, key, node).await
            }
            Way::EachServer => {
                let load = self.load(server, key, place);
                self.servers[server].get(&key, || load).await.map(|got| got.value).map_err(|_| ())
            }
            // What the store does not have, nobody has.
            Way::KeptLonger => {
                self.servers[server].get(&key, || async { Err(()) }).await.map(|got| got.value).map_err(|_| ())
            }
        };
        let mut tally = self.tally.lock();
        let share = match key {
            HOT => &mut tally.hot,
            _ if place == self.store.place(HOT) => &mut tally.neighbours,
            _ => &mut tally.elsewhere,
        };
        share.count(got.is_ok());
        if let (HOT, Ok(value)) = (key, got) {
            let written = self.written.lock();
            let newer = written.iter().find(|at| **at > value);
            tally.out_of_date = newer.map_or(Duration::ZERO, |at| self.env.now() - *at).max(tally.out_of_date);
        }
    }

    /// What is true of a key now, from its node.
    async fn read(&self, server: usize, key: u64, node: usize) -> Result<Tick, ()> {
        let value = self.value();
        self.store.ask(server as u64, key, node).await.map(|()| value).map_err(|_| ())
    }

    fn load(&self, server: usize, key: u64, node: usize) -> impl Future<Output = Result<Tick, ()>> + Send + use<> {
        let (store, value) = (self.store.clone(), self.value());
        async move { store.ask(server as u64, key, node).await.map(|()| value).map_err(|_| ()) }
    }

    fn value(&self) -> Tick {
        self.written.lock().last().copied().unwrap_or(Tick::ZERO)
    }
}

/// Fills the caches with the hot key, as if it had been loaded at any time of the last `tau`.
fn stagger(servers: &[Cache<u64, Tick, ()>], now: Tick, tau: Duration) {
    for (id, server) in servers.iter().enumerate() {
        let left = tau.mul_f64((id as f64 + 0.5) / servers.len() as f64);
        server.set_with(HOT, now, &Keep::ttl(left));
    }
}

/// The article's own numbers.
const FULL_REQUESTS: f64 = 100_000.0;
const FULL_SERVERS: u64 = 1_000;
const FULL_TAU: Duration = Duration::from_secs(2);

/// Questions a second at the node, with a cache in each of a thousand servers.
fn full_scale(seed: u64) -> f64 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let node = Service::new(&env, "node", BIN, Plan::new(1, MS / 100));
    let cache = |id| Cache::builder(&env.scope(id)).policy(Policy::strict(FULL_TAU)).capacity(16).build();
    let servers: Vec<Cache<u64, Tick, ()>> = (0..FULL_SERVERS).map(cache).collect();
    stagger(&servers, env.now(), FULL_TAU);
    let who = env.rng("servers");
    let ask = |_| {
        let (node, clock) = (node.clone(), env.clone());
        let load = async move { node.call().await.map(|()| clock.now()).map_err(|_| ()) };
        let get = servers[usize::try_from(who.below(FULL_SERVERS)).unwrap_or(0)].get(&HOT, || load);
        env.spawn(async move { drop(get.await) }).detach();
    };
    sim.run(poisson(&env, &env.rng("users"), Tick::ZERO + FULL_TAU, |_| FULL_REQUESTS, ask));
    node.seen().calls.total() as f64 / FULL_TAU.as_secs_f64()
}
