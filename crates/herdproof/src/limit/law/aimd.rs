//! Add one while it goes well, multiply when something is dropped.

use super::{Law, Window};

/// Additive increase, multiplicative decrease, by drops alone. As in Netflix's concurrency-limits: one more while the limit is
/// at least half used, nine tenths after a drop.
#[derive(Clone, Debug, Default)]
pub struct Aimd(());

impl Law for Aimd {
    fn next(&mut self, limit: f64, window: &Window) -> f64 {
        if window.has_drops() {
            limit * 0.9
        } else if window.in_flight * 2.0 >= limit {
            limit + 1.0
        } else {
            limit
        }
    }
}
