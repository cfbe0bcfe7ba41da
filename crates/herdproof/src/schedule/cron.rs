//! Jobs at :00, without everybody at :00.

use std::{
    future::Future,
    ops::{ControlFlow, RangeInclusive},
    pin::pin,
    time::{Duration, SystemTime},
};

use super::{Splay, draw, part, unless_stopped};
use crate::env::Env;

/// A job that every instance does once in each period, each at a time of its own.
///
/// Periods are counted on the wall clock from midnight UTC of 1 January 1970, so an hour begins at :00. Run `n` falls into
/// [`window`](Cron::window)`(n)`: never before the period begins (plus [`at`](Cron::at)), never more than
/// [`within`](Cron::within) later. Every run is computed from the clock and not from the run before, so nothing drifts; a
/// run that was missed, because the job took too long or the machine slept, is not caught up.
///
/// With a [`splay`](Cron::splay) an instance keeps its slot from run to run and over restarts; without one it draws a new
/// place in the window every time, so two of its runs may be close together.
///
/// ```
/// use std::{ops::ControlFlow, time::Duration};
/// use herdproof::{Sim, schedule::{Cron, Splay}};
///
/// let mut sim = Sim::new(1);
/// let env = sim.env();
/// let hour = Duration::from_secs(3600);
/// let cron = Cron::every(hour).within(hour / 6).splay(Splay::of("web-17", "report"));
/// let mut runs = 0;
/// sim.run(cron.run(&env, std::future::pending::<()>(), || {
///     runs += 1;
///     std::future::ready(if runs < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
/// }));
/// assert_eq!(env.now().as_nanos() / 3_600_000_000_000, 2); // in the third hour
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Cron {
    period: Duration,
    at: Duration,
    within: Duration,
    splay: Option<Splay>,
    /// The width of an instance's slot, as a share of the bound.
    slot: f64,
}

impl Cron {
    /// Once in every period (a second at least), anywhere in it.
    pub fn every(period: Duration) -> Cron {
        let period = period.max(Duration::from_secs(1));
        Cron { period, at: Duration::ZERO, within: period, splay: None, slot: 0.1 }
    }

    /// How long after the beginning of a period the job is due, zero unless told otherwise: `every` day `at` three hours.
    pub fn at(mut self, offset: Duration) -> Cron {
        self.at = offset.min(self.period);
        self
    }

    /// How long after it is due the job may be done at the latest; the whole period unless told otherwise, and not more.
    pub fn within(mut self, bound: Duration) -> Cron {
        self.within = bound.min(self.period);
        self
    }

    /// The instance's own place, the same every time but for the [`jitter`](Cron::jitter).
    pub fn splay(mut self, splay: Splay) -> Cron {
        self.splay = Some(splay);
        self
    }

    /// How far from its place an instance may be, either way, as a share of the bound; 0.05 unless told otherwise and 0.5
    /// at most. It keeps apart those whose places happen to be the same.
    pub fn jitter(mut self, share: f64) -> Cron {
        self.slot = if share.is_nan() { 0.0 } else { share.clamp(0.0, 0.5) * 2.0 };
        self
    }

    /// When run `n` is, as time since 1970: what the run's instant is drawn from.
    pub fn window(&self, n: u64) -> RangeInclusive<Duration> {
        let due = times(self.period, n).saturating_add(self.at);
        match self.splay {
            None => due..=due.saturating_add(self.within),
            Some(splay) => {
                // The slot is cut out of the bound before the place is found, so that nobody's jitter crosses it.
                let slot = part(self.within, self.slot);
                let from = due.saturating_add(splay.offset(self.within.saturating_sub(slot)));
                from..=from.saturating_add(slot)
            }
        }
    }

    /// The first run whose window has not begun by then.
    pub fn next(&self, since_1970: Duration) -> u64 {
        let guess = since_1970.as_nanos() / self.period.as_nanos();
        let guess = u64::try_from(guess).unwrap_or(u64::MAX).saturating_sub(1);
        // A window begins less than two periods after its number says, so one of these is it.
        (0..3)
            .map(|more| guess.saturating_add(more))
            .find(|n| *self.window(*n).start() >= since_1970)
            .unwrap_or(u64::MAX)
    }

    /// Does the job once a period, until the job breaks off or `stop` is done.
    pub async fn run<S, F>(&self, env: &Env, stop: S, mut job: impl FnMut() -> F)
    where
        S: Future,
        F: Future<Output = ControlFlow<()>>,
    {
        let rng = env.rng("schedule/cron");
        let mut stop = pin!(stop);
        let mut last = None;
        loop {
            let mut n = self.next(wall(env));
            // The draw was the very beginning of the window, or the wall clock was set back a little.
            if last == Some(n) {
                n = n.saturating_add(1);
            }
            last = Some(n);
            let at = draw(&rng, &self.window(n));
            // Again, should the wall clock have been set back meanwhile: never before it is due.
            while let Some(wait) = at.checked_sub(wall(env)).filter(|wait| !wait.is_zero()) {
                if unless_stopped(env.sleep(wait), stop.as_mut()).await.is_break() {
                    return;
                }
            }
            if job().await.is_break() {
                return;
            }
        }
    }
}

fn wall(env: &Env) -> Duration {
    env.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// So many times a duration; as long as can be said if that is too long.
fn times(duration: Duration, n: u64) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(u128::from(n));
    let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(secs, u32::try_from(nanos % 1_000_000_000).unwrap_or(0))
}
