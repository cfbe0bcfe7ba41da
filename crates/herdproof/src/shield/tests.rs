//! The parts are tested where they are; here, that they stand in the right order and share what they should.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::*;
use crate::{
    env::sim::Sim,
    gate::{Judgement, Why, result},
    retry::Stop,
};

const MS: Duration = Duration::from_millis(1);

struct Scene {
    sim: Sim,
    env: Env,
    calls: Arc<AtomicU32>,
}

impl Scene {
    fn new() -> Scene {
        let sim = Sim::new(1);
        let env = sim.env();
        Scene { sim, env, calls: Arc::default() }
    }

    /// A call that takes so long and then fails or not.
    fn run(
        &mut self,
        shield: &Shield,
        takes: Duration,
        outcome: Result<u32, &'static str>,
    ) -> Result<u32, GaveUp<&'static str>> {
        self.run_ask(shield, Ask::new(&self.env), takes, outcome)
    }

    fn run_ask(
        &mut self,
        shield: &Shield,
        ask: Ask,
        takes: Duration,
        outcome: Result<u32, &'static str>,
    ) -> Result<u32, GaveUp<&'static str>> {
        let (env, calls) = (self.env.clone(), Arc::clone(&self.calls));
        self.sim.run(shield.run(result, ask, move |_, _| {
            calls.fetch_add(1, Ordering::Relaxed);
            let env = env.clone();
            async move {
                env.sleep(takes).await;
                outcome
            }
        }))
    }

    fn calls(&self) -> u32 {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn every_attempt_passes_the_gates_and_a_blip_is_tried_again() {
    let mut scene = Scene::new();
    let shield = Shield::for_http(&scene.env).breaker(|breaker| breaker.faults(3)).build();
    let down = scene.run(&shield, MS, Err("down")).unwrap_err();
    assert_eq!((down.failure, down.attempts, scene.calls()), (Failure::Failed("down"), 3, 3));
    assert!(!shield.breaker().unwrap().is_closed(), "three attempts of one call are three faults in a row");
    let (asked, refused) = (scene.env.now(), scene.run(&shield, MS, Ok(1)).unwrap_err());
    assert!(matches!(refused.failure, Failure::Refused(refusal) if refusal.after.is_some()), "{refused:?}");
    assert_eq!(scene.env.now(), asked, "without a deadline it is told at once");
    let ask = Ask::new(&scene.env).deadline(asked + Duration::from_secs(60));
    assert_eq!(scene.run_ask(&shield, ask, MS, Ok(1)), Ok(1), "with one, a refusal that says when is waited for");
    scene.calls();
    shield.breaker().unwrap().hold_open();
    let refused = scene.run(&shield, MS, Ok(1)).unwrap_err();
    assert!(matches!(refused.failure, Failure::Refused(refusal) if refusal.why == Why::Tripped), "{refused:?}");
    assert_eq!(scene.calls(), 0, "what is refused is not begun");
}

#[test]
fn a_timeout_is_a_fault_of_the_origin_and_everything_learns_of_it() {
    let mut scene = Scene::new();
    let shield = Shield::for_cache(&scene.env).breaker(|breaker| breaker.faults(1)).build();
    let slow = scene.run(&shield, MS * 500, Ok(1)).unwrap_err();
    assert_eq!((slow.failure, slow.attempts), (Failure::TimedOut, 1));
    assert_eq!(scene.env.now() - Tick::ZERO, MS * 100, "cut off after its timeout");
    assert!(!shield.breaker().unwrap().is_closed());
    assert_eq!(shield.queue().unwrap().inside(), 0, "nothing stays under way");
}

#[test]
fn retries_and_hedges_are_paid_from_one_budget() {
    let mut scene = Scene::new();
    let budget = Budget::builder(&scene.env).ratio(0.0).floor(0.1).window(Duration::from_secs(10)).build();
    let hedged = |hedge: HedgeBuilder| hedge.samples(10).ratio(1.0);
    let shield = Shield::for_http(&scene.env).budget(&budget).hedge(hedged).build();
    for _ in 0..20 {
        scene.run(&shield, MS * 10, Ok(1)).unwrap();
    }
    assert_eq!(scene.calls(), 20);
    scene.run(&shield, MS * 40, Ok(1)).unwrap();
    assert_eq!((scene.calls(), budget.stats().hedges), (2, 1), "a hedge, which was all there was");
    let down = scene.run(&shield, MS, Err("down")).unwrap_err();
    assert_eq!((down.why, scene.calls()), (Stop::Budget, 1), "so there is no retry");
}

#[test]
fn nothing_is_hedged_while_the_breaker_is_not_closed() {
    let mut scene = Scene::new();
    let shield = Shield::for_cache(&scene.env).timeout(MS * 1000).hedge(|hedge| hedge.samples(10).ratio(1.0)).build();
    for _ in 0..20 {
        scene.run(&shield, MS * 10, Ok(1)).unwrap();
    }
    scene.calls();
    scene.run(&shield, MS * 40, Ok(1)).unwrap();
    assert_eq!(scene.calls(), 2, "a slow one is hedged");
    let breaker = shield.breaker().unwrap().clone();
    let (env, calls) = (scene.env.clone(), Arc::clone(&scene.calls));
    let work = move |_, _| {
        calls.fetch_add(1, Ordering::Relaxed);
        breaker.hold_open();
        let env = env.clone();
        async move {
            env.sleep(MS * 40).await;
            Ok::<u32, &str>(1)
        }
    };
    scene.sim.run(shield.run(result, Ask::new(&scene.env), work)).unwrap();
    assert_eq!(scene.calls(), 1);
}

#[test]
fn nothing_is_hedged_while_as_much_is_under_way_as_may_be() {
    for (most, calls) in [(2, 2), (1, 1)] {
        let mut scene = Scene::new();
        let limit = AdaptiveLimit::builder(&scene.env).initial(most).between(most, most).build();
        let hedged = |hedge: HedgeBuilder| hedge.samples(10).ratio(1.0);
        let shield = Shield::builder(&scene.env).adaptive(limit).hedge(hedged).build();
        for _ in 0..20 {
            scene.run(&shield, MS * 10, Ok(1)).unwrap();
        }
        scene.calls();
        scene.run(&shield, MS * 40, Ok(1)).unwrap();
        assert_eq!(scene.calls(), calls, "room for {most}");
        assert_eq!(shield.budget().stats().hedges, u64::from(calls - 1), "what is not sent is not paid for");
    }
}

/// A burst of three, and calls that cost two: there is some left when the hedge is due, but not enough.
#[test]
fn a_hedge_that_the_gates_refuse_costs_nothing_and_does_not_end_the_first_attempt() {
    let mut scene = Scene::new();
    let rate = Rate::every(MS * 1_000).burst(3);
    let hedged = |hedge: HedgeBuilder| hedge.at(MS * 10).floor(10.0).ratio(1.0);
    let shield = Shield::builder(&scene.env).rate(rate).hedge(hedged).build();
    let (env, calls) = (scene.env.clone(), Arc::clone(&scene.calls));
    let work = move |_, _| {
        calls.fetch_add(1, Ordering::Relaxed);
        let env = env.clone();
        async move {
            env.sleep(MS * 40).await;
            Ok::<u32, &str>(1)
        }
    };
    assert_eq!(scene.sim.run(shield.run(result, Ask::new(&scene.env).cost(2), work)), Ok(1));
    assert_eq!((scene.calls(), scene.env.now() - Tick::ZERO), (1, MS * 40), "the first was given up for a refusal");
    let stats = shield.budget().stats();
    assert_eq!((stats.hedges, stats.given_back, stats.held), (0, 1, 0));
}

#[test]
fn nothing_is_hedged_where_it_would_have_to_wait_for_room_or_for_a_slot() {
    let hedged = |hedge: HedgeBuilder| hedge.at(MS * 10).floor(10.0).ratio(1.0);
    for (most, every, calls) in [(2, MS, 2), (1, MS, 1), (2, MS * 30, 1)] {
        let mut scene = Scene::new();
        let shield = Shield::builder(&scene.env).at_once(most).rate(Rate::every(every).burst(1)).hedge(hedged).build();
        scene.run(&shield, MS * 40, Ok(1)).unwrap();
        assert_eq!(scene.calls(), calls, "room for {most}, one in {every:?}");
        assert_eq!(shield.budget().stats().hedges, u64::from(calls - 1));
    }
}

/// A slot of the rate that comes at the deadline is refused there; room that comes with it is not.
#[test]
fn who_waited_for_room_until_it_was_late_does_not_begin() {
    let mut scene = Scene::new();
    let shield = Shield::builder(&scene.env).at_once(1).build();
    let run = |calls: &Arc<AtomicU32>, ask: Ask| {
        let (env, shield, calls) = (scene.env.clone(), shield.clone(), Arc::clone(calls));
        async move {
            let work = |_, _| {
                calls.fetch_add(1, Ordering::Relaxed);
                let env = env.clone();
                async move {
                    env.sleep(MS * 10).await;
                    Ok::<u32, &str>(1)
                }
            };
            shield.run(result, ask, work).await
        }
    };
    let ask = Ask::new(&scene.env);
    let inside = scene.env.spawn(run(&scene.calls, ask.clone()));
    let late = run(&scene.calls, ask.clone().deadline(ask.at + MS * 10));
    let late = scene.sim.run(late).unwrap_err();
    assert!(matches!(late.failure, Failure::Refused(refusal) if refusal.why == Why::Deadline), "{late:?}");
    assert_eq!(scene.sim.run(inside).unwrap(), Ok(1));
    assert_eq!(scene.calls(), 1);
}

#[test]
fn those_who_waited_while_the_breaker_tripped_are_not_led_to_an_origin_that_is_down() {
    let shields: [fn(ShieldBuilder) -> ShieldBuilder; 2] =
        [|shield| shield.at_once(1), |shield| shield.rate(Rate::every(MS * 20).burst(1))];
    for waiting in shields {
        let mut scene = Scene::new();
        let shield = Shield::builder(&scene.env).breaker(|breaker| breaker.faults(1)).retry(|retry| retry.attempts(1));
        let shield = waiting(shield).build();
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let (env, shield, calls) = (scene.env.clone(), shield.clone(), Arc::clone(&scene.calls));
                scene.env.spawn(async move {
                    let work = |_, _| {
                        calls.fetch_add(1, Ordering::Relaxed);
                        let env = env.clone();
                        async move {
                            env.sleep(MS * 10).await;
                            Err::<u32, _>("down")
                        }
                    };
                    shield.run(result, Ask::new(&env), work).await.unwrap_err().failure
                })
            })
            .collect();
        let refused = scene.sim.run(async {
            let mut refused = 0;
            for task in tasks {
                let failure = task.await.unwrap();
                refused += u32::from(matches!(failure, Failure::Refused(refusal) if refusal.why == Why::Tripped));
            }
            refused
        });
        assert_eq!((scene.calls(), refused), (1, 5), "the first finds out, and the others have waited");
    }
}

#[test]
fn what_must_not_be_done_twice_is_not() {
    let mut scene = Scene::new();
    let shield = Shield::for_http(&scene.env).hedge(|hedge| hedge.at(MS).samples(1)).build();
    let (env, calls) = (scene.env.clone(), Arc::clone(&scene.calls));
    let work = move |_| {
        calls.fetch_add(1, Ordering::Relaxed);
        let env = env.clone();
        async move {
            env.sleep(MS * 50).await;
            Err::<u32, _>("maybe done")
        }
    };
    let failed = scene.sim.run(shield.run_at_most_once(result, Ask::new(&scene.env), work)).unwrap_err();
    assert_eq!((failed.failure, failed.why, scene.calls()), (Failure::Failed("maybe done"), Stop::Begun, 1));
}

/// Errors below 10 were never sent; from 10 on a layer below has given up.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a classifier takes a reference")]
fn judge(outcome: &Result<u32, u32>) -> Judgement {
    match *outcome {
        Ok(_) => Verdict::Ok.into(),
        Err(..10) => Judgement::Unsent(Verdict::Fault),
        Err(_) => Judgement::NoRetry(Verdict::Overload { after: None }),
    }
}

#[test]
fn a_layer_below_that_gave_up_is_believed_and_the_gates_learn_of_it_all_the_same() {
    for hedged in [false, true] {
        let mut scene = Scene::new();
        let shield = Shield::for_http(&scene.env).breaker(|breaker| breaker.window(MS * 1000, 1));
        let shield = if hedged { shield.hedge(|hedge| hedge) } else { shield }.build();
        let calls = Arc::clone(&scene.calls);
        let work = move |_, _| {
            calls.fetch_add(1, Ordering::Relaxed);
            async { Err::<u32, _>(10) }
        };
        let told = scene.sim.run(shield.run(judge, Ask::new(&scene.env), work)).unwrap_err();
        assert_eq!((told.failure, told.why, scene.calls()), (Failure::NoRetry(10), Stop::Told, 1));
        assert!(!shield.breaker().unwrap().is_closed(), "one overload of one call is most of the calls");
    }
}

#[test]
fn what_was_never_sent_is_tried_again_behind_a_shield_even_if_it_must_not_be_done_twice() {
    let mut scene = Scene::new();
    let shield = Shield::for_http(&scene.env).build();
    let calls = Arc::clone(&scene.calls);
    let work = move |ask: Ask| {
        calls.fetch_add(1, Ordering::Relaxed);
        async move { if ask.attempt == 0 { Err(0) } else { Ok(7) } }
    };
    let sent = scene.sim.run(shield.run_at_most_once(judge, Ask::new(&scene.env), work));
    assert_eq!((sent, scene.calls()), (Ok(7), 2));
}

#[test]
fn a_database_has_room_for_so_many_and_the_rest_wait_in_line() {
    let mut scene = Scene::new();
    let shield = Shield::for_database(&scene.env).at_once(2).build();
    let (most, now) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let (env, shield, most, now) = (scene.env.clone(), shield.clone(), Arc::clone(&most), Arc::clone(&now));
            scene.env.spawn(async move {
                let work = |_, _| {
                    let (env, most, now) = (env.clone(), Arc::clone(&most), Arc::clone(&now));
                    async move {
                        most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                        env.sleep(MS * 10).await;
                        now.fetch_sub(1, Ordering::Relaxed);
                        Ok::<u32, ()>(1)
                    }
                };
                shield.run(result, Ask::new(&env), work).await.is_ok()
            })
        })
        .collect();
    let served = scene.sim.run(async {
        let mut served = 0;
        for task in tasks {
            served += u32::from(task.await.unwrap());
        }
        served
    });
    assert_eq!((served, most.load(Ordering::Relaxed), scene.env.now() - Tick::ZERO), (10, 2, MS * 50));
}

#[test]
fn it_can_be_a_task() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let mut scene = Scene::new();
    let shield = Shield::for_cache(&scene.env).rate(Rate::per_second(1000)).build();
    let ask = Ask::new(&scene.env);
    let run = is_send(async move { shield.run(result, ask, |_, _| async { Ok::<_, ()>(7) }).await });
    assert_eq!(scene.sim.run(run), Ok(7));
}

/// So many calls at once to an origin that takes this long; how many were refused or failed.
fn rush(scene: &mut Scene, shield: &Shield, calls: u32, takes: Duration) -> usize {
    let tasks: Vec<_> = (0..calls)
        .map(|_| {
            let (env, shield) = (scene.env.clone(), shield.clone());
            scene.env.spawn(async move {
                let ask = Ask::new(&env).deadline(env.now() + Duration::from_secs(30));
                let work = |_, _| {
                    let env = env.clone();
                    async move {
                        env.sleep(takes).await;
                        Ok::<u32, &str>(1)
                    }
                };
                shield.run(result, ask, work).await
            })
        })
        .collect();
    scene.sim.run(async {
        let mut failed = Vec::new();
        for task in tasks {
            failed.extend(task.await.unwrap().err());
        }
        failed.len()
    })
}

#[test]
fn no_preset_refuses_a_crowd_on_a_cold_start() {
    type Preset = fn(&Env) -> ShieldBuilder;
    let presets: [(Preset, Duration); 3] =
        [(Shield::for_http, MS * 50), (Shield::for_database, MS * 20), (Shield::for_cache, MS)];
    for (number, (preset, takes)) in presets.into_iter().enumerate() {
        for calls in [21, 1_000] {
            let mut scene = Scene::new();
            let shield = preset(&scene.env).build();
            let refused = rush(&mut scene, &shield, calls, takes);
            assert_eq!(refused, 0, "of {calls} calls, with preset {number}");
        }
    }
}

#[test]
fn a_line_that_stands_for_longer_than_a_timeout_is_shed_and_every_refusal_says_when() {
    let mut scene = Scene::new();
    let shield = Shield::for_http(&scene.env).retry(|retry| retry.attempts(1)).at_once(1).build();
    let tasks: Vec<_> = (0..200u32)
        .map(|n| {
            let (env, shield) = (scene.env.clone(), shield.clone());
            scene.env.spawn(async move {
                env.sleep(MS * 100 * n).await;
                let work = |_, _| {
                    let env = env.clone();
                    async move {
                        env.sleep(MS * 400).await;
                        Ok::<u32, &str>(1)
                    }
                };
                shield.run(result, Ask::new(&env), work).await
            })
        })
        .collect();
    let (served, told) = scene.sim.run(async {
        let (mut served, mut told) = (0, 0);
        for task in tasks {
            match task.await.unwrap().map_err(|gave_up| gave_up.failure) {
                Ok(_) => served += 1,
                Err(Failure::Refused(refusal)) => told += u32::from(refusal.after.is_some()),
                Err(failure) => panic!("{failure:?}"),
            }
        }
        (served, told)
    });
    assert_eq!(served + told, 200, "somebody was not told when to come back");
    assert!((50..80).contains(&served), "{served} of 200, where one in four can be");
}

#[test]
fn the_rate_at_an_origin_that_is_quick_again_is_the_configured_rate() {
    let mut scene = Scene::new();
    // Ten in a tenth of a second, and ten at once. Until the second second nobody is answered.
    let shield = Shield::builder(&scene.env).at_once(40).rate(Rate::per_second(100).burst(10)).build();
    let stall = Tick::ZERO + MS * 2_000;
    let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..400u32)
        .map(|n| {
            let (env, shield, begun) = (scene.env.clone(), shield.clone(), Arc::clone(&begun));
            scene.env.spawn(async move {
                env.sleep(MS * 10 * n).await;
                let work = |_, _| {
                    let (env, begun) = (env.clone(), Arc::clone(&begun));
                    async move {
                        begun.lock().push(env.now());
                        env.sleep_until(stall.max(env.now() + MS)).await;
                        Ok::<u32, &str>(1)
                    }
                };
                shield.run(result, Ask::new(&env), work).await
            })
        })
        .collect();
    let served = scene.sim.run(async {
        let mut served = 0;
        for task in tasks {
            served += u32::from(task.await.unwrap().is_ok());
        }
        served
    });
    assert_eq!(served, 400);
    let begun = begun.lock();
    assert!(begun.iter().filter(|at| **at > stall).count() > 300, "most have waited for the end of the stall");
    for (first, last) in begun.iter().zip(&begun[20..]) {
        assert!(*last - *first >= MS * 100, "more than 20 begun within a tenth of a second after {first:?}");
    }
}

#[test]
fn a_caller_who_leaves_the_line_takes_no_slot_and_one_who_leaves_its_call_has_spent_it() {
    let mut scene = Scene::new();
    let shield = Shield::builder(&scene.env).at_once(1).rate(Rate::every(MS * 100).burst(1)).build();
    let spawn = |shield: &Shield| {
        let (env, shield, calls) = (scene.env.clone(), shield.clone(), Arc::clone(&scene.calls));
        scene.env.spawn(async move {
            let work = |_, _| {
                calls.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<Result<u32, &str>>()
            };
            shield.run(result, Ask::new(&env), work).await
        })
    };
    let tasks: Vec<_> = (0..3).map(|_| spawn(&shield)).collect();
    scene.sim.run_until(Tick::ZERO + MS);
    assert_eq!((scene.calls(), shield.queue().unwrap().waiting()), (1, 2));
    for task in tasks {
        task.abort();
    }
    scene.sim.run_until(Tick::ZERO + MS * 2);
    let next = spawn(&shield);
    scene.sim.run_until(Tick::ZERO + MS * 99);
    assert_eq!(scene.calls(), 0, "the origin has had the work of the first");
    scene.sim.run_until(Tick::ZERO + MS * 101);
    assert_eq!(scene.calls(), 1, "and those in line took nothing");
    next.abort();
}
