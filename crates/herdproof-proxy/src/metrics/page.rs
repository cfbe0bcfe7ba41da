//! The text format of Prometheus.

use std::fmt::{Display, Write};

use super::histogram::{Sum, View};

/// A page of metrics in the text format of Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page(String);

/// The samples of one metric, each with labels of its own.
pub(crate) struct Family<'a> {
    page: &'a mut Page,
    name: &'a str,
}

impl Page {
    /// What can be sent.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The same, given away.
    pub fn into_text(self) -> String {
        self.0
    }

    /// A number that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help).sample(&[], value);
    }

    /// A number that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help, "counter").sample(&[], value);
    }

    /// Such numbers, one for each value of a label.
    pub fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let mut family = self.family(name, help, "counter");
        for (value, count) in values {
            family.sample(&[(label, value)], count);
        }
    }

    pub(crate) fn gauges<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, help, "gauge")
    }

    pub(crate) fn labelled<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, help, "counter")
    }

    pub(crate) fn histograms<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, help, "histogram")
    }

    fn family<'a>(&'a mut self, name: &'a str, help: &str, kind: &str) -> Family<'a> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Strings take everything.
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
        Family { page: self, name }
    }
}

impl Family<'_> {
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, value);
    }

    /// With all bounds there are.
    pub(crate) fn fine(&mut self, labels: &[(&str, &str)], sum: &Sum) {
        self.histogram(labels, View::Fine, sum);
    }

    /// With the bounds of OpenTelemetry's semantic convention.
    pub(crate) fn conventional(&mut self, labels: &[(&str, &str)], sum: &Sum) {
        self.histogram(labels, View::Convention, sum);
    }

    fn histogram(&mut self, labels: &[(&str, &str)], view: View, sum: &Sum) {
        for (bound, count) in sum.buckets(view) {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            self.line("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        self.line("_sum", labels, sum.seconds());
        self.line("_count", labels, sum.total());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let out = &mut self.page.0;
        out.push_str(self.name);
        out.push_str(suffix);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(out, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' }).ok();
        }
        if !labels.is_empty() {
            out.push('}');
        }
        writeln!(out, " {value}").ok();
    }
}
