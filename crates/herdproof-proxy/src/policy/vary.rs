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

use http::{HeaderMap, HeaderName, header};

use super::fields::{Elements, list};

/// A response that varies on more than this is for nobody else: its variants would only fill the store.
pub const MOST_FIELDS: usize = 8;

/// What a response varies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vary {
    /// One answer for all.
    Nothing,
    /// On what these fields of the request say.
    On(Spec),
    /// On more than anybody can know: `*`, or a name that is none.
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
                Ok(name) if name.as_str() != "*" => names.push(name),
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

    /// A line per field. No value has a line break in it.
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
                    sink(b"=");
                    sink(line.as_bytes());
                }
            } else {
                for element in list(request, name) {
                    sink(b",");
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
        sink(b",");
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
                let wanted = !is_zero(weight);
                let bit = match name {
                    name if name.eq_ignore_ascii_case(b"br") => BR,
                    name if name.eq_ignore_ascii_case(b"zstd") => ZSTD,
                    name if name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip") => GZIP,
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
