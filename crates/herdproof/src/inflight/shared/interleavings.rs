//! Every interleaving that a random search finds in thousands of tries, for the moments at which callers and the load
//! meet. `cargo xtask test` runs these with the model checker's locks and atomics.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use shuttle::{
    sync::{Condvar, Mutex as Lock, atomic::AtomicU32 as Count},
    thread,
};

use super::*;
use crate::inflight::FlightError;

const TRIES: usize = 5_000;

/// A group as far as a flight sees it.
struct Base {
    abandon: Abandon,
    given_up: Count,
}

impl Table for Base {
    fn remove(&self, _: Place, why: Removal) {
        self.given_up.fetch_add(u32::from(why == Removal::GivenUp), Ordering::SeqCst);
    }

    fn unless_forgotten(&self, _: Place, act: &mut dyn FnMut()) -> bool {
        act();
        true
    }
}

fn flight(base: &Arc<Base>) -> Arc<Shared<u32, u32>> {
    let home = Arc::downgrade(base) as Weak<dyn Table>;
    Arc::new(Shared::new(Env::system(), base.abandon, Place { hash: 0, number: 1 }, home))
}

fn base(abandon: Abandon) -> Arc<Base> {
    Arc::new(Base { abandon, given_up: Count::new(0) })
}

#[derive(Default)]
struct Bell {
    rung: Lock<bool>,
    ring: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.ring.notify_one();
    }
}

/// Waits as a task would: registers, sleeps until woken, looks again.
fn wait_for(flight: &Shared<u32, u32>) -> Result<u32, FlightError<u32>> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut slot = None;
    let joined = Joined { led: false, at: Tick::ZERO };
    loop {
        if let Some(answer) = flight.answer(joined) {
            return answer.map(|landed| landed.value);
        }
        if flight.wait(&mut slot, &waker) {
            let mut rung = bell.rung.lock().unwrap();
            while !*rung {
                rung = bell.ring.wait(rung).unwrap();
            }
            *rung = false;
        }
    }
}

#[test]
fn nobody_who_registers_while_the_flight_lands_is_left_asleep() {
    shuttle::check_random(
        || {
            let base = base(Abandon::Cancel);
            let flight = flight(&base);
            let followers: Vec<_> = (0..3)
                .map(|_| {
                    assert!(flight.join(10).is_ok());
                    let flight = Arc::clone(&flight);
                    thread::spawn(move || wait_for(&flight))
                })
                .collect();
            flight.land(Ending::Value(7));
            for follower in followers {
                assert!(matches!(follower.join().unwrap(), Ok(7)));
            }
        },
        TRIES,
    );
}

#[test]
fn a_flight_is_given_up_exactly_if_nobody_is_aboard() {
    shuttle::check_random(
        || {
            let base = base(Abandon::Cancel);
            let flight = flight(&base);
            assert!(flight.join(10).is_ok());
            let leavers: Vec<_> = (0..2)
                .map(|_| {
                    let flight = Arc::clone(&flight);
                    thread::spawn(move || flight.leave(None))
                })
                .collect();
            let newcomer = {
                let flight = Arc::clone(&flight);
                thread::spawn(move || flight.join(10).is_ok())
            };
            for leaver in leavers {
                leaver.join().unwrap();
            }
            let aboard = newcomer.join().unwrap();
            let given_up = base.given_up.load(Ordering::SeqCst);
            assert_eq!(given_up, u32::from(!aboard), "with a newcomer aboard: {aboard}");
        },
        TRIES,
    );
}

#[test]
fn leaving_while_it_lands_neither_hangs_nor_keeps_a_waker() {
    shuttle::check_random(
        || {
            let base = base(Abandon::Cancel);
            let flight = flight(&base);
            let bell = Arc::new(Bell::default());
            let mut slot = None;
            assert!(flight.wait(&mut slot, &Waker::from(Arc::clone(&bell))));
            let lander = {
                let flight = Arc::clone(&flight);
                thread::spawn(move || flight.land(Ending::Value(1)))
            };
            flight.leave(slot);
            lander.join().unwrap();
            assert!(flight.is_landed());
            assert_eq!(Arc::strong_count(&bell), 1, "somebody still holds the waker of who left");
        },
        TRIES,
    );
}
