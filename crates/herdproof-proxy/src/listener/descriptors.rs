//! Room for everybody's sockets.
//!
//! Each client needs a descriptor, and many shells allow 1,024. A process may raise its own limit up to the hard one; if
//! even that is too low, fewer clients who are served are better than some who fail for a reason that nobody sees.

/// Raises the limit of open files to `needed` if it is lower and may be raised; gives what holds now.
#[cfg(unix)]
pub fn raise_descriptors(needed: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let soft = current.unwrap_or(u64::MAX);
    let wanted = needed.min(maximum.unwrap_or(u64::MAX));
    let raised = soft < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    if raised { wanted } else { soft }
}

/// Elsewhere sockets are not counted against such a limit.
#[cfg(not(unix))]
pub fn raise_descriptors(_needed: u64) -> u64 {
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_lowered() {
        let now = raise_descriptors(0);
        assert_eq!(raise_descriptors(1), now);
        assert!(raise_descriptors(now) >= now);
    }
}
