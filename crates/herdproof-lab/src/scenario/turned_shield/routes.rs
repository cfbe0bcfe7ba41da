//! Pages of a route that one client has taught to be private.

use std::sync::Arc;

use herdproof::{
    Env, Group, Sim,
    env::{MapHasher, Rng},
    flight::Landed as Flown,
};
use herdproof_proxy::{
    Detail, Settings as Proxy,
    learn::{Private, Routes, Template, memory, width},
    widen::{Came, Turn, Widening},
};
use parking_lot::Mutex;

use super::{
    Knobs,
    world::{ATTACKER, HERDS, Origin, Outcome, Users, Work, attack, end, herds},
};
use crate::{
    log::{Caller, Tap},
    service::{Plan, Times},
};

/// As many as the proxy has.
const ROUNDS: u32 = 5;

/// What is done with requests for what is probably private.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// They go to the origin, all of them.
    Open,
    /// Few at first, and more with each private response.
    Widening,
}

/// What the herds come for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Pages that can be shared, in a route of which one client has asked for private ones only.
    Shareable,
    /// Pages that are each user's own.
    Private,
}

struct Door {
    env: Env,
    origin: Origin,
    gate: Gate,
    flights: Group<u64, Came>,
    private: Private,
    routes: Routes<MapHasher>,
    widening: Widening,
    rng: Rng,
    kept: Mutex<Vec<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    client: u64,
    caller: Caller,
    key: u64,
    template: Template,
    work: Work,
    came: Came,
}

/// Runs it, to the end.
pub(super) fn run(seed: u64, knobs: Knobs, gate: Gate, page: Page, tap: Tap) -> Outcome {
    let sim = Sim::new(seed);
    let env = sim.env();
    let proxy = Proxy::default();
    let plan = match page {
        Page::Shareable => Plan::new(knobs.workers, knobs.load),
        // As many as the proxy lets in at a time, so that what differs is the gate.
        Page::Private => {
            let seats = usize::try_from(proxy.origin.limit).unwrap_or(usize::MAX);
            Plan { times: Times::Exponential, ..Plan::new(seats, knobs.private_load) }
        }
    };
    let origin = Origin::new(&env, plan, tap);
    let users = Users::default();
    let door = Arc::new(Door {
        env: env.clone(),
        origin: origin.clone(),
        gate,
        flights: Group::new(&env),
        private: Private::new(),
        routes: Routes::new(env.hasher("routes")),
        widening: Widening::new(&env, proxy.origin.limit),
        rng: env.rng("proxy"),
        kept: Mutex::default(),
    });
    let (size, came) = match page {
        Page::Shareable => (knobs.herd, Came::Shareable),
        Page::Private => (knobs.private_herd, Came::Private),
    };
    // Spread over all bits, as hashes are.
    let key = |item: u64| (item + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let template = |door: &Door, item: u64| door.routes.template("shop", &format!("/shop/{item}"), false);
    {
        let (clock, door, users) = (env.clone(), Arc::clone(&door), users.clone());
        herds(&env, size, move |herd, client| {
            let wave = u32::try_from(herd).unwrap_or(u32::MAX);
            let caller = Caller::of(client, "/shop").item(herd).in_wave("burst", wave);
            let template = template(&door, herd);
            let request = Request { client, caller, key: key(herd), template, work: Work::Load, came };
            users.come(&clock, Arc::clone(&door).serve(request));
        });
    }
    attack(&env, knobs, move |number| {
        let (client, item) = (ATTACKER, HERDS + number);
        let (caller, template) = (Caller::of(client, "/shop").item(item), template(&door, item));
        let request = Request { client, caller, key: key(item), template, work: Work::Trifle, came: Came::Private };
        Arc::clone(&door).serve(request)
    });
    end(sim, &origin, &users)
}

impl Door {
    /// As `serve/miss.rs`: whether it is served.
    async fn serve(self: Arc<Door>, request: Request) -> bool {
        let Request { client, key, template, .. } = request;
        let mut was_private = false;
        for _ in 0..ROUNDS {
            if self.kept.lock().contains(&key) {
                return true;
            }
            let times = self.private.times(key, self.env.now());
            let is_private = was_private || times.is_some() || self.routes.is_private(template);
            if is_private {
                if self.gate == Gate::Open {
                    self.load(request).await;
                    return true;
                }
                match self.widening.enter(key, client, width(times.unwrap_or(0))).await {
                    Turn::Ask(going) => {
                        self.load(request).await;
                        going.came(request.came);
                        return true;
                    }
                    Turn::Look => continue,
                }
            }
            let door = Arc::clone(&self);
            let flight = self.flights.run_landing(key, |landing| async move {
                door.load(request).await;
                landing.land_and_end(request.came);
                Ok(())
            });
            match flight.await {
                Ok(Flown { value: Came::Private, led: false, .. }) => was_private = true,
                answer => return answer.is_ok(),
            }
        }
        false
    }

    /// Asks the origin, and learns from what comes back.
    async fn load(&self, Request { client, caller, key, template, work, came }: Request) {
        self.origin.call(client, caller, work).await;
        let now = self.env.now();
        match came {
            Came::Shareable => {
                self.kept.lock().push(key);
                self.private.forget(key, now);
            }
            Came::Private => {
                self.private.remember(key, now, now + memory(self.rng.unit()), (client, false), Detail::Private);
            }
            // Nothing fails here.
            Came::Failed => {}
        }
        self.routes.learn(template, came == Came::Shareable, now);
    }
}
