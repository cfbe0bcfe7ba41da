//! What the simulated world is made of: its clock, its timers and its tasks, behind one lock.
//!
//! The lock is never held while a future or a waker runs, nor while one is dropped: all of them may come back here.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use super::{tasks::Tasks, timers::Timers};
use crate::env::{rng::Rng, tick::Tick};

pub(in crate::env) struct World {
    seed: u64,
    /// Written by the executor only, read by everybody.
    now: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) timers: Timers,
    pub(super) tasks: Tasks,
    /// Tasks to be polled at the present tick.
    pub(super) ready: VecDeque<u32>,
    pub(super) ties: Option<Rng>,
    streams: HashSet<u64, BuildHasherDefault<Mixed>>,
    /// For streams asked for more than once: how often.
    repeats: ByNumber<u64, u64>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World { seed, now: AtomicU64::new(0), state: Mutex::default() }
    }

    pub(in crate::env) fn seed(&self) -> u64 {
        self.seed
    }

    pub(in crate::env) fn now(&self) -> Tick {
        Tick::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// Puts the clock forward, never back. Only the executor does that, so it need not be one step.
    pub(super) fn pass_to(&self, tick: Tick) {
        self.now.store(self.now().max(tick).as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// How often this stream was asked for before.
    pub(in crate::env) fn count_stream(&self, key: u64) -> u64 {
        let state = &mut *self.lock();
        if state.streams.insert(key) {
            return 0;
        }
        let again = state.repeats.entry(key).or_default();
        *again += 1;
        *again
    }
}

impl State {
    /// The next task to poll at the present tick.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        if let Some(rng) = &self.ties
            && self.ready.len() > 1
        {
            let chosen = usize::try_from(rng.below(self.ready.len() as u64)).unwrap_or(0);
            self.ready.swap(0, chosen);
        }
        self.ready.pop_front()
    }

    pub(super) fn enqueue(&mut self, task: u32) {
        if self.tasks.mark_queued(task) {
            self.ready.push_back(task);
        }
    }
}

pub(super) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Mixed>>;

/// Hashes numbers by one multiplication. Nothing ever walks these maps, so their order cannot show.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
