//! `herdproof lab` as a person and as a script see it.

use crate::run::{output, printed, stderr};

const RUN: [&str; 3] = ["lab", "run", "retry-wall"];

#[test]
fn the_catalogue_names_every_scenario() {
    insta::assert_snapshot!(printed(&["lab", "list"]));
    let json: serde_json::Value = serde_json::from_str(&printed(&["lab", "list", "--json"])).expect("it is JSON");
    assert_eq!(json[0]["name"], "retry-wall");
}

#[test]
fn what_can_be_set_is_found_without_a_mistake() {
    insta::assert_snapshot!(printed(&["lab", "list", "retry-wall"]));
    let json: serde_json::Value =
        serde_json::from_str(&printed(&["lab", "list", "retry-wall", "--json"])).expect("it is JSON");
    assert_eq!((&json["name"], &json["parameters"][0]["name"]), (&"retry-wall".into(), &"clients".into()));
    assert_eq!(output(&["lab", "list", "quicksort"]).status.code(), Some(2));
    let wrong = stderr(&output(&[&RUN[..], &["--set", "speed=1"]].concat()));
    assert!(wrong.contains("herdproof lab list retry-wall"), "{wrong}");
}

#[test]
fn the_report_shows_a_wall_spikes_and_a_curve() {
    insta::assert_snapshot!(printed(&RUN));
}

/// The bytes are kept with the code, so every machine that runs this test compares its own with another's.
#[test]
fn the_same_seed_gives_the_same_bytes_on_every_machine() {
    let json = printed(&[&RUN[..], &["--seed", "7", "--json"]].concat());
    assert_eq!(json, printed(&[&RUN[..], &["--json", "--seed", "7"]].concat()));
    assert_ne!(json, printed(&[&RUN[..], &["--seed", "8", "--json"]].concat()));
    assert_eq!(json.lines().count(), 1);
    insta::assert_snapshot!(json);
}

#[test]
fn a_script_finds_the_numbers_of_each_arm() {
    let json: serde_json::Value =
        serde_json::from_str(&printed(&[&RUN[..], &["--json"]].concat())).expect("it is JSON");
    assert_eq!((&json["scenario"], &json["seed"]), (&"retry-wall".into(), &42.into()));
    let arms = json["arms"].as_array().expect("arms");
    assert_eq!(arms.len(), 4);
    for (arm, shape) in arms.iter().zip(["wall", "spikes", "curve", "spikes"]) {
        assert_eq!((&arm["calls"], &arm["shape"]), (&500.into(), &shape.into()));
    }
    assert!(json["checks"].as_array().expect("checks").iter().all(|check| check["passed"] == true));
}

#[test]
fn every_scenario_of_the_catalogue_passes_its_own_checks() {
    let catalogue: serde_json::Value = serde_json::from_str(&printed(&["lab", "list", "--json"])).expect("it is JSON");
    for scenario in catalogue.as_array().expect("a list") {
        let name = scenario["name"].as_str().expect("a name");
        let text = printed(&["lab", "run", name, "--seed", "5"]);
        assert!(text.contains("Summary: ") && text.contains(" 0 failed"), "{text}");
    }
}

#[test]
fn what_is_set_is_run_and_shown_and_fails_no_claim() {
    let args = [&RUN[..], &["--set", "clients=7", "--set", "base-delay=50ms", "--json"]].concat();
    let json: serde_json::Value = serde_json::from_str(&printed(&args)).expect("it is JSON");
    assert_eq!((&json["arms"][0]["calls"], &json["changed"][0]), (&35.into(), &"clients=7".into()));
    let set: Vec<_> = json["parameters"].as_array().expect("parameters").iter().map(|one| &one["value"]).collect();
    assert_eq!(set, ["7", "5", "50ms", "down"]);
    let run = output(&args);
    assert!(run.status.success(), "a claim about other parameters is no failure");
}

#[test]
fn what_cannot_be_set_is_told_what_can() {
    for (set, said) in [
        ("clients=0", "clients cannot be \"0\": it is a whole number from 1 to 100000"),
        ("base_delay=fast", "it is a time such as 250ms or 2s from 1ms to 10s"),
        ("client=5", "did you mean \"clients\"?"),
        ("clients", "it takes a name and a value"),
    ] {
        let run = output(&[&RUN[..], &["--set", set]].concat());
        let text = stderr(&run);
        assert!(run.status.code() == Some(2) && text.contains(said) && text.contains("attempts=5"), "{text}");
    }
    for (arm, said) in
        [("jitter", "\"backoff + full jitter\""), ("", "no arm called \"\""), ("BACKOFF", "mean \"backoff\"?")]
    {
        let run = output(&[&RUN[..], &["--arm", arm]].concat());
        let text = stderr(&run);
        assert!(run.status.code() == Some(2) && text.contains(said), "{text}");
    }
}

#[test]
fn one_arm_can_be_looked_at_alone() {
    let text = printed(&[&RUN[..], &["--arm", "backoff +"]].concat());
    assert!(text.contains("\nbackoff + full jitter ") && !text.contains("\nnaive "), "{text}");
    let text = printed(&[&RUN[..], &["--arm", "backoff"]].concat());
    assert!(text.contains("\nbackoff (C1) ") && !text.contains("\nbackoff + "), "{text}");
    assert!(text.ends_with("Again:   herdproof lab run retry-wall --arm \"backoff\" --seed 42\n"), "{text}");
}

#[test]
fn many_runs_give_medians_and_say_how_often_a_claim_held() {
    let args = [&RUN[..], &["--runs", "6", "--seed", "3"]].concat();
    let text = printed(&args);
    assert!(text.contains("6 runs from seed 3") && text.contains("6/6  calls in each arm"), "{text}");
    assert!(text.ends_with("\nAgain:   herdproof lab run retry-wall --seed 3 --runs 6\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&[&args[..], &["--json"]].concat())).expect("it is JSON");
    let calls = &json["arms"][0]["figures"]["calls"];
    assert_eq!((&calls["low"], &calls["median"], &calls["high"]), (&500.0.into(), &500.0.into(), &500.0.into()));
}

#[test]
fn two_runs_are_not_enough_to_be_sure_and_say_so() {
    let args = [&RUN[..], &["--runs", "2"]].concat();
    let text = printed(&args);
    assert!(text.contains("with 50 % confidence only, as 95 % takes six runs"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&[&args[..], &["--json"]].concat())).expect("it is JSON");
    assert_eq!(json["arms"][0]["figures"]["calls"]["confidence"], 0.5);
}

#[cfg(target_os = "linux")]
#[test]
fn runs_that_ctrl_c_left_out_are_not_a_success() {
    use std::process::{Command, Stdio};

    let mut command = crate::run::herdproof(&["lab", "run", "slow-leader", "--runs", "100000"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let stat = format!("/proc/{}/stat", child.id());
    // A second of a processor is many of these runs, and few of all; and by then it listens to the signal.
    let worked = |stat: &str| stat.split_whitespace().nth(13).and_then(|ticks| ticks.parse::<u64>().ok());
    while worked(&std::fs::read_to_string(&stat).expect("it runs")).expect("it says how much it worked") < 100 {
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is kill");
    assert!(sent.success());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("note: stopped after "), "{}", stderr(&ended));
}

#[test]
fn claims_are_put_to_the_test_on_every_seed() {
    let args = ["lab", "verify", "shared-failure", "slow-leader", "--json"];
    let json: serde_json::Value = serde_json::from_str(&printed(&args)).expect("it is JSON");
    let checks = json["checks"].as_array().expect("checks");
    assert!(checks.len() > 8 && checks.iter().all(|check| check["passed"] == true), "{checks:#?}");
    for key in ["name", "source", "expected", "measured"] {
        assert!(checks[0][key].is_string(), "{key}");
    }
    assert!(printed(&args[..4]).contains("claims hold on each of 20 seeds, 0 do not"));
    assert_eq!(printed(&["lab", "verify", "slow-leader", "slow-leader"]), printed(&["lab", "verify", "slow-leader"]));
    assert_eq!(output(&["lab", "verify", "quicksort"]).status.code(), Some(2));
}

#[test]
fn a_page_on_standard_output_is_nothing_but_the_page() {
    for runs in ["1", "2"] {
        let page = printed(&[&RUN[..], &["--html", "-", "--runs", runs]].concat());
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
        assert_eq!(page.contains("<h1>retry-wall, 2 runs</h1>"), runs == "2", "{page}");
    }
    let map = printed(&["lab", "sweep", "retry-wall", "--x", "clients=1..3:3", "--html", "-"]);
    assert!(map.starts_with("<!doctype html>") && map.ends_with("</html>\n"), "{map}");
    assert_eq!(output(&[&RUN[..], &["--html", "-", "--json"]].concat()).status.code(), Some(2));
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let folder = std::env::temp_dir().join(format!("herdproof-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("page.html");
    let path = page.to_str().expect("a path");
    printed(&[&RUN[..], &["--html", path]].concat());
    let text = std::fs::read_to_string(&page).expect("a page");
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n") && text.contains("<svg"), "{text}");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left beside it");
    let run = output(&[&RUN[..], &["--html", folder.to_str().expect("a path")]].concat());
    assert!(run.status.code() == Some(3) && stderr(&run).contains("cannot write"), "{}", stderr(&run));
    std::fs::remove_dir_all(&folder).expect("it is there");
}
