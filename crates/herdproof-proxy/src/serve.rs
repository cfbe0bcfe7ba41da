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

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use herdproof::{
    Env, Group, Rng, Tick,
    cache::{Cache, Policy},
    env::MapHasher,
    flight::{Abandon, FlightError, Landed as Flown},
    gate::{Ask, Priority},
    shed::Appointments,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, request::Parts};

use crate::{
    body::Body,
    deliver::{self, CACHE_STATUS, deliver, own},
    fill::{Answer, Failure, Fault, Job, Kind, Landed, fill, passed, private_key},
    key::{AsKey, Key, KeyRef, Keyer, Scheme},
    learn::{Private, Routes, Template},
    listener::Client,
    log::Afloat,
    metrics::Metrics,
    object::Object,
    outcome::{HIT, Outcome, cache_status},
    origin::{BadOrigin, Origin, OriginError, Outgoing},
    policy::{Class, Draws, Route, Times, Use, Verdict, Way, classify, hop, judge, revalidate},
    settings::Settings,
    store::{Found, Place, Store},
};



/// How many failures are remembered.
const FAILURES: usize = 10_000;

/// What we call ourselves to others.
const NAME: &str = "herdproof";

/// A proxy; see the [crate](crate). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Proxy(Arc<Core>);

pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    /// Those of the settings, longest prefix first, and the one for all.
    routes: Vec<(String, bool, Route)>,
    pub(crate) origin: Origin,
    pub(crate) store: Store,
    flights: Group<Key, Landed, Infallible>,
    pub(crate) failures: Cache<Key, Arc<Failure>>,
    pub(crate) private: Private,
    pub(crate) learned: Routes<MapHasher>,
    pub(crate) afloat: Arc<Afloat>,
    pub(crate) max_object: u64,
    pub(crate) rng: Rng,
    pub(crate) metrics: Metrics,
    keyer: Keyer,
    appointments: Appointments,
}

/// Which of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(usize);

impl Proxy {
    /// A proxy. It asks for no request yet, and keeps nothing.
    pub fn new(env: &Env, settings: Settings) -> Result<Proxy, BadOrigin> {
        let origin = Origin::new(env, &settings.origin)?;
        // What weighs more than that is not kept by the store anyway.
        let max_object = settings.max_object.min(settings.memory / 16);
        let abandon = Abandon::Finish { within: settings.origin.head_timeout };
        let flights = Group::builder(env).abandon(abandon).max_followers(settings.max_followers).build();
        let failures = Cache::builder(env).capacity(FAILURES).policy(Policy::strict(Duration::from_secs(1))).build();
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
            max_object,
            keyer: Keyer::new(rng.bits()),
            rng,
            metrics: Metrics::new(),
            appointments: Appointments::new(env),
            settings,
            env: env.clone(),
        })))
    }

    /// The answer to a request. There always is one; what goes wrong is said in it.
    pub async fn serve<B>(&self, request: Request<B>, client: &Client) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let core = &self.0;
        let arrived = core.env.now();
        let (parts, body) = request.into_parts();
        let route = core.route_of(parts.uri.path());
        let class = classify(&parts.method, &parts.headers, core.route(route));
        let served = match core.keyer.of(Scheme::Http, &parts.uri, &parts.headers) {
            Err(ambiguous) => {
                let cache = cache_status(Outcome::Bad, ambiguous.name(), None, false);
                let response = own(StatusCode::BAD_REQUEST, &ambiguous.to_string(), None, cache);
                Served { response, outcome: Outcome::Bad, detail: ambiguous.name() }
            }
            Ok(key) => {
                let visit = Visit { parts: &parts, class, key, route, client, arrived };
                match class.way() {
                    Way::Share | Way::Alone if core.shares(route) => match core.hit(&visit) {
                        Ok(served) => served,
                        Err(found) => Box::pin(core.miss(&visit, found)).await,
                    },
                    Way::Pass(why) => Box::pin(core.pass_with(&visit, why.name(), body)).await,
                    Way::Share | Way::Alone => Box::pin(core.pass(&visit, "route")).await,
                }
            }
        };
        core.record(&parts, client, arrived, served)
    }
}

/// The routes of the settings as the policy knows them, and one for all other paths.
fn routes(settings: &Settings) -> Vec<(String, bool, Route)> {
    let mut routes: Vec<_> = settings.routes.iter().map(|route| (route.prefix.clone(), route.share, route.policy(settings))).collect();
    routes.sort_by_key(|(prefix, ..)| std::cmp::Reverse(prefix.len()));
    routes
}

impl Core {
    /// From memory, if what is there may be served; else what there is.
    #[inline]
    fn hit(self: &Arc<Core>, visit: &Visit<'_>) -> Result<Served, Found> {
        let found = self.store.find(&visit.key, &visit.parts.headers);
        let Some(object) = &found.object else { return Err(found) };
        if !visit.class.may_have(object.life.is_for_all()) {
            return Err(found);
        }
        let usage = object.life.at(visit.arrived, &visit.class.asked);
        if usage == Use::Fresh {
            return Ok(visit.deliver(object, Outcome::Hit, "", HIT));
        }
        self.think(visit, usage, found)
    }

    /// What is to be done with what is not simply fresh.
    #[inline(never)]
    fn think(self: &Arc<Core>, visit: &Visit<'_>, usage: Use, found: Found) -> Result<Served, Found> {
        let Some(object) = found.object.clone().filter(|_| usage.serves()) else { return Err(found) };
        let route = self.route(visit.route);
        let refreshes = usage != Use::Early || object.life.fires(visit.arrived, route, 1.0 - self.rng.unit());
        if refreshes && object.claims_refresh(visit.arrived) {
            self.refresh(visit, &found, &object);
        }
        let outcome = if usage == Use::Early { Outcome::Hit } else { Outcome::Stale };
        let detail = if usage == Use::Early { "" } else { usage.name() };
        Ok(visit.deliver(&object, outcome, detail, cache_status(outcome, detail, None, false)))
    }

    /// Loads it again beside those who are served meanwhile.
    fn refresh(self: &Arc<Core>, visit: &Visit<'_>, found: &Found, object: &Arc<Object>) {
        let job = visit.job(self, found, Some(object), Kind::Refresh);
        self.fly(job).detach();
    }

    fn fly(self: &Arc<Core>, job: Job) -> herdproof::flight::Flight<Landed, Infallible> {
        let core = Arc::clone(self);
        let key = match job.kind {
            Kind::Miss | Kind::Refresh => job.place.key().clone(),
            Kind::Alone { .. } => job.key.as_key().alone(self.rng.bits()),
        };
        self.flights.run_landing(key, |landing| fill(core, job, landing))
    }

    pub(crate) fn route(&self, RouteId(number): RouteId) -> &Route {
        static ALL: std::sync::LazyLock<Route> = std::sync::LazyLock::new(Route::default);
        self.routes.get(number).map_or(&ALL, |(_, _, route)| route)
    }

    fn shares(&self, RouteId(number): RouteId) -> bool {
        self.routes.get(number).is_none_or(|(_, shares, _)| *shares)
    }
}
