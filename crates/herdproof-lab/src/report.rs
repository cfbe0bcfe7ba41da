//! What a run says, for a person and for a script.

mod text;

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use serde::Serialize;

use crate::timeline::{Shape, Timeline};

/// The result of one run of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which scenario it was.
    pub scenario: &'static str,
    /// What everything random followed from.
    pub seed: u64,
    /// Every number that was put in.
    pub parameters: Vec<Parameter>,
    /// What each arm did, the naive one first.
    pub arms: Vec<Arm>,
    /// How much time the pictures show at least.
    #[serde(skip)]
    pub span: Duration,
    /// What was claimed, and what came out.
    pub checks: Vec<Check>,
    /// The result in a sentence.
    pub summary: String,
}

/// A number that was put in.
#[derive(Clone, Debug, Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: &'static str,
    /// What it was.
    pub value: String,
}

/// One way of doing it: without a remedy, or with one.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    /// What it is called.
    pub name: &'static str,
    /// What was measured; every arm of a report has the same figures in the same order.
    #[serde(flatten, serialize_with = "by_name")]
    pub figures: Vec<Figure>,
    /// What the calls look like over time.
    pub shape: Shape,
    /// The calls over time.
    #[serde(rename = "calls_per_bin", serialize_with = "counts")]
    pub timeline: Timeline,
}

/// One thing that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its key in JSON; its unit is its last word.
    pub key: &'static str,
    /// The head of its column.
    pub title: &'static str,
    /// How much.
    pub value: Measured,
}

/// A measured value, with what it takes to print it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// A number of things.
    Count(u64),
    /// Milliseconds.
    Millis(f64),
    /// A ratio, a rate, a share: read to two digits.
    Number(f64),
}

/// Something that was claimed, put to the test.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Who claims it.
    pub source: Source,
    /// What is claimed.
    pub what: String,
    /// What should come out.
    pub expected: String,
    /// What came out.
    pub got: String,
    /// Whether the claim holds.
    pub passed: bool,
}

/// Where a claim comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// One of the articles that the lab reproduces.
    Article,
    /// Arithmetic.
    Formula,
    /// A measurement that others have published.
    Published,
    /// What this library promises.
    Promise,
}

impl Report {
    /// Whether every claim holds.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }
}

impl Arm {
    /// An arm with these figures and calls.
    pub fn new(name: &'static str, figures: Vec<Figure>, timeline: Timeline) -> Arm {
        Arm { name, figures, shape: timeline.shape(), timeline }
    }

    /// The figure under this key.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.key == key).map(|figure| match figure.value {
            Measured::Count(count) => count as f64,
            Measured::Millis(value) | Measured::Number(value) => value,
        })
    }
}

impl Figure {
    /// A number of things.
    pub fn count(key: &'static str, title: &'static str, count: u64) -> Figure {
        Figure { key, title, value: Measured::Count(count) }
    }

    /// A ratio, a rate, a share.
    pub fn number(key: &'static str, title: &'static str, number: f64) -> Figure {
        Figure { key, title, value: Measured::Number(number) }
    }

    /// A time.
    pub fn time(key: &'static str, title: &'static str, time: Duration) -> Figure {
        Figure { key, title, value: Measured::Millis(millis(time)) }
    }
}

/// Milliseconds, to the nanosecond.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

impl Parameter {
    /// A number under its name.
    pub fn new(name: &'static str, value: impl Display) -> Parameter {
        Parameter { name, value: value.to_string() }
    }
}

impl Check {
    /// Claims exactly this.
    pub fn equal<T: PartialEq + Debug>(source: Source, what: impl Into<String>, expected: &T, got: &T) -> Check {
        let passed = expected == got;
        Check { source, what: what.into(), expected: format!("{expected:?}"), got: format!("{got:?}"), passed }
    }

    /// Claims at least this much.
    pub fn at_least(source: Source, what: impl Into<String>, least: f64, got: f64) -> Check {
        Check { source, what: what.into(), expected: format!(">= {least}"), got: got.to_string(), passed: got >= least }
    }

    /// Claims at most this much.
    pub fn at_most(source: Source, what: impl Into<String>, most: f64, got: f64) -> Check {
        Check { source, what: what.into(), expected: format!("<= {most}"), got: got.to_string(), passed: got <= most }
    }

    /// Claims this value, give or take an error.
    pub fn within(source: Source, what: impl Into<String>, expected: f64, error: f64, got: f64) -> Check {
        Check {
            source,
            what: what.into(),
            expected: format!("{expected} +- {error:.2}"),
            got: format!("{got:.2}"),
            passed: (got - expected).abs() <= error,
        }
    }
}

fn by_name<S: serde::Serializer>(figures: &[Figure], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(figures.iter().map(|figure| (figure.key, figure.value)))
}

fn counts<S: serde::Serializer>(timeline: &Timeline, serializer: S) -> Result<S::Ok, S::Error> {
    timeline.counts().serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_does_not_hold_fails_the_report() {
        let claims = [
            Check::equal(Source::Article, "calls", &500, &499),
            Check::at_least(Source::Formula, "inside", 180.0, 179.0),
            Check::at_most(Source::Formula, "peak", 40.0, 41.0),
            Check::within(Source::Published, "mean", 155.0, 1.0, 156.5),
            Check::within(Source::Published, "mean", 155.0, 1.0, f64::NAN),
        ];
        for check in claims {
            assert!(!check.passed, "{check:?}");
            let report = Report {
                scenario: "x",
                seed: 1,
                parameters: vec![],
                arms: vec![],
                span: Duration::ZERO,
                checks: vec![Check::equal(Source::Article, "fine", &1, &1), check],
                summary: String::new(),
            };
            assert!(!report.passed());
        }
        assert!(Check::within(Source::Published, "mean", 155.0, 1.0, 155.9).passed);
    }
}
