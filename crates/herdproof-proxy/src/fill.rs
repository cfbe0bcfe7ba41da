//! One response from the origin, for everybody who waits for it.
//!
//! A fill belongs to no client. It asks the origin, and what it finds in the head of the answer decides, before one byte goes
//! to anybody, what becomes of it ([`Landed`]):
//!
//! - **Shared**: those aboard read it while it arrives, and what has arrived is kept. Who leaves does not end it.
//! - **Own**: the bytes are for the one request they answer. The others ask for their own.
//! - **Failed**: the bytes, if there are any, are for the one request they answer; the others learn that it failed. For a short
//!   while, drawn at random, nobody asks again; then one does.

mod pump;

use std::{convert::Infallible, fmt, future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use herdproof::{
    Tick,
    cache::Keep,
    flight::{Landing, Linger},
    gate::{Ask, Priority, Refusal},
};
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body as _;
use parking_lot::Mutex;
use pump::Pump;

use crate::{
    head::block,
    key::{AsKey, Key},
    learn::{self, Template},
    log::{Log, Writer},
    object::{Asking, Elsewhere, Object},
    origin::{OriginBody, OriginError, Outgoing},
    policy::{Class, Draws, Judged, Reason, RequestDirectives, Terms, Times, Vary, Verdict, condition, hop, judge},
    serve::{Core, RouteId},
    store::{Place, Snapshot, Which},
    who::Who,
};

/// What is to be fetched, for whom, and what there is already.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) class: Class,
    pub(crate) route: RouteId,
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
}

/// A response for one of them.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) why: Reason,
    /// Whether the request that it answers said who asks. Then it says nothing about those who do not.
    pub(crate) for_a_user: bool,
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
    /// Until when nobody asks again.
    pub(crate) until: Option<Tick>,
    answer: Mutex<Option<Response<OriginBody>>>,
}

/// In what way.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It answered so.
    Status,
    /// Our own admission refused.
    Refused(Refusal),
    /// It did not answer, or not in time; said in words.
    Silent(Arc<str>),
}

impl Own {
    /// For the one request they answer; once.
    pub(crate) fn take(&self) -> Option<Answer> {
        self.answer.lock().take()
    }
}

impl Failure {
    /// For the one request they answer; once.
    pub(crate) fn take(&self) -> Option<Response<OriginBody>> {
        self.answer.lock().take()
    }

    fn new(status: StatusCode, what: Fault) -> Failure {
        Failure { status, what, until: None, answer: Mutex::new(None) }
    }
}

impl From<OriginError> for Failure {
    fn from(error: OriginError) -> Failure {
        let status = match &error {
            OriginError::Refused(_) => StatusCode::SERVICE_UNAVAILABLE,
            OriginError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        match error {
            OriginError::Refused(refusal) => Failure::new(status, Fault::Refused(refusal)),
            error => Failure::new(status, Fault::Silent(error.to_string().into())),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Status => f.write_str("the origin failed"),
            Fault::Refused(refusal) => write!(f, "{refusal}"),
            Fault::Silent(why) => f.write_str(why),
        }
    }
}

/// Fetches it, and lands the flight of those who wait.
pub(crate) async fn fill(core: Arc<Core>, job: Job, landing: Landing<Landed, Infallible>) -> Result<(), Infallible> {
    let (asked, since) = (core.env.now(), core.store.snapshot());
    if let Some(news) = core.news(&job, asked) {
        landing.land_and_end(news);
        return Ok(());
    }
    let asking = job.prior.as_ref().map(Asking::about);
    let response = core.origin.fetch(&job.outgoing, core.ask(&job, asked)).await;
    drop(asking);
    let response = match response {
        Ok(response) => response,
        Err(error) => {
            landing.land_and_end(core.failed(&job, error.into()));
            return Ok(());
        }
    };
    let times = Times { asked, answered: core.env.now(), wall: core.env.wall() };
    let (mut head, body) = response.into_parts();
    let asked_whether = [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];
    if head.status == StatusCode::NOT_MODIFIED
        && let Some(prior) = &job.prior
        && asked_whether.iter().any(|name| job.outgoing.headers.contains_key(name))
    {
        // Nothing comes after it, so the connection is free again.
        drop(body);
        core.revalidated(&job, (prior, since), head.headers, &times, landing);
        return Ok(());
    }
    let draws = Draws { jitter: core.rng.unit() };
    let Judged { terms, life, verdict } =
        judge(&job.class, head.status, &head.headers, core.route(job.route), &times, draws);
    // Not before: a `Connection` must not take from our sight what the verdict depends on.
    hop::strip(&mut head.headers);
    let len = body.size_hint().exact();
    let verdict = if verdict.shares() && len.is_some_and(|len| len > core.max_object) {
        Verdict::NotShareable { why: Reason::TooLarge, store: false }
    } else {
        verdict
    };
    core.learn(&job, head.status, verdict);
    let response = |head, body| Response::from_parts(head, body);
    match verdict {
        Verdict::Failed(_) => {
            let mut failure = Failure::new(head.status, Fault::Status);
            failure.answer = Mutex::new(Some(response(head, body)));
            landing.land_and_end(core.failed(&job, failure));
        }
        Verdict::NotShareable { why, store: false } => {
            core.replaced(&job, head.status, why);
            landing.land_and_end(Landed::own(&job, why, Some(Answer::Origin(Box::new(response(head, body))))));
        }
        _ => {
            hop::keep(&mut head.headers, times.wall);
            let head = block(head.status, &head.headers);
            let (log, writer) = Log::new(&core.afloat);
            let object = Arc::new(Object::new(head, life, Elsewhere::Arriving(log, len)));
            let arrival = Arrival { core: &core, job: &job, terms, verdict, object, since };
            arrival.land(landing, writer, body).await;
        }
    }
    Ok(())
}

/// A response that is kept or shared, while it arrives.
struct Arrival<'a> {
    core: &'a Core,
    job: &'a Job,
    terms: Terms,
    verdict: Verdict,
    object: Arc<Object>,
    /// What was kept when it was asked for.
    since: Snapshot,
}

impl Arrival<'_> {
    async fn land(self, landing: Landing<Landed, Infallible>, writer: Writer, body: OriginBody) {
        let (core, job) = (self.core, self.job);
        let variant = job.variant(&self.terms);
        let place = core.place(job, &self.terms, self.verdict);
        // Nobody who asks from now on for this variant finds the flight, which has another key: it is kept before it is whole.
        if self.verdict == Verdict::Shareable
            && let Some(place) = place.as_ref().filter(|place| place.key() != job.place.key())
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
            Verdict::NotShareable { why, .. } => Landed::own(job, why, Some(Answer::Object(object))),
            _ => {
                let stored = self.verdict.stores();
                Landed::Shared(Arc::new(Shared { object, variant, revalidated: false, stored }))
            }
        };
        // Who comes after the head of a response that is stale at once is not to have it.
        let linger = if self.verdict == Verdict::Shareable {
            Some(landing.land(landed))
        } else {
            landing.land_and_end(landed);
            None
        };
        let chunks = self.receive(writer, body).await;
        let Some(place) = place else { return };
        match chunks {
            Some(chunks) if self.verdict.stores() => {
                let object = Arc::new(Object::kept(self.object.head(), self.object.life, chunks));
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

    /// Whether nothing has changed at all since it was asked for: where nobody can say whether this has.
    fn is_unchanged(&self) -> bool {
        self.core.store.snapshot() == self.since
    }

    /// Appends what comes to the log. Gives all of it, if it is whole and to be kept.
    async fn receive(&self, writer: Writer, body: OriginBody) -> Option<Vec<Bytes>> {
        let mut body = Box::pin(body);
        let mut pump = Pump::new(&self.core.env, &writer, self.core.max_object, self.object.len(), self.wanted());
        let whole = poll_fn(|cx| pump.poll(&writer, body.as_mut(), cx)).await;
        if whole { writer.complete() } else { None }
    }

    /// Whether it is fetched to its end though nobody reads it.
    fn wanted(&self) -> bool {
        self.job.kind == Kind::Refresh && self.verdict.stores()
    }
}

impl Job {
    /// Which answer of several it is that came with these terms.
    fn variant(&self, terms: &Terms) -> Which {
        match &terms.vary {
            Vary::On(spec) => Some((spec.clone(), spec.variant(&self.headers))),
            _ => None,
        }
    }
}

impl Landed {
    fn own(job: &Job, why: Reason, answer: Option<Answer>) -> Landed {
        Landed::Own(Arc::new(Own { why, for_a_user: job.class.has_credentials(), answer: Mutex::new(answer) }))
    }
}

impl Core {
    /// What became of another flight that ended between the look-up that found nothing and this one. Without it the last of a herd
    /// would now and then ask once more for what has just come, or has just failed.
    fn news(&self, job: &Job, now: Tick) -> Option<Landed> {
        if job.kind != Kind::Miss {
            return None;
        }
        if let Some(known) = self.failures.peek(job.place.key() as &dyn AsKey) {
            return Some(Landed::Failed(known.value));
        }
        let (object, variant) = self.store.at(&job.place, &job.headers)?;
        let is_new = job.prior.as_ref().is_none_or(|prior| !Arc::ptr_eq(prior, &object));
        let serves = object.life.at(now, &RequestDirectives::default()).serves();
        if !is_new || !serves || !job.class.may_have(object.life.is_for_all()) {
            return None;
        }
        Some(Landed::Shared(Arc::new(Shared { object, variant, revalidated: false, stored: true })))
    }

    /// How a job asks to be let through to the origin.
    fn ask(&self, job: &Job, now: Tick) -> Ask {
        let ask =
            Ask::new(&self.env).deadline(now + self.settings.wait).user(job.who.key()).load(job.place.key().hash());
        match job.kind {
            // What is there is served meanwhile: no need to push, or to try twice.
            Kind::Refresh => ask.priority(Priority::Sheddable).attempt(1),
            Kind::Miss | Kind::Alone => ask,
        }
    }

    /// Remembers a failure for a short while, so that the next who ask need not learn of it from the origin.
    fn failed(&self, job: &Job, mut failure: Failure) -> Landed {
        let now = self.env.now();
        // What our own admission refused says nothing about this URL, and comes with a time of its own.
        let rest = match &failure.what {
            Fault::Refused(refusal) => refusal.after.unwrap_or(Duration::from_secs(1)),
            Fault::Status | Fault::Silent(_) => self.rng.between(self.settings.failed.start, self.settings.failed.end),
        };
        if let Some(prior) = &job.prior {
            prior.rest(now + rest);
        }
        if !matches!(failure.what, Fault::Refused(_)) && !matches!(job.kind, Kind::Alone) {
            failure.until = Some(now + rest);
            let known = Failure { answer: Mutex::new(None), what: failure.what.clone(), ..failure };
            failure.answer = Mutex::new(failure.answer.into_inner());
            self.failures.set_with(job.place.key().clone(), Arc::new(known), &Keep::ttl(rest));
        }
        Landed::Failed(Arc::new(failure))
    }

    /// What is kept is still right, and has new times.
    fn revalidated(
        &self,
        job: &Job,
        (prior, since): (&Arc<Object>, Snapshot),
        mut said: HeaderMap,
        times: &Times,
        landing: Landing<Landed, Infallible>,
    ) {
        let kept = prior.head().headers();
        hop::strip(&mut said);
        if !condition::is_about(&said, &kept) {
            // About what, nobody knows: whoever waits asks by itself.
            self.store.remove(job.place.key(), prior);
            landing.land_and_end(Landed::own(job, Reason::Condition, None));
            return;
        }
        let draws = Draws { jitter: self.rng.unit() };
        let status = prior.head().status();
        let stored = (status, &kept);
        let (headers, judged) = condition::freshen(stored, &said, &job.class, self.route(job.route), times, draws);
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
                Landed::own(job, why, Some(Answer::Object(Arc::clone(&object))))
            }
            verdict => Landed::Shared(Arc::new(Shared {
                object: Arc::clone(&object),
                variant,
                revalidated: true,
                stored: verdict.stores(),
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
            Kind::Alone if self.store.snapshot() == since => keep(place),
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
            if job.class.has_credentials() || is_about_the_request(status) || !why.is_telling() {
                prior.rest(self.env.now() + self.settings.failed.end);
            } else {
                self.store.remove(job.place.key(), prior);
            }
        }
    }

    /// Learns who may share what, for those who ask next.
    pub(crate) fn learn(&self, job: &Job, status: StatusCode, verdict: Verdict) {
        self.learn_of(&job.class, job.key.hash(), job.template, (status, verdict));
    }

    /// As [`learn`](Core::learn), of a request that went by itself.
    pub(crate) fn learn_of(
        &self,
        class: &Class,
        key: u64,
        template: Template,
        (status, verdict): (StatusCode, Verdict),
    ) {
        // What cannot be seen from a part or a condition is not learned from one; nor is it from how one request was put: a head
        // that the origin cannot read would make everybody go by themselves.
        if is_about_the_request(status) || !verdict.why().is_none_or(Reason::is_telling) {
            return;
        }
        let key = private_key(class, key);
        match verdict {
            Verdict::Shareable | Verdict::AboardOnly { .. } => {
                self.private.forget(key);
                self.learned.learn(template, true);
            }
            Verdict::NotShareable { store: false, .. } => {
                self.private.remember(key, self.env.now() + learn::memory(self.rng.unit()));
                self.learned.learn(template, false);
            }
            // What is kept to be asked about is nothing to wait for in vain; and to let its like pass would be never to keep it.
            Verdict::NotShareable { store: true, .. } | Verdict::Failed(_) => {}
        }
    }
}

/// Statuses that answer how a request was put, and say nothing about the same URL asked for in another way.
fn is_about_the_request(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405..=408 | 411..=417 | 421..=426 | 428 | 431 | 501 | 505)
}

/// What is private for who comes with credentials need not be for who does not.
pub(crate) fn private_key(class: &Class, key: u64) -> u64 {
    if class.has_credentials() { key.rotate_left(17) } else { key }
}
