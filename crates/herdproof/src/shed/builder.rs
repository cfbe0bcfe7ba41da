//! How a [`Queue`] is made.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use super::{
    Appointments, Codel, INSIDE, Inner, Order, Queue,
    flows::Flows,
    line::{CLASSES, Line},
    plain::State,
    priority::Cut,
};
use crate::{
    env::Env,
    gate::Sizer,
    histogram::Histogram,
    sync::{AtomicU32, Mutex},
};

/// How many services are remembered for the median.
const MEMORY: u32 = 1_024;

/// How a [`Queue`] is made.
#[must_use]
pub struct QueueBuilder {
    pub(super) env: Env,
    pub(super) seats: u32,
    pub(super) line: u32,
    pub(super) patience: Duration,
    pub(super) target: Duration,
    pub(super) order: Order,
    pub(super) cut: bool,
    pub(super) fair: bool,
    pub(super) sizer: Option<Box<dyn Sizer>>,
}

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
    /// within a class whole users, for an hour the same ([`Ask::user`](crate::gate::Ask::user); without one, at random).
    pub fn cut(mut self) -> QueueBuilder {
        self.cut = true;
        self
    }

    /// Shares the seats fairly by user ([`Ask::user`](crate::gate::Ask::user); all who have none are one user): what one asks too much, only that one
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
