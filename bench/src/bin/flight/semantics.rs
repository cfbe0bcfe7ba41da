//! What callers see when somebody leaves, fails or panics: a leader whose load waits at the gate, and its followers.
//!
//! All callers of a scene bring the same load. A load counts from its first poll.

use std::{
    future::Future,
    panic,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use herdproof::flight::Abandon;
use herdproof_bench::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    peers::{Answer, Peer, Refused, Why},
    scenes::{Crowd, HOT, VALUE, leak, on_one_thread, settle},
};

/// Whoever is not answered by then hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is right with so many followers.
pub(crate) fn right(followers: u32) -> [(&'static str, f64); 13] {
    let all = f64::from(followers);
    [
        ("leave loads", 1.0),
        ("leave values", all),
        ("panic loads", 1.0),
        ("panic errors", all),
        ("panic later", 1.0),
        ("fail loads", 1.0),
        ("fail errors", all),
        ("deadline left", 1.0),
        ("deadline loads", 1.0),
        ("deadline values", all),
        ("forget", 1.0),
        ("shared", 1.0),
        ("choice", 1.0),
    ]
}

pub(crate) fn semantics<P: Peer>(followers: u64) -> Vec<Value> {
    let scenes =
        [leaving::<P>, panicking::<P>, failing::<P>, hurrying::<P>, forgetting::<P>, telling::<P>, choosing::<P>];
    scenes.into_iter().flat_map(|scene| scene(followers)).collect()
}

/// The leader is dropped while the load waits.
fn leaving<P: Peer>(followers: u64) -> Vec<Value> {
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        let leader = begin(peer.call(HOT, || crowd.load())).await;
        let followers = follow(followers, || peer.call(HOT, || crowd.load())).await;
        leave(leader).await;
        crowd.gate.close();
        let answers = answers(followers).await;
        vec![count("leave loads", begun(crowd)), count("leave values", values(&answers))]
    })
}

/// The load panics, whoever runs it.
fn panicking<P: Peer>(followers: u64) -> Vec<Value> {
    async fn panics(crowd: &Crowd) -> Answer {
        crowd.load().await?;
        panic!("as this load does");
    }
    quietly(|| {
        on_one_thread(async move {
            let (peer, crowd) = (leak(P::new()), Crowd::of(0));
            let leader = begin(peer.call(HOT, || panics(crowd))).await;
            let followers = follow(followers, || peer.call(HOT, || panics(crowd))).await;
            crowd.gate.close();
            let told = answers(followers).await;
            answers(vec![leader]).await;
            let begun = begun(crowd);
            let later = begin(peer.call(HOT, || crowd.load())).await;
            vec![
                count("panic loads", begun),
                count("panic errors", told.iter().filter(|answer| answer.is_err()).count()),
                count("panic later", values(&answers(vec![later]).await)),
            ]
        })
    })
}

/// The load fails, whoever runs it.
fn failing<P: Peer>(followers: u64) -> Vec<Value> {
    async fn fails(crowd: &Crowd) -> Answer {
        crowd.load().await?;
        Err(Refused)
    }
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        let _leader = begin(peer.call(HOT, || fails(crowd))).await;
        let followers = follow(followers, || peer.call(HOT, || fails(crowd))).await;
        crowd.gate.close();
        let answers = answers(followers).await;
        let own = answers.iter().filter(|answer| **answer == Err(Why::Refused)).count();
        vec![count("fail loads", begun(crowd)), count("fail errors", own)]
    })
}

/// The leader has a deadline of its own, which passes while the load waits.
fn hurrying<P: Peer>(followers: u64) -> Vec<Value> {
    const SOON: Duration = Duration::from_millis(100);
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        let leader = begin(peer.call_within(SOON, HOT, || crowd.load())).await;
        let followers = follow(followers, || peer.call(HOT, || crowd.load())).await;
        assert!(!leader.is_finished(), "{}: all have joined before the deadline", P::NAME);
        let left = answers(vec![leader]).await;
        settle().await;
        crowd.gate.close();
        let answers = answers(followers).await;
        vec![
            yes("deadline left", left == [Err(Why::Other)]),
            count("deadline loads", begun(crowd)),
            count("deadline values", values(&answers)),
        ]
    })
}

/// Somebody comes after the key was forgotten, while the load waits.
fn forgetting<P: Peer>(followers: u64) -> Vec<Value> {
    on_one_thread(async move {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        let call = || peer.call(HOT, || crowd.load());
        let _leader = begin(call()).await;
        let _followers = follow(followers, call).await;
        let forgot = timeout(PATIENCE, peer.forget(HOT)).await;
        let _newcomer = begin(call()).await;
        vec![yes("forget", forgot.is_ok() && begun(crowd) == 2)]
    })
}

/// A caller who is alone, and then one with followers, look at what they are told.
fn telling<P: Peer>(followers: u64) -> Vec<Value> {
    async fn told<P: Peer>(followers: u64) -> Vec<Option<bool>> {
        let (peer, crowd) = (leak(P::new()), Crowd::of(0));
        let leader = begin(peer.call_told(HOT, || crowd.load())).await;
        let mut callers = follow(followers, || peer.call_told(HOT, || crowd.load())).await;
        callers.push(leader);
        crowd.gate.close();
        answers(callers).await
    }
    on_one_thread(async move {
        let alone = told::<P>(0).await;
        let together = told::<P>(followers).await;
        let all = vec![Some(true); followers as usize + 1];
        vec![yes("shared", alone == [Some(false)] && together == all)]
    })
}

/// The only caller leaves, once where its load is to be cancelled and once where it is to finish.
fn choosing<P: Peer>(_followers: u64) -> Vec<Value> {
    async fn finishes<P: Peer>(how: Abandon) -> Option<bool> {
        let (peer, crowd) = (leak(P::abandoning(how)?), Crowd::of(0));
        let finished: &AtomicBool = leak(AtomicBool::new(false));
        let load = || async {
            let answer = crowd.load().await;
            finished.store(true, Relaxed);
            answer
        };
        leave(begin(peer.call(HOT, load)).await).await;
        crowd.gate.close();
        settle().await;
        Some(finished.load(Relaxed))
    }
    on_one_thread(async {
        let cancelled = finishes::<P>(Abandon::Cancel).await == Some(false);
        let finished = finishes::<P>(Abandon::Finish { within: PATIENCE }).await == Some(true);
        vec![yes("choice", cancelled && finished)]
    })
}

/// A call as a task of its own, and waiting.
async fn begin<C>(call: C) -> JoinHandle<C::Output>
where
    C: Future<Output: Send> + Send + 'static,
{
    let caller = tokio::spawn(call);
    settle().await;
    caller
}

async fn follow<C>(followers: u64, call: impl Fn() -> C) -> Vec<JoinHandle<C::Output>>
where
    C: Future<Output: Send> + Send + 'static,
{
    let callers = (0..followers).map(|_| tokio::spawn(call())).collect();
    settle().await;
    callers
}

/// Drops the call.
async fn leave<T>(caller: JoinHandle<T>) {
    caller.abort();
    drop(caller.await);
    settle().await;
}

/// What these callers are answered, without those who panic or hang.
async fn answers<T>(callers: Vec<JoinHandle<T>>) -> Vec<T> {
    let end = Instant::now() + PATIENCE;
    let mut answers = Vec::new();
    for caller in callers {
        if let Ok(Ok(answer)) = timeout_at(end, caller).await {
            answers.push(answer);
        }
    }
    answers
}

fn values(answers: &[Result<u64, Why>]) -> usize {
    answers.iter().filter(|answer| **answer == Ok(VALUE)).count()
}

fn begun(crowd: &Crowd) -> usize {
    crowd.loads.load(Relaxed) as usize
}

fn count(unit: &'static str, count: usize) -> Value {
    Value { unit, value: count as f64 }
}

fn yes(unit: &'static str, is_so: bool) -> Value {
    count(unit, usize::from(is_so))
}

/// Panics are what is measured here, and nobody needs to read of them.
fn quietly<T>(scene: impl FnOnce() -> T) -> T {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let seen = scene();
    panic::set_hook(hook);
    seen
}
