//! Every interleaving that a random search finds in thousands of tries, for the moments at which a seat is given back,
//! asked for and given up. `cargo xtask test` runs these with the model checker's locks and atomics.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake},
};

use shuttle::{
    sync::{Condvar, Mutex as Lock, atomic::AtomicU32 as Count},
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

/// Waits for a seat as a task would; if told so, leaves when it would have to sleep.
fn enter(queue: &Queue, patient: bool) -> Option<Seat> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut ask = Ask::new(&Env::system());
    let mut entering = pin!(queue.enter(&mut ask));
    loop {
        if let Poll::Ready(entered) = entering.as_mut().poll(&mut Context::from_waker(&waker)) {
            return entered.ok();
        }
        if !patient {
            return None;
        }
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.ring.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// So many threads that enter, some of whom do not wait, before so many seats.
fn check(seats: u32, threads: u32) {
    let queue = move || Queue::builder(&Env::system(), seats).target(Duration::MAX).build();
    shuttle::check_random(
        move || {
            let (queue, inside) = (queue(), Arc::new(Count::new(0)));
            let callers: Vec<_> = (0..threads)
                .map(|n| {
                    let (queue, inside) = (queue.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        let Some(seat) = enter(&queue, n % 3 != 2) else { return };
                        assert!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < seats, "too many inside");
                        thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(seat);
                    })
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
            assert_eq!((queue.inside(), queue.waiting()), (0, 0));
            assert_eq!(queue.0.word.load(Relaxed) & SLOW, 0);
            assert_eq!(queue.0.state.lock().line.slots_held(), 0);
        },
        TRIES,
    );
}

#[test]
fn a_seat_given_back_as_somebody_joins_the_line_reaches_them() {
    check(1, 2);
}

#[test]
fn a_seat_kept_for_somebody_who_leaves_is_never_lost() {
    check(1, 4);
    check(2, 5);
}

/// As above, while the number of seats goes up and down, and is the first again in the end.
fn check_resized(seats: &'static [u32], threads: u32) {
    let most = seats.iter().copied().max().unwrap();
    shuttle::check_random(
        move || {
            let queue = Queue::builder(&Env::system(), seats[0]).target(Duration::MAX).build();
            let inside = Arc::new(Count::new(0));
            let mut callers: Vec<_> = (0..threads)
                .map(|n| {
                    let (queue, inside) = (queue.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        let Some(seat) = enter(&queue, n % 3 != 2) else { return };
                        assert!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < most, "too many inside");
                        thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(seat);
                    })
                })
                .collect();
            let resized = queue.clone();
            callers.push(thread::spawn(move || seats.iter().for_each(|seats| resized.set_seats(*seats))));
            for caller in callers {
                caller.join().unwrap();
            }
            assert_eq!((queue.inside(), queue.waiting()), (0, 0));
            assert_eq!(queue.0.word.load(Relaxed) & SLOW, 0);
            assert_eq!(queue.0.state.lock().line.slots_held(), 0);
        },
        TRIES,
    );
}

#[test]
fn a_seat_that_is_added_as_somebody_joins_the_line_reaches_them() {
    check_resized(&[1, 2], 3);
}

#[test]
fn a_seat_that_is_taken_away_is_neither_lost_nor_handed_on() {
    check_resized(&[2, 1], 4);
    check_resized(&[1, 3, 1, 2], 5);
}
