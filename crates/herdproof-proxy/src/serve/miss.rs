//! What is not there, or has to be asked about: with everybody else who wants it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use herdproof::{
    flight::{FlightError, Landed as Flown},
    gate::Ask,
};
use http::StatusCode;

use super::{Core, Served, Visit, visit::Choice};
use crate::{
    access::Outcome,
    cache_status::cache_status,
    fill::{Answer, Failure, Fault, Kind, Landed, Shared, private_key},
    key::AsKey,
    object::Object,
    policy::{Reason, Use, Way},
    store::Found,
};

/// How often a request looks up anew, because what it waited for was another variant, say.
const ROUNDS: u32 = 3;

/// The longest and the shortest wait for the origin if there is something to serve instead.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(50);

/// How long to wait for the origin if there is something to serve instead: a few times as long as it took the last time. If
/// that was longer than anybody would wait, waiting is most likely in vain, and it is enough to see whether it has recovered.
fn patience(took: Duration) -> Duration {
    if took < LONGEST { took.saturating_mul(4).clamp(SHORTEST, LONGEST) } else { SHORTEST }
}

impl Core {
    /// Asks the origin, with others if that may be.
    pub(super) async fn miss(self: &Arc<Core>, visit: &Visit<'_>, mut found: Found) -> Served {
        if let Some(served) = self.turned_away(visit) {
            return served;
        }
        for _ in 0..ROUNDS {
            let now = self.env.now();
            let prior = found.object.as_ref().filter(|object| visit.class.may_have(object.life.is_for_all()));
            let usage = prior.map(|object| object.life.at(now, &visit.class.asked));
            // What may be served if the origin cannot be asked.
            let spare =
                prior.filter(|_| matches!(usage, Some(Use::IfError | Use::StaleWhile | Use::StaleAsked))).cloned();
            if visit.class.asked.only_if_cached() {
                return Served::own(
                    Outcome::Failed,
                    "only-if-cached",
                    StatusCode::GATEWAY_TIMEOUT,
                    "nothing is kept that may be served",
                    None,
                );
            }
            if let Some(known) = self.known_failure(visit, &found) {
                return self.not_served(visit, spare.as_ref(), &known, false);
            }
            if let Some(object) = spare.as_ref().filter(|object| object.is_resting(now)) {
                return visit.stale(object, "origin-failed", now);
            }
            if let Some(object) = spare.as_ref().filter(|object| object.is_slow()) {
                return visit.stale(object, "origin-slow", now);
            }
            let alone = usage == Some(Use::Alone)
                || visit.class.way() == Way::Alone && !prior.is_some_and(|object| object.life.is_for_all());
            if let Some(why) = self.passes(visit, &found, alone) {
                return self.pass(visit, why).await;
            }
            let kind = if alone { Kind::Alone } else { Kind::Miss };
            let until = match &spare {
                Some(object) => now + patience(object.life.load()),
                None => visit.arrived + self.settings.wait,
            };
            let waiting = self.metrics.wait();
            let flown = self.fly(visit, &found, prior, kind).by(until).await;
            drop(waiting);
            match flown {
                Ok(Flown { value: Landed::Shared(shared), led, .. }) => {
                    if let Some(served) = self.shared(visit, &shared, led).await {
                        return served;
                    }
                }
                Ok(Flown { value: Landed::Own(answer), led: true, .. }) => {
                    let why = answer.why.name();
                    match answer.take() {
                        Some(Answer::Origin(response)) => return visit.passed(*response, why),
                        Some(Answer::Object(object)) => {
                            let cache = cache_status(Outcome::Pass, why, Some(object.head().status()), true);
                            let choice = Choice { object, outcome: Outcome::Pass, detail: why, cache };
                            return visit.deliver(choice, self.env.now());
                        }
                        None => return self.pass(visit, why).await,
                    }
                }
                Ok(Flown { value: Landed::Own(answer), .. }) => {
                    if let (Reason::Overload, Some(object)) = (answer.why, &spare) {
                        return visit.stale(object, answer.why.name(), self.env.now());
                    }
                    let (why, for_a_user) = (answer.why.name(), answer.for_a_user);
                    // It may hold the origin's connection, for the one it is for.
                    drop(answer);
                    // What was for a user who said so may be for all who do not: those ask again, together.
                    if !for_a_user || visit.class.has_credentials() {
                        return self.pass(visit, why).await;
                    }
                }
                Ok(Flown { value: Landed::Failed(failure), led, .. }) => {
                    return self.not_served(visit, spare.as_ref(), &failure, led);
                }
                Err(error) => return self.gave_up(visit, spare.as_ref(), &error),
            }
            // As if it had come just now: all that holds for a hit holds here.
            match self.hit(visit) {
                Ok(choice) => return visit.deliver(choice, self.env.now()),
                Err(again) => found = again,
            }
        }
        self.pass(visit, "vary").await
    }

    /// Serves what has come for all who may have it; nothing if it is another variant than this request wants.
    async fn shared(&self, visit: &Visit<'_>, shared: &Shared, led: bool) -> Option<Served> {
        let Shared { object, variant, revalidated, stored } = shared;
        let fits = variant.as_ref().is_none_or(|(spec, variant)| spec.matches(variant, &visit.parts.headers));
        if !led && !fits {
            return None;
        }
        if !led && !object.has_beginning() {
            return Some(self.pass(visit, Reason::TooLarge.name()).await);
        }
        if !led && !visit.class.may_have(object.life.is_for_all()) {
            return Some(self.pass(visit, "authorization").await);
        }
        let outcome = match (led, *revalidated) {
            (_, true) => Outcome::Revalidated,
            (true, false) => Outcome::Miss,
            (false, false) => Outcome::Joined,
        };
        let origin = if *revalidated { StatusCode::NOT_MODIFIED } else { object.head().status() };
        let cache = cache_status(outcome, "", Some(origin), *stored);
        let object = Arc::clone(object);
        Some(visit.deliver(Choice { object, outcome, detail: "", cache }, self.env.now()))
    }

    /// A failure that is remembered for this request.
    fn known_failure(&self, visit: &Visit<'_>, found: &Found) -> Option<Arc<Failure>> {
        let known = match &found.variant {
            Some(place) => self.failures.peek(place as &dyn AsKey),
            None => self.failures.peek(&visit.key as &dyn AsKey),
        };
        known.map(|got| got.value)
    }

    /// Why a request that could be shared goes by itself, if it does.
    fn passes(&self, visit: &Visit<'_>, found: &Found, alone: bool) -> Option<&'static str> {
        if self.afloat.is_full() {
            return Some("memory");
        }
        if alone || found.object.is_some() {
            return None;
        }
        if self.private.knows(private_key(&visit.class, visit.key.hash()), visit.arrived) {
            return Some("private");
        }
        self.learned.is_private(visit.template(self)).then_some("private-route")
    }

    /// The origin failed.
    pub(super) fn not_served(
        &self,
        visit: &Visit<'_>,
        spare: Option<&Arc<Object>>,
        failure: &Failure,
        led: bool,
    ) -> Served {
        if let Some(object) = spare {
            return visit.stale(object, "origin-failed", self.env.now());
        }
        if led && let Some(response) = failure.take() {
            let mut served = visit.passed(response, "origin-failed");
            served.outcome = Outcome::Failed;
            return served;
        }
        let (outcome, after) = match &failure.what {
            Fault::Refused(refusal) => (Outcome::Shed, Some(self.appointment(refusal.after))),
            Fault::Status | Fault::Silent(_) => {
                (Outcome::Failed, failure.until.map(|until| self.spread(until - visit.arrived)))
            }
        };
        Served::own(outcome, outcome.name(), failure.status, &failure.what.to_string(), after)
    }

    /// No answer in time.
    fn gave_up(&self, visit: &Visit<'_>, spare: Option<&Arc<Object>>, error: &FlightError<Infallible>) -> Served {
        if let Some(object) = spare {
            // If the origin answers after all, what it says takes this one's place; if it fails, somebody asks again.
            object.slow();
            return visit.stale(object, "origin-slow", self.env.now());
        }
        let (status, detail) = match error {
            FlightError::Deadline => (StatusCode::SERVICE_UNAVAILABLE, "waited-too-long"),
            FlightError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "too-many-wait"),
            _ => (StatusCode::BAD_GATEWAY, "abandoned"),
        };
        Served::own(Outcome::Shed, detail, status, &error.to_string(), Some(self.appointment(None)))
    }

    /// When somebody who was refused is to come back; nobody else is told the same instant.
    pub(super) fn appointment(&self, known: Option<Duration>) -> Duration {
        known.unwrap_or_else(|| self.appointments.book(&Ask::new(&self.env), None))
    }

    /// Not at once when it is over: spread over as long again, and a second at least.
    fn spread(&self, after: Duration) -> Duration {
        after + self.rng.between(Duration::ZERO, after.max(Duration::from_secs(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_as_long_as_can_be_for_what_took_longer_than_that() {
        let millis = Duration::from_millis;
        for (took, wait) in [(0, 50), (10, 50), (80, 320), (250, 1_000), (999, 1_000), (1_000, 50), (10_000, 50)] {
            assert_eq!(patience(millis(took)), millis(wait), "{took} ms");
        }
        assert_eq!(patience(Duration::MAX), SHORTEST);
    }
}
