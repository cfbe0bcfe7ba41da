//! So many at once, and a line for the others.
//!
//! A pool without a line refuses what could have been served a moment later; a line without an end keeps everybody waiting
//! for an answer nobody wants any more. Here the line has an end and everybody in it may have a deadline. Whoever matters
//! more stands before whoever matters less, and among equals who came first goes first.
//!
//! A permit that is given back goes to the first in the line, by name: one release wakes those who can go and nobody else,
//! and no newcomer slips in before them. If the one it was given to has left in the meantime, it goes to the next.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    env::Env,
    event::Event,
    gate::{Ask, Gate, Permit, Priority, Refusal, Span, Verdict, Why},
    sync::Mutex,
};

/// How many may wait for each that may be inside, unless told otherwise.
const WAITING_EACH: usize = 10;

/// A gate that lets in so many at once; see [`limit`](super). Cheap to clone, and clones share.
///
/// What costs more takes more of the room, one at least; what costs more than all of it is refused.
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
}

struct State {
    taken: u32,
    /// Who waits, in the order in which they go. Whoever is taken out by somebody else has been let in.
    line: BTreeMap<Place, Waiter>,
    /// How many have ever stood in the line.
    come: u64,
}

/// Where somebody stands in the line: by how much it matters, then by when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
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
}

/// Somebody in the line. Gone before it was let in, it leaves the line; after, its permit goes to the next.
struct Waiting<'a> {
    room: &'a Arc<Room>,
    place: Place,
    cost: u32,
    over: bool,
}

impl Bulkhead {
    /// Room for this many, one at least, and a line ten times as long.
    pub fn new(env: &Env, size: u32) -> Bulkhead {
        let size = size.max(1);
        let state = Mutex::new(State { taken: 0, line: BTreeMap::new(), come: 0 });
        let max_waiting = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(WAITING_EACH);
        Bulkhead { room: Arc::new(Room { env: env.clone(), size, state }), max_waiting }
    }

    /// How many may wait; those beyond are refused.
    #[must_use]
    pub fn max_waiting(mut self, most: usize) -> Bulkhead {
        self.max_waiting = most;
        self
    }

    /// How much of the room is taken.
    pub fn taken(&self) -> u32 {
        self.room.state.lock().taken
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.room.state.lock().line.len()
    }

    fn refuse(&self, why: Why) -> Refusal {
        self.room.env.tell(&Event::Refusal);
        Refusal::new(why)
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

    fn stand_in_line(&mut self, cost: u32, priority: Priority) -> Place {
        self.come += 1;
        let place = Place { before: std::cmp::Reverse(priority), number: self.come };
        self.line.insert(place, Waiter { cost, waker: None });
        place
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
    fn give_back(&self, cost: u32) {
        let mut state = self.state.lock();
        state.taken -= cost;
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
    type Permit = BulkheadPermit;

    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<BulkheadPermit, Refusal> {
        let cost = ask.cost.max(1);
        if self.room.state.lock().take(self.room.size, cost) {
            return Ok(BulkheadPermit { room: Arc::clone(&self.room), cost });
        }
        Err(self.refuse(Why::Concurrency))
    }

    async fn enter(&self, ask: &mut Ask) -> Result<BulkheadPermit, Refusal> {
        let Bulkhead { room, max_waiting } = self;
        let cost = ask.cost.max(1);
        if cost > room.size {
            return Err(self.refuse(Why::Concurrency));
        }
        let (place, depth) = {
            let mut state = room.state.lock();
            if state.take(room.size, cost) {
                return Ok(BulkheadPermit { room: Arc::clone(room), cost });
            }
            let depth = state.line.len() + 1;
            (if depth > *max_waiting { None } else { Some(state.stand_in_line(cost, ask.priority)) }, depth)
        };
        let Some(place) = place else { return Err(self.refuse(Why::Queue)) };
        room.env.tell(&Event::QueueDepth(depth as u64));
        let waiting = Waiting { room, place, cost, over: false };
        let Some(deadline) = ask.deadline else {
            let permit = waiting.await;
            ask.at = room.env.now();
            return Ok(permit);
        };
        let (mut waiting, mut late) = (pin!(waiting), pin!(room.env.sleep_until(deadline)));
        let permit = poll_fn(|cx| {
            if let Poll::Ready(permit) = waiting.as_mut().poll(cx) {
                return Poll::Ready(Some(permit));
            }
            late.as_mut().poll(cx).map(|_| None)
        })
        .await;
        ask.at = room.env.now();
        permit.ok_or_else(|| self.refuse(Why::Deadline))
    }
}

impl Future for Waiting<'_> {
    type Output = BulkheadPermit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BulkheadPermit> {
        let replaced = {
            let mut state = self.room.state.lock();
            match state.line.get_mut(&self.place) {
                Some(Waiter { waker: Some(waker), .. }) if waker.will_wake(cx.waker()) => return Poll::Pending,
                Some(waiter) => Some(waiter.waker.replace(cx.waker().clone())),
                None => None,
            }
        };
        match replaced {
            Some(replaced) => {
                drop(replaced);
                Poll::Pending
            }
            None => {
                self.over = true;
                Poll::Ready(BulkheadPermit { room: Arc::clone(self.room), cost: self.cost })
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let left = self.room.state.lock().line.remove(&self.place);
        // Whoever stood behind somebody costly may fit now; who was let in already has something to give back.
        self.room.give_back(if left.is_some() { 0 } else { self.cost });
    }
}

impl Permit for BulkheadPermit {
    #[inline]
    fn settle(self, _: &Verdict, _: Span) {}
}

impl Drop for BulkheadPermit {
    #[inline]
    fn drop(&mut self) {
        self.room.give_back(self.cost);
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
