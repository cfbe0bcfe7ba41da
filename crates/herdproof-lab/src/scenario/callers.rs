//! What callers got and how long they waited, as figures of a report.

use std::time::Duration;

use herdproof::{
    Env, Sim,
    env::{Died, Task},
};

use crate::{
    origin::Origin,
    report::{Arm, Figure, Waits},
};

/// What one caller got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got<T> {
    /// What came of it.
    pub(super) result: Result<T, ()>,
    /// How long it took.
    pub(super) waited: Duration,
}

/// Everybody's part in one herd.
pub(super) struct Callers<T> {
    pub(super) got: Vec<Got<T>>,
    pub(super) origin: Origin,
}

impl<T: Send + 'static> Callers<T> {
    /// Lets the tasks run and gathers what they got.
    pub(super) fn gather(sim: &mut Sim, origin: &Origin, tasks: Vec<Task<Got<T>>>) -> Callers<T> {
        let got = sim.run(async {
            let mut got = Vec::new();
            for task in tasks {
                let joined: Result<Got<T>, Died> = task.await;
                got.push(joined.expect("callers neither panic nor are aborted"));
            }
            got
        });
        Callers { got, origin: origin.clone() }
    }

    pub(super) fn errors(&self) -> u64 {
        self.got.iter().filter(|got| got.result.is_err()).count() as u64
    }

    /// The wait that so many percent of the callers did not exceed.
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let mut waits: Vec<Duration> = self.got.iter().map(|got| got.waited).collect();
        waits.sort_unstable();
        let rank = (waits.len() * percent).div_ceil(100).max(1);
        waits.get(rank - 1).copied().unwrap_or_default()
    }

    pub(super) fn arm(&self, name: &'static str) -> Arm {
        let figures = vec![
            Figure::count("calls", "calls", self.origin.calls()),
            Figure::count("peak_in_flight", "in flight", self.origin.peak_in_flight()),
            Figure::time("p50_ms", "p50", self.quantile(50)),
            Figure::time("p99_ms", "p99", self.quantile(99)),
            Figure::count("errors", "errors", self.errors()),
        ];
        let waits = Waits::of(self.got.iter().map(|got| got.waited).collect());
        Arm::new(name, figures, self.origin.timeline()).waits(waits)
    }
}

/// Times a caller.
pub(super) async fn timed<T, E>(env: Env, call: impl Future<Output = Result<T, E>>) -> Got<T> {
    let began = env.now();
    let result = call.await.map_err(|_| ());
    Got { result, waited: env.now() - began }
}
