//! The report on a terminal: a table, a picture of the calls, and the claims.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use super::Report;
use crate::timeline::Shape;

const WIDTH: usize = 62;
const HEIGHT: usize = 4;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Plain text, with a picture of each arm on one common scale.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.parameters.iter().map(|p| format!("{} {}", p.name, p.value)).collect();
        writeln!(f, "{}: {}, seed {}\n", self.scenario, parameters.join(", "), self.seed)?;
        writeln!(
            f,
            "{:<22} {:>6} {:>8} {:>11} {:>11} {:>11}",
            "arm", "calls", "peak/ms", "last call", "end", "mean wait"
        )?;
        let end = self.arms.iter().map(|arm| arm.end_ms).fold(1.0, f64::max);
        let pictures: Vec<Vec<u64>> =
            self.arms.iter().map(|arm| arm.timeline.columns(Duration::from_secs_f64(end / 1e3), WIDTH)).collect();
        let top = pictures.iter().flatten().copied().max().unwrap_or(1).max(1);
        for (arm, columns) in self.arms.iter().zip(&pictures) {
            let [last, end, wait] = [arm.last_call_ms, arm.end_ms, arm.mean_wait_ms].map(|ms| format!("{ms:.1} ms"));
            writeln!(f, "{:<22} {:>6} {:>8} {last:>11} {end:>11} {wait:>11}", arm.name, arm.calls, arm.peak_per_ms)?;
            f.write_str(&picture(columns, top, arm.shape))?;
        }
        let right = format!("{end:.0} ms");
        writeln!(
            f,
            "  0 ms{right:>width$}\n  (height: {top} calls in {:.1} ms)\n",
            end / WIDTH as f64,
            width = WIDTH - 4
        )?;
        writeln!(f, "Checks")?;
        for check in &self.checks {
            let mark = if check.passed { "ok    " } else { "FAILED" };
            writeln!(f, "  {mark} {} ({:?})", check.what, check.source)?;
            if check.passed && check.expected == check.got {
                writeln!(f, "         {}", check.got)?;
            } else {
                writeln!(f, "         expected {}, got {}", check.expected, check.got)?;
            }
        }
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        writeln!(f, "  {} passed, {failed} failed\n", self.checks.len() - failed)?;
        writeln!(f, "Summary: {}", self.summary)
    }
}

/// The columns as a picture of `HEIGHT` lines, without the empty ones on top; any call at all shows.
fn picture(columns: &[u64], top: u64, shape: Shape) -> String {
    let filled = |count: u64| usize::try_from((count * HEIGHT as u64 * 8).div_ceil(top)).unwrap_or(usize::MAX);
    let mut text = String::new();
    for row in (0..HEIGHT).rev() {
        let line: String = columns.iter().map(|&count| LEVELS[filled(count).saturating_sub(row * 8).min(8)]).collect();
        if row > 0 && line.trim().is_empty() {
            continue;
        }
        let note = match (row, shape) {
            (0, Shape::Wall) => "  a wall",
            (0, Shape::Spikes) => "  spikes",
            (0, Shape::Curve) => "  a curve",
            _ => "",
        };
        let _ = writeln!(text, "  {}", format!("{line}{note}").trim_end());
    }
    text
}
