//! Every request is a line, and every line tells the truth.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{Watch, all, find};

/// Those without requests, and why.
const WITHOUT: [(&str, &str); 1] = [("election", "servers ask each other for votes, and nobody else is there")];

/// What a request can be part of.
const HERDS: [&str; 17] = [
    "autoscale",
    "breaker",
    "broadcast",
    "burst",
    "cold",
    "cron",
    "deploy",
    "ejection",
    "hedge",
    "hot-key",
    "invalidation",
    "polling",
    "reconnect",
    "refill",
    "refresh",
    "retry",
    "ttl",
];

/// What a report counts of the requests of an arm.
enum Counted {
    /// All of them, in its timeline.
    All,
    /// All of them, by these figures together.
    By(&'static [&'static str]),
    /// Those that were answered, in its timeline.
    Answered,
    /// Those for one path, in its timeline.
    For(&'static str),
    /// Something else: answers over load, one of many nodes, the first hours of many.
    Other,
}

fn counted(scenario: &str) -> Counted {
    match scenario {
        "limiter-refill" => Counted::By(&["asked"]),
        "cross-layer" => Counted::By(&["dials", "logins", "queries"]),
        "bathtub" | "priority-shedding" => Counted::Answered,
        "shed-and-return" => Counted::For("/crowd"),
        "goodput" | "hot-shard" | "token-refresh" => Counted::Other,
        _ => Counted::All,
    }
}

impl Counted {
    /// How many lines there should be, and how many there are.
    fn compared(&self, arm: &Arm, lines: &[LogLine]) -> Option<(u64, u64)> {
        let there = |is: &dyn Fn(&LogLine) -> bool| lines.iter().filter(|line| is(line)).count() as u64;
        let total = arm.timeline.total();
        match self {
            Counted::All => Some((total, there(&|_| true))),
            Counted::By(figures) => {
                let sum: f64 = figures.iter().map(|figure| arm.figure(figure).unwrap()).sum();
                Some((Duration::from_secs_f64(sum).as_secs(), there(&|_| true)))
            }
            Counted::Answered => Some((total, there(&|line| line.status == 200))),
            Counted::For(path) => Some((total, there(&|line| line.path == *path))),
            Counted::Other => None,
        }
    }
}

/// Everything that was heard of one run, arm by arm.
fn hear(scenario: &Scenario, seed: u64) -> Vec<(Arm, Option<Log>)> {
    let settings = Settings::new(seed).bare();
    // No scenario has more arms.
    let taps: Vec<(usize, Tap)> = (0..16).map(|arm| (arm, Tap::open())).collect();
    let arms = scenario.run(&settings.listening(taps.clone())).arms;
    assert!(arms.len() <= taps.len());
    arms.into_iter().zip(taps).map(|(arm, (_, tap))| (arm.clone(), tap.heard(arm.name))).collect()
}

/// What is not as it should be with the log of an arm, and the labels that it has.
fn looked_at(scenario: &Scenario, arm: &Arm, log: Option<&Log>) -> (Vec<String>, BTreeSet<&'static str>) {
    let lines: Vec<LogLine> = log.into_iter().flat_map(Log::lines).collect();
    let is_without = WITHOUT.iter().any(|(without, _)| *without == scenario.name);
    let mut wrong = Vec::new();
    let mut check = |is: bool, what: String| {
        if !is {
            wrong.push(format!("{}, {}: {what}", scenario.name, arm.name));
        }
    };
    check(log.is_none() == is_without && lines.is_empty() == is_without, format!("{} lines", lines.len()));
    check(lines.is_sorted_by(|a, b| a.time <= b.time), "not in order".into());
    if let (false, Some((expected, there))) = (is_without, counted(scenario.name).compared(arm, &lines)) {
        check(expected == there, format!("{there} lines, the report counts {expected}"));
    }
    for line in &lines {
        let is_whole = line.herd.is_some() == line.wave.is_some() && line.path.starts_with('/');
        check(is_whole && (200..600).contains(&line.status), format!("{line:?}"));
    }
    (wrong, lines.iter().filter_map(|line| line.herd).collect())
}

#[test]
fn every_arm_of_every_scenario_has_a_log_or_there_are_no_requests() {
    let scenarios: Vec<&Scenario> = all().iter().collect();
    let looked = Watch::default().each(&scenarios, |scenario| {
        hear(scenario, 42).into_iter().map(|(arm, log)| looked_at(scenario, &arm, log.as_ref())).collect::<Vec<_>>()
    });
    let (wrong, herds): (Vec<Vec<String>>, Vec<BTreeSet<&str>>) = looked.into_iter().flatten().flatten().unzip();
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(20)]);
    let herds: BTreeSet<&str> = herds.into_iter().flatten().collect();
    assert_eq!(herds, HERDS.into(), "a label that nobody knows, or one that nothing has");
}

/// Those that are run again: one for each model that is listened to.
const REPEATED: [&str; 8] =
    ["retry-wall", "retry-storm", "bathtub", "hot-shard", "cross-layer", "xfetch", "cron", "outlier-ejection"];

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
    for scenario in REPEATED {
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
    for (name, _) in WITHOUT {
        let none = Log::of(find(name).unwrap(), &Settings::new(1), None).unwrap_err();
        assert_eq!(none, NoLog::NoRequests(name));
    }
    let none = Log::of(find("cron").unwrap(), &Settings::new(1), Some("at noon")).unwrap_err();
    assert!(none.to_string().contains("\"at :00\""), "{none}");
}

/// A run that somebody listens to is the same run.
#[test]
fn listening_changes_nothing() {
    for scenario in REPEATED.map(|name| find(name).unwrap()) {
        let alone = scenario.run(&Settings::new(7).bare());
        for (alone, (heard, _)) in alone.arms.iter().zip(hear(scenario, 7)) {
            assert_eq!(alone.timeline, heard.timeline, "{}", scenario.name);
        }
    }
}
