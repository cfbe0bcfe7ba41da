//! How attempts fail, and why there was no other.

use std::{error::Error, fmt};

use super::decide::Kind;
use crate::gate::{Halt, Judgement, Refusal};

/// How an attempt failed. Which variant it is says whether it may have been begun; the error in it, by the classification,
/// whether trying again could help. Where the work only knows that it [`Failed`](Failure::Failed), the classification may know
/// more ([`Judgement`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// It failed, and may have been done all the same.
    Failed(E),
    /// It failed before it was sent, so it was certainly not begun: no connection, no address.
    Unsent(E),
    /// It failed, and whoever answered said not to try again: `x-no-retry`.
    NoRetry(E),
    /// One of our own gates said no; it was not begun.
    Refused(Refusal),
    /// It took longer than it may. It may have been done all the same.
    TimedOut,
}

/// An operation that did not succeed: how its last attempt failed, and why there was no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaveUp<E> {
    /// How the last attempt failed.
    pub failure: Failure<E>,
    /// Why it was not tried again.
    pub why: Stop,
    /// How many attempts were made.
    pub attempts: u16,
}

/// Why there is no further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// Trying again would not help.
    Final,
    /// As many attempts were made as may be.
    Attempts,
    /// The next would come too late.
    Deadline,
    /// The budget for extra work is spent, or too much failed lately.
    Budget,
    /// It may have been begun, and must not be done twice.
    Begun,
    /// One of our own gates said no, and not when to come back.
    Refused,
    /// A layer below has given up, and said so.
    Told,
    /// The caller is itself trying again.
    Caller,
}

impl<E> Failure<E> {
    /// An error, by what was judged of it.
    #[inline]
    pub(super) fn judged(judgement: Judgement, error: E) -> Failure<E> {
        match judgement {
            Judgement::Plain(_) => Failure::Failed(error),
            Judgement::Unsent(_) => Failure::Unsent(error),
            Judgement::NoRetry(_) => Failure::NoRetry(error),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Failure::Failed(_) | Failure::TimedOut => Kind::Begun,
            Failure::Unsent(_) => Kind::Unsent,
            Failure::NoRetry(_) => Kind::Told,
            Failure::Refused(refusal) => Kind::Refused(*refusal),
        }
    }

    /// The error, if there was one.
    pub fn error(self) -> Option<E> {
        match self {
            Failure::Failed(error) | Failure::Unsent(error) | Failure::NoRetry(error) => Some(error),
            Failure::Refused(_) | Failure::TimedOut => None,
        }
    }
}

impl<E> GaveUp<E> {
    /// Whether those above should not try again either; then tell them so
    /// ([`NO_RETRY`](super::wire::NO_RETRY)). Only where trying again would not have helped anyway there is nothing to say.
    pub fn no_retry(&self) -> bool {
        self.why != Stop::Final
    }
}

impl Stop {
    /// Every reason there is.
    pub const ALL: [Stop; 8] = [
        Stop::Final,
        Stop::Attempts,
        Stop::Deadline,
        Stop::Budget,
        Stop::Begun,
        Stop::Refused,
        Stop::Told,
        Stop::Caller,
    ];

    /// The word for it in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stop::Final => "final",
            Stop::Attempts => "attempts",
            Stop::Deadline => "deadline",
            Stop::Budget => "budget",
            Stop::Begun => "begun",
            Stop::Refused => "refused",
            Stop::Told => "told",
            Stop::Caller => "caller",
        }
    }
}

impl<E> From<Halt<E>> for Failure<E> {
    fn from(halt: Halt<E>) -> Failure<E> {
        match halt {
            Halt::Refused(refusal) => Failure::Refused(refusal),
            Halt::Unsent(error) => Failure::Unsent(error),
            Halt::Failed(error) => Failure::Failed(error),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Final => "it would not help",
            Stop::Attempts => "it was tried often enough",
            Stop::Deadline => "it would come too late",
            Stop::Budget => "the budget for extra work is spent",
            Stop::Begun => "it may have been done already",
            Stop::Refused => "it is not known when that could help",
            Stop::Told => "a layer below has given up",
            Stop::Caller => "the caller does so itself",
        })
    }
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(error) | Failure::Unsent(error) | Failure::NoRetry(error) => error.fmt(f),
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::TimedOut => f.write_str("the attempt took too long"),
        }
    }
}

/// Such as `no answer (2 attempts; not tried again: it would come too late)`.
impl<E: fmt::Display> fmt::Display for GaveUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, why, attempts } = self;
        let s = if *attempts == 1 { "" } else { "s" };
        write!(f, "{failure} ({attempts} attempt{s}; not tried again: {why})")
    }
}

impl<E: Error> Error for Failure<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Failure::Failed(error) | Failure::Unsent(error) | Failure::NoRetry(error) => error.source(),
            Failure::Refused(refusal) => refusal.source(),
            Failure::TimedOut => None,
        }
    }
}

impl<E: Error> Error for GaveUp<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.failure.source()
    }
}
