//! What is kept for a key, and what may be done with it when.
//!
//! An entry costs 16 bytes beside its value, because a hit is as dear as the memory it has to fetch. And a hit compares one
//! number: [`look_at`](Life::look_at), the first instant at which there is anything to think about.

use std::{mem, num::NonZero, sync::Arc, time::Duration};

use super::{outcome::Label, policy::Policy, tags::Tag};
use crate::{
    early::{self, scaled_nanos},
    env::{Tick, below, nanos},
    error::Panic,
};

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Nothing is fresh for longer: 35 years, the longest time that its sixteen bits hold exactly with room for twice as long.
const LONGEST: u64 = NANOS_PER_MILLI << 40;

/// What is kept for a key. In whole words: an entry is passed on a few times before it lies where it belongs, and a processor
/// has to wait before it can read as one what was just written in parts.
pub(super) enum Entry<V, E> {
    Value {
        look_at: Tick,
        times: Times,
        value: V,
    },
    /// What is rarer than a plain value.
    Other(Arc<Other<V, E>>),
}

pub(super) struct Other<V, E> {
    life: Life,
    /// A value has a label here.
    content: Content<V, E>,
}

/// What an entry holds.
pub(super) enum Content<V, E> {
    Value(V, Option<Arc<Label>>),
    Absent,
    Failed(Arc<E>),
    Panicked(Arc<Panic>),
}

/// The times of an entry. How long something takes is in nanoseconds: a [`Duration`] is two numbers, and to make one of them and
/// take it apart again is a division and a multiplication each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Before this, it is served without a thought.
    pub(super) look_at: Tick,
    /// Before this, it is fresh.
    pub(super) fresh_until: Tick,
    /// How long it is fresh in all.
    pub(super) fresh: u64,
    /// How long it may be served after that, while it is loaded again.
    pub(super) grace: u64,
    /// How long loads of it take.
    pub(super) load: u64,
}

/// What may be done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Fresh,
    /// Served as fresh while it is refreshed.
    Early,
    /// Served while it is refreshed.
    Stale,
    /// Served only if the load fails or is slow.
    Kept,
    Gone,
}

/// How far away something is, before or behind, in two bytes: milliseconds to ten bits, an exponent of two, and a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away(u16);

#[expect(clippy::cast_possible_truncation, reason = "what is cut off has been shifted out or compared")]
impl Away {
    const BITS: u32 = 10;
    const BEHIND: u16 = 1 << 15;

    /// The longest of these that is not longer than so many nanoseconds.
    #[inline]
    fn at_most(nanos: u64) -> Away {
        let millis = nanos / NANOS_PER_MILLI;
        let exponent = (u64::BITS - millis.leading_zeros()).saturating_sub(Self::BITS);
        if exponent > 31 {
            Away(!Self::BEHIND)
        } else {
            Away((exponent as u16) << Self::BITS | (millis >> exponent) as u16)
        }
    }

    /// The shortest of these that is not shorter than so many nanoseconds.
    #[inline]
    fn at_least(nanos: u64) -> Away {
        let near = Away::at_most(nanos);
        // The next one: should the ten bits run over, the exponent goes up by one, which is right.
        if near.nanos() < nanos && near.0 < !Self::BEHIND { Away(near.0 + 1) } else { near }
    }

    fn behind(self) -> Away {
        Away(self.0 | Self::BEHIND)
    }

    #[inline]
    pub(super) fn is_behind(self) -> bool {
        self.0 >= Self::BEHIND
    }

    /// How far, whichever way.
    #[inline]
    pub(super) fn nanos(self) -> u64 {
        let bits = self.0 & !Self::BEHIND;
        let mantissa = u64::from(bits) & ((1 << Self::BITS) - 1);
        (mantissa << (bits >> Self::BITS)) * NANOS_PER_MILLI
    }

    /// This far from a point in time.
    pub(super) fn from(self, tick: Tick) -> Tick {
        if self.is_behind() { self.before(tick) } else { self.after(tick) }
    }

    /// This far after a point in time.
    fn after(self, tick: Tick) -> Tick {
        after(tick, self.nanos())
    }

    /// This far before a point in time.
    #[inline]
    fn before(self, tick: Tick) -> Tick {
        before(tick, self.nanos())
    }
}

/// How long a load takes, in one byte: from a microsecond to hours in eight steps to the octave. That is for what comes after the
/// next load; the lead of this entry was drawn from the exact time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadTime(u8);

#[expect(clippy::cast_possible_truncation, reason = "what is cut off has been shifted out or compared")]
impl LoadTime {
    const BITS: u32 = 3;

    /// Of so many nanoseconds.
    pub(super) fn new(time: u64) -> LoadTime {
        let micros = time / 1_000;
        if micros < 1 << Self::BITS {
            return LoadTime(micros as u8);
        }
        // The leading bit is not kept: it is there in all that are larger.
        let exponent = u64::BITS - 1 - micros.leading_zeros() - Self::BITS;
        let mantissa = (micros >> exponent) as u8 & 7;
        if exponent > 30 { LoadTime(u8::MAX) } else { LoadTime((exponent as u8 + 1) << Self::BITS | mantissa) }
    }

    /// In nanoseconds.
    pub(super) fn get(self) -> u64 {
        let (exponent, mantissa) = (self.0 >> Self::BITS, u64::from(self.0 & 7));
        1_000 * if exponent == 0 { mantissa } else { (mantissa | 8) << (exponent - 1) }
    }
}

/// The times of an entry beside the one that is compared at every hit, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times(NonZero<u64>);

/// Of these times, when it was loaded, reckoned from the one that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends(u32);

#[expect(clippy::cast_possible_truncation, reason = "these are the parts that are wanted")]
impl Times {
    /// Never all zero, so that an entry needs no room to say that it has none of these.
    const SOME: NonZero<u64> = NonZero::new(1 << 63).expect("it is not zero");

    fn new(left: Away, fresh: Away, grace: Away, load: LoadTime) -> Times {
        let parts = [u64::from(left.0), u64::from(fresh.0) << 16, u64::from(grace.0) << 32, u64::from(load.0) << 48];
        Times(parts.into_iter().fold(Self::SOME, |word, part| word | part))
    }

    fn of(Life { look_at, fresh_until, fresh, grace, load }: Life) -> Times {
        let left = if look_at <= fresh_until {
            Away::at_most(between(look_at, fresh_until))
        } else {
            Away::at_most(between(fresh_until, look_at)).behind()
        };
        Times::new(left, Away::at_least(fresh), Away::at_least(grace), LoadTime::new(load))
    }

    /// Whether it is past its time, and served as it is because loading it has failed.
    #[inline]
    pub(super) fn is_put_off(self) -> bool {
        self.left().is_behind()
    }

    /// Whether it is past its time and within its grace, and no load of it has failed since. To be asked from `look_at` on.
    #[inline]
    pub(super) fn is_stale(self, look_at: Tick, now: Tick) -> bool {
        let (past, left) = (now.as_nanos().saturating_sub(look_at.as_nanos()), self.left().nanos());
        !self.is_put_off() && past >= left && past - left < self.grace().nanos()
    }

    #[inline]
    pub(super) fn ends(self) -> Ends {
        Ends(self.0.get() as u32)
    }

    #[inline]
    fn left(self) -> Away {
        Away(self.0.get() as u16)
    }

    fn fresh(self) -> Away {
        Away((self.0.get() >> 16) as u16)
    }

    fn grace(self) -> Away {
        Away((self.0.get() >> 32) as u16)
    }

    fn load(self) -> LoadTime {
        LoadTime((self.0.get() >> 48) as u8)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "these are the parts that are wanted")]
impl Ends {
    pub(super) const NONE: Ends = Ends(0);

    /// How old it was when it was to be looked at, in nanoseconds.
    pub(super) fn age_then(self) -> i64 {
        // No time that is kept here is too long for its sign.
        let (left, fresh) = (Away(self.0 as u16), Away((self.0 >> 16) as u16));
        fresh.nanos().cast_signed().saturating_sub_unsigned(left.nanos())
    }
}

/// What holds for plain values, reckoned once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How long they are fresh at most, and how much of that is left to chance.
    fresh: u64,
    chance: u64,
    grace: u64,
    /// The same as it is kept.
    kept_grace: Away,
    early: bool,
}

impl Terms {
    pub(super) fn of(policy: &Policy) -> Terms {
        let (fresh, grace) = (nanos(policy.ttl).min(LONGEST), nanos(policy.grace));
        let (chance, kept_grace) = (scaled_nanos(fresh, policy.jitter), Away::at_least(grace));
        Terms { fresh, chance, grace, kept_grace, early: policy.early }
    }
}

impl Life {
    /// Of what was loaded just now. If it is to be refreshed before its end, how long before is drawn from these bits.
    pub(super) fn begin(now: Tick, fresh: u64, grace: u64, load: u64, early: Option<u64>) -> Life {
        let fresh = fresh.min(LONGEST);
        let fresh_until = after(now, fresh);
        let lead = early.map_or(0, |bits| early::lead_nanos(fresh, grace, load, bits));
        // As it will be kept, so that the end is exact.
        Life { look_at: Away::at_most(lead).before(fresh_until), fresh_until, fresh, grace, load }
    }

    /// When it was loaded, to a five hundredth of its time to live.
    pub(super) fn born(&self) -> Tick {
        before(self.fresh_until, self.fresh)
    }

    /// What may be done with it, if it may be kept for `keep` after its freshness to stand in for a load that fails.
    pub(super) fn phase(&self, now: Tick, keep: Duration) -> Phase {
        if now < self.look_at && self.look_at <= self.fresh_until {
            Phase::Fresh
        } else if now < self.fresh_until {
            Phase::Early
        } else if now < after(self.fresh_until, self.grace) {
            Phase::Stale
        } else if now < self.end(keep) {
            Phase::Kept
        } else {
            Phase::Gone
        }
    }

    /// Whether it is past its time and served as it is, because loading it has failed.
    pub(super) fn is_put_off(&self, now: Tick) -> bool {
        now >= self.fresh_until && now < self.look_at
    }

    /// When it is of no more use.
    pub(super) fn end(&self, keep: Duration) -> Tick {
        after(self.fresh_until, self.grace.max(nanos(keep)))
    }

    /// Served as it is for this long, because loading it failed just now; but never beyond its end.
    pub(super) fn put_off(mut self, now: Tick, pause: Duration, keep: Duration) -> Life {
        // In steps as it will be kept, so that its end stays where it is. Long after its time those are longer than the pause.
        let (end, look_at) = (self.end(keep), now + pause);
        self.look_at = if look_at <= self.fresh_until {
            Away::at_most(between(look_at, self.fresh_until)).before(self.fresh_until)
        } else {
            let put_off = Away::at_least(between(self.fresh_until, look_at)).after(self.fresh_until);
            let at_end = Away::at_most(between(self.fresh_until, end)).after(self.fresh_until);
            if put_off <= end { put_off } else { at_end }
        };
        self
    }

    /// No longer fresh from this time on.
    pub(super) fn expire(mut self, at: Tick) -> Life {
        if at < self.fresh_until {
            self.fresh = between(self.born(), at);
            self.fresh_until = at;
            self.look_at = self.look_at.min(at);
        }
        self
    }
}

impl<V, E> Entry<V, E> {
    /// Of a plain value that was loaded just now, with this for chance: what [`new`](Entry::new) makes of a life that is as
    /// these terms say.
    #[inline(always)]
    pub(super) fn plain(now: Tick, terms: Terms, draw: u64, load: u64, value: V) -> Entry<V, E> {
        let fresh = terms.fresh - below(draw, terms.chance);
        // The time to live has the upper bits of the draw, and the lead the lower ones.
        let bits = draw.rotate_left(32);
        let lead = if terms.early { early::lead_nanos(fresh, terms.grace, load, bits) } else { 0 };
        let left = Away::at_most(lead);
        let times = Times::new(left, Away::at_least(fresh), terms.kept_grace, LoadTime::new(load));
        Entry::Value { look_at: left.before(after(now, fresh)), times, value }
    }
}

impl<V: Clone, E> Entry<V, E> {
    pub(super) fn new(life: Life, content: Content<V, E>) -> Entry<V, E> {
        match content {
            Content::Value(value, None) => Entry::Value { look_at: life.look_at, times: Times::of(life), value },
            content => Entry::Other(Arc::new(Other { life, content })),
        }
    }

    pub(super) fn life(&self) -> Life {
        match self {
            Entry::Value { look_at, times, .. } => Life {
                look_at: *look_at,
                fresh_until: times.left().from(*look_at),
                fresh: times.fresh().nanos(),
                grace: times.grace().nanos(),
                load: times.load().get(),
            },
            Entry::Other(other) => other.life,
        }
    }

    /// No longer fresh from this time on. A plain value stays where it is. What others hold at the moment is replaced, and comes
    /// back, to be dropped when no lock is held: by then it may be nobody else's, and its drop may come back to the cache.
    #[must_use]
    pub(super) fn expire(&mut self, at: Tick) -> Option<Arc<Other<V, E>>> {
        let life = self.life();
        if at >= life.fresh_until {
            return None;
        }
        let life = life.expire(at);
        match self {
            Entry::Value { look_at, times, .. } => {
                (*look_at, *times) = (life.look_at, Times::of(life));
                None
            }
            Entry::Other(other) => {
                if let Some(other) = Arc::get_mut(other) {
                    other.life = life;
                    return None;
                }
                let content = other.content.clone();
                Some(mem::replace(other, Arc::new(Other { life, content })))
            }
        }
    }

    /// The value, if it is one.
    pub(super) fn value(&self) -> Option<&V> {
        match self {
            Entry::Value { value, .. } => Some(value),
            Entry::Other(other) => match &other.content {
                Content::Value(value, _) => Some(value),
                Content::Absent | Content::Failed(_) | Content::Panicked(_) => None,
            },
        }
    }

    /// Whether it is that a load failed.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Entry::Other(other) if matches!(other.content, Content::Failed(_) | Content::Panicked(_)))
    }

    pub(super) fn tags(&self) -> &[Tag] {
        self.label().map_or(&[], |label| &label.tags)
    }

    /// Its tags, if it has any, and what was said of it.
    pub(super) fn label(&self) -> Option<&Arc<Label>> {
        match self {
            Entry::Value { .. } => None,
            Entry::Other(other) => match &other.content {
                Content::Value(_, label) => label.as_ref(),
                Content::Absent | Content::Failed(_) | Content::Panicked(_) => None,
            },
        }
    }

    pub(super) fn into_content(self) -> Content<V, E> {
        match self {
            Entry::Value { value, .. } => Content::Value(value, None),
            Entry::Other(other) => other.content.clone(),
        }
    }
}

impl<V: Clone, E> Clone for Content<V, E> {
    fn clone(&self) -> Self {
        match self {
            Content::Value(value, label) => Content::Value(value.clone(), label.clone()),
            Content::Absent => Content::Absent,
            Content::Failed(error) => Content::Failed(Arc::clone(error)),
            Content::Panicked(panic) => Content::Panicked(Arc::clone(panic)),
        }
    }
}

impl<V: Clone, E> Clone for Entry<V, E> {
    #[inline(always)]
    fn clone(&self) -> Self {
        match self {
            Entry::Value { look_at, times, value } => {
                Entry::Value { look_at: *look_at, times: *times, value: value.clone() }
            }
            Entry::Other(other) => Entry::Other(Arc::clone(other)),
        }
    }
}

/// So many times as long, to the microsecond or so; for ever, if that is too long to count.
pub(super) fn scaled(time: Duration, by: f64) -> Duration {
    Duration::from_nanos(scaled_nanos(nanos(time), by))
}

/// Nanoseconds from one point in time to a later one.
#[inline]
pub(super) fn between(earlier: Tick, later: Tick) -> u64 {
    later.as_nanos().saturating_sub(earlier.as_nanos())
}

/// So many nanoseconds later.
#[inline]
fn after(tick: Tick, nanos: u64) -> Tick {
    Tick::from_nanos(tick.as_nanos().saturating_add(nanos))
}

/// So many nanoseconds earlier.
#[inline]
pub(super) fn before(tick: Tick, nanos: u64) -> Tick {
    Tick::from_nanos(tick.as_nanos().saturating_sub(nanos))
}
