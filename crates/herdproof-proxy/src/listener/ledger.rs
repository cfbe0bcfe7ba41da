//! What never became a request, for who writes requests down.
//!
//! Hyper answers a head that it cannot read by itself, and a client whose head does not come is ended without an answer. Both are what
//! an operator looks for when a client says that it gets 400, and no line of the log has it.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

/// Why there was no request to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The head is no HTTP/1: 400.
    Unreadable,
    /// The head is too large: 431.
    HeadTooLarge,
    /// The target is too long: 414.
    UriTooLong,
    /// The head has begun and did not come in time: ended without an answer.
    SlowHead,
}

/// Who writes requests down.
pub(crate) trait Ledger: Send + Sync {
    /// This client sent no request, and that took so long.
    fn unanswered(&self, client: SocketAddr, what: Unanswered, took: Duration);
}

/// A listener's, if it has one.
#[derive(Clone, Default)]
pub(super) struct Book(pub(super) Option<Arc<dyn Ledger>>);

impl Unanswered {
    /// Of an error that ended a connection.
    pub(super) fn of(error: &hyper::Error) -> Option<Unanswered> {
        if !error.is_parse() {
            return None;
        }
        Some(match error.is_parse_too_large() {
            // Hyper has no other way to tell.
            true if error.to_string().contains("URI") => Unanswered::UriTooLong,
            true => Unanswered::HeadTooLarge,
            false => Unanswered::Unreadable,
        })
    }
}

impl Book {
    pub(super) fn unanswered(&self, client: SocketAddr, what: Unanswered, took: Duration) {
        if let Some(ledger) = &self.0 {
            ledger.unanswered(client, what, took);
        }
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Book").field(&self.0.is_some()).finish()
    }
}
