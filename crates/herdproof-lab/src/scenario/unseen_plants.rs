//! Four laws on origins that nobody chose.
//!
//! A law that was tuned while looking at eight origins is good on eight origins. So here the origins are drawn: number of
//! servers, how service times are spread, what calls in flight do to each other, how far away it is, how long users wait, how
//! many come and whether in bursts, and whether its capacity changes in the middle.
//!
//! The rules were written before any law had met any of these plants:
//!
//! - Plants of the seeds 0 to 19 are for training: they may be looked at, and the default law may be changed for them.
//! - Plants of the seeds 1000 to 1019 are held out. They are run once, when the law is done.
//! - What counts is goodput: answers that come in time, a second, after a warm-up of five seconds. A law is compared with the
//!   best of the other laws, and with a limit that somebody who knows the plant has fixed at its knee.
//! - The default law passes if on every plant it has at least 0.95 of the best other law, and over all of them a geometric
//!   mean at least that of every other law.

mod plant;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{Sim, Tick, limit::AdaptiveLimit};
use plant::{AFTER, BEFORE, Origin, Plant, WARM_UP};

use super::laws::{Law, ask_once};
use crate::{arrivals::poisson, timeline::Timeline};

/// The seeds of the plants that may be looked at, and of those that may not.
const TRAINING: std::ops::Range<u64> = 0..20;
const HELD_OUT: std::ops::Range<u64> = 1_000..1_020;

/// Who decides how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Law(Law),
    /// Somebody who knows the plant.
    Knowing,
}

/// Good answers a second after the warm-up, and all calls at the origin.
fn race(plant: Plant, way: Way) -> (f64, Timeline) {
    let mut sim = Sim::new(plant.seed);
    let env = sim.env();
    let origin = Origin::new(&env, plant);
    let fixed = |limit: u32| AdaptiveLimit::builder(&env).between(limit, limit).build();
    let (before, after) = match way {
        Way::Law(law) => {
            let limit = law.limit(&env);
            (limit.clone(), limit)
        }
        Way::Knowing => (fixed(plant.knee(false)), fixed(plant.knee(true))),
    };
    let good = Arc::new(AtomicU64::new(0));
    let rng = env.rng("users");
    let step = Tick::ZERO + WARM_UP + BEFORE;
    let end = step + AFTER;
    sim.run(async {
        let arrive = |_| {
            let limit = if env.now() < step { before.clone() } else { after.clone() };
            let (env, origin, good) = (env.clone(), origin.clone(), Arc::clone(&good));
            let clock = env.clone();
            let user = async move {
                let answered = ask_once(&clock, &limit, plant.patience, origin.call()).await;
                if answered && clock.now() >= Tick::ZERO + WARM_UP {
                    good.fetch_add(1, Relaxed);
                }
            };
            env.spawn(user).detach();
        };
        poisson(&env, &rng, end, |at| plant.rate(at), arrive).await;
        env.sleep_until(end).await;
    });
    let judged: Duration = BEFORE + AFTER;
    (good.load(Relaxed) as f64 / judged.as_secs_f64(), origin.calls())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// One row for each plant: goodput of every law, and of who knows the plant.
    fn table(seeds: std::ops::Range<u64>) -> String {
        let ways = [Law::None, Law::Aimd, Law::Gradient2, Law::Vegas, Law::Knee].map(Way::Law);
        let mut text = String::from("seed  none  aimd  grad vegas  knee knows  to best other, to knowing\n");
        let mut logs = [0.0; 6];
        let mut worst = f64::INFINITY;
        let count = (seeds.end - seeds.start) as f64;
        for seed in seeds {
            let plant = Plant::draw(seed);
            let good = [ways[0], ways[1], ways[2], ways[3], ways[4], Way::Knowing].map(|way| race(plant, way).0);
            let best = good[1].max(good[2]).max(good[3]);
            write!(text, "{seed:4}").unwrap();
            for (good, log) in good.iter().zip(&mut logs) {
                write!(text, " {good:5.0}").unwrap();
                *log += good.max(0.1).ln() / count;
            }
            worst = worst.min(good[4] / best);
            writeln!(text, "  {:.2} {:.2}  {plant}", good[4] / best, good[4] / good[5]).unwrap();
        }
        writeln!(text, "geometric means {:.1?}, worst {worst:.2}", logs.map(f64::exp)).unwrap();
        text
    }

    /// `cargo test --release -p herdproof-lab training_plants -- --ignored --nocapture`
    #[test]
    #[ignore = "a table to look at, not a test"]
    #[expect(clippy::print_stdout, reason = "it is what this is for")]
    fn training_plants() {
        println!("{}", table(TRAINING));
    }

    /// `cargo test --release -p herdproof-lab held_out_plants -- --ignored --nocapture`
    #[test]
    #[ignore = "a table to look at, not a test"]
    #[expect(clippy::print_stdout, reason = "it is what this is for")]
    fn held_out_plants() {
        println!("{}", table(HELD_OUT));
    }
}
