//! How a flight ends, for those aboard.

use std::{any::Any, error::Error, fmt, sync::Arc, time::Duration};

use crate::error::Panic;

/// A load that landed.
// In this order, because then an error lies where whole words were written, and to look for one does not wait for two bools
// to arrive from the store buffer: a sixth of a lonely call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed<V> {
    /// What was loaded.
    pub value: V,
    /// How long this caller waited, to the few milliseconds that a coarse clock can tell.
    pub waited: Duration,
    /// Whether it was this caller who began the load.
    pub led: bool,
    /// Whether anybody else had a part in it.
    pub shared: bool,
}

impl<V> Landed<V> {
    /// For the one caller of a load that was ready at once.
    pub(super) fn alone(value: V) -> Landed<V> {
        Landed { value, led: true, shared: false, waited: Duration::ZERO }
    }
}

/// Why a caller got no value.
#[derive(Debug)]
pub enum FlightError<E> {
    /// The load failed, and this is its error, for everybody.
    Load(Arc<E>),
    /// The load panicked. Whoever began it has the panic itself, the others its message.
    Panicked(Arc<Panic>),
    /// This caller's own deadline came first. The load goes on for the others.
    Deadline,
    /// As many callers wait for this key as may.
    Overloaded,
    /// The load of a key asked for the same key, and would have waited for itself.
    Reentrant,
    /// The load was dropped before it ended: its runtime was shut down, or it ended without landing.
    Abandoned,
}

/// What the load itself came to.
#[derive(Debug)]
pub(crate) enum Ending<V, E> {
    Value(V),
    Failed(Arc<E>),
    Panicked(Arc<Panic>),
    Abandoned,
}

impl<V, E> Ending<V, E> {
    pub(super) fn failed(error: E) -> Ending<V, E> {
        Ending::Failed(Arc::new(error))
    }

    pub(super) fn panicked(payload: Box<dyn Any + Send>) -> Ending<V, E> {
        Ending::Panicked(Arc::new(Panic::new(payload)))
    }
}

impl<V, E> From<Result<V, E>> for Ending<V, E> {
    fn from(outcome: Result<V, E>) -> Self {
        outcome.map_or_else(Ending::failed, Ending::Value)
    }
}

impl<V, E> From<Ending<V, E>> for Result<V, FlightError<E>> {
    fn from(ending: Ending<V, E>) -> Self {
        match ending {
            Ending::Value(value) => Ok(value),
            Ending::Failed(error) => Err(FlightError::Load(error)),
            Ending::Panicked(panic) => Err(FlightError::Panicked(panic)),
            Ending::Abandoned => Err(FlightError::Abandoned),
        }
    }
}

impl<V: Clone, E> Clone for Ending<V, E> {
    fn clone(&self) -> Self {
        match self {
            Ending::Value(value) => Ending::Value(value.clone()),
            Ending::Failed(error) => Ending::Failed(Arc::clone(error)),
            Ending::Panicked(panic) => Ending::Panicked(Arc::clone(panic)),
            Ending::Abandoned => Ending::Abandoned,
        }
    }
}

impl<E> Clone for FlightError<E> {
    fn clone(&self) -> Self {
        match self {
            FlightError::Load(error) => FlightError::Load(Arc::clone(error)),
            FlightError::Panicked(panic) => FlightError::Panicked(Arc::clone(panic)),
            FlightError::Deadline => FlightError::Deadline,
            FlightError::Overloaded => FlightError::Overloaded,
            FlightError::Reentrant => FlightError::Reentrant,
            FlightError::Abandoned => FlightError::Abandoned,
        }
    }
}

impl<E: fmt::Display> fmt::Display for FlightError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlightError::Load(error) => write!(f, "the load failed: {error}"),
            FlightError::Panicked(panic) => write!(f, "the load {panic}"),
            FlightError::Deadline => f.write_str("the caller's deadline passed before the load landed"),
            FlightError::Overloaded => f.write_str("too many callers wait for this key"),
            FlightError::Reentrant => f.write_str("the load of this key asked for the key itself"),
            FlightError::Abandoned => f.write_str("the load was dropped before it ended"),
        }
    }
}

impl<E: Error + 'static> Error for FlightError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FlightError::Load(error) => Some(&**error),
            FlightError::Panicked(panic) => Some(&**panic),
            _ => None,
        }
    }
}
