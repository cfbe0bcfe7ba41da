//! Time, chance and tasks, through one door.
//!
//! A policy that reads the clock, draws a number or starts a task on its own account can only be tested by waiting, and
//! its herd only be seen in production. Everything in this library asks an [`Env`] instead. [`Env::system`] is the real
//! world: the monotonic clock, tokio's timers and tasks, a random seed. [`sim::Sim`] is a deterministic one, in which the
//! same code runs in virtual time.
//!
//! ```
//! use std::time::Duration;
//! use herdproof::Env;
//!
//! async fn poll_politely(env: Env) {
//!     let rng = env.rng("poll/inventory");
//!     for _ in 0..3 {
//!         env.sleep(rng.between(Duration::from_millis(1), Duration::from_millis(2))).await;
//!     }
//! }
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! runtime.block_on(poll_politely(Env::system()));
//! # Ok::<(), std::io::Error>(())
//! ```

mod clock;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod counter;
mod rng;
#[cfg(feature = "sim")]
pub mod sim;
mod sleep;
mod system;
mod task;
mod tick;

use std::{
    fmt,
    future::Future,
    hash::BuildHasher,
    panic::Location,
    sync::Arc,
    time::{Duration, SystemTime},
};

use foldhash::{
    SharedSeed,
    fast::{FoldHasher, SeedableRandomState},
};

use crate::event::{Event, Observer};

pub use rng::Rng;
pub(crate) use rng::{below, within};
pub use sleep::Sleep;
use system::System;
pub use task::{Died, Task};
pub use tick::Tick;
pub(crate) use tick::nanos;

/// Midnight of 1 January 2026 UTC, where the simulated wall clock begins: every ":00" is a round number of ticks.
#[cfg(feature = "sim")]
const SIM_WALL: Duration = Duration::from_secs(1_767_225_600);

/// Where time, chance and tasks come from; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Env {
    inner: Arc<Inner>,
    scope: u64,
    /// Boxed again, because there may be an `Env` for each of 200,000 clients and a plain pointer is half the size.
    observer: Option<Arc<Box<dyn Observer>>>,
}

enum Inner {
    System(System),
    #[cfg(feature = "sim")]
    /// Boxed because it is large and there is one per simulation.
    Sim(Box<sim::World>),
}

impl Env {
    /// The real world, on tokio, with a random seed.
    ///
    /// It belongs to the tokio runtime in which it is made. All that it spawns runs there, whichever runtime the call is made
    /// in: a load that callers of two runtimes share does not end because the runtime of one of them does. Made outside of a
    /// runtime, or once its runtime has been shut down, it spawns on the runtime of the call.
    ///
    /// Made outside of a runtime it also saves the check of which runtime each call is made in: 12 ns of each miss, and 10 of each
    /// flight (`bench cache`, `miss`; `bench flight`, `uncontended`).
    ///
    /// It does not follow `tokio::time::pause`: tests in virtual time use `Sim`.
    ///
    /// A current-thread runtime runs its tasks only while a thread is in its `block_on`. Where several such runtimes share a
    /// cache, and each may end before the others, use [`unbound`](Env::unbound).
    pub fn system() -> Env {
        Env::over(Inner::System(System::new()))
    }

    /// As [`system`](Env::system), but belongs to no runtime: tasks run on the runtime of the call that spawns them.
    ///
    /// For a static that short-lived runtimes share, such as those of `#[tokio::test]`s that run in parallel. A load that another
    /// runtime began ends with that runtime, as [`Abandoned`](crate::flight::FlightError::Abandoned): ask again then.
    ///
    /// ```
    /// use std::sync::LazyLock;
    /// use herdproof::{Cache, Env};
    ///
    /// static SIZES: LazyLock<Cache<String, u64>> = LazyLock::new(|| Cache::builder(&Env::unbound()).build());
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # assert_eq!(runtime.block_on(async { SIZES.get("a", || async { Ok(1) }).await }).unwrap().value, 1);
    /// ```
    pub fn unbound() -> Env {
        Env::over(Inner::System(System::unbound()))
    }

    fn over(inner: Inner) -> Env {
        Env { inner: Arc::new(inner), scope: 0, observer: None }
    }

    /// The monotonic clock, to the nanosecond.
    #[inline]
    pub fn now(&self) -> Tick {
        match &*self.inner {
            Inner::System(_) => clock::now(),
            #[cfg(feature = "sim")]
            Inner::Sim(world) => world.now(),
        }
    }

    /// The same clock some milliseconds behind at worst, for a fraction of the price.
    ///
    /// For expiry checks on a hit path, where a few milliseconds are nothing. A rate limiter must use [`now`](Env::now):
    /// on a coarse clock its tokens would come back in steps, and everybody waiting for one would be let go at once.
    #[inline]
    pub fn coarse(&self) -> Tick {
        match &*self.inner {
            Inner::System(_) => clock::coarse(),
            #[cfg(feature = "sim")]
            Inner::Sim(world) => world.now(),
        }
    }

    /// The time of day, for dates in protocols. It can jump; nothing here measures with it.
    pub fn wall(&self) -> SystemTime {
        match &*self.inner {
            Inner::System(_) => clock::wall(),
            #[cfg(feature = "sim")]
            Inner::Sim(world) => SystemTime::UNIX_EPOCH + SIM_WALL + (world.now() - Tick::ZERO),
        }
    }

    /// Waits until the clock has reached `tick`, and gives what it shows then. The timer is one of the runtime in which it is
    /// first polled; a thread outside of all runtimes uses the runtime of this `Env`.
    ///
    /// # Panics
    ///
    /// When awaited in the real world without a tokio runtime that has its timer enabled.
    pub fn sleep_until(&self, tick: Tick) -> Sleep {
        Sleep::new(Arc::clone(&self.inner), tick)
    }

    /// Waits for this long from now on.
    ///
    /// # Panics
    ///
    /// As [`sleep_until`](Env::sleep_until).
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Starts work that runs on its own, on the runtime of this `Env`; see [`system`](Env::system).
    ///
    /// # Panics
    ///
    /// In the real world without a tokio runtime, or with none but one that has been shut down.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(future, None, Location::caller())
    }

    /// As [`spawn`](Env::spawn), under a name by which a simulated deadlock calls it.
    ///
    /// # Panics
    ///
    /// As [`spawn`](Env::spawn).
    #[track_caller]
    pub fn spawn_named<F>(&self, name: impl Into<Box<str>>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(future, Some(name.into()), Location::caller())
    }

    /// Starts work that blocks, on a thread that is there for it. Gives it back where there is none: without a runtime, and in
    /// a simulation.
    pub(crate) fn spawn_blocking<T, W>(&self, work: W) -> Result<Task<T>, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match &*self.inner {
            Inner::System(system) => system.spawn_blocking(work).map(|handle| Task(task::Kind::System(handle))),
            #[cfg(feature = "sim")]
            Inner::Sim(_) => Err(work),
        }
    }

    /// Polls, for the first time and in place, a future that is spawned if it is pending: within the runtime that it is going to
    /// run on, because what it opens at its first poll (timers, sockets) belongs to the runtime that is entered then.
    #[inline(always)]
    pub(crate) fn poll_in_place<R>(&self, poll: impl FnOnce() -> R) -> R {
        let _entered = match &*self.inner {
            Inner::System(system) => system.enter(),
            #[cfg(feature = "sim")]
            Inner::Sim(_) => None,
        };
        poll()
    }

    /// Whether a task can be started here.
    pub(crate) fn can_spawn(&self) -> bool {
        match &*self.inner {
            Inner::System(system) => system.has_runtime(),
            #[cfg(feature = "sim")]
            Inner::Sim(_) => true,
        }
    }

    #[cfg_attr(not(feature = "sim"), expect(unused_variables, reason = "tokio's tasks have no names"))]
    #[track_caller]
    fn start<F>(&self, future: F, name: Option<Box<str>>, place: &'static Location<'static>) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task(match &*self.inner {
            Inner::System(system) => task::Kind::System(system.spawn(future)),
            #[cfg(feature = "sim")]
            Inner::Sim(world) => task::Kind::Sim(sim::SimTask::spawn(&self.inner, world, future, place, name)),
        })
    }

    /// A stream of random numbers, named after what it is for, such as `"retry/orders"`.
    ///
    /// Asking again for the same name gives another stream.
    pub fn rng(&self, name: &str) -> Rng {
        let (seed, again): (u64, &dyn Fn(u64) -> u64) = match &*self.inner {
            Inner::System(system) => (system.seed(), &|_| system.count_stream()),
            #[cfg(feature = "sim")]
            Inner::Sim(world) => (world.seed(), &|key| world.count_stream(key)),
        };
        let key = rng::stream_key(seed, self.scope, name);
        Rng::new(rng::repeated_key(key, again(key)))
    }

    /// The same world with random streams of its own: one scope for each client, instance or shard.
    #[must_use]
    pub fn scope(&self, id: u64) -> Env {
        Env { scope: rng::scope_key(self.scope, id), ..self.clone() }
    }

    /// The same world, with somebody who hears of what the policies made with it do. An `Arc` of a
    /// [`Counts`](crate::event::Counts) will do.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use herdproof::{Env, event::{Counts, Metric}, flight::Group};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let counts = Arc::new(Counts::default());
    /// let group: Group<&str, u32> = Group::new(&Env::system().observed_by(Arc::clone(&counts)));
    /// group.run("key", || async { Ok(1) }).await.unwrap();
    /// assert_eq!(counts.get(Metric::Loads), 1);
    /// # });
    /// ```
    #[must_use]
    pub fn observed_by(&self, observer: impl Observer + 'static) -> Env {
        Env { observer: Some(Arc::new(Box::new(observer))), ..self.clone() }
    }

    /// Says what happened, if somebody listens.
    #[inline]
    pub fn tell(&self, event: &Event) {
        if let Some(observer) = &self.observer {
            observer.observe(event);
        }
    }

    /// As [`tell`](Env::tell), of what takes work to say: done only if there is somebody to tell.
    #[inline]
    pub(crate) fn tell_of(&self, event: impl FnOnce() -> Event) {
        if let Some(observer) = &self.observer {
            observer.observe(&event());
        }
    }

    /// A hasher for a map whose order of iteration can show, so that a simulated run shows the same one every time.
    pub fn hasher(&self, name: &str) -> MapHasher {
        let shared = match &*self.inner {
            Inner::System(_) => SharedSeed::global_random(),
            #[cfg(feature = "sim")]
            Inner::Sim(_) => SharedSeed::global_fixed(),
        };
        MapHasher(SeedableRandomState::with_seed(self.rng(name).bits(), shared))
    }
}

/// Hashes the keys of a map, from [`Env::hasher`].
#[derive(Clone, Debug)]
pub struct MapHasher(SeedableRandomState);

/// In which of so many parts of a map a key with this hash belongs.
#[inline(always)]
pub(crate) fn part_of(hash: u64, parts: usize) -> usize {
    // The table inside a part uses the low bits and the top seven. Of the others alone, some seeds make parts of which one is a
    // quarter fuller than the rest, so all take part.
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from((mixed * parts as u64) >> 32).unwrap_or(0)
}

impl BuildHasher for MapHasher {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

#[cfg(feature = "sim")]
impl Inner {
    /// For the parts of a simulation, which are never handed another world.
    fn world(&self) -> &sim::World {
        match self {
            Inner::Sim(world) => world,
            Inner::System(_) => unreachable!("a simulated task lives in a simulated world"),
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &*self.inner {
            Inner::System(_) => "system",
            #[cfg(feature = "sim")]
            Inner::Sim(_) => "sim",
        };
        f.debug_struct("Env").field("kind", &kind).field("now", &self.now()).finish_non_exhaustive()
    }
}
