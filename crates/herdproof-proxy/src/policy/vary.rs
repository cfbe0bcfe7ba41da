//! Which answer of several: what `Vary` makes of one URL.
//!
//! The same question put in two ways must find the same answer, or a cache holds a hundred copies of one page and a herd is a
//! hundred small ones. So the values a response varies on are compared in a plain form: lines combined, spaces around commas
//! gone, languages in any order and case, encodings as the few there are. What stands in `Cookie` and `Authorization` is
//! compared byte by byte: there a space may be another user.
//!
//! ```
//! use herdproof_proxy::policy::vary::Vary;
//! use http::HeaderMap;
//!
//! let mut response = HeaderMap::new();
//! response.insert("vary", "Accept-Encoding".parse().unwrap());
//! let Vary::On(spec) = Vary::read(&response) else { panic!("it varies") };
//!
//! let mut one = HeaderMap::new();
//! one.insert("accept-encoding", "gzip, deflate, br;q=0.9".parse().unwrap());
//! let mut other = HeaderMap::new();
//! other.insert("accept-encoding", "br,gzip".parse().unwrap());
//! assert!(spec.matches(&spec.variant(&one), &other));
//! ```

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    fields::{Elements, list},
    hop,
};

/// A response that varies on more than this is for nobody else: its variants would only fill the store.
pub const MOST_FIELDS: usize = 8;

/// Before each part of what a field says.
const PART: &[u8] = b"\0";

/// What a response varies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vary {
    /// One answer for all.
    Nothing,
    /// On what these fields of the request say.
    On(Spec),
    /// On more than anybody can know: `*`, or a name that is none; or on the client's address.
    Everything,
    /// On more fields than [`MOST_FIELDS`].
    TooMuch,
}

/// The fields of the request that choose the answer, in order, each once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    names: Box<[HeaderName]>,
}

/// What a request says in those fields, in plain form. Equal for requests that are to get the same answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Variant(Box<[u8]>);

impl Vary {
    /// Reads all lines of the field.
    pub fn read(response: &HeaderMap) -> Vary {
        if !response.contains_key(header::VARY) {
            return Vary::Nothing;
        }
        let mut names = Vec::new();
        for name in list(response, &header::VARY) {
            match HeaderName::from_bytes(name) {
                // Which client asks is said to the origin by us, and to us by nobody.
                Ok(name) if name.as_str() != "*" && !hop::says_who(&name) => names.push(name),
                _ => return Vary::Everything,
            }
        }
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        match names.len() {
            0 => Vary::Nothing,
            1..=MOST_FIELDS => Vary::On(Spec { names: names.into() }),
            _ => Vary::TooMuch,
        }
    }
}

impl Spec {
    /// The names of the fields.
    pub fn names(&self) -> &[HeaderName] {
        &self.names
    }

    /// Which answer this request is to get.
    pub fn variant(&self, request: &HeaderMap) -> Variant {
        let mut bytes = Vec::new();
        self.write(request, &mut |part| bytes.extend_from_slice(part));
        Variant(bytes.into())
    }

    /// Whether this request is to get that answer: as comparing [`variant`](Spec::variant)s, without making one.
    pub fn matches(&self, variant: &Variant, request: &HeaderMap) -> bool {
        let mut rest = Some(&*variant.0);
        self.write(request, &mut |part| rest = rest.and_then(|rest| rest.strip_prefix(part)));
        rest.is_some_and(<[u8]>::is_empty)
    }

    /// A line per field, a zero before each part of it. No value has either in it, so that two lines never look like one: who
    /// sends `Cookie: a` and `Cookie: b` does not choose what `Cookie: a=b` gets.
    fn write(&self, request: &HeaderMap, sink: &mut impl FnMut(&[u8])) {
        for name in &self.names {
            if *name == header::ACCEPT_ENCODING {
                sink(Encodings::read(request).as_str().as_bytes());
            } else if !request.contains_key(name) {
                sink(b"-");
            } else if *name == header::ACCEPT_LANGUAGE {
                languages(request, sink);
            } else if matches!(*name, header::COOKIE | header::AUTHORIZATION | header::PROXY_AUTHORIZATION) {
                for line in request.get_all(name) {
                    sink(PART);
                    sink(line.as_bytes());
                }
            } else {
                for element in list(request, name) {
                    sink(PART);
                    sink(element);
                }
            }
            sink(b"\n");
        }
    }
}

/// In any order and case: which language comes first says nothing (RFC 9110 12.5.4), the weights do.
fn languages(request: &HeaderMap, sink: &mut impl FnMut(&[u8])) {
    let plain = |element: &[u8]| -> Vec<u8> {
        element.iter().filter(|byte| !byte.is_ascii_whitespace()).map(u8::to_ascii_lowercase).collect()
    };
    let mut ranges: Vec<Vec<u8>> = list(request, &header::ACCEPT_LANGUAGE).map(plain).collect();
    ranges.sort_unstable();
    for range in &ranges {
        sink(PART);
        sink(range);
    }
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A variant may hold what a user logged in with.
        write!(f, "Variant({} bytes)", self.0.len())
    }
}

impl Variant {
    /// What tells it from others.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How much memory it takes.
    pub fn weight(&self) -> usize {
        self.0.len()
    }
}

/// The encodings a client takes, of those that are in use. Eight forms instead of the hundreds that browsers write; the origin is
/// to be asked in this form too, so that the answer fits all who share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Encodings(u8);

const BR: u8 = 1;
const ZSTD: u8 = 2;
const GZIP: u8 = 4;

impl Encodings {
    /// Of a request. Without the field, or with one that names none of them: as it is.
    pub fn read(request: &HeaderMap) -> Encodings {
        let (mut taken, mut refused, mut others) = (0, 0, false);
        for line in request.get_all(header::ACCEPT_ENCODING) {
            for element in Elements::of(line.as_bytes()) {
                let (name, weight) = match element.iter().position(|&byte| byte == b';') {
                    Some(at) => (element[..at].trim_ascii(), &element[at + 1..]),
                    None => (element, &b""[..]),
                };
                let wanted = weight.is_empty() || !is_zero(weight);
                let bit = match name {
                    [b'b' | b'B', b'r' | b'R'] => BR,
                    [b'z' | b'Z', ..] if name.eq_ignore_ascii_case(b"zstd") => ZSTD,
                    [b'g' | b'G', ..] if name.eq_ignore_ascii_case(b"gzip") => GZIP,
                    [b'x' | b'X', ..] if name.eq_ignore_ascii_case(b"x-gzip") => GZIP,
                    b"*" => {
                        others = wanted;
                        continue;
                    }
                    _ => continue,
                };
                *if wanted { &mut taken } else { &mut refused } |= bit;
            }
        }
        Encodings(if others { BR | ZSTD | GZIP } else { taken } & !refused)
    }

    /// Whether gzip is one of them.
    pub fn has_gzip(self) -> bool {
        self.0 & GZIP != 0
    }

    /// As `Accept-Encoding` says it; empty for none.
    pub fn as_str(self) -> &'static str {
        match self.0 {
            BR => "br",
            ZSTD => "zstd",
            GZIP => "gzip",
            3 => "br, zstd",
            5 => "br, gzip",
            6 => "zstd, gzip",
            7 => "br, zstd, gzip",
            _ => "",
        }
    }
}

/// Makes a request that is made for many ask in that form, so that the answer to one fits all who count as the same. Else a client
/// that takes `deflate`, which is none of these, would have it sent to one that takes nothing.
pub fn ask_plainly(request: &mut HeaderMap) {
    let said = Encodings::read(request).as_str();
    let said = HeaderValue::from_static(if said.is_empty() { "identity" } else { said });
    request.insert(header::ACCEPT_ENCODING, said);
}

/// Whether a weight says no: `q=0`, `q=0.000`.
fn is_zero(parameters: &[u8]) -> bool {
    parameters.split(|&byte| byte == b';').any(|parameter| {
        let parameter = parameter.trim_ascii();
        let (name, value) = match parameter.iter().position(|&byte| byte == b'=') {
            Some(at) => (parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii()),
            None => (parameter, &b""[..]),
        };
        name.eq_ignore_ascii_case(b"q") && value.first() == Some(&b'0') && value.iter().all(|byte| b"0.".contains(byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn vary(lines: &[&str]) -> Vary {
        let lines: Vec<_> = lines.iter().map(|line| ("vary", *line)).collect();
        Vary::read(&headers(&lines))
    }

    fn spec(line: &str) -> Spec {
        match vary(&[line]) {
            Vary::On(spec) => spec,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_same(line: &str, one: &[(&str, &str)], other: &[(&str, &str)], same: bool) {
        let (spec, one, other) = (spec(line), headers(one), headers(other));
        assert_eq!(spec.variant(&one) == spec.variant(&other), same, "{one:?} {other:?}");
        assert_eq!(spec.matches(&spec.variant(&one), &other), same, "{one:?} {other:?}");
        assert_eq!(spec.matches(&spec.variant(&other), &one), same, "{one:?} {other:?}");
    }

    #[test]
    fn a_star_anywhere_is_everything() {
        for lines in [&["*"][..], &["*, *"], &["*", "*"], &[", *"], &["", "*"], &["*, Foo"], &["Foo, *"], &["foo,*"]] {
            assert_eq!(vary(lines), Vary::Everything, "{lines:?}");
        }
        assert_eq!(vary(&["foo bar"]), Vary::Everything, "nobody knows which field that is");
    }

    #[test]
    fn the_same_fields_in_any_order_and_case_are_the_same() {
        assert_eq!(vary(&["Foo, BAR"]), vary(&["bar", "foo,, Foo"]));
        assert_eq!(spec("b, A").names(), ["a", "b"]);
        assert_eq!(vary(&[]), Vary::Nothing);
        assert_eq!(vary(&["", " , "]), Vary::Nothing);
        assert_eq!(vary(&["a,b,c,d,e,f,g,h"]), Vary::On(spec("h,g,f,e,d,c,b,a")));
        assert_eq!(vary(&["a,b,c,d,e,f,g,h,i"]), Vary::TooMuch);
    }

    #[test]
    fn two_lines_do_not_choose_what_one_line_gets() {
        check_same("Cookie", &[("cookie", "a"), ("cookie", "b")], &[("cookie", "a=b")], false);
        check_same(
            "Authorization",
            &[("authorization", "a"), ("authorization", "b")],
            &[("authorization", "a=b")],
            false,
        );
        check_same("Foo", &[("foo", "\"a"), ("foo", "b\"")], &[("foo", "\"a,b\"")], false);
    }

    #[test]
    fn what_is_said_differently_but_means_the_same_finds_the_same_answer() {
        check_same("Foo", &[("foo", "1")], &[("foo", "1"), ("other", "2")], true);
        check_same("Foo", &[("foo", "1")], &[("foo", "2")], false);
        check_same("Foo", &[("foo", "1")], &[], false);
        check_same("Foo", &[("foo", "")], &[], false);
        check_same("Foo", &[], &[], true);
        check_same("Foo", &[("foo", "1, 2")], &[("foo", "1"), ("foo", "2")], true);
        check_same("Foo", &[("foo", "1,2")], &[("foo", " 1, 2 ")], true);
        check_same("Foo", &[("foo", "1,2")], &[("foo", "2,1")], false);
        check_same("Foo", &[("foo", "a b")], &[("foo", "ab")], false);
        check_same("Foo", &[("foo", "\"a, b\"")], &[("foo", "\"a,b\"")], false);
        check_same("Foo, Bar, Baz", &[("foo", "1"), ("baz", "789")], &[("baz", "789"), ("foo", "1")], true);
        check_same("Foo, Bar", &[("foo", "1")], &[("bar", "1")], false);
        check_same("Foo, Bar", &[("foo", "1"), ("bar", "abc")], &[("foo", "1"), ("bar", "abcde")], false);
        check_same("Accept-Language", &[("accept-language", "en, de")], &[("accept-language", "de , eN")], true);
        check_same("Accept-Language", &[("accept-language", "en;q=0.5, de")], &[("accept-language", "en, de")], false);
    }

    #[test]
    fn another_users_cookie_is_another_answer_to_the_byte() {
        check_same("Cookie", &[("cookie", "a={\"x\":1, \"y\":2}")], &[("cookie", "a={\"x\":1,\"y\":2}")], false);
        check_same("Cookie", &[("cookie", "a=1"), ("cookie", "b=2")], &[("cookie", "b=2"), ("cookie", "a=1")], false);
        check_same("Authorization", &[("authorization", "Digest a, b")], &[("authorization", "Digest a,b")], false);
        let shown = format!("{:?}", spec("Cookie").variant(&headers(&[("cookie", "secret")])));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_encodings_of_all_browsers_are_a_handful() {
        let of = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("accept-encoding", *line)).collect();
            Encodings::read(&headers(&lines)).as_str()
        };
        for (line, expected) in [
            ("gzip, deflate, br, zstd", "br, zstd, gzip"),
            ("gzip,deflate,br", "br, gzip"),
            ("GZIP;q=1.0, br;q=0.5", "br, gzip"),
            ("gzip;q=0, br", "br"),
            ("gzip; q=0.000, br", "br"),
            ("br, br;q=0", ""),
            ("x-gzip", "gzip"),
            ("*", "br, zstd, gzip"),
            ("*;q=0, gzip", "gzip"),
            ("*, br;q=0", "zstd, gzip"),
            ("deflate", ""),
            ("identity", ""),
            ("", ""),
            ("gzip;q=0.001", "gzip"),
        ] {
            assert_eq!(of(&[line]), expected, "{line}");
        }
        assert_eq!(of(&["gzip", "br"]), "br, gzip");
        assert_eq!(of(&[]), "");
        for bits in 0..8 {
            let said = Encodings(bits);
            assert_eq!(
                Encodings::read(&headers(&[("accept-encoding", said.as_str())])),
                said,
                "asked in this form, read in this form"
            );
        }
    }

    #[test]
    fn the_origin_is_asked_for_what_all_of_one_variant_take() {
        for (lines, expected) in [
            (&["deflate, gzip;q=0.5", "br"][..], "br, gzip"),
            (&["deflate"], "identity"),
            (&[""], "identity"),
            (&[], "identity"),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("accept-encoding", *line)).collect();
            let mut request = headers(&lines);
            let spec = spec("accept-encoding");
            let before = spec.variant(&request);
            ask_plainly(&mut request);
            assert_eq!(request, headers(&[("accept-encoding", expected)]));
            assert!(spec.matches(&before, &request), "it is still the same variant");
        }
    }

    proptest! {
        #[test]
        fn comparing_on_the_way_is_comparing_variants(
            line in "(a|b|cookie|accept-language|accept-encoding)(, ?(a|b|cookie)){0,2}",
            one in proptest::collection::vec(("(a|b|cookie|accept-language|accept-encoding)", "[ab ,\"]{0,4}"), 0..4),
            other in proptest::collection::vec(("(a|b|cookie|accept-language|accept-encoding)", "[ab ,\"]{0,4}"), 0..4),
        ) {
            let spec = spec(&line);
            let build = |fields: &[(String, String)]| headers(&fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>());
            let (one, other) = (build(&one), build(&other));
            prop_assert_eq!(spec.matches(&spec.variant(&one), &other), spec.variant(&one) == spec.variant(&other));
            prop_assert!(spec.matches(&spec.variant(&one), &one));
        }
    }
}
