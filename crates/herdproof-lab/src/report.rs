//! What a run says, for a person and for a script.

mod text;

use std::fmt::{Debug, Display};

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
    /// Calls that reached the origin.
    pub calls: u64,
    /// The most calls within one millisecond.
    pub peak_per_ms: u64,
    /// The most calls within one millisecond that is not the first.
    pub peak_after_first_ms: u64,
    /// When the last call was, in whole milliseconds.
    pub last_call_ms: f64,
    /// When the last client was done.
    pub end_ms: f64,
    /// How long a client waited in all, on average.
    pub mean_wait_ms: f64,
    /// What the calls look like over time.
    pub shape: Shape,
    /// The calls over time.
    #[serde(rename = "calls_per_ms", serialize_with = "counts")]
    pub timeline: Timeline,
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
}

impl Report {
    /// Whether every claim holds.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }
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
                checks: vec![Check::equal(Source::Article, "fine", &1, &1), check],
                summary: String::new(),
            };
            assert!(!report.passed());
        }
        assert!(Check::within(Source::Published, "mean", 155.0, 1.0, 155.9).passed);
    }
}
