//! Virtual time: test your own service's herd.
//!
//! A herd is a matter of timing, and timing in tests is either slow and flaky (real sleeping) or not tested. [`Sim`] runs
//! the code you ship, this library included, on a clock that jumps: an hour of retries by 200,000 clients takes seconds,
//! and the same seed gives the same run to the last event.
//!
//! ```
//! use std::{sync::Arc, sync::atomic::{AtomicU32, Ordering}, time::Duration};
//! use herdproof::{Backoff, Sim};
//!
//! let mut sim = Sim::new(42);
//! let env = sim.env();
//! let calls = Arc::new(AtomicU32::new(0));
//!
//! for client in 0..100 {
//!     let (env, calls) = (env.scope(client), Arc::clone(&calls));
//!     env.clone().spawn(async move {
//!         let rng = env.rng("retry");
//!         let mut delays = Backoff::exponential(Duration::from_millis(10)).delays();
//!         for _attempt in 0..5 {
//!             calls.fetch_add(1, Ordering::Relaxed); // the call that always fails
//!             env.sleep(delays.next(&rng)).await;
//!         }
//!     })
//!     .detach();
//! }
//! let end = sim.finish().expect("nobody waits for ever");
//! assert_eq!(calls.load(Ordering::Relaxed), 500);
//! assert!(end.as_nanos() < 310_000_000); // without jitter, 310 ms to the nanosecond
//! ```
//!
//! The rules of this world:
//!
//! - Time passes only when nothing can run. Work takes no time unless it sleeps.
//! - Events of the same instant happen in the order in which they were asked for, or, after
//!   [`shuffle_ties`](Sim::shuffle_ties), in a random order that the seed decides. Herds are full of ties, so try both.
//! - If nothing can run and no timer is pending, nobody will ever wake up: that is a [`Deadlock`], and it names the tasks.
//! - A panic in a task whose handle was dropped ends the run, since nobody else would hear of it.
//! - The world is closed. Real sockets, threads and tokio's own timers are not part of it.

mod handle;
mod queue;
mod slab;
mod tasks;
mod timers;
mod waker;
mod world;

use std::{
    any::Any,
    error::Error,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Waker},
};

pub use queue::EventQueue;
use tasks::Body;
use waker::TaskWaker;
pub(super) use {handle::SimTask, timers::Timer, world::World};

use super::{Env, Inner, task::Died, tick::Tick};
use crate::error::Panic;

/// How many waiting tasks the message of a deadlock names.
const NAMED: usize = 12;

/// A world with a clock of its own; see the [module](self).
pub struct Sim {
    env: Env,
    /// A waker that belongs to no task, because nobody has kept a copy of it yet.
    spare: Option<(Arc<TaskWaker>, Waker)>,
}

/// Nothing can run and no timer is pending, but somebody still waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// When the last thing happened.
    pub at: Tick,
    /// The tasks that wait, by their names and the places that spawned them.
    pub waiting: Vec<String>,
}

/// The future that `run` polls itself, and the slot that stands for it among the tasks.
struct Root<'a> {
    slot: u32,
    future: Pin<&'a mut dyn Future<Output = ()>>,
}

impl Sim {
    /// A new world at tick zero. Everything random in it follows from the seed.
    pub fn new(seed: u64) -> Sim {
        Sim { env: Env::over(Inner::Sim(Box::new(World::new(seed)))), spare: None }
    }

    /// Lets the seed, rather than the order of asking, decide who goes first among those who can run at one instant.
    #[must_use]
    pub fn shuffle_ties(self) -> Sim {
        let rng = self.env.rng("sim/ties");
        self.world().lock().ties = Some(rng);
        self
    }

    /// The door to this world, for everything that is to live in it.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Runs until this future is done, and gives its output. Tasks it leaves behind go on with the next run.
    ///
    /// # Panics
    ///
    /// With the names of those who wait, if the future can never be done; with the panic of a task that nobody watches.
    #[track_caller]
    pub fn run<F: Future>(&mut self, future: F) -> F::Output {
        self.try_run(future).unwrap_or_else(|deadlock| panic!("{deadlock}"))
    }

    /// Like [`run`](Sim::run), with a future that can never be done as an error.
    #[track_caller]
    pub fn try_run<F: Future>(&mut self, future: F) -> Result<F::Output, Deadlock> {
        let env = self.env();
        let world = env.inner.world();
        let slot = world.lock().begin_root(Location::caller());
        let mut output = None;
        let driven = {
            let future = pin!(async { output = Some(future.await) });
            catch_unwind(AssertUnwindSafe(|| self.drive(Tick::MAX, Some(Root { slot, future }))))
        };
        let result = output.ok_or_else(|| self.deadlock());
        world.finish(slot, None);
        driven.unwrap_or_else(|payload| resume_unwind(payload));
        result
    }

    /// Runs until every task has ended, and gives the tick of the last event. A [`Cache`](crate::Cache) has a task that sweeps for as
    /// long as the cache lives: drop it first.
    pub fn finish(&mut self) -> Result<Tick, Deadlock> {
        self.drive(Tick::MAX, None);
        let live = self.world().lock().tasks.live;
        if live == 0 { Ok(self.world().now()) } else { Err(self.deadlock()) }
    }

    /// Runs everything that happens up to this tick, and puts the clock there.
    pub fn run_until(&mut self, tick: Tick) {
        self.drive(tick, None);
        self.world().pass_to(tick);
    }

    fn world(&self) -> &World {
        self.env.inner.world()
    }

    fn deadlock(&self) -> Deadlock {
        Deadlock { at: self.world().now(), waiting: self.world().lock().tasks.waiting() }
    }

    /// Runs until the root is done or nothing more happens up to the limit.
    fn drive(&mut self, limit: Tick, mut root: Option<Root<'_>>) {
        let env = self.env();
        let world = env.inner.world();
        let mut state = world.lock();
        loop {
            let task = loop {
                match state.next_ready() {
                    Some(task) => break task,
                    None if world.advance(&mut state, limit) => {}
                    None => return,
                }
            };
            let (mut body, own, generation) = state.tasks.enter(task);
            let root = root.as_mut().filter(|root| root.slot == task);
            if body.is_none() && root.is_none() {
                continue; // It was ended after it had been woken.
            }
            let (task_waker, waker) = match own {
                Some(own) => (Arc::clone(&own), Waker::from(own)),
                None => self.spare.take().unwrap_or_else(|| new_waker(&env)),
            };
            task_waker.bind(task, generation);
            state.tasks.set_running(task, &waker);
            drop(state);

            let cx = &mut Context::from_waker(&waker);
            let is_root = root.is_some();
            let polled = match (&mut body, root) {
                (Some(body), _) => catch_unwind(AssertUnwindSafe(|| body.as_mut().run(cx))),
                (None, Some(root)) => Ok(root.future.as_mut().poll(cx).is_ready()),
                (None, None) => Ok(true),
            };
            // The pair counts as two; a third is somebody who keeps the waker, which makes it this task's own.
            let own = if Arc::strong_count(&task_waker) == 2 {
                self.spare = Some((task_waker, waker));
                None
            } else {
                Some(task_waker)
            };

            state = world.lock();
            let over = match polled {
                Ok(false) => match state.tasks.leave(task, body, own) {
                    Ok(()) => continue,
                    Err(doomed) => Over::Ended(doomed, Died::Aborted),
                },
                Ok(true) if is_root => return,
                Ok(true) => Over::Done(body),
                Err(payload) if state.tasks.is_observed(task) => Over::Ended(body, Died::Panicked(Panic::new(payload))),
                Err(payload) => Over::Unseen(body, payload),
            };
            drop(state);
            match over {
                Over::Done(body) => world.finish(task, body),
                Over::Ended(body, died) => world.end(task, body, died),
                Over::Unseen(body, payload) => {
                    world.finish(task, body);
                    resume_unwind(payload);
                }
            }
            state = world.lock();
        }
    }
}

/// How a task's last poll went.
enum Over {
    Done(Option<Body>),
    Ended(Option<Body>, Died),
    /// It panicked and nobody watches.
    Unseen(Option<Body>, Box<dyn Any + Send>),
}

fn new_waker(env: &Env) -> (Arc<TaskWaker>, Waker) {
    let task_waker = TaskWaker::new(&env.inner);
    (Arc::clone(&task_waker), Waker::from(task_waker))
}

/// Tasks hold their world and the world holds its tasks: ending it is what lets go of both.
impl Drop for Sim {
    fn drop(&mut self) {
        let leftovers = self.world().lock().close();
        drop(leftovers);
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.world().lock().tasks.live;
        f.debug_struct("Sim").field("now", &self.world().now()).field("tasks", &live).finish_non_exhaustive()
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deadlock at {:?}: nothing can run, no timer is pending, and ", self.at - Tick::ZERO)?;
        match self.waiting.len() {
            1 => write!(f, "one task waits: {}", self.waiting[0]),
            n => {
                write!(f, "{n} tasks wait: {}", self.waiting[..n.min(NAMED)].join(", "))?;
                if n > NAMED { write!(f, " and {} more", n - NAMED) } else { Ok(()) }
            }
        }
    }
}

impl Error for Deadlock {}

#[cfg(test)]
mod tests;
