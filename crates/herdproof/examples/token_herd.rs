//! A thousand instances deployed together refresh their tokens together, and what jitter does about it.
//!
//! `cargo run --release -p herdproof --features sim --example token_herd`

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use herdproof::{Env, Sim};

const INSTANCES: u64 = 1_000;
const LIFETIME: Duration = Duration::from_secs(3600);

/// The service's own code: nothing in it knows whether time is real.
async fn keep_token_fresh(env: Env, jitter: bool, refreshes: u32, mut refresh: impl FnMut()) {
    let rng = env.rng("token");
    for _ in 0..refreshes {
        let wait = if jitter { rng.between(LIFETIME / 2, LIFETIME * 9 / 10) } else { LIFETIME * 9 / 10 };
        env.sleep(wait).await;
        refresh();
    }
}

/// The most refreshes that the token server gets within one second, over three rounds.
fn peak_per_second(seed: u64, jitter: bool) -> u32 {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let per_second: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
    for instance in 0..INSTANCES {
        let (clock, seen) = (env.clone(), Arc::clone(&per_second));
        let refresh = move || {
            let second = clock.now().as_nanos() / 1_000_000_000;
            *seen.lock().expect("nobody panics with it").entry(second).or_default() += 1;
        };
        env.spawn(keep_token_fresh(env.scope(instance), jitter, 3, refresh)).detach();
    }
    sim.finish().expect("every instance ends");
    let per_second = per_second.lock().expect("nobody panics with it");
    per_second.values().copied().max().unwrap_or(0)
}

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() {
    println!("{INSTANCES} instances, a token that lives one hour, three refreshes each: most refreshes in one second");
    println!("  at 90 % of its life     {:>5}", peak_per_second(1, false));
    println!("  at 50 % to 90 % of it   {:>5}", peak_per_second(1, true));
}
