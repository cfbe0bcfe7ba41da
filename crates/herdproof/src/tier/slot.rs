//! One key of a tier: who may load it, who waits, and what is there. Arithmetic only; the clock and the lock are elsewhere.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Failure, Fault, Filled, Held, Lease, Pushed, Stored, Want};
use crate::env::Tick;

/// What a store knows of a key. `W` is somebody who waits.
#[derive(Debug)]
pub(super) struct Slot<V, W> {
    entry: Option<Entry<V>>,
    leased: Option<Leased>,
    failed: Option<Failed>,
    line: VecDeque<W>,
}

#[derive(Debug)]
struct Entry<V> {
    stored: Stored<V>,
    born: Tick,
    /// No later than its time to live after its birth; earlier if a tag was expired.
    fresh_until: Tick,
}

#[derive(Clone, Copy, Debug)]
struct Leased {
    lease: Lease,
    until: Tick,
    /// How long it was asked for.
    time: Duration,
    /// How many have tried before.
    failures: u32,
}

#[derive(Debug)]
struct Failed {
    why: Arc<str>,
    until: Tick,
}

/// What a lookup comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<V> {
    Hit(Held<V>),
    Stale(Held<V>, Duration),
    Refresh(Held<V>, Lease),
    Fill(Lease),
    Wait(Duration),
    Failed(Failure<V>),
}

/// Whom to tell what.
pub(super) type Pushes<V, W> = Vec<(W, Pushed<V>)>;

impl<V> Entry<V> {
    fn end(&self) -> Tick {
        self.fresh_until + self.stored.grace.max(self.stored.keep)
    }
}

impl<V: Clone> Entry<V> {
    fn held(&self, now: Tick) -> Held<V> {
        let Stored { value, grace, load, tags, .. } = self.stored.clone();
        let (left, past) = (self.fresh_until - now, now - self.fresh_until);
        Held { value, age: now - self.born, left, past, grace, load, tags }
    }
}

impl<V, W> Default for Slot<V, W> {
    fn default() -> Self {
        Slot { entry: None, leased: None, failed: None, line: VecDeque::new() }
    }
}

impl<V: Clone, W: Clone + PartialEq> Slot<V, W> {
    /// Whether nothing is known by now that anybody could need.
    pub(super) fn is_idle(&self, now: Tick) -> bool {
        self.line.is_empty()
            && self.entry.as_ref().is_none_or(|entry| now >= entry.end())
            && self.leased.is_none_or(|leased| now >= leased.until)
            && self.failed.as_ref().is_none_or(|failed| now >= failed.until)
    }

    pub(super) fn lookup(&mut self, now: Tick, want: Want, next: impl FnOnce() -> Lease) -> Answer<V> {
        let leased = self.leased.map(|leased| leased.until - now).filter(|left| *left > Duration::ZERO);
        let held = self.entry.as_ref().filter(|entry| now < entry.end());
        let held = held.map(|entry| entry.held(now));
        match (held, leased) {
            (Some(held), None) if held.left > Duration::ZERO && held.left <= want.early => {
                Answer::Refresh(held, self.give(now, want.lease, next()))
            }
            (Some(held), Some(left)) if held.left > Duration::ZERO && held.left <= want.early => {
                Answer::Stale(held, left)
            }
            (Some(held), _) if held.left > Duration::ZERO => Answer::Hit(held),
            (Some(held), Some(left)) if held.is_servable() => Answer::Stale(held, left),
            (_, Some(left)) => Answer::Wait(left),
            (held, None) => match (self.failure(now, held.clone()), held) {
                (Some(failure), _) => Answer::Failed(failure),
                (None, Some(held)) => Answer::Refresh(held, self.give(now, want.lease, next())),
                (None, None) => Answer::Fill(self.give(now, want.lease, next())),
            },
        }
    }

    fn give(&mut self, now: Tick, time: Duration, lease: Lease) -> Lease {
        self.leased = Some(Leased { lease, until: now + time, time, failures: 0 });
        lease
    }

    fn failure(&self, now: Tick, held: Option<Held<V>>) -> Option<Failure<V>> {
        let failed = self.failed.as_ref().filter(|failed| now < failed.until)?;
        Some(Failure { why: Arc::clone(&failed.why), left: failed.until - now, held })
    }

    /// Puts somebody in line.
    pub(super) fn wait(&mut self, who: W) {
        self.line.push_back(who);
    }

    /// Takes somebody out of the line.
    pub(super) fn leave(&mut self, who: &W) {
        self.line.retain(|other| other != who);
    }

    /// Whether this lease stands.
    fn holds(&self, now: Tick, lease: Lease) -> Option<Leased> {
        self.leased.filter(|leased| leased.lease == lease && now < leased.until)
    }

    pub(super) fn fill(&mut self, now: Tick, lease: Lease, stored: Stored<V>) -> (Filled, Pushes<V, W>) {
        if self.holds(now, lease).is_none() {
            return (Filled::Fenced, Vec::new());
        }
        (Filled::Kept, self.put(now, stored))
    }

    pub(super) fn put(&mut self, now: Tick, stored: Stored<V>) -> Pushes<V, W> {
        let entry = Entry { born: now, fresh_until: now + stored.ttl, stored };
        let held = entry.held(now);
        self.leased = None;
        self.failed = None;
        // What was there before is out of date, whether or not this is kept.
        self.entry = (entry.stored.ttl > Duration::ZERO).then_some(entry);
        self.line.drain(..).map(|who| (who, Pushed::Filled(held.clone()))).collect()
    }

    /// The load failed: one of those who wait is next or, if it has been tried often enough, all of them have failed.
    pub(super) fn fail(
        &mut self,
        now: Tick,
        lease: Lease,
        fault: &Fault,
        next: impl FnOnce() -> Lease,
    ) -> Pushes<V, W> {
        let Some(leased) = self.holds(now, lease) else { return Vec::new() };
        let failures = leased.failures + 1;
        if failures < fault.attempts && !self.line.is_empty() {
            return self.hand_over(now, Leased { failures, ..leased }, next);
        }
        self.leased = None;
        let Fault { why, remember, .. } = fault;
        if *remember > Duration::ZERO {
            self.failed = Some(Failed { why: Arc::clone(why), until: now + *remember });
        }
        let held = self.entry.as_ref().filter(|entry| now < entry.end()).map(|entry| entry.held(now));
        let failure = Failure { why: Arc::clone(why), left: *remember, held };
        self.line.drain(..).map(|who| (who, Pushed::Failed(failure.clone()))).collect()
    }

    /// Whoever was given this lease has left: the next one gets it.
    pub(super) fn pass(&mut self, now: Tick, lease: Lease, next: impl FnOnce() -> Lease) -> Pushes<V, W> {
        match self.holds(now, lease) {
            Some(leased) => self.hand_over(now, leased, next),
            None => Vec::new(),
        }
    }

    fn hand_over(&mut self, now: Tick, from: Leased, next: impl FnOnce() -> Lease) -> Pushes<V, W> {
        self.leased = None;
        let Some(who) = self.line.pop_front() else { return Vec::new() };
        let lease = next();
        self.leased = Some(Leased { lease, until: now + from.time, ..from });
        vec![(who, Pushed::Lease(lease))]
    }

    pub(super) fn renew(&mut self, now: Tick, lease: Lease, time: Duration) -> Filled {
        match self.holds(now, lease) {
            Some(leased) => {
                self.leased = Some(Leased { until: now + time, ..leased });
                Filled::Kept
            }
            None => Filled::Fenced,
        }
    }

    /// The value is out of date, and whatever is being loaded may be.
    pub(super) fn invalidate(&mut self) -> Pushes<V, W> {
        self.entry = None;
        self.failed = None;
        self.fence()
    }

    /// Whatever is being loaded is out of date.
    pub(super) fn fence(&mut self) -> Pushes<V, W> {
        self.leased = None;
        self.line.drain(..).map(|who| (who, Pushed::Again)).collect()
    }

    /// No longer fresh from then on, if it has this tag.
    pub(super) fn expire(&mut self, tag: &str, at: impl FnOnce() -> Tick) {
        if let Some(entry) = &mut self.entry
            && entry.stored.tags.iter().any(|own| own == tag)
        {
            entry.fresh_until = entry.fresh_until.min(at());
        }
    }

    /// Keeps nothing: there is no room.
    pub(super) fn drop_entry(&mut self) {
        self.entry = None;
    }

    pub(super) fn has_entry(&self) -> bool {
        self.entry.is_some()
    }
}
