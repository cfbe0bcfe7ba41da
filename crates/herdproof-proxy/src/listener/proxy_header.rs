//! The PROXY protocol: how a balancer that does not speak HTTP says whom a connection comes from.
//!
//! Such a balancer opens a connection of its own for each client and writes a header before the client's first byte, as a line of
//! text (version 1) or in binary (version 2), see <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>. Whoever may write it
//! chooses whom its requests count for. So it is read from trusted peers only, and these have to begin with one: a connection that
//! may or may not have a header lets every client behind the balancer write its own.
//!
//! The header is taken from the socket to its last byte and not a byte further, before anybody else reads from it. It may come in
//! pieces. The additional fields of version 2 (TLVs) are skipped; a checksum among them is not verified.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpStream;

use super::pulse::Pulse;
use crate::stream::Stream;

const V1: &[u8] = b"PROXY ";
/// With the end of the line.
const V1_MOST: usize = 107;
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family, and the length of what follows.
const V2_HEAD: usize = 16;
/// What may follow: addresses take 216 at most, the rest is for fields such as a certificate's name.
const V2_MOST: usize = 4096;

/// Whom a connection comes from, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From this client.
    Client(SocketAddr),
    /// From a client whose address cannot be said.
    Unknown,
    /// From the balancer itself, to see whether anybody is there.
    Local,
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a header, and nothing else.
    Incomplete,
    /// So many of them are a header.
    Header(Source, usize),
    /// No header, and no beginning of one.
    Invalid,
}

/// Reads a header from the beginning of a connection. The same bytes and more never mean something else, unless they are
/// [incomplete](Parsed::Incomplete).
pub fn parse(bytes: &[u8]) -> Parsed {
    let begins = |whole: &[u8]| {
        let common = bytes.len().min(whole.len());
        bytes[..common] == whole[..common]
    };
    if begins(V1) {
        parse_v1(bytes)
    } else if begins(V2) {
        parse_v2(bytes)
    } else {
        Parsed::Invalid
    }
}

fn parse_v1(bytes: &[u8]) -> Parsed {
    let line = &bytes[..bytes.len().min(V1_MOST)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() == V1_MOST { Parsed::Invalid } else { Parsed::Incomplete };
    };
    let line = line[..end].strip_suffix(b"\r").and_then(|line| str::from_utf8(line).ok());
    line.and_then(source_v1).map_or(Parsed::Invalid, |source| Parsed::Header(source, end + 1))
}

fn source_v1(line: &str) -> Option<Source> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        // Whatever else the line says is to be ignored.
        return Some(Source::Unknown);
    }
    let [source, target] = [words.next()?, words.next()?].map(|word| match family {
        "TCP4" => word.parse().ok().map(IpAddr::V4),
        "TCP6" => word.parse().ok().map(IpAddr::V6),
        _ => None,
    });
    let [from, to] = [words.next()?, words.next()?].map(port);
    let (source, _, from, _) = (source?, target?, from?, to?);
    words.next().is_none().then(|| Source::Client((source, from).into()))
}

/// A number as the protocol wants it: in digits only, without leading zeros.
fn port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    word.parse().ok().filter(|_| is_plain)
}

fn parse_v2(bytes: &[u8]) -> Parsed {
    let Some(&[command, family, high, low]) = bytes.get(V2.len()..V2_HEAD) else {
        // What is wrong already does not get better.
        let is_known = bytes.get(V2.len()).is_none_or(|command| matches!(command, 0x20 | 0x21));
        return if is_known { Parsed::Incomplete } else { Parsed::Invalid };
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > V2_MOST || !matches!(command, 0x20 | 0x21) {
        return Parsed::Invalid;
    }
    let needs = match (command, family) {
        // The balancer's own connection has no addresses that count, nor has one of an unspecified family.
        (0x20, _) | (_, 0x00) => 0,
        (_, 0x11 | 0x12) => 12,
        (_, 0x21 | 0x22) => 36,
        (_, 0x31 | 0x32) => 216,
        _ => return Parsed::Invalid,
    };
    if length < needs {
        return Parsed::Invalid;
    }
    let end = V2_HEAD + length;
    let Some(rest) = bytes.get(V2_HEAD..end) else { return Parsed::Incomplete };
    let source = match (command, family) {
        (0x20, _) => Some(Source::Local),
        (_, 0x11) => rest
            .first_chunk()
            .zip(rest[8..].first_chunk())
            .map(|(address, port)| Source::Client((Ipv4Addr::from(*address), u16::from_be_bytes(*port)).into())),
        (_, 0x21) => rest
            .first_chunk()
            .zip(rest[32..].first_chunk())
            .map(|(address, port)| Source::Client((Ipv6Addr::from(*address), u16::from_be_bytes(*port)).into())),
        _ => Some(Source::Unknown),
    };
    source.map_or(Parsed::Invalid, |source| Parsed::Header(source, end))
}

/// Takes a header off a connection; nothing if what came is none. An error if the connection ends before that is known.
pub(super) async fn take(stream: &Stream, pulse: &Pulse) -> io::Result<Option<Source>> {
    match stream {
        Stream::Tcp(tcp) => take_ahead(tcp, stream, pulse).await,
        #[cfg(unix)]
        Stream::Unix(_) => take_bytewise(stream, pulse).await,
    }
}

/// Where nobody can look ahead: one byte after the other, so that none of what follows is taken.
#[cfg(unix)]
async fn take_bytewise(stream: &Stream, pulse: &Pulse) -> io::Result<Option<Source>> {
    let mut seen = Vec::new();
    loop {
        let mut byte = [0];
        if read(stream, &mut byte).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        pulse.read(1);
        seen.extend_from_slice(&byte);
        match parse(&seen) {
            Parsed::Incomplete => {}
            Parsed::Header(source, _) => {
                // As below.
                pulse.end();
                return Ok(Some(source));
            }
            Parsed::Invalid => return Ok(None),
        }
    }
}

async fn take_ahead(tcp: &TcpStream, stream: &Stream, pulse: &Pulse) -> io::Result<Option<Source>> {
    let mut seen = Vec::new();
    let mut ahead = [0; 256];
    loop {
        let bytes = tcp.peek(&mut ahead).await?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = seen.len();
        seen.extend_from_slice(&ahead[..bytes]);
        let parsed = parse(&seen);
        let of_header = match parsed {
            Parsed::Incomplete => bytes,
            Parsed::Header(_, end) => end - before,
            Parsed::Invalid => return Ok(None),
        };
        let taken = read(stream, &mut ahead[..of_header]).await?;
        pulse.read(taken);
        if let Parsed::Header(source, end) = parsed
            && before + taken == end
        {
            // The header is no part of the first request's head.
            pulse.end();
            return Ok(Some(source));
        }
        seen.truncate(before + taken);
    }
}

/// Some of the bytes, which are here already.
async fn read(stream: &Stream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2.as_slice(), &[command, family], &length, rest].concat()
    }

    fn client(address: &str) -> Source {
        Source::Client(address.parse().unwrap())
    }

    /// Headers of both versions, with what they say.
    fn headers() -> Vec<(Vec<u8>, Source)> {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0xdc, 0x04, 0, 80];
        let six = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
        let v6 = [&six[0][..], &six[1], &[0xdc, 0x04, 0, 80]].concat();
        let text = |text: &str| text.as_bytes().to_vec();
        vec![
            (text("PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n"), client("192.0.2.1:56324")),
            (text("PROXY TCP6 2001:db8::1 ::1 0 65535\r\n"), client("[2001:db8::1]:0")),
            (text("PROXY UNKNOWN\r\n"), Source::Unknown),
            (text("PROXY UNKNOWN 1.2.3.4 rubbish\r\n"), Source::Unknown),
            (v2(0x21, 0x11, &v4), client("192.0.2.1:56324")),
            (v2(0x21, 0x21, &v6), client("[2001:db8::1]:56324")),
            // With more fields behind the addresses.
            (v2(0x21, 0x11, &[&v4[..], &[7; 600]].concat()), client("192.0.2.1:56324")),
            (v2(0x20, 0x00, &[]), Source::Local),
            (v2(0x20, 0x11, &v4), Source::Local),
            (v2(0x21, 0x00, &[1, 2, 3]), Source::Unknown),
            (v2(0x21, 0x12, &v4), Source::Unknown),
            (v2(0x21, 0x31, &[0; 216]), Source::Unknown),
        ]
    }

    #[test]
    fn a_header_ends_where_it_ends_and_is_nothing_before_that() {
        for (header, source) in headers() {
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end]), Parsed::Incomplete, "{end} of {header:?}");
            }
            for more in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"PROXY UNKNOWN\r\n"] {
                assert_eq!(parse(&[&header, more].concat()), Parsed::Header(source, header.len()), "{header:?}");
            }
        }
    }

    #[test]
    fn what_is_no_header_is_known_as_soon_as_can_be() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXZ",
            b"proxy ",
            b"\r\n\r\n\0\r\nQUIX",
            b"PROXY\r\n",
            b"PROXY TCP4\r\n",
            b"PROXY TCP5 1.2.3.4 5.6.7.8 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
            b"PROXY UNKNOWN \xff\r\n",
        ] {
            assert_eq!(parse(bytes), Parsed::Invalid, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(parse(&[V1, &[b' '; V1_MOST - V1.len()]].concat()), Parsed::Invalid, "the line is too long");
        assert_eq!(parse(&[V2.as_slice(), &[0x11]].concat()), Parsed::Invalid, "version 1 in binary");
        assert_eq!(parse(&v2(0x22, 0x11, &[0; 12])), Parsed::Invalid, "no such command");
        assert_eq!(parse(&v2(0x21, 0x41, &[0; 12])), Parsed::Invalid, "no such family");
        for (family, least) in [(0x11, 12), (0x21, 36), (0x31, 216)] {
            assert_eq!(parse(&v2(0x21, family, &vec![0; least - 1])), Parsed::Invalid, "it is too short");
        }
        let head = [V2.as_slice(), &[0x21, 0x11, 0x10, 0x01]].concat();
        assert_eq!(parse(&head), Parsed::Invalid, "nobody waits for more than 4096 bytes");
    }

    proptest! {
        /// More bytes after a header, or after what is none, change nothing.
        #[test]
        fn what_is_known_stays_so(
            begins in proptest::sample::select(vec![&b""[..], V1, b"PROXY TCP4 1.2.3.4 ", V2, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"]),
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            at in any::<proptest::sample::Index>(),
        ) {
            let whole = [begins, &bytes].concat();
            let part = at.index(whole.len() + 1);
            match parse(&whole[..part]) {
                Parsed::Incomplete => {}
                Parsed::Header(source, end) => {
                    prop_assert!(end <= part);
                    prop_assert_eq!(parse(&whole), Parsed::Header(source, end));
                }
                Parsed::Invalid => prop_assert_eq!(parse(&whole), Parsed::Invalid),
            }
        }

        /// Nobody has to remember more than that of somebody who never gets to the end.
        #[test]
        fn a_header_ends_or_is_given_up(version in any::<bool>(), byte in any::<u8>()) {
            let begin = if version { V1.to_vec() } else { V2.to_vec() };
            let bytes = [begin, vec![byte; V2_HEAD + V2_MOST]].concat();
            prop_assert_ne!(parse(&bytes), Parsed::Incomplete);
        }
    }
}
