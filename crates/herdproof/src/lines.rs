//! Counting without meeting: a thread adds to a cache line that nobody else writes, so a plain load and a plain store will do.
//!
//! Adding to what others may add to as well takes a locked instruction, whether they do or not. Where that must be, it stands
//! [`Apart`]: a line that somebody has just written to has to be fetched by everybody else, with all that is on it.

use std::{
    cell::Cell,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use parking_lot::Mutex;

/// As many threads have a line of their own.
pub(crate) const OWN: usize = 56;
/// The others meet on these.
const SHARED: usize = 8;
/// Of a thread that has not asked for one.
const NONE: usize = usize::MAX;

/// `N` counts, as many times as there are lines.
pub(crate) struct Lines<const N: usize>(Box<[Line<N>; OWN + SHARED]>);

/// On cache lines of its own, because every thread writes to it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

#[repr(align(64))]
struct Line<const N: usize>([AtomicU64; N]);

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(NONE) };
    static LEASE: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// Who has which line, in this process.
static TAKEN: Mutex<Taken> = Mutex::new(Taken { threads: 0, free: Vec::new() });

/// How many lines have been some thread's own.
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Taken {
    /// How many have asked.
    threads: usize,
    /// Lines of threads that have ended.
    free: Vec<usize>,
}

/// A line of this thread's own, until it ends.
struct Lease(usize);

impl Lease {
    fn take() -> usize {
        let mut taken = TAKEN.lock();
        let line = taken.free.pop().unwrap_or(taken.threads);
        if line >= OWN {
            taken.threads = taken.threads.wrapping_add(1);
            return OWN + taken.threads % SHARED;
        }
        taken.threads = taken.threads.max(line + 1);
        MOST.fetch_max(line + 1, SeqCst);
        drop(taken);
        let lease = Lease(line);
        match LEASE.try_with(|kept| kept.set(Some(lease))) {
            Ok(()) => line,
            // The thread is about to end, and the lease was dropped right there.
            Err(_) => OWN,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What still counts while the thread ends does so among others.
        LINE.set(OWN);
        TAKEN.lock().free.push(self.0);
    }
}

/// The line of a thread that had none.
#[cold]
fn take_line() -> usize {
    let line = Lease::take();
    LINE.set(line);
    line
}

/// The line of this thread; below [`OWN`] if it is its own.
#[inline]
pub(crate) fn own() -> usize {
    let line = LINE.get();
    if line == NONE { take_line() } else { line }
}

/// How many lines have been some thread's own.
#[cfg(not(herdproof_shuttle))]
pub(crate) fn most() -> usize {
    MOST.load(SeqCst)
}

impl<const N: usize> Lines<N> {
    pub(crate) fn new() -> Lines<N> {
        Lines(Box::new(std::array::from_fn(|_| Line(std::array::from_fn(|_| AtomicU64::new(0))))))
    }

    /// Adds so many; how many this thread's line had before.
    #[inline]
    pub(crate) fn add(&self, count: usize, more: u64) -> u64 {
        let Some(own) = self.own() else { return self.add_among_others(count, more) };
        let before = own[count].load(Relaxed);
        own[count].store(before.wrapping_add(more), Relaxed);
        before
    }

    /// One more for each of two counts.
    #[inline]
    pub(crate) fn add_to_both(&self, counts: [usize; 2]) {
        let Some(own) = self.own() else {
            for count in counts {
                self.add_among_others(count, 1);
            }
            return;
        };
        for count in counts {
            own[count].store(own[count].load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// The counts that only this thread writes, if there is a line for it.
    #[inline]
    pub(crate) fn own(&self) -> Option<&[AtomicU64; N]> {
        let line = own();
        if line < OWN { Some(&self.0[line].0) } else { None }
    }

    /// The counts of all lines, one after the other.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[AtomicU64; N]> {
        self.0.iter().map(|line| &line.0)
    }

    #[cold]
    fn add_among_others(&self, count: usize, more: u64) -> u64 {
        self.0[LINE.get()].0[count].fetch_add(more, Relaxed)
    }

    pub(crate) fn sum(&self, count: usize) -> u64 {
        self.all().map(|line| line[count].load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn nothing_is_lost_of_what_more_threads_count_than_there_are_lines() {
        // Long enough that those who share a line are at it at the same time.
        const TIMES: u64 = 100_000;
        let (lines, all_there) = (Lines::<2>::new(), Barrier::new(2 * OWN));
        thread::scope(|scope| {
            for _ in 0..2 * OWN {
                scope.spawn(|| {
                    lines.add(1, 1);
                    all_there.wait();
                    for _ in 0..TIMES / 2 {
                        lines.add(0, 1);
                        lines.add_to_both([0, 1]);
                    }
                });
            }
        });
        assert_eq!((lines.sum(0), lines.sum(1)), (2 * TIMES * OWN as u64, (2 + TIMES) * OWN as u64));
    }

    #[test]
    fn the_line_of_a_thread_that_has_ended_is_anothers_and_keeps_what_was_counted() {
        let lines = Lines::<1>::new();
        for _ in 0..10 * OWN {
            thread::scope(|scope| {
                scope.spawn(|| assert!((0..3).map(|_| lines.add(0, 1)).is_sorted() && LINE.get() < OWN));
            });
        }
        assert_eq!(lines.sum(0), 30 * OWN as u64);
    }
}
