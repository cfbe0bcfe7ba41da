//! The outside world: an origin, one client that means harm, and all others.

use std::{sync::Arc, time::Duration};

use herdproof::{Env, Sim, Tick};
use parking_lot::Mutex;

use super::{Knobs, LAST, SECOND};
use crate::{
    arrivals::poisson,
    log::{Caller, Tap},
    report::{Arm, Figure, Waits},
    service::{Plan, Service},
    timeline::Timeline,
};

/// The attacker's key; all other clients have a number from one on.
pub(super) const ATTACKER: u64 = u64::MAX;
/// Whose headers a request of the proxy's own has: nobody's.
pub(super) const PROXY: u64 = 0;

/// How many herds there are in a run, where users come in herds.
pub(super) const HERDS: u64 = 5;

/// What a request has to do with the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It is worked on, and answered well.
    Load,
    /// It is worked on, and answered by 500.
    LoadInVain,
    /// A header that the origin cannot bear: 500 at once.
    Choke,
    /// An answer for this client only, at once.
    Trifle,
    /// It takes so long, whatever else there is to do.
    Slow(Duration),
    /// No connection.
    Unreachable,
}

/// An origin that can work on so much at a time. Clones share.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    env: Env,
    service: Service,
    tap: Tap,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// A request that reached it.
#[derive(Clone, Copy, Debug)]
struct Call {
    at: Tick,
    /// Whether it had the attacker's headers.
    of_attacker: bool,
}

/// What the others got. Clones share.
#[derive(Clone, Debug, Default)]
pub(super) struct Users(Arc<Mutex<Vec<(bool, Duration)>>>);

/// What came of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    calls: Vec<Call>,
    users: Vec<(bool, Duration)>,
}

impl Origin {
    pub(super) fn new(env: &Env, plan: Plan, tap: Tap) -> Origin {
        let service = Service::new(env, "origin", SECOND, plan);
        Origin { env: env.clone(), service, tap, calls: Arc::default() }
    }

    /// A request with the headers of this client; whether the answer is no error.
    pub(super) async fn call(&self, client: u64, caller: Caller, work: Work) -> bool {
        self.calls.lock().push(Call { at: self.env.now(), of_attacker: client == ATTACKER });
        let underway = self.tap.begin(&self.env, caller);
        let status = match work {
            Work::Load | Work::LoadInVain if self.service.call().await.is_err() => 503,
            Work::Slow(time) => {
                self.env.sleep(time).await;
                200
            }
            Work::Load | Work::Trifle => 200,
            Work::LoadInVain | Work::Choke => 500,
            Work::Unreachable => 502,
        };
        underway.end(status);
        status == 200
    }
}

impl Users {
    /// Lets a user do this, and writes down whether it was served, and when.
    pub(super) fn come(&self, env: &Env, asks: impl Future<Output = bool> + Send + 'static) {
        let (users, clock, came) = (self.clone(), env.clone(), env.now());
        let task = env.spawn(async move {
            let served = asks.await;
            users.0.lock().push((served, clock.now() - came));
        });
        task.detach();
    }
}

/// Lets one client ask at a rate, from the first instant to the last.
pub(super) fn attack<F>(env: &Env, knobs: Knobs, request: impl Fn(u64) -> F + Send + Sync + 'static)
where
    F: Future<Output = bool> + Send + 'static,
{
    let (clock, rng, rate) = (env.clone(), env.rng("attacker"), knobs.attack);
    env.spawn(async move {
        let spawn = |number| clock.spawn(request(number)).detach();
        poisson(&clock, &rng, Tick::ZERO + LAST, |_| rate, spawn).await;
    })
    .detach();
}

/// Lets users come one by one. Each has a number of its own.
pub(super) fn visits(env: &Env, knobs: Knobs, visit: impl Fn(u64) + Send + Sync + 'static) {
    let (clock, rng, rate) = (env.clone(), env.rng("users"), knobs.users);
    env.spawn(async move { poisson(&clock, &rng, Tick::ZERO + LAST, |_| rate, |user| visit(user + 1)).await }).detach();
}

/// Lets users come in herds, one each five seconds. The first number is the herd's, the second the user's.
pub(super) fn herds(env: &Env, size: u64, visit: impl Fn(u64, u64) + Send + 'static) {
    let clock = env.clone();
    env.spawn(async move {
        for herd in 0..HERDS {
            clock.sleep(SECOND * 5).await;
            (1..=size).for_each(|user| visit(herd, user));
        }
    })
    .detach();
}

/// Lets it all happen.
pub(super) fn end(mut sim: Sim, origin: &Origin, users: &Users) -> Outcome {
    sim.finish().expect("everybody is answered");
    Outcome { calls: std::mem::take(&mut origin.calls.lock()), users: std::mem::take(&mut users.0.lock()) }
}

impl Outcome {
    /// Requests at the origin.
    pub(super) fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Those with other headers than the attacker's.
    pub(super) fn for_users(&self) -> u64 {
        self.calls.iter().filter(|call| !call.of_attacker).count() as u64
    }

    /// The most of them in any second, wherever it begins.
    pub(super) fn most_in_a_second(&self) -> u64 {
        let mut first = 0;
        let mut most = 0;
        for (place, call) in self.calls.iter().enumerate() {
            while self.calls[first].at + SECOND <= call.at {
                first += 1;
            }
            most = most.max(place + 1 - first);
        }
        most as u64
    }

    /// How many users were not served.
    pub(super) fn failed(&self) -> u64 {
        self.users.iter().filter(|(served, _)| !served).count() as u64
    }

    /// Of how many.
    pub(super) fn users(&self) -> u64 {
        self.users.len() as u64
    }

    /// The percentage of them.
    pub(super) fn failed_percent(&self) -> f64 {
        100.0 * self.failed() as f64 / self.users().max(1) as f64
    }

    /// What so many percent of the users who were served did not exceed.
    pub(super) fn wait(&self, percent: usize) -> Duration {
        let mut waits: Vec<Duration> = self.served().collect();
        waits.sort_unstable();
        let rank = (waits.len() * percent).div_ceil(100).max(1);
        waits.get(rank - 1).copied().unwrap_or_default()
    }

    fn served(&self) -> impl Iterator<Item = Duration> {
        self.users.iter().filter(|(served, _)| *served).map(|(_, waited)| *waited)
    }

    pub(super) fn arm(&self, name: &'static str) -> Arm {
        let mut timeline = Timeline::new(SECOND / 10);
        self.calls.iter().for_each(|call| timeline.record(call.at));
        let figures = vec![
            Figure::count("calls", "calls", self.calls()),
            Figure::count("calls_for_users", "for users", self.for_users()),
            Figure::count("most_calls_per_second", "worst/s", self.most_in_a_second()),
            Figure::count("users", "users", self.users()),
            Figure::number("users_failed_percent", "failed %", self.failed_percent()),
            Figure::time("p50_ms", "p50", self.wait(50)),
            Figure::time("p99_ms", "p99", self.wait(99)),
        ];
        Arm::new(name, figures, timeline).waits(Waits::of(self.served().collect()))
    }
}
