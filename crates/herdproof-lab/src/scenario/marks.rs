//! When each of many did something, again and again.

use std::{sync::Arc, time::Duration};

use herdproof::Tick;
use parking_lot::Mutex;

use crate::timeline::Timeline;

/// Everybody's instants, in order. Clones share.
#[derive(Clone)]
pub(super) struct Marks(Arc<Mutex<Vec<Vec<Tick>>>>);

impl Marks {
    pub(super) fn new(people: u64) -> Marks {
        Marks(Arc::new(Mutex::new((0..people).map(|_| Vec::new()).collect())))
    }

    /// Marks an instant of somebody's, and says how many there were before it.
    pub(super) fn mark(&self, who: u64, at: Tick) -> u32 {
        let mut people = self.0.lock();
        let person = &mut people[usize::try_from(who).expect("an index")];
        person.push(at);
        u32::try_from(person.len() - 1).unwrap_or(u32::MAX)
    }

    /// Everybody's instants, one person after another.
    pub(super) fn each<T>(&self, person: impl FnMut(&Vec<Tick>) -> T) -> Vec<T> {
        self.0.lock().iter().map(person).collect()
    }

    pub(super) fn timeline(&self, bin: Duration) -> Timeline {
        self.timeline_until(Duration::MAX, bin)
    }

    /// What happened up to then.
    pub(super) fn timeline_until(&self, end: Duration, bin: Duration) -> Timeline {
        let mut timeline = Timeline::new(bin);
        let end = Tick::ZERO + end;
        self.0.lock().iter().flatten().filter(|at| **at < end).for_each(|at| timeline.record(*at));
        timeline
    }

    /// How much in step everybody's `k`th instant (from one) is, as phases of a period: 1 for one instant, 0 for all over it.
    /// Those who had fewer do not count.
    pub(super) fn synchrony(&self, k: usize, period: Duration) -> f64 {
        let (mut x, mut y, mut n) = (0.0, 0.0, 0.0);
        for at in self.0.lock().iter().filter_map(|person| person.get(k - 1)) {
            let (sin, cos) =
                (std::f64::consts::TAU * (*at - Tick::ZERO).as_secs_f64() / period.as_secs_f64()).sin_cos();
            (x, y, n) = (x + cos, y + sin, n + 1.0);
        }
        f64::hypot(x, y) / n
    }
}
