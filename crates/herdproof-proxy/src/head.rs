//! A response's head as it is kept: one small block of bytes.
//!
//! A header map is made for changing headers: six of them take a kilobyte, and their values keep the buffer alive that they
//! were read into. Kept objects are many and never change, so their status and headers are written one after another into a
//! block that lies before the body, in the same allocation if the body is small.
//!
//! A block is: status (2 bytes), then for each header the length of its name (2), of its value (4), the name, the value.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// The status and headers of a response, in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head(Bytes);

/// One header of a block.
struct Line {
    name: Bytes,
    value: Bytes,
}

impl Head {
    /// Writes a head. What does not fit into the lengths is left out; no origin's head can be that long.
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap) -> Head {
        let mut block =
            BytesMut::with_capacity(2 + headers.iter().map(|(name, value)| size(name, value)).sum::<usize>());
        block.put_u16(status.as_u16());
        for (name, value) in headers {
            let (Ok(of_name), Ok(of_value)) = (u16::try_from(name.as_str().len()), u32::try_from(value.len())) else {
                continue;
            };
            block.put_u16(of_name);
            block.put_u32(of_value);
            block.put_slice(name.as_str().as_bytes());
            block.put_slice(value.as_bytes());
        }
        Head(block.freeze())
    }

    /// The same head at the beginning of a larger block, and the rest of that block.
    pub(crate) fn joined(&self, rest: &[Bytes]) -> (Head, Bytes) {
        let mut block = BytesMut::with_capacity(self.len() + rest.iter().map(Bytes::len).sum::<usize>());
        block.put_slice(&self.0);
        for part in rest {
            block.put_slice(part);
        }
        let mut block = block.freeze();
        let head = block.split_to(self.len());
        (Head(head), block)
    }

    /// How long the block is.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn status(&self) -> StatusCode {
        let code = self.0.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
        StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY)
    }

    /// The headers as a map, with room for so many more. The values share the block.
    pub(crate) fn headers(&self, more: usize) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.lines().count() + more);
        for Line { name, value } in self.lines() {
            // Both were valid when they were written.
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&name), HeaderValue::from_maybe_shared(value)) {
                map.append(name, value);
            }
        }
        map
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        let mut rest = self.0.get(2..).map_or_else(Bytes::new, |lines| self.0.slice_ref(lines));
        std::iter::from_fn(move || {
            let of_name = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            let of_value = usize::try_from(u32::from_be_bytes(*rest.get(2..6)?.first_chunk()?)).ok()?;
            let mut line = (rest.len() >= 6 + of_name + of_value).then(|| rest.split_to(6 + of_name + of_value))?;
            let value = line.split_off(6 + of_name);
            Some(Line { name: line.split_off(6), value })
        })
    }
}

fn size(name: &HeaderName, value: &HeaderValue) -> usize {
    6 + name.as_str().len() + value.len()
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
        headers
    }

    #[test]
    fn what_is_kept_comes_back_byte_for_byte_and_in_order() {
        let head = Head::new(StatusCode::NOT_FOUND, &headers());
        assert_eq!((head.status(), head.headers(0)), (StatusCode::NOT_FOUND, headers()));
        let cookies: Vec<_> = head.headers(0).get_all(SET_COOKIE).iter().cloned().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }

    #[test]
    fn a_head_and_a_small_body_are_one_allocation() {
        let head = Head::new(StatusCode::OK, &headers());
        let (joined, body) = head.joined(&[Bytes::from_static(b"hello "), Bytes::from_static(b"world")]);
        assert_eq!((&joined, &body[..]), (&head, &b"hello world"[..]));
        assert_eq!(joined.0.as_ptr().addr() + joined.len(), body.as_ptr().addr());
    }

    #[test]
    fn no_headers_are_no_headers() {
        let head = Head::new(StatusCode::OK, &HeaderMap::new());
        assert_eq!((head.len(), head.headers(4)), (2, HeaderMap::new()));
    }
}
