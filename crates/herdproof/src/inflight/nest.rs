//! Which flights the present thread is in the middle of loading, so that a load that asks for its own key is refused rather
//! than left waiting for itself.
//!
//! Nearly always it is none or one. So the innermost has a cell of its own, and to enter and leave it is a store.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
};

use crate::sync::thread_local;

thread_local! {
    /// The flight whose load is running.
    static INNERMOST: Cell<Option<FlightId>> = const { Cell::new(None) };
    /// Those around it, from the outermost.
    static AROUND: RefCell<Vec<FlightId>> = const { RefCell::new(Vec::new()) };
}

/// A flight's identity in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightId {
    /// The address of its home, which lives as long as any of its flights.
    pub(super) home: usize,
    pub(super) number: u64,
}

/// The flights around a load that runs as a task, its own among them.
pub(crate) struct Chain {
    innermost: Option<FlightId>,
    around: Vec<FlightId>,
}

impl Chain {
    /// These flights, inside those whose loads are running.
    pub(crate) fn around(ids: impl IntoIterator<Item = FlightId>) -> Chain {
        let outer = INNERMOST.with(Cell::get);
        let mut around: Vec<_> =
            AROUND.with(|around| around.borrow().iter().copied().chain(outer).chain(ids).collect());
        Chain { innermost: around.pop(), around }
    }

    /// Those whose loads are running.
    pub(crate) fn here() -> Chain {
        Chain::around([])
    }

    /// Works for a load inside these flights, on whatever thread: asking for one of their keys is refused.
    pub(crate) fn enter<T>(mut self, work: impl FnOnce() -> T) -> T {
        exactly(&mut self, work)
    }

    /// A load of many keys: asking for one of them is refused rather than left waiting for itself.
    pub(crate) fn run<F: Future>(mut self, load: F) -> impl Future<Output = F::Output> {
        let mut load = Box::pin(load);
        poll_fn(move |cx| exactly(&mut self, || load.as_mut().poll(cx)))
    }

    fn swap(&mut self) {
        self.innermost = INNERMOST.with(|innermost| innermost.replace(self.innermost));
        AROUND.with(|around| std::mem::swap(&mut *around.borrow_mut(), &mut self.around));
    }
}

/// Whether this flight's load is what is running, or what asked for it.
pub(super) fn is_inside(id: FlightId) -> bool {
    let innermost = INNERMOST.with(Cell::get);
    innermost.is_some_and(|innermost| innermost == id || AROUND.with(|around| around.borrow().contains(&id)))
}

/// Runs `load` inside one flight more.
#[inline(always)]
pub(super) fn within<T>(id: FlightId, load: impl FnOnce() -> T) -> T {
    struct Leave(Option<FlightId>);
    impl Drop for Leave {
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
            if self.0.is_some() {
                AROUND.with(|around| around.borrow_mut().pop());
            }
        }
    }
    let outer = INNERMOST.with(|innermost| innermost.replace(Some(id)));
    if let Some(outer) = outer {
        AROUND.with(|around| around.borrow_mut().push(outer));
    }
    let _leave = Leave(outer);
    load()
}

/// Runs `load` inside exactly these flights.
pub(super) fn exactly<T>(chain: &mut Chain, load: impl FnOnce() -> T) -> T {
    struct Restore<'a>(&'a mut Chain);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.swap();
        }
    }
    chain.swap();
    let _restore = Restore(chain);
    load()
}
