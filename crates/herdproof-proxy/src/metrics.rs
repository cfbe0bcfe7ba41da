//! What can be watched: requests by what became of them, and how long they took.
//!
//! A herd shows in the relation of two numbers, what clients asked for and what reached the origin, and a remedy in a third,
//! how long clients waited for each other. All three are counted here, on the way of every request, so counting must cost
//! next to nothing: each thread counts on lines of its own, and only a reader of the page adds them up.
//!
//! [`Metrics`] is also the [`Observer`] of the proxy's [`Env`](herdproof::Env), so what the library's policies do is on
//! the same [page](Metrics::page), under the library's names.
//!
//! The page is the text format of Prometheus, written here in a few lines: what a client library for it would add is
//! counters that threads share, which is what is to be avoided.

mod page;
#[cfg(test)]
mod tests;

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::event::{Counts, Event, Kind, Metric, Observer};
use http::StatusCode;

use crate::{
    access::{Outcome, Record},
    stripes::Stripes,
};
pub use page::Page;

const OUTCOMES: usize = Outcome::ALL.len();
/// The upper bounds of a histogram, in microseconds.
const BOUNDS: [u32; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
/// More reasons than this are counted together.
const REASONS: usize = 64;

/// Everything that is counted; see the [module](self).
#[derive(Debug, Default)]
pub struct Metrics {
    parts: Stripes<Part>,
    reasons: Reasons,
}

/// What one thread counted.
#[derive(Debug, Default)]
struct Part {
    /// How long it took until the answer began, and so how many there were.
    first: [Times; OUTCOMES],
    bytes: [AtomicU64; OUTCOMES],
    /// By the first digit of the status.
    statuses: [AtomicU64; 6],
    waited: Times,
    /// More than zero if more began to wait on this thread than ended, and the other way round.
    waiting: AtomicI64,
    events: Counts,
}

/// A histogram.
#[derive(Debug, Default)]
struct Times {
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// What a histogram holds, of all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    counts: [u64; BOUNDS.len() + 1],
    nanos: u64,
}

/// Words and how often each was said. They are few and known when the program is compiled, but not here.
#[derive(Debug)]
struct Reasons([OnceLock<(Outcome, &'static str)>; REASONS], [AtomicU64; REASONS]);

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
        part.first[outcome].add(record.first);
        part.add(outcome, record.status, record.bytes);
        if !record.waited.is_zero() {
            part.waited.add(record.waited);
        }
        if !record.reason.is_empty() {
            self.reasons.add(record.outcome, record.reason);
        }
    }

    /// Counts a request that was answered from memory as soon as it was read.
    #[inline]
    pub(crate) fn count_at_once(&self, status: StatusCode, bytes: usize) {
        let (part, outcome) = (&*self.parts, Outcome::Hit as usize);
        // It is not worth a look at the clock to say how little that was.
        part.first[outcome].counts[0].fetch_add(1, Relaxed);
        part.add(outcome, status, bytes as u64);
    }

    /// Somebody begins to wait for a fill that another began.
    pub fn wait(&self) -> Waiting<'_> {
        self.parts.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// What the library's policies did.
    pub fn event(&self, metric: Metric) -> u64 {
        match metric.kind() {
            Kind::Counter => self.parts.iter().map(|part| part.events.get(metric)).sum(),
            Kind::Gauge => self.parts.first().events.get(metric),
        }
    }

    /// All of it. What others have to report can be added.
    pub fn page(&self) -> Page {
        let mut page = Page::default();
        let first: [Sum; OUTCOMES] =
            array::from_fn(|outcome| Sum::of(self.parts.iter().map(|part| &part.first[outcome])));
        let bytes = self.by_outcome(|part, outcome| &part.bytes[outcome]);
        let requests: Vec<(&str, u64)> = names().zip(first.iter().map(Sum::total)).collect();
        let edge: u64 = first.iter().map(Sum::total).sum();
        page.counters("herdproof_requests_total", "Requests, by what became of them.", "outcome", &requests);
        page.pairs(
            "herdproof_reasons_total",
            "Requests, by what became of them and why.",
            ["outcome", "reason"],
            self.reasons.get().map(|(outcome, reason, count)| ([outcome.name(), reason], count)),
        );
        let statuses = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate();
        let status = |class: usize| self.parts.iter().map(|part| part.statuses[class].load(Relaxed)).sum();
        let statuses: Vec<(&str, u64)> = statuses.map(|(class, name)| (name, status(class))).collect();
        page.counters("herdproof_responses_total", "Responses, by the class of their status.", "status", &statuses);
        page.counters("herdproof_body_bytes_total", "Bytes of bodies given to clients.", "outcome", &bytes);
        page.histogram_head(
            "herdproof_first_byte_seconds",
            "Time until an answer began, by what became of the request.",
        );
        for (name, times) in names().zip(&first) {
            page.histogram(
                "herdproof_first_byte_seconds",
                Some(("outcome", name)),
                &BOUNDS,
                &times.counts,
                times.nanos,
            );
        }
        let waited = Sum::of(self.parts.iter().map(|part| &part.waited));
        page.histogram_head(
            "herdproof_wait_seconds",
            "Time that requests waited for a fill that they shared, or for a seat.",
        );
        page.histogram("herdproof_wait_seconds", None, &BOUNDS, &waited.counts, waited.nanos);
        let waiting: i64 = self.parts.iter().map(|part| part.waiting.load(Relaxed)).sum();
        page.gauge("herdproof_waiting", "Requests that wait for a fill that they share.", waiting.max(0) as f64);
        let origin = self.event(Metric::OriginRequests);
        if origin > 0 {
            let help = "Requests of clients per request that reached the origin.";
            page.gauge("herdproof_collapse_ratio", help, edge as f64 / origin as f64);
        }
        for metric in Metric::ALL {
            // Every request leaves a record: nobody need say it twice.
            let value = if *metric == Metric::EdgeRequests { edge } else { self.event(*metric) };
            match metric.kind() {
                Kind::Counter => page.counter(metric.name(), metric.help(), value),
                Kind::Gauge => page.gauge(metric.name(), metric.help(), value as f64),
            }
        }
        page
    }

    fn by_outcome(&self, count: impl Fn(&Part, usize) -> &AtomicU64) -> Vec<(&'static str, u64)> {
        let sum = |outcome: usize| self.parts.iter().map(|part| count(part, outcome).load(Relaxed)).sum();
        names().enumerate().map(|(outcome, name)| (name, sum(outcome))).collect()
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    Outcome::ALL.iter().map(|outcome| outcome.name())
}

impl Observer for Metrics {
    #[inline]
    fn observe(&self, event: &Event) {
        // What is set, and not added to, has one place.
        let is_gauge = matches!(event, Event::QueueDepth(_) | Event::InFlight(_));
        let part = if is_gauge { self.parts.first() } else { &*self.parts };
        part.events.observe(event);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.parts.waiting.fetch_sub(1, Relaxed);
    }
}

impl Part {
    #[inline]
    fn add(&self, outcome: usize, status: StatusCode, bytes: u64) {
        self.bytes[outcome].fetch_add(bytes, Relaxed);
        self.statuses[usize::from(status.as_u16() / 100).min(5)].fetch_add(1, Relaxed);
    }
}

impl Times {
    #[inline]
    fn add(&self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

impl Sum {
    fn of<'a>(times: impl Iterator<Item = &'a Times>) -> Sum {
        times.fold(Sum::default(), |sum, times| Sum {
            counts: array::from_fn(|bucket| sum.counts[bucket] + times.counts[bucket].load(Relaxed)),
            nanos: sum.nanos.wrapping_add(times.nanos.load(Relaxed)),
        })
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Default for Reasons {
    fn default() -> Reasons {
        Reasons(array::from_fn(|_| OnceLock::new()), array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Reasons {
    /// Counts one: the first places are taken by those that come first, the last is for whoever finds none.
    fn add(&self, outcome: Outcome, reason: &'static str) {
        let Reasons(words, counts) = self;
        let (last, places) = words.split_last().unwrap_or_else(|| unreachable!("there are some"));
        let known = places.iter().position(|place| *place.get_or_init(|| (outcome, reason)) == (outcome, reason));
        let place = known.unwrap_or_else(|| {
            last.get_or_init(|| (outcome, "other"));
            places.len()
        });
        counts[place].fetch_add(1, Relaxed);
    }

    fn get(&self) -> impl Iterator<Item = (Outcome, &'static str, u64)> {
        let Reasons(words, counts) = self;
        words.iter().zip(counts).filter_map(|(word, count)| {
            let (outcome, reason) = *word.get()?;
            Some((outcome, reason, count.load(Relaxed)))
        })
    }
}
