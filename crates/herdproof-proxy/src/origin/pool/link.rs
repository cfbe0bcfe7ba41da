//! One connection: its task, which has the timer, and whoever uses it.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use herdproof::{Env, Tick, timeout::by};
use http::{Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::{Idle, Open, Sender, Shared, Unsent};
use crate::origin::{BadResponse, OriginError, body::Sending, seat::Place};

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) head: Duration,
    pub(super) body: Duration,
    pub(super) idle: Duration,
}

/// What a connection's task and whoever uses the connection share.
pub(in crate::origin) struct Link {
    env: Env,
    pub(super) address: SocketAddr,
    /// From when on it is not used again.
    pub(super) ends: Tick,
    times: Times,
    /// When the wait that is under way has been too long, in nanoseconds. Never sooner than the shortest of the times after it
    /// is set, so that a task which looks that often is never late.
    due: AtomicU64,
    /// Whether a request with a body has gone over it.
    has_carried: AtomicBool,
    /// Whether the origin takes no more.
    is_deaf: AtomicBool,
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
    /// When all of a request's body had been given to the connection, if it has one.
    sent: Option<Tick>,
    /// The head of the answer has come.
    answered: bool,
    waker: Option<Waker>,
}

/// How far the body of a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::origin) enum Progress {
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

/// A request that was sent, until the head of its answer.
type Sent = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Unsent>> + Send>>;

/// A connection in use. Dropping it closes the connection, and only then gives back the seat. Dropped between the request and the
/// head of its answer, it runs on until that ([`Place::runs_on`]).
pub(in crate::origin) struct Lease {
    pub(in crate::origin) link: Arc<Link>,
    pool: Weak<Shared>,
    /// Both there until it is given back or dropped.
    sender: Option<Sender>,
    place: Option<Place>,
    pub(in crate::origin) reused: bool,
    /// What is waited for, and since when.
    sent: Option<(Sent, Tick)>,
    /// Whether the origin has answered in HTTP/1.0. hyper speaks to it in that from then on, which has no chunks: a body whose
    /// length nobody knows would be lost.
    antiquated: bool,
}

/// Does what a connection needs until it is closed: reads, writes, and looks after whoever is waited for.
pub(super) async fn drive<C>(pool: Weak<Shared>, link: Arc<Link>, connection: C, open: Open)
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
    pub(super) fn new(env: &Env, address: SocketAddr, ends: Tick, times: Times) -> Link {
        let env = env.clone();
        Link {
            env,
            address,
            ends,
            times,
            due: AtomicU64::new(u64::MAX),
            has_carried: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    pub(super) fn has_carried(&self) -> bool {
        self.has_carried.load(Relaxed)
    }

    /// The origin takes no more over this connection.
    pub(super) fn set_deaf(&self) {
        self.is_deaf.store(true, Relaxed);
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Relaxed)
    }

    /// The body of a request has come so far.
    pub(in crate::origin) fn sending(&self, progress: Progress) {
        let mut state = self.state.lock();
        if progress == Progress::Over && state.request != Progress::Over {
            state.sent = Some(self.env.now());
        }
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
    pub(in crate::origin) fn wait_for_body(&self) {
        self.set_due(self.times.body);
    }

    pub(super) fn wait_idle(&self) {
        let until = (self.env.coarse() + self.times.idle).min(self.ends);
        self.due.store(until.as_nanos(), Relaxed);
    }

    /// It is not the origin that is waited for.
    pub(in crate::origin) fn rest(&self) {
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
    pub(super) fn new(link: Arc<Link>, pool: Weak<Shared>, sender: Sender, place: Place, reused: bool) -> Lease {
        Lease { link, pool, sender: Some(sender), place: Some(place), reused, sent: None, antiquated: false }
    }

    /// Sends a request and waits for the head of its answer; gives the request back if nothing of it was sent.
    pub(in crate::origin) async fn send(
        &mut self,
        mut request: Request<Sending>,
    ) -> Result<Response<Incoming>, Unsent> {
        {
            let mut state = self.link.state.lock();
            (state.answered, state.sent) = (false, None);
        }
        request.body_mut().over(&self.link);
        let has_body = !request.body().is_nothing();
        if has_body {
            self.link.has_carried.store(true, Relaxed);
        }
        self.link.sending(if has_body { Progress::Origin } else { Progress::Over });
        let sent: Sent = match &mut self.sender {
            Some(sender) => Box::pin(sender.try_send_request(request)),
            None => Box::pin(std::future::pending()),
        };
        let (sent, _) = self.sent.insert((sent, self.link.env.coarse()));
        let outcome = sent.await;
        self.sent = None;
        self.antiquated = outcome.as_ref().is_ok_and(|response| response.version() < Version::HTTP_11);
        let mut state = self.link.state.lock();
        state.answered = true;
        self.link.rest();
        drop(state);
        outcome
    }

    /// What an error of the connection means.
    pub(in crate::origin) fn why(&self, error: hyper::Error) -> OriginError {
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

    /// From when on the origin is to be blamed for a wait: not while a client sends its body.
    pub(in crate::origin) fn asked_at(&self, let_in: Tick) -> Tick {
        self.link.state.lock().sent.map_or(let_in, |sent| sent.max(let_in))
    }

    /// The seat, to say how it went.
    pub(in crate::origin) fn place(&mut self) -> Option<&mut Place> {
        self.place.as_mut()
    }

    /// How long was waited for in vain, if that is why the connection was closed.
    pub(in crate::origin) fn stalled(&self) -> Option<Duration> {
        self.link.state.lock().stalled
    }

    /// The answer was read to its end. If the origin is still owed a part of the request, which it has answered all the same,
    /// the connection is closed: it would take the next request for that part.
    pub(in crate::origin) fn give_back(mut self) {
        let mut state = self.link.state.lock();
        if state.closing || state.request != Progress::Over || self.antiquated || self.link.is_deaf() {
            return;
        }
        state.returned = self.sender.take().zip(self.place.take());
        // From the request being written to hyper being ready is a moment.
        self.link.wait_for_body();
        drop(state);
        self.link.hand_over(&self.pool);
    }

    /// Waits for the head of an answer that nobody wants any more. One that has a body is not worth reading: the connection is
    /// closed instead.
    async fn run_on(mut self, head: impl Future<Output = Option<Result<Response<Incoming>, Unsent>>>) {
        if let Some(Ok(response)) = head.await {
            self.antiquated = response.version() < Version::HTTP_11;
            // What comes after a 101 is not HTTP.
            if response.body().is_end_stream() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                self.give_back();
            }
        }
    }

    /// Takes the seat, for another connection: this one is closed.
    pub(in crate::origin) fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(sender) = self.sender.take() else { return };
        let place = self.place.take();
        match (self.sent.take(), place) {
            (Some((sent, since)), Some(place)) => {
                let (link, pool) = (Arc::clone(&self.link), self.pool.clone());
                let until = place.runs_on(since, link.times.head);
                let lease = Lease::new(link, pool, sender, place, self.reused);
                let env = self.link.env.clone();
                self.link.env.spawn(async move { lease.run_on(by(&env, Some(until), sent)).await }).detach();
            }
            (_, place) => self.link.close(sender, place),
        }
    }
}
