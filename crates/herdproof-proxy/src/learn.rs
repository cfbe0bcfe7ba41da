//! What turned out not to be shareable, so that nobody waits for it again in vain.
//!
//! A crowd that waits for one response, only to learn that it was private, has waited for nothing: each of them must ask for
//! its own. The second crowd should not wait at all. So a key whose response could not be shared is remembered for a while
//! ([`Private`]), and its requests go straight through.
//!
//! That does not help with private URLs that nobody has seen, `/orders/1001`, `/orders/1002`: each of them would be waited for
//! once. So what all of a route's responses had in common is learned too ([`Routes`]). A route is a path with its numbers and
//! names taken out, coarsely and finely; one response that can be shared is enough to unlearn it. To be wrong costs
//! efficiency only: who is let through passes admission, and who waits in vain goes on then.
//!
//! Both are tables of fixed size without a lock. What does not fit replaces what was there.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use herdproof::Tick;

/// How many keys are remembered at most.
const KEYS: usize = 16 * 1024;
/// How many routes.
const ROUTES: usize = 4 * 1024;
/// So many unshareable responses in a row make a route private ...
const PRIVATE: u8 = 4;
/// ... and it takes no more than one that can be shared to change that.
const MOST: u8 = 8;
/// Of a route in its fine form that was shared the last time: what its neighbours turn out to be does not count.
const SHARED: u8 = u8::MAX;
/// In a word of the table, what is not the time: it tells keys apart.
const TAG: u64 = !0 << 32;

/// Keys whose response could not be shared lately.
#[derive(Debug)]
pub(crate) struct Private(Box<[AtomicU64]>);

/// Routes of which no response could be shared lately.
#[derive(Debug)]
pub(crate) struct Routes<S> {
    scores: Box<[AtomicU8]>,
    hasher: S,
}

/// A route, in its fine and its coarse form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    fine: u64,
    coarse: u64,
}

impl Template {
    /// In its coarse form, for statistics.
    pub(crate) fn hash(self) -> u64 {
        self.coarse
    }
}

impl Private {
    pub(crate) fn new() -> Private {
        Private((0..KEYS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Remembers a key, by its hash, until then.
    pub(crate) fn remember(&self, key: u64, until: Tick) {
        if let Some(word) = self.word(key) {
            word.store((key & TAG) | (seconds(until) + 1), Relaxed);
        }
    }

    /// Forgets a key: something of it could be shared.
    pub(crate) fn forget(&self, key: u64) {
        if let Some(word) = self.word(key)
            && word.load(Relaxed) & TAG == key & TAG
        {
            word.store(0, Relaxed);
        }
    }

    /// Whether a key is remembered. Another may be taken for it, once in four thousand million.
    pub(crate) fn knows(&self, key: u64, now: Tick) -> bool {
        let word = self.word(key).map_or(0, |word| word.load(Relaxed));
        word != 0 && word & TAG == key & TAG && word & !TAG > seconds(now)
    }

    fn word(&self, key: u64) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(key % KEYS as u64).unwrap_or(0))
    }
}

/// Since the clock began, in 31 bits: 68 years.
fn seconds(at: Tick) -> u64 {
    (at - Tick::ZERO).as_secs().min(u64::from(u32::MAX >> 1))
}

impl<S: BuildHasher> Routes<S> {
    pub(crate) fn new(hasher: S) -> Routes<S> {
        Routes { scores: (0..ROUTES).map(|_| AtomicU8::new(0)).collect(), hasher }
    }

    /// The route of a request. Those with credentials are others than those without.
    pub(crate) fn template(&self, authority: &str, path: &str, credentials: bool) -> Template {
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

    /// Whether no response of this route could be shared lately.
    pub(crate) fn is_private(&self, route: Template) -> bool {
        let is_private = |score: u8| (PRIVATE..SHARED).contains(&score);
        let [fine, coarse] = self.scores(route).map(|score| score.map_or(0, |score| score.load(Relaxed)));
        fine != SHARED && (is_private(fine) || is_private(coarse))
    }

    /// A response of this route could be shared, or could not.
    pub(crate) fn learn(&self, route: Template, shareable: bool) {
        for (score, best) in self.scores(route).into_iter().zip([SHARED, 0]) {
            let Some(score) = score else { continue };
            let before = score.load(Relaxed);
            let after = match before {
                _ if shareable => best,
                SHARED => 1,
                count => (count + 1).min(MOST),
            };
            // A count that is lost to another thread is one among many.
            if after != before {
                score.store(after, Relaxed);
            }
        }
    }

    /// In its fine form, and in its coarse one.
    fn scores(&self, route: Template) -> [Option<&AtomicU8>; 2] {
        [route.fine, route.coarse].map(|hash| self.scores.get(usize::try_from(hash % ROUTES as u64).unwrap_or(0)))
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
pub(crate) fn memory(draw: f64) -> Duration {
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
    fn a_private_key_is_remembered_for_its_time_and_no_longer() {
        let private = Private::new();
        assert!(!private.knows(0, at(0)) && !private.knows(7, at(0)));
        private.remember(7, at(120));
        assert!(private.knows(7, at(0)) && private.knows(7, at(120)) && !private.knows(7, at(121)));
        private.forget(7);
        assert!(!private.knows(7, at(0)));
    }

    #[test]
    fn one_key_is_not_taken_for_another_that_shares_its_place() {
        let private = Private::new();
        let other = 7 + (1 << 40);
        private.remember(7, at(120));
        assert!(!private.knows(other, at(0)));
        private.forget(other);
        assert!(private.knows(7, at(0)));
        private.remember(other, at(120));
        assert!(private.knows(other, at(0)) && !private.knows(7, at(0)));
    }

    #[test]
    fn private_urls_that_nobody_has_seen_are_not_waited_for_once_their_route_is_known() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, true);
        for order in 0..4 {
            assert!(!routes.is_private(route("/orders/99")));
            routes.learn(route(&format!("/orders/{order}")), false);
        }
        assert!(routes.is_private(route("/orders/99")));
        assert!(!routes.is_private(routes.template("shop", "/orders/99", false)), "others may share");
        assert!(!routes.is_private(routes.template("blog", "/orders/99", true)));
        assert!(!routes.is_private(route("/products/99")));
        routes.learn(route("/orders/5"), true);
        assert!(!routes.is_private(route("/orders/99")), "one that can be shared is enough");
    }

    #[test]
    fn names_without_digits_are_learned_coarsely() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, true);
        for user in ["ann", "bob", "eve", "zoe"] {
            routes.learn(route(&format!("/users/{user}/inbox")), false);
        }
        assert!(routes.is_private(route("/users/joe/inbox")));
        assert!(!routes.is_private(route("/users/joe")));
        assert!(!routes.is_private(route("/users/joe/face.png")));
    }

    #[test]
    fn a_page_that_was_shared_is_not_made_private_by_its_neighbours() {
        let routes = routes();
        let route = |path: &str| routes.template("shop", path, false);
        routes.learn(route("/api/products"), true);
        for _ in 0..10 {
            routes.learn(route("/api/me"), false);
            routes.learn(route("/api/cart"), false);
        }
        assert!(!routes.is_private(route("/api/products")));
        assert!(routes.is_private(route("/api/orders")), "nothing is known of it but where it is");
        routes.learn(route("/api/products"), false);
        assert!(routes.is_private(route("/api/products")), "it has become like them");
    }

    #[test]
    fn a_route_that_shares_now_and_then_is_never_private() {
        let routes = routes();
        let route = routes.template("shop", "/", false);
        for number in 0..100 {
            routes.learn(route, number % 4 == 0);
            assert!(!routes.is_private(route));
        }
    }
}
