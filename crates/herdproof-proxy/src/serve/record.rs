//! What is counted and written down of a request, once: when its answer is over.

use std::{sync::Arc, time::Duration};

use http::{Response, header, request::Parts};
use http_body::Body as _;

use super::{Caller, Core, Proxy, Served};
use crate::{
    access::{Outcome, Record},
    body::{Body, Witness},
    fill::read_ahead,
    listener::Client,
    metrics::Page,
};
use herdproof::{Tick, breaker::Phase};

/// Counts and writes a record when the body is over.
struct Pending {
    core: Arc<Core>,
    record: Record,
}

impl Witness for Pending {
    fn over(self: Box<Self>, sent: u64, _whole: bool) {
        let Pending { core, mut record } = *self;
        record.bytes = sent;
        record.took = core.env.now() - record.arrived;
        core.note(record);
    }
}

impl Core {
    /// The answer, which leaves a record: now if all of its body is here, else when that is over.
    #[inline]
    pub(super) fn record(
        self: &Arc<Core>,
        parts: Parts,
        (client, caller): (&Client, Caller),
        arrived: Tick,
        key: u64,
        served: Served,
    ) -> Response<Body> {
        let Served { mut response, outcome, detail } = served;
        let first = self.env.now() - arrived;
        let writes = self.log.is_some();
        let noted = |name| parts.headers.get(name).filter(|_| writes).cloned();
        let (referer, agent) = (noted(header::REFERER), noted(header::USER_AGENT));
        response.body_mut().read_ahead(|body| read_ahead(self, body));
        response.body_mut().read_by(caller.who, client);
        let body = response.body();
        let here = body.is_here();
        let record = Record {
            arrived,
            client: caller.address,
            method: parts.method,
            target: if writes { parts.uri.into_parts().path_and_query } else { None },
            status: response.status(),
            bytes: body.size_hint().lower(),
            outcome,
            reason: detail,
            waited: if outcome == Outcome::Joined { first } else { Duration::ZERO },
            first,
            took: first,
            key,
            referer,
            agent,
        };
        if here {
            self.note(record);
        } else {
            let witness = Box::new(Pending { core: Arc::clone(self), record });
            response = response.map(|body| body.witnessed(witness));
        }
        response
    }

    fn note(&self, record: Record) {
        self.metrics.count(&record);
        if let Some(log) = &self.log {
            log.write(record);
        }
    }
}

impl Proxy {
    /// How it is with what is kept, with those who wait, and with the origin, for a page of metrics.
    pub fn report(&self) -> impl Fn(&mut Page) + Send + Sync + 'static {
        let core = Arc::clone(&self.0);
        move |page| {
            let (store, origin, flights) = (core.store.stats(), core.origin.stats(), core.flights.stats());
            page.gauge("herdproof_store_objects", "Responses that are kept.", store.entries as f64);
            page.gauge("herdproof_store_bytes", "What they weigh.", store.weight as f64);
            page.counter("herdproof_store_evictions_total", "Responses that made room for others.", store.evictions);
            page.gauge(
                "herdproof_unstored_body_bytes",
                "Bytes of bodies in memory that are not in the store: they arrive, or clients still read them.",
                core.memory.bytes() as f64,
            );
            let uploads = core.uploads.stats();
            page.gauge(
                "herdproof_upload_buffered_bytes",
                "Bytes of small request bodies that are held until their request is at the origin.",
                uploads.buffered as f64,
            );
            page.gauge("herdproof_upload_seats", "Larger request bodies that are streamed.", f64::from(uploads.held));
            page.gauge("herdproof_uploads_waiting", "Those that wait for an upload seat.", uploads.waiting as f64);
            page.counter(
                "herdproof_uploads_slow_total",
                "Uploads that were ended with 408 because their client sent too slowly.",
                uploads.slow,
            );
            let upgrades = core.upgrades.stats();
            page.gauge("herdproof_upgrades", "Connections that speak another protocol.", f64::from(upgrades.held));
            page.counter("herdproof_upgrades_total", "Upgrades that the origin granted.", upgrades.begun);
            page.counter(
                "herdproof_upgrades_refused_total",
                "Requests for an upgrade that were refused because too many connections are upgraded.",
                upgrades.refused,
            );
            let (compressed, skipped) = core.press.counts();
            page.counter("herdproof_compressed_total", "Responses that were compressed, once each.", compressed);
            page.counter(
                "herdproof_compress_skipped_total",
                "Responses that were kept as they came because too much was being compressed.",
                skipped,
            );
            page.gauge("herdproof_fills", "Fills under way.", flights.in_air as f64);
            page.gauge(
                "herdproof_private_requests",
                "Requests for pages that were private lately, at the origin or waiting for their turn.",
                core.widening.len() as f64,
            );
            page.gauge("herdproof_origin_in_flight", "Requests at the origin.", f64::from(origin.in_flight));
            page.gauge("herdproof_origin_limit", "How many there may be.", f64::from(origin.limit));
            let open = matches!(origin.breaker, Phase::Open { .. });
            page.gauge(
                "herdproof_origin_breaker_open",
                "Whether the origin counts as down, and nothing is sent to it but probes.",
                f64::from(u8::from(open)),
            );
            page.counter(
                "herdproof_origin_probes_total",
                "Requests of our own that asked whether the origin is there.",
                origin.probes,
            );
            page.counter(
                "herdproof_origin_probe_failures_total",
                "Those that found that it is not.",
                origin.failed_probes,
            );
            page.gauge("herdproof_origin_waiting", "Requests that wait for a seat.", f64::from(origin.waiting));
            page.gauge("herdproof_origin_connections", "Connections to the origin.", f64::from(origin.connections));
            page.gauge("herdproof_origin_idle", "Those that nobody uses.", f64::from(origin.idle));
            page.counter("herdproof_origin_dialled_total", "Connections that were begun.", origin.dialled);
            page.counter("herdproof_origin_faults_total", "Requests that failed at the origin.", origin.faults);
            page.counter("herdproof_origin_timeouts_total", "Those that had no answer in time.", origin.timeouts);
            let refusals = origin.refusals.map(|(why, count)| (why.as_str(), count));
            page.counters(
                "herdproof_origin_refusals_total",
                "Requests that were not let through to the origin, by why.",
                "why",
                &refusals,
            );
        }
    }
}
