//! What the prober decides, and three proxies whose origin comes back.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use herdproof::{
    Sim,
    gate::{Ask, Span},
};

use super::*;
use crate::origin::{
    OriginError,
    stack::{Lesson, Request, Stack},
};

fn at(millis: u64) -> Tick {
    Tick::ZERO + Duration::from_millis(millis)
}

fn path(text: &str) -> Uri {
    text.parse().unwrap()
}

#[test]
fn a_suspicion_is_one_probe_and_two_that_fail_in_a_row_trip() {
    let mut state = State::default();
    assert_eq!(state.next(Phase::Closed), None);
    assert!(state.suspect() && !state.suspect(), "there is one task");
    assert_eq!(state.next(Phase::Closed), Some(at(0)));
    assert_eq!(state.heard(Heard::Gone, false, at(10), 0.0), Act::Nothing);
    assert_eq!(state.next(Phase::Closed), Some(at(110)));
    assert_eq!(state.heard(Heard::Gone, false, at(110), 0.5), Act::Trip);
}

#[test]
fn a_probe_that_works_ends_the_suspicion_and_what_failed_before_it_does_not_count() {
    let mut state = State::default();
    state.suspect();
    assert_eq!(state.heard(Heard::Gone, false, at(0), 0.5), Act::Nothing);
    assert_eq!(state.heard(Heard::There, false, at(200), 0.5), Act::Nothing);
    assert_eq!(state.next(Phase::Closed), None);
    assert!(state.suspect());
    assert_eq!(state.next(Phase::Closed), Some(at(950)), "who raises suspicions all the time gets one probe a second");
    assert_eq!(state.heard(Heard::Gone, false, at(950), 0.5), Act::Nothing);
}

#[test]
fn an_origin_that_has_too_much_to_do_is_there_unless_it_was_down() {
    let mut state = State::default();
    state.suspect();
    for _ in 0..5 {
        assert_eq!(state.heard(Heard::Busy, false, at(0), 0.5), Act::Nothing);
    }
    assert_eq!(state.heard(Heard::Busy, true, at(0), 0.5), Act::Trip, "it stays open");
    assert_eq!(state.heard(Heard::There, true, at(0), 0.5), Act::Recover);
}

#[test]
fn who_could_not_be_asked_is_neither_there_nor_gone() {
    let mut state = State::default();
    state.suspect();
    for _ in 0..10 {
        assert_eq!(state.heard(Heard::NotAsked, false, at(0), 0.0), Act::Nothing);
    }
    assert_eq!(state.next(Phase::Closed), Some(at(500)));
}

#[test]
fn while_it_is_open_it_is_probed_whether_or_not_anybody_asks() {
    let mut state = State::default();
    state.suspect();
    state.suspects = false;
    assert_eq!(state.next(Phase::Open { until: at(777) }), Some(at(777)));
    assert_eq!(state.next(Phase::Closed), None);
}

#[test]
fn one_client_chooses_one_target_at_most_and_no_two_probes_in_a_row_go_there() {
    let host = HeaderValue::from_static("a");
    let mut targets = Targets::default();
    assert!(targets.pick(0).is_none());
    for number in 0..1_000 {
        targets.note(1, (&host, &path("/mine")), Duration::ZERO, false, at(number * 2_000));
    }
    assert!(targets.pick(7).is_some() && targets.pick(7).is_none() && targets.pick(7).is_some());
    targets.note(2, (&host, &path("/other")), Duration::ZERO, false, at(0));
    targets.note(3, (&host, &path("/third")), Duration::ZERO, true, at(0));
    let mut last = None;
    for draw in 0..100 {
        let picked = targets.pick(draw).unwrap().path.clone();
        assert!(last != Some(picked.clone()), "{picked} twice");
        last = Some(picked);
    }
}

#[test]
fn after_a_page_that_fails_the_root_is_probed_and_no_page_is_forgotten() {
    let sim = Sim::new(1);
    let env = sim.env();
    let settings = OriginSettings::default();
    let breaker = Breaker::builder(&env).external_probes().build();
    let (limit, queue) = (Limit::new(&env, 10, None), Queue::builder(&env, 10).build());
    let prober = Prober::new(&env, &settings, &breaker, &limit, &queue);
    for (user, page) in [(1, "/half"), (2, "/other-half")] {
        let host = HeaderValue::from_static("a");
        prober.targets.lock().note(user, (&host, &path(page)), Duration::ZERO, false, at(0));
    }
    let asked: Vec<String> = (0..40)
        .map(|_| {
            let asked = prober.probe().request.target.to_string();
            prober.heard(Heard::Gone, true);
            asked
        })
        .collect();
    for pair in asked.chunks(2) {
        assert!(pair[0].ends_with("half") && pair[1] == "/", "{asked:?}");
    }
    for page in ["/half", "/other-half"] {
        assert!(asked.iter().filter(|asked| *asked == page).count() >= 5, "{asked:?}");
    }
}

#[test]
fn what_may_be_meant_to_be_used_once_is_not_asked_for_again() {
    let host = HeaderValue::from_static("a");
    let mut targets = Targets::default();
    targets.note(1, (&host, &path("/confirm?token=1")), Duration::ZERO, true, at(0));
    targets.note(1, (&host, &path(&format!("/{}", "x".repeat(300)))), Duration::ZERO, true, at(0));
    assert!(targets.pick(0).is_none());
}

#[test]
fn what_may_be_one_users_page_is_not_probed_where_there_is_one_for_all() {
    let host = HeaderValue::from_static("a");
    let mut targets = Targets::default();
    let mut asked = |page: &str, is_for_all, second: u64| {
        targets.note(1, (&host, &path(page)), Duration::ZERO, is_for_all, at(second * 1_000));
        let asked = targets.pick(0).map(|target| target.path.to_string());
        targets.last = None;
        asked.unwrap_or_default()
    };
    assert_eq!(asked("/account", false, 0), "/account", "better than nothing");
    assert_eq!(asked("/logo", true, 0), "/logo");
    for second in 1..60 {
        assert_eq!(asked("/account", false, second), "/logo");
    }
    assert_eq!(asked("/orders", false, 60), "/orders", "it may be gone by now");

    let said = |fields: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        is_for_all(StatusCode::OK, &headers)
    };
    assert!(said(&[("cache-control", "max-age=60")]));
    for control in ["max-age=59", "private, max-age=60", "max-age=60, no-store", "no-cache, max-age=60", ""] {
        assert!(!said(&[("cache-control", control)]), "{control}");
    }
    for (name, value) in [("set-cookie", "a=b"), ("vary", "cookie"), ("age", "1")] {
        assert!(!said(&[("cache-control", "max-age=60"), (name, value)]), "{name}");
    }
}

/// A proxy's policies before an origin in virtual time, and what its clients saw.
struct Node {
    stack: Stack,
    in_flight: AtomicU32,
    peak: AtomicU32,
    served: Mutex<Vec<Tick>>,
    failed: Mutex<Vec<Tick>>,
}

const DOWN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));

impl Node {
    fn is_down(env: &Env) -> bool {
        (DOWN.0..DOWN.1).contains(&(env.now() - Tick::ZERO))
    }

    /// One client's request.
    async fn visit(self: Arc<Node>, env: Env, user: u64) {
        let mut ask = Ask::new(&env).user(user);
        let Ok(mut entry) = self.stack.enter(&mut ask).await else {
            return self.failed.lock().push(env.now());
        };
        let of = Request { user, route: 1 };
        if Node::is_down(&env) {
            let refused = OriginError::Connect(std::io::ErrorKind::ConnectionRefused.into());
            let span = Span { from: ask.at, to: env.now() };
            self.stack.learn(entry.pass, &mut entry.place, &Lesson::of_error(&refused, false), of, span);
            self.failed.lock().push(env.now());
            if self.stack.prober.suspect() {
                let world = env.clone();
                let send = move |_| {
                    let env = world.clone();
                    async move { if Node::is_down(&env) { Heard::Gone } else { Heard::There } }
                };
                env.spawn(run(Arc::clone(&self.stack.prober), send)).detach();
            }
            return;
        }
        self.peak.fetch_max(self.in_flight.fetch_add(1, SeqCst) + 1, SeqCst);
        env.sleep(Duration::from_millis(50)).await;
        self.in_flight.fetch_sub(1, SeqCst);
        let span = Span { from: ask.at, to: env.now() };
        let lesson = Lesson::of_answer(StatusCode::OK, &HeaderMap::new(), &env);
        self.stack.learn(entry.pass, &mut entry.place, &lesson, of, span);
        self.served.lock().push(env.now());
    }
}

#[test]
fn an_origin_that_is_back_after_ten_seconds_has_its_clients_within_two() {
    const LIMIT: u32 = 32;
    for (seed, rate) in (0..10).flat_map(|seed| [5, 400].map(|rate| (seed, rate))) {
        let mut sim = Sim::new(seed);
        let settings = OriginSettings { limit: LIMIT, ..OriginSettings::default() };
        let nodes: Vec<_> = (0..3)
            .map(|node| {
                let env = sim.env().scope(node);
                let stack = Stack::new(&env, &settings);
                Arc::new(Node {
                    stack,
                    in_flight: AtomicU32::new(0),
                    peak: AtomicU32::new(0),
                    served: Mutex::default(),
                    failed: Mutex::default(),
                })
            })
            .collect();
        let (env, all) = (sim.env(), nodes.clone());
        sim.run(async move {
            for number in 0..20 * rate {
                env.sleep(Duration::from_secs(1) / rate).await;
                for node in &all {
                    env.spawn(Arc::clone(node).visit(env.clone(), u64::from(number % 40) + 1)).detach();
                }
            }
        });
        let back = Tick::ZERO + DOWN.1;
        for node in &nodes {
            let (served, failed) = (node.served.lock(), node.failed.lock());
            let first = served.iter().find(|at| **at >= back).expect("served again");
            assert!(*first - back <= Duration::from_millis(1_250), "seed {seed}: first after {:?}", *first - back);
            let last = failed.iter().max().expect("some failed");
            assert!(*last - back <= Duration::from_secs(2), "seed {seed}, {rate}/s: last after {:?}", *last - back);
            assert!(node.peak.load(SeqCst) <= LIMIT);
        }
    }
}
