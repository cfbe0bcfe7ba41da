//! What a load may say, and what a caller gets.

use std::{any::Any, error::Error, fmt, sync::Arc, time::Duration};

use super::{AnyError, entry::Ends, tags::Tag};
use crate::{env::Tick, error::Panic, gate::Refusal};

/// What a load has found; for [`Cache::get_with`](super::Cache::get_with).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Load<V> {
    /// A value, kept as the policy says.
    Value(V),
    /// A value, kept as this says.
    With(V, Keep),
    /// There is no such thing; remembered as the policy says, or for this long.
    Absent(Option<Duration>),
    /// A value for those who wait for it, and for nobody else.
    Uncached(V),
}

impl<V> From<V> for Load<V> {
    fn from(value: V) -> Load<V> {
        Load::Value(value)
    }
}

/// How long a value is kept, where that differs from the policy, and its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Keep {
    pub(super) ttl: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) tags: Vec<String>,
    /// More tags, of which nobody here knows the names any more.
    pub(super) nameless: Vec<Tag>,
    /// How long it is fresh in memory, once chance and the second tier have had their say.
    pub(super) in_memory: Option<Duration>,
}

impl Keep {
    /// Fresh for this long, jittered as the policy says.
    pub fn ttl(ttl: Duration) -> Keep {
        Keep { ttl: Some(ttl), ..Keep::default() }
    }

    /// As the policy says, with a tag.
    pub fn tagged(tag: impl Into<String>) -> Keep {
        Keep::default().tag(tag)
    }

    /// Served for this long after its freshness while it is loaded again.
    pub fn grace(mut self, grace: Duration) -> Keep {
        self.grace = Some(grace);
        self
    }

    /// With a tag, by which it can be expired; see [`Cache::expire_tag`](super::Cache::expire_tag).
    pub fn tag(mut self, tag: impl Into<String>) -> Keep {
        self.tags.push(tag.into());
        self
    }
}

/// The tags of an entry, and what was said of it when it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) tags: Box<[Tag]>,
    /// With the names of the tags where there is a second tier, which knows them by nothing else.
    pub(super) keep: Keep,
}

impl Label {
    /// To be kept as it was.
    fn again(&self) -> Keep {
        let nameless = if self.keep.tags.is_empty() { self.tags.to_vec() } else { Vec::new() };
        Keep { nameless, ..self.keep.clone() }
    }
}

/// What was there before a load, for a load that can ask whether it has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prior<V> {
    /// The value.
    pub value: V,
    /// How long ago it was loaded.
    pub age: Duration,
    /// If it has tags.
    pub(super) label: Option<Arc<Label>>,
}

impl<V> Prior<V> {
    /// It has not changed: kept for another time to live, with the tags it has.
    ///
    /// Where there are tags there is also room to remember what a [`Keep`] said of times, and that holds again, except that a
    /// value that came from a second tier has the policy's time to live. A value without tags is kept as the policy says;
    /// give its times again with [`Load::With`].
    pub fn unchanged(self) -> Load<V> {
        match self.label {
            Some(label) => Load::With(self.value, label.again()),
            None => Load::Value(self.value),
        }
    }
}

/// A value, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got<V> {
    /// The value.
    pub value: V,
    /// Where it is from, and why.
    pub source: Source,
    /// What its age is reckoned from, when somebody asks for that: nanoseconds since the entry was to be looked at, below
    /// zero if it was not yet.
    since: i64,
    ends: Ends,
}

/// Where a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
// As large as what is left of a `Got` that is aligned: padding is copied byte by byte.
#[repr(u32)]
pub enum Source {
    /// From memory, and fresh.
    Memory,
    /// From memory, past its time and within its grace: somebody is loading it again.
    Stale,
    /// From memory, past its time: the load has failed or is slow, or was refused.
    StaleOnError,
    /// From the second tier, and fresh.
    Tier,
    /// Loaded for this caller.
    Loaded,
    /// Loaded for another caller, and shared.
    Joined,
}

impl<V> Got<V> {
    pub(super) fn new(value: V, source: Source, born: Tick, asked: Tick) -> Got<V> {
        Got { value, source, since: since(born, asked), ends: Ends::NONE }
    }

    /// What was served without a thought: its age is reckoned if somebody asks.
    #[inline]
    pub(super) fn served(value: V, source: Source, look_at: Tick, ends: Ends, asked: Tick) -> Got<V> {
        Got { value, source, since: since(look_at, asked), ends }
    }

    /// How long ago it was loaded, to some milliseconds and a five hundredth of its time to live.
    pub fn age(&self) -> Duration {
        let age = self.since.saturating_add(self.ends.age_then());
        Duration::from_nanos(u64::try_from(age).unwrap_or(0))
    }

    /// Whether it is past its time.
    pub fn is_stale(&self) -> bool {
        matches!(self.source, Source::Stale | Source::StaleOnError)
    }
}

#[inline]
fn since(tick: Tick, asked: Tick) -> i64 {
    asked.as_nanos().wrapping_sub(tick.as_nanos()).cast_signed()
}

/// Why there is no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum GetError<E> {
    /// There is no such thing.
    Absent,
    /// The load failed.
    Load(Arc<E>),
    /// The load failed in another process, for this reason, and it is not this one's turn to try.
    Elsewhere(Arc<str>),
    /// The load took longer than it may.
    TimedOut,
    /// The load was not begun: the cache's limit refused it.
    Refused(Refusal),
    /// The load panicked. It does so for itself: nobody who waits for it panics, not even who began it.
    Panicked(Arc<Panic>),
    /// This caller's own deadline came first. The load goes on.
    Deadline,
    /// As many callers wait for this key as may.
    Overloaded,
    /// The load of a key asked for the same key, and would have waited for itself.
    Reentrant,
    /// The load was dropped before it ended: its runtime was shut down.
    Abandoned,
}

impl<E> Clone for GetError<E> {
    fn clone(&self) -> Self {
        match self {
            GetError::Absent => GetError::Absent,
            GetError::Load(error) => GetError::Load(Arc::clone(error)),
            GetError::Elsewhere(why) => GetError::Elsewhere(Arc::clone(why)),
            GetError::TimedOut => GetError::TimedOut,
            GetError::Refused(refusal) => GetError::Refused(*refusal),
            GetError::Panicked(panic) => GetError::Panicked(Arc::clone(panic)),
            GetError::Deadline => GetError::Deadline,
            GetError::Overloaded => GetError::Overloaded,
            GetError::Reentrant => GetError::Reentrant,
            GetError::Abandoned => GetError::Abandoned,
        }
    }
}

impl<E: fmt::Display> fmt::Display for GetError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GetError::Absent => f.write_str("there is no such thing"),
            GetError::Load(error) => write!(f, "the load failed: {error}"),
            GetError::Elsewhere(why) => write!(f, "the load failed in another process: {why}"),
            GetError::TimedOut => f.write_str("the load took too long"),
            GetError::Refused(refusal) => write!(f, "the load was not begun: {refusal}"),
            GetError::Panicked(panic) => write!(f, "the load {panic}"),
            GetError::Deadline => f.write_str("the deadline came before the load was over"),
            GetError::Overloaded => f.write_str("too many wait for this key"),
            GetError::Reentrant => f.write_str("the load of a key asked for the same key"),
            GetError::Abandoned => f.write_str("the load was dropped"),
        }
    }
}

/// Whatever loads fail with: an error, [any](AnyError), or only something to say. What was boxed is its own error's source;
/// what was not is in its words, and in [`GetError::Load`] for whoever wants more.
impl<E: fmt::Debug + fmt::Display + 'static> Error for GetError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            GetError::Load(error) => {
                let boxed = (&**error as &dyn Any).downcast_ref::<AnyError>()?;
                Some(&**boxed)
            }
            GetError::Refused(refusal) => Some(refusal),
            GetError::Panicked(panic) => Some(&**panic),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn any(error: impl Into<AnyError>) -> Result<(), AnyError> {
        Err(GetError::<AnyError>::Load(Arc::new(error.into())))?
    }

    #[test]
    fn whatever_a_load_fails_with_a_handler_can_pass_it_on_as_an_error() {
        let told = any("no such table").unwrap_err();
        assert_eq!(told.to_string(), "the load failed: no such table");
        let typed = || -> Result<(), Box<dyn Error>> { Err(GetError::Load(Arc::new(io::Error::other("disk"))))? };
        assert_eq!(typed().unwrap_err().to_string(), "the load failed: disk");
        let words = || -> Result<(), Box<dyn Error>> { Err(GetError::Load(Arc::new("words".to_owned())))? };
        assert_eq!(words().unwrap_err().to_string(), "the load failed: words");
    }

    #[test]
    fn what_was_boxed_is_still_found_behind_the_load_that_failed() {
        let error = any(io::Error::new(io::ErrorKind::TimedOut, "slow disk")).unwrap_err();
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::TimedOut));
    }
}
