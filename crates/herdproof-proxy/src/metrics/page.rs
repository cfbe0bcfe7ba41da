//! The text format of Prometheus.

use std::fmt::Write;

/// A page of metrics in the text format of Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page(String);

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
        self.head(name, help, "gauge");
        self.line(name, &[], value);
    }

    /// A number that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(name, &[], value);
    }

    /// Such numbers, one for each value of a label.
    pub fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, help, "counter");
        for (value, count) in values {
            self.line(name, &[(label, value)], count);
        }
    }

    /// Such numbers, one for each pair of values of two labels.
    pub fn pairs<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        values: impl IntoIterator<Item = ([&'a str; 2], u64)>,
    ) {
        self.head(name, help, "counter");
        for ([one, two], count) in values {
            self.line(name, &[(labels[0], one), (labels[1], two)], count);
        }
    }

    pub(super) fn histogram_head(&mut self, name: &str, help: &str) {
        self.head(name, help, "histogram");
    }

    /// A histogram: how many were in each of its buckets, of which the last has no bound.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        label: Option<(&str, &str)>,
        micros: &[u32],
        counts: &[u64],
        nanos: u64,
    ) {
        let mut below = 0;
        let bounds = micros.iter().map(|micros| (f64::from(*micros) / 1e6).to_string()).chain(["+Inf".to_owned()]);
        let (bucket, labels): (_, Vec<(&str, &str)>) = (format!("{name}_bucket"), label.into_iter().collect());
        for (bound, count) in bounds.zip(counts) {
            below += count;
            self.line(&bucket, &[&labels[..], &[("le", &bound)]].concat(), below);
        }
        self.line(&format!("{name}_sum"), &labels, nanos as f64 / 1e9);
        self.line(&format!("{name}_count"), &labels, below);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Strings take everything.
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.0, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' }).ok();
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").ok();
    }
}
