//! One budget for all extra work: retries, hedges, refreshes.
//!
//! Each of them is harmless while things go well, and each multiplies the load when they do not: three attempts are three
//! times the load exactly when the origin can bear least. Limiting attempts per call does not help, since every call has
//! its own. So everything beyond the first attempt is paid from one budget for each upstream, and two conditions must
//! both hold:
//!
//! - **Credit**: a first attempt earns a tenth of an extra, an extra costs one, and both are forgotten after ten seconds.
//!   A floor of three a second is there from the start, so that a quiet client can retry at all. Whenever an extra is
//!   charged, the ten seconds behind it hold no more extra work than that.
//! - **Circuit**: ten tokens; a failure takes one, a success returns a tenth. With five or fewer there is no extra work. So
//!   when more than one call in eleven fails, the extras stop altogether, however much credit there is.
//!
//! ```
//! use herdproof::{Env, budget::{Budget, Spend}, gate::{Verdict, Why}};
//!
//! let env = Env::system();
//! let budget = Budget::new(&env); // one for each upstream; clones share
//! let now = env.now();
//! budget.first(now); // a first attempt is made
//! budget.learn(&Verdict::Fault); // and fails
//! let mut extra = budget.try_spend(now, Spend::Retry).unwrap(); // charged before the backoff
//! extra.begin(); // the retry is made: from here on it stays paid
//! drop(extra); // it is over
//!
//! for _ in 0..5 {
//!     budget.learn(&Verdict::Fault);
//! }
//! assert_eq!(budget.try_spend(now, Spend::Hedge).unwrap_err().why, Why::Budget);
//! ```
//!
//! An extra is charged when it is *scheduled*. Charged when it is sent, a thousand callers that fail together would all be
//! let into their backoff and come back together. An [`Extra`] that is dropped before it has begun costs nothing.
//!
//! What a first attempt that succeeds pays for all this: one atomic addition and one atomic read; and where there are more than
//! a thousand in a tenth of the window not even the addition, since each thread then counts for itself, in 4 KiB.

mod circuit;
mod credit;

use std::{fmt, sync::Arc, time::Duration};

use circuit::Circuit;
use credit::{Earned, Ledger, Slots};
use parking_lot::Mutex;

use crate::{
    env::{Env, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
};

/// What may be spent on extra work; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

/// How a [`Budget`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct BudgetBuilder {
    env: Env,
    ratio: f64,
    floor: f64,
    window: Duration,
    circuit: Option<(f64, f64)>,
}

struct Inner {
    env: Env,
    ratio: f64,
    /// What the floor comes to in one window.
    reserve: f64,
    slots: Slots,
    earned: Earned,
    circuit: Option<Circuit>,
    ledger: Mutex<Ledger>,
}

/// What an extra is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spend {
    /// An attempt after one that failed.
    Retry,
    /// A second attempt beside one that is slow.
    Hedge,
    /// A load while what is there can still be served.
    Refresh,
}

/// One piece of extra work that is paid for. Dropping it ends it; if it has not begun by then, it costs nothing.
#[derive(Debug)]
#[must_use = "an extra that is dropped before it has begun is given back"]
pub struct Extra {
    budget: Budget,
    /// When it was charged.
    slot: u64,
    kind: Spend,
    begun: bool,
}

/// The extras of one kind as a [`Gate`], from [`Budget::extras`].
#[derive(Clone, Debug)]
pub struct Extras {
    budget: Budget,
    kind: Spend,
}

/// What became of the extras that were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Retries that were begun.
    pub retries: u64,
    /// Hedges that were begun.
    pub hedges: u64,
    /// Refreshes that were begun.
    pub refreshes: u64,
    /// Extras that were dropped before they had begun.
    pub given_back: u64,
    /// Extras that are paid for and not over.
    pub held: u64,
    /// Extras that were refused because the credit was spent.
    pub no_credit: u64,
    /// Extras that were refused because too much failed lately.
    pub too_many_failures: u64,
}

impl BudgetBuilder {
    /// How much of an extra a first attempt earns; 0.1 unless told otherwise. From 0 to 100.
    pub fn ratio(mut self, ratio: f64) -> BudgetBuilder {
        self.ratio = within(ratio, 0.0, 100.0);
        self
    }

    /// How many extras a second there are anyway; 3 unless told otherwise. From 0 to a million.
    ///
    /// It holds for each process: a thousand clients with a floor of 3 may make 3,000 extra calls a second.
    pub fn floor(mut self, per_second: f64) -> BudgetBuilder {
        self.floor = within(per_second, 0.0, 1e6);
        self
    }

    /// After how long what was earned and spent is forgotten; 10 s unless told otherwise. From 100 ms to an hour, in tenths
    /// of itself.
    pub fn window(mut self, window: Duration) -> BudgetBuilder {
        self.window = window.clamp(Duration::from_millis(100), Duration::from_secs(3600));
        self
    }

    /// How many tokens the circuit has, and what a success returns; 10 and 0.1 unless told otherwise. There is no extra work
    /// at half the tokens or fewer. From 1 to 1,000 tokens, and from 0.001 to 1 returned.
    pub fn circuit(mut self, tokens: f64, success: f64) -> BudgetBuilder {
        self.circuit = Some((within(tokens, 1.0, 1000.0), within(success, 0.001, 1.0)));
        self
    }

    /// Leaves credit as the only condition. For contrast, and for upstreams where failures say nothing.
    pub fn without_circuit(mut self) -> BudgetBuilder {
        self.circuit = None;
        self
    }

    /// The budget.
    pub fn build(self) -> Budget {
        let BudgetBuilder { env, ratio, floor, window, circuit } = self;
        let slots = Slots::new(window);
        let earned = Earned::new(slots.slot(env.now()));
        Budget(Arc::new(Inner {
            env,
            ratio,
            reserve: floor * window.as_secs_f64(),
            slots,
            earned,
            circuit: circuit.map(|(tokens, success)| Circuit::new(tokens, success)),
            ledger: Mutex::default(),
        }))
    }
}

/// The nearest number in a range; its lower end for what is not a number.
fn within(number: f64, least: f64, most: f64) -> f64 {
    if number.is_nan() { least } else { number.clamp(least, most) }
}

impl Budget {
    /// A budget with the usual settings.
    pub fn new(env: &Env) -> Budget {
        Budget::builder(env).build()
    }

    /// A budget in the making.
    pub fn builder(env: &Env) -> BudgetBuilder {
        BudgetBuilder {
            env: env.clone(),
            ratio: 0.1,
            floor: 3.0,
            window: Duration::from_secs(10),
            circuit: Some((10.0, 0.1)),
        }
    }

    /// A first attempt is made, which earns a part of an extra. One that is somebody else's retry is not a first attempt.
    #[inline]
    pub fn first(&self, at: Tick) {
        self.0.earned.add(self.0.slots.slot(at));
    }

    /// An attempt is over, the first or an extra. What is final or ignored says nothing about whether the origin can bear
    /// more.
    #[inline]
    pub fn learn(&self, verdict: &Verdict) {
        if let Some(circuit) = &self.0.circuit {
            match verdict {
                Verdict::Ok => circuit.success(),
                Verdict::Fault | Verdict::Overload { .. } => circuit.failure(),
                Verdict::Final | Verdict::Ignored => {}
            }
        }
    }

    /// Charges one extra. To be called when it is scheduled, not when its delay is over.
    pub fn try_spend(&self, at: Tick, kind: Spend) -> Result<Extra, Refusal> {
        let Inner { ratio, reserve, slots, earned, circuit, ledger, env } = &*self.0;
        let charged = if circuit.as_ref().is_some_and(Circuit::is_open) {
            ledger.lock().stats.too_many_failures += 1;
            None
        } else {
            let mut ledger = ledger.lock();
            let slot = ledger.reach(slots.slot(at));
            ledger.charge(slot, ratio * earned.sum(slot) as f64 + reserve).then_some(slot)
        };
        match charged {
            Some(slot) => Ok(Extra { budget: self.clone(), slot, kind, begun: false }),
            None => {
                env.tell(&Event::Refusal);
                Err(Refusal::new(Why::Budget))
            }
        }
    }

    /// The extras of one kind as a gate, to be combined with others.
    pub fn extras(&self, kind: Spend) -> Extras {
        Extras { budget: self.clone(), kind }
    }

    /// How many extras there is credit for; what the circuit says is not part of it.
    pub fn credit(&self, at: Tick) -> f64 {
        let Inner { ratio, reserve, slots, earned, ledger, .. } = &*self.0;
        let ledger = ledger.lock();
        let slot = slots.slot(at);
        ratio * earned.sum(slot) as f64 + reserve - ledger.spent(slot) as f64
    }

    /// Whether so much failed lately that there is no extra work, whatever the credit.
    pub fn is_open(&self) -> bool {
        self.0.circuit.as_ref().is_some_and(Circuit::is_open)
    }

    /// What became of the extras so far.
    pub fn stats(&self) -> Stats {
        self.0.ledger.lock().stats
    }
}

impl Extra {
    /// The extra work is begun: it reaches the origin, and stays paid whatever becomes of it.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// It turned out that nothing was begun after all.
    pub(crate) fn give_back(mut self) {
        self.begun = false;
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.budget.0.ledger.lock().end(self.slot, self.begun.then_some(self.kind));
    }
}

impl Permit for Extra {
    fn settle(self, verdict: &Verdict, _: Span) {
        self.budget.learn(verdict);
    }
}

/// Committed, it stays paid whatever becomes of it.
impl Place for Extra {
    type Permit = Extra;

    fn commit(mut self) -> Extra {
        self.begin();
        self
    }
}

impl Gate for Extras {
    type Place = Extra;

    fn try_reserve(&self, ask: &Ask) -> Result<Extra, Refusal> {
        self.budget.try_spend(ask.at, self.kind)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { ratio, reserve, circuit, .. } = &*self.0;
        f.debug_struct("Budget")
            .field("ratio", ratio)
            .field("reserve", reserve)
            .field("circuit", circuit)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
