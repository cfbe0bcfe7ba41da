//! Memory that is needed in a moment, asked for now: it is fetched while something else is done.

/// Says that this will be read soon. Never waits for it, and changes nothing but how long that takes.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "the one door to the instruction; what a reference points to is there")]
pub(crate) fn soon<T>(data: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 has it, it has no effect that could be seen, and the address is that of a reference.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(data).cast()) }
}

/// As above, where there is no such instruction that can be asked for.
#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn soon<T>(_: &T) {}
