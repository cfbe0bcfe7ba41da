//! Windows, trials and floors as arithmetic.

use super::{status::Status, tally::Tally, *};

const MS: Duration = Duration::from_millis(1);

fn at(seconds: u64) -> Tick {
    Tick::ZERO + Duration::from_secs(seconds)
}

/// A window of half a second with so many answers of each of these users; each user has its own share of refusals, on
/// so many routes.
fn seen(users: &[(u64, u32, f64)], routes: u64) -> Seen {
    let mut tally = Tally::new();
    for (user, calls, refused) in users {
        for call in 0..*calls {
            let ending = if f64::from(call) < refused * f64::from(*calls) { Ending::Shed } else { Ending::Served };
            let route = u64::from(call) % routes;
            tally.add(&Sample { user: *user, route, ending, took: 20 * MS });
        }
    }
    tally.end(WINDOW)
}

#[test]
fn one_client_that_sends_most_of_it_does_not_move_the_share() {
    for others in [1, 2, 3, 10, 60] {
        let mut users: Vec<_> = (2..2 + others).map(|user| (user, 4, 0.0)).collect();
        users.push((1, 10_000, 1.0));
        let seen = seen(&users, 5);
        assert!(seen.shed_share <= 0.0, "{others} others: {seen:?}");
    }
}

#[test]
fn one_client_that_sends_most_of_it_does_not_hide_what_all_others_see() {
    let mut users: Vec<_> = (2..62).map(|user| (user, 4, 0.5)).collect();
    users.push((1, 10_000, 0.0));
    let seen = seen(&users, 5);
    assert!(seen.shed_share > 0.3 && seen.has_many(), "{seen:?}");
}

#[test]
fn a_feature_that_is_broken_for_all_is_not_the_origin() {
    let users: Vec<_> = (1..60).map(|user| (user, 10, 0.2)).collect();
    assert!(!seen(&users, 1).is_broad() && seen(&users, 1).shed_share > 0.1);
    // Two refusals of each client, on two routes of three.
    assert!(!seen(&users, 2).is_broad());
    let users: Vec<_> = (1..60).map(|user| (user, 10, 0.4)).collect();
    assert!(seen(&users, 3).is_broad());
    assert!(!seen(&users[..3], 3).is_broad(), "three clients are few");
}

#[test]
fn one_slow_client_does_not_move_the_median_time() {
    let mut tally = Tally::new();
    for user in 1..=10 {
        for _ in 0..if user == 1 { 1_000 } else { 5 } {
            let took = if user == 1 { 5_000 * MS } else { 20 * MS };
            tally.add(&Sample { user, route: 0, ending: Ending::Served, took });
        }
    }
    let seen = tally.end(WINDOW);
    assert!((seen.median - 0.02).abs() < 0.001, "{seen:?}");
}

/// What many clients see of an origin that serves `busy` at once.
fn shedding(share: f64, busy: f64) -> Seen {
    let seen = Seen { served: 90, shed: 10, shed_share: share, shed_now: share, busy, ..Seen::default() };
    Seen { groups: 8, clients: 60, routes: 1, ..seen }
}

#[test]
fn clients_who_are_silent_for_a_moment_count_as_they_were() {
    let mut tally = Tally::new();
    let mut sample = Sample { user: 2, route: 0, ending: Ending::Served, took: 20 * MS };
    for user in 2..6 {
        sample.user = user;
        tally.add(&sample);
    }
    tally.end(WINDOW);
    for window in 0..12 {
        for _ in 0..30 {
            tally.add(&Sample { user: 1, ending: Ending::Shed, ..sample });
        }
        let seen = tally.end(WINDOW);
        assert_eq!((seen.shed_share > 0.0, seen.shed_now > 0.0), (window >= 9, true), "window {window}: {seen:?}");
    }
}

#[test]
fn others_who_come_meanwhile_do_not_make_a_useless_cut_look_useful() {
    let mut status = Status::new();
    let alone = Seen { groups: 1, shed_rate: 50.0, ..shedding(1.0, 0.0) };
    assert_eq!(status.next(256.0, &alone, 30.0, 8.0, at(1)), Step::Set(8.0));
    let with_others = Seen { shed_rate: 50.0, ..shedding(0.0, 4.0) };
    for second in 2..5 {
        assert_eq!(status.next(8.0, &with_others, 8.0, 8.0, at(second)), Step::Set(8.0));
    }
    assert_eq!(status.next(8.0, &with_others, 8.0, 8.0, at(5)), Step::Set(256.0));
}

#[test]
fn what_was_cut_comes_back_in_large_steps_but_by_one_where_refusals_began() {
    let mut status = Status::new();
    assert_eq!(status.next(100.0, &shedding(0.2, 20.0), 100.0, 2.0, at(1)), Step::Set(20.0));
    for second in 2..6 {
        assert_eq!(status.next(20.0, &shedding(0.0, 20.0), 20.0, 2.0, at(second)), Step::Set(20.0));
    }
    let mut limit = 20.0;
    let mut steps = Vec::new();
    for _ in 0..200 {
        let next = status.careful(limit, 1.25 * limit);
        steps.push(next - limit);
        limit = next;
    }
    assert!((steps[0] - 10.0).abs() < 1e-9, "{steps:?}");
    let waits = steps.iter().filter(|step| step.abs() < 1e-9).count();
    assert!(waits >= 8, "{steps:?}");
    assert!((status.careful(50.0, 40.0) - 40.0).abs() < 1e-9, "less is never held back");
}

#[test]
fn a_cut_that_ends_the_refusals_stays() {
    let mut status = Status::new();
    assert_eq!(status.next(256.0, &shedding(0.16, 19.6), 24.0, 2.0, at(1)), Step::Set(20.0));
    for second in 2..6 {
        assert_eq!(status.next(20.0, &shedding(0.0, 19.0), 20.0, 2.0, at(second)), Step::Set(20.0));
    }
    assert_eq!(status.next(20.0, &shedding(0.0, 19.0), 20.0, 2.0, at(6)), Step::Law);
}

#[test]
fn a_cut_that_does_not_help_is_undone_and_the_next_comes_ever_later() {
    let mut status = Status::new();
    let mut cuts = Vec::new();
    let mut limit = 256.0;
    for second in 0..300 {
        if let Step::Set(next) = status.next(limit, &shedding(0.3, 5.0), 30.0, 2.0, at(second)) {
            if next < limit {
                cuts.push(second);
            }
            limit = next;
        }
    }
    assert_eq!(cuts.len(), 4, "{cuts:?}");
    assert!(cuts.windows(2).all(|two| two[1] - two[0] >= 30));
    assert!((limit - 256.0).abs() < 1e-9);
}

#[test]
fn an_origin_that_refuses_most_of_what_everybody_asks_stays_cut() {
    let mut status = Status::new();
    let all = Seen { routes: 3, ..shedding(0.9, 1.0) };
    assert_eq!(status.next(256.0, &all, 200.0, 8.0, at(1)), Step::Set(8.0));
    for second in 2..100 {
        assert_eq!(status.next(8.0, &all, 8.0, 8.0, at(second)), Step::Set(8.0));
    }
}

#[test]
fn a_few_refusals_are_chance_and_the_floor_holds() {
    let mut status = Status::new();
    assert_eq!(status.next(256.0, &Seen { shed: 4, ..shedding(0.2, 5.0) }, 30.0, 2.0, at(1)), Step::Law);
    assert_eq!(status.next(256.0, &shedding(0.02, 5.0), 30.0, 2.0, at(1)), Step::Law);
    assert_eq!(status.next(256.0, &shedding(0.2, 5.0), 30.0, 256.0, at(1)), Step::Law);
    assert_eq!(status.next(256.0, &shedding(0.2, 5.0), 30.0, 15.0, at(1)), Step::Set(15.0));
}

#[test]
fn what_went_well_is_remembered_for_five_minutes() {
    let mut best = Best::default();
    best.note(100.0, at(0));
    best.note(40.0, at(200));
    assert!((best.highest(at(290)) - 100.0).abs() < 1e-9);
    assert!((best.highest(at(310)) - 40.0).abs() < 1e-9);
    assert!(best.highest(at(3_000)) <= 0.0);
}

#[test]
fn after_an_outage_there_are_few_seats_at_first_and_one_more_for_each_that_is_served() {
    let env = herdproof::Sim::new(1).env();
    let limit = Limit::new(&env, 256, None);
    limit.begin_ramp();
    assert_eq!(limit.limit(), 8);
    let mut sample = Sample { user: 1, route: 1, ending: Ending::Other, took: MS };
    limit.learn(&sample, env.now());
    assert_eq!(limit.limit(), 8);
    sample.ending = Ending::Served;
    for seats in 9..300 {
        limit.learn(&sample, env.now());
        assert_eq!(limit.limit(), seats.min(256));
    }
}

#[test]
fn a_floor_that_is_set_holds_for_latency_and_refusals() {
    let env = herdproof::Sim::new(1).env();
    let bounds = |most, floor| {
        let bounds = Limit::new(&env, most, floor).0.state.lock().bounds;
        (bounds.by_latency, bounds.by_status)
    };
    assert_eq!(bounds(256, None), (8.0, 2.0));
    assert_eq!(bounds(1, None), (1.0, 1.0));
    assert_eq!(bounds(256, Some(50)), (50.0, 50.0));
    assert_eq!(bounds(16, Some(50)), (16.0, 16.0));
}
