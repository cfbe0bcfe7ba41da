//! What operators and their machines ask: metrics, health, readiness. On a listener of its own, and on loopback unless told
//! otherwise, as it has no password and says how the service fares.
//!
//! A browser on the same machine reaches loopback too, on behalf of whatever page it shows. So only requests are answered that name
//! this listener in `Host`, and that no other site's page makes, see `admin/hosts.rs`.
//!
//! | path | answers |
//! |---|---|
//! | `/metrics` | a [page](crate::metrics) for Prometheus |
//! | `/healthz` | 200 as long as the process can answer at all |
//! | `/readyz` | 200 if clients should be sent here; 503 with `Retry-After` just after the start and while stopping |
//!
//! Readiness that is a step lets everybody in who waited for it, and caches are empty at that moment. Here it
//! [opens](herdproof::warm::Opening): each of those who ask, told apart by address, gets its own moment in the first seconds.

mod hosts;

use std::{
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use herdproof::{
    Env,
    gate::Ask,
    schedule::Splay,
    shed,
    warm::{Opening, SlowStart},
};
use http::{
    HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS},
    request::Parts,
};
use http_body_util::Full;

use hosts::{Hosts, Refused};

use crate::{
    listener::{CannotListen, Listener, Server},
    metrics::{Metrics, Page},
    settings::{ClientSettings, Settings},
};

/// Scrapers and probes are few.
const CONNECTIONS: u32 = 256;
const INDEX: &str = "herdproof\n\n/metrics  for Prometheus\n/healthz  whether it runs\n/readyz   whether clients should be \
                     sent here\n";

/// What adds to the page of metrics.
pub type Report = Box<dyn Fn(&mut Page) + Send + Sync>;

/// What the admin listener tells.
pub struct Admin {
    env: Env,
    metrics: Arc<Metrics>,
    reports: Vec<Report>,
    readiness: Readiness,
    names: Vec<String>,
}

/// Whether clients should be sent here. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Ready>);

#[derive(Debug)]
struct Ready {
    /// By which two instances that are asked by the same are told apart.
    instance: String,
    opening: Opening,
    stopping: AtomicBool,
    drain: Duration,
}

/// Why there is no admin listener.
#[derive(Debug)]
pub enum BadAdmin {
    /// Others could reach it, and nobody said that they may.
    Reachable(SocketAddr),
    /// It cannot be bound.
    Listen(CannotListen),
}

impl Readiness {
    /// Of an instance that starts now.
    pub fn new(env: &Env, settings: &Settings) -> Readiness {
        let Settings { ref listen, warm_up, drain, .. } = *settings;
        let opening = Opening::new(env, SlowStart::over(warm_up));
        Readiness(Arc::new(Ready { instance: listen.to_string(), opening, stopping: AtomicBool::new(false), drain }))
    }

    /// From now on nobody should be sent here.
    pub fn stop(&self) {
        self.0.stopping.store(true, Relaxed);
    }

    /// Whether this one, who asks, should send clients here; else when it should ask again.
    pub fn check(&self, ask: &Ask, who: IpAddr) -> Result<(), NotReady> {
        let Ready { instance, opening, stopping, drain } = &*self.0;
        if stopping.load(Relaxed) {
            return Err(NotReady { why: "stopping", after: *drain });
        }
        let splay = Splay::of(&who.to_string(), instance);
        let entered = opening.try_enter_as(splay, ask);
        let after = |refusal: herdproof::gate::Refusal| refusal.after.unwrap_or_default();
        entered.map(drop).map_err(|refusal| NotReady { why: "warming up", after: after(refusal) })
    }
}

/// Why clients should not be sent here now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// In a word.
    pub why: &'static str,
    /// When to ask again.
    pub after: Duration,
}

impl Admin {
    /// Tells these metrics.
    pub fn new(env: &Env, metrics: Arc<Metrics>, readiness: Readiness) -> Admin {
        Admin { env: env.clone(), metrics, reports: Vec::new(), readiness, names: Vec::new() }
    }

    /// Answers to these names too, besides `localhost` and its address.
    #[must_use]
    pub fn named(mut self, names: &[String]) -> Admin {
        self.names.extend_from_slice(names);
        self
    }

    /// Adds what somebody has to report.
    #[must_use]
    pub fn with(mut self, report: impl Fn(&mut Page) + Send + Sync + 'static) -> Admin {
        self.reports.push(Box::new(report));
        self
    }

    /// Takes the address; one that others can reach only if they may.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O enabled.
    pub fn bind(address: SocketAddr, anywhere: bool) -> Result<Listener, BadAdmin> {
        if !anywhere && !address.ip().to_canonical().is_loopback() {
            return Err(BadAdmin::Reachable(address));
        }
        let clients = ClientSettings { max_connections: CONNECTIONS, ..ClientSettings::default() };
        Listener::bind(address, &clients).map_err(BadAdmin::Listen)
    }

    /// Begins to answer.
    pub fn serve(self, listener: Listener) -> Server {
        let hosts = Arc::new(Hosts::new(listener.address().ip(), &self.names));
        let (env, admin) = (self.env.clone(), Arc::new(self));
        listener.serve(&env, move |request, client| {
            let answer = admin.answer_from(&hosts, &request.into_parts().0, client.address().ip());
            async move { answer }
        })
    }

    fn answer_from(&self, hosts: &Hosts, parts: &Parts, who: IpAddr) -> Response<Full<Bytes>> {
        match hosts.check(&parts.method, &parts.uri, &parts.headers) {
            Ok(()) => self.answer(&parts.method, parts.uri.path(), who),
            Err(Refused { status, why }) => text(status, why),
        }
    }

    fn answer(&self, method: &Method, path: &str, who: IpAddr) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/metrics" => {
                let mut response = text(StatusCode::OK, self.page().into_text());
                let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match self.readiness.check(&Ask::new(&self.env), who) {
                Ok(()) => text(StatusCode::OK, "ready\n"),
                Err(NotReady { why, after }) => {
                    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
                    for (name, value) in shed::headers(after) {
                        if let Ok(value) = HeaderValue::try_from(value) {
                            response.headers_mut().insert(HeaderName::from_static(name), value);
                        }
                    }
                    response
                }
            },
            _ => text(StatusCode::NOT_FOUND, format!("nothing is here\n\n{INDEX}")),
        }
    }

    fn page(&self) -> Page {
        let mut page = self.metrics.page();
        self.reports.iter().for_each(|report| report(&mut page));
        page
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Else a page of another site could try to make a script of it.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("readiness", &self.readiness).finish_non_exhaustive()
    }
}

impl fmt::Display for BadAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadAdmin::Reachable(address) => write!(
                f,
                "the admin address {address} can be reached by others, and it has no password; \
                 keep it on 127.0.0.1, or say that this is meant"
            ),
            BadAdmin::Listen(error) => error.fmt(f),
        }
    }
}

impl Error for BadAdmin {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BadAdmin::Reachable(_) => None,
            BadAdmin::Listen(error) => Some(&error.error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdproof::{Sim, Tick};
    use http_body_util::BodyExt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    fn admin(env: &Env, warm_up: Duration) -> Admin {
        let settings = Settings { warm_up, ..Settings::default() };
        Admin::new(env, Arc::default(), Readiness::new(env, &settings))
    }

    fn status(admin: &Admin, method: &Method, path: &str) -> u16 {
        admin.answer(method, path, IpAddr::from([127, 0, 0, 1])).status().as_u16()
    }

    #[test]
    fn only_what_is_there_is_answered_and_only_to_those_who_look() {
        let admin = admin(&Sim::new(1).env(), Duration::ZERO);
        for path in ["/", "/metrics", "/healthz", "/readyz"] {
            assert_eq!(status(&admin, &Method::GET, path), 200, "{path}");
            assert_eq!(status(&admin, &Method::HEAD, path), 200, "{path}");
            for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
                assert_eq!(status(&admin, &method, path), 405, "{path}");
            }
        }
        for path in ["/metrics/", "/Metrics", "/../metrics", ""] {
            assert_eq!(status(&admin, &Method::GET, path), 404, "{path}");
        }
    }

    #[test]
    fn readiness_opens_for_each_at_its_own_moment_and_stays_open() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let readiness = Readiness::new(&env, &Settings { warm_up: Duration::from_secs(10), ..Settings::default() });
        let askers: Vec<IpAddr> = (0..200).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        let mut ready = Vec::new();
        for _ in 0..11 {
            let ask = Ask::new(&env);
            ready.push(askers.iter().filter(|who| readiness.check(&ask, **who).is_ok()).count());
            sim.run(env.sleep(Duration::from_secs(1)));
        }
        assert!(ready.is_sorted() && ready[0] < 50 && (60..140).contains(&ready[5]) && ready[10] == 200, "{ready:?}");
        readiness.stop();
        let told = readiness.check(&Ask::new(&env), askers[0]).unwrap_err();
        assert_eq!((told.why, told.after), ("stopping", Duration::from_secs(30)));
    }

    #[test]
    fn who_is_told_when_to_ask_again_is_let_in_then() {
        let env = Sim::new(1).env();
        let readiness = Readiness::new(&env, &Settings::default());
        for n in 0..100 {
            let mut ask = Ask::new(&env);
            if let Err(NotReady { after, .. }) = readiness.check(&ask, IpAddr::from([10, 0, 0, n])) {
                ask.at = Tick::ZERO + after;
                assert_eq!(readiness.check(&ask, IpAddr::from([10, 0, 0, n])), Ok(()));
            }
        }
    }

    #[test]
    fn an_address_that_others_can_reach_is_refused_unless_that_is_meant() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _entered = runtime.enter();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let refused = Admin::bind(address.parse().unwrap(), false).unwrap_err();
            assert!(refused.to_string().contains("can be reached by others"), "{refused}");
        }
        assert!(Admin::bind("0.0.0.0:0".parse().unwrap(), true).is_ok());
        assert!(Admin::bind("127.0.0.1:0".parse().unwrap(), false).is_ok());
    }

    /// What an admin listener says over a real socket.
    async fn told(server: &Server, head: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(format!("GET /metrics HTTP/1.1\r\nconnection: close\r\n{head}\r\n").as_bytes()).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.unwrap();
        told
    }

    #[test]
    fn a_name_that_was_made_to_point_here_reads_nothing() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let env = Env::system();
            let admin = admin(&env, Duration::ZERO).named(&["proxy.internal".into()]);
            let server = admin.serve(Admin::bind("127.0.0.1:0".parse().unwrap(), false).unwrap());
            let own = server.address();
            for (head, status) in [
                (format!("host: {own}\r\n"), "200 OK"),
                ("host: localhost:9090\r\n".into(), "200 OK"),
                ("host: Proxy.Internal\r\n".into(), "200 OK"),
                ("host: evil.example\r\n".into(), "421 Misdirected Request"),
                (format!("host: evil.example:{}\r\n", own.port()), "421 Misdirected Request"),
                (String::new(), "400 Bad Request"),
                ("host: localhost\r\nhost: evil.example\r\n".into(), "400 Bad Request"),
                ("host: localhost\r\nsec-fetch-site: cross-site\r\n".into(), "403 Forbidden"),
            ] {
                let told = told(&server, &head).await;
                assert!(told.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head:?}: {told}");
                assert_eq!(told.contains("herdproof_"), status == "200 OK", "{head:?}: {told}");
            }
        });
    }

    #[test]
    fn the_page_has_what_was_added_to_it_over_a_real_socket() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let env = Env::system();
            let admin = admin(&env, Duration::ZERO).with(|page| page.gauge("herdproof_store_bytes", "Stored.", 17.0));
            let server = admin.serve(Admin::bind("127.0.0.1:0".parse().unwrap(), false).unwrap());
            let told = told(&server, "host: localhost\r\n").await;
            assert!(told.starts_with("HTTP/1.1 200") && told.contains("content-type: text/plain; version=0.0.4"));
            assert!(told.contains("\nherdproof_store_bytes 17\n"), "{told}");
        });
    }

    #[test]
    fn a_refusal_says_when_to_come_back_in_headers() {
        let env = Sim::new(1).env();
        let admin = admin(&env, Duration::from_secs(10));
        admin.readiness.stop();
        let response = admin.answer(&Method::GET, "/readyz", IpAddr::from([127, 0, 0, 1]));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "30");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(response.into_body().collect()).unwrap().to_bytes();
        assert_eq!(body, "stopping\n");
    }
}
