//! Which client a request comes from, behind proxies that are trusted.
//!
//! Behind a load balancer every connection comes from the balancer. Without the client's own address all clients are one: one
//! fairness flow, one line in the log, one address at the origin. But the address is only said, in `X-Forwarded-For` or `Forwarded`
//! (RFC 7239), and everybody can say it. So a list is read from its right end, where the nearest proxy wrote: each address counts
//! only because the one to its right is in a trusted network, and the first that is not in one is the client. What stands to the
//! left of it was said by that client about itself, and counts for nothing.
//!
//! | the list | the client |
//! |---|---|
//! | comes from a peer that is not trusted | the peer |
//! | is missing | the peer |
//! | has an element that is no address (`unknown`, `_hidden`, rubbish) | the last good one before it, from the right |
//! | has only trusted addresses | the leftmost |
//!
//! If both fields are there, `X-Forwarded-For` counts and `Forwarded` does not: nearly every proxy writes the first, and hands on
//! the second as the client sent it. A proxy that writes only `Forwarded` has to remove `X-Forwarded-For`.

use std::{
    iter,
    net::{IpAddr, Ipv6Addr},
};

use http::{HeaderMap, header};

use super::hop::X_FORWARDED_FOR;
use crate::settings::Network;

/// The addresses that a request came through, the peer's first and the client's last. All but the client's are trusted.
pub fn path<'a>(
    peer: IpAddr,
    headers: &'a HeaderMap,
    trusted: &'a [Network],
) -> impl Iterator<Item = IpAddr> + use<'a> {
    let is_forwarded = !headers.contains_key(&X_FORWARDED_FOR);
    let name = if is_forwarded { header::FORWARDED } else { X_FORWARDED_FOR };
    // Commas are not looked for outside of quotes only: no address has one, and an open quote in what a client says would hide
    // what a proxy says after it.
    let elements =
        headers.get_all(name).into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let mut said = elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty());
    iter::successors(Some(peer.to_canonical()), move |nearer| {
        if !is_in(trusted, *nearer) {
            return None;
        }
        let element = said.next()?;
        if is_forwarded { node(element) } else { address(element) }
    })
}

/// Whether an address is in one of these networks.
pub fn is_in(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// The address in an element of `Forwarded`.
fn node(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(|byte| *byte == b';') {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].trim_ascii().eq_ignore_ascii_case(b"for") {
            let value = pair[equals + 1..].trim_ascii();
            let value = value.strip_prefix(b"\"").map_or(Some(value), |value| value.strip_suffix(b"\""))?;
            if found.replace(address(value)?).is_some() {
                return None;
            }
        }
    }
    found
}

/// An address as proxies write it: with or without a port, IPv6 in brackets or not, with a zone that says nothing here.
pub fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            return is_port(port).then(|| v6(host)).flatten();
        }
        // One colon is before a port, more are in an address of IPv6.
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return v6(text),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    is_port(port).then(|| host.parse().ok().map(IpAddr::V4)).flatten()
}

fn v6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic());
    zone.is_none_or(is_zone).then(|| address.parse::<Ipv6Addr>().ok()).flatten().map(|address| {
        // One of IPv4 is the same however it is written.
        IpAddr::V6(address).to_canonical()
    })
}

/// A number, or a name that hides it (RFC 7239 6.3).
fn is_port(text: Option<&str>) -> bool {
    text.is_none_or(|text| match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    fn trusted() -> Vec<Network> {
        ["10.0.0.0/8", "2001:db8:1::/48"].map(|network| network.parse().unwrap()).to_vec()
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// The path of a request from this peer, the client first.
    fn came(peer: &str, lines: &[(&str, &str)]) -> String {
        let mut path: Vec<_> = path(peer.parse().unwrap(), &headers(lines), &trusted()).collect();
        path.reverse();
        path.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_address_is_read_as_proxies_write_it() {
        for (text, read) in [
            ("1.2.3.4", "1.2.3.4"),
            ("1.2.3.4:5678", "1.2.3.4"),
            ("1.2.3.4:_port", "1.2.3.4"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]:443", "fe80::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("[::ffff:1.2.3.4]:1", "1.2.3.4"),
        ] {
            assert_eq!(address(text.as_bytes()), Some(read.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "unknown",
            "_hidden",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "1.2.3.4:",
            "1.2.3.4:+5",
            "1.2.3.4:65536",
            "1.2.3.4:5:6",
            "1.2.3.4%eth0",
            "[1.2.3.4]",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "[2001:db8::1]:",
            "fe80::1%",
            "2001:db8::1::",
            "\"1.2.3.4\"",
            "1.2.3.4 ",
            "a.example",
            "1.2.3.4:_",
        ] {
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_first_address_from_the_right_that_is_not_trusted_is_the_client() {
        let list = "x-forwarded-for";
        for (lines, path) in [
            (&[][..], "10.0.0.1"),
            (&[(list, "192.0.2.1")], "192.0.2.1 10.0.0.1"),
            (&[(list, "6.6.6.6, 192.0.2.1")], "192.0.2.1 10.0.0.1"),
            (&[(list, "10.6.6.6, 192.0.2.1, 10.0.0.2")], "192.0.2.1 10.0.0.2 10.0.0.1"),
            (&[(list, "6.6.6.6"), (list, "192.0.2.1,10.0.0.2")], "192.0.2.1 10.0.0.2 10.0.0.1"),
            (&[(list, "192.0.2.1"), (list, "10.0.0.2")], "192.0.2.1 10.0.0.2 10.0.0.1"),
            (&[(list, "[2001:db8:2::1]:443, 2001:db8:1::7")], "2001:db8:2::1 2001:db8:1::7 10.0.0.1"),
            (&[(list, "10.0.0.9, 10.0.0.2")], "10.0.0.9 10.0.0.2 10.0.0.1"),
            (&[(list, "192.0.2.1, ,, ")], "192.0.2.1 10.0.0.1"),
            // What is no address ends the walk: nobody knows what stands before it.
            (&[(list, "192.0.2.1, unknown")], "10.0.0.1"),
            (&[(list, "192.0.2.1, a.example, 10.0.0.2")], "10.0.0.2 10.0.0.1"),
            (&[(list, "\u{e9}, 10.0.0.2")], "10.0.0.2 10.0.0.1"),
        ] {
            assert_eq!(came("10.0.0.1", lines), path, "{lines:?}");
        }
        assert_eq!(came("::ffff:10.0.0.1", &[(list, "192.0.2.1")]), "192.0.2.1 10.0.0.1");
    }

    #[test]
    fn forwarded_is_read_where_nobody_says_x_forwarded_for() {
        let list = "forwarded";
        for (lines, path) in [
            (&[(list, "for=192.0.2.1")][..], "192.0.2.1 10.0.0.1"),
            (&[(list, "For=\"[2001:db8:2::1]:4711\";proto=https")], "2001:db8:2::1 10.0.0.1"),
            (&[(list, "by=10.0.0.1; for = 192.0.2.1:80")], "192.0.2.1 10.0.0.1"),
            (&[(list, "for=6.6.6.6, for=192.0.2.1, for=10.0.0.2;by=_x")], "192.0.2.1 10.0.0.2 10.0.0.1"),
            (&[(list, "for=unknown")], "10.0.0.1"),
            (&[(list, "for=_hidden, for=10.0.0.2")], "10.0.0.2 10.0.0.1"),
            (&[(list, "for=192.0.2.1, proto=https")], "10.0.0.1"),
            (&[(list, "for=6.6.6.6;for=192.0.2.1")], "10.0.0.1"),
            (&[(list, "for=\"192.0.2.1")], "10.0.0.1"),
            // An open quote of a client's hides nothing that a proxy says after it.
            (&[(list, "for=\"6.6.6.6, for=192.0.2.1")], "192.0.2.1 10.0.0.1"),
            (&[(list, "x=\", for=\"[2001:db8:2::1]\"")], "2001:db8:2::1 10.0.0.1"),
            (&[(list, "for=6.6.6.6"), ("x-forwarded-for", "192.0.2.1")], "192.0.2.1 10.0.0.1"),
            (&[(list, "for=6.6.6.6"), ("x-forwarded-for", "rubbish")], "10.0.0.1"),
        ] {
            assert_eq!(came("10.0.0.1", lines), path, "{lines:?}");
        }
    }

    /// What people write there, and what they should not.
    fn element() -> impl Strategy<Value = String> {
        let addresses =
            ["10.0.0.2", "192.0.2.1", "[2001:db8::1]:443", "2001:db8:1::7", "unknown", "_x", "", "\"", ";="];
        let known = proptest::sample::select(addresses.to_vec());
        prop_oneof![
            known.clone().prop_map(str::to_owned),
            known.clone().prop_map(|address| format!("for={address}")),
            known.prop_map(|address| format!("for=\"{address}\";by=_y")),
            "[ -~]{0,20}",
        ]
    }

    fn field() -> impl Strategy<Value = (&'static str, String)> {
        let name = proptest::sample::select(vec!["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip"]);
        (name, proptest::collection::vec(element(), 0..5).prop_map(|elements| elements.join(", ")))
    }

    proptest! {
        #[test]
        fn whatever_a_stranger_says_it_is_itself(
            peer in any::<IpAddr>(),
            fields in proptest::collection::vec(field(), 0..4),
        ) {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
            let (headers, peer) = (headers(&fields), peer.to_canonical());
            prop_assume!(!is_in(&trusted(), peer));
            prop_assert_eq!(path(peer, &headers, &trusted()).collect::<Vec<_>>(), [peer]);
            prop_assert_eq!(path([10, 0, 0, 1].into(), &headers, &[]).collect::<Vec<_>>(), [IpAddr::from([10, 0, 0, 1])]);
        }

        /// Whatever a client says of itself, a proxy that adds its address is heard.
        #[test]
        fn nothing_a_client_says_hides_what_a_trusted_proxy_adds(said in "[ -~]{0,40}", quoted in any::<bool>()) {
            let own: IpAddr = "2001:db8:2::c".parse().unwrap();
            for (name, added) in [
                ("x-forwarded-for", own.to_string()),
                ("forwarded", format!("for=\"[{own}]:9\"")),
            ] {
                let (before, after) = if quoted { ("\"", "") } else { ("", "\\") };
                let headers = headers(&[(name, &format!("{before}{said}{after}, {added}"))]);
                prop_assert_eq!(path([10, 0, 0, 1].into(), &headers, &trusted()).last(), Some(own));
            }
        }

        #[test]
        fn no_bytes_make_it_panic_and_all_but_the_client_are_trusted(
            lines in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..4),
        ) {
            let mut headers = HeaderMap::new();
            for (forwarded, bytes) in lines {
                if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                    headers.append(if forwarded { header::FORWARDED } else { X_FORWARDED_FOR }, value);
                }
            }
            let path: Vec<_> = path([10, 0, 0, 1].into(), &headers, &trusted()).collect();
            prop_assert!(path[..path.len() - 1].iter().all(|address| is_in(&trusted(), *address)));
        }
    }
}
