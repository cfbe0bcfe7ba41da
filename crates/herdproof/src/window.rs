//! How much happened lately, counted by many threads at once.
//!
//! A breaker asks what share of the calls failed in the last ten seconds, a throttle what share was accepted in the last
//! two minutes. Counting since the last reset forgets everything at once, and everybody's window ends at the same instant.
//! Here time is cut into buckets; the sum is that of the latest so many.
//!
//! Counting is on the hot path of every call, summing only where something is to be decided. So a bucket is one word: which
//! time it belongs to, and two counts. Adding is a load, a compare and an add. There is no division, because a bucket is as
//! long as a power of two of nanoseconds; the window is therefore up to one bucket longer than was asked for.
//!
//! ```text
//!  63            48 47                    24 23                     0
//! |     stamp      |          some          |          all           |
//! ```

use std::{fmt, sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    env::{Tick, nanos},
    sync::AtomicU64,
};

const FIELD: u32 = 24;
const STAMP_AT: u32 = 2 * FIELD;
const STAMP: u64 = u64::MAX << STAMP_AT;
const LAPS: u64 = u64::MAX >> STAMP_AT;
/// The upper bit of each count. A bucket that has it takes no more: 8 million say what more would say. Threads that looked
/// before it was set have as much room again.
const FULL: u64 = 1 << (FIELD - 1) | 1 << (STAMP_AT - 1);
/// How many laps ahead of us a bucket may be and still be believed, rather than be a leftover from days ago (half a
/// million windows) whose stamp has come round again.
const BELIEVED: u64 = 2;

/// What is counted: everything, and some of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) all: u64,
    pub(crate) some: u64,
}

/// How much to add to the counts of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount(u64);

/// One that counts for all.
pub(crate) const ALL: Amount = Amount(1);
/// One that counts for some, and for all if that is counted at another time.
pub(crate) const SOME: Amount = Amount(1 << FIELD);
/// One that counts for both.
pub(crate) const BOTH: Amount = Amount(1 | 1 << FIELD);

/// How long a bucket is and how many make a window of `SLOTS` slots. Kept apart from the counts, so that a million windows
/// of one length need it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale<const SLOTS: usize> {
    shift: u8,
    buckets: u8,
}

/// The counts; see the [module](self). Every thread writes to it: keep it apart from what is only read.
pub(crate) struct Window<const SLOTS: usize>([AtomicU64; SLOTS]);

impl<const SLOTS: usize> Scale<SLOTS> {
    const LOG: u32 = {
        assert!(SLOTS.is_power_of_two() && SLOTS >= 4 && SLOTS <= 128, "slots are found by masking");
        SLOTS.trailing_zeros()
    };

    /// The shortest buckets of which fewer than there are slots make this window; at least a microsecond each.
    pub(crate) fn new(window: Duration) -> Scale<SLOTS> {
        let window = nanos(window);
        let most = SLOTS as u64 - 1;
        let shift = (10..58).find(|shift| window.div_ceil(1 << shift) <= most).unwrap_or(58);
        let buckets = window.div_ceil(1 << shift).clamp(1, most);
        Scale { shift: u8::try_from(shift).unwrap_or(58), buckets: u8::try_from(buckets).unwrap_or(1) }
    }

    #[inline]
    fn bucket(self, at: Tick) -> u64 {
        at.as_nanos() >> (self.shift & 63)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask leaves seven bits at most")]
    fn slot(bucket: u64) -> usize {
        bucket as usize & (SLOTS - 1)
    }

    /// How often the slots were gone through before this bucket, as far as a stamp can hold it.
    #[inline]
    fn stamp(bucket: u64) -> u64 {
        (bucket >> Self::LOG) << STAMP_AT
    }
}

impl<const SLOTS: usize> Window<SLOTS> {
    pub(crate) fn new() -> Window<SLOTS> {
        Window(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Counts one more at this time.
    ///
    /// A thread that is stopped for a whole lap between the load and the add puts its one into a later bucket.
    #[inline]
    pub(crate) fn add(&self, scale: Scale<SLOTS>, at: Tick, amount: Amount) {
        let bucket = scale.bucket(at);
        let (slot, stamp) = (&self.0[Scale::<SLOTS>::slot(bucket)], Scale::<SLOTS>::stamp(bucket));
        let word = slot.load(Relaxed);
        if (word ^ stamp) & (STAMP | FULL) == 0 {
            slot.fetch_add(amount.0, Relaxed);
        } else {
            begin(slot, word, stamp, amount);
        }
    }

    /// Takes one back that was counted for all at this time, if its bucket is still there.
    pub(crate) fn take_back(&self, scale: Scale<SLOTS>, at: Tick) {
        let bucket = scale.bucket(at);
        let (slot, stamp) = (&self.0[Scale::<SLOTS>::slot(bucket)], Scale::<SLOTS>::stamp(bucket));
        let less = |word: u64| ((word ^ stamp) & STAMP == 0 && sum(word).all > 0).then(|| word - ALL.0);
        let mut word = slot.load(Relaxed);
        while let Some(next) = less(word) {
            match slot.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// What was counted in the window that ends at this time.
    #[inline]
    pub(crate) fn sum(&self, scale: Scale<SLOTS>, now: Tick) -> Sum {
        self.latest(scale, now, scale.buckets)
    }

    /// What was counted in so many buckets, up to that of this time.
    #[inline]
    pub(crate) fn latest(&self, scale: Scale<SLOTS>, now: Tick, buckets: u8) -> Sum {
        // Buckets are longer than a nanosecond, so there is one after the last.
        let end = scale.bucket(now) + 1;
        let mut total = Sum::default();
        for bucket in end.saturating_sub(u64::from(buckets))..end {
            let word = self.0[Scale::<SLOTS>::slot(bucket)].load(Relaxed);
            if (word ^ Scale::<SLOTS>::stamp(bucket)) & STAMP == 0 {
                let Sum { all, some } = sum(word);
                total = Sum { all: total.all + all, some: total.some + some };
            }
        }
        total
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for slot in &self.0 {
            slot.store(0, Relaxed);
        }
    }
}

/// Begins a bucket, unless its slot belongs to a later one already or is full.
#[cold]
fn begin(slot: &AtomicU64, mut word: u64, stamp: u64, amount: Amount) {
    loop {
        let ahead = (word >> STAMP_AT).wrapping_sub(stamp >> STAMP_AT) & LAPS;
        let next = match ahead {
            0 if word & FULL != 0 => return,
            0 => word + amount.0,
            1..=BELIEVED if word & !STAMP != 0 => return,
            _ => stamp | amount.0,
        };
        match slot.compare_exchange_weak(word, next, Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => word = now,
        }
    }
}

fn sum(word: u64) -> Sum {
    let field = (1 << FIELD) - 1;
    Sum { all: word & field, some: (word >> FIELD) & field }
}

impl<const SLOTS: usize> fmt::Debug for Window<SLOTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|slot| sum(slot.load(Relaxed)))).finish()
    }
}

#[cfg(all(test, not(herdproof_shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ns: u64) -> Tick {
        Tick::from_nanos(ns)
    }

    /// Everything that was counted, with its bucket.
    #[derive(Default)]
    struct Model(Vec<(u64, Sum)>);

    impl Model {
        fn sum(&self, scale: Scale<16>, now: Tick) -> Sum {
            let last = scale.bucket(now);
            let inside = |bucket: u64| bucket <= last && bucket + u64::from(scale.buckets) > last;
            self.0
                .iter()
                .filter(|(bucket, _)| inside(*bucket))
                .fold(Sum::default(), |total, (_, one)| Sum { all: total.all + one.all, some: total.some + one.some })
        }
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_latest_buckets_even_if_some_come_late(
            window in 1_000_000u64..100_000_000,
            begin in 0..u64::MAX / 4,
            steps in prop::collection::vec((0u64..40_000_000, 0u64..60_000_000, 0usize..4, 0u64..100_000_000), 1..200),
        ) {
            let scale = Scale::<16>::new(Duration::from_nanos(window));
            let counts = Window::<16>::new();
            let mut model = Model::default();
            let mut newest = begin;
            for (on, behind, kind, later) in steps {
                newest += on;
                // A span's end may be a little behind: by two laps at most.
                let two_laps = 32u64 << scale.shift;
                let when = at(newest.saturating_sub(behind % two_laps.min(60_000_000)));
                let bucket = scale.bucket(when);
                match kind {
                    0 => counts.add(scale, when, ALL),
                    1 => counts.add(scale, when, SOME),
                    2 => counts.add(scale, when, BOTH),
                    _ => counts.take_back(scale, when),
                }
                match kind {
                    3 => {
                        let found = model.0.iter().position(|(b, one)| *b == bucket && one.all > 0);
                        // Who came later than the slot was needed again was not counted, so is not taken back.
                        if let Some(found) = found && bucket + 16 > scale.bucket(at(newest)) {
                            model.0[found].1.all -= 1;
                        }
                    }
                    kind => model.0.push((bucket, Sum { all: u64::from(kind != 1), some: u64::from(kind != 0) })),
                }
                for now in [newest, newest + later] {
                    prop_assert_eq!(counts.sum(scale, at(now)), model.sum(scale, at(now)));
                }
            }
        }

        #[test]
        fn a_window_is_as_long_as_asked_for_and_a_bucket_more_at_most(window in 1u64..u64::MAX / 2) {
            let scale = Scale::<16>::new(Duration::from_nanos(window));
            let length = u128::from(scale.buckets) << scale.shift;
            prop_assert!(length >= u128::from(window.min(15 << 58)));
            prop_assert!(length < u128::from(window) + (1 << scale.shift));
            prop_assert!(window < 8 << 10 || scale.buckets >= 8, "{} buckets", scale.buckets);
        }
    }

    #[test]
    fn what_lies_back_a_window_is_forgotten() {
        let scale = Scale::<16>::new(SECOND * 10);
        let window = Window::<16>::new();
        window.add(scale, Tick::ZERO, BOTH);
        assert_eq!(window.sum(scale, Tick::ZERO + SECOND * 9), Sum { all: 1, some: 1 });
        assert_eq!(window.sum(scale, Tick::ZERO + SECOND * 11), Sum::default());
    }

    #[test]
    fn counts_left_from_days_ago_neither_count_nor_stand_in_the_way() {
        let scale = Scale::<16>::new(SECOND * 10);
        for laps in [1, 2, 3, LAPS / 2, LAPS / 2 + 1, LAPS - 5, LAPS - BELIEVED, LAPS + 2] {
            let window = Window::<16>::new();
            window.add(scale, at(5), ALL);
            let later = at(5 + ((laps * 16) << scale.shift));
            assert_eq!(window.sum(scale, later), Sum::default(), "{laps} laps later");
            window.add(scale, later, BOTH);
            assert_eq!(window.sum(scale, later), Sum { all: 1, some: 1 }, "{laps} laps later");
        }
    }

    #[test]
    fn a_new_window_counts_at_once_wherever_the_clock_stands() {
        let scale = Scale::<16>::new(SECOND * 10);
        for laps in (0..5).chain(LAPS - 5..LAPS + 5) {
            let (window, now) = (Window::<16>::new(), at((laps * 16) << scale.shift));
            window.add(scale, now, ALL);
            assert_eq!(window.sum(scale, now).all, 1, "in lap {laps}");
        }
    }

    #[test]
    fn a_full_bucket_does_not_run_over_into_the_next_count() {
        let scale = Scale::<16>::new(SECOND);
        let window = Window::<16>::new();
        window.0[0].store(FULL - 1, Relaxed);
        let before = window.sum(scale, Tick::ZERO);
        window.add(scale, Tick::ZERO, ALL);
        window.add(scale, Tick::ZERO, BOTH);
        assert_eq!(window.sum(scale, Tick::ZERO), before);
        window.0[0].store((1 << (FIELD - 1)) - 1, Relaxed);
        for _ in 0..5 {
            window.add(scale, Tick::ZERO, ALL);
        }
        assert_eq!(window.sum(scale, Tick::ZERO), Sum { all: 1 << (FIELD - 1), some: 0 });
    }

    #[test]
    fn threads_lose_nothing() {
        let scale = Scale::<16>::new(SECOND);
        let window = Window::<16>::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        window.add(scale, at(n * 50_000), BOTH);
                    }
                });
            }
        });
        assert_eq!(window.sum(scale, at(500_000_000)), Sum { all: 40_000, some: 40_000 });
    }
}
