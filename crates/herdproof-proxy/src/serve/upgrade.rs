//! Requests for another protocol on their connection (RFC 9110 7.8), such as `websocket`.
//!
//! A tunnel lasts as long as both sides like, and nobody in between knows what goes through it. So three things are decided before
//! there is one:
//!
//! - **Which protocol.** Only those that are listed: over an `Upgrade` to `h2c` a client would speak HTTP to the origin past
//!   all rules of this proxy (request smuggling by h2c). An `Upgrade` to anything else is taken away, and the request goes on without.
//! - **Whether the origin grants it.** The request takes a seat at the origin like any other. Only after a 101 that names the
//!   protocol which was asked for are bytes copied; after any other answer the connection goes on as HTTP, and nothing that the
//!   client sent meanwhile reaches the origin unread.
//! - **How many.** With the 101 the request gives its seat back, as a socket that is mostly silent is no work that the limit counts.
//!   What it holds instead is one of the upgrade seats, of which a client has at most as many as it leaves free: half, if it is alone.
//!   Nobody waits for one: they come free when somebody closes a page, in minutes or hours.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version, header, request::Parts};
use http_body_util::Empty;
use parking_lot::Mutex;

use super::{Core, Served, Visit};
use crate::{access::Outcome, detail::Detail, fill::Failure, listener::Tunnel, origin, policy::hop};

const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// The protocol that this head asks for, if it is one of these: as the client writes it.
pub(super) fn asked(parts: &Parts, protocols: &[String]) -> Option<HeaderValue> {
    // A server ignores it in HTTP/1.0 (RFC 9110 7.8). Of other methods nobody knows what an answer means.
    let may = parts.version == Version::HTTP_11 && parts.method == Method::GET;
    let is_named = || elements(&parts.headers, &header::CONNECTION).any(|name| name.eq_ignore_ascii_case(b"upgrade"));
    if !may || !is_named() {
        return None;
    }
    let is_listed = |name: &&[u8]| protocols.iter().any(|listed| name.eq_ignore_ascii_case(listed.as_bytes()));
    let name = elements(&parts.headers, &header::UPGRADE).find(is_listed)?;
    HeaderValue::from_bytes(name).ok()
}

/// The elements of a list of tokens, which have no quotes.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}

/// The upgrade seats of one proxy. Cheap to clone, and clones share.
#[derive(Clone, Debug)]
pub(super) struct Upgrades(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: u32,
    held: Mutex<Held>,
    begun: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    all: u32,
    /// Only clients that hold one.
    by: BTreeMap<u64, u32>,
}

/// How upgraded connections are, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpgradeStats {
    /// Upgrade seats that are taken.
    pub(super) held: u32,
    /// Upgrades that the origin granted, in all.
    pub(super) begun: u64,
    /// Requests that found no upgrade seat, in all.
    pub(super) refused: u64,
}

/// An upgrade seat; dropping it gives it back.
#[derive(Debug)]
struct Seat {
    upgrades: Upgrades,
    who: u64,
}

/// Whether a client that holds so many may have one more.
fn may(held: u32, all: u32, most: u32) -> bool {
    held < most.saturating_sub(all)
}

impl Upgrades {
    pub(super) fn new(most: u32) -> Upgrades {
        Upgrades(Arc::new(Shared {
            most,
            held: Mutex::default(),
            begun: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    pub(super) fn stats(&self) -> UpgradeStats {
        let Shared { held, begun, refused, .. } = &*self.0;
        UpgradeStats { held: held.lock().all, begun: begun.load(Relaxed), refused: refused.load(Relaxed) }
    }

    fn enter(&self, who: u64) -> Option<Seat> {
        let mut held = self.0.held.lock();
        let by = held.by.get(&who).copied().unwrap_or(0);
        if !may(by, held.all, self.0.most) {
            self.0.refused.fetch_add(1, Relaxed);
            return None;
        }
        held.by.insert(who, by + 1);
        held.all += 1;
        Some(Seat { upgrades: self.clone(), who })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut held = self.upgrades.0.held.lock();
        held.all -= 1;
        if let Entry::Occupied(mut by) = held.by.entry(self.who) {
            *by.get_mut() -= 1;
            if *by.get() == 0 {
                by.remove();
            }
        }
    }
}

impl Core {
    /// By itself to the origin, which says whether the connection may speak this protocol from then on.
    pub(super) async fn upgrade(&self, visit: &Visit<'_>, protocol: HeaderValue) -> Served {
        if let Some(served) = self.turned_away(visit) {
            return served;
        }
        let Some(seat) = self.upgrades.enter(visit.who.key()) else {
            let after = Some(self.appointment(None));
            let why = "too many connections are upgraded";
            return Served::own(Outcome::Shed, Detail::Upgrades, StatusCode::SERVICE_UNAVAILABLE, why, after);
        };
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = visit.parts.method.clone();
        *request.uri_mut() = visit.target();
        *request.headers_mut() = visit.headers(self);
        request.headers_mut().insert(header::CONNECTION, UPGRADE);
        request.headers_mut().insert(header::UPGRADE, protocol.clone());
        let asked = self.env.now();
        let ask = visit.ask(self).deadline(asked + self.settings.wait);
        let mut response = match Box::pin(self.origin.send(request, visit.template(self).hash(), ask)).await {
            Ok(response) => response,
            Err(error) => {
                return self.not_served(visit, None, &Failure::of(error, self.env.now() - asked), false);
            }
        };
        let granted = response.extensions_mut().remove::<origin::Granted>().and_then(origin::Granted::take);
        hop::strip(response.headers_mut());
        if let Some(origin) = granted {
            self.upgrades.0.begun.fetch_add(1, Relaxed);
            visit.client.tunnel(Tunnel { origin, idle: self.settings.upgrades.idle, seat: Box::new(seat) });
            response.headers_mut().insert(header::CONNECTION, UPGRADE);
            response.headers_mut().insert(header::UPGRADE, protocol);
        }
        visit.passed(response, Detail::Upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(version: Version, method: Method, fields: &[(HeaderName, &'static str)]) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.version, parts.method) = (version, method);
        for (name, value) in fields {
            parts.headers.append(name, HeaderValue::from_static(value));
        }
        parts
    }

    #[test]
    fn only_what_is_listed_is_asked_for_and_only_if_connection_says_so() {
        let listed = ["websocket".to_owned()];
        let asks = |version, method, connection, upgrade| {
            let fields = [(header::CONNECTION, connection), (header::UPGRADE, upgrade)];
            asked(&head(version, method, &fields), &listed).map(|name| name.to_str().unwrap().to_owned())
        };
        let get = |connection, upgrade| asks(Version::HTTP_11, Method::GET, connection, upgrade);
        assert_eq!(get("Upgrade", "websocket").as_deref(), Some("websocket"));
        assert_eq!(get("keep-alive, upgrade", "h2c, WebSocket").as_deref(), Some("WebSocket"));
        for (connection, upgrade) in
            [("keep-alive", "websocket"), ("upgrade", "h2c"), ("upgrade", "websocket/13"), ("upgrade", ""), ("", "")]
        {
            assert_eq!(get(connection, upgrade), None, "{connection} {upgrade}");
        }
        assert_eq!(asks(Version::HTTP_10, Method::GET, "upgrade", "websocket"), None);
        assert_eq!(asks(Version::HTTP_11, Method::POST, "upgrade", "websocket"), None);
    }

    #[test]
    fn one_client_has_at_most_half_of_the_seats_and_they_come_back() {
        let upgrades = Upgrades::new(8);
        let mut first: Vec<_> = std::iter::from_fn(|| upgrades.enter(1)).collect();
        assert_eq!(first.len(), 4);
        let second: Vec<_> = std::iter::from_fn(|| upgrades.enter(2)).collect();
        assert_eq!(second.len(), 2);
        assert!(upgrades.enter(3).is_some(), "and there is one for the next");
        first.clear();
        drop(second);
        assert_eq!(upgrades.stats(), UpgradeStats { held: 0, begun: 0, refused: 2 });
        assert!(upgrades.0.held.lock().by.is_empty());
        assert!(Upgrades::new(1).enter(1).is_some() && Upgrades::new(0).enter(1).is_none());
    }
}
