//! One request, and what it is answered with.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use herdproof::{Tick, gate::Ask};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version, header, request::Parts};

use super::Core;
use http_body::Body as _;

use crate::{
    access::{Outcome, RequestId},
    body::Body,
    cache_status::{CACHE_STATUS, cache_status},
    compress,
    deliver::{self, deliver},
    detail::Detail,
    failing::By,
    fill::{Answer, Job, Kind},
    key::KeyRef,
    learn::{self, Template},
    listener::Client,
    object::Object,
    origin::{OriginBody, Outgoing},
    policy::{
        Class, RequestDirectives, classify, client, condition,
        hop::{self, Forwarder, X_REQUEST_ID},
        trailer, vary,
    },
    settings::{Route, told},
    store::{Found, Place},
    who::Who,
};

/// So many private responses in a row are often.
const OFTEN: u8 = 3;

/// A request that may be answered by what others asked for.
pub(super) struct Visit<'a> {
    pub(super) parts: &'a Parts,
    pub(super) class: Class,
    pub(super) key: KeyRef<'a>,
    pub(super) route: &'a Arc<Route>,
    pub(super) client: &'a Client,
    /// Whom it counts for.
    pub(super) who: Who,
    /// Whether the peer is trusted to say who the client and the user are.
    pub(super) trusted: bool,
    pub(super) arrived: Tick,
    /// Whom the client asked for, as a proxy in front says that we trust, if that is somebody else than in the key.
    pub(super) host: Option<&'a str>,
    pub(super) trailers: Trailers,
    /// There for as long as it is, so that a load that it began can tell whether it has left.
    pub(super) present: OnceLock<Arc<()>>,
    /// By which it is found in other logs, once somebody needs that.
    pub(super) id: &'a OnceLock<RequestId>,
}

/// Fields after bodies, of a request that goes to the origin alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Trailers {
    /// Whether its client takes them after an answer.
    pub(super) wanted: bool,
    /// Which of them come after its own body and go on.
    pub(super) announced: Option<HeaderValue>,
}

impl Trailers {
    /// Has the origin know that they are taken.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        if self.wanted {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        }
    }

    /// Takes away what is about the connection to the origin, and leaves which trailers come if they are wanted. With a length there
    /// is no place for them.
    pub(super) fn strip(&self, response: &mut Response<OriginBody>) {
        let is_chunked = response.body().size_hint().exact().is_none();
        let names = (self.wanted && is_chunked).then(|| trailer::announced(response.headers(), |_| false)).flatten();
        hop::strip(response.headers_mut());
        if let Some(names) = names {
            response.headers_mut().insert(header::TRAILER, names);
        }
    }
}

/// What a request is to be answered with, of what is kept or arriving.
pub(super) struct Choice {
    pub(super) object: Arc<Object>,
    pub(super) outcome: Outcome,
    pub(super) detail: Detail,
    /// What is said of it in `Cache-Status`.
    pub(super) cache: HeaderValue,
    /// How long the origin took for it, if this request was one of those it was fetched for.
    pub(super) origin: Option<Duration>,
}

impl Choice {
    /// Without the origin.
    pub(super) fn new(object: &Arc<Object>, outcome: Outcome, detail: Detail) -> Choice {
        let cache = cache_status(outcome, detail, None, false);
        Choice { object: Arc::clone(object), outcome, detail, cache, origin: None }
    }

    /// As this request wants it; the map is used for the headers.
    #[inline]
    pub(super) fn deliver(self, class: &Class, request: &HeaderMap, now: Tick, map: HeaderMap) -> Served {
        let Choice { object, outcome, detail, cache, origin } = self;
        Served { response: deliver(&object, class, request, now, cache, map), outcome, detail, origin }
    }
}

/// An answer, and what it is.
pub(super) struct Served {
    pub(super) response: Response<Body>,
    pub(super) outcome: Outcome,
    /// More of it than the outcome says.
    pub(super) detail: Detail,
    /// How long the origin took to begin the answer, or to fail; none if it was not asked for it.
    pub(super) origin: Option<Duration>,
}

impl Visit<'_> {
    /// From what is kept or arriving, at this time: after a wait what came meanwhile is no younger than the origin said.
    pub(super) fn deliver(&self, choice: Choice, now: Tick) -> Served {
        choice.deliver(&self.class, &self.parts.headers, now, HeaderMap::new())
    }

    /// From what is kept, though it is past its time.
    pub(super) fn stale(&self, object: &Arc<Object>, why: Detail, now: Tick) -> Served {
        self.deliver(Choice::new(object, Outcome::Stale, why), now)
    }

    /// The origin's own answer to this request.
    pub(super) fn passed(&self, response: Response<OriginBody>, why: Detail) -> Served {
        let cache = cache_status(Outcome::Pass, why, Some(response.status()), false);
        let origin = Some(response.body().took());
        let trails = response.headers().contains_key(header::TRAILER);
        let mut response = response.map(|body| Body::passed(body, trails));
        // As we speak, not as the origin does: in HTTP/1.0 half a body looks whole.
        *response.version_mut() = Version::HTTP_11;
        // After what caches behind us have said (RFC 9211 2).
        response.headers_mut().append(CACHE_STATUS, cache);
        if self.class.is_head() {
            response = deliver::head_only(response);
        }
        Served { response, outcome: Outcome::Pass, detail: why, origin }
    }

    /// The same, wherever its body is.
    pub(super) fn answered(&self, answer: Answer, why: Detail, took: Option<Duration>, now: Tick) -> Served {
        match answer {
            Answer::Origin(response) => self.passed(*response, why),
            Answer::Object(object) => {
                let cache = cache_status(Outcome::Pass, why, Some(object.head().status()), true);
                self.deliver(Choice { object, outcome: Outcome::Pass, detail: why, cache, origin: took }, now)
            }
        }
    }

    /// What the origin is to be asked, for all who want the same.
    pub(super) fn job(&self, core: &Core, found: &Found, prior: Option<&Arc<Object>>, kind: Kind) -> Job {
        let mut headers = self.headers(core);
        // As the origin is to see it: that is what its answer varies on.
        let mut seen = self.parts.headers.clone();
        let mut class = self.class;
        if prior.is_some() {
            // It is asked about for all, so what one of them says of keeping the answer does not count.
            class.asked = RequestDirectives::default();
        }
        // With one user's cookies it would come back as that user's. Where it varies on them, it is.
        if kind == Kind::Refresh && found.variant.is_none() && prior.is_some_and(|prior| !prior.life.is_public()) {
            condition::disown(&mut headers, &core.identity);
            condition::disown(&mut seen, &core.identity);
            class = classify(&Method::GET, &headers, &self.route.rules);
        }
        // Who takes no encoding must not get what the first of them took.
        vary::ask_plainly(&mut headers);
        match prior {
            Some(prior) => {
                condition::ask(&mut headers, &prior.head().headers());
                if !self.route.compress.is_empty() {
                    compress::ask_whether(&mut headers);
                }
            }
            None => condition::clear(&mut headers),
        }
        let key = self.key.to_key();
        let place = match &found.variant {
            Some(place) => Place::Variant { key: key.clone(), place: place.clone() },
            None => Place::Plain(key.clone()),
        };
        let template = self.template(core);
        Job {
            class,
            route: Arc::clone(self.route),
            outgoing: Outgoing { method: Method::GET, target: self.target(), headers, route: template.hash() },
            headers: seen,
            key,
            place,
            prior: prior.cloned(),
            template,
            who: self.who,
            by: By::Client(self.who.key()),
            leader: Arc::downgrade(self.present.get_or_init(Arc::default)),
            again: false,
            kind,
        }
    }

    /// The head of the request as it goes on to the origin.
    pub(super) fn headers(&self, core: &Core) -> HeaderMap {
        let mut headers = self.parts.headers.clone();
        hop::strip(&mut headers);
        // As the key has it, however this one request writes it: an origin that repeats its host says it to everybody.
        let authority = &*self.key.authority().to_ascii_lowercase();
        let (peer, networks) = (self.client.address().ip(), core.trusted_by(self.client));
        let mut through: Vec<_> = client::path(peer, &self.parts.headers, networks).map(told).collect();
        // The last is the client.
        through.pop();
        let by = Forwarder {
            client: Some(self.who.address()),
            through: &through,
            trusted: self.trusted,
            identity: &core.identity,
            scheme: self.key.scheme(),
            authority: self.host.unwrap_or(authority),
            name: &core.name,
        };
        hop::forward(&mut headers, &by);
        if let Ok(authority) = HeaderValue::from_str(core.settings.origin.host.as_deref().unwrap_or(authority)) {
            headers.insert(header::HOST, authority);
        }
        if let Some(id) = core.id(self).value() {
            headers.insert(X_REQUEST_ID, id);
        }
        headers
    }

    /// Path and query, byte for byte.
    pub(super) fn target(&self) -> Uri {
        self.parts.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from)
    }

    /// Whether its own condition or range is to reach the origin: where what it asks for has been private often enough for so many
    /// in parallel, nobody else is going to have what comes back.
    pub(super) fn wants_its_own(&self, width: u32) -> bool {
        let says_more = self.class.is_conditional() || self.class.has_range() || self.class.is_head();
        says_more && width >= learn::width(OFTEN)
    }

    /// How it asks to be let through to the origin.
    pub(super) fn ask(&self, core: &Core) -> Ask {
        Ask::new(&core.env).user(self.who.key())
    }

    pub(super) fn template(&self, core: &Core) -> Template {
        core.learned.template(self.key.authority(), self.parts.uri.path(), self.class.has_credentials())
    }
}

impl Served {
    /// A response of our own.
    pub(super) fn own(
        outcome: Outcome,
        detail: Detail,
        status: StatusCode,
        why: &str,
        after: Option<Duration>,
    ) -> Served {
        let cache = cache_status(outcome, detail, None, false);
        Served { response: deliver::own(status, why, after, cache), outcome, detail, origin: None }
    }
}
