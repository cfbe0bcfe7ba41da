//! What hyper's parser lets pass in the head of a request and a stricter proxy does not.
//!
//! RFC 9112 (2.2) lets a recipient take a bare LF for the end of a line, and a target has no fragment (3.2), so a parser may drop one.
//! Where two servers in a row differ on either, they differ on what was asked for. Both are refused with 400, before anybody has read
//! them: a byte that no head may have, NUL, is put in their place, and hyper answers as it does to any head that it cannot read, in
//! order and after the answers to all requests before it.
//!
//! Heads have to be told from bodies for that. The length of a body is read here a second time, but decides nothing beyond where to
//! look: hyper alone decides where a request ends. What cannot be followed here is refused in the same way. In the lines between chunks
//! and after them, a bare LF is refused too.

use memchr::{memchr, memchr_iter};

/// Of a field that says how long a body is, no more has to be kept.
const LONGEST: usize = 128;

/// Where in the bytes of a client the next one is.
#[derive(Debug, Default)]
pub(super) struct Strict {
    at: At,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// The last byte that came was CR.
    after_cr: bool,
    /// The method of the line has ended.
    in_target: bool,
    /// What the head so far says of the body.
    body: Body,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// In the line with method and target, or before it.
    #[default]
    First,
    Field,
    /// In a body with so much to come.
    Body(u64),
    ChunkSize,
    /// In a chunk with so much to come, its CRLF included.
    Chunk(u64),
    Trailer,
    Refused,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Body {
    #[default]
    None,
    Length(u64),
    Chunked,
}

/// What cannot be read in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unreadable;

/// What is to become of bytes that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// They may be read.
    Fine,
    /// So many of them may be read, and are refused then. What comes after is not to be read.
    Refused(usize),
}

/// Whether a LF is in these bytes that no CR is before. Without a branch, so that many bytes are compared at once: a hit that is
/// answered by the [lane](super::lane) is looked at by this alone, which costs 2 % of its instructions and not 15.
#[inline]
#[expect(clippy::needless_bitwise_bool, reason = "a branch for each byte is what it is to be without")]
pub(super) fn has_bare_lf(bytes: &[u8]) -> bool {
    let after = bytes.get(1..).unwrap_or_default();
    let is_bare = |(before, byte): (&u8, &u8)| (*byte == b'\n') & (*before != b'\r');
    bytes.first() == Some(&b'\n') || bytes.iter().zip(after).map(is_bare).fold(false, |any, bare| any | bare)
}

impl Strict {
    /// Looks at what has come next.
    pub(super) fn look(&mut self, bytes: &mut [u8]) -> Looked {
        let mut next = 0;
        while let Some(left) = bytes.get_mut(next..).filter(|left| !left.is_empty()) {
            let count = match self.at {
                At::First | At::Field | At::ChunkSize | At::Trailer => match self.lines(left) {
                    Ok(count) => count,
                    Err(bad) => {
                        left[bad] = 0;
                        self.at = At::Refused;
                        return Looked::Refused(next + bad + 1);
                    }
                },
                At::Body(more) | At::Chunk(more) => {
                    let count = usize::try_from(more).unwrap_or(usize::MAX).min(left.len());
                    self.at = match (self.at, more - count as u64) {
                        (At::Body(_), 0) => At::First,
                        (At::Body(_), more) => At::Body(more),
                        (_, 0) => At::ChunkSize,
                        (_, more) => At::Chunk(more),
                    };
                    count
                }
                At::Refused => return Looked::Refused(next),
            };
            next += count;
        }
        Looked::Fine
    }

    /// Looks at lines, as long as there are whole ones and the next is one; gives how much that is. Or where something is that is
    /// refused.
    ///
    /// A head that comes in one piece is gone through here: with [`line`](Strict::line) a hit would cost a quarter more instructions.
    #[inline]
    fn lines(&mut self, bytes: &[u8]) -> Result<usize, usize> {
        let mut begin = 0;
        if self.at == At::Field && self.line.is_empty() && !self.after_cr {
            for end in memchr_iter(b'\n', bytes) {
                let Some((b'\r', line @ [first, ..])) = bytes.get(begin..end).and_then(<[u8]>::split_last) else {
                    break;
                };
                if matches!(first, b'c' | b'C' | b't' | b'T') {
                    self.body = self.body.and(line).map_err(|Unreadable| end)?;
                }
                begin = end + 1;
            }
        }
        match bytes.get(begin..) {
            Some(rest @ [_, ..]) => self.line(rest).map(|count| begin + count).map_err(|bad| begin + bad),
            _ => Ok(begin),
        }
    }

    /// Looks at the rest of a line, or as much of it as is there; gives how much that is. Or where something is that is refused.
    fn line(&mut self, bytes: &[u8]) -> Result<usize, usize> {
        let end = memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if self.at == At::First
            && let Some(fragment) = self.fragment(part)
        {
            return Err(fragment);
        }
        let ends_in_cr = part.last().map_or(self.after_cr, |last| *last == b'\r');
        self.after_cr = ends_in_cr && end.is_none();
        let Some(end) = end else {
            let room = LONGEST.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            return Ok(part.len());
        };
        if !ends_in_cr {
            return Err(end);
        }
        let ended = if self.line.is_empty() {
            self.ended(part.strip_suffix(b"\r").unwrap_or_default())
        } else {
            let mut line = std::mem::take(&mut self.line);
            // What was cut off is not what counts, unless it is a length that nobody needs that many bytes for.
            let is_cut = line.len() == LONGEST;
            line.extend_from_slice(part);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if is_cut && self.is_length(line) { Err(Unreadable) } else { self.ended(line) }
        };
        ended.map(|()| end + 1).map_err(|Unreadable| end)
    }

    /// Whether this line may say how long something is.
    fn is_length(&self, line: &[u8]) -> bool {
        let is_of_body = || Body::None.and(line) != Ok(Body::None);
        self.at == At::ChunkSize && !line.contains(&b';') || self.at == At::Field && is_of_body()
    }

    /// Where in this part of a request's first line a fragment begins. A method may have such a byte.
    fn fragment(&mut self, part: &[u8]) -> Option<usize> {
        let from = if self.in_target { Some(0) } else { memchr(b' ', part) };
        self.in_target = from.is_some();
        from.and_then(|from| Some(from + memchr(b'#', &part[from..])?))
    }

    /// A line is whole.
    fn ended(&mut self, line: &[u8]) -> Result<(), Unreadable> {
        self.in_target = false;
        self.at = match self.at {
            // Empty lines before a request are skipped.
            At::First | At::Trailer if line.is_empty() => At::First,
            At::First => At::Field,
            At::Field if line.is_empty() => match std::mem::take(&mut self.body) {
                Body::None | Body::Length(0) => At::First,
                Body::Length(length) => At::Body(length),
                Body::Chunked => At::ChunkSize,
            },
            At::Field => {
                self.body = self.body.and(line)?;
                At::Field
            }
            At::ChunkSize => match chunk_size(line)? {
                0 => At::Trailer,
                size => At::Chunk(size.checked_add(2).ok_or(Unreadable)?),
            },
            at => at,
        };
        Ok(())
    }
}

impl Body {
    /// What is known of a body when this field was read too.
    fn and(self, field: &[u8]) -> Result<Body, Unreadable> {
        let is = |name: &str| {
            let found = field.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()));
            found.then(|| &field[name.len()..])
        };
        if is("transfer-encoding:").is_some() {
            return Ok(Body::Chunked);
        }
        match is("content-length:") {
            Some(length) if self != Body::Chunked => number(length.trim_ascii(), 10).map(Body::Length),
            _ => Ok(self),
        }
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Unreadable> {
    let size = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default();
    number(size, 16)
}

fn number(digits: &[u8], radix: u32) -> Result<u64, Unreadable> {
    let digits = str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
    digits.and_then(|digits| u64::from_str_radix(digits, radix).ok()).ok_or(Unreadable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is passed on of these bytes, that come in pieces which end at these places.
    fn passed(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut strict = Strict::default();
        let mut passed = Vec::new();
        let mut from = 0;
        for to in cuts.iter().copied().chain([bytes.len()]) {
            let mut piece = bytes[from..to].to_vec();
            from = to;
            match strict.look(&mut piece) {
                Looked::Fine => passed.extend(piece),
                Looked::Refused(count) => {
                    passed.extend_from_slice(&piece[..count]);
                    break;
                }
            }
        }
        passed
    }

    fn is_passed(bytes: &str) -> bool {
        passed(bytes.as_bytes(), &[]) == bytes.as_bytes()
    }

    const FINE: [&str; 9] = [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nhost: a#b\r\n\r\n",
        "M#X / HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n#\n\n#\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length:\t5 \r\ncontent-length: 5\r\n\r\n#\n\n#\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-length: 1\r\n\r\n2;a=b\r\n\n#\r\nA\r\n0123\n#6789\r\n0\r\nx: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1 \r\n\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "",
    ];

    #[test]
    fn what_is_in_bodies_and_fields_is_nobodys_business() {
        for fine in FINE {
            assert!(is_passed(fine), "{fine:?}");
        }
    }

    #[test]
    fn a_bare_lf_or_a_fragment_is_refused_wherever_a_head_has_it() {
        for bad in [
            "GET / HTTP/1.1\n",
            "\n",
            "GET / HTTP/1.1\r\nhost: a\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET /#",
            "GET #",
            "M#X /#",
            &format!("{}#X /#", "M".repeat(200)),
            "GET http://a/b?c#",
        ] {
            for before in FINE {
                let bytes = format!("{before}{bad}HTTP/1.1\r\n\r\n");
                assert!(bad.contains('#') || has_bare_lf(bytes.as_bytes()));
                let mut refused = format!("{before}{bad}").into_bytes();
                *refused.last_mut().unwrap() = 0;
                assert_eq!(passed(bytes.as_bytes(), &[]), refused, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_length_that_nobody_can_read_is_refused() {
        for length in ["5x", "-1", "+1", "", "99999999999999999999"] {
            assert!(!is_passed(&format!("POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n")), "{length}");
        }
        for chunk in ["x", "", "+1", "ffffffffffffffff", "fffffffffffffffff"] {
            assert!(!is_passed(&format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{chunk}\r\n")));
        }
        assert!(
            !is_passed("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\n\r\n"),
            "a bare LF in trailers"
        );
    }

    #[test]
    fn a_length_of_more_bytes_than_are_kept_is_no_other_length() {
        let long = " ".repeat(2 * LONGEST);
        for bytes in [
            format!("POST / HTTP/1.1\r\ncontent-length: {long}5\r\n\r\n\n\n\n\n\n"),
            format!(
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{}5\r\n\n\n\n\n\n\r\n",
                long.replace(' ', "0")
            ),
        ] {
            assert!(is_passed(&bytes));
            let in_pieces = passed(bytes.as_bytes(), &[bytes.len() - 14]);
            assert!(in_pieces == bytes.as_bytes() || in_pieces.ends_with(b"\0"), "{in_pieces:?}");
        }
    }

    #[test]
    fn no_more_is_kept_of_a_line_than_is_needed() {
        let mut strict = Strict::default();
        for _ in 0..100 {
            assert_eq!(strict.look(&mut [b'x'; 1000]), Looked::Fine);
        }
        assert!(strict.line.capacity() <= 2 * LONGEST);
    }

    proptest! {
        #[test]
        fn how_bytes_come_in_pieces_makes_no_difference(
            parts in proptest::collection::vec(
                prop_oneof![
                    proptest::sample::select(&FINE[..]).prop_map(String::from),
                    "[ GP/#:\r\n0-9a-c]{0,12}",
                    Just("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".into()),
                    Just("content-length: 7\r\n".into()),
                    Just("\r\n".into()),
                ],
                0..8,
            ),
            mut cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
        ) {
            let bytes = parts.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            prop_assert_eq!(passed(&bytes, &cuts), passed(&bytes, &[]));
        }
    }
}
