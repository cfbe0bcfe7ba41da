//! Waiting for a point in time.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

#[cfg(feature = "sim")]
use super::sim::Timer;
use super::{Inner, clock, tick::Tick};

/// The future of [`Env::sleep_until`](super::Env::sleep_until); gives the tick it woke at.
///
/// Nothing is registered before the first poll, and dropping it cancels the wait.
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    env: Arc<Inner>,
    at: Tick,
    armed: Armed,
}

enum Armed {
    Not,
    /// Boxed, because tokio's timer is four times the size of everything else here and a simulated client should not
    /// pay for it; a real timer costs more than its allocation anyway.
    System(Pin<Box<tokio::time::Sleep>>),
    #[cfg(feature = "sim")]
    Sim(Timer),
}

impl Sleep {
    pub(super) fn new(env: Arc<Inner>, at: Tick) -> Sleep {
        Sleep { env, at, armed: Armed::Not }
    }
}

impl Future for Sleep {
    type Output = Tick;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Tick> {
        let Sleep { env, at, armed } = self.get_mut();
        let now = match &**env {
            Inner::System(system) => {
                if let Armed::Not = armed {
                    let now = clock::now();
                    if now >= *at {
                        return Poll::Ready(now);
                    }
                    *armed = Armed::System(Box::pin(system.sleep(*at - now)));
                }
                if let Armed::System(sleep) = armed {
                    ready!(sleep.as_mut().poll(cx));
                }
                clock::now().max(*at)
            }
            #[cfg(feature = "sim")]
            Inner::Sim(world) => {
                let timer = if let Armed::Sim(timer) = armed { Some(*timer) } else { None };
                match world.poll_timer(*at, timer, cx.waker()) {
                    Ok(now) => now,
                    Err(timer) => {
                        *armed = Armed::Sim(timer);
                        return Poll::Pending;
                    }
                }
            }
        };
        *armed = Armed::Not;
        Poll::Ready(now)
    }
}

#[cfg(feature = "sim")]
impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Inner::Sim(world), Armed::Sim(timer)) = (&*self.env, &self.armed) {
            world.cancel_timer(*timer);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("at", &self.at).finish_non_exhaustive()
    }
}
