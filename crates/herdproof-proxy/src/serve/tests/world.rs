//! An origin that follows a script, a proxy before it, and clients.

use std::{
    future::{Future, poll_fn},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, env::Task, timeout::by};
use http::{HeaderMap, Method, Request, StatusCode, request};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
};

use crate::{Listener, Proxy, Server, Settings, access::AccessLog, settings::ClientSettings};

const LONG: Duration = Duration::from_secs(60);

/// Runs a test against a proxy with the usual settings; a hang is a failure, not a wait.
pub(super) fn run(script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static, test: impl AsyncFnOnce(&World)) {
    run_with(|_| {}, script, test);
}

/// The same with settings of the test's own.
pub(super) fn run_with(
    set: impl FnOnce(&mut Settings),
    script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static,
    test: impl AsyncFnOnce(&World),
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let test = async {
            let world = World::new(&env, set, Arc::new(script)).await;
            test(&world).await;
        };
        by(&env, Some(env.now() + LONG), test).await.expect("it ends");
    });
}

/// Settings with which clients are obeyed, each time they ask.
pub(super) fn obeying(settings: &mut Settings) {
    settings.rules.obey_clients = true;
    settings.rules.validate_every = Duration::ZERO;
}

/// What the origin does for one request, one step after another. The connection is used again if the answer allows it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Send(Bytes),
    Hold(Gate),
    /// The same for an origin that does not notice when the other side leaves.
    Work(Gate),
    /// Sends back whatever comes, until it has sent this many bytes or the other side closes.
    Echo(usize),
    /// Breaks the connection off, so that the other side sees an error.
    Reset,
    /// Closes it in order.
    Close,
}

/// A request as the origin sees it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// From 1 on.
    pub(super) number: usize,
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Closed until a test opens it.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(super) fn new() -> Gate {
        Gate(Arc::new(Semaphore::new(0)))
    }

    /// For all, from now on.
    pub(super) fn open(&self) {
        self.0.close();
    }

    /// For one.
    pub(super) fn let_one(&self) {
        self.0.add_permits(1);
    }

    async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

type Script = dyn Fn(&Asked) -> Vec<Step> + Send + Sync;

pub(super) struct Origin {
    script: Arc<Script>,
    requests: watch::Sender<usize>,
    log: Mutex<Vec<Asked>>,
    inside: AtomicUsize,
    peak: AtomicUsize,
    connections: AtomicUsize,
}

pub(super) struct World {
    pub(super) env: Env,
    pub(super) proxy: Proxy,
    pub(super) origin: Arc<Origin>,
    pub(super) server: Server,
    accepting: Task<()>,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether the body came to a proper end.
    pub(super) whole: bool,
}

/// An answer that is still read.
pub(super) struct Reading {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    connection: Task<()>,
}

impl World {
    async fn new(env: &Env, set: impl FnOnce(&mut Settings), script: Arc<Script>) -> World {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut settings = Settings::default();
        settings.origin.url = format!("http://{}", listener.local_addr().unwrap());
        // What is slow on a busy machine is not to be asked for twice.
        settings.origin.hedge_after = None;
        settings.rules.early = false;
        set(&mut settings);
        let origin = Arc::new(Origin {
            script,
            requests: watch::Sender::new(0),
            log: Mutex::default(),
            inside: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        let accepting = env.spawn(Arc::clone(&origin).accept(env.clone(), listener));
        let log = AccessLog::open(env, &settings.log).unwrap();
        let proxy = Proxy::new(env, settings.clone(), log).unwrap();
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &settings.clients).unwrap();
        let server = proxy.serve_on(env, listener);
        World { env: env.clone(), proxy, origin, server, accepting }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The answer to a request, over a connection of its own.
    pub(super) async fn ask(&self, request: Request<Full<Bytes>>) -> Reply {
        self.begin(request).await.rest().await
    }

    /// The same from another address of this machine.
    pub(super) async fn ask_from(&self, address: [u8; 4], request: Request<Full<Bytes>>) -> Reply {
        converse(self.env.clone(), self.connect_from(address).await, request).await.rest().await
    }

    /// The head of the answer.
    pub(super) async fn begin(&self, request: Request<Full<Bytes>>) -> Reading {
        begin(self.env.clone(), self.address(), request).await
    }

    /// The same as a task.
    pub(super) fn begin_later(&self, request: Request<Full<Bytes>>) -> impl Future<Output = Reading> + Send + use<> {
        begin(self.env.clone(), self.address(), request)
    }

    /// The answers to as many requests at once, each over a connection of its own.
    pub(super) fn herd(&self, size: usize, request: impl Fn(usize) -> Request<Full<Bytes>>) -> Herd {
        let ask = |number| {
            let (env, address, request) = (self.env.clone(), self.address(), request(number));
            self.env.spawn(async move { begin(env, address, request).await.rest().await })
        };
        Herd((0..size).map(ask).collect())
    }

    /// The same as [`ask_from`](World::ask_from), as a task.
    pub(super) fn spawn_from(&self, from: [u8; 4], request: Request<Full<Bytes>>) -> Task<Reply> {
        let (env, address) = (self.env.clone(), self.address());
        self.env.spawn(async move {
            let stream = connect_from(from, address).await;
            converse(env, stream, request).await.rest().await
        })
    }

    /// Another door to the proxy: whoever comes through it asks at once, and hears of nothing before the gate is open.
    pub(super) fn late(&self, gate: &Gate) -> Server {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &ClientSettings::default()).unwrap();
        let (proxy, gate) = (self.proxy.clone(), gate.clone());
        listener.serve(&self.env, move |request, client| {
            let (proxy, gate) = (proxy.clone(), gate.clone());
            async move {
                let mut answer = Box::pin(async move { proxy.serve(request, &client).await });
                let begun = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
                assert!(begun.is_pending(), "it has its answer at once");
                gate.pass().await;
                answer.await
            }
        })
    }

    /// Another door to the proxy: nothing of an answer is read before the gate is open.
    pub(super) fn unread(&self, gate: &Gate) -> Server {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &ClientSettings::default()).unwrap();
        let (proxy, gate) = (self.proxy.clone(), gate.clone());
        listener.serve(&self.env, move |request, client| {
            let (proxy, gate) = (proxy.clone(), gate.clone());
            async move {
                let answer = proxy.serve(request, &client).await;
                gate.pass().await;
                answer
            }
        })
    }

    /// The answer to a request that comes through that door, as a task.
    pub(super) fn ask_at(&self, door: &Server, request: Request<Full<Bytes>>) -> Task<Reply> {
        let (env, address) = (self.env.clone(), door.address());
        self.env.spawn(async move { begin(env, address, request).await.rest().await })
    }

    /// A connection for bytes of the test's own making.
    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.unwrap()
    }

    /// One from another address of this machine.
    pub(super) async fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        connect_from(address, self.address()).await
    }

    /// What comes back until the proxy closes.
    pub(super) async fn raw(&self, bytes: &[u8]) -> String {
        self.raw_from([127, 0, 0, 1], bytes).await
    }

    /// The same from another address of this machine.
    pub(super) async fn raw_from(&self, address: [u8; 4], bytes: &[u8]) -> String {
        let mut stream = self.connect_from(address).await;
        stream.write_all(bytes).await.unwrap();
        let mut told = Vec::new();
        stream.read_to_end(&mut told).await.ok();
        String::from_utf8_lossy(&told).into_owned()
    }

    /// Waits until so many have begun a flight or joined one, in all.
    pub(super) async fn aboard(&self, callers: usize) {
        self.until(|| {
            let stats = self.proxy.0.flights.stats();
            usize::try_from(stats.flights + stats.joins).unwrap() >= callers
        })
        .await;
    }

    /// Waits until nothing is fetched any more.
    pub(super) async fn settled(&self) {
        self.until(|| self.proxy.0.flights.stats().in_air == 0 && self.proxy.0.origin.stats().in_flight == 0).await;
    }

    pub(super) async fn until(&self, holds: impl Fn() -> bool) {
        while !holds() {
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(super) struct Herd(Vec<Task<Reply>>);

impl Herd {
    pub(super) async fn replies(self) -> Vec<Reply> {
        let mut replies = Vec::new();
        for task in self.0 {
            replies.push(task.await.unwrap());
        }
        replies
    }
}

async fn begin(env: Env, address: SocketAddr, request: Request<Full<Bytes>>) -> Reading {
    let stream = TcpStream::connect(address).await.unwrap();
    converse(env, stream, request).await
}

async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn converse(env: Env, stream: TcpStream, request: Request<Full<Bytes>>) -> Reading {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = env.spawn(async move {
        connection.await.ok();
    });
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    Reading { status: parts.status, headers: parts.headers, body, connection }
}

impl Reading {
    /// The next bytes; none at the end, an error if there is no proper one.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Some(Ok(data)),
                    _ => {}
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    pub(super) async fn rest(mut self) -> Reply {
        let (mut body, mut whole) = (Vec::new(), true);
        while let Some(data) = self.next().await {
            match data {
                Ok(data) => body.extend_from_slice(&data),
                Err(_) => whole = false,
            }
        }
        Reply { status: self.status, headers: self.headers.clone(), body: body.into(), whole }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Reply {
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// What the proxy says it did.
    pub(super) fn cache(&self) -> &str {
        self.header("cache-status")
    }

    #[track_caller]
    pub(super) fn is(&self, status: u16, body: &str) {
        assert_eq!((self.status.as_u16(), self.text(), self.whole), (status, body, true), "{:?}", self.headers);
    }
}

/// A request for a path, with `Host: a`.
pub(super) fn get(path: &str) -> Request<Full<Bytes>> {
    with(path, &[])
}

pub(super) fn with(path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    request(Method::GET, path, headers, "")
}

pub(super) fn request(method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = request::Builder::new().method(method).uri(path).header("host", "a");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

/// An answer with its length, in one piece.
pub(super) fn answer(status: u16, headers: &str, body: &str) -> Step {
    let head = head(status, &format!("content-length: {}\r\n{}", body.len(), lines(headers)));
    Step::Send(format!("{head}{body}").into())
}

/// A 200 that may be kept for a while.
pub(super) fn fresh(body: &str) -> Step {
    answer(200, "cache-control: max-age=600", body)
}

/// The head of an answer; every header with its line end.
pub(super) fn head(status: u16, headers: &str) -> String {
    format!("HTTP/1.1 {status} X\r\n{headers}\r\n")
}

fn lines(headers: &str) -> String {
    headers.lines().flat_map(|line| [line.trim(), "\r\n"]).collect()
}

pub(super) fn bytes(text: impl Into<String>) -> Step {
    Step::Send(text.into().into())
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn read(number: usize, head: &str) -> Asked {
        let mut lines = head.lines();
        let mut first = lines.next().unwrap().split(' ');
        let (method, target) = (first.next().unwrap(), first.next().unwrap());
        let mut headers = HeaderMap::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').unwrap();
            headers.append(name.parse::<http::HeaderName>().unwrap(), value.trim().parse().unwrap());
        }
        Asked { number, method: method.parse().unwrap(), target: target.into(), headers, body: Vec::new() }
    }
}

impl Origin {
    /// How many requests came, in all.
    pub(super) fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// How many were under way at a time, at most.
    pub(super) fn peak(&self) -> usize {
        self.peak.load(SeqCst)
    }

    /// How many connections were made.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Waits until so many requests have come.
    pub(super) async fn asked(&self, requests: usize) {
        self.requests.subscribe().wait_for(|seen| *seen >= requests).await.unwrap();
    }

    /// The requests that came.
    pub(super) fn log(&self) -> Vec<Asked> {
        self.log.lock().clone()
    }

    async fn accept(self: Arc<Origin>, env: Env, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            self.connections.fetch_add(1, SeqCst);
            stream.set_nodelay(true).unwrap();
            let origin = Arc::clone(&self);
            env.spawn(async move { origin.converse(stream).await }).detach();
        }
    }

    /// Answers until either side has had enough.
    async fn converse(&self, mut stream: TcpStream) -> Option<()> {
        let mut seen = Vec::new();
        loop {
            let end = read_until(&mut stream, &mut seen, |seen| find(seen, b"\r\n\r\n")).await?;
            let mut asked = Asked::read(0, std::str::from_utf8(&seen[..end]).unwrap());
            seen.drain(..end + 4);
            if asked.header("user-agent") == "herdproof-probe" {
                // It is there, whatever the script says, and this is none of the requests that a test counts.
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
                continue;
            }
            // Under way from here on, also if its body is still to come.
            let inside = self.inside.fetch_add(1, SeqCst) + 1;
            self.peak.fetch_max(inside, SeqCst);
            let guard = Inside(&self.inside);
            let length = asked.header("content-length").parse().unwrap_or(0);
            if !asked.header("x-early").is_empty() {
                // It answers without reading the body; its steps must not end before the test does.
            } else if asked.header("transfer-encoding").is_empty() {
                read_until(&mut stream, &mut seen, |seen| (seen.len() >= length).then_some(length)).await?;
                asked.body = seen.drain(..length).collect();
            } else {
                let end = read_until(&mut stream, &mut seen, |seen| {
                    let last = find(seen, b"\r\n0\r\n")
                        .map(|last| last + 3)
                        .or_else(|| seen.starts_with(b"0\r\n").then_some(1))?;
                    Some(last + find(&seen[last..], b"\r\n\r\n")? + 4)
                });
                let end = end.await?;
                asked.body = seen.drain(..end).collect();
            }
            let steps = {
                let mut log = self.log.lock();
                asked.number = log.len() + 1;
                log.push(asked.clone());
                drop(log);
                (self.script)(&asked)
            };
            self.requests.send_modify(|requests| *requests += 1);
            self.follow(&mut stream, steps, guard).await?;
        }
    }

    async fn follow(&self, stream: &mut TcpStream, steps: Vec<Step>, guard: Inside<'_>) -> Option<()> {
        let mut guard = Some(guard);
        let last = steps.len() - 1;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Hold(gate) => unless_closed(stream, gate.pass()).await?,
                Step::Work(gate) => gate.pass().await,
                Step::Echo(most) => {
                    drop(guard.take());
                    echo(stream, most).await?;
                }
                step => {
                    // Before the last byte is on its way: who has it may ask again at once.
                    drop(guard.take_if(|_| number == last));
                    match step {
                        Step::Send(bytes) => stream.write_all(&bytes).await.ok()?,
                        Step::Reset => {
                            stream.set_zero_linger().ok();
                            return None;
                        }
                        _ => return None,
                    }
                }
            }
        }
        Some(())
    }
}

async fn echo(stream: &mut TcpStream, most: usize) -> Option<()> {
    let (mut bytes, mut sent) = (vec![0; 64 << 10], 0);
    while sent < most {
        let read = stream.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
        stream.write_all(&bytes[..read]).await.ok()?;
        sent += read;
    }
    Some(())
}

/// One request under way.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Goes on when the future does; gives up if the other side leaves.
async fn unless_closed(stream: &TcpStream, future: impl Future<Output = ()>) -> Option<()> {
    let mut future = std::pin::pin!(future);
    let mut left = std::pin::pin!(async {
        if stream.peek(&mut [0]).await.is_ok_and(|bytes| bytes > 0) {
            std::future::pending::<()>().await;
        }
    });
    poll_fn(|cx| {
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(()));
        }
        left.as_mut().poll(cx).map(|()| None)
    })
    .await
}

async fn read_until(
    stream: &mut TcpStream,
    seen: &mut Vec<u8>,
    done: impl Fn(&[u8]) -> Option<usize>,
) -> Option<usize> {
    loop {
        if let Some(end) = done(seen) {
            return Some(end);
        }
        match stream.read_buf(seen).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

fn find(seen: &[u8], what: &[u8]) -> Option<usize> {
    seen.windows(what.len()).position(|window| window == what)
}

/// Reads one answer from a connection that stays open: what came, up to the end of a body with a length.
pub(super) async fn read_answer(stream: &mut TcpStream) -> io::Result<String> {
    let mut seen = Vec::new();
    loop {
        let told = String::from_utf8_lossy(&seen).into_owned();
        if let Some((head, body)) = told.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().unwrap() {
                return Ok(told);
            }
        }
        if stream.read_buf(&mut seen).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
