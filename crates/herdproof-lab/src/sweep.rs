//! A figure over a grid of parameters: where it is fine, where it is not, and how sharp the edge between is.
//!
//! One run answers for one set of numbers. Where a service collapses is a line through all of them, and it cannot be guessed: a
//! trigger that is a quarter of a second shorter may change nothing or everything. So a scenario is run for every cell, and the
//! map shows it.
//!
//! ```
//! use herdproof_lab::{Axis, Settings, Sweep, Watch, find};
//!
//! let scenario = find("retry-wall")?;
//! let clients = Axis::read(&scenario.knobs(), "clients=10..30:3")?;
//! let sweep = Sweep::new(scenario, &Settings::new(42), clients, None, None, Some("calls"))?;
//! let map = sweep.run(1, &Watch::default());
//! assert_eq!(map.cells, [[Some(50.0), Some(100.0), Some(150.0)]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draw;
mod fault;
mod page;

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::{
    knob::{BadSetting, Knob, Settings, Value},
    named::{self, NoArm, named},
    nearest::nearest,
    report::{Arm, Figure},
    runs::{Spread, Watch},
    scenario::Scenario,
};

pub use draw::Paint;
pub use fault::BadSweep;
pub use page::MapPage;

/// How many values a range has if nothing is said.
const STEPS: usize = 12;
/// How many it has at most.
const MOST_STEPS: usize = 200;
/// How many cells a map has at most.
const MOST_CELLS: usize = 10_000;

/// The values of one parameter that a map goes through.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    knob: Knob,
    values: Vec<Value>,
    /// As it is typed.
    said: String,
}

/// What to run for each cell, and what to look at.
#[derive(Clone, Debug)]
pub struct Sweep {
    scenario: &'static Scenario,
    settings: Settings,
    x: Axis,
    y: Option<Axis>,
    /// By its place, as an arm's name may follow from a parameter.
    arm: usize,
    arm_name: &'static str,
    figure: Figure,
}

/// What came out for each cell.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Which scenario it was.
    pub scenario: &'static str,
    /// What everything random followed from.
    pub seed: u64,
    /// On how many seeds each cell was run; it is their median.
    pub runs: usize,
    /// What was not as it is in the catalogue for the whole map.
    pub set: Vec<String>,
    /// Whose figure it is.
    pub arm: &'static str,
    /// Which figure it is.
    #[serde(serialize_with = "its_key")]
    pub figure: Figure,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Option<Axis>,
    /// A row for each value of `y`, the least first; what was not run, or is no number, is missing.
    pub cells: Vec<Vec<Option<f64>>>,
}

/// What to look at in a scenario if nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Suggestion {
    /// Of which scenario.
    pub scenario: &'static str,
    /// To the right.
    pub x: &'static str,
    /// Upwards.
    pub y: Option<&'static str>,
    /// Whose figure; the first arm's if it is not said.
    pub arm: Option<&'static str>,
    /// Which figure.
    pub of: &'static str,
}

/// Maps worth a look.
const SUGGESTIONS: &[Suggestion] = &[
    // The frontier of a metastable failure: how much is lost, for how long.
    Suggestion {
        scenario: "metastable",
        x: "lasts=250ms..6s:24",
        y: Some("lost=1..10:10"),
        arm: None,
        of: "served_at_end_percent",
    },
    Suggestion {
        scenario: "ttl-jitter",
        x: "jitter=0s..2m:13",
        y: None,
        arm: Some("each server, with jitter"),
        of: "peak_per_second",
    },
    Suggestion {
        scenario: "autoscale",
        x: "batch=1..50:8x",
        y: Some("gap=500ms..8s:6"),
        arm: Some("batches"),
        of: "user_max_ms",
    },
    Suggestion {
        scenario: "retry-storm",
        x: "outage=0s..10s:11",
        y: Some("pause=500ms..4s:8"),
        arm: None,
        of: "over_capacity_until_ms",
    },
];

impl Suggestion {
    /// What to look at in this scenario.
    pub fn of(scenario: &Scenario) -> Option<&'static Suggestion> {
        SUGGESTIONS.iter().find(|suggestion| suggestion.scenario == scenario.name)
    }
}

impl Axis {
    /// One of these knobs from one value to another, by a text such as `clients=10..1000`, `clients=10..1000:5` for five values,
    /// or `clients=10..1000:5x` for values that multiply.
    pub fn read(knobs: &[Knob], text: &str) -> Result<Axis, BadSweep> {
        let no_range = || BadSweep::NoRange(text.to_owned());
        let (name, range) = text.split_once('=').ok_or_else(no_range)?;
        let name = name.trim().replace('-', "_");
        let Some(knob) = knobs.iter().find(|knob| knob.name == name) else {
            let known: Vec<_> = knobs.iter().map(|knob| knob.name).collect();
            let nearest = nearest(&name, known.iter().copied());
            return Err(BadSweep::Setting(BadSetting::Unknown { name, nearest, known }));
        };
        let (from, rest) = range.split_once("..").ok_or_else(no_range)?;
        let (to, steps) = rest.split_once(':').map_or((rest, None), |(to, steps)| (to, Some(steps.trim())));
        let read = |text: &str| {
            let impossible = || BadSetting::Impossible { said: text.trim().to_owned(), knob: knob.clone() };
            knob.read(text.trim()).ok_or_else(|| BadSweep::Setting(impossible()))
        };
        let (from, to) = (read(from)?, read(to)?);
        if from >= to {
            return Err(BadSweep::Backwards { knob: knob.name, from, to });
        }
        let multiplied = steps.is_some_and(|steps| steps.ends_with('x'));
        let count = match steps.map(|steps| steps.trim_end_matches('x')) {
            None => STEPS,
            Some(steps) => steps
                .parse()
                .ok()
                .filter(|count| (2..=MOST_STEPS).contains(count))
                .ok_or_else(|| BadSweep::Steps(steps.to_owned()))?,
        };
        if multiplied && from.amount() <= 0.0 {
            return Err(BadSweep::FromNothing { knob: knob.name });
        }
        let said = format!("{}={from}..{to}:{count}{}", knob.name, if multiplied { "x" } else { "" });
        Ok(Axis { knob: knob.clone(), values: values(from, to, count, multiplied), said })
    }

    /// What it goes through.
    pub fn values(&self) -> &[Value] {
        &self.values
    }
}

/// Values from one to the other. Those between are round, and those that are the same once they are whole are one.
fn values(from: Value, to: Value, count: usize, multiplied: bool) -> Vec<Value> {
    let (a, b) = (from.amount(), to.amount());
    let between = |step: usize| {
        let part = step as f64 / (count - 1) as f64;
        let value = if multiplied { a * (b / a).powf(part) } else { a + (b - a) * part };
        from.like(round(value).clamp(a, b))
    };
    let mut values: Vec<Value> = (0..count)
        .map(|step| match step {
            0 => from,
            last if last + 1 == count => to,
            step => between(step),
        })
        .collect();
    values.dedup();
    values
}

/// To three digits.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most some hundreds")]
    let digits = 2 - value.abs().log10().floor() as i32;
    // Divided by a whole number where it can be: a tenth has no exact factor.
    if digits >= 0 {
        let factor = 10_f64.powi(digits);
        (value * factor).round() / factor
    } else {
        let factor = 10_f64.powi(-digits);
        (value / factor).round() * factor
    }
}

impl Value {
    /// How much it is: seconds, if it is a time.
    fn amount(self) -> f64 {
        match self {
            Value::Count(count) => count as f64,
            Value::Time(time) => time.as_secs_f64(),
            Value::Number(number) => number,
        }
    }

    /// So much of the same kind.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two counts")]
    fn like(self, amount: f64) -> Value {
        match self {
            Value::Count(_) => Value::Count(amount.round() as u64),
            Value::Time(_) => Value::Time(Duration::try_from_secs_f64(amount).unwrap_or_default()),
            Value::Number(_) => Value::Number(amount),
        }
    }
}

impl Sweep {
    /// Looks at a figure of an arm over these axes: the first arm and its first figure unless they are named. The scenario is run
    /// once, to see what there is.
    pub fn new(
        scenario: &'static Scenario,
        settings: &Settings,
        x: Axis,
        y: Option<Axis>,
        arm: Option<&str>,
        of: Option<&str>,
    ) -> Result<Sweep, BadSweep> {
        let is_set = |axis: &Axis| settings.is_set(axis.knob.name);
        if let Some(axis) = y.iter().find(|y| y.knob.name == x.knob.name) {
            return Err(BadSweep::Twice(axis.knob.name));
        }
        if let Some(axis) = y.iter().chain([&x]).find(|axis| is_set(axis)) {
            return Err(BadSweep::Twice(axis.knob.name));
        }
        let cells = x.values.len() * y.as_ref().map_or(1, |y| y.values.len());
        if cells > MOST_CELLS {
            return Err(BadSweep::TooMany(cells));
        }
        let settings = settings.bare();
        let arms = scenario.run(&settings).arms;
        let (arm, shown) = find_arm(scenario, &arms, arm)?;
        let figure = find_figure(shown, of)?;
        let arm_name = shown.name;
        Ok(Sweep { scenario, settings, x, y, arm, arm_name, figure })
    }

    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.x.values.len() * self.rows().len()
    }

    /// Runs every cell on so many seeds, on all processors. What was not begun when the watch was stopped is missing.
    pub fn run(&self, runs: usize, watch: &Watch) -> Map {
        let runs = runs.max(1);
        let settings: Vec<Settings> = self
            .rows()
            .iter()
            .flat_map(|y| self.x.values.iter().map(move |x| self.cell(*x, *y)))
            .flat_map(|cell| (0..runs as u64).map(move |next| cell.with_seed(cell.seed.wrapping_add(next))))
            .collect();
        let figures = watch.each(&settings, |settings| {
            self.scenario.run(settings).arms.get(self.arm).and_then(|arm| arm.figure(self.figure.key))
        });
        let median = |of_cell: &[Option<Option<f64>>]| {
            // A cell of which not every seed was run is not done.
            let values: Option<Vec<f64>> = of_cell.iter().map(|value| value.flatten()).collect();
            Spread::of(values?).map(|spread| spread.median).filter(|median| median.is_finite())
        };
        let cells: Vec<Option<f64>> = figures.chunks(runs).map(median).collect();
        Map {
            scenario: self.scenario.name,
            seed: self.settings.seed,
            runs,
            set: self.settings.changes(),
            arm: self.arm_name,
            figure: self.figure,
            x: self.x.clone(),
            y: self.y.clone(),
            cells: cells.chunks(self.x.values.len().max(1)).map(<[_]>::to_vec).collect(),
        }
    }

    /// The values of `y`; one row without it.
    fn rows(&self) -> Vec<Option<Value>> {
        self.y.as_ref().map_or(vec![None], |y| y.values.iter().copied().map(Some).collect())
    }

    fn cell(&self, x: Value, y: Option<Value>) -> Settings {
        let mut settings = self.settings.clone();
        settings.turn(&self.x.knob, x);
        if let Some((axis, y)) = self.y.as_ref().zip(y) {
            settings.turn(&axis.knob, y);
        }
        settings
    }
}

fn find_arm<'a>(scenario: &Scenario, arms: &'a [Arm], asked: Option<&str>) -> Result<(usize, &'a Arm), BadSweep> {
    let known: Vec<&'static str> = arms.iter().map(|arm| arm.name).collect();
    let places = asked.map_or(Ok(vec![0]), |asked| named(scenario.name, &known, asked)).map_err(BadSweep::NoArm)?;
    let first = places.first().and_then(|at| arms.get(*at).map(|arm| (*at, arm)));
    first.ok_or_else(|| BadSweep::NoArm(NoArm { scenario: scenario.name, asked: String::new(), known }))
}

fn find_figure(arm: &Arm, asked: Option<&str>) -> Result<Figure, BadSweep> {
    let is = |figure: &&Figure| asked.is_none_or(|asked| figure.key == asked || figure.title == asked);
    arm.figures.iter().find(is).copied().ok_or_else(|| {
        let known: Vec<_> = arm.figures.iter().map(|figure| figure.key).collect();
        let asked = asked.unwrap_or_default().to_owned();
        BadSweep::NoFigure { nearest: nearest(&asked, known.iter().copied()), asked, known }
    })
}

impl Map {
    /// Whether every cell was run; one whose figure is no number counts as if it was not.
    pub fn is_whole(&self) -> bool {
        self.cells.iter().flatten().all(Option::is_some)
    }

    /// The least and the most of all cells.
    pub fn range(&self) -> Option<(f64, f64)> {
        let values = || self.cells.iter().flatten().copied().flatten();
        let least = values().min_by(f64::total_cmp)?;
        Some((least, values().max_by(f64::total_cmp)?))
    }

    /// Where a cell is between the least, 0, and the most, 1.
    fn level(&self, value: f64) -> f64 {
        let (least, most) = self.range().unwrap_or((0.0, 0.0));
        // Where it is the same everywhere, that is all there is, or nothing.
        if most > least { (value - least) / (most - least) } else { f64::from(u8::from(value > 0.0)) }
    }

    /// Whether there is an edge between two neighbours: more than half of all that the map spans.
    fn is_edge(&self, a: Option<f64>, b: Option<f64>) -> bool {
        a.zip(b).is_some_and(|(a, b)| (self.level(a) - self.level(b)).abs() > 0.5)
    }

    /// After which column of this row there is an edge, the first.
    pub fn edge(&self, row: usize) -> Option<usize> {
        self.cells.get(row)?.windows(2).position(|pair| self.is_edge(pair[0], pair[1]))
    }

    /// The command that gives this map again.
    pub fn replay(&self) -> String {
        let y = self.y.as_ref().map(|y| format!(" --y {}", y.said)).unwrap_or_default();
        let set: String = self.set.iter().flat_map(|set| [" --set ", set]).collect();
        let runs = if self.runs > 1 { format!(" --runs {}", self.runs) } else { String::new() };
        format!(
            "herdproof lab sweep {} --x {}{y}{set}{} --of {} --seed {}{runs}",
            self.scenario,
            self.x.said,
            named::flag(self.arm),
            self.figure.key,
            self.seed
        )
    }
}

impl Serialize for Axis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            name: &'a str,
            values: Vec<String>,
        }
        let values = self.values.iter().map(ToString::to_string).collect();
        Shown { name: self.knob.name, values }.serialize(serializer)
    }
}

fn its_key<S: Serializer>(figure: &Figure, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(figure.key)
}

#[cfg(test)]
mod tests;
