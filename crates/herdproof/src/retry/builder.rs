//! How a [`Retry`] is made.

use std::{sync::Arc, time::Duration};

use super::{Retry, Rules};
use crate::{backoff::Backoff, budget::Budget, env::Env};

/// How a [`Retry`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct RetryBuilder {
    env: Env,
    attempts: u16,
    fault: Backoff,
    overload: Backoff,
    timeout: Option<Duration>,
    payment: Payment,
}

/// What retries are paid from.
#[derive(Clone, Debug)]
enum Payment {
    OwnBudget,
    Budget(Budget),
    Nothing,
}

impl RetryBuilder {
    /// How many attempts there are at most, the first included; 3 unless told otherwise. None at all counts as one.
    pub fn attempts(mut self, most: u16) -> RetryBuilder {
        self.attempts = most.max(1);
        self
    }

    /// The delays after a fault; exponential from 50 ms with full jitter unless told otherwise.
    pub fn backoff(mut self, backoff: Backoff) -> RetryBuilder {
        self.fault = backoff;
        self
    }

    /// The delays after an overload; exponential from 1 s with full jitter unless told otherwise. A server that says when
    /// to come back is not asked before that.
    pub fn overload_backoff(mut self, backoff: Backoff) -> RetryBuilder {
        self.overload = backoff;
        self
    }

    /// How long an attempt may take; as long as the deadline allows unless told otherwise.
    pub fn timeout(mut self, timeout: Duration) -> RetryBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// What retries are paid from; a budget of its own unless told otherwise. Give the same to everything that makes extra
    /// calls to the same upstream.
    pub fn budget(mut self, budget: &Budget) -> RetryBuilder {
        self.payment = Payment::Budget(budget.clone());
        self
    }

    /// Lets retries multiply the load as they will. For contrast, and where something else bounds them.
    pub fn without_budget(mut self) -> RetryBuilder {
        self.payment = Payment::Nothing;
        self
    }

    /// The rule.
    pub fn build(self) -> Retry {
        let RetryBuilder { env, attempts, fault, overload, timeout, payment } = self;
        let budget = match payment {
            Payment::OwnBudget => Some(Budget::new(&env)),
            Payment::Budget(budget) => Some(budget),
            Payment::Nothing => None,
        };
        Retry(Arc::new(Rules { rng: env.rng("retry"), attempts, fault, overload, timeout, budget }))
    }
}

impl Retry {
    /// A rule in the making.
    pub fn builder(env: &Env) -> RetryBuilder {
        RetryBuilder {
            env: env.clone(),
            attempts: 3,
            fault: Backoff::exponential(Duration::from_millis(50)),
            overload: Backoff::exponential(Duration::from_secs(1)),
            timeout: None,
            payment: Payment::OwnBudget,
        }
    }
}
