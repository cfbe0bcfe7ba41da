//! Which flights the present thread is in the middle of loading, so that a load that asks for its own key is refused rather
//! than left waiting for itself.
//!
//! Nearly always it is none or one. So the innermost has a cell of its own, and to enter and leave it is a store.

use std::cell::{Cell, RefCell};

use crate::sync::thread_local;

thread_local! {
    /// The flight whose load is running.
    static INNERMOST: Cell<Option<FlightId>> = const { Cell::new(None) };
    /// Those around it, from the outermost.
    static AROUND: RefCell<Vec<FlightId>> = const { RefCell::new(Vec::new()) };
}

/// A flight's identity across all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightId {
    /// The address of the group, which lives as long as any of its flights.
    pub(super) group: usize,
    pub(super) number: u64,
}

/// A flight and those around it, to be taken along by a load that runs on its own.
pub(super) struct Chain {
    innermost: Option<FlightId>,
    around: Vec<FlightId>,
}

impl Chain {
    /// This flight inside those that are being loaded.
    pub(super) fn ending_in(id: FlightId) -> Chain {
        let outer = INNERMOST.with(Cell::get);
        let around = AROUND.with(|around| around.borrow().iter().copied().chain(outer).collect());
        Chain { innermost: Some(id), around }
    }

    /// These flights inside those that are being loaded.
    pub(super) fn of(ids: impl Iterator<Item = FlightId>) -> Chain {
        let outer = INNERMOST.with(Cell::get);
        let mut around: Vec<_> =
            AROUND.with(|around| around.borrow().iter().copied().chain(outer).chain(ids).collect());
        Chain { innermost: around.pop(), around }
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
