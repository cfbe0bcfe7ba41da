//! What callers do, the same for every peer.

use std::{
    future::{Future, poll_fn},
    hint::black_box,
    ops::Range,
    pin::pin,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use herdproof_bench::{Value, allocations, cpu_time, keep_memory, live_bytes};
use tokio::sync::{Notify, Semaphore};

use crate::peers::{Answer, Peer, Refused};

pub(crate) const HOT: u64 = 42;
pub(crate) const VALUE: u64 = 17;

/// How many tasks arrive at once: few enough that the runtime gets to them while they are in the processor's cache.
const BATCH: u64 = 1_000;

/// Calls before the measurement, enough for the caches to be full.
const WARM_UP: u64 = 20_000;

/// Distinct keys and loads that are ready: one caller after another, alone.
pub(crate) fn uncontended<P: Peer>(ops: u64) -> Vec<Value> {
    async fn calls<P: Peer>(peer: &'static P, keys: Range<u64>) {
        for key in keys {
            let value = peer.call(black_box(key), move || async move { Ok(key) }).await;
            assert_eq!(value, Ok(key), "{} in uncontended", P::NAME);
        }
    }
    on_one_thread(async move {
        let peer = leak(P::new());
        calls(peer, 0..WARM_UP).await;
        let (before, asked) = (cpu_time(), allocations());
        calls(peer, WARM_UP..WARM_UP + ops).await;
        let (used, asked) = (cpu_time() - before, allocations() - asked);
        vec![per("ns/op", used, ops), Value { unit: "allocs/op", value: asked as f64 / ops as f64 }]
    })
}

/// One hot key, a load that waits, and as many followers, each a task of its own.
///
/// To spawn a task costs several times what joining does, differs with the size of its future, and depends on what the
/// allocator remembers: taken off, it would leave noise. So followers are spawned before the clock runs, and have two
/// turns: one to do nothing, which is what a turn costs, and one to join.
///
/// The herd comes once before it is measured, because memory that is touched for the first time costs more than a join.
/// Then it comes several times, and each part counts as it was at its best, since a slow spell in what is taken off would
/// pass for a fast join.
pub(crate) fn herd<P: Peer>(followers: u64) -> Vec<Value> {
    keep_memory();
    one_herd::<P>(followers);
    let herds: Vec<Herd> = (0..(300_000 / followers).clamp(2, 10)).map(|_| one_herd::<P>(followers)).collect();
    let best = |part: fn(&Herd) -> f64| herds.iter().map(part).fold(f64::INFINITY, f64::min) / followers as f64;
    vec![
        Value { unit: "join ns", value: best(|herd| herd.joining) - best(|herd| herd.idling) },
        Value { unit: "wake ns", value: best(|herd| herd.waking) },
        Value { unit: "bytes/follower", value: best(|herd| herd.bytes) },
    ]
}

/// Nanoseconds and bytes of all together.
struct Herd {
    idling: f64,
    joining: f64,
    waking: f64,
    bytes: f64,
}

fn one_herd<P: Peer>(followers: u64) -> Herd {
    // An allocator sweeps up what the last herd has freed when somebody asks for much. Not to be paid by who joins.
    drop(black_box(Vec::<u8>::with_capacity(100_000)));
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(followers + 1));
        tokio::spawn(follow(peer, crowd, false));
        settle().await;

        let (mut idling, mut joining, mut bytes) = (0.0, 0.0, 0.0);
        let mut batch = Vec::with_capacity(BATCH as usize);
        for _ in 0..followers / BATCH {
            let before = live_bytes();
            for _ in 0..BATCH {
                tokio::spawn(follow(peer, crowd, true));
            }
            settle().await;
            std::mem::swap(&mut batch, &mut *crowd.arrived.lock().expect("one thread"));
            idling += turn(&batch).await;
            joining += turn(&batch).await;
            batch.clear();
            bytes += (live_bytes() - before) as f64;
        }
        assert_eq!(crowd.left.load(Relaxed), followers + 1, "{}: nobody is answered before the gate opens", P::NAME);

        let before = cpu_time();
        crowd.gate.close();
        crowd.all_answered().await;
        let waking = (cpu_time() - before).as_nanos() as f64;
        assert_eq!(crowd.loads.load(Relaxed), 1, "{}: all share one load", P::NAME);
        Herd { idling, joining, waking, bytes }
    })
}

async fn follow<P: Peer>(peer: &'static P, crowd: &'static Crowd, in_turn: bool) {
    if in_turn {
        second_turn(crowd).await;
    }
    let value = peer.call(HOT, || crowd.load()).await;
    if value == Ok(VALUE) {
        crowd.answered();
    }
}

/// Leaves its waker on arrival, and is over at the second turn after that.
fn second_turn(crowd: &'static Crowd) -> impl Future<Output = ()> + Send {
    let mut polls = 0;
    poll_fn(move |cx| {
        polls += 1;
        if polls == 1 {
            crowd.arrived.lock().expect("one thread").push(cx.waker().clone());
        }
        if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
    })
}

/// The CPU time in nanoseconds that it takes to poll each of these tasks once.
async fn turn(tasks: &[Waker]) -> f64 {
    tasks.iter().for_each(Waker::wake_by_ref);
    let before = cpu_time();
    settle().await;
    (cpu_time() - before).as_nanos() as f64
}

/// Two threads and 64 keys, with loads that are ready.
pub(crate) fn threads<P: Peer>(ops: u64) -> Vec<Value> {
    const THREADS: u64 = 2;
    let peer = leak(P::new());
    let start = Barrier::new(THREADS as usize);
    let run = |mut random: u64| {
        on_one_thread(async {
            start.wait();
            let begun = Instant::now();
            for _ in 0..ops / THREADS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = random >> 58;
                let value = peer.call(key, move || async move { Ok(key) }).await;
                assert_eq!(value, Ok(key), "{} on two threads", P::NAME);
            }
            begun.elapsed()
        })
    };
    let slowest = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no call panics")).max()
    });
    vec![per("wall ns/op", slowest.unwrap_or_default(), ops)]
}

/// Everybody asks at once for what the backend refuses after a millisecond.
pub(crate) fn failing<P: Peer>(callers: u64) -> Vec<Value> {
    async fn refused(crowd: &Crowd) -> Answer {
        crowd.load().await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Err(Refused)
    }
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(callers));
        for _ in 0..callers {
            tokio::spawn(async {
                if peer.call(HOT, || refused(crowd)).await.is_err() {
                    crowd.answered();
                }
            });
        }
        settle().await;
        crowd.gate.close();
        crowd.all_answered().await;
        vec![Value { unit: "calls", value: crowd.loads.load(Relaxed) as f64 }]
    })
}

/// Distinct keys, and each caller leaves while its load waits.
pub(crate) fn leftovers<P: Peer>(keys: u64) -> Vec<Value> {
    async fn leave<P: Peer>(peer: &'static P, crowd: &'static Crowd, keys: Range<u64>) {
        for key in keys {
            {
                let mut call = pin!(peer.call(key, || crowd.load()));
                let is_pending = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
                assert!(is_pending, "{} waits for its load", P::NAME);
            }
            settle().await;
        }
    }
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        // Tables have their size before it begins.
        leave(peer, crowd, 0..1_000).await;
        let before = live_bytes() as f64;
        leave(peer, crowd, 1_000..1_000 + keys).await;
        let each = (live_bytes() as f64 - before) / keys as f64;
        // A few bytes that differ in all are not something that each key leaves.
        vec![Value { unit: "bytes/key", value: each.round() + 0.0 }]
    })
}

/// What the callers of a scene and their loads have in common.
pub(crate) struct Crowd {
    /// Closed to let the loads go on.
    pub(crate) gate: Semaphore,
    pub(crate) loads: AtomicU64,
    /// Callers who wait for the right answer.
    left: AtomicU64,
    last_answered: Notify,
    /// Followers whose turn is yet to come.
    arrived: Mutex<Vec<Waker>>,
}

impl Crowd {
    pub(crate) fn of(callers: u64) -> &'static Crowd {
        leak(Crowd {
            gate: Semaphore::new(0),
            loads: AtomicU64::new(0),
            left: AtomicU64::new(callers),
            last_answered: Notify::new(),
            arrived: Mutex::new(Vec::with_capacity(BATCH as usize)),
        })
    }

    pub(crate) async fn load(&self) -> Answer {
        self.loads.fetch_add(1, Relaxed);
        drop(self.gate.acquire().await);
        Ok(VALUE)
    }

    fn answered(&self) {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            self.last_answered.notify_one();
        }
    }

    async fn all_answered(&self) {
        let waited = tokio::time::timeout(Duration::from_secs(60), self.last_answered.notified()).await;
        assert!(waited.is_ok(), "{} callers have no right answer", self.left.load(Relaxed));
    }
}

/// Waits until every task that was ready has been polled, and those that these have woken or spawned: tasks take turns.
pub(crate) async fn settle() {
    for _ in 0..3 {
        tokio::spawn(async {}).await.expect("an empty task does not fail");
    }
}

pub(crate) fn on_one_thread<T>(scene: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(scene)
}

pub(crate) fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn per(unit: &'static str, time: Duration, ops: u64) -> Value {
    Value { unit, value: time.as_nanos() as f64 / ops as f64 }
}
