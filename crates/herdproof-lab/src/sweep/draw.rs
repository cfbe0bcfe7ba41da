//! The map on a terminal: shades, or colours where there are any.

use std::fmt::Write;

use super::{Axis, Map};

/// How wide a map is, about.
const WIDTH: usize = 72;
/// From the least to the most.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];
/// A cell that was not run.
const MISSING: char = '?';
/// How wide the longest bar is.
const BAR: f64 = 40.0;

/// Blanks on the colour of a level from 0 to 1.
pub type Paint = fn(f64, &str) -> String;

impl Map {
    /// The map as text. A cell is painted if there is paint, else it is a shade.
    pub fn text(&self, paint: Option<Paint>) -> String {
        let runs = if self.runs > 1 { format!(", medians of {} runs", self.runs) } else { String::new() };
        let set: String = self.set.iter().flat_map(|set| [", ", set]).collect();
        let mut text =
            format!("{}: {} of \"{}\"{set}, seed {}{runs}\n\n", self.scenario, self.figure.key, self.arm, self.seed);
        match &self.y {
            Some(y) => self.grid(&mut text, y, paint),
            None => self.bars(&mut text),
        }
        let _ = writeln!(text, "\nAgain: {}", self.replay());
        text
    }

    /// A cell as it is drawn.
    fn shade(&self, cell: Option<f64>, width: usize, paint: Option<Paint>) -> String {
        cell.map_or_else(|| MISSING.to_string().repeat(width), |value| drawn(self.level(value), width, paint))
    }

    fn grid(&self, text: &mut String, y: &Axis, paint: Option<Paint>) {
        let names: Vec<String> = y.values.iter().map(ToString::to_string).collect();
        let left = names.iter().map(String::len).max().unwrap_or(0).max(4) + 2;
        let width = (WIDTH / self.x.values.len().max(1)).clamp(1, 4);
        let _ = writeln!(text, "  {} ({})", y.knob.name, plain(y.knob.what));
        for (row, name) in names.iter().enumerate().rev() {
            let cells: String = self.cells[row].iter().map(|cell| self.shade(*cell, width, paint)).collect();
            let _ = write!(text, "{name:>left$} {cells}");
            if let Some(at) = self.edge(row) {
                let [before, after] = [at, at + 1].map(|column| self.show(self.cells[row][column]));
                let _ = write!(text, "  {before} | {after} at {} | {}", self.x.values[at], self.x.values[at + 1]);
            }
            text.push('\n');
        }
        let _ = writeln!(text, "{:left$} {}", "", labels(&self.x, width).trim_end());
        let _ = writeln!(text, "{:left$} {} ({})", "", self.x.knob.name, plain(self.x.knob.what));
        if let Some((least, most)) = self.range() {
            let ramp: Vec<String> = (0..=4_u8).map(|step| drawn(f64::from(step) / 4.0, 2, paint)).collect();
            let [least, most] = [least, most].map(|value| self.show(Some(value)));
            let _ = if least == most {
                writeln!(text, "\n{:left$} the same everywhere: {most}", "")
            } else {
                writeln!(text, "\n{:left$} {least} {} {most}", "", ramp.concat())
            };
        }
    }

    /// One axis: a line for each value.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most as wide as a bar")]
    fn bars(&self, text: &mut String) {
        let row = self.cells.first().map_or(&[][..], |row| row);
        let top = row.iter().copied().flatten().fold(0.0, f64::max);
        let names: Vec<String> = self.x.values.iter().map(ToString::to_string).collect();
        let shown: Vec<String> = row.iter().map(|cell| self.show(*cell)).collect();
        let left = names.iter().map(String::len).max().unwrap_or(0).max(self.x.knob.name.len());
        let middle = shown.iter().map(String::len).max().unwrap_or(0).max(self.figure.key.len());
        let _ = writeln!(text, "{:>left$}  {:>middle$}", self.x.knob.name, self.figure.key);
        for ((name, shown), cell) in names.iter().zip(&shown).zip(row) {
            let long = cell.map_or(0.0, |value| if top > 0.0 { BAR * value / top } else { 0.0 });
            let line = format!("{name:>left$}  {shown:>middle$}  {}", "█".repeat(long.max(0.0).ceil() as usize));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }

    /// A value as it is printed.
    pub(super) fn show(&self, value: Option<f64>) -> String {
        value.map_or(MISSING.to_string(), |value| self.figure.value.show(value))
    }
}

fn drawn(level: f64, width: usize, paint: Option<Paint>) -> String {
    paint.map_or_else(|| SHADES[shade(level)].to_string().repeat(width), |paint| paint(level, &" ".repeat(width)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "one of five")]
fn shade(level: f64) -> usize {
    ((level * SHADES.len() as f64) as usize).min(SHADES.len() - 1)
}

/// As many values under their columns as there is room for.
fn labels(axis: &Axis, width: usize) -> String {
    let mut line = String::new();
    for (column, value) in axis.values.iter().enumerate() {
        let at = column * width;
        if line.is_empty() || at >= line.len() + 2 {
            let _ = write!(line, "{:gap$}{value}", "", gap = at - line.len());
        }
    }
    line
}

/// A sentence within brackets has no full stop.
pub(super) fn plain(what: &str) -> &str {
    what.trim_end_matches('.')
}
