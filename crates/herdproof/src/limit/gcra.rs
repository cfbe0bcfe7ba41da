//! The arithmetic of a rate: when somebody may go, from one number.
//!
//! The generic cell rate algorithm keeps the *theoretical arrival time*: when the last of those let in so far would have come,
//! had everybody kept the interval. It lies in the past when there is credit, at most a burst ahead when somebody goes, and
//! further ahead when slots are reserved. Refill is continuous because nothing is refilled: there is only the clock.

use std::time::Duration;

use super::{
    promise::{Promise, promise},
    rate::Rate,
};
use crate::env::Tick;

/// The longest that a burst takes to be whole again, 146 years: beyond, the clock would end before the interval does, and
/// what saturates lets everybody in.
const LONGEST: u64 = 1 << 62;

/// A rate in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gcra {
    interval: u64,
    /// The whole burst, as time.
    tolerance: u64,
    pub(super) max_wait: u64,
}

/// A place in time that somebody could take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// When to go; in the past if now is fine.
    pub(super) at: u64,
    /// The theoretical arrival time once it is taken.
    pub(super) tat: u64,
    /// How far it moved that.
    pub(super) cost: u64,
}

impl Gcra {
    pub(super) fn new(rate: &Rate) -> Gcra {
        let burst = u64::from(rate.burst.max(1));
        let interval = nanos(rate.interval).clamp(1, LONGEST / burst);
        let tolerance = interval * burst;
        Gcra { interval, tolerance, max_wait: nanos(rate.max_wait) }
    }

    /// The next slot for something that costs this much; `None` if that is more than a whole burst, for which no time would
    /// ever be right.
    #[inline]
    pub(super) fn slot(&self, tat: u64, now: u64, cost: u32) -> Option<Slot> {
        let cost = self.interval.saturating_mul(u64::from(cost));
        if cost > self.tolerance {
            return None;
        }
        Some(self.slot_of(tat.max(now).saturating_add(cost), cost))
    }

    /// The slot that moved the theoretical arrival time to there, by this much.
    #[inline]
    pub(super) fn slot_of(&self, tat: u64, cost: u64) -> Slot {
        Slot { at: tat.saturating_sub(self.tolerance), tat, cost }
    }

    /// How much of the time of those after it a slot takes.
    pub(super) fn takes(&self, slot: Slot) -> u64 {
        slot.cost.max(self.interval)
    }

    /// When to tell the next refused caller to come back, given what was promised to those before.
    pub(super) fn promise(&self, slot: Slot, promised: u64, draw: impl FnOnce(u64) -> u64) -> Promise {
        promise(slot.at, self.takes(slot), promised, draw)
    }
}

/// A duration in whole nanoseconds.
fn nanos(duration: Duration) -> u64 {
    (Tick::ZERO + duration).as_nanos()
}

/// How long from `now` until `then`.
pub(super) fn until(now: u64, then: u64) -> Duration {
    Duration::from_nanos(then.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::promise::SPREAD, *};

    const SECOND: u64 = 1_000_000_000;

    fn gcra(per_second: u32, burst: u32) -> Gcra {
        Gcra::new(&Rate::per_second(per_second).burst(burst))
    }

    /// Those of the arrivals that are let in at once.
    fn let_in(gcra: Gcra, arrivals: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut tat = 0;
        let mut go = |now: &u64| match gcra.slot(tat, *now, 1) {
            Some(slot) if slot.at <= *now => {
                tat = slot.tat;
                true
            }
            _ => false,
        };
        arrivals.into_iter().filter(|now| go(now)).collect()
    }

    #[test]
    fn a_burst_goes_at_once_and_then_one_each_interval() {
        let arrivals = (0..3_000u64).map(|ms| SECOND + ms * 1_000_000);
        let went: Vec<u64> =
            let_in(gcra(10, 3), arrivals).into_iter().map(|at| (at - SECOND) / 1_000_000).take(7).collect();
        assert_eq!(went, [0, 1, 2, 100, 200, 300, 400]);
    }

    #[test]
    fn no_edge_lets_two_bursts_through() {
        // A fixed window admits 100 just before the second and 100 just after. Here a second has its hundred, and a burst.
        let arrivals = (0..20_000u64).map(|n| 900_000_000 + n * 10_000);
        let went = let_in(gcra(100, 100), arrivals);
        assert_eq!(went.len(), 100 + 19, "a burst, and what 0.2 s refill");
    }

    #[test]
    fn more_than_a_burst_is_never_right_and_nothing_is_free_forever() {
        let gcra = gcra(10, 5);
        assert_eq!(gcra.slot(0, SECOND, 6), None);
        assert_eq!(gcra.slot(0, SECOND, u32::MAX), None);
        assert!(gcra.slot(0, SECOND, 5).is_some_and(|slot| slot.at <= SECOND));
        assert!(gcra.slot(0, SECOND, 0).is_some_and(|slot| slot.at <= SECOND && slot.tat == SECOND));
    }

    #[test]
    fn an_interval_without_end_lets_a_burst_in_and_nobody_after_it() {
        for burst in [1, 2, 3, 20] {
            for interval in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX / 2)] {
                let gcra = Gcra::new(&Rate::every(interval).burst(burst));
                let went = let_in(gcra, (0..100u64).map(|n| SECOND * n));
                assert_eq!(went.len(), burst as usize, "one in {interval:?}, {burst} at once");
            }
        }
    }

    #[test]
    fn those_refused_together_are_told_slots_one_interval_apart() {
        let gcra = gcra(10, 1);
        let mut promised = 0;
        let slot = gcra.slot(SECOND * 2, SECOND, 1).unwrap();
        let told: Vec<u64> = (0..4)
            .map(|_| {
                let promise = gcra.promise(slot, promised, |_| unreachable!("there is room"));
                promised = promise.promised;
                (promise.told - SECOND) / 1_000_000
            })
            .collect();
        assert_eq!(told, [1_000, 1_100, 1_200, 1_300]);
    }

    #[test]
    fn a_crowd_too_large_for_slots_is_spread_and_pushes_nobody_further() {
        let gcra = gcra(1, 1);
        let slot = gcra.slot(SECOND, SECOND, 1).unwrap();
        let mut promised = 0;
        for caller in 0..1_000 {
            let promise = gcra.promise(slot, promised, |below| below / 2);
            promised = promise.promised;
            assert!(promise.told >= slot.at && promise.told - slot.at <= SPREAD, "caller {caller}: {promise:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]
        /// Whatever comes when, any span of time sees at most its share and one burst.
        #[test]
        fn no_span_of_time_sees_more_than_its_share_and_a_burst(
            rate in 1u32..2_000, burst in 1u32..50, gaps in prop::collection::vec(0u64..20_000_000, 1..300)
        ) {
            let mut at = SECOND;
            let arrivals: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let went = let_in(gcra(rate, burst), arrivals);
            for first in 0..went.len() {
                for last in first..went.len() {
                    let share = (went[last] - went[first]) / (SECOND / u64::from(rate));
                    prop_assert!((last - first + 1) as u64 <= share + u64::from(burst));
                }
            }
        }

        #[test]
        fn no_number_makes_it_panic_or_wrap(
            tat in any::<u64>(), now in any::<u64>(), cost in any::<u32>(), per in any::<u32>(), burst in any::<u32>(),
            promised in any::<u64>()
        ) {
            let gcra = gcra(per, burst);
            if let Some(slot) = gcra.slot(tat, now, cost) {
                prop_assert!(slot.tat >= tat.max(now));
                let promise = gcra.promise(slot, promised, |below| below.saturating_sub(1));
                prop_assert!(promise.told >= slot.at);
            }
        }
    }
}
