//! The service behind the proxy: answers by the word a path ends with, and records every request.
//!
//! It speaks HTTP by hand, because it has to do what libraries prevent: reset, truncate, split responses, refuse. It runs
//! on a thread of its own, so that thousands of clients never delay an answer. A request that the proxy gives up is worked
//! on to its end, as by most services: what counts is the load on the service, not how many sockets are open.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

const LONGEST_HEAD: usize = 256 * 1024;
/// A body of "4 MB".
pub(crate) const LARGE: usize = 4_000_000;
/// How long a `page` takes.
const PAGE: Duration = Duration::from_millis(60);
/// How long a `hold` takes.
const HOLD: Duration = Duration::from_millis(500);
/// How long a request to the shedding service takes.
pub(crate) const SHED: Duration = Duration::from_millis(50);

/// One request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) path: String,
    /// The whole head, as it came.
    pub(crate) head: String,
}

impl Seen {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Whether it carries the header that the service chokes on.
    pub(crate) fn is_evil(&self) -> bool {
        self.field("x-evil").is_some()
    }

    /// Whether the proxy asks whether the origin is there.
    pub(crate) fn is_probe(&self) -> bool {
        self.field("user-agent").is_some_and(|agent| agent == "herdproof-probe")
    }
}

#[derive(Debug, Default)]
struct Log {
    seen: Vec<Seen>,
    in_flight: usize,
    peak: usize,
}

#[derive(Debug)]
struct State {
    log: Mutex<Log>,
    /// What the shedding service bears at a time, and has now.
    capacity: AtomicUsize,
    shedding: AtomicUsize,
}

/// A service on a port of its own, until it is dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    is_open: watch::Sender<bool>,
}

impl Origin {
    pub(crate) fn start() -> Origin {
        let log = Mutex::default();
        let state = Arc::new(State { log, capacity: AtomicUsize::new(usize::MAX), shedding: AtomicUsize::new(0) });
        let (is_open, open) = watch::channel(true);
        let (tell, told) = mpsc::channel();
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(serve(&tell, &serving, open));
        });
        let address = told.recv().expect("the origin listens");
        Origin { address, state, is_open }
    }

    /// Closes the port and every connection: from now on it refuses.
    pub(crate) fn refuse(&self) {
        self.is_open.send_replace(false);
    }

    /// Listens on the same port again.
    pub(crate) fn accept(&self) {
        self.is_open.send_replace(true);
    }

    /// How many requests for `shed` it bears at a time; more are answered with a fast 503.
    pub(crate) fn bears(&self, capacity: usize) {
        self.state.capacity.store(capacity, Relaxed);
    }

    /// Every request so far, of the given kind.
    pub(crate) fn seen(&self, wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        self.state.lock().seen.iter().filter(|seen| wanted(seen)).cloned().collect()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.state.lock().seen.iter().filter(|seen| wanted(seen)).count()
    }

    /// How many requests came for this path.
    pub(crate) fn asked_for(&self, path: &str) -> usize {
        self.count(|seen| seen.path == path)
    }

    /// The most requests that were worked on at one time.
    pub(crate) fn peak(&self) -> usize {
        self.state.lock().peak
    }
}

/// The most of them within any second.
pub(crate) fn most_in_a_second(seen: &[Seen]) -> usize {
    let within = |first: usize| {
        seen[first..].iter().take_while(|other| other.at - seen[first].at < Duration::from_secs(1)).count()
    };
    (0..seen.len()).map(within).max().unwrap_or(0)
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being worked on.
struct Stay<'a>(&'a State);

impl<'a> Stay<'a> {
    fn begin(state: &'a State, path: &str, head: &str) -> Stay<'a> {
        let mut log = state.lock();
        log.seen.push(Seen { at: Instant::now(), path: path.into(), head: head.into() });
        log.in_flight += 1;
        log.peak = log.peak.max(log.in_flight);
        Stay(state)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

/// A request to the shedding service.
struct Shedding<'a>(&'a State);

impl<'a> Shedding<'a> {
    fn enter(state: &'a State) -> (Shedding<'a>, bool) {
        let before = state.shedding.fetch_add(1, Relaxed);
        (Shedding(state), before < state.capacity.load(Relaxed))
    }
}

impl Drop for Shedding<'_> {
    fn drop(&mut self) {
        self.0.shedding.fetch_sub(1, Relaxed);
    }
}

async fn serve(tell: &mpsc::Sender<SocketAddr>, state: &Arc<State>, mut open: watch::Receiver<bool>) {
    let mut at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    loop {
        let listener = TcpSocket::new_v4().and_then(|socket| {
            socket.set_reuseaddr(true)?;
            socket.bind(at)?;
            socket.listen(4096)
        });
        let listener = listener.expect("the port is ours");
        at = listener.local_addr().expect("it has one");
        // Only the first is waited for.
        tell.send(at).ok();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                changed = open.wait_for(|open| !open) => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let state = Arc::clone(state);
                    connections.spawn(async move { converse(stream, &state).await.ok() });
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop((listener, connections));
        if open.wait_for(|open| *open).await.is_err() {
            return;
        }
    }
}

async fn converse(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let Some(head) = read_head(&mut stream).await? else { return Ok(()) };
        let target = head.split(' ').nth(1).unwrap_or("/").to_owned();
        let stay = Stay::begin(state, &target, &head);
        // A service that does not look for a body takes it for the next request.
        let body = if target.contains("/unread-") { 0 } else { read_body(&mut stream, &head).await? };
        let plan = Plan::new(state, &head, &target, body).await;
        match plan {
            Plan::Answer { status, fields, body, sent } => {
                let is_head = head.starts_with("HEAD ");
                let length = body.len();
                let top = format!("HTTP/1.1 {status} Answer\r\n{fields}content-length: {length}\r\n\r\n");
                stream.get_mut().write_all(top.as_bytes()).await?;
                drop(stay);
                if !is_head {
                    stream.get_mut().write_all(&body[..sent]).await?;
                }
                let is_last = field(&head, "connection").is_some_and(|value| value.contains("close"));
                if is_last || sent < length {
                    return Ok(());
                }
            }
            Plan::Raw(bytes) => {
                stream.get_mut().write_all(bytes).await?;
                // Whatever the proxy makes of it has to come before the end of the connection.
                sleep(Duration::from_millis(200)).await;
                return Ok(());
            }
            Plan::Switch => {
                let head = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                stream.get_mut().write_all(head).await?;
                drop(stay);
                let mut bytes = [0; 4096];
                loop {
                    let read = stream.read(&mut bytes).await?;
                    if read == 0 {
                        return Ok(());
                    }
                    stream.get_mut().write_all(&bytes[..read]).await?;
                }
            }
            Plan::Reset => {
                stream.get_ref().set_zero_linger()?;
                return Ok(());
            }
        }
    }
}

async fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return Ok(None) };
        head.push(byte);
        if head.len() > LONGEST_HEAD {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

async fn read_body(stream: &mut BufReader<TcpStream>, head: &str) -> io::Result<usize> {
    if field(head, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        let mut length = 0;
        loop {
            let size = read_line(stream).await?;
            let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16);
            let size = size.map_err(io::Error::other)?;
            discard(stream, size).await?;
            read_line(stream).await?;
            length += size;
            if size == 0 {
                return Ok(length);
            }
        }
    }
    let length = field(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    discard(stream, length).await?;
    Ok(length)
}

async fn discard(stream: &mut BufReader<TcpStream>, length: usize) -> io::Result<()> {
    let mut rest = stream.take(length as u64);
    let copied = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    if copied < length as u64 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// The value of the first field of this name, in lower case.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let named = |line: &'a str| line.split_once(':').filter(|(other, _)| other.eq_ignore_ascii_case(name));
    head.lines().skip(1).find_map(named).map(|(_, value)| value.trim())
}

enum Plan {
    /// Only so many bytes of the body are sent.
    Answer {
        status: u16,
        fields: String,
        body: Vec<u8>,
        sent: usize,
    },
    Raw(&'static [u8]),
    /// Grants an upgrade, and sends back what comes then.
    Switch,
    Reset,
}

impl Plan {
    fn text(status: u16, cache_control: &str, body: String) -> Plan {
        let said = if cache_control.is_empty() { String::new() } else { format!("cache-control: {cache_control}\r\n") };
        Plan::with(status, said, body.into_bytes())
    }

    fn with(status: u16, fields: String, body: Vec<u8>) -> Plan {
        let sent = body.len();
        Plan::Answer { status, fields, body, sent }
    }

    fn truncated(status: u16) -> Plan {
        let body = vec![b'x'; 4096];
        Plan::Answer { status, fields: "cache-control: max-age=60\r\n".into(), body, sent: 2048 }
    }

    /// Decides by the word before the first `-` in the last part of the path, and takes its time.
    async fn new(state: &State, head: &str, target: &str, uploaded: usize) -> Plan {
        if let Some(evil) = field(head, "x-evil") {
            sleep(PAGE).await;
            return Plan::evil(evil);
        }
        let path = resolve(target.split('?').next().unwrap_or("/"));
        let last = path.rsplit('/').next().unwrap_or("");
        let word = last.split(['-', '.', ';']).next().unwrap_or("");
        let user = field(head, "cookie").unwrap_or("nobody");
        let method = head.split(' ').next().unwrap_or("");
        if !matches!(method, "GET" | "HEAD") {
            if word == "hold" {
                sleep(HOLD).await;
            }
            return Plan::text(200, "", format!("{method} {uploaded}\n"));
        }
        match word {
            "page" => {
                sleep(PAGE).await;
                if let Some(status) = condition(head) {
                    return Plan::text(status, "max-age=60", String::new());
                }
                let host = field(head, "host").unwrap_or("nowhere");
                Plan::text(200, "max-age=60", format!("page {host} {target}\n"))
            }
            "brief" => {
                sleep(PAGE / 3).await;
                Plan::text(200, "max-age=1, must-revalidate", format!("page {target}\n"))
            }
            "private" => {
                sleep(PAGE / 3).await;
                Plan::text(200, "private", format!("for {user}\n"))
            }
            "hold" => {
                sleep(HOLD).await;
                Plan::text(200, "no-store", format!("for {user}\n"))
            }
            "slow" => {
                sleep(4 * HOLD).await;
                Plan::text(200, "no-store", format!("for {user}\n"))
            }
            "socket" if field(head, "upgrade").is_some_and(|name| name == "websocket") => Plan::Switch,
            "text" => {
                let fields = "cache-control: max-age=60\r\ncontent-type: text/html\r\n".into();
                Plan::with(200, fields, format!("line {target}\n").repeat(4_000).into_bytes())
            }
            "missing" => Plan::text(404, "", "there is no such page\n".into()),
            "reset" => Plan::Reset,
            "fails" => {
                sleep(PAGE / 3).await;
                Plan::text(500, "", "it fails\n".into())
            }
            "overloaded" => Plan::text(503, "", "it is overloaded\n".into()),
            "limited" => Plan::text(429, "", "too many requests\n".into()),
            "broken" => {
                sleep(PAGE).await;
                Plan::truncated(200)
            }
            "large" => Plan::with(200, "cache-control: max-age=60\r\n".into(), vec![b'x'; LARGE]),
            "mine" => Plan::with(200, "cache-control: private\r\n".into(), vec![b'x'; LARGE]),
            // A page that never says for whom it is.
            "account" => Plan::text(200, "", format!("for {user}\n")),
            "login" => {
                let mints = format!("cache-control: max-age=60\r\nset-cookie: session={user}\r\n");
                sleep(PAGE).await;
                Plan::with(200, mints, format!("for {user}\n").into_bytes())
            }
            // Everything of the head that could name a user, as one that trusts its proxy would use it.
            "whoami" => Plan::text(200, "max-age=60", format!("told {}\n", secrets(head))),
            "agents" => {
                sleep(PAGE).await;
                let fields = "cache-control: max-age=60\r\nvary: user-agent\r\n".into();
                Plan::with(200, fields, format!("page {target}\n").into_bytes())
            }
            "shed" => {
                let (_shedding, is_let_in) = Shedding::enter(state);
                if is_let_in {
                    sleep(SHED).await;
                    return Plan::text(200, "no-store", "done\n".into());
                }
                Plan::text(503, "no-store", "too much\n".into())
            }
            "split" => Plan::split(last),
            _ => Plan::text(200, "", "something\n".into()),
        }
    }

    /// What one client can make it do with a header.
    fn evil(how: &str) -> Plan {
        match how {
            "reset" => Plan::Reset,
            "truncate" => Plan::truncated(200),
            // Answers about how the request was put, from a service that labels everything.
            status => Plan::text(status.parse().unwrap_or(500), "max-age=60", "the header is bad\n".into()),
        }
    }

    /// Responses that two parsers could read in two ways.
    fn split(last: &str) -> Plan {
        Plan::Raw(match last {
            "split-lengths" => {
                b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 2\r\ncontent-length: 40\r\n\r\nhiHTTP/1.1 200 OK\r\nsmuggled: yes\r\n\r\n"
            }
            "split-both" => {
                b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 30\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 smuggled\r\n\r\n"
            }
            "split-more" => {
                b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled"
            }
            "split-negative" => b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: -1\r\n\r\nsmuggled",
            "split-chunk" => {
                b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nsmuggled"
            }
            _ => b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 8\r\n\r\nsmuggled",
        })
    }
}

/// How a condition of the request is met, by a service that takes every one at its word.
fn condition(head: &str) -> Option<u16> {
    let has = |name: &str| field(head, name).is_some();
    if has("if-match") || has("if-unmodified-since") {
        return Some(412);
    }
    if has("if-none-match") || has("if-modified-since") {
        return Some(304);
    }
    has("range").then_some(206)
}

/// The values of all header fields that tests send as secrets.
fn secrets(head: &str) -> String {
    head.lines().skip(1).filter(|line| line.contains("secret-of-")).collect::<Vec<_>>().join(", ")
}

/// The path as most services see it: decoded, without dots.
fn resolve(path: &str) -> String {
    let decoded = path.replace("%2f", "/").replace("%2F", "/").replace("%2e", ".").replace("%2E", ".");
    let decoded = decoded.replace("%5c", "/").replace("%5C", "/").replace('\\', "/");
    let mut parts: Vec<&str> = Vec::new();
    for part in decoded.split('/') {
        match part.split(';').next().unwrap_or("") {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
