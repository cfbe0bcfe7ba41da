//! The life of a request.
//!
//! ```text
//! classify, key, look up ─┬─ fresh, or stale and allowed ──────────── deliver (and refresh beside it)
//!                         ├─ missing, or to be asked about ─ flight ─┬ shared: read it as it arrives
//!                         │                                          ├ for one only: the first has it, the others pass
//!                         │                                          └ failed: stale if allowed, else said so
//!                         └─ not to be shared ─────────────── pass: by itself, through the same admission
//! ```
//!
//! A hit is decided by comparing integers, and nothing is allocated but what the response's head takes. Everything else is
//! kept out of the hit's way in boxes of its own.

mod fallback;
mod miss;
mod pass;
mod quick;
mod record;
// Apart, so that the linter sees that these are tests.
#[cfg(test)]
#[cfg(not(herdproof_shuttle))]
mod tests;
mod upgrade;
mod upload;
mod visit;

use std::{
    convert::Infallible,
    error::Error,
    fmt, mem,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use herdproof::{
    Env, Group, Tick,
    env::{MapHasher, Rng},
    flight::{Abandon, Flight},
    shed::Appointments,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use record::Absent;
use upgrade::Upgrades;
use upload::Uploads;
use visit::{Choice, Served, Trailers, Visit};

use crate::{
    access::{AccessLog, Outcome, RequestId},
    body::Body,
    cache_status::HIT,
    compress::{self, Press},
    detail::Detail,
    failing::Failing,
    fill::{Kind, Landed, fill},
    key::{Key, KeyRef, Keyer, Scheme},
    learn::{Private, Routes, Template},
    listener::{Besides, Client, Ledger, Listener, Server},
    memory::BodyMemory,
    metrics::{Fill, Metrics, Unshared},
    object::Object,
    origin::{BadOrigin, Origin, OriginStats},
    policy::{
        Class, Identity, Use, Way, classify, client,
        hop::{self, Fronted},
        trailer,
    },
    routes::RouteTable,
    settings::{Network, Settings, told},
    store::{Found, Store},
    who::Who,
    widen::Widening,
};

/// Of so many hits, about one says what it knows of its route.
const UNTEACHES: u64 = 61;

/// A proxy; see the [crate](crate). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Proxy(Arc<Core>);

pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    routes: RouteTable,
    pub(crate) origin: Origin,
    pub(crate) store: Store,
    flights: Group<Key, Landed, Infallible>,
    pub(crate) failing: Failing,
    pub(crate) private: Private,
    pub(crate) learned: Routes<MapHasher>,
    widening: Widening,
    pub(crate) memory: Arc<BodyMemory>,
    uploads: Uploads,
    upgrades: Upgrades,
    pub(crate) press: Press,
    pub(crate) max_object: u64,
    pub(crate) rng: Rng,
    metrics: Arc<Metrics>,
    log: Option<AccessLog>,
    keyer: Keyer,
    /// The fields in which a trusted peer says who the user is.
    pub(crate) identity: Identity,
    appointments: Appointments,
    /// What it calls itself to others: another name for each proxy, so that one before another is no loop.
    name: String,
    /// The first half of the ids of its requests.
    ids: u64,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
struct Caller {
    /// The client's; port 0 if that is not known.
    address: SocketAddr,
    /// Whom it counts for.
    who: Who,
    /// Whether the peer is one whose word counts: about the client, and about the user.
    trusted: bool,
}

impl Proxy {
    /// A proxy that writes its requests to this log, if there is one. What it and the library's policies do is counted in its
    /// [`metrics`](Proxy::metrics).
    pub fn new(env: &Env, settings: Settings, log: Option<AccessLog>) -> Result<Proxy, BadOrigin> {
        let metrics = Arc::new(Metrics::default());
        let env = &env.observed_by(Arc::clone(&metrics));
        let origin = Origin::new(env, &settings.origin)?;
        // What weighs more than that is not kept by the store anyway.
        let max_object = settings.max_object.min(settings.memory / 16);
        let abandon = Abandon::Finish { within: settings.origin.head_timeout };
        let flights = Group::builder(env).abandon(abandon).max_followers(settings.max_followers).build();
        let uploads = Uploads::new(env, &origin, settings.uploads.buffer);
        let rng = env.rng("proxy");
        Ok(Proxy(Arc::new(Core {
            routes: RouteTable::new(&settings),
            origin,
            store: Store::new(env, settings.memory),
            flights,
            failing: Failing::new(),
            private: Private::new(),
            learned: Routes::new(env.hasher("proxy/routes")),
            widening: Widening::new(env, settings.origin.limit),
            memory: BodyMemory::new(env, settings.in_flight),
            uploads,
            upgrades: Upgrades::new(settings.upgrades.most),
            press: Press::new(env),
            max_object,
            keyer: Keyer::new(rng.bits()),
            identity: Identity::with(&settings.identity_headers),
            name: format!("herdproof-{:016x}", rng.bits()),
            ids: rng.bits(),
            rng,
            metrics,
            log,
            appointments: Appointments::new(env),
            settings,
            env: env.clone(),
        })))
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// How the origin fares, and why the last request to it came to nothing, if one did.
    pub(crate) fn origin(&self) -> (OriginStats, Option<Arc<str>>) {
        (self.0.origin.stats(), self.0.origin.last_error())
    }

    /// When it is, and how many requests were not shared so far.
    pub(crate) fn unshared(&self) -> (Tick, Unshared) {
        (self.0.env.now(), self.0.metrics.unshared())
    }

    /// Serves whoever comes to this listener.
    pub fn serve_on(&self, env: &Env, listener: Listener) -> Server {
        let ours = Ours(Arc::new(self.clone()));
        let listener = listener.trusting(&self.0.settings.trusted_proxies);
        let ledger: Arc<dyn Ledger> = self.0.clone();
        let besides = Besides { lane: self.lane(), ledger: Some(ledger) };
        listener.serve_with(env, besides, move |request, client| {
            let Ours(proxy) = &ours;
            let proxy = Arc::clone(proxy);
            async move { proxy.serve(request, &client).await }
        })
    }

    /// The answer to a request. There always is one; what goes wrong is said in it.
    pub async fn serve<B>(&self, request: Request<B>, client: &Client) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let core = &self.0;
        let arrived = core.env.now();
        let (mut parts, body) = request.into_parts();
        let is_coded = !body.is_end_stream() && hop::is_coded(&parts.headers);
        let mut trailers = Trailers::default();
        if !body.is_end_stream() {
            trailers.announced = trailer::announced(&parts.headers, |name| hop::is_for_proxies(name, &core.identity));
        }
        let route = core.routes.of(parts.uri.path());
        if !route.compress.is_empty() {
            compress::ask_for(&mut parts.headers);
        }
        let mut class = classify(&parts.method, &parts.headers, &route.rules);
        let caller = core.caller(client, &parts.headers);
        if caller.trusted && core.identity.is_said(&parts.headers) {
            class = class.identified();
        } else if !caller.trusted {
            core.identity.remove_more(&mut parts.headers);
        }
        // What the origin is not to see must not choose what it is asked for: whoever names a field in `Connection` would put
        // the answer without it where others look with it. After the class, which is to see everything.
        let mut upgrade = None;
        if hop::names_more(&parts.headers) {
            // What comes after a body would be read as that body by one and as the other protocol by another.
            upgrade = upgrade::asked(&parts, &core.settings.upgrades.protocols).filter(|_| body.is_end_stream());
            trailers.wanted = trailer::are_wanted(&parts.headers);
            hop::strip(&mut parts.headers);
        }
        let front = if caller.trusted { hop::fronted(&parts.headers) } else { Fronted::default() };
        let scheme = front.scheme.unwrap_or(Scheme::Http);
        let id = OnceLock::new();
        let (key, served) = match core.keyer.of(scheme, &parts.uri, &parts.headers) {
            Err(ambiguous) => {
                let why = ambiguous.to_string();
                (0, Served::own(Outcome::Bad, ambiguous.into(), StatusCode::BAD_REQUEST, &why, None))
            }
            Ok(key) if is_coded => {
                let why = "no transfer coding but chunked is read here";
                let status = StatusCode::NOT_IMPLEMENTED;
                let mut served = Served::own(Outcome::Bad, Detail::TransferCoding, status, why, None);
                // The sender may mean another end of the body than we read.
                served.response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                (key.hash(), served)
            }
            Ok(key) => {
                let host = front.host.filter(|host| core.is_another(host, &key));
                let Caller { who, trusted, .. } = caller;
                let (present, hash, upgrades) = (OnceLock::new(), key.hash(), upgrade.is_some());
                let (route, id) = (&route, &id);
                let visit = Visit {
                    parts: &parts,
                    class,
                    key,
                    route,
                    client,
                    who,
                    trusted,
                    arrived,
                    host,
                    trailers,
                    present,
                    id,
                };
                let looks_up = !upgrades && class.looks_up() && host.is_none() && route.share;
                let found = match looks_up.then(|| core.hit(&visit)) {
                    Some(Ok(choice)) => {
                        let map = core.spare(&class, &mut parts);
                        let served = choice.deliver(&class, &parts.headers, arrived, map);
                        return core.record(parts, (client, caller, scheme), (arrived, id), hash, served);
                    }
                    Some(Err(found)) => Some(found),
                    None => None,
                };
                let absent = Absent::new(core, &visit, caller, scheme);
                let served = match (upgrade, found, class.way()) {
                    (Some(protocol), ..) => Box::pin(core.upgrade(&visit, protocol)).await,
                    (None, Some(found), _) => Box::pin(core.miss(&visit, found)).await,
                    (None, None, Way::Pass(why)) => Box::pin(core.pass_with(&visit, why.into(), body)).await,
                    // What is not in the key must not choose what others get.
                    (None, None, _) if host.is_some() => {
                        Box::pin(core.pass_with(&visit, Detail::ForwardedHost, body)).await
                    }
                    (None, None, _) => Box::pin(core.pass_with(&visit, Detail::Route, body)).await,
                };
                absent.stayed();
                (hash, if upgrades { served } else { visit.or_fallback(served) })
            }
        };
        core.record(parts, (client, caller, scheme), (arrived, &id), key, served)
    }
}

/// A proxy as one connection has it: its requests are counted there, and not in one place with those of all other threads.
struct Ours(Arc<Proxy>);

impl Clone for Ours {
    fn clone(&self) -> Ours {
        Ours(Arc::new(Proxy::clone(&self.0)))
    }
}

impl Core {
    /// From memory, if what is there may be served; else what there is.
    #[inline]
    fn hit(self: &Arc<Core>, visit: &Visit<'_>) -> Result<Choice, Found> {
        let mut found = self.store.find(&visit.key, &visit.parts.headers);
        let Some(object) = &found.object else { return Err(found) };
        if !visit.class.may_have(&object.life) {
            return Err(found);
        }
        let usage = object.life.at(visit.arrived, &visit.class.asked);
        match found.object.take_if(|_| usage == Use::Fresh) {
            Some(object) => {
                self.shared_again(visit.arrived, || visit.template(self));
                Ok(Choice { object, outcome: Outcome::Hit, detail: Detail::None, cache: HIT, origin: None })
            }
            None => self.think(visit, usage, found),
        }
    }

    /// A hit shows that responses of its route can be shared. One in many does, so that hits cost no more for it.
    #[inline]
    fn shared_again(&self, now: Tick, template: impl FnOnce() -> Template) {
        if self.learned.has_private() && now.as_nanos().is_multiple_of(UNTEACHES) {
            self.learned.learn(template(), true, now);
        }
    }

    /// Who asks: the other end of the connection, or whom that one names if it is trusted.
    #[inline]
    fn caller(&self, client: &Client, headers: &HeaderMap) -> Caller {
        let (address, networks) = (client.address(), self.trusted_by(client));
        if !client::is_in(networks, address.ip()) {
            let who = Who::of(address.ip());
            return Caller { address: (told(address.ip()), address.port()).into(), who, trusted: false };
        }
        let found = client::path(address.ip(), headers, networks).last().unwrap_or(address.ip());
        let is_peer = found == address.ip().to_canonical();
        // Of another than the peer nobody knows the port for certain.
        let address = if is_peer { (told(address.ip()), address.port()).into() } else { (told(found), 0).into() };
        Caller { address, who: Who::of(found), trusted: true }
    }

    /// The networks whose word counts about this client's requests.
    #[inline]
    fn trusted_by(&self, client: &Client) -> &[Network] {
        if client.is_unknown() { &[] } else { &self.settings.trusted_proxies }
    }

    /// By which a request is found in other logs: a proxy in front that is trusted has given it one, or it gets one here.
    fn request_id(&self, headers: &HeaderMap, trusted: bool) -> RequestId {
        let given = if trusted { RequestId::given(headers) } else { None };
        // One draw, as all threads share the stream.
        given.unwrap_or_else(|| RequestId::Made(u128::from(self.ids) << 64 | u128::from(self.rng.bits())))
    }

    /// The same of a visit.
    fn id<'a>(&self, visit: &Visit<'a>) -> &'a RequestId {
        visit.id.get_or_init(|| self.request_id(&visit.parts.headers, visit.trusted))
    }

    /// Whether this is a host, and another than that of the key.
    fn is_another(&self, host: &str, key: &KeyRef<'_>) -> bool {
        let other = self.keyer.key(key.scheme(), host, key.target());
        other.is_ok_and(|other| !other.authority().eq_ignore_ascii_case(key.authority()))
    }

    /// The request's own map, if nobody looks into it any more: filling that one again saves making another.
    #[inline]
    fn spare(&self, class: &Class, parts: &mut Parts) -> HeaderMap {
        let is_done = self.log.is_none() && !class.is_conditional() && !class.has_range();
        if is_done { mem::take(&mut parts.headers) } else { HeaderMap::new() }
    }

    /// What is to be done with what is not simply fresh.
    #[inline(never)]
    fn think(self: &Arc<Core>, visit: &Visit<'_>, usage: Use, found: Found) -> Result<Choice, Found> {
        let Some(object) = found.object.clone().filter(|_| usage.serves()) else { return Err(found) };
        if object.claims_refresh(visit.arrived) {
            self.refresh(visit, &found, &object);
        }
        let outcome = if usage == Use::Early { Outcome::Hit } else { Outcome::Stale };
        let detail = match usage {
            Use::StaleWhile => Detail::StaleWhileRevalidate,
            Use::StaleAsked => Detail::MaxStale,
            _ => Detail::None,
        };
        Ok(Choice::new(&object, outcome, detail))
    }

    /// Loads it again beside those who are served meanwhile.
    fn refresh(self: &Arc<Core>, visit: &Visit<'_>, found: &Found, object: &Arc<Object>) {
        self.fly(visit, found, Some(object), Kind::Refresh).detach();
    }

    /// What is not to go on to the origin, and is told so.
    fn turned_away(&self, visit: &Visit<'_>) -> Option<Served> {
        let (detail, status, why) = if visit.parts.method == Method::CONNECT {
            (Detail::Tunnel, StatusCode::METHOD_NOT_ALLOWED, "no tunnels are made here")
        } else if hop::loops(&visit.parts.headers, &self.name) {
            (Detail::Loop, StatusCode::LOOP_DETECTED, "this request has been here before")
        } else {
            return None;
        };
        Some(Served::own(Outcome::Bad, detail, status, why, None))
    }

    /// Asks the origin with everybody who asks the same, or joins who does.
    fn fly(
        self: &Arc<Core>,
        visit: &Visit<'_>,
        found: &Found,
        prior: Option<&Arc<Object>>,
        kind: Kind,
    ) -> Flight<Landed, Infallible> {
        let key = match (kind, &found.variant) {
            (Kind::Alone, _) => visit.key.alone(self.rng.bits()),
            (Kind::Miss | Kind::Refresh, Some(place)) => place.clone(),
            (Kind::Miss | Kind::Refresh, None) => visit.key.to_key(),
        };
        // What to ask for is written down by the one who asks: of a herd, all others only wait.
        let (load, mut led) = (key.hash(), false);
        let flight = self.flights.run_landing(key, |landing| {
            led = true;
            self.metrics.fill(match kind {
                Kind::Miss => Fill::Miss,
                Kind::Refresh => Fill::Refresh,
                Kind::Alone => Fill::Alone,
            });
            fill(Arc::clone(self), visit.job(self, found, prior, kind), landing)
        });
        if !led && kind == Kind::Miss {
            // It may stand in a long line of the client that asked first.
            self.origin.joined(load, &visit.ask(self));
        }
        flight
    }

    /// What it calls itself to others.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("origin", &self.0.settings.origin.url).finish_non_exhaustive()
    }
}
