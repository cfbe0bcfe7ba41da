//! `herdproof lab ask` as a person with a pipe sees it.

use std::{io::Write, process::Stdio};

use crate::run::{herdproof, output, printed, stderr};

/// What it prints when these lines are said to it.
fn told(args: &[&str], lines: &str) -> (String, String) {
    told_bytes(args, lines.as_bytes())
}

fn told_bytes(args: &[&str], lines: &[u8]) -> (String, String) {
    let mut command = herdproof(&[&["lab", "ask"][..], args].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // It may have ended before it was told everything.
    child.stdin.take().expect("a pipe").write_all(lines).ok();
    let run = child.wait_with_output().expect("it ends");
    assert!(run.status.success(), "{}", stderr(&run));
    (String::from_utf8(run.stdout.clone()).expect("it prints text"), stderr(&run))
}

#[test]
fn without_anybody_to_answer_the_questions_are_listed() {
    let text = printed(&["lab", "ask"]);
    assert!(text.contains(" 4  A crowd retries every 2 s.") && text.contains("28 are asked, 2 are left out"), "{text}");
    assert!(text.contains("14  how far a leader's failure reaches: waits for coordination"), "{text}");
}

#[test]
fn a_prediction_is_put_to_the_run_and_counted() {
    let (text, _) = told(&["4"], "b\n");
    assert!(text.contains("herdproof lab run retry-storm --seed 42") && text.contains("doubled: calls"), "{text}");
    assert!(
        text.contains("Right: b) rarer spikes, as high as before.") && text.ends_with("1 of 1 predicted right\n"),
        "{text}"
    );
    let (text, _) = told(&["4"], "A\n");
    assert!(text.contains("No: b)") && text.ends_with("0 of 1 predicted right\n"), "{text}");
}

#[test]
fn to_see_is_no_prediction_and_the_end_of_the_input_is_polite() {
    let (text, _) = told(&["10"], "\n");
    assert!(text.contains("The run says: a) 100, as the first.") && !text.contains("predicted right"), "{text}");
    let (text, _) = told(&["4"], "");
    assert!(text.contains("4. A crowd") && !text.contains("predicted right"), "{text}");
    let (text, _) = told(&["all"], "b\nc\n");
    assert!(text.contains("3. A service lost") && text.ends_with("2 of 2 predicted right\n"), "{text}");
    let (text, _) = told(&[], "b\nq\nc\n");
    assert!(!text.contains("\n3. ") && text.ends_with("1 of 1 predicted right\n"), "{text}");
}

#[test]
fn what_is_no_answer_is_asked_again() {
    let (text, said) = told(&["10"], "maybe\nd\na\n");
    assert!(said.contains("\"maybe\" is none of a to c") && said.contains("\"d\" is none"), "{said}");
    assert!(text.ends_with("1 of 1 predicted right\n"), "{text}");
}

#[test]
fn what_is_not_even_text_is_asked_again_and_repeated_in_part() {
    let long = "x".repeat(5_000);
    let (text, said) = told_bytes(&["10"], &[b"\xff\n", long.as_bytes(), b"\na\n"].concat());
    assert!(text.ends_with("1 of 1 predicted right\n"), "{text}");
    assert!(said.contains("xxx...\" is none of a to c") && said.len() < 500, "{said}");
}

#[test]
fn a_question_that_there_is_not_says_which_there_are() {
    for (which, said) in [("31", "numbers from 1 to 30"), ("most", "`all` is all"), ("14", "is left out: waits for")] {
        let run = output(&["lab", "ask", which]);
        assert!(run.status.code() == Some(2) && stderr(&run).contains(said), "{}", stderr(&run));
        assert!(stderr(&run).contains("Those that are asked: 1, 2, 3"));
    }
}
