//! `herdproof lab run --log` as a script sees it.

use std::path::PathBuf;

use crate::run::{output, printed, stderr};

const RUN: [&str; 3] = ["lab", "run", "retry-storm"];

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("herdproof-log-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn every_call_of_the_arm_is_a_line_with_its_label() {
    let folder = folder("lines");
    let file = folder.join("storm.jsonl");
    let args = ["--arm", "doubled +", "--json", "--log", file.to_str().expect("a path")];
    let report: serde_json::Value = serde_json::from_str(&printed(&[&RUN[..], &args].concat())).expect("it is JSON");
    let text = std::fs::read_to_string(&file).expect("a log");
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(Some(lines.len() as u64), report["arms"][0]["calls"].as_u64());
    for key in ["time", "client", "method", "path", "status", "outcome", "reason", "took_us", "key"] {
        assert!(!lines[0][key].is_null(), "{key}");
    }
    assert!(lines.iter().all(|line| line["herd"].is_null() == line["wave"].is_null()));
    assert!(lines.iter().any(|line| line["herd"] == "retry" && line["wave"] == 1));
    assert!(lines.iter().any(|line| line["herd"].is_null()));
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left beside it");
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn a_log_on_standard_output_is_nothing_but_the_log_and_the_same_bytes() {
    let args = [&RUN[..], &["--log", "-", "--seed", "7"]].concat();
    let log = printed(&args);
    assert!(log.lines().count() > 10_000 && log.lines().all(|line| line.starts_with("{\"time\":\"2026-01-01T")));
    assert_eq!(log, printed(&args));
}

#[test]
fn what_cannot_be_logged_is_a_mistake_and_writes_nothing() {
    let folder = folder("none");
    let file = folder.join("none.jsonl");
    let path = file.to_str().expect("a path");
    for (args, said) in [
        (&["lab", "run", "election", "--log", path][..], "election has no log: there are no requests in it"),
        (&["lab", "run", "cron", "--log", path, "--arm", "noon"], "\"at :00\""),
        (&["lab", "run", "cron", "--log", path, "--arm", "at", "--arm", "own"], "a log is of one arm"),
        (&["lab", "run", "cron", "--log", path, "--arm", "own"], "\"own slot in 10 min\", \"own slot in the hour\""),
        (&["lab", "run", "cron", "--log", "-", "--json"], "cannot both be on standard output"),
        (&["lab", "run", "cron", "--log", path, "--html", path], "are one file"),
        (&["lab", "run", "cron", "--log", path, "--runs", "3"], "cannot be used with"),
    ] {
        let run = output(args);
        assert!(run.status.code() == Some(2) && stderr(&run).contains(said), "{args:?} said {}", stderr(&run));
        assert!(run.stdout.is_empty() && !file.exists(), "{args:?}");
    }
    let run = output(&["lab", "run", "cron", "--log", folder.to_str().expect("a path")]);
    assert!(run.status.code() == Some(3) && stderr(&run).contains("cannot write"), "{}", stderr(&run));
    std::fs::remove_dir_all(&folder).expect("it is there");
}
