//! Many entries that go out of date together: a tag, and when it was last expired.
//!
//! To expire a tag touches no entry. It notes an instant, and whoever next comes upon a tagged entry that was loaded before
//! that finds it stale. So that a tag of a hundred thousand keys does not become a hundred thousand loads at once, each key
//! gets its own instant within the time that was asked for.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::atomic::Ordering::{Relaxed, SeqCst},
    time::Duration,
};

use crate::{
    env::{Env, MapHasher, Tick, nanos, within},
    sync::{AtomicU64, RwLock},
};

/// Expired tags that are remembered without looking whether anybody can still need them.
const KEPT: usize = 1_000;
/// Expired tags that are remembered at most, in about 10 MB. With one more, every tag counts as expired now, and none is remembered
/// by itself. At once, since one of them may have been: an entry that was stale must not be fresh again.
const MOST: usize = 1 << 16;

/// A tag's name, hashed: two that share one, once in 2^64, are expired together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag(u64);

/// Which tags were expired when.
pub(super) struct Tags {
    hasher: MapHasher,
    /// How often any was.
    count: AtomicU64,
    /// The nanosecond after any was, last; zero before that.
    last: AtomicU64,
    /// The longest that a tagged entry may live, in nanoseconds: for so long an expiry is remembered.
    longest: AtomicU64,
    expired: RwLock<Table>,
}

struct Table {
    by_tag: HashMap<Tag, Expired, MapHasher>,
    /// Of all tags, when there were too many.
    all: Option<Expired>,
}

/// How often tags had been expired when something began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(pub(super) u64);

/// When a tag was expired. If it is expired again and again faster than it is smeared, one that was begun before stands until
/// it has done its work, so that entries do not wait for ever.
#[derive(Clone, Copy, Debug)]
struct Expired {
    last: Expiry,
    /// The one that was under way when the last came.
    before: Option<Expiry>,
    /// The last of those that have reached all their keys.
    over: Option<Expiry>,
}

#[derive(Clone, Copy, Debug)]
struct Expiry {
    at: Tick,
    /// What was born no later than this was there before it: after `at`, if something was born after another expiry within
    /// the same nanosecond.
    born_by: Tick,
    number: u64,
    smear: Duration,
}

impl Expiry {
    fn is_over(&self, now: Tick) -> bool {
        self.at + self.smear <= now
    }

    /// When it reaches this key: somewhere within the smear, always the same place.
    fn reaches(&self, key: u64) -> Tick {
        self.at + within(self.smear, key)
    }
}

impl Table {
    /// What counts for this tag.
    fn of(&self, tag: Tag) -> impl Iterator<Item = &Expired> {
        self.by_tag.get(&tag).into_iter().chain(&self.all)
    }
}

impl Expired {
    fn once(expiry: Expiry) -> Expired {
        Expired { last: expiry, before: None, over: None }
    }

    fn again(self, new: Expiry) -> Expired {
        let Expired { last, before, over } = self;
        match before {
            _ if last.is_over(new.at) => Expired { last: new, before: None, over: Some(last) },
            Some(before) if before.is_over(new.at) => Expired { last: new, before: Some(last), over: Some(before) },
            before => Expired { last: new, before: before.or(Some(last)), over },
        }
    }

    /// When an entry of this key that was born then is stale on its account.
    fn stale_from(&self, born: Tick, key: u64) -> Option<Tick> {
        let expiries = [Some(self.last), self.before, self.over].into_iter().flatten();
        expiries.filter(|expiry| born <= expiry.born_by).map(|expiry| expiry.reaches(key)).min()
    }
}

impl Tags {
    pub(super) fn new(env: &Env) -> Tags {
        Tags {
            hasher: env.hasher("cache/tags"),
            count: AtomicU64::new(0),
            last: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            expired: RwLock::new(Table { by_tag: HashMap::with_hasher(env.hasher("cache/expired")), all: None }),
        }
    }

    /// How many expired tags are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.expired.read().by_tag.len()
    }

    pub(super) fn tag(&self, name: &str) -> Tag {
        Tag(self.hasher.hash_one(name))
    }

    /// Something begins that may later want to know whether a tag was expired meanwhile.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.count.load(SeqCst))
    }

    /// Whether one of these was expired since then.
    pub(super) fn expired_since(&self, tags: &[Tag], Mark(mark): Mark) -> bool {
        if tags.is_empty() || self.count.load(SeqCst) == mark {
            return false;
        }
        let expired = self.expired.read();
        tags.iter().flat_map(|tag| expired.of(*tag)).any(|expired| expired.last.number > mark)
    }

    /// When an entry with these tags counts as born that lives until `end`: after everything that was expired before.
    pub(super) fn birth(&self, now: Tick, end: Tick) -> Tick {
        self.longest.fetch_max(nanos(end - now), Relaxed);
        now.max(Tick::from_nanos(self.last.load(Relaxed)))
    }

    /// Expires a tag now. The clock is read only after the expiry was counted:
    ///
    /// 1. this reads the clock,
    /// 2. a load that began before ends, its value is born, and it sees that nothing was expired meanwhile,
    /// 3. this is counted, and finds that the value was born after it.
    ///
    /// So it would stay fresh for good. Counted first, it is seen in step 2, or what is born then was born before.
    pub(super) fn expire(&self, tag: Tag, now: impl FnOnce() -> Tick, smear: Duration) {
        let mut table = self.expired.write();
        let number = self.count.fetch_add(1, SeqCst) + 1;
        let now = now();
        let born_by = now.max(Tick::from_nanos(self.last.load(Relaxed)));
        self.last.store(born_by.as_nanos() + 1, Relaxed);
        let new = Expiry { at: now, born_by, number, smear };
        let Table { by_tag, all } = &mut *table;
        by_tag.entry(tag).and_modify(|expired| *expired = expired.again(new)).or_insert(Expired::once(new));
        if by_tag.len() > KEPT && by_tag.len().is_power_of_two() {
            let longest = Duration::from_nanos(self.longest.load(Relaxed));
            by_tag.retain(|_, Expired { last, .. }| last.at + last.smear + longest > now);
        }
        if by_tag.len() > MOST {
            let new = Expiry { smear: Duration::ZERO, ..new };
            *all = Some(all.map_or(Expired::once(new), |all| all.again(new)));
            by_tag.clear();
        }
    }

    /// When an entry of the key with this hash that was born then is stale on account of these tags.
    pub(super) fn stale_from(&self, tags: &[Tag], born: Tick, key: u64) -> Option<Tick> {
        if born.as_nanos() >= self.last.load(Relaxed) {
            return None;
        }
        let expired = self.expired.read();
        tags.iter().flat_map(|tag| expired.of(*tag)).filter_map(|expired| expired.stale_from(born, key)).min()
    }
}
