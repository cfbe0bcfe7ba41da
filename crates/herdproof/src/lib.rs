//! Keeps a crowd of identical requests from becoming a crowd at your origin.
//!
//! A thundering herd is not high traffic, it is *synchronized* traffic: a cache key expires, a lock is released, a server
//! restarts, a clock strikes :00, and everybody acts at once, then retries at once. This library holds the remedies, each
//! usable alone and all of them testable in virtual time.
//!
//! | module | what it is against |
//! |---|---|
//! | [`shield`] | policies in the wrong order: all of a client's in the right one, behind one call |
//! | [`cache`] | entries that expire while everybody wants them |
//! | [`early`] | readers who wait when an entry ends: when to refresh it before that |
//! | [`tier`] | every process of a fleet loading what one of them has, or is loading |
//! | [`flight`] | everybody loading what is missing: one load per key |
//! | [`retry`], [`budget`] | retries that multiply the load when the origin can bear least |
//! | [`backoff`] | retries that march in step |
//! | [`hedge`] | the slow one in twenty: a second attempt beside it, unless that would make all of them slow |
//! | [`breaker`] | calls to an origin that is down, and everybody coming back at once when it is up again |
//! | [`throttle`] | asking an origin that refuses most of what it is asked |
//! | [`limit`] | more than the origin can take, at once or in a second |
//! | [`shed`] | lines in which everybody waits too long: shedding, priorities, appointments |
//! | [`schedule`] | what everybody does at :00, at the deploy, at the expiry, at the broadcast |
//! | [`connect`] | connections lost together and dialled together |
//! | [`warm`] | what is new or cold getting all of its load at once |
//! | [`gate`] | calls that should not be made now: one shape for everything that may say no |
//! | `layer` | the same as tower layers (feature `tower`) |
//! | `http` | retries that cannot see what HTTP says about them (feature `http`) |
//! | [`mod@env`] | timing that cannot be tested: time, chance and tasks through one door |
//! | [`env::sim`] | herds first seen in production: your service in virtual time (feature `sim`) |
//! | [`event`] | herds that nobody sees: what happened, under one set of names |
//! | [`histogram`] | guesses about how long things take |
//! | [`error`] | endings that cannot be told apart |
//!
//! One load for everybody who needs it, and that one behind all that keeps an origin up:
//!
//! ```
//! use herdproof::{Env, Group, Shield, gate::{Ask, result}, retry::GaveUp};
//! # use std::io::Error;
//! # async fn query(_: Ask) -> Result<u64, Error> { Ok(17) }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let group: Group<&str, u64, GaveUp<Error>> = Group::new(&env);
//! let database = Shield::for_database(&env).build();
//! let ask = Ask::new(&env);
//! let odds = group.run("odds/42", || async move { database.run(result, ask, |ask, _| query(ask)).await }).await;
//! assert_eq!(odds.unwrap().value, 17);
//! # });
//! ```
//!
//! The library has no server, no Redis and no configuration files, prints nothing and reads no environment variables.

pub mod backoff;
mod bravo;
pub mod breaker;
pub mod budget;
pub mod cache;
pub mod connect;
pub mod early;
pub mod env;
pub mod error;
pub mod event;
pub mod flight;
pub mod gate;
pub mod hedge;
pub mod histogram;
#[cfg(feature = "http")]
pub mod http;
mod inflight;
mod join;
mod keyed;
#[cfg(feature = "tower")]
pub mod layer;
pub mod limit;
pub mod retry;
pub mod schedule;
pub mod shed;
pub mod shield;
mod striped;
mod sync;
pub mod throttle;
pub mod tier;
pub mod timeout;
pub mod warm;
mod window;

pub use backoff::Backoff;
pub use breaker::Breaker;
pub use cache::Cache;
#[cfg(feature = "sim")]
pub use env::sim::Sim;
pub use env::{Env, Tick};
pub use flight::Group;
pub use retry::Retry;
pub use shield::Shield;
pub use throttle::Throttle;

/// The guide's and the README's code, compiled and run as doc tests.
#[cfg(doctest)]
mod guide {
    macro_rules! pages {
        ($($page:ident)*) => {$(
            #[doc = include_str!(concat!("../../../docs/guide/", stringify!($page), ".md"))]
            mod $page {}
        )*};
    }

    #[doc = include_str!("../../../README.md")]
    mod readme {}

    pages! {
        appointments backoff breaker cache connect flight gates hedge limit retry schedule shed shield sim throttle
        tier warm
    }
}
