//! Where a load is in memory while it is polled.
//!
//! A load must not move once it was polled, so it is on the heap. The next load is most likely of the same type, so when one
//! was ready at once its slot is kept for the next: a call of a ready load that nobody joins does not allocate. Gains 10 % of such
//! a call (`bench flight`, `uncontended`).

use std::{any::Any, pin::Pin};

use super::lead::InProgress;

/// A load on the heap, or where one was.
pub(super) type Pinned<F> = Pin<Box<Option<F>>>;

/// An empty slot for loads of some type: a boxed [`Pinned`], because a `Pin` cannot be downcast itself.
pub(super) type Spare = Box<dyn Any + Send>;

/// A larger slot is not kept: each shard has one spare, for good.
const LARGEST_SPARE: usize = 1024;

/// A slot for a load of one type.
pub(crate) enum Slot<F> {
    /// None yet.
    None,
    Made(Pinned<F>),
    /// The spare, in the box it was kept in.
    Kept(Box<Pinned<F>>),
}

impl<F: Send + 'static> Slot<F> {
    /// The spare, if it is one for such a load; otherwise it stays where it is.
    #[inline]
    pub(super) fn find(spare: &mut Option<Spare>) -> Slot<F> {
        match spare.take().map(Spare::downcast) {
            None => Slot::None,
            Some(Ok(kept)) => Slot::Kept(kept),
            Some(Err(other)) => {
                *spare = Some(other);
                Slot::None
            }
        }
    }

    /// Puts the load here.
    #[inline(always)]
    pub(super) fn put(&mut self, load: F) -> Pin<&mut F> {
        let slot = match self {
            Slot::Kept(slot) => {
                slot.set(Some(load));
                &mut **slot
            }
            Slot::Made(slot) => {
                slot.set(Some(load));
                slot
            }
            Slot::None => {
                *self = Slot::Made(Box::pin(Some(load)));
                let Slot::Made(slot) = self else { unreachable!("it was made a line ago") };
                slot
            }
        };
        let Some(load) = slot.as_mut().as_pin_mut() else { unreachable!("it was put there a line ago") };
        load
    }

    /// The load that was put here, to go on elsewhere.
    pub(crate) fn into_load(self) -> InProgress<F> {
        match self {
            Slot::Made(slot) => InProgress(slot),
            Slot::Kept(slot) => InProgress(*slot),
            Slot::None => unreachable!("what is not ready was put somewhere"),
        }
    }

    /// Drops the load, and gives the slot if it is worth keeping.
    #[inline]
    pub(super) fn vacate(self) -> Option<Spare> {
        let mut slot = match self {
            Slot::Kept(slot) => slot,
            Slot::Made(slot) if size_of::<F>() <= LARGEST_SPARE => Box::new(slot),
            Slot::Made(_) | Slot::None => return None,
        };
        slot.set(None);
        Some(slot)
    }
}
