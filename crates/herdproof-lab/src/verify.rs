//! Every claim, on many seeds.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{
    knob::Settings,
    report::{Check, Report, Source},
    runs::Watch,
    scenario::Scenario,
};

/// On how many seeds a claim has to hold: 0 and those that follow.
pub const SEEDS: u64 = 20;

/// How all claims came out.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Each of them, in the order of the catalogue.
    pub checks: Vec<Verified>,
    /// Scenarios that were not run on every seed, because it was stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<&'static str>,
}

/// How one claim came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The scenario, and what is claimed.
    pub name: String,
    /// Who claims it, and where.
    pub source: Cited,
    /// What should come out, with its tolerance.
    pub expected: String,
    /// What came out: for every seed, or for the first on which it did not hold.
    pub measured: String,
    /// Whether it held on every seed.
    pub passed: bool,
}

/// Who claims something, and where it is written: `article N1`.
#[derive(Clone, PartialEq, Eq)]
pub struct Cited {
    /// Who.
    pub source: Source,
    /// Where, as far as that has a name.
    pub cites: Vec<&'static str>,
}

/// Runs each of these scenarios on each seed: so often [`SEEDS`] runs as there are scenarios.
pub fn verify(scenarios: &[&Scenario], watch: &Watch) -> Verification {
    let trials: Vec<(&Scenario, u64)> =
        scenarios.iter().flat_map(|scenario| (0..SEEDS).map(move |seed| (*scenario, seed))).collect();
    let mut reports = watch.each(&trials, |(scenario, seed)| scenario.run(&Settings::new(*seed))).into_iter();
    let mut verification = Verification { checks: Vec::new(), unfinished: Vec::new() };
    for scenario in scenarios {
        // All are taken, also of a scenario that was not finished.
        let reports: Vec<Option<Report>> = (0..SEEDS).map(|_| reports.next().flatten()).collect();
        match reports.into_iter().collect::<Option<Vec<Report>>>() {
            Some(reports) => verification.checks.extend(claims(scenario.name, &reports)),
            None => verification.unfinished.push(scenario.name),
        }
    }
    verification
}

/// The claims of one scenario over its reports.
fn claims(name: &str, reports: &[Report]) -> Vec<Verified> {
    let Some(first) = reports.first() else { return Vec::new() };
    let claim = |at: usize| {
        let of_each = || reports.iter().filter_map(|report| report.checks.get(at).map(|check| (report.seed, check)));
        let shown = &first.checks[at];
        let failed = of_each().find(|(_, check)| !check.passed);
        let measured = match failed {
            Some((seed, check)) => format!("{} (seed {seed})", check.got),
            None => range(&of_each().map(|(_, check)| check.got.as_str()).collect::<Vec<_>>()),
        };
        let expected = failed.map_or(&shown.expected, |(_, check)| &check.expected).clone();
        Verified {
            name: format!("{name}: {}", shown.what),
            source: Cited::of(shown),
            expected,
            measured,
            passed: failed.is_none(),
        }
    };
    (0..first.checks.len()).map(claim).collect()
}

/// What was the same for all, or from where to where it goes.
fn range(got: &[&str]) -> String {
    let numbers: Option<Vec<f64>> = got.iter().map(|text| text.parse().ok()).collect();
    match (got, numbers) {
        ([first, rest @ ..], _) if rest.iter().all(|other| other == first) => (*first).to_owned(),
        (_, Some(numbers)) => {
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("{least} to {most}")
        }
        ([first, ..], None) => format!("{first}, and others"),
        ([], _) => String::new(),
    }
}

impl Cited {
    fn of(check: &Check) -> Cited {
        Cited { source: check.source, cites: check.cites.clone() }
    }
}

impl fmt::Display for Cited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.as_str())?;
        self.cites.iter().try_for_each(|cited| write!(f, " {cited}"))
    }
}

/// As it is read, since that is what reports show.
impl fmt::Debug for Cited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Cited {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Verification {
    /// Whether every claim held on every seed.
    pub fn passed(&self) -> bool {
        self.unfinished.is_empty() && self.checks.iter().all(|check| check.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arm, all, find};

    fn report(seed: u64, checks: Vec<Check>) -> Report {
        Report { seed, checks, ..Report::default() }
    }

    #[test]
    fn one_seed_on_which_a_claim_fails_is_enough_and_is_named() {
        let check = |got: f64| vec![Check::at_most(Source::Formula, "peak", 40.0, got)];
        let verified = claims("x", &[report(0, check(12.0)), report(1, check(41.0)), report(2, check(13.5))]);
        assert_eq!(verified.len(), 1);
        assert_eq!((verified[0].passed, &*verified[0].measured), (false, "41 (seed 1)"));
        let verified = claims("x", &[report(0, check(12.0)), report(2, check(13.5))]);
        assert_eq!((verified[0].passed, &*verified[0].measured, &*verified[0].name), (true, "12 to 13.5", "x: peak"));
    }

    #[test]
    fn what_was_stopped_has_not_passed() {
        let watch = Watch::default();
        watch.stop();
        let verification = verify(&[find("shared-failure").unwrap()], &watch);
        assert!(!verification.passed() && verification.checks.is_empty());
        assert_eq!(verification.unfinished, ["shared-failure"]);
    }

    /// Numbers of the articles that no check is about yet, and which scenario will bring each. It only gets shorter.
    const WAITING: [(&str, &str); 2] =
        [("N23", "a lock with 5,000 workers (L10), with the coordinator"), ("N24", "the detector: herd or load")];

    #[test]
    fn every_number_and_sample_of_the_articles_is_put_to_the_test_or_waits_by_name() {
        let scenarios: Vec<&Scenario> = all().iter().collect();
        let reports = Watch::default().each(&scenarios, |scenario| scenario.run(&Settings::new(0)));
        let (checks, arms): (Vec<_>, Vec<_>) =
            reports.into_iter().flatten().map(|report| (report.checks, report.arms)).unzip();
        let (checks, arms): (Vec<Check>, Vec<Arm>) = (checks.concat(), arms.concat());
        let bare: Vec<&str> = checks.iter().filter(|check| check.cites.is_empty()).map(|check| &*check.what).collect();
        assert!(bare.is_empty(), "nobody can look these up: {bare:#?}");
        let is_cited = |number: &String| checks.iter().any(|check| check.cites.contains(&number.as_str()));
        let missing: Vec<String> = (1..=33).map(|n| format!("N{n}")).filter(|number| !is_cited(number)).collect();
        assert_eq!(missing, WAITING.map(|(number, _)| number));
        let uncited: Vec<String> = (1..=15).map(|n| format!("C{n}")).filter(|sample| !is_cited(sample)).collect();
        assert!(uncited.is_empty(), "no check says what is wrong with these: {uncited:?}");
        let is_shown = |sample: &String| arms.iter().any(|arm| arm.samples.contains(&sample.as_str()));
        let unshown: Vec<String> = (1..=15).map(|n| format!("C{n}")).filter(|sample| !is_shown(sample)).collect();
        assert!(unshown.is_empty(), "no arm does as these do: {unshown:?}");
    }

    #[test]
    fn a_claim_says_where_it_is_written() {
        let check = Check::at_most(Source::Article, "calls", 1.0, 1.0).cites("N4").cites("H3");
        let verified = claims("x", &[report(0, vec![check])]);
        assert_eq!(verified[0].source.to_string(), "article N4 H3");
        assert_eq!(format!("{:?}", verified[0].source), "article N4 H3");
    }
}
