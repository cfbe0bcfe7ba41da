//! The trade-offs of eight techniques, measured.
//!
//! An article has a table: jitter, backoff, coalescing and five more, and for each whether it breaks synchrony, saves work, adds
//! latency, risks wrong answers. Such a table is easy to write and hard to believe. Here every cell is two arms of a scenario and
//! one of their figures, put beside each other by a rule, and a cell that nothing here can measure says so.

use serde::{Serialize, Serializer};

use crate::{
    look::{Look, Reports, Seen, reports, runs_for},
    report::Measured,
    runs::Watch,
};

mod cells;
mod page;
mod text;

pub use page::TablePage;

/// What is asked of every technique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    /// Does a crowd no longer come at one instant?
    BreaksSynchrony,
    /// Is less done for the same answers?
    ReducesWork,
    /// Does somebody wait longer?
    AddsLatency,
    /// Is an answer wrong, stale or missing that was not?
    RisksAnswers,
}

/// All techniques, as they were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What everything random followed from.
    pub seed: u64,
    /// By which rule a cell says yes.
    #[serde(serialize_with = "rules")]
    pub rules: [Property; 4],
    /// Each technique, in the order of the article.
    pub techniques: Vec<Row>,
}

/// One technique.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is called.
    pub technique: &'static str,
    /// What came out for each property.
    pub cells: Vec<Cell>,
    /// What it is for.
    #[serde(rename = "use")]
    pub used_for: &'static str,
}

/// One property of one technique.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Which property.
    pub property: Property,
    /// Yes or no; nothing if it was not measured.
    pub answer: Option<bool>,
    /// What was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What one has to know to read it; where it was not measured, why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
    /// What the article says that this does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub article: Option<&'static str>,
}

/// Two arms, and a figure of each.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// Of which scenario.
    pub scenario: &'static str,
    /// Which figure.
    pub figure: &'static str,
    /// Without the technique.
    pub without: Side,
    /// With it.
    pub with: Side,
}

/// One of two arms.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// What the arm is called.
    pub arm: &'static str,
    /// With which parameter changed, if any is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<&'static str>,
    /// How much it was.
    pub value: Measured,
    /// The command that shows it.
    pub again: String,
}

/// What is compared for a cell.
#[derive(Clone, Copy, Debug)]
struct Compared {
    without: Look,
    with: Look,
}

/// How a cell is filled.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Measured { compared: Compared, note: Option<&'static str>, article: Option<&'static str> },
    Unmeasured(&'static str),
}

/// A technique, and how its cells are filled, in the order of [`Property::ALL`].
#[derive(Clone, Copy, Debug)]
struct Technique {
    name: &'static str,
    cells: [Plan; 4],
    used_for: &'static str,
}

impl Property {
    /// In the order of the table.
    pub const ALL: [Property; 4] =
        [Property::BreaksSynchrony, Property::ReducesWork, Property::AddsLatency, Property::RisksAnswers];

    /// What stands above its column.
    pub fn title(self) -> &'static str {
        match self {
            Property::BreaksSynchrony => "breaks synchrony",
            Property::ReducesWork => "reduces work",
            Property::AddsLatency => "adds latency",
            Property::RisksAnswers => "risks answers",
        }
    }

    /// By which rule it is a yes.
    pub fn rule(self) -> &'static str {
        match self {
            Property::BreaksSynchrony => "the peak is at most half of what it was",
            Property::ReducesWork => "calls, or work for nobody, are at most half of what they were",
            Property::AddsLatency => "somebody waits longer by more than a tenth",
            Property::RisksAnswers => "more answers are wrong, stale, late or missing than before",
        }
    }

    fn holds(self, without: f64, with: f64) -> bool {
        match self {
            Property::BreaksSynchrony | Property::ReducesWork => with * 2.0 <= without && without > 0.0,
            Property::AddsLatency => with > without * 1.1,
            Property::RisksAnswers => with > without,
        }
    }
}

/// How many runs the table takes.
pub fn table_runs() -> usize {
    wanted().len()
}

/// Measures every cell on this seed, on all processors; nothing if the watch was stopped before all runs were begun.
pub fn table(seed: u64, watch: &Watch) -> Option<Table> {
    let reports = reports(&wanted(), seed, watch)?;
    let techniques = cells::TECHNIQUES.iter().map(|technique| technique.measured(seed, &reports)).collect();
    Some(Table { seed, rules: Property::ALL, techniques })
}

/// Every run that a cell is made of, once.
fn wanted() -> Vec<(&'static str, Option<&'static str>)> {
    let plans = cells::TECHNIQUES.iter().flat_map(|technique| technique.cells);
    let compared =
        plans.filter_map(|plan| if let Plan::Measured { compared, .. } = plan { Some(compared) } else { None });
    runs_for(compared.flat_map(|compared| [compared.without, compared.with]))
}

impl Technique {
    fn measured(&self, seed: u64, reports: &Reports) -> Row {
        let cells = Property::ALL.into_iter().zip(self.cells).map(|(property, plan)| match plan {
            Plan::Unmeasured(why) => Cell { property, answer: None, evidence: None, note: Some(why), article: None },
            Plan::Measured { compared, note, article } => {
                let evidence = compared.measured(seed, reports);
                let answer = evidence
                    .as_ref()
                    .map(|evidence| property.holds(evidence.without.value.value(), evidence.with.value.value()));
                Cell { property, answer, evidence, note, article }
            }
        });
        Row { technique: self.name, cells: cells.collect(), used_for: self.used_for }
    }
}

impl Compared {
    fn measured(&self, seed: u64, reports: &Reports) -> Option<Evidence> {
        let side = |look: Look| {
            let Seen { arm, value, again } = look.seen(seed, reports)?;
            Some(Side { arm, set: look.set, value, again })
        };
        Some(Evidence {
            scenario: self.with.scenario,
            figure: self.with.figure,
            without: side(self.without)?,
            with: side(self.with)?,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn rules<S: Serializer>(properties: &[Property; 4], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(properties.iter().map(|property| (property, property.rule())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(seed: u64) -> Vec<(&'static str, [Option<bool>; 4])> {
        let table = table(seed, &Watch::default()).unwrap();
        let of = |row: &Row| [0, 1, 2, 3].map(|at| row.cells[at].answer);
        table.techniques.iter().map(|row| (row.technique, of(row))).collect()
    }

    #[test]
    fn every_cell_is_measured_or_says_why_it_is_not() {
        let table = table(1, &Watch::default()).unwrap();
        assert_eq!(table.techniques.len(), 8);
        for cell in table.techniques.iter().flat_map(|row| &row.cells) {
            assert_eq!(cell.answer.is_some(), cell.evidence.is_some());
            assert!(cell.answer.is_some() || cell.note.is_some(), "{cell:?}");
        }
        let planned = cells::TECHNIQUES.iter().flat_map(|technique| technique.cells);
        let planned = planned.filter(|plan| matches!(plan, Plan::Measured { .. })).count();
        let measured = table.techniques.iter().flat_map(|row| &row.cells).filter(|cell| cell.answer.is_some()).count();
        assert_eq!(measured, planned, "an arm, a figure or a parameter is not called that any more");
    }

    /// What one seed says must not be luck.
    #[test]
    fn no_cell_depends_on_the_seed() {
        let first = answers(0);
        for seed in [3, 42] {
            assert_eq!(answers(seed), first, "seed {seed}");
        }
        let of = |name: &str| first.iter().find(|(technique, _)| *technique == name).unwrap().1;
        assert_eq!(of("jitter")[..3], [Some(true), Some(false), Some(false)]);
        assert_eq!(of("exponential backoff")[..3], [Some(false), Some(false), Some(true)]);
        assert_eq!(of("coalescing")[..2], [Some(true), Some(true)]);
    }

    #[test]
    fn a_rule_is_what_it_says() {
        use Property::{AddsLatency, BreaksSynchrony, ReducesWork, RisksAnswers};
        assert!(BreaksSynchrony.holds(100.0, 50.0) && !BreaksSynchrony.holds(100.0, 51.0));
        assert!(ReducesWork.holds(10.0, 0.0) && !ReducesWork.holds(0.0, 0.0));
        assert!(AddsLatency.holds(100.0, 111.0) && !AddsLatency.holds(100.0, 110.0) && AddsLatency.holds(0.0, 1.0));
        assert!(RisksAnswers.holds(0.0, 1.0) && !RisksAnswers.holds(1.0, 1.0));
    }

    #[test]
    fn the_page_has_every_cell_and_asks_nobody_for_anything() {
        let page = table(1, &Watch::default()).unwrap().page().to_string();
        assert_eq!(page.matches("<li>breaks synchrony: ").count(), 9, "eight, and the rule");
        assert!(!page.contains("http") && !page.contains("<script") && page.ends_with("</html>\n"));
    }

    #[test]
    fn a_stopped_table_is_none() {
        let watch = Watch::default();
        watch.stop();
        assert!(table(1, &watch).is_none());
    }
}
