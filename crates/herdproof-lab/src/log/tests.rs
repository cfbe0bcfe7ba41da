//! Every request is a line, and every line tells the truth.

use std::collections::BTreeMap;

use super::*;
use crate::{all, find};

/// Those that say who calls.
const LOGGED: [&str; 10] = [
    "retry-wall",
    "retry-storm",
    "limiter-refill",
    "stampede",
    "ttl-jitter",
    "connection-storm",
    "token-refresh",
    "cron",
    "polling",
    "autoscale",
];

fn log(scenario: &str, arm: Option<&str>) -> Log {
    Log::of(find(scenario).unwrap(), &Settings::new(42), arm).unwrap()
}

/// How many lines each label has, and the waves from the first to the last.
fn labels(log: &Log) -> BTreeMap<Option<&'static str>, (usize, u32)> {
    let mut labels = BTreeMap::new();
    for line in log.lines() {
        let (count, last) = labels.entry(line.herd).or_insert((0, 0));
        *count += 1;
        *last = line.wave.unwrap_or(0).max(*last);
    }
    labels
}

#[test]
fn every_request_of_the_arm_is_a_line_and_no_other() {
    for (scenario, arm, figure) in [
        ("retry-wall", "backoff", "calls"),
        ("retry-storm", "doubled + full jitter", "calls"),
        ("stampede", "cache per node", "calls"),
        ("connection-storm", "full jitter", "dials"),
        ("cron", "own slot in the hour", "runs"),
        ("polling", "slower when empty", "polls"),
        ("limiter-refill", "GCRA, told when", "asked"),
    ] {
        let report = find(scenario).unwrap().run(&Settings::new(42).bare());
        let of_arm = report.arms.iter().find(|found| found.name.starts_with(arm)).unwrap();
        assert_eq!(Some(log(scenario, Some(arm)).lines().len() as f64), of_arm.figure(figure), "{scenario}");
    }
    let (arms, listed) = (find("ttl-jitter").unwrap().run(&Settings::new(42).bare()).arms, log("ttl-jitter", None));
    assert_eq!(listed.lines().len() as u64, arms[0].timeline.total());
}

#[test]
fn lines_are_in_the_order_of_arrival_and_the_same_every_time() {
    for scenario in LOGGED {
        let lines: Vec<LogLine> = log(scenario, None).lines().collect();
        assert!(lines.len() > 1 && lines.is_sorted_by(|a, b| a.time <= b.time), "{scenario}");
        assert_eq!(lines, log(scenario, None).lines().collect::<Vec<_>>(), "{scenario}");
    }
}

#[test]
fn every_herd_is_called_what_made_it_and_its_waves_are_counted() {
    let herd = |scenario| {
        let labels = labels(&log(scenario, None));
        labels.into_iter().find_map(|(herd, (_, waves))| Some((herd?, waves))).unwrap()
    };
    assert_eq!(herd("retry-wall"), ("retry", 4));
    assert_eq!(herd("retry-storm").0, "retry");
    assert_eq!(herd("stampede"), ("ttl", 0));
    assert_eq!(herd("ttl-jitter"), ("ttl", 1));
    assert_eq!(herd("token-refresh"), ("refresh", 50));
    assert_eq!(herd("cron"), ("cron", 5));
    assert_eq!(herd("polling"), ("polling", 59));
    assert_eq!(herd("connection-storm").0, "reconnect");
    assert_eq!(herd("limiter-refill").0, "refill");
    assert_eq!(herd("autoscale"), ("autoscale", 0));
}

#[test]
fn users_who_came_by_themselves_are_no_part_of_a_herd() {
    let storm = labels(&log("retry-storm", None));
    // Fifty a second for forty seconds, give or take four standard deviations.
    assert!((1_821..=2_179).contains(&storm[&None].0), "{storm:?}");
    let cold = labels(&log("autoscale", Some("batches of 5")));
    assert_eq!(cold[&Some("autoscale")], (1_000, 9), "50 instances with 20 queries each, in ten batches");
    assert!(cold[&None].0 > 600, "{cold:?}");
}

#[test]
fn who_does_not_wait_for_the_answer_is_a_line_too() {
    let gone = log("connection-storm", Some("at once, long queue")).lines().filter(|line| line.status == GONE).count();
    assert!(gone > 10_000, "{gone}");
    let status = |scenario, arm: Option<&str>| log(scenario, arm).lines().next().unwrap().status;
    assert_eq!((status("retry-wall", None), status("cron", None), status("retry-storm", None)), (503, 200, 503));
}

#[test]
fn a_line_has_what_a_log_has() {
    let line = log("cron", None).lines().next().unwrap();
    let expected = LogLine {
        time: "2026-01-01T00:00:00.000000Z".into(),
        client: "10.0.0.0:40000".into(),
        method: "GET",
        path: "/report".into(),
        status: 200,
        outcome: "pass",
        reason: "",
        took_us: 0,
        key: format!("{:016x}", hash("/report")),
        herd: Some("cron"),
        wave: Some(0),
    };
    assert_eq!(line, expected);
}

#[test]
fn what_has_no_log_says_so_and_never_gives_an_empty_one() {
    for scenario in all().iter().filter(|scenario| ["hedging", "xfetch"].contains(&scenario.name)) {
        assert_eq!(Log::of(scenario, &Settings::new(1), None).unwrap_err(), NoLog::NotYet(scenario.name));
    }
    let none = Log::of(find("cron").unwrap(), &Settings::new(1), Some("at noon")).unwrap_err();
    assert!(none.to_string().contains("\"at :00\""), "{none}");
}

/// A run that somebody listens to is the same run.
#[test]
fn listening_changes_nothing() {
    for scenario in LOGGED.map(|name| find(name).unwrap()) {
        let settings = Settings::new(7).bare();
        let (alone, heard) = (scenario.run(&settings), scenario.run(&settings.listening(0, &Tap::open())));
        for (alone, heard) in alone.arms.iter().zip(&heard.arms) {
            assert_eq!(alone.timeline, heard.timeline, "{}", scenario.name);
        }
    }
}
