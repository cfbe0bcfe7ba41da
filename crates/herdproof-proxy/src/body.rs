//! What goes out to a client.

use std::{
    error::Error,
    fmt, mem,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};

use crate::{
    listener::Client,
    log::{Broken, Reader},
    memory::{self, Footprint, Reading},
    object::{Elsewhere, Object},
    origin::{BodyError, OriginBody},
    who::Who,
};

/// The body of a response: bytes that are there, that are on their way, or that come straight from the origin. A part of them,
/// if the client wants a part.
#[must_use]
pub struct Body {
    source: Source,
    /// Of what comes, so much is left out at first.
    skip: u64,
    /// So much goes out then; all that comes, if that is not known.
    left: Option<u64>,
    sent: u64,
    memory: Memory,
    /// What comes after it is there when it is over.
    trailers: Option<Arc<OnceLock<HeaderMap>>>,
    /// Told when it is over.
    witness: Option<Box<dyn Witness>>,
}

/// Who wants to know how a response ended.
pub(crate) trait Witness: Send {
    /// It is over, after so many bytes; `whole` unless it was broken off by either side.
    fn over(self: Box<Self>, sent: u64, whole: bool);
}

/// The account of what it is made of.
enum Memory {
    /// It is too little to have one.
    Small,
    Of(Arc<Footprint>),
    /// And its reader is known there.
    Read(Reading),
}

enum Source {
    Nothing,
    Whole(Bytes),
    Parts(Arc<[Bytes]>, usize),
    Log(Reader),
    Origin(Pin<Box<OriginBody>>),
}

/// Why a body broke off.
#[derive(Debug)]
pub enum CutOff {
    /// What others share broke off.
    Shared(Broken),
    /// The origin's did.
    Origin(BodyError),
    /// It ended before all of it had come.
    Short,
}

impl Body {
    pub(crate) fn empty() -> Body {
        Body::new(Source::Nothing, Some(0))
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        let len = bytes.len() as u64;
        Body::new(Source::Whole(bytes), Some(len))
    }

    /// Straight from the origin, for one client; and what `trails` it, if that is wanted.
    pub(crate) fn passed(mut body: OriginBody, trails: bool) -> Body {
        let len = body.size_hint().exact();
        let trailers = trails.then(|| body.trailing());
        let mut passed = Body::new(Source::Origin(Box::pin(body)), len);
        passed.trailers = trailers;
        passed
    }

    /// An object's.
    pub(crate) fn of(object: &Object) -> Body {
        match object.elsewhere() {
            None => Body::whole(object.shared_body()).counted(object.footprint()),
            Some(Elsewhere::Parts(parts, len, _)) => {
                Body::new(Source::Parts(Arc::clone(parts), 0), Some(*len)).counted(object.footprint())
            }
            Some(Elsewhere::Arriving(log, len)) => {
                let is_small = len.is_some_and(|len| len <= memory::SMALL as u64);
                Body::new(Source::Log(log.reader()), *len).counted(Some(log.footprint()).filter(|_| !is_small))
            }
        }
    }

    fn counted(mut self, footprint: Option<&Arc<Footprint>>) -> Body {
        self.memory = footprint.map_or(Memory::Small, |footprint| Memory::Of(Arc::clone(footprint)));
        self
    }

    /// Has what comes straight from the origin read by somebody else, into a log that this body reads from then on. Not if it
    /// is so small that hyper's buffer takes all of it, whatever the client does.
    pub(crate) fn read_ahead(&mut self, read: impl FnOnce(Pin<Box<OriginBody>>) -> Reader) {
        if self.left.is_some_and(|left| left <= memory::SMALL as u64) {
            return;
        }
        self.source = match mem::replace(&mut self.source, Source::Nothing) {
            Source::Origin(body) => {
                let reader = read(body);
                self.memory = Memory::Of(Arc::clone(reader.footprint()));
                Source::Log(reader)
            }
            source => source,
        };
    }

    /// Has its reader known to the account of its memory.
    #[inline]
    pub(crate) fn read_by(&mut self, who: Who, client: &Client) {
        if let Memory::Of(footprint) = &self.memory {
            self.memory = Memory::Read(footprint.read_by(who, client.connected()));
        }
    }

    /// Of what would have gone out, the part from here on, so long.
    pub(crate) fn part(mut self, from: u64, len: u64) -> Body {
        if let Source::Whole(bytes) = &mut self.source {
            let end = bytes.len();
            let from = usize::try_from(from).unwrap_or(end).min(end);
            let to = from.saturating_add(usize::try_from(len).unwrap_or(end)).min(end);
            *bytes = bytes.slice(from..to);
        } else {
            self.skip = from;
        }
        self.left = Some(len);
        self
    }

    pub(crate) fn witnessed(mut self, witness: Box<dyn Witness>) -> Body {
        self.witness = Some(witness);
        self
    }

    /// Whether all of it is here, so that nothing more can be learned by waiting for its end.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.source, Source::Nothing | Source::Whole(_) | Source::Parts(..))
    }

    fn new(source: Source, left: Option<u64>) -> Body {
        Body { source, skip: 0, left, sent: 0, memory: Memory::Small, trailers: None, witness: None }
    }

    fn end(&mut self, whole: bool) {
        // What is shared is let go as soon as it is not needed any more.
        self.source = Source::Nothing;
        self.memory = Memory::Small;
        self.left = Some(0);
        if let Some(witness) = self.witness.take() {
            witness.over(self.sent, whole);
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CutOff>>> {
        match &mut self.source {
            Source::Nothing => Poll::Ready(None),
            Source::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                self.source = Source::Nothing;
                Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes)))
            }
            Source::Parts(parts, next) => {
                let part = parts.get(*next).cloned();
                *next += 1;
                Poll::Ready(part.map(Ok))
            }
            Source::Log(reader) => reader.poll_next(cx).map_err(CutOff::Shared),
            Source::Origin(body) => loop {
                let Some(frame) = ready!(body.as_mut().poll_frame(cx)) else { return Poll::Ready(None) };
                match frame.map(Frame::into_data) {
                    Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                    // Trailers are elsewhere.
                    Ok(Err(_)) => {}
                    Err(error) => return Poll::Ready(Some(Err(CutOff::Origin(error)))),
                }
            },
        }
    }

    /// What of a chunk is to go out.
    fn cut(&mut self, mut chunk: Bytes) -> Bytes {
        let skipped = self.skip.min(chunk.len() as u64);
        self.skip -= skipped;
        drop(chunk.split_to(usize::try_from(skipped).unwrap_or(0)));
        if let Some(left) = &mut self.left {
            chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= chunk.len() as u64;
        }
        chunk
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let body = self.get_mut();
        while body.left != Some(0) {
            match ready!(body.poll_chunk(cx)) {
                Some(Ok(chunk)) => {
                    let mut chunk = body.cut(chunk);
                    if !chunk.is_empty() {
                        body.sent += chunk.len() as u64;
                        if body.left == Some(0) {
                            // From here on hyper holds it, for as long as the client lets it wait.
                            if let Memory::Read(reading) = mem::replace(&mut body.memory, Memory::Small) {
                                chunk = reading.until_written(chunk);
                            }
                            body.end(true);
                        }
                        return Poll::Ready(Some(Ok(Frame::data(chunk))));
                    }
                }
                Some(Err(error)) => {
                    body.end(false);
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    let whole = body.left.is_none();
                    body.end(whole);
                    let trailers = body.trailers.take().filter(|_| whole).and_then(|place| place.get().cloned());
                    if let Some(trailers) = trailers {
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                    return Poll::Ready((!whole).then_some(Err(CutOff::Short)));
                }
            }
        }
        body.end(true);
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let whole = self.left == Some(0);
        self.end(whole);
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("left", &self.left).field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutOff::Shared(broken) => write!(f, "{broken}"),
            CutOff::Origin(error) => write!(f, "{error}"),
            CutOff::Short => f.write_str("the body ended before all of it had come"),
        }
    }
}

impl Error for CutOff {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CutOff::Shared(broken) => Some(broken),
            CutOff::Origin(error) => Some(error),
            CutOff::Short => None,
        }
    }
}
