//! What turned out not to be shareable, so that nobody waits long for it again in vain.
//!
//! A crowd that waits for one response, only to learn that it was private, has waited for nothing: each of them must ask for
//! its own. The second crowd should not wait at all. So it is remembered how often in a row the response of a key was private
//! ([`Private`]), and the more often, the more requests for it go in parallel ([`width`]); `widen.rs` lets them go.
//!
//! That does not help with private URLs that nobody has seen, `/orders/1001`, `/orders/1002`: each of them would be waited for
//! once. So what all of a route's responses had in common is learned too ([`Routes`]). A route is a path with its numbers and
//! names taken out, coarsely and finely; one response that can be shared is enough to unlearn it.
//!
//! What is learned is learned from what clients ask for, so it never switches coalescing off. A stranger who teaches that a
//! route is private makes a herd at an unseen page of it eight requests instead of one, and no more: what comes back
//! shareable is stored, and the rest of the herd has it. Both tables are of fixed size, and a scan through many URLs does not
//! flush what is known of others (`table.rs`).

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use herdproof::Tick;
use http::{HeaderMap, HeaderName, StatusCode};

use crate::{
    detail::Detail,
    policy::Class,
    table::{Table, Worth},
};

/// How many keys are remembered at most.
const KEYS: usize = 16 * 1024;
/// How many routes.
const ROUTES: usize = 4 * 1024;
/// So many unshareable responses in a row make a route private ...
const PRIVATE: u8 = 4;
/// ... and it takes no more than one that can be shared to change that.
const MOST: u8 = 8;
/// Requests of one key in parallel while nothing is known of it but that its route is private.
const NARROW: u32 = 8;
/// Private responses in a row from which on more make no difference: 8 x 2^16 is more than any limit.
const TIMES: u8 = 16;
/// What a request that speaks for others counts for: 8 x 2^5 is as wide as the default limit.
const PLAINLY: u8 = 5;

/// Fields of a request that say nothing of who asks and where from.
const USUAL: [&str; 12] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "dnt",
    "host",
    "keep-alive",
    "pragma",
    "te",
    "upgrade-insecure-requests",
    "user-agent",
];

/// Keys whose response could not be shared lately.
#[derive(Debug)]
pub struct Private(Table<Row>);

/// Private responses of one key in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    times: u8,
    until: Tick,
    /// Why the last one could not be shared.
    why: Detail,
    /// Whose request was the last that counted.
    by: u64,
}

/// Routes of which no response could be shared lately.
#[derive(Debug)]
pub struct Routes<S> {
    scores: Table<Score>,
    /// Whether any route was ever learned private.
    any: AtomicBool,
    hasher: S,
}

/// What is known of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Score {
    #[default]
    Unknown,
    /// So many unshareable responses in a row.
    Private(u8),
    /// Shared the last time: what the neighbours of a route in its fine form turn out to be does not count.
    Shared,
}

/// A route, in its fine and its coarse form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    fine: u64,
    coarse: u64,
}

/// Whether others would most likely get what this request gets: it has nothing in it but what every browser sends, no
/// credentials and nothing that is only in this one. What such a request gets is believed at once; what any other gets may be
/// one client's doing, and is believed step by step. An error is never believed: an odd value of a usual field can cause it too.
pub(crate) fn speaks_for_others(class: &Class, headers: &HeaderMap, status: StatusCode) -> bool {
    let is_plain = || headers.keys().all(is_usual);
    status.as_u16() < 400 && !class.has_credentials() && is_plain()
}

/// Whether every browser sends this field of a request.
pub(crate) fn is_usual(name: &HeaderName) -> bool {
    USUAL.contains(&name.as_str())
}

/// How many requests of one key may go in parallel after so many private responses in a row.
pub fn width(times: u8) -> u32 {
    NARROW << times.min(TIMES)
}

impl Template {
    /// In its coarse form, for statistics.
    pub(crate) fn hash(self) -> u64 {
        self.coarse
    }
}

impl Default for Private {
    fn default() -> Private {
        Private::new()
    }
}

impl Private {
    /// With nothing known of any key.
    pub fn new() -> Private {
        Private(Table::new(KEYS))
    }

    /// One more private response to this key, for this client, which is remembered until then. `plainly`: to a request that others
    /// would have made in the same way. What others would not is counted once in a row for one client.
    pub fn remember(&self, key: u64, now: Tick, until: Tick, (client, plainly): (u64, bool), why: Detail) {
        self.0.change(key, now, |row| {
            let times = match now < row.until {
                true if plainly || row.by != client => row.times.saturating_add(1),
                true => row.times,
                false => 1,
            };
            *row = Row { times: times.max(if plainly { PLAINLY } else { 0 }).min(TIMES), until, why, by: client };
        });
    }

    /// Forgets a key: something of it could be shared.
    pub fn forget(&self, key: u64, now: Tick) {
        if self.0.get(key, |_| ()).is_some() {
            self.0.change(key, now, |row| *row = Row::default());
        }
    }

    /// How many private responses in a row a key had lately; none if it had none.
    pub fn times(&self, key: u64, now: Tick) -> Option<u8> {
        self.known(key, now).map(|(times, _)| times)
    }

    /// And why the last of them could not be shared.
    pub fn known(&self, key: u64, now: Tick) -> Option<(u8, Detail)> {
        self.0.get(key, |row| (now < row.until).then_some((row.times, row.why))).flatten()
    }
}

impl Worth for Row {
    fn worth(&self, now: Tick) -> u64 {
        if now < self.until { u64::from(self.times) } else { 0 }
    }
}

impl Worth for Score {
    fn worth(&self, _: Tick) -> u64 {
        match self {
            Score::Unknown => 0,
            Score::Private(times) => (*times).into(),
            // As much as a route that has just become private: neither pushes the other out for long.
            Score::Shared => PRIVATE.into(),
        }
    }
}

impl<S: BuildHasher> Routes<S> {
    /// With nothing known of any route. The hasher's seed should be unknown to clients.
    pub fn new(hasher: S) -> Routes<S> {
        Routes { scores: Table::new(2 * ROUTES), any: AtomicBool::new(false), hasher }
    }

    /// The route of a request. Those with credentials are others than those without.
    pub fn template(&self, authority: &str, path: &str, credentials: bool) -> Template {
        let mut fine = self.hasher.build_hasher();
        let mut coarse = self.hasher.build_hasher();
        (authority, credentials, true).hash(&mut fine);
        (authority, credentials, false).hash(&mut coarse);
        let segments = path.split('/').skip(1);
        for (number, segment) in segments.take(8).enumerate() {
            let shape = if is_a_name(segment) { "*" } else { segment };
            shape.hash(&mut fine);
            if number == 0 { shape.hash(&mut coarse) } else { "*".hash(&mut coarse) }
        }
        extension(path).hash(&mut coarse);
        Template { fine: fine.finish(), coarse: coarse.finish() }
    }

    /// Whether there may be a route to unlearn.
    #[inline]
    pub(crate) fn has_private(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether no response of this route could be shared lately.
    pub fn is_private(&self, route: Template) -> bool {
        let score = |key| self.scores.get(key, |score| *score).unwrap_or_default();
        let is_private = |score| matches!(score, Score::Private(times) if times >= PRIVATE);
        let fine = score(route.fine);
        fine != Score::Shared && (is_private(fine) || is_private(score(route.coarse)))
    }

    /// A response of this route could be shared, or could not.
    pub fn learn(&self, route: Template, shareable: bool, now: Tick) {
        for (key, best) in [(route.fine, Score::Shared), (route.coarse, Score::Unknown)] {
            // The rule, and most often the end of it: nothing changes.
            if shareable && self.scores.get(key, |score| *score).unwrap_or_default() == best {
                continue;
            }
            self.scores.change(key, now, |score| {
                *score = match *score {
                    _ if shareable => best,
                    Score::Private(times) => Score::Private((times + 1).min(MOST)),
                    Score::Unknown | Score::Shared => Score::Private(1),
                }
            });
        }
        if !shareable {
            self.any.store(true, Relaxed);
        }
    }
}

/// Whether a part of a path seems to name one thing among many, rather than a kind of things.
fn is_a_name(segment: &str) -> bool {
    segment.len() > 24 || segment.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@' || byte == b'%')
}

fn extension(path: &str) -> Option<&str> {
    let file = path.rsplit('/').next()?;
    let (_, extension) = file.rsplit_once('.')?;
    (extension.len() <= 5).then_some(extension)
}

/// How long a key is remembered, drawn so that they are not all forgotten at once.
pub fn memory(draw: f64) -> Duration {
    Duration::from_secs(90).mul_f64(1.0 + draw / 3.0)
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(seconds)
    }

    fn routes() -> Routes<BuildHasherDefault<DefaultHasher>> {
        Routes::new(BuildHasherDefault::default())
    }

    #[test]
    fn the_gate_of_a_private_key_widens_with_each_private_response() {
        let private = Private::new();
        let widths: Vec<_> = (0..8)
            .map(|second| {
                private.remember(7, at(second), at(120), (second, false), Detail::Private);
                private.times(7, at(second)).map(width)
            })
            .collect();
        assert_eq!(widths, [16, 32, 64, 128, 256, 512, 1024, 2048].map(Some));
        private.remember(7, at(121), at(240), (1, false), Detail::Private);
        assert_eq!(private.times(7, at(121)), Some(1), "what has lapsed does not count");
        assert_eq!(width(u8::MAX), 8 << 16, "no shift runs over");
    }

    #[test]
    fn a_scan_through_private_urls_does_not_flush_what_is_known_of_others() {
        let private = Private::new();
        for client in 0..3 {
            private.remember(7, at(0), at(120), (client, false), Detail::Private);
        }
        for key in 0..200_000_u64 {
            private.remember(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), at(1), at(120), (1, false), Detail::Private);
        }
        assert_eq!(private.times(7, at(1)), Some(3));
    }

    #[test]
    fn one_client_with_an_unusual_request_is_counted_once_however_often_it_asks() {
        let private = Private::new();
        for second in 0..50 {
            private.remember(7, at(second), at(120), (1, false), Detail::Private);
        }
        assert_eq!(private.times(7, at(50)), Some(1));
        private.remember(7, at(51), at(120), (2, false), Detail::Private);
        assert_eq!(private.times(7, at(51)), Some(2));
        private.remember(7, at(52), at(120), (2, true), Detail::Private);
        assert_eq!(
            private.times(7, at(52)),
            Some(PLAINLY),
            "what everybody would have asked in the same way is believed"
        );
    }

    #[test]
    fn a_private_key_is_remembered_for_its_time_and_no_longer() {
        let private = Private::new();
        private.remember(7, at(0), at(120), (1, false), Detail::Private);
        let known = |key, second| private.times(key, at(second)).is_some();
        assert!(known(7, 0) && known(7, 119) && !known(7, 120) && !known(8, 0));
        private.forget(8, at(0));
        assert!(known(7, 0));
        private.forget(7, at(0));
        assert!(!known(7, 0));
    }

    #[test]
    fn private_urls_that_nobody_has_seen_are_not_waited_for_once_their_route_is_known() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, true);
        for order in 0..4 {
            assert!(!routes.is_private(route("/orders/99")));
            routes.learn(route(&format!("/orders/{order}")), false, at(0));
        }
        assert!(routes.is_private(route("/orders/99")));
        assert!(!routes.is_private(routes.template("shop", "/orders/99", false)), "others may share");
        assert!(!routes.is_private(routes.template("blog", "/orders/99", true)));
        assert!(!routes.is_private(route("/products/99")));
        routes.learn(route("/orders/5"), true, at(0));
        assert!(!routes.is_private(route("/orders/99")), "one that can be shared is enough");
    }

    #[test]
    fn names_without_digits_are_learned_coarsely() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, true);
        for user in ["ann", "bob", "eve", "zoe"] {
            routes.learn(route(&format!("/users/{user}/inbox")), false, at(0));
        }
        assert!(routes.is_private(route("/users/joe/inbox")));
        assert!(!routes.is_private(route("/users/joe")));
        assert!(!routes.is_private(route("/users/joe/face.png")));
    }

    #[test]
    fn a_page_that_was_shared_is_not_made_private_by_its_neighbours() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, false);
        routes.learn(route("/api/products"), true, at(0));
        for _ in 0..10 {
            routes.learn(route("/api/me"), false, at(0));
            routes.learn(route("/api/cart"), false, at(0));
        }
        assert!(!routes.is_private(route("/api/products")));
        assert!(routes.is_private(route("/api/orders")), "nothing is known of it but where it is");
        routes.learn(route("/api/products"), false, at(0));
        assert!(routes.is_private(route("/api/products")), "it has become like them");
    }

    #[test]
    fn a_route_that_shares_now_and_then_is_never_private() {
        let routes = routes();
        let route = routes.template("shop", "/", false);
        for number in 0..100 {
            routes.learn(route, number % 4 == 0, at(0));
            assert!(!routes.is_private(route));
        }
    }
}
