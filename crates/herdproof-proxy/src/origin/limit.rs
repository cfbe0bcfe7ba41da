//! How many requests the origin gets at a time, found so that no single client can steer it.
//!
//! An adaptive limit goes by what it sees, and a proxy sees what clients ask for. A client that asks for URLs that are refused,
//! or take long, or fail, must not take seats from the others; an origin that has really become slow, or sheds load, must be
//! spared. So:
//!
//! - **By client.** Shares and times are medians over groups of clients (`tally.rs`).
//! - **By latency**, the library's law decides ([`Knee`]), not below a thirty-second of the ceiling.
//! - **By refusals** (503), a cut on trial (`status.rs`), not below half of what the origin did well at once in the last five
//!   minutes, nor where all clients are one below the floor for latency. 429 is about one client and 500 about one URL: neither says anything about how much the origin can take.
//! - **After an outage** as many at a time as an origin with cold caches can bear: few at first, and one more for each that is
//!   served. Nobody is refused for that: who does not fit waits in the line.

mod status;
mod tally;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Env, Tick,
    gate::{Sizer, Span, Verdict},
    limit::law::{Knee, Law, Window},
};
use parking_lot::Mutex;

use self::status::{Status, Step};
pub(super) use self::tally::{Ending, Sample};
use self::tally::{Seen, Tally};

/// A window is at least this long ...
const WINDOW: Duration = Duration::from_millis(500);
/// ... and has at least this many answers.
const CALLS: u32 = 25;
/// The least seats, where the origin refuses whatever it is given.
const LEAST: u32 = 2;
/// The part of the ceiling below which latency does not take the limit, and with which it begins after an outage.
const PART: u32 = 32;
/// What an origin did well at once is remembered for so many of these.
const SPAN: Duration = Duration::from_secs(30);
const SPANS: usize = 10;
/// It did well if it served this share.
const WELL: f64 = 0.9;

/// See the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub(super) struct Limit(Arc<Inner>);

struct Inner {
    seats: AtomicU32,
    in_flight: AtomicU32,
    /// The most in flight in this window.
    peak: AtomicU32,
    /// Somebody had to wait in this window.
    binds: AtomicBool,
    /// In flight, summed over the answers of this window.
    in_flight_sum: AtomicU64,
    state: Mutex<State>,
}

struct State {
    bounds: Bounds,
    limit: f64,
    law: Knee,
    status: Status,
    best: Best,
    tally: Tally,
    began: Tick,
    /// How many may be under way after an outage; none once that is over.
    ramp: Option<f64>,
}

/// How far the limit goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    most: f64,
    by_latency: f64,
    by_status: f64,
}

impl Limit {
    /// At most so many, and at least the floor, if one is given.
    pub(super) fn new(env: &Env, most: u32, floor: Option<u32>) -> Limit {
        let least = |usual: u32| f64::from(floor.unwrap_or(usual).clamp(1, most));
        let bounds =
            Bounds { most: f64::from(most), by_latency: least(LEAST.max(most / PART)), by_status: least(LEAST) };
        Limit(Arc::new(Inner {
            seats: AtomicU32::new(most),
            in_flight: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            binds: AtomicBool::new(false),
            in_flight_sum: AtomicU64::new(0),
            state: Mutex::new(State {
                bounds,
                limit: bounds.most,
                law: Knee::default(),
                status: Status::new(),
                best: Best::default(),
                tally: Tally::new(),
                began: env.now(),
                ramp: None,
            }),
        }))
    }

    /// An answer has come, or will not. To be said before the seat learns of it, which then follows the limit.
    pub(super) fn learn(&self, sample: &Sample, now: Tick) {
        let inner = &*self.0;
        let mut state = inner.state.lock();
        if sample.ending == Ending::Served {
            state.ramp = state.ramp.map(|ramp| ramp + 1.0).filter(|ramp| *ramp < state.limit);
        }
        if sample.ending != Ending::Other {
            inner.in_flight_sum.fetch_add(inner.in_flight.load(Relaxed).into(), Relaxed);
        }
        state.tally.add(sample);
        if now - state.began >= WINDOW && state.tally.calls() >= CALLS {
            let in_flight = inner.in_flight.load(Relaxed);
            let edge = Edges {
                peak: inner.peak.swap(in_flight, Relaxed).into(),
                binds: inner.binds.swap(false, Relaxed),
                in_flight_sum: inner.in_flight_sum.swap(0, Relaxed) as f64,
            };
            state.rule(edge, now);
        }
        inner.seats.store(state.seats(), Relaxed);
    }

    /// The origin is back after an outage. Whoever has the seats asks for the [`limit`](Sizer::limit) after this.
    pub(super) fn begin_ramp(&self) {
        let mut state = self.0.state.lock();
        state.ramp = Some(state.bounds.by_latency.min(state.limit));
        self.0.seats.store(state.seats(), Relaxed);
    }
}

/// What was counted of a window without the lock.
#[derive(Clone, Copy, Debug)]
struct Edges {
    peak: f64,
    binds: bool,
    in_flight_sum: f64,
}

impl State {
    fn rule(&mut self, edges: Edges, now: Tick) {
        let elapsed = now - self.began;
        self.began = now;
        let calls = f64::from(self.tally.calls());
        let seen = self.tally.end(elapsed);
        if seen.served_share() >= WELL {
            self.best.note(edges.peak, now);
        }
        // Where all clients are one, it may be that one only that is refused.
        let least = if seen.groups < 2 { self.bounds.by_latency } else { self.bounds.by_status };
        let floor = least.max((self.best.highest(now) / 2.0).floor());
        let limit = match self.status.next(self.limit, &seen, edges.peak, floor, now) {
            Step::Set(limit) => limit,
            Step::Law => {
                let window = window(&seen, elapsed, edges.in_flight_sum / calls.max(1.0), edges.binds);
                let law = self.law.next(self.limit, &window);
                let law = if law.is_finite() { law } else { self.limit };
                // Where refusals have brought it below this floor, latency leaves it there.
                self.status.careful(self.limit, law).max(self.limit.min(self.bounds.by_latency))
            }
        };
        self.limit = limit.clamp(1.0, self.bounds.most);
    }

    fn seats(&self) -> u32 {
        let seats = self.ramp.map_or(self.limit, |ramp| ramp.min(self.limit));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between one and a u32")]
        let seats = seats.floor() as u32;
        seats
    }
}

/// A window as the law wants it. Refusals are not in it: they are no matter of latency. And of few clients, one that asks for
/// what hangs may be most: an origin that hangs for all of them is found by probes.
fn window(seen: &Seen, elapsed: Duration, in_flight: f64, binding: bool) -> Window {
    let all = f64::from(seen.served.saturating_add(seen.late));
    let late = if seen.has_many() { seen.late_share } else { 0.0 };
    let mut window = Window::default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most as many as there are")]
    let timeouts = (all * late).round() as u32;
    window.timeouts = timeouts;
    window.successes = seen.served.saturating_add(seen.late).saturating_sub(timeouts);
    window.elapsed = elapsed;
    window.median = Duration::from_secs_f64(seen.median);
    window.mean = window.median;
    window.in_flight = in_flight;
    window.binding = binding;
    window
}

impl Sizer for Limit {
    fn limit(&self) -> u32 {
        self.0.seats.load(Relaxed)
    }

    fn begun(&self) {
        let in_flight = self.0.in_flight.fetch_add(1, Relaxed) + 1;
        self.0.peak.fetch_max(in_flight, Relaxed);
    }

    /// What became of it was [learned](Limit::learn) before, with whose it was.
    fn over(&self, _: &Verdict, _: Span, _: u32) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }

    fn cancelled(&self, _: Tick) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }

    fn binds(&self) {
        self.0.binds.store(true, Relaxed);
    }
}

/// The most at once that went well, by span of time.
#[derive(Clone, Copy, Debug, Default)]
struct Best([(u64, f64); SPANS]);

impl Best {
    fn note(&mut self, peak: f64, now: Tick) {
        let span = Best::span(now);
        let Some(slot) = self.0.get_mut(usize::try_from(span % SPANS as u64).unwrap_or(0)) else { return };
        *slot = if slot.0 == span { (span, slot.1.max(peak)) } else { (span, peak) };
    }

    fn highest(&self, now: Tick) -> f64 {
        let first = (Best::span(now) + 1).saturating_sub(SPANS as u64);
        self.0.iter().filter(|slot| slot.0 >= first).fold(0.0, |most, slot| slot.1.max(most))
    }

    fn span(now: Tick) -> u64 {
        (now - Tick::ZERO).as_secs() / SPAN.as_secs()
    }
}

#[cfg(test)]
mod tests;
