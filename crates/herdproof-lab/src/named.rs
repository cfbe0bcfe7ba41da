//! Arms by their names, wherever somebody asks for one.

use std::{error::Error, fmt};

use crate::nearest::nearest;

/// There is no such arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoArm {
    /// Of which scenario.
    pub scenario: &'static str,
    /// What was asked for.
    pub asked: String,
    /// Those that there are.
    pub known: Vec<&'static str>,
}

/// The places of the arms that are meant: the one that is called that, else all whose names begin like that.
///
/// `backoff` is not `backoff + full jitter` too, or nobody could ask for the former alone.
pub(crate) fn named(scenario: &'static str, known: &[&'static str], asked: &str) -> Result<Vec<usize>, NoArm> {
    let places = |is_meant: &dyn Fn(&str) -> bool| -> Vec<usize> {
        known.iter().enumerate().filter(|(_, name)| is_meant(name)).map(|(place, _)| place).collect()
    };
    let mut meant = places(&|name| name == asked);
    // Every name begins with nothing.
    if meant.is_empty() && !asked.is_empty() {
        meant = places(&|name| name.starts_with(asked));
    }
    let unknown = || NoArm { scenario, asked: asked.to_owned(), known: known.to_vec() };
    if meant.is_empty() { Err(unknown()) } else { Ok(meant) }
}

/// How an arm is asked for on the command line.
pub(crate) fn flag(name: &str) -> String {
    format!(" --arm \"{name}\"")
}

/// Names as they are listed in a sentence.
pub(crate) fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for NoArm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoArm { scenario, asked, known } = self;
        write!(f, "{scenario} has no arm called {asked:?}")?;
        if let Some(near) = nearest(asked, known.iter().copied()) {
            write!(f, "; did you mean {near:?}?")?;
        }
        write!(f, "; its arms are {}", listed(known))
    }
}

impl Error for NoArm {}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["naive", "backoff + full jitter", "backoff", "Backoff, capped"];

    fn places(asked: &str) -> Result<Vec<usize>, String> {
        named("x", &KNOWN, asked).map_err(|unknown| unknown.to_string())
    }

    #[test]
    fn a_name_is_not_taken_for_the_beginning_of_another() {
        assert_eq!(places("backoff"), Ok(vec![2]));
        assert_eq!(places("back"), Ok(vec![1, 2]));
        assert_eq!(places("backoff +"), Ok(vec![1]));
    }

    #[test]
    fn nothing_is_no_name_although_every_name_begins_with_it() {
        let said = places("").unwrap_err();
        assert!(said.starts_with("x has no arm called \"\"; its arms are \"naive\", "), "{said}");
    }

    #[test]
    fn letters_of_the_wrong_size_are_told_what_was_meant() {
        assert!(places("BACKOFF").unwrap_err().contains("did you mean \"backoff\"?"));
        assert!(places("backoff, capped").unwrap_err().contains("did you mean \"Backoff, capped\"?"));
    }
}
