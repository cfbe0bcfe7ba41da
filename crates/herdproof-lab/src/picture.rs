//! Counts over time as a picture of blocks, for a terminal.

use std::fmt::Write;

/// How many columns a picture has.
pub(crate) const WIDTH: usize = 62;
/// How many lines a picture has at most.
pub(crate) const HEIGHT: usize = 4;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The columns as a picture of `height` lines, without the empty ones on top; any count at all shows. `top` is the count
/// that fills the whole height, the note stands at the right of the last line.
pub(crate) fn picture(columns: &[u64], top: u64, height: usize, note: &str) -> String {
    let filled = |count: u64| {
        let eighths = (u128::from(count) * height as u128 * 8).div_ceil(u128::from(top.max(1)));
        usize::try_from(eighths).unwrap_or(usize::MAX)
    };
    let mut text = String::new();
    for row in (0..height).rev() {
        let line: String = columns.iter().map(|&count| LEVELS[filled(count).saturating_sub(row * 8).min(8)]).collect();
        if row > 0 && line.trim().is_empty() {
            continue;
        }
        let note = if row == 0 { note } else { "" };
        let _ = writeln!(text, "{}", format!("  {line}  {note}").trim_end());
    }
    text
}

/// The line below a picture that says from where to where it goes.
pub(crate) fn axis(left: &str, right: &str) -> String {
    format!("  {left}{right:>width$}\n", width = WIDTH.saturating_sub(left.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_among_thousands_still_shows() {
        assert_eq!(picture(&[5_000, 0, 1], 5_000, 2, "note"), "  █\n  █ ▁  note\n");
    }

    #[test]
    fn nothing_at_all_is_one_empty_line_and_no_division_by_zero() {
        assert_eq!(picture(&[0, 0], 0, 4, ""), "\n");
    }
}
