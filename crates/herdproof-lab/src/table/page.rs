//! The table as a page of its own.

use std::fmt;

use super::{Cell, Property, Table};
use crate::page::{Plain, close, open};

/// A table that prints itself as a page.
#[derive(Clone, Copy, Debug)]
pub struct TablePage<'a>(&'a Table);

impl Table {
    /// It as a page of its own: one file that needs nothing else.
    pub fn page(&self) -> TablePage<'_> {
        TablePage(self)
    }
}

impl fmt::Display for TablePage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        open(f, "eight techniques: herdproof lab")?;
        f.write_str(
            "<h1>Eight techniques, measured</h1>\n\
             <p class=\"soft\">herdproof lab, in virtual time with the real library</p>\n\
             <div class=\"wide\"><table><thead><tr><th>technique</th>",
        )?;
        for property in Property::ALL {
            write!(f, "<th class=\"words\">{}</th>", property.title())?;
        }
        f.write_str("<th class=\"words\">use</th></tr></thead><tbody>\n")?;
        for row in &self.0.techniques {
            write!(f, "<tr><td>{}</td>", Plain(row.technique))?;
            for cell in &row.cells {
                write!(f, "<td class=\"words\">{}</td>", cell.word())?;
            }
            writeln!(f, "<td class=\"words\">{}</td></tr>", Plain(row.used_for))?;
        }
        f.write_str("</tbody></table></div>\n<h2>Rules</h2>\n<ul>\n")?;
        for property in Property::ALL {
            writeln!(f, "<li>{}: {}</li>", property.title(), property.rule())?;
        }
        f.write_str("<li>?: not measured</li>\n<li>*: the article says otherwise</li>\n</ul>\n<h2>Evidence</h2>\n")?;
        for row in &self.0.techniques {
            writeln!(f, "<h3>{}</h3>\n<ul>", Plain(row.technique))?;
            for cell in &row.cells {
                evidence(f, cell)?;
            }
            f.write_str("</ul>\n")?;
        }
        close(f, &format!("herdproof lab table --seed {}", self.0.seed))
    }
}

fn evidence(f: &mut fmt::Formatter<'_>, cell: &Cell) -> fmt::Result {
    write!(f, "<li>{}: {}", cell.property.title(), cell.word())?;
    if let Some(evidence) = &cell.evidence {
        write!(
            f,
            ". {} from {} ({}) to {} ({}): <code>{}</code>",
            Plain(evidence.figure),
            evidence.without.value,
            Plain(&evidence.without.to_string()),
            evidence.with.value,
            Plain(&evidence.with.to_string()),
            Plain(&evidence.with.again),
        )?;
    }
    if let Some(note) = cell.note {
        write!(f, ". {}", Plain(note))?;
    }
    if let Some(says) = cell.article {
        write!(f, ". The article: {}", Plain(says))?;
    }
    f.write_str("</li>\n")
}
