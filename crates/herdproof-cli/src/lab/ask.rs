//! `herdproof lab ask`: predict first, then the run answers.

use std::{
    fmt::Write,
    io::{self, BufRead, IsTerminal},
};

use herdproof_lab::{Answer, Question, left_out, questions};

use super::{BOLD, GREEN, RED, watched::watched};
use crate::{
    Done, Verdict,
    output::{Failure, Output},
};

/// How many letters of a wrong answer are repeated.
const ECHOED: usize = 40;

/// What somebody says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// This is the answer.
    Predicted(usize),
    /// Let me see.
    Show,
    /// No more.
    Quit,
}

/// How it went so far.
#[derive(Default)]
struct Score {
    predicted: u32,
    right: u32,
}

pub(crate) fn ask(output: &mut Output, which: Option<&str>, seed: u64) -> Done {
    let asked = which.map_or(Ok(questions().iter().collect()), chosen)?;
    let mut lines = io::stdin().lock();
    let talking = io::stdin().is_terminal();
    // A pipe without a line in it has nobody at its other end.
    if which.is_none() && !talking && is_empty(&mut lines)? {
        return list(output);
    }
    let mut score = Score::default();
    for question in asked {
        output.text(shown(question))?;
        let Some(said) = predicted(output, &mut lines, question, talking)? else { break };
        if said == Said::Quit {
            break;
        }
        let Some(answer) = watched(question.runs(), |watch| question.answer(seed, watch))? else { break };
        if let Said::Predicted(predicted) = said {
            score.predicted += 1;
            score.right += u32::from(predicted == answer.right);
        }
        output.text(answered(question, said, &answer))?;
    }
    let Score { predicted, right } = score;
    if predicted == 0 {
        return Ok(Verdict::Fine);
    }
    output.text(format_args!("\n{}{right} of {predicted} predicted right{}\n", BOLD.render(), BOLD.render_reset()))?;
    Ok(Verdict::Fine)
}

/// The one of this number, or all.
fn chosen(which: &str) -> Result<Vec<&'static Question>, Failure> {
    if which == "all" {
        return Ok(questions().iter().collect());
    }
    let number = which.parse::<u32>().ok();
    if let Some(question) = questions().iter().find(|question| Some(question.number) == number) {
        return Ok(vec![question]);
    }
    let problem = match left_out().iter().find(|left| Some(left.number) == number) {
        Some(left) => format!("question {} ({}) is left out: {}", left.number, left.about, left.why),
        None => format!("there is no question {which:?}: they have numbers from 1 to 30, and `all` is all"),
    };
    let numbers: Vec<String> = questions().iter().map(|question| question.number.to_string()).collect();
    Err(Failure::Usage { problem, hint: format!("Those that are asked: {}", numbers.join(", ")) })
}

fn list(output: &mut Output) -> Done {
    let mut text = String::new();
    for question in questions() {
        let _ = writeln!(text, "{}{:>2}{}  {}", BOLD.render(), question.number, BOLD.render_reset(), question.text);
    }
    let _ = writeln!(text, "\n{} are asked, {} are left out:", questions().len(), left_out().len());
    for left in left_out() {
        let _ = writeln!(text, "{:>2}  {}: {}", left.number, left.about, left.why);
    }
    let _ = writeln!(text, "\nAnswer them with: herdproof lab ask, or one with: herdproof lab ask N");
    output.text(text)?;
    Ok(Verdict::Fine)
}

fn shown(question: &Question) -> String {
    let mut text = format!("\n{}{}. {}{}\n", BOLD.render(), question.number, question.text, BOLD.render_reset());
    for (at, answer) in question.answers.iter().enumerate() {
        let _ = writeln!(text, "  {}) {answer}", Question::letter(at));
    }
    text
}

/// What is said to it; nothing at the end of the input.
fn predicted(
    output: &mut Output,
    lines: &mut impl BufRead,
    question: &Question,
    talking: bool,
) -> Result<Option<Said>, Failure> {
    let last = Question::letter(question.answers.len() - 1);
    loop {
        if talking {
            output.prompt(format_args!("a to {last}, Enter to see, q to end: "))?;
        }
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).map_err(stdin)? == 0 {
            return Ok(None);
        }
        // What is not text is no answer either.
        let line = String::from_utf8_lossy(&line);
        match understood(&line, question.answers.len()) {
            Some(said) => return Ok(Some(said)),
            None => output.note(format!("{:?} is none of a to {last}; Enter shows the answer, q ends", brief(&line))),
        }
    }
}

fn understood(line: &str, answers: usize) -> Option<Said> {
    match line.trim().to_lowercase().as_str() {
        "" => Some(Said::Show),
        "q" | "quit" => Some(Said::Quit),
        said => (0..answers).find(|at| said == Question::letter(*at).to_string()).map(Said::Predicted),
    }
}

/// As much of what was said as it takes to know it again.
fn brief(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(ECHOED) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

fn answered(question: &Question, said: Said, answer: &Answer) -> String {
    let mut text = String::new();
    let mut command = "";
    for decided in &answer.figures {
        if command != decided.again {
            command = &decided.again;
            let _ = writeln!(text, "  {command}");
        }
        let _ = writeln!(text, "    {}: {} {}", decided.arm, decided.figure, decided.value);
    }
    let right = question.answers.get(answer.right).copied().unwrap_or_default();
    let (style, word) = match said {
        Said::Predicted(predicted) if predicted == answer.right => (GREEN, "Right"),
        Said::Predicted(_) => (RED, "No"),
        Said::Show | Said::Quit => (BOLD, "The run says"),
    };
    let (on, off, letter) = (style.render(), style.render_reset(), Question::letter(answer.right));
    let _ = writeln!(text, "  {on}{word}: {letter}) {right}.{off} {}", question.why);
    text
}

fn is_empty(lines: &mut impl BufRead) -> Result<bool, Failure> {
    lines.fill_buf().map(<[u8]>::is_empty).map_err(stdin)
}

fn stdin(error: io::Error) -> Failure {
    Failure::Io { what: "cannot read from standard input".into(), error }
}
