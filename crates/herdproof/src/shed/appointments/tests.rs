//! What those who are refused are told, against the formulas.

use super::*;
use crate::{
    breaker::Breaker,
    env::sim::Sim,
    gate::{Priority, Why},
};

const MS: Duration = Duration::from_millis(1);

fn at(seconds: f64) -> Tick {
    Tick::ZERO + Duration::from_secs_f64(seconds)
}

fn env() -> Env {
    Sim::new(11).env()
}

fn ask(env: &Env, seconds: f64) -> Ask {
    Ask { at: at(seconds), ..Ask::new(env) }
}

/// Waits of `n` who are refused at once, in seconds.
fn refused(appointments: &Appointments, ask: &Ask, capacity: f64, n: usize) -> Vec<f64> {
    (0..n).map(|_| appointments.book(ask, Some(capacity)).as_secs_f64()).collect()
}

#[test]
fn slots_are_as_far_apart_as_the_headroom_says() {
    let env = env();
    let appointments = Appointments::new(&env);
    for (n, wait) in (1u32..).zip(refused(&appointments, &ask(&env, 0.0), 200.0, 20_000)) {
        let slot = 1.0 + f64::from(n) / 200.0;
        assert!((slot..=slot + 0.1).contains(&wait), "{n}: {wait} for {slot}");
    }
}

#[test]
fn no_two_are_told_the_same_instant_and_no_tenth_of_a_second_is_crowded() {
    let env = env();
    let appointments = Appointments::new(&env);
    let mut waits = refused(&appointments, &ask(&env, 0.0), 200.0, 20_000);
    waits.sort_unstable_by(f64::total_cmp);
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]));
    let mut bins = vec![0; 1_300];
    for wait in &waits {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a hundred seconds")]
        let bin = (wait * 10.0) as usize;
        bins[bin] += 1;
    }
    let worst = bins.into_iter().max().unwrap();
    assert!(worst <= 40, "{worst} in a tenth of a second, where 20 can be served");
}

#[test]
fn slots_that_have_passed_are_not_kept() {
    let env = env();
    let appointments = Appointments::new(&env);
    refused(&appointments, &ask(&env, 0.0), 10.0, 100); // ten seconds
    let half = appointments.book(&ask(&env, 5.0), Some(10.0));
    assert!((6_000..6_300).contains(&half.as_millis()), "{half:?}");
    let over = appointments.book(&ask(&env, 60.0), Some(10.0));
    assert!((1_000..1_300).contains(&over.as_millis()), "{over:?}");
}

#[test]
fn beyond_the_book_everybody_is_spread_over_its_second_half() {
    let env = env();
    let appointments = Appointments::new(&env);
    let waits = refused(&appointments, &ask(&env, 0.0), 10.0, 20_000);
    assert!(waits.iter().all(|wait| *wait <= 120.0));
    let beyond = &waits[1_190..];
    assert!(beyond.iter().all(|wait| *wait >= 60.0));
    let mean = beyond.iter().sum::<f64>() / beyond.len() as f64;
    assert!((mean - 90.0).abs() < 1.0, "{mean}");
    assert!(appointments.0.state.lock().books.all.booked < 1_200.0, "those beyond take no slot");
}

#[test]
fn the_book_moves_when_the_headroom_turns_out_to_be_another() {
    let mut book = Books::default();
    let longest = Duration::from_secs(120);
    for _ in 0..100 {
        book.next(Tick::ZERO, 1.0, 1.0, false, longest);
    }
    assert_eq!(book.next(Tick::ZERO, 100.0, 1.0, false, longest), Some(MS * 2_010), "not in a hundred seconds");
    assert_eq!(book.next(Tick::ZERO, 0.5, 1.0, false, longest), None);
}

#[test]
fn a_headroom_that_wavers_does_not_put_two_into_one_slot() {
    let mut book = Books::default();
    let longest = Duration::from_secs(120);
    let mut last = Tick::ZERO;
    for n in 0..4_000u32 {
        let (now, headroom) = (at(f64::from(n) / 100.0), if n / 100 % 2 == 0 { 190.0 } else { 210.0 });
        let wait = (0..4).map_while(|_| book.next(now, headroom, 1.0, false, longest)).last();
        let Some(wait) = wait else { break };
        let slot = now + wait;
        assert!(slot - last > MS * 4 * 4, "{:?} after the slot of the last four", slot - last);
        last = slot;
    }
    assert!(last > at(75.0));
}

#[test]
fn the_critical_do_not_wait_behind_the_others_and_take_their_slots() {
    let env = env();
    let appointments = Appointments::new(&env);
    refused(&appointments, &ask(&env, 0.0), 10.0, 500);
    let critical = refused(&appointments, &ask(&env, 0.0).priority(Priority::Critical), 10.0, 50);
    assert!(critical[0] < 1.3 && critical[49] < 6.2, "{critical:?}");
    assert!(critical[49] > 6.0, "but not all at once");
    let next = refused(&appointments, &ask(&env, 0.0), 10.0, 1)[0];
    assert!(next > 56.0, "{next}: what the critical take is not given twice");
}

#[test]
fn a_dear_one_takes_more_of_the_book() {
    let env = env();
    let appointments = Appointments::new(&env);
    let dear = Ask { cost: 100, ..ask(&env, 0.0) };
    refused(&appointments, &dear, 10.0, 1);
    assert!(refused(&appointments, &ask(&env, 0.0), 10.0, 1)[0] > 11.0);
}

#[test]
fn headroom_is_what_first_attempts_leave_and_a_tenth_at_least() {
    let env = env();
    let appointments = Appointments::new(&env);
    // 800 first attempts a second and as many retries.
    for ms in 0..20_000u32 {
        let ask = ask(&env, f64::from(ms) / 1e3);
        appointments.came(&ask);
        (0..4).for_each(|n| appointments.admitted(&ask.clone().attempt(n % 2)));
        if ms % 2 == 0 {
            appointments.admitted(&ask);
        }
    }
    let headroom = appointments.headroom(Some(3_000.0));
    assert!((headroom - 500.0).abs() < 10.0, "3,000 less 2,500 first attempts: {headroom}");
    assert!((appointments.headroom(Some(1_000.0)) - 100.0).abs() < 1.0);
}

#[test]
fn the_capacity_is_measured_if_nobody_knows_it() {
    let window = |served, refused| Window { seconds: 1.0, served, refused, ..Window::default() };
    let rates = Rates { admitted: 0.0, capacity: 0.0, show: 1.0, retries_show: false };
    assert!((rates.headroom(None) - UNKNOWN).abs() < 1e-9);
    let idle = rates.learn(window(50, 0)).learn(window(20, 0));
    assert!((idle.capacity - 50.0).abs() < 1e-9, "at least what it once did");
    let busy = (0..30).fold(idle, |rates, _| rates.learn(window(400, 9)));
    assert!((busy.capacity - 400.0).abs() < 1.0);
    let slower = (0..30).fold(busy, |rates, _| rates.learn(window(100, 9)));
    assert!((slower.capacity - 100.0).abs() < 1.0, "refusing, it does what it can");
    for nonsense in [Some(f64::NAN), Some(-1.0), Some(0.0), Some(f64::INFINITY)] {
        assert!((slower.headroom(nonsense) - 100.0).abs() < 1.0);
    }
}

#[test]
fn slots_of_those_who_do_not_come_are_given_to_others() {
    let window = |returned, due| Window { seconds: 1.0, returned, due, ..Window::default() };
    let rates = Rates { admitted: 0.0, capacity: 100.0, show: 1.0, retries_show: false };
    let half = (0..30).fold(rates, |rates, _| rates.learn(window(50, 100)));
    assert!((half.show - 0.5).abs() < 0.01);
    let few = (0..30).fold(half, |rates, _| rates.learn(window(1, 100)));
    assert!((few.show - LEAST_SHOW).abs() < 0.01);
    let all = (0..30).fold(few, |rates, _| rates.learn(window(300, 100)));
    assert!((all.show - 1.0).abs() < 0.01, "and no more than all");
    assert!((all.learn(window(0, 5)).show - all.show).abs() < 1e-9, "a few say nothing");
}

#[test]
fn where_retries_do_not_say_that_they_are_everybody_is_expected() {
    let rates = Rates { admitted: 0.0, capacity: 100.0, show: 1.0, retries_show: false };
    let blind = Window { seconds: 1.0, due: 1_000, ..Window::default() };
    assert!((rates.learn(blind).show - 1.0).abs() < 1e-9);
}

#[test]
fn those_who_keep_their_appointments_and_those_who_do_not_are_told_apart() {
    for (keeping, show) in [(1, 1.0), (2, 0.5)] {
        let env = env();
        let appointments = Appointments::new(&env);
        let mut returns = Vec::new();
        for n in 0..4_000u32 {
            let ask = ask(&env, f64::from(n) / 200.0);
            appointments.came(&ask);
            let back = ask.at + appointments.book(&ask, Some(100.0));
            if n % keeping == 0 {
                returns.push(back);
            }
        }
        returns.sort_unstable();
        for back in returns {
            appointments.came(&Ask { at: back, attempt: 1, ..ask(&env, 0.0) });
        }
        let rate = appointments.0.state.lock().rates.show;
        assert!((rate - show).abs() < 0.1, "one in {keeping} comes: {rate}");
    }
}

#[test]
fn an_idle_night_ends_with_an_empty_book_and_no_panic() {
    let env = env();
    let appointments = Appointments::new(&env);
    refused(&appointments, &ask(&env, 0.0), 10.0, 500);
    appointments.came(&Ask { at: Tick::MAX, ..ask(&env, 0.0) });
    let wait = appointments.book(&Ask { at: Tick::MAX, ..ask(&env, 0.0) }, Some(10.0));
    assert!((1_000..1_300).contains(&wait.as_millis()), "{wait:?}");
    // A clock reading from before the others is a clock reading like any other.
    assert!(appointments.book(&ask(&env, 1.0), Some(10.0)) >= SOONEST);
}

#[test]
fn nonsense_settings_make_a_book_all_the_same() {
    let env = env();
    for longest in [Duration::ZERO, Duration::MAX] {
        let appointments = Appointments::up_to(&env, longest);
        let dear = Ask { cost: u32::MAX, ..ask(&env, 0.0) };
        let wait = appointments.book(&dear, Some(f64::MIN_POSITIVE));
        assert!(wait >= SOONEST && wait <= Duration::from_secs(240), "{wait:?}");
    }
}

#[test]
fn headers_round_up_so_that_nobody_comes_early() {
    let value = |after| headers(after).map(|(_, value)| value);
    assert_eq!(value(Duration::ZERO), ["0", "0", "\"default\";r=0;t=0"]);
    assert_eq!(value(MS * 1_153), ["2", "1153", "\"default\";r=0;t=2"]);
    assert_eq!(value(Duration::from_nanos(1_000_000_001)), ["2", "1001", "\"default\";r=0;t=2"]);
    assert_eq!(headers(MS).map(|(name, _)| name), ["retry-after", "retry-after-ms", "ratelimit"]);
    assert_eq!(value(Duration::MAX)[0], "18446744073709551616");
}

/// Refuses everybody, with a time or without.
#[derive(Clone, Copy, Debug)]
struct Shut(Refusal);

#[derive(Debug)]
struct Never;

impl Permit for Never {
    fn settle(self, _: &Verdict, _: Span) {}
}

impl Place for Never {
    type Permit = Never;

    fn commit(self) -> Never {
        self
    }
}

impl Gate for Shut {
    type Place = Never;

    fn try_reserve(&self, _: &Ask) -> Result<Never, Refusal> {
        Err(self.0)
    }
}

#[test]
fn every_refusal_of_the_gate_within_gets_an_appointment() {
    let env = env();
    let gate = Appointed::new(&env, Shut(Refusal::new(Why::Rate))).capacity(10.0);
    let mut sim = Sim::new(1);
    let first = gate.try_enter(&ask(&env, 0.0)).unwrap_err();
    let second = sim.run(gate.enter(&mut ask(&env, 0.0))).unwrap_err();
    assert_eq!((first.why, second.why), (Why::Rate, Why::Rate));
    assert!(first.after.unwrap() >= SOONEST && second.after != first.after);
    let later = Duration::from_secs(30);
    let gate = Appointed::new(&env, Shut(Refusal::new(Why::Tripped).after(later)));
    assert_eq!(gate.try_enter(&ask(&env, 0.0)).unwrap_err().after, Some(later), "an open breaker knows better");
}

#[test]
fn who_is_let_in_waits_and_is_refused_after_all_gets_an_appointment_too() {
    let env = env();
    let breaker = Breaker::new(&env);
    let gate = Appointed::new(&env, breaker.clone()).capacity(10.0);
    let ask = ask(&env, 0.0);
    let mut waited = gate.try_enter(&ask).unwrap();
    gate.renew(&mut waited, &ask).unwrap();
    breaker.hold_open();
    let refused = gate.renew(&mut waited, &ask).unwrap_err();
    assert_eq!(refused.why, Why::Tripped);
    assert!(refused.after.unwrap() >= SOONEST);
}
