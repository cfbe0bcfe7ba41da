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
//!
//! Clients choose what is asked for, and so each policy hears only what no single client can bring about ([`Lesson`]): the breaker
//! that no connection could be made, the limit whose request it was that took long or was refused. All else that speaks
//! against the origin makes us ask it ourselves (`probe.rs`).

use std::{sync::Arc, time::Duration};

use herdproof::{
    Env, Tick,
    backoff::RetryAfter,
    breaker::{Breaker, Pass},
    budget::Budget,
    gate::{Ask, Gate, Permit, Place as _, Refusal, Span, Verdict},
    hedge::Hedge,
    retry::Retry,
    shed::{Queue, Seat},
};
use http::{HeaderMap, StatusCode, header};

use super::{
    OriginError, OriginSettings,
    limit::{Ending, Limit, Sample},
    probe::Prober,
    seat::Place,
};

/// A wait for a seat that is fine, however long it goes on. The line's judge takes twenty times this to see that it stands,
/// and then refuses those who have waited for twice this: a rush of two seconds is sat out, an overload is not.
const FINE: Duration = Duration::from_millis(100);
/// Hedges a second that need no first attempts to pay for them: behind a cache these are few, and the one that hangs may be
/// the only one.
const HEDGES: f64 = 1.0;
/// How long an open breaker waits for the first probe at most, and for any other.
const OPEN: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(700));
/// Those who are refused meanwhile are called back over this time after the next probe.
const BACK: Duration = Duration::from_secs(1);

/// The policies before one origin; see the [module](self).
pub(super) struct Stack {
    pub(super) env: Env,
    pub(super) budget: Budget,
    pub(super) retry: Retry,
    pub(super) breaker: Breaker,
    pub(super) queue: Queue,
    pub(super) limit: Limit,
    pub(super) prober: Arc<Prober>,
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
        // No circuit: one client can make most of the few requests that reach the origin fail. The ratio bounds what is extra.
        let budget = Budget::builder(env).without_circuit().build();
        // The ramp is the limit's: few seats at first, and a line for who does not fit.
        let breaker = Breaker::builder(env).external_probes().open(OPEN.0, OPEN.1).ramp(1.0, BACK).build();
        let found = Limit::new(env, limit, settings.limit_floor);
        let queue = Queue::builder(env, limit)
            .adaptive(found.clone())
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
                // Whatever share of requests fails, one client can make fail.
                .failures(f64::INFINITY)
                .budget(&budget)
                .only_if(move || breaker.is_closed() && queue.inside() < queue.seats())
                .build()
        });
        let retry = Retry::builder(env).attempts(settings.attempts).budget(&budget).build();
        let prober = Arc::new(Prober::new(env, settings, &breaker, &found, &queue));
        Stack { env: env.clone(), budget, retry, breaker, queue, limit: found, prober, hedge }
    }

    /// The head has come, or will not.
    pub(super) fn learn(&self, pass: Pass, place: &mut Place, lesson: &Lesson, of: Request, span: Span) {
        pass.settle(&lesson.reached, span);
        let Request { user, route } = of;
        // Before the seat, which follows the limit.
        self.limit.learn(&Sample { user, route, ending: lesson.ending, took: span.took() }, span.to);
        place.learn(&lesson.verdict, span);
    }

    /// Lets a request in, after a wait in the line if need be.
    pub(super) async fn enter(&self, ask: &mut Ask) -> Result<Entry, Refusal> {
        let mut pass = self.breaker.try_reserve(ask)?;
        let seat = self.queue.reserve(ask).await?;
        self.breaker.renew(&mut pass, ask)?;
        Ok(self.entry(pass, seat, ask))
    }

    /// The same without a wait, for extra work.
    pub(super) fn try_enter(&self, ask: &Ask) -> Result<Entry, Refusal> {
        let pass = self.breaker.try_reserve(ask)?;
        let seat = self.queue.try_reserve(ask)?;
        Ok(self.entry(pass, seat, ask))
    }

    fn entry(&self, pass: Pass, seat: Seat, ask: &Ask) -> Entry {
        Entry { pass: pass.commit(), place: Place::new(&self.env, &self.queue, seat.commit(), ask.at) }
    }
}

impl Entry {
    /// When it was let in.
    pub(super) fn from(&self) -> Tick {
        self.place.from()
    }
}

/// Whose request it is, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) user: u64,
    pub(super) route: u64,
}

/// What an exchange says about the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lesson {
    /// On the whole.
    pub(super) verdict: Verdict,
    /// Whether the origin can be reached, for the breaker. Who finds a few URLs that fail must not be able to shut off all the
    /// others, so a fault is only what no request can bring about: that there is no connection.
    pub(super) reached: Verdict,
    /// How much it can take at once, for the limit.
    pub(super) ending: Ending,
}

impl Lesson {
    pub(super) fn of_answer(status: StatusCode, headers: &HeaderMap, env: &Env) -> Lesson {
        let (verdict, reached, ending) = match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
                let after = after.and_then(|value| RetryAfter::parse(value, env.wall()).ok());
                (Verdict::Overload { after: after.map(RetryAfter::duration) }, Verdict::Ok, Ending::Shed)
            }
            // Of somebody between us and it.
            StatusCode::BAD_GATEWAY => (Verdict::Fault, Verdict::Ignored, Ending::Other),
            StatusCode::GATEWAY_TIMEOUT => (Verdict::Fault, Verdict::Ignored, Ending::Late),
            // About this client, and about this URL.
            StatusCode::TOO_MANY_REQUESTS => (Verdict::Final, Verdict::Ok, Ending::Other),
            _ if status.is_server_error() => (Verdict::Fault, Verdict::Ok, Ending::Other),
            _ if status.is_client_error() => (Verdict::Final, Verdict::Ok, Ending::Served),
            _ => (Verdict::Ok, Verdict::Ok, Ending::Served),
        };
        Lesson { verdict, reached, ending }
    }

    /// What it says that there is no answer. A connection that was idle and turned out to be closed says nothing: a restart
    /// closes all of them, and is no outage.
    pub(super) fn of_error(error: &OriginError, reused: bool) -> Lesson {
        let (verdict, reached, ending) = match error {
            OriginError::Refused(_) | OriginError::Request(_) => (Verdict::Ignored, Verdict::Ignored, Ending::Other),
            OriginError::Broken(_) if reused => (Verdict::Ignored, Verdict::Ignored, Ending::Other),
            OriginError::Connect(_) => (Verdict::Fault, Verdict::Fault, Ending::Other),
            OriginError::TimedOut => (Verdict::Fault, Verdict::Ignored, Ending::Late),
            OriginError::Broken(_) | OriginError::BadResponse(_) => (Verdict::Fault, Verdict::Ignored, Ending::Other),
        };
        Lesson { verdict, reached, ending }
    }

    /// Whether it may mean that the origin is down.
    pub(super) fn is_suspicious(&self) -> bool {
        self.verdict == Verdict::Fault && self.reached != Verdict::Ok
    }
}
