//! A caching, coalescing reverse proxy: no code changes behind it, and no herd reaches the service.
//!
//! Some modules decide, and are functions of headers, times and settings: no clock, no socket, no task. They are public, so
//! that the lab can run them in virtual time against whoever tries to turn them against other users.
//!
//! | module | decides |
//! |---|---|
//! | [`key`] | which requests ask for the same thing |
//! | [`policy`] | who may share an answer, how long it is fresh, and what may be done with it after that |
//! | [`failing`] | whose failure a failure is, and when a URL that fails is asked for again |
//! | [`learn`] | which keys and routes turned out to be private |
//!
//! One waits, in whatever time its environment has: [`widen`], where requests for what may be private go to the origin a few
//! at a time.

pub mod access;
pub mod admin;
mod body;
mod cache_status;
mod compress;
mod deliver;
pub mod detail;
pub mod failing;
mod fill;
mod head;
pub mod key;
pub mod learn;
pub mod listener;
mod log;
mod memory;
pub mod metrics;
mod object;
pub mod origin;
pub mod policy;
mod routes;
mod serve;
pub mod settings;
mod store;
mod stream;
mod stripes;
mod sync;
mod table;
pub mod trouble;
mod who;
pub mod widen;

pub use body::{Body, CutOff};
pub use detail::Detail;
pub use listener::{Client, Listener, Server};
pub use serve::Proxy;
pub use settings::Settings;
