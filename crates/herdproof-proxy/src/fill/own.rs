//! Requests of our own: what is asked for everybody is asked with nothing that one client chose.
//!
//! One header can turn any page into an error, or make the origin hang. So wherever an answer decides for more than the client that
//! asked first, the origin is asked for the same URL without that client's headers: after a failure with others aboard, beside a first
//! attempt that hangs, and for every refresh. What the response varies on stays, since it decides which response that is.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::{Job, Kind};
use crate::{
    compress,
    failing::By,
    learn,
    policy::{
        classify, condition,
        hop::{self, Forwarder},
        vary::Spec,
    },
    serve::Core,
};

/// The head of a request of our own: as its answer varies on it, and as it is sent.
#[derive(Clone, Debug)]
pub(super) struct Disowned {
    seen: HeaderMap,
    pub(super) headers: HeaderMap,
}

impl Job {
    /// Makes it a request of our own, where that can be one.
    pub(super) fn disown(&mut self, core: &Core) {
        if let Some(disowned) = self.disowned(core) {
            self.becomes(disowned);
        }
    }

    /// It was asked for with this head.
    pub(super) fn becomes(&mut self, Disowned { seen, headers }: Disowned) {
        self.class = classify(&Method::GET, &seen, &self.route.rules);
        (self.headers, self.outgoing.headers, self.by) = (seen, headers, By::Proxy);
    }

    /// The head of a second attempt: if it is this client's request that hangs, those aboard need not.
    pub(super) fn second(&self, core: &Core) -> Option<Disowned> {
        let is_a_clients = self.kind == Kind::Miss && self.by != By::Proxy;
        if !is_a_clients || core.failing.own_is_bad(self.place.key().hash(), core.env.now()) {
            return None;
        }
        self.disowned(core)
    }

    /// The head of a request of our own: the same URL, what the response varies on, and nothing else that a client chose. None if
    /// it varies on what only a client can say.
    fn disowned(&self, core: &Core) -> Option<Disowned> {
        let mut seen = HeaderMap::new();
        let spec = core.store.varies_on(&self.key);
        let names = || spec.iter().flat_map(Spec::names);
        for name in names() {
            for value in self.headers.get_all(name) {
                seen.append(name, value.clone());
            }
        }
        let mut headers = seen.clone();
        // One of a few, whatever the client says; see `vary::ask_plainly`.
        if let Some(encodings) = self.outgoing.headers.get(header::ACCEPT_ENCODING) {
            headers.insert(header::ACCEPT_ENCODING, encodings.clone());
        }
        let by = Forwarder {
            client: None,
            through: &[],
            trusted: false,
            identity: &core.identity,
            scheme: self.key.scheme(),
            authority: self.key.authority(),
            name: core.name(),
        };
        hop::forward(&mut headers, &by);
        // What chooses the variant here has to choose it there.
        let is_kept = |name: &HeaderName| {
            *name == header::ACCEPT_ENCODING || seen.get_all(name).iter().eq(headers.get_all(name).iter())
        };
        if !names().all(is_kept) {
            return None;
        }
        let varies_on = |name: &HeaderName| names().any(|other| other == name);
        for (name, value) in [(header::ACCEPT, "*/*"), (header::USER_AGENT, "herdproof")] {
            if !varies_on(&name) {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        match &self.prior {
            Some(prior) => {
                condition::ask(&mut headers, &prior.head().headers());
                if !self.route.compress.is_empty() {
                    compress::ask_whether(&mut headers);
                }
            }
            None => condition::clear(&mut headers),
        }
        if let Some(host) = self.outgoing.headers.get(header::HOST) {
            headers.insert(header::HOST, host.clone());
        }
        Some(Disowned { seen, headers })
    }

    /// Whether others would most likely get the same as this request, which was answered with this status.
    pub(super) fn speaks_for_others(&self, status: StatusCode) -> bool {
        self.by == By::Proxy || learn::speaks_for_others(&self.class, &self.headers, status)
    }
}
