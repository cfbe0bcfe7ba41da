//! One page, and a client whose header makes it fail.

use std::{convert::Infallible, sync::Arc};

use herdproof::{
    Env, Group, Sim, Tick,
    env::Rng,
    flight::{Landed as Flown, Landing},
};
use herdproof_proxy::{
    Settings as Proxy,
    failing::{By, Ended, Failing, Next, Own, Start},
};
use hyper::StatusCode;
use parking_lot::Mutex;

use super::{
    Knobs,
    world::{ATTACKER, Origin, Outcome, PROXY, Users, Work, attack, end, herds, visits},
};
use crate::{
    log::{Caller, Tap},
    service::Plan,
};

/// The page's hash.
const PAGE: u64 = 7;
/// The one address that everybody has, where there is only one.
const NAT: u64 = 1;
/// As many as the proxy has.
const ROUNDS: u32 = 5;

/// What is done with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is everybody's who waits, and everybody's who comes in the next one or two seconds.
    Shared,
    /// It is the client's, until a request of our own has failed too.
    Own,
}

/// Who asks for the page, and what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    /// Users one by one, and the attacker; it answers well to all but that one.
    ForOne,
    /// The same, with one address for everybody.
    BehindOneAddress,
    /// As the first, and it fails at once for everybody.
    ForAll,
    /// Users in herds, and it fails for everybody after a while.
    ForHerds,
}

/// A cache before the origin, as far as one page goes. The proxy's own decisions, with as little around them as makes them run.
struct Door {
    env: Env,
    origin: Origin,
    memory: Memory,
    knobs: Knobs,
    flights: Group<u64, Landed>,
    failing: Failing,
    settings: Proxy,
    rng: Rng,
    kept: Mutex<Kept>,
}

/// What is kept of the page.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// Until when its response is fresh.
    fresh_until: Tick,
    /// Until when it is remembered as failing, where everybody's failure is.
    fails_until: Tick,
}

/// What became of a request, for those who waited for it.
#[derive(Clone, Copy, Debug)]
enum Landed {
    Served,
    /// Whether it was a request of our own, and what those do whom the answer is not for.
    Failed {
        ours: bool,
        next: Next,
    },
}

/// A request for the page.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: u64,
    caller: Caller,
    /// What it makes the origin do, and what one of our own would.
    work: Work,
    own: Work,
}

/// Runs it, to the end.
pub(super) fn run(seed: u64, knobs: Knobs, memory: Memory, fails: Fails, tap: Tap) -> Outcome {
    let sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::new(&env, Plan::new(knobs.workers, knobs.load), tap);
    let users = Users::default();
    let door = Arc::new(Door {
        env: env.clone(),
        origin: origin.clone(),
        memory,
        knobs,
        flights: Group::new(&env),
        failing: Failing::new(),
        settings: Proxy::default(),
        rng: env.rng("proxy"),
        kept: Mutex::default(),
    });
    let good = match fails {
        Fails::ForOne | Fails::BehindOneAddress => Work::Load,
        Fails::ForAll => Work::Choke,
        Fails::ForHerds => Work::LoadInVain,
    };
    let visit = {
        let (env, door, users) = (env.clone(), Arc::clone(&door), users.clone());
        move |caller: Caller, client: u64| {
            users.come(&env, Arc::clone(&door).serve(Request { client, caller, work: good, own: good }));
        }
    };
    if fails == Fails::ForHerds {
        herds(&env, knobs.herd, move |herd, user| {
            let wave = u32::try_from(herd).unwrap_or(u32::MAX);
            visit(Caller::of(user, "/page").in_wave("burst", wave), user);
        });
    } else {
        let client = move |user| if fails == Fails::BehindOneAddress { NAT } else { user };
        visits(&env, knobs, move |user| visit(Caller::of(user, "/page"), client(user)));
        let client = if fails == Fails::BehindOneAddress { NAT } else { ATTACKER };
        let request = Request { client, caller: Caller::of(ATTACKER, "/page"), work: Work::Choke, own: good };
        attack(&env, knobs, move |_| Arc::clone(&door).serve(request));
    }
    end(sim, &origin, &users)
}

impl Door {
    /// As `serve/miss.rs`: whether it is served.
    async fn serve(self: Arc<Door>, request: Request) -> bool {
        for _ in 0..ROUNDS {
            let now = self.env.now();
            let kept = *self.kept.lock();
            if now < kept.fresh_until {
                return true;
            }
            if now < kept.fails_until {
                return false;
            }
            let mut key = PAGE;
            if self.memory == Memory::Own {
                match self.failing.start(PAGE, now, request.client) {
                    Start::Known(_) => return false,
                    Start::Aside { at } => {
                        self.env.sleep_until(at).await;
                        key = self.rng.bits();
                    }
                    Start::Ask { .. } => {}
                }
            }
            let flight = self.flights.run_landing(key, |landing| Arc::clone(&self).fill(request, key == PAGE, landing));
            match flight.by(now + self.settings.wait).await {
                Ok(Flown { value: Landed::Served, .. }) => return true,
                Ok(Flown { value: Landed::Failed { ours, next }, led, .. }) => {
                    if next != Next::Again || led && !ours {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// As `fill.rs`: one request to the origin, for all who wait for it.
    async fn fill(
        self: Arc<Door>,
        request: Request,
        together: bool,
        landing: Landing<Landed, Infallible>,
    ) -> Result<(), Infallible> {
        let Request { client, caller, .. } = request;
        let mut by = By::Client(client);
        if together && self.memory == Memory::Own {
            let now = self.env.now();
            let (at, own) = match self.failing.start(PAGE, now, client) {
                Start::Known(known) => {
                    landing.land_and_end(Landed::Failed { ours: false, next: Next::Fail(known.until) });
                    return Ok(());
                }
                Start::Ask { at, own, .. } => (at, own),
                Start::Aside { at } => (at, Own::No),
            };
            let now = self.env.sleep_until(at).await;
            if now < self.kept.lock().fresh_until {
                landing.land_and_end(Landed::Served);
                return Ok(());
            }
            if own == Own::Yes || own == Own::IfShared && landing.aboard() > 1 {
                by = By::Proxy;
            }
        }
        let served = match by {
            By::Proxy => self.origin.call(PROXY, caller, request.own).await,
            By::Client(client) => self.origin.call(client, caller, request.work).await,
        };
        let now = self.env.now();
        let others = landing.aboard() > 1;
        let rest = (&self.settings.failed, self.rng.unit());
        if served {
            self.kept.lock().fresh_until = now + self.knobs.fresh;
            if together && self.memory == Memory::Own {
                self.failing.ended(PAGE, now, by, Ended::Well, others, rest);
            }
            landing.land_and_end(Landed::Served);
            return Ok(());
        }
        let next = match self.memory {
            Memory::Shared => {
                let fails_until = now + self.rng.between(self.settings.failed.start, self.settings.failed.end);
                self.kept.lock().fails_until = fails_until;
                Next::Fail(fails_until)
            }
            Memory::Own if together => {
                let error = Ended::Status(StatusCode::INTERNAL_SERVER_ERROR, None);
                self.failing.ended(PAGE, now, by, error, others, rest)
            }
            Memory::Own => Next::Again,
        };
        landing.land_and_end(Landed::Failed { ours: by == By::Proxy, next });
        Ok(())
    }
}

/// The percentage of users who fail where everybody's failure is everybody's, by arithmetic: whoever comes first after the page or
/// the memory of its failure has lapsed decides for all who come until the next lapse.
pub(super) fn shared_by_arithmetic(knobs: Knobs) -> f64 {
    let Knobs { attack, users, load, fresh, .. } = knobs;
    let attacker_first = attack / (attack + users);
    // Remembered for one to two seconds.
    let failed = attacker_first * users * 1.5;
    let served = (1.0 - attacker_first) * (1.0 + users * (load + fresh).as_secs_f64());
    100.0 * failed / (failed + served)
}

/// The same as it comes out, over enough runs that chance does not decide.
pub(super) fn shared_by_runs(seed: u64, knobs: Knobs) -> f64 {
    let runs =
        (0..16).map(|number| run(seed.wrapping_add(number), knobs, Memory::Shared, Fails::ForOne, Tap::default()));
    let (failed, users) = runs.fold((0, 0), |(failed, users), run| (failed + run.failed(), users + run.users()));
    100.0 * failed as f64 / users.max(1) as f64
}
