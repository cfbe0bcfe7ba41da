//! Hits that need nothing but their URL.
//!
//! Most requests of a herd say which page they want and nothing else that could change the answer. Where the page is kept, fresh and
//! the same for all, they are answered from the bytes they came as, see [`Lane`]. What is decided here is decided as
//! [`Proxy::serve`] would: by the same key, the same store and the same [`Life`](crate::policy::Life). Everything that would make it
//! think, a field that is not known to be harmless, something stale, variants, a log to be written, is left to it.

use std::{str, sync::Arc};

use bytes::Bytes;
use http::StatusCode;

use super::{Core, Proxy};
use crate::{
    key::Scheme,
    listener::{Answered, Asked, Lane},
    object::Object,
    policy::{RequestDirectives, Use},
};

/// Larger bodies are not copied, but written from where they are.
const COPIED: usize = 16 << 10;
/// More fields than this are for those who have room for them.
const MOST_FIELDS: usize = 32;
const LAST_FIELDS: &[u8] = b"cache-status: herdproof; hit\r\ncontent-length: ";

/// The head of a request without a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head<'a> {
    /// It says what it wants, and nothing that makes a difference.
    Plain { host: &'a str, target: &'a str, has_cookie: bool },
    /// It says more.
    More,
}

impl Proxy {
    /// Who answers at once what can be, if that may be.
    pub(super) fn lane(&self) -> Option<Arc<dyn Lane>> {
        // A line of the log says more of a request than is looked at here, and who trusts a proxy in front hears from it what was
        // asked for and by which user. Of a stranger, no field that says who it is counts.
        let may = self.0.log.is_none() && self.0.settings.trusted_proxies.is_empty();
        may.then(|| Arc::clone(&self.0) as Arc<dyn Lane>)
    }
}

impl Lane for Core {
    #[inline]
    fn ask(&self, bytes: &[u8], answer: &mut Vec<u8>) -> Asked {
        match head(bytes) {
            Some(Head::Plain { host, target, has_cookie }) => {
                self.answer(host, target, has_cookie, answer).unwrap_or(Asked::Whole)
            }
            Some(Head::More) => Asked::Whole,
            None => Asked::Other,
        }
    }

    #[inline]
    fn written(&self, Answered { status, bytes, since, .. }: &Answered) {
        // The clock is read once more for this: some 20 ns of the 10 us that a hit takes.
        self.metrics.count_at_once(*status, *bytes, self.env.now() - *since);
    }
}

impl Core {
    /// Writes the answer down, if it is a hit that needs no thought; what of its body is not written down, comes after it.
    #[inline]
    fn answer(&self, host: &str, target: &str, has_cookie: bool, answer: &mut Vec<u8>) -> Option<Asked> {
        let key = self.keyer.key(Scheme::Http, host, target).ok()?;
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if !self.routes.of(path).share {
            return None;
        }
        // Not the coarse clock: what has just come would be a second younger than its origin said.
        let now = self.env.now();
        let is_fresh = |object: &Object| object.life.at(now, &RequestDirectives::default()) == Use::Fresh;
        let is_for_it = |object: &Object| !has_cookie || object.life.is_for_cookies();
        let object = self.store.find_if(&key, |object| is_fresh(object) && is_for_it(object) && is_here(object))?;
        let (head, body) = (object.head(), object.body()?);
        let status = head.status();
        write_status(answer, status);
        head.write_to(answer);
        answer.extend_from_slice(b"age: ");
        write_number(answer, object.life.age(now));
        answer.extend_from_slice(b"\r\n");
        answer.extend_from_slice(LAST_FIELDS);
        write_number(answer, body.len() as u64);
        answer.extend_from_slice(b"\r\n\r\n");
        self.shared_again(now, || self.learned.template(host, path, false));
        let bytes = body.len() as u64;
        let (body, footprint) = if body.len() > COPIED {
            (object.shared_body(), object.footprint().cloned())
        } else {
            answer.extend_from_slice(body);
            (Bytes::new(), None)
        };
        Some(Asked::Answered(Answered { body, footprint, status, bytes, since: now }))
    }
}

/// Whether all of it is here, with a body.
#[inline]
fn is_here(object: &Object) -> bool {
    let has_body = !matches!(object.head().status().as_u16(), ..200 | 204 | 205 | 304);
    has_body && object.body().is_some()
}

/// The head that these bytes are, if they are the head of one request that has no body, and nothing else. Read by the same parser as
/// by hyper, which gets what is not answered here.
#[inline]
fn head(bytes: &[u8]) -> Option<Head<'_>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let is_one = request.parse(bytes) == Ok(httparse::Status::Complete(bytes.len()));
    if !is_one || request.version != Some(1) || !matches!(request.method, Some("GET" | "HEAD")) {
        return None;
    }
    let (mut host, mut has_cookie) = (None, false);
    let mut is_plain = request.method == Some("GET");
    for field in &*request.headers {
        match field_of(field.name) {
            Field::Harmless => {}
            Field::Cookie => has_cookie = true,
            Field::Host => is_plain &= host.replace(field.value).is_none(),
            Field::Connection if field.value.eq_ignore_ascii_case(b"keep-alive") => {}
            Field::Connection | Field::Framing => return None,
            Field::Telling => is_plain = false,
        }
    }
    // A target with a scheme and a host of its own is for those who compare the two.
    let target = request.path.filter(|target| is_plain && target.starts_with('/'));
    let host = host.and_then(|host| str::from_utf8(host).ok());
    Some(match (host, target) {
        (Some(host), Some(target)) => Head::Plain { host, target, has_cookie },
        _ => Head::More,
    })
}

/// What a field of a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Host,
    Connection,
    /// Some pages are for those without any.
    Cookie,
    /// Where the request ends, or that it is not the end.
    Framing,
    /// Nothing that a page that is the same for all depends on.
    Harmless,
    /// Who knows.
    Telling,
}

/// Only what is known to be harmless is. It may still be what a response varies on, but then there is no one page for all.
#[inline]
fn field_of(name: &str) -> Field {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix));
    match name.len() {
        4 if is("host") => Field::Host,
        6 if is("cookie") => Field::Cookie,
        6 if is("accept") || is("origin") => Field::Harmless,
        6 if is("expect") => Field::Framing,
        7 if is("referer") => Field::Harmless,
        7 if is("upgrade") => Field::Framing,
        10 if is("user-agent") => Field::Harmless,
        10 if is("connection") => Field::Connection,
        14 if is("content-length") => Field::Framing,
        15 if is("accept-encoding") || is("accept-language") => Field::Harmless,
        17 if is("transfer-encoding") => Field::Framing,
        _ if begins("x-") || begins("sec-") || is("dnt") || is("priority") || is("traceparent") || is("via") => {
            Field::Harmless
        }
        _ => Field::Telling,
    }
}

#[inline]
fn write_status(out: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    // As hyper has it.
    out.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        let digit = (number % 10) as u8;
        digits[first] = b'0' + digit;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests;
