//! The way to the origin, and the only one.
//!
//! Misses, passes, refreshes, retries and hedges all come through here, and so what is true here is true of the proxy: the
//! origin never has more to do at a time than its limit, whatever clients do and however it fails. `stack.rs` says who may
//! go, `pool.rs` over which connection.
//!
//! Two ways in: [`fetch`](Origin::fetch) for what may be repeated, and [`send`](Origin::send) for everything else.

mod body;
mod names;
mod pool;
mod stack;

use std::{
    error::Error,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use herdproof::{
    Env, Tick,
    breaker::{Pass, Phase},
    event::Event,
    gate::{Ask, Permit, Refusal, Span, Verdict, Why},
    hedge::Which,
    retry::{Failure, GaveUp},
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header, uri::PathAndQuery};
use http_body::Body;
use parking_lot::Mutex;

pub use self::body::{BodyError, OriginBody};
use self::{
    body::Sending,
    names::Names,
    pool::Pool,
    stack::{Entry, Place, Stack},
};
use crate::settings::OriginSettings;

/// The one service behind the proxy; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Origin(Arc<Inner>);

struct Inner {
    env: Env,
    stack: Stack,
    pool: Pool,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    answers: AtomicU64,
    faults: AtomicU64,
    timeouts: AtomicU64,
    refused: [AtomicU64; Why::ALL.len()],
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
    /// Requests that were sent, in all.
    pub requests: u64,
    /// Answers whose head came, in all.
    pub answers: u64,
    /// Requests that failed in a way that speaks against the origin, in all: no connection, no answer, or an answer of 5xx.
    pub faults: u64,
    /// Those of them that had no answer in time.
    pub timeouts: u64,
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
        let (host, port) = target(&settings.url)?;
        Ok(Origin::at(env, settings, Names::new(env, &host, port, settings.resolve_every)))
    }

    fn at(env: &Env, settings: &OriginSettings, names: Names) -> Origin {
        Origin(Arc::new(Inner {
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
    pub async fn fetch(&self, request: &Outgoing, mut ask: Ask) -> Result<Answer, OriginError> {
        let inner = &*self.0;
        let (first, deadline) = (ask.attempt, ask.deadline.take());
        let attempt = |mut ask: Ask| async move {
            let again = ask.attempt > first;
            ask.deadline = deadline;
            inner.fetch_once(request, ask, again).await.map_err(|error| failure(error, false))
        };
        let outcome = inner.stack.retry.run(&inner.env, repeatable, ask, attempt).await;
        outcome.map_err(|gave_up| inner.gave_up(gave_up))
    }

    /// Sends anything else, at most once: tried again only if it certainly was not sent. The body is read as fast as the origin
    /// takes it, for as long as that takes; the deadline is that for being let in.
    pub async fn send<B>(&self, request: Request<B>, mut ask: Ask) -> Result<Answer, OriginError>
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
            let entered = inner.stack.enter(&mut ask).await;
            let entry = entered.map_err(|refusal| failure(OriginError::Refused(refusal), true))?;
            let Some(request) = unsent.lock().take() else {
                return Err(Failure::NoRetry(OriginError::TimedOut));
            };
            let again = ask.attempt > first;
            let outcome = inner.exchange(request, entry, ask, again).await;
            outcome.map_err(|Failed { error, request }| {
                let kept = request.is_some();
                *unsent.lock() = request;
                failure(error, kept)
            })
        };
        let outcome = inner.stack.retry.run_at_most_once(&inner.env, repeatable, ask, attempt).await;
        outcome.map_err(|gave_up| inner.gave_up(gave_up))
    }

    /// Why the last request that came to nothing did.
    pub(crate) fn last_error(&self) -> Option<Arc<str>> {
        self.0.counts.last_error.lock().clone()
    }

    /// How many requests there may be at a time, at present.
    pub(crate) fn limit(&self) -> u32 {
        self.0.stack.queue.seats()
    }

    /// How things are.
    pub fn stats(&self) -> OriginStats {
        let Inner { stack, pool, counts, .. } = &*self.0;
        let (connections, extra) = (pool.stats(), stack.budget.stats());
        let mut refusals = Why::ALL.map(|why| (why, 0));
        for ((_, count), counted) in refusals.iter_mut().zip(&counts.refused) {
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
            requests: counts.requests.load(Relaxed),
            answers: counts.answers.load(Relaxed),
            faults: counts.faults.load(Relaxed),
            timeouts: counts.timeouts.load(Relaxed),
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

impl Inner {
    async fn fetch_once(&self, request: &Outgoing, mut ask: Ask, again: bool) -> Result<Answer, OriginError> {
        let entry = self.stack.enter(&mut ask).await.map_err(OriginError::Refused)?;
        let Some(hedge) = &self.stack.hedge else {
            return self.exchange(request.bare(), entry, ask, again).await.map_err(|failed| failed.error);
        };
        let mut entry = Some(entry);
        let attempt = |ask: Ask, which: Which| {
            let entry = match (which, entry.take()) {
                (Which::First, Some(entry)) => Ok(entry),
                // Somebody may have taken the seat that was free a moment ago. Then the first attempt is all there is.
                _ => self.stack.try_enter(&ask),
            };
            async move {
                let entry = entry.map_err(OriginError::Refused)?;
                self.exchange(request.bare(), entry, ask, again).await.map_err(|failed| failed.error)
            }
        };
        let judge = |outcome: &Result<Answer, OriginError>| self.judge(outcome);
        hedge.run(&self.env, judge, ask, attempt).await
    }

    /// One request over one connection, until the head of its answer.
    async fn exchange(
        &self,
        mut request: Request<Sending>,
        entry: Entry,
        ask: Ask,
        again: bool,
    ) -> Result<Answer, Failed> {
        let Entry { pass, mut place } = entry;
        // Whatever broke the attempt before, it was not this connection.
        let mut fresh = again;
        let mut told = false;
        let (mut lease, sent) = loop {
            let mut lease = match self.pool.connect(place, fresh).await {
                Ok(lease) => lease,
                Err((error, mut place)) => {
                    let error = OriginError::Connect(error);
                    self.learn(pass, &mut place, &stack::of_error(&error, false), false, ask.at);
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
            Ok(response) => match check(&response) {
                Ok(()) => Ok(response),
                Err(bad) => Err(Failed { error: OriginError::BadResponse(bad), request: None }),
            },
            Err(mut error) => {
                let request = error.take_message();
                Err(Failed { error: lease.why(error.into_error()), request })
            }
        };
        let verdict = match &outcome {
            Ok(response) => stack::of_answer(response.status(), response.headers(), &self.env),
            Err(failed) => stack::of_error(&failed.error, lease.reused),
        };
        let is_there = outcome.as_ref().is_ok_and(|response| stack::is_there(response.status()));
        let from = lease.asked_at(ask.at);
        if let Some(place) = lease.place() {
            self.learn(pass, place, &verdict, is_there, from);
        }
        let response = outcome?;
        self.counts.answers.fetch_add(1, Relaxed);
        if matches!(verdict, Verdict::Fault | Verdict::Overload { .. }) {
            // Such an answer is not tried again, so this is not said by the retry.
            self.stack.budget.learn(&verdict);
        }
        Ok(response.map(|incoming| OriginBody::new(incoming, lease)))
    }

    /// The head has come, or will not.
    fn learn(&self, pass: Pass, place: &mut Place, verdict: &Verdict, is_there: bool, from: Tick) {
        let span = Span { from, to: self.env.now() };
        pass.settle(if is_there && *verdict == Verdict::Fault { &Verdict::Final } else { verdict }, span);
        place.learn(verdict, span);
        let ok = matches!(verdict, Verdict::Ok | Verdict::Final);
        if !ok && *verdict != Verdict::Ignored {
            self.counts.faults.fetch_add(1, Relaxed);
        }
        self.env.tell(&Event::OriginAnswer { ok, took: span.took() });
    }

    fn judge(&self, outcome: &Result<Answer, OriginError>) -> Verdict {
        match outcome {
            Ok(response) => stack::of_answer(response.status(), response.headers(), &self.env),
            Err(error) => stack::of_error(error, false),
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
        match &error {
            OriginError::Refused(refusal) => {
                let place = Why::ALL.iter().position(|why| *why == refusal.why);
                if let Some(count) = place.and_then(|place| self.counts.refused.get(place)) {
                    count.fetch_add(1, Relaxed);
                }
            }
            OriginError::TimedOut => {
                self.counts.timeouts.fetch_add(1, Relaxed);
            }
            _ => {}
        }
        error
    }
}

impl Outgoing {
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

/// Whether a response can be understood in one way only, as far as hyper leaves that open.
fn check<B>(response: &Response<B>) -> Result<(), BadResponse> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(BadResponse::Upgrade);
    }
    let headers = response.headers();
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

/// Host and port of an origin.
fn target(url: &str) -> Result<(String, u16), BadOrigin> {
    let bad = |why| BadOrigin { url: url.chars().take(200).collect(), why };
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
    Ok((host.to_owned(), port))
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
