//! Calls by which try of their caller they were: what makes a wave of retries visible among those who come for the first time.

use std::time::Duration;

use herdproof::Tick;

use crate::{log::Caller, report::TRIES, timeline::Timeline};

/// First tries, second ones, and so on, over time; last all later ones.
#[derive(Clone, Debug)]
pub(crate) struct Tries {
    bin: Duration,
    seen: Vec<Timeline>,
}

impl Tries {
    pub(crate) fn new(bin: Duration) -> Tries {
        Tries { bin, seen: Vec::new() }
    }

    /// Who is in no wave tries for the first time.
    pub(crate) fn record(&mut self, at: Tick, caller: Caller) {
        let nth = usize::try_from(caller.wave()).unwrap_or(usize::MAX).min(TRIES - 1);
        if self.seen.len() <= nth {
            self.seen.resize_with(nth + 1, || Timeline::new(self.bin));
        }
        self.seen[nth].record(at);
    }

    pub(crate) fn seen(&self) -> Vec<Timeline> {
        self.seen.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, find};

    #[test]
    fn all_calls_of_a_crowd_that_retries_are_some_try_and_none_is_two() {
        for name in ["retry-wall", "retry-storm", "connection-storm"] {
            let report = find(name).unwrap().run(&Settings::new(5).bare());
            assert!(report.arms.iter().any(|arm| arm.tries.len() > 1), "{name}");
            for arm in report.arms.iter().filter(|arm| !arm.tries.is_empty()) {
                let tries: u64 = arm.tries.iter().map(Timeline::total).sum();
                assert_eq!(tries, arm.timeline.total(), "{name}, {}", arm.name);
            }
        }
    }

    #[test]
    fn a_hundredth_try_is_a_later_one_and_no_wave_is_a_first() {
        let mut tries = Tries::new(Duration::from_secs(1));
        let caller = Caller::of(1, "/");
        for wave in [0, 1, 1, 5, 6, 100, u32::MAX] {
            tries.record(Tick::ZERO, caller.in_wave("retry", wave));
        }
        tries.record(Tick::ZERO, caller);
        assert_eq!(tries.seen().iter().map(Timeline::total).collect::<Vec<_>>(), [2, 2, 0, 0, 0, 4]);
    }
}
