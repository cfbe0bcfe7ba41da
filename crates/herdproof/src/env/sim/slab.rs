//! Slots with stable numbers, in pages that never move.
//!
//! A growing `Vec` would copy every client at each doubling and hold up to twice what it needs; a million simulated
//! clients make both visible.

const PAGE: usize = 1024;

/// A store of values under small numbers; a freed number is the first to be used again.
#[derive(Default)]
pub(super) struct Slab<T> {
    pages: Vec<Box<[T]>>,
    free: Vec<u32>,
    used: u32,
}

impl<T: Default> Slab<T> {
    /// A slot that nobody holds, as its last holder left it, or `T::default()` if it is new.
    pub(super) fn claim(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        let index = self.used;
        self.used = index.checked_add(1).expect("fewer than four billion tasks and timers at once");
        if index as usize == self.pages.len() * PAGE {
            self.pages.push((0..PAGE).map(|_| T::default()).collect());
        }
        index
    }

    /// Gives the slot back. What it holds stays there for the next holder.
    pub(super) fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.pages[index as usize / PAGE][index as usize % PAGE]
    }

    /// Every slot that was ever claimed, free ones included.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let used = self.used as usize;
        (0..).zip(self.pages.iter_mut().flatten().take(used))
    }
}
