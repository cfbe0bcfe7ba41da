//! Making connections without making them all at once.
//!
//! A load balancer restarts, and a hundred thousand idle connections are gone in the same instant. Nobody did anything, and
//! now everybody dials. The accept queue overflows, those who were dropped dial again, handshakes are made for clients
//! that have given up, and what was a restart of a second is an outage of minutes. A pool that was filled in one go expires
//! in one go and does the same to its database every half hour.
//!
//! | type | whose it is | what it does |
//! |---|---|---|
//! | [`Reconnect`] | the client's | waits before it dials again: spread after a loss, longer after failures, patient with a connection that flaps |
//! | [`ConnectGate`] | a pool's, for each target | so many dials under way, so many a second |
//! | [`ConnectGate`] | an acceptor's | so many handshakes under way, so many a second; the others stay in the kernel's queue |
//! | [`MaxAge`] | either's | connections end one by one, not all when the oldest does |
//!
//! ```
//! use std::time::Duration;
//! use herdproof::connect::Reconnect;
//!
//! // 100,000 clients of a front end that can make 5,000 handshakes a second: spread over 20 s.
//! let reconnect = Reconnect::new().crowd(100_000, 5_000.0);
//! assert_eq!(reconnect.after_loss(), Duration::ZERO..=Duration::from_secs(20));
//! ```

mod age;
mod gate;
mod reconnect;

pub use age::{Lifetime, MaxAge};
pub use gate::{ConnectGate, ConnectGateBuilder, ConnectPlace, Connecting};
pub use reconnect::{Failed, GaveUp, Reconnect};

#[cfg(test)]
mod tests;
