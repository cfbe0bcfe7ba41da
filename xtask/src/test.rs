//! Everything a change must pass, cheapest first, stopping at the first that fails.

use crate::conformance;
use crate::failure::Failure;
use crate::run::{self, Call, Stopwatch};
use crate::say;
use crate::tidy;
use crate::tools::{self, Presence};
use crate::workspace::Workspace;

struct Step {
    name: &'static str,
    act: Act,
}

enum Act {
    Cargo(&'static [&'static str]),
    Ours(fn(&Workspace) -> Result<(), Failure>),
}

const STEPS: [Step; 11] = [
    Step { name: "tools", act: Act::Ours(look_for_tools) },
    Step { name: "msrv", act: Act::Ours(check_oldest_rust) },
    Step { name: "fmt", act: Act::Cargo(&["fmt", "--all", "--check"]) },
    Step { name: "tidy", act: Act::Ours(run_tidy) },
    Step {
        name: "clippy",
        act: Act::Cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]),
    },
    // Features unified over the workspace hide what the library forgot to ask for.
    Step { name: "bare", act: Act::Cargo(&["check", "-p", "herdproof", "--no-default-features"]) },
    Step { name: "tests", act: Act::Ours(run_tests) },
    // After the tests, which build what it runs.
    Step { name: "conformance", act: Act::Ours(run_conformance) },
    Step { name: "model", act: Act::Ours(check_interleavings) },
    // nextest runs none of these.
    Step { name: "doctests", act: Act::Cargo(&["test", "--doc", "--workspace", "--all-features"]) },
    Step { name: "docs", act: Act::Ours(build_docs) },
];

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let skipped = skips(arguments)?;
    let total = Stopwatch::start();
    let mut passed = Vec::new();
    for Step { name, act } in &STEPS {
        if skipped.contains(name) {
            say::line(format!("-- {name}: skipped"));
            continue;
        }
        say::line(format!("-- {name}"));
        let time = Stopwatch::start();
        let outcome = match act {
            Act::Cargo(arguments) => run::cargo(workspace, arguments).succeed(),
            Act::Ours(act) => act(workspace),
        };
        outcome.map_err(|failure| failure.within(&format!("step {name}")))?;
        say::line(format!("-- {name}: passed in {:.1} s", time.seconds()));
        passed.push(*name);
    }
    let without = if skipped.is_empty() { String::new() } else { format!("; skipped: {}", skipped.join(" ")) };
    say::line(format!("passed: {} in {:.1} s{without}", passed.join(" "), total.seconds()));
    Ok(())
}

fn skips(arguments: &[String]) -> Result<Vec<&'static str>, Failure> {
    let names = || STEPS.map(|step| step.name).join(", ");
    let mut skipped = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument != "--skip" {
            return Err(Failure::Usage(format!("test takes only --skip STEP, not `{argument}`")));
        }
        let name =
            arguments.next().ok_or_else(|| Failure::Usage(format!("--skip needs the name of a step: {}", names())))?;
        let step = STEPS
            .iter()
            .find(|step| step.name == name)
            .ok_or_else(|| Failure::Usage(format!("there is no step `{name}`; the steps are: {}", names())))?;
        skipped.push(step.name);
    }
    Ok(skipped)
}

fn look_for_tools(workspace: &Workspace) -> Result<(), Failure> {
    for tool in [tools::RUSTFMT, tools::CLIPPY] {
        if let Presence::Missing(advice) = tool.ensure(workspace) {
            return Err(Failure::Found(advice));
        }
    }
    let runner =
        if tools::NEXTEST.is_here(workspace) { "cargo nextest" } else { "cargo test, as there is no cargo nextest" };
    say::line(format!("tests will run with {runner}"));
    Ok(())
}

fn run_tidy(workspace: &Workspace) -> Result<(), Failure> {
    tidy::run(workspace, &[]).map_err(|failure| failure.within("rerun just that with `cargo xtask tidy`"))
}

fn run_tests(workspace: &Workspace) -> Result<(), Failure> {
    let arguments: &[_] = if tools::NEXTEST.is_here(workspace) {
        &["nextest", "run", "--workspace", "--all-features"]
    } else {
        &["test", "--workspace", "--all-features", "--all-targets"]
    };
    run::cargo(workspace, arguments).succeed()
}

fn run_conformance(workspace: &Workspace) -> Result<(), Failure> {
    let skip = "go on without it by `cargo xtask test --skip conformance`";
    conformance::run(workspace, &[]).map_err(|failure| failure.within(skip))
}

/// The tests that run on a model checker's locks, in target folders of their own, as their flags differ.
fn check_interleavings(workspace: &Workspace) -> Result<(), Failure> {
    let tests = [
        "test",
        "-p",
        "herdproof",
        "-p",
        "herdproof-proxy",
        "--lib",
        "--target-dir",
        "target/shuttle",
        "interleavings",
    ];
    run::cargo(workspace, &tests).env("RUSTFLAGS", "--cfg herdproof_shuttle").succeed()?;
    // Shuttle's memory is sequentially consistent. The lock whose proof needs more is checked by loom, in seconds.
    let lock = ["test", "--lib", "--manifest-path", "model/Cargo.toml", "--target-dir", "target/loom"];
    run::cargo(workspace, &lock).env("RUSTFLAGS", "--cfg herdproof_loom").succeed()
}

fn build_docs(workspace: &Workspace) -> Result<(), Failure> {
    run::cargo(workspace, &["doc", "--workspace", "--all-features", "--no-deps"])
        .env("RUSTDOCFLAGS", "-Dwarnings")
        .succeed()
}

fn check_oldest_rust(workspace: &Workspace) -> Result<(), Failure> {
    let oldest = &workspace.rust_version;
    let ours = Call::new("rustc").args(["--version"]).within(&workspace.root).output()?;
    // Without rustup there are no other toolchains.
    let others = Call::new("rustup").args(["toolchain", "list"]).output().unwrap_or_default();
    match oldest_rust(oldest, &ours, &others)? {
        OldestRust::Ours => say::line(format!("this run is the check of Rust {oldest}")),
        OldestRust::Installed(toolchain) => {
            let toolchain = format!("+{toolchain}");
            let check = [&toolchain, "check", "--workspace", "--all-features", "--target-dir", "target/msrv"];
            run::cargo(workspace, &check).succeed()?;
        }
        OldestRust::Absent => say::line(format!(
            "Rust {oldest} was NOT checked: its toolchain is not installed (rustup toolchain install {oldest})"
        )),
    }
    Ok(())
}

/// Who can tell whether the oldest promised Rust still builds us.
#[derive(Debug, PartialEq, Eq)]
enum OldestRust {
    Ours,
    Installed(String),
    Absent,
}

fn oldest_rust(oldest: &str, ours: &str, toolchains: &str) -> Result<OldestRust, Failure> {
    let version = ours.split_whitespace().nth(1).unwrap_or_default();
    let (Some(needed), Some(running)) = (minor(oldest), minor(version)) else {
        return Err(Failure::Io(format!("cannot compare rustc `{}` with rust-version `{oldest}`", ours.trim())));
    };
    if running < needed {
        return Err(Failure::Found(format!("this is Rust {version}, but at least {oldest} is needed (rustup update)")));
    }
    if running == needed {
        return Ok(OldestRust::Ours);
    }
    let releases = toolchains.lines().filter_map(|line| line.split(['-', ' ']).next());
    Ok(releases
        .filter(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        .find(|release| minor(release) == Some(needed))
        .map_or(OldestRust::Absent, |release| OldestRust::Installed(release.into())))
}

/// `1.95.0` and `1.95.0-nightly` are `(1, 95)`.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        "stable-x86_64-unknown-linux-gnu (active, default)\n1.9.5-x86_64\n1.95.0-x86_64-unknown-linux-gnu\n";

    fn skip(arguments: &[&str]) -> Result<Vec<&'static str>, Failure> {
        skips(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_mistyped_step_is_refused_with_the_names_that_exist() {
        let failure = skip(&["--skip", "clipy"]).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("fmt, tidy, clippy"), "{failure}");
    }

    #[test]
    fn a_skip_without_a_name_is_refused() {
        assert_eq!(skip(&["--skip", "fmt", "--skip"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn every_named_step_is_skipped_and_no_other() {
        assert_eq!(skip(&["--skip", "docs", "--skip", "fmt"]).unwrap(), ["docs", "fmt"]);
    }

    #[test]
    fn a_rust_older_than_promised_is_told_which_it_needs() {
        let failure = oldest_rust("1.95", "rustc 1.94.1 (abc 2026-03-01)", LIST).unwrap_err();
        assert!(failure.to_string().contains("at least 1.95"), "{failure}");
    }

    #[test]
    fn a_rust_of_the_promised_minor_is_itself_the_check() {
        assert_eq!(oldest_rust("1.95", "rustc 1.95.2 (abc 2026-05-01)", "").unwrap(), OldestRust::Ours);
    }

    #[test]
    fn a_newer_rust_looks_for_the_promised_toolchain_and_admits_its_absence() {
        let newer = "rustc 1.100.0-nightly (abc 2026-11-01)";
        assert_eq!(oldest_rust("1.95", newer, LIST).unwrap(), OldestRust::Installed("1.95.0".into()));
        assert_eq!(oldest_rust("1.96", newer, LIST).unwrap(), OldestRust::Absent);
    }
}
