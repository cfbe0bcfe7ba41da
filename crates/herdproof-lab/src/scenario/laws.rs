//! The laws that are raced against each other, and the users they are raced with.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use herdproof::{
    Env,
    gate::{Ask, guard, result},
    limit::{
        AdaptiveLimit,
        law::{Aimd, Gradient2, Knee, Vegas},
    },
};

/// How many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Law {
    None,
    Aimd,
    Gradient2,
    Vegas,
    Knee,
}

impl Law {
    /// The naive one first, the default last.
    pub(super) const ALL: [Law; 5] = [Law::None, Law::Aimd, Law::Gradient2, Law::Vegas, Law::Knee];

    pub(super) fn name(self) -> &'static str {
        match self {
            Law::None => "no limit",
            Law::Aimd => "AIMD",
            Law::Gradient2 => "Gradient2",
            Law::Vegas => "Vegas",
            Law::Knee => "knee (default)",
        }
    }

    pub(super) fn limit(self, env: &Env) -> AdaptiveLimit {
        let builder = AdaptiveLimit::builder(env);
        match self {
            Law::None => builder.between(u32::MAX, u32::MAX),
            Law::Aimd => builder.law(Aimd::default()),
            Law::Gradient2 => builder.law(Gradient2::default()),
            Law::Vegas => builder.law(Vegas::default()),
            Law::Knee => builder.law(Knee::default()),
        }
        .build()
    }
}

/// Asks once, and leaves when its patience is over. Whether there was an answer.
pub(super) async fn ask_once(
    env: &Env,
    limit: &AdaptiveLimit,
    patience: Duration,
    call: impl Future<Output = Result<(), ()>>,
) -> bool {
    let work = || async {
        let (mut call, mut late) = (pin!(call), pin!(env.sleep(patience)));
        poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => late.as_mut().poll(cx).map(|_| Err(())),
        })
        .await
    };
    guard(env, limit, result, Ask::new(env), work).await.is_ok()
}
