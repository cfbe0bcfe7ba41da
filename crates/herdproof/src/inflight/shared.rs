//! What those aboard one flight share: its ending, and who is to be told of it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, OnceLock, Weak, atomic::Ordering, mpsc::SyncSender},
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    Table,
    loads::Place,
    outcome::{Ending, FlightError, Landed},
    wakers::{Slot, Wakers},
};
use crate::{
    env::{Env, Task, Tick},
    sync::{AtomicU32, Mutex},
};

/// The number of callers of a flight that was given up; nobody can join it any more.
const DEAD: u32 = u32::MAX;

pub(super) struct Shared<V, E> {
    pub(super) env: Env,
    /// Written once, by whoever lands the flight, before anybody is woken.
    ending: OnceLock<(Ending<V, E>, Tick)>,
    /// Callers who have not left, the leader among them; `DEAD` once the flight is given up.
    callers: AtomicU32,
    /// Callers beyond the first, ever. Written under the lock of the flight's shard only.
    followers: AtomicU32,
    waiting: Mutex<Waiting<V, E>>,
    pub(super) place: Place,
    abandon: Abandon,
    home: Weak<dyn Table>,
}

struct Waiting<V, E> {
    wakers: Wakers,
    channels: Vec<Channel<V, E>>,
    /// Present while the load runs on its own.
    load: Option<Task<()>>,
    /// When somebody last left.
    left_at: Tick,
    /// Whether a task waits to give the flight up.
    watched: bool,
}

/// Where to send the answer, and to whom it is addressed.
struct Channel<V, E> {
    to: SyncSender<Result<Landed<V>, FlightError<E>>>,
    seat: Joined,
}

/// What a caller needs to know of itself to say how it went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) led: bool,
    pub(super) at: Tick,
}

/// Why a flight leaves the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Landed,
    GivenUp,
}

/// What becomes of a load when the last caller leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abandon {
    /// It is dropped: nobody wants it.
    #[default]
    Cancel,
    /// It goes on, and newcomers may join it; but not for longer than this after the last one left.
    Finish {
        /// How long.
        within: Duration,
    },
}

/// What a watch over a flight that nobody waits for has to do.
enum Watch {
    /// Look again then.
    Until(Tick),
    Over,
}

/// A flight cannot be joined.
pub(super) enum Closed {
    /// It was given up; begin another.
    Dead,
    /// As many callers are aboard as may be.
    Full,
}

impl<V: Clone, E> Shared<V, E> {
    /// A flight with its leader as the one caller so far.
    pub(super) fn new(env: Env, abandon: Abandon, place: Place, home: Weak<dyn Table>) -> Shared<V, E> {
        Shared {
            env,
            ending: OnceLock::new(),
            callers: AtomicU32::new(1),
            followers: AtomicU32::new(0),
            waiting: Mutex::new(Waiting {
                wakers: Wakers::default(),
                channels: Vec::new(),
                load: None,
                left_at: Tick::ZERO,
                watched: false,
            }),
            place,
            abandon,
            home,
        }
    }

    /// One caller more. To be called with the lock of the flight's shard held.
    pub(super) fn join(&self, most: u32) -> Result<(), Closed> {
        // A flight that landed and lingers has its answer: nobody waits there.
        let joined = if self.is_landed() {
            Ok(0)
        } else {
            self.callers.fetch_update(Ordering::AcqRel, Ordering::Acquire, |callers| {
                (callers != DEAD && callers <= most).then(|| callers + 1)
            })
        };
        match joined {
            Ok(_) => {
                let followers = self.followers.load(Ordering::Relaxed);
                self.followers.store(followers.saturating_add(1), Ordering::Relaxed);
                Ok(())
            }
            Err(DEAD) => Err(Closed::Dead),
            Err(_) => Err(Closed::Full),
        }
    }

    /// How many wait for it at present.
    pub(super) fn callers(&self) -> u32 {
        match self.callers.load(Ordering::Relaxed) {
            DEAD => 0,
            callers => callers,
        }
    }

    pub(super) fn followers(&self) -> u64 {
        u64::from(self.followers.load(Ordering::Relaxed))
    }

    /// The answer for this caller, if the flight has landed.
    pub(super) fn answer(&self, joined: Joined) -> Option<Result<Landed<V>, FlightError<E>>> {
        let (ending, landed_at) = self.ending.get()?;
        Some(Result::from(ending.clone()).map(|value| Landed {
            value,
            led: joined.led,
            shared: !joined.led || self.followers() > 0,
            waited: *landed_at - joined.at,
        }))
    }

    pub(super) fn is_landed(&self) -> bool {
        self.ending.get().is_some()
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.waiting.lock().wakers.len()
    }

    /// Keeps the waker in the caller's slot; false if the flight has landed meanwhile.
    pub(super) fn wait(&self, slot: &mut Option<Slot>, waker: &Waker) -> bool {
        let mut waiting = self.waiting.lock();
        if self.is_landed() {
            return false;
        }
        let replaced = match *slot {
            Some(index) => waiting.wakers.replace(index, waker),
            None => {
                *slot = Some(waiting.wakers.add(waker.clone()));
                None
            }
        };
        drop(waiting);
        drop(replaced);
        true
    }

    /// Sends the answer there when it comes, or now.
    pub(super) fn send(&self, to: SyncSender<Result<Landed<V>, FlightError<E>>>, seat: Joined) {
        let mut waiting = self.waiting.lock();
        match self.answer(seat) {
            // There is room for one, and a receiver that is gone does not want it.
            Some(answer) => drop(to.try_send(answer)),
            None => waiting.channels.push(Channel { to, seat }),
        }
    }

    /// A caller leaves before the flight has landed.
    pub(super) fn leave(self: &Arc<Self>, slot: Option<Slot>)
    where
        V: Send + Sync + 'static,
        E: Send + Sync + 'static,
    {
        let mut waiting = self.waiting.lock();
        // At the landing the whole list is taken away.
        let aboard = !self.is_landed();
        let waker = slot.filter(|_| aboard).and_then(|slot| waiting.wakers.remove(slot));
        let left = if self.abandon == Abandon::Cancel { DEAD } else { 0 };
        let leave = |callers| Some(if callers == 1 { left } else { callers - 1 });
        let was_last = aboard && self.callers.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave) == Ok(1);
        waiting.left_at = self.env.coarse();
        let was_watched = waiting.watched;
        // Where there is no runtime to watch it in, the load goes on until it ends by itself.
        let can_watch = was_last && self.abandon != Abandon::Cancel && self.env.can_spawn();
        waiting.watched |= can_watch;
        drop(waiting);
        drop(waker);
        match self.abandon {
            Abandon::Cancel if was_last => self.give_up(),
            Abandon::Finish { within } if can_watch && !was_watched => {
                let watch = Arc::clone(self).watch(within);
                self.env.spawn_named("flight/watch", watch).detach();
            }
            Abandon::Cancel | Abandon::Finish { .. } => {}
        }
    }

    /// Waits until nobody has been aboard for so long, and gives the flight up then; or until it has landed, because what it
    /// landed with is kept for as long as this waits. There is one watch per flight, however often callers come and go.
    async fn watch(self: Arc<Self>, within: Duration) {
        let mut slot = None;
        while let Watch::Until(until) = self.patience(within, &mut slot) {
            let mut sleep = self.env.sleep_until(until);
            poll_fn(|cx| {
                let aboard = self.wait(&mut slot, cx.waker());
                if aboard { Pin::new(&mut sleep).poll(cx).map(drop) } else { Poll::Ready(()) }
            })
            .await;
        }
        // Nobody can join any more.
        if self.callers.load(Ordering::Acquire) == DEAD {
            self.give_up();
        }
    }

    /// When the watch is to look again; when it is over, its slot is free, and the flight is given up if nobody waits for it.
    fn patience(&self, within: Duration, slot: &mut Option<Slot>) -> Watch {
        let mut waiting = self.waiting.lock();
        let until = waiting.left_at + within;
        // At the landing the whole list of wakers was taken away.
        let landed = self.is_landed();
        if !landed && self.env.now() < until {
            return Watch::Until(until);
        }
        waiting.watched = false;
        // Under the lock that callers leave under: the last to leave later begins a watch of its own.
        let _ = self.callers.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Acquire);
        let own = slot.take().filter(|_| !landed).and_then(|slot| waiting.wakers.remove(slot));
        drop(waiting);
        drop(own);
        Watch::Over
    }

    /// Drops the load, unless it has landed: then it may be lingering, and ends by itself.
    fn give_up(&self) {
        if self.is_landed() {
            return;
        }
        if let Some(home) = self.home.upgrade() {
            home.remove(self.place, Removal::GivenUp);
        }
        let load = self.waiting.lock().load.take();
        if let Some(load) = load {
            load.abort();
        }
    }

    /// Keeps the handle of the running load, so that the last caller to leave can end it.
    pub(super) fn runs_as(&self, load: Task<()>) {
        let mut waiting = self.waiting.lock();
        if !self.is_landed() {
            waiting.load = Some(load);
        }
    }

    /// Ends the flight for everybody aboard; only the first ending counts. This one call wakes all followers, and holds no
    /// lock while it does: the list is taken away as a whole.
    pub(super) fn land(&self, ending: Ending<V, E>) {
        if self.ending.set((ending, self.env.coarse())).is_err() {
            return;
        }
        let mut waiting = self.waiting.lock();
        let wakers = std::mem::take(&mut waiting.wakers);
        let channels = std::mem::take(&mut waiting.channels);
        let load = waiting.load.take();
        drop(waiting);
        drop(load);
        wakers.wake_all();
        for Channel { to, seat } in channels {
            if let Some(answer) = self.answer(seat) {
                drop(to.try_send(answer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::Sim;

    struct Nowhere;

    impl Table for Nowhere {
        fn remove(&self, _: Place, _: Removal) {}

        fn unless_forgotten(&self, _: Place, _: &mut dyn FnMut()) -> bool {
            false
        }
    }

    /// A flight that lingers counts everybody who is given its value.
    #[test]
    fn a_flight_that_more_have_joined_than_can_be_counted_can_be_joined() {
        let home: Weak<dyn Table> = Weak::<Nowhere>::new();
        let place = Place { hash: 0, number: 0 };
        let shared: Shared<u32, ()> = Shared::new(Sim::new(1).env(), Abandon::Cancel, place, home);
        shared.land(Ending::Value(1));
        shared.followers.store(u32::MAX, Ordering::Relaxed);
        assert!(shared.join(1).is_ok() && shared.followers() == u64::from(u32::MAX));
    }
}

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
