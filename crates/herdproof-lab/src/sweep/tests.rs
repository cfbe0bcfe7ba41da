//! Ranges, maps, and where they have an edge.

use super::*;
use crate::{all, find};

fn axis(scenario: &str, text: &str) -> Result<Axis, String> {
    Axis::read(&find(scenario).unwrap().knobs(), text).map_err(|bad| bad.to_string())
}

fn shown(scenario: &str, text: &str) -> String {
    axis(scenario, text).unwrap().values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn sweep(x: &str, y: Option<&str>, of: &str) -> Result<Sweep, BadSweep> {
    let scenario = find("retry-wall").unwrap();
    let read = |text| Axis::read(&scenario.knobs(), text).unwrap();
    Sweep::new(scenario, &Settings::new(1), read(x), y.map(read), None, Some(of))
}

#[test]
fn steps_are_even_or_multiply_and_are_round_and_keep_both_ends() {
    assert_eq!(shown("retry-wall", "clients=10..50:5"), "10 20 30 40 50");
    assert_eq!(shown("retry-wall", "clients=1..1000:4x"), "1 10 100 1000");
    assert_eq!(shown("retry-wall", "base_delay=1ms..2s:3"), "1ms 1s 2s");
    assert_eq!(shown("retry-wall", "base-delay = 1ms .. 1s : 4x"), "1ms 10ms 100ms 1s");
    assert_eq!(shown("retry-storm", "users=0..1:4"), "0 0.333 0.667 1");
    assert_eq!(shown("retry-wall", "clients=7..99999:3"), "7 50000 99999");
    assert_eq!(axis("retry-wall", "clients=1..100").unwrap().values.len(), 12);
}

#[test]
fn whole_numbers_between_which_there_are_none_are_not_run_twice() {
    assert_eq!(shown("retry-wall", "attempts=1..3:10"), "1 2 3");
}

#[test]
fn a_range_that_cannot_be_is_told_what_could() {
    let said = |text: &str| axis("retry-wall", text).unwrap_err();
    assert!(said("clients").contains("is no range"));
    assert!(said("clients=5").contains("as in clients=10..1000"));
    assert!(said("client=1..5").contains("did you mean \"clients\"?"));
    assert!(said("clients=0..5").contains("from 1 to 100000"));
    assert!(said("clients=..5").contains("clients cannot be \"\""));
    assert!(said("clients=9..5").contains("the first value has to be below the last"));
    assert!(said("clients=5..5").contains("goes nowhere"));
    for steps in ["1", "0", "201", "", "-3", "many", "99999999999999999999"] {
        assert!(said(&format!("clients=1..9:{steps}")).contains("2 to 200"), "{steps}");
    }
    assert!(axis("retry-storm", "users=0..9:3x").unwrap_err().contains("cannot begin with zero"));
}

#[test]
fn what_cannot_be_swept_says_why() {
    let said = |x, y, of| sweep(x, y, of).unwrap_err().to_string();
    assert!(said("clients=1..9:3", Some("clients=1..5:2"), "calls").contains("cannot be two things"));
    assert!(said("clients=1..300:200", Some("base_delay=1ms..1s:51"), "calls").contains("10200 cells are too many"));
    assert!(said("clients=1..9:3", None, "peak_per_s").contains("did you mean \"peak_per_ms\"?"));
    let scenario = find("retry-wall").unwrap();
    let clients = || Axis::read(&scenario.knobs(), "clients=1..9:3").unwrap();
    let none = Sweep::new(scenario, &Settings::new(1), clients(), None, Some("jitter"), None);
    assert!(none.unwrap_err().to_string().contains("\"backoff + full jitter\""));
    let mut settings = Settings::new(1);
    settings.set(&scenario.knobs(), "clients=5").unwrap();
    assert_eq!(Sweep::new(scenario, &settings, clients(), None, None, None).unwrap_err(), BadSweep::Twice("clients"));
}

#[test]
fn every_cell_is_the_run_with_its_parameters() {
    let map = sweep("clients=10..30:3", Some("attempts=1..2:2"), "calls").unwrap().run(1, &Watch::default());
    let cells: Vec<Vec<f64>> = map.cells.iter().map(|row| row.iter().map(|cell| cell.unwrap()).collect()).collect();
    assert_eq!(cells, [[10.0, 20.0, 30.0], [20.0, 40.0, 60.0]]);
    assert!(map.is_whole());
}

#[test]
fn a_stopped_map_has_holes_and_no_wrong_cells() {
    let watch = Watch::default();
    watch.stop();
    let map = sweep("clients=10..30:3", Some("attempts=1..2:2"), "calls").unwrap().run(2, &watch);
    assert!(!map.is_whole() && map.range().is_none());
    assert_eq!(map.cells, [[None; 3]; 2]);
    assert!(map.text(None).contains("????") && map.page().to_string().ends_with("</html>\n"));
}

#[test]
fn every_suggestion_is_one_that_can_be_run() {
    for suggestion in SUGGESTIONS {
        let scenario = find(suggestion.scenario).unwrap();
        let read = |text| Axis::read(&scenario.knobs(), text).unwrap();
        let (x, y) = (read(suggestion.x), suggestion.y.map(read));
        let sweep = Sweep::new(scenario, &Settings::new(1), x, y, suggestion.arm, Some(suggestion.of)).unwrap();
        assert!(sweep.cells() > 10, "{}", scenario.name);
    }
}

/// The figures of a cell are those of a run: what a scenario leaves out must not change the rest.
#[test]
fn a_bare_run_has_the_figures_of_a_whole_one() {
    for scenario in all().iter().filter(|scenario| ["metastable", "retry-wall", "retry-storm"].contains(&scenario.name))
    {
        let settings = Settings::new(7);
        let (whole, bare) = (scenario.run(&settings), scenario.run(&settings.bare()));
        assert!(bare.checks.is_empty() && !whole.checks.is_empty());
        for (whole, bare) in whole.arms.iter().zip(&bare.arms) {
            assert!(bare.figures.len() > 3 && bare.timeline == whole.timeline);
            for figure in &bare.figures {
                assert_eq!(whole.figure(figure.key), Some(figure.value.value()), "{}", scenario.name);
            }
        }
    }
}

/// The frontier: a little longer, and what was served entirely is not served at all.
#[test]
fn the_edge_of_a_metastable_failure_is_a_knifes() {
    let scenario = find("metastable").unwrap();
    let read = |text| Axis::read(&scenario.knobs(), text).unwrap();
    let (x, y) = (read("lasts=500ms..6s:12"), read("lost=2..8:3"));
    let map = |arm| {
        Sweep::new(scenario, &Settings::new(42), x.clone(), Some(y.clone()), Some(arm), Some("served_at_end_percent"))
            .unwrap()
            .run(1, &Watch::default())
    };
    let naive = map("three tries");
    assert_eq!(naive.edge(0), None, "two workers less are still enough");
    let edges: Vec<usize> = (1..3).map(|row| naive.edge(row).expect("it collapses")).collect();
    assert!(edges[0] > edges[1], "the more is lost, the sooner: {edges:?}");
    for (row, at) in (1..3).zip(edges) {
        let [before, after] = [naive.cells[row][at], naive.cells[row][at + 1]].map(Option::unwrap);
        assert!(before > 99.0 && after < 5.0, "{before} to {after}");
    }
    let ours = map("defaults, with budget");
    assert!((0..3).all(|row| ours.edge(row).is_none()) && ours.range().unwrap().0 > 99.0, "{:?}", ours.cells);
}

#[test]
fn a_map_without_differences_says_so_and_is_not_drawn_as_nothing() {
    let map = Map {
        cells: vec![vec![Some(100.0); 2]; 2],
        ..sweep("clients=5..9:2", Some("attempts=1..2:2"), "calls").unwrap().run(1, &Watch::default())
    };
    let text = map.text(None);
    assert!(text.contains("the same everywhere: 100\n") && text.contains("████████\n"), "{text}");
}

#[test]
fn a_map_is_drawn_with_its_units_and_its_edge() {
    let map = Map {
        cells: vec![vec![Some(0.0), Some(0.0)], vec![Some(0.0), Some(100.0)]],
        ..sweep("base_delay=10ms..2s:2", Some("clients=5..9:2"), "calls").unwrap().run(1, &Watch::default())
    };
    let text = map.text(None);
    assert!(text.contains("     9 ····████  0 | 100 at 10ms | 2s\n     5 ········\n"), "{text}");
    assert!(text.contains("10ms") && text.contains("base_delay (The delay after"), "{text}");
    let painted = map.text(Some(|level, blanks| format!("<{level}>{blanks}")));
    assert!(painted.contains("<0>    <1>    "), "{painted}");
    let page = map.page().to_string();
    assert_eq!(page.matches("class=\"edge\"").count(), 2, "beside and below the full cell");
    assert!(!page.contains("http") && !page.contains("<script") && page.contains("clients 9, base_delay 2s: 100"));
}
