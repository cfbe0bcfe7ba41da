//! How long a response is fresh, and what may be done with it after that, worked out once.
//!
//! A hit must not read headers. So when a response is stored everything it says about time becomes a few numbers, and a hit
//! compares one of them with the clock: [`Life::at`]. The numbers are milliseconds and finer: a response with `max-age=1` is
//! stale after one second, not during the second one, as where ages are counted in whole seconds.
//!
//! | time | what [`at`](Life::at) says |
//! |---|---|
//! | fresh | [`Use::Fresh`] |
//! | fresh, but its end is near, or jitter has put it forward | [`Use::Early`] |
//! | stale, `stale-while-revalidate` or the route's grace | [`Use::StaleWhile`] |
//! | stale, the client's `max-stale` | [`Use::StaleAsked`] |
//! | stale, `stale-if-error` or the route's | [`Use::IfError`] |
//! | stale, and `must-revalidate` or its like | [`Use::Validate`] |
//! | `no-cache`, or nothing said at all | [`Use::Alone`] |
//! | stale for longer than anybody allows | [`Use::Expired`] |
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use herdproof::Tick;
//! use herdproof_proxy::policy::{Draws, Life, RequestDirectives, Route, Terms, Times, Use};
//! use http::{HeaderMap, StatusCode};
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("cache-control", "max-age=1, stale-while-revalidate=30".parse().unwrap());
//! let terms = Terms::read(StatusCode::OK, &headers);
//! let times = Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH };
//! let life = Life::begin(&terms, &Route::default(), &times, Draws::default());
//!
//! let after = |millis| life.at(Tick::ZERO + Duration::from_millis(millis), &RequestDirectives::default());
//! assert_eq!(after(999), Use::Fresh);
//! assert_eq!(after(1_000), Use::StaleWhile);
//! assert_eq!(after(31_000), Use::IfError);
//! ```

use std::time::{Duration, SystemTime};

use herdproof::{Tick, early};

use super::{Route, Terms, cache_control::RequestDirectives, fields};

/// Times to live that are shorter are left alone by chance: so near the origin's word is taken as it is.
pub const JITTER_FROM: Duration = Duration::from_secs(10);
/// `Date` counts whole seconds, and many servers write it once a second: what it is behind by less than this is no age. Else a
/// response with `max-age=1` would often arrive stale.
const DATE_SLACK: i64 = 2;

const NO_STALE: u16 = 1;
/// For each request to ask about by itself.
const FOR_EACH: u16 = 1 << 1;
const FOR_ALL: u16 = 1 << 2;
const PUBLIC: u16 = 1 << 3;
/// An unsafe request has changed what it is a copy of.
const CHANGED: u16 = 1 << 4;
/// For requests without cookies.
const NO_COOKIES: u16 = 1 << 5;

/// When a response was asked for and came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the origin was asked.
    pub asked: Tick,
    /// When the head of its answer came.
    pub answered: Tick,
    /// What the wall clock said then.
    pub wall: SystemTime,
}

/// What a response does not say by itself: chance, drawn once when it is stored, and what came before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Draws {
    /// From `[0, 1)`: how much of the jitter this response gets.
    pub jitter: f64,
    /// Random bits: how long before its end it is refreshed.
    pub early: u64,
    /// How long loads of it took before; see [`Life::load`].
    pub load: Option<Duration>,
}

/// The times of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Before this there is nothing to think about.
    look_at: i64,
    /// Before this it is fresh. Nanoseconds of the clock, as the others, but signed: it may have been before the beginning.
    fresh_until: i64,
    /// When its age was zero.
    born: i64,
    /// How long loads of it take, in microseconds.
    load: u32,
    /// How long it may be served while it is loaded again, in milliseconds from its end on; 49 days at most.
    while_for: u32,
    /// How long it may be served if that fails, in milliseconds from its end on.
    error_for: u32,
    /// At which age a client that insists has the origin asked, in milliseconds. Younger, it has just come or been confirmed.
    insist_at: u32,
    flags: u16,
}

/// What may be done with a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Serve it.
    Fresh,
    /// Serve it as fresh, and refresh it meanwhile.
    Early,
    /// Serve it, and refresh it meanwhile.
    StaleWhile,
    /// Serve it because the client takes it so, and refresh it meanwhile.
    StaleAsked,
    /// Ask the origin first; if that fails, serve it.
    IfError,
    /// Ask the origin first, and serve it only if the origin says that it is still right.
    Validate,
    /// As [`Validate`](Use::Validate), for each request by itself: the answer to one says nothing about another.
    Alone,
    /// Too old to be served. Its validator may still spare the origin a body.
    Expired,
}

impl Use {
    /// Every use there is.
    pub const ALL: [Use; 8] = [
        Use::Fresh,
        Use::Early,
        Use::StaleWhile,
        Use::StaleAsked,
        Use::IfError,
        Use::Validate,
        Use::Alone,
        Use::Expired,
    ];

    /// Whether it is served without asking the origin first.
    pub fn serves(self) -> bool {
        matches!(self, Use::Fresh | Use::Early | Use::StaleWhile | Use::StaleAsked)
    }

    /// As metrics and `Cache-Status` name it.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fresh => "fresh",
            Use::Early => "early",
            Use::StaleWhile => "stale-while-revalidate",
            Use::StaleAsked => "max-stale",
            Use::IfError => "stale",
            Use::Validate => "must-revalidate",
            Use::Alone => "alone",
            Use::Expired => "expired",
        }
    }
}

impl Life {
    /// Of a response that has just come.
    pub fn begin(terms: &Terms, route: &Route, times: &Times, draws: Draws) -> Life {
        let directives = terms.directives;
        let age = initial_age(terms, times);
        let left = signed(nanos(fresh_for(terms, route, times.wall))) - signed(nanos(age));
        let answered = signed(times.answered.as_nanos());
        let fresh_until = answered.saturating_add(left);

        let said = |seconds: Option<_>, unsaid| if seconds.is_some() { self::seconds(seconds) } else { unsaid };
        let while_for = said(directives.while_revalidate, route.grace);
        let error_for = said(directives.if_error, route.if_error).max(while_for);
        let says_stale = directives.while_revalidate.max(directives.if_error).is_some_and(|seconds| seconds > 0);
        let no_stale = directives.must_revalidate()
            || directives.proxy_revalidate()
            || directives.s_maxage.is_some() && !says_stale;
        let is_for_each = directives.no_cache() || !is_said(terms, route, times.wall);
        let is_public = directives.public() || directives.shared_age();
        // What each request asks about is confirmed with the cookies of that request.
        let no_cookies = !is_for_each && !terms.is_for_cookies(route.cookies, times.wall);
        let mut flags = 0;
        for (flag, holds) in [
            (NO_STALE, no_stale),
            (FOR_EACH, is_for_each),
            (FOR_ALL, terms.is_for_all()),
            (PUBLIC, is_public),
            (NO_COOKIES, no_cookies),
        ] {
            flags |= if holds { flag } else { 0 };
        }

        let left = Duration::from_nanos(u64::try_from(left).unwrap_or(0));
        let load = early::load_time(draws.load, times.answered - times.asked);
        let ttl = jittered(left, route.jitter, draws.jitter);
        let grace = if no_stale { Duration::ZERO } else { while_for };
        let lead = if route.early { early::lead(ttl, grace, load, draws.early) } else { Duration::ZERO };
        let sooner = left.saturating_sub(ttl) + lead;
        let look_at = if is_for_each { i64::MIN } else { fresh_until.saturating_sub(signed(nanos(sooner))) };
        Life {
            look_at,
            fresh_until,
            born: answered.saturating_sub(signed(nanos(age))),
            load: u32::try_from(load.as_micros()).unwrap_or(u32::MAX),
            while_for: millis(while_for),
            error_for: millis(error_for),
            insist_at: millis(age.saturating_add(route.validate_every)),
            flags,
        }
    }

    /// What may be done with it now, for a request that asks so.
    #[inline]
    pub fn at(&self, now: Tick, asked: &RequestDirectives) -> Use {
        let now = signed(now.as_nanos());
        if now < self.look_at && asked.is_plain() { Use::Fresh } else { self.think(now, asked) }
    }

    #[inline(never)]
    fn think(&self, now: i64, asked: &RequestDirectives) -> Use {
        if self.flags & FOR_EACH != 0 {
            return Use::Alone;
        }
        let age = Duration::from_nanos(u64::try_from(now.saturating_sub(self.born)).unwrap_or(0));
        let left = Duration::from_nanos(u64::try_from(self.fresh_until.saturating_sub(now)).unwrap_or(0));
        let stale = Duration::from_nanos(u64::try_from(now.saturating_sub(self.fresh_until)).unwrap_or(0));
        let is_fresh = !left.is_zero();
        if !is_fresh && self.flags & NO_STALE != 0 {
            return Use::Validate;
        }
        let new_enough = asked.max_age.is_none_or(|most| age <= seconds(Some(most)));
        let contents =
            !asked.no_cache() && new_enough && asked.min_fresh.is_none_or(|least| left >= seconds(Some(least)));
        if is_fresh {
            // Fresh, but not what the client asked for: right enough if the origin cannot be asked.
            return match contents || age < Duration::from_millis(u64::from(self.insist_at)) {
                true if now < self.look_at => Use::Fresh,
                true => Use::Early,
                false => Use::IfError,
            };
        }
        let error_for = self.error_for().max(seconds(asked.if_error));
        if contents && stale < Duration::from_millis(u64::from(self.while_for)) {
            Use::StaleWhile
        } else if !asked.no_cache()
            && self.flags & CHANGED == 0
            && asked.max_age.is_none_or(|most| age <= seconds(Some(most)).saturating_add(seconds(asked.max_stale)))
            && asked.max_stale.is_some_and(|most| most == u32::MAX || stale <= seconds(Some(most)))
        {
            Use::StaleAsked
        } else if stale < error_for {
            Use::IfError
        } else {
            Use::Expired
        }
    }

    fn error_for(&self) -> Duration {
        Duration::from_millis(u64::from(self.error_for))
    }

    /// How long a load of it is expected to take: a peak EWMA ([`early::load_time`]).
    pub fn load(&self) -> Duration {
        Duration::from_micros(u64::from(self.load))
    }

    /// How old it is, for `Age`: whole seconds.
    pub fn age(&self, now: Tick) -> u64 {
        u64::try_from(signed(now.as_nanos()).saturating_sub(self.born)).unwrap_or(0) / 1_000_000_000
    }

    /// How long it stays fresh.
    pub fn fresh_for(&self, now: Tick) -> Duration {
        Duration::from_nanos(u64::try_from(self.fresh_until.saturating_sub(signed(now.as_nanos()))).unwrap_or(0))
    }

    /// For how long it may still be served in any way, however the origin fares.
    pub fn servable_for(&self, now: Tick) -> Duration {
        let after = if self.flags & (NO_STALE | FOR_EACH) == 0 { self.error_for() } else { Duration::ZERO };
        let end = self.fresh_until.saturating_add(signed(nanos(after)));
        Duration::from_nanos(u64::try_from(end.saturating_sub(signed(now.as_nanos()))).unwrap_or(0))
    }

    /// Whether a request with `Authorization` may have it (RFC 9111 3.5).
    pub fn is_for_all(&self) -> bool {
        self.flags & FOR_ALL != 0
    }

    /// Whether a request with cookies may have it ([`Cookies`](super::Cookies)).
    pub fn is_for_cookies(&self) -> bool {
        self.flags & NO_COOKIES == 0
    }

    /// Whether it may be refreshed on behalf of a request with credentials or cookies: its own word makes the answer one for all.
    /// Where that is not so, the origin is asked on nobody's behalf ([`disown`](super::condition::disown)).
    pub fn is_public(&self) -> bool {
        self.flags & PUBLIC != 0
    }

    /// Whether each request has to ask the origin about it by itself.
    pub fn is_for_each(&self) -> bool {
        self.flags & FOR_EACH != 0
    }

    /// The same after an unsafe request has changed what it is a copy of: the origin has to be asked before it is served again, and only
    /// an origin that fails lets it be served as it is (RFC 9111 4.4).
    #[must_use]
    pub fn changed(mut self, now: Tick) -> Life {
        self.fresh_until = self.fresh_until.min(signed(now.as_nanos()));
        self.look_at = self.look_at.min(self.fresh_until);
        self.while_for = 0;
        self.flags |= CHANGED;
        self
    }

    /// Whether an unsafe request has changed what it is a copy of.
    pub fn is_changed(&self) -> bool {
        self.flags & CHANGED != 0
    }
}

/// Corrected initial age of RFC 9111 4.2.3.
fn initial_age(terms: &Terms, times: &Times) -> Duration {
    let delay = times.answered - times.asked;
    let stated = Duration::from_secs(u64::from(terms.age)) + delay;
    let behind = terms.date.map_or(0, |date| fields::unix(times.wall).saturating_sub(date));
    let apparent = if behind > DATE_SLACK { u64::try_from(behind).unwrap_or(0) } else { 0 };
    stated.max(Duration::from_secs(apparent.min(u64::from(fields::FOREVER))))
}

/// From when it was made, whatever its age.
fn fresh_for(terms: &Terms, route: &Route, wall: SystemTime) -> Duration {
    let implied = || match route.ttl {
        Some(ttl) if terms.is_kept_by_default() => ttl,
        _ => terms.heuristic(wall),
    };
    terms.explicit(wall).unwrap_or_else(implied).min(seconds(Some(fields::FOREVER)))
}

/// Whether anybody says that it may be kept: itself, or the route, or the time it has not changed for.
fn is_said(terms: &Terms, route: &Route, wall: SystemTime) -> bool {
    let is_implied = || route.ttl.is_some() && terms.is_kept_by_default() || !terms.heuristic(wall).is_zero();
    // What was said and cannot be read was no yes, whatever else there is.
    terms.is_explicit() || terms.directives.public() || terms.explicit(wall).is_none() && is_implied()
}

/// What chance leaves of a time to live, given a number from `[0, 1)`: a share of it less at most, never more, and all of it if it
/// is short.
pub fn jittered(ttl: Duration, share: f64, draw: f64) -> Duration {
    if ttl < JITTER_FROM { ttl } else { scaled(ttl, 1.0 - share.clamp(0.0, 1.0) * draw.clamp(0.0, 1.0)).min(ttl) }
}

fn scaled(time: Duration, by: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * by).unwrap_or(Duration::MAX)
}

fn seconds(seconds: Option<u32>) -> Duration {
    Duration::from_secs(u64::from(seconds.unwrap_or(0)))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[inline]
fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    /// Long after the beginning, so that what was before can be seen.
    const NOW: u64 = 1_000_000;

    fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn times() -> Times {
        let now = Tick::ZERO + Duration::from_secs(NOW);
        Times { asked: now, answered: now, wall: UNIX_EPOCH + Duration::from_secs(1_800_000_000) }
    }

    fn plain() -> Route {
        Route {
            if_error: Duration::ZERO,
            validate_every: Duration::ZERO,
            jitter: 0.0,
            early: false,
            ..Route::default()
        }
    }

    fn life(cache_control: &str, route: &Route) -> Life {
        let terms = Terms::read(StatusCode::OK, &headers(&[(header::CACHE_CONTROL, cache_control)]));
        Life::begin(&terms, route, &times(), Draws::default())
    }

    fn after(millis: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(NOW) + Duration::from_millis(millis)
    }

    fn asked(cache_control: &str) -> RequestDirectives {
        RequestDirectives::read(&headers(&[(header::CACHE_CONTROL, cache_control)]))
    }

    #[track_caller]
    fn check(cache_control: &str, route: &Route, request: &str, uses: &[(u64, Use)]) {
        let (life, request) = (life(cache_control, route), asked(request));
        for (millis, expected) in uses {
            assert_eq!(life.at(after(*millis), &request), *expected, "{cache_control} after {millis} ms");
        }
    }

    #[test]
    fn what_the_origin_says_of_stale_times_counts_before_what_the_route_says() {
        let route = Route { grace: Duration::from_secs(50), if_error: Duration::from_secs(3600), ..Route::default() };
        let lasts = |control| {
            let life = life(control, &route);
            (life.while_for / 1000, life.error_for / 1000)
        };
        assert_eq!(lasts("max-age=60"), (50, 3600));
        assert_eq!(lasts("max-age=60, stale-if-error=10"), (50, 50), "no less than while it is loaded again");
        assert_eq!(lasts("max-age=60, stale-while-revalidate=5, stale-if-error=10"), (5, 10));
        assert_eq!(lasts("max-age=60, stale-while-revalidate=0"), (0, 3600));
    }

    #[test]
    fn a_life_is_three_quarters_of_a_cache_line() {
        assert_eq!(size_of::<Life>(), 48);
    }

    #[test]
    fn one_second_is_one_second() {
        check("max-age=1", &plain(), "", &[(0, Use::Fresh), (999, Use::Fresh), (1_000, Use::Expired)]);
        check("max-age=0", &plain(), "", &[(0, Use::Expired)]);
    }

    #[test]
    fn stale_is_served_only_where_somebody_allows_it() {
        let swr = "max-age=1, stale-while-revalidate=4";
        check(swr, &plain(), "", &[(1_000, Use::StaleWhile), (4_999, Use::StaleWhile), (5_000, Use::Expired)]);
        check("max-age=1, stale-if-error=4", &plain(), "", &[(1_000, Use::IfError), (5_000, Use::Expired)]);
        check(
            "max-age=1",
            &plain(),
            "max-stale=4",
            &[(1_000, Use::StaleAsked), (5_000, Use::StaleAsked), (5_001, Use::Expired)],
        );
        check("max-age=1", &plain(), "max-stale", &[(1_000_000, Use::StaleAsked)]);
        check("max-age=1", &plain(), "stale-if-error=4", &[(1_000, Use::IfError), (5_000, Use::Expired)]);
        let route = Route { grace: Duration::from_millis(1_500), if_error: Duration::from_secs(60), ..plain() };
        check("max-age=1", &route, "", &[(2_499, Use::StaleWhile), (2_500, Use::IfError), (61_000, Use::Expired)]);
    }

    #[test]
    fn stale_is_never_served_against_the_word_of_the_response() {
        let generous = Route { grace: Duration::from_secs(60), if_error: Duration::from_secs(600), ..plain() };
        for forbids in ["must-revalidate", "proxy-revalidate", "s-maxage=1", "s-maxage=1, stale-while-revalidate=0"] {
            for allows in ["", ", stale-while-revalidate=9, must-revalidate", ", stale-if-error=9, proxy-revalidate"] {
                let said = format!("max-age=1, {forbids}{allows}");
                check(&said, &generous, "max-stale, stale-if-error=60", &[(999, Use::Fresh), (1_000, Use::Validate)]);
            }
        }
        check(
            "max-age=60, no-cache, stale-while-revalidate=60",
            &generous,
            "max-stale",
            &[(0, Use::Alone), (61_000, Use::Alone)],
        );
        // What people write, and mean.
        check("s-maxage=1, stale-while-revalidate=9", &plain(), "", &[(1_000, Use::StaleWhile)]);
        check("s-maxage=1, stale-if-error=9", &plain(), "", &[(1_000, Use::IfError)]);
    }

    #[test]
    fn a_client_gets_nothing_older_than_it_asked_for() {
        check("max-age=60", &plain(), "max-age=5", &[(5_000, Use::Fresh), (5_001, Use::IfError)]);
        check("max-age=60", &plain(), "max-age=0", &[(1, Use::IfError)]);
        check("max-age=60", &plain(), "min-fresh=50", &[(10_000, Use::Fresh), (10_001, Use::IfError)]);
        check("max-age=60", &plain(), "no-cache", &[(0, Use::IfError), (61_000, Use::Expired)]);
        check("max-age=60, stale-while-revalidate=60", &plain(), "max-age=5", &[(61_000, Use::IfError)]);
        check("max-age=2, stale-while-revalidate=60", &plain(), "no-cache, max-stale", &[(3_000, Use::IfError)]);
        check("max-age=60", &plain(), "max-age=5, max-stale=9", &[(61_000, Use::Expired)]);
    }

    #[test]
    fn an_age_that_came_with_it_counts() {
        let of = |age: &str, date: &str| {
            let fields = [(header::CACHE_CONTROL, "max-age=3600"), (header::AGE, age), (header::DATE, date)];
            let terms = Terms::read(StatusCode::OK, &headers(&fields));
            let slow = Times { asked: after(0), answered: after(500), ..times() };
            Life::begin(&terms, &plain(), &slow, Draws::default())
        };
        let now = httpdate::fmt_http_date(times().wall);
        let earlier = httpdate::fmt_http_date(times().wall - Duration::from_secs(7200));
        let rounded = httpdate::fmt_http_date(times().wall - Duration::from_secs(2));
        assert_eq!(of("0", &now).fresh_for(after(500)), Duration::from_millis(3_599_500), "the time it took is age");
        assert_eq!(of("1800", &now).fresh_for(after(500)), Duration::from_millis(1_799_500));
        assert_eq!(of("7200", &now).at(after(500), &asked("")), Use::Expired);
        assert_eq!(of("0", &earlier).at(after(500), &asked("")), Use::Expired, "by its Date");
        assert_eq!(
            of("0", &rounded).fresh_for(after(500)),
            Duration::from_millis(3_599_500),
            "Date is written in seconds"
        );
        assert_eq!(of("30", &now).age(after(500 + 2_600)), 33);
        assert_eq!(of("2147483648", &now).age(after(500)), 1 << 31);
        assert_eq!(of("30", "nonsense").age(after(500)), 30);
    }

    #[test]
    fn chance_only_shortens_and_only_what_is_long() {
        let secs = Duration::from_secs;
        assert_eq!(jittered(secs(100), 0.1, 0.0), secs(100));
        assert_eq!(jittered(secs(100), 0.1, 1.0), secs(90));
        assert_eq!(jittered(secs(10), 0.5, 0.5), Duration::from_millis(7_500));
        assert_eq!(jittered(Duration::from_millis(9_999), 0.5, 0.9), Duration::from_millis(9_999));
        assert_eq!(jittered(secs(100), -1.0, 0.5), secs(100));
        assert_eq!(jittered(secs(100), 7.0, 7.0), Duration::ZERO);
    }

    #[test]
    fn who_is_put_forward_by_chance_is_refreshed_and_nobody_waits() {
        let route = Route { jitter: 0.1, ..plain() };
        let terms = Terms::read(StatusCode::OK, &headers(&[(header::CACHE_CONTROL, "max-age=100, must-revalidate")]));
        let life = Life::begin(&terms, &route, &times(), Draws { jitter: 0.5, ..Draws::default() });
        assert_eq!(life.at(after(94_999), &asked("")), Use::Fresh);
        assert_eq!(life.at(after(95_000), &asked("")), Use::Early);
        assert_eq!(life.at(after(99_999), &asked("")), Use::Early, "fresh by its own word, so it is served");
        assert_eq!(life.at(after(100_000), &asked("")), Use::Validate);
    }

    #[test]
    fn a_slow_load_is_begun_early_unless_stale_is_served_anyway() {
        let slow = Times { asked: after(0), answered: after(200), ..times() };
        let begin = |said: &str, early: bool, draws: Draws| {
            let terms = Terms::read(StatusCode::OK, &headers(&[(header::CACHE_CONTROL, said)]));
            Life::begin(&terms, &Route { early, ..plain() }, &slow, draws)
        };
        let check = |life: Life, early_from: u64| {
            assert_eq!(life.at(after(early_from - 1), &asked("")), Use::Fresh, "until {early_from}");
            assert_ne!(life.at(after(early_from + 1), &asked("")), Use::Fresh, "from {early_from} on");
        };
        check(begin("max-age=60", true, Draws::default()), 59_750);
        check(begin("max-age=60", true, Draws { early: u64::MAX, ..Draws::default() }), 59_350);
        let slower = Draws { load: Some(Duration::from_secs(2)), ..Draws::default() };
        assert!(begin("max-age=60", true, slower).load().as_micros().abs_diff(1_460_000) <= 1, "a peak EWMA");
        check(begin("max-age=60", true, slower), 58_175);
        check(begin("max-age=1", true, slower), 600);
        check(begin("max-age=60", false, slower), 60_000);
        check(begin("max-age=60, stale-while-revalidate=5", true, slower), 60_000);
        check(begin("max-age=60, stale-while-revalidate=2", true, slower), 58_175);
        check(begin("max-age=60, stale-while-revalidate=5, must-revalidate", true, slower), 58_175);
    }

    /// Requests come every so many microseconds for six seconds, and loads take 80 ms: how often a page is refreshed, and how many
    /// of the requests find it stale.
    fn refreshes(seed: u64, every: u64, said: &str) -> (u32, u32) {
        let rng = herdproof::Sim::new(seed).env().rng("fill");
        let terms = Terms::read(StatusCode::OK, &headers(&[(header::CACHE_CONTROL, said)]));
        let (route, load) = (Route { early: true, ..plain() }, Duration::from_millis(80));
        let stored = |answered: Tick, before: Option<&Life>| {
            let asked = Tick::from_nanos(answered.as_nanos() - 80_000_000);
            let draws = Draws { jitter: rng.unit(), early: rng.bits(), load: before.map(Life::load) };
            Life::begin(&terms, &route, &Times { asked, answered, ..times() }, draws)
        };
        let (mut life, mut refreshed_at) = (stored(after(80), None), None);
        let (mut refreshes, mut stale) = (0, 0);
        for now in (80_000..6_080_000).step_by(usize::try_from(every).unwrap()) {
            let now = after(0) + Duration::from_micros(now);
            if let Some(at) = refreshed_at.take_if(|at| now >= *at) {
                life = stored(at, Some(&life));
            }
            match life.at(now, &asked("")) {
                Use::Fresh => {}
                Use::Early if refreshed_at.is_some() => {}
                Use::Early => {
                    refreshes += 1;
                    refreshed_at = Some(now + load);
                }
                _ => stale += 1,
            }
        }
        (refreshes, stale)
    }

    /// Dice for each request would begin the earlier the more requests there are: ten refreshes with 1,700 in a second.
    #[test]
    fn a_busy_page_is_refreshed_about_once_in_its_lifetime_and_nobody_waits() {
        for seed in 0..50 {
            for every in [10_000, 588, 50] {
                let (refreshes, stale) = refreshes(seed, every, "max-age=1");
                assert!(
                    (6..=7).contains(&refreshes) && stale == 0,
                    "seed {seed}, every {every} us: {refreshes}, {stale}"
                );
            }
        }
    }

    #[test]
    fn what_has_changed_is_asked_about_before_it_is_served_and_stands_in_for_an_origin_that_fails() {
        let control = "max-age=60, stale-while-revalidate=9, stale-if-error=9";
        let life = life(control, &plain()).changed(after(1_000));
        assert_eq!(life.at(after(999), &asked("")), Use::Fresh);
        for request in ["", "max-stale", "no-cache", "max-stale=60"] {
            assert_eq!(life.at(after(1_000), &asked(request)), Use::IfError, "{request}");
        }
        assert_eq!(life.at(after(9_999), &asked("")), Use::IfError);
        assert_eq!(life.at(after(10_000), &asked("")), Use::Expired);
        assert_eq!(life.changed(after(5_000)).at(after(9_999), &asked("")), Use::IfError);
        assert_eq!(
            life.changed(after(5_000)).at(after(10_000), &asked("")),
            Use::Expired,
            "no later than the first time"
        );
        let strict = self::life("max-age=60, must-revalidate", &plain()).changed(after(1_000));
        assert_eq!(strict.at(after(1_000), &asked("")), Use::Validate);
    }

    #[test]
    fn who_insists_has_the_origin_asked_once_in_a_while_and_not_each_time() {
        let route = Route { validate_every: Duration::from_secs(1), ..plain() };
        for request in ["no-cache", "max-age=0", "min-fresh=60"] {
            check("max-age=60", &route, request, &[(0, Use::Fresh), (999, Use::Fresh), (1_000, Use::IfError)]);
        }
        check("max-age=1", &route, "no-cache", &[(999, Use::Fresh), (1_000, Use::Expired)]);
        let terms =
            Terms::read(StatusCode::OK, &headers(&[(header::CACHE_CONTROL, "max-age=60"), (header::AGE, "30")]));
        let aged = Life::begin(&terms, &route, &times(), Draws::default());
        assert_eq!(
            aged.at(after(999), &asked("no-cache")),
            Use::Fresh,
            "how old it was does not count, but since when it is here"
        );
        assert_eq!(aged.at(after(1_000), &asked("no-cache")), Use::IfError);
    }

    proptest! {
        /// The fast way and the slow way say the same, and the numbers say what RFC 9111 does.
        #[test]
        fn freshness_is_lifetime_minus_age(ttl in 0u32..100, age in 0u32..100, delay in 0u64..3_000, later in 0u64..200_000) {
            let fields = [(header::CACHE_CONTROL, format!("max-age={ttl}")), (header::AGE, age.to_string())];
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), value.as_str())).collect();
            let times = Times { asked: after(0), answered: after(delay), ..times() };
            let life = Life::begin(&Terms::read(StatusCode::OK, &headers(&fields)), &plain(), &times, Draws::default());
            let now = u64::from(age) * 1_000 + delay + later;
            prop_assert_eq!(life.at(after(delay + later), &asked("")) == Use::Fresh, now < u64::from(ttl) * 1_000);
            prop_assert_eq!(life.age(after(delay + later)), now / 1_000);
        }

        #[test]
        fn a_later_look_is_never_more_generous(said in "(max-age=[0-9]{1,2})(, stale-while-revalidate=[0-9]{1,2})?(, stale-if-error=[0-9]{1,2})?(, (must-revalidate|s-maxage=5))?", request in "(max-stale=[0-9]{1,2})?", times in proptest::collection::vec(0u64..200_000, 2)) {
            let route = Route { grace: Duration::from_secs(3), if_error: Duration::from_secs(20), ..plain() };
            let (life, request) = (life(&said, &route), asked(&request));
            let rank = |millis| Use::ALL.iter().position(|each| *each == life.at(after(millis), &request));
            let (early, late) = (times[0].min(times[1]), times[0].max(times[1]));
            // `StaleAsked` may end and `StaleWhile` not begin again after it.
            prop_assert!(rank(early) <= rank(late), "{:?} {:?}", rank(early), rank(late));
        }
    }
}
