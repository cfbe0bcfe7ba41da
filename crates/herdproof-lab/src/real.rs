//! The same herd on real sockets: what the lab models, on this machine's loopback.
//!
//! A simulated herd has to be believed twice: that the remedy works, and that the model is right. Here nothing is modelled
//! but the origin's slowness: a [`FragileOrigin`] listens on 127.0.0.1, a [`Herd`] of clients connects to it, and an
//! [`Edge`] may stand in between, which is the proxy itself ([`Proxy`](herdproof_proxy::Proxy)). Time is the
//! wall clock, so no two runs are alike to the millisecond; what is counted is.
//!
//! Everything runs in this process, and ends when its guard is dropped.

mod client;
mod edge;
mod limits;
mod origin;
mod server;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use herdproof::{Env, Tick};

pub use client::{Answer, Answers, Failed, Herd};
pub use edge::Edge;
pub use limits::clients_that_fit;
pub use origin::FragileOrigin;

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
