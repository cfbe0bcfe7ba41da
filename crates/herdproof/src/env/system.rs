//! The real world: the machine's clock, tokio's timers and tasks, and chance from the operating system.

use std::{
    future::{Future, pending},
    hash::BuildHasher,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{EnterGuard, Handle},
    task::{AbortHandle, JoinHandle},
};

pub(super) struct System {
    /// The runtime that it belongs to.
    home: Option<Home>,
    seed: u64,
    /// How many streams were handed out; each is another one.
    streams: AtomicU64,
}

impl System {
    /// Belongs to the runtime of the call, if there is one.
    pub(super) fn new() -> System {
        System { home: Handle::try_current().ok().map(Home::new), ..System::unbound() }
    }

    /// Belongs to no runtime.
    pub(super) fn unbound() -> System {
        System { home: None, seed: unknown_seed(), streams: AtomicU64::new(0) }
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
        self.runtime().unwrap_or_else(|| no_runtime("spawn a task")).spawn(future)
    }

    /// Gives the work back if there is no runtime.
    pub(super) fn spawn_blocking<T, W>(&self, work: W) -> Result<JoinHandle<T>, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match self.runtime() {
            Some(runtime) => Ok(runtime.spawn_blocking(work)),
            None => Err(work),
        }
    }

    /// A timer of the runtime of the call, which lives as long as the task that waits for it. A thread outside of all runtimes
    /// uses the one that this belongs to.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "this is the one door to real timers")]
    pub(super) fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        let _entered = match Handle::try_current() {
            Ok(_) => None,
            Err(_) => Some(self.living_home().unwrap_or_else(|| no_runtime("sleep")).handle.enter()),
        };
        tokio::time::sleep(duration)
    }

    /// Enters the runtime that tasks are spawned on, if the call is not made in it.
    #[inline]
    pub(super) fn enter(&self) -> Option<EnterGuard<'_>> {
        let home = self.home.as_ref()?;
        if home.is_current() { None } else { self.living_home().map(|home| home.handle.enter()) }
    }

    pub(super) fn has_runtime(&self) -> bool {
        self.runtime().is_some()
    }

    /// Where tasks run: the runtime that this belongs to; if that has been shut down, or there is none, the runtime of the call.
    fn runtime(&self) -> Option<Handle> {
        let current = Handle::try_current().ok();
        match (&self.home, current) {
            // It runs, or this call would not be made in it.
            (Some(home), Some(current)) if home.handle.id() == current.id() => Some(current),
            (_, current) => self.living_home().map(|home| home.handle.clone()).or(current),
        }
    }

    #[cold]
    fn living_home(&self) -> Option<&Home> {
        self.home.as_ref().filter(|home| home.is_alive())
    }
}

/// The runtime that an `Env` was made in.
struct Home {
    handle: Handle,
    /// Spawned by the first call from outside of the runtime; such a call cannot know whether the runtime still runs tasks.
    canary: OnceLock<Canary>,
}

/// A task that never ends by itself: a runtime drops it when it is shut down, and at once if it has been.
struct Canary {
    alive: Weak<()>,
    task: AbortHandle,
}

impl Home {
    fn new(handle: Handle) -> Home {
        Home { handle, canary: OnceLock::new() }
    }

    #[inline]
    fn is_current(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.handle.id())
    }

    fn is_alive(&self) -> bool {
        self.canary.get_or_init(|| Canary::spawn(&self.handle)).alive.strong_count() > 0
    }
}

impl Canary {
    fn spawn(runtime: &Handle) -> Canary {
        let life = Arc::new(());
        let alive = Arc::downgrade(&life);
        let task = runtime.spawn(async move {
            pending::<()>().await;
            drop(life);
        });
        Canary { alive, task: task.abort_handle() }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cold]
#[track_caller]
fn no_runtime(purpose: &str) -> ! {
    panic!(
        "Env::system() needs a tokio runtime to {purpose}, and the one it was made in, if any, has been shut down: \
         call this inside a runtime, make the Env inside one that outlives it, or use Sim"
    )
}

#[expect(clippy::disallowed_types, reason = "this is the one door to the operating system's randomness")]
fn unknown_seed() -> u64 {
    std::collections::hash_map::RandomState::new().hash_one(0)
}
