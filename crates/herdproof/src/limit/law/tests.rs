//! Laws against origins that are arithmetic too: so many workers, so long a call.

use super::*;

/// An origin with more demand than it can take, so that the limit always binds.
#[derive(Clone, Copy)]
struct Origin {
    workers: f64,
    time: f64,
    /// How long callers wait; what would take longer comes to nothing.
    patience: f64,
}

const ORIGIN: Origin = Origin { workers: 20.0, time: 0.05, patience: 1.0 };

impl Origin {
    /// Half a second with so many in flight, or longer if that is what 25 calls take.
    fn window(&self, in_flight: f64) -> Window {
        let time = self.time * (in_flight / self.workers).max(1.0);
        let elapsed = f64::max(0.5, 25.0 * time / in_flight);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred")]
        let calls = (elapsed * in_flight / time).round() as u32;
        let (successes, timeouts) = if time < self.patience { (calls, 0) } else { (0, calls) };
        let time = Duration::from_secs_f64(if successes > 0 { time } else { 0.0 });
        Window {
            elapsed: Duration::from_secs_f64(elapsed),
            successes,
            drops: 0,
            timeouts,
            median: time,
            mean: time,
            in_flight,
            binding: true,
        }
    }

    /// The limits that the law gives, window by window.
    fn run(&self, law: &mut dyn Law, mut limit: f64, windows: usize) -> Vec<f64> {
        (0..windows)
            .map(|_| {
                limit = law.next(limit, &self.window(limit)).clamp(2.0, 1_000.0);
                limit
            })
            .collect()
    }
}

fn last(limits: &[f64]) -> f64 {
    *limits.last().expect("some windows were run")
}

#[test]
fn a_lasting_overload_does_not_grow_the_limit_for_ever() {
    // Netflix/concurrency-limits PR #134 and #165: the baseline drifts up with the queue, the limit follows.
    for start in [20.0, 60.0, 200.0] {
        let mut law = Knee::default();
        ORIGIN.run(&mut law, 10.0, 10);
        let limits = ORIGIN.run(&mut law, start, 500);
        assert!(limits[300..].iter().all(|limit| (13.0..=45.0).contains(limit)), "from {start}: {limits:?}");
    }
}

#[test]
fn when_every_call_times_out_the_limit_does_not_grow() {
    // Netflix/concurrency-limits#137: every call takes as long as the timeout, and the limit grows to its maximum.
    let dead = Origin { time: 2.0, ..ORIGIN };
    let mut law = Knee::default();
    ORIGIN.run(&mut law, 10.0, 10);
    let limits = dead.run(&mut law, 100.0, 100);
    assert!(limits.is_sorted_by(|a, b| a >= b), "{limits:?}");
    assert!(last(&limits) < 2.1);
}

#[test]
fn an_incident_is_not_learnt_as_normal() {
    // failsafe-go#127, envoy#38338: after the incident the limit is what it was, and the base too.
    let mut law = Knee::default();
    let before = last(&ORIGIN.run(&mut law, 20.0, 50));
    let trouble = Origin { workers: 5.0, ..ORIGIN };
    let during = trouble.run(&mut law, before, 300);
    assert!(during[200..].iter().all(|limit| *limit < 20.0), "five workers do not need more: {during:?}");
    let after = last(&ORIGIN.run(&mut law, last(&during), 300));
    assert!((18.0..=45.0).contains(&after), "{before} before, {after} after");
    assert!((law.base - 0.05).abs() < 0.01, "{law:?}");
}

#[test]
fn a_base_that_was_learnt_from_a_queue_is_not_believed_for_ever() {
    // envoy#11579: a base that is once too high makes the queue look normal, and nothing ever says otherwise.
    let mut law = Knee::default();
    law.base = 0.25;
    let limits = ORIGIN.run(&mut law, 100.0, 1_200);
    assert!(limits[1_000..].iter().all(|limit| *limit <= 45.0), "{:?}", &limits[1_000..]);
}

#[test]
fn a_slower_origin_without_a_queue_is_not_starved() {
    // The weakness of every law that goes by latency alone.
    let mut law = Knee::default();
    let before = last(&ORIGIN.run(&mut law, 20.0, 50));
    let slow = Origin { time: 0.4, ..ORIGIN };
    let during = slow.run(&mut law, before, 100);
    assert!(during[40..].iter().all(|limit| *limit > 13.0), "{during:?}");
    let mean = during[40..].iter().sum::<f64>() / 60.0;
    assert!(mean > 17.0, "twenty workers, and {mean} in flight on average");
}

#[test]
fn latency_that_does_not_depend_on_us_costs_nothing_but_the_trial() {
    let mut law = Knee::default();
    let far = Origin { workers: 1e9, time: 0.05, patience: 9.0 };
    let before = last(&far.run(&mut law, 20.0, 3));
    let limits = Origin { time: 0.2, ..far }.run(&mut law, before, 8);
    assert!(limits[0] < before, "a jump to four times the latency calls for a trial");
    assert!(last(&limits) > before, "{limits:?}");
}

#[test]
fn a_limit_that_refuses_nobody_is_left_alone() {
    let mut law = Knee::default();
    for in_flight in [5.0, 15.0, 19.0] {
        let window = Window { binding: false, ..ORIGIN.window(in_flight) };
        assert!((law.next(50.0, &window) - 50.0).abs() < f64::EPSILON);
    }
}

#[test]
fn an_origin_that_refuses_is_left_alone_at_once() {
    let mut law = Knee::default();
    let window = Window { drops: 20, ..ORIGIN.window(20.0) };
    assert!((law.next(20.0, &window) - 14.0).abs() < 1e-9);
}

#[test]
fn a_first_window_that_only_the_fast_calls_are_back_from_is_not_the_base() {
    // Of an overloaded origin's first calls, those that are back after half a second are the fast ones. A base learnt from
    // them would make every later window look like a queue, and the limit would never grow.
    let mut law = Knee::default();
    let early = Window { median: Duration::from_millis(30), ..ORIGIN.window(10.0) };
    let mut limit = law.next(10.0, &early);
    for _ in 0..10 {
        limit = law.next(limit, &ORIGIN.window(limit));
    }
    assert!((law.base - 0.05).abs() < 1e-3 && limit > 20.0, "{limit} with {law:?}");
}

#[test]
fn chance_in_one_small_window_does_not_cut_a_slow_origin() {
    // 8 % of the calls to such an origin are late in any case, and now and then seven of 25 are.
    let slow = Origin { time: 0.4, ..ORIGIN };
    let mut law = Knee::default();
    slow.run(&mut law, 15.0, 5);
    let unlucky = Window { successes: 18, timeouts: 7, ..slow.window(15.0) };
    assert!(law.next(15.0, &unlucky) >= 15.0);
    let dying = Window { successes: 10, timeouts: 15, ..slow.window(15.0) };
    assert!(law.next(15.0, &dying) < 11.0);
}

#[test]
fn a_collapse_is_cut_to_as_many_as_were_answered() {
    // What callers have left is still being worked on; a little less at a time, and nobody is answered until it is too late.
    for (successes, timeouts, next) in [(60, 40, 24.0), (50, 50, 20.0), (0, 60, 12.0)] {
        let window = Window { successes, timeouts, ..ORIGIN.window(40.0) };
        assert!((Knee::default().next(40.0, &window) - next).abs() < 1e-9, "{successes} of {}", successes + timeouts);
    }
}

/// Windows of 200 calls without a queue, of which as many are late as the limit makes late.
fn give_up(law: &mut Knee, mut limit: f64, windows: usize, share: impl Fn(f64) -> f64) -> Vec<f64> {
    let calm = Origin { workers: 1e9, ..ORIGIN };
    (0..windows)
        .map(|_| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "up to 200")]
            let timeouts = (200.0 * share(limit)).round() as u32;
            let window = Window { successes: 200 - timeouts, timeouts, ..calm.window(limit) };
            limit = law.next(limit, &window).clamp(2.0, 1_000.0);
            limit
        })
        .collect()
}

#[test]
fn more_who_give_up_than_usual_are_a_limit_that_is_too_high() {
    let mut law = Knee::default();
    let before = last(&give_up(&mut law, 20.0, 3, |_| 0.0));
    let limits = give_up(&mut law, before, 60, |limit| if limit > 25.0 { 0.25 } else { 0.0 });
    assert!(limits.iter().all(|limit| (14.0..before).contains(limit)), "from {before}: {limits:?}");
}

#[test]
fn callers_who_give_up_in_any_case_do_not_starve_the_origin() {
    let mut law = Knee::default();
    let before = last(&give_up(&mut law, 20.0, 3, |_| 0.0));
    let limits = give_up(&mut law, before, 40, |_| 0.2);
    assert!(limits.iter().all(|limit| *limit > 0.6 * before), "from {before}: {limits:?}");
    assert!(last(&limits) > before, "so many are late at any limit: {limits:?}");
    let limits = give_up(&mut Knee::default(), 20.0, 10, |_| 0.15);
    assert!(limits.is_sorted(), "they were from the start: {limits:?}");
}

#[test]
fn little_steps_down_that_do_not_help_are_taken_back() {
    // Too little for a trial, and no queue at all: the calls have become longer, and stay so whatever the limit does.
    let far = Origin { workers: 1e9, patience: 9.0, ..ORIGIN };
    let mut law = Knee::default();
    far.run(&mut law, 32.0, 2);
    let limits = Origin { time: 0.08, ..far }.run(&mut law, 32.0, 20);
    assert!(limits.iter().all(|limit| *limit > 20.0) && last(&limits) > 32.0, "{limits:?}");
    assert!(limits.windows(2).any(|next| next[0] < 24.0 && next[1] >= 32.0), "not all at once: {limits:?}");
}

#[test]
fn a_limit_that_nobody_met_is_cut_from_what_was_in_flight() {
    // Seven tenths of fifty would be no less than there were: nothing changes, and the queue is learnt as normal.
    let mut law = Knee::default();
    let mut limit = 50.0;
    for in_flight in [10.0, 10.0, 10.0, 35.0, 80.0] {
        limit = law
            .next(limit, &Window { in_flight: f64::min(in_flight, 35.0), binding: false, ..ORIGIN.window(in_flight) });
    }
    assert!(limit <= 0.7 * 35.0, "{limit}");
    let after = last(&ORIGIN.run(&mut law, limit, 5));
    assert!(after <= 35.0 && law.base < 0.06, "{after} with {law:?}");
}

#[test]
fn a_few_in_flight_do_not_wait_longer_than_they_are_served() {
    // Before two servers chance makes one wait, not three: 1.7 roots of five are nearly all of them.
    let small = Origin { workers: 2.0, ..ORIGIN };
    let mut law = Knee::default();
    small.run(&mut law, 2.0, 2);
    let limits = small.run(&mut law, 5.0, 3);
    assert!(last(&limits) < 5.0, "{limits:?}");
}

#[test]
fn a_leap_is_not_judged_before_its_calls_are_back() {
    // Of calls of 0.4 s, a window of half a second sees mostly those that began before it.
    let slow = Origin { workers: 1e9, time: 0.4, patience: 9.0 };
    let limits = slow.run(&mut Knee::default(), 20.0, 12);
    assert!(limits.windows(3).all(|next| next[2] < 1.3 * next[0]), "two leaps in a row: {limits:?}");
    assert!(last(&limits) > 40.0, "{limits:?}");
}

#[test]
fn the_published_laws_do_what_is_published_of_them() {
    // Additive increase without an end while nothing is dropped.
    let patient = Origin { patience: 1e9, ..ORIGIN };
    assert!((last(&patient.run(&mut Aimd::default(), 20.0, 100)) - 120.0).abs() < 1e-9);
    // Gradient2 tolerates half as much again and a queue of four: 37 of 20 needed.
    let gradient = last(&ORIGIN.run(&mut Gradient2::default(), 20.0, 60));
    assert!((25.0..60.0).contains(&gradient), "{gradient}");
    // It takes a slower origin for a queue.
    let mut law = Gradient2::default();
    ORIGIN.run(&mut law, 20.0, 60);
    let starved = last(&Origin { time: 0.4, ..ORIGIN }.run(&mut law, gradient, 60));
    assert!(starved < 15.0, "{starved}");
    // Vegas probes for a new base while there is a queue, and takes the queue for it: #165, and so it grows.
    let vegas = ORIGIN.run(&mut Vegas::default(), 10.0, 200);
    assert!(vegas[199] > vegas[20] && vegas[20] > 20.0, "{vegas:?}");
}

#[test]
fn no_window_makes_a_law_panic_or_lose_its_mind() {
    let odd = [0.0, 1e-9, 1.0, 1e9];
    let mut laws: Vec<Box<dyn Law>> = vec![
        Box::new(Knee::default()),
        Box::new(Vegas::default()),
        Box::new(Gradient2::default()),
        Box::new(Aimd::default()),
    ];
    for law in &mut laws {
        for (count, time) in [0, 1, u32::MAX].into_iter().flat_map(|count| odd.map(|time| (count, time))) {
            let time = Duration::from_secs_f64(time);
            for limit in [1.0, 2.0, 4e9] {
                let window = Window {
                    elapsed: time,
                    successes: count,
                    drops: count / 2,
                    timeouts: 0,
                    median: time,
                    mean: time,
                    in_flight: f64::from(count),
                    binding: true,
                };
                let next = law.next(limit, &window);
                assert!(!next.is_nan(), "{window:?}");
            }
        }
    }
}
