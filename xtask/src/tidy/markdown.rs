//! The little of Markdown that checks need: what is code and what is prose.

#[derive(Debug)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) place: Place<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    Prose,
    /// The line that opens or closes a fenced block.
    Fence,
    /// Inside a fenced block, with what its opening line says: `text rows`.
    Code(&'a str),
}

pub(super) fn lines(text: &str) -> Vec<Line<'_>> {
    let mut open: Option<(&str, &str)> = None;
    let place = |line| match (fence(line), open) {
        (Some((marks, "")), Some((opened, _))) if marks.starts_with(opened) => {
            open = None;
            Place::Fence
        }
        (_, Some((_, info))) => Place::Code(info),
        (Some(opening), None) => {
            open = Some(opening);
            Place::Fence
        }
        (None, None) => Place::Prose,
    };
    let places: Vec<_> = text.lines().map(place).collect();
    text.lines().zip(places).zip(1..).map(|((text, place), number)| Line { number, text, place }).collect()
}

/// The marks of a fence and what stands behind them.
fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = line.trim_start_matches(mark);
    let marks = &line[..line.len() - info.len()];
    // Three marks that also close on the line are code within prose.
    (marks.len() >= 3 && !info.contains('`')).then_some((marks, info.trim()))
}

/// The line with `code` within prose made blank.
pub(super) fn without_code(line: &str) -> String {
    let mut prose = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let marks = &rest[start..rest[start..].find(|c| c != '`').map_or(rest.len(), |length| start + length)];
        let inside = &rest[start + marks.len()..];
        prose += &rest[..start];
        rest = if let Some(end) = closing(inside, marks.len()) {
            prose.push(' ');
            &inside[end..]
        } else {
            inside
        };
    }
    prose + rest
}

/// Where the code ends, behind a run of exactly as many marks as opened it.
fn closing(inside: &str, marks: usize) -> Option<usize> {
    let mut run = 0;
    for (offset, c) in inside.char_indices() {
        match c {
            '`' => run += 1,
            _ if run == marks => return Some(offset),
            _ => run = 0,
        }
    }
    (run == marks).then_some(inside.len())
}

/// The text of a `# heading`.
pub(super) fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && (text.is_empty() || text.starts_with(' '))).then(|| text.trim().trim_end_matches(" #"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<(usize, &str)> {
        let inside = lines(text).into_iter().filter(|line| matches!(line.place, Place::Code(_)));
        inside.map(|line| (line.number, line.text)).collect()
    }

    #[test]
    fn a_shorter_fence_inside_a_longer_one_does_not_close_it() {
        assert_eq!(code("````md\n```\na\n```\n````\nb\n"), [(2, "```"), (3, "a"), (4, "```")]);
    }

    #[test]
    fn a_fence_with_words_opens_but_never_closes() {
        assert_eq!(code("```\n```toml\n```\nb\n"), [(2, "```toml")]);
    }

    #[test]
    fn three_marks_within_prose_open_no_block() {
        assert_eq!(code("```a``` b\nc\n"), []);
    }

    #[test]
    fn the_words_behind_the_marks_are_kept() {
        assert_eq!(lines("~~~ text rows\na\n~~~\n")[1].place, Place::Code("text rows"));
    }

    #[test]
    fn code_within_prose_is_blanked_and_lone_marks_are_not() {
        assert_eq!(without_code("a `b` c ``d ` e`` f"), "a   c   f");
        assert_eq!(without_code("it ` stays"), "it  stays");
    }

    #[test]
    fn a_hashtag_is_no_heading() {
        assert_eq!((heading("#tag"), heading("## Two words ")), (None, Some("Two words")));
    }
}
