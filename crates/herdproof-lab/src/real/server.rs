//! A small HTTP server on loopback that leaves nothing running.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, env::Task};
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};

/// As many as the kernel lets wait to be accepted: it lowers this to its own limit.
const BACKLOG: u32 = 32_767;
/// How long to wait when no connection can be accepted, because descriptors ran out, say.
const PAUSE: Duration = Duration::from_millis(10);

/// A server on a port of its own. Dropping it ends it and every connection it has.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    accepting: Task<()>,
    connections: Arc<Connections>,
}

/// The tasks of the open connections, and of some that ended since it last looked; none once it is closed for good.
#[derive(Debug)]
struct Connections(Mutex<Option<Vec<Task<()>>>>);

/// What a path gets: a status and a text.
pub(super) type Reply = (StatusCode, Bytes);

impl Server {
    /// Answers GET requests on 127.0.0.1 by what `answer` makes of their path, and refuses others. Every answer has these
    /// headers.
    pub(super) fn start<A, F>(env: &Env, headers: HeaderMap, answer: A) -> io::Result<Server>
    where
        A: Fn(String) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let connections = Arc::new(Connections(Mutex::new(Some(Vec::new()))));
        let accepting = env.spawn(accept(env.clone(), listener, Arc::clone(&connections), headers, answer));
        Ok(Server { address, accepting, connections })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it, and waits until every socket is closed.
    pub(super) async fn close(mut self) {
        self.accepting.abort();
        (&mut self.accepting).await.ok();
        for connection in self.connections.close() {
            connection.await.ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        drop(self.connections.close());
    }
}

impl Connections {
    /// Starts serving one more, unless it is closed.
    fn serve(&self, env: &Env, connection: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = &mut *self.0.lock() {
            if tasks.len() == tasks.capacity() {
                tasks.retain(|task| !task.is_finished());
                tasks.reserve(tasks.len().max(64));
            }
            tasks.push(env.spawn(connection));
        }
    }

    /// Ends all, and every one that might still come.
    fn close(&self) -> Vec<Task<()>> {
        let tasks = self.0.lock().take().unwrap_or_default();
        tasks.iter().for_each(Task::abort);
        tasks
    }
}

async fn accept<A, F>(env: Env, listener: TcpListener, connections: Arc<Connections>, headers: HeaderMap, answer: A)
where
    A: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            env.sleep(PAUSE).await;
            continue;
        };
        // Answers are one small write each: waiting to fill a packet would only delay them.
        stream.set_nodelay(true).ok();
        let (answer, headers) = (answer.clone(), headers.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let reply = (request.method() == Method::GET).then(|| answer(request.uri().path().to_owned()));
            let headers = headers.clone();
            async {
                let (status, text) = match reply {
                    Some(reply) => reply.await,
                    None => (StatusCode::METHOD_NOT_ALLOWED, Bytes::from_static(b"only GET is answered here\n")),
                };
                let mut response = Response::new(Full::new(text));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, plain);
                Ok::<_, Infallible>(response)
            }
        });
        connections.serve(&env, async {
            // A client that leaves early is its own affair.
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}
