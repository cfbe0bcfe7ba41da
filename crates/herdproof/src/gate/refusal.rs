//! Being told no: why, and when to come back.

use std::{error::Error, fmt, time::Duration};

/// A gate's no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub why: Why,
    /// How long to stay away, if that is known. No two callers are told the same instant.
    pub after: Option<Duration>,
}

/// Why a gate says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The breaker is open: the origin failed too often.
    Tripped,
    /// Requests come faster than the rate allows.
    Rate,
    /// As much is under way as may be.
    Concurrency,
    /// The waiting line is full.
    Queue,
    /// The answer would come too late to be of use.
    Deadline,
    /// Load is shed, and this mattered least.
    Shed,
    /// The origin has refused so much lately that asking would only add to its load.
    Throttled,
    /// The budget for extra work is spent.
    Budget,
}

/// Work that was not done, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt<E> {
    /// A gate said no; the work was not begun.
    Refused(Refusal),
    /// The work could not begin: the service that does it was not ready, and failed.
    Unsent(E),
    /// The work failed.
    Failed(E),
}

impl Refusal {
    /// A refusal that cannot say when to come back.
    pub const fn new(why: Why) -> Refusal {
        Refusal { why, after: None }
    }

    /// Says when to come back.
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Refusal {
        self.after = Some(after);
        self
    }
}

impl Why {
    /// Every reason there is.
    pub const ALL: [Why; 8] =
        [Why::Tripped, Why::Rate, Why::Concurrency, Why::Queue, Why::Deadline, Why::Shed, Why::Throttled, Why::Budget];

    /// The word for it in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Why::Tripped => "tripped",
            Why::Rate => "rate",
            Why::Concurrency => "concurrency",
            Why::Queue => "queue",
            Why::Deadline => "deadline",
            Why::Shed => "shed",
            Why::Throttled => "throttled",
            Why::Budget => "budget",
        }
    }

    /// Whether trying the same again at once could help. Where it could not, a retry only adds to the crowd.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Why::Rate | Why::Concurrency | Why::Queue | Why::Shed)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Tripped => "the origin failed too often",
            Why::Rate => "too many in too short a time",
            Why::Concurrency => "too much at once",
            Why::Queue => "the waiting line is full",
            Why::Deadline => "the answer would come too late",
            Why::Shed => "load is being shed",
            Why::Throttled => "the origin is refusing most requests",
            Why::Budget => "the budget for extra work is spent",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", self.why)?;
        match self.after {
            Some(after) => write!(f, "; come back in {} ms", after.as_millis()),
            None => Ok(()),
        }
    }
}

impl Error for Refusal {}

impl<E: fmt::Display> fmt::Display for Halt<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halt::Refused(refusal) => refusal.fmt(f),
            Halt::Unsent(error) | Halt::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for Halt<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Halt::Refused(refusal) => refusal.source(),
            Halt::Unsent(error) | Halt::Failed(error) => error.source(),
        }
    }
}
