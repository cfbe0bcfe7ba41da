//! Stops calling an origin that is down, and does not bury it when it is back.
//!
//! While an origin is down every call to it costs its caller a timeout, and the origin a connection that it could use to
//! get up. A breaker notices and refuses calls at once. What most breakers do next makes a herd: all of them open at the same
//! moment, stay open equally long, and close completely at the first call that works. An origin that has just come back
//! with cold caches gets a few probes and then all of its load at one instant, and goes down again.
//!
//! Here the open time is drawn at random, one call at a time is the probe, and when it works the breaker closes as a
//! **ramp**: a fifth of the calls, then two fifths, then four, as long as they do well.
//!
//! ```
//! use herdproof::{Env, breaker::{Breaker, fallback}, gate::{Ask, guard, result}};
//! # use std::io::Error;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let breaker = Breaker::new(&env);
//! for _ in 0..7 {
//!     let down = guard(&env, &breaker, result, Ask::new(&env), || async { Err::<u32, _>(Error::other("down")) }).await;
//!     assert_eq!(down.unwrap_err().to_string(), "down");
//! }
//! // Seven faults in a row: the eighth call is not made.
//! let refused = guard(&env, &breaker, result, Ask::new(&env), || async { Ok::<u32, Error>(1) }).await;
//! let refused = refused.unwrap_err().to_string();
//! assert!(refused.starts_with("refused: the origin failed too often; come back in "), "{refused}");
//!
//! // Something to say instead.
//! let answer = guard(&env, &breaker, result, Ask::new(&env), || async { Ok::<u32, Error>(1) }).await;
//! assert_eq!(fallback(answer, |_refusal| 0).unwrap(), 0);
//! # });
//! ```
//!
//! | | unless told otherwise |
//! |---|---|
//! | trips | on 7 faults in a row; or when less than half of the calls of 10 s worked, if there were 20; or, if asked to, on slow calls |
//! | open | at random from half to all of 5 s, 10 s, 20 s, then 30 s; each healthy window of 10 s takes one doubling back |
//! | probe | one at a time, 5 s at most; if its caller leaves, the next to ask is the probe |
//! | ramp | from a share of 0.2; each second with a result, twice that if nine of ten worked, else half; below 0.05 it opens, from 1 it is closed |
//!
//! What a [`Verdict`] means here:
//!
//! | verdict | in a row | in the window | as the probe |
//! |---|---|---|---|
//! | `Ok`, `Final` | ends the row | good | works |
//! | `Fault` | counts | bad | fails |
//! | `Overload` | neither | bad | fails |
//! | `Ignored`, or the permit is dropped | neither | neither | gives its place to the next |
//!
//! `Final` is good because the origin answered: that the request was wrong says nothing against it. `Overload` does not count
//! in a row because a few refusals by a busy origin are how it protects itself; when they are most of the answers, the
//! window sees it.
//!
//! An open breaker is asked most when there is least to spare, and most of what its no costs is the reading of the clock.
//! Nothing here depends on milliseconds unless [`slow`](BreakerBuilder::slow) does, so [`Ask::coarse`] will do: the probe is let
//! in a few milliseconds late.
//!
//! Results of calls that were let in before the breaker last changed are thrown away: a slow failure from before the outage
//! ended does not open it again.

pub mod ejection;
mod keyed;
mod state;
mod tally;

use std::{
    borrow::Borrow,
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

pub use keyed::{KeyedBreaker, KeyedPass, OfKey};
use state::{Entry, Mode, Result as Outcome, Rules, State};
use tally::Tally;

use crate::{
    env::{Env, Rng, Tick, nanos, within},
    event::Event,
    gate::{Ask, Borrowed, Gate, Halt, Permit, Place, Refusal, Span, Verdict, Why},
    striped::Padded,
    sync::{AtomicU64, Mutex},
    window::Scale,
};

const SLOTS: usize = 16;

/// What the published word says in its lowest two bits. The rest is the epoch or, if open, until when.
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const PROBING: u64 = 2;
const RAMPING: u64 = 3;
const KIND: u64 = 3;
/// Open until a person says otherwise.
const HELD: u64 = u64::MAX >> 2;

/// Refuses calls to an origin that is down; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Breaker(Arc<Inner>);

/// How a [`Breaker`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct BreakerBuilder {
    env: Env,
    rules: Rules,
}

/// What a breaker does at present.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Phase {
    /// Every call gets in.
    Closed,
    /// No call gets in until then; the first to ask after it is the probe.
    Open {
        /// When the open time is over.
        until: Tick,
    },
    /// One call is in, and everybody waits for what becomes of it.
    Probing,
    /// A share of the calls gets in.
    Ramping {
        /// From 0 to 1.
        share: f64,
    },
    /// Held open by a person.
    HeldOpen,
    /// Held closed by a person.
    HeldClosed,
}

struct Inner {
    /// The state as far as a hot path needs it; written under the lock, after everything else.
    word: AtomicU64,
    rules: Rules,
    scale: Scale<SLOTS>,
    /// Those who are refused are called back over this time.
    ramp_time: Duration,
    env: Env,
    rng: Rng,
    state: Mutex<State>,
    returns: Padded<Returns>,
    tally: Padded<Tally<SLOTS>>,
}

/// Gives everybody who is refused an instant of their own.
///
/// The next instant is the last plus the golden section of the span, from a random start: however many there are, they
/// are spread evenly, and no two are the same until there are a third as many as nanoseconds.
struct Returns {
    start: u64,
    given: AtomicU64,
}

impl Returns {
    fn new(rng: &Rng) -> Returns {
        Returns { start: rng.bits(), given: AtomicU64::new(0) }
    }

    fn within(&self, span: Duration) -> Duration {
        /// The golden section of the whole, in 64 bits.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let place = self.start.wrapping_add(self.given.fetch_add(1, Relaxed).wrapping_mul(GOLDEN));
        within(span, place)
    }
}

impl BreakerBuilder {
    /// Trips on so many faults in a row; 7 unless told otherwise. Zero counts as one.
    pub fn faults(mut self, in_a_row: u32) -> BreakerBuilder {
        self.rules.faults = in_a_row.max(1);
        self
    }

    /// Trips when less than this share of the calls worked; 0.5 unless told otherwise. Zero never does.
    pub fn least_ok(mut self, share: f64) -> BreakerBuilder {
        self.rules.least_ok = share_or(share, self.rules.least_ok);
        self
    }

    /// How long calls count, and how many it takes to judge by them; 10 s and 20 unless told otherwise. A window is made of
    /// 8 to 15 buckets and up to one of them longer than this.
    pub fn window(mut self, window: Duration, least_calls: u32) -> BreakerBuilder {
        self.rules.window = sane(window);
        self.rules.least_calls = least_calls.max(1);
        self
    }

    /// Trips also when at least this share of the calls took so long, whatever became of them. Then a slow probe has failed,
    /// and so has a slow call during the ramp. Off unless asked for.
    pub fn slow(mut self, from: Duration, share: f64) -> BreakerBuilder {
        self.rules.slow_from = nanos(from);
        self.rules.most_slow = share_or(share, 1.0);
        self
    }

    /// How long it is open: drawn from the upper part of the first time, then of twice that, up to the longest; 5 s and 30 s
    /// unless told otherwise.
    pub fn open(mut self, first: Duration, longest: Duration) -> BreakerBuilder {
        self.rules.open = sane(first);
        self.rules.open_cap = sane(longest).max(self.rules.open);
        self
    }

    /// How much of the open time is left to chance; 0.5 unless told otherwise, so that it is drawn from half to all of it.
    /// With zero, breakers that open together probe together.
    pub fn jitter(mut self, share: f64) -> BreakerBuilder {
        self.rules.jitter = share_or(share, self.rules.jitter);
        self
    }

    /// How long a probe may take before it has failed; 5 s unless told otherwise.
    pub fn probe_timeout(mut self, timeout: Duration) -> BreakerBuilder {
        self.rules.probe = sane(timeout);
        self
    }

    /// How it closes: with this share of the calls at first, looked at again after each step; 0.2 and 1 s unless told
    /// otherwise. A share of one closes all at once, which is how a herd is made.
    pub fn ramp(mut self, share: f64, step: Duration) -> BreakerBuilder {
        self.rules.first_share = share_or(share, self.rules.first_share).max(state::LEAST_SHARE);
        self.rules.step = sane(step);
        self
    }

    /// What a good step of the ramp multiplies the share by, and a bad one divides it by; 2 unless told otherwise, and 1.1
    /// at least.
    pub fn ramp_factor(mut self, factor: f64) -> BreakerBuilder {
        self.rules.factor = if factor.is_finite() { factor.max(1.1) } else { self.rules.factor };
        self
    }

    /// No call is let in as the probe while the breaker is open: its owner tests the origin with requests of its own, and
    /// says [`recover`](Breaker::recover) when one works and [`trip`](Breaker::trip) when one fails. Off by default.
    ///
    /// For an owner whose callers choose what is asked: one of them could make every probe fail, and with few callers an
    /// origin that is back waits for the next. A keyed breaker has no such owner, and ignores this.
    ///
    /// ```
    /// use std::time::Duration;
    /// use herdproof::{Breaker, Env, breaker::Phase, gate::{Ask, Gate}};
    ///
    /// let env = Env::system();
    /// let (first, longest) = (Duration::from_millis(300), Duration::from_secs(1));
    /// let breaker = Breaker::builder(&env).external_probes().open(first, longest).build();
    /// breaker.trip();
    /// let Phase::Open { until } = breaker.phase() else { panic!("it is open") };
    /// // ... at `until`, a request of our own works:
    /// assert!(breaker.try_enter(&Ask::at(until)).is_err());
    /// breaker.recover();
    /// assert!(matches!(breaker.phase(), Phase::Ramping { .. }));
    /// ```
    pub fn external_probes(mut self) -> BreakerBuilder {
        self.rules.external_probes = true;
        self
    }

    /// A breaker for each key, with room for so many keys.
    pub fn build_keyed<K: Hash + Eq>(self, keys: usize) -> KeyedBreaker<K> {
        KeyedBreaker::new(self.env, Rules { external_probes: false, ..self.rules }, keys)
    }

    /// The breaker.
    pub fn build(self) -> Breaker {
        let BreakerBuilder { env, rules } = self;
        let rng = env.rng("breaker");
        let state = State::new(env.now());
        Breaker(Arc::new(Inner {
            word: AtomicU64::new(word(&state)),
            rules,
            scale: Scale::new(rules.window),
            ramp_time: rules.ramp_time(),
            returns: Padded(Returns::new(&rng)),
            rng,
            env,
            state: Mutex::new(state),
            tally: Padded(Tally::new()),
        }))
    }
}

/// A share from zero to one; what is no number leaves it as it was.
fn share_or(share: f64, before: f64) -> f64 {
    if share.is_nan() { before } else { share.clamp(0.0, 1.0) }
}

/// A time that can be reckoned with: from a millisecond to a year.
fn sane(time: Duration) -> Duration {
    time.clamp(Duration::from_millis(1), Duration::from_hours(24 * 365))
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            faults: 7,
            least_ok: 0.5,
            least_calls: 20,
            window: Duration::from_secs(10),
            slow_from: u64::MAX,
            most_slow: 1.0,
            open: Duration::from_secs(5),
            open_cap: Duration::from_secs(30),
            jitter: 0.5,
            probe: Duration::from_secs(5),
            first_share: 0.2,
            step: Duration::from_secs(1),
            factor: 2.0,
            external_probes: false,
        }
    }
}

impl Breaker {
    /// A breaker with the usual settings.
    pub fn new(env: &Env) -> Breaker {
        Breaker::builder(env).build()
    }

    /// A breaker in the making.
    pub fn builder(env: &Env) -> BreakerBuilder {
        BreakerBuilder { env: env.clone(), rules: Rules::default() }
    }

    /// The same gate with permits that borrow it.
    #[inline]
    pub fn borrowed(&self) -> Borrowed<'_, Breaker> {
        Borrowed(self)
    }

    /// What it does at present.
    pub fn phase(&self) -> Phase {
        match self.0.state.lock().mode {
            Mode::Closed { .. } => Phase::Closed,
            Mode::Open { until } => Phase::Open { until },
            Mode::Probing { .. } => Phase::Probing,
            Mode::Ramping { share, .. } => Phase::Ramping { share: f64::from(share) },
            Mode::HeldOpen => Phase::HeldOpen,
            Mode::HeldClosed => Phase::HeldClosed,
        }
    }

    /// Whether every call gets in: neither open, nor probing, nor on the ramp. For whoever has work that can wait, such as
    /// hedges.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.word.load(Relaxed) & KIND == CLOSED
    }

    /// Refuses everything until [`release`](Breaker::release)d.
    pub fn hold_open(&self) {
        self.0.change(|state| state.hold(Mode::HeldOpen));
    }

    /// Lets everything in, whatever becomes of it, until [`release`](Breaker::release)d.
    pub fn hold_closed(&self) {
        self.0.change(|state| state.hold(Mode::HeldClosed));
    }

    /// Opens, because its owner knows that the origin is down; one that is open stays so, for longer. What is
    /// [held](Breaker::hold_open) stays as it is.
    pub fn trip(&self) {
        let (now, draw) = (self.0.env.now(), self.0.rng.unit());
        self.0.change(|state| state.trip_by_owner(&self.0.rules, now, draw));
    }

    /// Begins the ramp, because its owner knows that the origin is back. Does nothing unless it is open.
    pub fn recover(&self) {
        let now = self.0.env.now();
        self.0.change(|state| state.recover(&self.0.rules, now));
    }

    /// Goes by its rules again, closed at first and with nothing counted.
    pub fn release(&self) {
        let now = self.0.env.now();
        self.0.change(|state| state.hold(Mode::Closed { since: now }));
    }
}

/// A value in place of a refusal: the work was not done, but there is something to say.
pub fn fallback<T, E>(outcome: Result<T, Halt<E>>, instead: impl FnOnce(Refusal) -> T) -> Result<T, E> {
    match outcome {
        Ok(value) => Ok(value),
        Err(Halt::Refused(refusal)) => Ok(instead(refusal)),
        Err(Halt::Unsent(error) | Halt::Failed(error)) => Err(error),
    }
}

/// What the hot path sees of a state.
fn word(state: &State) -> u64 {
    let kind = match state.mode {
        Mode::Closed { .. } | Mode::HeldClosed => CLOSED,
        Mode::Open { until } => return until.as_nanos().min(HELD - 1) << 2 | OPEN,
        Mode::HeldOpen => return HELD << 2 | OPEN,
        Mode::Probing { .. } => PROBING,
        Mode::Ramping { .. } => RAMPING,
    };
    state.epoch << 2 | kind
}

/// What a verdict says about the origin; nothing, if it says nothing.
fn outcome(verdict: &Verdict) -> Option<Outcome> {
    match verdict {
        Verdict::Ok | Verdict::Final => Some(Outcome::Ok),
        Verdict::Fault => Some(Outcome::Fault),
        Verdict::Overload { .. } => Some(Outcome::Weak),
        Verdict::Ignored => None,
    }
}

impl Inner {
    /// The word under which the caller was let in.
    #[inline]
    fn enter(&self, at: Tick) -> Result<u64, Refusal> {
        let word = self.word.load(Acquire);
        if word & KIND == CLOSED {
            return Ok(word);
        }
        if word & KIND == OPEN && at.as_nanos() < word >> 2 {
            return Err(self.refuse(at, word >> 2));
        }
        self.ask(at)
    }

    #[inline(never)]
    fn refuse(&self, at: Tick, until: u64) -> Refusal {
        self.env.tell(&Event::Refusal);
        let refusal = Refusal::new(Why::Tripped);
        if until == HELD {
            return refusal;
        }
        // Called back while the ramp goes up, if the probe works.
        refusal.after(Tick::from_nanos(until) - at + self.returns.0.within(self.ramp_time))
    }

    /// Neither plainly closed nor plainly open.
    #[inline(never)]
    fn ask(&self, at: Tick) -> Result<u64, Refusal> {
        let draw = self.rng.unit();
        let mut entry = Entry::In;
        let word = self.change(|state| {
            let (next, answer) = state.ask(&self.rules, at, draw);
            entry = answer;
            next
        });
        match entry {
            Entry::In => Ok(word),
            Entry::Refused { until } => Err(self.refuse(at, until.as_nanos())),
            Entry::Held => Err(self.refuse(at, HELD)),
        }
    }

    #[inline]
    fn settle(&self, word: u64, verdict: &Verdict, span: Span) {
        if word & KIND != CLOSED {
            return self.settle_trial(word, verdict, span);
        }
        if self.word.load(Acquire) != word {
            return;
        }
        let Some(outcome) = outcome(verdict) else { return };
        let slow = self.rules.is_slow(span.took());
        if self.tally.0.count(&self.rules, self.scale, outcome, slow, span.to) {
            self.trip(word, span.to);
        }
    }

    #[inline(never)]
    fn trip(&self, word: u64, now: Tick) {
        let draw = self.rng.unit();
        self.change(|state| match state.mode {
            Mode::Closed { .. } if self::word(&state) == word => state.trip(&self.rules, now, draw),
            _ => state,
        });
    }

    /// A probe, or a call of the ramp, is over.
    #[inline(never)]
    fn settle_trial(&self, word: u64, verdict: &Verdict, span: Span) {
        let Some(outcome) = outcome(verdict) else { return self.cancel(word) };
        let outcome = self.rules.on_trial(outcome, span.took());
        let draw = self.rng.unit();
        self.change(
            |state| {
                if self::word(&state) == word { state.settle(&self.rules, span.to, outcome, draw) } else { state }
            },
        );
    }

    fn cancel(&self, word: u64) {
        if word & KIND == PROBING {
            self.change(|state| if self::word(&state) == word { state.cancel() } else { state });
        }
    }

    /// Changes the state and publishes it; gives the word for it.
    fn change(&self, change: impl FnOnce(State) -> State) -> u64 {
        let mut state = self.state.lock();
        let before = *state;
        *state = change(before);
        let (word, opened) = (word(&state), state.opened_since(&before));
        if state.epoch != before.epoch {
            // What closes begins with nothing counted. Whatever is under way was let in under another word.
            self.tally.0.clear();
            self.word.store(word, Release);
        }
        drop(state);
        if opened {
            self.env.tell(&Event::Trip);
        }
        word
    }
}

/// The right to make one call; see [`Breaker`].
#[derive(Debug)]
#[must_use]
pub struct Pass<B: Borrow<Breaker> = Breaker> {
    breaker: B,
    word: u64,
}

impl Gate for Breaker {
    type Place = Pass;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Pass, Refusal> {
        self.0.enter(ask.at).map(|word| Pass { breaker: self.clone(), word })
    }

    #[inline]
    fn renew(&self, pass: &mut Pass, ask: &Ask) -> Result<(), Refusal> {
        if !pass.holds() {
            *pass = self.try_reserve(ask)?;
        }
        Ok(())
    }
}

impl<'a> Gate for Borrowed<'a, Breaker> {
    type Place = Pass<&'a Breaker>;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Pass<&'a Breaker>, Refusal> {
        let breaker = self.0;
        breaker.0.enter(ask.at).map(|word| Pass { breaker, word })
    }

    #[inline]
    fn renew(&self, pass: &mut Pass<&'a Breaker>, ask: &Ask) -> Result<(), Refusal> {
        if !pass.holds() {
            *pass = self.try_reserve(ask)?;
        }
        Ok(())
    }
}

impl<B: Borrow<Breaker>> Pass<B> {
    /// Whether the breaker is still as it was when it gave this. Who has waited in a line since should look, and ask again if
    /// not: an origin that went down in the meantime should not get the whole line. [`Gate::renew`] does both, and
    /// [`Gate::and`] does that.
    #[inline]
    pub fn holds(&self) -> bool {
        self.breaker.borrow().0.word.load(Acquire) == self.word
    }
}

/// A settled permit has this in place of its word: there is nothing to give back.
const SETTLED: u64 = CLOSED;

/// Dropped before the work or during it, it takes nothing.
impl<B: Borrow<Breaker> + Send> Place for Pass<B> {
    type Permit = Self;

    #[inline]
    fn commit(self) -> Self {
        self
    }
}

impl<B: Borrow<Breaker> + Send> Permit for Pass<B> {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        let word = std::mem::replace(&mut self.word, SETTLED);
        self.breaker.borrow().0.settle(word, verdict, span);
    }
}

impl<B: Borrow<Breaker>> Drop for Pass<B> {
    #[inline]
    fn drop(&mut self) {
        if self.word & KIND != CLOSED {
            self.breaker.borrow().0.cancel(self.word);
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
#[cfg(test)]
mod tests;
