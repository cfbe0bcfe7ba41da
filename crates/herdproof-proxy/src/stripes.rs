//! Counting without meeting: each thread has a part of its own, on cache lines of its own.

use std::{
    cell::Cell,
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// More threads than this share parts.
const STRIPES: usize = 16;

/// One `T` for each thread.
#[derive(Debug)]
pub(crate) struct Stripes<T>(Box<[Stripe<T>]>);

/// Two lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe<T>(T);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl<T: Default> Default for Stripes<T> {
    fn default() -> Stripes<T> {
        Stripes((0..STRIPES).map(|_| Stripe::default()).collect())
    }
}

impl<T> Stripes<T> {
    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

/// This thread's.
impl<T> Deref for Stripes<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let index = STRIPE.get();
        let index = if index < STRIPES { index } else { next() };
        &self.0[index].0
    }
}

#[cold]
fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let index = NEXT.fetch_add(1, Relaxed) % STRIPES;
    STRIPE.set(index);
    index
}
