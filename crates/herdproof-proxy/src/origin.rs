//! The way to the origin, and the only one.
//!
//! Misses, passes, refreshes, retries and hedges all come through here, and so what is true here is true of the proxy: the
//! origin never has more to do at a time than its limit, whatever clients do and however it fails. `stack.rs` says who may
//! go, `pool.rs` over which connection.
//!
//! Two ways in: [`fetch`](Origin::fetch) for what may be repeated, and [`send`](Origin::send) for everything else.

mod body;
mod limit;
mod names;
mod pool;
mod probe;
mod seat;
mod stack;

use std::{
    array,
    error::Error,
    fmt, io,
    num::NonZero,
    path::PathBuf,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use herdproof::{
    Env, Tick,
    breaker::{Pass, Phase},
    event::Event,
    gate::{Ask, Gate, Priority, Refusal, Span, Verdict, Why},
    hedge::Which,
    retry::{Failure, GaveUp},
    timeout::by,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, uri::PathAndQuery};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::{body::Incoming, upgrade::Upgraded};
use parking_lot::Mutex;

pub use self::body::{BodyError, OriginBody};
use self::{
    body::Sending,
    names::Names,
    pool::{Lease, Pool, Wanted},
    probe::{Heard, Probe},
    seat::{Place, Race},
    stack::{Entry, Lesson, Stack},
};
use crate::{
    detail::Detail,
    metrics::{CODES, Histogram, Sum, class_of},
    policy::Terms,
    settings::{OriginSettings, UNIX, unix_path},
};

/// The one service behind the proxy; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Origin(Arc<Inner>);

struct Inner {
    /// For tasks and bodies, which do not keep it.
    me: Weak<Inner>,
    env: Env,
    stack: Stack,
    pool: Pool,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    answers: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
    refused: [AtomicU64; Why::ALL.len()],
    /// How long the origin took, by the class of the status; last where there was no answer.
    took: [Histogram; CODES.len() + 1],
    /// How long those waited in the line that were let in.
    queued: Histogram,
    /// The last thing heard of it was that it is not there.
    is_gone: AtomicBool,
    /// In words. Of those that were sent, or would have been.
    last_error: Mutex<Option<Arc<str>>>,
}

/// A request that may be repeated, because it has no body and changes nothing.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// `GET` or `HEAD`.
    pub method: Method,
    /// Path and query, byte for byte as the client sent them.
    pub target: Uri,
    /// As they are sent, with `Host` and without what concerns the client's connection only.
    pub headers: HeaderMap,
    /// The route of the target, as a hash: what is true of one route only is not taken for the whole origin.
    pub route: u64,
}

/// Whose seats further attempts with another head take: they are nobody's, and need no seat of the client whose request hangs or
/// breaks; nor do they stand in the line of refreshes and probes.
const OURS: NonZero<u64> = NonZero::<u64>::MIN;

/// When a further attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Further {
    /// While the first one has no answer yet.
    Beside,
    /// When the last one has failed.
    After,
}

/// In the extensions of an answer: it answers a further attempt, which had another head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second;

/// How a request failed in a way that speaks against the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No connection to it could be made.
    Connect,
    /// It did not begin its answer in time.
    Timeout,
    /// It closed the connection before its answer.
    Broken,
    /// Its answer cannot be understood in one way only.
    Protocol,
    /// It answered 5xx.
    Status,
    /// The body of its answer broke off.
    Body,
}

impl Fault {
    /// All there are.
    pub const ALL: [Fault; 6] =
        [Fault::Connect, Fault::Timeout, Fault::Broken, Fault::Protocol, Fault::Status, Fault::Body];

    /// What it is called in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Connect => "connect",
            Fault::Timeout => "timeout",
            Fault::Broken => "broken",
            Fault::Protocol => "protocol",
            Fault::Status => "status",
            Fault::Body => "body",
        }
    }

    fn of(error: &OriginError) -> Option<Fault> {
        match error {
            OriginError::Refused(_) | OriginError::Request(_) => None,
            OriginError::Connect(_) => Some(Fault::Connect),
            OriginError::TimedOut => Some(Fault::Timeout),
            OriginError::Broken(_) => Some(Fault::Broken),
            OriginError::BadResponse(_) => Some(Fault::Protocol),
        }
    }
}

/// In the extensions of a 101 that grants what was asked for: the connection, which is no longer one of the pool's.
#[derive(Clone)]
pub(crate) struct Granted(Arc<Mutex<Option<Upgraded>>>);

impl Granted {
    pub(crate) fn take(self) -> Option<Upgraded> {
        self.0.lock().take()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum OriginError {
    /// It was not asked: too much is under way, or it is down. Says when to come back.
    Refused(Refusal),
    /// No connection to it could be made.
    Connect(io::Error),
    /// It did not begin its answer in time.
    TimedOut,
    /// The connection was closed before the answer began.
    Broken(hyper::Error),
    /// What came was not an answer that can be understood in one way only.
    BadResponse(BadResponse),
    /// The request's own body ended in an error.
    Request(hyper::Error),
}

/// What is wrong with an answer.
#[derive(Debug)]
pub enum BadResponse {
    /// It is no HTTP, or too long.
    Unreadable(hyper::Error),
    /// How long its body is, is said twice.
    Length,
    /// Its body is coded in a way that was not asked for.
    TransferEncoding,
    /// It switches to a protocol that was not asked for.
    Upgrade,
}

/// An origin that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOrigin {
    url: String,
    why: &'static str,
}

/// How the way to the origin looks at a moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OriginStats {
    /// Requests under way, from the seat to the end of the body.
    pub in_flight: u32,
    /// How many there may be at present.
    pub limit: u32,
    /// Requests that wait for a seat.
    pub waiting: u32,
    /// Whether the line has stood for so long that load is being shed.
    pub overloaded: bool,
    /// Connections that are open.
    pub connections: u32,
    /// Those of them that nobody uses.
    pub idle: u32,
    /// Those of them that are being made.
    pub dialling: u32,
    /// Connections that were begun, in all.
    pub dialled: u64,
    /// Requests for which no connection could be made, in all.
    pub unreachable: u64,
    /// What the breaker does.
    pub breaker: Phase,
    /// Requests of our own that asked whether the origin is there, in all.
    pub probes: u64,
    /// Those of them that found that it is not.
    pub failed_probes: u64,
    /// Requests of clients that were sent, in all.
    pub requests: u64,
    /// Answers whose head came, in all.
    pub answers: u64,
    /// Attempts that failed in a way that speaks against the origin, in all: no connection, no answer, an answer of 5xx, or a
    /// body that broke off.
    pub faults: u64,
    /// The same by how they failed.
    pub faults_by: [(Fault, u64); Fault::ALL.len()],
    /// Whether the last that was heard of it, by an answer, a probe or a connection that could not be made, is that it is there.
    pub is_up: bool,
    /// Attempts after one that failed, in all.
    pub retries: u64,
    /// Attempts beside a slow one, in all.
    pub hedges: u64,
    /// Retries and hedges that the budget did not allow, in all.
    pub unpaid: u64,
    /// Requests that were refused here, in all, by why.
    pub refusals: [(Why, u64); Why::ALL.len()],
}

type Answer = Response<OriginBody>;

impl Origin {
    /// The origin at the settings' address. Nothing is sent before the first request; a name is looked up in the background.
    ///
    /// # Panics
    ///
    /// If the origin has a name, and there is no runtime to look it up in.
    pub fn new(env: &Env, settings: &OriginSettings) -> Result<Origin, BadOrigin> {
        let names = match target(&settings.url)? {
            Target::Host(host, port) => Names::new(env, &host, port, settings.resolve_every),
            Target::Unix(path) => Names::unix(path),
        };
        Ok(Origin::at(env, settings, names))
    }

    fn at(env: &Env, settings: &OriginSettings, names: Names) -> Origin {
        Origin(Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            env: env.clone(),
            stack: Stack::new(env, settings),
            pool: Pool::new(env, settings, names),
            counts: Counts::default(),
        }))
    }

    /// Sends a request that may be repeated: tried again if the connection fails before the answer begins, and tried a second
    /// time beside the first if that takes long, both within the budget.
    ///
    /// The deadline is that for being let in. What is sent is waited for as the settings say: cut off by who waits for it, nobody
    /// would learn that the origin hangs.
    pub async fn fetch(&self, request: &Outgoing, ask: Ask) -> Result<Answer, OriginError> {
        self.fetch_with(request, &|_| None, ask).await
    }

    /// As [`fetch`](Origin::fetch), with another head for further attempts, if there is one: what hangs or breaks may be one
    /// client's request. It is asked for anew for each, and an answer to it says so among its extensions ([`Second`]). Beside a slow
    /// first attempt such an answer counts only if it can be shared; after a failed one it is the last.
    pub(crate) async fn fetch_with(
        &self,
        request: &Outgoing,
        other: &(dyn Fn(Further) -> Option<HeaderMap> + Sync),
        mut ask: Ask,
    ) -> Result<Answer, OriginError> {
        let inner = &*self.0;
        let (first, deadline) = (ask.attempt, ask.deadline.take());
        let (broke, ours) = (&AtomicBool::new(false), &OnceLock::new());
        let attempt = |mut ask: Ask| async move {
            let again = ask.attempt > first;
            ask.deadline = deadline;
            // What was never sent says nothing about a client.
            if broke.swap(false, Relaxed)
                && let Some(headers) = other(Further::After)
            {
                ours.set(request.with(headers)).ok();
            }
            let Some(ours) = ours.get() else {
                let outcome = inner.fetch_once(request, &|| other(Further::Beside), ask, again).await;
                broke.store(matches!(outcome, Err(OriginError::Broken(_))), Relaxed);
                return outcome.map_err(|error| failure(error, false));
            };
            ask.user = Some(OURS);
            let outcome = inner.fetch_once(ours, &|| None, ask, again).await;
            let mut answer = outcome.map_err(|error| match failure(error, false) {
                Failure::Failed(error) => Failure::NoRetry(error),
                failure => failure,
            })?;
            answer.extensions_mut().insert(Second);
            Ok(answer)
        };
        let outcome = inner.stack.retry.run(&inner.env, repeatable, ask, attempt).await;
        outcome.map_err(|gave_up| inner.gave_up(gave_up))
    }

    /// Sends anything else, at most once: tried again only if it certainly was not sent. The body is read as fast as the origin
    /// takes it, for as long as that takes; the deadline is that for being let in.
    ///
    /// The route is that of its target, as in [`Outgoing::route`].
    pub async fn send<B>(&self, request: Request<B>, route: u64, mut ask: Ask) -> Result<Answer, OriginError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let inner = &*self.0;
        let mut request = request.map(Sending::new);
        *request.version_mut() = Version::HTTP_11;
        // There whenever no attempt has it: an attempt that was not sent puts it back.
        let unsent = Mutex::new(Some(request));
        let unsent = &unsent;
        let (first, deadline) = (ask.attempt, ask.deadline.take());
        let attempt = |mut ask: Ask| async move {
            ask.deadline = deadline;
            let entered = inner.enter(&mut ask).await;
            let entry = entered.map_err(|refusal| failure(OriginError::Refused(refusal), true))?;
            let Some(request) = unsent.lock().take() else {
                return Err(Failure::NoRetry(OriginError::TimedOut));
            };
            let again = ask.attempt > first;
            let outcome = inner.exchange(request, entry, of(&ask, route), again).await;
            outcome.map_err(|Failed { error, request }| {
                let kept = request.is_some();
                *unsent.lock() = request;
                failure(error, kept)
            })
        };
        let outcome = inner.stack.retry.run_at_most_once(&inner.env, repeatable, ask, attempt).await;
        outcome.map_err(|gave_up| inner.gave_up(gave_up))
    }

    /// How many seats are taken, and how many there are.
    pub(crate) fn seats(&self) -> (u32, u32) {
        let queue = &self.0.stack.queue;
        (queue.inside(), queue.seats())
    }

    /// A client has come to wait for a load that may wait for a seat as another client's; see `Queue::joined`.
    pub(crate) fn joined(&self, load: u64, ask: &Ask) {
        self.0.stack.queue.joined(load, ask);
    }

    /// Why the last request that came to nothing did.
    pub(crate) fn last_error(&self) -> Option<Arc<str>> {
        self.0.counts.last_error.lock().clone()
    }

    /// How many requests there may be at a time, at present.
    pub(crate) fn limit(&self) -> u32 {
        self.0.stack.queue.seats()
    }

    /// How long the origin took to begin its answers, by the class of their status, and at last to give none; and how long those
    /// waited in the line who were let in.
    pub(crate) fn times(&self) -> ([Sum; CODES.len() + 1], Sum) {
        let counts = &self.0.counts;
        (array::from_fn(|code| counts.took[code].sum()), counts.queued.sum())
    }

    /// How things are.
    pub fn stats(&self) -> OriginStats {
        let Inner { stack, pool, counts, .. } = &*self.0;
        let (connections, extra) = (pool.stats(), stack.budget.stats());
        let (probes, failed_probes) = stack.prober.counts();
        let mut refusals = Why::ALL.map(|why| (why, 0));
        for ((_, count), counted) in refusals.iter_mut().zip(&counts.refused) {
            *count = counted.load(Relaxed);
        }
        let mut faults = Fault::ALL.map(|fault| (fault, 0));
        for ((_, count), counted) in faults.iter_mut().zip(&counts.faults) {
            *count = counted.load(Relaxed);
        }
        OriginStats {
            in_flight: stack.queue.inside(),
            limit: stack.queue.seats(),
            waiting: stack.queue.waiting(),
            overloaded: stack.queue.is_overloaded(),
            connections: connections.open,
            idle: connections.idle,
            dialling: connections.dialling,
            dialled: connections.dialled,
            unreachable: connections.failed,
            breaker: stack.breaker.phase(),
            probes,
            failed_probes,
            requests: counts.requests.load(Relaxed),
            answers: counts.answers.load(Relaxed),
            faults: faults.iter().map(|(_, count)| count).sum(),
            faults_by: faults,
            is_up: !counts.is_gone.load(Relaxed),
            retries: extra.retries,
            hedges: extra.hedges,
            unpaid: extra.no_credit + extra.too_many_failures,
            refusals,
        }
    }
}

/// An exchange that came to nothing.
struct Failed {
    error: OriginError,
    /// The request, if nothing of it was sent.
    request: Option<Request<Sending>>,
}

/// Whose request it is, and for what.
fn of(ask: &Ask, route: u64) -> stack::Request {
    stack::Request { user: ask.user.map_or(0, NonZero::get), route }
}

impl Inner {
    /// Lets a request in, after a wait in the line if need be.
    async fn enter(&self, ask: &mut Ask) -> Result<Entry, Refusal> {
        let came = ask.at;
        let entry = self.stack.enter(ask).await?;
        self.counts.queued.add(entry.from() - came);
        Ok(entry)
    }

    async fn fetch_once(
        &self,
        request: &Outgoing,
        second: &(dyn Fn() -> Option<HeaderMap> + Sync),
        mut ask: Ask,
        again: bool,
    ) -> Result<Answer, OriginError> {
        let entry = self.enter(&mut ask).await.map_err(OriginError::Refused)?;
        let Some(hedge) = &self.stack.hedge else {
            return self.ask(request, entry, &ask, again).await;
        };
        let mut entry = Some(entry);
        let race = &Race::default();
        let attempt = |mut ask: Ask, which: Which| {
            let other = if which == Which::Second { second() } else { None };
            if other.is_some() {
                ask.user = Some(OURS);
            }
            let entry = match (which, entry.take()) {
                (Which::First, Some(entry)) => Ok(entry),
                // Somebody may have taken the seat that was free a moment ago. Then the first attempt is all there is.
                _ => self.stack.try_enter(&ask),
            };
            async move {
                let mut entry = entry.map_err(OriginError::Refused)?;
                entry.place.races(race);
                let other = other.map(|headers| request.with(headers));
                let mut answer = self.ask(other.as_ref().unwrap_or(request), entry, &ask, again).await?;
                if other.is_some() {
                    answer.extensions_mut().insert(Second);
                }
                if !is_in_vain(&answer) {
                    race.won();
                }
                Ok(answer)
            }
        };
        let judge = |outcome: &Result<Answer, OriginError>| self.judge(outcome);
        hedge.run(&self.env, judge, ask, attempt).await
    }

    /// One request without a body; what it asked for is remembered if it was answered well.
    async fn ask(&self, request: &Outgoing, entry: Entry, ask: &Ask, again: bool) -> Result<Answer, OriginError> {
        let (of, from) = (of(ask, request.route), entry.from());
        let answer = self.exchange(request.bare(), entry, of, again).await.map_err(|failed| failed.error)?;
        // Of a body without a length nobody knows when it ends.
        if answer.body().size_hint().exact().is_some() {
            let head = (answer.status(), answer.headers());
            self.stack.prober.note(request, of.user, head, self.env.now() - from);
        }
        Ok(answer)
    }

    /// One request over one connection, until the head of its answer.
    async fn exchange(
        &self,
        mut request: Request<Sending>,
        entry: Entry,
        of: stack::Request,
        again: bool,
    ) -> Result<Answer, Failed> {
        let from = entry.from();
        let Entry { pass, mut place } = entry;
        let asked = request.headers().get(header::UPGRADE).cloned();
        // Whatever broke the attempt before, it was not this connection.
        let mut fresh = again;
        let mut told = false;
        let (mut lease, sent) = loop {
            let wanted = match (fresh, request.body().is_nothing()) {
                (true, _) => Wanted::New,
                (false, true) => Wanted::Clean,
                (false, false) => Wanted::Any,
            };
            let mut lease = match self.pool.connect(place, wanted).await {
                Ok(lease) => lease,
                Err((error, mut place)) => {
                    let error = OriginError::Connect(error);
                    let lesson = (Lesson::of_error(&error, false), Err(Fault::of(&error)));
                    self.learn(pass, &mut place, lesson, of, from);
                    return Err(Failed { error, request: Some(request) });
                }
            };
            if !std::mem::replace(&mut told, true) {
                // Before the answer, which not everybody waits for.
                self.counts.requests.fetch_add(1, Relaxed);
                self.env.tell(&Event::OriginRequest);
            }
            let mut unsent = match lease.send(request).await {
                Ok(response) => break (lease, Ok(response)),
                Err(unsent) => unsent,
            };
            if lease.reused
                && lease.stalled().is_none()
                && let Some(message) = unsent.take_message()
                && let Some(kept) = lease.take_place()
            {
                // Closed while it was idle, before anything was sent: nobody has had any work of it.
                (request, place, fresh) = (message, kept, true);
                continue;
            }
            break (lease, Err(unsent));
        };
        let outcome = match sent {
            Ok(response) => match check(&response, asked.as_ref()) {
                Ok(()) => Ok(response),
                Err(bad) => Err(Failed { error: OriginError::BadResponse(bad), request: None }),
            },
            Err(mut error) => {
                let request = error.take_message();
                Err(Failed { error: lease.why(error.into_error()), request })
            }
        };
        let (lesson, answered) = match &outcome {
            Ok(response) => {
                (Lesson::of_answer(response.status(), response.headers(), &self.env), Ok(response.status()))
            }
            Err(failed) => (Lesson::of_error(&failed.error, lease.reused), Err(Fault::of(&failed.error))),
        };
        let from = lease.asked_at(from);
        let took = lease.place().map(|place| self.learn(pass, place, (lesson, answered), of, from));
        let response = outcome?;
        if let Some(place) = lease.place() {
            place.answered(response.status());
        }
        self.counts.answers.fetch_add(1, Relaxed);
        if matches!(lesson.verdict, Verdict::Fault | Verdict::Overload { .. }) {
            // Such an answer is not tried again, so this is not said by the retry.
            self.stack.budget.learn(&lesson.verdict);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return upgraded(response, lease).await;
        }
        Ok(response.map(|incoming| OriginBody::new(incoming, lease, took.unwrap_or_default(), self.me.clone())))
    }

    /// The head has come, with this status, or will not. Gives how long that took.
    fn learn(
        &self,
        pass: Pass,
        place: &mut Place,
        (lesson, answered): (Lesson, Result<StatusCode, Option<Fault>>),
        of: stack::Request,
        from: Tick,
    ) -> Duration {
        let span = Span { from, to: self.env.now() };
        self.stack.learn(pass, place, &lesson, of, span);
        let ok = matches!(lesson.verdict, Verdict::Ok | Verdict::Final);
        if !ok && lesson.verdict != Verdict::Ignored {
            self.failed(answered.map_or_else(|fault| fault, |_| Some(Fault::Status)));
        }
        match lesson.reached {
            Verdict::Fault => self.heard(false),
            Verdict::Ok => self.heard(true),
            _ => {}
        }
        if lesson.is_suspicious() {
            self.suspect();
        }
        let code = answered.map_or(CODES.len(), class_of);
        self.counts.took[code].add(span.took());
        self.env.tell(&Event::OriginAnswer { ok, took: span.took() });
        span.took()
    }

    fn failed(&self, fault: Option<Fault>) {
        if let Some(count) = fault.and_then(|fault| self.counts.faults.get(fault as usize)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Whether the origin is there, as something has just shown. Written only if it changes: all who ask look at it.
    fn heard(&self, is_there: bool) {
        if self.counts.is_gone.load(Relaxed) == is_there {
            self.counts.is_gone.store(!is_there, Relaxed);
        }
    }

    /// A body broke off. Its head was taken for a success.
    fn broke_off(&self) {
        self.failed(Some(Fault::Body));
        self.suspect();
    }

    /// Something speaks against the origin: it is asked whether it is there.
    fn suspect(&self) {
        if self.stack.prober.suspect() {
            let me = self.me.clone();
            let send = move |probe: Probe| {
                let me = me.clone();
                async move {
                    match me.upgrade() {
                        Some(inner) => inner.probe(&probe).await,
                        None => Heard::Over,
                    }
                }
            };
            self.env.spawn(probe::run(Arc::clone(&self.stack.prober), send)).detach();
        }
    }

    /// Asks the origin whether it is there, on a seat like everybody, but before all others.
    async fn probe(&self, probe: &Probe) -> Heard {
        let mut ask = Ask::new(&self.env).priority(Priority::Critical);
        let Ok(seat) = self.stack.queue.enter(&mut ask).await else { return Heard::NotAsked };
        let place = Place::new(&self.env, &self.stack.queue, seat, ask.at);
        let deadline = self.env.now() + probe.timeout;
        let heard = by(&self.env, Some(deadline), self.whole(probe, place)).await.flatten().unwrap_or(Heard::Gone);
        self.heard(heard != Heard::Gone);
        heard
    }

    /// The answer to a probe, with as much of its body as is needed to see that it does not break off; none if it does.
    async fn whole(&self, probe: &Probe, place: Place) -> Option<Heard> {
        /// Bytes of the body.
        const ENOUGH: usize = 64 * 1024;
        // Over a connection of its own: those that are idle say nothing about whether new ones can be made.
        let mut lease = self.pool.connect(place, Wanted::New).await.ok()?;
        self.env.tell(&Event::OriginRequest);
        let response = lease.send(probe.request.bare()).await.ok()?;
        check(&response, None).ok()?;
        let heard = match response.status() {
            StatusCode::SERVICE_UNAVAILABLE => Heard::Busy,
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Heard::Gone,
            _ => Heard::There,
        };
        let mut body = OriginBody::new(response.into_body(), lease, Duration::ZERO, Weak::new());
        let mut read = 0;
        // One that goes on for ever, as a stream of events does, does not break off.
        let reading = async {
            while read < ENOUGH
                && let Some(frame) = body.frame().await
            {
                read += frame.ok()?.data_ref().map_or(0, Bytes::len);
            }
            Some(())
        };
        by(&self.env, Some(self.env.now() + probe.timeout / 2), reading).await.unwrap_or(Some(()))?;
        Some(heard)
    }

    fn judge(&self, outcome: &Result<Answer, OriginError>) -> Verdict {
        match outcome {
            Ok(response) if is_in_vain(response) => Verdict::Fault,
            Ok(response) => Lesson::of_answer(response.status(), response.headers(), &self.env).verdict,
            Err(error) => Lesson::of_error(error, false).verdict,
        }
    }

    /// What is left when there is no further attempt.
    fn gave_up(&self, gave_up: GaveUp<OriginError>) -> OriginError {
        let error = match gave_up.failure {
            Failure::Failed(error) | Failure::Unsent(error) | Failure::NoRetry(error) => error,
            Failure::Refused(refusal) => OriginError::Refused(refusal),
            Failure::TimedOut => OriginError::TimedOut,
        };
        if !matches!(error, OriginError::Refused(_) | OriginError::Request(_)) {
            *self.counts.last_error.lock() = Some(error.to_string().into());
        }
        if let OriginError::Refused(refusal) = &error {
            let place = Why::ALL.iter().position(|why| *why == refusal.why);
            if let Some(count) = place.and_then(|place| self.counts.refused.get(place)) {
                count.fetch_add(1, Relaxed);
            }
        }
        error
    }
}

/// Whether it answers a second attempt with another head, and nobody can have it.
fn is_in_vain(response: &Answer) -> bool {
    // That what is kept is still right is for all who may have it.
    response.extensions().get::<Second>().is_some() && response.status() != StatusCode::NOT_MODIFIED && {
        let terms = Terms::read(response.status(), response.headers());
        let directives = terms.directives;
        !terms.is_explicit() || directives.private() || directives.no_store() || terms.sets_cookie
    }
}

impl Outgoing {
    fn with(&self, headers: HeaderMap) -> Outgoing {
        Outgoing { headers, ..self.clone() }
    }

    fn bare(&self) -> Request<Sending> {
        let mut request = Request::new(Sending::Nothing);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Whether there is a point in another attempt. Not after an answer, whatever it says: who decides what becomes of a 503 is
/// who reads it, and an origin that is overloaded has had enough.
fn repeatable(outcome: &Result<Answer, OriginError>) -> Verdict {
    match outcome {
        Ok(response) if response.status().is_server_error() => Verdict::Final,
        Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => Verdict::Final,
        Ok(_) => Verdict::Ok,
        Err(OriginError::Refused(_) | OriginError::Request(_)) => Verdict::Ignored,
        Err(_) => Verdict::Fault,
    }
}

/// How an attempt failed: only what failed before the answer began is tried again.
fn failure(error: OriginError, unsent: bool) -> Failure<OriginError> {
    match error {
        OriginError::Connect(_) => Failure::Unsent(error),
        OriginError::Broken(_) if unsent => Failure::Unsent(error),
        OriginError::Broken(_) => Failure::Failed(error),
        OriginError::Refused(_) | OriginError::TimedOut | OriginError::BadResponse(_) | OriginError::Request(_) => {
            Failure::NoRetry(error)
        }
    }
}

/// Takes the connection of a 101 out of the pool. Its seat goes back with the lease, as soon as the connection's task has let go.
async fn upgraded(mut response: Response<Incoming>, lease: Lease) -> Result<Answer, Failed> {
    let upgraded = hyper::upgrade::on(&mut response).await;
    drop(lease);
    let upgraded = upgraded.map_err(|error| Failed { error: OriginError::Broken(error), request: None })?;
    response.extensions_mut().insert(Granted(Arc::new(Mutex::new(Some(upgraded)))));
    Ok(response.map(OriginBody::nothing))
}

/// Whether a response can be understood in one way only, as far as hyper leaves that open; and switches to this protocol or none.
fn check<B>(response: &Response<B>, asked: Option<&HeaderValue>) -> Result<(), BadResponse> {
    let headers = response.headers();
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // A status alone may be what the origin was told by somebody else.
        let mut granted = headers.get_all(header::UPGRADE).iter();
        let is_asked = granted
            .next()
            .zip(asked)
            .is_some_and(|(granted, asked)| granted.as_bytes().trim_ascii().eq_ignore_ascii_case(asked.as_bytes()));
        return if is_asked && granted.next().is_none() { Ok(()) } else { Err(BadResponse::Upgrade) };
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() || length.is_some_and(|length| !length.as_bytes().iter().all(u8::is_ascii_digit)) {
        return Err(BadResponse::Length);
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if length.is_some() {
        return Err(BadResponse::Length);
    }
    if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Err(BadResponse::TransferEncoding);
    }
    Ok(())
}

/// Where an origin is.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Host(String, u16),
    Unix(PathBuf),
}

fn target(url: &str) -> Result<Target, BadOrigin> {
    let bad = |why| BadOrigin { url: url.chars().take(200).collect(), why };
    if let Some(path) = url.strip_prefix(UNIX) {
        let path = unix_path(path).map_err(|_| bad("is not the path of a Unix socket, such as unix:/run/app.sock,"))?;
        return Ok(Target::Unix(path));
    }
    let uri: Uri = url.parse().map_err(|_| bad("is not a URL"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(bad("uses TLS, which is not in this version")),
        Some(_) => return Err(bad("is not HTTP")),
        None => return Err(bad("does not begin with http://")),
    }
    let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("has a user in it"));
    }
    if !matches!(uri.path_and_query().map(PathAndQuery::as_str), None | Some("/")) {
        return Err(bad("has a path; requests keep the path that the client asked for"));
    }
    let host = authority.host();
    let port = match authority.as_str().strip_prefix(host) {
        Some("") => 80,
        _ => authority
            .port_u16()
            .filter(|port| *port > 0)
            .ok_or_else(|| bad("has a port that is not from 1 to 65535"))?,
    };
    Ok(Target::Host(host.to_owned(), port))
}

impl OriginError {
    /// What clients are told: an error type of RFC 9209. What the operating system has to say goes to the operator only, as it may name
    /// addresses that are nobody else's business.
    pub fn code(&self) -> &'static str {
        match self {
            OriginError::Refused(_) => "connection_limit_reached",
            _ => self.detail().name(),
        }
    }

    /// The same as one of the reasons that there are for an answer.
    pub(crate) fn detail(&self) -> Detail {
        match self {
            OriginError::Refused(refusal) => refusal.why.into(),
            OriginError::Connect(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Detail::ConnectionRefused,
                io::ErrorKind::TimedOut => Detail::ConnectionTimeout,
                io::ErrorKind::NotFound => Detail::DestinationNotFound,
                _ => Detail::DestinationUnavailable,
            },
            OriginError::TimedOut => Detail::ResponseTimeout,
            OriginError::Broken(_) => Detail::ConnectionTerminated,
            OriginError::BadResponse(_) => Detail::ProtocolError,
            OriginError::Request(_) => Detail::RequestError,
        }
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginError::Refused(refusal) => refusal.fmt(f),
            OriginError::Connect(error) => write!(f, "no connection to the origin: {error}"),
            OriginError::TimedOut => f.write_str("the origin did not begin its answer in time"),
            OriginError::Broken(_) => f.write_str("the origin closed the connection before its answer"),
            OriginError::BadResponse(bad) => bad.fmt(f),
            OriginError::Request(_) => f.write_str("the body of the request broke off"),
        }
    }
}

impl fmt::Display for BadResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadResponse::Unreadable(error) if error.is_parse_too_large() => {
                "the head of the origin's answer is too long"
            }
            BadResponse::Unreadable(_) => "the origin's answer is not HTTP",
            BadResponse::Length => "the origin's answer says more than once how long it is",
            BadResponse::TransferEncoding => "the origin's answer has a transfer coding that was not asked for",
            BadResponse::Upgrade => "the origin switches to a protocol that was not asked for",
        })
    }
}

impl fmt::Display for BadOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the origin {:?} {}; such as http://127.0.0.1:3000 would be right", self.url, self.why)
    }
}

impl Error for OriginError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OriginError::Refused(refusal) => Some(refusal),
            OriginError::Connect(error) => Some(error),
            OriginError::Broken(error)
            | OriginError::Request(error)
            | OriginError::BadResponse(BadResponse::Unreadable(error)) => Some(error),
            OriginError::BadResponse(_) | OriginError::TimedOut => None,
        }
    }
}

impl Error for BadOrigin {}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
