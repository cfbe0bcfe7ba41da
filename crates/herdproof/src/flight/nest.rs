//! Which flights the present thread is in the middle of loading, so that a load that asks for its own key is refused rather
//! than left waiting for itself.

use std::cell::RefCell;

use crate::sync::thread_local;

thread_local! {
    /// From the outermost to the one whose load is running.
    static CHAIN: RefCell<Vec<FlightId>> = const { RefCell::new(Vec::new()) };
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
    CHAIN.with(|chain| chain.borrow().contains(&id))
}

/// The flights that are being loaded, from the outermost.
pub(super) fn chain() -> Vec<FlightId> {
    CHAIN.with(|chain| chain.borrow().clone())
}

/// Runs `load` inside one flight more.
pub(super) fn within<T>(id: FlightId, load: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            CHAIN.with(|chain| chain.borrow_mut().pop());
        }
    }
    CHAIN.with(|chain| chain.borrow_mut().push(id));
    let _leave = Leave;
    load()
}

/// Runs `load` inside exactly these flights: a spawned load takes along what was around it when it began.
pub(super) fn exactly<T>(own: &mut Vec<FlightId>, load: impl FnOnce() -> T) -> T {
    struct Restore<'a>(&'a mut Vec<FlightId>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            CHAIN.with(|chain| std::mem::swap(&mut *chain.borrow_mut(), self.0));
        }
    }
    CHAIN.with(|chain| std::mem::swap(&mut *chain.borrow_mut(), own));
    let _restore = Restore(own);
    load()
}
