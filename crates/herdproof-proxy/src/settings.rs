//! What can be set, and what holds if nothing is.
//!
//! A shield that has to be tuned before it protects does not protect: every setting has a default that keeps herds away,
//! and the origin's address is the only thing that has to be said. [`Settings`] is plain data; a `herdproof.toml`
//! [becomes](Settings::parse) one, and the command line's flags override what the file says.
//!
//! ```
//! use herdproof_proxy::Settings;
//!
//! let settings = Settings::parse(
//!     r#"
//!     listen = "0.0.0.0:80"
//!
//!     [origin]
//!     url = "http://127.0.0.1:3000"
//!     limit = 64
//!
//!     [[route]]
//!     prefix = "/api"
//!     grace = "1h"
//!     "#,
//! )?;
//! assert_eq!(settings.origin.limit, 64);
//! assert_eq!(settings.route("/api/users").unwrap().rules.grace.as_secs(), 3600);
//! assert_eq!(settings.memory, 256 << 20);
//!
//! let wrong = Settings::parse("[origin]\nlimits = 64\n").unwrap_err();
//! assert!(wrong.to_string().contains("did you mean `limit`?"));
//! # Ok::<(), herdproof_proxy::settings::BadSettings>(())
//! ```

mod fallback;
mod file;
mod listen;
mod mistake;
mod network;
#[cfg(test)]
mod tests;
mod units;

use std::{net::SocketAddr, ops::Range, path::PathBuf, sync::Arc, time::Duration};

use http::HeaderName;

use crate::policy::Route as Rules;
pub use fallback::Fallback;
pub use listen::{Listen, NotAPlace};
pub(crate) use listen::{OVER_UNIX, UNIX, told, unix_path};
pub use mistake::BadSettings;
pub use network::{Network, NotANetwork};
pub use units::{NotASize, NotATime, NotAnAddress, parse_address, parse_size, parse_time, show_size, show_time};

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where clients are served.
    pub listen: Listen,
    /// Where metrics and health are; nowhere, if there is none.
    pub admin: Option<SocketAddr>,
    /// Whether the admin address may be one that others can reach.
    pub admin_anywhere: bool,
    /// Names under which the admin address may be asked, besides `localhost` and its address.
    pub admin_hosts: Vec<String>,
    /// Proxies in front whose word counts: about their clients (`X-Forwarded-For`, `Forwarded`), about how these reached them
    /// (`X-Forwarded-Proto`, `X-Forwarded-Host`), and about who the users are. Of anybody else it does not.
    pub trusted_proxies: Vec<Network>,
    /// More fields in which these say who the user is, besides the [known](crate::policy::identity) ones.
    pub identity_headers: Vec<HeaderName>,
    /// The service behind.
    pub origin: OriginSettings,
    /// Bytes of memory for what is stored.
    pub memory: u64,
    /// Bytes of a body beyond which it is not stored.
    pub max_object: u64,
    /// Bytes of bodies in memory that are not stored: they arrive, or clients still read them. Beyond this, slow readers are
    /// ended.
    pub in_flight: u64,
    /// How many clients may share one fill.
    pub max_followers: u32,
    /// How long a client waits for a fill that it shares.
    pub wait: Duration,
    /// How long a failure is remembered: a time drawn from this range for each.
    pub failed: Range<Duration>,
    /// What holds for every path that no route covers.
    pub rules: Rules,
    /// What holds for some paths.
    pub routes: Vec<Route>,
    /// How clients are dealt with.
    pub clients: ClientSettings,
    /// How the bodies of requests are dealt with.
    pub uploads: UploadSettings,
    /// Which requests may leave HTTP.
    pub upgrades: UpgradeSettings,
    /// What is written down of requests.
    pub log: LogSettings,
    /// How long a stop waits for what is under way.
    pub drain: Duration,
    /// How long the share of clients that readiness lets in grows after the start.
    pub warm_up: Duration,
}

/// The service behind the proxy, and how it is dealt with.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginSettings {
    /// Such as `http://127.0.0.1:3000`, or `unix:/run/app.sock`.
    pub url: String,
    /// What it is told in `Host`; by default what the client asked for.
    pub host: Option<String>,
    /// Requests at a time, to begin with: it adapts from there.
    pub limit: u32,
    /// Below this it does not adapt. By default a thirty-second of it where the origin is slow, and half of what it did
    /// well at once in the last five minutes where it refuses.
    pub limit_floor: Option<u32>,
    /// The path of the requests with which we ask ourselves whether the origin is there. By default what it answered well
    /// lately.
    pub probe: Option<String>,
    /// How many requests may wait for a seat.
    pub line: u32,
    /// How long a request waits for a seat.
    pub queue_wait: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long the origin may take to begin its answer.
    pub head_timeout: Duration,
    /// How long a body may go without a byte.
    pub body_timeout: Duration,
    /// How often a request that may be repeated is made at most.
    pub attempts: u16,
    /// When a second attempt is raced against a slow first; never, if there is none.
    pub hedge_after: Option<Duration>,
    /// Idle connections that are kept.
    pub max_idle: u32,
    /// How old a connection gets, about.
    pub max_age: Duration,
    /// How often the origin's name is looked up anew, about.
    pub resolve_every: Duration,
}

/// How clients are dealt with.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// Connections at a time; others wait in the kernel's line.
    pub max_connections: u32,
    /// Connections from one address, or from one /56 of IPv6; as many as it wants, if there is none. Trusted proxies are exempt.
    pub per_address: Option<u32>,
    /// How long the head of a request may take.
    pub head_timeout: Duration,
    /// How long a connection may do nothing.
    pub idle: Duration,
    /// How long the body of a request, or the reading of an answer, may go more slowly than the least rate.
    pub stall: Duration,
    /// Bytes per second below which a client counts as stalled.
    pub least_rate: u64,
    /// Bytes of a request's head; more are answered with 431.
    pub max_head: usize,
    /// Whether a client that has closed its side still wants its answer. Otherwise it has left, and what is done for it alone
    /// is given up.
    pub half_close: bool,
    /// Whether connections from trusted proxies begin with a [PROXY header](crate::listener::proxy_header), version 1 or 2. Those
    /// that do not are closed. Connections from elsewhere have none.
    pub proxy_protocol: bool,
    /// Who may connect to a Unix socket, as the rights of its file.
    pub socket_mode: u32,
}

/// How the bodies of requests are dealt with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadSettings {
    /// Bytes of memory for small bodies, which are read before their requests take a seat at the origin. Beyond half of it, one
    /// client has an eighth at most.
    pub buffer: u64,
}

/// Connections that speak another protocol after their first answer, such as `websocket`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeSettings {
    /// The protocols that clients may ask for in `Upgrade`, in small letters. None of HTTP itself.
    pub protocols: Vec<String>,
    /// Such connections at a time. One client has at most as many as it leaves free: half, if it is alone.
    pub most: u32,
    /// How long nothing may come from either side.
    pub idle: Duration,
}

/// What is written down of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// Where to; nothing is written without it.
    pub access: Option<LogTo>,
    /// How a line looks.
    pub format: LogFormat,
    /// Whether what follows the `?` of a path is left out.
    pub hide_query: bool,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTo {
    /// Standard output.
    Stdout,
    /// The end of this file.
    File(PathBuf),
}

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// As web servers write it, with more behind it.
    Combined,
}

/// What holds for paths that begin in one way. The longest prefix counts. For a path that servers may read in more than one way,
/// the strictest of the rules of all readings hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// How the path begins: `/api` is for `/api`, `/api/users` and `/api?x`, not for `/apis`.
    pub prefix: String,
    /// Whether responses are shared at all.
    pub share: bool,
    /// How long they may be used, and by whom.
    pub rules: Rules,
    /// What is answered instead of an error, if the origin fails or is not asked and nothing is kept that may be served.
    pub fallback: Option<Arc<Fallback>>,
    /// Into what pages are compressed that are kept for all, if clients take it; into nothing, if this is empty.
    pub compress: Vec<Coding>,
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// What every browser takes.
    Gzip,
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const LOCAL: [u8; 4] = [127, 0, 0, 1];

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Listen::Address((LOCAL, 8080).into()),
            admin: Some((LOCAL, 9090).into()),
            admin_anywhere: false,
            admin_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            identity_headers: Vec::new(),
            origin: OriginSettings::default(),
            memory: 256 << 20,
            max_object: 64 << 20,
            in_flight: 128 << 20,
            max_followers: 100_000,
            wait: secs(30),
            failed: secs(1)..secs(2),
            rules: Rules::default(),
            routes: Vec::new(),
            clients: ClientSettings::default(),
            uploads: UploadSettings::default(),
            upgrades: UpgradeSettings::default(),
            log: LogSettings::default(),
            drain: secs(30),
            warm_up: secs(10),
        }
    }
}

impl Default for OriginSettings {
    fn default() -> OriginSettings {
        OriginSettings {
            url: String::new(),
            host: None,
            limit: 256,
            limit_floor: None,
            probe: None,
            line: 10_000,
            queue_wait: secs(10),
            connect_timeout: secs(2),
            head_timeout: secs(30),
            body_timeout: secs(30),
            attempts: 3,
            hedge_after: Some(secs(2)),
            max_idle: 256,
            max_age: secs(300),
            resolve_every: secs(30),
        }
    }
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            max_connections: 10_000,
            per_address: None,
            head_timeout: secs(10),
            idle: secs(60),
            stall: secs(30),
            least_rate: 500,
            max_head: 32 << 10,
            half_close: false,
            proxy_protocol: false,
            socket_mode: 0o660,
        }
    }
}

impl Default for UploadSettings {
    fn default() -> UploadSettings {
        UploadSettings { buffer: 16 << 20 }
    }
}

impl Default for UpgradeSettings {
    fn default() -> UpgradeSettings {
        UpgradeSettings { protocols: vec!["websocket".into()], most: 1024, idle: secs(60) }
    }
}

impl Settings {
    /// The route of a path as it is written: the one with the longest prefix.
    pub fn route(&self, path: &str) -> Option<&Route> {
        let routes = self.routes.iter().filter(|route| route.covers(path));
        routes.max_by_key(|route| route.prefix.len())
    }
}

impl Route {
    /// Whether the path is this prefix, or below it.
    pub fn covers(&self, path: &str) -> bool {
        begins(self.prefix.as_bytes(), path.as_bytes())
    }
}

/// Whether a path is this prefix, or below it.
pub(crate) fn begins(prefix: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'?')) || prefix.last() == Some(&b'/'))
}
