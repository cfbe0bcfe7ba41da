//! Users who come whether or not the last one was served: the open loop.
//!
//! A load generator that waits for its answers before it asks again slows down with the service it tests, and so never
//! sees it collapse. Real users do not know of each other.

use std::time::Duration;

use herdproof::{Env, Tick, env::Rng};

/// Calls `arrive` with the number of each arrival, from zero, at random instants until then: a Poisson process whose rate
/// a second may change with time. A rate of zero or less is looked at again after a tenth of a second.
pub async fn poisson(env: &Env, rng: &Rng, until: Tick, rate: impl Fn(Tick) -> f64, mut arrive: impl FnMut(u64)) {
    let mut number = 0;
    let mut at = env.now();
    loop {
        let now = rate(at);
        // Instants are drawn one after another, not rounded to what a sleep gives back.
        at = if now > 0.0 {
            at + Duration::from_secs_f64((-(1.0 - rng.unit()).ln() / now).min(1e6))
        } else {
            at + Duration::from_millis(100)
        };
        if at >= until {
            return;
        }
        env.sleep_until(at).await;
        if now > 0.0 {
            arrive(number);
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use herdproof::Sim;

    use super::*;

    #[test]
    fn as_many_come_as_the_rate_says() {
        let mut sim = Sim::new(3);
        let env = sim.env();
        let rng = env.rng("users");
        let (before, after) = (Cell::new(0u32), Cell::new(0u32));
        let half = Tick::ZERO + Duration::from_secs(50);
        let clock = env.clone();
        sim.run(poisson(
            &env,
            &rng,
            Tick::ZERO + Duration::from_secs(100),
            |at| if at < half { 100.0 } else { 0.0 },
            |_| if clock.now() < half { before.set(before.get() + 1) } else { after.set(after.get() + 1) },
        ));
        // Five thousand, give or take four standard deviations.
        assert!((4_717..=5_283).contains(&before.get()), "{}", before.get());
        assert!(after.get() <= 1);
    }
}
