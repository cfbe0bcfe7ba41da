//! The table of who may share, line by line, and against a second telling of it.

use std::time::{Duration, UNIX_EPOCH};

use herdproof::Tick;
use http::{HeaderName, HeaderValue};

use super::*;
use crate::policy::{Cookies, Use, cache_control::Directives};

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect()
}

fn class(request: &[(&str, &str)]) -> Class {
    classify(&Method::GET, &headers(request), &Route::default())
}

fn judged(request: &[(&str, &str)], status: u16, response: &[(&str, &str)], route: &Route) -> Judged {
    let times =
        Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH + Duration::from_secs(1_800_000_000) };
    let status = StatusCode::from_u16(status).unwrap();
    judge(&class(request), status, &headers(response), route, &times, Draws::default())
}

fn given(request: &[(&str, &str)], status: u16, response: &[(&str, &str)]) -> Verdict {
    judged(request, status, response, &Route::default()).verdict
}

const fn not(why: Reason) -> Verdict {
    Verdict::NotShareable { why, store: false }
}

const ABOARD: Verdict = Verdict::AboardOnly { store: true };
const FRESH: (&str, &str) = ("cache-control", "max-age=60");

#[test]
fn who_may_look_up_join_and_lead() {
    let way = |method: Method, fields: &[(&str, &str)]| classify(&method, &headers(fields), &Route::default()).way();
    for (method, fields, expected) in [
        (Method::GET, &[][..], Way::Share),
        (Method::HEAD, &[], Way::Share),
        (Method::GET, &[("cookie", "a=b")], Way::Share),
        (Method::GET, &[("range", "bytes=0-1")], Way::Share),
        (Method::GET, &[("if-none-match", "\"a\"")], Way::Share),
        (Method::GET, &[("content-length", "0")], Way::Share),
        (Method::GET, &[("cache-control", "no-cache")], Way::Share),
        (Method::GET, &[("cache-control", "only-if-cached")], Way::Share),
        (Method::GET, &[("authorization", "x")], Way::Alone),
        (Method::GET, &[("authorization", "")], Way::Alone),
        (Method::HEAD, &[("authorization", "x"), ("connection", "authorization")], Way::Alone),
        (Method::GET, &[("content-length", "5")], Way::Pass(Pass::Body)),
        (Method::GET, &[("content-length", "0"), ("content-length", "5")], Way::Pass(Pass::Body)),
        (Method::GET, &[("content-length", "00")], Way::Pass(Pass::Body)),
        (Method::GET, &[("transfer-encoding", "identity")], Way::Pass(Pass::Body)),
        (Method::GET, &[("upgrade", "websocket")], Way::Pass(Pass::Upgrade)),
        (Method::GET, &[("upgrade", "h2c, websocket")], Way::Pass(Pass::Upgrade)),
        (Method::GET, &[("upgrade", "H2C")], Way::Share),
        (Method::GET, &[("if-match", "\"a\"")], Way::Pass(Pass::Precondition)),
        (Method::GET, &[("if-unmodified-since", "x")], Way::Pass(Pass::Precondition)),
        (Method::GET, &[("cache-control", "max-age=5"), ("cache-control", "No-Store")], Way::Share),
        (Method::POST, &[], Way::Pass(Pass::Method)),
        (Method::OPTIONS, &[], Way::Pass(Pass::Method)),
        (Method::TRACE, &[], Way::Pass(Pass::Method)),
    ] {
        assert_eq!(way(method.clone(), fields), expected, "{method} {fields:?}");
    }
}

#[test]
fn what_clients_ask_for_counts_only_where_the_route_says_so() {
    let obeying = Route { obey_clients: true, ..Route::default() };
    for said in ["no-store", "no-cache", "max-age=0", "min-fresh=9", "max-stale", "stale-if-error=9"] {
        let class = |route: &Route| classify(&Method::GET, &headers(&[("cache-control", said)]), route);
        assert!(class(&Route::default()).leads() && class(&Route::default()).asked.is_plain(), "{said}");
        assert!(class(&obeying).leads() && !class(&obeying).asked.is_plain(), "{said}");
    }
    let pragma = |route: &Route| classify(&Method::GET, &headers(&[("pragma", "no-cache")]), route).asked.no_cache();
    assert!(pragma(&obeying) && !pragma(&Route::default()));
    let cached = [("cache-control", "only-if-cached, no-cache")];
    let asked = classify(&Method::GET, &headers(&cached), &Route::default()).asked;
    assert!(asked.only_if_cached() && !asked.no_cache(), "it costs the origin nothing");
}

#[test]
fn what_was_asked_for_with_no_store_is_for_those_aboard_and_not_kept() {
    let obeying = Route { obey_clients: true, ..Route::default() };
    let class = classify(&Method::GET, &headers(&[("cache-control", "no-store")]), &obeying);
    let given = |response: &[(&str, &str)]| {
        let times =
            Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH + Duration::from_secs(1_800_000_000) };
        judge(&class, StatusCode::OK, &headers(response), &obeying, &times, Draws::default()).verdict
    };
    assert_eq!(given(&[FRESH, ("etag", "\"a\"")]), Verdict::AboardOnly { store: false });
    assert_eq!(given(&[("cache-control", "no-cache"), ("etag", "\"a\"")]), not(Reason::NoCache));
    assert_eq!(given(&[("cache-control", "private")]), not(Reason::Private));
}

#[test]
fn a_fresh_response_is_for_all_and_a_stale_one_for_those_aboard() {
    for (status, response, expected) in [
        (200, &[FRESH][..], Verdict::Shareable),
        (200, &[("cache-control", "s-maxage=60, max-age=0")], Verdict::Shareable),
        (200, &[("expires", "Thu, 18 Aug 2050 02:01:18 GMT")], Verdict::Shareable),
        (200, &[("last-modified", "Thu, 18 Aug 2016 02:01:18 GMT")], Verdict::Shareable),
        (200, &[FRESH, ("vary", "accept-encoding")], Verdict::Shareable),
        (200, &[FRESH, ("age", "60")], ABOARD),
        (200, &[("cache-control", "max-age=0")], ABOARD),
        (200, &[("cache-control", "max-age=60, max-age=x")], not(Reason::Unsaid)),
        (200, &[("expires", "0")], not(Reason::Unsaid)),
        (200, &[("expires", "Thu, 18 Aug 2016 02:01:18 GMT")], ABOARD),
        (404, &[("cache-control", "public")], ABOARD),
        (200, &[("cache-control", "max-age=0, must-revalidate")], Verdict::AboardOnly { store: false }),
        (200, &[("cache-control", "max-age=0, must-revalidate"), ("etag", "\"a\"")], ABOARD),
    ] {
        assert_eq!(given(&[], status, response), expected, "{status} {response:?}");
    }
}

#[test]
fn what_says_that_it_is_for_one_is_for_one() {
    for (response, why) in [
        (&[("cache-control", "private, max-age=60")][..], Reason::Private),
        (&[FRESH, ("cache-control", "PRIVATE=\"x\"")], Reason::Private),
        (&[("cache-control", "public, max-age=60, no-store")], Reason::NoStore),
        (&[("cache-control", "no-cache, max-age=60")], Reason::NoCache),
        (&[("cache-control", "max-age=60, no-cache=\"set-cookie\"")], Reason::NoCache),
        (&[FRESH, ("vary", "*")], Reason::VaryStar),
        (&[FRESH, ("vary", "a, *")], Reason::VaryStar),
        (&[FRESH, ("vary", ""), ("vary", "*")], Reason::VaryStar),
        (&[FRESH, ("vary", "a b")], Reason::VaryStar),
        (&[FRESH, ("vary", "a,b,c,d,e,f,g,h,i")], Reason::VaryTooMuch),
        (&[FRESH, ("set-cookie", "a=b")], Reason::SetCookie),
        (&[("cache-control", "public, s-maxage=60"), ("set-cookie", "a=b")], Reason::SetCookie),
        (&[FRESH, ("cdn-cache-control", "private")], Reason::Private),
        (&[FRESH, ("cdn-cache-control", "no-store")], Reason::NoStore),
    ] {
        assert_eq!(given(&[], 200, response), not(why), "{response:?}");
    }
}

#[test]
fn nothing_said_is_no_yes() {
    let key = [("x-api-key", "secret")];
    for status in [200, 404] {
        assert_eq!(given(&key, status, &[]), not(Reason::Unsaid), "{status}");
        assert_eq!(given(&key, status, &[("cache-control", "no-transform, must-revalidate")]), not(Reason::Unsaid));
        let tagged = judged(&key, status, &[("etag", "\"a\"")], &Route::default());
        assert_eq!(tagged.verdict, Verdict::NotShareable { why: Reason::Unsaid, store: true });
        assert_eq!(tagged.life.at(Tick::ZERO, &RequestDirectives::default()), Use::Alone);
        let aboard = Route { ttl: Some(Duration::ZERO), ..Route::default() };
        assert_eq!(judged(&key, status, &[], &aboard).verdict, ABOARD, "{status}");
        let all = Route { ttl: Some(Duration::from_secs(5)), ..Route::default() };
        assert_eq!(judged(&key, status, &[], &all).verdict, Verdict::Shareable, "{status}");
        assert_eq!(judged(&key, status, &[("cache-control", "private")], &all).verdict, not(Reason::Private));
    }
}

#[test]
fn what_is_kept_under_no_cache_is_asked_about_each_time() {
    let judged = judged(&[], 200, &[("cache-control", "no-cache, max-age=60"), ("etag", "\"a\"")], &Route::default());
    assert_eq!(judged.verdict, Verdict::NotShareable { why: Reason::NoCache, store: true });
    assert!(!judged.verdict.shares());
    assert_eq!(judged.life.at(Tick::ZERO, &RequestDirectives::default()), Use::Alone);
}

#[test]
fn the_targeted_field_is_the_one_that_counts() {
    let no_store = ("cache-control", "no-store");
    assert_eq!(given(&[], 200, &[no_store, ("cdn-cache-control", "max-age=60")]), Verdict::Shareable);
    assert_eq!(given(&[], 200, &[no_store, ("cdn-cache-control", "max-age=60, &&&")]), not(Reason::NoStore));
    assert_eq!(given(&[], 200, &[no_store, ("cdn-cache-control", "")]), not(Reason::NoStore));
    assert_eq!(given(&[], 200, &[FRESH, ("cdn-cache-control", "max-age=0")]), ABOARD);
    let expires = ("expires", "Thu, 18 Aug 2050 02:01:18 GMT");
    assert_eq!(given(&[], 200, &[expires, ("cdn-cache-control", "max-age=0")]), ABOARD);
    let says_nothing = given(&[], 200, &[no_store, ("cdn-cache-control", "max-age=\"60\"")]);
    assert_eq!(says_nothing, not(Reason::Unsaid));
}

#[test]
fn credentials_are_shared_only_by_explicit_word() {
    let auth = [("authorization", "Bearer x")];
    for (said, expected) in [
        ("max-age=60", not(Reason::Authorization)),
        ("max-age=60, public", Verdict::Shareable),
        ("max-age=60, must-revalidate", Verdict::Shareable),
        ("s-maxage=60", Verdict::Shareable),
        ("s-maxage=x, max-age=60", not(Reason::Authorization)),
        ("public, private, max-age=60", not(Reason::Private)),
        ("max-age=60, proxy-revalidate", not(Reason::Authorization)),
    ] {
        let judged = judged(&auth, 200, &[("cache-control", said)], &Route::default());
        assert_eq!(judged.verdict, expected, "{said}");
        // What such a request may not have given, it may not be given either.
        let may = class(&auth).may_have(&judged.life);
        assert_eq!(may && judged.verdict.shares(), expected == Verdict::Shareable, "{said}");
        assert_eq!(judged.life.is_for_all(), judged.terms.is_for_all());
    }
    assert!(!class(&auth).leads() && class(&auth).looks_up());
}

/// What a response says, and who shares it if it is asked for with a cookie: where cookies are private, by default, and where they
/// are ignored.
#[test]
fn whether_a_response_to_a_cookie_is_shared_follows_what_it_says_and_the_setting() {
    const ALL: Verdict = Verdict::Shareable;
    const STALE: Verdict = Verdict::AboardOnly { store: false };
    let modified = ("last-modified", "Thu, 18 Aug 2016 02:01:18 GMT");
    let expires = ("expires", "Thu, 18 Aug 2050 02:01:18 GMT");
    let ttl = Some(Duration::from_secs(5));
    for (response, private, share, ignore) in [
        (&[FRESH][..], not(Reason::Cookie), ALL, ALL),
        (&[("cache-control", "max-age=0")], not(Reason::Cookie), not(Reason::Cookie), ABOARD),
        (&[("cache-control", "max-age=0, must-revalidate")], not(Reason::Cookie), not(Reason::Cookie), STALE),
        (&[("expires", "Mon, 26 Jul 1997 05:00:00 GMT")], not(Reason::Cookie), not(Reason::Cookie), ABOARD),
        (&[("cache-control", "max-age=0, public")], ABOARD, ABOARD, ABOARD),
        (&[("cache-control", "max-age=60, must-revalidate")], not(Reason::Cookie), ALL, ALL),
        (&[expires], not(Reason::Cookie), ALL, ALL),
        (&[("cache-control", "max-age=60, public")], ALL, ALL, ALL),
        (&[("cache-control", "public"), modified], ALL, ALL, ALL),
        (&[("cache-control", "s-maxage=60")], ALL, ALL, ALL),
        (&[modified], not(Reason::Cookie), not(Reason::Cookie), ALL),
        // The route's time to live.
        (&[], not(Reason::Cookie), not(Reason::Cookie), ALL),
        (&[("expires", "0")], not(Reason::Unsaid), not(Reason::Unsaid), not(Reason::Unsaid)),
        (&[FRESH, ("set-cookie", "a=b")], not(Reason::SetCookie), not(Reason::SetCookie), not(Reason::SetCookie)),
        (&[FRESH, ("cache-control", "private")], not(Reason::Private), not(Reason::Private), not(Reason::Private)),
    ] {
        for (cookies, expected) in [(Cookies::Private, private), (Cookies::Share, share), (Cookies::Ignore, ignore)] {
            let route = Route { ttl, cookies, ..Route::default() };
            let to_a_cookie = judged(&[("cookie", "session=1")], 200, response, &route);
            assert_eq!(to_a_cookie.verdict, expected, "{cookies:?} {response:?}");
            // The other way round: what was asked for without cookies, a request with some may have if its own would be shared.
            let plain = judged(&[], 200, response, &route);
            let may = class(&[("cookie", "session=2")]).may_have(&plain.life);
            assert!(!plain.verdict.shares() || may == expected.shares(), "{cookies:?} {response:?}");
        }
    }
}

#[test]
fn a_body_that_was_one_users_is_not_confirmed_for_another_by_a_validator_that_all_have() {
    let cookie = [("cookie", "session=1")];
    for said in ["no-cache", "no-transform", "no-cache, max-age=60", "no-cache, max-age=0"] {
        let response = [("cache-control", said), ("etag", "\"template-7\"")];
        let given = given(&cookie, 200, &response);
        assert!(!given.stores() && !given.shares(), "{said}: {given:?}");
        assert!(given.why().is_some_and(|why| why != Reason::Cookie), "it says what is missing: {given:?}");
    }
}

#[test]
fn a_status_that_answers_one_request_is_for_one() {
    for (status, why) in [
        (103, Reason::Interim),
        (206, Reason::Partial),
        (304, Reason::Condition),
        (412, Reason::Condition),
        (416, Reason::Condition),
    ] {
        assert_eq!(given(&[], status, &[("cache-control", "public, max-age=60")]), not(why), "{status}");
    }
}

#[test]
fn an_error_one_header_can_provoke_is_not_for_others() {
    assert_eq!(given(&[], 429, &[FRESH]), not(Reason::Overload), "it is about one client");
    for status in [401, 403, 451] {
        let why = Reason::Status;
        assert_eq!(given(&[], status, &[]), not(why), "{status}");
        let modified = ("last-modified", "Thu, 18 Aug 2016 02:01:18 GMT");
        assert_eq!(given(&[], status, &[modified]), not(why), "{status}");
        let route = Route { ttl: Some(Duration::from_secs(60)), ..Route::default() };
        assert_eq!(judged(&[], status, &[], &route).verdict, not(why), "{status}");
        assert_eq!(given(&[], status, &[FRESH]), Verdict::Shareable, "{status}, by the origin's own word");
    }
    // Also against the origin's own word: error pages are often given the label that everything is.
    let condition = [412, 416];
    for status in
        [400, 405, 406, 407, 408, 411, 412, 413, 414, 415, 416, 417, 421, 422, 423, 424, 425, 426, 428, 431, 501, 505]
    {
        let why = if condition.contains(&status) { Reason::Condition } else { Reason::Status };
        for said in ["", "max-age=60", "public, max-age=60", "s-maxage=60"] {
            let response = [("cache-control", said), ("etag", "\"a\"")];
            assert_eq!(given(&[], status, &response), not(why), "{status} {said}");
            let route = Route { ttl: Some(Duration::from_secs(60)), ..Route::default() };
            assert_eq!(judged(&[], status, &response, &route).verdict, not(why), "{status} {said}");
        }
    }
}

#[test]
fn the_origin_failing_is_news_for_all_but_its_bytes_are_for_one() {
    for status in [500, 502, 503, 504, 520, 599] {
        assert_eq!(given(&[], status, &[]), Verdict::Failed(Reason::Error), "{status}");
        let no_store = [("cache-control", "no-store")];
        assert_eq!(given(&[], status, &no_store), Verdict::Failed(Reason::NoStore), "{status}");
        assert_eq!(given(&[], status, &[FRESH, ("set-cookie", "a=b")]), Verdict::Failed(Reason::SetCookie));
        assert_eq!(given(&[("content-length", "5")], status, &[]), not(Reason::Passed));
        assert_eq!(given(&[], status, &[FRESH]), Verdict::Shareable, "{status}, by the origin's own word");
        assert!(!given(&[], status, &[]).shares() && !given(&[], status, &[]).stores());
    }
}

#[test]
fn statuses_are_kept_as_they_may_be() {
    for status in [200, 203, 204, 299, 301, 302, 303, 307, 308, 404, 410, 499, 500, 502, 503, 504, 599] {
        assert_eq!(given(&[], status, &[FRESH]), Verdict::Shareable, "{status}");
        let past = ("expires", "Thu, 18 Aug 2016 02:01:18 GMT");
        assert_eq!(given(&[], status, &[past]), ABOARD, "{status}");
    }
    for status in [201, 202, 302, 303, 307, 403] {
        for unreadable in
            [&[][..], &[("expires", "0")], &[("cache-control", "max-age=x")], &[("cache-control", "x=\"y")]]
        {
            assert_eq!(given(&[], status, unreadable), not(Reason::Status), "{status}");
        }
    }
    let understood = [("cache-control", "max-age=60, no-store, must-understand")];
    assert_eq!(given(&[], 200, &understood), Verdict::Shareable);
    assert_eq!(given(&[], 299, &understood), not(Reason::NotUnderstood));
    assert_eq!(given(&[], 599, &understood), Verdict::Failed(Reason::NotUnderstood));
}

#[test]
fn a_line_that_nobody_can_read_does_not_make_a_response_last_longer_than_it_said() {
    // A route of its own times serves it stale for longer than half a minute, if nothing was said.
    let directives = |lines: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("cache-control", HeaderValue::from_static(line));
        }
        Directives::of_cache_control(&headers)
    };
    let said = directives(&["stale-if-error=30, stale-while-revalidate=30", "x=\"y"]);
    assert_eq!((said.if_error, said.while_revalidate), (Some(0), Some(0)));
    let unsaid = directives(&["x=\"y"]);
    assert_eq!((unsaid.if_error, unsaid.while_revalidate), (None, None));
}

#[test]
fn an_extension_in_the_path_means_nothing() {
    // The path is no argument of the verdict: what a page at /account/x.css says decides, not what it is called.
    assert_eq!(given(&[("cookie", "session=1")], 200, &[("content-type", "text/html")]), not(Reason::Unsaid));
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|why| why.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
}
