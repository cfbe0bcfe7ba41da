//! Who may share an answer, how long it is fresh, and what may be done with it after that.
//!
//! RFC 9111 with the rules of a shared cache, decided twice: once when a request comes ([`classify`]), once when the head of a
//! response does ([`judge`]). From then on a hit compares integers ([`Life::at`]). Nothing here reads a clock or waits for
//! anything; all of it can be tried with a table of headers.
//!
//! The verdict falls on the head of a response, before one byte of its body goes to anybody who did not ask for it. In a
//! flight that is not a detail: who waits for another's response has not been cached from, but has been given it.
//!
//! | file | what it knows |
//! |---|---|
//! | [`cache_control`] | `Cache-Control`, `CDN-Cache-Control`, `Pragma` |
//! | [`terms`] | all that a response's head says about being kept |
//! | [`life`] | fresh, stale, for how long |
//! | [`share`] | who may look up, join and lead; who may have a response |
//! | [`vary`] | which of several answers |
//! | [`condition`] | asking the origin, and answering a client, whether something has changed |
//! | [`range`] | a part of what is stored |
//! | [`invalidate`] | what a change makes old |
//! | [`client`] | which client a request comes from, behind trusted proxies |
//! | [`identity`] | fields in which somebody in front says who the user is |
//! | [`hop`] | what goes no further than this proxy |
//! | [`trailer`] | fields after a body, and which of them go on |

pub mod cache_control;
pub mod client;
pub mod condition;
mod fields;
pub mod hop;
pub mod identity;
pub mod invalidate;
pub mod life;
pub mod range;
pub mod share;
mod structured;
#[cfg(test)]
mod suite;
pub mod terms;
pub mod trailer;
pub mod vary;

use std::time::Duration;

pub use cache_control::{Directives, RequestDirectives};
pub use fields::FOREVER;
pub use identity::Identity;
pub use life::{Draws, Life, Times, Use};
pub use share::{Class, Judged, Pass, Reason, Verdict, Way, classify, judge, verdict};
pub use terms::Terms;
pub use vary::Vary;

/// What the operator says about a part of the site. The default trusts the origin's headers and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// How long a response is fresh that says nothing itself, if its status may be kept by default; zero to share it with those
    /// aboard. Else a tenth of the time it has not changed for, a day at most, and if that is not known it is not shared.
    pub ttl: Option<Duration>,
    /// How long a stale response is served while it is loaded again, if it does not say so itself. None.
    pub grace: Duration,
    /// How long a stale response stands in for an origin that fails, if it does not say so itself. An hour: RFC 9111 4.2.4 allows
    /// it where the origin cannot be reached.
    pub if_error: Duration,
    /// Whether a request's `Cookie` says that the answer is for that user.
    pub cookies: Cookies,
    /// Whether a response with `Set-Cookie` may be shared, the cookie included. No.
    pub share_set_cookie: bool,
    /// Whether clients may ask for more than what is stored, by `no-cache`, `max-age` and the like. Default: no, a shared cache need not
    /// let them. Where they may, those who ask at the same time are answered by one request to the origin.
    pub obey_clients: bool,
    /// Where clients are obeyed: for how long after the origin confirmed a response it is not asked again because a client insists.
    /// Default: a second.
    pub validate_every: Duration,
    /// The part of a time to live that chance may take off. A tenth.
    pub jitter: f64,
    /// Whether a response is refreshed before its end, so that nobody waits ([`herdproof::early`]).
    pub early: bool,
}

/// What a request's `Cookie` means, the strictest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cookies {
    /// The answer is for that user, unless it says `public` or `s-maxage`.
    Private,
    /// As RFC 9111 says, a response that states that it is fresh for some time is shared whatever cookies the request has; one whose
    /// freshness is estimated, comes from [`Route::ttl`] or is zero is not.
    #[default]
    Share,
    /// Nothing: answers do not depend on it.
    Ignore,
}

impl Route {
    /// The stricter of what two say, setting by setting: nobody gets by it what one of them would not give.
    #[must_use]
    pub fn strictest(&self, other: &Route) -> Route {
        let Route { ttl, grace, if_error, cookies, share_set_cookie, obey_clients, validate_every, jitter, early } =
            other;
        Route {
            // Without one, what says nothing itself is not shared.
            ttl: self.ttl.zip(*ttl).map(|(one, other)| one.min(other)),
            grace: self.grace.min(*grace),
            if_error: self.if_error.min(*if_error),
            cookies: self.cookies.min(*cookies),
            share_set_cookie: self.share_set_cookie && *share_set_cookie,
            obey_clients: self.obey_clients || *obey_clients,
            validate_every: self.validate_every.min(*validate_every),
            jitter: self.jitter.max(*jitter),
            early: self.early || *early,
        }
    }
}

impl Default for Route {
    fn default() -> Route {
        Route {
            ttl: None,
            grace: Duration::ZERO,
            if_error: Duration::from_secs(3600),
            cookies: Cookies::Share,
            share_set_cookie: false,
            obey_clients: false,
            validate_every: Duration::from_secs(1),
            jitter: 0.1,
            early: true,
        }
    }
}
