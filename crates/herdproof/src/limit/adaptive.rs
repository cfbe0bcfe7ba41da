//! A limit on how many at once that finds itself.
//!
//! A fixed limit is right for the origin as it was when somebody measured it. This one watches how long calls take and how
//! many come through, window by window, and a [`Law`] moves it. A call costs a handful of atomic operations; the law runs
//! once per window, on whichever call ends it.

use std::{
    borrow::Borrow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    law::{Knee, Law, Window},
    promise::Promises,
};
use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Borrowed, Gate, Permit, Place, Refusal, Sizer, Span, Verdict, Why},
};

/// A window is at least this long ...
const WINDOW: Duration = Duration::from_millis(500);
/// ... and has at least this many calls.
const CALLS: u32 = 25;
/// How many times of a window are kept to take the median of.
const KEPT: usize = 256;

/// A gate that lets in as many at once as the origin can take; see [`limit`](super). Cheap to clone, and clones share.
///
/// What costs more takes more of the limit, one at least; what costs more than all of it counts as all of it, and goes alone.
///
/// It does not wait: what does not fit is refused, and told when, as soon as it is known how often a call ends. Where callers
/// should wait, give it to a [`Queue`](crate::shed::Queue), whose seats then follow it
/// ([`adaptive`](crate::shed::QueueBuilder::adaptive)).
///
/// ```
/// use herdproof::{Env, gate::{Ask, Gate, Permit, Span, Verdict}, limit::AdaptiveLimit};
///
/// let env = Env::system();
/// let limit = AdaptiveLimit::new(&env);
/// let ask = Ask::new(&env);
/// let permit = limit.try_enter(&ask).expect("there is room for twenty to begin with");
/// permit.settle(&Verdict::Ok, Span { from: ask.at, to: env.now() });
/// assert_eq!((limit.limit(), limit.in_flight()), (20, 0));
/// ```
#[derive(Clone)]
pub struct AdaptiveLimit(Arc<Inner>);

/// How an [`AdaptiveLimit`] is made.
#[must_use]
pub struct AdaptiveBuilder {
    env: Env,
    initial: u32,
    min: u32,
    max: u32,
    law: Box<dyn Law>,
}

struct Inner {
    env: Env,
    bounds: (u32, u32),
    limit: AtomicU32,
    in_flight: AtomicU32,
    sight: Sight,
    promises: Promises,
    /// Locked by whoever ends a window; nobody waits for it.
    law: Mutex<Ruling>,
}

/// What is seen in the window that is under way. Written without a lock: what comes in while a window is read may count for
/// the next one or be lost, which is a few calls among many.
struct Sight {
    began: AtomicU64,
    /// The earliest end.
    ends: AtomicU64,
    /// Successes in the upper half; in the lower, how many were under way, summed over them.
    calls: AtomicU64,
    drops: AtomicU32,
    timeouts: AtomicU32,
    refused: AtomicU32,
    times: [AtomicU64; KEPT],
    /// What takes longer than this and fails is a timeout, in nanoseconds: nine of ten of those that worked lately were
    /// faster. Zero until something has worked: an origin that is dead from the start must be seen too.
    ///
    /// A multiple of the median would not do: who gives up after 300 ms gives up before twice 200 ms, and then nobody would
    /// seem to have given up at all.
    slow: AtomicU64,
    /// Between the ends of two calls in the last window, on average, in nanoseconds; zero if there was none.
    interval: AtomicU64,
}

struct Ruling {
    law: Box<dyn Law>,
    /// The limit with its fraction, so that small steps add up.
    limit: f64,
}

/// The right to be under way.
#[must_use = "dropping it gives it back"]
pub struct AdaptivePermit<L: Borrow<AdaptiveLimit> = AdaptiveLimit> {
    limit: L,
    /// Zero once it is settled.
    cost: u32,
}

impl AdaptiveBuilder {
    /// The limit to begin with; 20 unless told otherwise.
    pub fn initial(mut self, limit: u32) -> AdaptiveBuilder {
        self.initial = limit;
        self
    }

    /// The lowest and the highest limit; 2 and 1000 unless told otherwise. One at least; a highest below the lowest counts as
    /// the lowest.
    pub fn between(mut self, lowest: u32, highest: u32) -> AdaptiveBuilder {
        self.min = lowest.max(1);
        self.max = highest.max(self.min);
        self
    }

    /// How the limit follows what is seen; [`Knee`] unless told otherwise.
    pub fn law(mut self, law: impl Law + 'static) -> AdaptiveBuilder {
        self.law = Box::new(law);
        self
    }

    /// The limit.
    pub fn build(self) -> AdaptiveLimit {
        let AdaptiveBuilder { env, initial, min, max, law } = self;
        let initial = initial.clamp(min, max);
        let began = env.now();
        let promises = Promises::new(env.rng("limit/adaptive"));
        AdaptiveLimit(Arc::new(Inner {
            env,
            bounds: (min, max),
            limit: AtomicU32::new(initial),
            in_flight: AtomicU32::new(0),
            sight: Sight::new(began),
            promises,
            law: Mutex::new(Ruling { law, limit: f64::from(initial) }),
        }))
    }
}

impl AdaptiveLimit {
    /// A limit with the usual settings.
    pub fn new(env: &Env) -> AdaptiveLimit {
        AdaptiveLimit::builder(env).build()
    }

    /// A limit in the making.
    pub fn builder(env: &Env) -> AdaptiveBuilder {
        AdaptiveBuilder { env: env.clone(), initial: 20, min: 2, max: 1_000, law: Box::new(Knee::default()) }
    }

    /// The same gate with permits that borrow it.
    #[inline]
    pub fn borrowed(&self) -> Borrowed<'_, AdaptiveLimit> {
        Borrowed(self)
    }

    /// How much may be under way at present.
    pub fn limit(&self) -> u32 {
        self.0.limit.load(Relaxed)
    }

    /// How much is under way; what a [`Queue`](crate::shed::Queue) that follows this limit lets in, the queue counts.
    pub fn in_flight(&self) -> u32 {
        self.0.in_flight.load(Relaxed)
    }
}

impl Inner {
    #[inline]
    fn enter(&self, ask: &Ask) -> Result<u32, Refusal> {
        let limit = self.limit.load(Relaxed);
        let cost = ask.cost.clamp(1, limit);
        let mut in_flight = self.in_flight.load(Relaxed);
        while in_flight <= limit - cost {
            match self.in_flight.compare_exchange_weak(in_flight, in_flight + cost, Relaxed, Relaxed) {
                Ok(_) => return Ok(cost),
                Err(other) => in_flight = other,
            }
        }
        Err(self.refuse(ask, cost))
    }

    #[cold]
    fn refuse(&self, ask: &Ask, cost: u32) -> Refusal {
        self.sight.refused.fetch_add(1, Relaxed);
        self.env.tell(&Event::Refusal);
        let refusal = Refusal::new(Why::Concurrency);
        match self.sight.interval(ask.at) {
            Some(interval) => refusal.after(self.promises.next(ask.at, interval.saturating_mul(u64::from(cost)))),
            None => refusal,
        }
    }

    /// One that was let in is over.
    #[inline]
    fn leave(&self, cost: u32, verdict: &Verdict, span: Span) {
        self.learn(verdict, span, self.in_flight.fetch_sub(cost, Relaxed));
    }

    #[inline]
    fn learn(&self, verdict: &Verdict, span: Span, in_flight: u32) {
        match verdict {
            // A request that was at fault itself has had its answer, in the time that it takes.
            Verdict::Ok | Verdict::Final => self.sight.success(span.took(), in_flight),
            Verdict::Overload { .. } => {
                self.sight.drops.fetch_add(1, Relaxed);
            }
            Verdict::Fault => self.sight.failure(span.took()),
            Verdict::Ignored => {}
        }
        self.look(span.to);
    }

    /// Cancelled, which says nothing about the origin: callers who leave at will must not be able to lower the limit.
    #[cold]
    fn cancel(&self, cost: u32) {
        self.in_flight.fetch_sub(cost, Relaxed);
    }

    /// Ends the window if it is due, and lets the law move the limit.
    #[inline]
    fn look(&self, now: Tick) {
        if now.as_nanos() >= self.sight.ends.load(Relaxed) && self.sight.calls() >= CALLS {
            self.rule(now);
        }
    }

    #[cold]
    fn rule(&self, now: Tick) {
        let Some(mut ruling) = self.law.try_lock() else { return };
        // Somebody else may have ended it since.
        if now.as_nanos() < self.sight.ends.load(Relaxed) || self.sight.calls() < CALLS {
            return;
        }
        let window = self.sight.end(now);
        let Ruling { law, limit } = &mut *ruling;
        let next = law.next(*limit, &window);
        if next.is_finite() {
            *limit = next.clamp(f64::from(self.bounds.0), f64::from(self.bounds.1));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two u32")]
        self.limit.store(limit.floor() as u32, Relaxed);
    }
}

impl Sight {
    fn new(now: Tick) -> Sight {
        Sight {
            began: AtomicU64::new(now.as_nanos()),
            ends: AtomicU64::new((now + WINDOW).as_nanos()),
            calls: AtomicU64::new(0),
            drops: AtomicU32::new(0),
            timeouts: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            times: [const { AtomicU64::new(0) }; KEPT],
            slow: AtomicU64::new(0),
            interval: AtomicU64::new(0),
        }
    }

    fn calls(&self) -> u32 {
        let failures = self.drops.load(Relaxed).saturating_add(self.timeouts.load(Relaxed));
        successes(self.calls.load(Relaxed)).saturating_add(failures)
    }

    /// Counts a success, and keeps its time with the chance that every other of this window had.
    #[inline]
    fn success(&self, time: Duration, in_flight: u32) {
        let before = self.calls.fetch_add((1 << 32) | u64::from(in_flight), Relaxed);
        let number = u64::from(successes(before));
        let place = if number < KEPT as u64 { number } else { spread(number) % (number + 1) };
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.times.get(place)) {
            kept.store((Tick::ZERO + time).as_nanos(), Relaxed);
        }
    }

    /// How long until one more is over, in nanoseconds: as in the last window, or as in this one if that is slower. `None`
    /// while nothing was measured.
    fn interval(&self, now: Tick) -> Option<u64> {
        let last = self.interval.load(Relaxed);
        let current = (now - Tick::from_nanos(self.began.load(Relaxed))).as_nanos() / (u128::from(self.calls()) + 1);
        (last > 0).then(|| last.max(u64::try_from(current).unwrap_or(u64::MAX)))
    }

    /// What came to nothing after this long; if it took longer than what works, that was load and not a mistake.
    fn failure(&self, time: Duration) {
        if (Tick::ZERO + time).as_nanos() > self.slow.load(Relaxed) {
            self.timeouts.fetch_add(1, Relaxed);
        }
    }

    /// What was seen, and begins anew.
    fn end(&self, now: Tick) -> Window {
        let began = Tick::from_nanos(self.began.swap(now.as_nanos(), Relaxed));
        self.ends.store((now + WINDOW).as_nanos(), Relaxed);
        let calls = self.calls.swap(0, Relaxed);
        let successes = successes(calls);
        let mut times = self.times.each_ref().map(|time| time.load(Relaxed));
        let kept = usize::try_from(successes).unwrap_or(KEPT).min(KEPT);
        let times = &mut times[..kept];
        times.sort_unstable();
        let (drops, timeouts) = (self.drops.swap(0, Relaxed), self.timeouts.swap(0, Relaxed));
        let rank = |below: u64, of: u64| {
            let place = (kept as u64).saturating_mul(below) / of.max(1);
            let place = usize::try_from(place).unwrap_or(usize::MAX).min(kept.saturating_sub(1));
            times.get(place).copied().unwrap_or(0)
        };
        // Of all, though only the times of those that worked are kept.
        let median = rank(u64::from(successes) + u64::from(timeouts), 2 * u64::from(successes));
        let mean = times.iter().map(|time| *time as f64).sum::<f64>() / (kept.max(1) as f64);
        if kept > 0 {
            self.slow.store(rank(9, 10), Relaxed);
        }
        let over = u64::from(successes) + u64::from(drops) + u64::from(timeouts);
        let elapsed = now - began;
        self.interval.store((Tick::ZERO + elapsed).as_nanos() / over.max(1), Relaxed);
        Window {
            elapsed,
            successes,
            drops,
            timeouts,
            median: Duration::from_nanos(median),
            mean: Duration::from_secs_f64(mean / 1e9),
            in_flight: (calls & u64::from(u32::MAX)) as f64 / f64::from(successes.max(1)),
            binding: self.refused.swap(0, Relaxed) > 0,
        }
    }
}

fn successes(calls: u64) -> u32 {
    u32::try_from(calls >> 32).unwrap_or(u32::MAX)
}

/// Scatters a counter over all 64 bits.
#[inline]
fn spread(number: u64) -> u64 {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    scattered ^ (scattered >> 32)
}

impl Gate for AdaptiveLimit {
    type Place = AdaptivePermit;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<AdaptivePermit, Refusal> {
        self.0.enter(ask).map(|cost| AdaptivePermit { limit: self.clone(), cost })
    }
}

impl Sizer for AdaptiveLimit {
    fn limit(&self) -> u32 {
        AdaptiveLimit::limit(self)
    }

    fn over(&self, verdict: &Verdict, span: Span, inside: u32) {
        self.0.learn(verdict, span, inside);
    }

    fn binds(&self) {
        self.0.sight.refused.fetch_add(1, Relaxed);
    }
}

impl<'a> Gate for Borrowed<'a, AdaptiveLimit> {
    type Place = AdaptivePermit<&'a AdaptiveLimit>;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Self::Place, Refusal> {
        self.0.0.enter(ask).map(|cost| AdaptivePermit { limit: self.0, cost })
    }
}

/// Dropped before the work or during it, it takes nothing.
impl<L: Borrow<AdaptiveLimit> + Send> Place for AdaptivePermit<L> {
    type Permit = Self;

    #[inline]
    fn commit(self) -> Self {
        self
    }
}

impl<L: Borrow<AdaptiveLimit> + Send> Permit for AdaptivePermit<L> {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        let cost = std::mem::take(&mut self.cost);
        self.limit.borrow().0.leave(cost, verdict, span);
    }
}

impl<L: Borrow<AdaptiveLimit>> Drop for AdaptivePermit<L> {
    #[inline]
    fn drop(&mut self) {
        if self.cost > 0 {
            self.limit.borrow().0.cancel(self.cost);
        }
    }
}

impl fmt::Debug for AdaptiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimit")
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AdaptiveBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveBuilder")
            .field("initial", &self.initial)
            .field("between", &(self.min..=self.max))
            .finish_non_exhaustive()
    }
}

impl<L: Borrow<AdaptiveLimit>> fmt::Debug for AdaptivePermit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptivePermit").field("cost", &self.cost).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
