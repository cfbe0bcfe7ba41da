//! The decisions, as arithmetic.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Tick {
    Tick::ZERO + Duration::from_millis(ms)
}

fn opened(state: State, now: Tick) -> Duration {
    let Mode::Open { until } = state.mode else { panic!("{state:?}") };
    until - now
}

/// Goes through the open time and a probe that works.
fn ramping(rules: &Rules) -> (State, Tick) {
    let open = State::new(at(0)).trip(rules, at(0), 0.0);
    let now = at(0) + opened(open, at(0));
    let (probing, entry) = open.ask(rules, now, 0.5);
    assert_eq!(entry, Entry::In);
    (probing.settle(rules, now, Result::Ok, 0.5), now)
}

fn share(state: State) -> f64 {
    let Mode::Ramping { share, .. } = state.mode else { panic!("{state:?}") };
    f64::from(share)
}

#[test]
fn the_open_time_doubles_up_to_a_cap_at_which_it_is_still_drawn() {
    let rules = Rules::default();
    let mut state = State::new(at(0));
    for longest in [5, 10, 20, 30, 30].map(|seconds| SECOND * seconds) {
        let draws = [0.0, 0.5, 1.0].map(|draw| opened(state.trip(&rules, at(0), draw), at(0)));
        assert_eq!(draws, [longest / 2, longest / 4 * 3, longest]);
        state = state.trip(&rules, at(0), 0.0);
    }
}

#[test]
fn a_healthy_window_takes_one_doubling_back_however_long_the_outage_was() {
    let rules = Rules::default();
    let tripped = (0..1000).fold(State::new(at(0)), |state, _| state.trip(&rules, at(0), 0.0));
    for (healthy, longest) in [(9, 30), (10, 20), (20, 10), (30, 5), (1_000_000_000, 5)] {
        let state = tripped.close(at(7)).trip(&rules, at(7) + SECOND * healthy, 1.0);
        assert_eq!(opened(state, at(7) + SECOND * healthy), SECOND * longest, "after {healthy} s");
    }
}

#[test]
fn three_good_seconds_close_it() {
    let rules = Rules::default();
    let (mut state, mut now) = ramping(&rules);
    for expected in [0.2, 0.4, 0.8] {
        assert!((share(state) - expected).abs() < 1e-6);
        now = now + SECOND;
        state = state.settle(&rules, now, Result::Ok, 0.5);
    }
    assert_eq!(state.mode, Mode::Closed { since: now });
    assert_eq!(rules.ramp_time(), SECOND * 3);
}

#[test]
fn a_second_without_a_result_changes_nothing() {
    let rules = Rules::default();
    let (state, now) = ramping(&rules);
    let (later, _) = state.ask(&rules, now + SECOND * 100, 0.9);
    assert!((share(later) - 0.2).abs() < 1e-6);
}

#[test]
fn a_step_is_judged_by_its_own_results_and_not_by_the_one_that_ends_it() {
    let rules = Rules::default();
    let (state, now) = ramping(&rules);
    let state = state.settle(&rules, now, Result::Ok, 0.5);
    let state = state.settle(&rules, now + SECOND, Result::Fault, 0.5);
    assert!((share(state) - 0.4).abs() < 1e-6);
    let state = state.settle(&rules, now + SECOND * 2, Result::Ok, 0.5);
    assert!((share(state) - 0.2).abs() < 1e-6);
}

#[test]
fn nine_of_ten_lead_up_and_eight_lead_down() {
    let rules = Rules::default();
    for (bad, expected) in [(1, 0.4), (2, 0.1)] {
        let (mut state, now) = ramping(&rules);
        for n in 0..10 {
            let result = if n < bad { Result::Weak } else { Result::Ok };
            state = state.settle(&rules, now, result, 0.5);
        }
        let (state, _) = state.ask(&rules, now + SECOND, 0.5);
        assert!((share(state) - expected).abs() < 1e-6, "{bad} of ten were bad: {state:?}");
    }
}

#[test]
fn a_ramp_that_goes_down_opens_for_longer() {
    let rules = Rules::default();
    let (mut state, mut now) = ramping(&rules);
    for expected in [0.1, 0.05] {
        now = now + SECOND;
        state = state.settle(&rules, now, Result::Weak, 1.0);
        assert!((share(state) - expected).abs() < 1e-6);
    }
    now = now + SECOND;
    state = state.settle(&rules, now, Result::Weak, 1.0);
    assert_eq!(opened(state, now), SECOND * 10);
}

#[test]
fn an_origin_that_dies_during_the_ramp_is_noticed_by_faults_in_a_row() {
    let rules = Rules::default();
    let (mut state, now) = ramping(&rules);
    for _ in 0..7 {
        assert!(matches!(state.mode, Mode::Ramping { .. }));
        state = state.settle(&rules, now, Result::Fault, 1.0);
    }
    assert_eq!(opened(state, now), SECOND * 10);
}

#[test]
fn who_is_asked_once_a_minute_does_not_ramp_for_ten() {
    let rules = Rules::default();
    let (mut state, mut now) = ramping(&rules);
    for _ in 0..3 {
        now = now + SECOND * 60;
        let (asked, entry) = state.ask(&rules, now, 0.99);
        assert_eq!(entry, Entry::In);
        state = asked.settle(&rules, now, Result::Ok, 0.5);
    }
    assert_eq!(state.mode, Mode::Closed { since: now });
}

#[test]
fn the_share_is_the_share_that_gets_in() {
    let rules = Rules::default();
    let (mut state, now) = ramping(&rules);
    let mut within = 0;
    for n in 0..1000 {
        let (next, entry) = state.ask(&rules, now, f64::from(n) / 1000.0);
        state = next;
        within += u32::from(entry == Entry::In);
    }
    // The share is kept with seven digits.
    assert!((200..=201).contains(&within), "{within}");
}

#[test]
fn a_probe_that_never_answers_has_failed_when_its_time_is_over() {
    let rules = Rules::default();
    let open = State::new(at(0)).trip(&rules, at(0), 0.0);
    let (probing, _) = open.ask(&rules, at(2_500), 0.0);
    let (same, entry) = probing.ask(&rules, at(7_499), 0.0);
    assert_eq!((same, entry), (probing, Entry::Refused { until: at(7_499) }));
    let (reopened, _) = probing.ask(&rules, at(7_500), 1.0);
    assert_eq!(opened(reopened, at(7_500)), SECOND * 10);
    assert_ne!(reopened.epoch, probing.epoch);
}

#[test]
fn a_probe_that_works_when_its_time_is_over_has_failed_though_nobody_asked_meanwhile() {
    let rules = Rules::default();
    let open = State::new(at(0)).trip(&rules, at(0), 0.0);
    let (probing, _) = open.ask(&rules, at(2_500), 0.0);
    assert!(matches!(probing.settle(&rules, at(7_499), Result::Ok, 1.0).mode, Mode::Ramping { .. }));
    assert_eq!(opened(probing.settle(&rules, at(7_500), Result::Ok, 1.0), at(7_500)), SECOND * 10);
}

#[test]
fn every_change_has_an_epoch_of_its_own() {
    let rules = Rules::default();
    let closed = State::new(at(0));
    let open = closed.trip(&rules, at(0), 0.0);
    let (probing, _) = open.ask(&rules, at(9_000), 0.0);
    let given_back = probing.cancel();
    let (again, _) = given_back.ask(&rules, at(9_000), 0.0);
    let ramp = again.settle(&rules, at(9_000), Result::Ok, 0.0);
    let epochs = [closed, open, probing, given_back, again, ramp].map(|state| state.epoch);
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
}

#[test]
fn rates_are_judged_only_when_there_are_enough_calls() {
    let rules = Rules { most_slow: 0.3, ..Rules::default() };
    for (all, some, failing) in [(19, 19, false), (20, 10, false), (20, 11, true), (100, 50, false), (100, 51, true)] {
        assert_eq!(rules.is_failing(Sum { all, some }), failing, "{some} of {all}");
    }
    for (all, slow, crawling) in [(19, 19, false), (20, 5, false), (20, 6, true)] {
        assert_eq!(rules.is_crawling(all, slow), crawling, "{slow} of {all}");
    }
}
