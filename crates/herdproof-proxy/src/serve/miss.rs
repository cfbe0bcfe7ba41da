//! What is not there, or has to be asked about: with everybody else who wants it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use herdproof::{
    Tick,
    flight::{FlightError, Landed as Flown},
    gate::{Ask, Why},
    timeout::by,
};
use http::StatusCode;

use super::{Core, Served, Visit, visit::Choice};
use crate::{
    access::Outcome,
    cache_status::{PROXY_STATUS, cache_status, proxy_status},
    detail::Detail,
    failing::{By, Ended, Known, Next, Start},
    fill::{Failure, Fault, Kind, Landed, Shared, private_key},
    key::Key,
    learn::width,
    object::Object,
    policy::{Life, Reason, Use, Way},
    store::Found,
    widen::{Came, Going, Turn},
};

/// How often a request looks up anew: because what it waited for was another variant; or because it failed, and then a request
/// of our own failed in another way, and then one of two clients did.
const ROUNDS: u32 = 5;

/// The longest and the shortest wait for the origin if there is something to serve instead. What the origin did not allow to be
/// served stale is served so only if the origin does not answer (RFC 9111 4.2.4): a busy moment of it is no such thing.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(500);
/// How long to see whether it has recovered.
const GLANCE: Duration = Duration::from_millis(50);

/// How long to wait for the origin if there is something to serve instead: a few times as long as it took the last time. If
/// that was longer than anybody would wait, waiting is most likely in vain, and it is enough to see whether it has recovered.
fn patience(took: Duration) -> Duration {
    if took < LONGEST { took.saturating_mul(4).clamp(SHORTEST, LONGEST) } else { GLANCE }
}

/// What a request has learned of its page while it waited.
#[derive(Default)]
struct Learned {
    /// Why it is for one only, if it is.
    private: Option<Detail>,
    /// Why it did not go with all others that ask for it.
    apart: Detail,
    /// How it failed for somebody else.
    failed: Option<Arc<Failure>>,
}

/// Why a request goes by itself, and how many of its key may at a time.
#[derive(Clone, Copy, Debug)]
struct Apart {
    why: Detail,
    width: u32,
}

/// Until when to wait for the origin: not for long if there is something to serve instead. Not so if that was changed by a request
/// that succeeded: only an origin that fails, or says nothing until the latest moment, has what was before the change served.
fn waits_until(spare: Option<&Life>, now: Tick, latest: Tick) -> Tick {
    match spare {
        Some(life) if !life.is_changed() => now + patience(life.load()),
        _ => latest,
    }
}

impl Core {
    /// Asks the origin, with others if that may be.
    pub(super) async fn miss(self: &Arc<Core>, visit: &Visit<'_>, mut found: Found) -> Served {
        if let Some(served) = self.turned_away(visit) {
            return served;
        }
        if let Some(object) = self.kept_for(&visit.key, visit.who, &visit.parts.headers, &visit.class.asked)
            && visit.class.may_have(&object.life)
        {
            return visit.deliver(Choice::new(&object, Outcome::Hit, Detail::OwnError), visit.arrived);
        }
        let mut learned = Learned::default();
        for _ in 0..ROUNDS {
            let now = self.env.now();
            let prior = found.object.as_ref().filter(|object| visit.class.may_have(&object.life));
            let usage = prior.map(|object| object.life.at(now, &visit.class.asked));
            // What may be served if the origin cannot be asked.
            let spare =
                prior.filter(|_| matches!(usage, Some(Use::IfError | Use::StaleWhile | Use::StaleAsked))).cloned();
            if visit.class.asked.only_if_cached() {
                return Served::own(
                    Outcome::Failed,
                    Detail::OnlyIfCached,
                    StatusCode::GATEWAY_TIMEOUT,
                    "nothing is kept that may be served",
                    None,
                );
            }
            let alone = usage == Some(Use::Alone)
                || visit.class.way() == Way::Alone && !prior.is_some_and(|object| object.life.is_for_all());
            let apart = self.apart(visit, &found, alone, learned.private);
            let shares = !alone && apart.is_none();
            let started = if shares { self.start(visit, &found, now).await } else { Ok(Kind::Alone) };
            let kind = match started {
                Ok(kind) => kind,
                Err(known) => return self.not_served(visit, spare.as_ref(), &Failure::known(known), false),
            };
            if let Some((object, why)) = spare.as_ref().and_then(|object| Some((object, object.rests(now)?))) {
                return visit.stale(object, why, now);
            }
            if let Some(object) = spare.as_ref().filter(|object| object.is_slow()) {
                return visit.stale(object, Detail::OriginSlow, now);
            }
            let until = waits_until(spare.as_ref().map(|object| &object.life), now, visit.arrived + self.settings.wait);
            let waiting = self.metrics.wait();
            learned.apart = apart.map_or(Detail::None, |apart| apart.why);
            let turn = match apart {
                Some(apart) => self.turn(visit, apart, until).await.map(Some),
                None => Some(None),
            };
            let mut going = match turn {
                // Something that can be shared has come for another: it is looked for below.
                Some(Some(Turn::Look)) => {
                    drop(waiting);
                    // What was private for one may be for all after all.
                    learned.private = None;
                    match self.hit(visit) {
                        Ok(choice) => return visit.deliver(choice, self.env.now()),
                        Err(again) => found = again,
                    }
                    continue;
                }
                Some(Some(Turn::Ask(going))) => Some(going),
                Some(None) => None,
                None => return self.gave_up(visit, spare.as_ref(), &FlightError::Deadline),
            };
            if let Some(Apart { why, .. }) = apart.filter(|apart| visit.wants_its_own(apart.width)) {
                return self.pass(visit, why).await;
            }
            let flown = self.fly(visit, &found, prior, kind).by(until).await;
            drop(waiting);
            if let (Some(Apart { why: Detail::Learned, .. }), Ok(Flown { value: Landed::Failed(failure), .. })) =
                (apart, &flown)
            {
                self.failed_at_the_gate(visit, &found, failure, going.take());
            }
            match flown {
                Ok(flown) => {
                    if let Some(served) = self.landed(visit, spare.as_ref(), flown, going, &mut learned) {
                        return served;
                    }
                }
                Err(error) => return self.gave_up(visit, spare.as_ref(), &error),
            }
            // As if it had come just now: all that holds for a hit holds here.
            match self.hit(visit) {
                Ok(choice) => return visit.deliver(choice, self.env.now()),
                Err(again) => found = again,
            }
        }
        match learned.failed {
            Some(failure) => self.not_served(visit, None, &failure, false),
            None => self.pass(visit, Detail::Vary).await,
        }
    }

    /// Whether the origin may be asked with others, after what it has just done with this URL; and waits for its turn if this client
    /// is to ask by itself.
    async fn start(&self, visit: &Visit<'_>, found: &Found, now: Tick) -> Result<Kind, Known> {
        let key = found.variant.as_ref().map_or(visit.key.hash(), Key::hash);
        match self.failing.start(key, now, visit.who.key()) {
            Start::Known(known) => Err(known),
            Start::Ask { .. } => Ok(Kind::Miss),
            Start::Aside { at } => {
                self.env.sleep_until(at).await;
                Ok(Kind::Alone)
            }
        }
    }

    /// Waits until it may go by itself; none if that takes too long.
    async fn turn(&self, visit: &Visit<'_>, apart: Apart, until: Tick) -> Option<Turn> {
        let key = private_key(&visit.class, visit.key.hash());
        by(&self.env, Some(until), self.widening.enter(key, visit.who.key(), apart.width)).await
    }

    /// A page failed that was taken for private only because of its route. All other clients at the gate wait for the result of a
    /// request of our own, as for any page.
    fn failed_at_the_gate(&self, visit: &Visit<'_>, found: &Found, failure: &Failure, going: Option<Going>) {
        if matches!(failure.what, Fault::Refused(_)) {
            return;
        }
        let key = found.variant.as_ref().map_or(visit.key.hash(), Key::hash);
        let ended = Ended::Status(failure.status, None);
        let by = By::Client(visit.who.key());
        let others = going.as_ref().is_some_and(Going::has_others);
        self.failing.ended(key, self.env.now(), by, ended, others, (&self.settings.failed, self.rng.unit()));
        if let Some(going) = going {
            going.came(Came::Failed);
        }
    }

    /// What a request is answered with, now that its flight has landed; none if it has to look again.
    fn landed(
        &self,
        visit: &Visit<'_>,
        spare: Option<&Arc<Object>>,
        flown: Flown<Landed>,
        going: Option<Going>,
        learned: &mut Learned,
    ) -> Option<Served> {
        let Flown { value, led, .. } = flown;
        match value {
            Landed::Shared(shared) => {
                if let Some(going) = going {
                    going.came(Came::Shareable);
                }
                self.shared(visit, &shared, led, learned)
            }
            Landed::Own(answer) if led => {
                if let Some(going) = going {
                    going.came(Came::Private);
                }
                let why = answer.why.into();
                match answer.take() {
                    Some(taken) => Some(visit.answered(taken, why, answer.took, self.env.now())),
                    // It answered a request of our own, or nobody knows what.
                    None => {
                        learned.private = Some(why);
                        None
                    }
                }
            }
            Landed::Own(answer) => {
                if let (Reason::Overload, Some(object)) = (answer.why, spare) {
                    return Some(visit.stale(object, answer.why.into(), self.env.now()));
                }
                // What was for a user who said so may be for all who do not: those ask again, together. So do all after an answer that may
                // be about how one request was put.
                if !answer.is_doubtful && (!answer.for_a_user || visit.class.has_credentials()) {
                    learned.private = Some(answer.why.into());
                }
                None
            }
            Landed::Failed(failure) => {
                // The failure of a client's own request is that client's, and so is its place in the line.
                let is_anothers = matches!(&failure.what, Fault::Refused(refusal) if refusal.why != Why::Tripped);
                let goes_on = (failure.next == Some(Next::Again) || is_anothers) && (!led || failure.is_ours);
                if !goes_on {
                    return Some(self.not_served(visit, spare, &failure, led));
                }
                learned.failed = Some(failure);
                None
            }
        }
    }

    /// What has come for all who may have it, if this request may.
    fn shared(&self, visit: &Visit<'_>, shared: &Shared, led: bool, learned: &mut Learned) -> Option<Served> {
        let Shared { object, variant, revalidated, stored, is_ours, took } = shared;
        // It answers the very request that it was asked for with.
        let is_its_own = led && !is_ours;
        let fits = variant.as_ref().is_none_or(|(spec, variant)| spec.matches(variant, &visit.parts.headers));
        if !is_its_own && (!fits || object.is_broken()) {
            return None;
        }
        if !is_its_own && !object.has_beginning() {
            learned.private = Some(Detail::TooLarge);
            return None;
        }
        if !is_its_own && !visit.class.may_have(&object.life) {
            let is_for_cookies = object.life.is_for_cookies();
            learned.private = Some(if is_for_cookies { Detail::Authorization } else { Detail::Cookie });
            return None;
        }
        let outcome = match (led, *revalidated) {
            (_, true) => Outcome::Revalidated,
            (true, false) => Outcome::Miss,
            (false, false) => Outcome::Joined,
        };
        let origin = if *revalidated { StatusCode::NOT_MODIFIED } else { object.head().status() };
        // It could be shared, but others may have asked for it at the same time.
        let detail = if learned.apart == Detail::Learned { Detail::Learned } else { Detail::None };
        let cache = cache_status(outcome, detail, Some(origin), *stored);
        let object = Arc::clone(object);
        Some(visit.deliver(Choice { object, outcome, detail, cache, origin: *took }, self.env.now()))
    }

    /// Whether a request goes by itself, and not before so many others.
    fn apart(&self, visit: &Visit<'_>, found: &Found, alone: bool, private: Option<Detail>) -> Option<Apart> {
        let known = || self.private.known(private_key(&visit.class, visit.key.hash()), self.env.now());
        if let Some(why) = private {
            return Some(Apart { why, width: width(known().map_or(0, |(times, _)| times)) });
        }
        // While anything is kept of it that this request may have, it can be shared.
        if found.object.as_ref().is_some_and(|object| visit.class.may_have(&object.life)) {
            return None;
        }
        if let Some((times, why)) = known() {
            return Some(Apart { why, width: width(times) });
        }
        if alone {
            return Some(Apart { why: Detail::Authorization, width: width(0) });
        }
        // One may be under way from before the route was learned; and where one has failed, the others wait for what a request of our
        // own finds.
        let is_learned = self.learned.is_private(visit.template(self));
        let has_failed = is_learned && self.failing.knows(found.variant.as_ref().map_or(visit.key.hash(), Key::hash));
        (is_learned && !has_failed).then_some(Apart { why: Detail::Learned, width: width(0) - 1 })
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
            let mut served = visit.stale(object, failure.detail(), self.env.now());
            served.origin = failure.took;
            return served;
        }
        if led && let Some(answer) = failure.take() {
            // An error that says it may be kept, to a request that does not speak for others, is that request's own.
            if !failure.status.is_server_error() {
                return visit.answered(answer, Detail::Status, failure.took, self.env.now());
            }
            let mut served = visit.answered(answer, Detail::OriginFailed, failure.took, self.env.now());
            served.outcome = Outcome::Failed;
            return served;
        }
        let (outcome, after) = match &failure.what {
            Fault::Refused(refusal) => (Outcome::Shed, Some(self.appointment(refusal.after))),
            Fault::Status | Fault::Lately | Fault::Declined | Fault::Silent(_) => {
                (Outcome::Failed, failure.until().map(|until| self.spread(until - visit.arrived)))
            }
        };
        let mut served = match failure.what {
            Fault::Silent(error) => {
                let mut served = Served::own(outcome, error, failure.status, error.name(), after);
                served.response.headers_mut().insert(PROXY_STATUS, proxy_status(error));
                served
            }
            Fault::Lately => {
                Served::own(outcome, Detail::FailedLately, failure.status, &failure.what.to_string(), after)
            }
            _ => Served::own(outcome, failure.detail(), failure.status, &failure.what.to_string(), after),
        };
        served.origin = failure.took;
        served
    }

    /// No answer in time.
    fn gave_up(&self, visit: &Visit<'_>, spare: Option<&Arc<Object>>, error: &FlightError<Infallible>) -> Served {
        if let Some(object) = spare {
            // If the origin answers after all, what it says takes this one's place; if it fails, somebody asks again.
            object.slow();
            return visit.stale(object, Detail::OriginSlow, self.env.now());
        }
        let (status, detail) = match error {
            FlightError::Deadline => (StatusCode::SERVICE_UNAVAILABLE, Detail::WaitedTooLong),
            FlightError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, Detail::TooManyWait),
            _ => (StatusCode::BAD_GATEWAY, Detail::Abandoned),
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
    use std::time::UNIX_EPOCH;

    use http::HeaderMap;

    use super::*;
    use crate::policy::{Draws, Route, Terms, Times};

    #[test]
    fn nobody_waits_as_long_as_can_be_for_what_took_longer_than_that() {
        let millis = Duration::from_millis;
        for (took, wait) in [(0, 500), (10, 500), (130, 520), (250, 1_000), (999, 1_000), (1_000, 50), (10_000, 50)] {
            assert_eq!(patience(millis(took)), millis(wait), "{took} ms");
        }
        assert_eq!(patience(Duration::MAX), GLANCE);
    }

    #[test]
    fn what_has_changed_is_not_served_as_it_was_because_the_origin_is_slow() {
        let terms = Terms::read(StatusCode::OK, &HeaderMap::new());
        let times = Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH };
        let life = Life::begin(&terms, &Route::default(), &times, Draws::default());
        let latest = Tick::ZERO + Duration::from_secs(30);
        assert_eq!(waits_until(Some(&life), Tick::ZERO, latest), Tick::ZERO + SHORTEST);
        assert_eq!(waits_until(Some(&life.changed(Tick::ZERO)), Tick::ZERO, latest), latest);
        assert_eq!(waits_until(None, Tick::ZERO, latest), latest);
    }
}
