//! The table on a terminal.

use std::fmt;

use super::{Cell, Property, Side, Table};

impl Cell {
    /// `yes`, `no` or `?`, with a star where the article says otherwise.
    pub(super) fn word(&self) -> String {
        let word = match self.answer {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        format!("{word}{}", if self.article.is_some() { " *" } else { "" })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.arm)?;
        self.set.map_or(Ok(()), |set| write!(f, " with {set}"))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.techniques.iter().map(|row| row.technique.len()).max().unwrap_or(0);
        write!(f, "{:<names$}", "technique")?;
        for property in Property::ALL {
            write!(f, "  {}", property.title())?;
        }
        writeln!(f, "  use")?;
        for row in &self.techniques {
            write!(f, "{:<names$}", row.technique)?;
            for cell in &row.cells {
                write!(f, "  {:<width$}", cell.word(), width = cell.property.title().len())?;
            }
            writeln!(f, "  {}", row.used_for)?;
        }
        writeln!(f, "\nRules")?;
        for property in Property::ALL {
            writeln!(f, "  {:<16}  {}", property.title(), property.rule())?;
        }
        writeln!(f, "  ?                 not measured; * the article says otherwise")?;
        for row in &self.techniques {
            writeln!(f, "\n{}", row.technique)?;
            for cell in &row.cells {
                write!(f, "  {:<16}  {:<5}", cell.property.title(), cell.word())?;
                if let Some(evidence) = &cell.evidence {
                    writeln!(
                        f,
                        " {} from {} to {} (herdproof lab run {}: {} / {})",
                        evidence.figure,
                        evidence.without.value,
                        evidence.with.value,
                        evidence.scenario,
                        evidence.without,
                        evidence.with
                    )?;
                }
                if let Some(note) = cell.note {
                    // Why there is no evidence stands where it would.
                    let indent = if cell.evidence.is_some() { 26 } else { 1 };
                    writeln!(f, "{:indent$}{note}", "")?;
                }
                if let Some(says) = cell.article {
                    writeln!(f, "{:26}* the article: {says}", "")?;
                }
            }
        }
        writeln!(f, "\nAgain: herdproof lab table --seed {}", self.seed)
    }
}
