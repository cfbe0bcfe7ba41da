//! Has it changed? Asked of the origin, and answered to a client.
//!
//! Two conversations that must not be mixed. A client's condition is answered from what is stored, and never reaches the origin on
//! a shared fetch: else the origin's 304 to one would be all that the others get. What the origin is asked is made from what is
//! stored ([`ask`]), and its 304 makes the stored response fresh again ([`freshen`]): for everybody, if the fields it came with
//! still allow that.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::{
    Class, Draws, Identity, Judged, Route, Times,
    fields::{self, Date},
    judge,
};

/// What makes an answer fit one request only.
const CONDITIONS: [HeaderName; 6] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
    header::RANGE,
];

/// What a 304 does not change (RFC 9111 3.2): what describes the bytes that are stored, which it does not bring.
const NOT_UPDATED: [HeaderName; 5] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// What a 304 has no use for: it has no body.
const OF_THE_BODY: [HeaderName; 6] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::TRANSFER_ENCODING,
];

/// A date more recent than this at the time of the response may have been written in the same second as another version
/// (RFC 9110 8.8.2.2).
const SAME_SECOND: i64 = 1;

/// Takes the one client's conditions and range off a request that is made for many.
pub fn clear(request: &mut HeaderMap) {
    for name in CONDITIONS {
        request.remove(name);
    }
}

/// Takes off a request who makes it: for refreshing what is given to all without saying that it is public. Asked with one user's
/// cookies it would come back as that user's, and nobody could refresh it for the others.
pub fn disown(request: &mut HeaderMap, identity: &Identity) {
    request.remove(header::AUTHORIZATION);
    request.remove(header::COOKIE);
    identity.remove(request);
}

/// Makes a request ask whether what is stored is still right. Returns false if there is nothing to ask by.
pub fn ask(request: &mut HeaderMap, stored: &HeaderMap) -> bool {
    clear(request);
    if let Some(tag) = stored.get(header::ETAG) {
        request.insert(header::IF_NONE_MATCH, tag.clone());
    }
    let modified = stored.get(header::LAST_MODIFIED).filter(|date| fields::date(date.as_bytes()).is_some());
    if let Some(date) = modified {
        request.insert(header::IF_MODIFIED_SINCE, date.clone());
    }
    modified.is_some() || request.contains_key(header::IF_NONE_MATCH)
}

/// Whether an origin's 304 speaks of what is stored: its validators, where it has any, are the same.
pub fn is_about(not_modified: &HeaderMap, stored: &HeaderMap) -> bool {
    match (not_modified.get(header::ETAG), stored.get(header::ETAG)) {
        (Some(one), Some(other)) => is_same(one.as_bytes(), other.as_bytes()),
        (Some(_), None) => false,
        _ => match (not_modified.get(header::LAST_MODIFIED), stored.get(header::LAST_MODIFIED)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        },
    }
}

/// What a stored response becomes by a 304 of the origin: its head, and the verdict on it, which may be that nobody else is to have
/// it from now on. A `Set-Cookie` or a `private` in the 304 counts like one in a 200. Connection fields have to be gone already.
pub fn freshen(
    stored: (StatusCode, &HeaderMap),
    not_modified: &HeaderMap,
    class: &Class,
    route: &Route,
    times: &Times,
    draws: Draws,
) -> (HeaderMap, Judged) {
    let (status, stored) = stored;
    let mut head = stored.clone();
    // The age was that of the old copy, and so was the date.
    head.remove(header::AGE);
    head.remove(header::DATE);
    for name in not_modified.keys().filter(|name| !NOT_UPDATED.contains(name)) {
        head.remove(name);
        for value in not_modified.get_all(name) {
            head.append(name.clone(), value.clone());
        }
    }
    date(&mut head, times.wall);
    let judged = judge(class, status, &head, route, times, draws);
    // It counts from now on, in the times.
    head.remove(header::AGE);
    (head, judged)
}

/// Gives a response the date it came if it has none that can be read (RFC 9110 6.6.1).
pub fn date(headers: &mut HeaderMap, wall: SystemTime) {
    // The formatter knows no other years.
    const YEARS: std::ops::Range<i64> = 0..253_402_300_800;
    if Date::read(headers, &header::DATE).get().is_none()
        && YEARS.contains(&fields::unix(wall))
        && let Ok(now) = HeaderValue::from_str(&httpdate::fmt_http_date(wall))
    {
        headers.insert(header::DATE, now);
    }
}

/// Whether a client that asks so already has what is stored, and is to be told 304 (RFC 9110 13.2.2). Only a success can be had
/// already.
pub fn is_unchanged(request: &HeaderMap, status: StatusCode, stored: &HeaderMap) -> bool {
    if !status.is_success() {
        return false;
    }
    if request.contains_key(header::IF_NONE_MATCH) {
        let tag = stored.get(header::ETAG).map(HeaderValue::as_bytes);
        return request.get_all(header::IF_NONE_MATCH).into_iter().any(|line| names(line.as_bytes(), tag));
    }
    let since = Date::read(request, &header::IF_MODIFIED_SINCE).get();
    let modified = Date::read(stored, &header::LAST_MODIFIED).get().or_else(|| Date::read(stored, &header::DATE).get());
    since.zip(modified).is_some_and(|(since, modified)| modified <= since)
}

/// Whether a range may be cut from what is stored: there is no `If-Range`, or it names exactly this version (RFC 9110 13.1.5).
pub fn may_cut(request: &HeaderMap, stored: &HeaderMap) -> bool {
    let mut lines = request.get_all(header::IF_RANGE).into_iter();
    let (only, more) = (lines.next(), lines.next());
    let Some(wanted) = only else { return true };
    if more.is_some() {
        return false;
    }
    let wanted = wanted.as_bytes().trim_ascii();
    if wanted.starts_with(b"\"") {
        return stored.get(header::ETAG).is_some_and(|tag| tag.as_bytes().trim_ascii() == wanted);
    }
    let made = Date::read(stored, &header::DATE).get();
    let modified = Date::read(stored, &header::LAST_MODIFIED).get();
    let is_strong = modified.zip(made).is_some_and(|(modified, made)| made.saturating_sub(modified) >= SAME_SECOND);
    is_strong && fields::date(wanted) == modified
}

/// The head of a 304 about what is stored.
pub fn not_modified(stored: &HeaderMap) -> HeaderMap {
    let mut head = stored.clone();
    for name in OF_THE_BODY {
        head.remove(name);
    }
    head
}

/// Whether a line of `If-None-Match` names this tag, or anything at all.
fn names(mut line: &[u8], tag: Option<&[u8]>) -> bool {
    // A tag may hold commas and backslashes, and no quotes.
    loop {
        line = line.trim_ascii_start();
        let Some((&first, rest)) = line.split_first() else { return false };
        if first == b',' {
            line = rest;
            continue;
        }
        let opening = match line {
            [b'"', ..] => 1,
            [b'W' | b'w', b'/', b'"', ..] => 3,
            _ => 0,
        };
        let end = if opening == 0 {
            line.iter().position(|&byte| byte == b',').unwrap_or(line.len())
        } else {
            line[opening..].iter().position(|&byte| byte == b'"').map_or(line.len(), |at| opening + at + 1)
        };
        let one = &line[..end];
        if one.trim_ascii_end() == b"*" || tag.is_some_and(|tag| is_same(one, tag)) {
            return true;
        }
        line = &line[end..];
    }
}

/// Weak comparison of RFC 9110 8.8.3.2: whether or not either is weak.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    opaque(one) == opaque(other)
}

fn opaque(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").or_else(|| tag.strip_prefix(b"w/")).unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Reason, RequestDirectives, Use, Verdict, classify};
    use herdproof::Tick;
    use http::Method;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    const EARLIER: &str = "Wed, 01 Jan 2020 00:00:00 GMT";
    const LATER: &str = "Wed, 01 Jan 2020 00:01:00 GMT";

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn times() -> Times {
        let now = Tick::ZERO + Duration::from_secs(1_000);
        Times { asked: now, answered: now, wall: UNIX_EPOCH + Duration::from_secs(1_577_836_860) }
    }

    fn freshened(stored: &[(&str, &str)], not_modified: &[(&str, &str)]) -> (HeaderMap, Judged) {
        let class = classify(&Method::GET, &HeaderMap::new(), &Route::default());
        let stored = headers(stored);
        freshen(
            (StatusCode::OK, &stored),
            &headers(not_modified),
            &class,
            &Route::default(),
            &times(),
            Draws::default(),
        )
    }

    #[test]
    fn the_origin_is_asked_about_what_is_stored_and_not_what_the_client_has() {
        let mut request = headers(&[
            ("if-none-match", "\"client\""),
            ("if-modified-since", EARLIER),
            ("if-range", "\"client\""),
            ("range", "bytes=0-1"),
            ("abc", "123"),
        ]);
        assert!(ask(&mut request, &headers(&[("etag", "W/\"stored\""), ("last-modified", LATER)])));
        assert_eq!(
            request,
            headers(&[("abc", "123"), ("if-none-match", "W/\"stored\""), ("if-modified-since", LATER)])
        );
        assert!(!ask(&mut request, &headers(&[("last-modified", "yesterday")])));
        assert_eq!(request, headers(&[("abc", "123")]));
    }

    #[test]
    fn a_shared_fetch_carries_nobodys_conditions() {
        let mut request = headers(&[("accept", "x")]);
        for name in CONDITIONS {
            request.append(name, HeaderValue::from_static("x"));
        }
        clear(&mut request);
        assert_eq!(request, headers(&[("accept", "x")]));
    }

    #[test]
    fn what_is_for_all_is_refreshed_on_nobodys_behalf() {
        let mut request = headers(&[
            ("cookie", "a=b"),
            ("cookie", "c=d"),
            ("authorization", "x"),
            ("x-forwarded-user", "ann"),
            ("accept", "y"),
        ]);
        let stored = freshened(&[("cache-control", "max-age=10")], &[]).1;
        let own = classify(&Method::GET, &request, &Route::default());
        let response = headers(&[("cache-control", "max-age=10")]);
        let judged = |class| judge(&class, StatusCode::OK, &response, &Route::default(), &times(), Draws::default());
        assert!(!stored.life.is_public() && !judged(own).verdict.shares());
        disown(&mut request, &Identity::default());
        assert_eq!(request, headers(&[("accept", "y")]));
        assert_eq!(judged(classify(&Method::GET, &request, &Route::default())).verdict, Verdict::Shareable);
    }

    #[test]
    fn a_304_updates_what_it_brings_and_not_what_describes_the_bytes() {
        let stored = [
            ("test-header", "A"),
            ("kept", "A"),
            ("content-length", "5"),
            ("content-encoding", "gzip"),
            ("content-type", "text/plain"),
            ("cache-control", "max-age=1"),
            ("age", "500"),
            ("date", EARLIER),
            ("etag", "\"a\""),
        ];
        let brought = [
            ("test-header", "B"),
            ("test-header", "C"),
            ("content-length", "10"),
            ("content-encoding", "br"),
            ("content-type", "text/html"),
            ("cache-control", "max-age=3600"),
            ("date", LATER),
            ("etag", "\"a\""),
        ];
        let (head, judged) = freshened(&stored, &brought);
        assert_eq!(head.get_all("test-header").iter().collect::<Vec<_>>(), ["B", "C"]);
        assert_eq!(
            (&head["kept"], &head["content-length"], &head["content-encoding"]),
            (&HeaderValue::from_static("A"), &HeaderValue::from_static("5"), &HeaderValue::from_static("gzip"))
        );
        assert_eq!(
            (&head["content-type"], &head["date"]),
            (&HeaderValue::from_static("text/html"), &HeaderValue::from_static(LATER))
        );
        assert!(!head.contains_key("age"));
        assert_eq!(judged.verdict, Verdict::Shareable);
        assert_eq!(judged.life.fresh_for(times().answered), Duration::from_secs(3600));
    }

    #[test]
    fn the_age_of_a_304_counts_and_is_not_kept_as_a_field_beside_our_own() {
        let (head, judged) = freshened(&[("cache-control", "max-age=10")], &[("age", "4")]);
        assert!(!head.contains_key("age"));
        assert_eq!(judged.life.fresh_for(times().answered), Duration::from_secs(6));
    }

    #[test]
    fn a_304_without_a_date_does_not_leave_the_old_one() {
        let (head, judged) = freshened(&[("cache-control", "max-age=10"), ("date", EARLIER)], &[]);
        assert_eq!(head["date"], LATER);
        assert_eq!(judged.life.at(times().answered, &RequestDirectives::default()), Use::Fresh);
    }

    #[test]
    fn a_304_that_says_private_is_the_end_of_sharing() {
        for (brought, why) in [
            (("cache-control", "private, max-age=60"), Reason::Private),
            (("set-cookie", "a=b"), Reason::SetCookie),
            (("vary", "*"), Reason::VaryStar),
        ] {
            let verdict = freshened(&[("cache-control", "max-age=10")], &[brought]).1.verdict;
            assert_eq!(verdict, Verdict::NotShareable { why, store: false });
        }
    }

    #[test]
    fn a_304_about_another_version_freshens_nothing() {
        let stored = headers(&[("etag", "\"a\""), ("last-modified", EARLIER)]);
        for (brought, about) in [
            (&[][..], true),
            (&[("etag", "\"a\"")], true),
            (&[("etag", "W/\"a\"")], true),
            (&[("etag", "\"b\"")], false),
            (&[("last-modified", EARLIER)], true),
            (&[("last-modified", LATER)], false),
            (&[("etag", "\"a\""), ("last-modified", LATER)], true),
        ] {
            assert_eq!(is_about(&headers(brought), &stored), about, "{brought:?}");
        }
        assert!(!is_about(&stored, &headers(&[])));
    }

    #[test]
    fn a_tag_in_a_list_is_found_and_a_part_of_one_is_not() {
        let stored = headers(&[("etag", "\"abcdef\""), ("last-modified", LATER)]);
        for (line, unchanged) in [
            ("\"abcdef\"", true),
            ("W/\"abcdef\"", true),
            ("w/\"abcdef\"", true),
            ("\"1234\", \"abcdef\", \"5678\"", true),
            ("\"1234\",\"5678\",\"abcdef\"", true),
            ("\"12,34\\\",\"abcdef\"", true),
            ("*", true),
            ("\"x\", *", true),
            ("abcdef", false),
            ("\"abc\"", false),
            ("\"x, \"abcdef\"", false),
            ("\"abcdef", false),
            ("", false),
            (",,,", false),
        ] {
            assert_eq!(
                is_unchanged(&headers(&[("if-none-match", line)]), StatusCode::OK, &stored),
                unchanged,
                "{line}"
            );
        }
        let two_lines = headers(&[("if-none-match", "\"x\""), ("if-none-match", "\"abcdef\"")]);
        assert!(is_unchanged(&two_lines, StatusCode::OK, &stored));
        let obs_text = headers(&[("etag", "\"\u{fc}\"")]);
        assert!(is_unchanged(&headers(&[("if-none-match", "\"\u{fc}\"")]), StatusCode::OK, &obs_text));
        assert!(!is_unchanged(&headers(&[("if-none-match", "\"a\"")]), StatusCode::OK, &headers(&[])));
        assert!(is_unchanged(&headers(&[("if-none-match", "*")]), StatusCode::OK, &headers(&[])));
        assert!(!is_unchanged(&headers(&[("if-none-match", "\"abcdef\"")]), StatusCode::NOT_FOUND, &stored));
    }

    #[test]
    fn a_date_counts_only_where_no_tag_is_asked_about() {
        let stored = headers(&[("etag", "\"a\""), ("last-modified", EARLIER), ("date", LATER)]);
        let unchanged = |fields: &[(&str, &str)]| is_unchanged(&headers(fields), StatusCode::OK, &stored);
        assert!(unchanged(&[("if-modified-since", EARLIER)]) && unchanged(&[("if-modified-since", LATER)]));
        assert!(unchanged(&[("if-modified-since", "Wednesday, 01-Jan-20 00:00:00 GMT")]));
        assert!(!unchanged(&[("if-modified-since", "Tue, 31 Dec 2019 23:59:59 GMT")]));
        assert!(!unchanged(&[("if-none-match", "\"b\""), ("if-modified-since", LATER)]));
        assert!(unchanged(&[("if-none-match", "\"a\""), ("if-modified-since", "Tue, 31 Dec 2019 23:59:59 GMT")]));
        assert!(!unchanged(&[("if-modified-since", "yesterday")]) && !unchanged(&[]));
        let undated = headers(&[("date", LATER)]);
        assert!(is_unchanged(&headers(&[("if-modified-since", LATER)]), StatusCode::OK, &undated));
        assert!(!is_unchanged(&headers(&[("if-modified-since", EARLIER)]), StatusCode::OK, &undated));
    }

    #[test]
    fn a_part_of_another_version_is_never_cut() {
        let stored = headers(&[("etag", "\"a\""), ("last-modified", EARLIER), ("date", LATER)]);
        for (wanted, may) in [
            ("\"a\"", true),
            ("W/\"a\"", false),
            ("\"b\"", false),
            (EARLIER, true),
            (LATER, false),
            ("nonsense", false),
        ] {
            assert_eq!(may_cut(&headers(&[("if-range", wanted)]), &stored), may, "{wanted}");
        }
        assert!(may_cut(&HeaderMap::new(), &stored));
        assert!(!may_cut(&headers(&[("if-range", "W/\"a\"")]), &headers(&[("etag", "W/\"a\"")])));
        let same_second = headers(&[("last-modified", LATER), ("date", LATER)]);
        assert!(!may_cut(&headers(&[("if-range", LATER)]), &same_second));
        assert!(!may_cut(&headers(&[("if-range", "nonsense")]), &HeaderMap::new()));
    }

    #[test]
    fn a_304_says_what_a_cache_needs_and_nothing_about_a_body() {
        let head = not_modified(&headers(&[
            ("etag", "\"a\""),
            ("vary", "x"),
            ("cache-control", "max-age=5"),
            ("content-length", "5"),
            ("content-type", "x"),
        ]));
        assert_eq!(head, headers(&[("etag", "\"a\""), ("vary", "x"), ("cache-control", "max-age=5")]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(line in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'W'), Just(b'/'), Just(b' '), any::<u8>()], 0..30), tag in "W?/?\"?[a-c]{0,2}\"?") {
            names(&line, Some(tag.as_bytes()));
        }

        #[test]
        fn a_list_names_just_the_tags_in_it(tags in proptest::collection::vec("(W/)?\"[ab,]{0,3}\"", 0..5), tag in "(W/)?\"[ab,]{0,3}\"", gap in "[ ]{0,2},[, \t]{0,3}") {
            let expected = tags.iter().any(|one| one.trim_start_matches("W/") == tag.trim_start_matches("W/"));
            prop_assert_eq!(names(tags.join(&gap).as_bytes(), Some(tag.as_bytes())), expected);
        }
    }
}
