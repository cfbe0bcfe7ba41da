//! A trip to the origin, through the gate if there is one.

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
    load::{Errand, Homecoming, Purpose, Ran},
    outcome::Load,
    queued::InLine,
};
use crate::{
    env::{Sleep, Tick},
    error::quietly,
    flight::Place,
    gate::{Ask, Priority, Span, Verdict},
};

impl<K, V, E> Inner<K, V, E> {
    /// Through the gate, and to the origin: the one way there, for one key or for many.
    pub(super) async fn admit<T, F>(
        &self,
        purpose: Purpose,
        asked: Tick,
        timeout: Duration,
        places: &[Place],
        load: F,
    ) -> (Ran<T, E>, Span)
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        E: Send + Sync + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let mut trip = pin!(Trip::new(purpose, asked, timeout, spanned(load)));
        poll_fn(|cx| trip.as_mut().poll(self, places, cx)).await
    }
}

pin_project! {
    /// A trip to the origin, through the gate if there is one. Written out, because it is moved with every miss: layers of
    /// `async` keep what they are given twice each, and this came to many times the size.
    pub(super) struct Trip<F> {
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

impl<F> Trip<F> {
    #[inline]
    pub(super) fn new(purpose: Purpose, asked: Tick, timeout: Duration, load: F) -> Trip<F> {
        Trip { purpose, stage: Stage::Before, from: asked, timeout, load: Some(load), sleep: None }
    }

    /// Of a load that was polled already, at once when it was asked for.
    pub(super) fn under_way(purpose: Purpose, asked: Tick, timeout: Duration, load: F) -> Trip<F> {
        Trip { stage: Stage::Under(None), ..Trip::new(purpose, asked, timeout, load) }
    }

    /// Goes on, for the flights that have these places.
    fn poll<K, V, T, E>(
        self: Pin<&mut Self>,
        cache: &Inner<K, V, E>,
        places: &[Place],
        cx: &mut Context<'_>,
    ) -> Poll<(Ran<T, E>, Span)>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        E: Send + Sync + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let Inner { env, limit, tally, queued, .. } = cache;
        let mut trip = self.project();
        let permit = loop {
            match trip.stage {
                Stage::Under(permit) => break permit,
                Stage::Before => match limit {
                    None => {
                        tally.load();
                        *trip.stage = Stage::Under(None);
                    }
                    Some(limit) => {
                        let (priority, in_line) = match trip.purpose {
                            Purpose::Miss => (Priority::Normal, None),
                            Purpose::Refresh | Purpose::Prime => (Priority::Sheddable, Some(queued.enter(places))),
                        };
                        // To the nanosecond, for gates that need it.
                        *trip.from = env.now();
                        let ask = Ask::at(*trip.from).priority(priority).deadline(*trip.from + *trip.timeout);
                        *trip.stage = Stage::Entering(Arc::clone(limit).enter(ask), in_line);
                    }
                },
                Stage::Entering(entering, in_line) => {
                    let entered = entering.as_mut().poll(cx);
                    if let Poll::Ready(Ok(permit)) = entered {
                        *trip.from = env.now();
                        tally.load();
                        *trip.stage = Stage::Under(Some(permit));
                        continue;
                    }
                    // Listens before it looks, so that nobody who comes in between is missed.
                    if let Some(in_line) = in_line {
                        in_line.listen(cx.waker());
                        if places.iter().any(|place| cache.engine.loads.is_shared(*place)) {
                            *trip.purpose = Purpose::Miss;
                            *trip.stage = Stage::Before;
                            continue;
                        }
                    }
                    if let Err(refusal) = ready!(entered) {
                        return Poll::Ready((Ran::Refused(refusal), Span { from: *trip.from, to: env.now() }));
                    }
                }
            }
        };
        let Some(load) = trip.load.as_mut().as_pin_mut() else { unreachable!("it is not polled after its end") };
        let outcome = match catch_unwind(AssertUnwindSafe(|| load.poll(cx))) {
            Ok(Poll::Ready(outcome)) => Ok(Some(outcome)),
            // Only now is there anything to wait for.
            Ok(Poll::Pending) => {
                let sleep = trip.sleep.get_or_insert_with(|| env.sleep_until(*trip.from + *trip.timeout));
                ready!(Pin::new(sleep).poll(cx));
                Ok(None)
            }
            Err(payload) => Err(payload),
        };
        quietly(|| trip.load.set(None));
        // A load that was measured to some milliseconds is as often too short as too long, so it does for the average; a gate
        // that lets in as many as are quick needs more.
        let span = Span { from: *trip.from, to: if permit.is_some() { env.now() } else { env.coarse() } };
        let verdict = if matches!(outcome, Ok(Some(Ok(_)))) { Verdict::Ok } else { Verdict::Fault };
        if let Some(permit) = permit.take() {
            permit.settle(&verdict, span);
        }
        let ran = outcome.map_or_else(|payload| cache.panicked(payload), |outcome| cache.came_to(outcome));
        Poll::Ready((ran, span))
    }
}

pin_project! {
    /// An errand on its way, from [`Errand::run`].
    pub(super) struct Run<K, V, E, F> {
        // Empty once it has ended.
        pub(super) errand: Option<Errand<K, V, E>>,
        #[pin]
        pub(super) trip: Trip<F>,
    }
}

impl<K, V, E, F> Future for Run<K, V, E, F>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    F: Future<Output = Result<Load<V>, E>>,
{
    type Output = Homecoming<K, V, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Homecoming<K, V, E>> {
        let run = self.project();
        let Some(errand) = run.errand else { unreachable!("a future is not polled after it was ready") };
        let (ran, span) = ready!(run.trip.poll(&*errand.cache, &[errand.place], cx));
        let parting = errand.end(ran, span);
        let Some(errand) = run.errand.take() else { unreachable!("it was there a line ago") };
        Poll::Ready(errand.come_home(parting))
    }
}

pin_project! {
    /// A load that was begun, or panicked at that: then it panics when it is polled, where panics are caught.
    #[project = BegunProjected]
    pub(super) enum Begun<F> {
        Load { #[pin] load: F },
        Panicked { payload: Option<Box<dyn Any + Send>> },
    }
}

impl<F> Begun<F> {
    pub(super) fn by(begin: impl FnOnce() -> F) -> Begun<F> {
        match catch_unwind(AssertUnwindSafe(begin)) {
            Ok(load) => Begun::Load { load },
            Err(payload) => Begun::Panicked { payload: Some(payload) },
        }
    }
}

impl<F: Future> Future for Begun<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            BegunProjected::Load { load } => load.poll(cx),
            BegunProjected::Panicked { payload } => resume_unwind(payload.take().unwrap_or_else(|| Box::new(()))),
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
