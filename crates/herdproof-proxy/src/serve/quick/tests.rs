//! What is told apart by its bytes alone, and that the long way would tell it apart in the same way.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{
    key::Keyer,
    policy::{Route, Way, classify, hop},
};

fn asks(lines: &str) -> Option<Head<'_>> {
    head(lines.as_bytes())
}

#[test]
fn what_asks_for_a_page_and_says_nothing_else_is_plain() {
    for (fields, has_cookie) in [
        ("", false),
        ("User-Agent: x\r\n", false),
        ("ACCEPT: */*\r\ncookie: a=b\r\nX-Any: 1\r\nConnection: Keep-Alive\r\n", true),
    ] {
        let text = format!("GET /a?b HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        assert_eq!(asks(&text), Some(Head::Plain { host: "x", target: "/a?b", has_cookie }));
    }
}

#[test]
fn what_says_more_is_for_those_who_listen() {
    let telling = [
        "authorization: x",
        "range: bytes=0-1",
        "if-range: x",
        "if-none-match: x",
        "if-modified-since: x",
        "if-match: x",
        "if-unmodified-since: x",
        "cache-control: no-cache",
        "pragma: no-cache",
        "host: y",
        "te: trailers",
        "keep-alive: 5",
        "proxy-authorization: x",
        "forwarded: host=y",
        "unheard-of: x",
    ];
    for line in telling {
        assert_eq!(asks(&format!("GET / HTTP/1.1\r\nhost: x\r\n{line}\r\n\r\n")), Some(Head::More), "{line}");
    }
    for text in
        ["HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET http://x/ HTTP/1.1\r\nhost: x\r\n\r\n"]
    {
        assert_eq!(asks(text), Some(Head::More), "{text}");
    }
}

/// Whoever takes one of these for the whole of a request has lost count of the bytes.
#[test]
fn what_may_not_end_where_its_head_does_is_no_head_without_a_body() {
    let framing = [
        "content-length: 5",
        "Content-Length: 0",
        "transfer-encoding: chunked",
        "TRANSFER-ENCODING: x",
        "upgrade: websocket",
        "expect: 100-continue",
        "connection: close",
        "connection: upgrade",
        "connection: keep-alive, x",
    ];
    for line in framing {
        assert_eq!(asks(&format!("GET / HTTP/1.1\r\nhost: x\r\n{line}\r\n\r\n")), None, "{line}");
    }
    let whole = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for end in 0..whole.len() {
        assert_eq!(asks(&whole[..end]), None, "{end}");
    }
    for text in [
        &*format!("{whole}G"),
        &*format!("{whole}{whole}"),
        "POST / HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET / HTTP/1.0\r\nhost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\n folded\r\n\r\n",
        "\0",
    ] {
        assert_eq!(asks(text), None, "{text}");
    }
}

#[test]
fn numbers_are_written_in_full() {
    for number in [0, 9, 10, 1_024, u64::MAX] {
        let mut out = Vec::new();
        write_number(&mut out, number);
        assert_eq!(out, number.to_string().as_bytes());
    }
}

proptest! {
    /// Two readers, one meaning: what is answered here is what the long way would share with everybody, under the same key.
    #[test]
    fn what_is_plain_here_is_plain_to_the_long_way(
        target in "/[a-z?%&=.]{0,12}",
        fields in vec((select(&NAMES[..]), select(&VALUES[..])), 0..5),
    ) {
        let lines: String = fields.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]).collect();
        let text = format!("GET {target} HTTP/1.1\r\n{lines}\r\n");
        if let Some(Head::Plain { host, target: read, has_cookie }) = asks(&text) {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value));
            }
            let class = classify(&Method::GET, &headers, &Route::default());
            prop_assert_eq!(class.way(), Way::Share);
            prop_assert_eq!(class.has_cookie(), has_cookie);
            prop_assert!(!class.is_head() && !class.has_range() && !class.is_conditional());
            prop_assert_eq!(class.asked, RequestDirectives::default());
            prop_assert!(!hop::names_more(&headers));
            let keyer = Keyer::new(7);
            let uri: Uri = target.parse().unwrap();
            let keys = [keyer.of(Scheme::Http, &uri, &headers), keyer.key(Scheme::Http, host, read)];
            let keys = keys.map(|key| key.map(|key| key.to_key()));
            prop_assert_eq!(&keys[0], &keys[1]);
        }
    }
}

const NAMES: [&str; 25] = [
    "host",
    "Host",
    "accept",
    "cookie",
    "user-agent",
    "authorization",
    "range",
    "if-none-match",
    "if-modified-since",
    "if-match",
    "if-unmodified-since",
    "transfer-encoding",
    "content-length",
    "upgrade",
    "cache-control",
    "pragma",
    "connection",
    "x-forwarded-host",
    "x-forwarded-user",
    "remote-user",
    "true-client-ip",
    "sec-fetch-mode",
    "expect",
    "te",
    "via",
];
const VALUES: [&str; 8] = ["x", "Y:80", "0", "5", "keep-alive", "no-cache", "no-store, max-age=0", "h2c"];
