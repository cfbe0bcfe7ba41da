//! A lock for what is read much more often than it is written.
//!
//! Whoever reads under an ordinary lock writes to it, twice, and all who do so at the same time hand its cache line round.
//! That costs more than what they read, and the more they are the longer it takes: a key that everybody wants is the worst
//! case. Here it is *calm* once nothing was written for some reads. From then on a reader only notes under which lock it
//! reads, in a place that no other thread writes to. A writer ends the calm, and waits for the readers that it finds noted.
//!
//! After that it is an ordinary lock until it is calm again, so what is written all the time costs hardly more than it did.

use std::{
    hint,
    sync::atomic::Ordering::{Relaxed, Release, SeqCst},
};

use crate::sync::{AtomicU32, AtomicUsize, RwLock, RwLockWriteGuard, thread};

/// So many reads without a write are calm. To end that costs a writer a look at the note of each thread.
const CALM: u32 = 64;
/// So often a writer looks again at once, for readers that run; then it lets others run.
const LOOKS: u32 = 100;

// In this order, so that what lies at the beginning of the value is on the same cache line.
#[repr(C)]
pub(crate) struct ReadMostly<T> {
    calm: Calm,
    lock: RwLock<T>,
}

impl<T> ReadMostly<T> {
    pub(crate) fn new(value: T) -> ReadMostly<T> {
        ReadMostly { calm: Calm::default(), lock: RwLock::new(value) }
    }

    /// Must be short, and must not write under this lock.
    #[inline(always)]
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.read_calmly(read).unwrap_or_else(|read| self.read_locked(read))
    }

    /// As [`read`](ReadMostly::read) if somebody has read since it was written. Else nothing is found, because whoever looks next
    /// may well have to write too.
    #[inline(always)]
    pub(crate) fn find_again<R>(&self, find: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        match self.read_calmly(find) {
            Ok(found) => found,
            Err(_) if self.calm.reads.load(Relaxed) == 0 => None,
            Err(find) => self.read_locked(find),
        }
    }

    #[inline(always)]
    fn read_calmly<R, F: FnOnce(&T) -> R>(&self, read: F) -> Result<R, F> {
        if self.calm.is()
            && let Some(note) = notes::own()
            && let Some(noted) = self.calm.enter(note, self.address())
        {
            return Ok(noted.read(&self.lock, read));
        }
        Err(read)
    }

    #[inline(always)]
    fn read_locked<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let value = self.lock.read();
        self.calm.count_read();
        read(&value)
    }

    #[inline(always)]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let value = self.lock.write();
        if self.calm.is() {
            self.calm.end(notes::all, self.address());
        }
        self.calm.count_write();
        value
    }

    /// Whoever has the lock to write has only read.
    #[inline(always)]
    pub(crate) fn was_read(&self) {
        self.calm.count_read();
    }

    /// No other lock's as long as this one is borrowed.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Whether readers may do without the lock.
#[derive(Default)]
struct Calm {
    /// Zero or one: set by a reader that has the lock, reset by a writer that has it.
    is: AtomicU32,
    /// Since the last write. Of two at the same moment one may be lost.
    reads: AtomicU32,
}

impl Calm {
    #[inline(always)]
    fn is(&self) -> bool {
        self.is.load(Relaxed) != 0
    }

    /// Notes that the lock with this address, which was calm a moment ago, is read under, if that is enough.
    #[inline(always)]
    fn enter<'a>(&self, note: &'a AtomicUsize, address: usize) -> Option<Noted<'a>> {
        // To copy what is under one lock may lead to another.
        if note.load(Relaxed) != 0 {
            return None;
        }
        // All threads see this and the next step, and the two of a writer, in one order. So either the writer finds the note,
        // or this finds that the calm is over.
        note.store(address, SeqCst);
        let noted = Noted(note);
        (self.is.load(SeqCst) != 0).then_some(noted)
    }

    /// For a writer that has the lock: over when nobody reads any more. Which notes there are is asked after it was said that
    /// the calm is over: a thread that makes its first note before has made it known by then, and one after stays out.
    #[cold]
    fn end<'a, N: IntoIterator<Item = &'a AtomicUsize>>(&self, notes: impl FnOnce() -> N, address: usize) {
        self.is.store(0, SeqCst);
        for note in notes() {
            let mut looks = 0;
            while note.load(SeqCst) == address {
                looks += 1;
                if looks < LOOKS { hint::spin_loop() } else { thread::yield_now() }
            }
        }
    }

    /// For a reader that has the lock.
    #[inline(always)]
    fn count_read(&self) {
        let reads = self.reads.load(Relaxed).wrapping_add(1);
        self.reads.store(reads, Relaxed);
        if reads == CALM {
            self.is.store(1, Release);
        }
    }

    /// For a writer that has the lock.
    #[inline(always)]
    fn count_write(&self) {
        self.reads.store(0, Relaxed);
    }
}

/// A reader that every writer will see, until this is dropped.
struct Noted<'a>(&'a AtomicUsize);

impl Noted<'_> {
    /// Reads what is under the lock that this was noted for.
    #[inline(always)]
    #[cfg(not(herdproof_shuttle))]
    #[expect(unsafe_code, reason = "the one door to what is under a lock that was not taken")]
    fn read<T, R>(self, lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: nobody has the lock to write while this is noted. Who had it before had given it back when a reader, with the
        // lock, said that it is calm, which this has seen (release, then acquire). Who gets it later finds it calm, says that
        // it is not, and then looks at all notes: either it finds this one (if in the one order of the four it comes later),
        // and waits until it is gone; or it came before, and then this has not seen that it is calm, and is not made. It waits
        // for this to be dropped, also by a panic, and sees all of it as over (release, then acquire).
        let answer = read(unsafe { &*lock.data_ptr() });
        drop(self);
        answer
    }

    /// As above: what the checker knows of locks is when they are taken.
    #[cfg(herdproof_shuttle)]
    fn read<T, R>(self, lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
        drop(self);
        read(&lock.read())
    }
}

impl Drop for Noted<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Of each thread the address of the lock that it reads under without having it, or zero.
#[cfg(not(herdproof_shuttle))]
mod notes {
    use crate::{
        lines::{self, Apart, OWN},
        sync::AtomicUsize,
    };

    static NOTES: [Apart<AtomicUsize>; OWN] = [const { Apart(AtomicUsize::new(0)) }; OWN];

    /// This thread's, which no other writes to. None if there are too many threads: then it has to take locks.
    #[inline(always)]
    pub(super) fn own() -> Option<&'static AtomicUsize> {
        NOTES.get(lines::own()).map(|note| &note.0)
    }

    /// Those of all threads that have one.
    pub(super) fn all() -> impl Iterator<Item = &'static AtomicUsize> {
        NOTES[..lines::most()].iter().map(|note| &note.0)
    }
}

/// The checker's threads have none, and all of them are one thread in truth.
#[cfg(herdproof_shuttle)]
mod notes {
    use crate::sync::AtomicUsize;

    pub(super) fn own() -> Option<&'static AtomicUsize> {
        None
    }

    pub(super) fn all() -> [&'static AtomicUsize; 0] {
        []
    }
}

#[cfg(all(test, not(herdproof_shuttle)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Barrier,
    };

    use super::*;

    const TIMES: u32 = if cfg!(miri) { 200 } else { 20_000 };

    fn calm<T>(value: T) -> ReadMostly<T> {
        let lock = ReadMostly::new(value);
        (0..CALM).for_each(|_| lock.read(|_| {}));
        assert!(lock.calm.is());
        lock
    }

    fn is_noted() -> bool {
        notes::own().is_some_and(|note| note.load(Relaxed) != 0)
    }

    #[test]
    fn readers_leave_the_lock_alone_once_it_is_calm_and_until_somebody_writes() {
        let lock = ReadMostly::new(0);
        let takes_lock = || lock.read(|_| !is_noted());
        assert_eq!((0..100).filter(|_| takes_lock()).count(), CALM as usize);
        *lock.write() = 1;
        assert_eq!((0..100).filter(|_| takes_lock()).count(), CALM as usize);
        assert_eq!(lock.read(|value| *value), 1);
    }

    #[test]
    fn who_writes_now_and_then_has_nothing_to_end() {
        let lock = ReadMostly::new(0);
        for _ in 0..10 {
            (1..CALM).for_each(|_| lock.read(|_| assert!(!is_noted())));
            *lock.write() += 1;
        }
        assert!(!lock.calm.is());
    }

    #[test]
    fn no_reader_sees_half_of_what_is_written() {
        let (lock, begin) = (calm((Box::new(0), Box::new(0))), Barrier::new(4));
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
                    // Until the others have seen it calm, most often.
                    (0..2 * CALM).for_each(|_| lock.read(|_| thread::yield_now()));
                    let mut value = lock.write();
                    *value = (Box::new(round), Box::new(round));
                }
            });
        });
    }

    #[test]
    fn a_writer_waits_for_a_reader_that_has_left_the_lock_alone() {
        let (lock, inside) = (calm(String::from("before")), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                inside.wait();
                *lock.write() = "after".into();
            });
            lock.read(|value| {
                assert!(is_noted());
                inside.wait();
                // It is about to write, and says so first.
                while lock.calm.is() {
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
        let (one, other) = (calm(1), calm(2));
        let sum = one.read(|a| {
            let sum = other.read(|b| one.read(|c| a + b + c));
            assert!(is_noted(), "still under the first");
            sum
        });
        assert_eq!((sum, is_noted()), (4, false));
        *one.write() += 1;
        *other.write() += 1;
    }

    #[test]
    fn a_reader_that_panics_does_not_hold_writers_up() {
        let lock = calm(1);
        let read = || lock.read(|_| panic!("in the middle"));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        *lock.write() = 2;
        assert_eq!(lock.read(|value| *value), 2);
    }
}

#[cfg(all(test, herdproof_shuttle))]
mod interleavings {
    use std::{array, sync::Arc};

    use super::*;

    const TRIES: usize = 20_000;
    const ADDRESS: usize = 1;

    struct Scene {
        calm: Calm,
        lock: RwLock<()>,
        notes: [AtomicUsize; 2],
        /// How many threads have one.
        most: AtomicUsize,
        readers: AtomicU32,
        writers: AtomicU32,
    }

    impl Scene {
        fn read(&self, own: usize) {
            if !self.calm.is() {
                return self.read_locked();
            }
            self.most.fetch_max(own + 1, SeqCst);
            match self.calm.enter(&self.notes[own], ADDRESS) {
                Some(_noted) => self.is_read(),
                None => self.read_locked(),
            }
        }

        fn read_locked(&self) {
            let _lock = self.lock.read();
            // As if it had been read often before.
            self.calm.reads.store(CALM - 1, Relaxed);
            self.calm.count_read();
            self.is_read();
        }

        fn is_read(&self) {
            self.readers.fetch_add(1, SeqCst);
            assert_eq!(self.writers.load(SeqCst), 0, "read while it is written");
            self.readers.fetch_sub(1, SeqCst);
        }

        fn write(&self) {
            let _lock = self.lock.write();
            if self.calm.is() {
                self.calm.end(|| &self.notes[..self.most.load(SeqCst)], ADDRESS);
            }
            self.calm.count_write();
            self.writers.fetch_add(1, SeqCst);
            assert_eq!(self.readers.load(SeqCst), 0, "written while it is read");
            self.writers.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn nobody_reads_while_somebody_writes() {
        shuttle::check_random(
            || {
                let scene = Arc::new(Scene {
                    calm: Calm::default(),
                    lock: RwLock::new(()),
                    notes: array::from_fn(|_| AtomicUsize::new(0)),
                    most: AtomicUsize::new(0),
                    readers: AtomicU32::new(0),
                    writers: AtomicU32::new(0),
                });
                let act = |act: fn(&Scene)| {
                    let scene = Arc::clone(&scene);
                    thread::spawn(move || (0..3).for_each(|_| act(&scene)))
                };
                let actors =
                    [act(|scene| scene.read(0)), act(|scene| scene.read(1)), act(Scene::write), act(Scene::write)];
                actors.into_iter().for_each(|actor| actor.join().unwrap());
            },
            TRIES,
        );
    }
}
