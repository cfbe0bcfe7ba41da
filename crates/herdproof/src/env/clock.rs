//! The real clocks, read as cheaply as the platform allows.

use std::time::SystemTime;

use super::tick::Tick;

#[cfg(unix)]
#[inline]
fn read(id: rustix::time::ClockId) -> Tick {
    let time = rustix::time::clock_gettime(id);
    // Neither is ever negative: it is the time since the machine was started.
    Tick::from_nanos(time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned()))
}

/// The operating system's own reading.
#[cfg(unix)]
pub(super) fn system() -> Tick {
    read(rustix::time::ClockId::Monotonic)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[inline]
pub(super) fn now() -> Tick {
    Tick::from_nanos(super::counter::now(|| system().as_nanos()))
}

#[cfg(all(unix, not(all(target_os = "linux", target_arch = "x86_64"))))]
pub(super) fn now() -> Tick {
    system()
}

/// The kernel's last timer tick: 1 to 4 ms behind at worst, but a plain read of memory.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
pub(super) fn coarse() -> Tick {
    read(rustix::time::ClockId::MonotonicCoarse)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn coarse() -> Tick {
    now()
}

#[cfg(not(unix))]
#[expect(clippy::disallowed_methods, reason = "this is the one door to the real clock")]
pub(super) fn now() -> Tick {
    use std::{sync::LazyLock, time::Instant};
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    Tick::ZERO + BEGINNING.elapsed()
}

#[expect(clippy::disallowed_methods, reason = "this is the one door to the real clock")]
pub(super) fn wall() -> SystemTime {
    SystemTime::now()
}
