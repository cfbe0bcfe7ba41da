//! The head of a request on its way: nothing that is about one hop and nothing that others said about the client survives,
//! however it is spelt, and all else goes on as it came. A stranger is itself whatever it says, and so is every trusted proxy that
//! a request came through.
#![no_main]

use herdproof_fuzz::headers;
use herdproof_proxy::{
    key::Scheme,
    policy::{
        Identity, client,
        hop::{self, Forwarder},
    },
};
use http::{HeaderMap, HeaderName, header};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;

const OF_ONE_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
    "proxy-connection",
];

/// Some of the fields in which a trusted proxy says who the user is.
const WHO: [&str; 5] = ["x-forwarded-user", "x-forwarded-client-cert", "remote-user", "x-auth-request-user", "x-tenant-user"];

fuzz_target!(|data: &[u8]| {
    let came = headers(data);
    let networks = ["10.0.0.0/8".parse().expect("a network")];
    let path = |peer: [u8; 4]| client::path(peer.into(), &came, &networks).collect::<Vec<_>>();
    assert_eq!(path([192, 0, 2, 7]), [IpAddr::from([192, 0, 2, 7])]);
    let through = path([10, 0, 0, 1]);
    assert!(through[..through.len() - 1].iter().all(|proxy| networks[0].contains(*proxy)));
    goes_on(&came, false);
    goes_on(&came, true);
});

fn goes_on(came: &HeaderMap, trusted: bool) {
    let looped = hop::loops(came, "herdproof");
    let mut head = came.clone();
    let _ = hop::is_framed_twice(&head);
    hop::strip(&mut head);
    let stripped = head.clone();
    for name in OF_ONE_HOP {
        assert!(!head.contains_key(name), "{name}");
    }
    for named in named(came) {
        assert!(!head.contains_key(&named) || is_for_all_hops(&named), "{named}");
    }

    let identity = Identity::with(&[HeaderName::from_static("x-tenant-user")]);
    let by = Forwarder {
        client: [192, 0, 2, 7].into(),
        through: &[],
        trusted,
        identity: &identity,
        scheme: Scheme::Http,
        authority: "a.example",
        name: "herdproof",
    };
    hop::forward(&mut head, &by);
    let one = |name: &str| {
        let lines: Vec<_> = head.get_all(name).iter().collect();
        assert_eq!(lines.len(), 1, "{name}");
        lines[0].as_bytes()
    };
    assert_eq!((one("x-forwarded-host"), one("x-forwarded-proto")), (&b"a.example"[..], &b"http"[..]));
    assert_eq!(one("x-real-ip"), b"192.0.2.7");
    assert_eq!(one("x-forwarded-for"), b"192.0.2.7");
    for name in WHO {
        assert_eq!(head.contains_key(name), trusted && stripped.contains_key(name), "{name}");
        assert!(!head.contains_key(name.replace('-', "_")), "{name}");
    }
    assert!(hop::loops(&head, "herdproof"));
    // A loop is known before anything is taken away, so that nobody can hide it; and only what says so is one.
    assert!(!looped || came.contains_key(header::VIA) || came.contains_key("cdn-loop"));

    let ours = ["x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-forwarded-for", "cdn-loop", "via"];
    for name in head.keys() {
        // Gateways that make variables of fields take `_` for `-`.
        let spelt = name.as_str().replace('_', "-");
        let is_ours = ours.contains(&&*spelt);
        assert!(!is_ours || *name == *spelt, "{name}");
        assert!(!OF_ONE_HOP.contains(&&*spelt), "{name}");
        assert!(is_ours || !spelt.starts_with("x-forwarded-") || trusted && identity.is(name.as_str()), "{name}");
        assert!(!["true-client-ip", "client-ip", "x-client-ip"].contains(&&*spelt), "{name}");
        assert!(!["forwarded", "x-original-url", "x-rewrite-url", "x-http-method-override"].contains(&&*spelt), "{name}");
        // Nothing is made up, and nothing is changed.
        assert!(is_ours || all(&head, name) == all(&stripped, name), "{name}");
    }
    // What is harmless stays: here, what has no dash in its name.
    for name in stripped.keys().filter(|name| name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric())) {
        assert!(["via", "forwarded"].contains(&name.as_str()) || all(&head, name) == all(&stripped, name), "{name}");
    }
}

fn all<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a [u8]> {
    headers.get_all(name).into_iter().map(|line| line.as_bytes()).collect()
}

/// What `Connection` names, read without care for quotes: no name has one.
fn named(head: &HeaderMap) -> Vec<HeaderName> {
    let lines = head.get_all(header::CONNECTION).into_iter().filter(|line| !line.as_bytes().contains(&b'"'));
    let elements = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    elements.filter_map(|element| HeaderName::from_bytes(element.trim_ascii()).ok()).collect()
}

/// What nobody may name there (RFC 9110 7.6.1).
fn is_for_all_hops(name: &HeaderName) -> bool {
    let all = [
        "age",
        "cache-control",
        "cdn-cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "date",
        "etag",
        "expires",
        "forwarded",
        "host",
        "set-cookie",
        "vary",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
    ];
    all.contains(&name.as_str())
}
