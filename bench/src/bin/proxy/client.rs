//! The clients: a herd let loose at one moment, and visitors who come again and again.
//!
//! They speak HTTP by hand: what is measured is when the first byte of a body came, whether it came whole, and whose it
//! was, and thousands of them must not cost the machine more than the proxy does.

use std::{
    cell::RefCell,
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, sleep_until, timeout, timeout_at},
};

use super::body;

/// Longer than any answer here.
const LONGEST: usize = 64 << 20;
/// How long a connection may take to be made.
const OPENING: Duration = Duration::from_secs(10);
/// How long visitors wait at the end of their time for what they have asked for.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// A proxy may be slower to take connections than the kernel is.
const SETTLING: Duration = Duration::from_millis(150);

/// What a client asks for.
#[derive(Clone)]
pub struct Ask {
    pub path: String,
    /// For whom its answer is to be.
    pub who: String,
    bytes: Vec<u8>,
}

impl Ask {
    pub fn new(host: SocketAddr, path: &str) -> Ask {
        Ask::with(host, path, body::EVERYBODY, "")
    }

    /// As a user with a cookie.
    /// For a page that is the same for all users.
    pub fn with_cookie(host: SocketAddr, path: &str, user: &str) -> Ask {
        Ask::with(host, path, body::EVERYBODY, &format!("Cookie: session={user}\r\n"))
    }

    pub fn as_user(host: SocketAddr, path: &str, user: &str) -> Ask {
        Ask::with(host, path, user, &format!("Cookie: user={user}\r\n"))
    }

    pub fn in_language(host: SocketAddr, path: &str, language: &str) -> Ask {
        Ask::with(host, path, language, &format!("Accept-Language: {language}\r\n"))
    }

    fn with(host: SocketAddr, path: &str, who: &str, headers: &str) -> Ask {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").into_bytes();
        Ask { path: path.into(), who: who.into(), bytes }
    }
}

/// What became of one request.
pub struct Answer {
    pub ending: Ending,
    /// Until the first byte of the body, or of the head where there is no body.
    pub first: Duration,
    /// Until it was whole, or over.
    pub total: Duration,
    /// Which of the origin's answers it was.
    pub version: Option<u64>,
    /// Which user's cookie it set.
    pub set_cookie: Option<String>,
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Whole, and for whom it was asked.
    Right,
    /// Whole, and somebody else's.
    Foreign,
    /// Whole, and not what was asked for, or not of one piece.
    Wrong,
    /// Another status than 200.
    Status(u16),
    /// It broke off, or never came.
    Cut,
    /// The client lost its patience.
    GaveUp,
}

impl Answer {
    fn none(ending: Ending, started: Instant) -> Answer {
        let total = started.elapsed();
        Answer { ending, first: total, total, version: None, set_cookie: None, closes: true }
    }
}

/// A connection and the bytes it brought that are nobody's yet.
struct Line {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Line {
    async fn open(target: SocketAddr) -> io::Result<Line> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        Ok(Line { stream, seen: Vec::new() })
    }

    /// Closed at once, so that thousands of ports are free again for the next herd.
    fn hang_up(self) {
        let _ = self.stream.set_zero_linger();
    }

    async fn answer(&mut self, ask: &Ask, started: Instant) -> Answer {
        self.read(ask, started).await.unwrap_or_else(|_| Answer::none(Ending::Cut, started))
    }

    async fn read(&mut self, ask: &Ask, started: Instant) -> io::Result<Answer> {
        let head_end = loop {
            if let Some(end) = self.seen.windows(4).position(|four| four == b"\r\n\r\n") {
                if !self.seen.starts_with(b"HTTP/1.1 1") {
                    break end + 4;
                }
                self.seen.drain(..end + 4);
                continue;
            }
            self.more().await?;
        };
        let head = Head::parse(&self.seen[..head_end]).ok_or_else(broken)?;
        let mut first = started.elapsed();
        self.seen.drain(..head_end);
        if self.seen.is_empty() && head.framing != Framing::Length(0) {
            let more = self.more().await;
            if head.framing != Framing::UntilClose {
                more?;
            }
            first = started.elapsed();
        }
        let body: Vec<u8> = match head.framing {
            Framing::Length(length) => {
                while self.seen.len() < length {
                    self.more().await?;
                }
                self.seen.drain(..length).collect()
            }
            Framing::Chunked => loop {
                if let Some((body, used)) = dechunk(&self.seen)? {
                    self.seen.drain(..used);
                    break body;
                }
                self.more().await?;
            },
            Framing::UntilClose => {
                while self.more().await.is_ok() {}
                std::mem::take(&mut self.seen)
            }
        };
        let total = started.elapsed();
        let label = body::read(&body, &ask.path);
        let ending = match &label {
            _ if head.status != 200 => Ending::Status(head.status),
            Some(label) if label.who == ask.who => Ending::Right,
            Some(_) => Ending::Foreign,
            None => Ending::Wrong,
        };
        let version = label.map(|label| label.version);
        Ok(Answer { ending, first, total, version, set_cookie: head.set_cookie, closes: head.closes })
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.seen.len() > LONGEST || self.stream.read_buf(&mut self.seen).await? == 0 {
            return Err(broken());
        }
        Ok(())
    }
}

fn broken() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

#[derive(PartialEq, Eq, Debug)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

struct Head {
    status: u16,
    framing: Framing,
    set_cookie: Option<String>,
    closes: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Head> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let mut head = Head { status, framing: Framing::UntilClose, set_cookie: None, closes: false };
        if status == 204 || status == 304 {
            head.framing = Framing::Length(0);
        }
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.framing = Framing::Length(value.parse().ok()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                head.framing = Framing::Chunked;
            } else if name.eq_ignore_ascii_case("connection") {
                head.closes = value.eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("set-cookie") {
                head.set_cookie = value.strip_prefix("user=").map(Into::into);
            }
        }
        head.closes |= head.framing == Framing::UntilClose;
        Some(head)
    }
}

/// The body and how many bytes it took, once it is whole.
fn dechunk(mut bytes: &[u8]) -> io::Result<Option<(Vec<u8>, usize)>> {
    let all = bytes.len();
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|line| line.split(';').next());
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok()).filter(|size| *size <= LONGEST);
        let size = size.ok_or_else(broken)?;
        bytes = &bytes[end + 2..];
        if bytes.len() < size + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
        if size == 0 {
            return Ok(Some((body, all - bytes.len())));
        }
    }
}

/// One request on a connection of its own.
pub async fn get(target: SocketAddr, path: &str, patience: Duration) -> Answer {
    let started = Instant::now();
    let asking = async {
        let Ok(mut line) = Line::open(target).await else { return Answer::none(Ending::Cut, started) };
        let ask = Ask::new(target, path);
        if line.stream.write_all(&ask.bytes).await.is_err() {
            return Answer::none(Ending::Cut, started);
        }
        line.answer(&ask, started).await
    };
    timeout(patience, asking).await.unwrap_or_else(|_| Answer::none(Ending::GaveUp, started))
}

/// Many clients who ask at one moment, each on a connection that was open before.
pub struct Herd {
    pub target: SocketAddr,
    /// The first of them leads.
    pub asks: Vec<Ask>,
    /// How long the first is ahead of the others.
    pub lead: Duration,
    /// When the first leaves without having waited for its answer.
    pub leader_leaves: Option<Duration>,
    pub patience: Duration,
}

/// What became of a herd.
pub struct Answers {
    /// In the order of the asks.
    pub all: Vec<Answer>,
    /// From the moment they were let loose to the last one's end.
    pub wall: Duration,
}

impl Herd {
    pub fn new(target: SocketAddr, asks: Vec<Ask>) -> Herd {
        Herd { target, asks, lead: Duration::ZERO, leader_leaves: None, patience: Duration::from_secs(30) }
    }

    pub fn same(target: SocketAddr, path: &str, clients: usize) -> Herd {
        Herd::new(target, vec![Ask::new(target, path); clients])
    }

    /// Opens every connection, and waits until the proxy has had time to take them.
    pub async fn gather(self) -> Gathered {
        let mut lines = Vec::with_capacity(self.asks.len());
        for _ in &self.asks {
            let opened = timeout(OPENING, Line::open(self.target)).await;
            lines.push(opened.ok().and_then(Result::ok));
        }
        sleep(SETTLING).await;
        Gathered { herd: self, lines }
    }

    pub async fn run(self) -> Answers {
        self.gather().await.let_loose().await
    }
}

/// A herd that is connected and has not asked yet.
pub struct Gathered {
    herd: Herd,
    lines: Vec<Option<Line>>,
}

impl Gathered {
    pub async fn let_loose(self) -> Answers {
        let Gathered { herd, lines } = self;
        let loose = Instant::now();
        let mut clients = JoinSet::new();
        let mut waiting = Vec::with_capacity(lines.len());
        for (index, (ask, line)) in herd.asks.into_iter().zip(lines).enumerate() {
            let started = Instant::now();
            let Some(line) = line else {
                clients.spawn_local(async move { (index, Answer::none(Ending::Cut, started)) });
                continue;
            };
            // All of them are written before any is read: a herd does not take turns.
            let is_written = line.stream.try_write(&ask.bytes).is_ok_and(|written| written == ask.bytes.len());
            waiting.push((index, ask, line, started, is_written));
            if index == 0 && !herd.lead.is_zero() {
                sleep(herd.lead).await;
            }
        }
        for (index, ask, mut line, started, is_written) in waiting {
            let patience = herd.leader_leaves.filter(|_| index == 0).unwrap_or(herd.patience);
            clients.spawn_local(async move {
                if !is_written && line.stream.write_all(&ask.bytes).await.is_err() {
                    return (index, Answer::none(Ending::Cut, started));
                }
                let answer = timeout_at((started + patience).into(), line.answer(&ask, started)).await;
                line.hang_up();
                (index, answer.unwrap_or_else(|_| Answer::none(Ending::GaveUp, started)))
            });
        }
        let mut all = Vec::with_capacity(clients.len());
        while let Some(ended) = clients.join_next().await {
            all.extend(ended);
        }
        let wall = loose.elapsed();
        all.sort_by_key(|(index, _)| *index);
        Answers { all: all.into_iter().map(|(_, answer)| answer).collect(), wall }
    }
}

impl Answers {
    pub fn count(&self, is: impl Fn(Ending) -> bool) -> usize {
        self.all.iter().filter(|answer| is(answer.ending)).count()
    }

    /// In milliseconds, of what is asked for each answer.
    pub fn quantile(&self, share: f64, of: impl Fn(&Answer) -> Duration) -> f64 {
        let mut times: Vec<Duration> = self.all.iter().map(of).collect();
        quantile(&mut times, share)
    }

    /// How many got an answer that somebody else got too.
    pub fn shared(&self) -> usize {
        let mut versions: Vec<u64> = self.all.iter().filter_map(|answer| answer.version).collect();
        let all = versions.len();
        versions.sort_unstable();
        versions.dedup();
        all - versions.len()
    }
}

/// In milliseconds; nothing, of nothing.
pub fn quantile(times: &mut [Duration], share: f64) -> f64 {
    if times.is_empty() {
        return f64::NAN;
    }
    times.sort_unstable();
    let rank = (share * times.len() as f64).ceil() as usize;
    times[rank.clamp(1, times.len()) - 1].as_secs_f64() * 1e3
}

/// When a visitor asks again.
#[derive(Clone, Copy)]
pub enum Rhythm {
    /// So long after the last answer.
    Think(Duration),
    /// So long after it was due the last time, whatever became of that: its answers are timed from when they were due, so that a
    /// server that holds its visitors up does not hear the fewer of them for it.
    Every(Duration),
}

/// Visitors who ask again and again.
pub struct Visitors {
    pub target: SocketAddr,
    pub connections: usize,
    pub rhythm: Rhythm,
    pub last: Duration,
    /// Beyond it an answer counts as slow.
    pub slow: Duration,
}

/// What visitors saw.
#[derive(Default)]
pub struct Seen {
    pub right: u64,
    pub wrong: u64,
    /// Another status, or none.
    pub failed: u64,
    pub slow: u64,
    pub times: Vec<Duration>,
}

impl Seen {
    fn add(&mut self, ending: Ending, took: Duration, slow: Duration) {
        match ending {
            Ending::Right => self.right += 1,
            Ending::Foreign | Ending::Wrong => self.wrong += 1,
            Ending::Status(_) | Ending::Cut | Ending::GaveUp => self.failed += 1,
        }
        self.slow += u64::from(took > slow);
        self.times.push(took);
    }

    pub fn all(&self) -> u64 {
        self.right + self.wrong + self.failed
    }
}

impl Visitors {
    /// Every visitor asks for what `next` says, until there is nothing more. Who still waits in the end gave up.
    pub async fn run(self, next: impl FnMut() -> Option<String> + 'static) -> Seen {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let next = Rc::new(RefCell::new(next));
        let end = Instant::now() + self.last;
        let mut visitors = JoinSet::new();
        for index in 0..self.connections {
            let (seen, next) = (Rc::clone(&seen), Rc::clone(&next));
            let Visitors { target, rhythm, slow, connections, .. } = self;
            visitors.spawn_local(async move {
                let (Rhythm::Think(pause) | Rhythm::Every(pause)) = rhythm;
                // Not all at one moment, unless nobody pauses.
                sleep(pause.mul_f64(index as f64 / connections as f64)).await;
                let mut line: Option<Line> = None;
                let mut due = Instant::now();
                let mut started = due;
                while Instant::now() < end {
                    let Some(path) = (next.borrow_mut())() else { break };
                    let ask = Ask::new(target, &path);
                    let asking = async {
                        if line.is_none() {
                            line = Line::open(target).await.ok();
                        }
                        let Some(open) = &mut line else { return Answer::none(Ending::Cut, started) };
                        if open.stream.write_all(&ask.bytes).await.is_err() {
                            return Answer::none(Ending::Cut, started);
                        }
                        open.answer(&ask, started).await
                    };
                    let answer = timeout_at((end + LAST_ANSWERS).into(), asking).await;
                    let answer = answer.unwrap_or_else(|_| Answer::none(Ending::GaveUp, started));
                    seen.borrow_mut().add(answer.ending, answer.total, slow);
                    if answer.closes {
                        line = None;
                    }
                    let answered = Instant::now();
                    due = match rhythm {
                        Rhythm::Think(_) => answered + pause,
                        Rhythm::Every(_) => due + pause,
                    };
                    started = due;
                    if due > answered {
                        sleep_until(due.into()).await;
                        // An alarm that goes off late is not the server's fault; that the last answer came late is.
                        started = Instant::now();
                    }
                }
                if let Some(line) = line {
                    line.hang_up();
                }
            });
        }
        while visitors.join_next().await.is_some() {}
        seen.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_not_whole_before_its_last_chunk() {
        let bytes = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\nHTTP";
        for end in 0..bytes.len() - 4 {
            assert!(dechunk(&bytes[..end]).unwrap().is_none(), "{end}");
        }
        assert_eq!(dechunk(bytes).unwrap(), Some((b"abcde".to_vec(), bytes.len() - 4)));
        assert!(dechunk(b"zz\r\n").is_err());
    }

    #[test]
    fn the_worst_of_a_herd_is_its_last() {
        let mut times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!((quantile(&mut times, 0.5), quantile(&mut times, 1.0)), (50.0, 100.0));
    }
}
