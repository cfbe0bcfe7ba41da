//! Readiness that opens gradually.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::SlowStart;
use crate::{
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
    schedule::Splay,
};

/// A gate that lets a share in, and all of it when it has been open for long enough.
///
/// The share at each age is a [`SlowStart`]'s weight, without its tenth at the beginning. Who is in it is decided by a draw
/// or, with [`try_enter_as`](Opening::try_enter_as), by a hash of the caller: then those who were let in once stay in, and
/// the others are told exactly when their turn is.
///
/// ```
/// use std::time::Duration;
/// use herdproof::{Sim, gate::Ask, schedule::Splay, warm::{Opening, SlowStart}};
///
/// let mut sim = Sim::new(1);
/// let env = sim.env();
/// let opening = Opening::new(&env, SlowStart::over(Duration::from_secs(30)));
/// let user = Splay::of("user-7", "opening");
/// let refusal = opening.try_enter_as(user, &Ask::new(&env)).unwrap_err();
/// sim.run(env.sleep(refusal.after.unwrap()));
/// assert!(opening.try_enter_as(user, &Ask::new(&env)).is_ok());
/// ```
#[derive(Debug)]
pub struct Opening {
    env: Env,
    rng: Rng,
    slow: SlowStart,
    /// The tick it began to open at.
    since: AtomicU64,
}

/// Somebody whom an [`Opening`] let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered;

impl Opening {
    /// Begins to open now.
    pub fn new(env: &Env, slow: SlowStart) -> Opening {
        let since = AtomicU64::new(env.now().as_nanos());
        Opening { rng: env.rng("warm/opening"), env: env.clone(), slow: slow.least(0.0), since }
    }

    /// Begins anew at this tick, because the cache was lost, say.
    pub fn reopen(&self, at: Tick) {
        self.since.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// The share that is let in at this tick.
    pub fn share(&self, at: Tick) -> f64 {
        self.slow.weight(self.age(at))
    }

    /// Lets this caller in, if its place is in the share.
    pub fn try_enter_as(&self, caller: Splay, ask: &Ask) -> Result<Entered, Refusal> {
        self.judge(ask.at, || caller.unit())
    }

    fn age(&self, at: Tick) -> Duration {
        at - Tick::from_nanos(self.since.load(Ordering::Relaxed))
    }

    fn judge(&self, at: Tick, place: impl FnOnce() -> f64) -> Result<Entered, Refusal> {
        let age = self.age(at);
        let share = self.slow.weight(age);
        if share >= 1.0 {
            return Ok(Entered);
        }
        let place = place();
        if place < share {
            return Ok(Entered);
        }
        self.env.tell(&Event::Refusal);
        // Each place has an instant of its own at which the share comes to it; a nanosecond later it is inside.
        Err(Refusal::new(Why::Shed).after(self.slow.age(place).saturating_sub(age) + Duration::from_nanos(1)))
    }
}

impl Gate for Opening {
    type Place = Entered;

    fn try_reserve(&self, ask: &Ask) -> Result<Entered, Refusal> {
        self.judge(ask.at, || self.rng.unit())
    }
}

impl Place for Entered {
    type Permit = Self;

    fn commit(self) -> Self {
        self
    }
}

impl Permit for Entered {
    fn settle(self, _: &Verdict, _: Span) {}
}
