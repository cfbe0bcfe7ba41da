//! How a limit follows what was seen: one trait, four laws.
//!
//! A law is arithmetic. It gets what was seen in one window of time and gives the next limit; it reads no clock and takes no
//! lock, so each is tested as arithmetic and the lab can race them against the same origin (`herdproof lab run
//! adaptive-limits`).
//!
//! | law | what it goes by | where it fails |
//! |---|---|---|
//! | [`Knee`] (default) | an estimate of the queue, and whether fewer in flight make it shorter | see its own description |
//! | [`Vegas`] | the same estimate, against the fastest it has seen | takes a slower origin for a queue, until it probes |
//! | [`Gradient2`] | latency now against latency over a long time | learns an incident as the new normal |
//! | [`Aimd`] | drops only | fills every queue up to the timeout first |

mod aimd;
mod gradient2;
mod knee;
mod vegas;

use std::time::Duration;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use knee::Knee;
pub use vegas::Vegas;

/// A rule for the next limit; see the [module](self).
pub trait Law: Send {
    /// The limit after a window, from the one before it. What is not finite is ignored, and the result is kept between the
    /// limit's bounds.
    fn next(&mut self, limit: f64, window: &Window) -> f64;
}

/// What was seen in one window of time. Whoever has statistics of their own begins with [`Window::default`], in which nothing was
/// seen, and sets the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Window {
    /// How long it was.
    pub elapsed: Duration,
    /// How many calls worked.
    pub successes: u32,
    /// How many calls the origin refused because of its load.
    pub drops: u32,
    /// How many calls came to nothing after more time than nine of ten of those that worked took.
    pub timeouts: u32,
    /// The time that half of the calls took at most, where those that came to nothing in time count as longer than all that
    /// worked: without them, times would seem to get shorter the more callers give up. Zero if none worked.
    pub median: Duration,
    /// The mean time of those that worked; zero if there were none.
    pub mean: Duration,
    /// How many calls were under way on average.
    pub in_flight: f64,
    /// Whether the limit refused anybody: only then would another limit have made a difference.
    pub binding: bool,
}

impl Window {
    /// Successes in a second.
    pub fn rate(&self) -> f64 {
        f64::from(self.successes) / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The share of the calls that the origin refused.
    pub fn drop_share(&self) -> f64 {
        self.share(self.drops)
    }

    /// The share of the calls that came to nothing in time.
    pub fn timeout_share(&self) -> f64 {
        self.share(self.timeouts)
    }

    fn share(&self, of: u32) -> f64 {
        let all = f64::from(self.successes) + f64::from(self.drops) + f64::from(self.timeouts);
        f64::from(of) / all.max(1.0)
    }

    /// For the laws that make no difference between them.
    fn has_drops(&self) -> bool {
        self.drops > 0 || self.timeouts > 0
    }
}

#[cfg(test)]
mod tests;
