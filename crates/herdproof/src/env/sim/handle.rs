//! The simulated kind of [`Task`](crate::env::Task): who spawned it can wait for it, end it, or let it go.

use std::{
    future::Future,
    marker::PhantomData,
    panic::Location,
    sync::Arc,
    task::{Context, Poll},
};

use super::{tasks, world::World};
use crate::env::{Inner, task::Died};

pub(in crate::env) struct SimTask<T> {
    env: Arc<Inner>,
    /// `None` if the world had ended before the task could begin.
    task: Option<u32>,
    output: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> SimTask<T> {
    pub(in crate::env) fn spawn<F>(
        env: &Arc<Inner>,
        world: &World,
        future: F,
        place: &'static Location<'static>,
        name: Option<Box<str>>,
    ) -> SimTask<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let place = world.lock().tasks.place(place);
        let task = place.map(|place| {
            let body = tasks::body(future, place);
            let mut state = world.lock();
            let task = state.tasks.begin_observed(name, body);
            state.enqueue(task);
            task
        });
        SimTask { env: Arc::clone(env), task, output: PhantomData }
    }
}

impl<T> SimTask<T> {
    fn world(&self) -> &World {
        self.env.world()
    }

    pub(in crate::env) fn is_finished(&self) -> bool {
        self.task.is_none_or(|task| self.world().lock().tasks.is_over(task))
    }

    pub(in crate::env) fn abort(&self) {
        let Some(task) = self.task else { return };
        let body = self.world().lock().tasks.doom(task);
        if body.is_some() {
            self.world().end(task, body, Died::Aborted);
        }
    }
}

impl<T: 'static> SimTask<T> {
    pub(in crate::env) fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Died>> {
        let Some(task) = self.task else { return Poll::Ready(Err(Died::Aborted)) };
        let joined = self.world().lock().tasks.join(task, cx.waker());
        let body = match joined {
            Ok(body) => body,
            Err(replaced) => {
                drop(replaced);
                return Poll::Pending;
            }
        };
        let mut ending = None;
        if let Some(mut body) = body {
            body.as_mut().take(&mut ending);
        }
        // A world that ended took the body, and with it what would have been the output.
        Poll::Ready(ending.unwrap_or(Err(Died::Aborted)))
    }
}

impl<T> Drop for SimTask<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task {
            let leftovers = self.world().lock().tasks.unobserve(task);
            drop(leftovers);
        }
    }
}
