//! Replacing what expires, before it does, and not with everybody else.

use std::{error::Error, fmt, future::Future, ops::RangeInclusive, pin::pin, time::Duration};

use super::{draw, part, unless_stopped};
use crate::{backoff::Backoff, env::Env, event::Event};

/// Keeps a token, a certificate or a lease fresh: loads the next one while the present one is still good.
///
/// Instances that were deployed together got their tokens together. A little jitter on a fixed refresh time hardly helps:
/// with 5 minutes either way on an hour, it takes two days until the crowd has dissolved (`herdproof lab run
/// token-refresh`). So the window is wide, and an instance's first refresh may fall anywhere into the token's life.
///
/// | refresh | drawn from, with `end = life - margin` |
/// |---|---|
/// | the first | `0 ..= end` |
/// | each one after that | `from x life ..= end`, `from` being one half |
/// | again after a failure | the [`Backoff`], and never at or after the expiry |
///
/// What has no expiry but should be loaded once in a period, anywhere in it, is a [`Cron`](super::Cron) without a splay.
///
/// ```
/// use std::time::Duration;
/// use herdproof::schedule::Refresher;
///
/// let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
/// let refresher = Refresher::new().margin(minute * 3);
/// assert_eq!(refresher.window(hour, false), minute * 30..=minute * 57);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Refresher {
    from: f64,
    margin: Duration,
    backoff: Backoff,
}

const SHORTEST: Duration = Duration::from_secs(1);

/// The expiry came before a refresh succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired<E> {
    /// How the last attempt failed.
    pub error: E,
    /// How many attempts failed in a row.
    pub failures: u32,
}

impl Default for Refresher {
    fn default() -> Refresher {
        Refresher {
            from: 0.5,
            margin: Duration::from_secs(60),
            backoff: Backoff::exponential(Duration::from_secs(1)).cap(Duration::from_secs(30)),
        }
    }
}

impl Refresher {
    /// From half of the life to a minute before its end.
    pub fn new() -> Refresher {
        Refresher::default()
    }

    /// The share of its life that a token is used for at least, but for the first; 0.5 unless told otherwise and 0.7 at
    /// most. The smaller, the wider the window and the sooner a crowd dissolves; the larger, the fewer refreshes.
    pub fn from(mut self, share: f64) -> Refresher {
        self.from = if share.is_nan() { 0.0 } else { share.clamp(0.0, 0.7) };
        self
    }

    /// How long before the expiry the first attempt is made at the latest: the time there is for trying again. A minute
    /// unless told otherwise, and a quarter of the life at most, so that a short life still has a window.
    pub fn margin(mut self, margin: Duration) -> Refresher {
        self.margin = margin;
        self
    }

    /// The delays between attempts; full jitter from one second up to 30 unless told otherwise.
    pub fn backoff(mut self, backoff: Backoff) -> Refresher {
        self.backoff = backoff;
        self
    }

    /// How long after a token of this life was asked for the next one is: what the wait is drawn from.
    ///
    /// Less than a second counts as a second: an issuer that says "none" must not be asked without pause.
    pub fn window(&self, life: Duration, first: bool) -> RangeInclusive<Duration> {
        let life = life.max(SHORTEST);
        let from = if first { Duration::ZERO } else { part(life, self.from) };
        from..=life.saturating_sub(self.margin.min(life / 4))
    }

    /// Refreshes until `stop` is done, or until a token has expired because no attempt succeeded in time.
    ///
    /// `life` is how long the token that the caller already has is good for from now on. `load` fetches the next one, puts
    /// it where it is used, and says how long that one is good for. That is counted from when it was asked for, as nobody
    /// knows when on the way it was issued. A load that may hang needs a timeout of its own.
    pub async fn run<S, F, E>(
        &self,
        env: &Env,
        life: Duration,
        stop: S,
        mut load: impl FnMut() -> F,
    ) -> Result<(), Expired<E>>
    where
        S: Future,
        F: Future<Output = Result<Duration, E>>,
    {
        let rng = env.rng("schedule/refresh");
        let mut stop = pin!(stop);
        let began = env.now();
        let mut expiry = began + life;
        let mut wake = began + draw(&rng, &self.window(life, true));
        loop {
            if unless_stopped(env.sleep_until(wake), stop.as_mut()).await.is_break() {
                return Ok(());
            }
            let mut delays = self.backoff.delays();
            let (asked, life) = loop {
                let asked = env.now();
                env.tell(if delays.attempt() == 0 { &Event::Refresh } else { &Event::Retry });
                let error = match load().await {
                    Ok(life) => break (asked, life),
                    Err(error) => error,
                };
                let again = env.now() + delays.next(&rng);
                // At the expiry itself everybody would meet again, so the last attempt is one that falls before it.
                let over = again >= expiry;
                let pause = env.sleep_until(if over { expiry } else { again });
                if unless_stopped(pause, stop.as_mut()).await.is_break() {
                    return Ok(());
                }
                if over {
                    return Err(Expired { error, failures: delays.attempt() });
                }
            };
            expiry = asked + life;
            wake = asked + draw(&rng, &self.window(life, false));
        }
    }
}

impl<E: fmt::Display> fmt::Display for Expired<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.failures == 1 { "attempt" } else { "attempts" };
        write!(f, "expired after {} failed {times}: {}", self.failures, self.error)
    }
}

impl<E: Error + 'static> Error for Expired<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}
