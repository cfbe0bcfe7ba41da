//! A place of its own for every instance, that needs no memory and no coordination.

use std::time::Duration;

use crate::env::within;

/// A stable place on the dial: where in a period an instance does a job.
///
/// It is a hash of both names, so it survives restarts, and two jobs of one instance do not meet. The hash is fixed:
/// FNV-1a (64 bits) over the instance, the byte `0xff` and the job, then the finalizer of `SplitMix64`, because the upper
/// bits of FNV-1a alone are poor for short names. It will not change: a fleet in which every second instance runs a newer
/// version of this library must not close ranks.
///
/// ```
/// use std::time::Duration;
/// use herdproof::schedule::Splay;
///
/// let hour = Duration::from_secs(3600);
/// assert_eq!(Splay::of("web-17", "report").offset(hour).as_secs(), 2078);
/// assert_eq!(Splay::of("web-18", "report").offset(hour).as_secs(), 3589);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Splay(u64);

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl Splay {
    /// The place of this instance for this job. An instance is whatever tells the members of a fleet apart and survives a
    /// restart: a host name, an ordinal, a volume.
    pub fn of(instance: &str, job: &str) -> Splay {
        // No UTF-8 contains the byte between the two, so ("ab", "c") and ("a", "bc") differ.
        let bytes = instance.bytes().chain([0xff]).chain(job.bytes());
        let fnv = bytes.fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        let x = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Splay(x ^ (x >> 31))
    }

    /// The place as an offset into a period: from zero up to, but not including, its end.
    pub fn offset(self, period: Duration) -> Duration {
        within(period, self.0)
    }

    /// The place as a number from 0 up to, but not including, 1.
    pub fn unit(self) -> f64 {
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
