//! Where a load lives while it is polled.
//!
//! A load must not move once it was polled, so it lives on the heap. The next load is most likely of the same kind, so when
//! one was ready at once its place is kept for the next: a lonely call of a ready load asks the allocator for nothing.

use std::{any::Any, pin::Pin};

use super::load::Afloat;

/// A load on the heap, or where one was.
pub(super) type Pinned<F> = Pin<Box<Option<F>>>;

/// An empty place for some kind of load: a boxed [`Pinned`], since what is pinned has no name for its type to be found by.
pub(super) type Spare = Box<dyn Any + Send>;

/// A larger place is not kept: there is one spare in each shard, for good.
const LARGEST_SPARE: usize = 1024;

/// A place for a load of one kind.
pub(crate) enum Berth<F> {
    /// None yet.
    None,
    Made(Pinned<F>),
    /// One that was there, in the box it was kept in.
    Kept(Box<Pinned<F>>),
}

impl<F: Send + 'static> Berth<F> {
    /// This spare place, if it is one for such a load; otherwise it stays where it is.
    #[inline]
    pub(super) fn find(spare: &mut Option<Spare>) -> Berth<F> {
        match spare.take().map(Spare::downcast) {
            None => Berth::None,
            Some(Ok(kept)) => Berth::Kept(kept),
            Some(Err(other)) => {
                *spare = Some(other);
                Berth::None
            }
        }
    }

    /// Puts the load here.
    #[inline(always)]
    pub(super) fn board(&mut self, load: F) -> Pin<&mut F> {
        let place = match self {
            Berth::Kept(place) => {
                place.set(Some(load));
                &mut **place
            }
            Berth::Made(place) => {
                place.set(Some(load));
                place
            }
            Berth::None => {
                *self = Berth::Made(Box::pin(Some(load)));
                let Berth::Made(place) = self else { unreachable!("it was made a line ago") };
                place
            }
        };
        let Some(load) = place.as_mut().as_pin_mut() else { unreachable!("it was put there a line ago") };
        load
    }

    /// The load that was put here, to go on elsewhere.
    pub(crate) fn into_afloat(self) -> Afloat<F> {
        match self {
            Berth::Made(place) => Afloat(place),
            Berth::Kept(place) => Afloat(*place),
            Berth::None => unreachable!("what is not ready was put somewhere"),
        }
    }

    /// Drops the load, and gives its place if it is worth keeping.
    #[inline]
    pub(super) fn vacate(self) -> Option<Spare> {
        let mut place = match self {
            Berth::Kept(place) => place,
            Berth::Made(place) if size_of::<F>() <= LARGEST_SPARE => Box::new(place),
            Berth::Made(_) | Berth::None => return None,
        };
        place.set(None);
        Some(place)
    }
}
