//! What is written down of each request.
//!
//! Herds are found in logs, if the logs can show them: when a request came, to the microsecond, and what became of it. A log
//! that is written on the way of the request slows all of them down whenever the disk does. So requests leave a [`Record`]
//! in the memory of the thread they are on, and a thread of the log's own writes them; if it cannot keep up, lines
//! are dropped and counted, and nobody waits.
//!
//! ```
//! use std::time::Duration;
//! use herdproof_proxy::{Detail, access::{Outcome, Record}, metrics::Metrics};
//! use herdproof::Tick;
//! use http::{Method, StatusCode};
//!
//! let record = Record {
//!     arrived: Tick::ZERO,
//!     client: "192.0.2.7:50000".parse()?,
//!     method: Some(Method::GET),
//!     status: StatusCode::OK,
//!     bytes: 17,
//!     complete: true,
//!     outcome: Outcome::Joined,
//!     reason: Detail::None,
//!     waited: Duration::from_millis(80),
//!     origin: Some(Duration::from_millis(79)),
//!     first: Duration::from_millis(81),
//!     took: Duration::from_millis(81),
//!     key: 0x1234,
//!     text: None,
//! };
//! let metrics = Metrics::default();
//! metrics.count(&record);
//! assert!(metrics.page().text().contains("herdproof_requests_total{outcome=\"joined\"} 1\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod id;
mod line;
#[cfg(test)]
mod tests;
mod writer;

use std::{net::SocketAddr, time::Duration};

use herdproof::Tick;
use http::{HeaderValue, Method, StatusCode, Version, uri::PathAndQuery};

use crate::{detail::Detail, key::Scheme};
pub use id::{RequestId, TraceId};
pub use line::iso;
pub use writer::{AccessLog, CannotOpen};

/// One request, when it is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When its head was there.
    pub arrived: Tick,
    /// Who asked; port 0 if a trusted proxy named it without one.
    pub client: SocketAddr,
    /// What for; none if its head could not be read.
    pub method: Option<Method>,
    /// What it got; 499 if the client left before that, as no client hears it.
    pub status: StatusCode,
    /// How many bytes of a body it was given.
    pub bytes: u64,
    /// Whether all of the answer was given to its connection, rather than cut off by the client or the origin.
    pub complete: bool,
    /// Where that came from.
    pub outcome: Outcome,
    /// Why, where there is more to say.
    pub reason: Detail,
    /// How long it waited for a response that another request was fetching.
    pub waited: Duration,
    /// How long the origin took to begin the answer that this one was made of, or to fail; none if it was not asked for it.
    pub origin: Option<Duration>,
    /// How long it took until the head of the answer was ready.
    pub first: Duration,
    /// How long it took until the last byte was given, or the client had left.
    pub took: Duration,
    /// The hash of its key, by which requests for the same thing are found; 0 if it has none.
    pub key: u64,
    /// What only a line of the log says, if one is written.
    pub text: Option<Box<Text>>,
}

/// What only a line of the log says of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// Path and query; none for a target without a path, or a head that could not be read.
    pub target: Option<PathAndQuery>,
    /// The host that it asked for, as it was sent.
    pub host: Option<HeaderValue>,
    /// The scheme that the client used.
    pub scheme: Option<Scheme>,
    /// The version of HTTP; none if its head could not be read.
    pub version: Option<Version>,
    /// By which it is found in the log of the origin and of a proxy in front.
    pub id: Option<RequestId>,
    /// By which it is found in traces.
    pub trace: Option<TraceId>,
    /// The `Referer`.
    pub referer: Option<HeaderValue>,
    /// The `User-Agent`.
    pub agent: Option<HeaderValue>,
}

macro_rules! outcomes {
    ($($variant:ident $name:literal $help:literal)*) => {
        /// Where an answer came from.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Outcome {
            $(#[doc = $help] $variant,)*
        }

        impl Outcome {
            /// Every one there is.
            pub const ALL: &'static [Outcome] = &[$(Outcome::$variant),*];

            /// What it is called in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Outcome::$variant => $name,)* }
            }

            /// What it means.
            pub const fn help(self) -> &'static str {
                match self { $(Outcome::$variant => $help,)* }
            }
        }
    };
}

outcomes! {
    Hit    "hit"    "From memory, fresh."
    Stale  "stale"  "From memory, after its time."
    Miss   "miss"   "From the origin, and this request was the first to ask."
    Joined "joined" "From the origin, by a fill that another request had begun."
    Revalidated "revalidated" "From memory, after the origin had said that it is still right."
    Pass   "pass"   "From the origin, for this client alone."
    Failed "failed" "The origin did not answer, or with a failure."
    Shed   "shed"   "Refused here, so that the origin is not asked too much."
    Bad    "bad"    "Not a request that can be passed on."
    Left   "left"   "The client left before its answer began; its status is 499, which nobody hears."
}
