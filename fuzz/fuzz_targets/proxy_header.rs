//! A PROXY header: what was read of it stays so however much comes after it, in one piece or in many, it ends within what a
//! connection may send, and what it says of a client can be written down and read again.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use herdproof_proxy::listener::proxy_header::{Parsed, Source, parse};
use libfuzzer_sys::fuzz_target;

/// The longest there can be.
const MOST: usize = 16 + 4096;

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let mut known = None;
    for end in 0..=data.len().min(MOST) {
        match (parse(&data[..end]), known) {
            (Parsed::Incomplete, known) => assert_eq!(known, None, "{end}"),
            (parsed, None) => known = Some(parsed),
            (parsed, Some(known)) => assert_eq!(parsed, known, "{end}"),
        }
    }
    assert_eq!(known.unwrap_or(Parsed::Incomplete), whole);
    match whole {
        Parsed::Incomplete => assert!(data.len() < MOST),
        Parsed::Header(source, end) => {
            assert!(end <= data.len().min(MOST));
            if let Source::Client(client) = source {
                let text = written(client);
                assert_eq!(parse(text.as_bytes()), Parsed::Header(source, text.len()), "{text}");
            }
        }
        Parsed::Invalid => {}
    }
});

fn written(client: SocketAddr) -> String {
    let (family, to) = match client.ip() {
        IpAddr::V4(_) => ("TCP4", "192.0.2.1"),
        IpAddr::V6(_) => ("TCP6", "::1"),
    };
    format!("PROXY {family} {} {to} {} 80\r\n", client.ip(), client.port())
}
