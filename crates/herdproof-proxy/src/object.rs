//! A response that more than one request may have.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use herdproof::Tick;

use crate::{head::Head, log::Log, policy::Life};

/// Bodies up to this size are copied into one piece of memory with their head when they are kept: a hit is one write then, and
/// nothing else is kept alive with them.
const COPIED: usize = 1 << 20;
/// What an object takes beside its bytes: itself, its key, its place in the store.
const OVERHEAD: u64 = 256;
/// After one has begun a refresh, others do not even try for this long.
const BEGUN: Duration = Duration::from_secs(1);

/// A response that more than one request may have: kept, or still arriving.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) head: Head,
    pub(crate) life: Life,
    pub(crate) content: Content,
    /// Somebody has begun a refresh; nobody else does before this tick.
    claimed_until: AtomicU64,
    /// The last refresh has failed; the origin is left alone until this tick.
    rests_until: AtomicU64,
}

/// Where the body is.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// In one piece.
    Whole(Bytes),
    /// In several, and how long they are together.
    Parts(Arc<[Bytes]>, u64),
    /// On its way. Its length, if that was said.
    Arriving(Arc<Log>, Option<u64>),
}

impl Object {
    pub(crate) fn new(head: Head, life: Life, content: Content) -> Object {
        Object { head, life, content, claimed_until: AtomicU64::new(0), rests_until: AtomicU64::new(0) }
    }

    /// One whose body has come, to be kept.
    pub(crate) fn kept(head: &Head, life: Life, chunks: Vec<Bytes>) -> Object {
        let len = chunks.iter().map(Bytes::len).sum::<usize>();
        if len <= COPIED {
            let (head, body) = head.joined(&chunks);
            return Object::new(head, life, Content::Whole(body));
        }
        Object::new(head.joined(&[]).0, life, Content::Parts(chunks.into(), len as u64))
    }

    /// How long the body is, if that is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.content {
            Content::Whole(body) => Some(body.len() as u64),
            Content::Parts(_, len) => Some(*len),
            Content::Arriving(_, len) => *len,
        }
    }

    /// What it takes of the memory for what is kept.
    pub(crate) fn weight(&self) -> u64 {
        self.len().unwrap_or(0) + self.head.len() as u64 + OVERHEAD
    }

    /// Whether it is this caller who is to refresh it. For a while nobody else is.
    pub(crate) fn claims_refresh(&self, now: Tick) -> bool {
        let until = self.claimed_until.load(Relaxed);
        let next = (now + BEGUN).as_nanos();
        !self.is_resting(now)
            && now.as_nanos() >= until
            && self.claimed_until.compare_exchange(until, next, Relaxed, Relaxed).is_ok()
    }

    /// Whether it can still be read from its first byte on.
    pub(crate) fn has_beginning(&self) -> bool {
        match &self.content {
            Content::Whole(_) | Content::Parts(..) => true,
            Content::Arriving(log, _) => log.has_beginning(),
        }
    }

    /// Whether nobody is to ask the origin about it now, because that has just failed.
    pub(crate) fn is_resting(&self, now: Tick) -> bool {
        now.as_nanos() < self.rests_until.load(Relaxed)
    }

    /// The last refresh has failed: no other is to be begun before this tick.
    pub(crate) fn rest(&self, until: Tick) {
        self.rests_until.fetch_max(until.as_nanos(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::policy::{Draws, Route, Terms, Times};

    fn object() -> Object {
        let terms = Terms::read(StatusCode::OK, &HeaderMap::new());
        let times = Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH };
        let life = Life::begin(&terms, &Route::default(), &times, Draws::default());
        Object::new(Head::new(StatusCode::OK, &HeaderMap::new()), life, Content::Whole(Bytes::new()))
    }

    #[test]
    fn of_a_crowd_one_refreshes_and_after_a_while_another_may() {
        let object = object();
        let at = |millis| Tick::ZERO + Duration::from_millis(millis);
        assert!(object.claims_refresh(at(0)));
        assert!(!object.claims_refresh(at(0)) && !object.claims_refresh(at(999)));
        assert!(object.claims_refresh(at(1_000)) && !object.claims_refresh(at(1_000)));
        object.rest(at(5_000));
        assert!(!object.claims_refresh(at(4_999)) && object.claims_refresh(at(5_000)));
    }
}
