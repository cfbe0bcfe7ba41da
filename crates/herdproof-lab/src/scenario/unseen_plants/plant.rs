//! Origins drawn at random, so that nobody chose them.

use std::{fmt, time::Duration};

use herdproof::{Env, Sim, Tick, env::Rng};

use crate::{
    log::{Caller, Tap},
    service::{Plan, Service, Times},
};

/// Not judged: the limits find their place.
pub(super) const WARM_UP: Duration = Duration::from_secs(5);
/// How long the origin is as it was ...
pub(super) const BEFORE: Duration = Duration::from_secs(10);
/// ... and how long as it is then.
pub(super) const AFTER: Duration = Duration::from_secs(10);

/// The load while it is calm, in capacities.
const CALM: f64 = 0.5;

/// An origin, its users, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plant {
    pub(super) seed: u64,
    servers: usize,
    time: Duration,
    times: Times,
    contention: Contention,
    /// There and back.
    network: Duration,
    /// How long users wait.
    pub(super) patience: Duration,
    /// Users, in capacities.
    load: f64,
    /// Whether the warm-up sees less than that.
    calm: bool,
    bursts: Option<Bursts>,
    step: Step,
}

/// What more in flight than there are servers do to each other, beyond waiting.
#[derive(Clone, Copy, Debug)]
enum Contention {
    None,
    /// They stand in a line, and each server gets slower by this much for each time as many as there are servers.
    Line(f64),
    /// There is no line: all are worked on, and all get slower. From one on, nothing is gained by more.
    Shared(f64),
}

/// Users who come together: all of them in a part of each period.
#[derive(Clone, Copy, Debug)]
struct Bursts {
    period: Duration,
    share: f64,
}

/// What happens in the middle: capacity is multiplied by this.
#[derive(Clone, Copy, Debug)]
enum Step {
    None,
    Servers(f64),
    Speed(f64),
}

impl Plant {
    /// The plant of this seed.
    pub(super) fn draw(seed: u64) -> Plant {
        let rng = Sim::new(seed).env().rng("plant");
        let servers = log_uniform(&rng, 2.0, 100.0).round();
        // Between 40 and 600 calls a second: fewer make no window, more take too long to simulate.
        let time = log_uniform(&rng, f64::max(0.005, servers / 600.0), f64::min(0.3, servers / 40.0));
        let times = match rng.below(5) {
            0 => Times::Constant,
            1 => Times::Exponential,
            2 => Times::LogNormal { sigma: uniform(&rng, 0.5, 1.2) },
            3 => Times::Bimodal { share: uniform(&rng, 0.05, 0.3), longer: uniform(&rng, 5.0, 20.0) },
            _ => Times::Pareto { shape: uniform(&rng, 1.3, 2.2) },
        };
        let contention = match rng.below(4) {
            0 => Contention::Line(uniform(&rng, 0.1, 1.0)),
            1 => Contention::Shared(uniform(&rng, 1.0, 3.0)),
            _ => Contention::None,
        };
        let network = if rng.chance(0.5) { uniform(&rng, 0.0, 0.05) } else { 0.0 };
        let patience = (log_uniform(&rng, 3.0, 20.0) * (time + network)).clamp(0.1, 3.0);
        let load = log_uniform(&rng, 0.5, 3.0);
        let calm = rng.chance(0.5);
        let bursts = rng.chance(0.3).then(|| Bursts {
            period: Duration::from_secs_f64(log_uniform(&rng, 0.5, 4.0)),
            share: uniform(&rng, 0.2, 0.6),
        });
        let factor = if rng.chance(0.5) { uniform(&rng, 0.25, 0.7) } else { uniform(&rng, 1.5, 3.0) };
        let step = match rng.below(3) {
            0 => Step::None,
            1 => Step::Servers(factor),
            _ => Step::Speed(factor),
        };
        Plant {
            seed,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 2 to 100")]
            servers: servers as usize,
            time: Duration::from_secs_f64(time),
            times,
            contention,
            network: Duration::from_secs_f64(network),
            patience: Duration::from_secs_f64(patience),
            load,
            calm,
            bursts,
            step,
        }
    }

    /// Users a second at this instant.
    pub(super) fn rate(&self, at: Tick) -> f64 {
        let capacity = self.servers as f64 / self.time.as_secs_f64();
        let load = if self.calm && at < Tick::ZERO + WARM_UP { self.load.min(CALM) } else { self.load };
        let wave = match self.bursts {
            Some(Bursts { period, share }) => {
                let phase = ((at - Tick::ZERO).as_secs_f64() / period.as_secs_f64()).fract();
                if phase < share { 1.0 / share } else { 0.0 }
            }
            None => 1.0,
        };
        capacity * load * wave
    }

    /// Which burst it is that comes then, where they come in bursts.
    pub(super) fn burst(&self, at: Tick) -> Option<u32> {
        let nth = (at - Tick::ZERO).as_nanos() / self.bursts?.period.as_nanos().max(1);
        Some(u32::try_from(nth).unwrap_or(u32::MAX))
    }

    /// Servers and their time, before or after the step.
    fn state(&self, after: bool) -> (usize, Duration) {
        match self.step {
            Step::Servers(factor) if after => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 300")]
                let servers = (self.servers as f64 * factor).round() as usize;
                (servers.max(1), self.time)
            }
            Step::Speed(factor) if after => (self.servers, self.time.div_f64(factor)),
            _ => (self.servers, self.time),
        }
    }

    /// How many in flight keep every server busy and none waiting, if all calls took the same time: those on the way
    /// included.
    pub(super) fn knee(&self, after: bool) -> u32 {
        let (servers, time) = self.state(after);
        let on_the_way = self.network.as_secs_f64() / time.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand")]
        let knee = (servers as f64 * (1.0 + on_the_way)).ceil() as u32;
        knee
    }
}

fn uniform(rng: &Rng, from: f64, to: f64) -> f64 {
    from + (to - from) * rng.unit()
}

fn log_uniform(rng: &Rng, from: f64, to: f64) -> f64 {
    from * (to / from).powf(rng.unit())
}

/// A plant at work. Clones share.
#[derive(Clone)]
pub(super) struct Origin {
    env: Env,
    plant: Plant,
    service: Service,
}

impl Origin {
    pub(super) fn new(env: &Env, plant: Plant, tap: Tap) -> Origin {
        let (servers, time) = plant.state(false);
        let workers = if matches!(plant.contention, Contention::Shared(_)) { usize::MAX } else { servers };
        let plan = Plan { times: plant.times, ..Plan::new(workers, time) };
        let service = Service::tapped(env, "service", WARM_UP / 10, plan, tap);
        let origin = Origin { env: env.clone(), plant, service };
        env.spawn(origin.clone().step()).detach();
        origin
    }

    fn is_after(&self) -> bool {
        self.env.now() >= Tick::ZERO + WARM_UP + BEFORE
    }

    async fn step(self) {
        self.env.sleep_until(Tick::ZERO + WARM_UP + BEFORE).await;
        let (servers, time) = self.plant.state(true);
        self.service.change(|plan| {
            plan.time = time;
            if plan.workers < usize::MAX {
                plan.workers = servers;
            }
        });
    }

    pub(super) async fn call(self, caller: Caller) -> Result<(), ()> {
        let half = self.plant.network / 2;
        if half > Duration::ZERO {
            self.env.sleep(half).await;
        }
        self.contend();
        let answer = self.service.call_from(caller).await.map_err(|_| ());
        if half > Duration::ZERO {
            self.env.sleep(half).await;
        }
        answer
    }

    /// What begins from now on takes as long as this many let it.
    fn contend(&self) {
        let (Contention::Line(slope) | Contention::Shared(slope)) = self.plant.contention else { return };
        let (servers, time) = self.plant.state(self.is_after());
        let beyond = (self.service.in_flight() as f64 + 1.0) / servers as f64 - 1.0;
        self.service.change(|plan| plan.time = time.mul_f64(1.0 + slope * beyond.max(0.0)));
    }

    pub(super) fn calls(&self) -> crate::timeline::Timeline {
        self.service.seen().calls
    }
}

/// Such as `20 servers x 50 ms exponential, load 1.5`.
impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{} servers x {:.0} ms ", self.servers, millis(self.time))?;
        match self.times {
            Times::Constant => write!(f, "constant")?,
            Times::Exponential => write!(f, "exponential")?,
            Times::Pareto { shape } => write!(f, "Pareto {shape:.1}")?,
            Times::LogNormal { sigma } => write!(f, "lognormal {sigma:.1}")?,
            Times::Bimodal { share, longer } => write!(f, "{:.0}% {longer:.0}x longer", share * 100.0)?,
        }
        match self.contention {
            Contention::None => {}
            Contention::Line(slope) => write!(f, ", slowed by its line ({slope:.1})")?,
            Contention::Shared(slope) => write!(f, ", shared ({slope:.1})")?,
        }
        if self.network > Duration::ZERO {
            write!(f, ", {:.0} ms away", millis(self.network))?;
        }
        write!(f, ", patience {:.0} ms, load {:.1}", millis(self.patience), self.load)?;
        if let Some(Bursts { period, share }) = self.bursts {
            write!(f, " in {:.0}% of every {:.1} s", share * 100.0, period.as_secs_f64())?;
        }
        if self.calm {
            write!(f, " after a calm")?;
        }
        match self.step {
            Step::None => Ok(()),
            Step::Servers(factor) => write!(f, ", then servers x {factor:.2}"),
            Step::Speed(factor) => write!(f, ", then speed x {factor:.2}"),
        }
    }
}
