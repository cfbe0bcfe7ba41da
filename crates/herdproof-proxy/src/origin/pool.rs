//! Connections to one origin.
//!
//! A pool that dials whenever it finds none idle gives a restarted origin all of its handshakes at once, and one that hands
//! out whatever was returned sends the next request into what is left of the last answer. So:
//!
//! - **As many as there are seats.** A connection is idle or belongs to somebody with a seat, who gives that back only after
//!   the connection is back here or closed. A gate bounds those being made.
//! - **Used again only if nothing is owed.** Whoever read the answer to its end returns the connection; hyper says when the
//!   request is also written to its end, and only then it is idle. In every other case it is closed.
//! - **The latest first**, so that those which are not needed grow old and are closed, each at an age of its own.
//!
//! The task of a connection ([`drive`]) has the only timer: a request costs none.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use herdproof::{
    Env, Tick,
    connect::{ConnectGate, MaxAge},
    env::Rng,
    gate::{Ask, Gate, Permit, Span, Verdict},
    retry::by,
};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpStream, sync::Notify};

use super::{BadResponse, OriginError, OriginSettings, body::Sending, names::Names, stack::Place};

/// Connections being made at a time. Enough for 300 a second to an origin a tenth of a second away, and less than the
/// shortest line before an accept.
const DIALS: u32 = 32;
/// Connections begun in a second.
const DIALS_A_SECOND: u32 = 5_000;
/// How long a connection stays idle. Most servers close theirs after a minute or more; who closes first is never surprised.
const IDLE: Duration = Duration::from_secs(50);
/// Bytes in the head of an answer.
const HEAD: usize = 64 * 1024;
/// Bytes that are read at a time, at most.
const READ: usize = 128 * 1024;

/// See the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    env: Env,
    rng: Rng,
    names: Names,
    gate: ConnectGate,
    age: MaxAge,
    /// Connections there may be.
    most: u32,
    max_idle: usize,
    connect_timeout: Duration,
    times: Times,
    builder: http1::Builder,
    /// The latest last.
    idle: Mutex<Vec<Idle>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// From before it is made to after it is closed.
    open: AtomicU32,
    /// Told when one is closed.
    closed: Notify,
    dialling: AtomicU32,
    dialled: AtomicU64,
    failed: AtomicU64,
}

/// How long what may take.
#[derive(Clone, Copy, Debug)]
struct Times {
    head: Duration,
    body: Duration,
    idle: Duration,
}

struct Idle {
    link: Arc<Link>,
    sender: Sender,
}

type Sender = SendRequest<Sending>;
pub(super) type Unsent = TrySendError<Request<Sending>>;

/// What a connection's task and whoever uses the connection share.
pub(super) struct Link {
    env: Env,
    address: SocketAddr,
    /// From when on it is not used again.
    ends: Tick,
    times: Times,
    /// When the wait that is under way has been too long, in nanoseconds. Never sooner than the shortest of the times after it
    /// is set, so that a task which looks that often is never late.
    due: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// To be used again as soon as hyper is ready, with the seat that goes then.
    returned: Option<(Sender, Place)>,
    /// To be closed, with the seat that goes after that.
    abandoned: Option<Place>,
    closing: bool,
    /// The wait that was too long, which is why it was closed.
    stalled: Option<Duration>,
    /// What the body of the request has come to.
    request: Progress,
    /// The head of the answer has come.
    answered: bool,
    waker: Option<Waker>,
}

/// How far the body of a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// The client is waited for.
    Client,
    /// The origin is waited for, to take it.
    Origin,
    /// All of it is written.
    #[default]
    Over,
    /// It ended in an error.
    Failed,
}

/// A connection in use. Dropping it closes the connection, and only then gives back the seat.
pub(super) struct Lease {
    pub(super) link: Arc<Link>,
    pool: Weak<Shared>,
    /// Both there until it is given back or dropped.
    sender: Option<Sender>,
    place: Option<Place>,
    pub(super) reused: bool,
}

/// How many connections there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolStats {
    pub(super) open: u32,
    pub(super) idle: u32,
    pub(super) dialling: u32,
    pub(super) dialled: u64,
    pub(super) failed: u64,
}

impl Pool {
    pub(super) fn new(env: &Env, settings: &OriginSettings, names: Names) -> Pool {
        let most = settings.limit.max(1);
        let at_once = DIALS.min(most);
        let gate = ConnectGate::dialling(env)
            .at_once(at_once)
            .per_second(DIALS_A_SECOND)
            .max_waiting(usize::try_from(most).unwrap_or(usize::MAX))
            .build();
        let mut builder = http1::Builder::new();
        builder.max_header_size(HEAD).max_buf_size(READ);
        Pool(Arc::new(Shared {
            env: env.clone(),
            rng: env.rng("origin/pool"),
            names,
            gate,
            age: MaxAge::new(settings.max_age),
            most,
            max_idle: usize::try_from(settings.max_idle).unwrap_or(usize::MAX),
            connect_timeout: settings.connect_timeout,
            times: Times { head: settings.head_timeout, body: settings.body_timeout, idle: IDLE },
            builder,
            idle: Mutex::default(),
            counts: Arc::default(),
        }))
    }

    /// A connection that can be used at once: idle, unless it is to be a fresh one, or newly made.
    pub(super) async fn connect(&self, place: Place, fresh: bool) -> Result<Lease, (io::Error, Place)> {
        let shared = &self.0;
        if !fresh && let Some(idle) = shared.take_idle() {
            return Ok(shared.lease(idle, place, true));
        }
        match shared.dial(fresh).await {
            Ok((idle, reused)) => Ok(shared.lease(idle, place, reused)),
            Err(error) => {
                shared.counts.failed.fetch_add(1, Relaxed);
                Err((error, place))
            }
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        let Shared { counts, idle, .. } = &*self.0;
        PoolStats {
            open: counts.open.load(Relaxed),
            idle: u32::try_from(idle.lock().len()).unwrap_or(u32::MAX),
            dialling: counts.dialling.load(Relaxed),
            dialled: counts.dialled.load(Relaxed),
            failed: counts.failed.load(Relaxed),
        }
    }

    /// When those end that are idle.
    #[cfg(test)]
    pub(super) fn ends(&self) -> Vec<Tick> {
        self.0.idle.lock().iter().map(|idle| idle.link.ends).collect()
    }
}

impl Shared {
    fn take_idle(&self) -> Option<Idle> {
        let now = self.env.coarse();
        loop {
            let mut all = self.idle.lock();
            let idle = all.pop()?;
            // While the lock is held: its task must not find it neither among the idle ones nor in time.
            idle.link.rest();
            drop(all);
            if idle.sender.is_ready() && now < idle.link.ends && self.names.has(idle.link.address) {
                return Some(idle);
            }
        }
    }

    /// Gives it back if it is too old to be used again.
    fn put_idle(&self, idle: Idle) -> Option<Idle> {
        if self.env.coarse() >= idle.link.ends || self.max_idle == 0 {
            return Some(idle);
        }
        let mut all = self.idle.lock();
        idle.link.wait_idle();
        let oldest = (all.len() >= self.max_idle).then(|| all.remove(0));
        all.push(idle);
        drop(all);
        drop(oldest);
        None
    }

    /// Room for one more connection, or one that is idle. Those that are being closed are waited for.
    ///
    /// Whoever asks has a seat and no connection. So if there are as many as there may be, one of them is idle or about to be
    /// closed, and nobody waits for long.
    async fn room(&self) -> Result<Open, Idle> {
        loop {
            let closed = self.counts.closed.notified();
            if let Some(open) = Open::reserve(&self.counts, self.most) {
                return Ok(open);
            }
            if let Some(idle) = self.take_idle() {
                return Err(idle);
            }
            closed.await;
        }
    }

    fn lease(self: &Arc<Shared>, idle: Idle, place: Place, reused: bool) -> Lease {
        let Idle { link, sender } = idle;
        Lease { link, pool: Arc::downgrade(self), sender: Some(sender), place: Some(place), reused }
    }

    /// Makes a connection, when it is this one's turn; unless another has become idle by then.
    async fn dial(self: &Arc<Shared>, fresh: bool) -> io::Result<(Idle, bool)> {
        let mut ask = Ask::new(&self.env);
        let deadline = ask.at + self.connect_timeout;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        let making = async {
            let permit = self.gate.enter(&mut ask).await.map_err(io::Error::other)?;
            if let (false, Some(idle)) = (fresh, self.take_idle()) {
                return Ok((idle, true));
            }
            let open = match self.room().await {
                Ok(open) => open,
                Err(idle) => return Ok((idle, true)),
            };
            let dialling = Count::up(&self.counts.dialling);
            let (stream, address) = self.reach(deadline).await?;
            permit.settle(&Verdict::Ok, Span { from: ask.at, to: self.env.now() });
            let crowded = self.counts.dialling.load(Relaxed) > 1;
            drop(dialling);
            self.start(stream, address, crowded, open).await.map(|idle| (idle, false))
        };
        by(&self.env, Some(deadline), making).await.unwrap_or_else(|| Err(late()))
    }

    /// Tries the addresses in turn. Each has its share of the time that is left, so that one which never answers does not take
    /// it all.
    async fn reach(&self, deadline: Tick) -> io::Result<(TcpStream, SocketAddr)> {
        let addresses = self.names.addresses().await?;
        let mut last = None;
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let now = self.env.now();
            let until = now + (deadline - now) / left;
            self.counts.dialled.fetch_add(1, Relaxed);
            match by(&self.env, Some(until), TcpStream::connect(address)).await {
                Some(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok((stream, *address));
                }
                Some(Err(error)) => last = Some(error),
                None => last = Some(io::Error::new(io::ErrorKind::TimedOut, "no connection in time")),
            }
            self.names.failed(*address);
        }
        Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the origin's name has no address")))
    }

    /// The connection's own task.
    async fn start(
        self: &Arc<Shared>,
        stream: TcpStream,
        address: SocketAddr,
        crowded: bool,
        open: Open,
    ) -> io::Result<Idle> {
        let handshake = self.builder.handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        let link = Arc::new(Link {
            env: self.env.clone(),
            address,
            ends: self.env.coarse() + self.age.lifetime(crowded, &self.rng).life,
            times: self.times,
            due: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
        });
        let task = drive(Arc::downgrade(self), Arc::clone(&link), connection, open);
        self.env.spawn(task).detach();
        Ok(Idle { link, sender })
    }

    /// Takes a connection out of the idle ones; `None` if somebody has it.
    fn remove(&self, link: &Arc<Link>) -> Option<Idle> {
        let mut idle = self.idle.lock();
        let place = idle.iter().position(|idle| Arc::ptr_eq(&idle.link, link))?;
        Some(idle.remove(place))
    }
}

/// Does what a connection needs until it is closed: reads, writes, and looks after whoever is waited for.
async fn drive<C>(pool: Weak<Shared>, link: Arc<Link>, connection: C, open: Open)
where
    C: Future,
{
    {
        let mut connection = pin!(connection);
        let mut timer = link.env.sleep(link.times.shortest());
        poll_fn(|cx| {
            if link.is_closing(cx) || connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            link.hand_over(&pool);
            while let Poll::Ready(now) = Pin::new(&mut timer).poll(cx) {
                if link.is_over(now, &pool) {
                    return Poll::Ready(());
                }
                let due = Tick::from_nanos(link.due.load(Relaxed));
                timer = link.env.sleep_until(due.min(now + link.times.shortest()).max(now + TICK));
            }
            Poll::Pending
        })
        .await;
    }
    // The connection is closed from here on. Then it is no longer counted, and only then somebody else gets the seat.
    drop(open);
    if let Some(pool) = pool.upgrade() {
        drop(pool.remove(&link));
    }
    link.closed();
}

/// The finest that a task looks at what is due.
const TICK: Duration = Duration::from_millis(1);

impl Times {
    fn shortest(&self) -> Duration {
        self.head.min(self.body).min(self.idle).max(TICK)
    }
}

impl Link {
    /// The body of a request has come so far.
    pub(super) fn sending(&self, progress: Progress) {
        let mut state = self.state.lock();
        state.request = progress;
        if state.answered {
            // Who reads the answer says who is waited for.
            return;
        }
        match progress {
            Progress::Client | Progress::Failed => self.rest(),
            Progress::Origin => self.set_due(self.times.body),
            Progress::Over => self.set_due(self.times.head),
        }
    }

    /// The origin is waited for, to send something of its body.
    pub(super) fn wait_for_body(&self) {
        self.set_due(self.times.body);
    }

    fn wait_idle(&self) {
        let until = (self.env.coarse() + self.times.idle).min(self.ends);
        self.due.store(until.as_nanos(), Relaxed);
    }

    /// It is not the origin that is waited for.
    pub(super) fn rest(&self) {
        self.due.store(u64::MAX, Relaxed);
    }

    fn set_due(&self, time: Duration) {
        self.due.store((self.env.coarse() + time).as_nanos(), Relaxed);
    }

    /// Whether whoever had it wants it closed; its task is woken when they do.
    fn is_closing(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state.lock();
        if !state.closing && !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        state.closing
    }

    /// Puts a connection that was returned among the idle ones, if nothing is owed over it any more.
    ///
    /// Whoever returns it says so, then looks whether hyper is ready. Its task lets hyper become ready, then looks whether it
    /// was returned. Whichever is last sees both.
    fn hand_over(self: &Arc<Link>, pool: &Weak<Shared>) {
        let ready = |returned: &mut (Sender, Place)| returned.0.is_ready();
        let Some((sender, place)) = self.state.lock().returned.take_if(ready) else { return };
        let idle = Idle { link: Arc::clone(self), sender };
        let idle = match pool.upgrade() {
            Some(pool) => pool.put_idle(idle),
            None => Some(idle),
        };
        match idle {
            // Now whoever is next finds it.
            None => drop(place),
            Some(idle) => self.close(idle.sender, Some(place)),
        }
    }

    /// Has its task close it, and give back the seat after that.
    fn close(&self, sender: Sender, place: Option<Place>) {
        let mut state = self.state.lock();
        if state.closing {
            return;
        }
        state.closing = true;
        state.abandoned = place;
        let waker = state.waker.take();
        drop(state);
        drop(sender);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the wait that is under way has been too long.
    fn is_over(self: &Arc<Link>, now: Tick, pool: &Weak<Shared>) -> bool {
        if now.as_nanos() < self.due.load(Relaxed) {
            return false;
        }
        let Some(pool) = pool.upgrade() else { return true };
        if let Some(idle) = pool.remove(self) {
            drop(idle);
            return true;
        }
        // Somebody has it, perhaps since a moment ago.
        let over = now.as_nanos() >= self.due.load(SeqCst);
        if over {
            self.state.lock().stalled = Some(self.times.body);
        }
        over
    }

    /// Whatever seat is still held goes now.
    fn closed(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let left = (state.returned.take(), state.abandoned.take(), state.waker.take());
        drop(state);
        drop(left);
    }
}

impl Lease {
    /// Sends a request and waits for the head of its answer; gives the request back if nothing of it was sent.
    pub(super) async fn send(&mut self, mut request: Request<Sending>) -> Result<Response<Incoming>, Unsent> {
        self.link.state.lock().answered = false;
        request.body_mut().over(&self.link);
        self.link.sending(if request.body().is_nothing() { Progress::Over } else { Progress::Origin });
        let sent = match &mut self.sender {
            Some(sender) => sender.try_send_request(request),
            None => std::future::pending().await,
        };
        let outcome = sent.await;
        let mut state = self.link.state.lock();
        state.answered = true;
        self.link.rest();
        drop(state);
        outcome
    }

    /// What an error of the connection means.
    pub(super) fn why(&self, error: hyper::Error) -> OriginError {
        let state = self.link.state.lock();
        if state.stalled.is_some() {
            OriginError::TimedOut
        } else if state.request == Progress::Failed {
            OriginError::Request(error)
        } else if error.is_parse() {
            OriginError::BadResponse(BadResponse::Unreadable(error))
        } else {
            OriginError::Broken(error)
        }
    }

    /// The seat, to say how it went.
    pub(super) fn place(&mut self) -> Option<&mut Place> {
        self.place.as_mut()
    }

    /// How long was waited for in vain, if that is why the connection was closed.
    pub(super) fn stalled(&self) -> Option<Duration> {
        self.link.state.lock().stalled
    }

    /// The answer was read to its end. If the origin is still owed a part of the request, which it has answered all the same,
    /// the connection is closed: it would take the next request for that part.
    pub(super) fn give_back(mut self) {
        let mut state = self.link.state.lock();
        if state.closing || state.request != Progress::Over {
            return;
        }
        state.returned = self.sender.take().zip(self.place.take());
        // From the request being written to hyper being ready is a moment.
        self.link.wait_for_body();
        drop(state);
        self.link.hand_over(&self.pool);
    }

    /// Takes the seat, for another connection: this one is closed.
    pub(super) fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.link.close(sender, self.place.take());
        }
    }
}

/// A connection that is counted, or room for one.
struct Open(Arc<Counts>);

impl Open {
    fn reserve(counts: &Arc<Counts>, most: u32) -> Option<Open> {
        let more = |open: u32| (open < most).then_some(open + 1);
        counts.open.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Open(Arc::clone(counts)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
        self.0.closed.notify_waiters();
    }
}

struct Count<'a>(&'a AtomicU32);

impl Count<'_> {
    fn up(counter: &AtomicU32) -> Count<'_> {
        counter.fetch_add(1, Relaxed);
        Count(counter)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
