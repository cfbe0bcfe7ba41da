//! Breakers and those who call through them.

use std::collections::BTreeSet;

use super::*;
use crate::{
    env::sim::Sim,
    event::{Counts, Metric},
    gate::{guard, result},
};

const SECOND: Duration = Duration::from_secs(1);
const OVERLOAD: Verdict = Verdict::Overload { after: None };

/// A breaker and a clock that is moved by hand.
struct Scene {
    env: Env,
    counts: Arc<Counts>,
    breaker: Breaker,
    now: Tick,
}

impl Scene {
    fn new(build: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> Scene {
        let counts = Arc::new(Counts::default());
        let env = Sim::new(7).env().observed_by(Arc::clone(&counts));
        let breaker = build(Breaker::builder(&env)).build();
        Scene { env, counts, breaker, now: Tick::ZERO }
    }

    fn usual() -> Scene {
        Scene::new(|usual| usual)
    }

    fn enter(&self) -> Result<Pass, Refusal> {
        self.breaker.try_enter(&self.ask())
    }

    fn ask(&self) -> Ask {
        Ask { at: self.now, ..Ask::new(&self.env) }
    }

    fn settle(&self, pass: Pass, verdict: Verdict) {
        pass.settle(&verdict, Span { from: self.now, to: self.now });
    }

    /// Calls with these results; false for the first that is refused.
    fn call(&self, verdicts: &[Verdict]) -> bool {
        verdicts.iter().all(|verdict| self.enter().map(|pass| self.settle(pass, *verdict)).is_ok())
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn trips(&self) -> u64 {
        self.counts.get(Metric::Trips)
    }

    /// Trips it and waits until it may be probed.
    fn half_open(build: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> Scene {
        let mut scene = Scene::new(build);
        scene.call(&[Verdict::Fault; 7]);
        let Phase::Open { until } = scene.breaker.phase() else { panic!("{:?}", scene.breaker) };
        scene.now = until;
        scene
    }

    fn probe(&self) -> Pass {
        self.enter().expect("the first to ask is the probe")
    }
}

#[test]
fn seven_faults_in_a_row_trip_it_and_six_do_not() {
    let scene = Scene::usual();
    scene.call(&[Verdict::Fault; 6]);
    scene.call(&[Verdict::Ok]);
    scene.call(&[Verdict::Fault; 6]);
    assert!(scene.breaker.is_closed());
    scene.call(&[Verdict::Fault]);
    assert!(matches!(scene.breaker.phase(), Phase::Open { .. }));
    assert_eq!(scene.trips(), 1);
}

#[test]
fn an_answer_that_blames_the_request_ends_the_row_and_silence_does_not() {
    for (verdict, trips) in [(Verdict::Ok, 0), (Verdict::Final, 0), (Verdict::Ignored, 1), (OVERLOAD, 1)] {
        let scene = Scene::usual();
        scene.call(&[Verdict::Fault; 6]);
        scene.call(&[verdict]);
        scene.call(&[Verdict::Fault]);
        assert_eq!(scene.trips(), trips, "{verdict:?} between the sixth and the seventh");
    }
}

#[test]
fn overload_never_trips_in_a_row_but_does_when_it_is_most_of_the_answers() {
    let scene = Scene::usual();
    scene.call(&[OVERLOAD; 19]);
    assert!(scene.breaker.is_closed());
    scene.call(&[OVERLOAD]);
    assert_eq!(scene.trips(), 1);
}

#[test]
fn a_rate_below_half_trips_it_though_no_two_faults_are_neighbours() {
    let mut scene = Scene::new(|usual| usual.least_ok(0.6));
    for n in 0..20 {
        assert!(scene.breaker.is_closed(), "after {n}");
        scene.call(&[[Verdict::Ok, Verdict::Fault][n % 2]]);
        scene.wait(SECOND / 4);
    }
    assert_eq!(scene.trips(), 1);
}

#[test]
fn what_lies_back_a_window_does_not_count() {
    let mut scene = Scene::usual();
    scene.call(&[OVERLOAD; 19]);
    scene.wait(SECOND * 12);
    scene.call(&[OVERLOAD; 19]);
    assert!(scene.breaker.is_closed());
}

#[test]
fn an_origin_that_answers_slowly_trips_it_though_every_answer_is_right() {
    let scene = Scene::new(|usual| usual.slow(SECOND, 0.5));
    let call = |took| scene.enter().unwrap().settle(&Verdict::Ok, Span { from: scene.now, to: scene.now + took });
    for _ in 0..10 {
        call(SECOND / 2);
    }
    for n in 0..10 {
        assert!(scene.breaker.is_closed(), "after {n} slow ones");
        call(SECOND);
    }
    assert_eq!(scene.trips(), 1);
    let usual = Scene::usual();
    for _ in 0..100 {
        usual.enter().unwrap().settle(&Verdict::Ok, Span { from: usual.now, to: usual.now + SECOND * 60 });
    }
    assert!(usual.breaker.is_closed(), "slowness counts only if asked for");
}

#[test]
fn a_slow_probe_has_failed_where_slowness_counts() {
    for (slow, trips) in [(true, 2), (false, 1)] {
        let scene = Scene::half_open(|usual| if slow { usual.slow(SECOND, 0.5) } else { usual });
        scene.probe().settle(&Verdict::Ok, Span { from: scene.now, to: scene.now + SECOND * 2 });
        assert_eq!(scene.trips(), trips);
    }
}

#[test]
fn no_two_who_are_refused_are_told_the_same_instant_and_none_to_come_while_it_is_open() {
    let mut scene = Scene::usual();
    scene.call(&[Verdict::Fault; 7]);
    let Phase::Open { until } = scene.breaker.phase() else { panic!() };
    let mut told = BTreeSet::new();
    for _ in 0..20_000 {
        scene.wait(Duration::from_micros(100));
        let refusal = scene.enter().unwrap_err();
        assert_eq!(refusal.why, Why::Tripped);
        let back = scene.now + refusal.after.unwrap();
        assert!(back >= until && back <= until + SECOND * 3, "{back:?}");
        assert!(told.insert(back), "told twice: {back:?}");
    }
    assert_eq!(scene.counts.get(Metric::Refusals), 20_000);
    let first_third = told.iter().filter(|back| **back < until + SECOND).count();
    assert!((6_600..6_734).contains(&first_third), "spread evenly over three seconds: {first_third} in the first");
}

#[test]
fn breakers_that_open_together_do_not_probe_together() {
    let env = Sim::new(1).env();
    let until: BTreeSet<Tick> = (0..200)
        .map(|id| {
            let scene = Scene { env: env.clone(), breaker: Breaker::new(&env.scope(id)), ..Scene::usual() };
            scene.call(&[Verdict::Fault; 7]);
            let Phase::Open { until } = scene.breaker.phase() else { panic!() };
            until
        })
        .collect();
    assert_eq!(until.len(), 200);
    let spread = *until.last().unwrap() - *until.first().unwrap();
    assert!(spread > SECOND * 2, "over {spread:?} of 2.5 s");
}

#[test]
fn one_of_a_crowd_is_the_probe() {
    let scene = Scene::half_open(|usual| usual);
    let entered: Vec<_> = (0..100).map(|_| scene.enter()).collect();
    assert_eq!(entered.iter().filter(|entered| entered.is_ok()).count(), 1);
    assert_eq!(scene.breaker.phase(), Phase::Probing);
    let told: BTreeSet<_> = entered.iter().filter_map(|entered| entered.as_ref().err()?.after).collect();
    assert_eq!(told.len(), 99, "and the others are told different times");
}

#[test]
fn a_busy_origin_fails_the_probe_and_one_that_blames_the_request_does_not() {
    for (verdict, trips) in [(Verdict::Ok, 1), (Verdict::Final, 1), (Verdict::Fault, 2), (OVERLOAD, 2)] {
        let scene = Scene::half_open(|usual| usual);
        scene.settle(scene.probe(), verdict);
        assert_eq!(scene.trips(), trips, "{verdict:?}");
    }
}

/// resilience4j#544: a call that was cancelled kept its place, and the breaker stayed half-open for ever.
#[test]
fn a_cancelled_probe_gives_its_place_to_the_next() {
    let scene = Scene::half_open(|usual| usual);
    for _ in 0..10 {
        drop(scene.probe());
    }
    scene.settle(scene.probe(), Verdict::Ok);
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
    assert_eq!(scene.trips(), 1, "a probe that left has not failed");
}

/// resilience4j#935: an ignored result kept its place.
#[test]
fn an_ignored_probe_gives_its_place_to_the_next() {
    let scene = Scene::half_open(|usual| usual);
    for _ in 0..10 {
        scene.settle(scene.probe(), Verdict::Ignored);
    }
    scene.settle(scene.probe(), Verdict::Ok);
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

/// Polly#311: a probe that never came back left the breaker half-open for ever.
#[test]
fn a_probe_that_is_never_settled_blocks_for_its_timeout_and_no_longer() {
    let mut scene = Scene::half_open(|usual| usual);
    let hung = scene.probe();
    scene.wait(SECOND * 5);
    assert!(scene.enter().is_err());
    let Phase::Open { until } = scene.breaker.phase() else { panic!() };
    scene.now = until;
    let second = scene.probe();
    scene.settle(hung, Verdict::Fault);
    assert_eq!(scene.breaker.phase(), Phase::Probing, "what the first says now is too late to count");
    scene.settle(second, Verdict::Ok);
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

/// Polly#217: results of calls that began before the breaker opened counted as those of the probe.
#[test]
fn results_from_before_a_change_are_thrown_away() {
    let mut scene = Scene::usual();
    let before: Vec<Pass> = (0..20).map(|_| scene.enter().unwrap()).collect();
    scene.call(&[Verdict::Fault; 7]);
    let Phase::Open { until } = scene.breaker.phase() else { panic!() };
    let (good, bad): (Vec<_>, Vec<_>) = before.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
    for (_, pass) in good {
        scene.settle(pass, Verdict::Ok);
    }
    assert_eq!(scene.breaker.phase(), Phase::Open { until }, "a late success does not close it");
    scene.now = until;
    let probe = scene.probe();
    for (_, pass) in bad {
        scene.settle(pass, Verdict::Fault);
    }
    assert_eq!(scene.breaker.phase(), Phase::Probing, "late faults do not fail the probe");
    scene.settle(probe, Verdict::Ok);
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

/// Polly#218 told its listeners of a new outage with each of these; others began the open time anew with each, and never
/// probed.
#[test]
fn faults_that_come_in_while_it_is_open_neither_keep_it_open_nor_are_a_new_outage() {
    let mut scene = Scene::usual();
    let before: Vec<Pass> = (0..20).map(|_| scene.enter().unwrap()).collect();
    scene.call(&[Verdict::Fault; 7]);
    let open = scene.breaker.phase();
    for pass in before {
        scene.wait(SECOND / 10);
        scene.settle(pass, Verdict::Fault);
    }
    assert_eq!((scene.breaker.phase(), scene.trips()), (open, 1));
}

/// denoland/std#7306: a probe of an earlier trial, back late, closed the breaker in a later one, or freed a place there that
/// it did not have.
#[test]
fn what_a_probe_of_an_earlier_trial_says_or_leaves_is_nothing_to_a_later_one() {
    let mut scene = Scene::half_open(|usual| usual);
    let endings: [fn(&Scene, Pass); 3] = [
        |scene, pass| scene.settle(pass, Verdict::Ok),
        |scene, pass| scene.settle(pass, Verdict::Ignored),
        |_, pass| drop(pass),
    ];
    for ending in endings {
        let early = scene.probe();
        scene.wait(SECOND * 5);
        assert!(scene.enter().is_err(), "it took too long, and has failed");
        let Phase::Open { until } = scene.breaker.phase() else { panic!("{:?}", scene.breaker) };
        scene.now = until;
        let late = scene.probe();
        ending(&scene, early);
        assert_eq!(scene.breaker.phase(), Phase::Probing);
        assert!(scene.enter().is_err(), "the place is taken");
        drop(late);
    }
}

/// Counts that are wiped every so often never come to seven where calls are rare, however long the outage lasts.
#[test]
fn an_outage_that_is_asked_about_once_an_hour_is_noticed() {
    let mut scene = Scene::usual();
    for _ in 0..7 {
        assert!(scene.call(&[Verdict::Fault]));
        scene.wait(SECOND * 3600);
    }
    assert_eq!(scene.trips(), 1);
}

#[test]
fn faults_from_before_an_outage_do_not_count_when_it_has_closed_again() {
    let mut scene = Scene::new(|usual| usual.ramp(1.0, SECOND));
    let before: Vec<Pass> = (0..20).map(|_| scene.enter().unwrap()).collect();
    scene.call(&[Verdict::Fault; 7]);
    scene.wait(SECOND * 5);
    scene.settle(scene.probe(), Verdict::Ok);
    assert!(scene.breaker.is_closed());
    for pass in before {
        scene.settle(pass, Verdict::Fault);
    }
    scene.call(&[Verdict::Fault]);
    assert!(scene.breaker.is_closed(), "one fault is one fault");
}

#[test]
fn a_breaker_that_closed_begins_with_nothing_counted() {
    let mut scene = Scene::half_open(|usual| usual.open(SECOND, SECOND).ramp(1.0, SECOND));
    scene.settle(scene.probe(), Verdict::Ok);
    assert!(scene.breaker.is_closed());
    scene.wait(SECOND / 10);
    scene.call(&[Verdict::Fault; 6]);
    scene.call(&[Verdict::Ok; 8]);
    assert!(scene.breaker.is_closed(), "the seven faults of a second ago count neither in a row nor in the window");
}

#[test]
fn closing_is_a_ramp_and_not_a_step() {
    let mut scene = Scene::half_open(|usual| usual);
    scene.settle(scene.probe(), Verdict::Ok);
    let mut let_in = Vec::new();
    for _ in 0..4 {
        let passes: Vec<_> = (0..1000).filter_map(|_| scene.enter().ok()).collect();
        let_in.push(passes.len());
        scene.wait(SECOND / 2);
        for pass in passes {
            scene.settle(pass, Verdict::Ok);
        }
        scene.wait(SECOND / 2);
    }
    for (got, expected) in let_in.iter().zip([200, 400, 800, 1000]) {
        assert!(got.abs_diff(expected) < 50, "{let_in:?}");
    }
    assert!(scene.breaker.is_closed());
}

#[test]
fn a_person_may_hold_it_open_or_closed() {
    let mut scene = Scene::usual();
    let before = scene.enter().unwrap();
    scene.breaker.hold_open();
    assert_eq!(scene.enter().unwrap_err(), Refusal::new(Why::Tripped), "nobody knows until when");
    scene.wait(SECOND * 1_000_000);
    assert!(scene.enter().is_err());
    scene.settle(before, Verdict::Ok);
    assert_eq!(scene.breaker.phase(), Phase::HeldOpen);
    scene.breaker.hold_closed();
    assert!(scene.call(&[Verdict::Fault; 1000]));
    assert_eq!((scene.breaker.phase(), scene.trips()), (Phase::HeldClosed, 0));
    scene.breaker.release();
    scene.call(&[Verdict::Fault; 6]);
    assert!(scene.breaker.is_closed(), "what happened while it was held does not count");
    scene.call(&[Verdict::Fault]);
    assert!(matches!(scene.breaker.phase(), Phase::Open { .. }));
}

#[test]
fn times_without_end_are_cut_to_what_can_be_reckoned_with() {
    let longest = Duration::MAX;
    let scene = Scene::half_open(|usual| {
        let usual = usual.window(longest, u32::MAX).slow(longest, f64::INFINITY).open(longest, longest).jitter(0.3);
        usual.probe_timeout(longest).ramp(0.2, longest).ramp_factor(f64::INFINITY)
    });
    scene.settle(scene.probe(), Verdict::Ok);
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

#[test]
fn settings_that_make_no_sense_neither_panic_nor_wedge_it() {
    let mut scene = Scene::half_open(|usual| {
        let usual = usual.faults(0).least_ok(f64::NAN).window(Duration::ZERO, 0).slow(Duration::MAX, -1.0);
        let usual = usual.open(Duration::ZERO, Duration::ZERO).jitter(7.0).probe_timeout(Duration::ZERO);
        usual.ramp(-3.0, Duration::ZERO).ramp_factor(0.0)
    });
    for _ in 0..10_000 {
        scene.call(&[Verdict::Ok]);
        scene.wait(Duration::from_millis(1));
    }
    assert!(scene.breaker.is_closed(), "{:?}", scene.breaker);
}

#[test]
fn borrowed_permits_settle_and_give_back_as_owned_ones() {
    let scene = Scene::half_open(|usual| usual);
    let gate = scene.breaker.borrowed();
    drop(gate.try_enter(&scene.ask()).unwrap());
    gate.try_enter(&scene.ask()).unwrap().settle(&Verdict::Ok, Span { from: scene.now, to: scene.now });
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

#[test]
fn a_refused_caller_can_be_given_something_else() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let breaker = Breaker::new(&env);
    breaker.hold_open();
    let call = guard(&env, &breaker, result, Ask::new(&env), || async { Err::<u8, u8>(9) });
    assert_eq!(fallback(sim.run(call), |refusal| u8::from(refusal.why == Why::Tripped)), Ok(1));
    breaker.release();
    let call = guard(&env, &breaker, result, Ask::new(&env), || async { Err::<u8, u8>(9) });
    assert_eq!(fallback(sim.run(call), |_| 1), Err(9), "a failure is not a refusal");
}

#[test]
fn a_pass_from_before_a_change_does_not_hold() {
    let scene = Scene::usual();
    let waited = scene.enter().unwrap();
    assert!(waited.holds());
    assert!(scene.call(&[Verdict::Fault; 7]));
    assert!(!waited.holds(), "it is open now");
    assert!(scene.enter().is_err());
}

#[test]
fn readings_of_the_clock_that_are_milliseconds_behind_keep_it_open_that_much_longer_and_do_no_more() {
    const BEHIND: Duration = Duration::from_millis(4);
    let mut scene = Scene::new(|usual| usual.slow(SECOND, 0.5));
    scene.wait(SECOND);
    let coarse = |scene: &Scene| Ask::at(Tick::ZERO + (scene.now - Tick::ZERO).saturating_sub(BEHIND));
    for call in 0..7 {
        // Let in by the coarse clock and settled by the exact one, or the other way around.
        let (from, to) = if call % 2 == 0 { (coarse(&scene).at, scene.now) } else { (scene.now, coarse(&scene).at) };
        let pass = scene.breaker.try_enter(&Ask::at(from)).expect("it is closed");
        pass.settle(&Verdict::Fault, Span { from, to });
    }
    let Phase::Open { until } = scene.breaker.phase() else { panic!("{:?}", scene.breaker) };
    scene.now = until;
    let refused = scene.breaker.try_enter(&coarse(&scene)).expect_err("as far as it knows it is still open");
    assert!(refused.after.is_some_and(|after| after >= BEHIND));
    scene.wait(BEHIND);
    let probe = scene.breaker.try_enter(&coarse(&scene)).expect("now it knows");
    // Who asks meanwhile may have an older reading than the probe.
    assert!(scene.breaker.try_enter(&Ask::at(Tick::ZERO)).is_err());
    probe.settle(&Verdict::Ok, Span { from: scene.now, to: coarse(&scene).at });
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

#[test]
fn who_waited_while_it_tripped_is_sent_away_and_who_waited_while_nothing_changed_is_not_asked_again() {
    let scene = Scene::usual();
    let (breaker, ask) = (&scene.breaker, scene.ask());
    let (mut early, mut lent) = (scene.enter().unwrap(), breaker.borrowed().try_enter(&ask).unwrap());
    assert!(breaker.renew(&mut early, &ask).is_ok() && breaker.borrowed().renew(&mut lent, &ask).is_ok());
    assert!(scene.call(&[Verdict::Fault; 7]));
    assert_eq!(breaker.renew(&mut early, &ask).unwrap_err().why, Why::Tripped);
    assert_eq!(breaker.borrowed().renew(&mut lent, &ask).unwrap_err().why, Why::Tripped);
}

#[test]
fn who_waited_while_it_tripped_and_closed_again_has_a_pass_that_counts() {
    let scene = Scene::new(|usual| usual.faults(1));
    let mut waited = scene.enter().unwrap();
    scene.breaker.hold_open();
    scene.breaker.release();
    assert!(!waited.holds());
    scene.breaker.renew(&mut waited, &scene.ask()).unwrap();
    scene.settle(waited, Verdict::Fault);
    assert!(!scene.breaker.is_closed(), "what came of it was thrown away");
}

/// Only one may be inside as a probe; one that comes back must not count as somebody else.
#[test]
fn a_probe_that_waited_is_still_the_probe() {
    let scene = Scene::usual();
    assert!(scene.call(&[Verdict::Fault; 7]));
    let ask = Ask::at(Tick::ZERO + Duration::from_secs(60));
    let mut probe = scene.breaker.try_enter(&ask).unwrap();
    scene.breaker.renew(&mut probe, &ask).unwrap();
    assert_eq!(scene.breaker.phase(), Phase::Probing);
    probe.settle(&Verdict::Ok, Span { from: ask.at, to: ask.at });
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

#[test]
fn no_caller_is_the_probe_where_the_owner_probes() {
    let mut scene = Scene::new(|usual| usual.external_probes().open(SECOND, SECOND));
    scene.breaker.trip();
    scene.wait(10 * SECOND);
    let refusal = scene.enter().unwrap_err();
    assert!(refusal.after.is_some(), "{refusal:?}");
    assert!(!scene.call(&[Verdict::Ok; 1]));
    scene.breaker.recover();
    assert!(matches!(scene.breaker.phase(), Phase::Ramping { .. }));
}

#[test]
fn a_failed_probe_of_the_owner_keeps_it_open_for_longer_and_is_no_new_trip() {
    let scene = Scene::new(|usual| usual.external_probes().open(SECOND, 4 * SECOND).jitter(0.0));
    let mut open = Vec::new();
    for _ in 0..4 {
        scene.breaker.trip();
        let Phase::Open { until } = scene.breaker.phase() else { panic!("{:?}", scene.breaker) };
        open.push(until - scene.env.now());
    }
    assert_eq!(open, [1, 2, 4, 4].map(|seconds| seconds * SECOND));
    assert_eq!(scene.trips(), 1);
}

#[test]
fn what_the_owner_says_does_not_overrule_a_person() {
    let scene = Scene::usual();
    scene.breaker.recover();
    assert_eq!(scene.breaker.phase(), Phase::Closed, "there is nothing to recover from");
    scene.breaker.hold_closed();
    scene.breaker.trip();
    assert_eq!(scene.breaker.phase(), Phase::HeldClosed);
    scene.breaker.hold_open();
    scene.breaker.recover();
    assert_eq!(scene.breaker.phase(), Phase::HeldOpen);
}

#[test]
fn a_ramp_that_begins_at_one_closes_at_once() {
    let scene = Scene::new(|usual| usual.external_probes().ramp(1.0, SECOND));
    scene.breaker.trip();
    scene.breaker.recover();
    assert_eq!(scene.breaker.phase(), Phase::Closed);
    assert!(scene.call(&[Verdict::Ok; 20]));
}

#[test]
fn a_keyed_breaker_has_no_owner_to_wait_for() {
    let mut sim = Sim::new(7);
    let env = sim.env();
    let hosts = Breaker::builder(&env).external_probes().open(SECOND, SECOND).build_keyed(10);
    sim.run(async move {
        for _ in 0..7 {
            let pass = hosts.of("a").try_enter(&Ask::new(&env)).unwrap();
            pass.settle(&Verdict::Fault, Span { from: env.now(), to: env.now() });
        }
        assert!(hosts.of("a").try_enter(&Ask::new(&env)).is_err());
        env.sleep(SECOND).await;
        assert!(hosts.of("a").try_enter(&Ask::new(&env)).is_ok());
    });
}
