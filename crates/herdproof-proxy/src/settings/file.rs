//! `herdproof.toml`.

use std::{fmt, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use http::{HeaderName, header};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};
use toml::Spanned;

use super::{
    BadSettings, ClientSettings, Coding, Fallback, Listen, LogFormat, LogTo, Network, NotANetwork, NotAPlace,
    OriginSettings, Route, Settings, fallback::Said, parse_size, parse_time, show_time,
};
use crate::policy::{self, Cookies};

const DAY: u64 = 86_400_000;
const YEAR: u64 = 365 * DAY;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<Place>,
    admin: Option<MaybeAddress>,
    admin_anywhere: Option<bool>,
    admin_hosts: Option<Vec<HostName>>,
    trusted_proxies: Option<Vec<Range>>,
    identity_headers: Option<Vec<FieldName>>,
    drain: Option<Time<0, DAY>>,
    warm_up: Option<Time<0, DAY>>,
    origin: Option<Origin>,
    cache: Option<Cache>,
    clients: Option<Clients>,
    uploads: Option<Uploads>,
    upgrades: Option<Upgrades>,
    log: Option<Log>,
    default: Option<Rules>,
    #[serde(default)]
    route: Vec<Spanned<RouteTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Origin {
    url: Option<String>,
    host: Option<Spanned<String>>,
    limit: Option<Number<1, 100_000>>,
    limit_floor: Option<Number<1, 100_000>>,
    probe: Option<Spanned<String>>,
    line: Option<Number<0, 10_000_000>>,
    queue_wait: Option<Time<0, DAY>>,
    connect_timeout: Option<Time<1, DAY>>,
    head_timeout: Option<Time<1, DAY>>,
    body_timeout: Option<Time<1, DAY>>,
    attempts: Option<Number<1, 10>>,
    hedge_after: Option<MaybeTime<1, DAY>>,
    max_idle: Option<Number<0, 100_000>>,
    max_age: Option<Time<1000, DAY>>,
    resolve_every: Option<Time<1000, DAY>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cache {
    memory: Option<Size>,
    max_object: Option<Size>,
    in_flight: Option<Size>,
    max_followers: Option<Number<1, 10_000_000>>,
    wait: Option<Time<1, DAY>>,
    failed: Option<Spanned<(Time<0, DAY>, Time<0, DAY>)>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Clients {
    max_connections: Option<Number<1, 10_000_000>>,
    per_address: Option<Number<1, 10_000_000>>,
    head_timeout: Option<Time<100, DAY>>,
    idle: Option<Time<100, DAY>>,
    stall: Option<Time<100, DAY>>,
    least_rate: Option<Size>,
    max_head: Option<Spanned<Size>>,
    half_close: Option<bool>,
    proxy_protocol: Option<Spanned<bool>>,
    socket_mode: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Uploads {
    buffer: Option<Spanned<Size>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Upgrades {
    protocols: Option<Vec<Protocol>>,
    most: Option<Number<0, 1_000_000>>,
    idle: Option<Time<100, DAY>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    access: Option<String>,
    format: Option<Format>,
    hide_query: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Combined,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    ttl: Option<Time<0, YEAR>>,
    grace: Option<Time<0, YEAR>>,
    if_error: Option<Time<0, YEAR>>,
    cookies: Option<CookieWord>,
    share_set_cookie: Option<bool>,
    obey_clients: Option<bool>,
    jitter: Option<Spanned<f64>>,
    early: Option<bool>,
}

/// The same, for a part of the paths. (Flattening one into the other would lose the places of mistakes.)
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    prefix: Spanned<String>,
    share: Option<bool>,
    fallback: Option<Spanned<FallbackTable>>,
    compress: Option<Vec<CodingWord>>,
    ttl: Option<Time<0, YEAR>>,
    grace: Option<Time<0, YEAR>>,
    if_error: Option<Time<0, YEAR>>,
    cookies: Option<CookieWord>,
    share_set_cookie: Option<bool>,
    obey_clients: Option<bool>,
    jitter: Option<Spanned<f64>>,
    early: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FallbackTable {
    status: Option<Number<200, 599>>,
    body: Option<String>,
    file: Option<String>,
    content_type: Option<String>,
}

struct CookieWord(Cookies);

impl Settings {
    /// From the text of a file; what it does not say stays as it is by default.
    pub fn parse(text: &str) -> Result<Settings, BadSettings> {
        Settings::parse_file("herdproof.toml", text, |_| {})
    }

    /// The same, from a file of this name. Other files that it names are looked for beside it, and read. The rules for every path are
    /// changed before those of routes are made from them: what a route does not say is as it is after the change.
    pub fn parse_file(
        name: &str,
        text: &str,
        change: impl FnOnce(&mut policy::Route),
    ) -> Result<Settings, BadSettings> {
        let file: File = toml::from_str(text).map_err(|error| BadSettings::from_toml(name, text, &error))?;
        let wrong = |(span, problem)| BadSettings::new(name, text, Some(span), problem);
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        file.into_settings(folder, change).map_err(wrong)
    }
}

/// What is wrong in itself although each part of it is right, and where.
type Wrong = (std::ops::Range<usize>, String);

fn set<T>(setting: &mut T, said: Option<impl Into<T>>) {
    if let Some(said) = said {
        *setting = said.into();
    }
}

impl File {
    fn into_settings(self, folder: &Path, change: impl FnOnce(&mut policy::Route)) -> Result<Settings, Wrong> {
        let mut settings = Settings::default();
        set(&mut settings.listen, self.listen.map(|place| place.0));
        set(&mut settings.admin, self.admin.map(|address| address.0));
        set(&mut settings.admin_anywhere, self.admin_anywhere);
        set(
            &mut settings.admin_hosts,
            self.admin_hosts.map(|all| all.into_iter().map(|HostName(one)| one).collect::<Vec<_>>()),
        );
        set(
            &mut settings.identity_headers,
            self.identity_headers.map(|all| all.into_iter().map(|FieldName(one)| one).collect::<Vec<_>>()),
        );
        set(
            &mut settings.trusted_proxies,
            self.trusted_proxies.map(|all| all.into_iter().map(|Range(one)| one).collect::<Vec<_>>()),
        );
        set(&mut settings.drain, self.drain);
        set(&mut settings.warm_up, self.warm_up);
        if let Some(origin) = self.origin {
            origin.set(&mut settings.origin)?;
        }
        if let Some(cache) = self.cache {
            cache.set(&mut settings)?;
        }
        if let Some(clients) = self.clients {
            let header = clients.proxy_protocol.as_ref().filter(|said| *said.get_ref()).map(Spanned::span);
            if let Some(span) = header.filter(|_| settings.trusted_proxies.is_empty()) {
                return Err((span, "it is for connections from `trusted_proxies`, and there are none".into()));
            }
            clients.set(&mut settings.clients)?;
        }
        if let Some(Uploads { buffer: Some(size) }) = self.uploads {
            let (span, Size(size)) = (size.span(), size.into_inner());
            if !(1 << 20..=1 << 40).contains(&size) {
                return Err((span, "the size is not in the range 1MiB to 1TiB".into()));
            }
            settings.uploads.buffer = size;
        }
        if let Some(Upgrades { protocols, most, idle }) = self.upgrades {
            let upgrades = &mut settings.upgrades;
            let names = protocols.map(|all| all.into_iter().map(|Protocol(one)| one).collect::<Vec<_>>());
            set(&mut upgrades.protocols, names);
            set(&mut upgrades.most, most);
            set(&mut upgrades.idle, idle);
        }
        if let Some(Log { access, format, hide_query }) = self.log {
            settings.log.access = access.map(LogTo::from);
            set(&mut settings.log.format, format);
            set(&mut settings.log.hide_query, hide_query);
        }
        if let Some(rules) = self.default {
            rules.set(&mut settings.rules)?;
        }
        change(&mut settings.rules);
        for route in self.route {
            let span = route.span();
            let route = route.into_inner().route(&settings.rules, folder)?;
            if settings.routes.iter().any(|other| other.prefix == route.prefix) {
                return Err((span, format!("there is a route for {:?} already", route.prefix)));
            }
            settings.routes.push(route);
        }
        Ok(settings)
    }
}

impl Origin {
    fn set(self, origin: &mut OriginSettings) -> Result<(), Wrong> {
        set(&mut origin.url, self.url);
        if let Some(host) = self.host {
            let (span, host) = (host.span(), host.into_inner());
            let is_host = host.parse::<http::uri::Authority>().is_ok() && !host.contains('@');
            if !is_host {
                return Err((span, format!("{host:?} is not a host; such as \"app.internal\" would be right")));
            }
            origin.host = Some(host);
        }
        set(&mut origin.limit, self.limit);
        set(&mut origin.limit_floor, self.limit_floor.map(|floor| Some(floor.0)));
        if let Some(probe) = self.probe {
            let (span, path) = (probe.span(), probe.into_inner());
            if !path.starts_with('/') || path.contains('#') || path.parse::<http::Uri>().is_err() {
                return Err((span, format!("{path:?} is not a path; such as \"/healthz\" would be right")));
            }
            origin.probe = Some(path);
        }
        set(&mut origin.line, self.line);
        set(&mut origin.queue_wait, self.queue_wait);
        set(&mut origin.connect_timeout, self.connect_timeout);
        set(&mut origin.head_timeout, self.head_timeout);
        set(&mut origin.body_timeout, self.body_timeout);
        set(&mut origin.attempts, self.attempts.map(|attempts| u16::try_from(attempts.0).unwrap_or(u16::MAX)));
        set(&mut origin.hedge_after, self.hedge_after.map(|time| time.0));
        set(&mut origin.max_idle, self.max_idle);
        set(&mut origin.max_age, self.max_age);
        set(&mut origin.resolve_every, self.resolve_every);
        Ok(())
    }
}

impl Cache {
    fn set(self, settings: &mut Settings) -> Result<(), Wrong> {
        set(&mut settings.memory, self.memory);
        set(&mut settings.max_object, self.max_object);
        set(&mut settings.in_flight, self.in_flight);
        set(&mut settings.max_followers, self.max_followers);
        set(&mut settings.wait, self.wait);
        if let Some(failed) = self.failed {
            let span = failed.span();
            let (Time(least), Time(most)) = failed.into_inner();
            if least > most {
                return Err((span, "the shorter time comes first".into()));
            }
            settings.failed = least..most;
        }
        Ok(())
    }
}

impl Clients {
    fn set(self, clients: &mut ClientSettings) -> Result<(), Wrong> {
        set(&mut clients.max_connections, self.max_connections);
        set(&mut clients.per_address, self.per_address.map(|limit| Some(limit.0)));
        set(&mut clients.head_timeout, self.head_timeout);
        set(&mut clients.idle, self.idle);
        set(&mut clients.stall, self.stall);
        set(&mut clients.least_rate, self.least_rate);
        set(&mut clients.half_close, self.half_close);
        set(&mut clients.proxy_protocol, self.proxy_protocol.map(Spanned::into_inner));
        if let Some(mode) = self.socket_mode {
            let (span, mode) = (mode.span(), mode.into_inner());
            let is_octal = mode.len() <= 4 && mode.bytes().all(|byte| byte.is_ascii_digit());
            let bits = u32::from_str_radix(&mode, 8).ok().filter(|bits| is_octal && *bits <= 0o777);
            let problem = || (span, format!("{mode:?} are not the rights of a file; such as \"660\" would be right"));
            clients.socket_mode = bits.ok_or_else(problem)?;
        }
        if let Some(size) = self.max_head {
            let (span, Size(size)) = (size.span(), size.into_inner());
            let fits = usize::try_from(size).ok().filter(|size| (1 << 10..=1 << 20).contains(size));
            clients.max_head = fits.ok_or_else(|| (span, "the size is not in the range 1KiB to 1MiB".into()))?;
        }
        Ok(())
    }
}

impl Rules {
    fn set(self, rules: &mut policy::Route) -> Result<(), Wrong> {
        set(&mut rules.ttl, self.ttl.map(|time| Some(time.0)));
        set(&mut rules.grace, self.grace);
        set(&mut rules.if_error, self.if_error);
        set(&mut rules.cookies, self.cookies);
        set(&mut rules.share_set_cookie, self.share_set_cookie);
        set(&mut rules.obey_clients, self.obey_clients);
        set(&mut rules.jitter, self.jitter.map(|jitter| share(&jitter, 0.5)).transpose()?);
        set(&mut rules.early, self.early);
        Ok(())
    }
}

/// A number from nothing to this much.
fn share(number: &Spanned<f64>, most: f64) -> Result<f64, Wrong> {
    let value = *number.get_ref();
    let problem = || (number.span(), format!("{value} is not in the range 0 to {most}"));
    (0.0..=most).contains(&value).then_some(value).ok_or_else(problem)
}

impl RouteTable {
    /// What it does not say is as for every path.
    fn route(self, all: &policy::Route, folder: &Path) -> Result<Route, Wrong> {
        let (span, prefix) = (self.prefix.span(), self.prefix.into_inner());
        if !prefix.starts_with('/') {
            return Err((span, format!("{prefix:?} does not begin with a slash; {:?} would", format!("/{prefix}"))));
        }
        if prefix.contains(['?', '#']) {
            return Err((span, "a prefix is of paths, without what follows a `?`".into()));
        }
        let fallback = self.fallback.map(|fallback| {
            let (span, FallbackTable { status, body, file, content_type }) = (fallback.span(), fallback.into_inner());
            let said = Said { status: status.map(|Number(status)| status), body, file, content_type };
            Fallback::new(said, folder).map(Arc::new).map_err(|problem| (span, problem))
        });
        let compress = self.compress.unwrap_or_default().into_iter().map(|CodingWord(coding)| coding).collect();
        let RouteTable { share, ttl, grace, if_error, cookies, share_set_cookie, obey_clients, jitter, early, .. } =
            self;
        let mut rules = all.clone();
        Rules { ttl, grace, if_error, cookies, share_set_cookie, obey_clients, jitter, early }.set(&mut rules)?;
        Ok(Route { prefix, share: share.unwrap_or(true), rules, fallback: fallback.transpose()?, compress })
    }
}

impl From<String> for LogTo {
    fn from(name: String) -> LogTo {
        if name == "-" { LogTo::Stdout } else { LogTo::File(name.into()) }
    }
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> LogFormat {
        match format {
            Format::Json => LogFormat::Json,
            Format::Combined => LogFormat::Combined,
        }
    }
}

impl From<CookieWord> for Cookies {
    fn from(word: CookieWord) -> Cookies {
        word.0
    }
}

/// A time of so many milliseconds at least and at most.
struct Time<const LEAST: u64, const MOST: u64>(Duration);

/// Such a time, or `"never"`.
struct MaybeTime<const LEAST: u64, const MOST: u64>(Option<Duration>);

/// A whole number in a range.
struct Number<const LEAST: u32, const MOST: u32>(u32);

/// A size in bytes.
struct Size(u64);

struct Place(Listen);

/// A range of addresses.
struct Range(Network);

/// The name of a host, in small letters.
struct HostName(String);

/// The name of a header field that says who the user is.
struct FieldName(HeaderName);

/// The name of a protocol that a connection may be upgraded to, in small letters.
struct Protocol(String);

/// A content coding that can be made here.
struct CodingWord(Coding);

/// Fields without which no request is understood, so that none of them says who the user is.
const NEEDED: [HeaderName; 5] =
    [header::CONNECTION, header::CONTENT_LENGTH, header::HOST, header::TRANSFER_ENCODING, header::UPGRADE];

/// An address, or `"off"`.
struct MaybeAddress(Option<SocketAddr>);

impl<const LEAST: u64, const MOST: u64> From<Time<LEAST, MOST>> for Duration {
    fn from(time: Time<LEAST, MOST>) -> Duration {
        time.0
    }
}

impl<const LEAST: u32, const MOST: u32> From<Number<LEAST, MOST>> for u32 {
    fn from(number: Number<LEAST, MOST>) -> u32 {
        number.0
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> u64 {
        size.0
    }
}

/// A word or a number, made into something or refused with a reason.
struct Word<F>(&'static str, F);

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Word<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

impl<const LEAST: u64, const MOST: u64> Time<LEAST, MOST> {
    fn parse(text: &str) -> Result<Self, String> {
        let time = parse_time(text).map_err(|error| error.to_string())?;
        let (least, most) = (Duration::from_millis(LEAST), Duration::from_millis(MOST));
        let fits = (least..=most).contains(&time);
        let problem = || format!("{text:?} is not in the range {} to {}", show_time(least), show_time(most));
        fits.then_some(Time(time)).ok_or_else(problem)
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Time<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("a time such as \"30s\"", Time::parse))
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for MaybeTime<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("a time such as \"30s\", or \"never\"", |text: &str| {
            if text == "never" {
                return Ok(MaybeTime(None));
            }
            Time::<LEAST, MOST>::parse(text).map(|time| MaybeTime(Some(time.0)))
        }))
    }
}

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Whole(LEAST, MOST)).map(Number)
    }
}

impl<'de> Deserialize<'de> for CookieWord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = String::deserialize(from)?;
        match &*word {
            "share" => Ok(CookieWord(Cookies::Share)),
            "private" => Ok(CookieWord(Cookies::Private)),
            "ignore" => Ok(CookieWord(Cookies::Ignore)),
            "respect" => Err(D::Error::custom("`respect` is called `private` now; `share` is what RFC 9111 says")),
            _ => Err(D::Error::unknown_variant(&word, &["share", "private", "ignore"])),
        }
    }
}

struct Whole(u32, u32);

impl Visitor<'_> for Whole {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {} to {}", self.0, self.1)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u32, E> {
        let Whole(least, most) = self;
        let fits = u32::try_from(number).ok().filter(|number| (least..=most).contains(number));
        fits.ok_or_else(|| E::custom(format!("{number} is not in the range {least} to {most}")))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("a size such as \"256MiB\"", |text: &str| {
            parse_size(text).map(Size).map_err(|error| error.to_string())
        }))
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("an address such as \"127.0.0.1:8080\"", |text: &str| {
            text.parse().map(Place).map_err(|error: NotAPlace| error.to_string())
        }))
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("a range of addresses such as \"10.0.0.0/8\"", |text: &str| {
            text.parse().map(Range).map_err(|error: NotANetwork| error.to_string())
        }))
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("the name of a host such as \"proxy.internal\"", |text: &str| {
            let is_name =
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            let problem =
                || format!("{text:?} is not the name of a host; write it without a port, as \"proxy.internal\"");
            is_name.then(|| HostName(text.to_ascii_lowercase())).ok_or_else(problem)
        }))
    }
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("the name of a field such as \"X-Tenant-User\"", |text: &str| {
            let name = text.parse().ok().filter(|name| !NEEDED.contains(name)).map(FieldName);
            name.ok_or_else(|| format!("{text:?} is not a field that could say who the user is"))
        }))
    }
}

impl<'de> Deserialize<'de> for CodingWord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("the name of a coding such as \"gzip\"", |text: &str| match text {
            "gzip" => Ok(CodingWord(Coding::Gzip)),
            _ => Err(format!("{text:?} cannot be made here; \"gzip\" can")),
        }))
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("the name of a protocol such as \"websocket\"", |text: &str| {
            let name = text.to_ascii_lowercase();
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
                return Err(format!("{text:?} is not the name of a protocol; \"websocket\" would be one"));
            }
            if ["h2c", "h2", "http", "tls"].contains(&&*name) {
                return Err(format!(
                    "{text:?} would let clients speak HTTP to the origin past every rule of the proxy"
                ));
            }
            Ok(Protocol(name))
        }))
    }
}

impl<'de> Deserialize<'de> for MaybeAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Word("an address such as \"127.0.0.1:9090\", or \"off\"", |text: &str| {
            if text == "off" {
                Ok(MaybeAddress(None))
            } else {
                address(text).map(|address| MaybeAddress(Some(address)))
            }
        }))
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    super::parse_address(text).map_err(|error| error.to_string())
}
