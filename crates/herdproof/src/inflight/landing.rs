//! Landing before the load is over.

use std::fmt;

use super::{lead::FlightRef, outcome::Ending, shared::Removal};

/// The right to land a flight early, given to the load by [`Group::run_landing`](crate::flight::Group::run_landing).
#[must_use = "a load that ends without landing gives its callers nothing"]
pub struct Landing<V: Clone, E>(FlightRef<V, E>);

/// While this is kept, newcomers get the value that landed. Dropping it lets the next one begin a load of its own.
#[must_use = "dropping it at once means that nobody else gets the value"]
pub struct Linger<V: Clone, E>(FlightRef<V, E>);

impl<V: Clone, E> Landing<V, E> {
    pub(super) fn new(flight: FlightRef<V, E>) -> Landing<V, E> {
        Landing(flight)
    }

    /// How many callers wait for this flight at present. A load that waits before it begins may do another thing for many than
    /// for one.
    pub fn aboard(&self) -> u32 {
        self.0.shared.callers()
    }

    /// Gives everybody aboard this value, now.
    pub fn land(self, value: V) -> Linger<V, E> {
        let Landing(flight) = self;
        // Before anybody is woken: should that panic, the flight leaves the table with this.
        let linger = Linger(flight);
        linger.0.shared.land(Ending::Value(value));
        linger
    }

    /// Gives everybody aboard this value, and nobody else: who asks after that begins anew, also if it was one of them.
    pub fn land_and_end(self, value: V) {
        let Landing(flight) = self;
        flight.end(Ending::Value(value));
    }

    /// As [`Linger::unless_forgotten`], before anybody aboard has the value.
    pub fn unless_forgotten(&self, act: impl FnOnce()) -> bool {
        self.0.unless_forgotten(act)
    }
}

impl<V: Clone, E> Linger<V, E> {
    /// Acts unless the flight was [forgotten](crate::flight::Group::forget), and so that it cannot be forgotten meanwhile; says whether
    /// it did. Keeping what was loaded in here, and forgetting before it is taken away, means that nothing out of date is kept.
    ///
    /// `act` must be short, and must not come back to the group.
    pub fn unless_forgotten(&self, act: impl FnOnce()) -> bool {
        self.0.unless_forgotten(act)
    }
}

impl<V: Clone, E> Drop for Linger<V, E> {
    fn drop(&mut self) {
        self.0.home.remove(self.0.shared.place, Removal::Landed);
    }
}

impl<V: Clone, E> fmt::Debug for Landing<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Landing")
    }
}

impl<V: Clone, E> fmt::Debug for Linger<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Linger")
    }
}
