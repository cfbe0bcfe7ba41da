//! Whom a request counts for.
//!
//! What one client causes, one client suffers: limits, seats, remembered failures and learned routes all ask whether two requests
//! come from the same client. An IPv4 address is one client. Whoever has one IPv6 address has a /56 of them, 2^72 addresses, so
//! these count as one. A translated address (NAT64, 6to4, IPv4-mapped) counts as the IPv4 address inside it: otherwise one client
//! would have two identities, or a whole translator one.
//!
//! Two clients are cheap to get, and behind a load balancer that is not in `trusted_proxies` everybody is one client. So two
//! clients that agree are evidence, never proof.

use std::net::{IpAddr, Ipv4Addr};

use crate::settings::told;

/// The client that a request counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Who {
    address: IpAddr,
    key: u64,
}

/// In a key, what tells an IPv6 prefix from an IPv4 address.
const IPV6: u64 = 1 << 63;

impl Who {
    /// The client with this address.
    pub(crate) fn of(address: IpAddr) -> Who {
        let address = told(address.to_canonical());
        Who { address, key: key(address) }
    }

    /// Its address.
    pub(crate) fn address(self) -> IpAddr {
        self.address
    }

    /// The same for all addresses of one client, never zero.
    pub(crate) fn key(self) -> u64 {
        self.key
    }
}

fn key(address: IpAddr) -> u64 {
    let v4 = |address: Ipv4Addr| u64::from(address.to_bits()) + 1;
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => match address.segments() {
            // NAT64 (RFC 6052, the well-known prefix): the IPv4 address is the last 32 bits. 6to4 (RFC 3056): it follows the prefix.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => v4(joined(high, low)),
            _ => IPV6 | u64::try_from(address.to_bits() >> 72).unwrap_or(u64::MAX),
        },
    }
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> u64 {
        Who::of(address.parse().unwrap()).key()
    }

    #[test]
    fn one_client_has_one_identity_however_its_address_is_written() {
        let v4 = key("203.0.113.7");
        for same in ["::ffff:203.0.113.7", "64:ff9b::203.0.113.7", "2002:cb00:7107::1", "2002:cb00:7107:1234::1"] {
            assert_eq!(key(same), v4, "{same}");
        }
        assert_eq!(key("2001:db8:1:2300::1"), key("2001:db8:1:23ff:ffff::2"), "one /56");
    }

    #[test]
    fn two_clients_are_not_taken_for_one() {
        let all =
            ["0.0.0.0", "0.0.0.1", "203.0.113.7", "203.0.113.8", "::1", "2001:db8:1:2300::1", "2001:db8:1:2400::1"];
        for (number, one) in all.iter().enumerate() {
            assert_ne!(key(one), 0, "{one}");
            for other in &all[..number] {
                assert_ne!(key(one), key(other), "{one} {other}");
            }
        }
    }
}
