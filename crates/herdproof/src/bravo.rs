//! A reader-writer lock that is biased towards readers: BRAVO, by Dice and Kogan (USENIX ATC 2019,
//! <https://www.usenix.org/conference/atc19/presentation/dice>).
//!
//! A reader of an ordinary reader-writer lock writes to it twice, and readers on several cores hand its cache line round. That
//! costs more than a look-up in a map, and most for the key that everybody wants. While this lock has its *bias* set, a reader
//! does not touch it: it *publishes* the lock's address in a slot that only its own thread writes, and checks the bias again. A
//! writer takes the lock, revokes the bias, and waits until no slot has the lock's address. The bias is set again after
//! [`BIAS_AFTER`] reads without a write, so a lock that is written all the time costs little more than an ordinary one.
//!
//! It differs from the paper in its slots, one for each thread instead of a hashed table, and in setting the bias by a count of
//! reads instead of by time.
//!
//! Gain: `cache --case hit` takes 47 ns, and 60 if the bias is never set; `cache --case hit-2`, two threads, 62 and 110 on the wall.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
#[cfg(not(herdproof_loom))]
use std::{hint, time::Duration};

#[cfg(not(herdproof_loom))]
pub(crate) use crate::sync::RecursiveRwLockWriteGuard as WriteGuard;
#[cfg(not(herdproof_loom))]
use crate::sync::{AtomicU32, AtomicUsize, RecursiveRwLock as RwLock, thread};
#[cfg(herdproof_loom)]
pub(crate) use model::WriteGuard;
#[cfg(herdproof_loom)]
use model::{AtomicU32, AtomicUsize, RwLock, slots, thread};

#[cfg(herdproof_loom)]
#[path = "bravo/model.rs"]
mod model;

/// The bias is set after so many reads without a write. To revoke it costs a writer a look at the slot of each thread.
const BIAS_AFTER: u32 = if cfg!(herdproof_loom) { 2 } else { 64 };
/// A writer looks so often at a slot that has its lock's address before it yields: readers take tens of nanoseconds ...
#[cfg(not(herdproof_loom))]
const SPINS: u32 = 100;
/// ... and so often before it sleeps between looks: the reader's thread has lost its core.
#[cfg(not(herdproof_loom))]
const YIELDS: u32 = 50;
#[cfg(not(herdproof_loom))]
const SLEEP: Duration = Duration::from_micros(50);

// In this order, so that what lies at the beginning of the value is on the same cache line.
#[repr(C)]
pub(crate) struct BiasedRwLock<T> {
    bias: Bias,
    lock: RwLock<T>,
}

impl<T> BiasedRwLock<T> {
    pub(crate) fn new(value: T) -> BiasedRwLock<T> {
        BiasedRwLock { bias: Bias::default(), lock: RwLock::new(value) }
    }

    /// Must be short. May read under this lock again, and under others; must not write under this one.
    #[inline(always)]
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.read_biased(read).unwrap_or_else(|read| self.read_locked(read))
    }

    /// As [`read`](BiasedRwLock::read) if there was a read since the last write. Else nothing is found: who looks first after a
    /// write is likely to write, and takes the lock for that.
    #[inline(always)]
    pub(crate) fn find_again<R>(&self, find: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        match self.read_biased(find) {
            Ok(found) => found,
            Err(_) if self.bias.reads.load(Relaxed) == 0 => None,
            Err(find) => self.read_locked(find),
        }
    }

    #[inline(always)]
    fn read_biased<R, F: FnOnce(&T) -> R>(&self, read: F) -> Result<R, F> {
        if self.bias.is_set()
            && let Some(slot) = slots::own()
            && let Some(published) = self.bias.publish(slot, self.address())
        {
            return Ok(published.read(&self.lock, read));
        }
        Err(read)
    }

    #[inline(always)]
    fn read_locked<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        if let Some(outer) = Published::outer(self.address()) {
            return outer.read(&self.lock, read);
        }
        // The lock is recursive: this thread may be reading under the lock already, and then must not line up behind a writer that waits.
        // Writers do not starve by that: after `BIAS_AFTER` reads newcomers leave the lock alone.
        let value = self.lock.read();
        self.bias.count_read();
        read(&value)
    }

    #[inline(always)]
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        debug_assert!(
            Published::outer(self.address()).is_none(),
            "a thread that reads under a lock writes under it, and would wait for itself"
        );
        let value = self.lock.write();
        if self.bias.is_set() {
            self.bias.revoke(slots::all, self.address());
        }
        self.bias.count_write();
        value
    }

    /// For a writer that has the lock, and only reads: the next may [find it again](BiasedRwLock::find_again). Does not set the
    /// bias, as readers would not wait for this writer.
    #[inline(always)]
    pub(crate) fn was_read(&self) {
        self.bias.reads.store(1, Relaxed);
    }

    /// No other lock's as long as this one is borrowed.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Whether readers may do without the lock.
#[derive(Default)]
struct Bias {
    /// Zero or one: set by a reader that has the lock, revoked by a writer that has it.
    set: AtomicU32,
    /// Since the last write. Of two at the same moment one may be lost.
    reads: AtomicU32,
}

impl Bias {
    #[inline(always)]
    fn is_set(&self) -> bool {
        self.set.load(Relaxed) != 0
    }

    /// Publishes a read under the lock with this address, unless the bias has been revoked, or the thread has published another.
    #[inline(always)]
    fn publish<'a>(&self, slot: &'a AtomicUsize, address: usize) -> Option<Published<'a>> {
        // To clone what is under one lock may lead to another.
        if slot.load(Relaxed) != 0 {
            return None;
        }
        // All threads see this store and the next load, and the store and the loads of a writer, in one order. So either the
        // writer finds the slot, or this finds that the bias is revoked.
        slot.store(address, SeqCst);
        ordered();
        let published = Published { slot, outermost: true };
        (self.set.load(SeqCst) != 0).then_some(published)
    }

    /// For a writer that has the lock: returns when nobody reads without it. The slots are asked for after the bias is revoked:
    /// a thread that publishes its first read before that has made its slot known by then, and a later one finds it revoked.
    #[cold]
    fn revoke<'a, S: IntoIterator<Item = &'a AtomicUsize>>(&self, slots: impl FnOnce() -> S, address: usize) {
        self.set.store(0, SeqCst);
        ordered();
        for slot in slots() {
            let mut looks = 0;
            while slot.load(SeqCst) == address {
                back_off(looks);
                looks = looks.saturating_add(1);
            }
        }
    }

    /// For a reader that has the lock.
    #[inline(always)]
    fn count_read(&self) {
        let reads = self.reads.load(Relaxed).wrapping_add(1);
        self.reads.store(reads, Relaxed);
        if reads == BIAS_AFTER {
            self.set.store(1, Release);
        }
    }

    /// For a writer that has the lock.
    #[inline(always)]
    fn count_write(&self) {
        self.reads.store(0, Relaxed);
    }
}

/// A reader cannot wake the writer that waits for it: to look for one would cost every hit a fence.
#[cfg(not(herdproof_loom))]
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded wait for a thread that has lost its core in the middle of a read"
)]
fn back_off(looks: u32) {
    if looks < SPINS {
        hint::spin_loop();
    } else if looks < SPINS + YIELDS {
        thread::yield_now();
    } else {
        thread::sleep(SLEEP);
    }
}

#[cfg(herdproof_loom)]
fn back_off(_: u32) {
    thread::yield_now();
}

/// Nothing: the sequentially consistent accesses around it are in one order for all threads. Loom treats such accesses as
/// acquire and release only, and knows that order of fences.
#[inline(always)]
fn ordered() {
    #[cfg(herdproof_loom)]
    loom::sync::atomic::fence(SeqCst);
}

/// A read that every writer waits for, until this is dropped.
struct Published<'a> {
    slot: &'a AtomicUsize,
    /// Not within another read of this thread, of the same lock.
    outermost: bool,
}

impl Published<'static> {
    /// The read that this thread is within, if that is published for the lock with this address.
    #[inline(always)]
    fn outer(address: usize) -> Option<Published<'static>> {
        let slot = slots::own()?;
        (slot.load(Relaxed) == address).then_some(Published { slot, outermost: false })
    }
}

impl Published<'_> {
    /// Reads what is under the lock that this was published for.
    #[inline(always)]
    #[cfg(not(any(herdproof_shuttle, herdproof_loom)))]
    #[expect(unsafe_code, reason = "the one door to what is under a lock that was not taken")]
    fn read<T, R>(self, lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: no writer has access to the value while this is published.
        // - An earlier writer had released the lock before a reader that held it set the bias, and this has seen the bias set
        //   (release, then acquire): all that was written is visible here.
        // - A later writer takes the lock, finds the bias set, revokes it, and then looks at all slots. Of its store and this
        //   reader's store, one comes first in the single order of sequentially consistent accesses. If this reader's does, the
        //   writer finds the slot and waits until it is empty; if the writer's does, this reader has found the bias revoked,
        //   and there is no `Published`.
        // - The slot is emptied when the outermost read ends, also by a panic, and the writer sees that read as over (release,
        //   then acquire). A nested read is over before that.
        let answer = read(unsafe { &*lock.data_ptr() });
        drop(self);
        answer
    }

    /// The model checker knows only locks that are taken.
    #[cfg(herdproof_shuttle)]
    fn read<T, R>(self, lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
        drop(self);
        read(&lock.read())
    }

    #[cfg(herdproof_loom)]
    fn read<T, R>(self, lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
        let answer = lock.read_without_lock(read);
        drop(self);
        answer
    }
}

impl Drop for Published<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.outermost {
            self.slot.store(0, Release);
        }
    }
}

/// Of each thread the address of the lock that it reads under without having it, or zero.
#[cfg(not(any(herdproof_shuttle, herdproof_loom)))]
mod slots {
    use crate::{
        striped::{self, Padded, THREADS},
        sync::AtomicUsize,
    };

    static SLOTS: [Padded<AtomicUsize>; THREADS] = [const { Padded(AtomicUsize::new(0)) }; THREADS];

    /// This thread's, which no other writes to. None if there are too many threads: then it has to take locks.
    #[inline(always)]
    pub(super) fn own() -> Option<&'static AtomicUsize> {
        SLOTS.get(striped::thread_index()).map(|slot| &slot.0)
    }

    /// Those of all threads that have one.
    pub(super) fn all() -> impl Iterator<Item = &'static AtomicUsize> {
        SLOTS[..striped::threads()].iter().map(|slot| &slot.0)
    }
}

/// Shuttle's threads are one thread in truth: they always take the lock.
#[cfg(herdproof_shuttle)]
mod slots {
    use crate::sync::AtomicUsize;

    pub(super) fn own() -> Option<&'static AtomicUsize> {
        None
    }

    pub(super) fn all() -> [&'static AtomicUsize; 0] {
        []
    }
}

#[cfg(all(test, not(any(herdproof_shuttle, herdproof_loom))))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Barrier,
    };

    use super::*;

    const TIMES: u32 = if cfg!(miri) { 200 } else { 20_000 };

    fn biased<T>(value: T) -> BiasedRwLock<T> {
        let lock = BiasedRwLock::new(value);
        (0..BIAS_AFTER).for_each(|_| lock.read(|_| {}));
        assert!(lock.bias.is_set());
        lock
    }

    fn is_published() -> bool {
        slots::own().is_some_and(|slot| slot.load(Relaxed) != 0)
    }

    #[test]
    fn readers_leave_the_lock_alone_once_it_is_biased_and_until_it_is_written() {
        let lock = BiasedRwLock::new(0);
        let takes_lock = || lock.read(|_| !is_published());
        assert_eq!((0..100).filter(|_| takes_lock()).count(), BIAS_AFTER as usize);
        *lock.write() = 1;
        assert_eq!((0..100).filter(|_| takes_lock()).count(), BIAS_AFTER as usize);
        assert_eq!(lock.read(|value| *value), 1);
    }

    #[test]
    fn a_lock_that_is_written_now_and_then_has_no_bias_to_revoke() {
        let lock = BiasedRwLock::new(0);
        for _ in 0..10 {
            (1..BIAS_AFTER).for_each(|_| lock.read(|_| assert!(!is_published())));
            *lock.write() += 1;
        }
        assert!(!lock.bias.is_set());
    }

    #[test]
    fn no_reader_sees_half_of_what_is_written() {
        let (lock, begin) = (biased((Box::new(0), Box::new(0))), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    begin.wait();
                    let mut last = 0;
                    for _ in 0..TIMES {
                        let (one, other) = lock.read(|(one, other)| (**one, **other));
                        assert!(one == other && one >= last, "{one} and {other} after {last}");
                        last = one;
                    }
                });
            }
            scope.spawn(|| {
                begin.wait();
                for round in 1..=TIMES / 100 {
                    // Until the others have seen the bias, most often.
                    (0..2 * BIAS_AFTER).for_each(|_| lock.read(|_| thread::yield_now()));
                    let mut value = lock.write();
                    *value = (Box::new(round), Box::new(round));
                }
            });
        });
    }

    #[test]
    fn a_writer_waits_for_a_reader_that_has_left_the_lock_alone() {
        let (lock, inside) = (biased(String::from("before")), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                inside.wait();
                *lock.write() = "after".into();
            });
            lock.read(|value| {
                assert!(is_published());
                inside.wait();
                // It is about to write, and revokes the bias first.
                while lock.bias.is_set() {
                    thread::yield_now();
                }
                for _ in 0..TIMES {
                    assert_eq!(value, "before");
                    thread::yield_now();
                }
            });
        });
        assert_eq!(lock.read(String::clone), "after");
    }

    #[test]
    fn who_reads_under_one_lock_may_read_under_others_and_the_same_again() {
        let (one, other) = (biased(1), biased(2));
        let sum = one.read(|a| {
            let sum = other.read(|b| one.read(|c| a + b + c));
            assert!(is_published(), "still under the first");
            sum
        });
        assert_eq!((sum, is_published()), (4, false));
        *one.write() += 1;
        *other.write() += 1;
    }

    #[test]
    fn a_read_within_a_read_does_not_line_up_behind_the_writer_that_waits_for_it() {
        for lock in [biased(1), BiasedRwLock::new(1)] {
            let (lock, inside) = (&lock, Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    inside.wait();
                    *lock.write() = 2;
                });
                lock.read(|outer| {
                    let is_biased = is_published();
                    inside.wait();
                    // Until the writer waits. In line for the lock it cannot be seen.
                    for _ in 0..TIMES {
                        thread::yield_now();
                    }
                    while is_biased && lock.bias.is_set() {
                        thread::yield_now();
                    }
                    lock.read(|inner| assert_eq!((*outer, *inner), (1, 1)));
                    assert_eq!(is_published(), is_biased, "the outer read is still under way");
                });
            });
            assert_eq!(lock.read(|value| *value), 2);
        }
    }

    #[test]
    #[should_panic(expected = "would wait for itself")]
    fn a_write_within_a_read_is_refused_in_debug_builds() {
        let lock = biased(1);
        lock.read(|_| *lock.write() = 2);
    }

    #[test]
    fn more_threads_than_there_are_stripes_leave_the_lock_alone() {
        let (lock, all_there) = (biased(1), Barrier::new(200));
        thread::scope(|scope| {
            for _ in 0..200 {
                scope.spawn(|| {
                    lock.read(|_| assert!(is_published()));
                    all_there.wait();
                });
            }
        });
    }

    #[test]
    fn a_reader_that_panics_does_not_hold_writers_up() {
        let lock = biased(1);
        let read = || lock.read(|_| panic!("in the middle"));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        *lock.write() = 2;
        assert_eq!(lock.read(|value| *value), 2);
    }
}
