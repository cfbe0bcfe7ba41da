//! `Cache-Control`, as responses and requests write it, and the targeted form of it.
//!
//! Two rules decide every doubt. What forbids is understood however it is written: any case, any line, a stray space, an
//! argument nobody asked for. What permits must be written right, or it permits nothing: a `max-age` that is not a number makes
//! a response stale, not fresh for as long as somebody guessed (RFC 9111 4.2.1). So no slip of a pen makes a response public.
//!
//! `no-cache="field"` and `private="field"` count as `no-cache` and `private`: RFC 9111 5.2.2.4 allows it, most caches do it, and
//! the other reading has leaked cookies before.

use http::{HeaderMap, HeaderName, header};

use super::{
    fields::{Elements, seconds},
    structured::{self, Bare},
};

/// `CDN-Cache-Control` of RFC 9213: it is meant for caches like this one, and where it stands, `Cache-Control` and `Expires` are
/// meant for others.
pub const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

const NO_STORE: u16 = 1;
const NO_CACHE: u16 = 1 << 1;
const PRIVATE: u16 = 1 << 2;
const PUBLIC: u16 = 1 << 3;
const MUST_REVALIDATE: u16 = 1 << 4;
const PROXY_REVALIDATE: u16 = 1 << 5;
const MUST_UNDERSTAND: u16 = 1 << 6;
const NO_TRANSFORM: u16 = 1 << 7;
const IMMUTABLE: u16 = 1 << 8;
const ONLY_IF_CACHED: u16 = 1 << 9;
/// Of the fields there was one that nobody can read.
const BROKEN: u16 = 1 << 10;
/// A `s-maxage` that is not a number: it makes a response stale and permits nothing.
const BAD_S_MAXAGE: u16 = 1 << 11;
/// The same of `max-age`.
const BAD_MAX_AGE: u16 = 1 << 14;
/// `must-revalidate` and `must-understand` forbid one thing and permit another: these are theirs to permit, if they are written
/// right.
const REVALIDATED: u16 = 1 << 12;
const UNDERSTOOD: u16 = 1 << 13;

/// What a response says about being kept. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    flags: u16,
    /// How long it is fresh; 0 if that could not be read.
    pub max_age: Option<u32>,
    /// How long it is fresh for caches that many share; 0 if that could not be read.
    pub s_maxage: Option<u32>,
    /// How long it may be served stale while it is loaded again.
    pub while_revalidate: Option<u32>,
    /// How long it may be served stale if loading it fails.
    pub if_error: Option<u32>,
}

/// What a request says about what it will take. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    flags: u16,
    /// No older than this.
    pub max_age: Option<u32>,
    /// Stale for no longer than this; [`u32::MAX`] for however long.
    pub max_stale: Option<u32>,
    /// Fresh for at least this long.
    pub min_fresh: Option<u32>,
    /// Stale for no longer than this if loading fails.
    pub if_error: Option<u32>,
}

impl Directives {
    /// Those of `Cache-Control`, whatever a targeted field may say.
    pub fn of_cache_control(headers: &HeaderMap) -> Directives {
        let mut said = Directives::default();
        for line in headers.get_all(header::CACHE_CONTROL) {
            let mut elements = Elements::of(line.as_bytes());
            for element in elements.by_ref() {
                said.note(&Directive::of(element));
            }
            if elements.broken() {
                said.flags |= BROKEN;
            }
        }
        said.settle()
    }

    /// Those of a targeted field (RFC 9213), if it is there and well formed: a dictionary of RFC 8941, to the letter. One that is
    /// empty or not well formed counts as absent; a member of the wrong type counts as absent, unless it forbids.
    pub fn of_targeted(headers: &HeaderMap, name: &HeaderName) -> Option<Directives> {
        let mut said = Directives::default();
        let mut empty = true;
        let lines = headers.get_all(name).into_iter().map(http::HeaderValue::as_bytes);
        structured::dictionary(lines, |key, value| {
            empty = false;
            let delta = match value {
                Bare::Integer(number) => u32::try_from(number.clamp(-1, i64::from(super::fields::FOREVER))).ok(),
                _ => None,
            };
            match key {
                b"max-age" => said.max_age = delta.or(said.max_age),
                b"s-maxage" => said.s_maxage = delta.or(said.s_maxage),
                b"stale-while-revalidate" => said.while_revalidate = delta.or(said.while_revalidate),
                b"stale-if-error" => said.if_error = delta.or(said.if_error),
                // `?0` is the one way to say that something is not forbidden.
                _ if value == Bare::Boolean(false) => {}
                _ => said.flags |= flag(key) & if value == Bare::Boolean(true) { u16::MAX } else { FORBIDS },
            }
        })
        .ok()?;
        (!empty).then_some(said)
    }

    /// Takes note of one directive. Of two that contradict each other the stricter counts.
    fn note(&mut self, directive: &Directive<'_>) {
        let least = |before: Option<u32>| {
            let value = directive.delta().unwrap_or(0);
            Some(before.map_or(value, |before| before.min(value)))
        };
        match directive.name() {
            b"max-age" => {
                self.max_age = least(self.max_age);
                if directive.delta().is_none() {
                    self.flags |= BAD_MAX_AGE;
                }
            }
            b"s-maxage" => {
                self.s_maxage = least(self.s_maxage);
                if directive.delta().is_none() {
                    self.flags |= BAD_S_MAXAGE;
                }
            }
            b"stale-while-revalidate" => self.while_revalidate = least(self.while_revalidate),
            b"stale-if-error" => self.if_error = least(self.if_error),
            name => self.flags |= flag(name) & if directive.is_bare() { u16::MAX } else { FORBIDS },
        }
    }

    /// Where a line could not be read, nothing permits.
    fn settle(mut self) -> Directives {
        if self.flags & BROKEN != 0 {
            self.flags &= FORBIDS | BROKEN;
            self.flags |= BAD_S_MAXAGE | BAD_MAX_AGE;
            self.max_age = Some(0);
            self.s_maxage = self.s_maxage.map(|_| 0);
            // Not as if nothing had been said: then the route's own times would count, which may be longer.
            self.while_revalidate = self.while_revalidate.map(|_| 0);
            self.if_error = self.if_error.map(|_| 0);
        }
        self
    }

    /// Whether it says how long it is fresh, in a way that can be read.
    pub fn states_age(self) -> bool {
        self.s_maxage.or(self.max_age).is_some() && !self.has(BAD_S_MAXAGE | BAD_MAX_AGE)
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Not to be kept by anybody.
    pub fn no_store(self) -> bool {
        self.has(NO_STORE)
    }

    /// Not to be used again unless the origin says so each time.
    pub fn no_cache(self) -> bool {
        self.has(NO_CACHE)
    }

    /// For one user only.
    pub fn private(self) -> bool {
        self.has(PRIVATE)
    }

    /// For everybody.
    pub fn public(self) -> bool {
        self.has(PUBLIC)
    }

    /// Never to be served stale.
    pub fn must_revalidate(self) -> bool {
        self.has(MUST_REVALIDATE)
    }

    /// Never to be served stale by caches that many share.
    pub fn proxy_revalidate(self) -> bool {
        self.has(PROXY_REVALIDATE)
    }

    /// A `must-revalidate` that is written right: it also permits what RFC 9111 3.5 lists.
    pub fn is_revalidated(self) -> bool {
        self.has(REVALIDATED)
    }

    /// To be kept only by caches that know its status.
    pub fn must_understand(self) -> bool {
        self.has(MUST_UNDERSTAND)
    }

    /// A `must-understand` that is written right: for those who know the status it lifts `no-store` (RFC 9111 5.2.2.3).
    pub fn lifts_no_store(self) -> bool {
        self.has(UNDERSTOOD)
    }

    /// Not to be changed on the way.
    pub fn no_transform(self) -> bool {
        self.has(NO_TRANSFORM)
    }

    /// Will not change while it is fresh.
    pub fn immutable(self) -> bool {
        self.has(IMMUTABLE)
    }

    /// A `s-maxage` that can be read: it also permits what RFC 9111 3.5 lists.
    pub fn shared_age(self) -> bool {
        self.s_maxage.is_some() && !self.has(BAD_S_MAXAGE)
    }
}

impl RequestDirectives {
    /// Those of a request. `Pragma: no-cache` counts if there is no `Cache-Control`.
    pub fn read(headers: &HeaderMap) -> RequestDirectives {
        let mut asked = RequestDirectives::default();
        if headers.contains_key(header::CACHE_CONTROL) {
            headers.get_all(header::CACHE_CONTROL).into_iter().for_each(|line| asked.note_line(line.as_bytes()));
        } else {
            headers.get_all(header::PRAGMA).into_iter().for_each(|line| asked.note_pragma(line.as_bytes()));
        }
        asked
    }

    /// Takes note of a line of `Cache-Control`.
    pub(super) fn note_line(&mut self, line: &[u8]) {
        for element in Elements::of(line) {
            self.note(&Directive::of(element));
        }
    }

    /// Takes note of a line of `Pragma`.
    pub(super) fn note_pragma(&mut self, line: &[u8]) {
        if Elements::of(line).any(is_no_cache) {
            self.flags |= NO_CACHE;
        }
    }

    /// Of two that contradict each other the stricter counts, and what cannot be read is passed over: none of this is a matter
    /// of who may see what.
    fn note(&mut self, directive: &Directive<'_>) {
        let least = |before: Option<u32>, value: Option<u32>| match (before, value) {
            (Some(before), Some(value)) => Some(before.min(value)),
            (before, value) => before.or(value),
        };
        match directive.name() {
            b"max-age" => self.max_age = least(self.max_age, directive.delta()),
            b"min-fresh" => self.min_fresh = self.min_fresh.max(directive.delta()),
            b"stale-if-error" => self.if_error = least(self.if_error, directive.delta()),
            b"max-stale" => {
                let value = if directive.value.is_none() { Some(u32::MAX) } else { directive.delta() };
                self.max_stale = least(self.max_stale, value);
            }
            name => self.flags |= flag(name) & (NO_CACHE | NO_STORE | ONLY_IF_CACHED),
        }
    }

    /// What counts of it where clients are not obeyed: who asks only for what is stored costs the origin nothing.
    pub(super) fn without_demands(self) -> RequestDirectives {
        RequestDirectives { flags: self.flags & ONLY_IF_CACHED, ..RequestDirectives::default() }
    }

    /// Whether it takes whatever the response's own rules allow.
    #[inline]
    pub fn is_plain(&self) -> bool {
        *self == RequestDirectives::default()
    }

    /// Nothing that the origin has not just confirmed.
    pub fn no_cache(&self) -> bool {
        self.flags & NO_CACHE != 0
    }

    /// Neither the question nor the answer is to be kept.
    pub fn no_store(&self) -> bool {
        self.flags & NO_STORE != 0
    }

    /// Only what is there already.
    pub fn only_if_cached(&self) -> bool {
        self.flags & ONLY_IF_CACHED != 0
    }
}

fn is_no_cache(element: &[u8]) -> bool {
    Directive::of(element).name() == b"no-cache"
}

/// Those that forbid, and so count however they are written.
const FORBIDS: u16 = NO_STORE
    | NO_CACHE
    | PRIVATE
    | MUST_REVALIDATE
    | PROXY_REVALIDATE
    | MUST_UNDERSTAND
    | NO_TRANSFORM
    | ONLY_IF_CACHED;

fn flag(name: &[u8]) -> u16 {
    match name {
        b"no-store" => NO_STORE,
        b"no-cache" => NO_CACHE,
        b"private" => PRIVATE,
        b"public" => PUBLIC,
        b"must-revalidate" => MUST_REVALIDATE | REVALIDATED,
        b"proxy-revalidate" => PROXY_REVALIDATE,
        b"must-understand" => MUST_UNDERSTAND | UNDERSTOOD,
        b"no-transform" => NO_TRANSFORM,
        b"immutable" => IMMUTABLE,
        b"only-if-cached" => ONLY_IF_CACHED,
        _ => 0,
    }
}

/// What is left of a name without spaces and quotes around it.
fn name_in(written: &[u8]) -> &[u8] {
    let is_part = |byte: &u8| !byte.is_ascii_whitespace() && *byte != b'"';
    let first = written.iter().position(is_part).unwrap_or(written.len());
    let end = written.iter().rposition(is_part).map_or(first, |last| last + 1);
    &written[first..end]
}

/// The longest name there is, `stale-while-revalidate`.
const LONGEST: usize = 22;

/// One element of the field.
struct Directive<'a> {
    name: [u8; LONGEST],
    length: usize,
    value: Option<&'a [u8]>,
    /// Spaces around the `=`, or quotes around the name, which the grammar has no place for.
    odd: bool,
}

impl<'a> Directive<'a> {
    fn of(element: &'a [u8]) -> Directive<'a> {
        let (written, value) = match element.iter().position(|&byte| byte == b'=') {
            Some(at) => (&element[..at], Some(&element[at + 1..])),
            None => (element, None),
        };
        let trimmed = name_in(written);
        let odd = trimmed.len() != written.len() || value.is_some_and(|value| value.trim_ascii().len() != value.len());
        let mut name = [0; LONGEST];
        let length = if trimmed.len() <= LONGEST { trimmed.len() } else { 0 };
        name[..length].copy_from_slice(&trimmed[..length]);
        name.make_ascii_lowercase();
        Directive { name, length, value, odd }
    }

    fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }

    /// Written right, and without a value.
    fn is_bare(&self) -> bool {
        self.value.is_none() && !self.odd
    }

    /// Its value as seconds, with or without quotes around it.
    fn delta(&self) -> Option<u32> {
        let value = self.value.filter(|_| !self.odd)?;
        let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        seconds(bare.unwrap_or(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn response(lines: &[&str]) -> Directives {
        Directives::of_cache_control(&headers(&header::CACHE_CONTROL, lines))
    }

    fn headers(name: &HeaderName, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name.clone(), HeaderValue::from_str(line).unwrap());
        }
        headers
    }

    fn request(line: &str) -> RequestDirectives {
        RequestDirectives::read(&headers(&header::CACHE_CONTROL, &[line]))
    }

    fn targeted(lines: &[&str]) -> Option<Directives> {
        Directives::of_targeted(&headers(&CDN_CACHE_CONTROL, lines), &CDN_CACHE_CONTROL)
    }

    #[test]
    fn a_freshness_that_cannot_be_read_is_none() {
        for (line, expected) in [
            ("max-age=3600", Some(3600)),
            ("MaX-aGe=3600", Some(3600)),
            ("foobar, max-age=3600", Some(3600)),
            ("max-age=\"3600\"", Some(3600)),
            ("max-age=003600", Some(3600)),
            ("max-age=2147483649", Some(1 << 31)),
            ("max-age=99999999999", Some(1 << 31)),
            ("max-age='3600'", Some(0)),
            ("max-age=3600.0", Some(0)),
            ("max-age=3600.5", Some(0)),
            ("max-age=a3600", Some(0)),
            ("max-age=3600a", Some(0)),
            ("max-age=-3600", Some(0)),
            ("max-age =3600", Some(0)),
            ("max-age= 3600", Some(0)),
            ("max-age=", Some(0)),
            ("max-age", Some(0)),
            ("max-age=1800, max-age=1", Some(1)),
            ("max-age=1, max-age=1800", Some(1)),
            ("max-age=1, max-age=x", Some(0)),
            ("extension=\"max-age=3600\", max-age=1", Some(1)),
            ("max-age=1, extension=\"max-age=3600\"", Some(1)),
            ("extension=\"max-age=3600\"", None),
            ("x-max-age=3600", None),
        ] {
            assert_eq!(response(&[line]).max_age, expected, "{line}");
        }
        assert_eq!(response(&["max-age=1800", "max-age=1"]).max_age, Some(1));
        assert_eq!(response(&["max-age=1", "max-age=1800"]).max_age, Some(1));
    }

    #[test]
    fn what_forbids_is_understood_however_it_is_written() {
        for line in [
            "private",
            "PRIVATE",
            " \tprivate ",
            "private=\"set-cookie, x\"",
            "private =x",
            "private=",
            "max-age=60,private",
            "max-age=60,,, Private ;",
            "x=\"y, private",
            "public, private",
            "private\"",
            "\"private\"",
            "\"private\"=x",
        ] {
            let said = response(&[line]);
            assert_eq!(said.private(), !line.ends_with(';'), "{line}");
        }
        assert!(response(&["max-age=60", "no-StORE"]).no_store());
        assert!(response(&["no-cache=\"Set-Cookie\""]).no_cache());
        assert!(response(&["s-maxage=1, Must-Revalidate=1"]).must_revalidate());
        assert!(response(&["proxy-revalidate"]).proxy_revalidate());
        assert!(!response(&["x=\"private\""]).private(), "quoted, so an argument");
    }

    #[test]
    fn what_permits_must_be_written_right() {
        assert!(response(&["Public"]).public());
        assert!(!response(&["public=1"]).public() && !response(&["\"public\""]).public());
        assert!(response(&["must-revalidate"]).is_revalidated() && response(&["must-understand"]).lifts_no_store());
        for line in ["must-revalidate=1, must-understand=", "must-revalidate, must-understand, x=\"y"] {
            let said = response(&[line]);
            assert!(said.must_revalidate() && said.must_understand(), "{line}");
            assert!(!said.is_revalidated() && !said.lifts_no_store(), "{line}");
        }
        assert!(response(&["s-maxage=0"]).shared_age());
        assert!(!response(&["s-maxage=x"]).shared_age());
        assert!(!response(&["s-maxage=5, s-maxage=x"]).shared_age());
        let broken = response(&["public, max-age=60, s-maxage=60, stale-while-revalidate=60, x=\"y"]);
        assert!(!broken.public() && !broken.shared_age());
        assert_eq!((broken.max_age, broken.s_maxage, broken.while_revalidate), (Some(0), Some(0), Some(0)));
        assert_eq!(response(&["stale-if-error=60, x=\"y"]).if_error, Some(0));
    }

    #[test]
    fn a_request_asks_for_what_it_will_take() {
        let asked = request("max-age=5, MIN-FRESH=3, max-stale, stale-if-error=9, only-if-cached");
        assert_eq!((asked.max_age, asked.min_fresh), (Some(5), Some(3)));
        assert_eq!((asked.max_stale, asked.if_error), (Some(u32::MAX), Some(9)));
        assert!(asked.only_if_cached() && !asked.no_cache() && !asked.is_plain());
        assert_eq!(request("max-stale=60, max-stale").max_stale, Some(60));
        assert_eq!(request("max-stale=x").max_stale, None);
        assert!(request("No-Cache").no_cache() && request("no-store").no_store());
        assert!(request("private, whatever=1").is_plain());
    }

    #[test]
    fn pragma_counts_only_where_nothing_newer_is_said() {
        let mut asked = headers(&header::PRAGMA, &["x, No-Cache"]);
        assert!(RequestDirectives::read(&asked).no_cache());
        asked.append(header::CACHE_CONTROL, HeaderValue::from_static("max-age=5"));
        assert!(!RequestDirectives::read(&asked).no_cache());
    }

    #[test]
    fn a_targeted_field_is_read_to_the_letter_or_not_at_all() {
        assert_eq!(targeted(&["max-age=3600"]).unwrap().max_age, Some(3600));
        assert_eq!(targeted(&["foobar, max-age=3600;x=1"]).unwrap().max_age, Some(3600));
        assert_eq!(targeted(&["max-age=99999999999"]).unwrap().max_age, Some(1 << 31));
        assert_eq!(targeted(&["foo", "max-age=10"]).unwrap().max_age, Some(10));
        assert_eq!(targeted(&["max-age=5, max-age=10"]).unwrap().max_age, Some(10), "the last, as RFC 8941 says");
        assert!(targeted(&["no-store, public"]).is_some_and(|said| said.no_store() && said.public()));
        for line in
            ["", " ", "max-age =100", "max-age= 100", "MaX-aGe=1", "max-age=10000, &&&&&", "max-age=10,", "a=\"x"]
        {
            assert_eq!(targeted(&[line]), None, "{line}");
        }
    }

    #[test]
    fn a_targeted_member_of_the_wrong_type_permits_nothing_but_still_forbids() {
        for line in ["max-age=\"10000\"", "max-age=10.0", "max-age", "max-age=-5", "max-age=ten"] {
            assert_eq!(targeted(&[line]).unwrap().max_age, None, "{line}");
        }
        assert!(!targeted(&["public=1"]).unwrap().public());
        for line in ["private=\"x\"", "private=1", "private=(a b)", "private;x", "private=?1"] {
            assert!(targeted(&[line]).unwrap().private(), "{line}");
        }
        assert!(!targeted(&["private=?0"]).unwrap().private());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.append(header::CACHE_CONTROL, value.clone());
                headers.append(CDN_CACHE_CONTROL, value);
                Directives::of_cache_control(&headers);
                Directives::of_targeted(&headers, &CDN_CACHE_CONTROL);
                RequestDirectives::read(&headers);
            }
        }
    }
}
