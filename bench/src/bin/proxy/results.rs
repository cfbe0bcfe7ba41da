//! What was measured, as tables and as JSON.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::{
    cases::{Case, Row},
    musts::Must,
    peers::OURS,
};

/// Figures of which less is better, and how much better is worth saying.
const COMPARED: [&str; 4] = ["cpu s/100k", "p99 ms", "wall ms", "B/object"];

#[derive(Default)]
pub struct Results {
    cells: Vec<Cell>,
    failures: Vec<(&'static str, String)>,
}

/// One figure of one server, over all rounds.
pub struct Cell {
    pub case: &'static str,
    pub label: &'static str,
    pub peer: &'static str,
    pub name: &'static str,
    pub values: Vec<f64>,
}

impl Cell {
    pub fn min(&self) -> f64 {
        self.values.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
    }
}

impl Results {
    pub fn add(&mut self, case: &Case, peer: &'static str, row: Row) {
        for (name, value) in row.figures {
            let is_same =
                |cell: &&mut Cell| (cell.case, cell.label, cell.peer, cell.name) == (case.name, row.label, peer, name);
            match self.cells.iter_mut().find(is_same) {
                Some(cell) => cell.values.push(value),
                None => {
                    let values = vec![value];
                    self.cells.push(Cell { case: case.name, label: row.label, peer, name, values });
                }
            }
        }
    }

    pub fn fails(&mut self, case: &Case, problem: &str) {
        eprintln!("\r\x1b[K{}: {problem}", case.name);
        self.failures.push((case.name, problem.into()));
    }

    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub fn ours(&self, case: &str, label: &str, name: &str) -> Option<&Cell> {
        self.of(OURS, case, label, name)
    }

    pub fn of(&self, peer: &str, case: &str, label: &str, name: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| (cell.peer, cell.case, cell.label, cell.name) == (peer, case, label, name))
    }

    /// The least of the peers' minima, and whose it is.
    pub fn best(&self, case: &str, label: &str, name: &str) -> Option<&Cell> {
        let is_peers = |cell: &&Cell| (cell.case, cell.label, cell.name) == (case, label, name) && cell.peer != OURS;
        self.cells.iter().filter(is_peers).min_by(|a, b| a.min().total_cmp(&b.min()))
    }

    /// How many times better ours is than this one, of the minima.
    fn times(&self, cell: &Cell) -> Option<f64> {
        let ours = self.ours(cell.case, cell.label, cell.name).filter(|_| COMPARED.contains(&cell.name))?;
        (cell.peer != OURS && ours.min() > 0.0).then(|| cell.min() / ours.min())
    }

    /// A line for each server and a column for each figure: the median, and in parentheses how many times better ours is.
    pub fn print(&self, case: &Case, took: Duration) {
        println!("\n{} ({}, {:.0} s): {}", case.name, case.group, took.as_secs_f64(), case.what);
        let cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.case == case.name).collect();
        let mut names: Vec<&str> = Vec::new();
        let mut lines: Vec<(&str, &str)> = Vec::new();
        for cell in &cells {
            if !names.contains(&cell.name) {
                names.push(cell.name);
            }
            if !lines.contains(&(cell.label, cell.peer)) {
                lines.push((cell.label, cell.peer));
            }
        }
        if lines.is_empty() {
            println!("  nobody was measured");
            return;
        }
        // Rows that belong together stand together: the first herds of all, then the second ones.
        let labels: Vec<&str> = lines.iter().map(|(label, _)| *label).collect();
        lines.sort_by_key(|(label, _)| labels.iter().position(|seen| seen == label));
        let show = |(label, peer): &(&str, &str), name: &str| match self.of(peer, case.name, label, name) {
            None => "-".to_owned(),
            Some(cell) => match self.times(cell) {
                Some(times) => format!("{} ({times:.2}x)", round(cell.median())),
                None => round(cell.median()),
            },
        };
        let columns: Vec<Vec<String>> =
            names.iter().map(|name| lines.iter().map(|line| show(line, name)).collect()).collect();
        let widths: Vec<usize> = columns
            .iter()
            .zip(&names)
            .map(|(column, name)| column.iter().map(String::len).max().unwrap_or(0).max(name.len()) + 2)
            .collect();
        let heads: String = names.iter().zip(&widths).map(|(name, width)| format!("{name:>width$}")).collect();
        println!("  {:<26}{heads}", "");
        for (index, (label, peer)) in lines.iter().enumerate() {
            let cells: String =
                columns.iter().zip(&widths).map(|(column, width)| format!("{:>width$}", column[index])).collect();
            println!("  {:<26}{cells}", format!("{peer} {label}").trim_end());
        }
    }

    pub fn json(&self, musts: &[Must]) -> Json {
        let row = |cell: &Cell| {
            json!({"case": cell.case, "label": cell.label, "subject": cell.peer, "unit": cell.name, "value": cell.min(),
                   "median": cell.median(), "max": cell.max(), "rounds": cell.values.len()})
        };
        let ratio = |cell: &Cell| {
            let ratio = self.times(cell)?;
            Some(json!({"case": cell.case, "label": cell.label, "ours": OURS, "peer": cell.peer, "unit": cell.name,
                        "ratio": ratio}))
        };
        let must = |must: &Must| json!({"must": must.what, "seen": must.seen, "met": must.met});
        let failure = |(case, problem): &(&str, String)| json!({"case": case, "problem": problem});
        json!({
            "bench": "proxy",
            "rows": self.cells.iter().map(row).collect::<Vec<_>>(),
            "ratios": self.cells.iter().filter_map(ratio).collect::<Vec<_>>(),
            "musts": musts.iter().map(must).collect::<Vec<_>>(),
            "failures": self.failures.iter().map(failure).collect::<Vec<_>>(),
        })
    }
}

/// Three or four digits that mean something.
pub fn round(value: f64) -> String {
    match value {
        v if v.fract() == 0.0 || v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::CASES;

    #[test]
    fn ratios_are_of_minima_and_above_one_where_ours_is_better() {
        let mut results = Results::default();
        for (peer, values) in [(OURS, [2.0, 1.0, 9.0]), ("nginx", [3.0, 8.0, 2.0])] {
            for value in values {
                results.add(&CASES[0], peer, Row { label: "", figures: vec![("cpu s/100k", value)] });
            }
        }
        let nginx = results.of("nginx", CASES[0].name, "", "cpu s/100k").unwrap();
        assert_eq!((nginx.min(), nginx.median(), nginx.max(), results.times(nginx)), (2.0, 3.0, 8.0, Some(2.0)));
        assert_eq!(results.best(CASES[0].name, "", "cpu s/100k").map(|best| best.peer), Some("nginx"));
    }
}
