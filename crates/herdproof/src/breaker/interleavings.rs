//! Interleavings of the moments at which callers and a breaker's changes meet. `cargo xtask test` runs these with the model
//! checker's locks and atomics.

use std::sync::Arc;

use shuttle::{sync::atomic::AtomicU32 as Count, thread};

use super::*;

const TRIES: usize = 5_000;
const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Tick {
    Tick::ZERO + SECOND * seconds
}

fn enter(breaker: &Breaker, env: &Env, now: Tick) -> Option<Pass> {
    breaker.try_enter(&Ask { at: now, ..Ask::new(env) }).ok()
}

fn settle(pass: Pass, now: Tick, verdict: Verdict) {
    pass.settle(&verdict, Span { from: now, to: now });
}

/// A breaker that trips on two faults and has been open for its second at tick one.
fn breaker(env: &Env) -> Breaker {
    let breaker = Breaker::builder(env).faults(2).open(SECOND, SECOND).build();
    let state = State::new(Tick::ZERO);
    *breaker.0.state.lock() = state;
    breaker.0.word.store(word(&state), Release);
    breaker
}

fn tripped(env: &Env) -> Breaker {
    let breaker = breaker(env);
    for _ in 0..2 {
        settle(enter(&breaker, env, at(0)).unwrap(), at(0), Verdict::Fault);
    }
    assert!(!breaker.is_closed());
    breaker
}

/// The word is what the state says, and whoever asks late enough gets in: nothing is wedged.
fn check_sound(breaker: &Breaker, env: &Env) {
    let state = *breaker.0.state.lock();
    assert_eq!(breaker.0.word.load(Acquire), word(&state), "{state:?}");
    let gets_in = (1..4).any(|hours| enter(breaker, env, at(3600 * hours)).is_some());
    assert!(gets_in, "{state:?}");
}

#[test]
fn one_of_those_who_ask_together_is_the_probe() {
    shuttle::check_random(
        || {
            let env = Env::system();
            let breaker = tripped(&env);
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let (breaker, env) = (breaker.clone(), env.clone());
                    thread::spawn(move || enter(&breaker, &env, at(1)))
                })
                .collect();
            let passes: Vec<_> = callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect();
            assert_eq!(passes.len(), 1);
            drop(passes);
            check_sound(&breaker, &env);
        },
        TRIES,
    );
}

#[test]
fn a_probe_that_leaves_while_others_ask_leaves_its_place_to_one() {
    shuttle::check_random(
        || {
            let env = Env::system();
            let breaker = tripped(&env);
            let probe = enter(&breaker, &env, at(1)).unwrap();
            let inside = Arc::new(Count::new(1));
            let most = Arc::new(Count::new(1));
            let callers: Vec<_> = (0..2)
                .map(|_| {
                    let (breaker, env, inside, most) =
                        (breaker.clone(), env.clone(), Arc::clone(&inside), Arc::clone(&most));
                    thread::spawn(move || {
                        if let Some(pass) = enter(&breaker, &env, at(1)) {
                            most.fetch_max(inside.fetch_add(1, Relaxed) + 1, Relaxed);
                            inside.fetch_sub(1, Relaxed);
                            drop(pass);
                        }
                    })
                })
                .collect();
            inside.fetch_sub(1, Relaxed);
            drop(probe);
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert_eq!(most.load(Relaxed), 1, "two probes at a time");
            check_sound(&breaker, &env);
        },
        TRIES,
    );
}

#[test]
fn late_results_and_a_probe_do_not_get_in_each_others_way() {
    shuttle::check_random(
        || {
            let env = Env::system();
            let breaker = breaker(&env);
            let late: Vec<_> = (0..4).map(|_| enter(&breaker, &env, at(0)).unwrap()).collect();
            let settlers: Vec<_> =
                late.into_iter().map(|pass| thread::spawn(move || settle(pass, at(0), Verdict::Fault))).collect();
            let prober = {
                let (breaker, env) = (breaker.clone(), env.clone());
                thread::spawn(move || {
                    let Some(pass) = enter(&breaker, &env, at(1)) else { return };
                    settle(pass, at(1), Verdict::Ok);
                })
            };
            settlers.into_iter().for_each(|settler| settler.join().unwrap());
            prober.join().unwrap();
            // Four faults are two rows of two at most, but those after the first trip are from before it.
            let state = *breaker.0.state.lock();
            assert!(matches!(state.mode, Mode::Open { .. } | Mode::Ramping { .. }), "{state:?}");
            check_sound(&breaker, &env);
        },
        TRIES,
    );
}
