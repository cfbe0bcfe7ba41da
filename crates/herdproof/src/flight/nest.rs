//! Which flights the present thread is in the middle of loading, so that a load that asks for its own key is refused rather
//! than left waiting for itself.

use std::cell::{Cell, RefCell};

use crate::sync::thread_local;

thread_local! {
    /// The flight whose load is running.
    static INNERMOST: Cell<Option<FlightId>> = const { Cell::new(None) };
    /// Those around it, from the outermost. Loads within loads are rare, so this is hardly ever touched.
    static AROUND: RefCell<Vec<FlightId>> = const { RefCell::new(Vec::new()) };
}

/// A flight's identity across all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightId {
    /// The address of the group, which lives as long as any of its flights.
    pub(super) group: usize,
    pub(super) number: u64,
}

/// Whether this flight's load is what is running, or what asked for it.
pub(super) fn is_inside(id: FlightId) -> bool {
    match INNERMOST.with(Cell::get) {
        None => false,
        Some(innermost) => innermost == id || AROUND.with(|around| around.borrow().contains(&id)),
    }
}

/// The flights that are being loaded, from the outermost.
pub(super) fn chain() -> Vec<FlightId> {
    let mut chain = AROUND.with(|around| around.borrow().clone());
    chain.extend(INNERMOST.with(Cell::get));
    chain
}

/// Runs `load` inside one flight more.
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

/// Runs `load` inside this flight and exactly these around it: a spawned load takes along what was around it when it began.
pub(super) fn exactly<T>(id: FlightId, chain: &mut Vec<FlightId>, load: impl FnOnce() -> T) -> T {
    struct Restore<'a>(Option<FlightId>, &'a mut Vec<FlightId>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
            AROUND.with(|around| std::mem::swap(&mut *around.borrow_mut(), self.1));
        }
    }
    let outer = INNERMOST.with(|innermost| innermost.replace(Some(id)));
    AROUND.with(|around| std::mem::swap(&mut *around.borrow_mut(), chain));
    let _restore = Restore(outer, chain);
    load()
}
