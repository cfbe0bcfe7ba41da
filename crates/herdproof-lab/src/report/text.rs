//! The report on a terminal: a table, a picture of the calls, and the claims.

use std::fmt;

use super::{Measured, Report, Steps, millis, tops};
use crate::picture::{HEIGHT, WIDTH, axis, picture};

/// Plain text, with a picture of each arm on one common scale.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.parameters.iter().map(|p| format!("{} {}", p.name, p.value)).collect();
        writeln!(f, "{}: {}, seed {}\n", self.scenario, parameters.join(", "), self.seed)?;
        let names = self.arms.iter().map(|arm| arm.title().len()).max().unwrap_or(0).max(12);
        write!(f, "{:<names$}", "arm")?;
        for figure in self.arms.first().iter().flat_map(|arm| &arm.figures) {
            write!(f, " {:>12}", figure.title)?;
        }
        writeln!(f)?;
        let end = self.end();
        let pictures = self.pictures(WIDTH);
        let tops = tops(&pictures);
        for (arm, lanes) in self.arms.iter().zip(&pictures) {
            write!(f, "{:<names$}", arm.title())?;
            for figure in &arm.figures {
                write!(f, " {:>12}", figure.value)?;
            }
            writeln!(f)?;
            for ((lane, columns), top) in lanes.iter().zip(&tops) {
                let (height, note) = if lane.is_empty() { (HEIGHT, arm.shape.as_str()) } else { (1, *lane) };
                f.write_str(&picture(columns, *top, height, note))?;
            }
        }
        let full: Vec<String> = tops.iter().map(u64::to_string).collect();
        let full = full.join(", ");
        match self.steps {
            None => {
                let column = millis(end) / WIDTH as f64;
                let place =
                    if tops.len() < 2 { "the origin; a full column is" } else { "each layer; full columns are" };
                f.write_str(&axis("0 ms", &format!("{:.0} ms", millis(end))))?;
                writeln!(f, "  (calls at {place} {full} in {column:.1} ms)\n")?;
            }
            Some(Steps { shows, over, step }) => {
                let bins = self.arms.iter().map(|arm| arm.timeline.counts().len()).max().unwrap_or(0);
                f.write_str(&axis(&step.to_string(), &(step * bins as f64).to_string()))?;
                writeln!(f, "  ({shows} over {over}; a full column is {full})\n")?;
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
