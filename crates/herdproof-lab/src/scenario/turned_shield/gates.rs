//! What every request to the origin passes.

use std::{sync::Arc, time::Duration};

use herdproof::{
    Breaker, Env, Sim, Tick,
    gate::{Ask, Gate, Permit, Span, Verdict, guard, result},
    shed::Queue,
};
use herdproof_proxy::Settings as Proxy;

use super::{
    Knobs, LAST,
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

/// Who has the next seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seats {
    /// Whoever is next in the one line for all.
    OneLine,
    /// Whoever holds fewest, and nobody more than four times as many as are free.
    Fair,
}

/// A wait for a seat that is fine, as in the proxy.
const FINE: Duration = Duration::from_millis(100);
/// How long the attacker waits after it was refused.
const AGAIN: Duration = Duration::from_millis(100);

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

/// Users at pages of their own, and a client that always has so many requests under way that take long.
pub(super) fn seats(seed: u64, knobs: Knobs, seats: Seats, tap: Tap) -> Outcome {
    let sim = Sim::new(seed);
    let env = sim.env();
    // What limits are the seats.
    let origin = Origin::new(&env, Plan::new(usize::MAX, knobs.load), tap);
    let users = Users::default();
    let proxy = Proxy::default().origin;
    let queue = Queue::builder(&env, u32::try_from(knobs.workers).unwrap_or(u32::MAX));
    let queue = queue.line(proxy.line).patience(proxy.queue_wait).target(FINE);
    let queue = match seats {
        Seats::OneLine => queue,
        Seats::Fair => queue.fair(),
    };
    let queue = queue.build();
    for _ in 0..knobs.slow_calls {
        let (clock, origin, queue) = (env.clone(), origin.clone(), queue.clone());
        env.spawn(async move {
            while clock.now() < Tick::ZERO + LAST {
                if !seated(&clock, &queue, &origin, ATTACKER, Work::Slow(knobs.slow_load)).await {
                    clock.sleep(AGAIN).await;
                }
            }
        })
        .detach();
    }
    {
        let (clock, origin, users) = (env.clone(), origin.clone(), users.clone());
        visits(&env, knobs, move |user| {
            let (env, queue, origin) = (clock.clone(), queue.clone(), origin.clone());
            users.come(&clock, async move { seated(&env, &queue, &origin, user, Work::Load).await });
        });
    }
    end(sim, &origin, &users)
}

/// Waits for a seat and asks the origin; whether it was served.
async fn seated(env: &Env, queue: &Queue, origin: &Origin, client: u64, work: Work) -> bool {
    let ask = Ask::new(env).user(client);
    let call = || async { origin.call(client, Caller::of(client, "/pages"), work).await.then_some(()).ok_or(()) };
    guard(env, queue, result, ask, call).await.is_ok()
}
