//! What an outcome says: to gates, about the origin; to whoever repeats, about another attempt.

use super::Verdict;

/// Turns an outcome into what gates need to know of it. Any function from the outcome to a [`Verdict`] will do, or to a
/// [`Judgement`], for those who know more.
///
/// ```
/// use herdproof::gate::{Judgement, Verdict};
/// use std::io::{Error, ErrorKind};
///
/// fn judge(outcome: &Result<String, Error>) -> Judgement {
///     match outcome {
///         Ok(_) => Verdict::Ok.into(),
///         Err(error) if error.kind() == ErrorKind::ConnectionRefused => Judgement::Unsent(Verdict::Fault),
///         Err(_) => Verdict::Fault.into(),
///     }
/// }
/// ```
pub trait Classify<T, E>: Send + Sync {
    /// What this outcome says about the origin.
    fn classify(&self, outcome: &Result<T, E>) -> Verdict;

    /// The same, and whether there may be another attempt. Retries ask this, and gates the other.
    #[inline]
    fn judge(&self, outcome: &Result<T, E>) -> Judgement {
        self.classify(outcome).into()
    }
}

/// A verdict, and what is known of the attempt beside it. Gates go by the verdict alone; a retry also asks whether the attempt
/// was begun, and whether there should be another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing else is known: what failed may have been done all the same.
    Plain(Verdict),
    /// It failed before it was sent, so it was certainly not begun: no connection, no address. What must not be done twice may
    /// be tried again after this and after nothing else.
    Unsent(Verdict),
    /// Whoever answered said not to try again: `x-no-retry`.
    NoRetry(Verdict),
}

impl Judgement {
    /// What it says about the origin.
    #[inline]
    pub const fn verdict(self) -> Verdict {
        match self {
            Judgement::Plain(verdict) | Judgement::Unsent(verdict) | Judgement::NoRetry(verdict) => verdict,
        }
    }
}

impl From<Verdict> for Judgement {
    #[inline]
    fn from(verdict: Verdict) -> Judgement {
        Judgement::Plain(verdict)
    }
}

impl<T, E, V, F> Classify<T, E> for F
where
    V: Into<Judgement>,
    F: Fn(&Result<T, E>) -> V + Send + Sync,
{
    #[inline]
    fn classify(&self, outcome: &Result<T, E>) -> Verdict {
        self(outcome).into().verdict()
    }

    #[inline]
    fn judge(&self, outcome: &Result<T, E>) -> Judgement {
        self(outcome).into()
    }
}

/// The simplest classification: `Ok` is fine, every error is a fault.
pub fn result<T, E>(outcome: &Result<T, E>) -> Verdict {
    if outcome.is_ok() { Verdict::Ok } else { Verdict::Fault }
}
