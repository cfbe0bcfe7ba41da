//! TCP Vegas: how many queue, from the fastest call ever seen.

use super::{Law, Window};

/// The fastest is forgotten after this many calls for each that may be under way.
const PROBE: f64 = 30.0;

/// Netflix's `VegasLimit` with its own constants: the queue is estimated as `limit x (1 - fastest / latency)`; below three
/// times the limit's logarithm the limit grows, above six times it shrinks.
#[derive(Clone, Debug, Default)]
pub struct Vegas {
    fastest: f64,
    calls: f64,
}

impl Law for Vegas {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        let log = limit.log10().max(1.0);
        let time = window.mean.as_secs_f64();
        if window.has_drops() {
            return limit - log;
        }
        if time <= 0.0 {
            return limit;
        }
        self.calls += f64::from(window.successes);
        if self.calls > PROBE * limit {
            self.calls = 0.0;
            self.fastest = time;
            return limit;
        }
        if self.fastest <= 0.0 || time < self.fastest {
            self.fastest = time;
            return limit;
        }
        if window.in_flight * 2.0 < limit {
            return limit;
        }
        let queue = (limit * (1.0 - self.fastest / time)).ceil();
        match queue {
            queue if queue <= log => limit + 6.0 * log,
            queue if queue < 3.0 * log => limit + log,
            queue if queue > 6.0 * log => limit - log,
            _ => limit,
        }
    }
}
