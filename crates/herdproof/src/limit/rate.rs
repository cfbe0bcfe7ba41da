//! So many in so much time, evenly.
//!
//! A limit that fills its bucket once a second lets a crowd through at the top of every second, and everybody who waits for
//! it wakes at that edge. Here refill is continuous, one comparison against one number, and whoever waits has a slot of its
//! own: the next in line goes an interval later, and nobody polls.
//!
//! | | when there is no room |
//! |---|---|
//! | [`try_enter`](Gate::try_enter) | refused, and told when: the first the instant at which it would be let in, each further one an interval later. Nothing is reserved, so whoever stays away costs nothing |
//! | [`enter`](Gate::enter) | waits in a slot that is its own from the moment it asked; refused at once if that is beyond its deadline, or further away than [`max_wait`](Rate::max_wait) |
//!
//! Who leaves, by dropping the waiting future or the permit, gives the slot back if it is the last one. If somebody has
//! reserved behind it the slot stays empty: moving everybody up would mean waking everybody.

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    gcra::{Gcra, Slot, until},
    promise::Promises,
};
use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Borrowed, Gate, Permit, Refusal, Span, Verdict, Why},
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
/// let permit = limit.try_enter(&ask).expect("nobody was here before");
/// let refusal = limit.try_enter(&ask).expect_err("ten a second is one in 100 ms");
/// assert_eq!(refusal.after.unwrap().as_millis(), 100);
/// # drop(permit);
/// ```
#[derive(Clone)]
pub struct RateLimit(Arc<Inner>);

struct Inner {
    env: Env,
    gcra: Gcra,
    /// The theoretical arrival time: all there is to who may go.
    tat: Padded<AtomicU64>,
    promises: Promises,
}

/// The right to go at a [`RateLimit`]'s slot.
#[must_use = "dropping it gives it back"]
pub struct RatePermit<L: Borrow<RateLimit> = RateLimit> {
    limit: L,
    /// What was taken; nothing if its cost is zero.
    slot: Slot,
}

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
        }))
    }

    /// Whether one more may go now. If so it counts as gone, whatever becomes of it; if not, the error says when to come back.
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

    /// As [`enter`](Gate::enter), but the caller waits, until [`RatePermit::at`].
    #[inline]
    pub(crate) fn reserve(&self, ask: &Ask) -> Result<RatePermit<&RateLimit>, Refusal> {
        self.0.in_time(ask).map(|slot| RatePermit { limit: self, slot })
    }

    /// Whether the next could go at once. For whoever has work that can wait, such as hedges.
    pub fn has_slot(&self, now: Tick) -> bool {
        let now = now.as_nanos();
        self.0.gcra.slot(self.0.tat.0.load(Relaxed), now, 1).is_some_and(|slot| slot.at <= now)
    }

    /// The same gate with permits that borrow it.
    #[inline]
    pub fn borrowed(&self) -> Borrowed<'_, RateLimit> {
        Borrowed(self)
    }
}

impl Inner {
    /// Takes the next slot if it is not later than `latest`. `Err` is the slot that it would have been, if there is one.
    #[inline]
    fn take(&self, ask: &Ask, latest: u64) -> Result<Slot, Option<Slot>> {
        let now = ask.at.as_nanos();
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
}

/// Waits for the permit's slot. Whoever leaves meanwhile drops the permit.
#[inline]
async fn wait<L: Borrow<RateLimit>>(
    permit: Result<RatePermit<L>, Refusal>,
    ask: &mut Ask,
) -> Result<RatePermit<L>, Refusal> {
    if let Ok(permit) = &permit
        && permit.at() > ask.at
    {
        ask.at = permit.limit.borrow().0.env.sleep_until(permit.at()).await;
    }
    permit
}

impl<L: Borrow<RateLimit>> RatePermit<L> {
    /// When to go; in the past if now is fine.
    #[inline]
    pub(crate) fn at(&self) -> Tick {
        Tick::from_nanos(self.slot.at)
    }
}

impl Gate for RateLimit {
    type Permit = RatePermit;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<RatePermit, Refusal> {
        self.0.at_once(ask).map(|slot| RatePermit { limit: self.clone(), slot })
    }

    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<RatePermit, Refusal>> + Send {
        wait(self.0.in_time(ask).map(|slot| RatePermit { limit: self.clone(), slot }), ask)
    }
}

impl<'a> Gate for Borrowed<'a, RateLimit> {
    type Permit = RatePermit<&'a RateLimit>;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<Self::Permit, Refusal> {
        let limit = self.0;
        limit.0.at_once(ask).map(|slot| RatePermit { limit, slot })
    }

    fn enter(&self, ask: &mut Ask) -> impl Future<Output = Result<Self::Permit, Refusal>> + Send {
        wait(self.0.reserve(ask), ask)
    }
}

impl<L: Borrow<RateLimit> + Send> Permit for RatePermit<L> {
    #[inline]
    fn settle(mut self, _: &Verdict, _: Span) {
        self.slot.cost = 0;
    }
}

impl<L: Borrow<RateLimit>> Drop for RatePermit<L> {
    #[inline]
    fn drop(&mut self) {
        let Slot { tat, cost, .. } = self.slot;
        if cost > 0 {
            // Only the last one can be given back; if somebody came after, this fails and the slot stays empty.
            let _ = self.limit.borrow().0.tat.0.compare_exchange(tat, tat - cost, Relaxed, Relaxed);
        }
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("gcra", &self.0.gcra).finish_non_exhaustive()
    }
}

impl<L: Borrow<RateLimit>> fmt::Debug for RatePermit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RatePermit").field("slot", &self.slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
