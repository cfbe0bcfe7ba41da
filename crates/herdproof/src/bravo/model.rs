//! The lock under loom, which tries every interleaving of a few threads, and every value that the memory model lets a load
//! see. What runs is the code of the product; only what it stands on is loom's. `cargo xtask test` runs it with
//! `--cfg herdproof_loom`, which leaves tokio alone, as loom's own `cfg` would not.

use std::{ops::Deref, sync::PoisonError};

use loom::{
    cell::{ConstPtr, UnsafeCell},
    model::Builder,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};
pub(super) use loom::{
    sync::atomic::{AtomicU32, AtomicUsize},
    thread,
};

use super::{BIAS_AFTER, BiasedRwLock};

/// As [`parking_lot::RecursiveRwLock`]. Loom checks each access to the value.
pub(crate) struct RwLock<T> {
    state: Mutex<State>,
    changed: Condvar,
    value: UnsafeCell<T>,
}

#[derive(Default)]
struct State {
    readers: usize,
    writing: bool,
}

#[expect(unsafe_code, reason = "as the lock that it stands for")]
// SAFETY: what the lock is there for; that the value is not read while it is written is what loom checks.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

pub(crate) struct ReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: Option<ConstPtr<T>>,
}

pub(crate) struct WriteGuard<'a, T> {
    lock: &'a RwLock<T>,
}

impl<T> RwLock<T> {
    pub(super) fn new(value: T) -> RwLock<T> {
        RwLock { state: Mutex::default(), changed: Condvar::new(), value: UnsafeCell::new(value) }
    }

    fn when(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !ready(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    pub(super) fn read(&self) -> ReadGuard<'_, T> {
        self.when(|state| !state.writing).readers += 1;
        ReadGuard { lock: self, value: Some(self.value.get()) }
    }

    pub(super) fn write(&self) -> WriteGuard<'_, T> {
        self.when(|state| !state.writing && state.readers == 0).writing = true;
        WriteGuard { lock: self }
    }

    #[expect(unsafe_code, reason = "the access that is to be proved sound")]
    pub(super) fn read_without_lock<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: loom fails if anybody writes meanwhile.
        self.value.with(|value| read(unsafe { &*value }))
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[expect(unsafe_code, reason = "loom's pointer checks who else has one")]
    fn deref(&self) -> &T {
        // SAFETY: loom fails if anybody writes meanwhile.
        unsafe { self.value.as_ref().unwrap().deref() }
    }
}

impl<T> WriteGuard<'_, T> {
    #[expect(unsafe_code, reason = "loom's pointer checks who else has one")]
    fn change(&mut self, change: impl FnOnce(&mut T)) {
        // SAFETY: loom fails if anybody reads or writes meanwhile.
        self.lock.value.with_mut(|value| change(unsafe { &mut *value }));
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.lock.when(|_| true).readers -= 1;
        self.lock.changed.notify_all();
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.when(|_| true).writing = false;
        self.lock.changed.notify_all();
    }
}

/// As the product's: a slot for each thread, known by the time of its first read.
pub(super) mod slots {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    use loom::sync::atomic::AtomicUsize;

    const MOST: usize = 4;

    loom::lazy_static! {
        static ref SLOTS: [AtomicUsize; MOST] = std::array::from_fn(|_| AtomicUsize::new(0));
        static ref NEXT: AtomicUsize = AtomicUsize::new(0);
        static ref KNOWN: AtomicUsize = AtomicUsize::new(0);
    }

    loom::thread_local! {
        static INDEX: usize = {
            let index = NEXT.fetch_add(1, Relaxed);
            KNOWN.fetch_max(index + 1, SeqCst);
            index
        };
    }

    fn slot(index: usize) -> &'static AtomicUsize {
        SLOTS.get(index).unwrap()
    }

    pub(in super::super) fn own() -> Option<&'static AtomicUsize> {
        Some(slot(INDEX.with(|index| *index)))
    }

    pub(in super::super) fn all() -> impl Iterator<Item = &'static AtomicUsize> {
        (0..KNOWN.load(SeqCst)).map(slot)
    }
}

type Lock = BiasedRwLock<u32>;

/// Runs these at the same time as the last of them, in every order with up to so many preemptions.
fn check(preemptions: usize, threads: &[fn(&Lock)], last: fn(&Lock)) {
    let mut model = Builder::new();
    model.preemption_bound = Some(preemptions);
    let threads = threads.to_vec();
    model.check(move || {
        let lock = Arc::new(Lock::new(0));
        (0..BIAS_AFTER).for_each(|_| lock.read(|_| ()));
        let spawn = |act: &fn(&Lock)| {
            let (act, lock) = (*act, Arc::clone(&lock));
            thread::spawn(move || act(&lock))
        };
        let threads: Vec<_> = threads.iter().map(spawn).collect();
        last(&lock);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn read(lock: &Lock) {
    lock.read(|value| assert!(*value <= 2));
}

fn read_nested(lock: &Lock) {
    lock.read(|outer| {
        let inner = [lock.read(|value| *value), lock.read(|value| *value)];
        assert_eq!(inner, [*outer; 2]);
    });
}

fn write(lock: &Lock) {
    lock.write().change(|value| *value += 1);
}

#[test]
fn no_reader_is_inside_with_a_writer() {
    check(3, &[read, read], write);
}

#[test]
fn a_reader_that_comes_again_finds_what_was_written() {
    fn read_twice(lock: &Lock) {
        let first = lock.read(|value| *value);
        assert!(lock.read(|value| *value) >= first);
    }
    check(2, &[read_twice, write], write);
}

#[test]
fn a_nested_read_and_a_writer_do_not_wait_for_each_other() {
    check(3, &[read_nested, read], write);
    check(2, &[read_nested, write], write);
}

#[test]
fn a_find_after_a_write_is_inside_alone_too() {
    fn find(lock: &Lock) {
        lock.find_again(|value| Some(*value));
    }
    fn find_to_write(lock: &Lock) {
        let mut value = lock.write();
        lock.was_read();
        value.change(|value| *value += 1);
    }
    check(3, &[find, read], write);
    check(2, &[find, read], find_to_write);
}
