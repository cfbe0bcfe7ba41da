//! One response from the origin, for everybody who waits for it.
//!
//! A fill belongs to no client. It asks the origin, and what it finds in the head of the answer decides, before one byte goes
//! to anybody, what becomes of it ([`Landed`]):
//!
//! - **Shared**: those aboard read it while it arrives, and what has arrived is kept. Who leaves does not end it.
//! - **Own**: the bytes are for the one request they answer. The others ask for their own.
//! - **Failed**: the bytes, if there are any, are for the one request they answer. Whether it failed for the others too,
//!   `failing.rs` decides, most often after a request of our own ([`Job::disown`]).

mod for_one;
mod own;
mod pump;

use std::{
    convert::Infallible,
    fmt,
    future::poll_fn,
    ops::Range,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU16, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use herdproof::{
    Tick,
    backoff::RetryAfter,
    flight::{Landing, Linger},
    gate::{Ask, Priority, Refusal, Why},
};
use http::{HeaderMap, Response, StatusCode, header, response};
use http_body::Body as _;
use own::Disowned;
use parking_lot::Mutex;
use pump::{Audience, Over, Pump};

use crate::{
    compress::{self, Coming},
    detail::Detail,
    failing::{By, Ended, Known, Next, Own as OwnRequest, Start},
    head::block,
    key::Key,
    learn::{self, Template},
    log::{Log, Reader, Writer},
    memory::Footprint,
    object::{Asking, Elsewhere, Object},
    origin::{Further, OriginBody, OriginError, Outgoing, Second},
    policy::{
        Class, Draws, Judged, Reason, RequestDirectives, Terms, Times, Vary, Verdict, condition, hop, judge,
        share::{is_about_the_request, is_fresh_for_one},
    },
    serve::Core,
    settings::Route,
    store::{Place, Snapshot, Which},
    who::Who,
};

/// So much of a body that is for one client is read ahead of it.
const AHEAD: u64 = 256 << 10;

/// What is to be fetched, for whom, and what there is already.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) class: Class,
    pub(crate) route: Arc<Route>,
    pub(crate) outgoing: Outgoing,
    /// The head of the request as it came: a response may vary on anything in it.
    pub(crate) headers: HeaderMap,
    /// The URL's.
    pub(crate) key: Key,
    /// Where it is loaded and kept, as far as that is known.
    pub(crate) place: Place,
    /// What is kept there.
    pub(crate) prior: Option<Arc<Object>>,
    pub(crate) template: Template,
    /// Who asked first.
    pub(crate) who: Who,
    /// Whose headers it goes with.
    pub(crate) by: By,
    /// Gone when the one who asked first has left.
    pub(crate) leader: Weak<()>,
    /// Whether one attempt has to do.
    pub(crate) again: bool,
    pub(crate) kind: Kind,
}

/// Why something is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody waits for it.
    Miss,
    /// Nobody does: what is there is served meanwhile.
    Refresh,
    /// One waits for it, and nobody else may. Nobody can say of it alone that it was forgotten.
    Alone,
}

/// What became of a fill, for those aboard.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    Shared(Arc<Shared>),
    Own(Arc<Own>),
    Failed(Arc<Failure>),
}

/// A response for all of them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) object: Arc<Object>,
    pub(crate) variant: Which,
    /// Whether the origin said that what was kept is still right.
    pub(crate) revalidated: bool,
    pub(crate) stored: bool,
    /// Whether it answers a request of our own: then it is nobody's, and has to fit everybody who gets it.
    pub(crate) is_ours: bool,
    /// How long the origin took to begin it; none if it was there before anybody asked.
    pub(crate) took: Option<Duration>,
}

/// A response for one of them.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) why: Reason,
    /// Whether the request that it answers said who asks. Then it says nothing about those who do not.
    pub(crate) for_a_user: bool,
    /// Whether it may be about how that request was put, so that a request of our own asks for all others.
    pub(crate) is_doubtful: bool,
    /// How long the origin took to begin it.
    pub(crate) took: Option<Duration>,
    answer: Mutex<Option<Answer>>,
}

/// The bytes that are for one.
#[derive(Debug)]
pub(crate) enum Answer {
    /// As they come from the origin.
    Origin(Box<Response<OriginBody>>),
    /// Kept at the same time, for nobody else to see.
    Object(Arc<Object>),
}

/// The origin failed, or was not asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) what: Fault,
    /// What those aboard do whom the answer, if there is one, is not for. None if the origin was not asked.
    pub(crate) next: Option<Next>,
    /// Whether it was a request of our own, so that it was nobody's of those aboard.
    pub(crate) is_ours: bool,
    /// How long the origin took to fail; none if it was not asked.
    pub(crate) took: Option<Duration>,
    answer: Mutex<Option<Answer>>,
}

/// In what way.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It answered so.
    Status,
    /// It did so a moment ago, and was not asked again.
    Lately,
    /// It answered a request of our own with an error that may be about how that was put.
    Declined,
    /// Our own admission refused.
    Refused(Refusal),
    /// It did not answer, or not in time. The words of the operating system for it are the operator's.
    Silent(Detail),
}

impl Own {
    /// For the one request they answer; once.
    pub(crate) fn take(&self) -> Option<Answer> {
        self.answer.lock().take()
    }
}

impl Failure {
    /// For the one request they answer; once.
    pub(crate) fn take(&self) -> Option<Answer> {
        self.answer.lock().take()
    }

    /// Why somebody gets what is stale.
    pub(crate) fn detail(&self) -> Detail {
        match &self.what {
            Fault::Status | Fault::Lately | Fault::Silent(_) => Detail::OriginFailed,
            Fault::Declined => Detail::RefreshRefused,
            Fault::Refused(refusal) => refusal.why.into(),
        }
    }

    /// Until when nobody asks again, if that is known.
    pub(crate) fn until(&self) -> Option<Tick> {
        match self.next {
            Some(Next::Fail(until)) => Some(until),
            Some(Next::Again) | None => None,
        }
    }

    /// What is known of a URL from a moment ago.
    pub(crate) fn known(known: Known) -> Failure {
        Failure { next: Some(Next::Fail(known.until)), ..Failure::new(known.status, Fault::Lately) }
    }

    fn new(status: StatusCode, what: Fault) -> Failure {
        Failure { status, what, next: None, is_ours: false, took: None, answer: Mutex::new(None) }
    }
}

impl Failure {
    /// There is no answer, after so long.
    pub(crate) fn of(error: OriginError, took: Duration) -> Failure {
        let status = match &error {
            OriginError::Refused(_) => StatusCode::SERVICE_UNAVAILABLE,
            OriginError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        match error {
            OriginError::Refused(refusal) => Failure::new(status, Fault::Refused(refusal)),
            error => Failure { took: Some(took), ..Failure::new(status, Fault::Silent(error.detail())) },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Status | Fault::Declined => f.write_str("the origin failed"),
            Fault::Lately => f.write_str("the origin failed a moment ago"),
            Fault::Refused(refusal) => write!(f, "{refusal}"),
            Fault::Silent(why) => f.write_str(why.name()),
        }
    }
}

/// Fetches it, and lands the flight of those who wait.
pub(crate) async fn fill(
    core: Arc<Core>,
    mut job: Job,
    landing: Landing<Landed, Infallible>,
) -> Result<(), Infallible> {
    if let Some(news) = core.prepare(&mut job, &landing).await {
        landing.land_and_end(news);
        return Ok(());
    }
    let (asked, since) = (core.env.now(), core.store.snapshot(&job.key));
    let response = match fetch(&core, &mut job, &landing, asked).await {
        Ok(response) => response,
        Err((error, ended)) => {
            let failed = core.failed(&job, Failure::of(error, core.env.now() - asked), ended, job.has_others(&landing));
            landing.land_and_end(failed);
            return Ok(());
        }
    };
    let times = Times { asked, answered: core.env.now(), wall: core.env.wall() };
    let (head, body) = response.into_parts();
    let asked_whether = [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];
    if head.status == StatusCode::NOT_MODIFIED
        && let Some(prior) = &job.prior
        && asked_whether.iter().any(|name| job.outgoing.headers.contains_key(name))
    {
        // Nothing comes after it, so the connection is free again.
        let took = body.took();
        drop(body);
        core.ended(&job, Ended::Well, false);
        core.revalidated(&job, (prior, since), (head.headers, took), &times, landing);
        return Ok(());
    }
    answered(&core, &job, landing, Response::from_parts(head, body), (since, &times)).await;
    Ok(())
}

/// What becomes of an answer for those who wait, by its head.
async fn answered(
    core: &Core,
    job: &Job,
    landing: Landing<Landed, Infallible>,
    response: Response<OriginBody>,
    (since, times): (Snapshot, &Times),
) {
    let (mut head, body) = response.into_parts();
    // Said of every form, whether or not this one is compressed.
    let may_compress = !job.route.compress.is_empty()
        && compress::may(head.status, &head.headers, body.size_hint().exact())
        && compress::varies(&mut head.headers);
    let draws = core.draws(job.prior.as_deref());
    let mut judged = judge(&job.class, head.status, &head.headers, &job.route.rules, times, draws);
    let Judged { ref terms, ref life, verdict } = judged;
    // Not before: a `Connection` must not take from our sight what the verdict depends on.
    hop::strip(&mut head.headers);
    let (len, took) = (body.size_hint().exact(), Some(body.took()));
    // It may say that it may be kept, but one client may have caused it.
    let is_doubtful = head.status.as_u16() >= 400 && verdict.shares() && !job.speaks_for_others(head.status);
    let is_kept_for_one = (is_doubtful && verdict == Verdict::Shareable
        || job.by != By::Proxy && is_fresh_for_one(&job.class, terms, &job.route.rules, life, times))
        && job.prior.is_none()
        && terms.vary == Vary::Nothing
        && len.is_none_or(|len| len <= core.max_object);
    let is_fresh = verdict == Verdict::Shareable;
    let verdict = if is_doubtful {
        Verdict::Failed(Reason::Error)
    } else if verdict.shares() && len.is_some_and(|len| len > core.max_object) {
        Verdict::NotShareable { why: Reason::TooLarge, store: false }
    } else {
        verdict
    };
    judged.verdict = verdict;
    let response = |head, body| Response::from_parts(head, body);
    let ended = ended_with(verdict, head.status, &head.headers, times.wall);
    match (verdict, ended) {
        (Verdict::Failed(_), _) => {
            let mut failure = Failure { took, ..Failure::new(head.status, Fault::Status) };
            // What may be kept is worth a request of our own, for those who come next.
            let others = is_fresh && is_doubtful || job.has_others(&landing);
            if is_kept_for_one {
                let (arrival, writer) = Arrival::begin(core, job, judged, (head, len), since, times, took);
                failure.answer = Mutex::new(Some(Answer::Object(Arc::clone(&arrival.object))));
                let failed = core.failed(job, failure, Some(ended), others);
                arrival.land_for_one(failed, landing, writer, body).await;
                return;
            }
            if job.by != By::Proxy {
                failure.answer = Mutex::new(Some(Answer::Origin(Box::new(response(head, body)))));
            }
            let failed = core.failed(job, failure, Some(ended), others);
            landing.land_and_end(failed);
        }
        // Ours lacks what a client's has.
        (_, Ended::Refused | Ended::Limited) if job.by == By::Proxy => {
            // Not where there was something for all.
            if let (StatusCode::NOT_FOUND | StatusCode::GONE, Some(prior)) = (head.status, &job.prior) {
                core.store.remove(job.place.key(), prior);
            }
            let failure = Failure { took, ..Failure::new(head.status, Fault::Declined) };
            let failed = core.failed(job, failure, Some(ended), job.has_others(&landing));
            landing.land_and_end(failed);
        }
        (Verdict::NotShareable { why, store: false }, _) => {
            let is_doubtful = ended.is_refusal() && core.doubts(job, head.status);
            // What was for all and is gone must not come back when the origin fails: whether it is, the next one finds out.
            let is_gone = matches!(head.status, StatusCode::NOT_FOUND | StatusCode::GONE) && job.prior.is_some();
            core.ended(job, ended, is_doubtful && (is_gone || job.has_others(&landing)));
            core.learn(job, head.status, verdict);
            core.replaced(job, head.status, why);
            if is_kept_for_one {
                let (arrival, writer) = Arrival::begin(core, job, judged, (head, len), since, times, took);
                let answer = Answer::Object(Arc::clone(&arrival.object));
                let landed = Landed::own(job, why, (Some(answer), took), is_doubtful);
                arrival.land_for_one(landed, landing, writer, body).await;
                return;
            }
            let answer = Answer::Origin(Box::new(response(head, body)));
            landing.land_and_end(Landed::own(job, why, (Some(answer), took), is_doubtful));
        }
        _ => {
            core.learn(job, head.status, verdict);
            let for_all = may_compress && verdict.shares() && verdict.stores();
            let turn = if for_all && compress::takes(&job.headers) { core.press.turn() } else { None };
            if turn.is_some() {
                compress::code(&mut head.headers);
            }
            let said = len.filter(|_| turn.is_none());
            let (mut arrival, writer) = Arrival::begin(core, job, judged, (head, said), since, times, took);
            arrival.len = len;
            arrival.land(landing, writer, Coming::new(body, turn)).await;
        }
    }
}

/// Asks the origin. With others aboard, what breaks or hangs is asked for again without the headers of the client that asked first.
async fn fetch(
    core: &Core,
    job: &mut Job,
    landing: &Landing<Landed, Infallible>,
    asked: Tick,
) -> Result<Response<OriginBody>, (OriginError, Option<Ended>)> {
    let asking = job.prior.as_ref().map(Asking::about);
    // Written when it is sent, and the same for all further attempts: what comes back is kept by it.
    let other = OnceLock::new();
    let broken = Broken::default();
    let further = |further| {
        // Who waits alone has all attempts for its own request.
        let is_ours = further == Further::Beside || job.has_others(landing);
        let other = if is_ours { other.get_or_init(|| job.second(core)).as_ref() } else { None };
        if further == Further::After {
            broken.count(other.is_some());
        }
        other.map(|other: &Disowned| other.headers.clone())
    };
    // Boxed: what asks is by far the largest part of a fill, and over when the head is here; and a flight moves its load a few times.
    let response = Box::pin(core.origin.fetch_with(&job.outgoing, &further, core.ask(job, asked))).await;
    drop(asking);
    let (attempts, repeated) = broken.so_far();
    if repeated {
        // It broke for a client. What came of ours comes after that.
        core.ended(job, Ended::Broken(StatusCode::BAD_GATEWAY, attempts), true);
    }
    let is_ours = response.as_ref().map_or(repeated, |response| response.extensions().get::<Second>().is_some());
    if is_ours && let Some(Some(other)) = other.into_inner() {
        job.becomes(other);
    }
    response.map_err(|error| {
        let ended = ended_without(&error, if repeated { 1 } else { attempts + 1 });
        (error, ended)
    })
}

/// Attempts of a client's request that broke and were followed by another: how many, and whether that one is our own.
#[derive(Default)]
struct Broken {
    attempts: AtomicU16,
    is_ours: AtomicBool,
}

impl Broken {
    fn count(&self, is_ours: bool) {
        self.attempts.fetch_add(1, Relaxed);
        self.is_ours.store(is_ours, Relaxed);
    }

    fn so_far(&self) -> (u16, bool) {
        (self.attempts.load(Relaxed), self.is_ours.load(Relaxed))
    }
}

/// How a request ended that has no answer, unless it was not sent.
fn ended_without(error: &OriginError, attempts: u16) -> Option<Ended> {
    match error {
        OriginError::Refused(_) => None,
        OriginError::Connect(_) => Some(Ended::Unreachable(StatusCode::BAD_GATEWAY)),
        OriginError::TimedOut => Some(Ended::Broken(StatusCode::GATEWAY_TIMEOUT, 1)),
        OriginError::Broken(_) | OriginError::BadResponse(_) | OriginError::Request(_) => {
            Some(Ended::Broken(StatusCode::BAD_GATEWAY, attempts))
        }
    }
}

/// How a request ended that has one.
fn ended_with(verdict: Verdict, status: StatusCode, headers: &HeaderMap, wall: SystemTime) -> Ended {
    match verdict {
        Verdict::Failed(_) => {
            let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|value| RetryAfter::parse(value, wall).ok());
            Ended::Status(status, after.map(RetryAfter::duration))
        }
        // Of ours: it lacks what a client's has, an API key or a session. Of a client's: it may be about how that was put.
        Verdict::NotShareable { .. } if status == StatusCode::TOO_MANY_REQUESTS => Ended::Limited,
        Verdict::NotShareable { .. } if status.as_u16() >= 400 => Ended::Refused,
        _ => Ended::Well,
    }
}

/// A response that is kept or shared, while it arrives.
struct Arrival<'a> {
    core: &'a Core,
    job: &'a Job,
    terms: Terms,
    verdict: Verdict,
    object: Arc<Object>,
    /// How long it is as the origin sends it, if that is known.
    len: Option<u64>,
    /// What was kept when it was asked for.
    since: Snapshot,
    took: Option<Duration>,
}

impl<'a> Arrival<'a> {
    fn begin(
        core: &'a Core,
        job: &'a Job,
        Judged { terms, life, verdict }: Judged,
        (mut head, len): (response::Parts, Option<u64>),
        since: Snapshot,
        times: &Times,
        took: Option<Duration>,
    ) -> (Arrival<'a>, Writer) {
        hop::keep(&mut head.headers, times.wall);
        let (log, writer) = Log::new(&core.memory);
        let head = block(head.status, &head.headers);
        let object = Arc::new(Object::new(head, life, Elsewhere::Arriving(log, len)));
        (Arrival { core, job, terms, verdict, object, len, since, took }, writer)
    }

    async fn land(self, landing: Landing<Landed, Infallible>, writer: Writer, body: Coming<OriginBody>) {
        let (core, job) = (self.core, self.job);
        let variant = job.variant(&self.terms);
        let place = core.place(job, &self.terms, self.verdict);
        // Nobody who asks from now on finds the flight, if that has another key: it is kept before it is whole.
        let is_elsewhere = |place: &&Place| job.kind == Kind::Alone || place.key() != job.place.key();
        if self.verdict == Verdict::Shareable
            && let Some(place) = place.as_ref().filter(is_elsewhere)
        {
            let keep = || core.store.put(place, Arc::clone(&self.object), self.terms.has_validator);
            match job.kind {
                Kind::Miss | Kind::Refresh => drop(landing.unless_forgotten(keep)),
                Kind::Alone if self.is_unchanged() => keep(),
                Kind::Alone => {}
            }
        }
        let object = Arc::clone(&self.object);
        let landed = match self.verdict {
            Verdict::NotShareable { why, .. } => {
                Landed::own(job, why, (Some(Answer::Object(object)), self.took), false)
            }
            _ => {
                let stored = self.verdict.stores();
                Landed::Shared(Arc::new(Shared {
                    object,
                    variant,
                    revalidated: false,
                    stored,
                    is_ours: job.by == By::Proxy,
                    took: self.took,
                }))
            }
        };
        // Who comes after the head of a response that is stale at once is not to have it.
        let linger = if self.verdict == Verdict::Shareable {
            Some(landing.land(landed))
        } else {
            landing.land_and_end(landed);
            None
        };
        let (over, chunks) = self.receive(writer, body).await;
        match over {
            Over::Whole => drop(core.ended(job, Ended::Well, false)),
            // Those who have read a part of it are cut off. For all others one request of our own finds out more.
            Over::Broken => drop(core.ended(job, Ended::Broken(StatusCode::BAD_GATEWAY, 1), true)),
            Over::Unread => {}
        }
        let Some(place) = place else { return };
        match chunks {
            Some((chunks, footprint)) if self.verdict.stores() => {
                let object = Arc::new(Object::kept(self.object.head(), self.object.life, chunks, &footprint));
                self.keep(&place, object, linger.as_ref());
            }
            Some(_) => {}
            None => core.store.remove(place.key(), &self.object),
        }
    }

    /// Keeps it, unless what is kept at its key was said to have changed since it was asked for.
    fn keep(&self, place: &Place, object: Arc<Object>, linger: Option<&Linger<Landed, Infallible>>) {
        let keep = || self.core.store.put(place, object, self.terms.has_validator);
        match linger {
            Some(linger) if self.job.kind != Kind::Alone => drop(linger.unless_forgotten(keep)),
            _ if self.is_unchanged() => keep(),
            _ => {}
        }
    }

    /// Whether its URL has not changed since it was asked for: where no flight says so.
    fn is_unchanged(&self) -> bool {
        self.core.store.snapshot(&self.job.key) == self.since
    }

    /// Appends what comes to the log. Gives all of it, if it is whole and to be kept.
    async fn receive(&self, writer: Writer, body: Coming<OriginBody>) -> (Over, Option<(Vec<Bytes>, Arc<Footprint>)>) {
        let mut body = Box::pin(body);
        let core = self.core;
        let mut pump = Pump::new(&core.env, &writer, core.max_object, self.audience()).at(&core.origin);
        let over = poll_fn(|cx| pump.poll(&writer, body.as_mut(), cx)).await;
        let footprint = Arc::clone(writer.footprint());
        let whole = if over == Over::Whole { writer.complete() } else { None };
        (over, whole.map(|chunks| (chunks, footprint)))
    }

    fn audience(&self) -> Audience {
        let is_for_the_store = self.job.kind == Kind::Refresh && self.verdict.stores();
        if is_for_the_store { Audience::Store } else { Audience::Aboard(self.len) }
    }
}

/// Reads a body that is for one client ahead of it, so that the origin is done with it however slowly the client reads. What is
/// too large for that keeps its seat, and its client has to read at a rate.
pub(crate) fn read_ahead(core: &Arc<Core>, mut body: Pin<Box<OriginBody>>) -> Reader {
    let (log, writer) = Log::new(&core.memory);
    let reader = log.reader();
    let mut pump = Pump::new(&core.env, &writer, AHEAD, Audience::One).at(&core.origin);
    core.env
        .spawn(async move {
            if poll_fn(|cx| pump.poll(&writer, body.as_mut(), cx)).await == Over::Whole {
                drop(writer.complete());
            }
        })
        .detach();
    reader
}

impl Job {
    /// Whether others wait for it than the one who asked first, who may have left.
    fn has_others(&self, landing: &Landing<Landed, Infallible>) -> bool {
        let leader = u32::from(self.kind != Kind::Miss || self.leader.strong_count() > 0);
        landing.aboard() > leader
    }

    /// Which answer of several it is that came with these terms.
    fn variant(&self, terms: &Terms) -> Which {
        match &terms.vary {
            Vary::On(spec) => Some((spec.clone(), spec.variant(&self.headers))),
            _ => None,
        }
    }
}

impl Landed {
    fn own(job: &Job, why: Reason, (answer, took): (Option<Answer>, Option<Duration>), is_doubtful: bool) -> Landed {
        // What answers a request of our own answers nobody's.
        let answer = Mutex::new(answer.filter(|_| job.by != By::Proxy));
        Landed::Own(Arc::new(Own { why, for_a_user: job.class.has_credentials(), is_doubtful, took, answer }))
    }
}

impl Core {
    /// Decides when it is asked for and with whose headers, and waits until then; or finds that there is nothing to ask.
    async fn prepare(&self, job: &mut Job, landing: &Landing<Landed, Infallible>) -> Option<Landed> {
        let now = self.env.now();
        let key = job.place.key().hash();
        match job.kind {
            Kind::Alone => None,
            // It is for everybody, so nobody's headers decide what comes back.
            Kind::Refresh => {
                if !self.failing.own_is_bad(key, now) {
                    job.disown(self);
                }
                None
            }
            Kind::Miss => {
                if let Some(news) = self.news(job, now) {
                    return Some(news);
                }
                let (at, own) = match self.failing.start(key, now, job.who.key()) {
                    Start::Known(known) => return Some(Landed::Failed(Arc::new(Failure::known(known)))),
                    Start::Ask { at, own, again } => {
                        job.again = again;
                        (at, own)
                    }
                    Start::Aside { at } => (at, OwnRequest::No),
                };
                if at > now {
                    let now = self.env.sleep_until(at).await;
                    if let Some(news) = self.news(job, now) {
                        return Some(news);
                    }
                }
                if own == OwnRequest::Yes || own == OwnRequest::IfShared && job.has_others(landing) {
                    job.disown(self);
                }
                None
            }
        }
    }

    /// What another flight brought that ended between the look-up that found nothing and this one. Without it the last of a herd
    /// would now and then ask once more for what has just come.
    fn news(&self, job: &Job, now: Tick) -> Option<Landed> {
        let (object, variant) = self.store.at(&job.place, &job.headers)?;
        let is_new = job.prior.as_ref().is_none_or(|prior| !Arc::ptr_eq(prior, &object));
        let serves = object.life.at(now, &RequestDirectives::default()).serves();
        if !is_new || !serves || !job.class.may_have(&object.life) {
            return None;
        }
        Some(Landed::Shared(Arc::new(Shared {
            object,
            variant,
            revalidated: false,
            stored: true,
            is_ours: false,
            took: None,
        })))
    }

    /// How a job asks to be let through to the origin.
    fn ask(&self, job: &Job, now: Tick) -> Ask {
        let ask = Ask::new(&self.env).deadline(now + self.settings.wait);
        let load = job.place.key().hash();
        match job.kind {
            // What is there is served meanwhile: no need to push, or to try twice. It is for everybody, and so it does not stand in the
            // line of the client that came upon it.
            Kind::Refresh => ask.load(load).priority(Priority::Sheddable).attempt(1),
            Kind::Miss if job.again => ask.user(job.who.key()).load(load).attempt(1),
            Kind::Miss => ask.user(job.who.key()).load(load),
            Kind::Alone => ask.user(job.who.key()),
        }
    }

    /// The origin failed, or was not asked. `others`: whether others wait for it than the one who asked first.
    fn failed(&self, job: &Job, mut failure: Failure, ended: Option<Ended>, others: bool) -> Landed {
        failure.next = ended.map(|ended| self.ended(job, ended, others));
        failure.is_ours = job.by == By::Proxy;
        let now = self.env.now();
        // Nobody asks about what is kept again before that, and everybody who may has the old one meanwhile: not because of
        // one client's failure.
        let rest = match (&failure.what, failure.until()) {
            (_, Some(until)) => Some(until),
            // One client's line is full, or has stood for too long: the others' are not.
            (Fault::Refused(refusal), None) if refusal.why != Why::Tripped && job.kind != Kind::Refresh => None,
            // A request of our own that finds no answer says enough where there is something to serve; and so does the breaker.
            (what, None) if job.by == By::Proxy || matches!(what, Fault::Refused(_)) => {
                let Range { start, end } = self.settings.failed;
                Some(now + self.rng.between(start, end))
            }
            (_, None) => None,
        };
        if let (Some(prior), Some(until)) = (&job.prior, rest) {
            prior.rest(until, failure.detail());
        }
        Landed::Failed(Arc::new(failure))
    }

    /// Whether a refusal may be about how one client's request was put, and a request of our own can tell.
    fn doubts(&self, job: &Job, status: StatusCode) -> bool {
        !job.speaks_for_others(status) && !self.failing.own_is_bad(job.place.key().hash(), self.env.now())
    }

    /// What is to be remembered of how a request for a URL ended. `others`: whether more than one client waited for it.
    fn ended(&self, job: &Job, ended: Ended, others: bool) -> Next {
        if job.kind == Kind::Alone {
            return Next::Again;
        }
        let draw = self.rng.unit();
        let key = job.place.key().hash();
        self.failing.ended(key, self.env.now(), job.by, ended, others, (&self.settings.failed, draw))
    }

    /// For a response that takes the place of another, if there was one.
    fn draws(&self, prior: Option<&Object>) -> Draws {
        Draws { jitter: self.rng.unit(), early: self.rng.bits(), load: prior.map(|prior| prior.life.load()) }
    }

    /// What is kept is still right, and has new times.
    fn revalidated(
        &self,
        job: &Job,
        (prior, since): (&Arc<Object>, Snapshot),
        (mut said, took): (HeaderMap, Duration),
        times: &Times,
        landing: Landing<Landed, Infallible>,
    ) {
        let kept = prior.head().headers();
        hop::strip(&mut said);
        if !job.route.compress.is_empty() {
            compress::freshen(&kept, &mut said);
        }
        if !condition::is_about(&said, &kept) {
            // About what, nobody knows: whoever waits asks by itself.
            self.store.remove(job.place.key(), prior);
            landing.land_and_end(Landed::own(job, Reason::Condition, (None, Some(took)), false));
            return;
        }
        let draws = self.draws(Some(prior));
        let status = prior.head().status();
        let stored = (status, &kept);
        let (headers, judged) = condition::freshen(stored, &said, &job.class, &job.route.rules, times, draws);
        self.learn(job, status, judged.verdict);
        let object = Arc::new(prior.with_head(block(status, &headers), judged.life));
        let variant = job.variant(&judged.terms);
        let has_validator = judged.terms.has_validator;
        // A body that is still on its way is kept by who receives it, if it comes to its end.
        let keeps = judged.verdict.stores() && !prior.is_arriving();
        let place = if keeps { self.place(job, &judged.terms, judged.verdict) } else { None };
        let keep = |place| self.store.put(&place, Arc::clone(&object), has_validator);
        let landed = match judged.verdict {
            Verdict::NotShareable { why, .. } | Verdict::Failed(why) => {
                Landed::own(job, why, (Some(Answer::Object(Arc::clone(&object))), Some(took)), false)
            }
            verdict => Landed::Shared(Arc::new(Shared {
                object: Arc::clone(&object),
                variant,
                revalidated: true,
                stored: verdict.stores(),
                is_ours: job.by == By::Proxy,
                took: Some(took),
            })),
        };
        if let Some(why) = judged.verdict.why().filter(|_| !judged.verdict.stores()) {
            self.replaced(job, status, why);
        }
        let Some(place) = place else {
            landing.land_and_end(landed);
            return;
        };
        let linger = landing.land(landed);
        match job.kind {
            Kind::Miss | Kind::Refresh => drop(linger.unless_forgotten(|| keep(place))),
            Kind::Alone if self.store.snapshot(&job.key) == since => keep(place),
            Kind::Alone => {}
        }
    }

    /// Where a response is kept, now that its head is known: by what it varies on, also if it is kept only to be asked about.
    fn place(&self, job: &Job, terms: &Terms, verdict: Verdict) -> Option<Place> {
        match &terms.vary {
            Vary::On(spec) if verdict.shares() || verdict.stores() => self.store.place(&job.place, spec, &job.headers),
            _ => Some(job.place.clone()),
        }
    }

    /// What is kept is no longer for all: the origin says so of its successor.
    fn replaced(&self, job: &Job, status: StatusCode, why: Reason) {
        // What a request with a cookie or credentials gets, or one that was put in another way, or one too many, says nothing
        // about what others get.
        if let Some(prior) = &job.prior {
            let says_nothing = !job.speaks_for_others(status) || is_about_the_request(status) || !why.is_telling();
            if !says_nothing {
                self.store.remove(job.place.key(), prior);
            } else if job.by == By::Proxy {
                prior.rest(self.env.now() + self.settings.failed.end, Detail::RefreshRefused);
            }
        }
    }

    /// Learns who may share what, for those who ask next.
    pub(crate) fn learn(&self, job: &Job, status: StatusCode, verdict: Verdict) {
        let by = (job.who.key(), job.speaks_for_others(status));
        self.learn_of(&job.class, job.key.hash(), job.template, (status, verdict), by);
    }

    /// As [`learn`](Core::learn), of a request that went by itself: whose it is, and whether others would have made it so.
    pub(crate) fn learn_of(
        &self,
        class: &Class,
        key: u64,
        template: Template,
        (status, verdict): (StatusCode, Verdict),
        by: (u64, bool),
    ) {
        // What cannot be seen from a part or a condition is not learned from one; nor is it from how one request was put: a head
        // that the origin cannot read would make everybody go by themselves.
        if is_about_the_request(status) || !verdict.why().is_none_or(Reason::is_telling) {
            return;
        }
        // Anybody can ask for pages that are not there. That they say nothing about being shared says nothing about others.
        if status.is_client_error() && matches!(verdict.why(), Some(Reason::Status | Reason::Unsaid | Reason::Error)) {
            return;
        }
        let (key, now) = (private_key(class, key), self.env.now());
        match verdict {
            Verdict::Shareable | Verdict::AboardOnly { .. } => {
                self.private.forget(key, now);
                self.learned.learn(template, true, now);
            }
            Verdict::NotShareable { store: false, .. } => {
                let why = verdict.why().map_or(Detail::None, Detail::from);
                self.private.remember(key, now, now + learn::memory(self.rng.unit()), by, why);
                self.learned.learn(template, false, now);
            }
            // What is kept to be asked about is nothing to wait for in vain; and to let its like pass would be never to keep it.
            Verdict::NotShareable { store: true, .. } | Verdict::Failed(_) => {}
        }
    }
}

/// What is private for who comes with credentials need not be for who does not.
pub(crate) fn private_key(class: &Class, key: u64) -> u64 {
    if class.has_credentials() { key.rotate_left(17) } else { key }
}
