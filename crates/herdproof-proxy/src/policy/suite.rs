//! What the public suite of cache tests (http-tests/cache-tests) asks, as far as it is a matter of rules: each line is named as the
//! test there. A cache of a few lines runs them: one URL, and an origin that says what the line says.
//!
//! Where we decide otherwise the line says so and why.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use herdproof::Tick;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::{
    Class, Draws, Judged, Life, RequestDirectives, Route, Times, Use, classify, condition, hop, judge,
    vary::{Spec, Variant, Vary},
};

/// How long the suite waits between two requests that have time between them.
const PAUSE: u64 = 3;

type Fields<'a> = &'a [(&'a str, &'a str)];

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// What was stored.
    Cached,
    /// What was stored, and it is refreshed meanwhile.
    Stale,
    /// What the origin says is still right.
    Validated,
    /// What the origin sent.
    Sent,
    /// What was stored, because the origin failed.
    Rescued,
    /// That there is nothing.
    Nothing,
}

struct Stored {
    status: StatusCode,
    head: HeaderMap,
    life: Life,
    variant: Option<(Spec, Variant)>,
}

/// One URL's worth of cache.
struct Cache {
    seconds: u64,
    stored: Vec<Stored>,
    route: Route,
}

enum Origin<'a> {
    Answers(u16, Fields<'a>),
    Fails,
}

fn headers(fields: Fields<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

impl Cache {
    fn new() -> Cache {
        Cache { seconds: 1_000, stored: Vec::new(), route: Route { obey_clients: true, ..Route::default() } }
    }

    fn now(&self) -> Tick {
        Tick::ZERO + Duration::from_secs(self.seconds)
    }

    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + self.seconds)
    }

    fn times(&self) -> Times {
        Times { asked: self.now(), answered: self.now(), wall: self.wall() }
    }

    fn find(&self, class: &Class, request: &HeaderMap) -> Option<(usize, Use)> {
        let fits =
            |stored: &Stored| stored.variant.as_ref().is_none_or(|(spec, variant)| spec.matches(variant, request));
        let at = self.stored.iter().rposition(|stored| fits(stored) && class.may_have(&stored.life))?;
        Some((at, self.stored[at].life.at(self.now(), &class.asked)))
    }

    fn ask(&mut self, request: Fields<'_>, origin: &Origin<'_>) -> Got {
        let request = headers(request);
        let class = classify(&Method::GET, &request, &self.route);
        let found = self.find(&class, &request).filter(|_| class.looks_up());
        match found {
            Some((_, Use::Fresh | Use::Early)) => return Got::Cached,
            Some((_, Use::StaleWhile | Use::StaleAsked)) => return Got::Stale,
            _ if class.asked.only_if_cached() => return Got::Nothing,
            _ => {}
        }
        let Origin::Answers(status, fields) = *origin else {
            return if found.is_some_and(|(_, what)| what == Use::IfError) { Got::Rescued } else { Got::Nothing };
        };
        let mut response = headers(fields);
        let mut sent = request.clone();
        if let Some((at, _)) = found.filter(|(at, _)| condition::ask(&mut sent, &self.stored[*at].head)) {
            // This origin finds that nothing has changed.
            let stored = &self.stored[at];
            hop::strip(&mut response);
            let (head, judged) = condition::freshen(
                (stored.status, &stored.head),
                &response,
                &class,
                &self.route,
                &self.times(),
                Draws::default(),
            );
            let status = stored.status;
            self.stored.remove(at);
            self.keep(&request, status, head, &judged);
            return Got::Validated;
        }
        let status = StatusCode::from_u16(status).unwrap();
        let judged = judge(&class, status, &response, &self.route, &self.times(), Draws::default());
        hop::strip(&mut response);
        self.keep(&request, status, response, &judged);
        Got::Sent
    }

    fn keep(&mut self, request: &HeaderMap, status: StatusCode, head: HeaderMap, judged: &Judged) {
        if !judged.verdict.stores() {
            return;
        }
        let variant = match &judged.terms.vary {
            Vary::On(spec) => Some((spec.clone(), spec.variant(request))),
            _ => None,
        };
        self.stored.retain(|stored| stored.variant != variant);
        self.stored.push(Stored { status, head, life: judged.life, variant });
    }
}

/// Seconds from the beginning of the test, as a date.
fn at(seconds: i64) -> String {
    let base = i64::try_from(1_800_000_000 + Cache::new().seconds).unwrap();
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(u64::try_from(base + seconds).unwrap()))
}

/// What becomes of a second request like the first, after a pause.
fn again(status: u16, response: Fields<'_>) -> Got {
    twice(&[], status, response, &[])
}

fn twice(first: Fields<'_>, status: u16, response: Fields<'_>, second: Fields<'_>) -> Got {
    let mut cache = Cache::new();
    assert_eq!(cache.ask(first, &Origin::Answers(status, response)), Got::Sent);
    cache.seconds += PAUSE;
    cache.ask(second, &Origin::Answers(200, &[]))
}

#[track_caller]
fn check(lines: &[(&str, Fields<'_>, Got)]) {
    for (id, response, expected) in lines {
        assert_eq!(again(200, response), *expected, "{id}");
    }
}

fn cc(value: &str) -> (&str, &str) {
    ("cache-control", value)
}

#[test]
fn freshness_by_cache_control() {
    let (date, past, future) = (at(0), at(-7200), at(3600));
    let (date, past, future) = (("date", &*date), ("expires", &*past), ("expires", &*future));
    check(&[
        ("freshness-none", &[], Got::Sent),
        ("freshness-max-age", &[cc("max-age=3600")], Got::Cached),
        ("freshness-max-age-stale", &[cc("max-age=2")], Got::Sent),
        ("freshness-max-age-0", &[cc("max-age=0")], Got::Sent),
        ("freshness-max-age-max-minus-1", &[cc("max-age=2147483647")], Got::Cached),
        ("freshness-max-age-max", &[cc("max-age=2147483648")], Got::Cached),
        ("freshness-max-age-max-plus-1", &[cc("max-age=2147483649")], Got::Cached),
        ("freshness-max-age-max-plus", &[cc("max-age=99999999999")], Got::Cached),
        ("freshness-max-age-age", &[date, cc("max-age=3600"), ("age", "7200")], Got::Sent),
        ("freshness-max-age-date", &[("date", past.1), cc("max-age=3600")], Got::Sent),
        ("freshness-max-age-expires", &[cc("max-age=3600"), past, date], Got::Cached),
        ("freshness-max-age-expires-invalid", &[cc("max-age=3600"), ("expires", "0"), date], Got::Cached),
        ("freshness-max-age-0-expires", &[future, cc("max-age=0"), date], Got::Sent),
        ("freshness-max-age-extension", &[cc("foobar, max-age=3600")], Got::Cached),
        ("freshness-max-age-case-insenstive", &[cc("MaX-aGe=3600")], Got::Cached),
        ("freshness-max-age-negative", &[cc("max-age=-3600")], Got::Sent),
        ("freshness-s-maxage-shared", &[cc("s-maxage=3600")], Got::Cached),
        ("freshness-max-age-s-maxage-shared-longer", &[cc("max-age=3600, s-maxage=1")], Got::Sent),
        ("freshness-max-age-s-maxage-shared-longer-reversed", &[cc("s-maxage=1, max-age=3600")], Got::Sent),
        ("freshness-max-age-s-maxage-shared-longer-multiple", &[cc("max-age=3600"), cc("s-maxage=1")], Got::Sent),
        ("freshness-max-age-s-maxage-shared-shorter", &[cc("max-age=1, s-maxage=3600")], Got::Cached),
        ("freshness-max-age-s-maxage-shared-shorter-expires", &[past, cc("max-age=0, s-maxage=3600")], Got::Cached),
    ]);
}

#[test]
fn parsing_of_cache_control() {
    check(&[
        ("freshness-max-age-two-fresh-stale-sameline", &[cc("max-age=1800, max-age=1")], Got::Sent),
        ("freshness-max-age-two-fresh-stale-sepline", &[cc("max-age=1800"), cc("max-age=1")], Got::Sent),
        ("freshness-max-age-two-stale-fresh-sameline", &[cc("max-age=1, max-age=1800")], Got::Sent),
        ("freshness-max-age-two-stale-fresh-sepline", &[cc("max-age=1"), cc("max-age=1800")], Got::Sent),
        ("freshness-max-age-quoted", &[cc("max-age=\"3600\"")], Got::Cached),
        ("freshness-max-age-ignore-quoted", &[cc("extension=\"max-age=3600\", max-age=1")], Got::Sent),
        ("freshness-max-age-ignore-quoted-rev", &[cc("max-age=1, extension=\"max-age=3600\"")], Got::Sent),
        ("freshness-max-age-space-before-equals", &[cc("max-age =3600")], Got::Sent),
        ("freshness-max-age-space-after-equals", &[cc("max-age= 3600")], Got::Sent),
        ("freshness-max-age-leading-zero", &[cc("max-age=003600")], Got::Cached),
        ("freshness-max-age-single-quoted", &[cc("max-age='3600'")], Got::Sent),
        ("freshness-max-age-decimal-zero", &[cc("max-age=3600.0")], Got::Sent),
        ("freshness-max-age-decimal-five", &[cc("max-age=3600.5")], Got::Sent),
        ("freshness-max-age-a100", &[cc("max-age=a3600")], Got::Sent),
        ("freshness-max-age-100a", &[cc("max-age=3600a")], Got::Sent),
    ]);
}

#[test]
fn parsing_of_age() {
    let date = at(0);
    for (id, ages, expected) in [
        ("age-parse-nonnumeric", &["abc"][..], Got::Cached),
        ("age-parse-negative", &["-7200"], Got::Cached),
        ("age-parse-float", &["7200.0"], Got::Cached),
        ("age-parse-large-minus-one", &["2147483647"], Got::Sent),
        ("age-parse-large", &["2147483648"], Got::Sent),
        ("age-parse-larger", &["2147483649"], Got::Sent),
        ("age-parse-suffix", &["7200, 0"], Got::Sent),
        ("age-parse-prefix", &["0, 7200"], Got::Cached),
        ("age-parse-suffix-twoline", &["7200", "0"], Got::Sent),
        ("age-parse-prefix-twoline", &["0", "7200"], Got::Cached),
        ("age-parse-dup-0", &["0, 0"], Got::Cached),
        ("age-parse-dup-0-twoline", &["0", "0"], Got::Cached),
        ("age-parse-dup-old", &["1800", "1800"], Got::Cached),
        ("age-parse-parameter", &["7200;foo=bar"], Got::Cached),
        ("age-parse-numeric-parameter", &["7200;foo=111"], Got::Cached),
    ] {
        let mut fields = vec![("date", &*date), cc("max-age=3600")];
        fields.extend(ages.iter().map(|age| ("age", *age)));
        assert_eq!(again(200, &fields), expected, "{id}");
    }
}

#[test]
fn freshness_by_expires() {
    for (id, expires, date, age, expected) in [
        ("freshness-expires-future", at(2_592_000), at(0), "0", Got::Cached),
        ("freshness-expires-past", at(-2_592_000), at(0), "0", Got::Sent),
        ("freshness-expires-present", at(0), at(0), "0", Got::Sent),
        ("freshness-expires-old-date", at(300), at(400), "0", Got::Sent),
        ("freshness-expires-invalid", "0".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-date", at(10), "foo".into(), "0", Got::Cached),
        ("freshness-expires-age-slow-date", at(10), at(-10), "25", Got::Sent),
        ("freshness-expires-age-fast-date", at(20), at(10), "15", Got::Sent),
        ("freshness-expires-32bit", "Tue, 19 Jan 2038 14:14:08 GMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-far-future", "Sun, 21 Nov 2286 04:46:39 GMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-rfc850", "Thursday, 18-Aug-50 02:01:18 GMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-ansi-c", "Thu Aug  8 02:01:18 2050".into(), at(0), "0", Got::Cached),
        ("freshness-expires-wrong-case-weekday", "THU, 18 Aug 2050 02:01:18 GMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-wrong-case-month", "Thu, 18 AUG 2050 02:01:18 GMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-wrong-case-tz", "Thu, 18 Aug 2050 02:01:18 gMT".into(), at(0), "0", Got::Cached),
        ("freshness-expires-invalid-utc", "Thu, 18 Aug 2050 02:01:18 UTC".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-aest", "Thu, 18 Aug 2050 02:01:18 AEST".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-2-digit-year", "Thu, 18 Aug 50 02:01:18 GMT".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-no-comma", "Thu 18 Aug 2050 02:01:18 GMT".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-multiple-spaces", "Thu, 18  Aug  2050 02:01:18 GMT".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-date-dashes", "Thu, 18-Aug-2050 02:01:18 GMT".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-time-periods", "Thu, 18 Aug 2050 02.01.18 GMT".into(), at(0), "0", Got::Sent),
        ("freshness-expires-invalid-1-digit-hour", "Thu, 18 Aug 2050 2:01:18 GMT".into(), at(0), "0", Got::Sent),
    ] {
        assert_eq!(again(200, &[("expires", &expires), ("date", &date), ("age", age)]), expected, "{id}");
    }
}

#[test]
fn directives_of_responses() {
    let (future, date, tag) = (at(10_000), at(0), ("etag", "\"abcd\""));
    let (future, date) = (("expires", &*future), ("date", &*date));
    check(&[
        ("cc-resp-private-shared", &[cc("private, max-age=3600")], Got::Sent),
        ("cc-resp-no-store", &[cc("no-store")], Got::Sent),
        ("cc-resp-no-store-case-insensitive", &[cc("No-StOrE")], Got::Sent),
        ("cc-resp-no-store-fresh", &[cc("max-age=10000, no-store"), future, date], Got::Sent),
        ("cc-resp-no-cache", &[cc("max-age=10000, no-cache"), future, date], Got::Sent),
        ("cc-resp-no-cache-case-insensitive", &[cc("max-age=10000, No-CaChE"), future, date], Got::Sent),
        ("cc-resp-no-cache-revalidate", &[cc("no-cache"), tag], Got::Validated),
        ("cc-resp-no-cache-revalidate-fresh", &[cc("max-age=10000, no-cache"), future, date, tag], Got::Validated),
        ("cc-resp-must-revalidate-fresh", &[cc("max-age=10000, must-revalidate"), tag], Got::Cached),
        ("cc-resp-must-revalidate-stale", &[cc("max-age=2, must-revalidate"), tag], Got::Validated),
        // Checked there, and answered otherwise here: a field in quotes counts as all of them.
        (
            "headers-omit-headers-listed-in-Cache-Control-no-cache",
            &[cc("no-cache=\"a\""), cc("max-age=3600"), date],
            Got::Sent,
        ),
    ]);
}

#[test]
fn stale_responses() {
    for (id, said, expected) in [
        ("stale-close", "max-age=2", Got::Rescued),
        ("stale-sie-close", "max-age=2, stale-if-error=60", Got::Rescued),
        ("stale-while-revalidate", "max-age=1, stale-while-revalidate=3600", Got::Stale),
        ("stale-close-must-revalidate", "max-age=2, must-revalidate", Got::Nothing),
        ("stale-close-proxy-revalidate", "max-age=2, proxy-revalidate", Got::Nothing),
        ("stale-close-no-cache", "max-age=2, no-cache", Got::Nothing),
        ("stale-close-s-maxage=2", "max-age=2, s-maxage=2", Got::Nothing),
    ] {
        let mut cache = Cache::new();
        cache.ask(&[], &Origin::Answers(200, &[cc(said)]));
        cache.seconds += PAUSE;
        assert_eq!(cache.ask(&[], &Origin::Fails), expected, "{id}");
    }
    let mut cache = Cache::new();
    cache.ask(&[], &Origin::Answers(200, &[cc("max-age=1, stale-while-revalidate=4"), ("etag", "\"abc\"")]));
    cache.seconds += 2 * PAUSE;
    assert_eq!(cache.ask(&[], &Origin::Answers(200, &[])), Got::Validated, "stale-while-revalidate-window");
}

#[test]
fn freshness_by_guess() {
    let (modified, date) = (at(-24 * 3600), at(0));
    for (status, said, expected) in [
        (200, "", Got::Cached),
        (201, "", Got::Sent),
        (202, "", Got::Sent),
        (203, "", Got::Cached),
        (204, "", Got::Cached),
        (403, "", Got::Sent),
        (404, "", Got::Cached),
        // Reused by an optimal cache; not by this one, for a request's own head can provoke it.
        (405, "", Got::Sent),
        (410, "", Got::Cached),
        // As 405.
        (414, "", Got::Sent),
        (501, "", Got::Sent),
        (502, "", Got::Sent),
        (503, "", Got::Sent),
        (504, "", Got::Sent),
        (599, "", Got::Sent),
        (599, "public", Got::Cached),
    ] {
        let fields = [("last-modified", &*modified), ("date", &*date), cc(said)];
        assert_eq!(again(status, &fields), expected, "heuristic-{status}");
    }
    for (delta, expected) in
        [(5, Got::Validated), (30, Got::Validated), (31, Got::Cached), (60, Got::Cached), (86_400, Got::Cached)]
    {
        let modified = at(-delta);
        assert_eq!(again(200, &[("last-modified", &modified), ("date", &date)]), expected, "heuristic-delta-{delta}");
    }
}

#[test]
fn statuses() {
    let (date, past, modified) = (at(0), at(-5000), at(-100_000));
    // Not 400, which an optimal cache reuses: a request's own head can provoke it.
    for status in [200, 203, 204, 299, 301, 302, 303, 307, 308, 404, 410, 499, 500, 502, 503, 504, 599] {
        assert_eq!(again(status, &[cc("max-age=100000"), ("date", &date)]), Got::Cached, "status-{status}-fresh");
        let stale = [("expires", &*past), ("last-modified", &*modified), ("date", &*date)];
        assert_eq!(again(status, &stale), Got::Validated, "status-{status}-stale");
    }
    let said = [cc("max-age=3600, no-store, must-understand")];
    assert_eq!(again(599, &said), Got::Sent, "status-599-must-understand");
    assert_eq!(again(200, &said), Got::Cached, "status-200-must-understand");
}

#[test]
fn directives_of_requests() {
    let (modified, date) = (at(-10_000), at(0));
    let fresh = [cc("max-age=3600")];
    for (id, response, request, expected) in [
        ("ccreq-ma0", &fresh[..], cc("max-age=0"), Got::Sent),
        ("ccreq-ma1", &fresh, cc("max-age=1"), Got::Sent),
        ("ccreq-magreaterage", &[cc("max-age=3600"), ("age", "1800")], cc("max-age=600"), Got::Sent),
        ("ccreq-max-stale", &[cc("max-age=1")], cc("max-stale=1000"), Got::Stale),
        ("ccreq-max-stale-age", &[cc("max-age=1500"), ("age", "2000")], cc("max-stale=1000"), Got::Stale),
        ("ccreq-min-fresh", &[cc("max-age=1500")], cc("min-fresh=2000"), Got::Sent),
        ("ccreq-min-fresh-age", &[cc("max-age=1500"), ("age", "1000")], cc("min-fresh=1000"), Got::Sent),
        ("ccreq-no-cache", &fresh, cc("no-cache"), Got::Sent),
        (
            "ccreq-no-cache-lm",
            &[cc("max-age=3600"), ("last-modified", &modified), ("date", &date)],
            cc("no-cache"),
            Got::Validated,
        ),
        ("ccreq-no-cache-etag", &[cc("max-age=3600"), ("etag", "\"a\"")], cc("no-cache"), Got::Validated),
        // RFC 9111 5.2.1.5 is about keeping the answer: what is kept already may be used.
        ("ccreq-no-store", &fresh, cc("no-store"), Got::Cached),
        ("pragma-request-no-cache", &fresh, ("pragma", "no-cache"), Got::Sent),
        ("pragma-request-extension", &fresh, ("pragma", "unrecognised-extension"), Got::Cached),
        ("pragma-response-no-cache", &[cc("max-age=3600"), ("pragma", "no-cache")], ("x", "x"), Got::Cached),
        ("pragma-response-extension", &[cc("max-age=3600"), ("pragma", "x")], ("x", "x"), Got::Cached),
    ] {
        assert_eq!(twice(&[], 200, response, &[request]), expected, "{id}");
    }
    let mut empty = Cache::new();
    assert_eq!(empty.ask(&[cc("only-if-cached")], &Origin::Answers(200, &[])), Got::Nothing, "ccreq-oic");
}

#[test]
fn variants() {
    let (modified, date) = (at(-3000), at(0));
    let base = [cc("max-age=5000"), ("last-modified", &*modified), ("date", &*date)];
    for (id, vary, first, second, expected) in [
        ("vary-match", &["Foo"][..], &[("foo", "1")][..], &[("foo", "1")][..], Got::Cached),
        ("vary-no-match", &["Foo"], &[("foo", "1")], &[("foo", "2")], Got::Sent),
        ("vary-omit-stored", &["Foo"], &[], &[("foo", "1")], Got::Sent),
        ("vary-omit", &["Foo"], &[("foo", "1")], &[], Got::Sent),
        ("vary-cache-key", &["Foo"], &[("foo", "1"), ("other", "2")], &[("foo", "1"), ("other", "3")], Got::Cached),
        ("vary-2-match", &["Foo, Bar"], &[("foo", "1"), ("bar", "abc")], &[("foo", "1"), ("bar", "abc")], Got::Cached),
        ("vary-2-no-match", &["Foo, Bar"], &[("foo", "1"), ("bar", "abc")], &[("foo", "2"), ("bar", "abc")], Got::Sent),
        ("vary-2-match-omit", &["Foo, Bar"], &[("foo", "1"), ("bar", "abc")], &[], Got::Sent),
        (
            "vary-3-order",
            &["Foo, Bar, Baz"],
            &[("foo", "1"), ("bar", "a"), ("baz", "7")],
            &[("foo", "1"), ("baz", "7"), ("bar", "ae")],
            Got::Sent,
        ),
        ("vary-3-omit", &["Foo, Bar, Baz"], &[("foo", "1"), ("baz", "7")], &[("foo", "1"), ("baz", "7")], Got::Cached),
        ("vary-star", &["*"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-star-star", &["*, *"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-star-star-lines", &["*", "*"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-empty-star", &[", *"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-empty-star-lines", &["", "*"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-star-foo", &["*, Foo"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-syntax-foo-star", &["Foo, *"], &[("foo", "1")], &[("foo", "1")], Got::Sent),
        ("vary-normalise-combine", &["Foo"], &[("foo", "1, 2")], &[("foo", "1"), ("foo", "2")], Got::Cached),
        ("vary-normalise-space", &["Foo"], &[("foo", "1,2")], &[("foo", " 1, 2 ")], Got::Cached),
        (
            "vary-normalise-lang-order",
            &["Accept-Language"],
            &[("accept-language", "en, de")],
            &[("accept-language", "de, en")],
            Got::Cached,
        ),
        (
            "vary-normalise-lang-case",
            &["Accept-Language"],
            &[("accept-language", "en, de")],
            &[("accept-language", "eN, De")],
            Got::Cached,
        ),
        (
            "vary-normalise-lang-space",
            &["Accept-Language"],
            &[("accept-language", "en, de")],
            &[("accept-language", " en ,   de")],
            Got::Cached,
        ),
        // Reused by an optimal cache; here the origin chooses the language, not we.
        (
            "vary-normalise-lang-select",
            &["Accept-Language"],
            &[("accept-language", "en, de")],
            &[("accept-language", "fr;q=0.5, de;q=1.0")],
            Got::Sent,
        ),
    ] {
        let mut response = base.to_vec();
        response.extend(vary.iter().map(|line| ("vary", *line)));
        assert_eq!(twice(first, 200, &response, second), expected, "{id}");
    }
    let mut cache = Cache::new();
    let response = [base[0], base[1], base[2], ("vary", "Foo")];
    for foo in ["1", "2"] {
        assert_eq!(cache.ask(&[("foo", foo)], &Origin::Answers(200, &response)), Got::Sent);
    }
    assert_eq!(cache.ask(&[("foo", "1")], &Origin::Answers(200, &response)), Got::Cached, "vary-invalidate");
}

#[test]
fn credentials_and_cookies() {
    let auth = [("authorization", "FOO")];
    for (id, first, said, second, expected) in [
        ("other-authorization", &auth[..], "max-age=100000", &[][..], Got::Sent),
        ("other-authorization-public", &auth, "max-age=3600, public", &[], Got::Cached),
        ("other-authorization-must-revalidate", &auth, "max-age=3600, must-revalidate", &[], Got::Cached),
        ("other-authorization-smaxage", &auth, "s-maxage=3600", &[], Got::Cached),
        ("other-cookie", &[], "max-age=100000", &[("cookie", "a=b")], Got::Cached),
    ] {
        assert_eq!(twice(first, 200, &[cc(said)], second), expected, "{id}");
    }
    // Reused by an optimal cache, and by this one where the route says so: else one user's session would be everybody's.
    assert_eq!(again(200, &[cc("max-age=100000"), ("set-cookie", "a=b")]), Got::Sent, "other-set-cookie");
    let mut told = Cache { route: Route { share_set_cookie: true, ..Route::default() }, ..Cache::new() };
    let cookie = Origin::Answers(200, &[cc("max-age=100000"), ("set-cookie", "a=b")]);
    told.ask(&[], &cookie);
    assert_eq!(told.ask(&[], &cookie), Got::Cached, "other-set-cookie");
    assert_eq!(told.stored[0].head["set-cookie"], "a=b", "headers-store-Set-Cookie");
}

#[test]
fn the_targeted_field() {
    let (past, future, date) = (at(-10_000), at(10_000), at(0));
    let (past, future, date) = (("expires", &*past), ("expires", &*future), ("date", &*date));
    let cdn = |value| ("cdn-cache-control", value);
    check(&[
        ("cdn-max-age", &[cdn("max-age=3600")], Got::Cached),
        ("cdn-max-age-max", &[cdn("max-age=2147483648")], Got::Cached),
        ("cdn-max-age-max-plus", &[cdn("max-age=99999999999")], Got::Cached),
        ("cdn-max-age-age", &[date, cdn("max-age=3600"), ("age", "7200")], Got::Sent),
        ("cdn-max-age-space-before-equals", &[cc("max-age=1"), cdn("max-age =100")], Got::Sent),
        ("cdn-max-age-space-after-equals", &[cc("max-age=1"), cdn("max-age= 100")], Got::Sent),
        ("cdn-max-age-0", &[cdn("max-age=0")], Got::Sent),
        ("cdn-max-age-extension", &[cdn("foobar, max-age=3600")], Got::Cached),
        // A key in capitals is not one: RFC 8941.
        ("cdn-max-age-case-insensitive", &[cdn("MaX-aGe=3600")], Got::Sent),
        ("cdn-max-age-expires", &[cdn("max-age=3600"), past, date], Got::Cached),
        ("cdn-max-age-cc-max-age-invalid-expires", &[cdn("max-age=3600"), ("expires", "0"), date], Got::Cached),
        ("cdn-max-age-0-expires", &[cdn("max-age=0"), future, date], Got::Sent),
        ("cdn-max-age-short-cc-max-age", &[cc("max-age=1"), cdn("max-age=3600")], Got::Cached),
        ("cdn-max-age-long-cc-max-age", &[cc("max-age=3600"), cdn("max-age=1")], Got::Sent),
        ("cdn-private", &[cdn("private"), cc("max-age=10000"), future, date], Got::Sent),
        ("cdn-no-cache", &[cdn("no-cache"), cc("max-age=10000"), future, date], Got::Sent),
        ("cdn-no-store-cc-fresh", &[cc("max-age=10000"), cdn("no-store"), future, date], Got::Sent),
        ("cdn-fresh-cc-nostore", &[cc("no-store"), cdn("max-age=10000")], Got::Cached),
        ("cdn-cc-invalid-sh-type-unknown", &[cdn("max-age=10000, &&&&&"), cc("no-store")], Got::Sent),
        ("cdn-cc-invalid-sh-type-wrong", &[cdn("max-age=\"10000\""), cc("no-store")], Got::Sent),
    ]);
}

#[test]
fn fields_that_are_kept_and_fields_that_are_not() {
    let kept = |response: Fields<'_>| {
        let mut cache = Cache::new();
        cache.ask(&[], &Origin::Answers(200, response));
        cache.stored.remove(0).head
    };
    let head = kept(&[cc("max-age=60"), ("connection", "a, b"), ("a", "1"), ("b", "2"), ("c", "3")]);
    assert_eq!(head, headers(&[cc("max-age=60"), ("c", "3")]), "headers-omit-headers-listed-in-Connection");
    for name in [
        "Connection",
        "Keep-Alive",
        "Proxy-Authenticate",
        "Proxy-Authentication-Info",
        "Proxy-Authorization",
        "Proxy-Connection",
        "TE",
        "Transfer-Encoding",
        "Upgrade",
    ] {
        assert!(!kept(&[cc("max-age=60"), (name, "x")]).contains_key(name), "headers-store-{name}");
    }
    for name in [
        "Test-Header",
        "X-Test-Header",
        "Content-Foo",
        "X-Content-Foo",
        "Content-Encoding",
        "Content-Location",
        "Content-MD5",
        "Content-Range",
        "Content-Security-Policy",
        "Content-Type",
        "Clear-Site-Data",
        "ETag",
        "Public-Key-Pins",
        "Set-Cookie2",
        "X-Frame-Options",
        "X-XSS-Protection",
    ] {
        assert_eq!(kept(&[cc("max-age=60"), (name, "x")])[name], "x", "headers-store-{name}");
    }
}

#[test]
fn fields_that_a_304_updates() {
    let updated = |name: &str| {
        let mut cache = Cache::new();
        let date = at(0);
        let said = |value| [("date", &*date), (name, value), cc("max-age=2"), ("etag", "\"a\"")];
        cache.ask(&[], &Origin::Answers(200, &said("A")));
        cache.seconds += PAUSE;
        assert_eq!(cache.ask(&[], &Origin::Answers(304, &said("B"))), Got::Validated);
        cache.stored[0].head[name] == "B"
    };
    for name in [
        "Test-Header",
        "X-Test-Header",
        "Content-Foo",
        "X-Content-Foo",
        "Content-Location",
        "Content-MD5",
        "Content-Security-Policy",
        "Content-Type",
        "Clear-Site-Data",
        "Public-Key-Pins",
        "Set-Cookie2",
        "X-Frame-Options",
        "X-XSS-Protection",
    ] {
        assert!(updated(name), "304-etag-update-response-{name}");
    }
    // The last two are checked there, and answered otherwise here: they describe the bytes that are stored.
    for name in ["Content-Length", "Content-Encoding", "Content-Range"] {
        assert!(!updated(name), "304-etag-update-response-{name}");
    }
    let mut cache = Cache::new();
    cache.ask(&[], &Origin::Answers(200, &[cc("max-age=1"), ("etag", "\"a\"")]));
    cache.seconds += PAUSE;
    cache.ask(&[], &Origin::Answers(304, &[cc("max-age=3600"), ("etag", "\"a\"")]));
    assert_eq!(cache.ask(&[], &Origin::Fails), Got::Cached, "304-etag-update-response-Cache-Control");
}

#[test]
fn ages_that_are_told() {
    for (id, said, age) in [("other-age-gen", "0", 3), ("other-age-update-max-age", "30", 33)] {
        let mut cache = Cache::new();
        cache.ask(&[], &Origin::Answers(200, &[cc("max-age=100000"), ("age", said)]));
        cache.seconds += PAUSE;
        assert_eq!(cache.stored[0].life.age(cache.now()), age, "{id}");
        assert_eq!(cache.stored[0].life.at(cache.now(), &RequestDirectives::default()), Use::Fresh);
    }
}
