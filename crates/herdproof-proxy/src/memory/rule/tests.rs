//! The rules, each hazard once. The budget is 800, an eighth of it 100.

use super::*;

const MOST: u64 = 800;
const FAST: u64 = 1 << 20;

/// A reader that has had time to show how fast it is.
fn reader(client: u64, body: usize, bytes: u64, rate: u64) -> Hold {
    Hold {
        client,
        body,
        bytes,
        rate: Some(rate),
        blocked: true,
        waits: false,
        arrives: false,
        is_narrow: false,
        ended: false,
    }
}

/// Whom to end, and whether it is enough.
fn end(holds: &[Hold]) -> (Vec<usize>, bool) {
    let mut bodies: Vec<_> = holds.iter().map(|hold| (hold.body, hold.bytes)).collect();
    bodies.sort_unstable();
    bodies.dedup();
    let Plan { end, short, .. } = for_memory(holds, bodies.iter().map(|(_, bytes)| bytes).sum(), MOST);
    (end, !short)
}

#[test]
fn within_the_budget_nobody_is_ended_however_slow() {
    assert_eq!(end(&[reader(1, 1, MOST, 0)]), (vec![], true));
}

#[test]
fn the_slowest_of_the_client_that_holds_most_goes_until_the_rest_fits() {
    let mut holds = vec![reader(1, 1, 100, 1)];
    holds.extend((2..6).map(|body| reader(2, body, 200, body as u64 * 10)));
    assert_eq!(end(&holds), (vec![1], true), "900 of 800: one is enough");
    holds.push(reader(2, 9, 200, 5));
    holds.push(reader(2, 10, 200, 7));
    assert_eq!(end(&holds), (vec![5, 6, 1], true));
}

#[test]
fn a_fast_reader_is_not_ended_because_a_slow_stranger_shares_its_body() {
    let holds = [reader(1, 1, 600, FAST), reader(2, 1, 600, 1), reader(3, 2, 300, FAST)];
    let (ended, _) = end(&holds);
    assert_eq!(ended[0], 1);
    let holds = [reader(1, 1, 600, FAST), reader(2, 1, 600, 1), reader(2, 2, 300, 1)];
    assert_eq!(end(&holds), (vec![2], true));
}

#[test]
fn two_who_share_their_bodies_so_that_ending_one_frees_nothing_are_both_ended() {
    let mut holds = Vec::new();
    for body in 1..=4 {
        holds.extend([reader(1, body, 300, 1), reader(2, body, 300, 1)]);
    }
    let (ended, enough) = end(&holds);
    assert!(enough);
    let both = (1..=4).filter(|body| ended.iter().filter(|index| holds[**index].body == *body).count() == 2).count();
    assert_eq!(both, 2, "two of four bodies have to go: {ended:?}");
}

#[test]
fn a_slow_reader_of_little_outlasts_a_fast_one_whose_client_holds_much() {
    let holds = [reader(1, 1, 50, 1), reader(2, 2, 500, FAST), reader(2, 3, 400, FAST)];
    assert_eq!(end(&holds), (vec![1], true));
}

#[test]
fn where_all_are_fast_and_hold_little_nobody_is_ended_up_to_a_quarter_more() {
    let all = |bytes: u64| -> Vec<Hold> { (0..10).map(|n| reader(n as u64, n, bytes, FAST)).collect() };
    let Plan { end, short, .. } = for_memory(&all(90), 1_000, MOST);
    assert_eq!((end, short), (vec![], true));
    let Plan { end, short, .. } = for_memory(&all(90), 1_001, MOST);
    assert_eq!((end.len(), short), (1, true));
}

#[test]
fn a_fast_reader_of_what_still_arrives_slows_the_origin_and_is_not_ended() {
    let most = 16 * NARROW;
    let arrives = |client, body, rate| Hold { arrives: true, ..reader(client, body, 10 * NARROW, rate) };
    let fast = [arrives(1, 1, FAST), arrives(2, 2, FAST)];
    assert_eq!(for_memory(&fast, 20 * NARROW, most), Plan { narrow: vec![1], ..Plan::default() });
    let is_narrow = [fast[0], Hold { is_narrow: true, ..fast[1] }];
    assert_eq!(for_memory(&is_narrow, 20 * NARROW, most), Plan::default(), "it is given the time to read");
    assert_eq!(for_memory(&is_narrow, 21 * NARROW, most).end, [1], "as long as there is any");
    let slow = [arrives(1, 1, FAST), arrives(2, 2, 1)];
    assert_eq!(for_memory(&slow, 20 * NARROW, most), Plan { end: vec![1], ..Plan::default() });
    let shared = [arrives(1, 1, FAST), arrives(1, 2, FAST), arrives(2, 2, FAST)];
    assert_eq!(for_memory(&shared, 20 * NARROW, most).narrow, [0], "a stranger would be cut off");
}

#[test]
fn one_who_has_only_begun_or_waits_for_us_is_not_slow() {
    let begun = Hold { rate: None, ..reader(1, 1, 90, 0) };
    let waits_for_us = Hold { blocked: false, ..reader(2, 2, 90, 0) };
    let slow = reader(3, 3, 90, 10);
    assert_eq!(
        for_memory(&[begun, waits_for_us, slow], 900, MOST),
        Plan { end: vec![2], short: true, ..Plan::default() }
    );
}

#[test]
fn who_was_ended_and_has_not_let_go_is_not_paid_for_by_another() {
    let leaving = Hold { ended: true, ..reader(1, 1, 500, 1) };
    assert_eq!(end(&[leaving, reader(2, 2, 500, 1)]), (vec![], true));
    assert_eq!(end(&[leaving, reader(2, 2, 900, 1)]), (vec![1], true));
}

#[test]
fn what_the_store_has_is_nobodys_fault() {
    let stored = reader(1, 1, 0, 0);
    assert_eq!(for_memory(&[stored, reader(2, 2, 90, 1)], 900, MOST).end, [1]);
}

#[test]
fn the_rate_that_a_seat_costs_rises_with_how_many_are_taken() {
    let kib = |taken| least_rate(taken, 100) >> 10;
    assert_eq!([0, 49, 50, 74, 75, 100, 200].map(kib), [1, 1, 16, 16, 64, 64, 64]);
    assert_eq!(least_rate(0, 0), 1 << 10);
}

#[test]
fn a_seat_is_taken_from_the_slowest_of_the_client_that_holds_most() {
    let held = |client, body, rate| Hold { waits: true, ..reader(client, body, 300, rate) };
    let holds = [held(1, 1, 500), held(2, 2, 900), held(2, 3, 800), held(2, 4, 60_000)];
    assert_eq!(for_a_seat(&holds, 10, 100), Some(2));
    let no_seat = Hold { waits: false, ..holds[2] };
    assert_eq!(for_a_seat(&[holds[0], holds[1], no_seat, holds[3]], 10, 100), Some(1));
    assert_eq!(for_a_seat(&[holds[3]], 10, 100), None);
    assert_eq!(for_a_seat(&[holds[3]], 80, 100), Some(0));
    let waits_for_us = Hold { blocked: false, ..holds[0] };
    assert_eq!(for_a_seat(&[waits_for_us], 80, 100), None);
}
