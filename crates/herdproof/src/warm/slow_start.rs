//! How much a new endpoint is given.

use std::time::Duration;

/// Below this an endpoint may never be picked, and a picker that looks at weights only when it picks never learns that it
/// has become warm.
const LEAST: f64 = 0.01;

/// A weight that grows with age: `max(least, (max(1 s, age) / window)^(1 / aggression))`, and 1 from the window on.
///
/// Age is the time since the endpoint first passed a health check, or since it came back after having been ejected.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct SlowStart {
    window: Duration,
    aggression: f64,
    least: f64,
}

impl Default for SlowStart {
    fn default() -> SlowStart {
        SlowStart::over(Duration::from_secs(30))
    }
}

impl SlowStart {
    /// Over this long, in a straight line from a tenth.
    pub fn over(window: Duration) -> SlowStart {
        SlowStart { window, aggression: 1.0, least: 0.1 }
    }

    /// How the weight grows: 1 in a straight line, more quickly at first the larger it is, more slowly below 1. From 0.1
    /// to 10; what is not a number counts as 1.
    pub fn aggression(mut self, aggression: f64) -> SlowStart {
        self.aggression = if aggression.is_nan() { 1.0 } else { aggression.clamp(0.1, 10.0) };
        self
    }

    /// What an endpoint is given from the beginning; 0.1 unless told otherwise, and 0.01 at least, as what gets nothing
    /// does not get warm.
    pub fn least(mut self, weight: f64) -> SlowStart {
        self.least = if weight.is_nan() { LEAST } else { weight.clamp(LEAST, 1.0) };
        self
    }

    /// The weight at this age, as a share of the full one.
    pub fn weight(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let age = age.max(Duration::from_secs(1)).as_secs_f64() / self.window.as_secs_f64();
        age.powf(1.0 / self.aggression).clamp(self.least, 1.0)
    }

    /// The age at which the weight comes to this much.
    pub fn age(&self, weight: f64) -> Duration {
        if weight <= self.weight(Duration::ZERO) {
            return Duration::ZERO;
        }
        self.window.mul_f64(weight.min(1.0).powf(self.aggression).min(1.0)).min(self.window)
    }

    /// How much of its full load a group of these ages can take: the mean weight, and 1 if there is nobody.
    pub fn group(&self, ages: impl IntoIterator<Item = Duration>) -> f64 {
        let (sum, n) = ages.into_iter().fold((0.0, 0.0), |(sum, n), age| (sum + self.weight(age), n + 1.0));
        if n == 0.0 { 1.0 } else { sum / n }
    }

    /// What is left of a group's concurrency limit while its members are of these ages; one at least.
    ///
    /// Weights only say who gets how much of what comes. After a deploy or an outage everybody is new, all weights are the
    /// same, and each cold member would get its full share.
    pub fn limit(&self, full: u32, ages: impl IntoIterator<Item = Duration>) -> u32 {
        let limit = f64::from(full) * self.group(ages);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and `full`")]
        let limit = limit.round() as u32;
        limit.max(1)
    }
}
