//! A clock that is given, and keys.

use std::cell::Cell;

use herdproof::{Env, Tick, gate::Ask};
pub(crate) use herdproof_bench::calls::{All, alone, on_two_threads};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1 << 60) };
    static KEY: Cell<u64> = const { Cell::new(1) };
}

/// Where the instants of a call come from.
pub(crate) trait Clock: Copy + Send + Sync {
    fn now(self) -> Tick;

    fn ask(self) -> Ask {
        Ask::at(self.now())
    }
}

/// The real one, read at every call.
impl Clock for &Env {
    fn now(self) -> Tick {
        Env::now(self)
    }
}

/// The real one, read coarsely on the way in, as the documentation of retries and breakers has it.
#[derive(Clone, Copy)]
pub(crate) struct Coarse<'a>(pub(crate) &'a Env);

impl Clock for Coarse<'_> {
    fn now(self) -> Tick {
        self.0.now()
    }

    fn ask(self) -> Ask {
        Ask::coarse(self.0)
    }
}

/// A number of this thread's own that goes on by ten nanoseconds whenever it is looked at. It begins decades after any clock:
/// what was made by a clock and is told an earlier time takes whoever tells it for late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given;

impl Clock for Given {
    fn now(self) -> Tick {
        let now = NOW.get() + 10;
        NOW.set(now);
        Tick::from_nanos(now)
    }
}

impl governor::clock::Clock for Given {
    type Instant = governor::nanos::Nanos;

    fn now(&self) -> Self::Instant {
        governor::nanos::Nanos::new(Clock::now(*self).as_nanos())
    }
}

/// One of a thousand keys.
pub(crate) fn any_key() -> u64 {
    let random = KEY.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    KEY.set(random);
    ((random >> 32) * 1_000) >> 32
}
