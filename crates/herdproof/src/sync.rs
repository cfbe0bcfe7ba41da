//! Locks, atomics and threads through one door, so that every interleaving of a flight's callers can be tried.
//!
//! With `--cfg herdproof_shuttle`, which only `cargo xtask test` sets, they are those of the model checker. Nothing else
//! about the code differs.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

#[cfg(not(herdproof_shuttle))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard},
    std::{
        sync::atomic::{AtomicU32, AtomicU64, AtomicUsize},
        thread::{self, Thread},
        thread_local,
    },
};

#[cfg(herdproof_shuttle)]
pub(crate) use {
    checked::{Mutex, RwLock},
    shuttle::{
        sync::{
            MutexGuard, RwLockWriteGuard,
            atomic::{AtomicU32, AtomicU64, AtomicUsize},
        },
        thread::{self, Thread},
        thread_local,
    },
};

/// Waits for an answer with the whole thread.
#[inline(never)]
pub(crate) fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut future).poll(&mut cx) {
            return answer;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(herdproof_shuttle)]
mod checked {
    use std::sync::PoisonError;

    use shuttle::sync::{Mutex as Checked, MutexGuard, RwLock as CheckedRw, RwLockReadGuard, RwLockWriteGuard};

    /// The checker's lock, with the manners of the real one: it cannot be poisoned.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(Checked<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(Checked::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// As [`Mutex`].
    pub(crate) struct RwLock<T>(CheckedRw<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(CheckedRw::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
