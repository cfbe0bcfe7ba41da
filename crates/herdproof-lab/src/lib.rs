//! Every kind of thundering herd as an experiment that anyone can run.
//!
//! A remedy that is only described has to be believed. A [`Scenario`] shows it: a naive arm, one arm for each remedy, and
//! checks against the numbers that articles and papers claim. Only the outside world is modelled (origin, network,
//! users); what the clients do is the real library, in virtual time, so the same seed gives the same report to the byte.
//!
//! ```
//! use herdproof_lab::{Settings, find};
//!
//! let report = find("retry-wall").expect("it is in the catalogue").run(&Settings::new(42));
//! assert!(report.passed());
//! assert_eq!(report.arms[0].figure("calls"), Some(500.0));
//! ```

mod arrivals;
mod ask;
mod crowd;
mod demo;
mod knob;
mod log;
mod look;
mod named;
mod nearest;
mod network;
mod origin;
mod page;
mod picture;
pub mod real;
mod report;
mod runs;
mod scenario;
mod service;
mod slowdown;
mod sweep;
mod table;
mod timeline;
mod tries;
mod verify;

pub use arrivals::poisson;
pub use ask::{Answer, Decided, LeftOut, Question, left_out, questions};
pub use demo::{Comparison, Demo, Outcome, Way};
pub use knob::{ArmsDone, BadSetting, Knob, Settings, Value};
pub use log::{Log, LogLine, NoLog};
pub use named::NoArm;
pub use origin::Origin;
pub use report::{Arm, Check, Edge, Figure, Lane, Mark, Measured, Page, Parameter, Report, Source, Steps, Waits};
pub use runs::{Held, Runs, RunsPage, SURE, Spread, Watch};
pub use scenario::{Scenario, UnknownScenario, all, find};
pub use service::{Plan, Seen, Service, Times, Unserved};
pub use slowdown::Slowdown;
pub use sweep::{Axis, BadSweep, Map, MapPage, Paint, Suggestion, Sweep};
pub use table::{Cell, Evidence, Property, Row, Side, Table, TablePage, table, table_runs};
pub use timeline::{Shape, Timeline};
pub use verify::{Cited, SEEDS, Verification, Verified, verify};
