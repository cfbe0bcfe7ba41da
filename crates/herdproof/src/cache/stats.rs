//! What a cache has done, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::striped::Striped;

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Answered from memory with a fresh value, or with the knowledge that there is none.
    pub hits: u64,
    /// Answered from memory with a stale value.
    pub stale: u64,
    /// Found nothing that could be served at once. That a load failed a moment ago is nothing, and no other load is begun for it.
    pub misses: u64,
    /// Of those, how many shared a load that was under way.
    pub joins: u64,
    /// Loads that were begun, refreshes among them.
    pub loads: u64,
    /// Loads begun while the entry could still be served.
    pub refreshes: u64,
    /// Loads that failed, or took too long.
    pub failures: u64,
    /// What was loaded and not kept, because the key was invalidated or set, or its tag expired, in the meantime.
    pub fenced: u64,
    /// Entries that had to go to make room.
    pub evictions: u64,
    /// Entries that were not kept because one alone would take too much room.
    pub too_heavy: u64,
    /// Entries that the sweeper took away after their time.
    pub swept: u64,
    /// Entries at present.
    pub entries: u64,
    /// What they weigh; their number, if they are not weighed.
    pub weight: u64,
}

impl Stats {
    /// How many callers were served by each load: what a herd would have cost, divided by what it did cost. `None` before
    /// the first load.
    pub fn collapse_ratio(&self) -> Option<f64> {
        (self.loads > 0).then(|| (self.hits + self.stale + self.misses) as f64 / self.loads as f64)
    }
}

pub(super) struct Tally {
    lines: Striped<4>,
    pub(super) joins: AtomicU64,
    pub(super) refreshes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) fenced: AtomicU64,
    pub(super) too_heavy: AtomicU64,
    pub(super) swept: AtomicU64,
}

/// What is counted all the time.
const HITS: usize = 0;
const STALE: usize = 1;
const MISSES: usize = 2;
const LOADS: usize = 3;

impl Tally {
    pub(super) fn new() -> Tally {
        let [joins, refreshes, failures, fenced, too_heavy, swept] = std::array::from_fn(|_| AtomicU64::new(0));
        Tally { lines: Striped::new(), joins, refreshes, failures, fenced, too_heavy, swept }
    }

    /// Counts a hit; how many this thread's line had before.
    #[inline]
    pub(super) fn hit(&self) -> u64 {
        self.lines.add(HITS, 1)
    }

    #[inline]
    pub(super) fn stale(&self) -> u64 {
        self.lines.add(STALE, 1)
    }

    #[inline]
    pub(super) fn miss(&self) {
        self.lines.add(MISSES, 1);
    }

    /// Both, as most often.
    #[inline(always)]
    pub(super) fn miss_and_load(&self) {
        self.lines.add_to_both([MISSES, LOADS]);
    }

    #[inline]
    pub(super) fn load(&self) {
        self.lines.add(LOADS, 1);
    }

    /// Beside what its owner knows.
    pub(super) fn stats(&self) -> Stats {
        let get = |count: &AtomicU64| count.load(Relaxed);
        Stats {
            hits: self.lines.sum(HITS),
            stale: self.lines.sum(STALE),
            misses: self.lines.sum(MISSES),
            joins: get(&self.joins),
            loads: self.lines.sum(LOADS),
            refreshes: get(&self.refreshes),
            failures: get(&self.failures),
            fenced: get(&self.fenced),
            too_heavy: get(&self.too_heavy),
            swept: get(&self.swept),
            ..Stats::default()
        }
    }
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
