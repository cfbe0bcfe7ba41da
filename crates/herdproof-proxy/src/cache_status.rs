//! `Cache-Status` (RFC 9211): what was done with a request, told to whoever looks at the response.

use std::fmt::Write;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::{access::Outcome, detail::Detail};

/// The name of the field.
pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// What went wrong between us and the origin (RFC 9209).
pub(crate) const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// The plain hit's, which costs nothing.
pub(crate) const HIT: HeaderValue = HeaderValue::from_static("herdproof; hit");

/// `Proxy-Status` of a response of our own, with one of the error types of RFC 9209.
pub(crate) fn proxy_status(error: Detail) -> HeaderValue {
    HeaderValue::try_from(format!("herdproof; error={}", error.name())).unwrap_or(HeaderValue::from_static("herdproof"))
}

/// `Cache-Status` of anything else.
pub(crate) fn cache_status(outcome: Outcome, detail: Detail, origin: Option<StatusCode>, stored: bool) -> HeaderValue {
    let mut text = String::from(match outcome {
        Outcome::Hit | Outcome::Stale => "herdproof; hit",
        Outcome::Miss | Outcome::Failed | Outcome::Shed => "herdproof; fwd=miss",
        Outcome::Joined => "herdproof; fwd=miss; collapsed",
        Outcome::Revalidated => "herdproof; fwd=stale",
        Outcome::Pass => "herdproof; fwd=bypass",
        Outcome::Bad | Outcome::Left => "herdproof; fwd=request",
    });
    if let Some(status) = origin {
        // To a String it always works.
        write!(text, "; fwd-status={}", status.as_u16()).ok();
    }
    if stored {
        text.push_str("; stored");
    }
    if detail != Detail::None {
        write!(text, "; detail={}", detail.name()).ok();
    }
    HeaderValue::try_from(text).unwrap_or(HIT)
}
