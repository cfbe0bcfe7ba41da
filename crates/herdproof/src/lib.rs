//! Keeps a crowd of identical requests from becoming a crowd at your origin.
//!
//! A thundering herd is not high traffic, it is *synchronized* traffic: a cache key expires, a lock is released, a server
//! restarts, a clock strikes :00, and everybody acts at once, then retries at once. This library holds the remedies, each
//! usable alone and all of them testable in virtual time.
//!
//! | module | what it is against |
//! |---|---|
//! | [`flight`] | everybody loading what is missing: one load per key |
//! | [`limit`] | more than the origin can take, at once or in a second |
//! | [`backoff`] | retries that march in step |
//! | [`gate`] | calls that should not be made now: one shape for everything that may say no |
//! | [`schedule`] | what everybody does at :00, at the deploy, at the expiry, at the broadcast |
//! | [`connect`] | connections lost together and dialled together |
//! | [`warm`] | what is new or cold getting all of its load at once |
//! | [`mod@env`] | timing that cannot be tested: time, chance and tasks through one door |
//! | [`env::sim`] | herds first seen in production: your service in virtual time (feature `sim`) |
//! | [`event`] | herds that nobody sees: what happened, under one set of names |
//! | [`histogram`] | guesses about how long things take |
//! | [`error`] | endings that cannot be told apart |
//!
//! ```
//! use std::time::Duration;
//! use herdproof::{Backoff, Env};
//!
//! async fn call_until_it_works(env: &Env, mut call: impl AsyncFnMut() -> Result<String, ()>) -> Option<String> {
//!     let rng = env.rng("retry/orders");
//!     let mut delays = Backoff::exponential(Duration::from_millis(50)).delays();
//!     for _attempt in 0..3 {
//!         if let Ok(answer) = call().await {
//!             return Some(answer);
//!         }
//!         env.sleep(delays.next(&rng)).await; // full jitter: nobody comes back in step
//!     }
//!     None
//! }
//! ```
//!
//! The library has no server, no Redis and no configuration files, prints nothing and reads no environment variables.

pub mod backoff;
pub mod connect;
pub mod env;
pub mod error;
pub mod event;
pub mod flight;
pub mod gate;
pub mod histogram;
mod keyed;
pub mod limit;
pub mod schedule;
mod sync;
pub mod warm;

pub use backoff::Backoff;
#[cfg(feature = "sim")]
pub use env::sim::Sim;
pub use env::{Env, Tick};
pub use flight::Group;

/// The guide's and the README's code, compiled and run as doc tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/guide/backoff.md")]
    mod backoff {}
    #[doc = include_str!("../../../docs/guide/connect.md")]
    mod connect {}
    #[doc = include_str!("../../../docs/guide/flight.md")]
    mod flight {}
    #[doc = include_str!("../../../docs/guide/gates.md")]
    mod gates {}
    #[doc = include_str!("../../../docs/guide/schedule.md")]
    mod schedule {}
    #[doc = include_str!("../../../docs/guide/limit.md")]
    mod limit {}
    #[doc = include_str!("../../../docs/guide/sim.md")]
    mod sim {}
    #[doc = include_str!("../../../docs/guide/warm.md")]
    mod warm {}
}
