//! Lines that stay short, and refusals that do not come back together.
//!
//! A line in front of a service is good for a rush of moments. For anything longer it is how a service fails: 20,000 calls
//! in one second before a service that does 2,000 a second make a line of ten seconds, and if callers give up after two,
//! nearly everything that is served from then on is served to nobody. Served newest first, or not let in at all, as many
//! calls would have been in time as the service can do. A [`Queue`] is a [`Gate`] that lets so many in at once and has such
//! a line before it:
//!
//! - **Short rushes wait, standing queues are shed.** [`Codel`] tells them apart by the shortest wait of an interval. Then
//!   those who have waited longest are refused, and the newest are served first: the others have probably given up.
//! - **The more important first.** Four classes ([`Priority`](crate::gate::Priority)), each with a line and a judge of its
//!   own, so that nobody is refused because less important calls wait in crowds; a full line pushes out the least
//!   important who has waited longest. With [`cut`](QueueBuilder::cut), whole users rather than a little of everybody.
//! - **Fair by user**, with [`fair`](QueueBuilder::fair): a user may hold four times the seats that are free, whoever holds
//!   fewest is next, and each user has a line of its own. Two hundred calls of one user do not stand before one of another.
//! - **Nothing that would be late.** Whose deadline leaves less time than the work usually takes is refused at once.
//! - **Refused with an appointment.** Each is told an instant of its own to come back at, as many a second as can be served
//!   ([`Appointments`]).
//! - **Waiters may leave.** A waiter that is dropped leaves no trace, and a seat that was already kept for it goes to the
//!   next.
//!
//! ```
//! use herdproof::{Env, gate::{Ask, guard, result}, shed::Queue};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let queue = Queue::new(&env, 8); // eight at once
//! let answer = guard(&env, &queue, result, Ask::new(&env), || async { Ok::<_, ()>(42) }).await;
//! assert_eq!(answer, Ok(42));
//! # });
//! ```
//!
//! | setting | unless told otherwise | from |
//! |---|---|---|
//! | [`line`](QueueBuilder::line) | 1,000 may wait | |
//! | [`patience`](QueueBuilder::patience) | without end | |
//! | [`adaptive`](QueueBuilder::adaptive) | no: as many seats as were asked for | |
//! | [`fair`](QueueBuilder::fair) | no: in the order of coming, whoever asks | Choudhury and Hahne, FQ-CoDel |
//! | [`target`](QueueBuilder::target) | 5 ms, or a tenth of the median work if that is more | folly |
//! | interval | 20 targets | folly's 100 ms for 5 ms |
//! | shed while overloaded | who has waited more than 2 targets | folly |
//! | [`order`](QueueBuilder::order) | oldest first, newest first while overloaded | Facebook's adaptive LIFO |

mod appointments;
mod builder;
mod codel;
mod fair;
mod flows;
mod line;
mod plain;
mod priority;
mod seat;
mod slots;
mod waiting;

use std::{
    fmt,
    num::NonZero,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

pub use appointments::{Appointed, Appointments, Kept, headers};
pub use builder::QueueBuilder;
pub use codel::Codel;
use flows::Flows;
use plain::State;
use priority::Cut;
pub use seat::Seat;
use slots::Waiter;
use waiting::Waiting;

use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Gate, Refusal, Sizer, Why},
    histogram::Histogram,
    sync::{AtomicU32, Mutex},
};

/// Somebody may have to wait, or the line is overloaded: take the lock.
const SLOW: u32 = 1 << 31;
/// Somebody was let in without waiting since the lock was last taken.
const CALM: u32 = 1 << 30;
const INSIDE: u32 = CALM - 1;

/// Calls a second that a seat is taken to serve until the first was served: with a guess that is far too low a rush at a cold start
/// would be told to come back in minutes.
const COLD_RATE: f64 = 10.0;

/// So many at once, and a line before them; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

/// Who of a class is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The oldest, but while overloaded the newest.
    #[default]
    Adaptive,
    /// Always the oldest.
    Oldest,
    /// Always the newest.
    Newest,
}

struct Inner {
    env: Env,
    /// How many may be inside. More are when it has just been lowered. Written at any time; whoever raises it takes the lock
    /// after that, to see who waits.
    seats: AtomicU32,
    /// As many as there may ever be, whatever the sizer finds.
    most_seats: u32,
    sizer: Option<Box<dyn Sizer>>,
    most: u32,
    patience: Duration,
    order: Order,
    /// How many are inside, and two flags. While [`SLOW`] is set only whoever holds the lock writes it, so that a seat
    /// which is given back goes to somebody who waits; while it is not, nobody waits.
    word: AtomicU32,
    state: Mutex<State>,
    /// In fair mode, instead of the state; then the word says how many are inside and nothing else.
    fair: Option<Mutex<Flows>>,
    cut: Option<Cut>,
    appointments: Appointments,
    times: Histogram,
    /// Nanoseconds, for everybody to read; zero if not known. Both are guesses, and may miss a sample.
    median: AtomicU64,
    mean: AtomicU64,
}

/// A place in the line; its holder waits at once.
#[must_use]
pub(crate) struct InLine(u32);

/// What came of asking.
enum Asked {
    /// With a seat of this flow.
    Seated(u32),
    Refused(Why),
    Waiting(u32),
}

impl Queue {
    /// This many at once (one at least), and the usual settings.
    pub fn new(env: &Env, seats: u32) -> Queue {
        Queue::builder(env, seats).build()
    }

    /// How many may be inside.
    pub fn seats(&self) -> u32 {
        self.0.seats.load(Relaxed)
    }

    /// Lets so many in from now on, one at least. If they are more than before, those who wait are let in; if fewer, nobody
    /// is turned out, and nobody else is let in until there is room.
    pub fn set_seats(&self, seats: u32) {
        self.0.set_seats(seats.clamp(1, INSIDE), self.0.env.now());
    }

    /// How many are inside.
    pub fn inside(&self) -> u32 {
        self.0.inside()
    }

    /// How many wait.
    pub fn waiting(&self) -> u32 {
        match &self.0.fair {
            Some(flows) => flows.lock().len(),
            None => self.0.state.lock().line.len(),
        }
    }

    /// Whether the line of any class has stood for a whole interval; in fair mode, also that of a single user.
    pub fn is_overloaded(&self) -> bool {
        match &self.0.fair {
            Some(flows) => flows.lock().is_overloaded(),
            None => self.0.state.lock().is_overloaded(),
        }
    }

    /// How long work took lately that was done, as the median; `None` before the first.
    pub fn median(&self) -> Option<Duration> {
        Some(self.0.median()).filter(|median| !median.is_zero())
    }

    /// Somebody else has come to wait for a load that may be in line ([`Ask::load`]), and asks like this. In fair mode the load
    /// then stands in the line of that user, if it is served sooner there, and it is as important as the more important of the
    /// two. So a user whose own line is long cannot make others wait in it by being the first to ask for what they all want.
    pub fn joined(&self, load: u64, ask: &Ask) {
        if let (Some(flows), Some(load)) = (&self.0.fair, NonZero::new(load))
            && flows.lock().joined(load, ask)
        {
            self.0.hand_out(flows, None, ask.at);
        }
    }

    /// How many calls can be served in a second, by how long they took lately; `None` before the first.
    pub fn capacity(&self) -> Option<f64> {
        self.0.capacity()
    }

    /// Takes a seat, a place in the line, or a no.
    #[inline]
    fn ask(&self, ask: &Ask, wait: bool) -> Asked {
        let inner = &*self.0;
        inner.appointments.came(ask);
        if let Some(deadline) = ask.deadline
            && inner.is_late(deadline, ask.at, self.inside())
        {
            return Asked::Refused(Why::Deadline);
        }
        if let Some(cut) = &inner.cut
            && !cut.passes(ask)
        {
            return Asked::Refused(Why::Shed);
        }
        if let Some(flows) = &inner.fair {
            return inner.ask_fairly(flows, ask, wait);
        }
        let mut word = inner.word.load(Relaxed);
        let seats = inner.seats.load(Relaxed);
        while word & SLOW == 0 && word & INSIDE < seats {
            match inner.word.compare_exchange_weak(word, (word + 1) | CALM, Acquire, Relaxed) {
                Ok(_) => return Asked::Seated(0),
                Err(other) => word = other,
            }
        }
        inner.ask_slowly(ask, wait)
    }

    /// A seat or a refusal, if either can be had without waiting; else a place in the line, for [`wait`](Queue::wait).
    #[inline]
    pub(crate) fn seat_or_line(&self, ask: &Ask) -> Result<Result<Seat, Refusal>, InLine> {
        match self.ask(ask, true) {
            Asked::Waiting(slot) => Err(InLine(slot)),
            asked => Ok(self.answer(ask, &asked)),
        }
    }

    /// Waits in the line.
    pub(crate) async fn wait(&self, InLine(slot): InLine, ask: &mut Ask) -> Result<Seat, Refusal> {
        let (at, waited) = Waiting::new(self, slot, ask).await;
        ask.at = at;
        self.answer(ask, &waited)
    }

    #[inline]
    fn answer(&self, ask: &Ask, asked: &Asked) -> Result<Seat, Refusal> {
        match *asked {
            Asked::Seated(flow) => {
                self.0.appointments.admitted(ask);
                if let Some(sizer) = &self.0.sizer {
                    sizer.begun();
                }
                Ok(Seat { queue: Some(self.clone()), from: ask.at, flow })
            }
            Asked::Refused(why) => Err(self.0.refusal(why, ask)),
            Asked::Waiting(_) => Err(self.0.refusal(Why::Concurrency, ask)),
        }
    }
}

impl Inner {
    /// All seats are taken: the limit binds, and who watches the line hears of it.
    fn found_no_seat(&self, asked: Asked, wait: bool, depth: u32) -> Asked {
        if let Some(sizer) = &self.sizer {
            sizer.binds();
        }
        match asked {
            Asked::Waiting(_) => self.env.tell(&Event::QueueDepth(depth.into())),
            _ if wait => self.cut.iter().for_each(|cut| cut.waited(Duration::ZERO, true)),
            _ => {}
        }
        asked
    }

    fn set_seats(&self, seats: u32, now: Tick) {
        if self.seats.swap(seats, Relaxed) >= seats {
            return;
        }
        if let Some(flows) = &self.fair {
            return self.hand_out(flows, None, now);
        }
        // 1. Somebody found all seats taken, and stands in the line. 2. There are more seats. 3. Nobody leaves for a long time.
        // So the new seats are handed out here, each as if somebody had given it back.
        while self.take_for_next() {
            self.release_slowly(now);
        }
    }

    /// A seat is given back.
    #[inline]
    fn release(&self, flow: u32, now: impl FnOnce() -> Tick) {
        if let Some(flows) = &self.fair {
            return self.hand_out(flows, Some(flow), now());
        }
        let mut word = self.word.load(Relaxed);
        while word & SLOW == 0 {
            match self.word.compare_exchange_weak(word, word - 1, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(other) => word = other,
            }
        }
        self.release_slowly(now());
    }

    fn waited(&self, who: Waiter, now: Tick, shed: bool) {
        if let Some(cut) = &self.cut {
            cut.waited(now - who.since, shed);
        }
    }

    fn inside(&self) -> u32 {
        self.word.load(Relaxed) & INSIDE
    }

    /// Whether what is let in now would be done too late. If nobody else is inside, it is tried all the same: were nobody
    /// let in because the work took long once, nobody would learn that it no longer does.
    fn is_late(&self, deadline: Tick, now: Tick, others: u32) -> bool {
        now >= deadline || (now + self.median() > deadline && others > 0)
    }

    /// The last instant at which something can be begun that is to be done by then.
    fn latest(&self, deadline: Tick) -> Tick {
        Tick::from_nanos(deadline.as_nanos().saturating_sub(self.median.load(Relaxed)))
    }

    fn median(&self) -> Duration {
        Duration::from_nanos(self.median.load(Relaxed))
    }

    fn capacity(&self) -> Option<f64> {
        let mean = self.mean.load(Relaxed);
        (mean > 0).then(|| f64::from(self.seats.load(Relaxed)) * 1e9 / mean as f64)
    }

    #[cold]
    fn refusal(&self, why: Why, ask: &Ask) -> Refusal {
        self.env.tell(&Event::Refusal);
        let capacity = self.capacity().unwrap_or_else(|| f64::from(self.seats.load(Relaxed)) * COLD_RATE);
        Refusal::new(why).after(self.appointments.book(ask, Some(capacity)))
    }
}

impl Gate for Queue {
    type Place = Seat;

    fn try_reserve(&self, ask: &Ask) -> Result<Seat, Refusal> {
        self.answer(ask, &self.ask(ask, false))
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<Seat, Refusal> {
        match self.seat_or_line(ask) {
            Ok(answer) => answer,
            Err(line) => self.wait(line, ask).await,
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.word.load(Relaxed);
        let waiting = self.waiting();
        f.debug_struct("Queue").field("inside", &(word & INSIDE)).field("waiting", &waiting).finish_non_exhaustive()
    }
}

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
#[cfg(test)]
mod tests;
