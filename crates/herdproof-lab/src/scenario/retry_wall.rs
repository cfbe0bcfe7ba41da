//! A hundred clients, five attempts each, an origin that is down.
//!
//! Without backoff all 500 calls arrive in one instant. With exponential backoff they arrive in five spikes, each as high
//! as the crowd, because everybody waits the same time. Full jitter makes as many calls, spread out. It cannot spread the
//! first attempts, which nothing delays: that is for other remedies.
//!
//! As in the article this comes from, a client also waits after its last failed attempt, so a run ends one delay after the
//! last call.

use std::time::Duration;

use herdproof::{Backoff, Env, Sim, Tick, backoff::Jitter, env::Rng};

use super::Scenario;
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::Origin,
    report::{Arm, Check, Figure, Parameter, Report, Source, millis},
    timeline::Shape,
};

const MS: Duration = Duration::from_millis(1);
/// Claims about chance are put to the seeds from zero up to this, whatever the run's own seed.
const SEEDS: u64 = 1_000;

knobs! {
    /// How many clients retry.
    clients: u64 = 100, 1..=100_000;
    /// How often each tries.
    attempts: u32 = 5, 1..=16;
    /// The delay after the first attempt; it doubles after each.
    base_delay: Duration = MS * 10, MS..=MS * 10_000;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "retry-wall",
    title: "100 clients retry against an origin that is down: a wall, spikes, or a curve",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let ways = [Way::AtOnce, Way::Backoff, Way::FullJitter, Way::OneSeed];
    let [naive, backoff, jitter, alike] =
        settings.arms(&ways, |arm, way| herd(settings.seed, knobs, *way, settings.tap(arm)));
    let checks = if settings.is_bare() {
        Vec::new()
    } else {
        [checks(knobs, &naive, &backoff, &jitter), autopsies(settings.seed, knobs, &backoff, &jitter, &alike)].concat()
    };
    let worst = |herd: &Herd| herd.peak_after_first();
    let summary = format!(
        "all make {} calls. Backoff alone turns one wall of {} into spikes of {}; full jitter leaves the first \
         instant as it is, and after that never has more than {} calls in one millisecond; with one seed for all clients it is \
         {} again.",
        jitter.origin.calls(),
        naive.origin.timeline().peak(),
        worst(&backoff),
        worst(&jitter),
        worst(&alike),
    );
    Report {
        scenario: "retry-wall",
        seed: settings.seed,
        parameters: vec![Parameter::new("origin", "down")],
        span: knobs.longest(),
        arms: vec![
            naive.arm("naive", knobs).sample("C1"),
            backoff.arm("backoff", knobs).sample("C1"),
            jitter.arm("backoff + full jitter", knobs).sample("C1"),
            alike.arm("full jitter, one seed for all", knobs).sample("C9"),
        ],
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// How long a client waits at most: its delays are the base, twice that, four times that.
    fn longest(self) -> Duration {
        self.base_delay * ((1 << self.attempts) - 1)
    }
}

/// How clients wait between two attempts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    AtOnce,
    Backoff,
    FullJitter,
    /// The sample takes its chance from a generator with a seed, and every client begins with the same.
    OneSeed,
}

impl Way {
    fn jitter(self) -> Option<Jitter> {
        match self {
            Way::AtOnce => None,
            Way::Backoff => Some(Jitter::None),
            Way::FullJitter | Way::OneSeed => Some(Jitter::Full),
        }
    }
}

/// What a herd did.
struct Herd {
    origin: Origin,
    /// When the last client gave up.
    end: Duration,
    /// The time that all clients together spent waiting.
    waited: Duration,
}

fn herd(seed: u64, knobs: Knobs, way: Way, tap: Tap) -> Herd {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let origin = Origin::down(&env, MS).tapped(tap);
    let clients: Vec<_> = (0..knobs.clients)
        .map(|id| {
            let of_its_own = env.scope(id);
            let chance = if way == Way::OneSeed { Sim::new(seed).env() } else { of_its_own.clone() }.rng("retry");
            let client = client(of_its_own, id, origin.clone(), knobs, way.jitter(), chance);
            env.spawn_named(format!("client {id}"), client)
        })
        .collect();
    let waited = sim.run(async {
        let mut waited = Duration::ZERO;
        for client in clients {
            waited += client.await.expect("a client neither panics nor is aborted");
        }
        waited
    });
    Herd { origin, end: env.now() - Tick::ZERO, waited }
}

/// Tries until its attempts are used up; gives the time it spent waiting.
async fn client(env: Env, id: u64, origin: Origin, knobs: Knobs, jitter: Option<Jitter>, rng: Rng) -> Duration {
    let mut delays =
        jitter.map(|jitter| Backoff::exponential(knobs.base_delay).cap(Duration::MAX).jitter(jitter).delays());
    let mut waited = Duration::ZERO;
    for attempt in 0..knobs.attempts {
        if origin.call_from(Caller::of(id, "/").in_wave("retry", attempt)).await.is_ok() {
            break;
        }
        if let Some(delays) = &mut delays {
            let delay = delays.next(&rng);
            env.sleep(delay).await;
            waited += delay;
        }
    }
    waited
}

impl Herd {
    /// The highest spike apart from the first attempts, which come at once whatever the backoff.
    fn peak_after_first(&self) -> u64 {
        self.origin.timeline().counts().iter().skip(1).copied().max().unwrap_or(0)
    }

    fn arm(self, name: &'static str, knobs: Knobs) -> Arm {
        let timeline = self.origin.timeline();
        let last = timeline.occupied().last().map_or(0, |(bin, _)| bin);
        let figures = vec![
            Figure::count("calls", "calls", self.origin.calls()),
            Figure::count("peak_per_ms", "peak/ms", timeline.peak()),
            Figure::count("peak_after_first_ms", "after 1st ms", self.peak_after_first()),
            Figure::time("last_call_ms", "last call", MS * u32::try_from(last).unwrap_or(u32::MAX)),
            Figure::time("end_ms", "end", self.end),
            Figure::time("mean_wait_ms", "mean wait", self.waited / u32::try_from(knobs.clients).unwrap_or(1)),
        ];
        Arm::new(name, figures, timeline).tries(self.origin.tries())
    }
}

fn checks(knobs: Knobs, naive: &Herd, backoff: &Herd, jitter: &Herd) -> Vec<Check> {
    let Knobs { clients, attempts, base_delay } = knobs;
    let all = clients * u64::from(attempts);
    let calls = [naive, backoff, jitter].map(|herd| herd.origin.calls());
    let wall: Vec<_> = naive.origin.timeline().occupied().collect();
    let spikes: Vec<_> = backoff.origin.timeline().occupied().collect();
    // Attempt k is after delays of the base, twice the base and so on.
    let at = |attempt: u32| usize::try_from((base_delay * ((1 << attempt) - 1)).as_millis()).unwrap_or(usize::MAX);
    let tiers: Vec<_> = (0..attempts).map(|attempt| (at(attempt), clients)).collect();
    let herds: Vec<Herd> =
        (0..SEEDS).map(|seed| herd(seed, Knobs::of(&Settings::new(seed)), Way::FullJitter, Tap::default())).collect();
    let inside = herds.iter().filter(|herd| (250.0..=287.0).contains(&millis(herd.end))).count();
    let mean = herds.iter().map(|herd| millis(herd.waited)).sum::<f64>() / (SEEDS * 100) as f64;
    // A client's wait is a sum of independent uniform delays up to 10, 20, 40, 80 and 160 ms: 155 ms, variance 2841.7.
    let error = 4.0 * (2841.7 / (SEEDS * 100) as f64).sqrt();
    vec![
        Check::equal(Source::Article, "calls in each arm", &[all; 3], &calls).cites("N1"),
        Check::equal(Source::Article, "naive: (ms, calls) of the wall", &vec![(0, all)], &wall).cites("H1"),
        Check::equal(Source::Article, "backoff: (ms, calls) of each spike", &tiers, &spikes).cites("H2"),
        Check::equal(
            Source::Article,
            "a wall, spikes, a curve",
            &[Shape::Wall, Shape::Spikes, Shape::Curve],
            &[naive, backoff, jitter].map(|herd| herd.origin.timeline().shape()),
        )
        .cites("H1")
        .cites("H2")
        .cites("T2"),
        Check::equal(
            Source::Formula,
            "backoff: ends after base x (2^attempts - 1) ms",
            &millis(knobs.longest()),
            &millis(backoff.end),
        )
        .cites("N2")
        .cites("C1"),
        Check::at_least(
            Source::Article,
            format!("full jitter: ends within 250 to 287 ms in 90 % of {SEEDS} seeds (article: 267)"),
            (SEEDS * 9 / 10) as f64,
            inside as f64,
        )
        .cites("N3"),
        Check::within(Source::Formula, "full jitter: mean wait is half of 310 ms", 155.0, error, mean).cites("T2"),
        Check::at_most(
            Source::Formula,
            "full jitter: highest spike after the first ms",
            40.0,
            jitter.peak_after_first() as f64,
        )
        .cites("T2"),
    ]
}

/// What is wrong with the samples, and what is not.
fn autopsies(seed: u64, knobs: Knobs, backoff: &Herd, jitter: &Herd, alike: &Herd) -> Vec<Check> {
    let Knobs { clients, attempts, base_delay } = knobs;
    let last = backoff.origin.timeline().occupied().last().map_or(0, |(bin, _)| bin);
    let last = MS * u32::try_from(last).unwrap_or(u32::MAX);
    let again = herd(seed, knobs, Way::FullJitter, Tap::default());
    vec![
        Check::equal(
            Source::Article,
            "backoff, as in the sample: everybody waits after the last attempt too, for nothing (last call, end)",
            &(base_delay * ((1 << (attempts - 1)) - 1), base_delay * ((1 << attempts) - 1)),
            &(last, backoff.end),
        )
        .cites("C1"),
        Check::equal(
            Source::Article,
            "full jitter, a seed for each: the same seed gives the same delays",
            &(jitter.end, jitter.waited),
            &(again.end, again.waited),
        )
        .cites("C9"),
        Check::at_least(
            Source::Formula,
            "... one seed for all: everybody draws the same, and nobody is ever alone (the least in a millisecond that has any)",
            clients as f64,
            alike.origin.timeline().occupied().map(|(_, calls)| calls).min().unwrap_or(0) as f64,
        )
        .cites("C9"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_seed_do_not_wait_alike() {
        let jitter = herd(1, Knobs::of(&Settings::new(1)), Way::FullJitter, Tap::default());
        assert!(jitter.origin.timeline().occupied().count() > 100);
    }
}
