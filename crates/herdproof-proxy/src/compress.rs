//! Responses that are compressed here, on routes that ask for it: once for each object, and never once for each request.
//!
//! What is kept compressed is a variant of its own (`Vary: Accept-Encoding`), beside one for clients that do not take it. On such a
//! route the origin is asked for one of these two and nothing else, so that eight ways to write `Accept-Encoding` are not eight copies.
//!
//! | left as it is | why |
//! |---|---|
//! | what is for one client only, or not kept | a secret beside bytes that an attacker chooses can be read from the length of both compressed (BREACH); and each request would cost the work |
//! | what has a `Content-Encoding`, or says `no-transform` | the origin has decided |
//! | a part (206), an error, images, what is less than 1 KiB | it is no whole page, or does not get smaller |
//!
//! A strong `ETag` becomes a weak one: it names the same bytes, and these are others (RFC 9110 8.8.3). As origins compare weakly,
//! they can be asked with it whether the page has changed.
//!
//! Who can trigger it: anybody who asks for pages that are not kept. So no more than a share of the processors goes into it
//! ([`Press`]): beyond that, pages are kept as they came.

mod gzip;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

pub(crate) use self::gzip::{Coming, Press};
use crate::policy::{
    Directives, Vary,
    vary::{Encodings, MOST_FIELDS},
};

/// Bytes of a body, at least.
const LEAST: u64 = 1 << 10;

/// What of a content's bytes a field says is wrong for others.
const ABOUT_BYTES: [HeaderName; 5] = [
    header::CONTENT_LENGTH,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// Whether a response may be kept compressed, if it is kept for all. So long, if that is known.
pub(crate) fn may(status: StatusCode, headers: &HeaderMap, len: Option<u64>) -> bool {
    let is_whole = status == StatusCode::OK
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !headers.contains_key(header::CONTENT_RANGE);
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    is_whole
        && len.is_none_or(|len| len >= LEAST)
        && gets_smaller(kind)
        && !Directives::of_cache_control(headers).no_transform()
}

/// Whether what is of this type is text, in one way or another. Not a stream of events: each is to come when it happens.
fn gets_smaller(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known = [
        "application/javascript",
        "application/json",
        "application/manifest+json",
        "application/wasm",
        "application/xml",
        "font/otf",
        "font/ttf",
        "image/svg+xml",
    ];
    let is_text = kind.starts_with("text/") && kind != "text/event-stream";
    is_text || known.contains(&&*kind) || kind.ends_with("+json") || kind.ends_with("+xml")
}

/// Makes a request ask for one of the two forms there are.
pub(crate) fn ask_for(headers: &mut HeaderMap) {
    if takes(headers) {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    } else {
        headers.remove(header::ACCEPT_ENCODING);
    }
}

/// Whether a request takes what is compressed here.
pub(crate) fn takes(headers: &HeaderMap) -> bool {
    Encodings::read(headers).has_gzip()
}

/// Says that there is more than one form. False where that cannot be said: nobody shares what varies on too much.
pub(crate) fn varies(headers: &mut HeaderMap) -> bool {
    match Vary::read(headers) {
        Vary::On(spec) if spec.names().contains(&header::ACCEPT_ENCODING) => return true,
        Vary::On(spec) if spec.names().len() >= MOST_FIELDS => return false,
        Vary::Everything | Vary::TooMuch => return false,
        Vary::On(_) | Vary::Nothing => {}
    }
    headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    true
}

/// Makes the head of a response that of its compressed form.
pub(crate) fn code(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    for name in ABOUT_BYTES {
        headers.remove(name);
    }
    weaken(headers);
}

fn weaken(headers: &mut HeaderMap) {
    let Some(tag) = headers.get(header::ETAG).filter(|tag| is_strong(tag)) else { return };
    match HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()) {
        Ok(weak) => headers.insert(header::ETAG, weak),
        Err(_) => headers.remove(header::ETAG),
    };
}

fn is_strong(tag: &HeaderValue) -> bool {
    tag.as_bytes().starts_with(b"\"")
}

/// What an origin's 304 says of what is kept, in the form that it is kept in.
pub(crate) fn freshen(kept: &HeaderMap, said: &mut HeaderMap) {
    let kept_on = Vary::read(kept);
    let is_varied = matches!(&kept_on, Vary::On(spec) if spec.names().contains(&header::ACCEPT_ENCODING));
    if is_varied && said.contains_key(header::VARY) && !varies(said) {
        // Rather for nobody else than for one who does not take it.
        said.insert(header::VARY, HeaderValue::from_static("*"));
    }
    // Of an origin that compresses itself a strong one is strong here, too.
    let is_coded = kept.get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
    if is_coded && !kept.get(header::ETAG).is_some_and(is_strong) {
        for name in ABOUT_BYTES {
            said.remove(name);
        }
        weaken(said);
    }
}

/// Asks whether a page has changed by its strong tag as well: some origins compare letter by letter.
pub(crate) fn ask_whether(headers: &mut HeaderMap) {
    let strong = headers.get(header::IF_NONE_MATCH).and_then(|tag| tag.as_bytes().strip_prefix(b"W/"));
    if let Some(strong) = strong.and_then(|tag| HeaderValue::from_bytes(tag).ok()) {
        headers.append(header::IF_NONE_MATCH, strong);
    }
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
    fn only_whole_text_that_the_origin_left_open_is_compressed() {
        let page = |fields: &[(&str, &str)]| may(StatusCode::OK, &headers(fields), Some(LEAST));
        assert!(page(&[("content-type", "text/html; charset=utf-8")]));
        assert!(page(&[("content-type", "Application/vnd.api+JSON"), ("cache-control", "public, max-age=9")]));
        for fields in [
            &[][..],
            &[("content-type", "image/png")],
            &[("content-type", "text/event-stream")],
            &[("content-type", "text/html"), ("content-encoding", "br")],
            &[("content-type", "text/html"), ("cache-control", "max-age=9, No-Transform")],
            &[("content-type", "text/html"), ("content-range", "bytes 0-1/2")],
        ] {
            assert!(!page(fields), "{fields:?}");
        }
        let html = headers(&[("content-type", "text/html")]);
        assert!(may(StatusCode::OK, &html, None) && !may(StatusCode::OK, &html, Some(LEAST - 1)));
        assert!(!may(StatusCode::PARTIAL_CONTENT, &html, None) && !may(StatusCode::NOT_FOUND, &html, None));
    }

    #[test]
    fn there_are_two_forms_to_ask_for() {
        for (said, asked) in [
            (Some("gzip, deflate, br, zstd"), Some("gzip")),
            (Some("*"), Some("gzip")),
            (Some("br"), None),
            (Some("gzip;q=0, *"), None),
            (None, None),
        ] {
            let mut request = said.map_or_else(HeaderMap::new, |said| headers(&[("accept-encoding", said)]));
            ask_for(&mut request);
            assert_eq!(request.get("accept-encoding").map(|value| value.to_str().unwrap()), asked, "{said:?}");
        }
    }

    #[test]
    fn a_head_says_what_its_bytes_are() {
        let mut head =
            headers(&[("etag", "\"a\""), ("content-length", "9"), ("content-digest", "x"), ("vary", "Cookie")]);
        assert!(varies(&mut head));
        code(&mut head);
        let coded =
            [("etag", "W/\"a\""), ("vary", "Cookie"), ("vary", "accept-encoding"), ("content-encoding", "gzip")];
        assert_eq!(head, headers(&coded));
        assert!(varies(&mut head));
        code(&mut head);
        assert_eq!(head, headers(&coded), "and it stays so");
        for (vary, may) in [("*", false), ("Accept-Encoding", true), ("a, b, c, d, e, f, g, h", false)] {
            let mut head = headers(&[("vary", vary)]);
            assert_eq!(varies(&mut head), may);
            assert_eq!(head, headers(&[("vary", vary)]));
        }
    }

    #[test]
    fn what_the_origin_says_of_a_page_is_said_of_its_form() {
        let kept = headers(&[("etag", "W/\"a\""), ("vary", "accept-encoding"), ("content-encoding", "gzip")]);
        let mut said = headers(&[("etag", "\"a\""), ("vary", "cookie"), ("content-length", "9")]);
        freshen(&kept, &mut said);
        assert_eq!(said, headers(&[("etag", "W/\"a\""), ("vary", "cookie"), ("vary", "accept-encoding")]));
        // More than can be told apart: then it is for nobody else.
        let mut said = headers(&[("vary", "a, b, c, d, e, f, g, h")]);
        freshen(&kept, &mut said);
        assert_eq!(said, headers(&[("vary", "*")]));
        // Its own compression, and its own tag.
        let kept = headers(&[("etag", "\"a\""), ("content-encoding", "gzip")]);
        let mut said = headers(&[("etag", "\"a\"")]);
        freshen(&kept, &mut said);
        assert_eq!(said, headers(&[("etag", "\"a\"")]));
        let mut asked = headers(&[("if-none-match", "W/\"a\"")]);
        ask_whether(&mut asked);
        assert_eq!(asked, headers(&[("if-none-match", "W/\"a\""), ("if-none-match", "\"a\"")]));
    }
}
