//! What can be set about the way to the origin.

use std::time::Duration;

/// The service behind the proxy, and how it is dealt with.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginSettings {
    /// Such as `http://127.0.0.1:3000`.
    pub url: String,
    /// Requests at a time, to begin with and at most: it adapts from there.
    pub limit: u32,
    /// How many requests may wait for a seat.
    pub line: u32,
    /// How long a request waits for a seat.
    pub queue_wait: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long the origin may take to begin its answer.
    pub head_timeout: Duration,
    /// How long a body may go without a byte.
    pub body_timeout: Duration,
    /// How often a request that may be repeated is made at most.
    pub attempts: u16,
    /// When a second attempt is raced against a slow first; never, if there is none.
    pub hedge_after: Option<Duration>,
    /// Idle connections that are kept.
    pub max_idle: u32,
    /// How old a connection gets, about.
    pub max_age: Duration,
    /// How often the origin's name is looked up anew, about.
    pub resolve_every: Duration,
}

impl Default for OriginSettings {
    fn default() -> OriginSettings {
        OriginSettings {
            url: "http://127.0.0.1:3000".to_owned(),
            limit: 256,
            line: 10_000,
            queue_wait: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            attempts: 3,
            hedge_after: Some(Duration::from_secs(1)),
            max_idle: 256,
            max_age: Duration::from_secs(300),
            resolve_every: Duration::from_secs(30),
        }
    }
}
