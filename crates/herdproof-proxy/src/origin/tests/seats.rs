//! Until when a seat is taken: by who leaves, and by who gets a failure.

use herdproof::env::sim::Sim;

use super::{limits::Held, *};
use crate::origin::stack::Stack;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn who_leaves_after_the_request_was_sent_keeps_the_seat_until_the_origin_has_answered() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.limit = 2);
        let gets: Vec<_> = (0..2)
            .map(|_| {
                let origin = origin.clone();
                env.spawn(async move { origin.get("/").await.map(drop) })
            })
            .collect();
        until(|| held.targets() == 2).await;
        gets.iter().for_each(Task::abort);
        until(|| gets.iter().all(Task::is_finished)).await;
        let there = origin.clone();
        let third = env.spawn(async move { text(there.get("/third").await.unwrap()).await.unwrap() });
        until(|| origin.stats().waiting == 1).await;
        assert_eq!((origin.stats().in_flight, held.targets()), (2, 2), "the origin still has two to do");
        held.permits.add_permits(1);
        until(|| held.targets() == 3).await;
        held.permits.add_permits(2);
        assert_eq!(third.await.unwrap(), "hello");
        until(|| origin.stats().in_flight == 0).await;
        assert_eq!(origin.stats().faults, 0);
    });
}

#[test]
fn who_leaves_before_the_request_was_sent_keeps_nothing() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.limit = 1);
        let there = origin.clone();
        let first = env.spawn(async move { text(there.get("/first").await.unwrap()).await.unwrap() });
        until(|| held.targets() == 1).await;
        let there = origin.clone();
        let second = env.spawn(async move { there.get("/second").await.map(drop) });
        until(|| origin.stats().waiting == 1).await;
        second.abort();
        until(|| origin.stats().waiting == 0).await;
        held.permits.add_permits(1);
        assert_eq!(first.await.unwrap(), "hello");
        until(|| origin.stats().in_flight == 0).await;
        assert_eq!(held.targets(), 1);
    });
}

#[test]
fn an_origin_that_never_answers_who_left_keeps_the_seat_as_long_as_the_others() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| (settings.limit, settings.head_timeout) = (1, MS * 50));
        let there = origin.clone();
        let get = env.spawn(async move { there.get("/").await.map(drop) });
        until(|| held.targets() == 1).await;
        get.abort();
        until(|| origin.stats().in_flight == 0).await;
        assert_eq!(origin.stats().connections, 0, "it is closed then");
    });
}

/// The policies before an origin in virtual time that answers in 100 ms when it works, as everybody knows.
fn stack(sim: &mut Sim, change: impl FnOnce(&mut OriginSettings)) -> Arc<Stack> {
    let mut settings = OriginSettings::default();
    change(&mut settings);
    let (env, stack) = (sim.env(), Arc::new(Stack::new(&sim.env(), &settings)));
    let there = Arc::clone(&stack);
    sim.run(async move {
        for user in 1..=64 {
            assert!(call(&env, &there, user, MS * 100, StatusCode::OK).await.is_some());
        }
    });
    assert!(stack.queue.median().unwrap() >= MS * 90);
    stack
}

/// One request whose answer takes so long; how long it waited for a seat, if it had one.
async fn call(env: &Env, stack: &Stack, user: u64, takes: Duration, status: StatusCode) -> Option<Duration> {
    let mut ask = Ask::new(env).user(user);
    let began = ask.at;
    let mut entry = stack.enter(&mut ask).await.ok()?;
    env.sleep(takes).await;
    // What failures do to the limit and the breaker is not the question here.
    let verdict = if status.is_success() { Verdict::Ok } else { Verdict::Ignored };
    entry.place.learn(&verdict, Span { from: ask.at, to: env.now() });
    entry.place.answered(status);
    Some(ask.at - began)
}

#[test]
fn an_origin_that_fails_fast_does_not_burn_through_the_line() {
    let mut sim = Sim::new(42);
    let stack = stack(&mut sim, |settings| settings.limit = 4);
    let env = sim.env();
    let end = env.now() + SECOND;
    let calls: Vec<_> = (0..400)
        .map(|user| {
            let (env, stack) = (env.clone(), Arc::clone(&stack));
            env.clone().spawn(async move {
                let failed = call(&env, &stack, 1_000 + user, MS * 2, StatusCode::SERVICE_UNAVAILABLE).await.is_some();
                failed && env.now() <= end
            })
        })
        .collect();
    let failed = sim.run(async {
        let mut failed = 0;
        for call in calls {
            failed += u32::from(call.await.unwrap());
        }
        failed
    });
    assert!((30..=44).contains(&failed), "{failed} of 400 got the failure within a second, at four every 100 ms");
}

#[test]
fn who_provokes_fast_failures_uses_up_only_its_own_seats() {
    let mut sim = Sim::new(42);
    let stack = stack(&mut sim, |settings| settings.limit = 64);
    let env = sim.env();
    let end = env.now() + SECOND * 10;
    for _ in 0..300 {
        let (env, stack) = (env.clone(), Arc::clone(&stack));
        env.clone()
            .spawn(async move {
                while env.now() < end {
                    if call(&env, &stack, 1, MS * 2, StatusCode::INTERNAL_SERVER_ERROR).await.is_none() {
                        env.sleep(MS * 10).await;
                    }
                }
            })
            .detach();
    }
    let good: Vec<_> = (0..8)
        .map(|user| {
            let (env, stack) = (env.clone(), Arc::clone(&stack));
            env.clone().spawn(async move {
                let mut longest = Duration::ZERO;
                while env.now() < end {
                    let waited = call(&env, &stack, 100 + user, MS * 100, StatusCode::OK).await;
                    longest = longest.max(waited.expect("is never refused"));
                }
                longest
            })
        })
        .collect();
    sim.run(async {
        for one in good {
            assert_eq!(one.await.unwrap(), Duration::ZERO, "nobody else waits");
        }
    });
}
