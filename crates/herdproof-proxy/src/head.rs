//! A response's head as it is kept: one small block of bytes.
//!
//! A header map is made for changing headers: six of them take a kilobyte, and their values keep the buffer alive that they
//! were read into. Kept objects are many and never change, so their status and headers are written one after another into a
//! block that lies before the body, in the same allocation if the body is small.
//!
//! A block is: status (2 bytes), then for each header its name and its value. A name that is often met is one byte, its place in a
//! table; another is a byte that no place has, its length, itself. A value is its length and itself.

use std::{cell::RefCell, iter};

use bytes::{BufMut, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_RANGES, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, AGE, ALLOW, ALT_SVC, CACHE_CONTROL,
        CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE,
        CONTENT_SECURITY_POLICY, CONTENT_TYPE, DATE, ETAG, EXPIRES, LAST_MODIFIED, LINK, LOCATION, PRAGMA,
        REFERRER_POLICY, SERVER, SET_COOKIE, STRICT_TRANSPORT_SECURITY, VARY, VIA, WARNING, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS, X_XSS_PROTECTION,
    },
};

/// Names that responses often have: one byte each, and nothing to be parsed.
static OFTEN: [HeaderName; 35] = [
    ACCEPT_RANGES,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    AGE,
    ALLOW,
    ALT_SVC,
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_LOCATION,
    CONTENT_RANGE,
    CONTENT_SECURITY_POLICY,
    CONTENT_TYPE,
    DATE,
    ETAG,
    EXPIRES,
    LAST_MODIFIED,
    LINK,
    LOCATION,
    PRAGMA,
    REFERRER_POLICY,
    SERVER,
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    VARY,
    VIA,
    WARNING,
    X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
    X_XSS_PROTECTION,
];
/// Before a name that is not among them.
const OTHER: u8 = u8::MAX;
/// Before a length that does not fit into one byte.
const LONG: u8 = u8::MAX;
/// How much room a thread takes for copies of heads at a time.
const ROOM: usize = 16 << 10;

thread_local! {
    static ROOMS: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(ROOM));
}

/// The status and headers of a response, in a block of bytes that begins with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a>(&'a [u8]);

/// Writes a head.
pub(crate) fn block(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::with_capacity(2 + headers.values().map(|value| 32 + value.len()).sum::<usize>());
    block.put_u16(status.as_u16());
    for (name, value) in headers {
        match OFTEN.iter().zip(0..).find(|(often, _)| *often == name) {
            Some((_, place)) => block.put_u8(place),
            None => {
                block.put_u8(OTHER);
                put(&mut block, name.as_str().as_bytes());
            }
        }
        put(&mut block, value.as_bytes());
    }
    block
}

impl Head<'_> {
    /// The head that this block is, and nothing else.
    pub(crate) fn new(block: &[u8]) -> Head<'_> {
        Head(block)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0
    }

    /// How long the block is.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn status(&self) -> StatusCode {
        let code = self.0.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
        StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY)
    }

    /// The headers as a map.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        self.append_to(&mut map);
        map
    }

    /// Adds the headers to a map.
    ///
    /// Their values are parts of a copy that this thread makes: were they parts of the block, all threads that serve it would
    /// fight over the one count of who uses it, twice for each header.
    pub(crate) fn append_to(&self, map: &mut HeaderMap) {
        let block = ROOMS.with_borrow_mut(|room| {
            room.extend_from_slice(self.0);
            room.split().freeze()
        });
        for (name, value) in fields(&block) {
            let name = match name {
                Name::Often(often) => Some(often.clone()),
                Name::Other(name) => HeaderName::from_bytes(name).ok(),
            };
            // Both were valid when they were written.
            if let (Some(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(block.slice_ref(value))) {
                map.append(name, value);
            }
        }
    }

    /// Writes the headers down as they go out.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        for (name, value) in fields(self.0) {
            out.extend_from_slice(match name {
                Name::Often(often) => often.as_str().as_bytes(),
                Name::Other(name) => name,
            });
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A header's name, as a block has it.
enum Name<'a> {
    Often(&'static HeaderName),
    Other(&'a [u8]),
}

/// The headers of a block.
fn fields(block: &[u8]) -> impl Iterator<Item = (Name<'_>, &[u8])> {
    let mut rest = block.get(2..).unwrap_or_default();
    iter::from_fn(move || {
        let (&place, after) = rest.split_first()?;
        rest = after;
        let name = match OFTEN.get(usize::from(place)) {
            Some(often) => Name::Often(often),
            None => Name::Other(take(&mut rest)?),
        };
        Some((name, take(&mut rest)?))
    })
}

/// A length, and that many bytes.
fn put(block: &mut Vec<u8>, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(len) if len != LONG => block.put_u8(len),
        _ => {
            block.put_u8(LONG);
            block.put_u64(bytes.len() as u64);
        }
    }
    block.put_slice(bytes);
}

/// What [`put`] has put there.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&short, mut after) = rest.split_first()?;
    let len = if short == LONG {
        let (long, behind) = after.split_first_chunk()?;
        after = behind;
        usize::try_from(u64::from_be_bytes(*long)).ok()?
    } else {
        usize::from(short)
    };
    let (bytes, behind) = after.split_at_checked(len)?;
    *rest = behind;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, SET_COOKIE};

    use super::*;

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.append(SET_COOKIE, HeaderValue::from_static("a=1"));
        headers.append("x-odd", HeaderValue::from_bytes(b"caf\xe9 \t\x80").unwrap());
        headers.append(SET_COOKIE, HeaderValue::from_static("b=2"));
        headers.append("x-empty", HeaderValue::from_static(""));
        for len in [254, 255, 256, 70_000] {
            headers.append("x-long", HeaderValue::try_from("v".repeat(len)).unwrap());
        }
        headers.append(HeaderName::try_from("x".repeat(300)).unwrap(), HeaderValue::from_static("long name"));
        headers
    }

    #[test]
    fn what_is_kept_comes_back_byte_for_byte_and_in_order() {
        let block = block(StatusCode::NOT_FOUND, &headers());
        let head = Head::new(&block);
        assert_eq!((head.status(), head.headers()), (StatusCode::NOT_FOUND, headers()));
        let cookies: Vec<_> = head.headers().get_all(SET_COOKIE).iter().cloned().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }

    #[test]
    fn a_name_that_is_often_met_takes_one_byte() {
        for name in &OFTEN {
            let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static("v"))]);
            let block = block(StatusCode::OK, &headers);
            let head = Head::new(&block);
            assert_eq!((head.len(), head.headers()), (5, headers));
        }
    }

    #[test]
    fn no_headers_are_no_headers() {
        let block = block(StatusCode::OK, &HeaderMap::new());
        let head = Head::new(&block);
        assert_eq!((head.len(), head.headers()), (2, HeaderMap::new()));
    }
}
