//! How many requests are in flight, and how many there were at worst during one request's stay.
//!
//! A request suffers from the largest crowd it was part of, even if that had left again before it was next looked at. So
//! the crests are kept: an arrival that found more requests in flight than any later one. Their heights fall from the
//! oldest to the newest, so there are never more of them than requests at the peak, and finding one is a binary search.

/// Requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    present: u64,
    peak: u64,
    arrived: u64,
    /// In the order of arrival; each strictly lower than the one before.
    crests: Vec<Crest>,
}

/// One request's place in the order of arrival. Given back by [`Crowd::leave`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

#[derive(Debug)]
struct Crest {
    arrival: u64,
    height: u64,
}

impl Crowd {
    pub(crate) fn enter(&mut self) -> Arrival {
        self.arrived += 1;
        self.present += 1;
        self.peak = self.peak.max(self.present);
        let lower = self.crests.iter().rposition(|crest| crest.height > self.present).map_or(0, |last| last + 1);
        self.crests.truncate(lower);
        self.crests.push(Crest { arrival: self.arrived, height: self.present });
        Arrival(self.arrived)
    }

    #[expect(clippy::needless_pass_by_value, reason = "who has left cannot leave again")]
    pub(crate) fn leave(&mut self, arrival: Arrival) {
        debug_assert!(arrival.0 <= self.arrived, "it came from another crowd");
        self.present -= 1;
    }

    /// The most that were in flight at one time since this arrival.
    pub(crate) fn most_since(&self, arrival: &Arrival) -> u64 {
        let older = self.crests.partition_point(|crest| crest.arrival < arrival.0);
        self.crests.get(older).map_or(1, |crest| crest.height)
    }

    /// How many came, ever.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The most that were in flight at one time, ever.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdproof::Sim;

    #[test]
    fn a_crowd_that_came_and_went_between_two_looks_is_still_felt() {
        let mut crowd = Crowd::default();
        let early = crowd.enter();
        let others: Vec<Arrival> = (0..9).map(|_| crowd.enter()).collect();
        for other in others {
            crowd.leave(other);
        }
        let late = crowd.enter();
        assert_eq!((crowd.most_since(&early), crowd.most_since(&late)), (10, 2));
        assert_eq!((crowd.arrived(), crowd.peak()), (11, 10));
    }

    #[test]
    fn crests_agree_with_a_full_record_and_stay_few() {
        let rng = Sim::new(7).env().rng("crowd");
        let mut crowd = Crowd::default();
        let mut record = Vec::new();
        let mut present: Vec<(Arrival, usize)> = Vec::new();
        for _ in 0..5_000 {
            if present.is_empty() || rng.chance(0.51) {
                present.push((crowd.enter(), record.len()));
                record.push(present.len() as u64);
            } else {
                let who = usize::try_from(rng.below(present.len() as u64)).expect("an index");
                crowd.leave(present.swap_remove(who).0);
            }
            if let Some((arrival, place)) = present.first() {
                assert_eq!(Some(crowd.most_since(arrival)), record[*place..].iter().copied().max());
            }
            assert!(crowd.crests.len() as u64 <= crowd.peak());
        }
    }
}
