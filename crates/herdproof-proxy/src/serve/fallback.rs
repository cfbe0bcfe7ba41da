//! What a route answers with when nothing else is left: default values while the origin is gone.
//!
//! Only at the very end of a request, when it is clear that there is nothing to be had for it: the origin failed, or was not asked,
//! and nothing is kept that may be served. So nothing else that is decided about requests, failures or the origin knows of it, it is
//! never stored, and nobody behind is to store it. Instead of a refusal it says when to come back, as that would have. What the origin
//! says about one request (4xx), and what came of a request that changes something, stays as it is.

use http::{Method, StatusCode, header};

use super::{Served, Visit};
use crate::{
    access::Outcome,
    cache_status::{PROXY_STATUS, cache_status},
    deliver,
    detail::Detail,
};

/// Whether an answer says that the origin cannot, or is not asked.
fn is_failure(method: &Method, outcome: Outcome, detail: Detail, status: StatusCode) -> bool {
    let is_told = match outcome {
        Outcome::Shed => true,
        // Who asks for nothing but what is kept wants to know that nothing is.
        Outcome::Failed => detail != Detail::OnlyIfCached,
        // An error that is kept for the client that got it is as good as the error.
        Outcome::Pass => matches!(status.as_u16(), 500 | 502..=504),
        Outcome::Hit if detail == Detail::OwnError => matches!(status.as_u16(), 500 | 502..=504),
        Outcome::Hit
        | Outcome::Stale
        | Outcome::Miss
        | Outcome::Joined
        | Outcome::Revalidated
        | Outcome::Bad
        | Outcome::Left => false,
    };
    is_told && status.is_server_error() && matches!(*method, Method::GET | Method::HEAD)
}

impl Visit<'_> {
    /// The route's own answer, if it has one for such an ending.
    pub(super) fn or_fallback(&self, served: Served) -> Served {
        let Some(fallback) = &self.route.fallback else { return served };
        let Served { response, outcome, detail, origin } = served;
        if !is_failure(&self.parts.method, outcome, detail, response.status()) {
            return Served { response, outcome, detail, origin };
        }
        let outcome = if outcome == Outcome::Shed { outcome } else { Outcome::Failed };
        let mut instead = deliver::fallback(fallback, cache_status(outcome, Detail::Fallback, None, false));
        for name in [
            header::CONNECTION.as_str(),
            header::RETRY_AFTER.as_str(),
            "retry-after-ms",
            "ratelimit",
            PROXY_STATUS.as_str(),
        ] {
            if let Some(value) = response.headers().get(name)
                && let Ok(name) = name.parse::<header::HeaderName>()
            {
                instead.headers_mut().insert(name, value.clone());
            }
        }
        if self.class.is_head() {
            instead = deliver::head_only(instead);
        }
        Served { response: instead, outcome, detail: Detail::Fallback, origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_origin_cannot_or_is_not_asked_is_a_failure() {
        let get =
            |outcome, detail, status| is_failure(&Method::GET, outcome, detail, StatusCode::from_u16(status).unwrap());
        assert!(get(Outcome::Shed, Detail::Uploads, 503) && get(Outcome::Failed, Detail::OriginFailed, 502));
        assert!(get(Outcome::Hit, Detail::OwnError, 500) && !get(Outcome::Hit, Detail::OwnError, 404));
        assert!(get(Outcome::Pass, Detail::Private, 500) && get(Outcome::Pass, Detail::Private, 504));
        for (outcome, detail, status) in [
            (Outcome::Pass, Detail::Private, 404),
            (Outcome::Pass, Detail::Private, 429),
            (Outcome::Pass, Detail::Private, 501),
            (Outcome::Failed, Detail::OnlyIfCached, 504),
            (Outcome::Bad, Detail::Loop, 508),
            (Outcome::Bad, Detail::SlowBody, 408),
            (Outcome::Miss, Detail::None, 500),
            (Outcome::Stale, Detail::OriginFailed, 200),
        ] {
            assert!(!get(outcome, detail, status), "{outcome:?} {detail:?} {status}");
        }
        assert!(!is_failure(&Method::POST, Outcome::Shed, Detail::None, StatusCode::SERVICE_UNAVAILABLE));
    }
}
