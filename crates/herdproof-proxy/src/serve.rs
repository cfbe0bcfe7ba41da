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

mod miss;
mod pass;
mod quick;
mod record;
// Apart, so that the linter sees that these are tests.
#[cfg(test)]
#[cfg(not(herdproof_shuttle))]
mod tests;
mod upload;
mod visit;

use std::{cmp::Reverse, convert::Infallible, error::Error, fmt, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use herdproof::{
    Env, Group,
    cache::{Cache, Policy},
    env::{MapHasher, Rng},
    flight::{Abandon, Flight},
    shed::Appointments,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, request::Parts};
use upload::Uploads;
use visit::{Choice, Served, Visit};

use crate::{
    access::{AccessLog, Outcome},
    body::Body,
    cache_status::HIT,
    fill::{Failure, Kind, Landed, fill},
    key::{Key, KeyRef, Keyer, Scheme},
    learn::{Private, Routes},
    listener::{Client, Listener, Server},
    log::Afloat,
    metrics::Metrics,
    object::Object,
    origin::{BadOrigin, Origin, OriginStats},
    policy::{
        Class, Route, Use, Way, classify,
        hop::{self, Fronted},
    },
    settings::{self, Settings},
    store::{Found, Store},
    who::Who,
};

/// How many failures are remembered, and what their keys may weigh together: they hold what clients say.
const FAILURES: usize = 10_000;
const FAILURES_WEIGH: u64 = 4 << 20;

/// A proxy; see the [crate](crate). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Proxy(Arc<Core>);

pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    /// The longest prefix first; the last is for all.
    routes: Vec<settings::Route>,
    pub(crate) origin: Origin,
    pub(crate) store: Store,
    flights: Group<Key, Landed, Infallible>,
    pub(crate) failures: Cache<Key, Arc<Failure>>,
    pub(crate) private: Private,
    pub(crate) learned: Routes<MapHasher>,
    pub(crate) afloat: Arc<Afloat>,
    uploads: Uploads,
    pub(crate) max_object: u64,
    pub(crate) rng: Rng,
    metrics: Arc<Metrics>,
    log: Option<AccessLog>,
    keyer: Keyer,
    appointments: Appointments,
    /// What it calls itself to others: another name for each proxy, so that one before another is no loop.
    name: String,
}

/// Which of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(usize);

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
        let failures = Cache::builder(env)
            .weighed(FAILURES_WEIGH, FAILURES, |key: &Key, _| key.weight() as u64 + 256)
            .policy(Policy::strict(Duration::from_secs(1)))
            .build();
        let uploads = Uploads::new(env, &origin, settings.uploads.buffer);
        let rng = env.rng("proxy");
        Ok(Proxy(Arc::new(Core {
            routes: routes(&settings),
            origin,
            store: Store::new(env, settings.memory),
            flights,
            failures,
            private: Private::new(),
            learned: Routes::new(env.hasher("proxy/routes")),
            afloat: Afloat::new(settings.in_flight),
            uploads,
            max_object,
            keyer: Keyer::new(rng.bits()),
            name: format!("herdproof-{:016x}", rng.bits()),
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

    /// Serves whoever comes to this listener.
    pub fn serve_on(&self, env: &Env, listener: Listener) -> Server {
        let ours = Ours(Arc::new(self.clone()));
        listener.serve_with(env, self.lane(), move |request, client| {
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
        let route = core.route_of(parts.uri.path());
        let class = classify(&parts.method, &parts.headers, core.route(route));
        // What the origin is not to see must not choose what it is asked for: whoever names a field in `Connection` would put
        // the answer without it where others look with it. After the class, which is to see everything.
        if hop::names_more(&parts.headers) {
            hop::strip(&mut parts.headers);
        }
        let front = core.front(client, &parts.headers);
        let (key, served) = match core.keyer.of(front.scheme.unwrap_or(Scheme::Http), &parts.uri, &parts.headers) {
            Err(ambiguous) => {
                let why = ambiguous.to_string();
                (0, Served::own(Outcome::Bad, ambiguous.name(), StatusCode::BAD_REQUEST, &why, None))
            }
            Ok(key) => {
                let host = front.host.filter(|host| core.is_another(host, &key));
                let who = Who::of(client.address().ip());
                let visit = Visit { parts: &parts, class, key, route, client, who, arrived, host };
                let served = match class.way() {
                    // What is not in the key must not choose what others get.
                    Way::Share | Way::Alone if host.is_some() => {
                        Box::pin(core.pass_with(&visit, "forwarded-host", body)).await
                    }
                    Way::Share | Way::Alone if core.shares(route) => match core.hit(&visit) {
                        Ok(choice) => {
                            let hash = key.hash();
                            let map = core.spare(&class, &mut parts);
                            let served = choice.deliver(&class, &parts.headers, arrived, map);
                            return core.record(parts, client, arrived, hash, served);
                        }
                        Err(found) => Box::pin(core.miss(&visit, found)).await,
                    },
                    Way::Pass(why) => Box::pin(core.pass_with(&visit, why.name(), body)).await,
                    Way::Share | Way::Alone => Box::pin(core.pass_with(&visit, "route", body)).await,
                };
                (key.hash(), served)
            }
        };
        core.record(parts, client, arrived, key, served)
    }
}

/// A proxy as one connection has it: its requests are counted there, and not in one place with those of all other threads.
struct Ours(Arc<Proxy>);

impl Clone for Ours {
    fn clone(&self) -> Ours {
        Ours(Arc::new(Proxy::clone(&self.0)))
    }
}

/// The routes of the settings, the longest prefix first, and one for all other paths.
fn routes(settings: &Settings) -> Vec<settings::Route> {
    let all = settings::Route { prefix: "/".into(), share: true, rules: settings.rules.clone() };
    let mut routes: Vec<_> = settings.routes.iter().cloned().chain([all]).collect();
    routes.sort_by_key(|route| Reverse(route.prefix.len()));
    routes
}

impl Core {
    /// From memory, if what is there may be served; else what there is.
    #[inline]
    fn hit(self: &Arc<Core>, visit: &Visit<'_>) -> Result<Choice, Found> {
        let mut found = self.store.find(&visit.key, &visit.parts.headers);
        let Some(object) = &found.object else { return Err(found) };
        if !visit.class.may_have(object.life.is_for_all()) {
            return Err(found);
        }
        let usage = object.life.at(visit.arrived, &visit.class.asked);
        match found.object.take_if(|_| usage == Use::Fresh) {
            Some(object) => Ok(Choice { object, outcome: Outcome::Hit, detail: "", cache: HIT }),
            None => self.think(visit, usage, found),
        }
    }

    /// What is said of the client by a proxy in front that we trust.
    #[inline]
    fn front<'a>(&self, client: &Client, headers: &'a HeaderMap) -> Fronted<'a> {
        let trusted = &self.settings.trusted_proxies;
        let is_trusted = !trusted.is_empty() && {
            let address = client.address().ip();
            trusted.iter().any(|network| network.contains(address))
        };
        if is_trusted { hop::fronted(headers) } else { Fronted::default() }
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
        let route = self.route(visit.route);
        let refreshes = usage != Use::Early || object.life.fires(visit.arrived, route, 1.0 - self.rng.unit());
        if refreshes && object.claims_refresh(visit.arrived) {
            self.refresh(visit, &found, &object);
        }
        let outcome = if usage == Use::Early { Outcome::Hit } else { Outcome::Stale };
        let detail = if usage == Use::Early { "" } else { usage.name() };
        Ok(Choice::new(&object, outcome, detail))
    }

    /// Loads it again beside those who are served meanwhile.
    fn refresh(self: &Arc<Core>, visit: &Visit<'_>, found: &Found, object: &Arc<Object>) {
        self.fly(visit, found, Some(object), Kind::Refresh).detach();
    }

    /// What is not to go on to the origin, and is told so.
    fn turned_away(&self, visit: &Visit<'_>) -> Option<Served> {
        let (detail, status, why) = if visit.parts.method == Method::CONNECT {
            ("tunnel", StatusCode::METHOD_NOT_ALLOWED, "no tunnels are made here")
        } else if hop::loops(&visit.parts.headers, &self.name) {
            ("loop", StatusCode::LOOP_DETECTED, "this request has been here before")
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
        self.flights.run_landing(key, |landing| fill(Arc::clone(self), visit.job(self, found, prior, kind), landing))
    }

    /// The route that a path is on.
    fn route_of(&self, path: &str) -> RouteId {
        // The last is for all, also for a target that is no path.
        RouteId(self.routes.iter().position(|route| route.covers(path)).unwrap_or(self.routes.len() - 1))
    }

    pub(crate) fn route(&self, RouteId(number): RouteId) -> &Route {
        &self.routes[number].rules
    }

    fn shares(&self, RouteId(number): RouteId) -> bool {
        self.routes[number].share
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("origin", &self.0.settings.origin.url).finish_non_exhaustive()
    }
}
