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

pub use client::{Answer, Answers, Failed, Herd};
pub use edge::Edge;
pub use limits::clients_that_fit;
pub use origin::FragileOrigin;
