//! A seat at the origin, and until when it is taken.
//!
//! What is limited is the work that the origin really has, and that does not end when a client leaves or when an answer is quick:
//!
//! - **Cancelled.** A seat that is free as soon as the client has left lets anybody who sends requests and leaves give the origin
//!   any number of them. So a request that was sent runs on until the head of its answer, for as long as if nobody had left, and
//!   its seat counts for its client until then. Leaving early gains nothing. The connection stays open meanwhile: closed, nobody
//!   would know when the origin is done, and most origins work on all the same. Only the loser of two attempts is closed, once the
//!   usual time (p50) has passed since it was sent: the first of them, which hangs, has had that time by then.
//! - **Failed fast.** An origin that fails in 2 ms where it needs 100 ms for an answer would burn through the whole line. So a
//!   seat whose answer was 5xx or 429 rests until an answer would usually have come (p50 of those that worked, a second at most).
//!   It rests as its client's: whoever provokes failures uses up seats of its own.
//!
//! Who can trigger it: any client, for its own seats, of which the fair queue gives it four fifths at most.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Env, Tick,
    gate::{Permit, Span, Verdict},
    shed::{Queue, Seat},
};
use http::StatusCode;

/// The longest that a seat rests.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// How long the seat of an answer that failed stays taken, if answers usually take this long.
fn rest(usual: Option<Duration>, took: Duration) -> Duration {
    usual.unwrap_or_default().min(LONGEST_REST).saturating_sub(took)
}

/// Whether one of several attempts at the same request has its answer, so that the others have lost.
#[derive(Clone, Default)]
pub(super) struct Race(Arc<AtomicBool>);

impl Race {
    pub(super) fn won(&self) {
        self.0.store(true, Relaxed);
    }
}

/// A seat, until the body of the answer is over. Dropped before the head has come, it says nothing about the origin: it was the
/// client who left.
pub(super) struct Place {
    env: Env,
    queue: Queue,
    /// There until it is given back.
    seat: Option<Seat>,
    from: Tick,
    answered: bool,
    /// The answer was a failure.
    failed: bool,
    race: Option<Race>,
}

impl Place {
    pub(super) fn new(env: &Env, queue: &Queue, seat: Seat, from: Tick) -> Place {
        let (env, queue) = (env.clone(), queue.clone());
        Place { env, queue, seat: Some(seat), from, answered: false, failed: false, race: None }
    }

    /// When it was taken.
    pub(super) fn from(&self) -> Tick {
        self.from
    }

    /// It is for one of several attempts.
    pub(super) fn races(&mut self, race: &Race) {
        self.race = Some(race.clone());
    }

    /// The head has come, or will not.
    pub(super) fn learn(&mut self, verdict: &Verdict, span: Span) {
        self.answered = matches!(verdict, Verdict::Ok | Verdict::Final);
        if let Some(seat) = &mut self.seat {
            seat.learn(verdict, span);
        }
    }

    /// The origin answered with this.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.failed = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    }

    /// Nobody waits any more for the answer to what was sent at this tick: how long it runs on at most.
    pub(super) fn runs_on(&self, sent: Tick, head_timeout: Duration) -> Tick {
        let lost = self.race.as_ref().is_some_and(|race| race.0.load(Relaxed));
        let longest = if lost { self.queue.median().unwrap_or_default().min(head_timeout) } else { head_timeout };
        sent + longest
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(seat) = self.seat.take() else { return };
        let verdict = if self.answered { Verdict::Ok } else { Verdict::Ignored };
        let (from, now) = (self.from, self.env.now());
        let rest = if self.failed { rest(self.queue.median(), now - from) } else { Duration::ZERO };
        if rest.is_zero() {
            seat.settle(&verdict, Span { from, to: now });
            return;
        }
        let env = self.env.clone();
        let resting = async move {
            let to = env.sleep_until(now + rest).await;
            seat.settle(&verdict, Span { from, to });
        };
        self.env.spawn(resting).detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_rests_until_an_answer_would_have_come_and_a_second_at_most() {
        let ms = Duration::from_millis;
        assert_eq!(rest(None, ms(1)), ms(0), "nothing rests before anything is known");
        assert_eq!(rest(Some(ms(100)), ms(2)), ms(98));
        assert_eq!(rest(Some(ms(100)), ms(100)), ms(0));
        assert_eq!(rest(Some(ms(100)), ms(300)), ms(0), "it took longer than that");
        assert_eq!(rest(Some(ms(30_000)), ms(2)), ms(998));
    }
}
