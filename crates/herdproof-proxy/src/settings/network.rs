//! Ranges of addresses such as `10.0.0.0/8`.

use std::{error::Error, fmt, net::IpAddr, str::FromStr};

use super::OVER_UNIX;

/// A range of addresses; or `unix`, for all who come over a Unix socket.
///
/// ```
/// use herdproof_proxy::settings::Network;
///
/// let network: Network = "10.0.0.0/8".parse().unwrap();
/// assert!(network.contains([10, 1, 2, 3].into()) && !network.contains([11, 0, 0, 1].into()));
/// assert!("10.0.0.1/8".parse::<Network>().unwrap_err().to_string().contains("10.0.0.0/8"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first one.
    address: IpAddr,
    /// How many of its bits they have in common.
    bits: u32,
}

/// What was said is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotANetwork {
    said: String,
    /// What was meant, if it lies in the midst of a range.
    meant: Option<Network>,
}

impl Network {
    /// Whether an address is in it. One of IPv4 is the same however it is written.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(other)) => (first.to_bits() ^ other.to_bits()) & mask4(self.bits) == 0,
            (IpAddr::V6(first), IpAddr::V6(other)) => (first.to_bits() ^ other.to_bits()) & mask6(self.bits) == 0,
            _ => false,
        }
    }

    fn first(address: IpAddr, bits: u32) -> IpAddr {
        match address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() & mask4(bits)).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & mask6(bits)).into()),
        }
    }
}

fn mask4(bits: u32) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(bits)).unwrap_or(0)
}

fn mask6(bits: u32) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(bits)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Network, NotANetwork> {
        let wrong = |meant| NotANetwork { said: text.to_owned(), meant };
        if text == "unix" {
            return Ok(Network { address: OVER_UNIX, bits: 32 });
        }
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong(None))?;
        // As an address of IPv4 it would never be found in it.
        if address.to_canonical() != address {
            return Err(wrong(None));
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => {
                let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
                bits.parse().ok().filter(|bits| is_number && *bits <= most).ok_or_else(|| wrong(None))?
            }
        };
        let first = Network { address: Network::first(address, bits), bits };
        if first.address == address { Ok(first) } else { Err(wrong(Some(first))) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address == OVER_UNIX && self.bits == 32 {
            return f.write_str("unix");
        }
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Display for NotANetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotANetwork { said, meant } = self;
        match meant {
            Some(meant) => write!(f, "{said:?} lies in the midst of a range; \"{meant}\" would be all of it"),
            None => write!(f, "{said:?} is not a range of addresses; write it as \"10.0.0.0/8\" or \"::1\""),
        }
    }
}

impl Error for NotANetwork {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_range_that_has_its_first_bits() {
        for (network, within, without) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("192.168.1.128/25", "192.168.1.255", "192.168.1.127"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "2001:db8::1", "127.0.0.1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::1", "::1", "::2"),
            ("unix", "0.0.0.0", "127.0.0.1"),
        ] {
            let range: Network = network.parse().unwrap();
            assert!(range.contains(within.parse().unwrap()), "{network} {within}");
            assert!(!range.contains(without.parse().unwrap()), "{network} {without}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "/",
            "10",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "::/129",
            "a/8",
            "::ffff:10.0.0.1",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text:?}");
        }
        let said = "10.1.2.3/8".parse::<Network>().unwrap_err().to_string();
        assert_eq!(said, "\"10.1.2.3/8\" lies in the midst of a range; \"10.0.0.0/8\" would be all of it");
    }
}
