//! Why there is no such map, and what there could be.

use std::{error::Error, fmt};

use super::{MOST_CELLS, MOST_STEPS};
use crate::{
    knob::{BadSetting, Value},
    named::NoArm,
};

/// Why there is no such map.
#[derive(Clone, Debug, PartialEq)]
pub enum BadSweep {
    /// Not of the form `name=from..to`.
    NoRange(String),
    /// There is no such knob, or it cannot be that.
    Setting(BadSetting),
    /// Not a number of steps.
    Steps(String),
    /// Nothing lies between.
    Backwards {
        /// Of which knob.
        knob: &'static str,
        /// From there.
        from: Value,
        /// To here.
        to: Value,
    },
    /// Zero times anything is zero.
    FromNothing {
        /// Of which knob.
        knob: &'static str,
    },
    /// A parameter is asked to be two things.
    Twice(&'static str),
    /// More cells than anybody can look at.
    TooMany(usize),
    /// There is no such arm.
    NoArm(NoArm),
    /// There is no such figure.
    NoFigure {
        /// What was asked for.
        asked: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// Those that there are.
        known: Vec<&'static str>,
    },
}

impl fmt::Display for BadSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSweep::NoRange(text) => write!(
                f,
                "{text:?} is no range: it takes a name, from where, and to where, as in clients=10..1000; \
                 clients=10..1000:5 is five values, clients=10..1000:5x five that multiply"
            ),
            BadSweep::Setting(bad) => bad.fmt(f),
            BadSweep::Steps(said) => write!(
                f,
                "{said:?} is no number of steps: 2 to {MOST_STEPS}, as in clients=10..1000:5, or :5x for values that multiply"
            ),
            BadSweep::Backwards { knob, from, to } => {
                write!(f, "{knob}={from}..{to} goes nowhere: the first value has to be below the last")
            }
            BadSweep::FromNothing { knob } => {
                write!(f, "{knob} cannot begin with zero if its values multiply: begin above it, or leave out the x")
            }
            BadSweep::Twice(knob) => {
                write!(f, "{knob} cannot be two things: it is on one axis, or on the other, or set")
            }
            BadSweep::TooMany(cells) => {
                write!(f, "{cells} cells are too many: {MOST_CELLS} at most, such as 100 by 100; take fewer steps")
            }
            BadSweep::NoArm(unknown) => unknown.fmt(f),
            BadSweep::NoFigure { asked, nearest, known } => {
                write!(f, "there is no figure called {asked:?}")?;
                if let Some(nearest) = nearest {
                    write!(f, "; did you mean {nearest:?}?")?;
                }
                write!(f, "; there are {}", known.join(", "))
            }
        }
    }
}

impl Error for BadSweep {}
