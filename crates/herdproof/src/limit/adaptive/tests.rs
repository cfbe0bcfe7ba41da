//! What the shell around a law counts, and what it does not lose.

use super::*;
use crate::env::sim::Sim;

const MS: Duration = Duration::from_millis(1);

/// Gives back the limit it got and keeps what it was shown.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<Window>>>);

impl Law for Witness {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        self.0.lock().push(*window);
        limit
    }
}

struct Scene {
    env: Env,
    limit: AdaptiveLimit,
    witness: Witness,
    now: Tick,
}

impl Scene {
    fn new(initial: u32) -> Scene {
        let env = Sim::new(1).env();
        let witness = Witness::default();
        let limit = AdaptiveLimit::builder(&env).initial(initial).law(witness.clone()).build();
        Scene { env, limit, witness, now: Tick::ZERO }
    }

    fn try_enter(&self) -> Result<AdaptivePermit, Refusal> {
        let mut ask = Ask::new(&self.env);
        ask.at = self.now;
        self.limit.try_enter(&ask)
    }

    /// One call that takes so long and ends like this.
    fn call(&mut self, verdict: Verdict, takes: Duration) {
        let permit = self.try_enter().unwrap();
        let from = self.now;
        self.now = self.now + takes;
        permit.settle(&verdict, Span { from, to: self.now });
    }

    fn windows(&self) -> Vec<Window> {
        self.witness.0.lock().clone()
    }
}

#[test]
fn as_many_as_the_limit_says_and_a_dropped_permit_makes_room() {
    let scene = Scene::new(3);
    let permits: Vec<_> = (0..3).map(|_| scene.try_enter().unwrap()).collect();
    assert_eq!(scene.try_enter().unwrap_err(), Refusal::new(Why::Concurrency));
    drop(permits);
    assert_eq!(scene.limit.in_flight(), 0);
    assert!(scene.try_enter().is_ok());
}

#[test]
fn a_window_needs_its_time_and_its_calls() {
    let mut scene = Scene::new(20);
    for _ in 0..24 {
        scene.call(Verdict::Ok, MS * 100);
    }
    assert!(scene.windows().is_empty(), "24 calls are too few, however long they took");
    scene.call(Verdict::Ok, MS * 100);
    assert_eq!(scene.windows().len(), 1);
    for _ in 0..100 {
        scene.call(Verdict::Ok, MS);
    }
    assert_eq!(scene.windows().len(), 1, "a hundred calls in 100 ms are too soon");
    let window = scene.windows()[0];
    assert_eq!((window.successes, window.elapsed, window.median), (25, MS * 2_500, MS * 100));
    assert!((window.in_flight - 1.0).abs() < f64::EPSILON && !window.binding);
}

#[test]
fn the_median_is_that_of_the_whole_window_though_few_times_are_kept() {
    let mut scene = Scene::new(20);
    // The first half is fast and the second slow; the last few hundred alone would say 3 ms.
    for takes in [MS, MS * 3] {
        for _ in 0..2_000 {
            scene.call(Verdict::Ok, takes);
        }
    }
    let times: Vec<f64> = scene.windows().iter().map(|window| window.mean.as_secs_f64() * 1e3).collect();
    assert!((times[0] - 1.0).abs() < 1e-6, "{times:?}");
    let mixed: f64 = Sight::new(Tick::ZERO).mean_after(1_000);
    assert!((1.8..2.2).contains(&mixed), "half take 1 ms and half 3 ms: {mixed}");
}

impl Sight {
    /// The mean in milliseconds after as many calls of 1 ms, then as many of 3 ms.
    fn mean_after(&self, each: u32) -> f64 {
        for takes in [MS, MS * 3] {
            for _ in 0..each {
                self.success(takes, 1);
            }
        }
        self.end(Tick::ZERO + MS).mean.as_secs_f64() * 1e3
    }
}

#[test]
fn fast_errors_are_mistakes_and_slow_ones_are_load() {
    let mut scene = Scene::new(20);
    for _ in 0..25 {
        scene.call(Verdict::Ok, MS * 20);
    }
    for _ in 0..30 {
        scene.call(Verdict::Ok, MS * 20);
        scene.call(Verdict::Fault, MS);
        scene.call(Verdict::Fault, MS * 41);
        scene.call(Verdict::Ignored, MS * 41);
        scene.call(Verdict::Overload { after: None }, MS);
    }
    let all = scene.windows();
    let (timeouts, drops) = all.iter().fold((0, 0), |sum, w| (sum.0 + w.timeouts, sum.1 + w.drops));
    assert!(all.len() > 1);
    assert!(timeouts.abs_diff(drops) <= 1 && drops > 20, "{timeouts} slow of {drops} rounds");
}

#[test]
fn callers_who_leave_do_not_lower_the_limit() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = AdaptiveLimit::new(&env);
    let clock = env.clone();
    let shared = limit.clone();
    sim.run(async move {
        for takes in [MS * 20, MS * 500] {
            for _ in 0..100 {
                let ask = Ask::new(&clock);
                let permit = shared.try_enter(&ask).unwrap();
                let to = clock.sleep(takes).await;
                if takes < MS * 100 {
                    permit.settle(&Verdict::Ok, Span { from: ask.at, to });
                }
            }
        }
    });
    assert_eq!((limit.limit(), limit.in_flight()), (20, 0));
}

#[test]
fn a_law_gone_mad_cannot_take_the_limit_out_of_its_bounds() {
    struct Mad(Vec<f64>);
    impl Law for Mad {
        fn next(&mut self, _: f64, _: &Window) -> f64 {
            self.0.pop().unwrap_or(10.0)
        }
    }
    let env = Sim::new(1).env();
    let mad = Mad(vec![f64::NAN, f64::INFINITY, 1e12, -5.0]);
    let limit = AdaptiveLimit::builder(&env).between(3, 50).initial(9).law(mad).build();
    let mut now = Tick::ZERO;
    let mut seen = Vec::new();
    for _ in 0..100 {
        let mut ask = Ask::new(&env);
        ask.at = now;
        now = now + MS * 20;
        limit.try_enter(&ask).unwrap().settle(&Verdict::Ok, Span { from: ask.at, to: now });
        seen.push(limit.limit());
    }
    seen.dedup();
    assert_eq!(seen, [9, 3, 50]);
}

#[test]
fn senseless_bounds_count_as_the_nearest_that_make_sense() {
    let env = Sim::new(1).env();
    let limit = AdaptiveLimit::builder(&env).between(0, 0).initial(0).build();
    assert_eq!(limit.limit(), 1);
    assert_eq!(AdaptiveLimit::builder(&env).between(9, 3).initial(100).build().limit(), 9);
}

#[test]
fn threads_together_never_exceed_the_limit_and_leave_nothing() {
    let env = Env::system();
    let limit = AdaptiveLimit::builder(&env).between(4, 4).build();
    let most = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let ask = Ask::new(&env);
                    if let Ok(permit) = limit.try_enter(&ask) {
                        most.fetch_max(limit.in_flight(), Relaxed);
                        permit.settle(&Verdict::Ok, Span { from: ask.at, to: env.now() });
                    }
                }
            });
        }
    });
    assert!(most.load(Relaxed) <= 4);
    assert_eq!(limit.in_flight(), 0);
}

#[test]
fn who_gives_up_soon_is_seen_though_all_take_nearly_as_long() {
    // Callers wait 330 ms and what works takes 200: twice that is later than anybody waits. With a limit that goes by it
    // nobody would ever seem to have given up, no window would end, and the origin would stay dead.
    let mut scene = Scene::new(20);
    for _ in 0..25 {
        scene.call(Verdict::Ok, MS * 200);
    }
    for _ in 0..60 {
        scene.call(Verdict::Fault, MS * 330);
    }
    let windows = scene.windows();
    assert_eq!((windows.len(), windows[2].timeouts), (3, 25));
}

#[test]
fn an_origin_that_is_dead_from_the_start_is_seen() {
    let mut scene = Scene::new(20);
    for _ in 0..25 {
        scene.call(Verdict::Fault, MS * 100);
    }
    assert_eq!(scene.windows()[0].timeouts, 25);
}

#[test]
fn those_who_gave_up_count_as_slow() {
    // The 20 that were answered took 10 to 200 ms; of all 40 calls, half took 200 ms at least.
    let mut scene = Scene::new(20);
    for _ in 0..25 {
        scene.call(Verdict::Ok, MS * 100);
    }
    for step in 1..=20 {
        scene.call(Verdict::Ok, MS * 10 * step);
        scene.call(Verdict::Fault, MS * 330);
    }
    assert!(scene.windows()[1].median > MS * 100, "{:?}", scene.windows()[1]);
    assert!(scene.windows()[1].mean < scene.windows()[1].median);
}

#[test]
fn a_batch_counts_as_what_it_is() {
    let scene = Scene::new(10);
    let ask = Ask::at(Tick::ZERO);
    let batch = scene.limit.try_enter(&ask.clone().cost(8)).unwrap();
    assert_eq!(scene.limit.in_flight(), 8);
    assert!(scene.limit.try_enter(&ask.clone().cost(3)).is_err());
    let free = scene.limit.try_enter(&ask.clone().cost(0)).unwrap();
    assert_eq!(scene.limit.in_flight(), 9, "nothing is for free");
    drop(free);
    batch.settle(&Verdict::Ok, Span { from: Tick::ZERO, to: Tick::ZERO + MS });
    assert_eq!(scene.limit.in_flight(), 0);
}

#[test]
fn a_batch_larger_than_the_limit_goes_alone_instead_of_never() {
    let scene = Scene::new(10);
    let huge = Ask::at(Tick::ZERO).cost(u32::MAX);
    let one = scene.try_enter().unwrap();
    assert!(scene.limit.try_enter(&huge).is_err());
    drop(one);
    let batch = scene.limit.try_enter(&huge).unwrap();
    assert!(scene.try_enter().is_err());
    drop(batch);
    assert_eq!(scene.limit.in_flight(), 0);
}

#[test]
fn nobody_is_told_a_time_before_anything_was_measured() {
    let scene = Scene::new(2);
    let _inside = [scene.try_enter().unwrap(), scene.try_enter().unwrap()];
    assert_eq!(scene.try_enter().unwrap_err().after, None);
}

#[test]
fn those_refused_are_told_instants_as_far_apart_as_calls_end() {
    let mut scene = Scene::new(2);
    for _ in 0..25 {
        scene.call(Verdict::Ok, MS * 40);
    }
    let _inside = [scene.try_enter().unwrap(), scene.try_enter().unwrap()];
    let told: Vec<u128> = (0..4).map(|_| scene.try_enter().unwrap_err().after.unwrap().as_millis()).collect();
    assert_eq!(told, [40, 80, 120, 160]);
    // Nothing has ended for two seconds: it would be a lie to say that something will in 40 ms.
    scene.now = scene.now + MS * 2_000;
    assert!(scene.try_enter().unwrap_err().after.unwrap() >= MS * 2_000);
}
