//! A caching, coalescing reverse proxy: no code changes behind it, and no herd reaches the service.
//!
//! Two modules decide, and are functions of headers, times and settings: no clock, no socket, no task.
//!
//! | module | decides |
//! |---|---|
//! | [`key`] | which requests ask for the same thing |
//! | [`policy`] | who may share an answer, how long it is fresh, and what may be done with it after that |

mod head;
pub mod key;
mod learn;
pub mod listener;
mod log;
pub mod metrics;
pub mod policy;
pub mod settings;
mod sync;

pub use listener::{Client, Listener, Server};
pub use settings::Settings;
