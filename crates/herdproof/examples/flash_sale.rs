//! A flash sale: everybody looks at one product in the same second. Its description may be old, its stock may not, and both
//! live in one cache.
//!
//! `cargo run -p herdproof --features sim --example flash_sale`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Cache, Env, Sim,
    cache::{AnyError, Policy},
};

const BUYERS: u32 = 20_000;
const SECOND: Duration = Duration::from_secs(1);
const SALE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Stock,
    Description,
}

/// What buyers saw of one of them.
#[derive(Default)]
struct Seen {
    queries: AtomicU32,
    stale: AtomicU32,
    oldest_ms: AtomicU32,
    longest_ms: AtomicU32,
}

async fn query(env: Env, seen: Arc<Seen>) -> Result<u32, AnyError> {
    seen.queries.fetch_add(1, Relaxed);
    env.sleep(Duration::from_millis(80)).await;
    Ok(1)
}

async fn look(env: Env, cache: Cache<Key, u32>, key: Key, seen: Arc<Seen>) {
    let asked = env.now();
    let Ok(got) = cache.get(&key, || query(env.clone(), Arc::clone(&seen))).await else { return };
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    seen.stale.fetch_add(u32::from(got.is_stale()), Relaxed);
    seen.oldest_ms.fetch_max(millis(got.age()), Relaxed);
    seen.longest_ms.fetch_max(millis(env.now() - asked), Relaxed);
}

fn main() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let cache: Cache<Key, u32> = Cache::builder(&env)
        .policy(Policy::new(SECOND).grace(60 * SECOND))
        .policies(|key| (*key == Key::Stock).then(|| Policy::strict(SECOND / 2)))
        .build();
    let [stock, description]: [Arc<Seen>; 2] = Default::default();
    let rng = env.rng("buyers");
    for _ in 0..BUYERS {
        let (buyer, cache, comes) = (env.clone(), cache.clone(), rng.between(Duration::ZERO, SALE));
        let (stock, description) = (Arc::clone(&stock), Arc::clone(&description));
        env.spawn(async move {
            buyer.sleep(comes).await;
            look(buyer.clone(), cache.clone(), Key::Description, description).await;
            look(buyer, cache, Key::Stock, stock).await;
        })
        .detach();
    }
    sim.run_until(env.now() + SALE + SECOND);
    println!("{BUYERS} buyers in {} s, a query takes 80 ms", SALE.as_secs());
    for (name, seen) in [("stock", stock), ("description", description)] {
        let Seen { queries, stale, oldest_ms, longest_ms } = &*seen;
        println!(
            "{name:>12}: {:>2} queries, {:>4} served stale, {:>4} ms old at most, {:>2} ms waited at most",
            queries.load(Relaxed),
            stale.load(Relaxed),
            oldest_ms.load(Relaxed),
            longest_ms.load(Relaxed),
        );
    }
}
