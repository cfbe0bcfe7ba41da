//! What a run says, for a person and for a script.

mod chapter;
mod html;
mod plot;
mod text;
mod waits;

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use serde::Serialize;

use crate::{
    named::{self, NoArm, named},
    timeline::{Shape, Timeline},
};

/// A time in a sentence is written as it is set.
pub(crate) use herdproof_proxy::settings::show_time as say;
pub use html::Page;
pub use waits::Waits;

/// The result of one run of a scenario.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Which scenario it was.
    pub scenario: &'static str,
    /// What everything random followed from.
    pub seed: u64,
    /// Every number that was put in.
    pub parameters: Vec<Parameter>,
    /// Those that are not as they are in the catalogue, as they are set. Claims need not hold then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// What each arm did, the naive one first.
    pub arms: Vec<Arm>,
    /// How much time the pictures show at least.
    #[serde(skip)]
    pub span: Duration,
    /// What the pictures are over, where that is not time.
    #[serde(rename = "bins", skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// What happened when, beside what is counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// What was claimed, and what came out.
    pub checks: Vec<Check>,
    /// The result in a sentence.
    pub summary: String,
    /// Which arms were asked for; all, if none was.
    #[serde(skip)]
    pub(crate) asked: Vec<&'static str>,
}

/// A number that was put in.
#[derive(Clone, Debug, Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: &'static str,
    /// What it was.
    pub value: String,
}

/// What the bins of a picture are, where they are not calls over time: bin `n`, from one, is at `n` steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// What is counted.
    pub shows: &'static str,
    /// What it is over.
    pub over: &'static str,
    /// How far it is from one bin to the next.
    pub step: f64,
}

/// Something that happened in all arms at the same time: an outage, a deploy, an expiry.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// When.
    #[serde(rename = "at_ms", serialize_with = "in_millis")]
    pub at: Duration,
    /// What.
    pub what: &'static str,
}

/// One way of doing it: without a remedy, or with one.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    /// What it is called.
    pub name: &'static str,
    /// The samples of the articles that it does as they do (`C7`); none where it is nobody's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<&'static str>,
    /// What was measured; every arm of a report has the same figures in the same order.
    #[serde(flatten, serialize_with = "by_name")]
    pub figures: Vec<Figure>,
    /// What the calls look like over time.
    pub shape: Shape,
    /// The calls over time.
    #[serde(rename = "calls_per_bin", serialize_with = "counts")]
    pub timeline: Timeline,
    /// The layers that a herd went through, each with its own calls; none where there is only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<Lane>,
    /// The same calls apart: first tries, second ones, and so on, and last all later ones. None where nobody tries again.
    #[serde(rename = "calls_per_bin_by_try", skip_serializing_if = "Vec::is_empty", serialize_with = "all_counts")]
    pub tries: Vec<Timeline>,
    /// How long callers waited.
    #[serde(rename = "waits_ms", skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// How many calls went from each to the next on the way to the origin; none where there is one only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<Edge>,
}

/// The calls from one to another, in an arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// From whom to whom; every arm of a report has the same edges in the same order.
    pub name: String,
    /// How many.
    pub calls: u64,
}

/// How many tries of one caller are told apart; the last of them are all later ones.
pub(crate) const TRIES: usize = 6;

/// The calls at one of several layers.
#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    /// Which layer it is; every arm of a report has the same lanes in the same order.
    pub name: &'static str,
    /// Its calls over time.
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
    /// Where it is written: a number, a herd, a technique or a sample of the articles (`N1`, `H3`, `T9`, `C7`), or what was
    /// published elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cites: Vec<&'static str>,
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
    /// Whether every claim holds. Claims are about the parameters as they are in the catalogue: with others, there are none.
    pub fn passed(&self) -> bool {
        self.is_changed() || self.checks.iter().all(|check| check.passed)
    }

    /// Whether it was run with other parameters than those of the catalogue.
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The report with the arms that are meant by these names; with all, if there are none. The checks compare all.
    pub fn only(mut self, asked: &[impl AsRef<str>]) -> Result<Report, NoArm> {
        let known: Vec<&'static str> = self.arms.iter().map(|arm| arm.name).collect();
        let mut places = Vec::new();
        for asked in asked {
            places.extend(named(self.scenario, &known, asked.as_ref())?);
        }
        if !asked.is_empty() {
            let mut place = 0..;
            self.arms.retain(|_| place.next().is_some_and(|place| places.contains(&place)));
            self.asked = self.arms.iter().map(|arm| arm.name).collect();
        }
        Ok(self)
    }

    /// It as a page of its own: one file that needs nothing else.
    pub fn page(&self) -> Page<'_> {
        Page(self)
    }

    /// The command that gives this report again.
    pub fn replay(&self) -> String {
        let set = self.changed.iter().flat_map(|set| [" --set ", set]).collect::<String>();
        let arms: String = self.asked.iter().map(|name| named::flag(name)).collect();
        format!("herdproof lab run {}{set}{arms} --seed {}", self.scenario, self.seed)
    }

    /// Each arm's lanes in so many columns; those of steps are as wide as they come out.
    fn pictures(&self, width: usize) -> Vec<Vec<(&'static str, Vec<u64>)>> {
        let end = self.end();
        let stretched =
            |counts: &[u64]| (0..width).filter_map(|at| counts.get(at * counts.len() / width).copied()).collect();
        let columns = |timeline: &Timeline| match self.steps {
            None => timeline.columns(end, width),
            Some(_) => stretched(timeline.counts()),
        };
        let lanes = |arm: &Arm| arm.shown().into_iter().map(|(name, timeline)| (name, columns(timeline))).collect();
        self.arms.iter().map(lanes).collect()
    }

    /// The same, as wide as its bins and no wider than that.
    fn pictures_within(&self, most: usize) -> Vec<Vec<(&'static str, Vec<u64>)>> {
        let end = self.end().max(Duration::from_nanos(1));
        let bins = self.arms.iter().flat_map(Arm::shown).map(|(_, timeline)| timeline.bins(end)).max();
        self.pictures(most.min(bins.unwrap_or(1)).max(1))
    }

    /// Each arm's calls by try, in so many columns; nothing for an arm without, and where the pictures are not those of its calls.
    fn tries(&self, width: usize) -> Vec<Vec<Vec<u64>>> {
        let end = self.end().max(Duration::from_nanos(1));
        let shown = |arm: &Arm| self.steps.is_none() && arm.lanes.is_empty();
        let columns = |arm: &Arm| arm.tries.iter().map(|tries| tries.columns(end, width)).collect();
        self.arms.iter().map(|arm| if shown(arm) { columns(arm) } else { Vec::new() }).collect()
    }

    /// What the tries of an arm are called, as far as there are any.
    fn names_of_tries(&self) -> impl Iterator<Item = (usize, &'static str)> {
        const NAMES: [&str; TRIES] = ["first tries", "second", "third", "fourth", "fifth", "later"];
        let most = self.arms.iter().map(|arm| arm.tries.len()).max().unwrap_or(0);
        NAMES.into_iter().enumerate().take(most)
    }

    /// What the pictures show.
    fn caption(&self) -> String {
        match self.steps {
            None if self.arms.iter().any(|arm| !arm.lanes.is_empty()) => "Calls at each layer over time".into(),
            None => "Calls at the origin over time".into(),
            Some(Steps { shows, over, .. }) => format!("{shows} over {over}"),
        }
    }

    /// The words of their axis, each at its share of the width.
    fn words(&self, columns: usize) -> Vec<(f64, String)> {
        let end = self.end().max(Duration::from_nanos(1));
        match self.steps {
            None => html::ticks(end).into_iter().map(|tick| (millis(tick) / millis(end), html::said(tick))).collect(),
            // In the middle of the bar.
            Some(Steps { step, .. }) => (0..columns)
                .map(|nth| ((nth as f64 + 0.5) / columns as f64, (step * (nth + 1) as f64).to_string()))
                .collect(),
        }
    }

    /// When the pictures end.
    fn end(&self) -> Duration {
        let shown = self.arms.iter().flat_map(Arm::shown);
        shown.map(|(_, timeline)| timeline.end()).max().unwrap_or_default().max(self.span)
    }
}

/// What fills a lane's picture: the most in one of its columns, over all arms.
fn tops(pictures: &[Vec<(&'static str, Vec<u64>)>]) -> Vec<u64> {
    let lanes = pictures.iter().map(Vec::len).max().unwrap_or(0);
    let columns =
        |lane: usize| pictures.iter().filter_map(move |lanes| lanes.get(lane)).flat_map(|(_, columns)| columns);
    (0..lanes).map(|lane| columns(lane).copied().max().unwrap_or(1).max(1)).collect()
}

impl Arm {
    /// An arm with these figures and calls.
    pub fn new(name: &'static str, figures: Vec<Figure>, timeline: Timeline) -> Arm {
        Arm {
            name,
            samples: Vec::new(),
            figures,
            shape: timeline.shape(),
            timeline,
            lanes: Vec::new(),
            tries: Vec::new(),
            waits: None,
            edges: Vec::new(),
        }
    }

    /// With its calls apart by which try they were; if there were first ones only, that is nothing to show.
    #[must_use]
    pub fn tries(mut self, tries: Vec<Timeline>) -> Arm {
        self.tries = if tries.len() > 1 { tries } else { Vec::new() };
        self
    }

    /// With how long its callers waited, if that is known.
    #[must_use]
    pub fn waits(mut self, waits: Option<Waits>) -> Arm {
        self.waits = waits;
        self
    }

    /// With the calls from each to the next.
    #[must_use]
    pub fn edges(mut self, edges: Vec<Edge>) -> Arm {
        self.edges = edges;
        self
    }

    /// As one of the articles' samples does it.
    #[must_use]
    pub fn sample(mut self, sample: &'static str) -> Arm {
        self.samples.push(sample);
        self
    }

    /// Its name, and whose samples it shows: `mutex per key (C7)`.
    pub fn title(&self) -> String {
        if self.samples.is_empty() {
            self.name.to_owned()
        } else {
            format!("{} ({})", self.name, self.samples.join(", "))
        }
    }

    /// With the layers it went through, which are shown one above another instead of the calls.
    #[must_use]
    pub fn lanes(mut self, lanes: Vec<Lane>) -> Arm {
        self.lanes = lanes;
        self
    }

    /// What its picture shows: its lanes, or its calls.
    fn shown(&self) -> Vec<(&'static str, &Timeline)> {
        if self.lanes.is_empty() {
            return vec![("", &self.timeline)];
        }
        self.lanes.iter().map(|lane| (lane.name, &lane.timeline)).collect()
    }

    /// The figure under this key.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.key == key).map(|figure| figure.value.value())
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

impl Measured {
    /// How much it is, in its own unit.
    pub fn value(self) -> f64 {
        match self {
            Measured::Count(count) => count as f64,
            Measured::Millis(value) | Measured::Number(value) => value,
        }
    }

    /// A value of the same kind, as it is printed.
    pub fn show(self, value: f64) -> String {
        match self {
            Measured::Count(_) if value.fract() == 0.0 => format!("{value:.0}"),
            // A median of counts may lie between two of them.
            Measured::Count(_) => format!("{value:.1}"),
            Measured::Number(_) => format!("{value:.2}"),
            Measured::Millis(_) => format!("{value:.1} ms"),
        }
    }
}

impl Parameter {
    /// A number under its name.
    pub fn new(name: &'static str, value: impl Display) -> Parameter {
        Parameter { name, value: value.to_string() }
    }
}

impl Source {
    /// What one would call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Article => "article",
            Source::Formula => "formula",
            Source::Published => "published",
            Source::Promise => "promise",
        }
    }
}

/// A number as one would write it: whole, or to four digits that count.
fn short(number: f64) -> String {
    if number.fract() == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from nought to twelve")]
    let decimals = (3.0 - number.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let digits = format!("{number:.decimals$}");
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.').to_owned() } else { digits }
}

impl Check {
    /// Claims exactly this.
    pub fn equal<T: PartialEq + Debug>(source: Source, what: impl Into<String>, expected: &T, got: &T) -> Check {
        Check::new(source, what, format!("{expected:?}"), format!("{got:?}"), expected == got)
    }

    /// Claims at least this much.
    pub fn at_least(source: Source, what: impl Into<String>, least: f64, got: f64) -> Check {
        Check::new(source, what, format!(">= {}", short(least)), short(got), got >= least)
    }

    /// Claims at most this much.
    pub fn at_most(source: Source, what: impl Into<String>, most: f64, got: f64) -> Check {
        Check::new(source, what, format!("<= {}", short(most)), short(got), got <= most)
    }

    /// Claims this value, give or take an error.
    pub fn within(source: Source, what: impl Into<String>, expected: f64, error: f64, got: f64) -> Check {
        let passed = (got - expected).abs() <= error;
        Check::new(source, what, format!("{expected} +- {error:.2}"), format!("{got:.2}"), passed)
    }

    /// Says where the claim is written.
    #[must_use]
    pub fn cites(mut self, what: &'static str) -> Check {
        self.cites.push(what);
        self
    }

    fn new(source: Source, what: impl Into<String>, expected: String, got: String, passed: bool) -> Check {
        Check { source, what: what.into(), expected, got, passed, cites: Vec::new() }
    }
}

/// A small number as a word: `three`.
pub(crate) fn spell(count: u64) -> String {
    let words =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    usize::try_from(count).ok().and_then(|count| words.get(count)).map_or(count.to_string(), |word| (*word).to_owned())
}

fn in_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(millis(*time))
}

fn by_name<S: serde::Serializer>(figures: &[Figure], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(figures.iter().map(|figure| (figure.key, figure.value)))
}

fn counts<S: serde::Serializer>(timeline: &Timeline, serializer: S) -> Result<S::Ok, S::Error> {
    timeline.counts().serialize(serializer)
}

fn all_counts<S: serde::Serializer>(timelines: &[Timeline], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(timelines.iter().map(Timeline::counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_count_and_whole_ones_all_of_theirs() {
        let shown =
            [0.0, 12_426.0, 1.612_645_249, 0.1, 123.456, 98_765.4, 0.000_012_345, -2.5, f64::INFINITY].map(short);
        assert_eq!(shown, ["0", "12426", "1.613", "0.1", "123.5", "98765", "0.00001234", "-2.5", "inf"]);
    }

    #[test]
    fn a_picture_over_steps_fills_its_width_and_says_what_it_is_over() {
        let arm = Arm::new("naive", vec![], Timeline::of(Duration::from_secs(1), vec![7, 3]));
        let steps = Some(Steps { shows: "answers", over: "load", step: 0.5 });
        let report = Report { arms: vec![arm], steps, ..Report::default() };
        let columns = |width| report.pictures(width).remove(0).remove(0).1;
        assert_eq!((columns(5), columns(2)), (vec![7, 7, 7, 3, 3], vec![7, 3]));
        let (text, page) = (report.to_string(), report.page().to_string());
        assert!(text.contains("answers over load; a full column is 7") && !text.contains(" ms"), "{text}");
        assert!(page.contains("answers over load") && page.contains("7 at 0.5") && page.contains("3 at 1<"), "{page}");
    }

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
            let report =
                Report { checks: vec![Check::equal(Source::Article, "fine", &1, &1), check], ..Report::default() };
            assert!(!report.passed());
        }
        assert!(Check::within(Source::Published, "mean", 155.0, 1.0, 155.9).passed);
    }
}
