//! A sale opens: twenty times the traffic, two keys, and one of them must not be stale.
//!
//! Every page needs the product's description, which may be old, and its inventory, which is good for thirty seconds and not a
//! moment longer. Nothing is in the cache when the sale opens.
//!
//! - Plan A, no protection: the first crowd slows down its own loads so much that none of them ends.
//! - Plan B, a time to live and a mutex for each key: one load at a time. Everybody waits at every expiry.
//! - *Stale for all* is what one does next, and it is wrong: nobody waits, and inventory is sold that may be gone.
//! - Plan C, two policies in one cache: the description is served while it is loaded again, the inventory is strict. Only those wait
//!   who come while the inventory is loaded.
//! - Plan D, C with both keys loaded before the sale opens, and the inventory refreshed a little before its end rather than after it:
//!   as strict, and nobody waits at all.

use std::{sync::Arc, time::Duration};

use herdproof::{Cache, Env, Sim, Tick, cache::Policy, timeout::by};

use super::{
    Scenario,
    readers::{Crowd, Locks, Reads, Shelf, load_by},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Arm, Check, Figure, Mark, Report, Source, say},
    slowdown::Slowdown,
};

const SEC: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(3600);
const OPENS: Duration = SEC;
const END: Duration = Duration::from_secs(66);
const BIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    A,
    B,
    StaleForAll,
    C,
    D,
}

const PLANS: [(Plan, &str); 5] = [
    (Plan::A, "A: no protection"),
    (Plan::B, "B: TTL and mutex"),
    (Plan::StaleForAll, "stale for all"),
    (Plan::C, "C: two policies"),
    (Plan::D, "D: warmed, early"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Description,
    Inventory,
}

knobs! {
    /// Pages a second on other days.
    usual: f64 = 10.0, 1.0..=100.0;
    /// How many times as many there are in the sale.
    times: f64 = 20.0, 1.0..=100.0;
    /// How long the inventory is good for, and the description fresh.
    ttl: Duration = SEC * 30, SEC..=SEC * 60;
    /// How long a read may take.
    timeout: Duration = SEC * 2, SEC / 10..=SEC * 30;
    /// How long the origin takes for one load alone.
    load: Duration = Duration::from_millis(80), Duration::from_millis(1)..=SEC / 2;
    /// How long with 800 in flight; no less than alone.
    crowded: Duration = SEC * 5, Duration::from_millis(1)..=SEC * 60;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "flash-sale",
    title: "twenty times the traffic, and inventory that must not be stale: plans A to D",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let runs: [Run; 5] =
        std::array::from_fn(|arm| Run::new(settings.seed, knobs, PLANS[arm].0, knobs.sale(), settings.tap(arm)));
    let [a, b, stale, c, d] = &runs;
    let usual = Run::new(settings.seed, knobs, Plan::A, knobs.usual, Tap::default());
    let strict = [a, b, c, d].map(Run::stale_inventory);
    // At the opening and at every expiry; a load of either key.
    let openings = 1 + u64::try_from(END.saturating_sub(OPENS).as_nanos() / knobs.ttl.as_nanos()).unwrap_or(0);
    let expected = openings * 2;
    let often = openings as f64;
    // Those who come while a load is under way. Who has waited for the description then waits for the inventory, all at once.
    let come = knobs.sale() * knobs.load.as_secs_f64();
    let waiting = often * ((1.0 + come) + (1.0 + come + come));
    let checks = vec![
        Check::at_least(Source::Article, "A: on other days everybody is served (%)", 100.0, usual.percent())
            .cites("H24"),
        Check::at_most(Source::Article, "A: in the sale hardly anybody is (%)", 5.0, a.percent())
            .cites("N32")
            .cites("H24"),
        Check::equal(Source::Article, "stale inventory served by A, B, C, D", &[0; 4], &strict)
            .cites("N32")
            .cites("H24"),
        Check::at_least(
            Source::Formula,
            format!("stale for all: inventory past its {} is sold", say(knobs.ttl)),
            1.0,
            stale.stale_inventory() as f64,
        )
        .cites("H24"),
        Check::equal(
            Source::Formula,
            "B and C: one load of each key at the opening and at each expiry",
            &[expected; 2],
            &[b.origin.calls(), c.origin.calls()],
        )
        .cites("T6"),
        Check::within(
            Source::Formula,
            format!(
                "B: reads that wait, {openings} times: the first and {}/s x {}, then those and as many again",
                knobs.sale(),
                say(knobs.load)
            ),
            waiting,
            3.0 * (often * 5.0 * come).sqrt(),
            b.waited() as f64,
        )
        .cites("T6"),
        Check::at_most(
            Source::Promise,
            "C: of the description nobody waits but at the opening",
            0.0,
            c.description.between(OPENS + SEC, END).waited() as f64,
        )
        .cites("T10"),
        Check::equal(Source::Promise, "D: reads that wait", &0, &d.waited()).cites("T29"),
        Check::equal(Source::Promise, "B, C, D: everybody is served", &[0; 3], &[b, c, d].map(Run::errors)).cites("T6"),
    ];
    let summary = format!(
        "without protection {:.0} % of the reads were served, on other days all. With a mutex all were, and {} waited; stale for all \
         served inventory past its time {} times; two policies in one cache never did, and {} waited; warmed and refreshed early, {}.",
        a.percent(),
        b.waited(),
        stale.stale_inventory(),
        c.waited(),
        d.waited(),
    );
    Report {
        scenario: "flash-sale",
        seed: settings.seed,
        marks: vec![Mark { at: OPENS, what: "the sale opens" }],
        arms: PLANS.into_iter().zip(&runs).map(|((_, name), run)| run.arm(name)).collect(),
        span: END,
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// Pages a second in the sale.
    fn sale(self) -> f64 {
        self.times * self.usual
    }

    fn law(self) -> Slowdown {
        Slowdown::alone(self.load).at(800, self.crowded)
    }
}

struct Run {
    ttl: Duration,
    origin: Origin,
    description: Reads,
    inventory: Reads,
}

struct Shop {
    knobs: Knobs,
    env: Env,
    plan: Plan,
    origin: Origin,
    shelf: Shelf<Key>,
    locks: Locks<Key>,
    cache: Cache<Key, Tick, Down>,
}

impl Run {
    fn new(seed: u64, knobs: Knobs, plan: Plan, rate: f64, tap: Tap) -> Run {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let origin = Origin::up(&env, BIN, knobs.law()).tapped(tap);
        let shop = Arc::new(Shop::new(&env, knobs, plan, &origin));
        let (description, inventory) = (Reads::default(), Reads::default());
        if plan == Plan::D {
            for key in [Key::Description, Key::Inventory] {
                sim.run(shop.get(0, key)).expect("the origin is up");
            }
        }
        sim.run_until(Tick::ZERO + OPENS);
        let page = |id| {
            let (clock, shop) = (env.clone(), Arc::clone(&shop));
            let (description, inventory) = (description.clone(), inventory.clone());
            env.spawn(async move {
                description.read(&clock, shop.get(id, Key::Description)).await;
                inventory.read(&clock, shop.get(id, Key::Inventory)).await;
            })
            .detach();
        };
        sim.run(poisson(&env, &env.rng("pages"), Tick::ZERO + END, |_| rate, page));
        sim.run_until(Tick::ZERO + END + knobs.timeout * 3);
        Run { ttl: knobs.ttl, origin, description, inventory }
    }

    fn both(&self) -> [Crowd; 2] {
        [self.description.all(), self.inventory.all()]
    }

    fn waited(&self) -> u64 {
        self.both().iter().map(Crowd::waited).sum()
    }

    fn errors(&self) -> u64 {
        self.both().iter().map(Crowd::errors).sum()
    }

    /// How many reads of a hundred were served.
    fn percent(&self) -> f64 {
        let all: u64 = self.both().iter().map(Crowd::len).sum();
        100.0 - 100.0 * self.errors() as f64 / all as f64
    }

    fn stale_inventory(&self) -> u64 {
        self.inventory.all().older_than(self.ttl)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("loads", "loads", self.origin.calls()),
            Figure::count("peak_in_flight", "in flight", self.origin.peak_in_flight()),
            Figure::number("served_percent", "served %", self.percent()),
            Figure::count("waited", "waited", self.waited()),
            Figure::time("inventory_p99_ms", "p99", self.inventory.all().quantile(99)),
            Figure::count("stale_inventory", "stale stock", self.stale_inventory()),
            Figure::time("oldest_description_ms", "oldest text", self.description.all().oldest()),
        ];
        Arm::new(name, figures, self.origin.timeline()).waits(self.inventory.all().waits())
    }
}

impl Shop {
    fn new(env: &Env, knobs: Knobs, plan: Plan, origin: &Origin) -> Shop {
        let lenient = Policy::new(knobs.ttl).grace(GRACE);
        let inventory = match plan {
            Plan::StaleForAll => Policy::strict(knobs.ttl).grace(GRACE),
            // Fresh for its time at most, and refreshed before that.
            Plan::D => Policy::new(knobs.ttl),
            _ => Policy::strict(knobs.ttl),
        };
        let description = if plan == Plan::D { lenient } else { Policy::strict(knobs.ttl).grace(GRACE) };
        let policies = move |key: &Key| (*key == Key::Inventory).then(|| inventory.clone());
        Shop {
            knobs,
            env: env.clone(),
            plan,
            origin: origin.clone(),
            shelf: Shelf::default(),
            locks: Locks::default(),
            cache: Cache::builder(env).policy(description).policies(policies).build(),
        }
    }

    async fn get(&self, id: u64, key: Key) -> Result<Tick, ()> {
        let Shop { knobs, env, plan, origin, shelf, locks, cache } = self;
        let deadline = env.now() + knobs.timeout;
        let path = if key == Key::Inventory { "/inventory" } else { "/description" };
        // Before the sale there is nobody but who warms the cache.
        let lives = (env.now() - Tick::ZERO).checked_sub(OPENS).map(|since| since.as_nanos() / knobs.ttl.as_nanos());
        let wave = lives.map(|lives| u32::try_from(lives).unwrap_or(u32::MAX));
        let load = load_by(env, origin, Some(Caller::of(id, path).in_wave_if("ttl", wave)));
        match plan {
            Plan::A => {
                by(env, Some(deadline), shelf.get(env, key, knobs.ttl, load)).await.and_then(Result::ok).ok_or(())
            }
            Plan::B => {
                let get = locks.get(env, shelf, key, knobs.ttl, load);
                by(env, Some(deadline), get).await.and_then(Result::ok).ok_or(())
            }
            _ => cache.get(&key, || load).by(deadline).await.map(|got| got.value).map_err(|_| ()),
        }
    }
}
