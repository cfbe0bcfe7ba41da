//! A part of what is stored.
//!
//! The origin is asked for the whole, once, and everybody who wants a part gets it from there: a herd of range requests is one
//! fill. One range is served; several are answered with the whole, which the RFC allows and which no list of a thousand
//! overlapping ranges can make expensive.

use http::{HeaderMap, header};

/// What a request wants of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranged {
    /// All of it, with 200.
    Whole,
    /// From the first byte to the last, both included, with 206.
    Part {
        /// The first byte.
        first: u64,
        /// The last byte.
        last: u64,
    },
    /// Something that is not there: 416.
    Unsatisfiable,
}

/// What a GET with these fields wants of a body of this length. A `Range` that cannot be read is not there.
pub fn range(request: &HeaderMap, length: u64) -> Ranged {
    let mut lines = request.get_all(header::RANGE).into_iter();
    match (lines.next(), lines.next()) {
        (Some(only), None) => read(only.as_bytes(), length).unwrap_or(Ranged::Whole),
        _ => Ranged::Whole,
    }
}

fn read(value: &[u8], length: u64) -> Option<Ranged> {
    let (unit, range) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    // A comma makes it several, and so not a number.
    let range = range.trim_ascii();
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (&range[..dash], &range[dash + 1..]);
    if first.is_empty() {
        let suffix = number(last)?;
        return Some(match (suffix, length) {
            (0, _) | (_, 0) => Ranged::Unsatisfiable,
            _ => Ranged::Part { first: length.saturating_sub(suffix), last: length - 1 },
        });
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    Some(if first >= length { Ranged::Unsatisfiable } else { Ranged::Part { first, last: last.min(length - 1) } })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn of(value: &str, length: u64) -> Ranged {
        let mut request = HeaderMap::new();
        request.insert(header::RANGE, HeaderValue::from_str(value).unwrap());
        range(&request, length)
    }

    fn part(first: u64, last: u64) -> Ranged {
        Ranged::Part { first, last }
    }

    #[test]
    fn one_range_is_served() {
        for (value, expected) in [
            ("bytes=0-1", part(0, 1)),
            ("Bytes=1-", part(1, 9)),
            ("bytes=-1", part(9, 9)),
            ("bytes=-99", part(0, 9)),
            ("bytes=9-", part(9, 9)),
            ("bytes=0-99999999999999999999999", part(0, 9)),
            ("bytes= 2-3 ", part(2, 3)),
            ("bytes=10-", Ranged::Unsatisfiable),
            ("bytes=99999999999999999999999-", Ranged::Unsatisfiable),
            ("bytes=-0", Ranged::Unsatisfiable),
        ] {
            assert_eq!(of(value, 10), expected, "{value}");
        }
        assert_eq!(of("bytes=0-", 0), Ranged::Unsatisfiable);
        assert_eq!(of("bytes=-5", 0), Ranged::Unsatisfiable);
    }

    #[test]
    fn inverted_overlapping_many_and_nonsense_are_the_whole() {
        let many = format!("bytes={}", vec!["0-"; 2_000].join(","));
        for value in [
            "bytes=5-2",
            "bytes=0-1,0-1",
            "bytes=0-,0-,0-",
            "bytes=0-1, 3-4",
            "bytes=,",
            "bytes=",
            "bytes",
            "bytes=-",
            "bytes=a-b",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=1 - 2",
            "lines=1-2",
            "bytes:0-1",
            "",
            &many,
        ] {
            assert_eq!(of(value, 10), Ranged::Whole, "{value}");
        }
        let mut twice = HeaderMap::new();
        twice.append(header::RANGE, HeaderValue::from_static("bytes=0-1"));
        twice.append(header::RANGE, HeaderValue::from_static("bytes=2-3"));
        assert_eq!(range(&twice, 10), Ranged::Whole);
    }

    proptest! {
        #[test]
        fn a_part_lies_within(value in "bytes=[0-9]{0,21}-[0-9]{0,21}", length in any::<u64>()) {
            if let Ranged::Part { first, last } = of(&value, length) {
                prop_assert!(first <= last && last < length);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(value in "[byts=0-9, -]{0,30}", length in 0u64..20) {
            of(&value, length);
        }
    }
}
