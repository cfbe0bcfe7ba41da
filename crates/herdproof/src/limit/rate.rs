//! So many in so much time, evenly.
//!
//! A limit that fills its bucket once a second lets a crowd through at the top of every second, and everybody who waits for
//! it wakes at that edge. Here refill is continuous, one comparison against one number, and whoever waits has a slot of its
//! own: the next in line goes an interval later, and nobody polls.
//!
//! | | when there is no room |
//! |---|---|
//! | [`try_enter`](Gate::try_enter) | refused, and told when: the first the instant at which it would be let in, each further one an interval later. Nothing is reserved, so a caller who stays away costs nothing |
//! | [`enter`](Gate::enter) | waits in a slot that is its own from the moment it asked; refused at once if that is beyond its deadline, or further away than [`max_wait`](Rate::max_wait) |
//!
//! A caller who stops waiting leaves a hole, which the next newcomer takes: those behind keep their slots, since moving them up
//! would mean waking all of them. A caller who was let in has spent its slot, whatever becomes of the work: refunded, a client
//! that sends requests and leaves could send any number of them.

mod holes;

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use holes::Holes;

use super::{
    gcra::{Gcra, Slot, until},
    promise::Promises,
};
use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
    striped::Padded,
};

/// How many in how much time, and how many of them at once.
///
/// ```
/// use std::time::Duration;
/// use herdproof::limit::Rate;
///
/// let api = Rate::per_second(100).burst(20);
/// let mail = Rate::new(500, Duration::from_secs(3600)).burst(1);
/// let probe = Rate::every(Duration::from_millis(333));
/// # let _ = (api, mail, probe);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rate {
    pub(super) interval: Duration,
    pub(super) burst: u32,
    pub(super) max_wait: Duration,
}

/// A gate that lets in at a [`Rate`]; see [`limit`](super). Cheap to clone, and clones share.
///
/// ```
/// use herdproof::{Env, gate::{Ask, Gate}, limit::{Rate, RateLimit}};
///
/// let env = Env::system();
/// let limit = RateLimit::new(&env, Rate::per_second(10).burst(1));
/// let ask = Ask::new(&env);
/// assert!(limit.try_enter(&ask).is_ok());
/// let refusal = limit.try_enter(&ask).expect_err("ten a second is one in 100 ms");
/// assert_eq!(refusal.after.unwrap().as_millis(), 100);
/// ```
#[derive(Clone)]
pub struct RateLimit(Arc<Inner>);

struct Inner {
    env: Env,
    gcra: Gcra,
    /// The theoretical arrival time: all there is to who may go.
    tat: Padded<AtomicU64>,
    promises: Promises,
    holes: Holes,
}

/// A slot of a [`RateLimit`] that is not used yet. Dropping it gives it back.
#[must_use = "dropping it gives the slot back"]
pub struct RatePlace {
    limit: RateLimit,
    /// What was taken; nothing if its cost is zero.
    slot: Slot,
}

/// A slot of a [`RateLimit`] or a [`KeyedRate`](super::KeyedRate), spent: dropping it gives nothing back.
#[derive(Debug)]
pub struct RatePermit(());

impl Rate {
    /// This many (one at least) in this much time, evenly. The interval is rounded up to whole nanoseconds.
    pub const fn new(count: u32, time: Duration) -> Rate {
        let count = if count == 0 { 1 } else { count };
        let floor = time.as_nanos() / count as u128;
        let interval = if floor * count as u128 == time.as_nanos() { floor } else { floor + 1 };
        Rate::every(Duration::from_nanos_u128(if interval > u64::MAX as u128 { u64::MAX as u128 } else { interval }))
    }

    /// This many in a second, one at least.
    pub const fn per_second(count: u32) -> Rate {
        Rate::new(count, Duration::from_secs(1))
    }

    /// One in each interval.
    pub const fn every(interval: Duration) -> Rate {
        let tenth = match 100_000_000_u128.checked_div(interval.as_nanos()) {
            Some(count @ 1..=1_000_000) => count,
            Some(0) | None => 1,
            Some(_) => 1_000_000,
        };
        #[expect(clippy::cast_possible_truncation, reason = "a million at most")]
        let burst = tenth as u32;
        Rate { interval, burst, max_wait: Duration::from_secs(10) }
    }

    /// How many may go at once after a pause; as many as belong to a tenth of a second unless told otherwise, and one at
    /// least.
    pub const fn burst(mut self, burst: u32) -> Rate {
        self.burst = if burst == 0 { 1 } else { burst };
        self
    }

    /// The longest that anybody waits for a slot; 10 s unless told otherwise. With the rate, this bounds how many wait.
    pub const fn max_wait(mut self, longest: Duration) -> Rate {
        self.max_wait = longest;
        self
    }
}

impl RateLimit {
    /// A limit with its burst whole.
    pub fn new(env: &Env, rate: Rate) -> RateLimit {
        RateLimit(Arc::new(Inner {
            env: env.clone(),
            gcra: Gcra::new(&rate),
            tat: Padded(AtomicU64::new(0)),
            promises: Promises::new(env.rng("limit/rate")),
            holes: Holes::default(),
        }))
    }

    /// Whether one more may go now: [`try_enter`](Gate::try_enter) at the present time, for one.
    ///
    /// ```
    /// use herdproof::{Env, limit::{Rate, RateLimit}};
    ///
    /// let limit = RateLimit::new(&Env::system(), Rate::per_second(10).burst(1));
    /// assert!(limit.check().is_ok());
    /// assert!(limit.check().unwrap_err().after.unwrap().as_millis() >= 90);
    /// ```
    pub fn check(&self) -> Result<(), Refusal> {
        self.0.at_once(&Ask::new(&self.0.env)).map(drop)
    }

    /// Whether the next could go at once. For whoever has work that can wait, such as hedges.
    pub fn has_slot(&self, now: Tick) -> bool {
        let now = now.as_nanos();
        self.0.gcra.slot(self.0.tat.0.load(Relaxed), now, 1).is_some_and(|slot| slot.at <= now)
    }
}

impl Inner {
    /// Takes the next slot if it is not later than `latest`. `Err` is the slot that it would have been, if there is one.
    #[inline]
    fn take(&self, ask: &Ask, latest: u64) -> Result<Slot, Option<Slot>> {
        let now = ask.at.as_nanos();
        if let Some(hole) = self.holes.take(&self.gcra, now, ask.cost, latest) {
            return Ok(hole);
        }
        let mut tat = self.tat.0.load(Relaxed);
        loop {
            let slot = self.gcra.slot(tat, now, ask.cost).ok_or(None)?;
            if slot.at > latest {
                return Err(Some(slot));
            }
            match self.tat.0.compare_exchange_weak(tat, slot.tat, Relaxed, Relaxed) {
                Ok(_) => return Ok(slot),
                Err(other) => tat = other,
            }
        }
    }

    #[inline]
    fn refuse(&self, why: Why, ask: &Ask, slot: Option<Slot>) -> Refusal {
        match slot {
            Some(slot) => self.refuse_until(why, ask.at.as_nanos(), slot.at, self.gcra.takes(slot)),
            None => self.refuse_for_ever(why),
        }
    }

    /// Its numbers come one by one, because a refusal is what there is most of when there is least time: in one piece they
    /// would be written to memory, and a lock waits until that is done.
    #[inline(never)]
    fn refuse_until(&self, why: Why, now: u64, at: u64, takes: u64) -> Refusal {
        let refusal = Refusal::new(why).after(until(now, self.promises.at(at, takes)));
        self.env.tell(&Event::Refusal);
        refusal
    }

    #[cold]
    fn refuse_for_ever(&self, why: Why) -> Refusal {
        self.env.tell(&Event::Refusal);
        Refusal::new(why)
    }
}

/// The latest slot that somebody may wait for, and why not later.
pub(super) fn latest(ask: &Ask, max_wait: u64) -> (u64, Why) {
    let patience = ask.at.as_nanos().saturating_add(max_wait);
    match ask.deadline {
        // At its deadline the answer is of no more use.
        Some(deadline) if deadline.as_nanos() <= patience => (deadline.as_nanos().saturating_sub(1), Why::Deadline),
        _ => (patience, Why::Rate),
    }
}

impl Inner {
    /// A slot that is due.
    #[inline]
    fn at_once(&self, ask: &Ask) -> Result<Slot, Refusal> {
        self.take(ask, ask.at.as_nanos()).map_err(|slot| self.refuse(Why::Rate, ask, slot))
    }

    /// A slot that is worth waiting for.
    #[inline]
    fn in_time(&self, ask: &Ask) -> Result<Slot, Refusal> {
        let (latest, why) = latest(ask, self.gcra.max_wait);
        self.take(ask, latest).map_err(|slot| self.refuse(why, ask, slot))
    }

    #[cold]
    fn give_back(&self, slot: Slot) {
        let Slot { tat, cost, .. } = slot;
        if self.tat.0.compare_exchange(tat, tat - cost, Relaxed, Relaxed).is_err() {
            // Somebody has reserved behind it.
            self.holes.leave(slot);
        }
    }
}

impl Gate for RateLimit {
    type Place = RatePlace;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<RatePlace, Refusal> {
        self.0.at_once(ask).map(|slot| RatePlace { limit: self.clone(), slot })
    }

    fn reserve(&self, ask: &mut Ask) -> impl Future<Output = Result<RatePlace, Refusal>> + Send {
        // Taken when it is asked for, not when the future is polled first: slots go by who asked first.
        let place = self.slot(ask);
        async {
            let place = place?;
            if place.at() > ask.at {
                ask.at = self.0.env.sleep_until(place.at()).await;
            }
            Ok(place)
        }
    }

    // Without a place, which would count a reference to the limit: `toolbox rate`.
    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<RatePermit, Refusal> {
        self.0.at_once(ask).map(|_| RatePermit::SPENT)
    }
}

impl RateLimit {
    /// A slot that may still have to be waited for.
    #[inline]
    pub(crate) fn slot(&self, ask: &Ask) -> Result<RatePlace, Refusal> {
        self.0.in_time(ask).map(|slot| RatePlace { limit: self.clone(), slot })
    }
}

impl RatePlace {
    /// When it is due.
    pub(crate) fn at(&self) -> Tick {
        Tick::from_nanos(self.slot.at)
    }
}

impl Place for RatePlace {
    type Permit = RatePermit;

    #[inline]
    fn commit(mut self) -> RatePermit {
        self.slot.cost = 0;
        RatePermit::SPENT
    }
}

impl Drop for RatePlace {
    #[inline]
    fn drop(&mut self) {
        if self.slot.cost > 0 {
            self.limit.0.give_back(self.slot);
        }
    }
}

impl RatePermit {
    pub(super) const SPENT: RatePermit = RatePermit(());
}

impl Permit for RatePermit {
    #[inline]
    fn settle(self, _: &Verdict, _: Span) {}
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("gcra", &self.0.gcra).finish_non_exhaustive()
    }
}

impl fmt::Debug for RatePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RatePlace").field("slot", &self.slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
