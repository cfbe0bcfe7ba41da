//! The way between a client and a service: what takes time although nobody works.

use std::time::Duration;

use herdproof::{
    Env,
    env::{Rng, Sleep},
};

/// How long a message takes: a normal distribution, folded at zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// On average.
    pub(crate) mean: Duration,
    /// The standard deviation.
    pub(crate) sd: Duration,
}

impl Network {
    /// One message's way.
    pub(crate) fn trip(self, env: &Env, rng: &Rng) -> Sleep {
        env.sleep(self.delay(rng))
    }

    /// How long one message takes.
    pub(crate) fn delay(self, rng: &Rng) -> Duration {
        Duration::from_secs_f64((self.mean.as_secs_f64() + self.sd.as_secs_f64() * normal(rng)).abs())
    }
}

/// A draw from the standard normal distribution.
pub(crate) fn normal(rng: &Rng) -> f64 {
    // One minus a number below one is never zero.
    let unit = || 1.0 - rng.unit();
    (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()
}

#[cfg(test)]
mod tests {
    use herdproof::Sim;

    use super::*;

    #[test]
    fn delays_have_their_mean_and_their_deviation() {
        let rng = Sim::new(1).env().rng("network");
        let network = Network { mean: Duration::from_millis(10), sd: Duration::from_millis(2) };
        let delays: Vec<f64> = (0..50_000).map(|_| network.delay(&rng).as_secs_f64() * 1e3).collect();
        let mean = delays.iter().sum::<f64>() / 50_000.0;
        let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / 50_000.0;
        assert!((mean - 10.0).abs() < 0.05 && (variance.sqrt() - 2.0).abs() < 0.05, "{mean} {variance}");
    }
}
