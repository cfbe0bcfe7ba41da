//! Trying again inside a flight.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    backoff::Backoff,
    budget::{Budget, Spend},
    env::{Env, Rng},
    gate::Verdict,
};

/// How a load is tried again inside its flight: how often, how long after, and what pays for it.
///
/// A load that is tried again at once meets what it failed by; one that is tried again whatever else fails is a part of the storm. So
/// there is a delay with jitter before each, and a budget that all loads of a group share.
///
/// ```
/// use std::time::Duration;
/// use herdproof::{Backoff, Env, budget::Budget, flight::Retries};
///
/// let env = Env::system();
/// let retries = Retries::new(&env, 2).backoff(Backoff::exponential(Duration::from_millis(20))).budget(&Budget::new(&env));
/// # let _ = retries;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Retries {
    env: Env,
    rng: Arc<Rng>,
    most: u32,
    backoff: Backoff,
    budget: Budget,
}

impl Retries {
    /// Up to so many times more. Default: exponential from 50 ms with full jitter, and a budget of its own.
    pub fn new(env: &Env, most: u32) -> Retries {
        Retries {
            env: env.clone(),
            rng: Arc::new(env.rng("flight/retries")),
            most,
            backoff: Backoff::exponential(Duration::from_millis(50)),
            budget: Budget::new(env),
        }
    }

    /// The delays.
    pub fn backoff(self, backoff: Backoff) -> Retries {
        Retries { backoff, ..self }
    }

    /// What pays for it. Give the same to everything that makes extra calls to the same origin.
    pub fn budget(self, budget: &Budget) -> Retries {
        Retries { budget: budget.clone(), ..self }
    }

    pub(super) async fn run<V, E, F>(self, mut load: impl FnMut() -> F) -> Result<V, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        let Retries { env, rng, most, backoff, budget } = self;
        let mut delays = backoff.delays();
        budget.first(env.now());
        let mut outcome = load().await;
        for _ in 0..most {
            budget.learn(&verdict(&outcome));
            if outcome.is_ok() {
                return outcome;
            }
            // Before the delay: what is not paid for is not waited for.
            let Ok(mut extra) = budget.try_spend(env.now(), Spend::Retry) else { return outcome };
            env.sleep(delays.next(&rng)).await;
            extra.begin();
            outcome = load().await;
        }
        budget.learn(&verdict(&outcome));
        outcome
    }
}

fn verdict<V, E>(outcome: &Result<V, E>) -> Verdict {
    if outcome.is_ok() { Verdict::Ok } else { Verdict::Fault }
}
