//! Room for everybody's sockets.
//!
//! Both ends of every connection are ours, so a herd of 800 needs 1,600 descriptors, and many shells allow 1,024. A
//! process may raise its own limit up to the hard one; if even that is too low, a smaller herd that is said to be smaller
//! is better than one in which some clients fail for a reason that has nothing to do with herds.

use herdproof_proxy::listener::raise_descriptors;

/// A client's socket, and the server's for it.
const PER_CLIENT: u64 = 2;
/// Standard streams, the runtime's own, the listeners, the edge's connection to the origin, and what was inherited.
const SPARE: u64 = 32;

/// How many of these clients there are descriptors for, after the limit was raised as far as needed and allowed.
pub fn clients_that_fit(asked: u32) -> u32 {
    let room = raise_descriptors(u64::from(asked) * PER_CLIENT + SPARE).saturating_sub(SPARE) / PER_CLIENT;
    u32::try_from(room).unwrap_or(u32::MAX).min(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_added_to_a_small_herd() {
        assert_eq!((clients_that_fit(0), clients_that_fit(1)), (0, 1));
    }
}
