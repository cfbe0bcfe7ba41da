//! How much was shared: whether a key is too fine, too coarse, or right.

/// What a [`Group`](crate::flight::Group) has done so far.
///
/// A key that is too fine (a timestamp in it, a user's id where the answer is the same for all) shows as flights that
/// nobody ever joins. One that is too coarse shows as more joins than callers could mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Loads that were begun.
    pub flights: u64,
    /// Callers who shared a load that another had begun.
    pub joins: u64,
    /// Flights that ended without anybody joining.
    pub unshared: u64,
    /// The most followers that one flight had.
    pub largest: u64,
    /// Callers refused because as many were waiting as may.
    pub overloaded: u64,
    /// Flights given up because the last caller left.
    pub abandoned: u64,
    /// Keys in the air now.
    pub in_air: u64,
}

impl Stats {
    /// Joins per flight; zero before the first.
    pub fn joins_per_flight(&self) -> f64 {
        if self.flights == 0 { 0.0 } else { self.joins as f64 / self.flights as f64 }
    }

    /// A flight has left the table.
    pub(super) fn ended(&mut self, followers: u64) {
        self.unshared += u64::from(followers == 0);
        self.largest = self.largest.max(followers);
    }
}

impl std::iter::Sum for Stats {
    fn sum<I: Iterator<Item = Stats>>(parts: I) -> Stats {
        parts.fold(Stats::default(), |sum, part| Stats {
            flights: sum.flights + part.flights,
            joins: sum.joins + part.joins,
            unshared: sum.unshared + part.unshared,
            largest: sum.largest.max(part.largest),
            overloaded: sum.overloaded + part.overloaded,
            abandoned: sum.abandoned + part.abandoned,
            in_air: sum.in_air + part.in_air,
        })
    }
}
