//! A second attempt, and everything that speaks against one, in virtual time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::*;
use crate::{
    env::sim::Sim,
    event::{Counts, Metric},
    gate::result,
};

const MS: Duration = Duration::from_millis(1);

/// An upstream, of which it is said for each attempt how long it takes and whether it fails.
struct Scene {
    sim: Sim,
    env: Env,
    counts: Arc<Counts>,
    attempts: Arc<AtomicU32>,
}

type Plan = (Duration, Result<u32, &'static str>);

/// `"refused"` is not the origin's doing, every other error is.
fn sort(outcome: &Result<u32, &'static str>) -> Verdict {
    if *outcome == Err("refused") { Verdict::Ignored } else { result(outcome) }
}

impl Scene {
    fn new() -> Scene {
        let sim = Sim::new(1);
        let counts = Arc::new(Counts::default());
        let env = sim.env().observed_by(Arc::clone(&counts));
        Scene { sim, env, counts, attempts: Arc::default() }
    }

    /// One call whose attempts go so, the first and the second.
    fn call(&mut self, hedge: &Hedge, first: Plan, second: Plan) -> (Result<u32, &'static str>, Duration) {
        self.call_by(hedge, first, second, None)
    }

    fn call_by(
        &mut self,
        hedge: &Hedge,
        first: Plan,
        second: Plan,
        within: Option<Duration>,
    ) -> (Result<u32, &'static str>, Duration) {
        let (env, attempts) = (self.env.clone(), Arc::clone(&self.attempts));
        let began = env.now();
        let mut ask = Ask::new(&env);
        ask.deadline = within.map(|within| began + within);
        let answer = self.sim.run(hedge.run(&env.clone(), sort, ask, move |_, which| {
            let (takes, outcome) = if which == Which::First { first } else { second };
            attempts.fetch_add(1, Ordering::Relaxed);
            let env = env.clone();
            async move {
                env.sleep(takes).await;
                outcome
            }
        }));
        (answer, self.env.now() - began)
    }

    /// Lets it learn that this upstream takes 10 ms.
    fn learn(&mut self, hedge: &Hedge, calls: u32) {
        for _ in 0..calls {
            self.call(hedge, (MS * 10, Ok(0)), (MS, Ok(0))).0.unwrap();
        }
        self.attempts.store(0, Ordering::Relaxed);
    }

    fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }
}

#[test]
fn a_slow_first_attempt_is_overtaken() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 200);
    let (answer, took) = scene.call(&hedge, (MS * 1000, Ok(1)), (MS * 10, Ok(2)));
    assert_eq!(answer, Ok(2));
    assert!(took > MS * 20 && took < MS * 22, "{took:?}: 10 ms, an eighth for the buckets, and 10 ms again");
    assert_eq!((scene.attempts(), scene.counts.get(Metric::Hedges)), (2, 1));
    let (answer, took) = scene.call(&hedge, (MS * 15, Ok(1)), (MS * 10, Ok(2)));
    assert_eq!((answer, took), (Ok(1), MS * 15), "the first may still win");
}

#[test]
fn a_quick_answer_needs_no_second_attempt() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 200);
    assert_eq!(scene.call(&hedge, (MS * 9, Ok(1)), (MS, Ok(2))), (Ok(1), MS * 9));
    assert_eq!(scene.call(&hedge, (Duration::ZERO, Err("no")), (MS, Ok(2))), (Err("no"), Duration::ZERO));
    assert_eq!(
        (scene.attempts(), scene.counts.get(Metric::Hedges)),
        (2, 0),
        "a failure is for the retry, not the hedge"
    );
}

#[test]
fn nothing_is_hedged_before_enough_is_known() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 99);
    assert_eq!(hedge.wait(), None);
    assert_eq!(scene.call(&hedge, (MS * 1000, Ok(1)), (MS, Ok(2))), (Ok(1), MS * 1000));
    assert!(hedge.wait().is_some());
}

#[test]
fn when_everything_is_slow_the_load_does_not_double() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 200);
    for _ in 0..400 {
        scene.call(&hedge, (MS * 100, Ok(1)), (MS * 100, Ok(2))).0.unwrap();
    }
    let hedges = scene.attempts() - 400;
    assert!((5..=40).contains(&hedges), "{hedges} hedges for 400 calls, all slow");
}

/// A wait that is learnt grows with the trouble; one that is fixed does not, and then only the budget is left.
#[test]
fn when_everything_takes_longer_than_a_fixed_wait_one_in_twenty_is_hedged() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).at(MS * 30).build();
    for _ in 0..400 {
        scene.call(&hedge, (MS * 100, Ok(1)), (MS * 100, Ok(2))).0.unwrap();
    }
    let hedges = scene.attempts() - 400;
    assert!((15..=20).contains(&hedges), "{hedges} hedges for 400 calls");
}

#[test]
fn the_slow_ones_that_lost_still_count_or_hedges_would_come_sooner_and_sooner() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).ratio(1.0).build();
    scene.learn(&hedge, 200);
    // One in ten is slow, which is more than the wait allows for: it has to grow beyond them.
    for call in 0..2_000 {
        let slow = if call % 10 == 0 { MS * 60 } else { MS * 10 };
        scene.call(&hedge, (slow, Ok(1)), (MS * 10, Ok(2))).0.unwrap();
    }
    let wait = hedge.wait().unwrap();
    assert!(wait > MS * 18, "{wait:?}");
}

#[test]
fn an_origin_that_fails_is_not_hedged() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 200);
    for _ in 0..60 {
        let _ = scene.call(&hedge, (MS, Err("down")), (MS, Ok(0)));
    }
    scene.attempts.store(0, Ordering::Relaxed);
    assert_eq!(scene.call(&hedge, (MS * 100, Ok(1)), (MS, Ok(2))), (Ok(1), MS * 100));
    assert_eq!(scene.attempts(), 1);
}

#[test]
fn a_breaker_that_is_open_or_a_limit_that_binds_speaks_against_it() {
    let mut scene = Scene::new();
    let calm = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&calm);
    let hedge = Hedge::builder(&scene.env).only_if(|| true).only_if(move || asked.load(Ordering::Relaxed)).build();
    scene.learn(&hedge, 200);
    calm.store(false, Ordering::Relaxed);
    assert_eq!(scene.call(&hedge, (MS * 100, Ok(1)), (MS, Ok(2))).0, Ok(1));
    calm.store(true, Ordering::Relaxed);
    assert_eq!(scene.call(&hedge, (MS * 100, Ok(1)), (MS, Ok(2))).0, Ok(2));
}

#[test]
fn with_too_little_time_left_a_hedge_would_be_wasted() {
    let mut scene = Scene::new();
    let hedge = Hedge::new(&scene.env);
    scene.learn(&hedge, 200);
    assert_eq!(scene.call_by(&hedge, (MS * 30, Ok(1)), (MS, Ok(2)), Some(MS * 20)).0, Ok(1));
    assert_eq!(scene.call_by(&hedge, (MS * 30, Ok(1)), (MS, Ok(2)), Some(MS * 40)).0, Ok(2));
}

#[test]
fn the_shared_budget_has_its_say() {
    let mut scene = Scene::new();
    let budget = Budget::builder(&scene.env).floor(0.0).build();
    let hedge = Hedge::builder(&scene.env).budget(&budget).build();
    scene.learn(&hedge, 200);
    assert_eq!(scene.call(&hedge, (MS * 100, Ok(1)), (MS, Ok(2))).0, Ok(1), "nothing was earned");
    (0..10).for_each(|_| budget.first(scene.env.now()));
    assert_eq!(scene.call(&hedge, (MS * 100, Ok(1)), (MS, Ok(2))).0, Ok(2));
    assert_eq!(budget.stats().hedges, 1);
}

#[test]
fn a_failed_attempt_waits_for_the_other_and_the_first_failure_is_what_is_told() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).ratio(1.0).build();
    scene.learn(&hedge, 200);
    assert_eq!(scene.call(&hedge, (MS * 50, Ok(1)), (MS, Err("second"))), (Ok(1), MS * 50));
    assert_eq!(scene.call(&hedge, (MS * 12, Err("first")), (MS * 30, Ok(2))).0, Ok(2));
    assert_eq!(scene.call(&hedge, (MS * 12, Err("first")), (MS * 30, Err("second"))).0, Err("first"));
    assert_eq!(scene.call(&hedge, (MS * 60, Err("first")), (MS, Err("second"))).0, Err("second"));
}

#[test]
fn a_second_attempt_that_is_refused_does_not_end_the_first() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).ratio(1.0).build();
    scene.learn(&hedge, 200);
    let known = hedge.0.times.len();
    assert_eq!(scene.call(&hedge, (MS * 50, Ok(1)), (Duration::ZERO, Err("refused"))), (Ok(1), MS * 50));
    assert_eq!((scene.attempts(), hedge.0.times.len()), (2, known + 1), "nothing is learned from who was not let in");
    assert_eq!(scene.call(&hedge, (MS * 50, Err("first")), (MS, Err("refused"))).0, Err("first"));
    assert_eq!(scene.call(&hedge, (MS * 12, Err("first")), (MS * 30, Err("refused"))).0, Err("first"));
    assert_eq!(scene.call(&hedge, (MS * 50, Err("refused")), (MS, Err("refused"))).0, Err("refused"));
}

#[test]
fn a_first_attempt_that_is_refused_in_the_line_does_not_end_the_second() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).ratio(1.0).build();
    scene.learn(&hedge, 200);
    assert_eq!(scene.call(&hedge, (MS * 12, Err("refused")), (MS * 30, Ok(2))).0, Ok(2));
    assert_eq!(scene.call(&hedge, (MS * 12, Err("refused")), (MS * 30, Err("second"))).0, Err("second"));
}

#[test]
fn what_decides_is_a_function_of_what_is_known() {
    let calm = Seen { failed: 0.0, median: Some(MS * 10), left: None };
    assert!(is_worthwhile(calm, 0.1));
    assert!(is_worthwhile(Seen { left: Some(MS * 11), ..calm }, 0.1));
    assert!(!is_worthwhile(Seen { left: Some(MS * 10), ..calm }, 0.1));
    assert!(!is_worthwhile(Seen { left: Some(MS * 11), median: None, ..calm }, 0.1));
    assert!(!is_worthwhile(Seen { failed: 0.1, ..calm }, 0.1));
    assert!(!is_worthwhile(calm, f64::NAN));
}

#[test]
fn the_very_first_attempt_may_hang_where_a_wait_is_set_for_when_nothing_is_known() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).unknown(MS * 100).floor(1.0).build();
    let hung = (MS * 10_000, Ok(1));
    let (answer, took) = scene.call_by(&hedge, hung, (MS * 20, Ok(2)), Some(MS * 5_000));
    assert_eq!((answer, took, scene.attempts()), (Ok(2), MS * 120, 2));
    // Not with less time left than the guess.
    let hedge = Hedge::builder(&scene.env).unknown(MS * 100).floor(1.0).build();
    let (_, took) = scene.call_by(&hedge, (MS * 180, Ok(1)), (MS * 20, Ok(2)), Some(MS * 190));
    assert_eq!(took, MS * 180);
    // And not without something to pay for it.
    let hedge = Hedge::builder(&scene.env).unknown(MS * 100).build();
    assert_eq!(scene.call(&hedge, (MS * 300, Ok(1)), (MS * 20, Ok(2))), (Ok(1), MS * 300));
}

#[test]
fn once_enough_is_known_the_wait_is_what_is_usual_but_no_less_than_was_set() {
    let mut scene = Scene::new();
    let hedge = Hedge::builder(&scene.env).unknown(MS * 100).least(MS * 100).samples(10).build();
    assert_eq!(hedge.wait(), Some(MS * 100));
    for _ in 0..20 {
        assert!(scene.call(&hedge, (MS, Ok(1)), (MS, Ok(2))).0.is_ok());
    }
    assert_eq!(hedge.wait(), Some(MS * 100), "an origin that is quick");
    for _ in 0..200 {
        assert!(scene.call(&hedge, (MS * 8_000, Ok(1)), (MS * 8_000, Ok(2))).0.is_ok());
    }
    assert!(
        hedge.wait().unwrap() > MS * 7_000,
        "an origin that takes long is not asked twice for that: {:?}",
        hedge.wait()
    );
}
