//! Bodies to the origin and from it, and who is waited for.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::Incoming;

use super::{
    Inner,
    pool::{Lease, Link, Progress},
};

type Cause = Box<dyn Error + Send + Sync>;

/// The body of a request, as it is sent.
pub(super) enum Sending {
    Nothing,
    Streamed(Streamed),
}

/// A body that is still being read from somewhere.
pub(super) struct Streamed {
    body: UnsyncBoxBody<Bytes, Cause>,
    /// The connection that it is sent over.
    link: Option<Arc<Link>>,
    failed: bool,
}

impl Sending {
    pub(super) fn new<B>(body: B) -> Sending
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Cause>,
    {
        if body.is_end_stream() {
            return Sending::Nothing;
        }
        let body = body.map_err(Into::into).boxed_unsync();
        Sending::Streamed(Streamed { body, link: None, failed: false })
    }

    /// Says which connection it is sent over.
    pub(super) fn over(&mut self, on: &Arc<Link>) {
        if let Sending::Streamed(streamed) = self {
            streamed.link = Some(Arc::clone(on));
        }
    }

    /// Whether all of it is there already, so that the origin is waited for from the start.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Sending::Nothing)
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let Sending::Streamed(streamed) = &mut *self else { return Poll::Ready(None) };
        let frame = Pin::new(&mut streamed.body).poll_frame(cx);
        streamed.failed = matches!(frame, Poll::Ready(Some(Err(_))));
        if let Some(link) = &streamed.link {
            link.sending(match &frame {
                Poll::Pending => Progress::Client,
                Poll::Ready(Some(Ok(_))) => Progress::Origin,
                Poll::Ready(None) => Progress::Over,
                Poll::Ready(Some(Err(_))) => Progress::Failed,
            });
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Sending::Nothing => true,
            Sending::Streamed(streamed) => streamed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Sending::Nothing => SizeHint::with_exact(0),
            Sending::Streamed(streamed) => streamed.body.size_hint(),
        }
    }
}

/// hyper lets go of a body when all of it is written, without asking for its end if it knows how long it is; and when the
/// connection is closed, when it no longer matters.
impl Drop for Streamed {
    fn drop(&mut self) {
        if let (Some(link), false) = (&self.link, self.failed) {
            link.sending(Progress::Over);
        }
    }
}

/// The body of an answer. It holds the seat and the connection: read to its end, the connection is used again; dropped
/// before, it is closed. Trailers are dropped unless somebody has a place for them: a stored answer could not
/// give them, as it goes out with a length.
pub struct OriginBody {
    incoming: Incoming,
    /// There until the end.
    lease: Option<Lease>,
    /// Whether the origin is waited for.
    waiting: bool,
    /// How long the origin took until the head before it was there.
    took: Duration,
    /// Told if it breaks off.
    origin: Weak<Inner>,
    /// Where trailers go.
    trailers: Option<Arc<OnceLock<HeaderMap>>>,
}

/// A body that did not come to its end.
#[derive(Debug)]
pub enum BodyError {
    /// The origin sent nothing for this long.
    Stalled(Duration),
    /// The connection was closed, or the body was not what its head or its chunks said.
    Broken(hyper::Error),
}

impl OriginBody {
    pub(super) fn new(incoming: Incoming, lease: Lease, took: Duration, origin: Weak<Inner>) -> OriginBody {
        let mut body = OriginBody { incoming, lease: Some(lease), waiting: false, took, origin, trailers: None };
        if body.incoming.is_end_stream() {
            body.end();
        }
        body
    }

    /// How long the origin took to begin its answer.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// That of an answer after which the connection is no longer one for HTTP.
    pub(super) fn nothing(incoming: Incoming) -> OriginBody {
        OriginBody { incoming, lease: None, waiting: false, took: Duration::ZERO, origin: Weak::new(), trailers: None }
    }

    /// Where its trailers are when it is over, if it has any.
    pub(crate) fn trailing(&mut self) -> Arc<OnceLock<HeaderMap>> {
        Arc::clone(self.trailers.get_or_insert_default())
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }

    /// Why it failed. Whatever was wrong, the connection is closed with the lease.
    fn fail(&mut self, error: hyper::Error) -> BodyError {
        if let Some(origin) = self.origin.upgrade() {
            origin.broke_off();
        }
        match self.lease.take().and_then(|lease| lease.stalled()) {
            Some(time) => BodyError::Stalled(time),
            None => BodyError::Broken(error),
        }
    }
}

impl Body for OriginBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            let Some(lease) = &this.lease else { return Poll::Ready(None) };
            let frame = Pin::new(&mut this.incoming).poll_frame(cx);
            if frame.is_pending() != this.waiting {
                this.waiting = frame.is_pending();
                if this.waiting { lease.link.wait_for_body() } else { lease.link.rest() }
            }
            match ready!(frame) {
                Some(Ok(frame)) if frame.is_trailers() => {
                    if let (Some(place), Ok(trailers)) = (&this.trailers, frame.into_trailers()) {
                        place.set(trailers).ok();
                    }
                }
                Some(Ok(frame)) => {
                    // So that the connection is there for the next without another poll.
                    if this.incoming.is_end_stream() {
                        this.end();
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(this.fail(error)))),
                None => {
                    this.end();
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.lease.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for OriginBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginBody").field("is_over", &self.lease.is_none()).finish_non_exhaustive()
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Stalled(time) => write!(f, "the origin sent nothing of the body for {} ms", time.as_millis()),
            BodyError::Broken(_) => f.write_str("the origin's body broke off"),
        }
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BodyError::Stalled(_) => None,
            BodyError::Broken(error) => Some(error),
        }
    }
}
