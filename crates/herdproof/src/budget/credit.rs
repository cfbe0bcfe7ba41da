//! What was earned and spent lately, in tenths of a window.

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use super::{Spend, Stats};
use crate::{env::Tick, striped::Striped};

/// How many slots are remembered.
const WINDOW: u64 = 10;
/// Places in a ring: more than are remembered, so that what is being forgotten is not yet overwritten.
const RING: usize = 16;

/// Cuts time into slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// How much of a slot a nanosecond is, in parts of 2^64: a product is cheaper than a quotient.
    per_nano: u64,
}

/// First attempts counted by slot, without a lock. A word holds a slot's number, cut to 24 bits, over a count of 40 bits.
pub(super) struct Earned {
    ring: [AtomicU64; RING],
    /// What each thread has counted in the latest slot that it came with, and not yet brought to the ring. Only for budgets that
    /// are busy, since it is 4 KiB, and there may be a budget for each of 200,000 clients.
    ///
    /// Gain: an atomic addition per call. `toolbox --case retry` takes 25.5 ns, and 35.3 without, on one thread.
    stripes: OnceLock<Striped<1>>,
}

const COUNT: u32 = 40;
const COUNTS: u64 = (1 << COUNT) - 1;
const NUMBERS: u64 = (1 << (64 - COUNT)) - 1;
/// As many first attempts in one slot are busy.
const BUSY: u64 = 1024;
/// By how many slots nobody is late.
const LATE: u64 = 1000;

/// What was spent. An extra is held until it ends, and counts from when it was charged until a window after that, or for
/// as long as it is held if that is longer.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The latest slot that anybody spoke of; somebody with an older reading of the clock is moved up to it.
    latest: u64,
    /// Extras that were begun and have ended, by the slot they were charged in.
    ended: [Ended; RING],
    pub(super) stats: Stats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    slot: u64,
    count: u64,
}

impl Slots {
    pub(super) fn new(window: Duration) -> Slots {
        // A slot of at least two nanoseconds, so that the quotient fits.
        let width = (window.as_nanos() / u128::from(WINDOW)).max(2);
        Slots { per_nano: u64::try_from((1u128 << 64).div_ceil(width)).unwrap_or(u64::MAX) }
    }

    #[inline]
    pub(super) fn slot(self, at: Tick) -> u64 {
        ((u128::from(at.as_nanos()) * u128::from(self.per_nano)) >> 64) as u64
    }
}

impl Earned {
    /// Nothing, as of this slot.
    pub(super) fn new(slot: u64) -> Earned {
        Earned { ring: array::from_fn(|_| AtomicU64::new(word(slot, 0))), stripes: OnceLock::new() }
    }

    #[inline]
    pub(super) fn add(&self, slot: u64) {
        let Some([own]) = self.stripes.get().and_then(Striped::own) else { return self.add_among_others(slot) };
        let before = own.load(Relaxed);
        if before >> COUNT == slot & NUMBERS {
            own.store(before + 1, Relaxed);
        } else {
            self.turn_own(own, slot);
        }
    }

    fn add_among_others(&self, slot: u64) {
        let place = &self.ring[place(slot)];
        let before = place.load(Relaxed);
        // Should the place be given to another slot between these two lines, that one gets a tenth too much.
        if before >> COUNT != slot & NUMBERS {
            return self.bring(slot, 1);
        }
        place.fetch_add(1, Relaxed);
        if before & COUNTS >= BUSY {
            self.stripes.get_or_init(Striped::new);
        }
    }

    /// This thread's own word has counted in another slot, which is brought to the ring. If that is a newer one, because
    /// somebody comes with an older reading of the clock, it stays.
    #[cold]
    fn turn_own(&self, own: &AtomicU64, slot: u64) {
        let before = own.load(Relaxed);
        let (number, count) = (before >> COUNT, before & COUNTS);
        if count > 0 && is_late(slot, number) {
            return self.bring(slot, 1);
        }
        // In this order: who sums up meanwhile finds for a moment too little, and nothing twice.
        own.store(word(slot, 1), Relaxed);
        if count > 0 && is_recent(number, slot) {
            self.bring(number, count);
        }
    }

    /// Adds to the ring. A place is given to a newer slot; what belongs to an older one, after somebody has slept for more
    /// than a window, is not counted.
    #[cold]
    fn bring(&self, slot: u64, count: u64) {
        let _ = self.ring[place(slot)].fetch_update(Release, Relaxed, |before| {
            if before >> COUNT == slot & NUMBERS {
                Some(before + count)
            } else {
                (!is_late(slot, before >> COUNT)).then(|| word(slot, count))
            }
        });
    }

    /// How many there were in the window that ends with this slot.
    pub(super) fn sum(&self, slot: u64) -> u64 {
        // The ring first: what was brought there is no longer in a stripe.
        let ring = self.ring.iter().map(|place| place.load(Acquire));
        let stripes = self.stripes.get().into_iter().flat_map(Striped::all).map(|[word]| word.load(Relaxed));
        let recent = ring.chain(stripes).filter(|word| is_recent(word >> COUNT, slot));
        recent.map(|word| word & COUNTS).sum()
    }
}

fn word(slot: u64, count: u64) -> u64 {
    ((slot & NUMBERS) << COUNT) | count
}

/// Whether a slot is in the window that ends with `now`.
fn is_recent(slot: u64, now: u64) -> bool {
    now.wrapping_sub(slot) & NUMBERS < WINDOW
}

/// Whether a slot is before this one. Since numbers wrap around, that is to be a little behind, and all others are newer.
fn is_late(slot: u64, than: u64) -> bool {
    (1..LATE).contains(&(than.wrapping_sub(slot) & NUMBERS))
}

impl Ledger {
    /// The slot to judge by: this one, or the latest that anybody came with.
    pub(super) fn reach(&mut self, slot: u64) -> u64 {
        self.latest = self.latest.max(slot);
        self.latest
    }

    /// Charges an extra if what was spent leaves one of `credit`.
    pub(super) fn charge(&mut self, slot: u64, credit: f64) -> bool {
        // A millionth is more than rounding loses, and less than anybody earns.
        let affordable = credit - self.spent(slot) as f64 > 1.0 - 1e-6;
        if affordable {
            self.stats.held += 1;
        } else {
            self.stats.no_credit += 1;
        }
        affordable
    }

    /// What counts as spent in the window that ends with this slot.
    pub(super) fn spent(&self, slot: u64) -> u64 {
        let recent = self.ended.iter().filter(|ended| slot.saturating_sub(ended.slot) < WINDOW);
        self.stats.held + recent.map(|ended| ended.count).sum::<u64>()
    }

    /// An extra that was charged in this slot has ended; `None` if it never began.
    pub(super) fn end(&mut self, slot: u64, begun: Option<Spend>) {
        self.stats.held = self.stats.held.saturating_sub(1);
        match begun {
            None => {
                self.stats.given_back += 1;
                return;
            }
            Some(Spend::Retry) => self.stats.retries += 1,
            Some(Spend::Hedge) => self.stats.hedges += 1,
            Some(Spend::Refresh) => self.stats.refreshes += 1,
        }
        let ended = &mut self.ended[place(slot)];
        if ended.slot < slot {
            *ended = Ended { slot, count: 0 };
        }
        if ended.slot == slot {
            ended.count += 1;
        }
    }
}

#[inline]
fn place(slot: u64) -> usize {
    usize::try_from(slot % RING as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_tenth_of_the_window_to_the_end_of_the_clock() {
        let slots = Slots::new(Duration::from_secs(10));
        let at = |nanos| slots.slot(Tick::from_nanos(nanos));
        assert_eq!((at(0), at(999_999_999), at(1_000_000_000), at(7_500_000_000)), (0, 0, 1, 7));
        let end = at(u64::MAX);
        assert!((18_446_744_073..=18_446_744_075).contains(&end), "{end}");
    }

    #[test]
    fn what_was_earned_is_forgotten_after_ten_slots() {
        let earned = Earned::new(3);
        for slot in 100..130 {
            earned.add(slot);
        }
        assert_eq!([129, 130, 138, 139].map(|slot| earned.sum(slot)), [10, 9, 1, 0]);
    }

    #[test]
    fn a_late_reading_of_the_clock_neither_wipes_nor_counts_in_a_newer_slot() {
        let earned = Earned::new(0);
        earned.add(100);
        earned.add(100 - RING as u64);
        assert_eq!(earned.sum(100), 1);
        earned.add(99);
        assert_eq!(earned.sum(100), 2);
    }

    #[test]
    fn numbers_of_slots_may_wrap_around_and_a_clock_may_be_at_any() {
        for start in [0, 1, NUMBERS / 2, NUMBERS - 3, NUMBERS, 5 * NUMBERS + 7] {
            let earned = Earned::new(start);
            for slot in start..start + 7 {
                earned.add(slot);
            }
            assert_eq!(earned.sum(start + 6), 7, "from {start}");
            // Nothing for weeks, then one.
            for later in [start + 6 + WINDOW, start + NUMBERS / 2 + 9, start + NUMBERS - 2 * LATE] {
                assert_eq!(earned.sum(later), 0, "from {start} at {later}");
                earned.add(later);
                assert_eq!(earned.sum(later), 1, "from {start} at {later}");
            }
        }
    }

    /// Counts so often in this slot that every thread has a word of its own from then on.
    fn busy(slot: u64) -> (Earned, u64) {
        let (earned, count) = (Earned::new(slot), BUSY + 100);
        for _ in 0..count {
            earned.add(slot);
        }
        assert!(earned.stripes.get().is_some());
        (earned, count)
    }

    #[test]
    fn a_quiet_budget_takes_no_more_memory_for_being_old() {
        let earned = Earned::new(0);
        for slot in 0..100 {
            for _ in 0..BUSY {
                earned.add(slot);
            }
        }
        assert!(earned.stripes.get().is_none());
        assert_eq!(earned.sum(99), 10 * BUSY);
    }

    #[test]
    fn nothing_is_lost_of_what_busy_threads_count_for_themselves_when_a_slot_turns() {
        let (earned, before) = busy(100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for slot in 101..110 {
                        for _ in 0..1_000 {
                            earned.add(slot);
                        }
                    }
                });
            }
        });
        assert_eq!([109, 110, 118, 119].map(|slot| earned.sum(slot)), [before + 36_000, 36_000, 4_000, 0]);
    }

    #[test]
    fn a_thread_that_was_busy_long_ago_neither_wipes_nor_adds_to_what_is_counted_today() {
        let (earned, _) = busy(100);
        let today = 100 + 4 * LATE / RING as u64 * RING as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for slot in [today, today, today + 1] {
                    earned.add(slot);
                }
            });
        });
        assert_eq!(earned.sum(today + 1), 3);
        earned.add(today + 1);
        assert_eq!(earned.sum(today + 1), 4);
    }

    #[test]
    fn a_late_reading_of_the_clock_counts_and_does_not_turn_a_busy_thread_back() {
        let (earned, before) = busy(100);
        for slot in [101, 100, 101, 100] {
            earned.add(slot);
        }
        assert_eq!([earned.sum(101), earned.sum(110)], [before + 4, 2]);
        let [own] = earned.stripes.get().and_then(Striped::own).unwrap();
        assert_eq!(own.load(Relaxed), word(101, 2));
    }

    #[test]
    fn a_busy_thread_may_begin_wherever_the_clock_stands() {
        for start in [0, 1, NUMBERS - 3, NUMBERS, 5 * NUMBERS + 7] {
            let (earned, before) = busy(start);
            for slot in start + 1..start + 7 {
                earned.add(slot);
            }
            assert_eq!(earned.sum(start + 6), before + 6, "from {start}");
        }
    }

    #[test]
    fn an_extra_counts_for_as_long_as_it_is_held_and_at_least_for_a_window() {
        let mut ledger = Ledger::default();
        assert!(ledger.charge(20, 1.0));
        assert!(!ledger.charge(20 + 1000, 1.0), "it is still held");
        ledger.end(20, Some(Spend::Retry));
        assert_eq!(ledger.spent(20 + 1000), 0, "its window is long over");
        assert!(ledger.charge(2000, 1.0));
        ledger.end(2000, Some(Spend::Retry));
        assert_eq!([2009, 2010].map(|slot| ledger.spent(slot)), [1, 0]);
    }
}
