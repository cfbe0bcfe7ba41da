//! A hot key is written again and again, and every write takes it out of the cache that everybody shares.
//!
//! Look aside, and whoever finds nothing loads: after each write one load, and one for each reader who comes while that is under way,
//! `1 + R x d`. And it can leave the cache wrong: a reader has loaded the old row, is slow, the row is written, the cache is told to
//! forget it, and then the reader stores what it has. Nothing says so until the time to live is over.
//!
//! A lock in the store, as in the sample (`SET NX EX 5`, wait 50 ms, look again), makes it one load. It costs a question for each
//! waiter and 50 ms; if its holder dies, everybody waits for as long as the lock lives; if a load takes longer than that, there are two
//! holders, and the first to finish deletes the lock of the other. It does nothing against the old row.
//!
//! A lease is a token: one reader has it and loads, the others are told what it has loaded. It is renewed while the load goes on, so it
//! can be short, and a write ends it: what was loaded under it is refused. That is the second tier of the cache here, the
//! same code on every node.
//!
//! The paper (Nishtala and others, NSDI 2013) has 17,000 queries a second at the peak without leases and 1,300 with; that depends on
//! its rates as this does on `R x d`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Cache, Env, Sim, Tick,
    cache::{Link, Policy},
    tier::{Filled, Lease, Lookup, SharedTier, Stored, Tier, Want},
};
use parking_lot::Mutex;

use super::{Scenario, readers::Shelf};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Parameter, Report, Source, millis, say},
    slowdown::Slowdown,
    timeline::Timeline,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const END: Duration = Duration::from_secs(20);
const BIN: Duration = Duration::from_millis(100);
const KEY: &str = "odds/42";
/// How many want the key at one instant where a lock or a lease is looked at closely.
const CROWD: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    LookAside,
    Lock,
    Leases,
}

const WAYS: [(Way, &str); 3] = [(Way::LookAside, "look aside"), (Way::Lock, "a lock, polled"), (Way::Leases, "leases")];

knobs! {
    /// How many nodes share the cache.
    nodes: u64 = 20, 1..=200;
    /// Readers a second.
    readers: f64 = 1_000.0, 1.0..=10_000.0;
    /// How often the row is written.
    write_every: Duration = SEC, SEC / 5..=SEC * 10;
    /// How long a query takes.
    load: Duration = MS * 50, MS..=SEC;
    /// How long the cache keeps a value that nobody invalidates.
    ttl: Duration = SEC * 10, SEC..=SEC * 60;
    /// How long the lock lives.
    lock: Duration = SEC * 5, SEC..=SEC * 20;
    /// How long one waits before one looks again.
    poll: Duration = MS * 50, MS..=SEC;
    /// How long a lease lasts that is not renewed.
    lease: Duration = SEC, SEC / 10..=SEC * 5;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "leases",
    title: "a hot key is invalidated by every write: a herd, a lock that is polled, or a lease with a token",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let runs = std::array::from_fn(|arm| Run::new(seed, knobs, WAYS[arm].0, settings.tap(arm)));
    let old = WAYS.map(|(way, _)| old_row(seed, knobs, way));
    let [aside, lock, leases] = &runs;
    let mut checks = herd(knobs, &runs);
    checks.extend(correctness(knobs, &old));
    checks.extend(autopsy(seed, knobs));
    let summary = format!(
        "at most {} queries in 100 ms without a remedy, {} with a lock and {} with leases; a slow reader's old row stays in the cache \
         for {} without, {} with a lock, and {} with leases.",
        aside.calls.peak(),
        lock.calls.peak(),
        leases.calls.peak(),
        say(old[0].wrong_for),
        say(old[1].wrong_for),
        say(old[2].wrong_for),
    );
    let mut arms: Vec<Arm> =
        WAYS.into_iter().zip(&runs).zip(&old).map(|(((_, name), run), old)| run.arm(name, old)).collect();
    arms[1].samples.push("C12");
    let writes = (1..knobs.writes()).map(|n| Mark { at: knobs.write_every * n, what: "" });
    let first = Mark { at: knobs.write_every, what: "a write" };
    Report {
        scenario: "leases",
        seed,
        parameters: vec![Parameter::new("slow reader", "reads the old row, stores it after the write")],
        arms,
        span: END,
        marks: std::iter::once(first).chain(writes.skip(1)).collect(),
        checks,
        summary,
        ..Report::default()
    }
}

fn herd(knobs: Knobs, [aside, lock, leases]: &[Run; 3]) -> Vec<Check> {
    let writes = f64::from(knobs.writes());
    let come = knobs.readers * knobs.load.as_secs_f64();
    vec![
        Check::within(
            Source::Formula,
            format!("look aside: queries for each write, 1 + {}/s x {}", knobs.readers, say(knobs.load)),
            1.0 + come,
            4.0 * (come / writes).sqrt(),
            aside.calls.total() as f64 / writes,
        )
        .cites("H3"),
        Check::equal(
            Source::Promise,
            "a lock, leases: one for each",
            &[u64::from(knobs.writes()); 2],
            &[lock, leases].map(|run| run.calls.total()),
        )
        .cites("T7")
        .cites("T8"),
        Check::at_least(
            Source::Published,
            "leases: the peak at the database falls by more than an order (paper: 17,000/s to 1,300/s, 13 times)",
            13.0,
            aside.calls.peak() as f64 / leases.calls.peak().max(1) as f64,
        )
        .cites("NSDI 2013")
        .cites("T8"),
        Check::equal(
            Source::Promise,
            "leases: nobody waits for longer than one query takes, as the value is pushed",
            &knobs.load,
            &leases.longest,
        )
        .cites("T8"),
        Check::at_most(
            Source::Formula,
            "a lock: up to one poll longer (ms)",
            millis(knobs.load + knobs.poll),
            millis(lock.longest),
        )
        .cites("N11")
        .cites("T7"),
        Check::equal(
            Source::Promise,
            "readers who got a row that was out of date when they asked, in each arm",
            &[0; 3],
            &[aside, lock, leases].map(|run| run.wrong),
        )
        .cites("T8"),
    ]
}

fn correctness(knobs: Knobs, [aside, lock, leases]: &[OldRow; 3]) -> Vec<Check> {
    let (tokens, fills) = tokens();
    vec![
        Check::equal(
            Source::Formula,
            "a slow reader's old row, stored after the invalidation: look aside and lock are wrong until the TTL is over",
            &[knobs.ttl; 2],
            &[aside.wrong_for, lock.wrong_for],
        )
        .cites("T8")
        .cites("C12"),
        Check::equal(
            Source::Promise,
            "... leases: (refused fills, wrong for)",
            &(1, Duration::ZERO),
            &(leases.fenced, leases.wrong_for),
        )
        .cites("T8")
        .cites("NSDI 2013"),
        Check::equal(Source::Article, "a lease is a token of 64 bits", &64, &(8 * size_of::<Lease>())).cites("N14"),
        Check::equal(Source::Promise, "... and tokens of a key only grow", &true, &tokens.is_sorted_by(|a, b| a < b))
            .cites("N14"),
        Check::equal(
            Source::Promise,
            "... a fill under the old one, under the new one",
            &[Filled::Fenced, Filled::Kept],
            &fills,
        )
        .cites("N14")
        .cites("T8"),
    ]
}

fn autopsy(seed: u64, knobs: Knobs) -> Vec<Check> {
    let look = |way, load, dies| Close::new(seed, knobs, way, load, dies);
    let fetch = knobs.poll * 18 / 5;
    let polled = look(Way::Lock, fetch, false);
    let [lock_dies, lease_dies] = [Way::Lock, Way::Leases].map(|way| look(way, knobs.load, true));
    let long = knobs.lock + SEC;
    let [lock_long, lease_long] = [Way::Lock, Way::Leases].map(|way| look(way, long, false));
    vec![
        Check::equal(
            Source::Article,
            format!(
                "a lock: {} waiters, a load of {}, polled every {}: ceil(load / poll) polls each",
                CROWD - 1,
                say(fetch),
                say(knobs.poll)
            ),
            &((CROWD - 1) * 4),
            &polled.polls,
        )
        .cites("N11")
        .cites("T7"),
        Check::within(
            Source::Article,
            format!(
                "a lock whose holder dies: everybody waits until it expires, {}, and a load and a poll (ms)",
                say(knobs.lock)
            ),
            millis(knobs.lock + knobs.load),
            millis(knobs.poll),
            millis(lock_dies.longest),
        )
        .cites("H29")
        .cites("C12"),
        Check::at_most(
            Source::Promise,
            format!("a lease of {} whose holder dies: half as long again, and a load (ms)", say(knobs.lease)),
            millis(knobs.lease * 3 / 2 + knobs.load),
            millis(lease_dies.longest),
        )
        .cites("H29")
        .cites("T8"),
        Check::equal(
            Source::Article,
            format!("a lock of {}, a load of {}: (loads at once, locks of others deleted)", say(knobs.lock), say(long)),
            &(2, 1),
            &(lock_long.in_flight, lock_long.not_its_own),
        )
        .cites("C12"),
        Check::equal(
            Source::Promise,
            format!("a lease of {}, the same load: (loads at once, loads)", say(knobs.lease)),
            &(1, 1),
            &(lease_long.in_flight, lease_long.loads),
        )
        .cites("C12")
        .cites("T8"),
    ]
}

impl Knobs {
    /// How often there is nothing in the cache: at the beginning, and after each write.
    fn writes(self) -> u32 {
        1 + u32::try_from((END.as_nanos() - 1) / self.write_every.as_nanos()).unwrap_or(u32::MAX - 1)
    }

    fn node(self, env: &Env, tier: &SharedTier<&'static str, Tick>) -> Cache<&'static str, Tick, Down> {
        // Nothing is fresh in a node's memory: what is looked at is the cache that all share.
        let link = Link::default().memory(Duration::ZERO).lease(self.lease);
        Cache::builder(env).policy(Policy::strict(self.ttl)).tier_with(tier.node(), link).build()
    }
}

/// The database: one row, whose value is when it was written.
#[derive(Clone)]
struct Database {
    env: Env,
    origin: Origin,
    /// When it was written, and how often before that.
    row: Arc<Mutex<(Tick, u32)>>,
}

impl Database {
    fn new(env: &Env, load: Duration, tap: Tap) -> Database {
        let origin = Origin::up(env, BIN, Slowdown::alone(load)).tapped(tap);
        Database { env: env.clone(), origin, row: Arc::new(Mutex::new((env.now(), 0))) }
    }

    fn row(&self) -> Tick {
        self.row.lock().0
    }

    fn write(&self) {
        let (at, writes) = &mut *self.row.lock();
        (*at, *writes) = (self.env.now(), *writes + 1);
    }

    /// What was in the row when the query began.
    async fn query(&self, who: u64) -> Result<Tick, Down> {
        let (row, writes) = *self.row.lock();
        let caller = Caller::of(who, "/odds").item(42).in_wave("invalidation", writes);
        self.origin.call_from(caller).await.map(|_| row)
    }
}

/// The cache that all nodes share, as the samples use it: a value, and a lock beside it.
#[derive(Clone)]
struct Redis {
    env: Env,
    knobs: Knobs,
    shelf: Shelf<&'static str>,
    /// Whose it is, and until when.
    lock: Arc<Mutex<Option<(u64, Tick)>>>,
    polls: Arc<AtomicU64>,
    not_its_own: Arc<AtomicU64>,
}

impl Redis {
    fn new(env: &Env, knobs: Knobs) -> Redis {
        Redis {
            env: env.clone(),
            knobs,
            shelf: Shelf::default(),
            lock: Arc::default(),
            polls: Arc::default(),
            not_its_own: Arc::default(),
        }
    }

    /// `SET lock NX EX`.
    fn set_lock(&self, who: u64) -> bool {
        let (now, mut lock) = (self.env.now(), self.lock.lock());
        let free = lock.is_none_or(|(_, until)| now >= until);
        if free {
            *lock = Some((who, now + self.knobs.lock));
        }
        free
    }

    /// `DEL lock`, whoever has it.
    fn delete_lock(&self, who: u64) {
        let deleted = self.lock.lock().take();
        self.not_its_own.fetch_add(u64::from(deleted.is_some_and(|(owner, _)| owner != who)), Relaxed);
    }

    /// The sample with the lock.
    async fn get_locked(&self, who: u64, load: impl Future<Output = Result<Tick, Down>>) -> Result<Tick, Down> {
        loop {
            if let Some(value) = self.shelf.fresh(&KEY, self.env.now()) {
                return Ok(value);
            }
            if self.set_lock(who) {
                let value = load.await?;
                self.shelf.put(KEY, value, self.env.now() + self.knobs.ttl);
                self.delete_lock(who);
                return Ok(value);
            }
            self.env.sleep(self.knobs.poll).await;
            self.polls.fetch_add(1, Relaxed);
        }
    }
}

/// A fleet, whichever way it reads.
#[derive(Clone)]
struct Fleet {
    knobs: Knobs,
    way: Way,
    env: Env,
    redis: Redis,
    tier: Arc<SharedTier<&'static str, Tick>>,
    nodes: Arc<Vec<Cache<&'static str, Tick, Down>>>,
}

impl Fleet {
    fn new(env: &Env, knobs: Knobs, way: Way) -> Fleet {
        let tier = SharedTier::new(env);
        let nodes = if way == Way::Leases { knobs.nodes } else { 0 };
        let nodes = (0..nodes).map(|id| knobs.node(&env.scope(id), &tier)).collect();
        Fleet {
            knobs,
            way,
            env: env.clone(),
            redis: Redis::new(env, knobs),
            tier: Arc::new(tier),
            nodes: Arc::new(nodes),
        }
    }

    /// One reader's question. Who it is decides on which node.
    async fn get(
        &self,
        who: u64,
        load: impl Future<Output = Result<Tick, Down>> + Send + 'static,
    ) -> Result<Tick, Down> {
        let Fleet { knobs, redis, nodes, env, .. } = self;
        match self.way {
            Way::LookAside => redis.shelf.get(env, KEY, knobs.ttl, load).await,
            Way::Lock => redis.get_locked(who, load).await,
            Way::Leases => {
                let node = usize::try_from(who % knobs.nodes).unwrap_or(0);
                nodes[node].get(&KEY, || load).await.map(|got| got.value).map_err(|_| Down)
            }
        }
    }

    /// What is done after every write.
    async fn forget(&self) {
        self.redis.shelf.clear();
        // A tier in memory does not fail.
        drop(self.tier.invalidate(&KEY).await);
    }
}

struct Run {
    calls: Timeline,
    in_flight: u64,
    polls: u64,
    longest: Duration,
    /// Readers who got what was out of date when they asked.
    wrong: u64,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let (fleet, database) = (Fleet::new(&env, knobs, way), Database::new(&env, knobs.load, tap));
        let (clock, writer, rows) = (env.clone(), fleet.clone(), database.clone());
        env.spawn(async move {
            for _ in 1..knobs.writes() {
                clock.sleep(knobs.write_every).await;
                rows.write();
                writer.forget().await;
            }
        })
        .detach();
        let seen = Arc::new(Mutex::new((Duration::ZERO, 0)));
        let read = |who| {
            let (clock, fleet, database, seen) = (env.clone(), fleet.clone(), database.clone(), Arc::clone(&seen));
            env.spawn(async move {
                let (asked, row) = (clock.now(), database.row());
                let got = fleet.get(who, async move { database.query(who).await }).await;
                let (longest, wrong) = &mut *seen.lock();
                *longest = (clock.now() - asked).max(*longest);
                *wrong += u64::from(got.is_ok_and(|got| got < row));
            })
            .detach();
        };
        sim.run(poisson(&env, &env.rng("readers"), Tick::ZERO + END, |_| knobs.readers, read));
        sim.run_until(Tick::ZERO + END + SEC * 2);
        let (longest, wrong) = *seen.lock();
        let Database { origin, .. } = &database;
        let polls = fleet.redis.polls.load(Relaxed);
        Run { calls: origin.timeline(), in_flight: origin.peak_in_flight(), polls, longest, wrong }
    }

    fn arm(&self, name: &'static str, old: &OldRow) -> Arm {
        let figures = vec![
            Figure::count("queries", "queries", self.calls.total()),
            Figure::count("peak_per_100_ms", "peak/100 ms", self.calls.peak()),
            Figure::count("in_flight", "in flight", self.in_flight),
            Figure::count("polls", "polls", self.polls),
            Figure::time("longest_ms", "longest wait", self.longest),
            Figure::time("wrong_for_ms", "wrong for", old.wrong_for),
        ];
        Arm::new(name, figures, self.calls.clone())
    }
}

/// A slow reader's old row.
struct OldRow {
    /// Fills that were refused.
    fenced: u64,
    /// For how long readers got it after it was stored.
    wrong_for: Duration,
}

/// A reader finds nothing, reads the row, and is slow; the row is written and invalidated; another reader loads it; then the first
/// one stores what it has.
fn old_row(seed: u64, knobs: Knobs, way: Way) -> OldRow {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let (fleet, database) = (Fleet::new(&env, knobs, way), Database::new(&env, knobs.load, Tap::default()));
    let slow = knobs.load * 4;
    let (clock, rows) = (env.clone(), database.clone());
    let slowly = async move {
        let row = rows.row();
        clock.sleep(slow).await;
        Ok(row)
    };
    let read = |who, load| {
        let fleet = fleet.clone();
        env.spawn(async move { fleet.get(who, load).await }).detach();
    };
    read(0, Box::pin(slowly) as std::pin::Pin<Box<dyn Future<Output = Result<Tick, Down>> + Send>>);
    sim.run_until(Tick::ZERO + knobs.load);
    database.write();
    sim.run(fleet.forget());
    let rows = database.clone();
    read(1, Box::pin(async move { rows.query(1).await }));
    sim.run_until(Tick::ZERO + slow + MS);
    // From here on everybody is asked what they see.
    let mut wrong = 0;
    let step = MS;
    while env.now() < Tick::ZERO + slow + knobs.ttl * 2 {
        let rows = database.clone();
        let got = sim.run(fleet.get(1, async move { Ok(rows.row()) }));
        wrong += u32::from(got.is_ok_and(|got| got < database.row()));
        let next = env.now() + step;
        sim.run_until(next);
    }
    let fenced = fleet.nodes.iter().map(|node| node.stats().fenced).sum();
    // The first step after it was stored counts for the one before.
    OldRow { fenced, wrong_for: if wrong == 0 { Duration::ZERO } else { step * (wrong + 1) } }
}

/// What a tier says of two leases of one key with an invalidation between them: their tokens, and whether each may fill.
fn tokens() -> ([u64; 2], [Filled; 2]) {
    let mut sim = Sim::new(1);
    let tier: SharedTier<&str, u64> = SharedTier::new(&sim.env());
    let want = Want { lease: SEC, early: Duration::ZERO };
    let stored =
        || Stored { value: Some(1), ttl: SEC, grace: Duration::ZERO, keep: Duration::ZERO, load: MS, tags: Vec::new() };
    sim.run(async {
        let lease = async || match tier.lookup(&KEY, want).await {
            Ok(Lookup::Fill(lease)) => lease,
            _ => Lease(0),
        };
        let old = lease().await;
        drop(tier.invalidate(&KEY).await);
        let new = lease().await;
        let fill = async |lease| tier.fill(&KEY, lease, stored()).await.unwrap_or(Filled::Fenced);
        ([old.0, new.0], [fill(old).await, fill(new).await])
    })
}

/// A crowd at one instant, looked at closely.
struct Close {
    loads: u64,
    in_flight: u64,
    polls: u64,
    not_its_own: u64,
    longest: Duration,
}

impl Close {
    /// Everybody wants the key, which is not there. `dies`: somebody before them was to load it, and died.
    fn new(seed: u64, knobs: Knobs, way: Way, load: Duration, dies: bool) -> Close {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let (fleet, database) = (Fleet::new(&env, knobs, way), Database::new(&env, load, Tap::default()));
        if dies {
            fleet.redis.set_lock(CROWD);
            let want = Want { lease: knobs.lease, early: Duration::ZERO };
            drop(sim.run(fleet.tier.lookup(&KEY, want)));
        }
        let callers: Vec<_> = (0..CROWD)
            .map(|who| {
                let (clock, fleet, database) = (env.clone(), fleet.clone(), database.clone());
                env.spawn(async move {
                    _ = fleet.get(who, async move { database.query(who).await }).await;
                    clock.now() - Tick::ZERO
                })
            })
            .collect();
        let longest = sim.run(async {
            let mut longest = Duration::ZERO;
            for caller in callers {
                longest = longest.max(caller.await.expect("a caller neither panics nor is aborted"));
            }
            longest
        });
        // Whoever still loads, and deletes the lock then.
        sim.run_until(env.now() + load * 2);
        Close {
            loads: database.origin.calls(),
            in_flight: database.origin.peak_in_flight(),
            polls: fleet.redis.polls.load(Relaxed),
            not_its_own: fleet.redis.not_its_own.load(Relaxed),
            longest,
        }
    }
}
