//! What is new or cold gets its load little by little.
//!
//! A new instance has no connections, no caches and no compiled code; given its full share at once it fails, is taken out,
//! and comes back just as cold. A cache that was lost sends everything that it used to answer to what is behind it: at a hit
//! ratio of 99 % that is a hundred times the load. And readiness that is a step lets everybody who waited in at the same
//! instant. Each of these is a ramp here.
//!
//! | type | what is cold | what it does |
//! |---|---|---|
//! | [`SlowStart`] | endpoints of a pool | a weight that grows with age, and a limit for the group, should most of it be new |
//! | [`Opening`] | this instance | a gate that lets a growing share in, by chance or by caller |
//! | [`ColdCache`] | a cache | a gate that lets in as many as make no more misses than the origin can serve |
//!
//! ```
//! use std::time::Duration;
//! use herdproof::warm::SlowStart;
//!
//! let slow = SlowStart::default(); // 30 s
//! let secs = Duration::from_secs;
//! assert_eq!(slow.weight(secs(0)), 0.1);
//! assert_eq!(slow.weight(secs(15)), 0.5);
//! assert_eq!(slow.weight(secs(60)), 1.0);
//! // Weights are relative: if everybody is new they cancel out. So the group's limit is lowered too.
//! assert_eq!(slow.limit(100, [secs(15); 10]), 50);
//! ```

mod cold;
mod opening;
mod slow_start;

pub use cold::{ColdCache, Lookup, LookupPlace};
pub use opening::{Entered, Opening};
pub use slow_start::SlowStart;

#[cfg(test)]
mod tests;
