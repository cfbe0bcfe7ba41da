//! A response that more than one request may have.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
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
    /// How many ask the origin about it, and have not heard of it.
    asking: AtomicU32,
    /// Who waited for one of them has had enough. Counts only while somebody asks.
    slow: AtomicBool,
    /// Somebody has asked for it since it was last looked at by who makes room.
    wanted: AtomicBool,
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
        let [claimed_until, rests_until] = [AtomicU64::new(0), AtomicU64::new(0)];
        let [slow, wanted] = [AtomicBool::new(false), AtomicBool::new(false)];
        Object { head, life, content, claimed_until, rests_until, asking: AtomicU32::new(0), slow, wanted }
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

    /// Somebody has asked for it.
    pub(crate) fn want(&self) {
        // Most often it is known: a look is cheaper than a word, which all threads would have to hear.
        if !self.wanted.load(Relaxed) {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Whether somebody has asked for it since this was asked last.
    pub(crate) fn was_wanted(&self) -> bool {
        self.wanted.swap(false, Relaxed)
    }

    /// Whether it is this caller who is to refresh it. For a while nobody else is.
    pub(crate) fn claims_refresh(&self, now: Tick) -> bool {
        let until = self.claimed_until.load(Relaxed);
        let next = (now + BEGUN).as_nanos();
        !self.is_resting(now)
            && !self.is_slow()
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

    /// Whether nobody is to wait for the origin's word on it: it is being asked, and that has taken too long for somebody.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Relaxed) && self.asking.load(Relaxed) > 0
    }

    /// Somebody has waited for the origin's word in vain. Those who come next need not, until it answers or fails.
    pub(crate) fn slow(&self) {
        self.slow.store(true, Relaxed);
    }

    /// The last refresh has failed: no other is to be begun before this tick.
    pub(crate) fn rest(&self, until: Tick) {
        self.rests_until.fetch_max(until.as_nanos(), Relaxed);
    }
}

/// The origin is being asked about an object, until this is dropped.
#[derive(Debug)]
pub(crate) struct Asking(Arc<Object>);

impl Asking {
    pub(crate) fn about(object: &Arc<Object>) -> Asking {
        if object.asking.fetch_add(1, Relaxed) == 0 {
            // That was another time.
            object.slow.store(false, Relaxed);
        }
        Asking(Arc::clone(object))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Relaxed);
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
