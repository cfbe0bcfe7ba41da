//! The origins: one service, and what befalls it.

use std::{ops::Range, time::Duration};

use herdproof::{Env, Tick};

use super::Knobs;
use crate::{
    log::{Caller, Tap},
    service::{Plan, Service, Times},
    timeline::Timeline,
};

/// Where an origin that thrashes gives most: its calls take twice as long there.
const KNEE: f64 = 30.0;

/// What befalls an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing.
    Steady,
    /// More users than it can serve.
    Overload,
    /// Every call takes eight times as long.
    Slow8,
    /// Every call takes twice as long.
    Slow2,
    /// Overload, and times from a Pareto distribution: most are short and a few are very long.
    Tail,
    /// Overload, and no line: every call in flight slows down all others.
    Thrash,
    /// Every call takes longer on the way, without a queue.
    Far,
    /// Half of its workers go one by one and come back.
    Drift,
}

impl Trouble {
    pub(super) const ALL: [Trouble; 8] = [
        Trouble::Steady,
        Trouble::Overload,
        Trouble::Slow8,
        Trouble::Slow2,
        Trouble::Tail,
        Trouble::Thrash,
        Trouble::Far,
        Trouble::Drift,
    ];

    pub(super) fn key(self) -> &'static str {
        match self {
            Trouble::Steady => "steady_per_s",
            Trouble::Overload => "overload_per_s",
            Trouble::Slow8 => "slower_8x_per_s",
            Trouble::Slow2 => "slower_2x_per_s",
            Trouble::Tail => "heavy_tail_per_s",
            Trouble::Thrash => "thrashing_per_s",
            Trouble::Far => "further_away_per_s",
            Trouble::Drift => "drifting_per_s",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Trouble::Steady => "steady",
            Trouble::Overload => "overload",
            Trouble::Slow8 => "8x slower",
            Trouble::Slow2 => "2x slower",
            Trouble::Tail => "heavy tail",
            Trouble::Thrash => "thrashing",
            Trouble::Far => "further away",
            Trouble::Drift => "drifting",
        }
    }

    /// Users a second.
    pub(super) fn rate(self, knobs: Knobs) -> f64 {
        match self {
            Trouble::Overload | Trouble::Tail | Trouble::Thrash => knobs.overload * knobs.capacity(),
            Trouble::Drift => 1.5 * knobs.capacity(),
            Trouble::Steady | Trouble::Slow8 | Trouble::Slow2 | Trouble::Far => 0.75 * knobs.capacity(),
        }
    }

    fn plan(self, knobs: Knobs) -> Plan {
        match self {
            Trouble::Tail => {
                Plan { times: Times::Pareto { shape: 1.5 }, ..Plan::new(knobs.workers, knobs.service_time) }
            }
            Trouble::Thrash => Plan { times: Times::Exponential, ..Plan::new(usize::MAX, knobs.service_time) },
            _ => Plan { times: Times::Exponential, ..Plan::new(knobs.workers, knobs.service_time) },
        }
    }
}

/// An origin and its trouble. Clones share.
#[derive(Clone)]
pub(super) struct Origin {
    env: Env,
    knobs: Knobs,
    service: Service,
    trouble: Trouble,
    begins: Tick,
}

impl Origin {
    /// An origin to which this happens in that time.
    pub(super) fn new(env: &Env, knobs: Knobs, trouble: Trouble, time: Range<Tick>, tap: Tap) -> Origin {
        let service = Service::tapped(env, "service", Duration::from_secs(1), trouble.plan(knobs), tap);
        let origin = Origin { env: env.clone(), knobs, service, trouble, begins: time.start };
        env.spawn(origin.clone().change(time.end - time.start)).detach();
        origin
    }

    async fn change(self, lasts: Duration) {
        let Origin { env, knobs, service, trouble, begins } = self;
        env.sleep_until(begins).await;
        match trouble {
            Trouble::Slow8 => service.change(|plan| plan.time = knobs.service_time * 8),
            Trouble::Slow2 => service.change(|plan| plan.time = knobs.service_time * 2),
            Trouble::Drift => {
                let fewest = knobs.workers / 2;
                let steps = (fewest..knobs.workers).rev().chain(fewest..=knobs.workers);
                for workers in steps {
                    service.change(|plan| plan.workers = workers);
                    env.sleep(lasts / u32::try_from(knobs.workers).unwrap_or(1)).await;
                }
            }
            _ => {}
        }
    }

    pub(super) async fn call(self, caller: Caller) -> Result<(), ()> {
        match self.trouble {
            Trouble::Far if self.env.now() >= self.begins => {
                self.env.sleep(self.knobs.further).await;
            }
            Trouble::Thrash => {
                let (time, crowd) = (self.knobs.service_time, self.service.in_flight() as f64 / KNEE);
                self.service.change(|plan| plan.time = time.mul_f64(1.0 + crowd * crowd));
            }
            _ => {}
        }
        self.service.call_from(caller).await.map_err(|_| ())
    }

    /// When calls came.
    pub(super) fn calls(&self) -> Timeline {
        self.service.seen().calls
    }
}
