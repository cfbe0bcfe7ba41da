//! Who gets a seat, as arithmetic.

use proptest::prelude::*;

use super::*;
use crate::{env::sim::Sim, gate::Priority};

const MS: Duration = Duration::from_millis(1);
const CLASSES_IN_ORDER: [Priority; 4] =
    [Priority::Sheddable, Priority::Background, Priority::Normal, Priority::Critical];

fn at(ms: u32) -> Tick {
    Tick::ZERO + MS * ms
}

fn ask(user: u64, ms: u32) -> Ask {
    Ask::at(at(ms)).user(user)
}

/// Flows before so many seats, with what holds a seat or waits for one.
struct Room {
    flows: Flows,
    seats: u32,
    line: u32,
}

/// What came of an ask.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Seated(u32),
    Waits(u32),
    Refused,
}

impl Room {
    fn new(seats: u32) -> Room {
        Room::with_target(seats, Duration::MAX)
    }

    fn with_target(seats: u32, target: Duration) -> Room {
        Room { flows: Flows::new(target, Sim::new(7).env().hasher("flows")), seats, line: 1_000 }
    }

    fn view(&self, ms: u32) -> View {
        View { now: at(ms), seats: self.seats, usual: Duration::ZERO, order: Order::Adaptive }
    }

    fn come(&mut self, ask: &Ask) -> Came {
        if let Some(flow) = self.flows.take(ask, self.view(0)) {
            return Came::Seated(flow);
        }
        match self.flows.make_room(ask, self.line) {
            Ok(_) => Came::Waits(self.flows.join(ask, Duration::ZERO)),
            Err(()) => Came::Refused,
        }
    }

    /// As many seats of one user as it gets.
    fn fill(&mut self, user: u64) -> Vec<u32> {
        let mut held = Vec::new();
        while let Some(flow) = self.flows.take(&ask(user, 0), self.view(0)) {
            held.push(flow);
        }
        held
    }

    /// So many waiters of one user.
    fn crowd(&mut self, user: u64, many: u32) -> Vec<u32> {
        (0..many)
            .map(|_| match self.come(&ask(user, 0)) {
                Came::Waits(slot) => slot,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// Everybody whose wait ends now.
    fn settle(&mut self, ms: u32) -> Vec<Ended> {
        let view = self.view(ms);
        let next = || self.flows.next(view, |deadline, _| view.now >= deadline);
        std::iter::from_fn(next).collect()
    }

    /// A seat of this flow is given back; gives who is seated for it, as users.
    fn release(&mut self, flow: u32, ms: u32) -> Vec<u64> {
        self.flows.release(flow);
        let ended = self.settle(ms);
        ended
            .iter()
            .filter(|ended| matches!(ended.stage, Stage::Seated(_)))
            .map(|ended| self.user(ended.waiter.slot))
            .collect()
    }

    fn user(&self, slot: u32) -> u64 {
        self.flows.flow(self.flows.slots.of(slot).flow).user.map_or(0, NonZero::get)
    }

    fn held(&self, user: u64) -> u32 {
        self.flows.by_user.get(&NonZero::new(user)).map_or(0, |flow| self.flows.flow(*flow).held)
    }

    /// What holds after every step.
    fn check(&self) {
        let Flows { by_user, bands, .. } = &self.flows;
        let (mut held, mut waiting) = (0, 0);
        let free = self.seats.saturating_sub(self.flows.inside);
        for flow in by_user.values().map(|flow| self.flows.flow(*flow)) {
            let waits: u32 = flow.queues.iter().map(|queue| queue.waiting).sum();
            assert!(flow.held + waits > 0, "a flow without anybody is kept");
            assert!(waits == 0 || !may_sit(flow.held, free), "somebody waits who could have a seat");
            held += flow.held;
            waiting += waits;
        }
        assert_eq!((held, waiting), (self.flows.inside, self.flows.waiting));
        let waiting_flows =
            |band: usize| by_user.values().filter(move |flow| self.flows.flow(**flow).queues[band].waiting > 0);
        for (number, band) in bands.iter().enumerate() {
            assert_eq!(band.next.len(), waiting_flows(number).count());
            assert_eq!(band.lengths.len(), band.next.len());
            assert_eq!(band.lengths.iter().map(|length| length.0).sum::<u32>(), band.waiting);
        }
        assert_eq!(by_user.len() + self.flows.unused.len(), self.flows.all.len());
    }
}

#[test]
fn one_user_never_holds_more_than_four_fifths_and_always_gets_a_seat() {
    for (seats, alone) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (8, 7), (10, 8), (64, 52), (100, 80), (256, 205)] {
        let mut room = Room::new(seats);
        assert_eq!(room.fill(1).len(), alone, "{seats} seats");
        room.check();
    }
}

#[test]
fn each_further_user_finds_seats_that_are_free() {
    let mut room = Room::new(256);
    let held: Vec<usize> = (1..=5).map(|user| room.fill(user).len()).collect();
    assert_eq!(held, [205, 41, 8, 2, 0], "four fifths of what the ones before have left");
    room.check();
}

#[test]
fn seats_that_were_taken_before_somebody_came_go_to_whoever_holds_fewest() {
    let mut room = Room::new(10);
    let greedy = room.fill(1);
    room.crowd(1, 200);
    let others = [room.fill(2), room.fill(3)];
    assert_eq!((others[0].len(), others[1].len()), (2, 0), "all ten are taken");
    room.crowd(3, 3);
    room.crowd(2, 3);
    assert_eq!(room.release(greedy[0], 1), [3], "three holds none");
    assert_eq!(room.release(greedy[1], 2), [3], "and then one, while two holds two");
    let third = room.release(greedy[2], 3);
    assert_eq!(third, [2], "now both hold two, and the turn of two was longer ago");
    assert_eq!(room.held(1), 5);
    room.check();
}

#[test]
fn two_hundred_calls_of_one_user_do_not_stand_before_one_of_another() {
    let mut room = Room::new(1);
    let greedy = room.fill(1);
    room.crowd(1, 200);
    room.crowd(2, 1);
    assert_eq!(room.release(greedy[0], 1), [1], "both hold none, and who came first is first");
    let flow = room.flows.by_user[&NonZero::new(1)];
    assert_eq!(room.release(flow, 2), [2], "the other is next, and not the two-hundred-and-first");
}

#[test]
fn who_has_no_user_is_one_user() {
    let mut room = Room::new(10);
    let mut seated = 0;
    while room.flows.take(&Ask::at(at(0)), room.view(0)).is_some() {
        seated += 1;
    }
    assert_eq!(seated, 8);
}

#[test]
fn misses_do_not_starve_refreshes_and_refreshes_do_not_starve_misses() {
    let mut room = Room::new(1);
    let mut flow = room.fill(1)[0];
    // Each a user of its own, so that nothing but the class decides.
    for user in 0..90 {
        room.come(&ask(100 + user, 0));
        room.come(&ask(200 + user, 0).priority(Priority::Sheddable));
    }
    let mut served = Vec::new();
    for ms in 0..45 {
        let users = room.release(flow, ms);
        let [user] = users[..] else { panic!("{users:?}") };
        flow = room.flows.by_user[&NonZero::new(user)];
        served.push(user >= 200);
    }
    let refreshes: Vec<usize> = (0..45).filter(|n| served[*n]).collect();
    assert_eq!(refreshes, [8, 17, 26, 35, 44]);
}

#[test]
fn a_line_full_of_one_users_calls_refuses_that_user() {
    let mut room = Room::new(1);
    room.line = 100;
    let held = room.fill(1);
    let greedy = room.crowd(1, 100);
    assert_eq!(room.come(&ask(1, 1)), Came::Refused);
    let Came::Waits(slot) = room.come(&ask(2, 1)) else { panic!("the other is refused") };
    assert_eq!(room.flows.slots.stage(greedy[0]), Stage::Refused(Why::Queue), "the oldest of the longest went");
    assert!(matches!(room.come(&ask(3, 1).priority(Priority::Sheddable)), Came::Waits(_)), "a refresh too");
    assert_eq!(room.flows.slots.stage(greedy[1]), Stage::Refused(Why::Queue));
    assert_eq!(room.flows.len(), 100);
    assert_eq!(room.release(held[0], 2), [1]);
    assert_eq!(room.flows.slots.stage(slot), Stage::Waiting);
    room.check();
}

#[test]
fn a_line_full_of_refreshes_makes_room_for_a_miss_and_keeps_a_ninth_for_them() {
    let mut room = Room::new(1);
    room.line = 90;
    room.fill(1);
    for user in 0..90 {
        room.come(&ask(100 + user, 0).priority(Priority::Sheddable));
    }
    let accepted = (0..90).filter(|user| matches!(room.come(&ask(1_000 + user, 1)), Came::Waits(_))).count();
    assert_eq!((accepted, room.flows.bands[SPARE].waiting), (80, 10));
    let refresh = ask(2_000, 2).priority(Priority::Sheddable);
    assert_eq!(room.come(&refresh), Came::Refused, "ten of ninety is their share");
    room.check();
}

#[test]
fn a_full_line_of_many_users_pushes_out_the_oldest_turn_only_while_it_stands() {
    let mut room = Room::with_target(1, MS * 5);
    room.line = 3;
    let held = room.fill(1);
    let slots: Vec<u32> = (10..13).flat_map(|user| room.crowd(user, 1)).collect();
    assert_eq!(room.come(&ask(13, 1)), Came::Refused, "nobody has more than the newcomer");
    (0..=120).for_each(|ms| room.flows.bands[WANTED].codel.sample(MS * 50, at(ms)));
    assert!(matches!(room.come(&ask(14, 121)), Came::Waits(_)));
    assert_eq!(room.flows.slots.stage(slots[0]), Stage::Refused(Why::Queue));
    room.flows.release(held[0]);
    room.settle(122);
    room.check();
}

#[test]
fn a_users_standing_line_is_shed_and_the_others_is_not() {
    let mut room = Room::with_target(2, MS * 5);
    let mut held = room.fill(1);
    held.extend(room.fill(2));
    assert_eq!((room.held(1), room.held(2)), (2, 0));
    let (greedy, other) = (room.crowd(1, 50), room.crowd(2, 1));
    for slot in greedy.iter().chain(&other) {
        assert_eq!(room.flows.slots.stage(*slot), Stage::Waiting);
    }
    let flow = room.flows.by_user[&NonZero::new(1)];
    for ms in [1, 60, 120, 180, 240] {
        room.release(flow, ms);
        if ms == 1 {
            assert!(matches!(room.flows.slots.stage(other[0]), Stage::Seated(_)), "holds none, so it is first");
        }
    }
    let shed = greedy.iter().filter(|slot| room.flows.slots.stage(**slot) == Stage::Refused(Why::Shed)).count();
    assert!(shed > 40, "{shed}");
    assert!(matches!(room.come(&ask(3, 241)), Came::Seated(_)), "whoever comes new is not refused for it");
}

#[test]
fn a_crowd_in_which_everybody_has_one_call_is_shed_and_served_newest_first() {
    let mut room = Room::with_target(1, MS * 5);
    let mut flow = room.fill(1)[0];
    // One a millisecond before a seat that is free every ten.
    let (mut last, mut refused) = (0, 0);
    for ms in 1..=400 {
        assert!(matches!(room.come(&ask(1_000 + u64::from(ms), ms)), Came::Waits(_)));
        if ms % 10 == 0 {
            room.flows.release(flow);
            for ended in room.settle(ms) {
                let user = room.user(ended.waiter.slot);
                match ended.stage {
                    Stage::Seated(_) => {
                        flow = room.flows.by_user[&NonZero::new(user)];
                        last = user;
                    }
                    _ => refused += 1,
                }
                room.flows.slots.remove(ended.waiter.slot);
            }
            room.check();
        }
    }
    assert_eq!(last, 1_400, "the newest is served");
    assert!(refused > 300, "{refused} of 360 are told at once, not after a wait of seconds");
    assert!(room.flows.len() < 15, "{} wait", room.flows.len());
}

#[test]
fn what_is_late_when_its_turn_comes_is_refused_and_costs_no_seat() {
    let mut room = Room::new(1);
    let held = room.fill(1);
    let late = room.come(&ask(2, 0).deadline(at(5)));
    let in_time = room.come(&ask(3, 0));
    let (Came::Waits(late), Came::Waits(in_time)) = (late, in_time) else { panic!("both wait") };
    room.release(held[0], 6);
    assert_eq!(room.flows.slots.stage(late), Stage::Refused(Why::Deadline));
    assert_eq!(room.flows.slots.stage(in_time), Stage::Seated(at(6)));
}

/// A load of a user whose line is long, in line as number 42.
fn room_with_a_load() -> (Room, u32) {
    let mut room = Room::new(5);
    let held = room.fill(1);
    room.crowd(1, 50);
    let Came::Waits(slot) = room.come(&ask(1, 1).load(42)) else { panic!("waits") };
    room.crowd(1, 10);
    assert_eq!(held.len(), 4);
    (room, slot)
}

fn load(number: u64) -> NonZero<u64> {
    NonZero::new(number).unwrap()
}

#[test]
fn a_load_that_somebody_else_comes_to_wait_for_does_not_wait_in_the_line_of_who_asked_first() {
    let (mut room, slot) = room_with_a_load();
    assert!(!room.flows.joined(load(41), &ask(2, 2)), "there is no such load");
    assert!(room.flows.joined(load(42), &ask(2, 2)));
    room.settle(2);
    assert_eq!(room.flows.slots.stage(slot), Stage::Seated(at(2)), "there was a seat for two");
    assert_eq!((room.held(1), room.held(2)), (4, 1));
    assert!(!room.flows.joined(load(42), &ask(3, 3)), "it waits no more");
    room.check();
}

#[test]
fn a_load_stays_where_it_is_served_sooner() {
    let (mut room, slot) = room_with_a_load();
    // User 2 takes the last seat and has a longer line.
    room.fill(2);
    room.crowd(2, 90);
    assert!(!room.flows.joined(load(42), &ask(2, 2)));
    assert!(!room.flows.joined(load(42), &ask(1, 2)), "nor is it moved behind its own line");
    assert_eq!(room.user(slot), 1);
    // A user's only call is not moved to somebody who could then fill the line before it.
    let Came::Waits(only) = room.come(&ask(3, 2).load(43)) else { panic!("waits") };
    assert!(!room.flows.joined(load(43), &ask(4, 2)));
    assert_eq!(room.user(only), 3);
    room.check();
}

#[test]
fn a_refresh_that_somebody_comes_to_wait_for_is_no_refresh_any_more() {
    let mut room = Room::new(1);
    let held = room.fill(1);
    let Came::Waits(slot) = room.come(&ask(2, 0).load(42).priority(Priority::Sheddable)) else { panic!("waits") };
    assert!(!room.flows.joined(load(42), &ask(3, 1).priority(Priority::Sheddable)));
    assert!(room.flows.joined(load(42), &ask(3, 1)));
    assert_eq!((room.user(slot), room.flows.slots.of(slot).class()), (2, Priority::Normal as usize));
    assert_eq!((room.flows.bands[SPARE].waiting, room.flows.bands[WANTED].waiting), (0, 1));
    assert_eq!(room.release(held[0], 2), [2]);
    room.check();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Come { user: u64, class: usize, load: u64, deadline: Option<u32> },
    Leave(usize),
    Release(usize),
    Joined { load: u64, user: u64, class: usize },
    Resize(u32),
    Pass(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6u64, 0..4usize, 0..8u64, prop::option::of(0..60u32))
            .prop_map(|(user, class, load, deadline)| Step::Come { user, class, load, deadline }),
        2 => any::<usize>().prop_map(Step::Leave),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (1..8u64, 1..6u64, 0..4usize).prop_map(|(load, user, class)| Step::Joined { load, user, class }),
        1 => (1..12u32).prop_map(Step::Resize),
        2 => (0..40u32).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn whatever_happens_nobody_waits_who_could_have_a_seat_and_no_flow_outlives_its_calls(
        seats in 1..12u32, line in 0..10u32, steps in prop::collection::vec(step(), 0..300)
    ) {
        let mut room = Room { line, ..Room::with_target(seats, MS * 5) };
        let (mut now, mut waiting, mut held) = (0, Vec::new(), Vec::new());
        for step in steps {
            let before = room.flows.inside;
            match step {
                Step::Come { user, class, load, deadline } => {
                    let mut ask = ask(user, now).priority(CLASSES_IN_ORDER[class]).load(load);
                    ask.deadline = deadline.map(|deadline| at(now + deadline));
                    match room.come(&ask) {
                        Came::Seated(flow) => held.push(flow),
                        Came::Waits(slot) => waiting.push(slot),
                        Came::Refused => {}
                    }
                }
                Step::Leave(who) if !waiting.is_empty() => {
                    let (stage, flow, _) = room.flows.leave(waiting.swap_remove(who % waiting.len()));
                    if let Stage::Seated(_) = stage {
                        held.push(flow);
                    }
                }
                Step::Release(who) if !held.is_empty() => room.flows.release(held.swap_remove(who % held.len())),
                Step::Joined { load, user, class } => {
                    room.flows.joined(NonZero::new(load).unwrap(), &ask(user, now).priority(CLASSES_IN_ORDER[class]));
                }
                Step::Resize(to) => room.seats = to,
                Step::Pass(ms) => now += ms,
                _ => {}
            }
            room.settle(now);
            room.check();
            prop_assert!(room.flows.inside <= room.seats.max(before));
            prop_assert!(room.flows.waiting <= line);
            prop_assert!(room.flows.by_load.len() <= room.flows.waiting as usize);
        }
        for slot in waiting {
            if let (Stage::Seated(_), flow, _) = room.flows.leave(slot) {
                held.push(flow);
            }
        }
        for flow in held {
            room.flows.release(flow);
        }
        prop_assert_eq!((room.flows.inside, room.flows.waiting, room.flows.by_user.len()), (0, 0, 0));
        prop_assert_eq!(room.flows.slots.held(), 0);
    }
}
