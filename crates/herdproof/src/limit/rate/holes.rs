//! Slots that were reserved and given back while others had reserved behind them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::super::gcra::{Gcra, Slot};

/// How many are kept. Beyond that a slot that is given back stays empty.
const MOST: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Holes {
    /// How many there are, for those who need not take the lock.
    len: AtomicUsize,
    /// Costs by the theoretical arrival time of the slot.
    free: Mutex<BTreeMap<u64, u64>>,
}

impl Holes {
    pub(super) fn leave(&self, slot: Slot) {
        let mut free = self.free.lock();
        if free.len() < MOST {
            free.insert(slot.tat, slot.cost);
            self.len.store(free.len(), Relaxed);
        }
    }

    /// The earliest hole that is large enough, if its time is not later than `latest`.
    #[inline]
    pub(super) fn take(&self, gcra: &Gcra, now: u64, cost: u32, latest: u64) -> Option<Slot> {
        if self.len.load(Relaxed) == 0 { None } else { self.find(gcra, now, cost, latest) }
    }

    #[cold]
    fn find(&self, gcra: &Gcra, now: u64, cost: u32, latest: u64) -> Option<Slot> {
        let mut free = self.free.lock();
        // As with the next slot, whose time is counted from now: what lies before that is credit that nobody has used.
        free.retain(|tat, cost| tat - *cost >= now);
        let wanted = gcra.slot(0, 0, cost).map(|slot| slot.cost);
        let found = free.iter().find(|(_, cost)| wanted.is_some_and(|wanted| wanted > 0 && wanted <= **cost));
        let slot = found.map(|(tat, cost)| gcra.slot_of(*tat, *cost)).filter(|slot| slot.at <= latest);
        if let Some(slot) = slot {
            free.remove(&slot.tat);
        }
        self.len.store(free.len(), Relaxed);
        slot
    }
}
