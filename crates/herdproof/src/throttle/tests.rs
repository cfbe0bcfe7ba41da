//! The throttle against its formula, and what it owes to those who pass.

use super::*;
use crate::{
    env::sim::Sim,
    event::{Counts, Metric},
};

const SECOND: Duration = Duration::from_secs(1);
const OVERLOAD: Verdict = Verdict::Overload { after: None };

struct Scene {
    env: Env,
    counts: Arc<Counts>,
    throttle: Throttle,
    now: Tick,
}

impl Scene {
    fn new(build: impl FnOnce(ThrottleBuilder) -> ThrottleBuilder) -> Scene {
        let counts = Arc::new(Counts::default());
        let env = Sim::new(7).env().observed_by(Arc::clone(&counts));
        let throttle = build(Throttle::builder(&env)).build();
        Scene { env, counts, throttle, now: Tick::ZERO }
    }

    fn enter(&self) -> Result<Sent, Refusal> {
        self.throttle.try_enter(&Ask { at: self.now, ..Ask::new(&self.env) })
    }

    fn settle(&self, sent: Sent, verdict: Verdict) {
        sent.settle(&verdict, Span { from: self.now, to: self.now });
    }

    /// Wants so many a second, of which the origin accepts so many; gives how many were sent.
    fn seconds(&mut self, seconds: u32, wanted: u32, accepted: u32) -> u32 {
        let mut sent = 0;
        for _ in 0..seconds {
            let mut left = accepted;
            for _ in 0..wanted {
                self.now = self.now + SECOND / wanted;
                if let Ok(permit) = self.enter() {
                    sent += 1;
                    self.settle(permit, if left > 0 { Verdict::Ok } else { OVERLOAD });
                    left = left.saturating_sub(1);
                }
            }
        }
        sent
    }

    fn chance(&self, priority: Priority) -> f64 {
        self.throttle.chance_of_refusal(priority, self.now)
    }
}

#[test]
fn the_chance_is_what_the_formula_says() {
    let rules = Throttle::builder(&Sim::new(1).env()).rules;
    let long = SECOND * 1000;
    for (requests, accepts, k, chance) in [
        (1000, 1000, 2.0, 0.0),
        (1000, 500, 2.0, 0.0),
        (1000, 400, 2.0, 200.0 / 1001.0),
        (1000, 400, 3.0, 0.0),
        (1000, 400, 1.1, 560.0 / 1001.0),
        (1000, 0, 2.0, 0.9),
        (599, 0, 2.0, 0.0),
    ] {
        let got = rules.chance(k, Sum { all: requests, some: accepts }, long);
        assert!((got - chance).abs() < 1e-12, "{requests} requests, {accepts} accepts, K = {k}: {got}");
    }
}

#[test]
fn an_overloaded_origin_is_asked_about_k_times_what_it_can_do() {
    let mut scene = Scene::new(|usual| usual);
    scene.seconds(240, 1000, 100);
    let sent = scene.seconds(60, 1000, 100);
    assert!((11_000..13_500).contains(&sent), "{sent} were sent for the 6000 that were accepted");
}

#[test]
fn a_healthy_origin_is_asked_everything() {
    let mut scene = Scene::new(|usual| usual);
    assert_eq!(scene.seconds(100, 100, 60), 10_000, "even with 40 % refused");
    assert_eq!(scene.counts.get(Metric::Refusals), 0);
}

#[test]
fn after_an_outage_enough_is_sent_to_notice_that_it_is_over() {
    let mut scene = Scene::new(|usual| usual);
    let sent = scene.seconds(300, 100, 0);
    assert!((2_400..4_200).contains(&sent), "a tenth is sent during the outage: {sent}");
    scene.seconds(240, 100, 100);
    assert!(scene.chance(Priority::Normal) < 1e-9);
}

#[test]
fn what_matters_least_is_refused_first() {
    let mut scene = Scene::new(|usual| usual);
    scene.seconds(60, 100, 40);
    let by_priority = [Priority::Sheddable, Priority::Background, Priority::Normal, Priority::Critical];
    let chances = by_priority.map(|priority| scene.chance(priority));
    assert!(chances.is_sorted_by(|a, b| a > b || (*a == 0.0 && *b == 0.0)), "{chances:?}");
    assert!(chances[0] > 0.5 && chances[3] < 0.1, "{chances:?}");
}

#[test]
fn a_few_requests_say_nothing() {
    let mut scene = Scene::new(|usual| usual);
    assert_eq!(scene.seconds(300, 4, 0), 1200);
}

#[test]
fn a_young_throttle_does_not_need_a_full_window_to_act() {
    let mut scene = Scene::new(|usual| usual);
    scene.seconds(2, 100, 0);
    assert!(scene.chance(Priority::Normal) > 0.8);
}

/// zeromicro/go-zero#5011: counted when they ended, requests that hang were not seen.
#[test]
fn requests_that_hang_are_seen_and_a_crowd_that_has_no_answer_yet_is_not_refused() {
    let mut scene = Scene::new(|usual| usual);
    let hanging: Vec<_> = (0..1_000).map(|_| scene.enter().expect("nothing speaks against the origin")).collect();
    scene.now = scene.now + SECOND * 30;
    assert!(scene.chance(Priority::Normal) > 0.8);
    for sent in hanging {
        scene.settle(sent, Verdict::Ok);
    }
    assert!(scene.chance(Priority::Normal) < 1e-9, "and are forgiven when they are accepted within the window");
}

#[test]
fn who_left_is_taken_back_and_who_failed_was_accepted() {
    let scene = Scene::new(|usual| usual.most_refused(0.0));
    let sum = || scene.throttle.0.requests.0.sum(scene.throttle.0.scale, scene.now);
    drop(scene.enter().unwrap());
    scene.settle(scene.enter().unwrap(), Verdict::Ignored);
    assert_eq!(sum(), Sum { all: 0, some: 0 });
    for verdict in [Verdict::Ok, Verdict::Fault, Verdict::Final, OVERLOAD] {
        scene.settle(scene.enter().unwrap(), verdict);
    }
    assert_eq!(sum(), Sum { all: 4, some: 3 });
}

#[test]
fn a_refusal_says_why_and_is_not_worth_a_retry() {
    let mut scene = Scene::new(|usual| usual.most_refused(1.0));
    scene.seconds(10, 1000, 0);
    let refusal = scene.enter().unwrap_err();
    assert_eq!(refusal, Refusal::new(Why::Throttled));
    assert!(!refusal.why.is_retryable());
}

#[test]
fn settings_that_make_no_sense_change_nothing() {
    let nan = |usual: ThrottleBuilder| {
        usual.k(Priority::Normal, f64::NAN).most_refused(f64::NAN).least_rate(f64::NAN).window(Duration::ZERO)
    };
    let rules = nan(Throttle::builder(&Sim::new(1).env())).rules;
    assert_eq!((rules.k[2].to_bits(), rules.most.to_bits()), (2f64.to_bits(), 0.9f64.to_bits()));
    let mut scene = Scene::new(nan);
    scene.seconds(3, 100, 100);
}

#[test]
fn who_asks_or_settles_by_a_clock_that_is_milliseconds_behind_is_counted_and_taken_back_as_any_other() {
    let mut scene = Scene::new(|usual| usual);
    scene.now = scene.now + SECOND * 8;
    let behind = Tick::ZERO + Duration::from_millis(7_996);
    for (from, to) in [(behind, scene.now), (scene.now, behind)] {
        scene.throttle.try_enter(&Ask::at(from)).expect("all is well").settle(&Verdict::Ok, Span { from, to });
        drop(scene.throttle.try_enter(&Ask::at(from)).expect("all is well"));
    }
    let Inner { scale, requests, .. } = &*scene.throttle.0;
    assert_eq!(requests.0.sum(*scale, scene.now), Sum { all: 2, some: 2 });
    // Asked before it was made.
    assert!(scene.throttle.chance_of_refusal(Priority::Normal, Tick::ZERO) <= 0.0);
}
