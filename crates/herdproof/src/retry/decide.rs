//! Whether to try again, and at what pace: arithmetic on what is known.

use std::time::Duration;

use super::failure::{Failure, GaveUp, Stop};
use crate::{
    backoff::RetryAfter,
    gate::{Judgement, Refusal, Verdict},
};

/// What may be done more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Always,
    IfUnbegun,
}

/// How an attempt failed, without what it failed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of our own gates said no.
    Refused(Refusal),
    /// It was never sent.
    Unsent,
    /// It may have been begun.
    Begun,
    /// Somebody below has given up and said so.
    Told,
}

impl Kind {
    /// An answer that speaks against the origin, by what else was judged of it.
    pub(super) fn of_answer(judgement: Judgement) -> Option<Kind> {
        match judgement {
            Judgement::Plain(_) => None,
            Judgement::Unsent(_) => Some(Kind::Unsent),
            Judgement::NoRetry(_) => Some(Kind::Told),
        }
    }
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// Attempts so far.
    pub(super) attempts: u16,
    /// Attempts there may be.
    pub(super) most: u16,
    /// Whether the caller is itself trying again.
    pub(super) by_caller: bool,
    pub(super) repeat: Repeat,
}

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Stop(Stop),
    Wait {
        pace: Pace,
        /// What the other side asked for.
        after: Option<RetryAfter>,
        /// Whether it is extra work for the origin, to be paid for.
        charged: bool,
    },
}

/// Which backoff a delay is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Fault,
    Overload,
}

impl Made {
    /// What to do after an attempt that failed this way, or gave an answer that speaks against the origin (`None`).
    pub(super) fn next(self, failed: Option<Kind>, verdict: &Verdict) -> Next {
        let refused = match failed {
            Some(Kind::Refused(refusal)) => Some(refusal),
            _ => None,
        };
        let unbegun = refused.is_some() || failed == Some(Kind::Unsent);
        if refused.is_none() && matches!(verdict, Verdict::Ok | Verdict::Final | Verdict::Ignored) {
            return Next::Stop(Stop::Final);
        }
        if failed == Some(Kind::Told) {
            return Next::Stop(Stop::Told);
        }
        if refused.is_some_and(|refusal| refusal.after.is_none()) {
            return Next::Stop(Stop::Refused);
        }
        if self.by_caller {
            return Next::Stop(Stop::Caller);
        }
        if self.attempts >= self.most {
            return Next::Stop(Stop::Attempts);
        }
        if self.repeat == Repeat::IfUnbegun && !unbegun {
            return Next::Stop(Stop::Begun);
        }
        match (refused, verdict) {
            // A gate's times are its own, not rounded to seconds, and what it refused was no work for the origin.
            (Some(refusal), _) => Next::Wait { pace: Pace::Fault, after: refusal.after.map(exactly), charged: false },
            (None, Verdict::Overload { after }) => {
                Next::Wait { pace: Pace::Overload, after: after.map(as_told), charged: true }
            }
            (None, _) => Next::Wait { pace: Pace::Fault, after: None, charged: true },
        }
    }

    /// The end, with what there was at last.
    pub(super) fn gave_up<E>(self, failure: Failure<E>, why: Stop) -> GaveUp<E> {
        GaveUp { failure, why, attempts: self.attempts }
    }
}

/// A wait that was told to nobody else.
fn exactly(after: Duration) -> RetryAfter {
    // Rounded up: earlier than told is too early.
    RetryAfter::millis(u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// A wait that a server asked for. Whole seconds are how `Retry-After` says it, and then everybody was told the same.
fn as_told(after: Duration) -> RetryAfter {
    if after.subsec_nanos() == 0 { RetryAfter::secs(after.as_secs()) } else { exactly(after) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Why;

    const FIRST: Made = Made { attempts: 1, most: 3, by_caller: false, repeat: Repeat::Always };
    const ONCE: Made = Made { repeat: Repeat::IfUnbegun, ..FIRST };
    const OVERLOAD: Verdict = Verdict::Overload { after: None };

    fn no(after: Option<Duration>) -> Kind {
        Kind::Refused(Refusal { why: Why::Tripped, after })
    }

    fn wait(pace: Pace, after: Option<RetryAfter>) -> Next {
        Next::Wait { pace, after, charged: true }
    }

    #[test]
    fn each_ending_has_its_reason() {
        let last = Made { attempts: 3, ..FIRST };
        let below = Made { by_caller: true, ..FIRST };
        let soon = Some(Duration::from_millis(7));
        for (made, failed, verdict, why) in [
            (FIRST, Some(Kind::Begun), Verdict::Final, Stop::Final),
            (FIRST, Some(Kind::Unsent), Verdict::Final, Stop::Final),
            (FIRST, Some(Kind::Begun), Verdict::Ignored, Stop::Final),
            (FIRST, Some(Kind::Begun), Verdict::Ok, Stop::Final),
            (FIRST, None, Verdict::Final, Stop::Final),
            (FIRST, Some(Kind::Told), OVERLOAD, Stop::Told),
            (FIRST, Some(no(None)), Verdict::Fault, Stop::Refused),
            (below, Some(Kind::Unsent), Verdict::Fault, Stop::Caller),
            (below, Some(no(soon)), Verdict::Fault, Stop::Caller),
            (last, Some(Kind::Begun), Verdict::Fault, Stop::Attempts),
            (last, Some(no(soon)), Verdict::Fault, Stop::Attempts),
            (ONCE, Some(Kind::Begun), Verdict::Fault, Stop::Begun),
            (ONCE, Some(Kind::Begun), OVERLOAD, Stop::Begun),
            (ONCE, None, OVERLOAD, Stop::Begun),
        ] {
            assert_eq!(made.next(failed, &verdict), Next::Stop(why), "{failed:?} {verdict:?}");
        }
    }

    #[test]
    fn what_was_never_begun_is_tried_again_even_if_it_must_not_be_done_twice() {
        assert_eq!(ONCE.next(Some(Kind::Unsent), &Verdict::Fault), wait(Pace::Fault, None));
        let soon = Duration::from_micros(1500);
        let expected = Next::Wait { pace: Pace::Fault, after: Some(RetryAfter::millis(2)), charged: false };
        assert_eq!(ONCE.next(Some(no(Some(soon))), &Verdict::Fault), expected);
    }

    #[test]
    fn an_overload_has_a_pace_of_its_own_and_what_is_told_in_whole_seconds_is_spread_as_such() {
        let told = |after| FIRST.next(Some(Kind::Begun), &Verdict::Overload { after: Some(after) });
        assert_eq!(FIRST.next(None, &OVERLOAD), wait(Pace::Overload, None));
        assert_eq!(told(Duration::from_secs(2)), wait(Pace::Overload, Some(RetryAfter::secs(2))));
        assert_eq!(told(Duration::from_millis(2100)), wait(Pace::Overload, Some(RetryAfter::millis(2100))));
        assert_eq!(told(Duration::MAX), wait(Pace::Overload, Some(RetryAfter::millis(u64::MAX))));
    }
}
