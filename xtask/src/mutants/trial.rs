//! One run of the named tests, and what it says. "Did not compile" and "no such test" both look like a failing test to
//! a careless reader, and both prove nothing.

use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::mutants::list::Target;
use crate::mutants::tree::Tree;
use crate::run::{self, Call};
use crate::say;
use crate::tools;
use crate::workspace::Workspace;

pub(crate) struct Trial<'a> {
    workspace: &'a Workspace,
    tree: &'a Tree,
    runner: Runner,
    folder: PathBuf,
}

#[derive(Clone, Copy)]
enum Runner {
    Nextest,
    CargoTest,
}

/// How a run of tests ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Passed,
    Failed,
    NoTests,
    Broken,
}

/// Many remedies keep somebody from waiting forever; without them the test hangs, and that is how it notices.
const STOP_HANGING_TESTS: &str = "[profile.default]\nslow-timeout = { period = \"30s\", terminate-after = 2 }\n";

impl<'a> Trial<'a> {
    pub(crate) fn prepare(workspace: &'a Workspace, tree: &'a Tree) -> Result<Self, Failure> {
        let folder = workspace.root.join("target/mutants");
        let runner = if tools::NEXTEST.is_here(workspace) { Runner::Nextest } else { Runner::CargoTest };
        let trial = Self { workspace, tree, runner, folder };
        match runner {
            Runner::Nextest => {
                let settings = trial.settings();
                fs::write(&settings, STOP_HANGING_TESTS).map_err(|error| Failure::io("write", &settings, &error))?;
            }
            Runner::CargoTest => say::line("without cargo nextest a mutant that hangs is yours to stop"),
        }
        Ok(trial)
    }

    /// The ending, and the log that shows it.
    pub(crate) fn run(&self, name: &str, target: &Target) -> Result<(Ran, PathBuf), Failure> {
        let log = self.log(name);
        if log.exists() {
            fs::remove_file(&log).map_err(|error| Failure::io("remove", &log, &error))?;
        }
        let code = self.call(target).logged(&log)?;
        let text = fs::read(&log).map_err(|error| Failure::io("read", &log, &error))?;
        Ok((ran(self.runner, code, &String::from_utf8_lossy(&text)), log))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn call(&self, target: &Target) -> Call {
        let settings = format!("herdproof:{}", self.settings().display());
        let runner: &[&str] = match self.runner {
            Runner::Nextest => &["nextest", "run", "--tool-config-file", &settings],
            Runner::CargoTest => &["test"],
        };
        let what = ["-p", &target.package, "--all-features", "--tests", &target.filter];
        run::cargo(self.workspace, &[runner, &what].concat())
            .within(&self.tree.root)
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            .env("CARGO_TERM_COLOR", "never")
            // What differs from one mutant to the next is one line, and of all tests one is run: what is quick to build is
            // quickest.
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "false")
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("nextest.toml")
    }
}

fn ran(runner: Runner, code: Option<i32>, log: &str) -> Ran {
    match (runner, code) {
        (Runner::Nextest, Some(0)) => Ran::Passed,
        (Runner::Nextest, Some(4)) => Ran::NoTests,
        (Runner::Nextest, Some(100)) => Ran::Failed,
        (Runner::Nextest, _) => Ran::Broken,
        // Cargo has one code for every mishap, but announces tests only once everything compiled.
        (Runner::CargoTest, code) => match (code, announced_tests(log)) {
            (Some(0), 0) => Ran::NoTests,
            (Some(0), _) => Ran::Passed,
            (_, 0) => Ran::Broken,
            (_, _) => Ran::Failed,
        },
    }
}

/// The sum over lines such as `running 3 tests`.
fn announced_tests(log: &str) -> usize {
    let counts = log.lines().filter_map(|line| line.strip_prefix("running ")?.split(' ').next()?.parse::<usize>().ok());
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "   Compiling herdproof\nrunning 0 tests\n\ntest result: ok. 0 passed\n";
    const SOME: &str = "running 0 tests\n\nrunning 2 tests\ntest a ... FAILED\n";

    #[test]
    fn a_mutant_that_does_not_compile_is_not_counted_as_killed() {
        assert_eq!(ran(Runner::CargoTest, Some(101), "error[E0308]: mismatched types\n"), Ran::Broken);
        assert_eq!(ran(Runner::Nextest, Some(101), ""), Ran::Broken);
    }

    #[test]
    fn a_filter_that_matches_no_test_is_not_a_pass() {
        assert_eq!(ran(Runner::CargoTest, Some(0), NONE), Ran::NoTests);
        assert_eq!(ran(Runner::Nextest, Some(4), ""), Ran::NoTests);
    }

    #[test]
    fn a_failing_test_is_a_kill_even_when_it_takes_its_process_along() {
        assert_eq!(ran(Runner::CargoTest, Some(101), SOME), Ran::Failed);
        assert_eq!(ran(Runner::CargoTest, None, SOME), Ran::Failed);
        assert_eq!(ran(Runner::Nextest, Some(100), ""), Ran::Failed);
    }

    #[test]
    fn a_passing_test_is_seen_as_passing() {
        assert_eq!(ran(Runner::CargoTest, Some(0), SOME), Ran::Passed);
        assert_eq!(ran(Runner::Nextest, Some(0), ""), Ran::Passed);
    }
}
