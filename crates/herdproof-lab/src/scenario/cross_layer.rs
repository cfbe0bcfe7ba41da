//! The network is gone for two seconds, and four layers have a herd each, one after another.
//!
//! Nobody did anything to the database. But every connection was lost in the same instant, so everybody dials; a new connection has
//! to be authenticated; what the gateway knew of its clients went with the flap, so their first reads are misses; and each miss is a
//! query. Every layer passes on what it can serve, which is more than the next one can. Those who wait too long
//! give up, and begin again at the first layer: now there are two herds.
//!
//! A remedy takes the herd away from its own layer and shows the next one. All four together are as quick as the slowest layer:
//!
//! 1. dials: spread, full jitter after failures, and a gate before the handshakes;
//! 2. authentication: a token that is still valid is valid on the new connection;
//! 3. misses: one load for each key, which goes on if its caller leaves, so that it is there when it comes back;
//! 4. queries: a limit before the database, and those it has no room for come again, each at its own time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Backoff, Cache, Env, Sim, Tick,
    backoff::Jitter,
    cache::Policy,
    connect::{ConnectGate, Reconnect},
    gate::{Ask, guard, result},
    limit::Bulkhead,
    timeout::by,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Scenario, readers::Shelf};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Edge, Figure, Lane, Mark, Parameter, Report, Source},
    service::{Plan, Seen, Service, Unserved},
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const BIN: Duration = Duration::from_millis(100);
const FLAP: Duration = Duration::from_secs(1);
const BACK: Duration = Duration::from_millis(2_900);
/// After this long, those who are not back are counted as such.
const END: Duration = Duration::from_secs(40);
const TTL: Duration = Duration::from_secs(60);
/// Handshakes a second of one core.
const PER_CORE: u32 = 500;
/// What the front end can do is not asked of it in full.
const COMFORTABLE: f64 = 0.8;
/// How often the sample's client tries.
const TRIES: u32 = 10;

/// How many layers have their remedy: each arm has those of the arm before.
const ARMS: [&str; 5] = ["nothing", "dials spread", "+ token kept", "+ one load per key", "+ limit at the database"];
/// The articles' client, at layers that have none.
const SAMPLE: &str = "ten tries, 0.1 to 2 s";

knobs! {
    /// How many clients lose their connection.
    clients: u64 = 2_000, 1..=10_000;
    /// How many handshakes the front end makes at a time, of 2 ms each.
    cores: u32 = 8, 1..=256;
    /// How many can wait to be accepted.
    queue: usize = 1_000, 1..=20_000;
    /// How many tokens are checked at a time, of 4 ms each.
    checkers: usize = 4, 1..=256;
    /// How many queries the database works on at a time, of 20 ms each.
    workers: usize = 10, 1..=256;
    /// Keys that everybody reads; beside them, each client reads one of its own.
    shared: u64 = 20, 1..=1_000;
    /// How many of the tokens are still valid.
    valid: f64 = 0.9, 0.0..=1.0;
    /// How long a client waits for each answer.
    timeout: Duration = SEC, SEC / 10..=SEC * 10;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cross-layer",
    title: "the network flaps: a herd of dials, of logins, of misses, of queries, and each remedy shows the next",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs: [Run; 5] =
        settings.arms(&ARMS, |remedies, _| Run::new(settings.seed, knobs, remedies, false, &settings.tap(remedies)));
    let sample = Run::new(settings.seed, knobs, 0, true, &settings.tap(ARMS.len()));
    let [naive, .., last] = &runs;
    let summary = format!(
        "without a remedy one flap became {:.1} dials, {:.1} logins and {:.1} queries for each client, and the last was back after {}; \
         with all four {:.1}, {:.1} and {:.1}, after {}.",
        naive.each(&naive.front),
        naive.each(&naive.auth),
        naive.each(&naive.database),
        naive.shown(),
        last.each(&last.front),
        last.each(&last.auth),
        last.each(&last.database),
        last.shown(),
    );
    Report {
        scenario: "cross-layer",
        seed: settings.seed,
        parameters: vec![Parameter::new("the flap", "from second 1 to 2.9")],
        arms: ARMS
            .into_iter()
            .zip(&runs)
            .map(|(name, run)| run.arm(name))
            .chain([sample.arm(SAMPLE).sample("C11")])
            .collect(),
        marks: vec![Mark { at: FLAP, what: "gone" }, Mark { at: BACK, what: "back" }],
        checks: [checks(knobs, &runs), autopsy(knobs, &runs[0], &sample)].concat(),
        summary,
        ..Report::default()
    }
}

fn checks(knobs: Knobs, [naive, spread, token, coalesced, limited]: &[Run; 5]) -> Vec<Check> {
    let clients = knobs.clients as f64;
    let least = clients / knobs.database().capacity();
    let expired = (1.0 - knobs.valid) * clients;
    let first = naive.in_first_moment();
    let mut falling = first;
    falling.sort_unstable_by(|a, b| b.cmp(a));
    vec![
        Check::equal(
            Source::Article,
            "one trigger, four layers in sequence: (dials, logins, misses, queries) in the first 200 ms",
            &falling,
            &first,
        )
        .cites("H14"),
        Check::at_least(
            Source::Article,
            "nothing: those who give up begin again at the first layer (logins for each client)",
            1.5,
            naive.each(&naive.auth),
        )
        .cites("H14")
        .cites("H15"),
        Check::at_most(
            Source::Promise,
            "dials spread: the worst tenth of a second after the flap, compared with all at once",
            0.5 * naive.front_peak() as f64,
            spread.front_peak() as f64,
        )
        .cites("T26")
        .cites("T2"),
        Check::at_least(
            Source::Formula,
            "... which leaves the next layer as it was: logins wait in a line of more than a tenth of a second's work",
            knobs.auth().capacity() / 10.0,
            spread.auth.longest_line as f64,
        )
        .cites("H14"),
        Check::within(
            Source::Formula,
            "token kept: only those log in whose token has expired",
            expired,
            4.0 * (expired * knobs.valid).sqrt(),
            token.auth.calls.total() as f64,
        )
        .cites("H14"),
        Check::at_most(
            Source::Promise,
            "one load per key: queries, one for each client's own key and each shared one",
            clients + knobs.shared as f64,
            coalesced.database.calls.total() as f64,
        )
        .cites("T5")
        .cites("H3"),
        Check::at_least(
            Source::Formula,
            "... while each reader its load made more than that",
            clients + knobs.shared as f64 + 1.0,
            token.database.calls.total() as f64,
        )
        .cites("H3"),
        Check::at_most(
            Source::Promise,
            "limit at the database: its line, that was longer before",
            1.0,
            limited.database.longest_line as f64,
        )
        .cites("T27")
        .cites("T17"),
        Check::at_least(
            Source::Formula,
            "... by how much",
            knobs.database().capacity() / 2.0,
            coalesced.database.longest_line as f64,
        )
        .cites("T27"),
        Check::equal(Source::Promise, "all four: everybody is back", &knobs.clients, &limited.back.total())
            .cites("H14"),
        Check::at_least(
            Source::Formula,
            format!("... nobody can be quicker than the slowest layer, {least} s for all keys"),
            least,
            limited.over(),
        )
        .cites("H14"),
        Check::at_most(Source::Promise, "... and it is not much more (s)", 2.0 * least, limited.over()).cites("H14"),
    ]
}

/// Jitter and a bound are right, but a bound in attempts is none in time.
fn autopsy(knobs: Knobs, naive: &Run, sample: &Run) -> Vec<Check> {
    vec![
        Check::at_most(
            Source::Article,
            "the sample's client, full jitter from 0.1 to 2 s: the worst tenth of a second after the flap, of that with a fixed pause",
            0.5 * naive.front_peak() as f64,
            sample.front_peak() as f64,
        )
        .cites("C11")
        .cites("T26"),
        Check::at_most(
            Source::Formula,
            "... which tries ten times, the flap included, and never again: dials",
            (knobs.clients * u64::from(TRIES)) as f64,
            sample.front.calls.total() as f64,
        )
        .cites("C11"),
        Check::at_least(
            Source::Formula,
            "... before the layers behind have caught up: clients that are not back, and will not be",
            0.05 * knobs.clients as f64,
            (knobs.clients - sample.back.total()) as f64,
        )
        .cites("C11"),
    ]
}

impl Knobs {
    fn front(self) -> Plan {
        Plan { line: self.queue, ..Plan::new(self.cores as usize, SEC / PER_CORE) }
    }

    fn auth(self) -> Plan {
        Plan::new(self.checkers, MS * 4)
    }

    fn database(self) -> Plan {
        Plan::new(self.workers, MS * 20)
    }

    fn handshakes(self) -> f64 {
        self.front().capacity() * COMFORTABLE
    }
}

struct Run {
    knobs: Knobs,
    front: Seen,
    auth: Seen,
    misses: Timeline,
    database: Seen,
    /// When clients had everything again.
    back: Timeline,
    /// When the last of them had.
    last: Duration,
}

/// One client's attempt to have everything again: whatever it asks for, that is why.
#[derive(Clone, Copy)]
struct Dial {
    id: u64,
    wave: u32,
}

impl Dial {
    fn of(self, path: &'static str) -> Caller {
        Caller::of(self.id, path).in_wave("reconnect", self.wave)
    }
}

/// What all clients of a run share.
struct World {
    knobs: Knobs,
    env: Env,
    remedies: usize,
    /// Whether clients dial as the sample does.
    is_sample: bool,
    front: Service,
    gate: Option<ConnectGate>,
    auth: Service,
    database: Service,
    shelf: Shelf<u64>,
    cache: Cache<u64, Tick, Unserved>,
    misses: Mutex<Timeline>,
    back: Mutex<(Timeline, Tick)>,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, remedies: usize, is_sample: bool, tap: &Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let world = Arc::new(World { is_sample, ..World::new(&env, knobs, remedies, tap) });
        sim.run_until(Tick::ZERO + FLAP);
        world.front.change(|plan| plan.down = true);
        for id in 0..knobs.clients {
            env.spawn(client(env.scope(id), id, Arc::clone(&world))).detach();
        }
        sim.run_until(Tick::ZERO + BACK);
        world.front.change(|plan| plan.down = false);
        sim.run_until(Tick::ZERO + END);
        let (back, last) = world.back.lock().clone();
        let misses = world.misses.lock().clone();
        Run {
            knobs,
            front: world.front.seen(),
            auth: world.auth.seen(),
            misses,
            database: world.database.seen(),
            last: (last - Tick::ZERO).saturating_sub(BACK),
            back,
        }
    }

    fn each(&self, seen: &Seen) -> f64 {
        seen.calls.total() as f64 / self.knobs.clients as f64
    }

    fn lanes(&self) -> [(&'static str, &Timeline); 4] {
        [
            ("dials", &self.front.calls),
            ("logins", &self.auth.calls),
            ("misses", &self.misses),
            ("queries", &self.database.calls),
        ]
    }

    /// How many had come to each layer 200 ms after the flap.
    fn in_first_moment(&self) -> [u64; 4] {
        self.lanes().map(|(_, timeline)| timeline.counts().iter().skip(after_flap()).take(2).sum())
    }

    fn front_peak(&self) -> u64 {
        self.front.calls.counts().iter().skip(after_flap()).copied().max().unwrap_or(0)
    }

    /// How long after the flap the last client had everything, in seconds; without end if some never had.
    fn over(&self) -> f64 {
        if self.back.total() == self.knobs.clients { self.last.as_secs_f64() } else { f64::INFINITY }
    }

    fn shown(&self) -> String {
        let over = self.over();
        if over.is_finite() {
            format!("{over:.1} s")
        } else {
            format!("more than {} s", END.saturating_sub(BACK).as_secs())
        }
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("dials", "dials", self.front.calls.total()),
            Figure::count("logins", "logins", self.auth.calls.total()),
            Figure::count("misses", "misses", self.misses.total()),
            Figure::count("queries", "queries", self.database.calls.total()),
            Figure::count("wasted", "for nobody", self.auth.wasted + self.database.wasted),
            Figure::count("database_line", "line at db", self.database.longest_line as u64),
            Figure::count("back", "back", self.back.total()),
            Figure::number("over_s", "after, s", self.over()),
        ];
        let lanes = self.lanes().map(|(name, timeline)| Lane { name, timeline: timeline.clone() });
        let ways = ["clients > front end", "front end > login", "front end > cache", "cache > database"];
        let edges = ways.into_iter().zip(self.lanes()).map(|(way, (_, calls))| (way.to_owned(), calls.total()));
        Arm::new(name, figures, self.database.calls.clone())
            .lanes(lanes.into())
            .edges(edges.map(|(name, calls)| Edge { name, calls }).collect())
    }
}

/// The first bin after the flap.
fn after_flap() -> usize {
    usize::try_from(BACK.as_nanos() / BIN.as_nanos()).unwrap_or(0)
}

impl World {
    fn new(env: &Env, knobs: Knobs, remedies: usize, tap: &Tap) -> World {
        let service = |name, plan| Service::tapped(env, name, BIN, plan, tap.clone());
        let mut cache = Cache::builder(env).policy(Policy::new(TTL)).capacity(20_000);
        if remedies >= 4 {
            let seats = u32::try_from(knobs.workers).unwrap_or(u32::MAX);
            cache = cache.load_limit(Bulkhead::new(env, seats).max_waiting(knobs.workers * 2));
        }
        let gate = (remedies >= 1)
            .then(|| ConnectGate::accepting(env, knobs.cores * PER_CORE, knobs.cores).max_waiting(knobs.queue).build());
        World {
            knobs,
            env: env.clone(),
            remedies,
            is_sample: false,
            front: service("front", knobs.front()),
            gate,
            auth: service("auth", knobs.auth()),
            database: service("database", knobs.database()),
            shelf: Shelf::default(),
            cache: cache.build(),
            misses: Mutex::new(Timeline::new(BIN)),
            back: Mutex::new((Timeline::new(BIN), Tick::ZERO)),
        }
    }

    /// So long, and no longer.
    async fn in_time<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, ()> {
        let deadline = self.env.now() + self.knobs.timeout;
        by(&self.env, Some(deadline), work).await.and_then(Result::ok).ok_or(())
    }

    /// A connection, a login if it needs one, and a page: what is in the way of any of them is in the way of all.
    async fn connect(&self, dial: Dial, token: &AtomicBool, env: &Env) -> Result<(), ()> {
        let ask = Ask::new(env).deadline(env.now() + self.knobs.timeout);
        self.in_time(guard(env, &self.gate, result, ask, || self.front.call_from(dial.of("/connect")))).await?;
        if !token.load(Relaxed) {
            self.in_time(self.auth.call_from(dial.of("/login"))).await?;
            token.store(self.remedies >= 2, Relaxed);
        }
        self.page(dial, env).await
    }

    /// What everybody reads, and what only this client does.
    async fn page(&self, dial: Dial, env: &Env) -> Result<(), ()> {
        let rng = env.rng("page");
        let mut delays = Backoff::exponential(MS * 200).cap(SEC * 2).delays();
        for key in [rng.below(self.knobs.shared), self.knobs.shared + dial.id] {
            while self.in_time(self.read(dial, key)).await.is_err() {
                if self.remedies < 4 {
                    return Err(());
                }
                env.sleep(delays.next(&rng)).await;
            }
        }
        Ok(())
    }

    async fn read(&self, dial: Dial, key: u64) -> Result<Tick, ()> {
        let is_there = self.cache.peek(&key).is_some() || self.shelf.fresh(&key, self.env.now()).is_some();
        if !is_there {
            self.misses.lock().record(self.env.now());
        }
        // A question to the cache.
        self.env.sleep(MS).await;
        let (env, database) = (self.env.clone(), self.database.clone());
        let caller = dial.of("/page").item(key);
        let load = async move { database.call_from(caller).await.map(|()| env.now()) };
        if self.remedies < 3 {
            return self.shelf.get(&self.env, key, TTL, load).await.map_err(|_| ());
        }
        self.cache.get(&key, || load).await.map(|got| got.value).map_err(|_| ())
    }
}

/// Had a connection, and keeps dialling until it has another and its page on it.
async fn client(env: Env, id: u64, world: Arc<World>) {
    let short = Backoff::exponential(MS * 100).cap(SEC * 2);
    let reconnect = match world.remedies {
        0 if world.is_sample => Reconnect::new().spread(Duration::ZERO).backoff(short).attempts(TRIES),
        0 => Reconnect::new().spread(Duration::ZERO).backoff(Backoff::constant(SEC).jitter(Jitter::None)),
        _ => Reconnect::new().crowd(world.knobs.clients, world.knobs.handshakes()).backoff(short),
    };
    // Without the remedy a token goes with its connection.
    let token = Arc::new(AtomicBool::new(world.remedies >= 2 && env.rng("token").chance(world.knobs.valid)));
    let (done, stop) = oneshot::channel::<()>();
    let mut done = Some(done);
    let mut first = true;
    let mut waves = 0..;
    let connect = || {
        // The connection that was lost had been steady.
        let had_one = std::mem::take(&mut first);
        let dial = Dial { id, wave: if had_one { 0 } else { waves.next().unwrap_or(u32::MAX) } };
        let (env, world, token) = (env.clone(), Arc::clone(&world), Arc::clone(&token));
        async move { if had_one { Ok(false) } else { world.connect(dial, &token, &env).await.map(|()| true) } }
    };
    let serve = |again| {
        if again {
            let mut back = world.back.lock();
            back.0.record(env.now());
            back.1 = env.now();
            // The loop stops with this, before it sees the connection end.
            done.take();
        }
        std::future::ready(())
    };
    let ended: Result<(), _> = reconnect.steady(Duration::ZERO).run(&env, stop, connect, serve).await;
    debug_assert!(ended.is_ok() || world.is_sample, "nobody else gives up");
}
