//! Where clients come in.
//!
//! A herd meets the listener first. One that accepts whoever comes runs out of descriptors and then answers nobody; one that
//! waits for whoever is slow is held by a few hundred clients who send a byte a minute; one that is stopped with its
//! sockets open fails those who had just asked. So there are at most so many connections and the others wait in the kernel's
//! line; who does not get on is ended; and a [stop](Server::stop) answers first who is there.
//!
//! | against | what is done |
//! |---|---|
//! | more clients than descriptors | no more than [`max_connections`](ClientSettings::max_connections) are accepted |
//! | one address with most of the connections | [`per_address`](ClientSettings::per_address), if set; trusted proxies are exempt |
//! | a balancer before whom all clients have one address | its [PROXY header](proxy_header), if it is trusted |
//! | heads, bodies that drip; answers that are not read | one look at each connection every few seconds |
//! | connections that do nothing | ended after a while, and sooner if there is hardly room |
//! | heads that are too large | answered with 431 |
//! | an answer that breaks off and ends where the connection does | the connection is reset, so that half of it is not taken for the whole |
//! | a stop in the midst of it all | those in the kernel's line and those who ask in the meantime are answered too |
//!
//! A request that says twice how long its body is, by a length and by a coding, is not refused: hyper takes the length away before
//! anybody sees the head. It believes the coding, as RFC 9112 6.3 lets it, and answers no further request on that connection. What
//! goes on to the origin is framed anew and in one way only, so that nobody behind can read another request out of the body.
//!
//! A request costs no timer: connections count bytes, and one task looks at all of them in turn. One whose answer is known by heart
//! does not even reach hyper, see `lane.rs`.
//!
//! ```
//! use bytes::Bytes;
//! use herdproof::Env;
//! use herdproof_proxy::{Listener, settings::ClientSettings};
//! use http::Response;
//! use http_body_util::Full;
//! use std::time::Duration;
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! # runtime.block_on(async {
//! let env = Env::system();
//! let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &ClientSettings::default())?;
//! let server = listener.serve(&env, |_request, client| async move {
//!     Response::new(Full::new(Bytes::from(format!("hello, {}\n", client.address()))))
//! });
//! println!("listening on {}", server.address());
//! server.stop(Duration::from_secs(30)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acceptor;
mod connections;
mod descriptors;
mod lane;
mod ledger;
pub mod proxy_header;
mod pulse;
mod service;
mod socket;
mod strict;
#[cfg(test)]
mod tests;
mod tunnel;

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, env::Task, timeout::by};
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use acceptor::Acceptor;
use connections::{Connections, Place, SHARDS, Stage};
pub use descriptors::raise_descriptors;
pub(crate) use lane::{Answered, Asked, Lane};
use ledger::Book;
pub(crate) use ledger::{Ledger, Unanswered};
use pulse::Patience;
use service::Service;
pub use service::{Client, Upload};
use socket::Socket;
pub(crate) use tunnel::Tunnel;

use crate::{
    metrics::Page,
    policy::client::is_in,
    settings::{ClientSettings, Listen, Network, OVER_UNIX},
    stream::Stream,
};

/// What a connection may hold in its buffers: a head, and what was read of a body or is to be written of one.
const BUFFER: usize = 128 << 10;
/// After a failure to accept, because descriptors ran out, say.
const PAUSE: Duration = Duration::from_millis(20);
/// How often those in line are tried for again when it is time to go, while there are no descriptors for them.
const LAST_FAILURES: u32 = 50;
/// How long connections that are idle when a stop begins may still ask once more. A client that is just about to ask gets
/// an answer, and with it the news that it was the last.
const LINGER: Duration = Duration::from_millis(500);

/// A bound socket that nobody is served on yet.
#[derive(Debug)]
pub struct Listener {
    socket: Acceptor,
    place: Listen,
    settings: ClientSettings,
    trusted: Vec<Network>,
}

/// A listener that serves. Dropping it ends it and every connection at once; [`stop`](Server::stop) is the gentle way.
#[derive(Debug)]
pub struct Server {
    env: Env,
    place: Listen,
    connections: Arc<Connections>,
    stop: Option<oneshot::Sender<()>>,
    accepting: Task<()>,
    looking: Task<()>,
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Connections that were still open when the time was over.
    pub cut: usize,
}

/// Who has a say in requests besides who serves them.
#[derive(Default)]
pub(crate) struct Besides {
    /// Answers some of them at once.
    pub(crate) lane: Option<Arc<dyn Lane>>,
    /// Writes down what never became one.
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
}

/// Why nobody can be served at an address.
#[derive(Debug)]
pub struct CannotListen {
    /// Which.
    pub place: Listen,
    /// What the operating system says.
    pub error: io::Error,
}

impl Listener {
    /// Takes the address. From here on clients wait in the kernel's line.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O enabled.
    pub fn bind(address: SocketAddr, settings: &ClientSettings) -> Result<Listener, CannotListen> {
        Listener::bind_to(&address.into(), settings)
    }

    /// The same with a Unix socket, if that is the place. A file of one that nobody serves is replaced. It is removed when the server
    /// stops or is dropped.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O enabled.
    pub fn bind_to(place: &Listen, settings: &ClientSettings) -> Result<Listener, CannotListen> {
        let (socket, place) = Acceptor::bind(place, settings.socket_mode)
            .map_err(|error| CannotListen { place: place.clone(), error })?;
        Ok(Listener { socket, place, settings: settings.clone(), trusted: Vec::new() })
    }

    /// Where it listens; for a Unix socket the address that stands for its clients.
    pub fn address(&self) -> SocketAddr {
        address(&self.place)
    }

    /// Trusts whoever connects from these networks: they are not counted by
    /// [`per_address`](ClientSettings::per_address), and with [`proxy_protocol`](ClientSettings::proxy_protocol) they name whom
    /// they connect for.
    #[must_use]
    pub fn trusting(mut self, networks: &[Network]) -> Listener {
        self.trusted = networks.to_vec();
        self
    }

    /// Begins to serve: each request with what `serve` makes of it.
    ///
    /// The future is dropped if the client leaves before it has its answer.
    pub fn serve<S, F, B>(self, env: &Env, serve: S) -> Server
    where
        S: Fn(Request<Incoming>, Client) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve_with(env, Besides::default(), serve)
    }

    /// The same, where some requests can be answered at once, and somebody writes down what never became one.
    pub(crate) fn serve_with<S, F, B>(self, env: &Env, Besides { lane, ledger }: Besides, serve: S) -> Server
    where
        S: Fn(Request<Incoming>, Client) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let ClientSettings {
            max_connections,
            per_address,
            head_timeout,
            idle,
            stall,
            least_rate,
            max_head,
            half_close,
            proxy_protocol,
            socket_mode: _,
        } = self.settings;
        let patience = Patience { head: head_timeout, idle, stall, rate: least_rate };
        let connections = Arc::new(Connections::new(max_connections, per_address, patience, Book(ledger)));
        let mut http = http1::Builder::new();
        http.half_close(half_close)
            .max_buf_size(BUFFER.max(max_head))
            .max_header_size(max_head)
            .header_read_timeout(None);
        let door = Door {
            env: env.clone(),
            connections: Arc::clone(&connections),
            trusted: self.trusted,
            proxy_protocol,
            http,
            lane,
            serve,
        };
        let (stop, stopped) = oneshot::channel();
        let accepting = env.spawn(door.accept(self.socket, stopped));
        let looking = env.spawn(look(env.clone(), Arc::clone(&connections), patience.look()));
        Server { env: env.clone(), place: self.place, connections, stop: Some(stop), accepting, looking }
    }
}

impl Server {
    /// Where it listens; for a Unix socket the address that stands for its clients.
    pub fn address(&self) -> SocketAddr {
        address(&self.place)
    }

    /// Where it listens.
    pub fn place(&self) -> &Listen {
        &self.place
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.open()
    }

    /// What its connections did, for a page of metrics.
    pub fn report(&self) -> impl Fn(&mut Page) + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move |page| {
            let counts = &connections.counts;
            let get = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
            page.gauge("herdproof_connections", "Open connections of clients.", connections.open() as f64);
            let help = "Connections of clients that were accepted.";
            page.counter("herdproof_connections_total", help, get(&counts.accepted));
            let help = "Failures to accept a connection of a client, for want of descriptors most often.";
            page.counter("herdproof_accept_errors_total", help, get(&counts.accept_errors));
            page.counters(
                "herdproof_connections_ended_total",
                "Connections of clients that were ended by the proxy, by why.",
                "reason",
                &[
                    ("idle", get(&counts.idle)),
                    ("unreadable", get(&counts.unreadable)),
                    ("proxy_header", get(&counts.proxy_header)),
                    ("slow_head", get(&counts.slow_head)),
                    ("slow_body", get(&counts.slow_body)),
                    ("slow_reader", get(&counts.slow_reader)),
                    ("slow_reader_memory", get(&counts.memory)),
                    ("slow_reader_seat", get(&counts.seat)),
                    ("per_address", get(&counts.turned_away)),
                    ("stopped", get(&counts.stopped)),
                ],
            );
        }
    }

    /// Stops: nobody new is accepted, but for those already in line; whoever asks is answered and told that it was the last
    /// time; and who is still there after this time is cut off.
    ///
    /// Dropping the future cuts everybody off at once.
    pub async fn stop(mut self, within: Duration) -> Stopped {
        let deadline = self.env.now() + within;
        self.connections.drain.store(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        self.connections.tell(Stage::LastAnswers);
        drop(self.stop.take());
        (&mut self.accepting).await.ok();
        let linger = self.env.now() + LINGER;
        by(&self.env, Some(linger.min(deadline)), self.connections.empty()).await;
        self.connections.tell(Stage::Leaving);
        by(&self.env, Some(deadline), self.connections.empty()).await;
        let cut = self.connections.end_all();
        self.connections.empty().await;
        Stopped { cut }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.looking.abort();
        self.connections.end_all();
    }
}

/// What it takes to let somebody in.
struct Door<S> {
    env: Env,
    connections: Arc<Connections>,
    trusted: Vec<Network>,
    /// Whether those who are trusted begin with a header that says whom they connect for.
    proxy_protocol: bool,
    http: http1::Builder,
    lane: Option<Arc<dyn Lane>>,
    serve: S,
}

impl<S, F, B> Door<S>
where
    S: Fn(Request<Incoming>, Client) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    async fn accept(self, listener: Acceptor, mut stop: oneshot::Receiver<()>) {
        loop {
            let next = async {
                let room = self.connections.room().await;
                (listener.accept().await, room)
            };
            match unless(&mut stop, next).await {
                Some((Ok((stream, address)), room)) => self.admit(stream, address, room),
                Some((Err(error), _)) => self.failed(&error).await,
                None => break,
            }
        }
        // Closing the socket would reset those who wait in line, and they may have asked already.
        let Ok(listener) = listener.last() else { return };
        let mut failures = 0;
        while failures < LAST_FAILURES {
            match listener.accept() {
                Ok((stream, address)) => {
                    if let Ok(stream) = stream {
                        self.admit(stream, address, None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    failures += 1;
                    self.failed(&error).await;
                }
            }
        }
    }

    /// A client that was gone before it was accepted is its own affair; without descriptors, the next try fails as well.
    async fn failed(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if !matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            self.connections.counts.accept_errors.fetch_add(1, Relaxed);
            self.env.sleep(PAUSE).await;
        }
    }

    fn admit(&self, stream: Stream, address: SocketAddr, room: Option<OwnedSemaphorePermit>) {
        let trusted = is_in(&self.trusted, address.ip());
        let Some(place) = self.connections.enter(&self.env, address, trusted, room) else { return };
        // Answers are written in as few pieces as can be: waiting to fill a packet would only delay them.
        stream.set_nodelay().ok();
        let (lane, serve) = (self.lane.clone(), self.serve.clone());
        if trusted && self.proxy_protocol {
            let (env, http) = (self.env.clone(), self.http.clone());
            self.env.spawn(async move {
                if let Some((stream, place)) = introduced(stream, place).await {
                    Driven::new(&env, &http, stream, place, lane, serve).await;
                }
            })
        } else {
            self.env.spawn(Driven::new(&self.env, &self.http, stream, place, lane, serve))
        }
        .detach();
    }
}

/// A trusted peer's connection, of which it is known whom it is for; nothing if it is over before that.
async fn introduced(stream: Stream, mut place: Place) -> Option<(Stream, Place)> {
    let connection = Arc::clone(&place.connection);
    let source = {
        let mut header = pin!(proxy_header::take(&stream, &connection.pulse));
        poll_fn(|cx| {
            connection.woken_by(cx);
            let leaves = connection.all.stage() == Stage::Leaving && connection.pulse.is_settled();
            if connection.is_over() || leaves {
                return Poll::Ready(None);
            }
            // Whoever leaves before is its own affair: balancers see in this way whether anybody is there.
            header.as_mut().poll(cx).map(Result::ok)
        })
        .await?
    };
    let Some(source) = source else {
        connection.all.counts.proxy_header.fetch_add(1, Relaxed);
        return None;
    };
    place.introduce(source).then_some((stream, place))
}

/// One connection's task.
struct Driven<C> {
    env: Env,
    http: Option<C>,
    /// There from when it has been upgraded.
    tunnel: Option<Box<tunnel::Open>>,
    place: Place,
    waker: Option<Waker>,
    leaving: bool,
}

impl<S, F, B> Driven<http1::Connection<TokioIo<Socket>, Service<S>>>
where
    S: Fn(Request<Incoming>, Client) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn new(
        env: &Env,
        http: &http1::Builder,
        stream: Stream,
        place: Place,
        lane: Option<Arc<dyn Lane>>,
        serve: S,
    ) -> Self {
        let connection = &place.connection;
        let socket = Socket::new(env, stream, Arc::clone(connection), lane);
        let service = Service::new(Arc::clone(connection), serve);
        let http = Some(http.serve_connection(TokioIo::new(socket), service));
        Driven { env: env.clone(), http, tunnel: None, place, waker: None, leaving: false }
    }

    /// HTTP is over on this connection, and in order.
    fn upgrade(&mut self) {
        let (tunnel, http) = (self.place.connection.tunnel.lock().take(), self.http.take());
        self.tunnel = tunnel.zip(http).and_then(|(tunnel, http)| {
            let parts = http.into_parts();
            tunnel::Open::new(&self.env, parts.io.into_inner(), parts.read_buf, tunnel).map(Box::new)
        });
    }
}

impl<S, F, B> Future for Driven<http1::Connection<TokioIo<Socket>, Service<S>>>
where
    S: Fn(Request<Incoming>, Client) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let connection = &this.place.connection;
        if !this.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            connection.woken_by(cx);
            this.waker = Some(cx.waker().clone());
        }
        if connection.is_over() {
            return Poll::Ready(());
        }
        if let Some(tunnel) = &mut this.tunnel {
            return Pin::new(tunnel).poll(cx);
        }
        let Some(http) = &mut this.http else { return Poll::Ready(()) };
        match Pin::new(&mut *http).poll(cx) {
            Poll::Ready(Ok(())) => {
                this.upgrade();
                return this.tunnel.as_mut().map_or(Poll::Ready(()), |tunnel| Pin::new(tunnel).poll(cx));
            }
            Poll::Ready(Err(error)) => {
                // A client that leaves early is its own affair; one that was told 400 is not.
                if let Some(what) = Unanswered::of(&error) {
                    connection.all.counts.unreadable.fetch_add(1, Relaxed);
                    connection.all.book.unanswered(connection.address(), what, Duration::ZERO);
                }
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
        let leaves = !this.leaving && connection.all.is_stopping() && connection.all.stage() == Stage::Leaving;
        // Who is in the midst of asking is answered; the answer says that it was the last.
        if leaves && connection.pulse.is_settled() {
            this.leaving = true;
            Pin::new(&mut *http).graceful_shutdown();
            return Pin::new(http).poll(cx).map(|_| ());
        }
        Poll::Pending
    }
}

/// Looks at all connections, a shard at a time.
async fn look(env: Env, connections: Arc<Connections>, every: Duration) {
    let step = every / u32::try_from(SHARDS).unwrap_or(1);
    loop {
        for shard in 0..SHARDS {
            let now = env.sleep(step).await;
            connections.look(shard, now);
        }
    }
}

/// What the future gives, unless it is stopped first.
async fn unless<F: Future>(stop: &mut oneshot::Receiver<()>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut stop = Pin::new(stop);
    poll_fn(|cx| match stop.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// The address of a place; one that nobody has, if it has none.
fn address(place: &Listen) -> SocketAddr {
    match place {
        Listen::Address(address) => *address,
        Listen::Unix(_) => SocketAddr::new(OVER_UNIX, 0),
    }
}

impl CannotListen {
    /// What is the matter, and what could be done about it.
    pub fn why(&self) -> String {
        let CannotListen { place, error } = self;
        match (place, error.kind()) {
            (Listen::Address(address), io::ErrorKind::AddrInUse) => {
                format!("another program has port {0}; `ss -ltnp 'sport = :{0}'` shows which", address.port())
            }
            (Listen::Address(address), io::ErrorKind::PermissionDenied) if address.port() < 1024 => {
                "ports below 1024 need a right that this process does not have; choose another".into()
            }
            (Listen::Address(_), io::ErrorKind::AddrNotAvailable) => "this machine does not have that address".into(),
            (Listen::Unix(path), io::ErrorKind::AddrInUse) => {
                format!("another program serves that socket; `ss -lxp src {}` shows which", path.display())
            }
            (Listen::Unix(_), io::ErrorKind::NotFound) => "the folder of that socket does not exist".into(),
            (Listen::Unix(_), io::ErrorKind::PermissionDenied) => {
                "this process may not write into the folder of that socket".into()
            }
            _ => error.to_string(),
        }
    }
}

impl fmt::Display for CannotListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.place, self.why())
    }
}

impl Error for CannotListen {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}
