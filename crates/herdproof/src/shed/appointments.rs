//! When to come back, as a slot that nobody else was given.
//!
//! A server that says "come back in 5 seconds" to 20,000 clients has made an appointment with all of them for the same
//! instant: it will refuse nearly all of them again, and again. Spreading the answer at random needs to know over how long.
//! So the slots are kept in a book, and given out as fast as the server can serve those who return: at its *headroom*,
//! what it can do minus what it does for those who come for the first time.
//!
//! ```
//! use herdproof::{Env, gate::Ask, shed::{Appointments, headers}};
//!
//! let env = Env::system();
//! let appointments = Appointments::new(&env);
//! let first = appointments.book(&Ask::new(&env), Some(10.0)); // ten a second can be served
//! let second = appointments.book(&Ask::new(&env), Some(10.0));
//! assert!(first.as_millis() >= 1_000 && second > first.mul_f64(0.9));
//! for (name, value) in headers(first) {
//!     println!("{name}: {value}"); // retry-after: 2, retry-after-ms: 1153, ratelimit: "default";r=0;t=2
//! }
//! ```
//!
//! | rule | |
//! |---|---|
//! | headroom | `max(0.1 capacity, capacity - first attempts let in)` a second |
//! | slot | the end of the book, one second from now at least, and on by `cost x show rate / headroom` |
//! | told | the slot, and up to 100 ms |
//! | the book is full (120 s) | anywhere from 60 to 120 s, and no slot |
//! | critical | the end of what was given to critical ones only |
//! | show rate | how many of those who were due have come, lately; a quarter at least |
//!
//! Retries must say that they are ([`Ask::attempt`]): a server that takes those who return for newcomers sees its headroom
//! shrink by the very work that the headroom is for, and gives out half as many slots as it could.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    env::{Env, Rng, Tick},
    gate::{Ask, Gate, Permit, Place, Priority, Refusal, Span, Verdict},
};

/// Nobody is told to come back sooner.
const SOONEST: Duration = Duration::from_secs(1);
/// How far around its slot an answer is spread.
const SPREAD: Duration = Duration::from_millis(100);
/// How far the book goes, unless told otherwise.
const LONGEST: Duration = Duration::from_secs(120);
/// The share of the capacity that is given out at least, so that those who were refused are not shut out for ever.
const RESERVED: f64 = 0.1;
/// The capacity until something is known about it.
const UNKNOWN: f64 = 1.0;
/// The least show rate to reckon with: a rate learned too low makes a burst of its inverse.
const LEAST_SHOW: f64 = 0.25;
/// How much of what is known is replaced by what the last window has shown.
const LEARN: f64 = 0.3;
/// A book is moved only if that makes a difference of this many seconds.
const MOVES: f64 = 5.0;
const WINDOW: Duration = Duration::from_secs(1);
/// Fewer appointments than this in a window say nothing about who keeps them.
const ENOUGH: u32 = 10;

/// How the answer "come back in this long" is said in HTTP, for a 429 or a 503: names and values of three headers.
///
/// `Retry-After` counts whole seconds, so it is rounded up: early is worse than late. Clients that read `retry-after-ms`
/// come to the millisecond; those that do not should spread themselves over the second that follows
/// ([`RetryAfter`](crate::backoff::RetryAfter) does). `RateLimit` is the IETF's draft.
pub fn headers(after: Duration) -> [(&'static str, String); 3] {
    let up = |unit: u128| after.as_nanos().div_ceil(unit);
    let seconds = up(1_000_000_000);
    [
        ("retry-after", seconds.to_string()),
        ("retry-after-ms", up(1_000_000).to_string()),
        ("ratelimit", format!("\"default\";r=0;t={seconds}")),
    ]
}

/// What is given out. There is a book for everybody, and one for the critical, who also have their slots in the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Book {
    /// The last slot.
    end: Tick,
    /// Work that has a slot and is not due yet, as of `at`.
    booked: f64,
    at: Tick,
}

impl Book {
    /// Seconds from now to the last slot.
    ///
    /// That slot stays where it was put, or slots that are given out while the headroom goes up and down a little would
    /// fall together. But a headroom that has turned out to be quite another moves the whole of the book that is left:
    /// what was booked at one a second while nothing was known must not block two minutes of a server that does a hundred.
    fn ahead(&mut self, now: Tick, headroom: f64) -> f64 {
        self.booked = (self.booked - headroom * (now - self.at).as_secs_f64()).max(0.0);
        self.at = self.at.max(now);
        let (ahead, even) = ((self.end - now).as_secs_f64(), self.booked / headroom);
        let another = even > 2.0 * ahead || ahead > 2.0 * even;
        if another && (ahead - even).abs() > MOVES { even } else { ahead }
    }

    /// Takes a slot.
    fn take(&mut self, now: Tick, seconds: f64, work: f64) {
        // Nobody is given a slot beyond the book, but the critical push its end.
        self.end = now + Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST);
        self.booked += work;
    }
}

/// Both books.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Books {
    all: Book,
    critical: Book,
}

impl Books {
    /// How long until the next slot, or `None` if that is later than the book goes.
    fn next(&mut self, now: Tick, headroom: f64, work: f64, critical: bool, longest: Duration) -> Option<Duration> {
        let of_all = self.all.ahead(now, headroom) + work / headroom;
        let mine = if critical { self.critical.ahead(now, headroom) + work / headroom } else { of_all };
        let wait = SOONEST.as_secs_f64() + mine;
        if wait > longest.as_secs_f64() {
            return None;
        }
        self.all.take(now, of_all, work);
        if critical {
            self.critical.take(now, mine, work);
        }
        Some(Duration::from_secs_f64(wait))
    }
}

/// What was counted in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    seconds: f64,
    /// First attempts that were let in.
    admitted: u32,
    /// Work that was done.
    served: u32,
    refused: u32,
    /// Retries that came, and appointments that were due.
    returned: u32,
    due: u32,
}

/// What is known from the windows before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    /// First attempts let in, a second.
    admitted: f64,
    /// Work that can be done, a second, as far as that was seen; zero before.
    capacity: f64,
    show: f64,
    /// Whether a retry was ever seen. Where retries do not say that they are, nobody ever seems to show up.
    retries_show: bool,
}

impl Rates {
    fn learn(mut self, window: Window) -> Rates {
        if window.seconds <= 0.0 {
            return self;
        }
        // A long window counts as the several it stands for.
        let weight = 1.0 - (1.0 - LEARN).powf(window.seconds);
        let rate = |count: u32| f64::from(count) / window.seconds;
        self.admitted += weight * (rate(window.admitted) - self.admitted);
        let served = rate(window.served);
        if window.refused > 0 && self.capacity > 0.0 && served > 0.0 {
            // Refusing, it did what it could; otherwise what was asked for.
            self.capacity += weight * (served - self.capacity);
        } else {
            self.capacity = self.capacity.max(served);
        }
        self.retries_show |= window.returned > 0;
        if self.retries_show && window.due >= ENOUGH {
            let came = f64::from(window.returned) / f64::from(window.due);
            self.show = (self.show + weight * (came.min(1.0) - self.show)).max(LEAST_SHOW);
        }
        self
    }

    /// Slots to give out a second.
    fn headroom(&self, capacity: Option<f64>) -> f64 {
        let known = [capacity.unwrap_or(0.0), self.capacity].into_iter().find(|rate| rate.is_finite() && *rate > 0.0);
        let capacity = known.unwrap_or(UNKNOWN);
        (capacity - self.admitted).max(RESERVED * capacity)
    }
}

/// The book of a server; see the [module](super). Cheap to clone, and clones share.
///
/// [`Queue`](super::Queue) keeps one of its own. For every other gate there is [`Appointed`].
#[derive(Clone)]
pub struct Appointments(Arc<Inner>);

struct Inner {
    rng: Rng,
    longest: Duration,
    admitted: AtomicU32,
    served: AtomicU32,
    refused: AtomicU32,
    returned: AtomicU32,
    /// When the window ends, in nanoseconds. Written with the state locked.
    ends: AtomicU64,
    state: Mutex<State>,
}

struct State {
    books: Books,
    rates: Rates,
    /// When the window began.
    began: Tick,
    /// Appointments by the second they are due in, as far as the book goes.
    due: [u32; AHEAD],
}

/// Seconds that are kept of what is due: more than the book goes.
const AHEAD: usize = 256;

impl Appointments {
    /// An empty book of two minutes.
    pub fn new(env: &Env) -> Appointments {
        Appointments::up_to(env, LONGEST)
    }

    /// An empty book that goes this far; from two seconds to four minutes.
    pub fn up_to(env: &Env, longest: Duration) -> Appointments {
        let longest = longest.clamp(SOONEST * 2, Duration::from_secs(240));
        let now = env.now();
        let rates = Rates { admitted: 0.0, capacity: 0.0, show: 1.0, retries_show: false };
        Appointments(Arc::new(Inner {
            rng: env.rng("shed/appointments"),
            longest,
            admitted: AtomicU32::new(0),
            served: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            ends: AtomicU64::new((now + WINDOW).as_nanos()),
            state: Mutex::new(State { books: Books::default(), rates, began: now, due: [0; AHEAD] }),
        }))
    }

    /// Somebody came, whatever becomes of it.
    #[inline]
    pub fn came(&self, ask: &Ask) {
        let inner = &*self.0;
        if ask.attempt > 0 {
            inner.returned.fetch_add(1, Relaxed);
        }
        if ask.at.as_nanos() >= inner.ends.load(Relaxed) {
            inner.close(&mut inner.state.lock(), ask.at);
        }
    }

    /// Somebody was let in.
    #[inline]
    pub fn admitted(&self, ask: &Ask) {
        if ask.attempt == 0 {
            self.0.admitted.fetch_add(1, Relaxed);
        }
    }

    /// A piece of work was done. Only needed where [`book`](Appointments::book) is not told the capacity.
    #[inline]
    pub fn served(&self) {
        self.0.served.fetch_add(1, Relaxed);
    }

    /// Somebody is refused: when may they come back? The capacity, in units of cost a second, is measured if it is not
    /// known.
    pub fn book(&self, ask: &Ask, capacity: Option<f64>) -> Duration {
        let (rng, longest) = (&self.0.rng, self.0.longest);
        let mut state = self.0.state.lock();
        self.0.refused.fetch_add(1, Relaxed);
        self.0.close(&mut state, ask.at);
        let headroom = state.rates.headroom(capacity);
        let work = f64::from(ask.cost.max(1)) * state.rates.show;
        let critical = ask.priority == Priority::Critical;
        let slot = state.books.next(ask.at, headroom, work, critical, longest.saturating_sub(SPREAD));
        let after = match slot {
            Some(slot) => slot + rng.between(Duration::ZERO, SPREAD),
            None => rng.between(longest / 2, longest),
        };
        let second = second(ask.at + after);
        state.due[second % AHEAD] += 1;
        after
    }

    /// Slots given out a second, as things are, with this capacity or the one that was measured.
    pub fn headroom(&self, capacity: Option<f64>) -> f64 {
        self.0.state.lock().rates.headroom(capacity)
    }
}

impl Inner {
    /// Learns from the window if it is over.
    fn close(&self, state: &mut State, now: Tick) {
        if now.as_nanos() < self.ends.load(Relaxed) {
            return;
        }
        self.ends.store((now + WINDOW).as_nanos(), Relaxed);
        let seconds = second(state.began)..second(now);
        let due = seconds.take(AHEAD).map(|second| std::mem::take(&mut state.due[second % AHEAD])).sum();
        let window = Window {
            seconds: (now - state.began).as_secs_f64(),
            admitted: self.admitted.swap(0, Relaxed),
            served: self.served.swap(0, Relaxed),
            refused: self.refused.swap(0, Relaxed),
            returned: self.returned.swap(0, Relaxed),
            due,
        };
        state.began = now;
        state.rates = state.rates.learn(window);
    }
}

fn second(at: Tick) -> usize {
    usize::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(0)
}

impl fmt::Debug for Appointments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("Appointments").field("rates", &state.rates).field("books", &state.books).finish_non_exhaustive()
    }
}

/// A gate whose every refusal says when to come back, in a slot of its own.
///
/// If the gate says a time itself, the later of the two counts: a breaker that is open is no use before its time.
///
/// ```
/// use herdproof::{Breaker, Env, gate::{Ask, Gate}, shed::Appointed};
///
/// let env = Env::system();
/// let breaker = Breaker::new(&env);
/// breaker.hold_open();
/// let gate = Appointed::new(&env, breaker).capacity(200.0); // or measured, if it is not known
/// let refusal = gate.try_enter(&Ask::new(&env)).err().unwrap();
/// assert!(refusal.after.unwrap().as_millis() >= 1_000);
/// ```
#[derive(Clone, Debug)]
pub struct Appointed<G> {
    gate: G,
    appointments: Appointments,
    capacity: Option<f64>,
}

/// The place or the permit of an [`Appointed`] gate.
#[derive(Debug)]
pub struct Kept<P> {
    held: P,
    appointments: Appointments,
}

impl<G> Appointed<G> {
    /// The gate with a book of its own, and the capacity as it is measured.
    pub fn new(env: &Env, gate: G) -> Appointed<G> {
        Appointed { gate, appointments: Appointments::new(env), capacity: None }
    }

    /// What can be done, in units of cost a second, where that is known.
    #[must_use]
    pub fn capacity(mut self, a_second: f64) -> Appointed<G> {
        self.capacity = Some(a_second);
        self
    }

    /// Another book than its own, to be shared by several gates before one server.
    #[must_use]
    pub fn appointments(mut self, appointments: Appointments) -> Appointed<G> {
        self.appointments = appointments;
        self
    }

    /// The gate within.
    pub fn gate(&self) -> &G {
        &self.gate
    }

    fn answer<P>(&self, ask: &Ask, answer: Result<P, Refusal>) -> Result<Kept<P>, Refusal> {
        match answer {
            Ok(held) => {
                self.appointments.admitted(ask);
                Ok(Kept { held, appointments: self.appointments.clone() })
            }
            Err(refusal) => Err(self.send_away(ask, refusal)),
        }
    }

    fn send_away(&self, ask: &Ask, refusal: Refusal) -> Refusal {
        let slot = self.appointments.book(ask, self.capacity);
        refusal.after(refusal.after.unwrap_or_default().max(slot))
    }
}

impl<G: Gate> Gate for Appointed<G> {
    type Place = Kept<G::Place>;

    fn try_reserve(&self, ask: &Ask) -> Result<Self::Place, Refusal> {
        self.appointments.came(ask);
        self.answer(ask, self.gate.try_reserve(ask))
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<Self::Place, Refusal> {
        self.appointments.came(ask);
        let reserved = self.gate.reserve(ask).await;
        self.answer(ask, reserved)
    }

    fn renew(&self, kept: &mut Self::Place, ask: &Ask) -> Result<(), Refusal> {
        self.gate.renew(&mut kept.held, ask).map_err(|refusal| self.send_away(ask, refusal))
    }
}

impl<P: Place> Place for Kept<P> {
    type Permit = Kept<P::Permit>;

    fn commit(self) -> Self::Permit {
        Kept { held: self.held.commit(), appointments: self.appointments }
    }
}

impl<P: Permit> Permit for Kept<P> {
    fn settle(self, verdict: &Verdict, span: Span) {
        if matches!(verdict, Verdict::Ok | Verdict::Final) {
            self.appointments.served();
        }
        self.held.settle(verdict, span);
    }
}

#[cfg(test)]
mod tests;
