//! Prefetching: memory that is read in a moment is asked for now, and comes while something else is done.

/// Asks for the cache line of this reference. Never waits for it, and changes nothing but how long a later read takes.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "the only way to the instruction; see the proof")]
pub(crate) fn prefetch<T>(data: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is part of SSE, which every x86-64 processor has, and has no architectural effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(data).cast()) }
}

/// Does nothing where stable Rust has no such instruction.
#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn prefetch<T>(_: &T) {}
