//! One request: who asks, that it is under way, and that it is over.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Version, header::CONNECTION};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;

use super::{connections::Connection, proxy_header::Source, tunnel::Tunnel};
use crate::memory::Connected;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Client(Arc<Connection>);

impl Client {
    /// The other end of the connection, or the client that a trusted balancer there named for it in a
    /// [header](super::proxy_header).
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Whether nobody knows whose requests these are: a balancer has said that it cannot tell. Its own word does not count for
    /// them.
    pub(crate) fn is_unknown(&self) -> bool {
        self.0.source.get() == Some(&Source::Unknown)
    }

    /// Whether its connection was ended by us.
    pub(crate) fn is_ended(&self) -> bool {
        self.0.is_over()
    }

    /// Where this connection leads to after the answer to the request that is under way, which is a 101.
    pub(crate) fn tunnel(&self, tunnel: Tunnel) {
        *self.0.tunnel.lock() = Some(tunnel);
    }

    /// Its connection.
    pub(crate) fn connected(&self) -> Arc<dyn Connected> {
        Arc::clone(&self.0) as Arc<dyn Connected>
    }

    /// The body of this client's request, read under the listener's eyes: a client that lets it drip is ended.
    ///
    /// Without this nobody can tell a client that sends nothing from an origin that takes nothing.
    pub fn upload<B>(&self, body: B) -> Upload<B> {
        Upload { body, watched: true, guard: Starving(Arc::clone(&self.0)) }
    }

    /// The same for a body whose client may pause for as long as whoever reads it allows.
    pub(crate) fn pausing_upload<B>(&self, body: B) -> Upload<B> {
        Upload { body, watched: false, guard: Starving(Arc::clone(&self.0)) }
    }
}

/// A connection's requests, answered by `serve`.
pub(super) struct Service<S> {
    connection: Arc<Connection>,
    serve: S,
}

impl<S> Service<S> {
    pub(super) fn new(connection: Arc<Connection>, serve: S) -> Service<S> {
        Service { connection, serve }
    }
}

impl<S, F, B> hyper::service::Service<Request<Incoming>> for Service<S>
where
    S: Fn(Request<Incoming>, Client) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Guarded<B>>;
    type Error = Infallible;
    type Future = Answering<F>;

    #[inline]
    fn call(&self, request: Request<Incoming>) -> Answering<F> {
        let busy = Busy::begin(&self.connection);
        self.connection.set_unread(!request.body().is_end_stream());
        let knows_chunks = request.version() >= Version::HTTP_11;
        let future = (self.serve)(request, Client(Arc::clone(&self.connection)));
        Answering { future, busy: Some(busy), knows_chunks }
    }
}

/// A request is under way until this is dropped.
pub(super) struct Busy(Arc<Connection>);

impl Busy {
    #[inline]
    fn begin(connection: &Arc<Connection>) -> Busy {
        connection.pulse.begin();
        Busy(Arc::clone(connection))
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        self.0.pulse.end();
    }
}

pin_project! {
    /// An answer in the making.
    pub(super) struct Answering<F> {
        #[pin]
        future: F,
        // Handed on to the answer's body.
        busy: Option<Busy>,
        // Whether the client can tell where a body ends whose length is not said.
        knows_chunks: bool,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Response<B>>,
    B: Body,
{
    type Output = Result<Response<Guarded<B>>, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(cx));
        let busy = this.busy.take();
        let is_last = busy.as_ref().is_some_and(|busy| busy.0.all.is_stopping());
        // With a 101 the connection is no longer ours to end in this way.
        if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let (false, Some(busy)) = (*this.knows_chunks, &busy) {
            let is_endless = !response.body().is_end_stream() && response.body().size_hint().exact().is_none();
            busy.0.set_unended(is_endless);
        }
        Poll::Ready(Ok(response.map(|body| Guarded { body, _busy: busy })))
    }
}

pin_project! {
    /// An answer's body; when it is dropped, the last of it was given.
    pub(super) struct Guarded<B> {
        #[pin]
        body: B,
        _busy: Option<Busy>,
    }
}

impl<B: Body> Body for Guarded<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// From [`Client::upload`].
    #[derive(Debug)]
    pub struct Upload<B> {
        #[pin]
        body: B,
        watched: bool,
        guard: Starving,
    }
}

/// Nobody waits for a body any more when this is dropped.
#[derive(Debug)]
struct Starving(Arc<Connection>);

impl Drop for Starving {
    fn drop(&mut self) {
        self.0.pulse.starved(false);
    }
}

impl<B: Body> Body for Upload<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = this.body;
        let frame = body.as_mut().poll_frame(cx);
        let connection = &this.guard.0;
        connection.pulse.starved(*this.watched && frame.is_pending());
        if matches!(frame, Poll::Ready(None)) || frame.is_ready() && body.is_end_stream() {
            connection.set_unread(false);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
