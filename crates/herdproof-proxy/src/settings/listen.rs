//! Where clients are served: an address, or a socket in the file system.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::parse_address;

/// What stands before the path of a socket.
pub(crate) const UNIX: &str = "unix:";

/// In place of an address, for who comes over a Unix socket: no connection of TCP comes from it.
pub(crate) const OVER_UNIX: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The address that others are told: who comes over a Unix socket is on this machine.
pub(crate) fn told(address: IpAddr) -> IpAddr {
    if address == OVER_UNIX { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address }
}

/// Where clients are served.
///
/// ```
/// use herdproof_proxy::settings::Listen;
///
/// assert_eq!("unix:/run/herdproof.sock".parse(), Ok(Listen::Unix("/run/herdproof.sock".into())));
/// assert_eq!("127.0.0.1:80".parse::<Listen>().unwrap().to_string(), "127.0.0.1:80");
/// assert!("unix:".parse::<Listen>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address and a port.
    Address(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

/// What was said is nowhere to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAPlace(String);

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen::Address(address)
    }
}

impl FromStr for Listen {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Listen, NotAPlace> {
        match text.strip_prefix(UNIX) {
            Some(path) => match unix_path(path) {
                Ok(path) => Ok(Listen::Unix(path)),
                Err(why) => Err(NotAPlace(why)),
            },
            None => match parse_address(text) {
                Ok(address) => Ok(Listen::Address(address)),
                Err(bad) => Err(NotAPlace(format!("{bad}, or as \"unix:/run/herdproof.sock\""))),
            },
        }
    }
}

/// The path of a socket.
pub(crate) fn unix_path(path: &str) -> Result<PathBuf, String> {
    /// As many bytes as every system has room for.
    const LONGEST: usize = 100;
    let problem = if !cfg!(unix) {
        "this system has no Unix sockets"
    } else if !Path::new(path).is_absolute() || path.ends_with('/') || path.contains('\0') {
        "is not the path of a socket; \"unix:/run/herdproof.sock\" would be one"
    } else if path.len() > LONGEST {
        "is too long for a socket; the system takes about 100 bytes"
    } else {
        return Ok(path.into());
    };
    Err(format!("{:?} {problem}", format!("{UNIX}{path}")))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Address(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl fmt::Display for NotAPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotAPlace {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_whole_and_fits() {
        for text in
            ["unix:run.sock", "unix:", "unix:/", "unix:/run/", "unix", "80", &format!("unix:/{}", "x".repeat(100))]
        {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
        let said = "unix:run.sock".parse::<Listen>().unwrap_err().to_string();
        assert_eq!(said, "\"unix:run.sock\" is not the path of a socket; \"unix:/run/herdproof.sock\" would be one");
        assert_eq!("unix:/run/a.sock".parse::<Listen>().unwrap().to_string(), "unix:/run/a.sock");
    }
}
