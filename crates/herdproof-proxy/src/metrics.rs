//! placeholder
use std::fmt::Write;

/// A page of metrics in the text format of Prometheus.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// x
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    /// x
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }
    /// x
    pub fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} counter");
        for (value, count) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} {count}");
        }
    }
}
