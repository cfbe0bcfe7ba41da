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
mod fill;
mod head;
pub mod key;
mod learn;
pub mod listener;
mod log;
pub mod metrics;
mod object;
pub mod origin;
pub mod policy;
mod serve;
pub mod settings;
mod store;
mod stripes;
mod sync;

pub use body::{Body, CutOff};
pub use listener::{Client, Listener, Server};
pub use serve::Proxy;
pub use settings::Settings;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use herdproof::{Env, Tick};

/// What the future gives, or nothing if the deadline comes first.
async fn by<F: Future>(env: &Env, deadline: Tick, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut late = pin!(env.sleep_until(deadline));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => late.as_mut().poll(cx).map(|_| None),
    })
    .await
}
