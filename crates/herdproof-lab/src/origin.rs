//! The origin: what clients call, and what suffers.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Tick,
    event::{Counts, Event, Metric, Observer},
};
use parking_lot::Mutex;

use crate::{
    crowd::Crowd,
    log::{Caller, Tap},
    slowdown::Slowdown,
    timeline::Timeline,
    tries::Tries,
};

/// A simulated origin. Every call is written down, whatever comes of it.
#[derive(Clone, Debug)]
pub struct Origin {
    env: Env,
    kind: Kind,
    seen: Arc<Seen>,
    tap: Tap,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Every call fails at once.
    Down,
    /// Calls take what the law says; the first so many fail then.
    Up { law: Slowdown, failures: u64 },
}

#[derive(Debug)]
struct Seen {
    counts: Counts,
    calls: Mutex<Timeline>,
    tries: Mutex<Tries>,
    crowd: Mutex<Crowd>,
}

/// What a call that failed gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down;

impl Origin {
    /// An origin that is down, whose calls are counted in bins of this width.
    pub fn down(env: &Env, bin: Duration) -> Origin {
        Origin::new(env, bin, Kind::Down)
    }

    /// An origin that answers, and slows down by this law.
    pub fn up(env: &Env, bin: Duration, law: Slowdown) -> Origin {
        Origin::new(env, bin, Kind::Up { law, failures: 0 })
    }

    /// The same origin, whose first calls fail when their time is over.
    #[must_use]
    pub fn failing(mut self, first: u64) -> Origin {
        if let Kind::Up { failures, .. } = &mut self.kind {
            *failures = first;
        }
        self
    }

    fn new(env: &Env, bin: Duration, kind: Kind) -> Origin {
        let (calls, tries) = (Mutex::new(Timeline::new(bin)), Mutex::new(Tries::new(bin)));
        let seen = Seen { counts: Counts::default(), calls, tries, crowd: Mutex::default() };
        Origin { env: env.clone(), kind, seen: Arc::new(seen), tap: Tap::default() }
    }

    /// The same origin, whose calls by known callers are written down there.
    #[must_use]
    pub(crate) fn tapped(self, tap: Tap) -> Origin {
        Origin { tap, ..self }
    }

    /// A call by somebody who is known.
    pub(crate) async fn call_from(&self, caller: Caller) -> Result<u64, Down> {
        let underway = self.tap.begin(&self.env, caller);
        self.seen.tries.lock().record(self.env.now(), caller);
        let answer = self.call().await;
        underway.end(if answer.is_ok() { 200 } else { 503 });
        answer
    }

    /// A call; its value is its number, from one.
    pub async fn call(&self) -> Result<u64, Down> {
        let Origin { env, kind, seen, .. } = self;
        let began = env.now();
        seen.counts.observe(&Event::OriginRequest);
        seen.calls.lock().record(began);
        let number = self.calls();
        let ok = match *kind {
            Kind::Down => false,
            Kind::Up { law, failures } => {
                self.serve(began, law).await;
                number > failures
            }
        };
        seen.counts.observe(&Event::OriginAnswer { ok, took: env.now() - began });
        if ok { Ok(number) } else { Err(Down) }
    }

    /// Takes as long as the largest crowd during the stay makes it.
    async fn serve(&self, began: Tick, law: Slowdown) {
        let arrival = self.seen.crowd.lock().enter();
        loop {
            let most = self.seen.crowd.lock().most_since(&arrival);
            let until = began + law.time(most);
            if self.env.now() >= until {
                break;
            }
            self.env.sleep_until(until).await;
        }
        self.seen.crowd.lock().leave(arrival);
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.seen.counts.get(Metric::OriginRequests)
    }

    /// The most calls that were under way at one time.
    pub fn peak_in_flight(&self) -> u64 {
        self.seen.crowd.lock().peak()
    }

    /// When the calls were.
    pub fn timeline(&self) -> Timeline {
        self.seen.calls.lock().clone()
    }
    /// Those of known callers by which try they were: their first, their second, up to all later ones.
    pub fn tries(&self) -> Vec<Timeline> {
        self.seen.tries.lock().seen()
    }
}
