//! What a connection shows of itself, and who is to be sent away.
//!
//! A timer that is set for every request costs more than the request's own look-up. So a connection only counts what it
//! reads and writes, and now and then somebody looks whether it got on since the last look: the client that sends its
//! head a byte at a time, the one that reads nothing of its answer, the one that says nothing at all.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use herdproof::Tick;

/// How much patience there is with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// For the whole head of a request, from its first byte.
    pub(super) head: Duration,
    /// For the next request to begin.
    pub(super) idle: Duration,
    /// For a request's body or an answer that goes at less than [`rate`](Patience::rate).
    pub(super) stall: Duration,
    /// Bytes per second.
    pub(super) rate: u64,
}

/// Why a connection was ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// No request came.
    Idle,
    /// The head of a request took too long.
    SlowHead,
    /// The body of a request came too slowly.
    SlowBody,
    /// The answer was read too slowly.
    SlowReader,
    /// It was read too slowly for the memory that it took.
    Memory,
    /// It was read too slowly for the seat at the origin that it took.
    Seat,
    /// The server stopped, and the time for that was over.
    Stopped,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Head,
    /// It is for us to do something.
    Serving,
    Receiving,
    Sending,
}

/// Counted by the connection's own task, with plain loads and stores: there is one writer. Nothing is decided here.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    read: AtomicU64,
    written: AtomicU64,
    requests: AtomicU64,
    /// `read` when the last answer was done: what was read since belongs to the next head.
    settled: AtomicU64,
    /// From a request's head to the last byte of its answer that is ours to give.
    busy: AtomicBool,
    /// The body of a request is wanted and has not come.
    starved: AtomicBool,
    /// The client's side takes no more bytes.
    blocked: AtomicBool,
}

/// A [`Pulse`] at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    read: u64,
    written: u64,
    requests: u64,
    settled: u64,
    busy: bool,
    starved: bool,
    blocked: bool,
}

/// What was seen of a connection at the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    phase: Phase,
    requests: u64,
    moved: u64,
    looked: Tick,
    /// Since when it does not get on.
    since: Tick,
}

impl Pulse {
    #[inline]
    pub(super) fn read(&self, bytes: usize) {
        self.read.store(self.read.load(Relaxed) + bytes as u64, Relaxed);
    }

    #[inline]
    pub(super) fn written(&self, bytes: usize) {
        self.written.store(self.written.load(Relaxed) + bytes as u64, Relaxed);
        if self.blocked.load(Relaxed) {
            self.blocked.store(false, Relaxed);
        }
    }

    #[inline]
    pub(super) fn blocked(&self) {
        self.blocked.store(true, Relaxed);
    }

    pub(super) fn starved(&self, starved: bool) {
        self.starved.store(starved, Relaxed);
    }

    #[inline]
    pub(super) fn begin(&self) {
        self.requests.store(self.requests.load(Relaxed) + 1, Relaxed);
        self.busy.store(true, Relaxed);
    }

    /// `busy` is written last: who sees that it is over sees the rest too.
    #[inline]
    pub(super) fn end(&self) {
        self.settled.store(self.read.load(Relaxed), Relaxed);
        self.busy.store(false, Release);
    }

    /// How many bytes were written, and whether the client takes no more.
    pub(super) fn progress(&self) -> (u64, bool) {
        (self.written.load(Relaxed), self.blocked.load(Relaxed))
    }

    /// How many requests have begun.
    #[inline]
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// How many requests have begun, if none is under way.
    #[inline]
    pub(super) fn begun(&self) -> Option<u64> {
        (!self.busy.load(Acquire)).then(|| self.requests())
    }

    /// Whether nothing is under way: no request, no part of one, and nothing of an answer.
    pub(super) fn is_settled(&self) -> bool {
        !self.busy.load(Acquire) && !self.blocked.load(Relaxed) && self.read.load(Relaxed) <= self.settled.load(Relaxed)
    }

    pub(super) fn signs(&self) -> Signs {
        Signs {
            busy: self.busy.load(Acquire),
            read: self.read.load(Relaxed),
            written: self.written.load(Relaxed),
            requests: self.requests.load(Relaxed),
            settled: self.settled.load(Relaxed),
            starved: self.starved.load(Relaxed),
            blocked: self.blocked.load(Relaxed),
        }
    }
}

impl Signs {
    fn phase(&self) -> Phase {
        match self {
            Signs { blocked: true, .. } => Phase::Sending,
            Signs { busy: true, starved: true, .. } => Phase::Receiving,
            Signs { busy: true, .. } => Phase::Serving,
            Signs { read, settled, .. } if read > settled => Phase::Head,
            _ => Phase::Idle,
        }
    }
}

impl Patience {
    /// How long after one look the next is due: a limit is held to within that time. Several seconds with the limits
    /// that anybody has in practice.
    pub(super) fn look(&self) -> Duration {
        let shortest = self.head.min(self.idle).min(self.stall);
        (shortest / 2).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }

    fn with(&self, phase: Phase) -> Option<(Duration, Ended)> {
        match phase {
            Phase::Idle => Some((self.idle, Ended::Idle)),
            Phase::Head => Some((self.head, Ended::SlowHead)),
            Phase::Receiving => Some((self.stall, Ended::SlowBody)),
            Phase::Sending => Some((self.stall, Ended::SlowReader)),
            Phase::Serving => None,
        }
    }

    /// Whether this many bytes in this time are no stall.
    fn is_enough(&self, bytes: u64, time: Duration) -> bool {
        bytes > 0 && u128::from(bytes) * 1_000_000_000 >= u128::from(self.rate) * time.as_nanos()
    }
}

impl Watch {
    pub(super) fn new(now: Tick) -> Watch {
        Watch { looked: now, since: now, ..Watch::default() }
    }

    /// Whether patience is over, now that these signs are seen.
    pub(super) fn look(&mut self, signs: &Signs, now: Tick, patience: &Patience) -> Option<Ended> {
        let phase = signs.phase();
        let moved = match phase {
            Phase::Receiving => signs.read,
            Phase::Sending => signs.written,
            Phase::Idle | Phase::Head | Phase::Serving => 0,
        };
        let same = phase == self.phase && signs.requests == self.requests;
        let gets_on = !same || patience.is_enough(moved - self.moved.min(moved), now - self.looked);
        if gets_on {
            self.since = now;
        }
        *self = Watch { phase, requests: signs.requests, moved, looked: now, since: self.since };
        let (limit, ended) = patience.with(phase)?;
        (now - self.since >= limit).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);
    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        stall: Duration::from_secs(30),
        rate: 500,
    };

    /// Acts on a connection before each look, and gives when it was ended, and why.
    fn watched(seconds: u64, mut act: impl FnMut(u64, &Pulse)) -> Option<(u64, Ended)> {
        let pulse = Pulse::default();
        let mut watch = Watch::new(Tick::ZERO);
        let look = PATIENCE.look().as_secs();
        for second in 0..seconds {
            act(second, &pulse);
            if second % look == look - 1 {
                let now = Tick::ZERO + SEC * u32::try_from(second + 1).unwrap();
                if let Some(ended) = watch.look(&pulse.signs(), now, &PATIENCE) {
                    return Some((second + 1, ended));
                }
            }
        }
        None
    }

    #[test]
    fn a_head_that_drips_is_ended_however_steadily_it_drips() {
        assert_eq!(watched(1000, |_, pulse| pulse.read(1)), Some((15, Ended::SlowHead)));
        let drip_later = |second, pulse: &Pulse| {
            if second == 0 {
                pulse.read(100);
                pulse.begin();
                pulse.end();
            } else if second >= 20 {
                pulse.read(1);
            }
        };
        assert_eq!(watched(1000, drip_later), Some((35, Ended::SlowHead)));
    }

    #[test]
    fn a_connection_that_says_nothing_is_ended_when_it_was_idle_for_long_enough() {
        assert_eq!(watched(1000, |_, _| {}), Some((60, Ended::Idle)));
    }

    #[test]
    fn requests_in_quick_succession_are_never_taken_for_one_slow_head() {
        let busy = |_, pulse: &Pulse| {
            pulse.read(50);
            pulse.begin();
            pulse.written(10);
            pulse.end();
            // The first part of the next one's head is always there when somebody looks.
            pulse.read(50);
        };
        assert_eq!(watched(10_000, busy), None);
    }

    #[test]
    fn a_client_that_waits_for_us_may_wait_for_as_long_as_we_take() {
        let waits = |second, pulse: &Pulse| {
            if second == 0 {
                pulse.read(100);
                pulse.begin();
            }
        };
        assert_eq!(watched(100_000, waits), None);
    }

    #[test]
    fn who_reads_nothing_of_its_answer_is_ended_and_who_reads_slowly_but_steadily_is_not() {
        let send = |rate: usize| {
            move |second, pulse: &Pulse| {
                if second == 0 {
                    pulse.read(100);
                    pulse.begin();
                }
                pulse.written(rate);
                pulse.blocked();
            }
        };
        assert_eq!(watched(1000, send(0)), Some((35, Ended::SlowReader)));
        assert_eq!(watched(1000, send(1)), Some((35, Ended::SlowReader)));
        assert_eq!(watched(100_000, send(500)), None);
        // A large window opens now and then.
        let in_steps = |second, pulse: &Pulse| {
            if second == 0 {
                pulse.begin();
            }
            if second % 25 == 0 {
                pulse.written(64 << 10);
            }
            pulse.blocked();
        };
        assert_eq!(watched(100_000, in_steps), None);
    }

    #[test]
    fn a_body_that_drips_is_ended_and_one_that_waits_for_the_origin_is_not() {
        let upload = |rate: usize, starved: bool| {
            move |second, pulse: &Pulse| {
                if second == 0 {
                    pulse.begin();
                }
                pulse.read(rate);
                pulse.starved(starved);
            }
        };
        assert_eq!(watched(1000, upload(1, true)), Some((35, Ended::SlowBody)));
        assert_eq!(watched(100_000, upload(1000, true)), None);
        assert_eq!(watched(100_000, upload(0, false)), None);
    }

    #[test]
    fn a_limit_is_held_to_within_one_look_whatever_the_limits_are() {
        for (head, look) in [(10 * SEC, 5 * SEC), (SEC, SEC / 2), (Duration::ZERO, Duration::from_millis(20))] {
            assert_eq!(Patience { head, ..PATIENCE }.look(), look);
        }
    }
}
