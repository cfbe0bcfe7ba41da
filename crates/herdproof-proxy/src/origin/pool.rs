//! Connections to one origin.
//!
//! A pool that dials whenever it finds none idle gives a restarted origin all of its handshakes at once, and one that hands
//! out whatever was returned sends the next request into what is left of the last answer. So:
//!
//! - **As many as there are seats.** A connection is idle or belongs to somebody with a seat, who gives that back only after
//!   the connection is back here or closed. A gate bounds those being made.
//! - **Used again only if nothing is owed.** Whoever read the answer to its end returns the connection; hyper says when the
//!   request is also written to its end, and only then it is idle. In every other case it is closed.
//! - **Bodies apart.** An origin that answers without reading a body takes it for the next request on the connection, and a client can
//!   put one there. So what has carried a body is used again only for requests with one: never for a page that others share.
//! - **The latest first**, so that those which are not needed grow old and are closed, each at an age of its own.
//!
//! The task of a connection ([`drive`]) has the only timer: a request costs none.

mod link;
mod socket;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use herdproof::{
    Env, Tick,
    connect::{ConnectGate, MaxAge},
    env::Rng,
    gate::{Ask, Gate, Permit, Place as _, Span, Verdict},
    timeout::by,
};
use http::Request;
use hyper::client::conn::{
    TrySendError,
    http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use self::link::{Lease, Link, Progress};
use self::{
    link::{Times, drive},
    socket::Socket,
};
use super::{OriginSettings, body::Sending, names::Names, seat::Place};
use crate::stream::Stream;

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

struct Idle {
    link: Arc<Link>,
    sender: Sender,
}

/// Which idle connection will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// None: whatever broke the last attempt may have broken all of them.
    New,
    /// One that has carried no body, for a request without one.
    Clean,
    /// Any, for a request with a body; one that has carried one first.
    Any,
}

impl Wanted {
    /// Where the latest of those is that will do.
    fn place(self, all: &[Idle]) -> Option<usize> {
        let has_carried = |idle: &Idle| idle.link.has_carried();
        match self {
            Wanted::New => None,
            Wanted::Clean => all.iter().rposition(|idle| !has_carried(idle)),
            Wanted::Any => all.iter().rposition(has_carried).or(all.len().checked_sub(1)),
        }
    }
}

type Sender = SendRequest<Sending>;
pub(super) type Unsent = TrySendError<Request<Sending>>;

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

    /// A connection that can be used at once: idle, if one of those will do, or newly made.
    pub(super) async fn connect(&self, place: Place, wanted: Wanted) -> Result<Lease, (io::Error, Place)> {
        let shared = &self.0;
        if let Some(idle) = shared.take_idle(wanted) {
            return Ok(shared.lease(idle, place, true));
        }
        match shared.dial(wanted).await {
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
    fn take_idle(&self, wanted: Wanted) -> Option<Idle> {
        let now = self.env.coarse();
        loop {
            let mut all = self.idle.lock();
            let place = wanted.place(&all)?;
            let idle = all.remove(place);
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
        // Behind one that leads to where the name leads now, one that does not would lie unseen.
        let is_of_use = self.env.coarse() < idle.link.ends && self.names.has(idle.link.address);
        if !is_of_use || self.max_idle == 0 {
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
    async fn room(&self, wanted: Wanted) -> Result<Open, Idle> {
        loop {
            let closed = self.counts.closed.notified();
            if let Some(open) = Open::reserve(&self.counts, self.most) {
                return Ok(open);
            }
            if let Some(idle) = self.take_idle(wanted) {
                return Err(idle);
            }
            // One that will not do makes room for one that will.
            drop(self.take_idle(Wanted::Any));
            closed.await;
        }
    }

    fn lease(self: &Arc<Shared>, idle: Idle, place: Place, reused: bool) -> Lease {
        let Idle { link, sender } = idle;
        Lease::new(link, Arc::downgrade(self), sender, place, reused)
    }

    /// Makes a connection, when it is this one's turn; unless another has become idle by then.
    async fn dial(self: &Arc<Shared>, wanted: Wanted) -> io::Result<(Idle, bool)> {
        let mut ask = Ask::new(&self.env);
        let deadline = ask.at + self.connect_timeout;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        let making = async {
            let turn = self.gate.reserve(&mut ask).await.map_err(io::Error::other)?;
            if let Some(idle) = self.take_idle(wanted) {
                return Ok((idle, true));
            }
            let open = match self.room(wanted).await {
                Ok(open) => open,
                Err(idle) => return Ok((idle, true)),
            };
            let permit = turn.commit();
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
    async fn reach(&self, deadline: Tick) -> io::Result<(Stream, SocketAddr)> {
        let addresses = self.names.addresses().await?;
        let mut last = None;
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let now = self.env.now();
            let until = now + (deadline - now) / left;
            self.counts.dialled.fetch_add(1, Relaxed);
            match by(&self.env, Some(until), self.names.connect(*address)).await {
                Some(Ok(stream)) => return Ok((stream, *address)),
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
        stream: Stream,
        address: SocketAddr,
        crowded: bool,
        open: Open,
    ) -> io::Result<Idle> {
        let ends = self.env.coarse() + self.age.lifetime(crowded, &self.rng).life;
        let link = Arc::new(Link::new(&self.env, address, ends, self.times));
        let handshake = self.builder.handshake(TokioIo::new(Socket::new(stream, &link)));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        let task = drive(Arc::downgrade(self), Arc::clone(&link), connection.with_upgrades(), open);
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
