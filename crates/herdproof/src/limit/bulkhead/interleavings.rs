//! Every interleaving that a random search finds in thousands of tries, for the moments at which a permit is given back and
//! somebody waits, leaves or comes. `cargo xtask test` runs these with the model checker's locks.

use std::{pin::pin, task::Wake};

use shuttle::{
    sync::{Condvar, Mutex as Lock},
    thread,
};

use super::*;

const TRIES: usize = 5_000;

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

/// Enters as a task would: polls, sleeps until woken, polls again.
fn enter(pool: &Bulkhead) -> Result<BulkheadPermit, Refusal> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut ask = Ask::new(&pool.room.env);
    let mut entering = pin!(pool.enter(&mut ask));
    loop {
        if let Poll::Ready(entered) = entering.as_mut().poll(&mut Context::from_waker(&waker)) {
            return entered;
        }
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.ring.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn nobody_is_left_asleep_and_there_is_never_one_too_many() {
    shuttle::check_random(
        || {
            let pool = Bulkhead::new(&Env::system(), 1);
            let inside = Arc::new(Lock::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (pool, inside) = (pool.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        let permit = enter(&pool).unwrap();
                        *inside.lock().unwrap() += 1;
                        thread::yield_now();
                        assert_eq!(*inside.lock().unwrap(), 1);
                        *inside.lock().unwrap() -= 1;
                        drop(permit);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((pool.taken(), pool.waiting()), (0, 0));
        },
        TRIES,
    );
}

#[test]
fn leaving_while_a_permit_comes_loses_it_for_nobody() {
    shuttle::check_random(
        || {
            let pool = Bulkhead::new(&Env::system(), 1);
            let held = pool.try_enter(&Ask::new(&pool.room.env)).unwrap();
            let leaver = {
                let pool = pool.clone();
                thread::spawn(move || {
                    let mut ask = Ask::new(&pool.room.env);
                    let mut entering = Box::pin(pool.enter(&mut ask));
                    drop(entering.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                    thread::yield_now();
                })
            };
            let waiter = {
                let pool = pool.clone();
                thread::spawn(move || enter(&pool).map(drop))
            };
            drop(held);
            leaver.join().unwrap();
            assert!(waiter.join().unwrap().is_ok());
            assert_eq!((pool.taken(), pool.waiting()), (0, 0));
        },
        TRIES,
    );
}
