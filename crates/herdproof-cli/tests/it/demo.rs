//! `herdproof demo` on real sockets. Nothing here depends on how long anything takes.

use crate::run::{output, printed, stderr};

fn json(text: &str) -> serde_json::Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).expect("it is JSON")
}

#[test]
fn a_cold_key_costs_one_request_instead_of_one_per_client() {
    let both = json(&printed(&["demo", "--clients", "50", "--seed", "7", "--json"]));
    assert_eq!((&both["clients"], &both["clients_asked"], &both["seed"]), (&50.into(), &50.into(), &7.into()));
    assert_eq!(both["without"]["origin_requests"], 50);
    assert_eq!((&both["with"]["origin_requests"], &both["with"]["peak_in_flight"]), (&1.into(), &1.into()));
    for way in ["without", "with"] {
        assert_eq!(both[way]["errors"], 0, "{both}");
        assert!(both[way]["p50_ms"].as_f64() <= both[way]["p99_ms"].as_f64(), "{both}");
    }
    assert!(both["summary"].as_str().expect("a sentence").contains("50 times fewer origin requests (1 instead of 50)"));
}

#[test]
fn a_person_sees_two_rows_the_wall_and_a_sentence() {
    let text = printed(&["demo", "--clients", "30"]);
    for part in ["demo: clients 30, ", "origin 80ms alone, 5s at 800 in flight", "seed 42", "one request", "█", "0 ms"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let row = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect("a row").to_owned();
    assert!(row("without ").trim_start().starts_with("30 "), "{text}");
    assert!(row("with herdproof ").trim_start().starts_with("1 "), "{text}");
    assert!(text.trim_end().lines().last().expect("lines").starts_with("Summary: herdproof made 30 times fewer"));
}

#[test]
fn a_pipe_gets_no_progress_and_no_notes() {
    assert_eq!(stderr(&output(&["demo", "--clients", "2"])), "");
}

#[test]
fn a_herd_that_cannot_be_is_refused_with_the_range() {
    for clients in ["0", "20001", "-1", "many", "4294967296"] {
        let refused = output(&["demo", &format!("--clients={clients}")]);
        assert_eq!(refused.status.code(), Some(2), "{clients}");
        assert!(stderr(&refused).contains(&format!("invalid value '{clients}' for '--clients <N>'")), "{clients}");
        assert!(refused.stdout.is_empty());
    }
    assert!(stderr(&output(&["demo", "--clients", "0"])).contains("a whole number from 1 to 20000"));
}

#[cfg(unix)]
mod descriptors {
    use super::*;
    use std::process::{Command, Output, Stdio};

    fn limited(limit: &str) -> Output {
        let script = format!("ulimit {limit} && exec \"$0\" demo --clients 100 --json");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_herdproof")]).stdin(Stdio::null());
        shell.output().expect("there is a shell")
    }

    #[test]
    fn too_few_descriptors_make_a_smaller_herd_that_says_so() {
        let small = limited("-n 64");
        assert!(small.status.success(), "{}", stderr(&small));
        assert!(stderr(&small).contains("room for 16 clients, not 100"), "{}", stderr(&small));
        let both = json(&String::from_utf8_lossy(&small.stdout));
        assert_eq!((&both["clients"], &both["clients_asked"]), (&16.into(), &100.into()));
        assert_eq!((&both["without"]["origin_requests"], &both["without"]["errors"]), (&16.into(), &0.into()));
        assert_eq!((&both["with"]["origin_requests"], &both["with"]["errors"]), (&1.into(), &0.into()));
    }

    #[test]
    fn a_low_limit_that_may_be_raised_is_raised() {
        let raised = limited("-Sn 64");
        assert!(raised.status.success() && raised.stderr.is_empty(), "{}", stderr(&raised));
        assert_eq!(json(&String::from_utf8_lossy(&raised.stdout))["clients"], 100);
    }

    #[test]
    fn no_room_for_anybody_is_an_error_of_input_and_output() {
        let none = limited("-n 33");
        assert_eq!(none.status.code(), Some(3), "{}", stderr(&none));
        assert!(stderr(&none).contains("cannot open a socket for even one client"), "{}", stderr(&none));
    }
}
