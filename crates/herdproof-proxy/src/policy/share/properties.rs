//! The sharing table against chance: every way to write a header, and a second telling of the table.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use herdproof::Tick;
use http::{HeaderName, HeaderValue, Request, Response};
use http_cache_semantics::CachePolicy;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

const WALL: u64 = 1_800_000_000;

/// Directives as they are written when they are written right, and some that mean nothing.
const DIRECTIVES: [&str; 19] = [
    "private",
    "private=\"x, y\"",
    "no-store",
    "no-cache",
    "no-cache=\"set-cookie\"",
    "public",
    "must-revalidate",
    "proxy-revalidate",
    "must-understand",
    "max-age=60",
    "max-age=5",
    "max-age=0",
    "s-maxage=60",
    "s-maxage=0",
    "stale-while-revalidate=30",
    "stale-if-error=30",
    "immutable",
    "x-unknown=\"max-age=99, public\"",
    "no-transform",
];

fn route() -> Route {
    Route { jitter: 0.0, early: false, ..Route::default() }
}

fn times() -> Times {
    let now = Tick::ZERO + Duration::from_secs(100);
    Times { asked: now, answered: now, wall: wall() }
}

fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(WALL)
}

fn headers(fields: &[(String, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

fn judged(request: &HeaderMap, status: u16, response: &HeaderMap) -> Judged {
    let class = classify(&Method::GET, request, &route());
    judge(&class, StatusCode::from_u16(status).unwrap(), response, &route(), &times(), Draws::default())
}

/// How much a verdict gives away. What matters to others is whether they get it, and for how long.
fn gives(judged: &Judged) -> (u8, Duration, Duration) {
    let now = times().answered;
    match judged.verdict {
        Verdict::Shareable => (2, judged.life.fresh_for(now), judged.life.servable_for(now)),
        Verdict::AboardOnly { .. } => (1, Duration::ZERO, judged.life.servable_for(now)),
        Verdict::NotShareable { .. } | Verdict::Failed(_) => (0, Duration::ZERO, Duration::ZERO),
    }
}

fn gives_no_more(changed: &Judged, original: &Judged) -> bool {
    let (changed, original) = (gives(changed), gives(original));
    changed.0 <= original.0 && changed.1 <= original.1 && changed.2 <= original.2
}

/// How a list is written: the same list.
#[derive(Clone, Debug)]
struct Hand {
    /// Whether to begin a new line before an element.
    breaks: Vec<bool>,
    gaps: Vec<&'static str>,
    shout: Vec<bool>,
    /// Which elements are said twice.
    again: Vec<bool>,
}

fn hand() -> impl Strategy<Value = Hand> {
    let gaps = vec(select(&["", " ", "\t", "  ", ",", " , ,"][..]), 12);
    (vec(any::<bool>(), 12), gaps, vec(any::<bool>(), 12), vec(proptest::bool::weighted(0.2), 12))
        .prop_map(|(breaks, gaps, shout, again)| Hand { breaks, gaps, shout, again })
}

impl Hand {
    fn write(&self, name: &str, elements: &[&str]) -> Vec<(String, String)> {
        let mut lines: Vec<String> = Vec::new();
        let mut all: Vec<&str> = elements.to_vec();
        all.extend(elements.iter().zip(&self.again).filter(|(_, again)| **again).map(|(element, _)| *element));
        for (n, element) in all.iter().enumerate() {
            let n = n % 12;
            let name_ends = element.find('=').unwrap_or(element.len());
            let (directive, value) = element.split_at(name_ends);
            let directive = if self.shout[n] { directive.to_uppercase() } else { directive.to_owned() };
            let written = format!("{}{directive}{value}{}", self.gaps[n], self.gaps[11 - n]);
            match lines.last_mut() {
                Some(line) if !self.breaks[n] => *line = format!("{line},{written}"),
                _ => lines.push(written),
            }
        }
        lines.into_iter().map(|line| (name.to_owned(), line)).collect()
    }
}

fn plainly(name: &str, elements: &[&str]) -> Vec<(String, String)> {
    elements.iter().map(|element| (name.to_owned(), (*element).to_owned())).collect()
}

fn response() -> impl Strategy<Value = (u16, Vec<&'static str>, Vec<(String, String)>)> {
    let others = [
        ("set-cookie", "a=b"),
        ("vary", "accept-encoding"),
        ("vary", "*"),
        ("age", "30"),
        ("expires", "Thu, 18 Aug 2050 02:01:18 GMT"),
        ("expires", "0"),
        ("last-modified", "Thu, 18 Aug 2016 02:01:18 GMT"),
        ("etag", "\"a\""),
        ("cdn-cache-control", "max-age=30"),
        ("cdn-cache-control", "private"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let status = select(&[200, 200, 200, 204, 206, 301, 302, 304, 403, 404, 429, 500, 501, 503, 599][..]);
    (status, vec(select(&DIRECTIVES[..]), 0..6), vec(select(others.to_vec()), 0..3))
}

fn request() -> impl Strategy<Value = Vec<(String, String)>> {
    let fields = [("authorization", "x"), ("cookie", "a=b"), ("range", "bytes=0-1"), ("if-none-match", "\"a\"")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    vec(select(fields.to_vec()), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    /// Case, lines, spaces and repetitions change nothing.
    #[test]
    fn the_verdict_does_not_depend_on_the_hand(asked in request(), (status, said, others) in response(), hand in hand()) {
        let (mut plain, mut written) = (plainly("cache-control", &said), hand.write("cache-control", &said));
        plain.extend(others.clone());
        written.extend(others);
        let (plain, written) = (judged(&headers(&asked), status, &headers(&plain)), judged(&headers(&asked), status, &headers(&written)));
        prop_assert_eq!(plain.verdict, written.verdict);
        prop_assert_eq!(gives(&plain), gives(&written));
    }

    /// What is no longer written right permits no more than what was.
    #[test]
    fn a_slip_of_the_pen_gives_nothing_away(
        asked in request(),
        (status, said, others) in response(),
        slips in vec((any::<prop::sample::Index>(), select(&["\"", " = ", "=", "'", ".", "-", "x", " ", "\\"][..])), 1..4),
    ) {
        let mut plain = plainly("cache-control", &said);
        plain.extend(others.clone());
        // A slip in the value of what permits, or anything after what forbids; never inside a name, for then it is another.
        let mut slipped: Vec<(String, String)> = plainly("cache-control", &said);
        for (which, slip) in slips {
            if slipped.is_empty() {
                break;
            }
            let at = which.index(slipped.len());
            let line = &mut slipped[at].1;
            if line.contains('=') || !matches!(slip, "'" | "." | "-" | "x" | "\\") {
                line.push_str(slip);
            }
        }
        slipped.extend(others);
        let (plain, slipped) = (judged(&headers(&asked), status, &headers(&plain)), judged(&headers(&asked), status, &headers(&slipped)));
        prop_assert!(gives_no_more(&slipped, &plain), "{:?} {:?}", slipped.verdict, plain.verdict);
    }

    /// One directive more that forbids, or one line more that says something about one user.
    #[test]
    fn what_forbids_never_gives_more(asked in request(), (status, said, others) in response(), more in select(&[
        ("cache-control", "Private"), ("cache-control", "no-STORE"), ("cache-control", "no-cache=\"x\""), ("set-cookie", "a"), ("vary", "*"),
        ("vary", "x, *"), ("cache-control", "must-revalidate"), ("cache-control", "x=\"y"), ("cache-control", "max-age=1"), ("expires", "x"),
    ][..])) {
        let mut before = plainly("cache-control", &said);
        before.extend(others);
        // `must-revalidate` also allows what RFC 9111 3.5 lists.
        let asked = headers(&asked);
        prop_assume!(more.1 != "must-revalidate" || !asked.contains_key("authorization"));
        let mut after = before.clone();
        after.push((more.0.to_owned(), more.1.to_owned()));
        let (before, after) = (judged(&asked, status, &headers(&before)), judged(&asked, status, &headers(&after)));
        // What says how long it is fresh can only shorten what said so already.
        let says_time = matches!(more.1, "max-age=1" | "x=\"y" | "x");
        let said_time = if more.0 == "expires" { before.terms.is_explicit() } else { before.terms.directives.max_age.is_some() };
        prop_assume!(!says_time || said_time);
        prop_assert!(gives_no_more(&after, &before), "{:?} {:?}", after.verdict, before.verdict);
    }

    /// The table of the issue, told again from the other end: a list of all who may have it.
    #[test]
    fn the_table_told_twice_is_the_same_table(asked in request(), (status, said, others) in response()) {
        let mut response = plainly("cache-control", &said);
        response.extend(others.clone());
        let judged = judged(&headers(&asked), status, &headers(&response));

        let cdn = others.iter().rfind(|(name, _)| name == "cdn-cache-control").map(|_| {
            others.iter().filter(|(name, _)| name == "cdn-cache-control").map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        });
        let says = cdn.clone().unwrap_or(said);
        let any = |wanted: &[&str]| says.iter().any(|each| wanted.iter().any(|wanted| each.split('=').next() == Some(*wanted)));
        let has = |name: &str| others.iter().any(|(each, _)| each == name);
        let asks = |name: &str| asked.iter().any(|(each, _)| each == name);
        let understood = !matches!(status, 429 | 599);

        let dates: Vec<&str> = others.iter().filter(|(name, _)| name == "expires").map(|(_, value)| value.as_str()).collect();
        let dated = cdn.is_none() && !dates.is_empty() && !dates.contains(&"0");
        let timed = any(&["max-age", "s-maxage"]) || dated;
        let explicit = Terms::read(StatusCode::from_u16(status).unwrap(), &headers(&response)).explicit(wall());
        let lasts = explicit.is_some_and(|time| !time.is_zero());
        let for_one = any(&["private"])
            || any(&["no-store"]) && !any(&["must-understand"])
            || any(&["must-understand"]) && !understood
            || others.iter().any(|(name, value)| name == "vary" && value == "*")
            || has("set-cookie")
            || asks("authorization") && !any(&["public", "s-maxage", "must-revalidate"])
            || asks("cookie") && !any(&["public", "s-maxage"]) && (!lasts || any(&["no-cache"]))
            || matches!(status, 206 | 304 | 429 | 501);
        let may_be_kept = timed || any(&["public"]) || matches!(status, 200 | 204 | 301 | 404);
        let failed = matches!(status, 500 | 503 | 599);

        let unreadable = cdn.is_none() && !dates.is_empty() && !dated;
        let guessed = has("last-modified") && matches!(status, 200 | 204 | 301 | 404) && !unreadable;
        let says = timed || any(&["public"]) || guessed;
        let for_each = any(&["no-cache"]) || !says;

        match judged.verdict {
            Verdict::Shareable | Verdict::AboardOnly { .. } => prop_assert!(!for_one && may_be_kept && !for_each),
            Verdict::NotShareable { store, .. } => {
                prop_assert!((for_one || !may_be_kept) && !failed || for_each);
                prop_assert!(!store || !for_one && may_be_kept && for_each && (has("etag") || has("last-modified")));
            }
            Verdict::Failed(_) => prop_assert!(failed && (for_one || !may_be_kept)),
        }
        if for_one || !may_be_kept {
            prop_assert!(!judged.verdict.shares() && !judged.verdict.stores());
        }
    }

    /// Another implementation of the same RFC, where it is about as strict: what it would not store we do not share, and what we
    /// call fresh is fresh to it as well.
    #[test]
    fn another_reader_of_the_rfc_agrees(
        asked in request(),
        status in select(&[200, 204, 301, 302, 403, 404, 500, 503][..]),
        said in vec(select(&DIRECTIVES[..]), 0..5),
        age in prop_oneof![Just(None), (0u32..100).prop_map(Some)],
        expires in prop_oneof![Just(None), (-100i64..100).prop_map(Some)],
    ) {
        // It knows no `must-understand`, takes the last of two ages, has `proxy-revalidate` stale and `immutable` fresh at once.
        let twice = |name: &str| said.iter().filter(|each| each.split('=').next() == Some(name)).count() > 1;
        prop_assume!(!twice("max-age") && !twice("s-maxage") && !said.contains(&"must-understand") && !said.contains(&"proxy-revalidate"));
        prop_assume!(!said.iter().any(|each| each.starts_with("x-unknown") || *each == "immutable"));
        let mut response = plainly("cache-control", &said);
        response.push(("date".to_owned(), httpdate::fmt_http_date(wall())));
        response.extend(age.map(|age| ("age".to_owned(), age.to_string())));
        response.extend(expires.map(|after| {
            let at = u64::try_from(i64::try_from(WALL).unwrap() + after).unwrap();
            ("expires".to_owned(), httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(at)))
        }));
        let (asked, response) = (headers(&asked), headers(&response));
        let judged = judged(&asked, status, &response);

        let mut question = Request::get("http://a.example/").body(()).unwrap();
        *question.headers_mut() = asked;
        let mut answer = Response::builder().status(status).body(()).unwrap();
        *answer.headers_mut() = response;
        let theirs = CachePolicy::new_options(&question, &answer, wall(), http_cache_semantics::CacheOptions::default());
        if judged.verdict == Verdict::Shareable {
            // Codes it does not know it does not store.
            prop_assert!(theirs.is_storable() || matches!(status, 403 | 500 | 503));
            if theirs.is_storable() {
                prop_assert_eq!(theirs.time_to_live(wall()), judged.life.fresh_for(times().answered));
            }
        } else {
            // The only things we add: cookies, and that what is stored must be asked about.
            let stricter = matches!(judged.verdict.why(), Some(Reason::Cookie));
            prop_assert!(stricter || theirs.time_to_live(wall()).is_zero(), "{:?}", judged.verdict);
        }
    }

    #[test]
    fn no_bytes_make_a_judge_panic(fields in vec((select(&[
        "cache-control", "cdn-cache-control", "age", "expires", "date", "last-modified", "vary", "etag", "set-cookie", "pragma", "content-length",
    ][..]), vec(any::<u8>(), 0..30)), 0..8), status in 100u16..1000) {
        let mut message = HeaderMap::new();
        for (name, bytes) in fields {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                message.append(name, value);
            }
        }
        let judged = judged(&message, status, &message);
        for seconds in [0, 1, 100, u64::MAX / 1_000_000_000] {
            let now = Tick::ZERO + Duration::from_secs(seconds);
            judged.life.at(now, &RequestDirectives::read(&message));
            judged.life.age(now);
        }
    }
}
