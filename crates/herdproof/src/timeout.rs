//! Work that is given up at a deadline.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::env::{Env, Sleep, Tick};

pin_project! {
    /// Work that has until a tick, from [`by`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct By<'a, F> {
        env: &'a Env,
        deadline: Option<Tick>,
        #[pin]
        work: F,
        sleep: Option<Sleep>,
    }
}

/// Does the work until this tick at the latest; `None` if it was not done by then, and dropped. Work that is ready at once
/// costs no timer.
#[inline]
pub fn by<F: Future>(env: &Env, deadline: Option<Tick>, work: F) -> By<'_, F> {
    By { env, deadline, work, sleep: None }
}

impl<F: Future> Future for By<'_, F> {
    type Output = Option<F::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let by = self.project();
        if let Poll::Ready(output) = by.work.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let Some(deadline) = *by.deadline else { return Poll::Pending };
        let sleep = by.sleep.get_or_insert_with(|| by.env.sleep_until(deadline));
        Pin::new(sleep).poll(cx).map(|_| None)
    }
}
