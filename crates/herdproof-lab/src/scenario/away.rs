//! Who was kept away for a while and is let in again: those who come back together are a herd.

use std::time::Duration;

use herdproof::Tick;

/// For how long after it was kept away somebody counts as one who comes back.
const SOON: Duration = Duration::from_secs(5);

/// When somebody was kept away, and how often it came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Away {
    last: Option<Tick>,
    waits: bool,
    returns: u32,
}

impl Away {
    pub(super) fn kept_away(&mut self, now: Tick) {
        self.last = Some(now);
        self.waits = true;
    }

    /// How often it had come back before, if this is one of its returns.
    pub(super) fn let_in(&mut self, now: Tick) -> Option<u32> {
        self.returns += u32::from(std::mem::take(&mut self.waits));
        self.last.filter(|last| now - *last <= SOON).map(|_| self.returns - 1)
    }
}
