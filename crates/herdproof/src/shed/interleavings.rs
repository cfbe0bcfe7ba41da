//! Every interleaving that a random search finds in thousands of tries, for the moments at which a seat is given back,
//! asked for and given up. `cargo xtask test` runs these with the model checker's locks and atomics.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
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
    enter_as(queue, patient, Ask::new(&Env::system()))
}

fn enter_as(queue: &Queue, patient: bool, mut ask: Ask) -> Option<Seat> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
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

/// The fair queue: threads of so many users that enter, some of whom do not wait, while somebody else comes to wait for one of
/// the loads and the number of seats changes. A wake-up that is lost is a deadlock, which the checker reports.
fn check_fair(seats: &'static [u32], threads: u32, users: u32) {
    let most = seats.iter().copied().max().unwrap();
    shuttle::check_random(
        move || {
            let queue = Queue::builder(&Env::system(), seats[0]).target(Duration::MAX).fair().build();
            let inside = Arc::new(Count::new(0));
            let mut callers: Vec<_> = (0..threads)
                .map(|n| {
                    let (queue, inside) = (queue.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        let ask = Ask::new(&Env::system()).user(u64::from(n % users) + 1).load(u64::from(n) + 1);
                        let Some(seat) = enter_as(&queue, n % 3 != 2, ask) else { return };
                        assert!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < most, "too many inside");
                        thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(seat);
                    })
                })
                .collect();
            let other = queue.clone();
            callers.push(thread::spawn(move || {
                other.joined(1, &Ask::new(&Env::system()).user(99));
                seats[1..].iter().for_each(|seats| other.set_seats(*seats));
                other.joined(2, &Ask::new(&Env::system()).user(99));
            }));
            for caller in callers {
                caller.join().unwrap();
            }
            assert_eq!((queue.inside(), queue.waiting()), (0, 0));
        },
        TRIES / 5,
    );
}

#[test]
fn in_fair_mode_a_seat_given_back_as_somebody_joins_the_line_reaches_them() {
    check_fair(&[1], 2, 2);
    check_fair(&[1], 4, 2);
}

#[test]
fn in_fair_mode_who_waits_at_its_share_is_let_in_when_others_leave() {
    check_fair(&[5], 6, 1);
    check_fair(&[2], 5, 3);
}

#[test]
fn in_fair_mode_a_seat_that_is_added_as_somebody_joins_the_line_reaches_them() {
    check_fair(&[1, 2], 4, 2);
    check_fair(&[2, 1, 3], 5, 2);
}
