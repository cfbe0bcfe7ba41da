//! What was done with a request, as metrics, the access log and `Cache-Status` (RFC 9211) say it.

use std::fmt::Write;

use http::{HeaderValue, StatusCode};

/// What was done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered from memory, fresh.
    Hit,
    /// Answered from memory, stale, as allowed.
    Stale,
    /// Fetched from the origin for it, and perhaps for others.
    Miss,
    /// Fetched from the origin for another, and shared.
    Joined,
    /// The origin said that what is kept is still right.
    Revalidated,
    /// By itself to the origin.
    Pass,
    /// The origin failed or is known to, and there was nothing to serve instead.
    Failed,
    /// Refused by our own admission, or the wait was too long.
    Shed,
    /// Not a request that we can answer.
    Bad,
}

impl Outcome {
    /// Every outcome there is.
    pub const ALL: [Outcome; 9] = [
        Outcome::Hit,
        Outcome::Stale,
        Outcome::Miss,
        Outcome::Joined,
        Outcome::Revalidated,
        Outcome::Pass,
        Outcome::Failed,
        Outcome::Shed,
        Outcome::Bad,
    ];

    /// As metrics and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Hit => "hit",
            Outcome::Stale => "stale",
            Outcome::Miss => "miss",
            Outcome::Joined => "joined",
            Outcome::Revalidated => "revalidated",
            Outcome::Pass => "pass",
            Outcome::Failed => "failed",
            Outcome::Shed => "shed",
            Outcome::Bad => "bad",
        }
    }
}

/// The plain hit's, which costs nothing.
pub(crate) const HIT: HeaderValue = HeaderValue::from_static("herdproof; hit");

/// `Cache-Status` of anything else. `detail` is a word of ours.
pub(crate) fn cache_status(
    outcome: Outcome,
    detail: &'static str,
    origin: Option<StatusCode>,
    stored: bool,
) -> HeaderValue {
    let mut text = String::from(match outcome {
        Outcome::Hit | Outcome::Stale => "herdproof; hit",
        Outcome::Miss | Outcome::Failed | Outcome::Shed => "herdproof; fwd=miss",
        Outcome::Joined => "herdproof; fwd=miss; collapsed",
        Outcome::Revalidated => "herdproof; fwd=stale",
        Outcome::Pass => "herdproof; fwd=bypass",
        Outcome::Bad => "herdproof; fwd=request",
    });
    if let Some(status) = origin {
        // To a String it always works.
        write!(text, "; fwd-status={}", status.as_u16()).ok();
    }
    if stored {
        text.push_str("; stored");
    }
    if !detail.is_empty() {
        write!(text, "; detail={detail}").ok();
    }
    HeaderValue::try_from(text).unwrap_or(HIT)
}
