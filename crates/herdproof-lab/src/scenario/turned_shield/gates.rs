//! What every request to the origin passes.

use std::sync::Arc;

use herdproof::{
    Breaker, Env, Sim,
    gate::{Ask, Gate, Permit, Span, Verdict},
};

use super::{
    Knobs,
    world::{ATTACKER, Origin, Outcome, Users, Work, attack, end, visits},
};
use crate::{
    log::{Caller, Tap},
    service::Plan,
};

/// What the breaker takes for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Every answer of 5xx.
    Status,
    /// That there is no connection: no request can bring that about.
    Connection,
}

#[derive(Debug)]
struct Door {
    env: Env,
    origin: Origin,
    breaker: Breaker,
    fault: Fault,
}

/// Users at pages of their own, and a client whose requests fail. `is_there`: whether connections can be made.
pub(super) fn breaker(seed: u64, knobs: Knobs, fault: Fault, is_there: bool, tap: Tap) -> Outcome {
    let sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::new(&env, Plan::new(knobs.workers, knobs.load), tap);
    let users = Users::default();
    let door = Arc::new(Door { env: env.clone(), origin: origin.clone(), breaker: Breaker::new(&env), fault });
    let work = move |work| if is_there { work } else { Work::Unreachable };
    {
        let (clock, door, users) = (env.clone(), Arc::clone(&door), users.clone());
        visits(&env, knobs, move |user| users.come(&clock, Arc::clone(&door).serve(user, work(Work::Load))));
    }
    attack(&env, knobs, move |_| Arc::clone(&door).serve(ATTACKER, work(Work::Choke)));
    end(sim, &origin, &users)
}

impl Door {
    async fn serve(self: Arc<Door>, client: u64, work: Work) -> bool {
        let ask = Ask::new(&self.env).user(client);
        let Ok(permit) = self.breaker.try_enter(&ask) else { return false };
        let served = self.origin.call(client, Caller::of(client, "/pages"), work).await;
        let is_fault = match self.fault {
            Fault::Status => !served,
            Fault::Connection => work == Work::Unreachable,
        };
        let verdict = if is_fault { Verdict::Fault } else { Verdict::Ok };
        permit.settle(&verdict, Span { from: ask.at, to: self.env.now() });
        served
    }
}
