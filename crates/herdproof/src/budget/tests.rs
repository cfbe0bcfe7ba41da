//! What a budget promises, whatever is asked of it.

use proptest::prelude::*;

use super::*;
use crate::env::sim::Sim;

const SEC: Duration = Duration::from_secs(1);

fn env() -> Env {
    Sim::new(1).env()
}

fn at(secs: u32) -> Tick {
    Tick::ZERO + SEC * secs
}

/// Credit alone: no floor, no circuit.
fn earning(ratio: f64) -> Budget {
    Budget::builder(&env()).ratio(ratio).floor(0.0).without_circuit().build()
}

/// Spends until it is refused; gives how often it was not.
fn exhaust(budget: &Budget, at: Tick) -> usize {
    let mut extras = Vec::new();
    while let Ok(mut extra) = budget.try_spend(at, Spend::Retry) {
        extra.begin();
        extras.push(extra);
        assert!(extras.len() < 100_000, "it never says no");
    }
    extras.len()
}

#[test]
fn every_ratio_earns_what_it_says() {
    // A ratio kept as a whole number of first attempts per extra makes 0.3 a third, and anything over a half one half.
    for (ratio, extras) in [(0.0, 0), (0.1, 100), (0.25, 250), (0.3, 300), (0.7, 700), (0.9, 900), (1.5, 1500)] {
        let budget = earning(ratio);
        for _ in 0..1000 {
            budget.first(at(3));
        }
        assert_eq!(exhaust(&budget, at(3)), extras, "ratio {ratio}");
    }
}

#[test]
fn a_quiet_client_has_the_floor_and_gets_it_again_after_a_window() {
    let budget = Budget::builder(&env()).without_circuit().build();
    assert_eq!(exhaust(&budget, at(0)), 30);
    assert_eq!(exhaust(&budget, at(9)), 0);
    assert_eq!(exhaust(&budget, at(10)), 30);
}

#[test]
fn credit_of_a_busy_hour_is_not_there_when_the_origin_fails_after_a_quiet_minute() {
    let budget = earning(0.1);
    for second in 0..3600 {
        for _ in 0..100 {
            budget.first(at(second));
        }
    }
    assert!((budget.credit(at(3599)) - 100.0).abs() < 1e-6, "a tenth of ten seconds, not of an hour");
    assert_eq!(exhaust(&budget, at(3660)), 0);
}

/// linkedin/venice#1498: after a time without requests the budget was never reckoned again.
#[test]
fn a_budget_that_had_nothing_to_do_for_a_night_earns_again_in_the_morning() {
    let budget = earning(0.1);
    for hour in [0, 1, 9, 100] {
        for _ in 0..100 {
            budget.first(at(hour * 3600));
        }
        assert_eq!(exhaust(&budget, at(hour * 3600)), 10, "hour {hour}");
    }
}

#[test]
fn an_extra_is_charged_before_its_backoff_and_an_unused_one_is_given_back() {
    let budget = earning(1.0);
    for _ in 0..3 {
        budget.first(at(0));
    }
    let waiting: Vec<Extra> = (0..3).map(|_| budget.try_spend(at(0), Spend::Retry).unwrap()).collect();
    assert!(budget.try_spend(at(0), Spend::Hedge).is_err(), "three are in their backoff and none was sent");
    drop(waiting);
    assert_eq!(exhaust(&budget, at(0)), 3);
    let stats = budget.stats();
    assert_eq!((stats.given_back, stats.retries, stats.held), (3, 3, 0));
}

#[test]
fn an_extra_that_outlasts_the_window_is_still_paid_for() {
    let budget = Budget::builder(&env()).floor(0.1).build();
    let mut extra = budget.try_spend(at(0), Spend::Retry).unwrap();
    extra.begin();
    assert!(budget.try_spend(at(60), Spend::Retry).is_err());
    drop(extra);
    assert!(budget.try_spend(at(60), Spend::Retry).is_ok());
}

#[test]
fn extras_stop_when_most_fails_even_if_there_is_credit_and_return_when_it_recovers() {
    let budget = Budget::new(&env());
    for _ in 0..10_000 {
        budget.first(at(0));
    }
    for _ in 0..5 {
        budget.learn(&Verdict::Overload { after: None });
    }
    assert!(budget.is_open());
    assert_eq!(budget.try_spend(at(0), Spend::Refresh).unwrap_err(), Refusal::new(Why::Budget));
    // Not retryable, and no sign of the origin either way.
    budget.learn(&Verdict::Final);
    budget.learn(&Verdict::Ignored);
    assert!(budget.is_open());
    budget.learn(&Verdict::Ok);
    assert!(budget.try_spend(at(0), Spend::Refresh).is_ok());
    assert_eq!(budget.stats().too_many_failures, 1);
}

#[test]
fn credit_is_needed_even_if_nothing_fails() {
    let budget = Budget::builder(&env()).floor(0.0).build();
    budget.learn(&Verdict::Ok);
    assert_eq!(budget.try_spend(at(0), Spend::Hedge).unwrap_err().why, Why::Budget);
    assert_eq!(budget.stats().no_credit, 1);
}

#[test]
fn retries_hedges_and_refreshes_share_one_credit() {
    let budget = earning(1.0);
    for _ in 0..3 {
        budget.first(at(0));
    }
    let extras = [Spend::Retry, Spend::Hedge, Spend::Refresh].map(|kind| {
        let mut extra = budget.try_spend(at(0), kind).unwrap();
        extra.begin();
        extra
    });
    assert!(budget.clone().try_spend(at(0), Spend::Refresh).is_err());
    drop(extras);
    let stats = budget.stats();
    assert_eq!((stats.retries, stats.hedges, stats.refreshes, stats.no_credit), (1, 1, 1, 1));
}

#[test]
fn as_a_gate_an_extra_that_does_not_begin_costs_nothing_and_a_settled_one_teaches_the_circuit() {
    let budget = Budget::builder(&env()).floor(0.1).circuit(2.0, 0.1).build();
    let gate = budget.extras(Spend::Hedge);
    let (ask, span) = (Ask::new(&env()), Span { from: at(0), to: at(1) });
    drop(gate.try_reserve(&ask).unwrap());
    gate.try_enter(&ask).unwrap().settle(&Verdict::Fault, span);
    assert!(budget.is_open());
    assert_eq!((budget.stats().hedges, budget.stats().given_back), (1, 1));
    assert!(gate.try_enter(&ask).is_err());
}

#[test]
fn somebody_hears_of_a_refusal() {
    use crate::event::{Counts, Metric};
    let counts = Arc::new(Counts::default());
    let budget = Budget::builder(&env().observed_by(Arc::clone(&counts))).floor(0.0).build();
    assert!(budget.try_spend(at(0), Spend::Retry).is_err());
    assert_eq!(counts.get(Metric::Refusals), 1);
}

#[test]
fn senseless_settings_are_taken_to_the_nearest_that_make_sense() {
    for odd in [f64::NAN, f64::NEG_INFINITY, -1.0] {
        let budget = Budget::builder(&env()).ratio(odd).floor(odd).circuit(odd, odd).window(Duration::ZERO).build();
        budget.first(at(0));
        budget.learn(&Verdict::Ok);
        assert_eq!(exhaust(&budget, at(0)), 0, "{odd}");
    }
    let budget = Budget::builder(&env()).ratio(f64::INFINITY).floor(0.0).window(Duration::MAX).build();
    budget.first(at(0));
    assert_eq!(exhaust(&budget, at(0)), 100);
    assert_eq!(exhaust(&budget, Tick::MAX), 0);
}

#[test]
fn many_threads_spend_no_more_than_there_is() {
    let budget = earning(1.0);
    for _ in 0..1000 {
        budget.first(at(0));
    }
    let spent: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| exhaust(&budget, at(0)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // What one thread holds and drops at its end stays paid, so nobody can have it a second time.
    assert_eq!(spent, 1000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
    #[test]
    fn in_no_window_is_there_more_extra_work_than_credit(
        steps in proptest::collection::vec((0u32..3_000, 0u32..3), 1..400),
        ratio in 0.0f64..1.0, floor in 0.0f64..2.0,
    ) {
        let budget = Budget::builder(&env()).ratio(ratio).floor(floor).without_circuit().build();
        let (mut firsts, mut extras) = (Vec::new(), Vec::new());
        let mut now = Tick::ZERO;
        for (wait, step) in steps {
            now = now + Duration::from_millis(u64::from(wait / 10));
            if step == 0 {
                budget.first(now);
                firsts.push(now);
            } else if let Ok(mut extra) = budget.try_spend(now, Spend::Retry) {
                extra.begin();
                extras.push(now);
                // A window begins with a whole second, and holds ten of them.
                let second = now.as_nanos() / 1_000_000_000;
                let lately = |ticks: &[Tick]| ticks.iter().filter(|t| t.as_nanos() / 1_000_000_000 + 10 > second).count();
                let most = ratio * lately(&firsts) as f64 + floor * 10.0;
                prop_assert!(lately(&extras) as f64 <= most + 1e-3, "{} extras for {most}", lately(&extras));
            }
        }
    }
}
