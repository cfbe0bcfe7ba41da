//! Locks, atomics and threads through one door, so that every interleaving of a flight's callers can be tried.
//!
//! With `--cfg herdproof_shuttle`, which only `cargo xtask test` sets, they are those of the model checker. Nothing else
//! about the code differs.

use std::{
    future::Future,
    panic::catch_unwind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use tokio::runtime::Handle;

#[cfg(not(herdproof_shuttle))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard, RecursiveRwLock, RecursiveRwLockWriteGuard, RwLock},
    std::{
        sync::atomic::{AtomicU32, AtomicU64, AtomicUsize},
        thread::{self, Thread},
        thread_local,
    },
};

#[cfg(herdproof_shuttle)]
pub(crate) use {
    checked::{Mutex, RwLock, RwLock as RecursiveRwLock},
    shuttle::{
        sync::{
            MutexGuard, RwLockWriteGuard as RecursiveRwLockWriteGuard,
            atomic::{AtomicU32, AtomicU64, AtomicUsize},
        },
        thread::{self, Thread},
        thread_local,
    },
};

/// Waits for an answer with the whole thread.
///
/// # Panics
///
/// If the answer is not there yet and this thread runs tasks of a tokio runtime.
#[inline(never)]
#[track_caller]
pub(crate) fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut may_block = false;
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut future).poll(&mut cx) {
            return answer;
        }
        if !may_block {
            assert_may_block();
            may_block = true;
        }
        thread::park();
    }
}

/// Tokio's own rule for its blocking calls: not on a thread that is in `block_on` or polls a task, unless within
/// `block_in_place`. There is no way to ask for it other than by a call that panics; the question is put only by a thread that
/// has a runtime and is about to wait.
#[track_caller]
fn assert_may_block() {
    let Ok(runtime) = Handle::try_current() else { return };
    assert!(
        catch_unwind(|| runtime.block_on(async {})).is_ok(),
        "cannot wait with this thread: it runs the tasks of a tokio runtime, perhaps the one that is waited for. \
         Use `.await`; or call this in `tokio::task::spawn_blocking` or, on a multi-thread runtime, `block_in_place`"
    );
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
