//! What can be watched: requests by what became of them, and how long they took.
//!
//! A herd shows in the relation of two numbers, what clients asked for and what reached the origin, and a remedy in a third,
//! how long clients waited for each other. All three are counted here, on the way of every request, so counting must cost
//! next to nothing: each thread counts on lines of its own, and only a reader of the page adds them up.
//!
//! **One source for each number.** A request is counted once, when it is over, in the histogram of its method, status and outcome; the
//! counters by outcome are sums of these. What the library's policies tell their [`Observer`] is about look-ups and
//! loads inside, several for each request or none, and so it is not on the page: [`Metrics`] is the observer of the proxy's
//! [`Env`](herdproof::Env) for what only a policy knows, that a breaker has tripped.
//!
//! **Bounded.** Every label has a closed set of values: what clients and the origin send chooses among them and adds none.
//!
//! The page is the text format of Prometheus, written here in a few lines: what a client library for it would add is
//! counters that threads share, which is what is to be avoided.

mod histogram;
mod page;
mod process;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::event::{Event, Observer};
use http::{Method, StatusCode};

pub(crate) use self::histogram::{Histogram, Sum};
pub use self::page::Page;
use crate::{
    access::{Outcome, Record},
    detail::{DETAILS, Detail},
    stripes::Stripes,
};

const OUTCOMES: usize = Outcome::ALL.len();

/// The known methods, as the semantic convention of OpenTelemetry has them, and the name of all others.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "_OTHER"];
const GET: usize = 0;
const OTHER: usize = METHODS.len() - 1;

/// The classes of statuses; first what is no status at all.
pub(crate) const CODES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Everything that is counted; see the [module](self).
#[derive(Debug, Default)]
pub struct Metrics {
    parts: Stripes<Part>,
}

/// What one thread counted.
#[derive(Debug)]
struct Part {
    requests: [[[Slot; CODES.len()]; METHODS.len()]; OUTCOMES],
    reasons: [[AtomicU64; DETAILS]; OUTCOMES],
    bytes: [AtomicU64; OUTCOMES],
    waited: Histogram,
    /// More than zero if more began to wait on this thread than ended, and the other way round.
    waiting: AtomicI64,
    fills: [AtomicU64; Fill::ALL.len()],
    trips: AtomicU64,
}

/// Requests of one method, one class of statuses and one outcome, if there were any.
#[derive(Debug, Default)]
struct Slot(OnceLock<Box<Times>>);

/// How long requests took.
#[derive(Debug, Default)]
struct Times {
    /// Those whose answer was over as soon as it began, as all of it was in memory: counted once, and shown as both.
    at_once: Histogram,
    /// Of all others, until the first byte and until the last.
    first: Histogram,
    last: Histogram,
}

/// Why the origin is asked with others, or for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Miss,
    Refresh,
    Alone,
}

/// Requests that went to the origin by themselves, by why, and all requests, so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unshared {
    pub(crate) requests: u64,
    by: [u64; DETAILS],
}

/// Somebody waits until this is dropped.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Metrics);

impl Metrics {
    /// Nothing was counted yet.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Counts a request that is over.
    #[inline]
    pub fn count(&self, record: &Record) {
        let (part, outcome) = (&*self.parts, record.outcome as usize);
        let times = part.times(outcome, method(record.method.as_ref()), record.status);
        if record.first == record.took {
            times.at_once.add(record.took);
        } else {
            times.first.add(record.first);
            times.last.add(record.took);
        }
        part.bytes[outcome].fetch_add(record.bytes, Relaxed);
        if !record.waited.is_zero() {
            part.waited.add(record.waited);
        }
        if record.reason != Detail::None {
            part.reasons[outcome][record.reason as usize].fetch_add(1, Relaxed);
        }
    }

    /// Counts a GET that was answered from memory as soon as it was read.
    #[inline]
    pub(crate) fn count_at_once(&self, status: StatusCode, bytes: u64, took: Duration) {
        let (part, outcome) = (&*self.parts, Outcome::Hit as usize);
        part.times(outcome, GET, status).at_once.add(took);
        part.bytes[outcome].fetch_add(bytes, Relaxed);
    }

    /// Somebody begins to wait for a fill that another began.
    pub fn wait(&self) -> Waiting<'_> {
        self.parts.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// A fill has begun.
    pub(crate) fn fill(&self, fill: Fill) {
        self.parts.fills[fill as usize].fetch_add(1, Relaxed);
    }

    /// How many requests went to the origin by themselves so far, and why.
    pub(crate) fn unshared(&self) -> Unshared {
        let passes = |detail: usize| {
            self.parts.iter().map(|part| part.reasons[Outcome::Pass as usize][detail].load(Relaxed)).sum()
        };
        let requests = Outcome::ALL.iter().map(|outcome| self.requests(*outcome).total()).sum();
        Unshared { requests, by: array::from_fn(passes) }
    }

    /// All of it. What others have to report can be added.
    pub fn page(&self) -> Page {
        let mut page = Page::default();
        let version = env!("CARGO_PKG_VERSION");
        page.gauges("herdproof_build_info", "Always 1; the label is the version of this proxy.")
            .sample(&[("version", version)], 1);
        let requests: Vec<(&str, u64)> =
            Outcome::ALL.iter().map(|outcome| (outcome.name(), self.requests(*outcome).total())).collect();
        let help = "Requests of clients that are over, by outcome. Divided by herdproof_origin_requests_total, as rates, this is \
                    how many requests one request to the origin answers.";
        page.counters("herdproof_requests_total", help, "outcome", &requests);
        let help = "Requests answered from memory with a fresh response; the same number as \
                    herdproof_requests_total{outcome=\"hit\"}.";
        page.counter("herdproof_cache_hits_total", help, self.requests(Outcome::Hit).total());
        self.reasons(&mut page);
        self.durations(&mut page);
        let bytes = |outcome: &Outcome| {
            let sum = self.parts.iter().map(|part| part.bytes[*outcome as usize].load(Relaxed)).sum();
            (outcome.name(), sum)
        };
        let bytes: Vec<(&str, u64)> = Outcome::ALL.iter().map(bytes).collect();
        let help = "Bytes of response bodies given to clients, by outcome.";
        page.counters("herdproof_response_body_bytes_total", help, "outcome", &bytes);
        let waited: Sum = self.parts.iter().map(|part| part.waited.sum()).sum();
        let help =
            "How long requests with the outcome `joined` waited for the response that another request was fetching.";
        page.histograms("herdproof_wait_seconds", help).fine(&[], &waited);
        let waiting: i64 = self.parts.iter().map(|part| part.waiting.load(Relaxed)).sum();
        let help = "Requests that wait for the origin at present, for their own fetch or for another request's.";
        page.gauge("herdproof_waiting", help, waiting.max(0) as f64);
        let fills = Fill::ALL.map(|fill| {
            (fill.name(), self.parts.iter().map(|part| part.fills[fill as usize].load(Relaxed)).sum::<u64>())
        });
        let help = "Fetches that were begun for the cache, by why: nothing was stored that could be served (miss), what was served \
                    had to be refreshed (refresh), or the response may be for one client only (alone).";
        page.counters("herdproof_fills_total", help, "kind", &fills);
        let trips: u64 = self.parts.iter().map(|part| part.trips.load(Relaxed)).sum();
        page.counter("herdproof_origin_breaker_trips_total", "How often the breaker before the origin opened.", trips);
        process::report(&mut page);
        page
    }

    fn reasons(&self, page: &mut Page) {
        let help = "Requests whose outcome has a reason, by both; the reasons are those of the access log and of Cache-Status.";
        let mut family = page.labelled("herdproof_reasons_total", help);
        for outcome in Outcome::ALL {
            for detail in Detail::ALL {
                let count = |part: &Part| part.reasons[*outcome as usize][*detail as usize].load(Relaxed);
                let count: u64 = self.parts.iter().map(count).sum();
                if count > 0 {
                    family.sample(&[("outcome", outcome.name()), ("reason", detail.name())], count);
                }
            }
        }
    }

    fn durations(&self, page: &mut Page) {
        let help = "Time from the head of a request to the last byte of its response handed to the connection, or to the client \
                    leaving, by method (_OTHER: any that RFC 9110 and RFC 5789 do not have), class of status and outcome.";
        let mut family = page.histograms("http_server_request_duration_seconds", help);
        for outcome in Outcome::ALL {
            for (method, method_name) in METHODS.iter().enumerate() {
                for (code, code_name) in CODES.iter().enumerate() {
                    let slots =
                        self.parts.iter().filter_map(|part| part.requests[*outcome as usize][method][code].0.get());
                    let sum: Sum = slots.flat_map(|times| [times.at_once.sum(), times.last.sum()]).sum();
                    if sum.total() > 0 {
                        let labels = [("method", *method_name), ("code", *code_name), ("outcome", outcome.name())];
                        family.conventional(&labels, &sum);
                    }
                }
            }
        }
        let help =
            "Time from the head of a request to the first byte of its response, or to the client leaving, by outcome.";
        let mut family = page.histograms("herdproof_first_byte_seconds", help);
        for outcome in Outcome::ALL {
            family.fine(&[("outcome", outcome.name())], &self.requests(*outcome));
        }
    }

    /// Of all requests with this outcome, how long it took until the first byte.
    fn requests(&self, outcome: Outcome) -> Sum {
        let slots = self.parts.iter().flat_map(|part| part.requests[outcome as usize].iter().flatten());
        let times = slots.filter_map(|slot| slot.0.get());
        times.flat_map(|times| [times.at_once.sum(), times.first.sum()]).sum()
    }
}

fn method(method: Option<&Method>) -> usize {
    match method {
        Some(&Method::GET) => GET,
        Some(method) => METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(OTHER),
        None => OTHER,
    }
}

/// Which class of statuses this one is in.
pub(crate) fn class_of(status: StatusCode) -> usize {
    let class = usize::from(status.as_u16() / 100);
    if class < CODES.len() { class } else { 0 }
}

impl Observer for Metrics {
    #[inline]
    fn observe(&self, event: &Event) {
        if let Event::Trip = event {
            self.parts.trips.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.parts.waiting.fetch_sub(1, Relaxed);
    }
}

impl Default for Part {
    fn default() -> Part {
        let zeros = || AtomicU64::new(0);
        Part {
            requests: array::from_fn(|_| array::from_fn(|_| array::from_fn(|_| Slot::default()))),
            reasons: array::from_fn(|_| array::from_fn(|_| zeros())),
            bytes: array::from_fn(|_| zeros()),
            waited: Histogram::default(),
            waiting: AtomicI64::new(0),
            fills: array::from_fn(|_| zeros()),
            trips: zeros(),
        }
    }
}

impl Part {
    #[inline]
    fn times(&self, outcome: usize, method: usize, status: StatusCode) -> &Times {
        self.requests[outcome][method][class_of(status)].0.get_or_init(Box::default)
    }
}

impl Fill {
    const ALL: [Fill; 3] = [Fill::Miss, Fill::Refresh, Fill::Alone];

    fn name(self) -> &'static str {
        match self {
            Fill::Miss => "miss",
            Fill::Refresh => "refresh",
            Fill::Alone => "alone",
        }
    }
}

impl Unshared {
    /// With each reason of which there is one, how often it was so.
    pub(crate) fn since(&self, before: &Unshared) -> impl Iterator<Item = (Detail, u64)> {
        let times = |detail: &Detail| self.by[*detail as usize].saturating_sub(before.by[*detail as usize]);
        Detail::ALL.iter().map(move |detail| (*detail, times(detail)))
    }
}
