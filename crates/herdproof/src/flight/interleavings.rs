//! Interleavings of callers of one group. `cargo xtask test` runs these with the model checker's locks and atomics.

use std::sync::{Arc, atomic::Ordering};

use shuttle::{sync::atomic::AtomicU32 as Count, thread};

use super::*;

const TRIES: usize = 5_000;

#[test]
fn threads_that_call_together_share_loads_and_leave_nothing() {
    shuttle::check_random(
        || {
            let group: Group<u8, u32, u32> = Group::new(&Env::system());
            let loads = Arc::new(Count::new(0));
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let (group, loads) = (group.clone(), Arc::clone(&loads));
                    thread::spawn(move || {
                        let load = || {
                            let number = loads.fetch_add(1, Ordering::SeqCst) + 1;
                            thread::yield_now();
                            Ok(number)
                        };
                        group.run_blocking(1, load).unwrap()
                    })
                })
                .collect();
            let landed: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
            let led = landed.iter().filter(|landed| landed.led).count();
            assert_eq!(led, loads.load(Ordering::SeqCst) as usize, "everybody who loaded led, and nobody else");
            for caller in &landed {
                let leader = landed.iter().find(|leader| leader.led && leader.value == caller.value);
                assert!(leader.is_some_and(|leader| leader.shared || caller.led), "{landed:?}");
            }
            assert_eq!(group.stats().in_air, 0);
        },
        TRIES,
    );
}

#[test]
fn forgetting_in_the_middle_loses_nobody() {
    shuttle::check_random(
        || {
            let group: Group<u8, u32, u32> = Group::new(&Env::system());
            let callers: Vec<_> = (0..2)
                .map(|n| {
                    let group = group.clone();
                    thread::spawn(move || {
                        group.run_blocking(1, || {
                            thread::yield_now();
                            Ok(n)
                        })
                    })
                })
                .collect();
            group.forget(&1);
            let follower: Flight<u32, u32> = group.run(1, || async { Ok(9) });
            assert!(follower.wait().is_ok());
            assert!(callers.into_iter().all(|caller| caller.join().unwrap().is_ok()));
            assert_eq!(group.stats().in_air, 0);
        },
        TRIES,
    );
}
