//! Not more than the origin can take.
//!
//! Every origin has a rate and a number at once beyond which it only gets slower, and a herd is what finds them. Limits keep
//! the crowd outside of it, where waiting costs nothing. All are [`Gate`](crate::gate::Gate)s.
//!
//! | | limits | who does not fit |
//! |---|---|---|
//! | [`RateLimit`] | how many in a second, evenly | is told when, or waits in a slot of its own |
//! | [`KeyedRate`] | the same, for each client, host or tenant | the same |
//! | [`Bulkhead`] | how many at once, a fixed number | waits in a line that has an end |
//! | [`AdaptiveLimit`] | how many at once, a number that it finds by itself | is refused, and told when |

mod adaptive;
mod bulkhead;
mod gcra;
mod keyed;
pub mod law;
mod promise;
mod rate;

pub use adaptive::{AdaptiveBuilder, AdaptiveLimit, AdaptivePermit};
pub use bulkhead::{Bulkhead, BulkheadPermit};
pub use keyed::{KeyedPlace, KeyedRate, OfKey};
pub use rate::{Rate, RateLimit, RatePermit, RatePlace};
