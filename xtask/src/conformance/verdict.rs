//! What became of each test, and whether that is what was expected.

use super::expected::Expected;

/// One test of the suite, scored by its own rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) kind: Kind,
    pub(super) group: String,
    pub(super) id: String,
    pub(super) passed: bool,
    /// What was wrong, as the suite says it.
    pub(super) said: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A cache that fails it breaks a rule.
    Required,
    /// A cache that passes it is of more use.
    Optimal,
    /// Tells what a cache does; neither answer is wrong.
    Check,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Required, Kind::Optimal, Kind::Check];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Required => "required",
            Kind::Optimal => "optimal",
            Kind::Check => "check",
        }
    }
}

/// Passed, and all there are.
pub(super) type Count = (usize, usize);

pub(super) fn count<'a>(outcomes: impl Iterator<Item = &'a Outcome>, kind: Kind) -> Count {
    outcomes
        .filter(|outcome| outcome.kind == kind)
        .fold((0, 0), |(passed, all), outcome| (passed + usize::from(outcome.passed), all + 1))
}

/// What `score.mjs` prints.
pub(super) fn read(lines: &str) -> Result<Vec<Outcome>, String> {
    lines.lines().map(read_line).collect()
}

fn read_line(line: &str) -> Result<Outcome, String> {
    let strange = || format!("the score of a test is a line of five words, not `{line}`");
    let mut words = line.split('\t');
    let mut next = || words.next().ok_or_else(strange);
    let (kind, group, id, ending, said) = (next()?, next()?, next()?, next()?, next()?);
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(strange)?;
    // As the suite shows them: what passes, and what a check found to be so.
    let passed = matches!(ending, "✅" | "Y");
    let said = if said.is_empty() && !passed { "a test that it depends on did not pass" } else { said };
    Ok(Outcome { kind, group: group.into(), id: id.into(), passed, said: said.into() })
}

/// Everything that is not as expected, one line each.
pub(super) fn surprises(outcomes: &[Outcome], expected: &Expected) -> Vec<String> {
    let mut surprises = Vec::new();
    for Outcome { kind, group, id, passed, said } in outcomes {
        match (kind, passed, expected.is_known(id)) {
            (Kind::Required, false, false) => surprises.push(format!("required: {id} ({group}) does not pass: {said}")),
            (_, true, true) => surprises.push(format!("listed: {id} ({group}) passes; take it off the list")),
            _ => {}
        }
    }
    for id in expected.misses.iter().flat_map(|misses| &misses.ids) {
        if !outcomes.iter().any(|outcome| outcome.id == *id) {
            surprises.push(format!("listed: the suite has no test {id}"));
        }
    }
    let (passed, _) = count(outcomes.iter(), Kind::Optimal);
    if passed < expected.optimal {
        surprises.push(format!("optimal: {passed} pass, and {} did", expected.optimal));
        let is_new =
            |outcome: &&Outcome| outcome.kind == Kind::Optimal && !outcome.passed && !expected.is_known(&outcome.id);
        surprises.extend(
            outcomes
                .iter()
                .filter(is_new)
                .map(|Outcome { id, group, said, .. }| format!("optimal: {id} ({group}): {said}")),
        );
    }
    surprises
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORE: &str =
        "required\tage\ta\t✅\t\nrequired\tage\tb\t⛔️\tit is cached\noptimal\tvary\tc\t⚪️\t\ncheck\tvary\td\tY\t";

    fn surprised(list: &str) -> Vec<String> {
        surprises(&read(SCORE).unwrap(), &Expected::parse(&format!("suite: 1\n{list}")).unwrap())
    }

    #[test]
    fn a_required_test_that_fails_is_found_unless_it_is_listed() {
        assert_eq!(surprised(""), ["required: b (age) does not pass: it is cached"]);
        assert_eq!(surprised("miss: b\nwhy: so"), Vec::<String>::new());
    }

    #[test]
    fn a_list_that_is_out_of_date_is_found() {
        let found = surprised("miss: a b e\nwhy: so");
        assert_eq!(found, ["listed: a (age) passes; take it off the list", "listed: the suite has no test e"]);
    }

    #[test]
    fn fewer_optimal_tests_than_before_are_found_with_those_that_are_new() {
        let found = surprised("optimal: 1\nmiss: b\nwhy: so");
        let new = "optimal: c (vary): a test that it depends on did not pass";
        assert_eq!(found, ["optimal: 0 pass, and 1 did", new]);
    }

    #[test]
    fn a_score_that_cannot_be_read_is_refused() {
        assert!(read("required\tage\ta").is_err());
        assert!(read("wanted\tage\ta\t✅\t").is_err());
    }
}
