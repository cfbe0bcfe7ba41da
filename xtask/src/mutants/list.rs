//! The format of `mutants.txt`: blocks of `key: value` lines, blocks apart by an empty line, `#` for comments.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// What the test is there to guard; shown when nothing does.
    pub(crate) why: String,
    pub(crate) file: String,
    /// Occurs exactly once in the file, within one line.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) test: Target,
}

/// Which tests must notice: a package, and a part of their names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) package: String,
    pub(crate) filter: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.filter)
    }
}

/// The mutants in the order of the file, or the first problem as `line: what is wrong`.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut block = Block::default();
    for (index, line) in text.lines().chain([""]).enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.starts_with('#') {
            continue;
        }
        if !line.is_empty() {
            block.add(number, line)?;
        } else if !block.lines.is_empty() {
            let first = block.first_line();
            let mutant = std::mem::take(&mut block).finish()?;
            if mutants.iter().any(|other| other.name == mutant.name) {
                return Err(format!("{first}: a second mutant named `{}`; names are unique", mutant.name));
            }
            mutants.push(mutant);
        }
    }
    Ok(mutants)
}

const KEYS: [&str; 6] = ["mutant", "why", "file", "from", "to", "test"];

#[derive(Default)]
struct Block<'a> {
    lines: Vec<(usize, &'a str, &'a str)>,
}

impl<'a> Block<'a> {
    fn add(&mut self, number: usize, line: &'a str) -> Result<(), String> {
        let (key, value) = line.split_once(':').map(|(key, value)| (key.trim(), value.trim())).unwrap_or_default();
        if !KEYS.contains(&key) {
            return Err(format!("{number}: expected one of `{}:`, not `{line}`", KEYS.join(":`, `")));
        }
        if self.lines.iter().any(|(_, other, _)| *other == key) {
            return Err(format!("{number}: a second `{key}:` in one block; is an empty line missing above?"));
        }
        self.lines.push((number, key, value));
        Ok(())
    }

    fn first_line(&self) -> usize {
        self.lines.first().map_or(0, |(number, ..)| *number)
    }

    fn finish(self) -> Result<Mutant, String> {
        let first = self.first_line();
        let value = |key| {
            let found = self.lines.iter().find(|(_, other, _)| *other == key);
            found
                .map(|(number, _, value)| (*number, *value))
                .ok_or_else(|| format!("{first}: this block has no `{key}:`"))
        };
        // Only what is put in may be nothing: that deletes.
        let filled = |key| match value(key)? {
            (number, "") => Err(format!("{number}: `{key}:` is empty")),
            (_, value) => Ok(value.to_owned()),
        };
        let (line, test) = value("test")?;
        let (package, filter) = test
            .split_once(' ')
            .ok_or_else(|| format!("{line}: `test:` wants a package and a test name, not `{test}`"))?;
        let (line, name) = value("mutant")?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
            return Err(format!("{line}: a mutant's name has small letters, digits and hyphens, not `{name}`"));
        }
        let (from, (line, to)) = (filled("from")?, value("to")?);
        if from == to {
            return Err(format!("{line}: `from:` and `to:` are the same"));
        }
        Ok(Mutant {
            name: name.into(),
            why: filled("why")?,
            file: filled("file")?,
            from,
            to: to.into(),
            test: Target { package: package.into(), filter: filter.trim().into() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
# a comment
mutant: cap-clamps
why: cap the range
file: src/backoff.rs
from: draw(low..cap)
to: draw(low..high).min(cap)
test: herdproof backoff::tests::spread
";

    #[track_caller]
    fn check_refused(text: &str, problem: &str) {
        let found = parse(text).unwrap_err();
        assert!(found.starts_with(problem), "expected `{problem}`, found `{found}`");
    }

    #[test]
    fn colons_inside_a_value_belong_to_the_value() {
        let mutants = parse(GOOD).unwrap();
        assert_eq!(mutants[0].test.to_string(), "herdproof backoff::tests::spread");
    }

    #[test]
    fn a_replacement_by_nothing_is_a_deletion() {
        let mutants = parse(&GOOD.replace("to: draw(low..high).min(cap)", "to:")).unwrap();
        assert_eq!(mutants[0].to, "");
    }

    #[test]
    fn comments_alone_are_no_mutants() {
        assert!(parse("# nothing\n\n# here\n").unwrap().is_empty());
    }

    #[test]
    fn a_block_with_a_line_missing_is_refused_where_it_starts() {
        check_refused(&GOOD.replace("why: cap the range\n", ""), "2: this block has no `why:`");
    }

    #[test]
    fn two_blocks_run_together_are_refused() {
        check_refused(&format!("{GOOD}{GOOD}"), "9: a second `mutant:`");
    }

    #[test]
    fn a_name_used_twice_is_refused() {
        check_refused(&format!("{GOOD}\n{GOOD}"), "10: a second mutant named `cap-clamps`");
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        check_refused(&GOOD.replace("from:", "form:"), "5: expected one of");
    }

    #[test]
    fn a_mutant_that_changes_nothing_is_refused() {
        check_refused(&GOOD.replace("draw(low..high).min(cap)", "draw(low..cap)"), "6: `from:` and `to:` are the same");
    }

    #[test]
    fn a_test_without_its_package_is_refused() {
        check_refused(&GOOD.replace("herdproof backoff", "backoff"), "7: `test:` wants a package");
    }
}
