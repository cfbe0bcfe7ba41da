//! Bodies of requests: what they may hold while their clients send them.
//!
//! A request that takes a seat at the origin and then waits for its client's body holds the seat for as long as the client likes:
//! eight slow uploads shut an origin with eight seats. So a small body is read first ([`memory`] says into how much memory), and the
//! request takes its seat when all of it is here. A larger one is streamed, on one of the upload seats ([`seats`]), which are a
//! quarter of all, shared by clients, and kept by whoever sends fast enough ([`rate`]).
//!
//! | body | held while the client sends | who is too slow |
//! |---|---|---|
//! | 64 KiB at most | memory | the listener ends its connection |
//! | larger, or of unknown length and not over within 64 KiB | an upload seat and a seat | 408 |
//! | gRPC | the same | 408 after a minute without a byte, or if somebody needs the seat |
//!
//! Nothing of a larger body is read before it has its seats. hyper tells a client with `Expect: 100-continue` to go on when its body
//! is read for the first time, so such a client hears of a refusal before it sends anything.

mod memory;
mod rate;
mod seats;
#[cfg(test)]
#[cfg(not(herdproof_shuttle))]
mod tests;

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, Tick, env::Sleep, timeout::by};
use http::{HeaderMap, Request, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::{
    memory::{Memory, Room},
    rate::Meter,
    seats::{Asked, Seats, seats_of},
};
use crate::origin::Origin;

/// A body of so many bytes is read before a seat is taken.
const SMALL: usize = 64 << 10;
/// What a buffer begins with.
const LEAST_BUFFER: usize = 1 << 10;
/// How often an upload that waits for its client is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long an upload without a rate may pause.
const PAUSE: Duration = Duration::from_secs(60);
/// How long an origin may take to say whether it wants a body, before it is sent. Clients wait about as long for us.
const CONTINUE: Duration = Duration::from_secs(1);

type Cause = Box<dyn Error + Send + Sync>;

/// All uploads of one proxy. Cheap to clone, and clones share.
#[derive(Clone)]
pub(super) struct Uploads(Arc<Shared>);

struct Shared {
    env: Env,
    origin: Origin,
    memory: Mutex<Memory>,
    seats: Mutex<Seats<oneshot::Sender<Turn>>>,
    slow: AtomicU64,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Seated,
    Refused,
}

/// How uploads are, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UploadStats {
    /// Bytes of bodies in buffers.
    pub(super) buffered: u64,
    /// Upload seats that are taken.
    pub(super) held: u32,
    /// Uploads that wait for one.
    pub(super) waiting: usize,
    /// Uploads that were too slow, in all.
    pub(super) slow: u64,
}

/// Why a body does not go to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is no memory for it, or no upload seat came free in time.
    Busy,
    /// It came too slowly.
    Slow,
    /// It is malformed, or broke off.
    Broken,
}

impl Uploads {
    pub(super) fn new(env: &Env, origin: &Origin, buffer: u64) -> Uploads {
        Uploads(Arc::new(Shared {
            env: env.clone(),
            origin: origin.clone(),
            memory: Mutex::new(Memory::new(buffer)),
            seats: Mutex::new(Seats::new()),
            slow: AtomicU64::new(0),
        }))
    }

    pub(super) fn stats(&self) -> UploadStats {
        let Shared { memory, seats, slow, .. } = &*self.0;
        let buffered = memory.lock().used();
        let seats = seats.lock();
        UploadStats { buffered, held: seats.held(), waiting: seats.waiting(), slow: slow.load(Relaxed) }
    }

    /// Takes a client's body: all of it, if it is small, else the right to stream it, before this deadline.
    pub(super) async fn receive<B>(
        &self,
        who: u64,
        headers: &HeaderMap,
        body: B,
        deadline: Tick,
    ) -> Result<Carried, Refused>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Cause>,
    {
        let pauses = may_pause(headers);
        let expects = expects_continue(headers);
        let size = body.size_hint();
        // Of unknown length, and not to be sent before we say so: we would have to say so to find out how long it is.
        let is_small = !pauses && size.exact().map_or(!expects, |length| length <= SMALL as u64);
        let mut body = body.map_err(Into::into).boxed_unsync();
        let mut first = VecDeque::new();
        if is_small {
            match self.buffer(who, &mut body, size.exact()).await? {
                Buffered::Whole(bytes, trailers) => return Ok(Carried::Whole(bytes, trailers)),
                Buffered::Beginning(pieces) => first = pieces,
            }
        }
        let seat = self.enter(who, deadline).await.ok_or(Refused::Busy)?;
        if pauses {
            self.0.seats.lock().may_pause(seat.id);
        }
        let go = (expects && !is_small).then(Go::default);
        let progress = Arc::new(Progress::default());
        let meter = Meter::default();
        let streamed = Streamed { first, body, go, seat: Some(seat), meter, pauses, look: None, heard: None, progress };
        Ok(Carried::Streamed(Box::new(streamed)))
    }

    /// Reads a body, as long as it is small and there is memory for it.
    async fn buffer(
        &self,
        who: u64,
        body: &mut UnsyncBoxBody<Bytes, Cause>,
        length: Option<u64>,
    ) -> Result<Buffered, Refused> {
        let most = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(SMALL);
        let mut kept = Kept { bytes: Vec::new(), charge: self.charge(who) };
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let mut data = match frame.map_err(|_| Refused::Broken)?.into_data() {
                Ok(data) => data,
                // hyper takes no more than 16 KiB of them.
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
            };
            let fits = kept.bytes.len() + data.len() <= SMALL;
            let room = if fits { kept.reserve(data.len(), most) } else { kept.charge.take(data.len()) };
            match room {
                Room::Share => return Err(Refused::Busy),
                Room::Given if fits => kept.bytes.extend_from_slice(&data),
                Room::Given => {
                    let charge = kept.charge.split(data.len());
                    data = Bytes::from_owner(Charged { data, _charge: charge });
                    return Ok(kept.beginning(data));
                }
                Room::Full => return Ok(kept.beginning(data)),
            }
        }
        Ok(Buffered::Whole(kept.into_bytes(), trailers.map(Box::new)))
    }

    fn charge(&self, who: u64) -> Charge {
        Charge { uploads: self.clone(), who, bytes: 0 }
    }

    /// An upload seat; none if there is none in time, or too many wait.
    async fn enter(&self, who: u64, deadline: Tick) -> Option<Seat> {
        let (tell, told) = oneshot::channel();
        let count = self.count();
        let Asked { id, seated, refused } = self.0.seats.lock().ask(who, tell, count);
        let seat = id.map(|id| Seat { uploads: self.clone(), id, who });
        say(seated, Turn::Seated);
        say(refused, Turn::Refused);
        let turn = by(&self.0.env, Some(deadline), told).await?;
        seat.filter(|_| turn == Ok(Turn::Seated))
    }

    /// How many upload seats there are, now that the limit is what it is.
    fn count(&self) -> u32 {
        seats_of(self.0.origin.limit())
    }
}

fn say(waiters: impl IntoIterator<Item = oneshot::Sender<Turn>>, turn: Turn) {
    for waiter in waiters {
        // Who has left meanwhile gives its seat back itself.
        waiter.send(turn).ok();
    }
}

/// Whether a body may come in pieces with long pauses between them: that of a gRPC call, which lasts as long as the call.
pub(super) fn may_pause(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..16).is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/grpc"))
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// What came of reading a body that may be small.
enum Buffered {
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// It is larger, or there is no more memory.
    Beginning(VecDeque<Bytes>),
}

/// Memory that a client has; dropping it gives it back.
struct Charge {
    uploads: Uploads,
    who: u64,
    bytes: usize,
}

impl Charge {
    fn take(&mut self, bytes: usize) -> Room {
        let room = self.uploads.0.memory.lock().take(self.who, bytes as u64);
        if room == Room::Given {
            self.bytes += bytes;
        }
        room
    }

    /// A part of it, to be given back by itself.
    fn split(&mut self, bytes: usize) -> Charge {
        self.bytes -= bytes;
        Charge { uploads: self.uploads.clone(), who: self.who, bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.uploads.0.memory.lock().give_back(self.who, self.bytes as u64);
        }
    }
}

/// A small body, copied: the bytes as they were read would hold the connection's whole read buffer for a client that sends them
/// one at a time.
struct Kept {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Kept {
    /// Makes room for so many more bytes, and for what is expected to follow.
    fn reserve(&mut self, more: usize, most: usize) -> Room {
        let wanted = self.bytes.len() + more;
        if wanted <= self.charge.bytes {
            return Room::Given;
        }
        let capacity = (2 * self.charge.bytes).max(LEAST_BUFFER).min(most).max(wanted);
        let room = self.charge.take(capacity - self.charge.bytes);
        if room == Room::Given {
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        room
    }

    /// What was read before these bytes, and these.
    fn beginning(self, then: Bytes) -> Buffered {
        Buffered::Beginning([self.into_bytes(), then].into_iter().filter(|bytes| !bytes.is_empty()).collect())
    }

    /// The memory is given back with the last of the bytes.
    fn into_bytes(self) -> Bytes {
        if self.bytes.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes as they came, with the memory that they are charged for.
struct Charged {
    data: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// An upload seat, or a place in the line for one; dropping it makes room.
struct Seat {
    uploads: Uploads,
    id: u64,
    who: u64,
}

impl Seat {
    /// Whether the upload has to go, now that its client is waited for.
    fn must_go(&self, rate: Option<u64>, now: Tick) -> bool {
        let count = self.uploads.count();
        self.uploads.0.seats.lock().must_go(self.id, rate, count, now)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let count = self.uploads.count();
        let seated = self.uploads.0.seats.lock().leave(self.id, self.who, count);
        say(seated, Turn::Seated);
    }
}

/// A request's body on its way to the origin.
pub(super) enum Carried {
    /// All of it is here, and what comes after it.
    Whole(Bytes, Option<Box<HeaderMap>>),
    Streamed(Box<Streamed>),
}

/// A body that its client is still sending, on an upload seat.
pub(super) struct Streamed {
    /// What was read of it before it turned out not to be small.
    first: VecDeque<Bytes>,
    body: UnsyncBoxBody<Bytes, Cause>,
    /// There until the origin wants the body, if its client does not send it before that.
    go: Option<Go>,
    /// There until the body is over.
    seat: Option<Seat>,
    meter: Meter,
    pauses: bool,
    /// There from the first wait for the client on. Bytes that come do not put it off: else who sends one now and then is never
    /// looked at.
    look: Option<Sleep>,
    /// When its last bytes came.
    heard: Option<Tick>,
    progress: Arc<Progress>,
}

/// How far a streamed body is, as the request that it belongs to sees it.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU8);

const OVER: u8 = 1;
const SLOW: u8 = 2;
const BROKEN: u8 = 3;

impl Progress {
    fn is(&self, state: u8) {
        self.0.store(state, Release);
    }

    /// Whether all of it has been read.
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Acquire) == OVER
    }

    /// Why it broke off.
    pub(super) fn why(&self) -> Refused {
        if self.0.load(Acquire) == SLOW { Refused::Slow } else { Refused::Broken }
    }
}

impl Carried {
    /// Without what comes after it, so that it can go on with a length.
    pub(super) fn bare(self) -> Carried {
        match self {
            Carried::Whole(bytes, _) => Carried::Whole(bytes, None),
            streamed @ Carried::Streamed(_) => streamed,
        }
    }

    /// How far it is, if it is not here.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        match self {
            Carried::Whole(..) => None,
            Carried::Streamed(streamed) => Some(Arc::clone(&streamed.progress)),
        }
    }

    /// Has the origin say itself whether it wants the body, if the client waits for that; else nobody is asked.
    pub(super) fn expect(request: &mut Request<Carried>) {
        let asks = match request.body() {
            Carried::Streamed(streamed) => streamed.go.as_ref().map(|go| Arc::clone(&go.wanted)),
            Carried::Whole(..) => None,
        };
        match asks {
            Some(wanted) => hyper::ext::on_informational(request, move |response| {
                if response.status() == StatusCode::CONTINUE {
                    wanted.say();
                }
            }),
            None => drop(request.headers_mut().remove(header::EXPECT)),
        }
    }
}

impl Streamed {
    /// The client is waited for; whether that has been too long.
    fn is_too_slow(&mut self, env: &Env, cx: &mut Context<'_>) -> bool {
        let Some(seat) = &self.seat else { return false };
        let look = self.look.get_or_insert_with(|| env.sleep(LOOK));
        while let Poll::Ready(now) = Pin::new(&mut *look).poll(cx) {
            let heard = *self.heard.get_or_insert(now);
            if seat.must_go(self.meter.rate(now), now) || self.pauses && now - heard >= PAUSE {
                return true;
            }
            *look = env.sleep(LOOK);
        }
        false
    }

    fn end(&mut self, state: u8) {
        self.progress.is(state);
        self.look = None;
        self.seat = None;
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let this = self.get_mut();
        let Some(env) = this.seat.as_ref().map(|seat| seat.uploads.0.env.clone()) else { return Poll::Ready(None) };
        if let Some(go) = &mut this.go {
            ready!(go.poll(&env, cx));
            this.go = None;
        }
        if let Some(data) = this.first.pop_front() {
            if this.first.is_empty() && this.body.is_end_stream() {
                this.end(OVER);
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let now = env.now();
        match &frame {
            Poll::Pending => {
                this.meter.waits(now);
                if this.is_too_slow(&env, cx) {
                    if let Some(seat) = &this.seat {
                        seat.uploads.0.slow.fetch_add(1, Relaxed);
                    }
                    this.end(SLOW);
                    return Poll::Ready(Some(Err(TooSlow.into())));
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                this.meter.came(frame.data_ref().map_or(0, Bytes::len), now);
                this.heard = Some(now);
                if this.body.is_end_stream() {
                    this.end(OVER);
                }
            }
            Poll::Ready(Some(Err(_))) => this.end(BROKEN),
            Poll::Ready(None) => this.end(OVER),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && (self.seat.is_none() || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.iter().map(|data| data.len() as u64).sum::<u64>();
        let rest = self.body.size_hint();
        let mut size = SizeHint::new();
        size.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            size.set_upper(upper.saturating_add(first));
        }
        size
    }
}

impl Body for Carried {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        match self.get_mut() {
            Carried::Whole(bytes, trailers) if bytes.is_empty() => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))))
            }
            Carried::Whole(bytes, _) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Carried::Streamed(streamed) => Pin::new(&mut **streamed).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Carried::Whole(bytes, trailers) => bytes.is_empty() && trailers.is_none(),
            Carried::Streamed(streamed) => streamed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Carried::Whole(bytes, None) => SizeHint::with_exact(bytes.len() as u64),
            Carried::Whole(..) => SizeHint::new(),
            Carried::Streamed(streamed) => streamed.size_hint(),
        }
    }
}

/// Waits until the origin wants a body, but not for long: an origin that does not know of this would wait for us.
#[derive(Default)]
struct Go {
    wanted: Arc<Wanted>,
    /// There from when the origin has been asked.
    latest: Option<Sleep>,
}

/// Whether the origin wants the body.
#[derive(Default)]
struct Wanted(Mutex<(bool, Option<Waker>)>);

impl Go {
    fn poll(&mut self, env: &Env, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.wanted.0.lock();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        drop(state);
        let latest = self.latest.get_or_insert_with(|| env.sleep(CONTINUE));
        Pin::new(latest).poll(cx).map(|_| ())
    }
}

impl Wanted {
    fn say(&self) {
        let mut state = self.0.lock();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Why a body is broken off here.
#[derive(Debug)]
struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request came too slowly")
    }
}

impl Error for TooSlow {}
