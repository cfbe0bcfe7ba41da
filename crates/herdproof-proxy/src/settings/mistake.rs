//! What is wrong with a settings file, where, and what would be right.

use std::{error::Error, fmt, ops::Range};

/// What is wrong with a settings file: the place, the line, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSettings {
    file: String,
    place: Option<Place>,
    problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    text: String,
    /// How many letters of the text are meant.
    width: usize,
}

impl BadSettings {
    /// Something that is wrong with all of it, or with this part.
    pub(super) fn new(file: &str, text: &str, span: Option<Range<usize>>, problem: String) -> BadSettings {
        BadSettings { file: file.to_owned(), place: span.map(|span| Place::of(text, span)), problem }
    }

    pub(super) fn from_toml(file: &str, text: &str, error: &toml::de::Error) -> BadSettings {
        BadSettings::new(file, text, error.span(), explain(error.message()))
    }
}

impl Place {
    fn of(text: &str, span: Range<usize>) -> Place {
        // What is missing at the end is missing in the last line that there is, not in the one after it.
        let lines = text.strip_suffix('\n').unwrap_or(text);
        let lines = lines.strip_suffix('\r').unwrap_or(lines);
        let start = text.floor_char_boundary(span.start).min(lines.len());
        let end = text.floor_char_boundary(span.end).max(start);
        let begins = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[begins..].lines().next().unwrap_or_default();
        let width = text[start..end].lines().next().unwrap_or_default().chars().count();
        Place {
            line: text[..start].matches('\n').count() + 1,
            // The end of a line may be two characters.
            column: text[begins..start].chars().count().min(line.chars().count()) + 1,
            text: line.to_owned(),
            width: width.max(1),
        }
    }
}

/// What the parser says, in our words where it names what it does not know.
fn explain(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let known = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let (what, name, possible) = match &names[..] {
        [name, possible @ ..] if message.starts_with("unknown field") => ("setting", name, possible),
        [name, possible @ ..] if message.starts_with("unknown variant") => ("value", name, possible),
        [name] if message.starts_with("missing field") => return format!("`{name}` is missing here"),
        _ => return message.trim_end().to_owned(),
    };
    match nearest(name, possible) {
        Some(near) => format!("there is no {what} `{name}` here; did you mean `{near}`?"),
        None => format!("there is no {what} `{name}` here; there is {}", known(possible)),
    }
}

/// The name that was probably meant: with a third of it mistyped at most.
fn nearest<'a>(asked: &str, known: &[&'a str]) -> Option<&'a str> {
    let asked = asked.to_lowercase().replace('-', "_");
    let distances = known.iter().map(|name| (distance(&asked, name), *name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= name.len().max(3)).then_some(name)
}

/// How many letters have to be changed, added or left out.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in other.chars().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

impl fmt::Display for BadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadSettings { file, place, problem } = self;
        let Some(Place { line, column, text, width }) = place else { return write!(f, "{file}: {problem}") };
        let margin = line.to_string().len();
        writeln!(f, "{file}:{line}:{column}: {problem}")?;
        writeln!(f, "{:margin$} |", "")?;
        writeln!(f, "{line} | {text}")?;
        let (before, marks) = (" ".repeat(column - 1), "^".repeat(*width));
        write!(f, "{:margin$} | {before}{marks}", "")
    }
}

impl Error for BadSettings {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_hand_is_told_from_another_word() {
        let known = ["url", "limit", "line", "queue_wait", "hedge_after"];
        for (asked, near) in [
            ("limits", Some("limit")),
            ("lmit", Some("limit")),
            ("queue-wait", Some("queue_wait")),
            ("QueueWait", Some("queue_wait")),
            ("uri", Some("url")),
            ("retries", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(asked, &known), near, "{asked}");
        }
    }

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (one, other, steps) in [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("flaw", "lawn", 2)] {
            assert_eq!(distance(one, other), steps);
        }
    }

    #[test]
    fn what_is_missing_at_the_end_is_missing_in_the_last_line() {
        for (text, at, line, column) in [
            ("a = \"\"\"x\n", 9, 1, 9),
            ("a = \"\"\"x\r\n", 10, 1, 9),
            ("a\n\n", 3, 2, 1),
            ("\n", 1, 1, 1),
            ("", 0, 1, 1),
            ("a =\r\nb", 4, 1, 4),
        ] {
            let place = Place::of(text, at..at);
            assert_eq!((place.line, place.column), (line, column), "{text:?}");
        }
    }

    #[test]
    fn a_place_is_found_in_any_text() {
        let text = "a = 1\r\nü = \"x\"\n";
        let at = text.find('x').unwrap();
        let place = Place::of(text, at..at + 1);
        assert_eq!((place.line, place.column, &*place.text), (2, 6, "ü = \"x\""));
        for from in 0..=text.len() + 3 {
            assert!(Place::of(text, from..from + 2).line <= 2);
        }
    }
}
