//! What the counts of a cache say to whoever runs it.

use std::{fmt, time::Duration};

use super::stats::Stats;

/// As many callers a second who share a load of another are more than bad luck.
const MANY_JOINS: f64 = 1_000.0;

/// Something about a cache that should be looked at, in numbers; [`Display`](fmt::Display) says it in words.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Hint {
    /// Very many callers wait for loads that others have begun. Coalescing saves the origin from them, but each of them
    /// waits for it: times to live are too short, or entries expire together.
    ManyJoins {
        /// Callers a second who shared another's load.
        joins: f64,
        /// Loads a second.
        loads: f64,
        /// How long it takes until as many loads were made as there are entries.
        turnover: Duration,
    },
}

impl Stats {
    /// What the time between two looks at a cache shows, of which this is the later one; `None` if it shows nothing odd.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use herdproof::{Cache, Env};
    /// # let cache: Cache<u32, u32> = Cache::builder(&Env::system()).build();
    /// let before = cache.stats();
    /// // ten seconds later
    /// if let Some(hint) = cache.stats().hint(&before, Duration::from_secs(10)) {
    ///     println!("{hint}");
    /// }
    /// ```
    pub fn hint(&self, before: &Stats, between: Duration) -> Option<Hint> {
        let seconds = between.as_secs_f64();
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let (joins, loads) = (rate(self.joins, before.joins), rate(self.loads, before.loads));
        // With no time between there is no rate either.
        if !joins.is_finite() || joins < MANY_JOINS {
            return None;
        }
        let turnover = Duration::try_from_secs_f64(self.entries as f64 / loads).unwrap_or(Duration::MAX);
        Some(Hint::ManyJoins { joins, loads, turnover })
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hint::ManyJoins { joins, loads, turnover } = self;
        write!(f, "{joins:.0} callers a second waited for a load that another had begun, {loads:.1} loads a second: ")?;
        f.write_str("times to live are too short, or entries expire together")?;
        if *turnover < Duration::MAX {
            write!(f, "; at this pace all entries are loaded again every {:.1} s", turnover.as_secs_f64())?;
        }
        f.write_str("; a longer time to live, grace or more jitter would help")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(joins: u64, loads: u64) -> Stats {
        Stats { joins, loads, entries: 100, ..Stats::default() }
    }

    #[test]
    fn thousands_who_wait_for_others_loads_are_named_with_their_numbers() {
        let hint = stats(52_000, 1_200).hint(&stats(2_000, 200), Duration::from_secs(10)).unwrap();
        assert_eq!(
            hint.to_string(),
            "5000 callers a second waited for a load that another had begun, 100.0 loads a second: times to live are too \
             short, or entries expire together; at this pace all entries are loaded again every 1.0 s; a longer time to \
             live, grace or more jitter would help"
        );
    }

    #[test]
    fn what_is_ordinary_gives_no_hint_and_no_numbers_make_it_panic() {
        assert_eq!(stats(2_900, 100).hint(&stats(2_000, 0), Duration::from_secs(1)), None);
        assert_eq!(stats(5_000, 0).hint(&stats(0, 0), Duration::ZERO), None);
        assert_eq!(stats(0, 0).hint(&stats(5_000, 0), Duration::from_secs(1)), None);
        let hung = stats(9_000, 0).hint(&stats(0, 0), Duration::from_secs(1)).unwrap();
        assert!(matches!(hung, Hint::ManyJoins { turnover: Duration::MAX, .. }) && !hung.to_string().contains("pace"));
    }
}
