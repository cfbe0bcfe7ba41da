//! The real world: the machine's clock, tokio's timers and tasks, and chance from the operating system.

use std::{
    future::Future,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};

pub(super) struct System {
    /// The runtime it was made in, so that threads outside of it can sleep and spawn too.
    runtime: Option<Handle>,
    seed: u64,
    /// How many streams were handed out; each is another one.
    streams: AtomicU64,
}

impl System {
    pub(super) fn new() -> System {
        System { runtime: Handle::try_current().ok(), seed: unknown_seed(), streams: AtomicU64::new(0) }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn count_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    #[track_caller]
    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime("spawn a task").spawn(future)
    }

    /// Gives the work back if there is no runtime.
    pub(super) fn spawn_blocking<T, W>(&self, work: W) -> Result<JoinHandle<T>, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match self.known_runtime() {
            Some(runtime) => Ok(runtime.spawn_blocking(work)),
            None => Err(work),
        }
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "this is the one door to real timers")]
    pub(super) fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        let _entered = self.runtime("sleep").enter();
        tokio::time::sleep(duration)
    }

    pub(super) fn has_runtime(&self) -> bool {
        self.known_runtime().is_some()
    }

    fn known_runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.runtime.clone())
    }

    #[track_caller]
    fn runtime(&self, purpose: &str) -> Handle {
        match self.known_runtime() {
            Some(runtime) => runtime,
            None => panic!(
                "Env::system() needs a tokio runtime to {purpose}: call this inside one, make the Env inside one, or use Sim"
            ),
        }
    }
}

#[expect(clippy::disallowed_types, reason = "this is the one door to the operating system's randomness")]
fn unknown_seed() -> u64 {
    std::collections::hash_map::RandomState::new().hash_one(0)
}
