//! Questions about herds that a run answers: predict first, then see.
//!
//! Nobody remembers a table that was read; everybody remembers to have been wrong. The right answer is not written down here: each
//! question knows which figures of which runs decide it, and how. If the library changes what happens, it changes the answer.

mod questions;

use crate::{
    look::{Look, Reports, Seen, reports, runs_for},
    report::Measured,
    runs::Watch,
};

/// A question, and what may be the answer.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Its number in the articles.
    pub number: u32,
    /// What is asked.
    pub text: &'static str,
    /// Two to four answers, one of which is right.
    pub answers: &'static [&'static str],
    /// One sentence.
    pub why: &'static str,
    looks: &'static [Look],
    /// Which answer the figures give, in the order of the looks.
    decide: fn(&[f64]) -> usize,
}

/// A question of the articles that no run here answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its number in the articles.
    pub number: u32,
    /// What it is about.
    pub about: &'static str,
    /// Why it is left out.
    pub why: &'static str,
}

/// What the runs say.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Which of the question's answers is right.
    pub right: usize,
    /// The figures that decide it.
    pub figures: Vec<Decided>,
}

/// One of the figures that decide.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Of which arm.
    pub arm: &'static str,
    /// Which figure.
    pub figure: &'static str,
    /// How much.
    pub value: Measured,
    /// The command that shows it.
    pub again: String,
}

/// Those that are asked, in the order of their numbers.
pub fn questions() -> &'static [Question] {
    questions::QUESTIONS
}

/// Those that are not.
pub fn left_out() -> &'static [LeftOut] {
    questions::LEFT_OUT
}

impl Question {
    /// How many runs it takes.
    pub fn runs(&self) -> usize {
        runs_for(self.looks.iter().copied()).len()
    }

    /// Runs what decides it, on this seed; nothing if the watch was stopped.
    pub fn answer(&self, seed: u64, watch: &Watch) -> Option<Answer> {
        self.decided(seed, &reports(&runs_for(self.looks.iter().copied()), seed, watch)?)
    }

    /// What these runs say; nothing if something that it looks at is not there.
    fn decided(&self, seed: u64, reports: &Reports) -> Option<Answer> {
        let decided = |look: &Look| {
            let Seen { arm, value, again } = look.seen(seed, reports)?;
            Some(Decided { arm, figure: look.figure, value, again })
        };
        let figures = self.looks.iter().map(decided).collect::<Option<Vec<Decided>>>()?;
        let values: Vec<f64> = figures.iter().map(|decided| decided.value.value()).collect();
        Some(Answer { right: (self.decide)(&values), figures })
    }

    /// The letter of an answer.
    pub fn letter(answer: usize) -> char {
        u8::try_from(answer).map_or('?', |answer| char::from(b'a'.saturating_add(answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the articles, or the corrections of them, lead one to expect.
    const EXPECTED: &str =
        "1b 2c 3c 4b 5b 6b 7c 8b 9b 10a 11b 12c 13c 15c 16c 17c 18b 19b 20c 21c 22a 23c 24b 25b 26c 27a 28b 29b";

    #[test]
    fn every_question_has_a_number_of_the_articles_and_none_is_forgotten() {
        let asked = questions().iter().map(|question| question.number);
        let mut numbers: Vec<u32> = asked.chain(left_out().iter().map(|left| left.number)).collect();
        assert!(questions().is_sorted_by_key(|question| question.number));
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=30).collect::<Vec<u32>>());
    }

    #[test]
    fn a_question_can_be_asked_in_a_few_lines() {
        for question in questions() {
            assert!((2..=4).contains(&question.answers.len()), "{question:?}");
            assert!(question.text.ends_with('?') && question.why.ends_with('.'), "{question:?}");
        }
    }

    #[test]
    fn the_run_gives_the_answer_that_the_articles_lead_to_on_every_seed() {
        for seed in [0, 3, 42] {
            let looks = questions().iter().flat_map(|question| question.looks).copied();
            let reports = reports(&runs_for(looks), seed, &Watch::default()).expect("each can be run");
            let given: Vec<String> = questions()
                .iter()
                .map(|question| {
                    let answer = question.decided(seed, &reports).expect("what it looks at exists");
                    assert!(answer.right < question.answers.len(), "{question:?}");
                    format!("{}{}", question.number, Question::letter(answer.right))
                })
                .collect();
            assert_eq!(given.join(" "), EXPECTED, "seed {seed}");
        }
    }
}
