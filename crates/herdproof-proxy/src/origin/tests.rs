//! The way to the origin, against origins that speak bytes, on loopback.

mod broken;
mod connections;
mod limits;
mod names;
mod seats;
mod whole;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use herdproof::{
    Env,
    env::Task,
    gate::{Ask, Permit, Priority, Refusal, Span, Verdict, Why},
    timeout::by,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Runs a test with sockets, for a while at most: what hangs is a failure, not a hang.
fn run<F: Future>(test: impl FnOnce(Env) -> F) {
    run_on(tokio::runtime::Builder::new_multi_thread().worker_threads(2), test);
}

/// The same on one thread: what a test sees, no task is in the midst of changing.
fn run_on_one_thread<F: Future>(test: impl FnOnce(Env) -> F) {
    run_on(&mut tokio::runtime::Builder::new_current_thread(), test);
}

fn run_on<F: Future>(runtime: &mut tokio::runtime::Builder, test: impl FnOnce(Env) -> F) {
    runtime.enable_all().build().unwrap().block_on(async {
        let env = Env::system();
        let deadline = env.now() + Duration::from_secs(30);
        by(&env, Some(deadline), test(env.clone())).await.expect("the test hangs");
    });
}

/// An origin; every connection is handled by a task of its own, which gets its number.
struct Raw {
    env: Env,
    address: SocketAddr,
    connections: Arc<AtomicU32>,
    task: Task<()>,
}

impl Raw {
    async fn new<F>(env: &Env, handle: impl Fn(Talk, u32) -> F + Send + 'static) -> Raw
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let (count, world) = (Arc::clone(&connections), env.clone());
        let task = env.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                world.spawn(handle(Talk { stream, buffer: Vec::new() }, count.fetch_add(1, SeqCst))).detach();
            }
        });
        Raw { env: env.clone(), address, connections, task }
    }

    /// Answers every request on every connection with these bytes.
    async fn says(env: &Env, bytes: &'static str) -> Raw {
        Raw::new(env, move |mut talk, _| async move {
            while talk.request().await.is_some() {
                talk.say(bytes).await;
            }
        })
        .await
    }

    fn settings(&self) -> OriginSettings {
        OriginSettings { url: format!("http://{}", self.address), ..OriginSettings::default() }
    }

    fn origin(&self) -> Origin {
        self.origin_with(|_| {})
    }

    fn origin_with(&self, change: impl FnOnce(&mut OriginSettings)) -> Origin {
        let mut settings = self.settings();
        change(&mut settings);
        Origin::new(&self.env, &settings).unwrap()
    }

    fn connections(&self) -> u32 {
        self.connections.load(SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, seen from the origin.
struct Talk {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Talk {
    /// The head of the next request; `None` if the connection was closed instead.
    async fn request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            self.more().await?;
        }
    }

    /// So many bytes of a body.
    async fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < bytes {
            self.more().await?;
        }
        Some(self.buffer.drain(..bytes).collect())
    }

    async fn more(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.buffer).await.ok()?;
        (read > 0).then_some(())
    }

    async fn say(&mut self, bytes: &str) {
        // Whoever has left does not hear it.
        self.stream.write_all(bytes.as_bytes()).await.ok();
    }

    /// Waits until the other side closes.
    async fn closed(&mut self) {
        while self.more().await.is_some() {}
    }

    /// Closes with a reset.
    #[expect(deprecated, reason = "a linger of zero does not block, and is how a reset is sent")]
    fn reset(self) {
        self.stream.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

fn get(path: &str) -> Outgoing {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, "origin.test".parse().unwrap());
    Outgoing { method: Method::GET, target: path.parse().unwrap(), headers, route: 0 }
}

fn post<B>(body: B) -> Request<B> {
    Request::post("/").header(header::HOST, "origin.test").body(body).unwrap()
}

async fn text(answer: Response<OriginBody>) -> Result<String, BodyError> {
    let bytes = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

impl Origin {
    async fn get(&self, path: &str) -> Result<Response<OriginBody>, OriginError> {
        self.fetch(&get(path), Ask::new(&self.0.env)).await
    }

    async fn post<B>(&self, body: B) -> Result<Response<OriginBody>, OriginError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.send(post(body), 0, Ask::new(&self.0.env)).await
    }
}

/// Whatever is to be true soon, because a task that has been woken makes it so.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}
