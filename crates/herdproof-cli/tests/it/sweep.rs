//! `herdproof lab sweep` and `herdproof lab table` as a person and as a script see them.

use crate::run::{herdproof, output, printed, stderr};

const SWEEP: [&str; 3] = ["lab", "sweep", "retry-wall"];
const GRID: [&str; 4] = ["--x", "clients=10..30:3", "--y", "attempts=1..2:2"];

fn json(args: &[&str]) -> serde_json::Value {
    let line = printed(args);
    assert_eq!(line.lines().count(), 1);
    serde_json::from_str(&line).expect("it is JSON")
}

#[test]
fn a_map_has_a_cell_for_every_pair_of_values() {
    let map = json(&[&SWEEP[..], &GRID, &["--json"]].concat());
    assert_eq!(map["cells"], serde_json::json!([[10.0, 20.0, 30.0], [20.0, 40.0, 60.0]]));
    assert_eq!((&map["figure"], &map["arm"], &map["seed"]), (&"calls".into(), &"naive".into(), &42.into()));
    assert_eq!(map["x"], serde_json::json!({"name": "clients", "values": ["10", "20", "30"]}));
}

#[test]
fn the_same_seed_gives_the_same_map() {
    let args = [&SWEEP[..], &GRID, &["--of", "end_ms", "--arm", "backoff +", "--runs", "3", "--json"]].concat();
    assert_eq!(printed(&args), printed(&args));
    assert_ne!(printed(&args), printed(&[&args[..], &["--seed", "8"]].concat()));
}

#[test]
fn the_frontier_of_a_metastable_failure_is_one_command() {
    let text = printed(&["lab", "sweep", "metastable"]);
    assert!(text.contains("served_at_end_percent of \"three tries\""), "{text}");
    assert!(text.contains("lost (How many workers") && text.contains("lasts (For how long"), "{text}");
    assert!(text.contains("100.00 | 0.00 at "), "the edge has its place: {text}");
    assert!(text.contains("Again: herdproof lab sweep metastable --x lasts=250ms..6s:24 --y lost=1..10:10"), "{text}");
}

#[test]
fn shades_are_for_pipes_and_colours_for_terminals() {
    let args = [&SWEEP[..], &GRID].concat();
    let plain = printed(&args);
    assert!(plain.contains('█') && plain.contains('░') && !plain.contains('\u{1b}'), "{plain}");
    let of = |command: &mut std::process::Command| {
        String::from_utf8(command.output().expect("the binary starts").stdout).expect("it prints text")
    };
    let coloured = of(herdproof(&args).env("CLICOLOR_FORCE", "1"));
    assert!(coloured.contains("\u{1b}[48;5;226m") && !coloured.contains('█'), "{coloured}");
    let without = of(herdproof(&args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1"));
    assert!(without.contains('█') || without.contains("48;5;226"), "{without}");
    assert!(of(herdproof(&args).env("NO_COLOR", "1")).contains('█'));
}

#[test]
fn what_cannot_be_swept_is_a_mistake_that_says_what_could() {
    for (args, said) in [
        (&["--x", "clients=9..3"][..], "the first value has to be below the last"),
        (&["--x", "clients=3..3"], "goes nowhere"),
        (&["--x", "clients=1..9:1"], "2 to 200"),
        (&["--x", "client=1..9"], "did you mean \"clients\"?"),
        (&["--x", "clients=1..900000"], "it is a whole number from 1 to 100000"),
        (&["--x", "clients=5"], "is no range"),
        (&["--x", "clients=1..9", "--y", "clients=1..9"], "cannot be two things"),
        (&["--x", "clients=1..9", "--set", "clients=5"], "cannot be two things"),
        (&["--x", "clients=1..9000:200", "--y", "base_delay=1ms..1s:100"], "20000 cells are too many"),
        (&["--x", "clients=1..9:3", "--of", "cals"], "did you mean \"calls\"?"),
        (&["--x", "clients=1..9:3", "--arm", "jitter"], "\"backoff + full jitter\""),
        (&["--y", "clients=1..9"], "--x"),
        (&[], "such as --x clients=1..100000"),
    ] {
        let run = output(&[&SWEEP[..], args].concat());
        let text = stderr(&run);
        assert!(run.status.code() == Some(2) && text.contains(said), "{args:?} said {text}");
        assert!(run.stdout.is_empty(), "{args:?} printed something");
    }
}

#[test]
fn a_map_is_a_page_too() {
    let file = std::env::temp_dir().join(format!("herdproof-map-{}.html", std::process::id()));
    let path = file.to_str().expect("a path");
    printed(&[&SWEEP[..], &GRID, &["--html", path]].concat());
    let page = std::fs::read_to_string(&file).expect("a page");
    assert_eq!(page.matches("class=\"bar\"").count(), 6);
    assert!(page.ends_with("</html>\n") && page.contains("attempts 2, clients 30: 60"), "{page}");
    std::fs::remove_file(&file).expect("it was there");
}

#[test]
fn the_table_names_the_runs_behind_every_cell() {
    let text = printed(&["lab", "table"]);
    assert!(text.contains("\njitter ") && text.contains("\nsharded locks "), "{text}");
    assert!(text.contains("calls from 100 to 1 (herdproof lab run hot-key: naive / flight)"), "{text}");
    let file = std::env::temp_dir().join(format!("herdproof-table-{}.html", std::process::id()));
    let table = json(&["lab", "table", "--json", "--html", file.to_str().expect("a path")]);
    assert!(std::fs::read_to_string(&file).expect("a page").contains("<h3>sharded locks</h3>"));
    std::fs::remove_file(&file).expect("it was there");
    let techniques = table["techniques"].as_array().expect("techniques");
    assert_eq!(techniques.len(), 8);
    for cell in techniques.iter().flat_map(|row| row["cells"].as_array().expect("cells")) {
        assert!(cell["answer"].is_boolean() || cell["note"].is_string(), "{cell}");
        let again = cell["evidence"]["with"]["again"].as_str();
        assert_eq!(again.is_some(), cell["answer"].is_boolean(), "{cell}");
    }
}
