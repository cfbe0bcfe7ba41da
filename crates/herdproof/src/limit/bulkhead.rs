//! So many at once, and a line for the others.
//!
//! A pool without a line refuses what could have been served a moment later; a line without an end keeps everybody waiting
//! for an answer nobody wants any more. Here the line has an end and everybody in it may have a deadline. Whoever matters
//! more stands before whoever matters less, and among equals who came first goes first. A full line pushes out the least
//! important who came last, for somebody who matters more.
//!
//! A permit that is given back goes to the first in the line, by name: one release wakes those who can go and nobody else,
//! and no newcomer slips in before them. If the one it was given to has left in the meantime, it goes to the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::promise::Promises;
use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Priority, Refusal, Span, Verdict, Why},
    sync::Mutex,
    timeout::by,
};

/// How many may wait for each that may be inside, unless told otherwise.
const WAITING_EACH: usize = 10;
/// Over how many the time that somebody stays is averaged.
const REMEMBERED: u64 = 16;

/// A gate that lets in so many at once; see [`limit`](super). Cheap to clone, and clones share.
///
/// What costs more takes more of the room, one at least; what costs more than all of it is refused. Who is refused for want of
/// room is told when, each another instant, as soon as it is known how long those inside stay.
///
/// ```
/// use herdproof::{Env, gate::{Ask, Gate}, limit::Bulkhead};
///
/// let env = Env::system();
/// let pool = Bulkhead::new(&env, 2).max_waiting(100);
/// let (one, two) = (pool.try_enter(&Ask::new(&env)), pool.try_enter(&Ask::new(&env)));
/// assert!(one.is_ok() && two.is_ok());
/// assert_eq!(pool.try_enter(&Ask::new(&env)).unwrap_err().to_string(), "refused: too much at once");
/// drop(one);
/// assert!(pool.try_enter(&Ask::new(&env)).is_ok());
/// ```
#[derive(Clone)]
pub struct Bulkhead {
    room: Arc<Room>,
    max_waiting: usize,
}

struct Room {
    env: Env,
    size: u32,
    state: Mutex<State>,
    promises: Promises,
}

struct State {
    taken: u32,
    /// Who waits, in the order in which they go. Whoever is taken out by somebody else has been let in, or is among those
    /// pushed out.
    line: BTreeMap<Spot, Waiter>,
    /// Who was pushed out and has not noticed yet.
    pushed_out: BTreeSet<Spot>,
    /// How many have ever stood in the line.
    come: u64,
    /// How long those who were inside stayed, on average of the last few, in nanoseconds; zero if nobody was.
    stay: u64,
}

/// Where somebody stands in the line: by how much it matters, then by when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    before: std::cmp::Reverse<Priority>,
    number: u64,
}

struct Waiter {
    cost: u32,
    waker: Option<Waker>,
}

/// The right to be inside.
#[must_use = "dropping it gives it back"]
pub struct BulkheadPermit {
    room: Arc<Room>,
    cost: u32,
    /// How long it was used; `None` until it is settled with something to learn from.
    stayed: Option<Duration>,
}

/// It was pushed out of the line by somebody who matters more.
struct PushedOut;

/// Somebody in the line. Gone before it was let in, it leaves the line; after, its permit goes to the next.
struct Waiting<'a> {
    room: &'a Arc<Room>,
    place: Spot,
    cost: u32,
    over: bool,
}

impl Bulkhead {
    /// Room for this many, one at least, and a line ten times as long.
    pub fn new(env: &Env, size: u32) -> Bulkhead {
        let size = size.max(1);
        let state =
            Mutex::new(State { taken: 0, line: BTreeMap::new(), pushed_out: BTreeSet::new(), come: 0, stay: 0 });
        let max_waiting = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(WAITING_EACH);
        Bulkhead {
            room: Arc::new(Room { env: env.clone(), size, state, promises: Promises::new(env.rng("limit/bulkhead")) }),
            max_waiting,
        }
    }

    /// How many may wait; beyond that, those who matter least are refused.
    #[must_use]
    pub fn max_waiting(mut self, most: usize) -> Bulkhead {
        self.max_waiting = most;
        self
    }

    /// How much of the room is taken.
    pub fn taken(&self) -> u32 {
        self.room.state.lock().taken
    }

    /// Whether the next could go in at once. For whoever has work that can wait, such as hedges.
    pub fn has_room(&self) -> bool {
        let state = self.room.state.lock();
        state.taken < self.room.size && state.line.is_empty()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.room.state.lock().line.len()
    }

    fn refuse(&self, why: Why) -> Refusal {
        self.room.env.tell(&Event::Refusal);
        Refusal::new(why)
    }

    /// Refuses for want of room, and tells when there will be some, as far as that is known.
    #[cold]
    fn refuse_until(&self, why: Why, ask: &Ask) -> Refusal {
        let refusal = self.refuse(why);
        let Room { size, state, promises, .. } = &*self.room;
        let (interval, waiting) = {
            let state = state.lock();
            (state.stay / u64::from(*size), state.line.len() as u64)
        };
        if interval == 0 || ask.cost > *size {
            return refusal;
        }
        let takes = interval.saturating_mul(u64::from(ask.cost.max(1)));
        let soonest = ask.at.as_nanos().saturating_add(interval.saturating_mul(waiting)).saturating_add(takes);
        refusal.after(Tick::from_nanos(promises.at(soonest, takes)) - ask.at)
    }
}

impl State {
    /// Takes the room if there is enough and nobody waits for it.
    fn take(&mut self, size: u32, cost: u32) -> bool {
        let free = size - self.taken;
        let fits = self.line.is_empty() && cost <= free;
        if fits {
            self.taken += cost;
        }
        fits
    }

    fn stand_in_line(&mut self, cost: u32, priority: Priority) -> Spot {
        self.come += 1;
        let place = Spot { before: std::cmp::Reverse(priority), number: self.come };
        self.line.insert(place, Waiter { cost, waker: None });
        place
    }

    /// Pushes out the last of the line, if that matters less than this.
    fn push_out(&mut self, priority: Priority) -> Option<Waiter> {
        let last = self.line.last_entry()?;
        if last.key().before.0 >= priority {
            return None;
        }
        let (place, waiter) = last.remove_entry();
        self.pushed_out.insert(place);
        Some(waiter)
    }

    /// Somebody was inside for so long.
    fn stayed(&mut self, time: Duration) {
        let time = (Tick::ZERO + time).as_nanos();
        self.stay = if self.stay == 0 { time } else { self.stay - self.stay / REMEMBERED + time / REMEMBERED };
    }

    /// Lets in the first of the line, if there is room for it.
    fn let_in(&mut self, size: u32) -> Option<Waiter> {
        let first = self.line.first_entry()?;
        if first.get().cost > size - self.taken {
            return None;
        }
        let first = first.remove();
        self.taken += first.cost;
        Some(first)
    }
}

impl Room {
    /// Gives back this much, and lets in whom that makes room for. Nobody is woken under the lock.
    fn give_back(&self, cost: u32, stayed: Option<Duration>) {
        let mut state = self.state.lock();
        state.taken -= cost;
        if let Some(time) = stayed {
            state.stayed(time);
        }
        loop {
            let Some(next) = state.let_in(self.size) else { return };
            drop(state);
            if let Some(waker) = next.waker {
                waker.wake();
            }
            state = self.state.lock();
        }
    }
}

impl Gate for Bulkhead {
    type Place = BulkheadPermit;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<BulkheadPermit, Refusal> {
        let cost = ask.cost.max(1);
        if self.room.state.lock().take(self.room.size, cost) {
            return Ok(BulkheadPermit { room: Arc::clone(&self.room), cost, stayed: None });
        }
        Err(self.refuse_until(Why::Concurrency, ask))
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<BulkheadPermit, Refusal> {
        let Bulkhead { room, max_waiting } = self;
        let cost = ask.cost.max(1);
        if cost > room.size {
            return Err(self.refuse(Why::Concurrency));
        }
        let (place, depth, pushed_out) = {
            let mut state = room.state.lock();
            if state.take(room.size, cost) {
                return Ok(BulkheadPermit { room: Arc::clone(room), cost, stayed: None });
            }
            // It may be longer than that: a clone of this may let more wait.
            let full = state.line.len() >= *max_waiting;
            let pushed_out = if full { state.push_out(ask.priority) } else { None };
            let fits = !full || pushed_out.is_some();
            let place = fits.then(|| state.stand_in_line(cost, ask.priority));
            (place, state.line.len(), pushed_out)
        };
        // Before anybody is woken or told: should that panic, it leaves the line.
        let waiting = place.map(|place| Waiting { room, place, cost, over: false });
        if let Some(waker) = pushed_out.and_then(|waiter| waiter.waker) {
            waker.wake();
        }
        let Some(waiting) = waiting else { return Err(self.refuse_until(Why::Queue, ask)) };
        room.env.tell(&Event::QueueDepth(depth as u64));
        let permit = by(&room.env, ask.deadline, waiting).await;
        ask.at = room.env.now();
        match permit {
            Some(permit) => permit.map_err(|PushedOut| self.refuse_until(Why::Queue, ask)),
            None => Err(self.refuse(Why::Deadline)),
        }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<BulkheadPermit, PushedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (replaced, pushed_out) = {
            let mut state = self.room.state.lock();
            match state.line.get_mut(&self.place) {
                Some(Waiter { waker: Some(waker), .. }) if waker.will_wake(cx.waker()) => return Poll::Pending,
                Some(waiter) => (Some(waiter.waker.replace(cx.waker().clone())), false),
                None => (None, state.pushed_out.remove(&self.place)),
            }
        };
        if let Some(replaced) = replaced {
            drop(replaced);
            return Poll::Pending;
        }
        self.over = true;
        if pushed_out {
            return Poll::Ready(Err(PushedOut));
        }
        Poll::Ready(Ok(BulkheadPermit { room: Arc::clone(self.room), cost: self.cost, stayed: None }))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let left = {
            let mut state = self.room.state.lock();
            if state.pushed_out.remove(&self.place) {
                return;
            }
            state.line.remove(&self.place)
        };
        // Whoever stood behind somebody costly may fit now; who was let in already has something to give back.
        self.room.give_back(if left.is_some() { 0 } else { self.cost }, None);
    }
}

/// Dropped before the work or during it, it takes nothing.
impl Place for BulkheadPermit {
    type Permit = Self;

    #[inline]
    fn commit(self) -> Self {
        self
    }
}

impl Permit for BulkheadPermit {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        // What was given up says no more about how long others stay than a permit that is dropped.
        self.stayed = (*verdict != Verdict::Ignored).then(|| span.took());
    }
}

impl Drop for BulkheadPermit {
    #[inline]
    fn drop(&mut self) {
        self.room.give_back(self.cost, self.stayed);
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead")
            .field("size", &self.room.size)
            .field("taken", &self.taken())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for BulkheadPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkheadPermit").field("cost", &self.cost).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
