//! Header fields as they come: over several lines, in any case, with quotes and stray spaces.
//!
//! A cache that misses `PRIVATE` in the second line of a field gives one user's page to the next. So a list is split here, in
//! one place, and whoever reads a field reads all its lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};

/// The longest time a field can state: 68 years, which is as good as for ever, and RFC 9111 1.2.2 says so.
pub const FOREVER: u32 = 1 << 31;

/// One line of a list field, element by element: split at commas outside of quotes, trimmed, empty ones left out.
#[derive(Clone, Debug)]
pub(super) struct Elements<'a> {
    rest: &'a [u8],
    broken: bool,
}

impl<'a> Elements<'a> {
    pub(super) fn of(line: &'a [u8]) -> Elements<'a> {
        Elements { rest: line, broken: false }
    }

    /// Whether a quote was opened and never closed, so that nobody knows what was meant.
    pub(super) fn broken(&self) -> bool {
        self.broken
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let quoted = if self.broken { Err(Unclosed) } else { comma(self.rest) };
            let end = quoted.unwrap_or_else(|Unclosed| {
                // From here on a quote is an ordinary character: what stands behind it is not to be hidden by it, and a line
                // full of them is not to be read again for each.
                self.broken = true;
                self.rest.iter().position(|&byte| byte == b',').unwrap_or(self.rest.len())
            });
            let element = self.rest[..end].trim_ascii();
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

struct Unclosed;

/// Where the first comma outside of quotes is, or the end.
fn comma(bytes: &[u8]) -> Result<usize, Unclosed> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return Ok(at),
            _ => {}
        }
    }
    if quoted { Err(Unclosed) } else { Ok(bytes.len()) }
}

/// The elements of a list field, over all its lines.
pub(super) fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers.get_all(name).into_iter().flat_map(|line| Elements::of(line.as_bytes()))
}

/// Whole seconds, as `max-age` and `Age` state them. What is larger than a clock can hold is [`FOREVER`]; what is not a number
/// is nothing.
pub(super) fn seconds(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = text.iter().fold(0u64, |sum, digit| (sum * 10 + u64::from(digit - b'0')).min(u64::from(FOREVER)));
    u32::try_from(number).ok()
}

/// How old the answer already was: the first value there is. One that is not a number says nothing.
pub(super) fn age(headers: &HeaderMap) -> u32 {
    list(headers, &http::header::AGE).next().and_then(seconds).unwrap_or(0)
}

/// A field that holds one date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Date {
    Absent,
    Invalid,
    /// Seconds since 1970.
    At(i64),
}

impl Date {
    /// Two different dates are as good as none that can be read.
    pub(super) fn read(headers: &HeaderMap, name: &HeaderName) -> Date {
        let mut lines = headers.get_all(name).into_iter();
        let Some(first) = lines.next() else { return Date::Absent };
        if lines.any(|other| other != first) {
            return Date::Invalid;
        }
        date(first.as_bytes()).map_or(Date::Invalid, Date::At)
    }

    pub(super) fn get(self) -> Option<i64> {
        match self {
            Date::At(seconds) => Some(seconds),
            Date::Absent | Date::Invalid => None,
        }
    }
}

/// Seconds since 1970 on the wall clock.
pub(super) fn unix(wall: SystemTime) -> i64 {
    match wall.duration_since(UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()),
    }
}

fn whole(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// The three formats of RFC 9110 5.6.7, in whatever case: to the letter otherwise, for a date that is almost right may mean
/// anything. The name of the day is not compared with the date.
pub(super) fn date(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    let (day, rest) = text.split_at_checked(text.iter().position(|byte| !byte.is_ascii_alphabetic())?)?;
    if let Some(rest) = rest.strip_prefix(b", ") {
        let zone = rest.strip_suffix_ignoring_case(b" gmt")?;
        return match zone.len() {
            // 06 Nov 1994 08:49:37
            20 if is_day(day, 3) && zone[2] == b' ' && zone[6] == b' ' && zone[11] == b' ' => {
                at(number(&zone[7..11])?, &zone[3..6], number(&zone[..2])?, &zone[12..])
            }
            // 06-Nov-94 08:49:37
            18 if is_day(day, 9) && zone[2] == b'-' && zone[6] == b'-' && zone[9] == b' ' => {
                let year = number(&zone[7..9])?;
                // Nobody who still writes this means the years after 2069.
                at(if year < 70 { 2000 + year } else { 1900 + year }, &zone[3..6], number(&zone[..2])?, &zone[10..])
            }
            _ => None,
        };
    }
    // Sun Nov  6 08:49:37 1994
    let rest = rest.strip_prefix(b" ")?;
    if rest.len() != 20 || !is_day(day, 3) || rest[3] != b' ' || rest[6] != b' ' || rest[15] != b' ' {
        return None;
    }
    let day = if rest[4] == b' ' { number(&rest[5..6])? } else { number(&rest[4..6])? };
    at(number(&rest[16..])?, &rest[..3], day, &rest[7..15])
}

trait StripIgnoringCase {
    fn strip_suffix_ignoring_case(&self, suffix: &[u8]) -> Option<&[u8]>;
}

impl StripIgnoringCase for [u8] {
    fn strip_suffix_ignoring_case(&self, suffix: &[u8]) -> Option<&[u8]> {
        let (rest, end) = self.split_at_checked(self.len().checked_sub(suffix.len())?)?;
        end.eq_ignore_ascii_case(suffix).then_some(rest)
    }
}

fn is_day(name: &[u8], longest: usize) -> bool {
    const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    DAYS.iter().any(|day| day.as_bytes()[..day.len().min(longest)].eq_ignore_ascii_case(name))
}

fn number(digits: &[u8]) -> Option<i64> {
    seconds(digits).map(i64::from)
}

/// Seconds since 1970 of a day and a time `08:49:37`.
fn at(year: i64, month: &[u8], day: i64, time: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))?;
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *time else { return None };
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    // A leap second is a second.
    if !(1..=days_in(year, month)).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(((days_before(year) + days_before_month(year, month) + day - 1) * 24 + hour) * 3600 + minute * 60 + second)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: usize) -> i64 {
    const DAYS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    DAYS[month] + i64::from(month == 1 && is_leap(year))
}

fn days_before_month(year: i64, month: usize) -> i64 {
    (0..month).map(|earlier| days_in(year, earlier)).sum()
}

/// Days from 1970 to the beginning of a year; negative before.
fn days_before(year: i64) -> i64 {
    let leaps = |year: i64| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn elements(line: &str) -> (Vec<&str>, bool) {
        let mut split = Elements::of(line.as_bytes());
        let found = split.by_ref().map(|element| std::str::from_utf8(element).unwrap()).collect();
        (found, split.broken())
    }

    #[test]
    fn a_comma_in_quotes_ends_nothing() {
        assert_eq!(elements(r#"a="x, y", b ,, c"#), (vec![r#"a="x, y""#, "b", "c"], false));
        assert_eq!(elements(r#"a="x\", y", b"#), (vec![r#"a="x\", y""#, "b"], false));
        assert_eq!(elements(" , ,\t"), (vec![], false));
    }

    #[test]
    fn what_stands_behind_an_open_quote_is_not_hidden() {
        assert_eq!(elements(r#"a="x, private"#), (vec![r#"a="x"#, "private"], true));
    }

    #[test]
    fn seconds_saturate_and_nothing_else_is_a_number() {
        for (text, expected) in [
            ("0", Some(0)),
            ("003600", Some(3600)),
            ("2147483647", Some(2_147_483_647)),
            ("2147483648", Some(FOREVER)),
            ("99999999999999999999999999", Some(FOREVER)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("1a", None),
            ("'1'", None),
            ("\u{661}", None),
        ] {
            assert_eq!(seconds(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_date_is_read_in_three_formats_and_any_case_and_not_otherwise() {
        let august = Some(2_544_400_878);
        for (text, expected) in [
            ("Thu, 18 Aug 2050 02:01:18 GMT", august),
            ("THU, 18 AUG 2050 02:01:18 gmt", august),
            ("Thursday, 18-Aug-50 02:01:18 GMT", august),
            ("Thu Aug 18 02:01:18 2050", august),
            ("Thu Aug  8 02:01:18 2050", august.map(|at| at - 10 * 86_400)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sat, 01 Jan 0000 00:00:00 GMT", Some(-62_167_219_200)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799)),
            ("Tue, 29 Feb 2000 23:59:60 GMT", Some(951_868_800)),
            ("Thu, 29 Feb 2001 00:00:00 GMT", None),
            ("Thu, 18 Aug 2050 02:01:18 UTC", None),
            ("Thu, 18 Aug 2050 02:01:18 AEST", None),
            ("Thu, 18 Aug 50 02:01:18 GMT", None),
            ("Thu 18 Aug 2050 02:01:18 GMT", None),
            ("Thu, 18  Aug  2050 02:01:18 GMT", None),
            ("Thu, 18-Aug-2050 02:01:18 GMT", None),
            ("Thu, 18 Aug 2050 02.01.18 GMT", None),
            ("Thu, 18 Aug 2050 2:01:18 GMT", None),
            ("Xyz, 18 Aug 2050 02:01:18 GMT", None),
            ("Thu, 18 Aug 2050 24:01:18 GMT", None),
            ("Thu, 00 Aug 2050 02:01:18 GMT", None),
            ("0", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(date(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn two_dates_that_differ_are_none() {
        let mut headers = HeaderMap::new();
        headers.append("expires", HeaderValue::from_static("Thu, 18 Aug 2050 02:01:18 GMT"));
        headers.append("expires", HeaderValue::from_static("Thu, 18 Aug 2050 02:01:18 GMT"));
        assert_eq!(Date::read(&headers, &http::header::EXPIRES), Date::At(2_544_400_878));
        headers.append("expires", HeaderValue::from_static("Thu, 18 Aug 2050 02:01:19 GMT"));
        assert_eq!(Date::read(&headers, &http::header::EXPIRES), Date::Invalid);
    }

    proptest! {
        #[test]
        fn dates_agree_with_another_reader_of_them(at in 0u64..253_402_300_800) {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(at));
            prop_assert_eq!(date(text.as_bytes()), i64::try_from(at).ok());
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            date(&bytes);
            seconds(&bytes);
            prop_assert!(Elements::of(&bytes).count() <= bytes.len());
        }

        #[test]
        fn almost_dates_do_not_panic(text in "(Mon|sunday|Xx), ?[0-9 -]{1,3}[A-Z][a-z]{2}[ -][0-9]{2,4} [0-9:]{6,9}( GMT)?") {
            date(text.as_bytes());
        }
    }
}
