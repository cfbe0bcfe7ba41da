//! The comparison on a terminal: two rows, the wall, the crowd that waits, and a sentence.

use std::{fmt, time::Duration};

use super::{Comparison, LAW, Outcome, PATIENCE, SPREAD};
use crate::{
    picture::{HEIGHT, WIDTH, axis, picture},
    timeline::Timeline,
};

/// Plain text, with the pictures of both ways on one common scale.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "demo: clients {}, all starting within {SPREAD:?}, patience {PATIENCE:?}, origin {LAW}, seed {}\n",
            self.demo.clients, self.demo.seed
        )?;
        writeln!(
            f,
            "{:<16} {:>15} {:>14} {:>11} {:>11} {:>7}",
            "", "origin requests", "peak in flight", "p50", "p99", "errors"
        )?;
        let ways = [("without", &self.without), ("with herdproof", &self.with)];
        let end = ways.iter().map(|(_, outcome)| outcome.answers.end()).max().unwrap_or_default();
        let crowd = u64::from(self.demo.clients);
        for (name, outcome) in ways {
            let [p50, p99] = [outcome.p50, outcome.p99].map(|time| time.map_or("-".into(), millis));
            let Outcome { origin_requests, peak_in_flight, errors, .. } = outcome;
            writeln!(f, "{name:<16} {origin_requests:>15} {peak_in_flight:>14} {p50:>11} {p99:>11} {errors:>7}")?;
            if let Some(error) = &outcome.first_error {
                writeln!(f, "  first error: {error}")?;
            }
            writeln!(f, "  requests at the origin")?;
            let columns = outcome.arrivals.columns(end, WIDTH);
            f.write_str(&picture(&columns, crowd, HEIGHT, note(&outcome.arrivals, end)))?;
            writeln!(f, "  clients waiting")?;
            f.write_str(&picture(&outcome.answers.waiting(end, WIDTH), crowd, HEIGHT, ""))?;
        }
        let column = end.as_secs_f64() * 1e3 / WIDTH as f64;
        f.write_str(&axis("0 ms", &format!("{:.0} ms", end.as_secs_f64() * 1e3)))?;
        writeln!(f, "  (a full column is {crowd}; a column is {column:.1} ms)\n")?;
        writeln!(f, "Summary: {}", self.summary)
    }
}

/// What to call it when all come within a tenth of the time.
fn note(arrivals: &Timeline, end: Duration) -> &'static str {
    match arrivals.total() {
        1 => "one request",
        2.. if arrivals.end() <= end / 10 => "a wall",
        _ => "",
    }
}

/// The result in a sentence, whatever it is.
pub(super) fn summary(without: &Outcome, with: &Outcome) -> String {
    let requests = match (without.origin_requests, with.origin_requests) {
        (many, few) if few > 0 && few < many => {
            format!("herdproof made {} times fewer origin requests ({few} instead of {many})", ratio(many, few))
        }
        (before, after) => format!("herdproof made {after} origin requests, no fewer than the {before} without"),
    };
    let waiting = match (without.p99, with.p99) {
        (Some(slow), Some(fast)) if fast < slow && !fast.is_zero() => {
            let times = ratio(slow.as_nanos(), fast.as_nanos());
            format!(", and p99 {times} times lower ({} instead of {})", millis(fast), millis(slow))
        }
        (Some(before), Some(after)) => format!(", and p99 was {} instead of {}", millis(after), millis(before)),
        _ => String::new(),
    };
    let errors = match (without.errors, with.errors) {
        (0, 0) => String::new(),
        (before, after) => format!(", with {after} errors instead of {before}"),
    };
    format!("{requests}{waiting}{errors}.")
}

/// How many times one number is the other, in as many digits as matter.
fn ratio<T: TryInto<u64>>(more: T, less: T) -> String {
    let [more, less] = [more, less].map(|number| number.try_into().unwrap_or(u64::MAX) as f64);
    let times = more / less;
    if times < 10.0 { format!("{times:.1}") } else { format!("{times:.0}") }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
