//! One call after another, on one thread or on two.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use crate::{Value, allocations, cpu_time};

/// A measurement is cut into so many bursts and counts as it was at its best: on a busy machine a burst is often
/// disturbed, and twenty of them are rarely all.
const BURSTS: u64 = 20;
/// Short enough to fit into the time that a thread has a core for itself, so that of two threads either both were running
/// or it shows.
const BURST_OF_TWO: u64 = 10_000;
const WARM_UP: u64 = 10_000;

/// What the calls of a measurement have to come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum All {
    /// Let in, or found.
    LetIn,
    /// Refused, or not found.
    Refused,
}

/// CPU time and allocations of a call. What is called is made inside of a runtime, where some look for their timers.
pub fn alone<C: AsyncFnMut() -> bool>(all: All, ops: u64, make: impl FnOnce() -> C) -> Vec<Value> {
    on_one_thread(async {
        let mut call = make();
        let mut let_in = repeat(WARM_UP, &mut call).await;
        let (burst, asked) = (ops / BURSTS, allocations());
        let mut best = Duration::MAX;
        for _ in 0..BURSTS {
            let before = cpu_time();
            let_in += repeat(burst, &mut call).await;
            best = best.min(cpu_time() - before);
        }
        let asked = (allocations() - asked) as f64 / (burst * BURSTS) as f64;
        all.check(let_in, WARM_UP + burst * BURSTS);
        vec![Value { unit: "ns/op", value: nanos(best) / burst as f64 }, Value { unit: "allocs/op", value: asked }]
    })
}

/// Wall time of a call while another thread does the same.
pub fn on_two_threads(all: All, ops: u64, call: impl AsyncFn() -> bool + Sync) -> Vec<Value> {
    let bursts = ops / BURST_OF_TWO / 2;
    let (origin, arrived) = (Instant::now(), AtomicU64::new(0));
    // When each burst began and ended on this thread. Whether all went well is looked at later: who waits for somebody that
    // has panicked waits for ever.
    let run = || {
        on_one_thread(async {
            let mut seen = Vec::with_capacity(usize::try_from(bursts).unwrap_or(0));
            let mut let_in = repeat(WARM_UP, &mut || call()).await;
            for burst in 1..=bursts {
                // Spinning, not sleeping: who sleeps wakes late, and the other would be done by then.
                arrived.fetch_add(1, SeqCst);
                while arrived.load(SeqCst) < burst * 2 {
                    std::hint::spin_loop();
                }
                let begun = origin.elapsed();
                let_in += repeat(BURST_OF_TWO, &mut || call()).await;
                seen.push((begun, origin.elapsed()));
            }
            (seen, let_in)
        })
    };
    let ((one, let_in), (two, let_in_too)) = std::thread::scope(|scope| {
        let other = scope.spawn(run);
        (run(), other.join().expect("no call panics"))
    });
    all.check(let_in + let_in_too, 2 * (WARM_UP + bursts * BURST_OF_TWO));
    let together = one.iter().zip(&two).map(|(one, two)| one.1.max(two.1) - one.0.min(two.0));
    let best = together.min().unwrap_or_default();
    vec![Value { unit: "wall ns/call", value: nanos(best) / BURST_OF_TWO as f64 }]
}

impl All {
    fn check(self, let_in: u64, calls: u64) {
        assert_eq!(let_in, if self == All::LetIn { calls } else { 0 }, "of {calls} calls");
    }
}

/// Calls so often; gives how many were let in.
async fn repeat(calls: u64, call: &mut impl AsyncFnMut() -> bool) -> u64 {
    let mut let_in = 0;
    for _ in 0..calls {
        let_in += u64::from(call().await);
    }
    let_in
}

/// A runtime with timers: some peers cannot be called outside of one.
pub fn on_one_thread<T>(scene: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(scene)
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}
