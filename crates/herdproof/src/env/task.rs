//! A handle on work that runs on its own.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::error::Panic;

#[cfg(feature = "sim")]
use super::sim::SimTask;

/// Work started by [`Env::spawn`](super::Env::spawn); awaiting it gives its output.
///
/// Dropping the handle leaves the work running. [`abort`](Task::abort) ends it at its next await.
#[must_use = "dropping a Task leaves its work running unobserved; say `.detach()` if that is meant"]
pub struct Task<T>(pub(super) Kind<T>);

pub(super) enum Kind<T> {
    System(tokio::task::JoinHandle<T>),
    #[cfg(feature = "sim")]
    Sim(SimTask<T>),
}

/// Why a task gave no output.
#[derive(Debug)]
pub enum Died {
    /// It was aborted, or its runtime was shut down.
    Aborted,
    /// It panicked.
    Panicked(Panic),
}

impl<T> Task<T> {
    /// Leaves the work running with nobody to wait for it.
    pub fn detach(self) {}

    /// Ends the work at its next await; it is not dropped while it is being polled.
    pub fn abort(&self) {
        match &self.0 {
            Kind::System(handle) => handle.abort(),
            #[cfg(feature = "sim")]
            Kind::Sim(task) => task.abort(),
        }
    }

    /// Whether the work has ended, one way or another.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Kind::System(handle) => handle.is_finished(),
            #[cfg(feature = "sim")]
            Kind::Sim(task) => task.is_finished(),
        }
    }
}

impl<T: 'static> Future for Task<T> {
    type Output = Result<T, Died>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Kind::System(handle) => Poll::Ready(ready!(Pin::new(handle).poll(cx)).map_err(|error| {
                error.try_into_panic().map_or(Died::Aborted, |payload| Died::Panicked(Panic::new(payload)))
            })),
            #[cfg(feature = "sim")]
            Kind::Sim(task) => task.poll_output(cx),
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Died::Aborted => f.write_str("the task was aborted"),
            Died::Panicked(panic) => write!(f, "the task {panic}"),
        }
    }
}

impl Error for Died {}
