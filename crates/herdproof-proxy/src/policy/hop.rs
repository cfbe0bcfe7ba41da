//! What belongs to one connection, and what a proxy may not let through unseen.
//!
//! Three dangers. A field that was about the connection to the origin is stored and given to everybody. A client names a field in
//! `Connection` to have it taken away before the rules see it: so [`classify`](super::classify) and [`judge`](super::judge) look
//! first, and [`strip`] comes after. And a field that is not in the key, but that the origin believes (`X-Forwarded-Host`),
//! chooses what everybody gets under that key: so [`forward`] overwrites what it vouches for and takes away the rest.

use std::{iter, net::IpAddr, time::SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    fields::{Elements, list},
    identity::{Identity, is_address, is_known},
};
use crate::key::Scheme;

/// Which proxies a request has been through (RFC 8586).
pub const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// About the connection, whether or not `Connection` says so.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("proxy-connection"),
];

/// For all along the way, so that nobody may name them in `Connection` (RFC 9110 7.6.1). Who does is not heard: the next cache has
/// to see them too.
const FOR_ALL_HOPS: [HeaderName; 17] = [
    header::AGE,
    header::CACHE_CONTROL,
    super::cache_control::CDN_CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::DATE,
    header::ETAG,
    header::EXPIRES,
    // Who named these would take from us what a trusted proxy says of the client.
    header::FORWARDED,
    header::HOST,
    header::SET_COOKIE,
    header::VARY,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
];

/// What origins have been seen to believe, and what is not in the key; with all that begins with [`FORWARDED_AS`].
const BELIEVED: [&str; 11] = [
    "forwarded",
    "front-end-https",
    "x-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-url",
    "x-rewrite-url",
    "x-url-scheme",
];

/// How the fields begin that say what a request was before a proxy had it. There are more of them than anybody has listed.
const FORWARDED_AS: &str = "x-forwarded-";

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// By which a request is found in the logs of all that it goes through.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether the body of a request is coded in another way than in chunks. Hyper decodes only those, and the field goes no further: the
/// origin would take what is left for the body itself.
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some()
}

/// Takes away what is about the connection and what `Connection` names. For requests and responses, and before storing.
pub fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = list(headers, &header::CONNECTION)
            .filter_map(|name| HeaderName::from_bytes(name).ok())
            .filter(|name| !FOR_ALL_HOPS.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether `Connection` names more than how long the connection is to last.
#[inline]
pub fn names_more(headers: &HeaderMap) -> bool {
    let is_plain = |line: &[u8]| line.eq_ignore_ascii_case(b"keep-alive") || line.eq_ignore_ascii_case(b"close");
    headers.get_all(header::CONNECTION).into_iter().any(|line| !is_plain(line.as_bytes()))
}

/// Makes the head of a response one to keep: what is about the connection goes, `Age` goes because [`Life`](super::Life) has it,
/// the length goes because the body has it, and the date it came is its `Date` if it has none. After [`judge`](super::judge).
pub fn keep(headers: &mut HeaderMap, wall: SystemTime) {
    strip(headers);
    headers.remove(header::AGE);
    headers.remove(header::CONTENT_LENGTH);
    super::condition::date(headers, wall);
}

/// Whether the length of a body is stated in two ways, or not in a number. Where that is so, two readers may disagree on where the
/// next message begins: such a message is refused, its connection closed, and nothing of it stored.
pub fn is_framed_twice(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).into_iter();
    let Some(first) = lengths.next() else { return false };
    let is_number = !first.is_empty() && first.as_bytes().iter().all(u8::is_ascii_digit);
    !is_number || lengths.any(|other| other != first) || headers.contains_key(header::TRANSFER_ENCODING)
}

/// Whom a request came from, and through whom it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Forwarder<'a> {
    /// The client; none if the proxy asks for itself.
    pub client: Option<IpAddr>,
    /// The trusted proxies that it came through, the nearest first; see [`path`](super::client::path).
    pub through: &'a [IpAddr],
    /// Whether the peer is trusted to say who the user is.
    pub trusted: bool,
    /// The fields in which that is said.
    pub identity: &'a Identity,
    /// How it reached us, or a proxy in front that we trust.
    pub scheme: Scheme,
    /// Whom it asked for.
    pub authority: &'a str,
    /// What this proxy calls itself: a token, another one for each proxy that a request may go through in turn.
    pub name: &'a str,
}

/// How a client reached a proxy in front, as that says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fronted<'a> {
    /// Over what.
    pub scheme: Option<Scheme>,
    /// Whom it asked for.
    pub host: Option<&'a str>,
}

/// What a proxy in front says of its client. Only for one that is trusted to say it itself: others hand on what they were told.
pub fn fronted(headers: &HeaderMap) -> Fronted<'_> {
    let scheme = only(headers, &X_FORWARDED_PROTO).and_then(|word| {
        [Scheme::Http, Scheme::Https].into_iter().find(|scheme| word.eq_ignore_ascii_case(scheme.as_str()))
    });
    Fronted { scheme, host: only(headers, &X_FORWARDED_HOST) }
}

/// The one word of a field. Of several, nobody knows which is whose.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).into_iter();
    let word = lines.next()?.to_str().ok()?.trim_ascii();
    (lines.next().is_none() && !word.contains(',')).then_some(word)
}

/// Says to the origin who asks, and takes away what others may have said about that. After [`strip`].
///
/// Of `X-Forwarded-For` only the part goes on that trusted proxies wrote: many a service takes the leftmost address for the
/// client's, and there a client can write what it likes.
pub fn forward(headers: &mut HeaderMap, by: &Forwarder<'_>) {
    let forged: Vec<HeaderName> = headers.keys().filter(|name| is_forged(name.as_str(), by)).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    if let Some(client) = by.client {
        let path: Vec<String> = iter::once(&client).chain(by.through.iter().rev()).map(IpAddr::to_string).collect();
        set(headers, X_FORWARDED_FOR, &path.join(", "));
        set(headers, X_REAL_IP, &client.to_string());
    }
    set(headers, X_FORWARDED_HOST, by.authority);
    set(headers, X_FORWARDED_PROTO, by.scheme.as_str());
    append(headers, &CDN_LOOP, by.name);
    append(headers, &header::VIA, &format!("1.1 {}", by.name));
}

/// Whether it is in this field that the origin is told which client or which user asks; see [`forward`]. A response that varies on
/// one of them is for one request: the origin may have seen another value than the request came with, or none.
pub fn says_who(name: &HeaderName) -> bool {
    *name == X_FORWARDED_FOR || *name == X_REAL_IP || *name == X_REQUEST_ID || is_known(name.as_str())
}

/// Whether a field does not go on: nobody but a proxy says such a thing, or nobody but a trusted one. Gateways that make variables of
/// fields (CGI, WSGI) take `_` for `-`, so what is spelt with it is another field here and the same field there.
fn is_forged(name: &str, by: &Forwarder<'_>) -> bool {
    if by.identity.is(name) {
        return !by.trusted;
    }
    let is_ours = |name: &str| {
        let ours =
            [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REAL_IP, X_REQUEST_ID, CDN_LOOP, header::VIA];
        ours.iter().any(|ours| ours == name)
    };
    let is_believed =
        |name: &str| BELIEVED.contains(&name) || is_address(name) || name.starts_with(FORWARDED_AS) && !is_ours(name);
    if !name.contains('_') {
        return is_believed(name) || by.identity.resembles(name);
    }
    let spelt = name.replace('_', "-");
    is_believed(&spelt)
        || is_ours(&spelt)
        || by.identity.resembles(&spelt)
        || HOP_BY_HOP.iter().any(|hop| *hop == *spelt)
}

/// Whether a field is about the connection that it came over.
pub(super) fn is_of_connection(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether what this field says is believed if a proxy says it, about the client or the user; and so if it only looks as if one did.
pub(crate) fn is_for_proxies(name: &HeaderName, identity: &Identity) -> bool {
    let name = name.as_str();
    name.contains('_')
        || X_REAL_IP == *name
        || name.starts_with(FORWARDED_AS)
        || BELIEVED.contains(&name)
        || is_address(name)
        || identity.is(name)
        || identity.resembles(name)
}

/// Whether a request has been here before: it would come again, and again.
pub fn loops(headers: &HeaderMap, name: &str) -> bool {
    let is_name = |text: &[u8]| text.eq_ignore_ascii_case(name.as_bytes());
    let in_loop = list(headers, &CDN_LOOP)
        .any(|element| element.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().is_some_and(is_name));
    let by = |element: &[u8]| {
        element.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty()).nth(1).is_some_and(is_name)
    };
    in_loop || list(headers, &header::VIA).any(by)
}

/// At the end of a list, in one line.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: &str) {
    let mut all = Vec::new();
    for line in headers.get_all(name) {
        for element in Elements::of(line.as_bytes()) {
            all.extend_from_slice(element);
            all.extend_from_slice(b", ");
        }
    }
    all.extend_from_slice(element.as_bytes());
    match HeaderValue::from_bytes(&all) {
        Ok(value) => headers.insert(name.clone(), value),
        Err(_) => headers.remove(name),
    };
}

/// Instead of whatever was there.
fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => headers.insert(name, value),
        Err(_) => headers.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Route, Way, classify};
    use http::Method;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// For a stranger.
    fn forwarder() -> Forwarder<'static> {
        static KNOWN: LazyLock<Identity> = LazyLock::new(Identity::default);
        Forwarder {
            client: Some([10, 0, 0, 7].into()),
            through: &[],
            trusted: false,
            identity: &KNOWN,
            scheme: Scheme::Https,
            authority: "a.example",
            name: "edge-1",
        }
    }

    #[test]
    fn what_is_about_the_connection_goes_no_further() {
        let mut message = headers(&[
            ("connection", "a, B"),
            ("connection", "keep-alive,,c"),
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", "4"),
        ]);
        for name in HOP_BY_HOP {
            message.append(name, HeaderValue::from_static("close"));
        }
        strip(&mut message);
        assert_eq!(message, headers(&[("d", "4")]));
    }

    #[test]
    fn only_what_names_a_field_names_more() {
        for (lines, more) in [
            (&[][..], false),
            (&["keep-alive"], false),
            (&["Close"], false),
            (&["keep-alive", "close"], false),
            (&["x"], true),
            (&["keep-alive, x"], true),
            (&["close", "Cookie"], true),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("connection", *line)).collect();
            assert_eq!(names_more(&headers(&lines)), more, "{lines:?}");
        }
    }

    #[test]
    fn what_is_kept_has_a_date_and_no_age_or_length() {
        let wall = std::time::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        let mut message =
            headers(&[("age", "5"), ("content-length", "7"), ("connection", "a"), ("a", "1"), ("b", "2")]);
        keep(&mut message, wall);
        assert_eq!(message, headers(&[("b", "2"), ("date", "Sun, 06 Nov 1994 08:49:37 GMT")]));
        let dated = headers(&[("date", "Sun, 06 Nov 1994 08:49:00 GMT")]);
        let mut message = dated.clone();
        keep(&mut message, wall);
        assert_eq!(message, dated);
    }

    #[test]
    fn connection_cannot_take_away_what_all_along_the_way_must_see() {
        let said = [
            ("cache-control", "private"),
            ("set-cookie", "a=b"),
            ("vary", "x"),
            ("content-length", "5"),
            ("host", "a"),
        ];
        let mut message = headers(&said);
        message.append("connection", HeaderValue::from_static("cache-control, Set-Cookie, vary, content-length, host"));
        strip(&mut message);
        assert_eq!(message, headers(&said));
    }

    #[test]
    fn connection_cannot_hide_credentials_from_us() {
        let mut request = headers(&[("authorization", "x"), ("connection", "Authorization")]);
        let class = classify(&Method::GET, &request, &Route::default());
        strip(&mut request);
        assert_eq!(class.way(), Way::Alone);
        assert!(request.is_empty(), "and still it goes no further than the client said");
    }

    #[test]
    fn what_is_not_in_the_key_does_not_reach_the_origin() {
        let mut request = HeaderMap::new();
        let more = ["x-forwarded-scheme", "x-forwarded-method", "x-forwarded-whatever", "x-forwarded-"];
        for name in BELIEVED.into_iter().chain(more) {
            request.append(name, HeaderValue::from_static("evil.example"));
        }
        for name in [X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REAL_IP] {
            request.append(name.clone(), HeaderValue::from_static("evil.example"));
            request.append(name, HeaderValue::from_static("evil.example"));
        }
        forward(&mut request, &forwarder());
        assert!(request.values().all(|value| value != "evil.example"), "{request:?}");
        assert_eq!(request["x-forwarded-host"], "a.example");
        assert_eq!(request["x-forwarded-proto"], "https");
        assert_eq!(request["x-real-ip"], "10.0.0.7");
    }

    #[test]
    fn of_what_a_proxy_in_front_says_only_one_plain_word_counts() {
        let said = |fields: &[(&str, &str)]| {
            let headers = headers(fields);
            let Fronted { scheme, host } = fronted(&headers);
            (scheme, host.map(str::to_owned))
        };
        let [proto, host] = ["x-forwarded-proto", "x-forwarded-host"];
        assert_eq!(said(&[]), (None, None));
        assert_eq!(said(&[(proto, "HTTPS"), (host, "a:8443")]), (Some(Scheme::Https), Some("a:8443".into())));
        assert_eq!(said(&[(proto, "http")]), (Some(Scheme::Http), None));
        assert_eq!(said(&[(proto, "https, http"), (host, "a, b")]), (None, None));
        assert_eq!(said(&[(proto, "https"), (proto, "https"), (host, "a"), (host, "b")]), (None, None));
        assert_eq!(said(&[(proto, "wss")]), (None, None));
    }

    #[test]
    fn what_a_gateway_would_take_for_ours_does_not_reach_it() {
        let mut request = HeaderMap::new();
        for name in [
            "x_forwarded_host",
            "x-forwarded_for",
            "x_real_ip",
            "x_original_url",
            "transfer_encoding",
            "x_forwarded_user",
        ] {
            request.append(name, HeaderValue::from_static("evil.example"));
        }
        request.append("api_key", HeaderValue::from_static("1"));
        request.append("x-forwarded-user", HeaderValue::from_static("ann"));
        forward(&mut request, &Forwarder { trusted: true, ..forwarder() });
        assert!(request.values().all(|value| value != "evil.example"), "{request:?}");
        assert_eq!(
            (&request["api_key"], &request["x-forwarded-user"]),
            (&HeaderValue::from(1), &HeaderValue::from_static("ann"))
        );
    }

    #[test]
    fn who_the_user_is_is_said_by_trusted_peers_only_and_an_address_by_nobody() {
        let identity = Identity::with(&["x-tenant-user".parse().unwrap(), "my_user".parse().unwrap()]);
        let users = ["x-forwarded-user", "remote-user", "x-tenant-user", "my_user", "oidc_claim_sub"];
        let others = ["true-client-ip", "x-envoy-internal", "remote_user", "x_tenant_user", "my-user", "x_client_ip"];
        for trusted in [false, true] {
            let mut request = HeaderMap::new();
            for name in users.into_iter().chain(others) {
                request.append(name, HeaderValue::from_static("ann"));
            }
            forward(&mut request, &Forwarder { trusted, identity: &identity, ..forwarder() });
            for name in users {
                assert_eq!(request.contains_key(name), trusted, "{name}");
            }
            for name in others {
                assert!(!request.contains_key(name), "{name}");
            }
        }
    }

    #[test]
    fn what_a_client_says_of_itself_is_not_the_leftmost_address_at_the_origin() {
        let mut request = headers(&[
            ("x-forwarded-for", "1.1.1.1,2.2.2.2"),
            ("x-forwarded-for", "3.3.3.3"),
            ("x-real-ip", "1.1.1.1"),
            ("via", "1.0 other"),
        ]);
        let through = [[10, 0, 0, 7], [10, 0, 0, 8]].map(IpAddr::from);
        forward(&mut request, &Forwarder { client: Some([3, 3, 3, 3].into()), through: &through, ..forwarder() });
        let all: Vec<_> = request.get_all("x-forwarded-for").iter().collect();
        assert_eq!(all, ["3.3.3.3, 10.0.0.8, 10.0.0.7"]);
        assert_eq!(request["x-real-ip"], "3.3.3.3");
        assert_eq!(request["via"], "1.0 other, 1.1 edge-1");
    }

    #[test]
    fn connection_cannot_take_away_what_a_trusted_proxy_says_of_the_client() {
        let said = [("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1"), ("x-forwarded-proto", "https")];
        let mut request = headers(&said);
        request.append("connection", HeaderValue::from_static("X-Forwarded-For, forwarded, x-forwarded-proto"));
        strip(&mut request);
        assert_eq!(request, headers(&said));
    }

    #[test]
    fn a_request_that_comes_back_is_recognised() {
        let mut request = headers(&[]);
        assert!(!loops(&request, "edge-1"));
        forward(&mut request, &forwarder());
        assert!(
            loops(&request, "edge-1")
                && loops(&request, "EDGE-1")
                && !loops(&request, "edge-2")
                && !loops(&request, "edge")
        );
        assert!(loops(&headers(&[("via", "1.1 x, HTTP/1.1  edge-1 (comment)")]), "edge-1"));
        assert!(loops(&headers(&[("cdn-loop", "x"), ("cdn-loop", "y, edge-1; a=b")]), "edge-1"));
    }

    #[test]
    fn a_length_stated_twice_is_none() {
        for (fields, twice) in [
            (&[][..], false),
            (&[("content-length", "5")], false),
            (&[("content-length", "5"), ("content-length", "5")], false),
            (&[("transfer-encoding", "chunked")], false),
            (&[("content-length", "5"), ("content-length", "6")], true),
            (&[("content-length", "5, 5")], true),
            (&[("content-length", "+5")], true),
            (&[("content-length", "")], true),
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], true),
        ] {
            assert_eq!(is_framed_twice(&headers(fields)), twice, "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_named_in_connection_survives(names in proptest::collection::vec("x-[a-z]{1,3}", 1..5), shout in any::<bool>()) {
            let mut message = HeaderMap::new();
            for name in &names {
                message.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("x"));
            }
            message.append("kept", HeaderValue::from_static("x"));
            let list = names.join(" ,\t");
            let list = if shout { list.to_uppercase() } else { list };
            message.append(header::CONNECTION, HeaderValue::from_str(&list).unwrap());
            strip(&mut message);
            prop_assert_eq!(message.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["kept"]);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut message = HeaderMap::new();
                for name in [header::CONNECTION, header::VIA, CDN_LOOP, X_FORWARDED_FOR, header::CONTENT_LENGTH] {
                    message.append(name, value.clone());
                }
                is_framed_twice(&message);
                loops(&message, "x");
                strip(&mut message);
                forward(&mut message, &forwarder());
            }
        }
    }
}
