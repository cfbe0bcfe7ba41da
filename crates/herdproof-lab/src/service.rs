//! A service: so many workers, and a line before them.
//!
//! What makes a herd last is work for nobody. A client that has given up is gone, but its request still stands in the line
//! and will be served; while the workers are busy with such requests the next clients give up too. So here a call that is
//! dropped is not taken out of the line, as in most real servers, and what was served for nobody is counted.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use herdproof::{Env, env::Rng};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    log::{Caller, Tap},
    network::normal,
    timeline::Timeline,
    tries::Tries,
};

/// A simulated service. Clones share; what it can do may be changed while it runs.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    rng: Rng,
    tap: Tap,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    busy: usize,
    line: VecDeque<Job>,
    tries: Tries,
    seen: Seen,
}

/// What a service can do at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many calls it works on at a time.
    pub workers: usize,
    /// How long a worker takes for one, on average.
    pub time: Duration,
    /// How single calls differ from that.
    pub times: Times,
    /// How many may stand in the line; those beyond are refused.
    pub line: usize,
    /// Whether it refuses everything at once.
    pub down: bool,
}

/// How long single calls take, as a distribution around the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// All the same.
    Constant,
    /// An exponential distribution.
    Exponential,
    /// A Pareto distribution: most are short and a few are very long.
    Pareto {
        /// How thin the tail is; above one.
        shape: f64,
    },
    /// A lognormal distribution.
    LogNormal {
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// Two kinds of calls, each of a time of its own.
    Bimodal {
        /// The share of the long ones.
        share: f64,
        /// How many times as long they are.
        longer: f64,
    },
}

/// Why a call was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The service is down.
    Down,
    /// The line is full.
    Full,
}

/// What has happened at a service.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When calls came, whatever became of them.
    pub calls: Timeline,
    /// When calls were served to somebody who was still waiting.
    pub served: Timeline,
    /// How many were served to nobody.
    pub wasted: u64,
    /// The longest that the line has been.
    pub longest_line: usize,
    /// The calls of known callers by which try they were: their first, their second, up to all later ones.
    pub tries: Vec<Timeline>,
}

#[derive(Debug)]
struct Job(oneshot::Sender<()>);

impl Plan {
    /// So many workers that take so long for a call, every time, and a line without end.
    pub const fn new(workers: usize, time: Duration) -> Plan {
        Plan { workers, time, times: Times::Constant, line: usize::MAX, down: false }
    }

    /// Calls that it can serve in a second.
    pub fn capacity(&self) -> f64 {
        self.workers as f64 / self.time.as_secs_f64()
    }
}

impl Times {
    /// A time as a multiple of the mean.
    fn draw(self, rng: &Rng) -> f64 {
        // One minus a number below one is never zero.
        let unit = || 1.0 - rng.unit();
        match self {
            Times::Constant => 1.0,
            Times::Exponential => -unit().ln(),
            Times::Pareto { shape } => (shape - 1.0) / shape * unit().powf(-1.0 / shape),
            Times::LogNormal { sigma } => (sigma * normal(rng) - sigma * sigma / 2.0).exp(),
            Times::Bimodal { share, longer } => {
                let short = 1.0 / (1.0 + share * (longer - 1.0));
                if rng.chance(share) { longer * short } else { short }
            }
        }
    }
}

impl Service {
    /// A service whose calls are counted in bins of this width. Its name is that of its random stream.
    pub fn new(env: &Env, name: &str, bin: Duration, plan: Plan) -> Service {
        Service::tapped(env, name, bin, plan, Tap::default())
    }

    /// The same, whose calls by known callers are written down there.
    pub(crate) fn tapped(env: &Env, name: &str, bin: Duration, plan: Plan, tap: Tap) -> Service {
        let seen = Seen {
            calls: Timeline::new(bin),
            served: Timeline::new(bin),
            wasted: 0,
            longest_line: 0,
            tries: Vec::new(),
        };
        let (line, tries) = (VecDeque::new(), Tries::new(bin));
        let state = Mutex::new(State { plan, busy: 0, line, tries, seen });
        Service(Arc::new(Inner { env: env.clone(), rng: env.rng(name), tap, state }))
    }

    /// Changes what it can do. Those being served are served as they would have been.
    pub fn change(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.0.state.lock().plan);
        self.put_to_work();
    }

    /// What it can do at the moment.
    pub fn plan(&self) -> Plan {
        self.0.state.lock().plan
    }

    /// What has happened so far.
    pub fn seen(&self) -> Seen {
        let state = self.0.state.lock();
        Seen { tries: state.tries.seen(), ..state.seen.clone() }
    }

    /// How many stand in the line or are being served.
    pub fn in_flight(&self) -> usize {
        let state = self.0.state.lock();
        state.busy + state.line.len()
    }

    /// Stands in the line and is served. Dropped before, it is served all the same, to nobody.
    pub async fn call(&self) -> Result<(), Unserved> {
        let (job, served) = oneshot::channel();
        {
            let mut state = self.0.state.lock();
            state.seen.calls.record(self.0.env.now());
            if state.plan.down {
                return Err(Unserved::Down);
            }
            if state.line.len() >= state.plan.line {
                return Err(Unserved::Full);
            }
            state.line.push_back(Job(job));
            state.seen.longest_line = state.seen.longest_line.max(state.line.len());
        }
        self.put_to_work();
        served.await.map_err(|_| Unserved::Down)
    }

    /// A call by somebody who is known.
    pub(crate) async fn call_from(&self, caller: Caller) -> Result<(), Unserved> {
        let underway = self.0.tap.begin(&self.0.env, caller);
        self.0.state.lock().tries.record(self.0.env.now(), caller);
        let answer = self.call().await;
        underway.end(if answer.is_ok() { 200 } else { 503 });
        answer
    }

    /// Starts workers for those in the line, as far as there are any.
    fn put_to_work(&self) {
        loop {
            let mut state = self.0.state.lock();
            if state.busy >= state.plan.workers {
                return;
            }
            let Some(job) = state.line.pop_front() else { return };
            state.busy += 1;
            drop(state);
            self.0.env.spawn(self.clone().work(job)).detach();
        }
    }

    /// One worker: serves until the line is empty or there are too many workers.
    async fn work(self, first: Job) {
        let Inner { env, rng, state, .. } = &*self.0;
        let mut next = Some(first);
        while let Some(job) = next {
            let Plan { time, times, .. } = self.plan();
            env.sleep(time.mul_f64(times.draw(rng))).await;
            let mut state = state.lock();
            match job.0.send(()) {
                Ok(()) => state.seen.served.record(env.now()),
                Err(()) => state.seen.wasted += 1,
            }
            next = if state.busy > state.plan.workers { None } else { state.line.pop_front() };
            if next.is_none() {
                state.busy -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use herdproof::{Sim, Tick};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn times_are_spread_around_their_mean() {
        let rng = Sim::new(1).env().rng("times");
        for times in [
            Times::Constant,
            Times::Exponential,
            Times::Pareto { shape: 2.5 },
            Times::LogNormal { sigma: 1.0 },
            Times::Bimodal { share: 0.1, longer: 10.0 },
        ] {
            let mean = (0..50_000).map(|_| times.draw(&rng)).sum::<f64>() / 50_000.0;
            assert!((mean - 1.0).abs() < 0.05, "{times:?}: {mean}");
        }
    }

    #[test]
    fn a_line_is_served_in_order_by_all_workers() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let service = Service::new(&env, "service", MS, Plan::new(2, MS * 10));
        let calls: Vec<_> = (0..5)
            .map(|_| {
                let (service, clock) = (service.clone(), env.clone());
                env.spawn(async move { service.call().await.map(|()| clock.now()) })
            })
            .collect();
        let at: Vec<_> = sim.run(async {
            let mut at = Vec::new();
            for call in calls {
                at.push(call.await.unwrap().unwrap());
            }
            at
        });
        assert_eq!(at, [10, 10, 20, 20, 30].map(|ms| Tick::ZERO + MS * ms));
        let seen = service.seen();
        assert_eq!((seen.calls.total(), seen.served.total(), seen.wasted, seen.longest_line), (5, 5, 0, 3));
        assert_eq!(service.in_flight(), 0);
    }

    #[test]
    fn who_gives_up_is_served_all_the_same() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let service = Service::new(&env, "service", MS, Plan { line: 1, ..Plan::new(1, MS * 10) });
        let (first, second, third) = (service.clone(), service.clone(), service.clone());
        let first = env.spawn(async move { first.call().await });
        let second = env.spawn(async move { second.call().await });
        let third = env.spawn(async move { third.call().await });
        sim.run_until(Tick::ZERO + MS);
        drop((first, second));
        assert_eq!(sim.run(third).unwrap(), Err(Unserved::Full));
        sim.run_until(Tick::ZERO + MS * 50);
        let seen = service.seen();
        assert_eq!((seen.served.total() + seen.wasted, seen.longest_line), (2, 1));
        service.change(|plan| plan.down = true);
        assert_eq!(sim.run(service.call()), Err(Unserved::Down));
    }

    #[test]
    fn a_change_of_plan_takes_hold_with_the_next_in_line() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let service = Service::new(&env, "service", MS, Plan::new(1, MS * 10));
        for _ in 0..8 {
            let service = service.clone();
            env.spawn(async move { service.call().await }).detach();
        }
        sim.run_until(Tick::ZERO + MS * 5);
        service.change(|plan| *plan = Plan::new(7, MS));
        sim.run_until(Tick::ZERO + MS * 6);
        assert_eq!(service.seen().served.total(), 6, "six new workers took one each, and the first one is still busy");
        sim.run_until(Tick::ZERO + MS * 12);
        assert_eq!((service.seen().served.total(), service.in_flight()), (8, 0));
    }
}
