//! The format of `conformance.txt`: which edition of the suite, what passes at least, and blocks of known misses with their reason.

/// What a run is compared with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// The version of the package.
    pub(super) suite: String,
    /// At least so many optimal tests pass.
    pub(super) optimal: usize,
    pub(super) misses: Vec<Misses>,
}

/// Tests that do not pass for one reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misses {
    pub(super) ids: Vec<String>,
    pub(super) why: String,
}

impl Expected {
    pub(super) fn is_known(&self, id: &str) -> bool {
        self.misses.iter().any(|misses| misses.ids.iter().any(|known| known == id))
    }

    /// Reads it, or tells the first problem as `line: what is wrong`.
    pub(super) fn parse(text: &str) -> Result<Expected, String> {
        let mut expected = Expected::default();
        let mut ids: Vec<String> = Vec::new();
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            last = number;
            let (key, value) = line.split_once(':').map(|(key, value)| (key.trim(), value.trim())).unwrap_or_default();
            match key {
                "suite" => expected.suite = value.into(),
                "optimal" => {
                    expected.optimal = value.parse().map_err(|_| {
                        format!("{number}: `optimal:` takes how many tests pass, such as 80, not `{value}`")
                    })?;
                }
                "miss" => {
                    for id in value.split_whitespace() {
                        if expected.is_known(id) || ids.iter().any(|other| other == id) {
                            return Err(format!("{number}: `{id}` is listed a second time"));
                        }
                        ids.push(id.into());
                    }
                }
                "why" if ids.is_empty() => return Err(format!("{number}: a `why:` without a `miss:` above it")),
                "why" => expected.misses.push(Misses { ids: std::mem::take(&mut ids), why: value.into() }),
                _ => return Err(format!("{number}: expected `suite:`, `optimal:`, `miss:` or `why:`, not `{line}`")),
            }
        }
        if !ids.is_empty() {
            return Err(format!("{last}: `miss:` without a `why:` after it"));
        }
        if expected.suite.is_empty() {
            return Err("1: there is no `suite:` with the version of the package".into());
        }
        Ok(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_belongs_to_all_misses_above_it() {
        let expected =
            Expected::parse("suite: 1\noptimal: 7\n# c\nmiss: a b\nmiss: c\nwhy: so\n\nmiss: d\nwhy: not").unwrap();
        assert_eq!((expected.suite.as_str(), expected.optimal), ("1", 7));
        assert_eq!(expected.misses[0], Misses { ids: vec!["a".into(), "b".into(), "c".into()], why: "so".into() });
        assert!(expected.is_known("d") && !expected.is_known("e"));
    }

    #[test]
    fn a_miss_without_a_reason_is_refused_and_so_is_a_second_one() {
        let problem = |text: &str| Expected::parse(text).unwrap_err();
        assert!(problem("suite: 1\nmiss: a").starts_with("2: `miss:` without"));
        assert!(problem("suite: 1\nwhy: so").starts_with("2: a `why:`"));
        assert!(problem("suite: 1\nmiss: a\nwhy: so\nmiss: a\nwhy: so").contains("`a` is listed a second time"));
        assert!(problem("miss: a\nwhy: so").contains("no `suite:`"));
        assert!(problem("suite: 1\noptimal: many").contains("not `many`"));
        assert!(problem("suits: 1").starts_with("1: expected"));
    }
}
