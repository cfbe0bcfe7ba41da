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
mod codel;
mod fair;
mod flows;
mod line;
mod priority;
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
    task::Waker,
    time::Duration,
};

pub use appointments::{Appointed, Appointments, Kept, headers};
pub use codel::Codel;
use flows::Flows;
use line::{CLASSES, Line};
use priority::Cut;
use slots::{Stage, Waiter};
use waiting::Waiting;

use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Refusal, Sizer, Span, Verdict, Why},
    histogram::Histogram,
    sync::{AtomicU32, Mutex},
};

/// Somebody may have to wait, or the line is overloaded: take the lock.
const SLOW: u32 = 1 << 31;
/// Somebody was let in without waiting since the lock was last taken.
const CALM: u32 = 1 << 30;
const INSIDE: u32 = CALM - 1;
/// How many are woken before the lock is let go.
const BATCH: usize = 32;
/// How many services are remembered for the median.
const MEMORY: u32 = 1_024;
/// The median is looked up once in so many services.
const EVERY: u32 = 32;

/// So many at once, and a line before them; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

/// How a [`Queue`] is made.
#[must_use]
pub struct QueueBuilder {
    env: Env,
    seats: u32,
    line: u32,
    patience: Duration,
    target: Duration,
    order: Order,
    cut: bool,
    fair: bool,
    sizer: Option<Box<dyn Sizer>>,
}

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

/// The right to be inside; see [`Queue`].
#[derive(Debug)]
pub struct Seat {
    /// There until it is given back.
    queue: Option<Queue>,
    /// When it was taken; [`Tick::MAX`] once it is known how the work went.
    from: Tick,
    /// Whose it is, in fair mode.
    flow: u32,
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

struct State {
    line: Line,
    /// One for each class: a crowd of unimportant calls is no reason to refuse an important one that waits for a moment.
    codels: [Codel; CLASSES],
}

/// What came of asking.
enum Asked {
    /// With a seat of this flow.
    Seated(u32),
    Refused(Why),
    Waiting(u32),
}

/// Those who are to be woken once the lock is let go.
#[derive(Default)]
struct Woken([Option<Waker>; BATCH], usize);

impl QueueBuilder {
    /// How many may wait; 1,000 unless told otherwise, a million at most.
    pub fn line(mut self, most: u32) -> QueueBuilder {
        self.line = most.min(1_000_000);
        self
    }

    /// How long anybody waits at most, whatever their deadline; without end unless told otherwise. Who has waited so long is
    /// refused.
    pub fn patience(mut self, most: Duration) -> QueueBuilder {
        self.patience = most;
        self
    }

    /// Lets in as many at once as this finds the origin to bear, but no more than the seats that were asked for.
    ///
    /// ```
    /// use herdproof::{Env, limit::AdaptiveLimit, shed::Queue};
    ///
    /// let env = Env::system();
    /// let limit = AdaptiveLimit::builder(&env).initial(256).between(2, 256).build();
    /// let queue = Queue::builder(&env, 256).adaptive(limit).build();
    /// assert_eq!(queue.seats(), 256);
    /// ```
    pub fn adaptive(mut self, sizer: impl Sizer + 'static) -> QueueBuilder {
        self.sizer = Some(Box::new(sizer));
        self
    }

    /// A wait that is fine; 5 ms unless told otherwise. Where the work takes long, a tenth of its median is fine too.
    /// [`Duration::MAX`] turns off shedding by age.
    pub fn target(mut self, target: Duration) -> QueueBuilder {
        self.target = target;
        self
    }

    /// Who of a class is served first.
    pub fn order(mut self, order: Order) -> QueueBuilder {
        self.order = order;
        self
    }

    /// Refuses the least important at the door while there is overload, before they stand in the line: whole classes, and
    /// within a class whole users, for an hour the same ([`Ask::user`]; without one, at random).
    pub fn cut(mut self) -> QueueBuilder {
        self.cut = true;
        self
    }

    /// Shares the seats fairly by user ([`Ask::user`]; all who have none are one user): what one asks too much, only that one
    /// waits for. Default: the order of coming, whoever asks.
    ///
    /// A user may hold four times the seats that are free, so one alone gets four fifths of them, and with up to four seats all
    /// of them. Whoever holds fewest is next. Each user has a line of its own, with its own judge of age, and of a full line the
    /// longest loses its oldest. Between calls of [`Normal`](crate::gate::Priority::Normal) importance or more and those of less,
    /// seats go eight to one. Every entry and every exit takes one lock.
    ///
    /// A user behind whom there are many, such as a load balancer, is one user: resolve it to those behind it, or do without.
    ///
    /// ```
    /// use herdproof::{Env, gate::{Ask, Gate}, shed::Queue};
    ///
    /// let env = Env::system();
    /// let queue = Queue::builder(&env, 10).fair().build();
    /// let greedy: Vec<_> = (0..100).filter_map(|_| queue.try_enter(&Ask::new(&env).user(1)).ok()).collect();
    /// assert_eq!(greedy.len(), 8);
    /// assert!(queue.try_enter(&Ask::new(&env).user(2)).is_ok());
    /// ```
    pub fn fair(mut self) -> QueueBuilder {
        self.fair = true;
        self
    }

    /// The queue.
    pub fn build(self) -> Queue {
        let QueueBuilder { env, seats, line, patience, target, order, cut, fair, sizer } = self;
        let found = sizer.as_ref().map_or(seats, |sizer| sizer.limit().clamp(1, seats));
        Queue(Arc::new(Inner {
            seats: AtomicU32::new(found),
            most_seats: seats,
            sizer,
            most: line,
            patience,
            order,
            word: AtomicU32::new(0),
            state: Mutex::new(State { line: Line::new(), codels: [Codel::new(target); CLASSES] }),
            fair: fair.then(|| Mutex::new(Flows::new(target, env.hasher("shed/flows")))),
            cut: cut.then(|| Cut::new(&env)),
            appointments: Appointments::new(&env),
            times: Histogram::new(MEMORY),
            median: AtomicU64::new(0),
            mean: AtomicU64::new(0),
            env,
        }))
    }
}

impl Queue {
    /// This many at once (one at least), and the usual settings.
    pub fn new(env: &Env, seats: u32) -> Queue {
        Queue::builder(env, seats).build()
    }

    /// A queue in the making, for this many at once.
    pub fn builder(env: &Env, seats: u32) -> QueueBuilder {
        QueueBuilder {
            env: env.clone(),
            seats: seats.clamp(1, INSIDE),
            line: 1_000,
            patience: Duration::MAX,
            target: Duration::from_millis(5),
            order: Order::default(),
            cut: false,
            fair: false,
            sizer: None,
        }
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
        self.0.word.load(Relaxed) & INSIDE
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
    #[cold]
    fn ask_slowly(&self, ask: &Ask, wait: bool) -> Asked {
        let mut pushed_out = None;
        let mut state = self.state.lock();
        if state.line.len() == 0 && self.take_or_mark() {
            self.sample(&mut state, ask.at);
            self.unmark(&state);
            return Asked::Seated(0);
        }
        let asked = if !wait {
            Asked::Refused(Why::Concurrency)
        } else if state.line.len() < self.most {
            Asked::Waiting(state.join(ask))
        } else if let Some(out) = state.pushes_out(ask) {
            pushed_out = state.line.end(out.slot, Stage::Refused(Why::Queue));
            self.waited(out, ask.at, true);
            Asked::Waiting(state.join(ask))
        } else {
            Asked::Refused(Why::Queue)
        };
        self.unmark(&state);
        let depth = state.line.len();
        drop(state);
        if let Some(waker) = pushed_out {
            waker.wake();
        }
        self.found_no_seat(asked, wait, depth)
    }

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

    /// Takes a seat if there is one; if not, makes sure that whoever gives one back takes the lock. Called with it held.
    fn take_or_mark(&self) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            let free = word & INSIDE < self.seats.load(Relaxed);
            let next = if free { word + 1 } else { word | SLOW };
            match self.word.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return free,
                Err(other) => word = other,
            }
        }
    }

    /// Lets others do without the lock if nobody waits and there is no overload. Called with it held.
    fn unmark(&self, state: &State) {
        if state.line.len() == 0 && !state.is_overloaded() {
            self.word.fetch_and(!SLOW, AcqRel);
        } else {
            self.word.fetch_or(SLOW, AcqRel);
        }
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

    /// Takes a seat if there is one and somebody waits for it.
    fn take_for_next(&self) -> bool {
        let state = self.state.lock();
        // While somebody waits only whoever holds the lock writes the word.
        let free = state.line.len() > 0 && self.word.load(Relaxed) & INSIDE < self.seats.load(Relaxed);
        if free {
            self.word.fetch_add(1, AcqRel);
        }
        free
    }

    fn sample(&self, state: &mut State, now: Tick) {
        let calm = self.word.load(Relaxed) & CALM != 0;
        if calm {
            self.word.fetch_and(!CALM, Relaxed);
        }
        let usual = self.median();
        for (class, codel) in state.codels.iter_mut().enumerate() {
            if calm {
                codel.calm();
            }
            codel.scale(usual);
            codel.sample(state.line.oldest(class).map_or(Duration::ZERO, |oldest| now - oldest.since), now);
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

    /// Hands the seat to whoever is next, after those who have waited too long are refused.
    #[cold]
    fn release_slowly(&self, now: Tick) {
        let mut woken = Woken::default();
        let mut sampled = false;
        loop {
            let mut state = self.state.lock();
            if !sampled {
                self.sample(&mut state, now);
                sampled = true;
            }
            let seated = self.seat_next(&mut state, now, &mut woken);
            let depth = state.line.len();
            drop(state);
            woken.wake();
            if seated {
                self.env.tell(&Event::QueueDepth(depth.into()));
                return;
            }
        }
    }

    /// False if there are more to be refused than can be woken at a time.
    fn seat_next(&self, state: &mut State, now: Tick, woken: &mut Woken) -> bool {
        for (class, codel) in state.codels.iter().enumerate() {
            while let Some(oldest) = state.line.oldest(class).filter(|oldest| codel.refuses(now - oldest.since)) {
                if woken.is_full() {
                    return false;
                }
                self.waited(oldest, now, true);
                woken.push(state.line.end(oldest.slot, Stage::Refused(Why::Shed)));
            }
        }
        if self.word.load(Relaxed) & INSIDE > self.seats.load(Relaxed) {
            // There are fewer seats than there were: this one is gone.
            self.word.fetch_sub(1, AcqRel);
            self.unmark(state);
            return true;
        }
        let codels = state.codels;
        let newest = |class: usize| match self.order {
            Order::Adaptive => codels[class].is_overloaded(),
            Order::Oldest => false,
            Order::Newest => true,
        };
        let others = (self.word.load(Relaxed) & INSIDE) - 1;
        while let Some(next) = state.line.next(newest) {
            if woken.is_full() {
                return false;
            }
            if self.is_late(next.deadline, now, others) {
                self.waited(next, now, true);
                woken.push(state.line.end(next.slot, Stage::Refused(Why::Deadline)));
                continue;
            }
            self.waited(next, now, false);
            woken.push(state.line.end(next.slot, Stage::Seated(now)));
            self.unmark(state);
            return true;
        }
        self.word.fetch_sub(1, AcqRel);
        self.unmark(state);
        true
    }

    fn waited(&self, who: Waiter, now: Tick, shed: bool) {
        if let Some(cut) = &self.cut {
            cut.waited(now - who.since, shed);
        }
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
        Refusal::new(why).after(self.appointments.book(ask, self.capacity()))
    }

    /// How the work of a seat went is known.
    fn over(&self, verdict: &Verdict, span: Span) {
        if matches!(verdict, Verdict::Ok | Verdict::Final) {
            self.learn(span.took());
        }
        if let Some(sizer) = &self.sizer {
            sizer.over(verdict, span);
            self.follow(&**sizer, span.to);
        }
    }

    fn cancelled(&self, from: Tick, now: Tick) {
        if let Some(sizer) = &self.sizer {
            sizer.cancelled(from);
            self.follow(&**sizer, now);
        }
    }

    fn follow(&self, sizer: &dyn Sizer, now: Tick) {
        let seats = sizer.limit().clamp(1, self.most_seats);
        if seats != self.seats.load(Relaxed) {
            self.set_seats(seats, now);
        }
    }

    /// A seat was taken for so long.
    fn occupied(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.mean.load(Relaxed);
        // The first is all that is known; after that each is a sixty-fourth of it.
        let next = if mean == 0 { nanos } else { mean - mean / 64 + nanos / 64 };
        self.mean.store(next.max(1), Relaxed);
    }

    /// Some work was done.
    fn learn(&self, took: Duration) {
        self.times.record(took);
        if self.times.len() == 1 || self.times.len().is_multiple_of(EVERY) {
            let median = self.times.quantile(0.5).unwrap_or_default();
            self.median.store(u64::try_from(median.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}

impl State {
    fn is_overloaded(&self) -> bool {
        self.codels.iter().any(Codel::is_overloaded)
    }

    fn join(&mut self, ask: &Ask) -> u32 {
        self.line.join(ask)
    }

    /// Who has to go from a full line for somebody to join it: the least important, if they matter less; and while the
    /// newest are served first, if they matter no more.
    fn pushes_out(&self, ask: &Ask) -> Option<Waiter> {
        let (class, out) = self.line.least()?;
        let mine = ask.priority as usize;
        (mine > class || (mine == class && self.codels[class].is_overloaded())).then_some(out)
    }
}

impl Woken {
    fn is_full(&self) -> bool {
        self.1 == BATCH
    }

    fn push(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0[self.1] = Some(waker);
            self.1 += 1;
        }
    }

    fn wake(&mut self) {
        for waker in self.0[..self.1].iter_mut().filter_map(Option::take) {
            waker.wake();
        }
        self.1 = 0;
    }
}

impl Gate for Queue {
    type Permit = Seat;

    fn try_enter(&self, ask: &Ask) -> Result<Seat, Refusal> {
        self.answer(ask, &self.ask(ask, false))
    }

    async fn enter(&self, ask: &mut Ask) -> Result<Seat, Refusal> {
        let mut asked = self.ask(ask, true);
        if let Asked::Waiting(slot) = asked {
            let (at, waited) = Waiting::new(self, slot, ask).await;
            ask.at = at;
            asked = waited;
        }
        self.answer(ask, &asked)
    }
}

impl Seat {
    /// Says how the work went while the seat is kept: an answer's head tells how the origin does, and how long a slow reader
    /// takes for its body does not. Only the first time counts; what the seat is settled with later then says how long it was
    /// taken, and nothing else.
    pub fn learn(&mut self, verdict: &Verdict, span: Span) {
        if let (Some(queue), true) = (&self.queue, self.from < Tick::MAX) {
            self.from = Tick::MAX;
            queue.0.over(verdict, span);
        }
    }
}

impl Permit for Seat {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        self.learn(verdict, span);
        if let Some(queue) = self.queue.take() {
            if matches!(verdict, Verdict::Ok | Verdict::Final) {
                queue.0.occupied(span.took());
            }
            queue.0.release(self.flow, || span.to);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if self.from < Tick::MAX && queue.0.sizer.is_some() {
            queue.0.cancelled(self.from, queue.0.env.now());
        }
        queue.0.release(self.flow, || queue.0.env.now());
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.word.load(Relaxed);
        let waiting = self.waiting();
        f.debug_struct("Queue").field("inside", &(word & INSIDE)).field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl fmt::Debug for QueueBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueBuilder { seats, line, patience, target, order, cut, fair, .. } = self;
        f.debug_struct("QueueBuilder")
            .field("seats", seats)
            .field("line", line)
            .field("patience", patience)
            .field("target", target)
            .field("order", order)
            .field("cut", cut)
            .field("fair", fair)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
#[cfg(test)]
mod tests;
