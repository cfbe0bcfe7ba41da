//! The simulated world's tasks: one allocation each, for the future and later for its ending.

use std::{
    any::Any,
    future::Future,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use pin_project_lite::pin_project;

use super::{
    slab::Slab,
    waker::TaskWaker,
    world::{ByNumber, State, World},
};
use crate::env::task::Died;

#[derive(Default)]
pub(super) struct Tasks {
    slots: Slab<Slot>,
    /// The wakers of those tasks whose waker somebody keeps; most tasks have none.
    wakers: Slab<Option<Arc<TaskWaker>>>,
    running: Option<Running>,
    /// Tasks that have begun and not ended.
    pub(super) live: usize,
    /// Who waits for a task's ending.
    joins: ByNumber<u32, Waker>,
    names: ByNumber<u32, Box<str>>,
    /// Where tasks were spawned; the tasks keep the number.
    places: Vec<&'static Location<'static>>,
    place_numbers: ByNumber<usize, u32>,
    /// A world that has ended takes no more tasks.
    closed: bool,
}

/// The task that is being polled, and what its own waker points at.
struct Running {
    task: u32,
    waker: usize,
}

/// Half a cache line and never across two: with a million tasks, fetching these is what a simulation waits for.
#[derive(Default)]
#[repr(align(32))]
struct Slot {
    /// Absent while the task is being polled or ended, and for the future that `run` itself polls.
    body: Option<Body>,
    /// One more than the index of the task's waker; zero if it has none.
    waker: u32,
    /// Numbers the timers of this slot, across all its tasks.
    ticket: u32,
    /// Tells the slot's tasks apart, so that an old waker does not wake a new task.
    generation: u32,
    stage: Stage,
    /// Whether the timer with the present ticket is pending.
    armed: bool,
    queued: bool,
    /// Whether somebody holds the task's handle.
    observed: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Free,
    Live,
    /// To be ended as soon as it is not being polled.
    Doomed,
    Ended,
}

pub(super) type Body = Pin<Box<dyn Run>>;

/// A spawned future with room for its ending.
pub(super) trait Run: Send {
    /// Where the task was spawned, and whether its future has ended: one lies at each end of the allocation.
    fn ends(&self) -> (u32, bool);
    /// Polls the future; true when it has ended.
    fn run(self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool;
    /// Drops the future and puts this ending in its place.
    fn end(self: Pin<&mut Self>, died: Died);
    /// Moves the ending into an `Option<Result<T, Died>>`.
    fn take(self: Pin<&mut Self>, into: &mut dyn Any);
}

pin_project! {
    // In this order, so that looking at both ends fetches what lies between.
    #[repr(C)]
    struct Task<F: Future> {
        #[pin]
        work: Work<F>,
        place: u32,
    }
}

pin_project! {
    #[project = WorkProjection]
    enum Work<F: Future> {
        Under { #[pin] way: F },
        Ended { ending: Option<Result<F::Output, Died>> },
    }
}

impl<F> Run for Task<F>
where
    F: Future + Send,
    F::Output: Send + 'static,
{
    fn ends(&self) -> (u32, bool) {
        (self.place, matches!(self.work, Work::Ended { .. }))
    }

    fn run(self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        let mut work = self.project().work;
        let WorkProjection::Under { way } = work.as_mut().project() else { return true };
        let Poll::Ready(output) = way.poll(cx) else { return false };
        work.set(Work::Ended { ending: Some(Ok(output)) });
        true
    }

    fn end(self: Pin<&mut Self>, died: Died) {
        self.project().work.set(Work::Ended { ending: Some(Err(died)) });
    }

    fn take(self: Pin<&mut Self>, into: &mut dyn Any) {
        if let (WorkProjection::Ended { ending }, Some(into)) = (self.project().work.project(), into.downcast_mut()) {
            *into = ending.take();
        }
    }
}

pub(super) fn body<F>(future: F, place: u32) -> Body
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Box::pin(Task { work: Work::Under { way: future }, place })
}

impl Tasks {
    /// The number of the place that spawns a task; `None` if the world has ended.
    pub(super) fn place(&mut self, place: &'static Location<'static>) -> Option<u32> {
        if self.closed {
            return None;
        }
        let places = &mut self.places;
        let number = self.place_numbers.entry(std::ptr::from_ref(place) as usize).or_insert_with(|| {
            places.push(place);
            u32::try_from(places.len() - 1).unwrap_or(u32::MAX)
        });
        Some(*number)
    }

    /// A slot for a new task, without a body yet.
    fn begin(&mut self, name: Option<Box<str>>) -> u32 {
        let task = self.slots.claim();
        self.slots.get_mut(task).stage = Stage::Live;
        self.live += 1;
        if let Some(name) = name {
            self.names.insert(task, name);
        }
        task
    }

    /// A new task, observed by whoever spawned it.
    pub(super) fn begin_observed(&mut self, name: Option<Box<str>>, body: Body) -> u32 {
        let task = self.begin(name);
        let slot = self.slots.get_mut(task);
        slot.body = Some(body);
        slot.observed = true;
        task
    }

    /// Marks a live task for its end, and gives its body unless it is being polled: then it ends when that is over.
    pub(super) fn doom(&mut self, task: u32) -> Option<Body> {
        let slot = self.slots.get_mut(task);
        if slot.stage != Stage::Live {
            return None;
        }
        slot.stage = Stage::Doomed;
        slot.body.take()
    }

    pub(super) fn is_over(&mut self, task: u32) -> bool {
        self.closed || self.slots.get_mut(task).stage == Stage::Ended
    }

    /// The body of a task that is over, with its ending; otherwise this waker will be woken then, and another that was to
    /// be is given back.
    pub(super) fn join(&mut self, task: u32, waker: &Waker) -> Result<Option<Body>, Option<Waker>> {
        if self.is_over(task) {
            return Ok(self.slots.get_mut(task).body.take());
        }
        Err(self.joins.insert(task, waker.clone()))
    }

    /// Nobody holds the task's handle any more.
    pub(super) fn unobserve(&mut self, task: u32) -> Leftovers {
        let slot = self.slots.get_mut(task);
        slot.observed = false;
        if slot.stage == Stage::Ended {
            return self.free(task);
        }
        Leftovers { join: self.joins.remove(&task), ..Leftovers::default() }
    }

    /// Takes what is needed to poll the task; no body if it has ended meanwhile, or is the root.
    pub(super) fn enter(&mut self, task: u32) -> (Option<Body>, Option<Arc<TaskWaker>>, u32) {
        let slot = self.slots.get_mut(task);
        slot.queued = false;
        let waker = slot.waker.checked_sub(1).and_then(|index| self.wakers.get_mut(index).take());
        (slot.body.take(), waker, slot.generation)
    }

    pub(super) fn set_running(&mut self, task: u32, waker: &Waker) {
        self.running = Some(Running { task, waker: waker.data() as usize });
    }

    /// Puts back what `enter` took; gives the body of a task that is to be ended now.
    pub(super) fn leave(
        &mut self,
        task: u32,
        body: Option<Body>,
        waker: Option<Arc<TaskWaker>>,
    ) -> Result<(), Option<Body>> {
        if waker.is_some() || self.slots.get_mut(task).waker != 0 {
            self.keep_waker(task, waker);
        }
        let slot = self.slots.get_mut(task);
        if slot.stage == Stage::Doomed {
            return Err(body);
        }
        slot.body = body;
        Ok(())
    }

    fn keep_waker(&mut self, task: u32, waker: Option<Arc<TaskWaker>>) {
        let slot = self.slots.get_mut(task);
        if waker.is_none() {
            self.wakers.release(slot.waker - 1);
            slot.waker = 0;
            return;
        }
        if slot.waker == 0 {
            slot.waker = self.wakers.claim() + 1;
        }
        *self.wakers.get_mut(slot.waker - 1) = waker;
    }

    fn take_waker(&mut self, task: u32) -> Option<Arc<TaskWaker>> {
        let index = std::mem::take(&mut self.slots.get_mut(task).waker).checked_sub(1)?;
        self.wakers.release(index);
        self.wakers.get_mut(index).take()
    }

    /// Marks the task as ended and, if nobody holds its handle, frees the slot. What it gives is to be dropped, and the
    /// waker to be woken, when the lock is not held.
    #[must_use]
    fn finish(&mut self, task: u32, body: Option<Body>) -> (Option<Waker>, Leftovers) {
        self.live -= 1;
        self.running = None;
        let slot = self.slots.get_mut(task);
        slot.body = body;
        slot.stage = Stage::Ended;
        slot.armed = false;
        let leftovers = if slot.observed { Leftovers::default() } else { self.free(task) };
        (self.joins.remove(&task), leftovers)
    }

    fn free(&mut self, task: u32) -> Leftovers {
        let waker = self.take_waker(task);
        let slot = self.slots.get_mut(task);
        slot.stage = Stage::Free;
        slot.generation = slot.generation.wrapping_add(1);
        let leftovers = Leftovers { body: slot.body.take(), waker, join: self.joins.remove(&task) };
        self.names.remove(&task);
        self.slots.release(task);
        leftovers
    }

    pub(super) fn is_observed(&mut self, task: u32) -> bool {
        self.slots.get_mut(task).observed
    }

    /// The task being polled, if this is the waker it is being polled with.
    pub(super) fn running_with(&self, waker: &Waker) -> Option<u32> {
        self.running.as_ref().filter(|running| running.waker == waker.data() as usize).map(|running| running.task)
    }

    /// Makes a new ticket for the slot's own timer, unless that is in use.
    pub(super) fn arm(&mut self, task: u32) -> Option<u32> {
        let slot = self.slots.get_mut(task);
        if slot.armed {
            return None;
        }
        slot.armed = true;
        slot.ticket = slot.ticket.wrapping_add(1);
        Some(slot.ticket)
    }

    /// Uses the ticket up: `None` if it is not valid any more, else whether the task is to be put in the queue.
    pub(super) fn fire(&mut self, task: u32, ticket: u32) -> Option<bool> {
        let slot = self.slots.get_mut(task);
        if !slot.armed || slot.ticket != ticket {
            return None;
        }
        slot.armed = false;
        Some(!std::mem::replace(&mut slot.queued, true))
    }

    pub(super) fn disarm(&mut self, task: u32) {
        self.slots.get_mut(task).armed = false;
    }

    pub(super) fn is_armed(&mut self, task: u32, ticket: u32) -> bool {
        let slot = self.slots.get_mut(task);
        slot.armed && slot.ticket == ticket
    }

    /// Reads what polling these tasks will need, for what that brings closer: first all the slots, then both ends of each
    /// future.
    pub(super) fn look_at(&mut self, tasks: impl Iterator<Item = u32> + Clone) {
        let slots = tasks.clone().fold(0, |seen, task| seen ^ self.slots.get_mut(task).ticket);
        let futures = tasks.fold(0, |seen, task| {
            let body = self.slots.get_mut(task).body.as_ref();
            seen ^ body.map_or(0, |body| {
                let (place, ended) = body.ends();
                place + u32::from(ended)
            })
        });
        std::hint::black_box((slots, futures));
    }

    pub(super) fn is_generation(&mut self, task: u32, generation: u32) -> bool {
        self.slots.get_mut(task).generation == generation
    }

    /// False if the task has ended or is in the queue already.
    pub(super) fn mark_queued(&mut self, task: u32) -> bool {
        let slot = self.slots.get_mut(task);
        let due = !slot.queued && matches!(slot.stage, Stage::Live | Stage::Doomed);
        slot.queued |= due;
        due
    }

    /// The names of the tasks that have not ended.
    pub(super) fn waiting(&mut self) -> Vec<String> {
        let Tasks { slots, names, places, .. } = self;
        let live = slots.iter_mut().filter(|(_, slot)| slot.stage == Stage::Live);
        live.map(|(task, slot)| {
            let name = names.get(&task).map_or_else(|| format!("task {task}"), ToString::to_string);
            match slot.body.as_ref().and_then(|body| places.get(body.ends().0 as usize)) {
                Some(place) => format!("{name} ({place})"),
                None => name,
            }
        })
        .collect()
    }

    /// Takes every body and waker out, and takes no more tasks.
    pub(super) fn close(&mut self) -> Vec<Leftovers> {
        self.closed = true;
        let Tasks { slots, joins, wakers, .. } = self;
        let bodies = slots.iter_mut().map(|(task, slot)| Leftovers {
            body: slot.body.take(),
            join: joins.remove(&task),
            waker: None,
        });
        let bodies = bodies.filter(|left| left.body.is_some() || left.join.is_some());
        let wakers = wakers.iter_mut().map(|(_, waker)| Leftovers { waker: waker.take(), ..Leftovers::default() });
        bodies.chain(wakers).collect()
    }
}

/// What a slot held, to be dropped when the lock is not held.
#[derive(Default)]
#[expect(dead_code, reason = "held only to be dropped later")]
pub(super) struct Leftovers {
    body: Option<Body>,
    waker: Option<Arc<TaskWaker>>,
    join: Option<Waker>,
}

impl World {
    /// Ends a task with its body in hand.
    pub(super) fn end(&self, task: u32, mut body: Option<Body>, died: Died) {
        if let Some(body) = &mut body {
            body.as_mut().end(died);
        }
        self.finish(task, body);
    }

    /// Records that the task has ended, and wakes whoever waits for that.
    pub(super) fn finish(&self, task: u32, body: Option<Body>) {
        let (join, leftovers) = self.lock().tasks.finish(task, body);
        drop(leftovers);
        if let Some(join) = join {
            join.wake();
        }
    }
}

impl State {
    /// A slot for the future that `run` polls itself.
    pub(super) fn begin_root(&mut self, place: &'static Location<'static>) -> u32 {
        let slot = self.tasks.begin(Some(format!("the future run at {place}").into()));
        self.enqueue(slot);
        slot
    }

    /// Ends the world: gives everything that could hold on to it, to be dropped when the lock is not held.
    pub(super) fn close(&mut self) -> impl Sized + use<> {
        (self.tasks.close(), self.timers.close())
    }
}
