//! How many bytes are alive, and how many times memory was asked for.
//!
//! The counts are a thread's own. Shared ones would cost an atomic operation per allocation, which is a good part of what
//! some subjects take in all, and two threads that allocate would fight for them. What is counted here runs on one thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator with counts beside it; a bench that reports bytes makes it its global allocator.
pub struct Counting;

thread_local! {
    /// Wraps below zero on a thread that frees what another has allocated.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Bytes alive now, as asked for.
pub fn live_bytes() -> usize {
    LIVE.get()
}

/// The most bytes that were alive at once since [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK.get()
}

/// Forgets the peak.
pub fn reset_peak() {
    PEAK.set(live_bytes());
}

/// How many times memory was asked for so far, growing included.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Keeps what is freed in this process, so that a page is touched for the first time once only. A first touch costs more
/// than most of what is measured here, and differs by ten between pages that the machine's host has at hand and others.
pub fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number, for which the documentation gives this value.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
    }
}

fn grown(by: usize) {
    let live = LIVE.get().wrapping_add(by);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

fn shrunk(by: usize) {
    LIVE.set(LIVE.get().wrapping_sub(by));
}

// SAFETY: every call goes to the system's allocator unchanged; the counters beside it do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size >= layout.size() {
            grown(size - layout.size());
        } else {
            shrunk(layout.size() - size);
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}
