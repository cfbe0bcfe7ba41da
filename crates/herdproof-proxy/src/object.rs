//! A response that more than one request may have.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use herdproof::Tick;
use http::header::{ETAG, LAST_MODIFIED};

use crate::{
    detail::Detail,
    head::Head,
    log::Log,
    memory::{self, Footprint, Stored},
    policy::Life,
};

/// Bodies up to this size are copied into one piece of memory with their head when they are kept: a hit is one write then, and
/// nothing else is kept alive with them.
const COPIED: usize = 1 << 20;
/// Pieces of a body that are smaller than this on average are copied into one, whatever its size.
const CRUMB: usize = 4 << 10;
/// What an object takes beside its bytes: itself, its key, its place in the store.
const OVERHEAD: u64 = 256;
/// After one has begun a refresh, others do not even try for this long.
const BEGUN: Duration = Duration::from_secs(1);

/// A response that more than one request may have: kept, or still arriving.
#[derive(Debug)]
pub(crate) struct Object {
    /// The head; and the body, if that is not elsewhere.
    block: Bytes,
    /// Where the body is, if it is not in the block.
    elsewhere: Option<Box<Elsewhere>>,
    /// Of the block, if it is large.
    stored: Option<Stored>,
    /// How long the head is.
    head: u32,
    /// How many ask the origin about it, and have not heard of it.
    asking: AtomicU32,
    pub(crate) life: Life,
    /// Somebody has begun a refresh; nobody else does before this tick.
    claimed_until: AtomicU64,
    /// The last refresh has failed; the origin is left alone until this tick.
    rests_until: AtomicU64,
    /// Why: a [`Detail`], as its place in the list.
    rests: AtomicU8,
    /// Who waited for one of them has had enough. Counts only while somebody asks.
    slow: AtomicBool,
    /// Somebody has asked for it since it was last looked at by who makes room.
    wanted: AtomicBool,
}

/// Where a body is that does not lie behind its head.
#[derive(Clone, Debug)]
pub(crate) enum Elsewhere {
    /// In several pieces, and how long they are together.
    Parts(Arc<[Bytes]>, u64, Arc<Stored>),
    /// On its way. Its length, if that was said.
    Arriving(Arc<Log>, Option<u64>),
}

impl Object {
    /// One whose body is not with its head; see [`block`](crate::head::block).
    pub(crate) fn new(head: Vec<u8>, life: Life, elsewhere: Elsewhere) -> Object {
        let len = head.len();
        Object::of(head.into(), len, life, Some(Box::new(elsewhere)), None)
    }

    /// One whose body has come in these chunks, to be kept.
    pub(crate) fn kept(head: Head<'_>, life: Life, chunks: Vec<Bytes>, footprint: &Arc<Footprint>) -> Object {
        let len = chunks.iter().map(Bytes::len).sum::<usize>();
        // What came in crumbs would take more than it weighs.
        if len <= COPIED || len / chunks.len() < CRUMB {
            let footprint = (len > memory::SMALL).then(|| footprint.another());
            return Object::copied(head, life, &chunks, footprint);
        }
        let parts = Elsewhere::Parts(chunks.into(), len as u64, Arc::new(footprint.store()));
        Object::new(head.as_bytes().to_vec(), life, parts)
    }

    /// The same response with another head.
    pub(crate) fn with_head(&self, head: Vec<u8>, life: Life) -> Object {
        match &self.elsewhere {
            None => {
                let footprint = self.stored.as_ref().map(|stored| stored.footprint().another());
                Object::copied(Head::new(&head), life, &[self.shared_body()], footprint)
            }
            Some(elsewhere) => Object::new(head, life, Elsewhere::clone(elsewhere)),
        }
    }

    /// The same response with other times. Its bytes are not copied.
    pub(crate) fn with_life(&self, life: Life) -> Object {
        Object {
            block: self.block.clone(),
            elsewhere: self.elsewhere.clone(),
            stored: self.stored.as_ref().map(|stored| stored.footprint().store()),
            head: self.head,
            asking: AtomicU32::new(0),
            life,
            claimed_until: AtomicU64::new(0),
            rests_until: AtomicU64::new(self.rests_until.load(Relaxed)),
            rests: AtomicU8::new(self.rests.load(Relaxed)),
            slow: AtomicBool::new(false),
            wanted: AtomicBool::new(self.wanted.load(Relaxed)),
        }
    }

    /// Whether the origin can be asked if it is still what it was.
    fn has_validator(&self) -> bool {
        let headers = self.head().headers();
        [ETAG, LAST_MODIFIED].iter().any(|name| headers.contains_key(name))
    }

    /// What is left of it once its original has changed; see [`Life::changed`].
    pub(crate) fn changed(&self, now: Tick) -> Changed {
        let life = self.life.changed(now);
        let has_validator = self.has_validator();
        // One that is still arriving is kept, or not, by who receives it.
        if self.is_arriving() || !has_validator && life.servable_for(now).is_zero() {
            return Changed::Gone;
        }
        Changed::Kept { object: Arc::new(self.with_life(life)), has_validator }
    }

    /// In one piece of memory that is no larger than it has to be, counted if there is a footprint for it.
    fn copied(head: Head<'_>, life: Life, chunks: &[Bytes], footprint: Option<Arc<Footprint>>) -> Object {
        let mut block = Vec::with_capacity(head.len() + chunks.iter().map(Bytes::len).sum::<usize>());
        block.extend_from_slice(head.as_bytes());
        for chunk in chunks {
            block.extend_from_slice(chunk);
        }
        match footprint {
            None => Object::of(block.into(), head.len(), life, None, None),
            Some(footprint) => {
                let stored = Some(footprint.store());
                Object::of(footprint.hold(block), head.len(), life, None, stored)
            }
        }
    }

    fn of(block: Bytes, head: usize, life: Life, elsewhere: Option<Box<Elsewhere>>, stored: Option<Stored>) -> Object {
        Object {
            block,
            elsewhere,
            stored,
            // No head is nearly as long: the origin's is limited to far less.
            head: u32::try_from(head).unwrap_or(u32::MAX),
            asking: AtomicU32::new(0),
            life,
            claimed_until: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
            rests: AtomicU8::new(0),
            slow: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
        }
    }

    /// Its status and headers.
    #[inline]
    pub(crate) fn head(&self) -> Head<'_> {
        Head::new(self.block.get(..self.head as usize).unwrap_or(&self.block))
    }

    /// Its body, if that lies behind its head.
    #[inline]
    pub(crate) fn body(&self) -> Option<&[u8]> {
        if self.elsewhere.is_some() {
            return None;
        }
        self.block.get(self.head as usize..)
    }

    /// The block without its head: the body, if that is there.
    pub(crate) fn shared_body(&self) -> Bytes {
        self.block.slice(self.head().len()..)
    }

    /// Where the body is, if it does not lie behind its head.
    pub(crate) fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_deref()
    }

    /// The memory of its body, unless that is small.
    #[inline]
    pub(crate) fn footprint(&self) -> Option<&Arc<Footprint>> {
        match self.elsewhere() {
            None => self.stored.as_ref().map(Stored::footprint),
            Some(Elsewhere::Parts(_, _, stored)) => Some(stored.footprint()),
            Some(Elsewhere::Arriving(log, _)) => Some(log.footprint()),
        }
    }

    /// How long the body is, if that is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self.elsewhere() {
            None => self.body().map(|body| body.len() as u64),
            Some(Elsewhere::Parts(_, len, _)) => Some(*len),
            Some(Elsewhere::Arriving(_, len)) => *len,
        }
    }

    /// What it takes of the memory for what is kept.
    pub(crate) fn weight(&self) -> u64 {
        self.len().unwrap_or(0) + self.head().len() as u64 + OVERHEAD
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

    /// Whether its body is on its way, or was and did not come.
    pub(crate) fn is_arriving(&self) -> bool {
        matches!(self.elsewhere(), Some(Elsewhere::Arriving(..)))
    }

    /// Whether it can still be read from its first byte on.
    pub(crate) fn has_beginning(&self) -> bool {
        match self.elsewhere() {
            None | Some(Elsewhere::Parts(..)) => true,
            Some(Elsewhere::Arriving(log, _)) => log.has_beginning(),
        }
    }

    /// Whether its body broke off.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.elsewhere(), Some(Elsewhere::Arriving(log, _)) if log.has_failed())
    }

    /// Whether nobody is to ask the origin about it now, because that has just failed.
    pub(crate) fn is_resting(&self, now: Tick) -> bool {
        now.as_nanos() < self.rests_until.load(Relaxed)
    }

    /// Why nobody is to ask about it now, if nobody is.
    pub(crate) fn rests(&self, now: Tick) -> Option<Detail> {
        self.is_resting(now).then(|| Detail::at(self.rests.load(Relaxed)))
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
    pub(crate) fn rest(&self, until: Tick, why: Detail) {
        if self.rests_until.fetch_max(until.as_nanos(), Relaxed) < until.as_nanos() {
            self.rests.store(why as u8, Relaxed);
        }
    }
}

/// What a change leaves of an object.
#[derive(Debug)]
pub(crate) enum Changed {
    /// It may be asked about, or stand in for an origin that fails.
    Kept { object: Arc<Object>, has_validator: bool },
    /// Nothing that is of use.
    Gone,
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
    use crate::{
        head::block,
        policy::{Draws, Route, Terms, Times},
    };

    fn object() -> Object {
        let terms = Terms::read(StatusCode::OK, &HeaderMap::new());
        let times = Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH };
        let life = Life::begin(&terms, &Route::default(), &times, Draws::default());
        Object::kept(Head::new(&block(StatusCode::OK, &HeaderMap::new())), life, Vec::new(), &Footprint::uncounted())
    }

    #[test]
    fn a_head_and_a_small_body_are_one_piece_of_memory_and_a_large_one_is_not_copied() {
        let head = block(StatusCode::NOT_FOUND, &HeaderMap::new());
        let kept = |chunks: [Vec<u8>; 2]| {
            let chunks = chunks.map(Bytes::from).to_vec();
            Object::kept(Head::new(&head), object().life, chunks, &Footprint::uncounted())
        };
        let small = kept([b"hello ".to_vec(), b"world".to_vec()]);
        assert_eq!((small.head(), small.body()), (Head::new(&head), Some(&b"hello world"[..])));
        assert_eq!(small.block.len(), head.len() + 11);
        let large = kept([vec![b'x'; COPIED], b"y".to_vec()]);
        assert_eq!((large.head(), large.body(), large.len()), (Head::new(&head), None, Some(COPIED as u64 + 1)));
        for object in [small, large] {
            let other = block(StatusCode::OK, &HeaderMap::new());
            let renewed = object.with_head(other.clone(), object.life);
            assert_eq!((renewed.head(), renewed.body()), (Head::new(&other), object.body()));
            assert_eq!(renewed.len(), object.len());
        }
    }

    #[test]
    fn of_a_crowd_one_refreshes_and_after_a_while_another_may() {
        let object = object();
        let at = |millis| Tick::ZERO + Duration::from_millis(millis);
        assert!(object.claims_refresh(at(0)));
        assert!(!object.claims_refresh(at(0)) && !object.claims_refresh(at(999)));
        assert!(object.claims_refresh(at(1_000)) && !object.claims_refresh(at(1_000)));
        object.rest(at(5_000), Detail::OriginFailed);
        assert!(!object.claims_refresh(at(4_999)) && object.claims_refresh(at(5_000)));
    }
}
