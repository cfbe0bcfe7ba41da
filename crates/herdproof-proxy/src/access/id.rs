//! By which a request is found in other logs and in traces.
//!
//! Both are read from what somebody sent, and written to logs: only what is known to be harmless is taken.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::policy::hop::X_REQUEST_ID;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longer ids are nobody's.
const LONGEST: usize = 128;

/// By which a request is found in the log of the origin, and of a proxy in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestId {
    /// Made here, at random.
    Made(u128),
    /// What a trusted proxy said in `X-Request-Id`.
    Given(HeaderValue),
}

/// The trace that a request belongs to, as its `traceparent` says (W3C Trace Context).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 32]);

impl RequestId {
    /// What a trusted proxy says, if that can be an id: one line of at most 128 letters, digits and `-_.~+/=:@`.
    pub(crate) fn given(headers: &HeaderMap) -> Option<RequestId> {
        let mut lines = headers.get_all(X_REQUEST_ID).iter();
        let value = lines.next().filter(|_| lines.next().is_none())?;
        let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~+/=:@".contains(byte);
        let fits = (1..=LONGEST).contains(&value.len()) && value.as_bytes().iter().all(is_fine);
        fits.then(|| RequestId::Given(value.clone()))
    }

    /// As it is sent on.
    pub(crate) fn value(&self) -> Option<HeaderValue> {
        match self {
            RequestId::Made(_) => HeaderValue::try_from(self.to_string()).ok(),
            RequestId::Given(value) => Some(value.clone()),
        }
    }
}

impl TraceId {
    /// Of a request's `traceparent`, if that is well formed.
    pub(crate) fn of(headers: &HeaderMap) -> Option<TraceId> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let value = lines.next().filter(|_| lines.next().is_none())?.as_bytes();
        let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
        let mut parts = value.split(|byte| *byte == b'-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // A later version may have more behind it.
        let is_whole = if version == b"00" { parts.next().is_none() } else { version != b"ff" };
        let sized = version.len() == 2 && parent.len() == 16 && flags.len() == 2;
        let fine = is_whole && sized && [version, trace, parent, flags].into_iter().all(is_hex);
        let trace = <[u8; 32]>::try_from(trace).ok()?;
        (fine && !is_zero(&trace) && !is_zero(parent)).then_some(TraceId(trace))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestId::Made(bits) => write!(f, "{bits:032x}"),
            RequestId::Given(value) => f.write_str(value.to_str().unwrap_or("-")),
        }
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.0).unwrap_or("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn an_id_that_could_be_more_than_an_id_is_not_taken() {
        let given = |values: &[&[u8]]| RequestId::given(&headers("x-request-id", values)).map(|id| id.to_string());
        for fine in ["a", "01J9-x_y.z~", "Root=1-67891233-abcdef", &"x".repeat(128)] {
            assert_eq!(given(&[fine.as_bytes()]).as_deref(), Some(fine));
        }
        for bad in [&b""[..], b"a b", b"a\"", b"a,b", b"a\\", b"\xff", b"a\tb", b"{}", "x".repeat(129).as_bytes()] {
            assert_eq!(given(&[bad]), None, "{bad:?}");
        }
        assert_eq!(given(&[b"a", b"b"]), None, "of two nobody knows which");
    }

    #[test]
    fn only_a_well_formed_traceparent_has_a_trace() {
        let (trace, rest) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7-01");
        let read = |value: &str| TraceId::of(&headers("traceparent", &[value.as_bytes()])).map(|id| id.to_string());
        assert_eq!(read(&format!("00-{trace}-{rest}")).as_deref(), Some(trace));
        assert_eq!(read(&format!("cc-{trace}-{rest}-what-comes-later")).as_deref(), Some(trace));
        for bad in [
            format!("00-{trace}-{rest}-more"),
            format!("ff-{trace}-{rest}"),
            format!("00-{}-{rest}", "0".repeat(32)),
            format!("00-{trace}-0000000000000000-01"),
            format!("00-{}-{rest}", trace.to_uppercase()),
            format!("00-{trace}0-{rest}"),
            format!("0-{trace}-{rest}"),
            format!("00-{trace}-00f067aa0ba902b7"),
            trace.to_owned(),
            String::new(),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
        let twice = format!("00-{trace}-{rest}");
        assert_eq!(TraceId::of(&headers("traceparent", &[twice.as_bytes(), twice.as_bytes()])), None);
    }
}
