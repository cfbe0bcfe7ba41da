//! Who may go to the origin, and when: every policy in its order, in one place.
//!
//! | from the outside in | why there |
//! |---|---|
//! | retry | around everything that may say no: each attempt asks anew, and nothing is held through a backoff |
//! | breaker | before the line: while the origin is down nobody stands in it |
//! | line and seats | the only way in, for misses, passes, refreshes, retries and hedges alike, shared fairly by client; a seat is held until the body is over (`seat.rs`), so what is counted is what the origin really has to do |
//! | breaker again | for those who waited while it changed: a line of thousands is not led to an origin that went down meanwhile |
//! | hedge | inside the seats: the wait for one is not held against the origin, and a hedge needs a seat that is free |
//! | exchange | a connection, the request, the head of the answer |
//!
//! What is learned is learned at the head. How long a body takes is up to who reads it.

use std::time::Duration;

use herdproof::{
    Env,
    backoff::RetryAfter,
    breaker::{Breaker, Pass},
    budget::Budget,
    gate::{Ask, Gate, Refusal, Verdict},
    hedge::Hedge,
    limit::AdaptiveLimit,
    retry::Retry,
    shed::Queue,
};
use http::{HeaderMap, StatusCode, header};

use super::{OriginError, OriginSettings, seat::Place};

/// A wait for a seat that is fine, however long it goes on. The line's judge takes twenty times this to see that it stands,
/// and then refuses those who have waited for twice this: a rush of two seconds is sat out, an overload is not.
const FINE: Duration = Duration::from_millis(100);
/// Hedges a second that need no first attempts to pay for them: behind a cache these are few, and the one that hangs may be
/// the only one.
const HEDGES: f64 = 1.0;
/// The least seats, where the origin refuses whatever it is given.
const LEAST: u32 = 2;

/// The policies before one origin; see the [module](self).
pub(super) struct Stack {
    pub(super) env: Env,
    pub(super) budget: Budget,
    pub(super) retry: Retry,
    pub(super) breaker: Breaker,
    pub(super) queue: Queue,
    pub(super) hedge: Option<Hedge>,
}

/// The right to make one request.
pub(super) struct Entry {
    pub(super) pass: Pass,
    pub(super) place: Place,
}

impl Stack {
    pub(super) fn new(env: &Env, settings: &OriginSettings) -> Stack {
        let limit = settings.limit.max(1);
        let budget = Budget::new(env);
        let breaker = Breaker::new(env);
        let found = AdaptiveLimit::builder(env).initial(limit).between(LEAST.min(limit), limit).build();
        let queue = Queue::builder(env, limit)
            .adaptive(found)
            .line(settings.line)
            .patience(settings.queue_wait)
            .target(FINE)
            // What one client asks too much, only that client waits for.
            .fair()
            .build();
        let hedge = settings.hedge_after.map(|after| {
            let (breaker, queue) = (breaker.clone(), queue.clone());
            Hedge::builder(env)
                .unknown(after)
                .least(after)
                .floor(HEDGES)
                .budget(&budget)
                .only_if(move || breaker.is_closed() && queue.inside() < queue.seats())
                .build()
        });
        let retry = Retry::builder(env).attempts(settings.attempts).budget(&budget).build();
        Stack { env: env.clone(), budget, retry, breaker, queue, hedge }
    }

    /// Lets a request in, after a wait in the line if need be.
    pub(super) async fn enter(&self, ask: &mut Ask) -> Result<Entry, Refusal> {
        let mut pass = self.breaker.try_enter(ask)?;
        let seat = self.queue.enter(ask).await?;
        let place = Place::new(&self.env, &self.queue, seat, ask.at);
        if !pass.holds() {
            drop(pass);
            pass = self.breaker.try_enter(ask)?;
        }
        Ok(Entry { pass, place })
    }

    /// The same without a wait, for extra work.
    pub(super) fn try_enter(&self, ask: &Ask) -> Result<Entry, Refusal> {
        let pass = self.breaker.try_enter(ask)?;
        let seat = self.queue.try_enter(ask)?;
        Ok(Entry { pass, place: Place::new(&self.env, &self.queue, seat, ask.at) })
    }
}

/// What an answer says about the origin.
pub(super) fn of_answer(status: StatusCode, headers: &HeaderMap, env: &Env) -> Verdict {
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|value| RetryAfter::parse(value, env.wall()).ok());
            Verdict::Overload { after: after.map(RetryAfter::duration) }
        }
        _ if status.is_server_error() => Verdict::Fault,
        _ if status.is_client_error() => Verdict::Final,
        _ => Verdict::Ok,
    }
}

/// Whether an origin that answers like this is there itself, whatever is wrong with the request. The breaker is for one that is not:
/// whoever finds a few URLs that fail must not be able to shut off all the others.
pub(super) fn is_there(status: StatusCode) -> bool {
    !matches!(status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT)
}

/// What it says that there is none. A connection that was idle and turned out to be closed says nothing: a restart closes
/// all of them, and is no outage.
pub(super) fn of_error(error: &OriginError, reused: bool) -> Verdict {
    match error {
        OriginError::Refused(_) | OriginError::Request(_) => Verdict::Ignored,
        OriginError::Broken(_) if reused => Verdict::Ignored,
        OriginError::Connect(_) | OriginError::TimedOut | OriginError::Broken(_) | OriginError::BadResponse(_) => {
            Verdict::Fault
        }
    }
}
