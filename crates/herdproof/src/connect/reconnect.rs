//! Dialling again after a connection was lost.

use std::{
    error::Error,
    fmt,
    future::Future,
    ops::{ControlFlow, RangeInclusive},
    pin::pin,
    time::Duration,
};

use crate::{
    backoff::{Backoff, Delays},
    env::{Env, Rng},
    event::Event,
    schedule::{Spread, draw, unless_stopped},
};

/// A client that keeps one connection, and dials again when it is lost.
///
/// | what happened | wait before dialling is drawn from |
/// |---|---|
/// | lost after a steady minute | `0 ..= spread`: nothing has failed, but everybody may have lost theirs in the same instant |
/// | could not connect, `n` times in a row | `0 ..= min(cap, base x 2^n)` |
/// | lost before it was steady | the same, as if it had failed: a server that accepts and then falls over gets no rest otherwise |
///
/// ```
/// use std::{future::ready, time::Duration};
/// use herdproof::{Sim, connect::Reconnect};
///
/// let mut sim = Sim::new(1);
/// let env = sim.env();
/// let gave_up = sim.run(Reconnect::new().attempts(3).run(
///     &env,
///     std::future::pending::<()>(),
///     || ready(Err::<(), _>("refused")),   // connect
///     |()| ready(()),                      // use it until it is lost
/// ));
/// assert_eq!(gave_up.unwrap_err().to_string(), "gave up after 3 attempts: refused");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Reconnect {
    backoff: Backoff,
    spread: Spread,
    attempts: Option<u32>,
    steady: Duration,
}

/// As many attempts failed as were allowed, without a steady connection in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaveUp<E> {
    /// How the last one failed.
    pub failed: Failed<E>,
    /// How many there were.
    pub attempts: u32,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed<E> {
    /// There was no connection.
    Unconnected(E),
    /// There was one, which was lost before it was steady.
    Unsteady,
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            backoff: Backoff::exponential(Duration::from_millis(100)).cap(Duration::from_secs(30)),
            spread: Spread::over(Duration::from_secs(1)),
            attempts: None,
            steady: Duration::from_secs(60),
        }
    }
}

impl Reconnect {
    /// Spread over a second after a loss, full jitter from 100 ms up to 30 s after failures, without end.
    pub fn new() -> Reconnect {
        Reconnect::default()
    }

    /// The delays after failures; full jitter from 100 ms up to 30 s unless told otherwise.
    pub fn backoff(mut self, backoff: Backoff) -> Reconnect {
        self.backoff = backoff;
        self
    }

    /// Over how long clients that lost their connections together dial again; a second unless told otherwise.
    pub fn spread(mut self, window: Duration) -> Reconnect {
        self.spread = Spread::over(window);
        self
    }

    /// Spreads a fleet of this size over as long as a server that makes so many handshakes a second needs for it.
    pub fn crowd(mut self, clients: u64, handshakes_per_second: f64) -> Reconnect {
        self.spread = Spread::of_crowd(clients, handshakes_per_second);
        self
    }

    /// How many attempts may fail before it gives up, without a steady connection in between; no end unless told otherwise.
    /// One whose connection is lost before it is steady has failed.
    pub fn attempts(mut self, most: u32) -> Reconnect {
        self.attempts = Some(most.max(1));
        self
    }

    /// How long a connection must last before failures are forgotten; a minute unless told otherwise.
    pub fn steady(mut self, uptime: Duration) -> Reconnect {
        self.steady = uptime;
        self
    }

    /// What the wait after losing a steady connection is drawn from.
    pub fn after_loss(&self) -> RangeInclusive<Duration> {
        self.spread.range()
    }

    /// Connects and uses the connection, again and again, until `stop` is done or it has given up.
    ///
    /// `connect` is where a [`ConnectGate`](super::ConnectGate) belongs. `serve` ends when the connection is lost; `stop` ends
    /// it too. The first attempt is made at once: if a whole fleet starts together, that is what a
    /// [`Stagger`](crate::schedule::Stagger) is for.
    pub async fn run<S, C, E, F, G>(
        &self,
        env: &Env,
        stop: S,
        mut connect: impl FnMut() -> F,
        mut serve: impl FnMut(C) -> G,
    ) -> Result<(), GaveUp<E>>
    where
        S: Future,
        F: Future<Output = Result<C, E>>,
        G: Future<Output = ()>,
    {
        let rng = env.rng("connect/reconnect");
        let mut stop = pin!(stop);
        let mut streak = Streak { delays: self.backoff.delays(), failed: 0 };
        loop {
            let (failed, wait) = match unless_stopped(connect(), stop.as_mut()).await {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(Ok(connection)) => {
                    let up = env.now();
                    if unless_stopped(serve(connection), stop.as_mut()).await.is_break() {
                        return Ok(());
                    }
                    (Failed::Unsteady, streak.lost(self, env.now() - up, &rng))
                }
                ControlFlow::Continue(Err(error)) => (Failed::Unconnected(error), streak.failed(self, &rng)),
            };
            let Some(wait) = wait else { return Err(GaveUp { failed, attempts: streak.failed }) };
            if unless_stopped(env.sleep(wait), stop.as_mut()).await.is_break() {
                return Ok(());
            }
            env.tell(&Event::Retry);
        }
    }
}

/// How it went since the last steady connection.
struct Streak {
    delays: Delays,
    failed: u32,
}

impl Streak {
    /// The wait after a connection that lasted so long, or `None` if that was the last attempt.
    fn lost(&mut self, reconnect: &Reconnect, up: Duration, rng: &Rng) -> Option<Duration> {
        if up < reconnect.steady {
            return self.failed(reconnect, rng);
        }
        self.delays.reset();
        self.failed = 0;
        Some(draw(rng, &reconnect.after_loss()))
    }

    /// The wait after a failure, or `None` if that was the last attempt.
    fn failed(&mut self, reconnect: &Reconnect, rng: &Rng) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        let last = reconnect.attempts.is_some_and(|most| self.failed >= most);
        (!last).then(|| self.delays.next(rng))
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Unconnected(error) => error.fmt(f),
            Failed::Unsteady => f.write_str("the connection was lost too soon"),
        }
    }
}

impl<E: fmt::Display> fmt::Display for GaveUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.attempts == 1 { "attempt" } else { "attempts" };
        write!(f, "gave up after {} {times}: {}", self.attempts, self.failed)
    }
}

impl<E: Error + 'static> Error for GaveUp<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.failed {
            Failed::Unconnected(error) => Some(error),
            Failed::Unsteady => None,
        }
    }
}
