//! A call to the origin, through the gate if there is one: the one way there, for one key or for many.

use std::{
    any::Any,
    future::{Future, poll_fn},
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{
    Inner,
    admission::{Admitted, Entering},
    load::{Answer, Purpose},
    outcome::Load,
    queued::InLine,
    stats::count,
};
use crate::{
    env::{Sleep, Tick},
    error::{Panic, quietly},
    gate::{Ask, Priority, Span, Verdict},
    inflight::{HasLoads, Home, Place},
};

impl<K, V, E> Inner<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Calls the origin, for the loads with these places.
    pub(super) async fn call<T, F>(&self, places: &[Place], call: Call<F>) -> (Answer<T, E>, Span)
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut call = pin!(call);
        poll_fn(|cx| call.as_mut().poll(self, places, cx)).await
    }

    /// What a load's result is as an answer; without one it took too long. A failure is counted.
    #[inline(always)]
    pub(super) fn answered<T>(&self, result: Option<Result<T, E>>) -> Answer<T, E> {
        match result {
            Some(Ok(found)) => Answer::Gave(found),
            Some(Err(error)) => {
                count(&self.tally.failures);
                Answer::Failed(Arc::new(error))
            }
            None => {
                count(&self.tally.failures);
                Answer::TimedOut
            }
        }
    }

    /// A panic is a failure like any other.
    #[cold]
    pub(super) fn panicked<T>(&self, payload: Box<dyn Any + Send>) -> Answer<T, E> {
        count(&self.tally.failures);
        Answer::Panicked(Arc::new(Panic::new(payload)))
    }
}

pin_project! {
    /// A call to the origin, through the gate if there is one.
    pub(super) struct Call<F> {
        purpose: Purpose,
        stage: Stage,
        // When it began: when it was asked for, if there is no gate.
        from: Tick,
        timeout: Duration,
        // Empty once it has ended.
        #[pin]
        load: Option<F>,
        sleep: Option<Sleep>,
    }
}

enum Stage {
    Before,
    /// In line, if nobody waits for it.
    Entering(Entering, Option<InLine>),
    Under(Option<Box<dyn Admitted>>),
}

impl<F> Call<F> {
    #[inline]
    pub(super) fn new(purpose: Purpose, asked: Tick, timeout: Duration, load: F) -> Call<F> {
        Call { purpose, stage: Stage::Before, from: asked, timeout, load: Some(load), sleep: None }
    }

    /// Of a load that was polled already, when it was asked for.
    pub(super) fn under_way(purpose: Purpose, asked: Tick, timeout: Duration, load: F) -> Call<F> {
        Call { stage: Stage::Under(None), ..Call::new(purpose, asked, timeout, load) }
    }

    fn poll<K, V, T, E>(
        self: Pin<&mut Self>,
        cache: &Inner<K, V, E>,
        places: &[Place],
        cx: &mut Context<'_>,
    ) -> Poll<(Answer<T, E>, Span)>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        E: Send + Sync + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let Inner { limit, tally, queued, .. } = cache;
        let env = cache.env();
        let mut call = self.project();
        let permit = loop {
            match call.stage {
                Stage::Under(permit) => break permit,
                Stage::Before => match limit {
                    None => {
                        tally.load();
                        *call.stage = Stage::Under(None);
                    }
                    Some(limit) => {
                        let (priority, in_line) = match call.purpose {
                            Purpose::Miss => (Priority::Normal, None),
                            Purpose::Refresh | Purpose::Prime => (Priority::Sheddable, Some(queued.enter(places))),
                        };
                        // To the nanosecond, for gates that need it.
                        *call.from = env.now();
                        let ask = Ask::at(*call.from).priority(priority).deadline(*call.from + *call.timeout);
                        *call.stage = Stage::Entering(Arc::clone(limit).enter(ask), in_line);
                    }
                },
                Stage::Entering(entering, in_line) => {
                    let entered = entering.as_mut().poll(cx);
                    if let Poll::Ready(Ok(permit)) = entered {
                        *call.from = env.now();
                        tally.load();
                        *call.stage = Stage::Under(Some(permit));
                        continue;
                    }
                    // Listens before it looks, so that nobody who comes in between is missed.
                    if let Some(in_line) = in_line {
                        in_line.listen(cx.waker());
                        if places.iter().any(|place| cache.shard(place.hash).loads().is_shared(*place)) {
                            *call.purpose = Purpose::Miss;
                            *call.stage = Stage::Before;
                            continue;
                        }
                    }
                    if let Err(refusal) = ready!(entered) {
                        return Poll::Ready((Answer::Refused(refusal), Span { from: *call.from, to: env.now() }));
                    }
                }
            }
        };
        let Some(load) = call.load.as_mut().as_pin_mut() else { unreachable!("it is not polled after its end") };
        let outcome = match catch_unwind(AssertUnwindSafe(|| load.poll(cx))) {
            Ok(Poll::Ready(outcome)) => Ok(Some(outcome)),
            // Only now is there anything to wait for.
            Ok(Poll::Pending) => {
                let sleep = call.sleep.get_or_insert_with(|| env.sleep_until(*call.from + *call.timeout));
                ready!(Pin::new(sleep).poll(cx));
                Ok(None)
            }
            Err(payload) => Err(payload),
        };
        quietly(|| call.load.set(None));
        // A load that was measured to some milliseconds is as often too short as too long, so it does for the average; a gate
        // that lets in as many as are quick needs more.
        let span = Span { from: *call.from, to: if permit.is_some() { env.now() } else { env.coarse() } };
        let verdict = if matches!(outcome, Ok(Some(Ok(_)))) { Verdict::Ok } else { Verdict::Fault };
        if let Some(permit) = permit.take() {
            permit.settle(&verdict, span);
        }
        let answer = outcome.map_or_else(|payload| cache.panicked(payload), |outcome| cache.answered(outcome));
        Poll::Ready((answer, span))
    }
}

pin_project! {
    /// A load that was started, or panicked at that: then it panics when it is polled, where panics are caught.
    #[project = StartedProjected]
    pub(super) enum Started<F> {
        Load { #[pin] load: F },
        Panicked { payload: Option<Box<dyn Any + Send>> },
    }
}

impl<F> Started<F> {
    pub(super) fn by(start: impl FnOnce() -> F) -> Started<F> {
        match catch_unwind(AssertUnwindSafe(start)) {
            Ok(load) => Started::Load { load },
            Err(payload) => Started::Panicked { payload: Some(payload) },
        }
    }
}

impl<F: Future> Future for Started<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            StartedProjected::Load { load } => load.poll(cx),
            StartedProjected::Panicked { payload } => resume_unwind(payload.take().unwrap_or_else(|| Box::new(()))),
        }
    }
}

pin_project! {
    /// A load that gives a plain value.
    pub(super) struct Plain<F> {
        #[pin]
        pub(super) load: F,
    }
}

impl<V, E, F: Future<Output = Result<V, E>>> Future for Plain<F> {
    type Output = Result<Load<V>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().load.poll(cx).map_ok(Load::Value)
    }
}

/// A load in a span of its own: under that of the caller who began it, though it may end without that caller.
#[cfg(feature = "tracing")]
pub(super) type Spanned<F> = tracing::instrument::Instrumented<F>;

#[cfg(feature = "tracing")]
pub(super) fn spanned<F>(load: F) -> Spanned<F> {
    tracing::Instrument::instrument(load, tracing::info_span!("load"))
}

#[cfg(not(feature = "tracing"))]
pub(super) type Spanned<F> = F;

#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(super) fn spanned<F>(load: F) -> Spanned<F> {
    load
}
