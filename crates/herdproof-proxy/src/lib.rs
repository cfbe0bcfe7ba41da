//! A caching, coalescing reverse proxy: no code changes behind it, and no herd reaches the service.
//!
//! Two modules decide, and are functions of headers, times and settings: no clock, no socket, no task.
//!
//! | module | decides |
//! |---|---|
//! | [`key`] | which requests ask for the same thing |
//! | [`policy`] | who may share an answer, how long it is fresh, and what may be done with it after that |

pub mod access;
pub mod admin;
mod body;
mod cache_status;
mod deliver;
mod failing;
mod fill;
mod head;
pub mod key;
mod learn;
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
mod stripes;
mod sync;
mod table;
pub mod trouble;
mod who;
mod widen;

pub use body::{Body, CutOff};
pub use listener::{Client, Listener, Server};
pub use serve::Proxy;
pub use settings::Settings;
