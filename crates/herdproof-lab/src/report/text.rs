//! The report on a terminal: a table, a picture of the calls, and the claims.

use std::fmt;

use super::{Measured, Report, millis};
use crate::picture::{HEIGHT, WIDTH, axis, picture};

/// Plain text, with a picture of each arm on one common scale.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.parameters.iter().map(|p| format!("{} {}", p.name, p.value)).collect();
        writeln!(f, "{}: {}, seed {}\n", self.scenario, parameters.join(", "), self.seed)?;
        let names = self.arms.iter().map(|arm| arm.name.len()).max().unwrap_or(0).max(12);
        write!(f, "{:<names$}", "arm")?;
        for figure in self.arms.first().iter().flat_map(|arm| &arm.figures) {
            write!(f, " {:>12}", figure.title)?;
        }
        writeln!(f)?;
        let end = self.end();
        let tops = self.tops(end, WIDTH);
        for arm in &self.arms {
            write!(f, "{:<names$}", arm.name)?;
            for figure in &arm.figures {
                write!(f, " {:>12}", figure.value)?;
            }
            writeln!(f)?;
            for ((lane, timeline), top) in arm.shown().into_iter().zip(&tops) {
                let (height, note) = if lane.is_empty() { (HEIGHT, arm.shape.as_str()) } else { (1, lane) };
                f.write_str(&picture(&timeline.columns(end, WIDTH), *top, height, note))?;
            }
        }
        let column = millis(end) / WIDTH as f64;
        f.write_str(&axis(millis(end)))?;
        match &tops[..] {
            [] | [_] => {
                let top = tops.first().unwrap_or(&1);
                writeln!(f, "  (calls at the origin; a full column is {top} in {column:.1} ms)\n")?;
            }
            lanes => {
                let full: Vec<String> = lanes.iter().map(u64::to_string).collect();
                writeln!(f, "  (calls at each layer; full columns are {} in {column:.1} ms)\n", full.join(", "))?;
            }
        }
        writeln!(f, "Checks")?;
        for check in &self.checks {
            let mark = match (check.passed, self.is_changed()) {
                (true, _) => "ok    ",
                (false, false) => "FAILED",
                (false, true) => "no    ",
            };
            writeln!(f, "  {mark} {} ({:?})", check.what, check.source)?;
            if check.passed && check.expected == check.got {
                writeln!(f, "         {}", check.got)?;
            } else {
                writeln!(f, "         expected {}, got {}", check.expected, check.got)?;
            }
        }
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        let held = self.checks.len() - failed;
        if self.is_changed() {
            writeln!(f, "  {held} hold, {failed} do not: they are about other parameters than these\n")?;
        } else {
            writeln!(f, "  {held} passed, {failed} failed\n")?;
        }
        writeln!(f, "Summary: {}", self.summary)?;
        writeln!(f, "Again:   {}", self.replay())
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.show(self.value()))
    }
}
