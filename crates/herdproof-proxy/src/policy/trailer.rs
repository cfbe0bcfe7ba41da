//! Fields after a body (RFC 9110 6.5), and which of them go on.
//!
//! A server that merges them into the head, as some do, takes them for what the head said: a client that writes `X-Forwarded-For`
//! or `Authorization` there says it where no proxy looked. So only such names go on as may stand in a head from that side, and that
//! say nothing about who asks, where a message ends, or what may be done with it. Names that were not announced in `Trailer` do not
//! go on at all: what is announced is known before the body, and so is bounded and looked at in one place.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::fields::list;

/// So many names, at most.
const MOST: usize = 32;

/// What a trailer may not say (RFC 9110 6.5.1): framing, routing, conditions, credentials, caching, and what the content is. Besides
/// what is about a connection.
const FORBIDDEN: [HeaderName; 37] = [
    header::AGE,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    super::cache_control::CDN_CACHE_CONTROL,
    super::hop::CDN_LOOP,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::ETAG,
    header::EXPECT,
    header::EXPIRES,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::MAX_FORWARDS,
    header::PRAGMA,
    header::RANGE,
    header::REFERER,
    header::RETRY_AFTER,
    header::SET_COOKIE,
    header::ORIGIN,
    header::VARY,
    super::hop::X_REQUEST_ID,
    header::VIA,
    header::WARNING,
    header::WWW_AUTHENTICATE,
    header::USER_AGENT,
    header::FROM,
    header::ACCEPT_ENCODING,
];

/// Whether a client takes trailers. Before what is about its connection is taken away.
pub fn are_wanted(headers: &HeaderMap) -> bool {
    let says = |name: &HeaderName, word: &[u8]| list(headers, name).any(|element| element.eq_ignore_ascii_case(word));
    says(&header::TE, b"trailers") && says(&header::CONNECTION, b"te")
}

/// The names that a head announces and that may go on, none of which `is_forged`. Before what is about the connection is taken away.
pub fn announced(headers: &HeaderMap, is_forged: impl Fn(&HeaderName) -> bool) -> Option<HeaderValue> {
    let mut names: Vec<HeaderName> = Vec::new();
    for name in list(headers, &header::TRAILER) {
        let Ok(name) = HeaderName::from_bytes(name) else { continue };
        let may = !FORBIDDEN.contains(&name) && !super::hop::is_of_connection(&name) && !is_forged(&name);
        if may && names.len() < MOST && !names.contains(&name) {
            names.push(name);
        }
    }
    let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
    (!names.is_empty()).then(|| HeaderValue::from_str(&names.join(", ")).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn trailers_are_wanted_by_who_says_so_for_this_connection() {
        for (te, connection, wanted) in [
            ("trailers", "te", true),
            ("deflate;q=0.5, Trailers", "keep-alive, TE", true),
            ("trailers", "keep-alive", false),
            ("gzip", "te", false),
        ] {
            assert_eq!(are_wanted(&headers(&[("te", te), ("connection", connection)])), wanted, "{te} {connection}");
        }
        assert!(!are_wanted(&headers(&[])));
    }

    #[test]
    fn what_a_head_alone_may_say_is_not_announced() {
        let forged = |name: &HeaderName| name.as_str().starts_with("x-forwarded-");
        let pass = |names: &str| announced(&headers(&[("trailer", names)]), forged);
        assert_eq!(pass("Server-Timing, content-digest,, server-timing").unwrap(), "server-timing, content-digest");
        assert_eq!(
            pass("Authorization, transfer-encoding, te, Content-Length, cookie, host, x-forwarded-for, a b"),
            None
        );
        assert_eq!(pass("set-cookie, a").unwrap(), "a");
        let many: Vec<String> = (0..100).map(|number| format!("x-{number}")).collect();
        assert_eq!(pass(&many.join(",")).unwrap().to_str().unwrap().split(',').count(), MOST);
        assert_eq!(announced(&headers(&[]), forged), None);
    }
}
