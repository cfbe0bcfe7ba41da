//! The monotonic clock at a third of its price: the processor's own counter, held to the operating system's clock.
//!
//! A reading of the system's clock waits until all that comes before it in the program is done, so that its nanoseconds can
//! be trusted. That wait is most of its price, and a policy that reads the clock twice per call pays it twice. Here the
//! counter is read without waiting, and turned into nanoseconds by a straight [`Line`] that is laid anew each second by a
//! reading of the real clock. It may be some tens of nanoseconds off, and follows the system's clock through whatever is
//! done to that.
//!
//! Gain: a tenth to two fifths of every gate that needs an exact clock. `toolbox --case rate-allowed` 23.7 ns, and 30.6 with
//! the system's clock; `rate-denied` 32.7 and 47.6; `breaker-closed` 37.3 and 60.3; `retry` 25.5 and 40.7; `shield` 191 and 215.
//!
//! The `quanta` crate reads the same counter, but measures its speed once, at start and by spinning, and then goes its own way.
//! Here readings have to stay comparable with the system's coarse clock, by which a cache checks its entries.
//!
//! The counter is used only where the kernel itself keeps time by it, which is to say where it runs evenly and alike on
//! all cores. Elsewhere, and for the first moments, every reading is one of the system's clock.

use std::{
    arch::x86_64::__cpuid,
    fs,
    sync::{
        OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
};

use parking_lot::Mutex;

/// The first line is laid after this many nanoseconds; then after twice as many, and so on.
const SOON: u64 = 10_000_000;
/// A line is used no longer than this.
const LATER: u64 = 1_000_000_000;
/// A clock that is off by no more than this is brought back gently; one that is behind by more has slept, and jumps.
const GENTLY: u64 = 1_000_000;
/// Fraction bits of a rate.
const BITS: u32 = 32;

/// The clock of this process.
static CLOCK: Clock = Clock::new();

/// The monotonic clock in nanoseconds, given how to read the system's.
#[inline]
pub(super) fn now(system: fn() -> u64) -> u64 {
    let line = CLOCK.line();
    if line.length > 0 {
        let elapsed = count().wrapping_sub(line.start);
        if elapsed < line.length {
            return line.at(elapsed);
        }
    }
    CLOCK.lay(system)
}

/// What the counter shows. It may be read a little before what comes earlier in the program is done.
#[inline]
#[expect(unsafe_code, reason = "the one door to the counter")]
fn count() -> u64 {
    // SAFETY: `rdtsc` reads a register and touches no memory. Every x86-64 processor has it; an operating system may forbid
    // it, but none does that keeps its own time by it, and we come here only where Linux does.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Turns counts into nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    /// The count at which it begins ...
    start: u64,
    /// ... and the time then.
    nanos: u64,
    /// Nanoseconds per count, times 2^32.
    rate: u64,
    /// For how many counts it is used; none for a line that cannot be used.
    length: u64,
}

/// The counter and the system's clock, read at the same moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    count: u64,
    nanos: u64,
}

impl Line {
    #[inline]
    fn at(&self, elapsed: u64) -> u64 {
        // A line is short: this does not overflow.
        self.nanos + ((elapsed * self.rate) >> BITS)
    }

    /// The line after this one, for about as many nanoseconds as `next`, given the last reading and one just made.
    ///
    /// It begins where this one has come to, and goes at the speed that brings it to the system's clock at its end.
    fn after(self, last: Reading, new: Reading, next: u64) -> Line {
        let counts = new.count.saturating_sub(last.count);
        let passed = new.nanos.saturating_sub(last.nanos);
        let rate = (u128::from(passed) << BITS).checked_div(u128::from(counts)).unwrap_or(0);
        // A counter that is slower than a count per nanosecond is too coarse, and would overflow; one that has stood still,
        // or gone back, was reset.
        // One that has counted on while the clock stood still, because the machine slept, says nothing of its speed. A line is
        // never so much faster than the clock.
        let slept = rate < u128::from(self.rate - self.rate / 4);
        let usable = rate > 0 && rate < 1 << BITS && !slept;
        let told = if self.rate == 0 {
            new.nanos.max(self.nanos)
        } else {
            let elapsed = new.count.saturating_sub(self.start);
            // Beyond its length nobody was told anything, so there it need not be believed when it is ahead of the clock.
            let most = if elapsed <= self.length { u64::MAX } else { new.nanos.max(self.at(self.length)) };
            let told = u128::from(self.nanos) + ((u128::from(elapsed) * u128::from(self.rate)) >> BITS);
            u64::try_from(told).unwrap_or(new.nanos).min(most)
        };
        if !usable {
            return Line { start: new.count, nanos: told.max(new.nanos), rate: 0, length: 0 };
        }
        let behind = new.nanos.saturating_sub(told);
        let ahead = told.saturating_sub(new.nanos);
        let (nanos, spread) =
            if behind > GENTLY { (new.nanos, next) } else { (told, next + behind - ahead.min(next / 2)) };
        let length = (u128::from(next) << BITS) / rate;
        Line {
            start: new.count,
            nanos,
            rate: u64::try_from(rate * u128::from(spread) / u128::from(next)).unwrap_or(0).min((1 << BITS) - 1),
            length: u64::try_from(length).unwrap_or(0).min(1 << (63 - BITS)),
        }
    }
}

/// A line that all threads read and now and then one of them replaces.
struct Clock {
    /// Odd while the line is being replaced.
    version: AtomicU64,
    start: AtomicU64,
    nanos: AtomicU64,
    rate: AtomicU64,
    length: AtomicU64,
    laid: Mutex<Laid>,
}

/// What is known to whoever lays the next line.
struct Laid {
    line: Line,
    last: Option<Reading>,
    /// How long the next line is to be.
    next: u64,
}

impl Clock {
    const fn new() -> Clock {
        let line = Line { start: 0, nanos: 0, rate: 0, length: 0 };
        Clock {
            version: AtomicU64::new(0),
            start: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            length: AtomicU64::new(0),
            laid: Mutex::new(Laid { line, last: None, next: SOON }),
        }
    }

    /// The present line; one that cannot be used while it is being replaced.
    #[inline]
    fn line(&self) -> Line {
        let version = self.version.load(Acquire);
        let line = Line {
            start: self.start.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
            rate: self.rate.load(Relaxed),
            length: self.length.load(Relaxed),
        };
        fence(Acquire);
        let whole = version & 1 == 0 && self.version.load(Relaxed) == version;
        if whole { line } else { Line::default() }
    }

    /// Only by whoever has locked `laid`.
    fn replace(&self, line: Line) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.start.store(line.start, Relaxed);
        self.nanos.store(line.nanos, Relaxed);
        self.rate.store(line.rate, Relaxed);
        self.length.store(line.length, Relaxed);
        self.version.store(version + 2, Release);
    }

    /// The line has come to its end, or there is none.
    #[cold]
    fn lay(&self, system: fn() -> u64) -> u64 {
        if !*USABLE.get_or_init(usable) {
            return system();
        }
        let mut laid = self.laid.lock();
        let new = Reading::take(system);
        let elapsed = new.count.wrapping_sub(laid.line.start);
        if elapsed < laid.line.length {
            // Somebody else has laid it meanwhile.
            return laid.line.at(elapsed);
        }
        let Some(last) = laid.last else {
            laid.last = Some(new);
            return new.nanos;
        };
        if new.nanos.saturating_sub(last.nanos) < SOON {
            return new.nanos.max(laid.line.nanos);
        }
        let line = laid.line.after(last, new, laid.next);
        *laid = Laid { line, last: Some(new), next: (laid.next * 2).min(LATER) };
        self.replace(line);
        line.nanos
    }
}

impl Reading {
    /// The narrowest of a few attempts: what comes between the two readings makes them differ.
    fn take(system: fn() -> u64) -> Reading {
        let take = |_| {
            let before = count();
            let nanos = system();
            let width = count().saturating_sub(before);
            (width, Reading { count: before + width / 2, nanos })
        };
        (0..3)
            .map(take)
            .min_by_key(|(width, _)| *width)
            .map_or_else(|| unreachable!("there are three"), |(_, reading)| reading)
    }
}

static USABLE: OnceLock<bool> = OnceLock::new();

/// Whether the processor says that its counter never changes its speed, and the kernel has found no fault with it.
fn usable() -> bool {
    let invariant = __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0;
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    invariant && fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter of this many counts per microsecond, and a clock, both from some beginning.
    fn reading(micros: u64, counts: u64) -> Reading {
        Reading { count: 5_000_000_000 + micros * counts, nanos: 7_000_000_000 + micros * 1_000 }
    }

    fn end(line: Line) -> u64 {
        line.at(line.length)
    }

    #[test]
    fn a_line_goes_at_the_speed_of_the_clock() {
        let line = Line::default().after(reading(0, 2_400), reading(10_000, 2_400), 20_000_000);
        assert_eq!(line.nanos, reading(10_000, 0).nanos);
        assert_eq!(line.length, 48_000_000);
        assert!(end(line).abs_diff(line.nanos + 20_000_000) <= 1);
    }

    #[test]
    fn the_clock_never_goes_back_however_the_counter_drifts() {
        let (mut line, mut last, mut micros, mut counts) = (Line::default(), reading(0, 3_000), 0, 0);
        let mut told = 0;
        for step in 0..2_000u64 {
            micros += 10_000 + step % 7 * 900;
            // Up to 1,000 parts in a million faster, and at once slower again.
            counts += (10_000 + step % 7 * 900) * (30_000 + step % 11 * 3) / 10;
            let new = Reading { count: 5_000_000_000 + counts, nanos: 7_000_000_000 + micros * 1_000 };
            if line.rate > 0 {
                told = told.max(line.at(line.length.min(new.count - line.start)));
            }
            line = line.after(last, new, 10_000_000);
            assert!(line.nanos >= told, "{step}: {} after {told}", line.nanos);
            assert!(line.nanos.abs_diff(new.nanos) < GENTLY, "{step}");
            last = new;
        }
    }

    #[test]
    fn a_clock_that_is_off_a_little_is_brought_back_without_a_jump() {
        for (off, gains) in [(800_000i64, false), (-800_000, true)] {
            let (last, new) = (reading(0, 2_000), reading(1_000_000, 2_000));
            let length = 2_000_000_000;
            let before =
                Line { start: last.count, nanos: last.nanos.saturating_add_signed(off), rate: 1 << 31, length };
            let line = before.after(last, new, 100_000_000);
            assert_eq!(line.nanos, new.nanos.saturating_add_signed(off));
            assert_eq!(line.rate > 1 << 31, gains);
            assert!(end(line).abs_diff(new.nanos + 100_000_000) < 10, "it is where the clock is at its end");
        }
    }

    #[test]
    fn a_machine_that_slept_finds_its_clock_moved_on() {
        let before = Line::default().after(reading(0, 3_000), reading(10_000, 3_000), SOON);
        let mut new = reading(20_000, 3_000);
        new.nanos += 3_600_000_000_000;
        assert_eq!(before.after(reading(19_000, 3_000), new, SOON).nanos, new.nanos);
    }

    #[test]
    fn a_machine_that_slept_while_only_its_counter_went_on_neither_jumps_nor_crawls() {
        let mut line = Line::default().after(reading(0, 3_000), reading(10_000, 3_000), SOON);
        let asleep = 3_600_000_000 * 3_000;
        let awake = |micros| {
            let Reading { count, nanos } = reading(micros, 3_000);
            Reading { count: count + asleep, nanos }
        };
        let (mut told, mut last) = (end(line), reading(10_000, 3_000));
        for step in 2..10 {
            let new = awake(step * 10_000);
            line = line.after(last, new, SOON);
            assert!(line.nanos >= told && line.nanos.abs_diff(new.nanos) <= SOON, "{step}: {line:?} after {told}");
            (told, last) = (end(line), new);
        }
        assert!(end(line).abs_diff(awake(100_000).nanos) < 1_000, "it has caught up: {line:?}");
    }

    #[test]
    fn a_counter_that_was_reset_or_is_too_coarse_is_not_used() {
        let before = Line::default().after(reading(0, 3_000), reading(10_000, 3_000), SOON);
        let reset = Reading { count: 17, ..reading(20_000, 0) };
        assert_eq!(before.after(reading(10_000, 3_000), reset, SOON).length, 0);
        assert_eq!(Line::default().after(reading(0, 24), reading(10_000, 24), SOON).length, 0);
    }

    #[test]
    fn a_reading_lies_between_two_of_the_system_s_clock() {
        let system = || super::super::clock::system().as_nanos();
        let begin = system();
        while system() - begin < 50_000_000 {
            let before = system();
            let now = now(system);
            let after = system();
            assert!(before <= now + GENTLY && now <= after + GENTLY, "{before} {now} {after}");
        }
    }
}
