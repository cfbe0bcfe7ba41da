//! One key, read for many times to live: how often it is loaded, and who waits.
//!
//! The cache and the flights are the library's. Where the library does not decide when to refresh, the reader does, as in the
//! articles, and all loads go through one flight.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use herdproof::{Cache, Env, Group, Sim, Tick, cache::Policy, env::Rng};
use parking_lot::Mutex;

pub(super) const TTL: Duration = Duration::from_secs(1);
/// How long a load takes, in the mean.
pub(super) const LOAD: Duration = Duration::from_millis(80);
const KEY: &str = "key";
/// Readers for each load time who come one by one. More come in groups, so that a run stays short.
const SINGLE: u32 = 1_000;

/// When an entry is refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// At its end, by whoever comes then.
    Never,
    /// When the dice of a reader say so: `XFetch` with beta 1.
    Dice,
    /// From an instant on that is drawn when it is stored, exponential with the load time for its mean: the dice of `XFetch`,
    /// thrown once.
    Exponential,
    /// As the library does.
    Library,
}

/// What happened until so many loads had ended.
pub(super) struct Seen {
    /// How often it was loaded in a time to live.
    pub(super) per_ttl: f64,
    /// How many of a hundred readers waited.
    pub(super) waited: f64,
}

/// What is kept: until when it is fresh, how long its load took, and when it is to be refreshed if that is drawn.
#[derive(Clone, Copy, Debug)]
struct Page {
    end: Tick,
    took: Duration,
    refresh_at: Tick,
}

#[derive(Clone)]
struct Reader {
    env: Env,
    rule: Rule,
    cache: Cache<&'static str, Page, &'static str>,
    flights: Group<&'static str, Page, &'static str>,
    /// How much longer or shorter than the mean a load may take.
    spread: Duration,
    rng: Arc<Rng>,
    /// When loads began.
    loads: Arc<Mutex<Vec<Tick>>>,
}

/// Readers of whom `n` come in a load time, until there have been so many loads after the first. A load takes as long as any other,
/// or up to `spread` more or less.
pub(super) fn watch(seed: u64, rule: Rule, n: u32, loads: usize, spread: Duration) -> Seen {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let policy = Policy::strict(TTL).early(rule == Rule::Library);
    let reader = Reader {
        rule,
        cache: Cache::builder(&env).policy(policy).build(),
        flights: Group::new(&env),
        spread,
        rng: Arc::new(env.rng("reader")),
        loads: Arc::default(),
        env,
    };
    reader.read();
    // Who comes while there is nothing at all waits under every rule.
    sim.run_until(Tick::ZERO + 2 * LOAD);
    let (group, arrivals) = (n.div_ceil(SINGLE), reader.env.rng("arrivals"));
    let gap = LOAD * group / n;
    let (mut now, mut waited, mut reads) = (Tick::ZERO + 2 * LOAD, 0, 0);
    while reader.loads.lock().len() <= loads {
        waited += (0..group).filter(|_| !reader.read()).count();
        reads += group;
        now = now + gap.mul_f64(-(1.0 - arrivals.unit()).ln());
        sim.run_until(now);
    }
    let began = reader.loads.lock();
    let (first, last) = (began[0], began[loads]);
    Seen {
        per_ttl: loads as f64 * TTL.as_secs_f64() / (last - first).as_secs_f64(),
        waited: 100.0 * waited as f64 / f64::from(reads),
    }
}

impl Reader {
    /// Whether there is something to read at once.
    fn read(&self) -> bool {
        let flight = || {
            let flight = self.flights.run(KEY, || self.load());
            async move { flight.await.map(|landed| landed.value).map_err(|_| "the origin is up") }
        };
        let got = pin!(self.cache.get(&KEY, flight)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(got)) = got else { return false };
        if self.is_due(got.value) {
            let (reader, flight) = (self.clone(), self.flights.run(KEY, || self.load()));
            let refresh = async move {
                if let Ok(landed) = flight.await
                    && landed.led
                {
                    reader.cache.set(KEY, landed.value);
                }
            };
            self.env.spawn(refresh).detach();
        }
        true
    }

    fn is_due(&self, page: Page) -> bool {
        let now = self.env.now();
        match self.rule {
            Rule::Never | Rule::Library => false,
            // `now - delta * beta * ln(rand()) >= expiry`, with rand in (0, 1].
            Rule::Dice => now + self.exponential(page.took) >= page.end,
            Rule::Exponential => now >= page.refresh_at,
        }
    }

    fn load(&self) -> impl Future<Output = Result<Page, &'static str>> + Send + use<> {
        let reader = self.clone();
        async move {
            let began = reader.env.now();
            reader.loads.lock().push(began);
            reader.env.sleep(reader.rng.between(LOAD.saturating_sub(reader.spread), LOAD + reader.spread)).await;
            let (now, took) = (reader.env.now(), reader.env.now() - began);
            let lead = reader.exponential(took);
            Ok(Page { end: now + TTL, took, refresh_at: now + TTL.saturating_sub(lead) })
        }
    }

    /// Exponential with this for its mean.
    fn exponential(&self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.rng.unit()).ln())
    }
}
