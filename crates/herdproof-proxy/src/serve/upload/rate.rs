//! How fast a client sends a body, counting only the time in which the client was waited for.
//!
//! An origin that takes a body slowly makes its client slow as well. So a window is five seconds of waiting for the client, not
//! five seconds by the clock: while the origin is waited for, no time passes here.

use std::time::Duration;

use herdproof::Tick;

/// How long a client is waited for until its rate is known.
pub(super) const WINDOW: Duration = Duration::from_secs(5);

/// Measures one upload.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// In this window.
    bytes: u64,
    waited: Duration,
    /// Since when the client is waited for, if it is.
    since: Option<Tick>,
    /// Bytes per second in the last window that was full.
    rate: Option<u64>,
}

impl Meter {
    /// The next bytes are wanted, and have not come.
    pub(super) fn waits(&mut self, now: Tick) {
        self.since.get_or_insert(now);
    }

    /// So many bytes came.
    pub(super) fn came(&mut self, bytes: usize, now: Tick) {
        self.count(now);
        self.since = None;
        self.bytes += bytes as u64;
    }

    /// Bytes per second, once a window was full.
    pub(super) fn rate(&mut self, now: Tick) -> Option<u64> {
        self.count(now);
        self.rate
    }

    fn count(&mut self, now: Tick) {
        if let Some(since) = &mut self.since {
            self.waited += now - *since;
            *since = now;
        }
        if self.waited >= WINDOW {
            let rate = u128::from(self.bytes) * 1_000_000_000 / self.waited.as_nanos();
            self.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX));
            (self.bytes, self.waited) = (0, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Tick {
        Tick::ZERO + SEC * seconds
    }

    #[test]
    fn a_client_that_trickles_is_measured_as_slow_and_one_that_sends_is_not() {
        for bytes in [0, 1, 600, 100_000] {
            let mut meter = Meter::default();
            for second in 0..5 {
                meter.waits(at(second));
                assert_eq!(meter.rate(at(second)), None, "nobody is judged before a window is full");
                meter.came(bytes, at(second + 1));
            }
            assert_eq!(meter.rate(at(5)), Some(if bytes == 0 { 0 } else { bytes as u64 * 4 / 5 }), "{bytes}");
        }
    }

    #[test]
    fn an_origin_that_takes_a_body_slowly_makes_no_client_slow() {
        let mut meter = Meter::default();
        for minute in 0..100 {
            // The client answers within a tenth of a second, and the origin takes a minute for each piece.
            meter.waits(at(minute * 60));
            meter.came(16 << 10, at(minute * 60) + SEC / 10);
        }
        assert!(meter.rate(at(6000)).is_some_and(|rate| rate > 100_000));
    }

    #[test]
    fn a_burst_is_no_excuse_for_what_comes_after_it() {
        let mut meter = Meter::default();
        meter.came(100 << 20, at(0));
        meter.waits(at(0));
        assert!(meter.rate(at(5)).is_some_and(|rate| rate > 1 << 20));
        assert_eq!(meter.rate(at(10)), Some(0));
    }
}
