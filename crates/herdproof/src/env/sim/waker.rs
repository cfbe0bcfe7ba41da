//! How a task is told that it can go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Wake,
};

use crate::env::Inner;

/// Wakes one task.
///
/// Most tasks only ever sleep, and for that nobody keeps a waker. So there is one spare waker, bound to the next task
/// before each poll; only if somebody keeps a copy does it become that task's own, and another spare is made.
pub(super) struct TaskWaker {
    env: Arc<Inner>,
    /// The slot in the lower half, its generation in the upper.
    task: AtomicU64,
}

impl TaskWaker {
    pub(super) fn new(env: &Arc<Inner>) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { env: Arc::clone(env), task: AtomicU64::new(0) })
    }

    pub(super) fn bind(&self, task: u32, generation: u32) {
        self.task.store(u64::from(generation) << 32 | u64::from(task), Ordering::Relaxed);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half is taken for itself")]
    fn wake_by_ref(self: &Arc<Self>) {
        let bound = self.task.load(Ordering::Relaxed);
        let (task, generation) = (bound as u32, (bound >> 32) as u32);
        let state = &mut *self.env.world().lock();
        if state.tasks.is_generation(task, generation) {
            state.enqueue(task);
        }
    }
}
