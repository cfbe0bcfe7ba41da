//! A thousand callers want what nobody has loaded yet, then want it again when it has just expired.
//!
//! `cargo run -p herdproof --example cache_quickstart`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::{error::Error, io, time::Duration};

use herdproof::{Cache, Env, cache::Policy};

/// What takes long: a query, a remote call, a page to be rendered.
async fn render(env: Env) -> io::Result<String> {
    env.sleep(Duration::from_millis(50)).await;
    Ok("<h1>front page</h1>".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let env = Env::system();
    // Fresh for a fifth of a second; then served stale for up to a minute while one caller's load brings it up to date.
    let policy = Policy::new(Duration::from_millis(200)).grace(Duration::from_secs(60));
    let pages: Cache<String, String, io::Error> = Cache::builder(&env).policy(policy).build();

    for round in ["cold", "fresh", "expired"] {
        let crowd: Vec<_> = (0..1_000).map(|_| pages.get("/", || render(env.clone()))).collect();
        let (begun, mut stale) = (env.now(), 0);
        for caller in crowd {
            stale += u32::from(caller.await?.is_stale());
        }
        let waited = env.now() - begun;
        println!("{round:>7}: 1000 callers, waited {:>2} ms, {stale} served stale", waited.as_millis());
        if round == "fresh" {
            env.sleep(Duration::from_millis(250)).await;
        }
    }
    env.sleep(Duration::from_millis(100)).await;
    println!("{} loads for 3000 callers", pages.stats().loads);
    Ok(())
}
