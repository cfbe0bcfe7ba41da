//! `herdproof lab` as a person and as a script see it.

use crate::run::printed;

const RUN: [&str; 3] = ["lab", "run", "retry-wall"];

#[test]
fn the_catalogue_names_every_scenario() {
    insta::assert_snapshot!(printed(&["lab", "list"]));
    let json: serde_json::Value = serde_json::from_str(&printed(&["lab", "list", "--json"])).expect("it is JSON");
    assert_eq!(json[0]["name"], "retry-wall");
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
    assert_eq!(arms.len(), 3);
    for (arm, shape) in arms.iter().zip(["wall", "spikes", "curve"]) {
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
