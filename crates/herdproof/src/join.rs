//! Several things at once.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

/// What all of these come to, in their order. Each is polled whenever one of them may have got on: for tens, not for thousands.
pub(crate) async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut steps: Vec<Step<F>> = futures.into_iter().map(|future| Step::Running(Box::pin(future))).collect();
    poll_fn(|cx| {
        let mut running = false;
        for step in &mut steps {
            if let Step::Running(future) = step {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *step = Step::Over(output),
                    Poll::Pending => running = true,
                }
            }
        }
        if running { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    steps.into_iter().filter_map(Step::over).collect()
}

enum Step<F: Future> {
    Running(Pin<Box<F>>),
    Over(F::Output),
}

impl<F: Future> Step<F> {
    fn over(self) -> Option<F::Output> {
        match self {
            Step::Running(_) => None,
            Step::Over(output) => Some(output),
        }
    }
}

// What runs is boxed, and what is over is moved.
impl<F: Future> Unpin for Step<F> {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::env::{Tick, sim::Sim};

    #[test]
    fn the_slowest_is_waited_for_and_the_order_is_kept() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let sleeps: Vec<_> = [3_u64, 1, 2]
            .into_iter()
            .map(|secs| {
                let env = env.clone();
                async move {
                    env.sleep(Duration::from_secs(secs)).await;
                    secs
                }
            })
            .collect();
        assert_eq!(sim.run(all(sleeps)), [3, 1, 2]);
        assert_eq!(env.now(), Tick::ZERO + Duration::from_secs(3));
    }
}
