//! A mutant that no longer applies proves nothing, and nobody notices: all of them are run now and then, not each time.

use super::{Finding, TextFile, line_at};
use crate::mutants::{LIST, list};

pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    let Some(mutants) = files.iter().find(|file| file.path == LIST) else { return Vec::new() };
    let parsed = match list::parse(&mutants.text) {
        Ok(parsed) => parsed,
        Err(problem) => return vec![mutants.finding(1, problem, "the format is at the top of the file")],
    };
    let line =
        |name: &str| mutants.text.find(&format!("mutant: {name}\n")).map_or(1, |offset| line_at(&mutants.text, offset));
    let stale = parsed.iter().filter_map(|mutant| {
        let file = files.iter().find(|file| file.path == mutant.file);
        let times = file.map(|file| file.text.matches(&mutant.from).count());
        let wrong = match times {
            Some(1) => return None,
            Some(times) => format!("`{}` changes what occurs {times} times in {}", mutant.name, mutant.file),
            None => format!("`{}` changes {}, which is not there", mutant.name, mutant.file),
        };
        Some(mutants.finding(line(&mutant.name), wrong, "name what occurs once"))
    });
    stale.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    fn block(name: &str, path: &str, from: &str) -> String {
        format!("mutant: {name}\nwhy: w\nfile: {path}\nfrom: {from}\nto:\ntest: herdproof t\n\n")
    }

    #[test]
    fn a_mutant_that_no_longer_applies_is_found() {
        let blocks = [
            block("fine", "a.rs", "x + 1"),
            block("gone", "a.rs", "x - 1"),
            block("twice", "a.rs", "y"),
            block("lost", "b.rs", "x"),
        ];
        let files = [file(LIST, &blocks.concat()), file("a.rs", "x + 1; y; y;")];
        check_found(
            &check(&files),
            &[
                "xtask/mutants.txt:8: `gone` changes what occurs 0 times in a.rs",
                "xtask/mutants.txt:15: `twice` changes what occurs 2 times in a.rs",
                "xtask/mutants.txt:22: `lost` changes b.rs, which is not there",
            ],
        );
    }
}
