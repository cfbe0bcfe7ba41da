//! What is counted and written down of a request, once: when its answer is over.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body::Body as _;

use super::{Caller, Core, Proxy, Served, Visit};
use crate::{
    access::{Outcome, Record, RequestId, Text, TraceId},
    body::{Body, Witness},
    detail::Detail,
    fill::read_ahead,
    key::Scheme,
    listener::{Client, Ledger, Unanswered},
    metrics::{CODES, Page},
    origin::{Origin, OriginStats},
};
use herdproof::{Tick, breaker::Phase};

/// What nginx and many after it write down for a client that left before its answer. No client ever hears it.
const CLIENT_LEFT: u16 = 499;

/// Counts and writes a record when the body is over.
struct Pending {
    core: Arc<Core>,
    record: Record,
}

impl Witness for Pending {
    fn over(self: Box<Self>, sent: u64, whole: bool) {
        let Pending { core, mut record } = *self;
        record.bytes = sent;
        record.complete = whole;
        record.took = core.env.now() - record.arrived;
        core.note(record);
    }
}

/// Notes that a client has left, if it is dropped before there is an answer.
pub(super) struct Absent<'a> {
    core: &'a Core,
    visit: &'a Visit<'a>,
    caller: Caller,
    scheme: Scheme,
    is_answered: bool,
}

impl<'a> Absent<'a> {
    pub(super) fn new(core: &'a Core, visit: &'a Visit<'a>, caller: Caller, scheme: Scheme) -> Absent<'a> {
        Absent { core, visit, caller, scheme, is_answered: false }
    }

    /// There is an answer.
    pub(super) fn stayed(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let Absent { core, visit, caller, scheme, .. } = *self;
        let text = core.text(visit.parts, caller, scheme, visit.id);
        let took = core.env.now() - visit.arrived;
        core.note(Record {
            arrived: visit.arrived,
            client: caller.address,
            method: Some(visit.parts.method.clone()),
            status: StatusCode::from_u16(CLIENT_LEFT).unwrap_or(StatusCode::BAD_REQUEST),
            bytes: 0,
            complete: false,
            outcome: Outcome::Left,
            reason: if visit.client.is_ended() { Detail::Ended } else { Detail::None },
            waited: Duration::ZERO,
            origin: None,
            first: took,
            took,
            key: visit.key.hash(),
            text,
        });
    }
}

impl Core {
    /// The answer, which leaves a record: now if all of its body is here, else when that is over.
    #[inline]
    pub(super) fn record(
        self: &Arc<Core>,
        parts: Parts,
        (client, caller, scheme): (&Client, Caller, Scheme),
        (arrived, id): (Tick, &OnceLock<RequestId>),
        key: u64,
        served: Served,
    ) -> Response<Body> {
        let Served { mut response, outcome, detail, origin } = served;
        let first = self.env.now() - arrived;
        response.body_mut().read_ahead(|body| read_ahead(self, body));
        response.body_mut().read_by(caller.who, client);
        let text = self.text(&parts, caller, scheme, id);
        let body = response.body();
        let here = body.is_here();
        let record = Record {
            arrived,
            client: caller.address,
            method: Some(parts.method),
            status: response.status(),
            bytes: body.size_hint().lower(),
            complete: true,
            outcome,
            reason: detail,
            waited: if outcome == Outcome::Joined { first } else { Duration::ZERO },
            origin,
            first,
            took: first,
            key,
            text,
        };
        if here {
            self.note(record);
        } else {
            let witness = Box::new(Pending { core: Arc::clone(self), record });
            response = response.map(|body| body.witnessed(witness));
        }
        response
    }

    /// What is only for a line of the log, if one is written.
    #[inline]
    fn text(&self, parts: &Parts, caller: Caller, scheme: Scheme, id: &OnceLock<RequestId>) -> Option<Box<Text>> {
        self.log.as_ref()?;
        let noted = |name| parts.headers.get(name).cloned();
        // A target with an authority has the same as its `Host`, or the request was refused.
        let authority = || parts.uri.authority().and_then(|authority| HeaderValue::try_from(authority.as_str()).ok());
        let id = id.get_or_init(|| self.request_id(&parts.headers, caller.trusted));
        Some(Box::new(Text {
            target: parts.uri.path_and_query().cloned(),
            host: noted(header::HOST).or_else(authority),
            scheme: Some(scheme),
            version: Some(parts.version),
            id: Some(id.clone()),
            trace: TraceId::of(&parts.headers),
            referer: noted(header::REFERER),
            agent: noted(header::USER_AGENT),
        }))
    }

    fn note(&self, record: Record) {
        self.metrics.count(&record);
        if let Some(log) = &self.log {
            log.write(record);
        }
    }
}

/// What never became a request: its head could not be read, or did not come.
impl Ledger for Core {
    fn unanswered(&self, client: SocketAddr, what: Unanswered, took: Duration) {
        let (reason, status) = match what {
            Unanswered::Unreadable => (Detail::Unreadable, StatusCode::BAD_REQUEST),
            Unanswered::HeadTooLarge => (Detail::HeadTooLarge, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            Unanswered::UriTooLong => (Detail::UriTooLong, StatusCode::URI_TOO_LONG),
            Unanswered::SlowHead => (Detail::SlowHead, StatusCode::REQUEST_TIMEOUT),
        };
        let now = self.env.now();
        self.note(Record {
            arrived: Tick::ZERO + (now - Tick::ZERO).saturating_sub(took),
            client,
            method: None,
            status,
            bytes: 0,
            complete: what != Unanswered::SlowHead,
            outcome: Outcome::Bad,
            reason,
            waited: Duration::ZERO,
            origin: None,
            first: took,
            took,
            key: 0,
            text: None,
        });
    }
}

impl Proxy {
    /// How it is with what is kept, with those who wait, and with the origin, for a page of metrics.
    pub fn report(&self) -> impl Fn(&mut Page) + Send + Sync + 'static {
        let core = Arc::clone(&self.0);
        move |page| {
            let (store, origin, flights) = (core.store.stats(), core.origin.stats(), core.flights.stats());
            page.gauge("herdproof_store_objects", "Responses in the store.", store.entries as f64);
            page.gauge(
                "herdproof_store_bytes",
                "What the responses in the store weigh, heads and overhead included.",
                store.weight as f64,
            );
            let help = "Responses that had to leave the store to make room for others.";
            page.counter("herdproof_store_evictions_total", help, store.evictions);
            let help = "Bytes of bodies in memory that are not in the store: they arrive, or clients still read them.";
            page.gauge("herdproof_unstored_body_bytes", help, core.memory.bytes() as f64);
            let uploads = core.uploads.stats();
            let help = "Bytes of small request bodies that are held until their request is at the origin.";
            page.gauge("herdproof_upload_buffered_bytes", help, uploads.buffered as f64);
            let help = "Request bodies that are streamed to the origin, each on one of the upload seats.";
            page.gauge("herdproof_upload_seats", help, f64::from(uploads.held));
            page.gauge(
                "herdproof_uploads_waiting",
                "Request bodies that wait for an upload seat.",
                uploads.waiting as f64,
            );
            let help = "Uploads that were ended with 408 because their client sent too slowly.";
            page.counter("herdproof_uploads_slow_total", help, uploads.slow);
            let upgrades = core.upgrades.stats();
            let help = "Connections that speak another protocol after an upgrade.";
            page.gauge("herdproof_upgrades", help, f64::from(upgrades.held));
            page.counter("herdproof_upgrades_total", "Upgrades that the origin granted.", upgrades.begun);
            let help = "Requests for an upgrade that were refused because too many connections are upgraded.";
            page.counter("herdproof_upgrades_refused_total", help, upgrades.refused);
            let (compressed, skipped) = core.press.counts();
            page.counter("herdproof_compressed_total", "Responses that were compressed, once each.", compressed);
            let help = "Responses that were kept as they came because too much was being compressed.";
            page.counter("herdproof_compress_skipped_total", help, skipped);
            page.gauge("herdproof_fills", "Fetches for the cache that are under way.", flights.in_air as f64);
            let help = "Requests for pages that were private lately, at the origin or waiting for their turn.";
            page.gauge("herdproof_private_requests", help, core.widening.len() as f64);
            origin_times(page, &core.origin);
            origin_now(page, &origin);
            origin_counts(page, &origin);
        }
    }
}

fn origin_times(page: &mut Page, origin: &Origin) {
    let (took, queued) = origin.times();
    let help = "Time from a request at the origin to the head of its answer, by class of status, or to the failure (none). One for \
                each attempt, without probes, and without the wait in the queue.";
    let mut family = page.histograms("herdproof_origin_request_seconds", help);
    for (code, sum) in CODES.into_iter().chain(["none"]).zip(&took) {
        if sum.total() > 0 || matches!(code, "2xx" | "none") {
            family.conventional(&[("code", code)], sum);
        }
    }
    let help = "How long requests waited in the queue for the origin that were let in; those without a wait included.";
    page.histograms("herdproof_origin_queue_seconds", help).fine(&[], &queued);
}

fn origin_now(page: &mut Page, origin: &OriginStats) {
    let help = "Whether the last that was heard of the origin, by an answer, a probe or a connection that could not be made, is that \
                it is there; 1 before anything was heard.";
    page.gauge("herdproof_origin_up", help, u8::from(origin.is_up).into());
    let help = "What the breaker before the origin does: 1 for the state that it is in. Closed: requests pass. Open: the origin counts \
                as down, and only probes are sent. Recovering: it lets clients in again, step by step.";
    let mut family = page.gauges("herdproof_origin_breaker_state", help);
    let state = match origin.breaker {
        Phase::Closed => "closed",
        Phase::Open { .. } => "open",
        _ => "recovering",
    };
    for name in ["closed", "open", "recovering"] {
        family.sample(&[("state", name)], u8::from(name == state));
    }
    let help = "Requests at the origin, each until the last byte of its answer.";
    page.gauge("herdproof_origin_in_flight", help, origin.in_flight.into());
    let help = "How many requests there may be at the origin at present: `origin.limit`, or fewer where it bears less.";
    page.gauge("herdproof_origin_limit", help, origin.limit.into());
    let help = "Requests that wait in the queue for the origin.";
    page.gauge("herdproof_origin_queue_length", help, origin.waiting.into());
    page.gauge("herdproof_origin_connections", "Open connections to the origin.", origin.connections.into());
    let help = "Open connections to the origin that are not in use.";
    page.gauge("herdproof_origin_idle_connections", help, origin.idle.into());
}

fn origin_counts(page: &mut Page, origin: &OriginStats) {
    let help = "Requests that were sent to the origin: misses, refreshes, passes, retries and hedges, but no probes.";
    page.counter("herdproof_origin_requests_total", help, origin.requests);
    let help = "Attempts at the origin that failed, by how: no connection (connect), no answer in time (timeout), closed before the \
                answer (broken), an answer that is not HTTP (protocol), 5xx (status), a body that broke off (body).";
    let faults = origin.faults_by.map(|(fault, count)| (fault.name(), count));
    page.counters("herdproof_origin_faults_total", help, "kind", &faults);
    let refusals = origin.refusals.map(|(why, count)| (Detail::from(why).name(), count));
    let help = "Requests that were not let through to the origin, by why; the reasons are those of the access log.";
    page.counters("herdproof_origin_refusals_total", help, "reason", &refusals);
    let help = "Attempts at the origin after one that failed.";
    page.counter("herdproof_origin_retries_total", help, origin.retries);
    page.counter("herdproof_origin_hedges_total", "Attempts at the origin beside a slow one.", origin.hedges);
    let help = "Retries and hedges that were not made, because their budget was spent.";
    page.counter("herdproof_origin_extra_denied_total", help, origin.unpaid);
    let help = "Requests of the proxy's own that asked whether the origin is there.";
    page.counter("herdproof_origin_probes_total", help, origin.probes);
    let help = "Probes of the origin that found that it is not there.";
    page.counter("herdproof_origin_probe_failures_total", help, origin.failed_probes);
    page.counter("herdproof_origin_connects_total", "Connections to the origin that were begun.", origin.dialled);
}
