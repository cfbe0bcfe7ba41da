//! The lock of what is model-checked, through one door; see the library's own.
//!
//! With `--cfg herdproof_shuttle`, which only `cargo xtask test` sets, it is that of the model checker.

#[cfg(not(herdproof_shuttle))]
pub(crate) use parking_lot::Mutex;

#[cfg(herdproof_shuttle)]
pub(crate) use checked::Mutex;

#[cfg(herdproof_shuttle)]
mod checked {
    use std::sync::PoisonError;

    use shuttle::sync::{Mutex as Checked, MutexGuard};

    /// The checker's lock, with the manners of the real one: it cannot be poisoned.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(Checked<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(Checked::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
