//! The service behind the proxies: answers as it is told to, and counts.
//!
//! It speaks HTTP by hand, because what it has to do is what libraries prevent: break off, reset, trickle. It runs on a
//! thread of its own, so that the clients' thread never delays an answer.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, SystemTime},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::sleep,
};

use super::body;

const LONGEST_HEAD: usize = 64 * 1024;

/// How the origin answers in a scene.
#[derive(Clone)]
pub struct Plan {
    /// How long until the head of an answer.
    pub wait: Duration,
    pub status: u16,
    /// Bytes of a body.
    pub size: Size,
    /// Lines that follow the usual ones, each with its end.
    pub headers: String,
    /// Whether each answer sets a cookie: the one of the request, or a new one.
    pub sets_cookie: bool,
    pub whose: Whose,
    pub fault: Fault,
}

#[derive(Clone, Copy)]
pub enum Size {
    Of(usize),
    /// Differs from path to path.
    Between(usize, usize),
}

/// For whom an answer is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Everybodys,
    /// The value of the request's cookie.
    Cookie,
    /// The value of `Accept-Language`.
    Language,
}

/// What goes wrong.
#[derive(Clone, Copy)]
pub enum Fault {
    None,
    /// The connection is reset when the answer is due.
    Reset,
    /// The body comes in so many pieces over this time.
    Trickle(Duration, u32),
    /// Half of the body comes, and the connection ends.
    Truncate,
    /// The first answer of the scene takes this long.
    HangFirst(Duration),
}

impl Plan {
    /// 1 KiB at once, with this `Cache-Control`.
    pub fn saying(cache_control: &str) -> Plan {
        let headers =
            if cache_control.is_empty() { String::new() } else { format!("Cache-Control: {cache_control}\r\n") };
        Plan {
            wait: Duration::ZERO,
            status: 200,
            size: Size::Of(1024),
            headers,
            sets_cookie: false,
            whose: Whose::Everybodys,
            fault: Fault::None,
        }
    }

    pub fn after(self, wait: Duration) -> Plan {
        Plan { wait, ..self }
    }

    pub fn of(self, size: usize) -> Plan {
        Plan { size: Size::Of(size), ..self }
    }

    pub fn varying_on(mut self, field: &str) -> Plan {
        self.headers.push_str(&format!("Vary: {field}\r\n"));
        self
    }

    pub fn status(self, status: u16) -> Plan {
        Plan { status, ..self }
    }

    pub fn fault(self, fault: Fault) -> Plan {
        Plan { fault, ..self }
    }

    pub fn whose(mut self, whose: Whose) -> Plan {
        if whose == Whose::Language {
            self.headers.push_str("Vary: Accept-Language\r\n");
        }
        Plan { whose, ..self }
    }

    pub fn setting_cookies(self) -> Plan {
        Plan { sets_cookie: true, ..self }
    }
}

/// Paths with a common beginning, answered alike and counted together.
pub struct Scene {
    /// How all of its paths begin, without a slash at the end.
    pub prefix: String,
    plan: Mutex<Plan>,
    log: Mutex<Log>,
}

/// What came to a scene.
#[derive(Clone, Copy, Default)]
pub struct Log {
    pub requests: u64,
    in_flight: u64,
    /// The most that were there at one time.
    pub peak: u64,
    /// The longest row of requests of which each came after the end of the one before.
    pub rounds: u64,
    /// The same, of requests that have ended.
    ended: u64,
}

impl Log {
    /// Gives the round that the request is in.
    fn enter(&mut self) -> u64 {
        self.requests += 1;
        self.in_flight += 1;
        self.peak = self.peak.max(self.in_flight);
        let round = self.ended + 1;
        self.rounds = self.rounds.max(round);
        round
    }

    fn leave(&mut self, round: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended = self.ended.max(round);
    }
}

impl Scene {
    pub fn path(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// Answers differently from now on.
    pub fn becomes(&self, plan: Plan) {
        *lock(&self.plan) = plan;
    }

    pub fn log(&self) -> Log {
        *lock(&self.log)
    }

    /// What is counted from now on is counted from nothing.
    pub fn forget(&self) {
        let mut log = lock(&self.log);
        *log = Log { in_flight: log.in_flight, peak: log.in_flight, ..Log::default() };
    }
}

pub struct Origin {
    pub address: SocketAddr,
    scenes: Arc<Scenes>,
}

#[derive(Default)]
struct Scenes {
    made: AtomicU64,
    /// By the first part of the path.
    by_name: Mutex<HashMap<String, Arc<Scene>>>,
    /// Numbers every answer there ever was.
    answers: AtomicU64,
}

impl Origin {
    /// One on a free port, until the process ends.
    pub fn start() -> io::Result<Origin> {
        let scenes = Arc::new(Scenes::default());
        let (sender, receiver) = mpsc::channel();
        let serving = Arc::clone(&scenes);
        std::thread::Builder::new().name("origin".into()).spawn(move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(accept(&sender, &serving))
        })?;
        let address = receiver.recv().map_err(|_| io::Error::other("the origin cannot listen"))?;
        Ok(Origin { address, scenes })
    }

    pub fn scene(&self, plan: Plan) -> Arc<Scene> {
        self.scene_below("", plan)
    }

    /// A scene whose paths begin with this.
    pub fn scene_below(&self, folder: &str, plan: Plan) -> Arc<Scene> {
        let name = format!("s{}", self.scenes.made.fetch_add(1, Relaxed));
        let prefix = format!("{folder}/{name}");
        let scene = Arc::new(Scene { prefix, plan: Mutex::new(plan), log: Mutex::default() });
        lock(&self.scenes.by_name).insert(name, Arc::clone(&scene));
        scene
    }
}

async fn accept(listening: &mpsc::Sender<SocketAddr>, scenes: &Arc<Scenes>) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(4096)?;
    let _ = listening.send(listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, Arc::clone(scenes)))),
            // Out of descriptors, most likely: some will be free again.
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Request {
    path: String,
    cookie: Option<String>,
    language: Option<String>,
}

async fn serve(mut stream: TcpStream, scenes: Arc<Scenes>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut seen = Vec::with_capacity(1024);
    loop {
        let end = loop {
            if let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if seen.len() > LONGEST_HEAD || stream.read_buf(&mut seen).await? == 0 {
                return Ok(());
            }
        };
        let request = parse(&String::from_utf8_lossy(&seen[..end]));
        seen.drain(..end + 4);
        let Some(request) = request else { return Ok(()) };
        let mut parts = request.path.split(['/', '?']);
        let scene = parts.find_map(|name| lock(&scenes.by_name).get(name).cloned());
        let Some(scene) = scene else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?;
            continue;
        };
        let version = scenes.answers.fetch_add(1, Relaxed);
        if !answer(&mut stream, &scene, &request, version).await? {
            return Ok(());
        }
    }
}

fn parse(head: &str) -> Option<Request> {
    let mut lines = head.split("\r\n");
    let mut path = lines.next()?.split(' ').nth(1)?;
    // Some proxies name the whole of it.
    if let Some(rest) = path.strip_prefix("http://") {
        path = rest.find('/').map_or("/", |at| &rest[at..]);
    }
    let mut request = Request { path: path.into(), cookie: None, language: None };
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("cookie") {
            request.cookie = value.trim().strip_prefix("user=").map(Into::into);
        } else if name.eq_ignore_ascii_case("accept-language") {
            request.language = Some(value.trim().into());
        }
    }
    Some(request)
}

/// One request's stay: over when it is dropped, answered or not.
struct Stay<'a> {
    scene: &'a Scene,
    round: u64,
}

impl<'a> Stay<'a> {
    /// With whether it is the first of its scene.
    fn begin(scene: &'a Scene) -> (Stay<'a>, bool) {
        let mut log = lock(&scene.log);
        let is_first = log.requests == 0;
        let round = log.enter();
        drop(log);
        (Stay { scene, round }, is_first)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        lock(&self.scene.log).leave(self.round);
    }
}

/// Gives whether the connection can be used again.
async fn answer(stream: &mut TcpStream, scene: &Scene, request: &Request, version: u64) -> io::Result<bool> {
    let plan = lock(&scene.plan).clone();
    let (stay, is_first) = Stay::begin(scene);
    let wait = match plan.fault {
        Fault::HangFirst(long) if is_first => long,
        _ => plan.wait,
    };
    if !wait.is_zero() {
        tokio::select! {
            () = sleep(wait) => {}
            () = gone(stream) => return Ok(false),
        }
    }
    if matches!(plan.fault, Fault::Reset) {
        stream.set_zero_linger()?;
        return Ok(false);
    }
    let (cookie, language) = (request.cookie.as_deref(), request.language.as_deref());
    let who = match plan.whose {
        Whose::Everybodys => body::EVERYBODY,
        Whose::Cookie => cookie.unwrap_or(body::EVERYBODY),
        Whose::Language => language.unwrap_or(body::EVERYBODY),
    };
    let size = match plan.size {
        Size::Of(size) => size,
        Size::Between(least, most) => least + size_of_path(&request.path) % (most - least + 1),
    };
    let body = body::write(&request.path, version, who, size);
    let mut head = format!(
        "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{}",
        plan.status,
        if plan.status < 400 { "OK" } else { "Sorry" },
        httpdate::fmt_http_date(SystemTime::now()),
        body.len(),
        plan.headers
    );
    if plan.sets_cookie {
        let _ = match cookie {
            Some(cookie) => write!(head, "Set-Cookie: user={cookie}\r\n"),
            None => write!(head, "Set-Cookie: user=new{version}\r\n"),
        };
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    match plan.fault {
        Fault::Trickle(over, pieces) => {
            stream.write_all(&bytes).await?;
            for (index, piece) in body.chunks(body.len().div_ceil(pieces as usize)).enumerate() {
                if index > 0 {
                    sleep(over / pieces.saturating_sub(1).max(1)).await;
                }
                stream.write_all(piece).await?;
            }
        }
        Fault::Truncate => {
            bytes.extend_from_slice(&body[..body.len() / 2]);
            stream.write_all(&bytes).await?;
            sleep(Duration::from_millis(100)).await;
            return Ok(false);
        }
        Fault::None | Fault::HangFirst(_) | Fault::Reset => {
            bytes.extend_from_slice(&body);
            stream.write_all(&bytes).await?;
        }
    }
    drop(stay);
    Ok(true)
}

fn size_of_path(path: &str) -> usize {
    path.bytes().fold(5381_usize, |hash, byte| hash.wrapping_mul(33) ^ usize::from(byte)) >> 3
}

/// Whoever asked has left.
async fn gone(stream: &TcpStream) {
    if let Ok(1..) = stream.peek(&mut [0]).await {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_overlaps_is_one_round() {
        let mut log = Log::default();
        let leader = log.enter();
        log.leave(leader);
        let crowd: Vec<u64> = (0..10).map(|_| log.enter()).collect();
        crowd.into_iter().for_each(|round| log.leave(round));
        assert_eq!((log.requests, log.peak, log.rounds), (11, 10, 2));
    }
}
