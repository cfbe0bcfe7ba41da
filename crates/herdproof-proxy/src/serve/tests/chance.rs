//! Whatever a request says, something that is kept is served in one of the few ways there are, and nothing panics.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use herdproof::Tick;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body::Body as _;
use proptest::prelude::*;

use crate::{
    cache_status::HIT,
    deliver::deliver,
    head::{Head, block},
    key::{Keyer, Scheme},
    memory::Footprint,
    object::Object,
    policy::{Draws, Route, Times, classify, hop, judge, vary::Vary},
};

const NAMES: [&str; 20] = [
    "range",
    "if-range",
    "if-none-match",
    "if-modified-since",
    "if-match",
    "cache-control",
    "pragma",
    "cookie",
    "authorization",
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
    "accept-language",
    "via",
    "cdn-loop",
    "upgrade",
    "x-forwarded-for",
    "x",
];

fn value() -> impl Strategy<Value = HeaderValue> {
    let text = prop_oneof![
        "bytes=[0-9]{0,3}-[0-9]{0,3}",
        "(W/)?\"[0-9]?\"(, \"1\")?",
        "(max-age|max-stale|min-fresh|no-cache|only-if-cached|stale-if-error)=?[0-9]{0,12}",
        "Wed, 0[0-9] Jan 20[0-9]{2} 00:00:00 GMT",
        "[a-z:@0-9.]{0,9}",
        "(gzip|br|\\*|deflate)(;q=[01](\\.[0-9])?)?(, (gzip|identity))?",
    ];
    prop_oneof![
        text.prop_map(|text| HeaderValue::from_str(&text).unwrap()),
        proptest::collection::vec(any::<u8>(), 0..20)
            .prop_filter_map("no header's bytes", |bytes| { HeaderValue::from_bytes(&bytes).ok() }),
    ]
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    proptest::collection::vec((0..NAMES.len(), value()), 0..6).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        headers.append("host", HeaderValue::from_static("a"));
        for (name, value) in fields {
            headers.append(HeaderName::from_static(NAMES[name]), value);
        }
        headers
    })
}

fn stored(status: u16, more: &HeaderMap, body: &str) -> (Arc<Object>, Vary) {
    let status = StatusCode::from_u16(status).unwrap();
    let mut headers = more.clone();
    headers.insert("etag", HeaderValue::from_static("\"1\""));
    headers.insert("last-modified", HeaderValue::from_static("Wed, 01 Jan 2020 00:00:00 GMT"));
    headers.insert("cache-control", HeaderValue::from_static("max-age=60"));
    headers.insert("vary", HeaderValue::from_static("accept-encoding, accept-language, cookie, x"));
    let times =
        Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH + Duration::from_secs(1_577_836_860) };
    let class = classify(&Method::GET, &HeaderMap::new(), &Route::default());
    let judged = judge(&class, status, &headers, &Route::default(), &times, Draws::default());
    hop::keep(&mut headers, times.wall);
    let half = body.len() / 2;
    let chunks = [&body[..half], &body[half..]].map(|part| Bytes::copy_from_slice(part.as_bytes()));
    let head = block(status, &headers);
    let object = Object::kept(Head::new(&head), judged.life, chunks.to_vec(), &Footprint::uncounted());
    (Arc::new(object), judged.terms.vary)
}

proptest! {
    #[test]
    fn whatever_is_asked_what_is_kept_is_served_whole_or_as_a_part_of_it(
        method in prop_oneof![Just(Method::GET), Just(Method::HEAD)],
        request in headers(),
        response in headers(),
        target in "(/[a-z%0-9?#\\\\;.]{0,6}|http://[aA](:80)?/?x?)",
        status in prop_oneof![4 => Just(200_u16), 1 => 200_u16..600],
        body in "[a-z]{0,12}",
        after in 0_u64..200_000,
    ) {
        let Ok(uri) = target.parse::<Uri>() else { return Ok(()) };
        let (object, vary) = stored(status, &response, &body);
        let class = classify(&method, &request, &Route::default());
        let now = Tick::ZERO + Duration::from_millis(after);
        object.life.at(now, &class.asked);
        if let Ok(key) = Keyer::new(1).of(Scheme::Http, &uri, &request) {
            let sent = uri.path_and_query().map_or("/", |target| target.as_str());
            prop_assert_eq!(key.target(), sent, "what is keyed is what is sent");
            if let Vary::On(spec) = &vary {
                prop_assert!(spec.matches(&spec.variant(&request), &request));
                key.to_variant(0, &spec.variant(&request));
            }
        }
        let reply = deliver(&object, &class, &request, now, HIT, HeaderMap::new());
        let (head, mut sent) = reply.into_parts();
        // What the head does not say is said when it is written.
        let written = sent.size_hint().exact().and_then(|length| usize::try_from(length).ok()).filter(|_| !class.is_head());
        let mut all = Vec::new();
        while let Poll::Ready(Some(frame)) =
            Pin::new(&mut sent).poll_frame(&mut Context::from_waker(Waker::noop()))
        {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        let stated = head.headers.get("content-length").map(|length| length.to_str().unwrap().parse::<usize>().unwrap());
        match head.status.as_u16() {
            206 if status == 200 => {
                prop_assert!(class.has_range() && !all.is_empty());
                prop_assert!(body.as_bytes().windows(all.len()).any(|part| part == all));
                prop_assert!(stated == Some(all.len()) && head.headers.contains_key("content-range"));
            }
            304 if status != 304 => prop_assert!(class.is_conditional() && all.is_empty() && stated.is_none()),
            416 if status != 416 => prop_assert!(class.has_range() && all.is_empty()),
            other => {
                prop_assert_eq!(other, status);
                prop_assert_eq!(stated.or(written), Some(body.len()));
                prop_assert_eq!(&all[..], if class.is_head() { b"" } else { body.as_bytes() });
            }
        }
        prop_assert!(head.headers.get_all("content-length").iter().count() <= 1);
        for name in ["connection", "transfer-encoding"] {
            prop_assert!(!head.headers.contains_key(name), "{} is kept", name);
        }
    }
}
