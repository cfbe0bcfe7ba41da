//! Clients on raw sockets, each from an address of its own choice.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::origin::field;

/// How long a good user waits at most. An answer that takes longer is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    fields: String,
    body: &'static str,
}

impl Request {
    pub(crate) fn get(path: impl Into<String>) -> Request {
        Request::new("GET", path)
    }

    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Request {
        Request { method, path: path.into(), fields: String::new(), body: "" }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Request {
        write!(self.fields, "{name}: {value}\r\n").ok();
        self
    }

    pub(crate) fn body(mut self, body: &'static str) -> Request {
        self.body = body;
        self.with("content-length", &body.len().to_string())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Request { method, path, fields, body } = self;
        format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\n{fields}connection: close\r\n\r\n{body}")
            .into_bytes()
    }
}

/// What a client got.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status of a whole answer, or what went wrong.
    pub(crate) status: Result<u16, &'static str>,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) at: Instant,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.status == Ok(200)
    }

    /// Its status, for people.
    pub(crate) fn shown(&self) -> String {
        self.status.map_or_else(str::to_owned, |status| status.to_string())
    }
}

pub(crate) async fn connect(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// As [`connect`], with as small a receive buffer as the kernel gives.
pub(crate) async fn connect_narrow(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// One request on a connection of its own.
pub(crate) async fn ask(from: Ipv4Addr, to: SocketAddr, request: &Request) -> Answer {
    let asked = async {
        let stream = connect(from, to).await?;
        Ok(finish(stream, &request.bytes()).await)
    };
    within(PATIENCE, asked).await
}

/// Sends bytes and reads until the other side closes.
pub(crate) async fn raw(from: Ipv4Addr, to: SocketAddr, bytes: &[u8]) -> Answer {
    let asked = async {
        let stream = connect(from, to).await?;
        Ok(finish(stream, bytes).await)
    };
    within(Duration::from_secs(3), asked).await
}

async fn within(patience: Duration, asked: impl Future<Output = io::Result<Answer>>) -> Answer {
    let failed = |why| Answer { status: Err(why), head: String::new(), body: Vec::new(), at: Instant::now() };
    match timeout(patience, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => failed("no connection"),
        Err(_) => failed("no answer in time"),
    }
}

async fn finish(mut stream: TcpStream, bytes: &[u8]) -> Answer {
    let mut received = Vec::new();
    // A refusal may come before all is sent.
    let sent = stream.write_all(bytes).await;
    let read = stream.read_to_end(&mut received).await;
    parse(received, sent.and(read.map(drop)).is_ok())
}

fn parse(mut received: Vec<u8>, is_whole: bool) -> Answer {
    let end = received.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else {
        let why = if received.is_empty() && is_whole { "closed" } else { "broken off" };
        return Answer { status: Err(why), head: String::new(), body: received, at: Instant::now() };
    };
    let body = received.split_off(end + 4);
    let head = String::from_utf8_lossy(&received).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let is_cut = match field(&head, "content-length").and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => body.len() < length,
        None => field(&head, "transfer-encoding").is_some() && !body.ends_with(b"0\r\n\r\n"),
    };
    let status = match status {
        Some(status) if !is_cut => Ok(status),
        Some(_) => Err("body broken off"),
        None => Err("not HTTP"),
    };
    Answer { status, head, body, at: Instant::now() }
}

/// A crowd: all connect first, then all ask at once. The request of each is made from its number.
pub(crate) async fn herd(
    from: &[Ipv4Addr],
    to: SocketAddr,
    size: usize,
    request: impl Fn(usize) -> Request,
) -> Vec<Answer> {
    let mut streams = Vec::new();
    for number in 0..size {
        let stream = timeout(PATIENCE, connect(from[number % from.len()], to)).await;
        streams.push((stream.ok().and_then(Result::ok), request(number).bytes()));
    }
    let mut crowd = JoinSet::new();
    for (stream, bytes) in streams {
        crowd.spawn(within(PATIENCE, async move {
            let stream = stream.ok_or(io::ErrorKind::NotConnected)?;
            Ok(finish(stream, &bytes).await)
        }));
    }
    crowd.join_all().await
}
