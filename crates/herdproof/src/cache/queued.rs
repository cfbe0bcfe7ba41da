//! Loads in line at the limit that nobody waits for, and how they hear that somebody does.
//!
//! A refresh stands behind all misses. Should what it refreshes become too old to be served while it stands there, whoever asks
//! for it joins it, and would stand behind all misses too, or be turned away like something that nobody misses. So who joins
//! says so, and the load goes over to the line of those that are waited for.

use std::{collections::BTreeMap, sync::Arc, task::Waker};

use parking_lot::Mutex;

use crate::inflight::Place;

#[derive(Default)]
pub(super) struct Queued(Mutex<BTreeMap<u64, Waker>>);

/// A load in line. Dropped, it is not to be found any more.
pub(super) struct InLine {
    queued: Arc<Queued>,
    places: Box<[Place]>,
}

impl Queued {
    /// Somebody waits for the load that has this place.
    pub(super) fn awaited(&self, place: Place) {
        let waker = self.0.lock().remove(&place.number);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn enter(self: &Arc<Self>, places: &[Place]) -> InLine {
        InLine { queued: Arc::clone(self), places: places.into() }
    }
}

impl InLine {
    /// Is to be woken by whoever comes to wait for it.
    pub(super) fn listen(&self, waker: &Waker) {
        let mut queued = self.queued.0.lock();
        // Kept until the lock is not held: to drop a waker may do anything.
        let _before: Vec<_> =
            self.places.iter().filter_map(|place| queued.insert(place.number, waker.clone())).collect();
        drop(queued);
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut queued = self.queued.0.lock();
        let _gone: Vec<_> = self.places.iter().filter_map(|place| queued.remove(&place.number)).collect();
        drop(queued);
    }
}
