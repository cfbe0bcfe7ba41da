//! Latency now against latency over a long time.

use super::{Law, Window};

/// How many windows the long average goes over.
const LONG: f64 = 600.0;
/// A plain average until there are this many.
const WARM_UP: f64 = 10.0;
/// How much longer than over a long time calls may take.
const TOLERANCE: f64 = 1.5;
/// How many may queue.
const QUEUE: f64 = 4.0;
const SMOOTHING: f64 = 0.2;

/// Netflix's `Gradient2Limit` with its own constants: the limit shrinks by the ratio of the long average of latency to the
/// present one, and grows by a small queue.
#[derive(Clone, Debug, Default)]
pub struct Gradient2 {
    long: f64,
    windows: f64,
}

impl Law for Gradient2 {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        let short = window.mean.as_secs_f64();
        if short <= 0.0 {
            return limit;
        }
        self.windows += 1.0;
        let weight = if self.windows <= WARM_UP { 1.0 / self.windows } else { 2.0 / (LONG + 1.0) };
        self.long += (short - self.long) * weight;
        // After a long time of high load, latency has fallen: the average follows faster.
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if window.in_flight < limit / 2.0 {
            return limit;
        }
        let gradient = (TOLERANCE * self.long / short).clamp(0.5, 1.0);
        limit * (1.0 - SMOOTHING) + (limit * gradient + QUEUE) * SMOOTHING
    }
}
