//! Asks less of an origin that refuses most of what it is asked.
//!
//! Refusing a request costs an origin too. With enough clients that keep asking, an overloaded origin spends all it has on
//! saying no. So a client that sees most of its requests refused should refuse some of them itself, before they are sent,
//! each with this probability:
//!
//! ```text
//! p = (requests - K * accepts) / (requests + 1), not below 0 and not above 0.9
//! ```
//!
//! Requests are what was asked of this gate in the last two minutes, accepts what the origin did not refuse. With `K = 2`, at
//! least half of the requests have to be refused before anything happens here, and an origin that can do `c` per second is
//! asked about `2c` however much its clients want. (From chapter 21 of Google's "Site Reliability Engineering".)
//!
//! ```
//! use herdproof::{Env, Throttle, gate::{Ask, Gate, Permit, Priority, Span, Verdict}};
//!
//! let env = Env::system();
//! let throttle = Throttle::new(&env);
//! for _ in 0..100 {
//!     if let Ok(permit) = throttle.try_enter(&Ask::new(&env)) {
//!         let now = env.now();
//!         permit.settle(&Verdict::Overload { after: None }, Span { from: now, to: now });
//!     }
//! }
//! assert!(throttle.chance_of_refusal(Priority::Normal, env.now()) > 0.8);
//! ```
//!
//! | | unless told otherwise | why |
//! |---|---|---|
//! | window | 120 s | longer than any request takes: a request counts when it is sent, its acceptance when it comes |
//! | `K` | 1.1 sheddable, 1.5 background, 2 normal, 3 critical | what matters least is refused here first |
//! | most | 0.9 | without a cap hardly anything is sent after an outage, so nobody learns that it is over |
//! | least rate | 5 a second | a few requests say nothing; refusing them spares nothing |
//!
//! A request counts from the moment it is sent, so that a hundred that hang are seen. While the origin has refused nothing in the
//! window, those sent within the last two buckets (a seventh of the window, about) do not count yet: a crowd at a cold start has no
//! answer at first. One whose permit is dropped, or settled as [`Verdict::Ignored`], is taken back. Anything but [`Verdict::Overload`] counts as accepted: an origin that answers with
//! an error is not helped by being asked less, and there is the [`breaker`](crate::breaker) for that.

use std::{
    borrow::Borrow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Borrowed, Gate, Permit, Place, Priority, Refusal, Span, Verdict, Why},
    striped::Padded,
    window::{ALL, SOME, Scale, Sum, Window},
};

const SLOTS: usize = 16;

/// Refuses what an overloaded origin would refuse; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Throttle(Arc<Inner>);

/// How a [`Throttle`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct ThrottleBuilder {
    env: Env,
    rules: Rules,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    window: Duration,
    /// For each priority, least first.
    k: [f64; 4],
    most: f64,
    least_rate: f64,
}

struct Inner {
    rules: Rules,
    scale: Scale<SLOTS>,
    /// A rate over a window that is not yet full is that of the time since then.
    born: Tick,
    env: Env,
    rng: Rng,
    /// Requests, and accepted ones.
    requests: Padded<Window<SLOTS>>,
    /// When the origin last refused something; zero if it never did.
    overloaded: AtomicU64,
}

impl ThrottleBuilder {
    /// How far back requests count; 120 s unless told otherwise. Not less than a request may take, or the acceptances of
    /// slow ones count without the requests. It is made of 8 to 15 buckets and up to one of them longer than this.
    pub fn window(mut self, window: Duration) -> ThrottleBuilder {
        self.rules.window = window.max(Duration::from_millis(1));
        self
    }

    /// How many requests are sent for each that is accepted, for this priority and up to it for those below; 1 at least.
    /// The smaller, the less reaches the origin in vain; the larger, the sooner its recovery is noticed.
    pub fn k(mut self, priority: Priority, k: f64) -> ThrottleBuilder {
        if !k.is_nan() {
            self.rules.k[priority as usize] = k.max(1.0);
        }
        self
    }

    /// The largest probability of refusing; 0.9 unless told otherwise. At 1, an outage can outlast its cause by many
    /// windows.
    pub fn most_refused(mut self, share: f64) -> ThrottleBuilder {
        if !share.is_nan() {
            self.rules.most = share.clamp(0.0, 1.0);
        }
        self
    }

    /// Below so many requests a second nothing is refused; 5 unless told otherwise.
    pub fn least_rate(mut self, per_second: f64) -> ThrottleBuilder {
        if !per_second.is_nan() {
            self.rules.least_rate = per_second.max(0.0);
        }
        self
    }

    /// The throttle.
    pub fn build(self) -> Throttle {
        let ThrottleBuilder { env, rules } = self;
        Throttle(Arc::new(Inner {
            rules,
            scale: Scale::new(rules.window),
            born: env.now(),
            rng: env.rng("throttle"),
            env,
            requests: Padded(Window::new()),
            overloaded: AtomicU64::new(0),
        }))
    }
}

impl Rules {
    /// The probability of refusing a request, given those of a window, or of the time since the beginning.
    #[inline]
    fn chance(&self, k: f64, Sum { all: requests, some: accepts }: Sum, seen: Duration) -> f64 {
        let (requests, accepts) = (requests as f64, accepts as f64);
        let in_vain = requests - k * accepts;
        if in_vain <= 0.0 {
            return 0.0;
        }
        let seen = seen.min(self.window).max(Duration::from_secs(1));
        if requests < self.least_rate * seen.as_secs_f64() {
            return 0.0;
        }
        (in_vain / (requests + 1.0)).min(self.most)
    }
}

impl Throttle {
    /// A throttle with the usual settings.
    pub fn new(env: &Env) -> Throttle {
        Throttle::builder(env).build()
    }

    /// A throttle in the making.
    pub fn builder(env: &Env) -> ThrottleBuilder {
        let rules = Rules { window: Duration::from_secs(120), k: [1.1, 1.5, 2.0, 3.0], most: 0.9, least_rate: 5.0 };
        ThrottleBuilder { env: env.clone(), rules }
    }

    /// The same gate with permits that borrow it.
    #[inline]
    pub fn borrowed(&self) -> Borrowed<'_, Throttle> {
        Borrowed(self)
    }

    /// How probably a request of this priority is refused at this time.
    #[inline]
    pub fn chance_of_refusal(&self, priority: Priority, now: Tick) -> f64 {
        self.0.chance(priority, now)
    }
}

impl Inner {
    /// When it was asked, if it may be sent.
    #[inline]
    fn enter(&self, ask: &Ask) -> Result<Tick, Refusal> {
        let chance = self.chance(ask.priority, ask.at);
        if chance > 0.0 && self.rng.chance(chance) {
            return Err(self.refuse(ask.at));
        }
        Ok(ask.at)
    }

    #[cold]
    fn refuse(&self, at: Tick) -> Refusal {
        // Counted though it is not sent: what is wanted is measured against what is accepted.
        self.requests.0.add(self.scale, at, ALL);
        self.env.tell(&Event::Refusal);
        Refusal::new(Why::Throttled)
    }

    #[inline]
    fn chance(&self, priority: Priority, now: Tick) -> f64 {
        let (k, seen) = (self.rules.k[priority as usize], now - self.born);
        let requests = self.requests.0.sum(self.scale, now);
        let chance = self.rules.chance(k, requests, seen);
        if chance > 0.0 && !self.was_overloaded(now) {
            // Nothing speaks against the origin but that answers are outstanding.
            let young = self.requests.0.latest(self.scale, now, 2).all;
            return self.rules.chance(k, Sum { all: requests.all.saturating_sub(young), ..requests }, seen);
        }
        chance
    }

    fn was_overloaded(&self, now: Tick) -> bool {
        let at = self.overloaded.load(Relaxed);
        at > 0 && now - Tick::from_nanos(at) <= self.rules.window
    }
}

/// The right to send one request; see [`Throttle`].
#[derive(Debug)]
#[must_use]
pub struct Sent<T: Borrow<Throttle> = Throttle> {
    throttle: T,
    /// When it was counted; `None` once it is settled.
    at: Option<Tick>,
}

/// A request that is not sent yet, and does not count.
#[derive(Debug)]
#[must_use]
pub struct Unsent<T: Borrow<Throttle> = Throttle> {
    throttle: T,
    at: Tick,
}

impl Gate for Throttle {
    type Place = Unsent;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Unsent, Refusal> {
        self.0.enter(ask).map(|at| Unsent { throttle: self.clone(), at })
    }
}

impl<'a> Gate for Borrowed<'a, Throttle> {
    type Place = Unsent<&'a Throttle>;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<Self::Place, Refusal> {
        self.0.0.enter(ask).map(|at| Unsent { throttle: self.0, at })
    }
}

impl<T: Borrow<Throttle> + Send> Place for Unsent<T> {
    type Permit = Sent<T>;

    #[inline]
    fn commit(self) -> Sent<T> {
        let Inner { scale, requests, .. } = &*self.throttle.borrow().0;
        requests.0.add(*scale, self.at, ALL);
        Sent { throttle: self.throttle, at: Some(self.at) }
    }
}

impl<T: Borrow<Throttle> + Send> Permit for Sent<T> {
    #[inline]
    fn settle(mut self, verdict: &Verdict, span: Span) {
        let Inner { scale, requests, overloaded, .. } = &*self.throttle.borrow().0;
        match verdict {
            Verdict::Ok | Verdict::Fault | Verdict::Final => requests.0.add(*scale, span.to, SOME),
            Verdict::Overload { .. } => overloaded.store(span.to.as_nanos().max(1), Relaxed),
            Verdict::Ignored => return,
        }
        self.at = None;
    }
}

impl<T: Borrow<Throttle>> Drop for Sent<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(at) = self.at {
            let Inner { scale, requests, .. } = &*self.throttle.borrow().0;
            requests.0.take_back(*scale, at);
        }
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { rules, scale, env, requests, .. } = &*self.0;
        let Sum { all, some } = requests.0.sum(*scale, env.now());
        f.debug_struct("Throttle").field("requests", &all).field("accepts", &some).field("rules", rules).finish()
    }
}

#[cfg(test)]
mod tests;
