//! The terms on which a response comes: everything its head says about being kept, read once.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::{
    Cookies,
    cache_control::{CDN_CACHE_CONTROL, Directives},
    fields::{self, Date},
    vary::Vary,
};

/// The part of a response's age at `Last-Modified` for which it is fresh if it does not say (RFC 9111 4.2.2).
const HEURISTIC_PART: u64 = 10;
/// But not longer than this, for nobody said so.
const HEURISTIC_MOST: Duration = Duration::from_secs(24 * 3600);

/// What a response's head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its status.
    pub status: StatusCode,
    /// What it says about being kept: in `CDN-Cache-Control` if that is there and well formed, else in `Cache-Control`.
    pub directives: Directives,
    /// Which requests are to get it.
    pub vary: Vary,
    /// Whether it sets a cookie.
    pub sets_cookie: bool,
    /// Whether the origin can be asked if it is still what it was: it has an `ETag` or a `Last-Modified`.
    pub has_validator: bool,
    /// How old it already was, in seconds.
    pub(super) age: u32,
    pub(super) date: Option<i64>,
    expires: Date,
    last_modified: Option<i64>,
}

impl Terms {
    /// Reads the head of a response.
    pub fn read(status: StatusCode, headers: &HeaderMap) -> Terms {
        let targeted = Directives::of_targeted(headers, &CDN_CACHE_CONTROL);
        let last_modified = Date::read(headers, &header::LAST_MODIFIED).get();
        Terms {
            status,
            directives: targeted.unwrap_or_else(|| Directives::of_cache_control(headers)),
            vary: Vary::read(headers),
            sets_cookie: headers.contains_key(header::SET_COOKIE),
            has_validator: last_modified.is_some() || headers.contains_key(header::ETAG),
            age: fields::age(headers),
            date: Date::read(headers, &header::DATE).get(),
            expires: if targeted.is_some() { Date::Absent } else { Date::read(headers, &header::EXPIRES) },
            last_modified,
        }
    }

    /// Whether it says itself how long it is fresh, be it for no time at all, in a way that can be read: then it may be kept
    /// whatever its status.
    pub fn is_explicit(&self) -> bool {
        self.directives.states_age() || matches!(self.expires, Date::At(_))
    }

    /// Whether it may go to others than those whose credentials it was asked for with (RFC 9111 3.5).
    pub fn is_for_all(&self) -> bool {
        self.directives.public() || self.directives.shared_age() || self.directives.is_revalidated()
    }

    /// Whether it may go to requests with cookies, and be kept if it answers one: by its own word, as far as that counts here. That
    /// it is fresh for no time at all, or is to be asked about each time, does not say that it is the same for all.
    pub fn is_for_cookies(&self, cookies: Cookies, wall: SystemTime) -> bool {
        let is_public = self.directives.public() || self.directives.shared_age();
        let is_fresh = || self.explicit(wall).is_some_and(|fresh| !fresh.is_zero()) && !self.directives.no_cache();
        match cookies {
            Cookies::Private => is_public,
            Cookies::Share => is_public || is_fresh(),
            Cookies::Ignore => true,
        }
    }

    /// Whether its status is one that may be kept without being told so.
    ///
    /// Not all that RFC 9110 15.1 lists: 405, 414 and 501 are answers to how a request was put, and a head nobody else would send must
    /// not choose what everybody gets. 206 is not whole.
    pub fn is_kept_by_default(&self) -> bool {
        matches!(self.status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 410)
    }

    /// Whether we know what its status means.
    pub fn is_understood(&self) -> bool {
        matches!(
            self.status.as_u16(),
            200..=205 | 300..=303 | 307 | 308 | 400..=411 | 413..=415 | 417 | 421 | 422 | 426 | 500..=505
        )
    }

    /// How long it is fresh from the moment it was made, if it says so itself.
    pub(super) fn explicit(&self, wall: SystemTime) -> Option<Duration> {
        if let Some(seconds) = self.directives.s_maxage.or(self.directives.max_age) {
            return Some(Duration::from_secs(u64::from(seconds)));
        }
        match self.expires {
            Date::Absent => None,
            Date::Invalid => Some(Duration::ZERO),
            Date::At(expires) => Some(since(expires, self.date.unwrap_or_else(|| fields::unix(wall)))),
        }
    }

    /// How long it may be taken to be fresh if it does not say: a tenth of the time it has not changed for.
    pub(super) fn heuristic(&self, wall: SystemTime) -> Duration {
        let may = self.is_kept_by_default() || self.directives.public();
        let Some(last_modified) = self.last_modified.filter(|_| may) else { return Duration::ZERO };
        let unchanged = since(self.date.unwrap_or_else(|| fields::unix(wall)), last_modified);
        Duration::from_millis(unchanged.as_secs().saturating_mul(1000) / HEURISTIC_PART).min(HEURISTIC_MOST)
    }
}

fn since(later: i64, earlier: i64) -> Duration {
    Duration::from_secs(u64::try_from(later.saturating_sub(earlier)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const WALL: u64 = 1_800_000_000;

    fn terms(status: u16, fields: &[(&'static str, String)]) -> Terms {
        let headers = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        Terms::read(StatusCode::from_u16(status).unwrap(), &headers.collect())
    }

    fn date(ago: u64) -> String {
        httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(WALL - ago))
    }

    fn guessed(status: u16, unchanged: u64) -> Duration {
        let terms = terms(status, &[("date", date(0)), ("last-modified", date(unchanged))]);
        terms.heuristic(UNIX_EPOCH + Duration::from_secs(WALL + 1_000_000))
    }

    #[test]
    fn a_guess_is_a_tenth_and_never_more_than_a_day() {
        assert_eq!(guessed(200, 55), Duration::from_millis(5_500));
        assert_eq!(guessed(200, 9 * 86_400), Duration::from_secs(9 * 8_640));
        assert_eq!(guessed(200, 1_000 * 86_400), HEURISTIC_MOST);
        assert_eq!(guessed(403, 1_000), Duration::ZERO);
    }

    #[test]
    fn what_was_changed_after_it_was_sent_is_not_guessed_at() {
        let terms = terms(200, &[("date", date(100)), ("last-modified", date(0))]);
        assert_eq!(terms.heuristic(UNIX_EPOCH + Duration::from_secs(WALL)), Duration::ZERO);
    }

    #[test]
    fn without_a_date_the_time_it_came_counts() {
        let wall = UNIX_EPOCH + Duration::from_secs(WALL - 50);
        for bad in ["yesterday", ""] {
            let terms = terms(200, &[("date", bad.to_owned()), ("expires", date(20))]);
            assert_eq!(terms.explicit(wall), Some(Duration::from_secs(30)));
        }
    }
}
