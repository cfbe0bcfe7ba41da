//! Documents promise versions and commands. Each promise is compared with what is true.

use super::markdown::{self, Place};
use super::{Finding, TextFile};
use crate::manifest;

const TEST: &str = "cargo xtask test";

pub(super) fn check(files: &[TextFile], version: &str, rust_version: &str, commands: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_markdown()) {
        findings.extend(dependency_versions(file, version));
        findings.extend(xtask_commands(file, commands));
        if file.path == "README.md" {
            findings.extend(rust_versions(file, rust_version));
        }
    }
    findings.extend(test_command(files));
    findings
}

/// Snippets such as `herdproof = "0.1"`, which readers paste.
fn dependency_versions(file: &TextFile, version: &str) -> Vec<Finding> {
    // Everything but the snippets is made blank, which leaves one manifest with the right line numbers.
    let snippets: Vec<&str> = markdown::lines(&file.text).iter().map(snippet_line).collect();
    let snippets = snippets.join("\n");
    let mut findings = Vec::new();
    for entry in manifest::entries(&snippets) {
        let required = if entry.key.starts_with("herdproof") {
            match entry.value.split_once("version") {
                Some((_, behind)) => behind.split('"').nth(1),
                None if entry.value.starts_with('"') => entry.strings().first().copied(),
                None => None,
            }
        } else if entry.key == "version" && entry.section.contains("dependencies.herdproof") {
            entry.strings().first().copied()
        } else {
            None
        };
        if let Some(required) = required.filter(|required| !is_prefix(required, version)) {
            let wrong = format!("the snippet asks for version {required}");
            findings.push(file.finding(entry.line, wrong, format!("the workspace is at {version}")));
        }
    }
    findings
}

fn snippet_line<'a>(line: &markdown::Line<'a>) -> &'a str {
    match line.place {
        Place::Code(info) if info.split([' ', ',']).next() == Some("toml") => line.text,
        // Ends the section of the snippet before.
        Place::Fence => "[]",
        _ => "",
    }
}

/// Whether `0.1` is the beginning of `0.1.0`, number by number.
fn is_prefix(required: &str, version: &str) -> bool {
    let required = required.trim_start_matches(['^', '~', '=', ' ']).split('.');
    let mut actual = version.split('.');
    required.into_iter().all(|number| actual.next() == Some(number))
}

fn rust_versions(file: &TextFile, rust_version: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for behind in line.split("Rust 1.").skip(1) {
            let minor: String = behind.chars().take_while(char::is_ascii_digit).collect();
            if !minor.is_empty() && !is_prefix(&format!("1.{minor}"), rust_version) {
                let right = format!("rust-version in Cargo.toml is {rust_version}");
                findings.push(file.finding(number, format!("it asks for Rust 1.{minor}"), right));
            }
        }
    }
    findings
}

fn xtask_commands(file: &TextFile, commands: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for behind in line.split("cargo xtask ").skip(1) {
            let name: String =
                behind.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
            // `--help` is no command, and capitals stand for one.
            let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
            if is_name && !commands.contains(&name.as_str()) {
                let right = format!("the commands are {}", commands.join(", "));
                findings.push(file.finding(number, format!("there is no `cargo xtask {name}`"), right));
            }
        }
    }
    findings
}

/// The README shows the test command in a block of its own, and CI runs the same.
fn test_command(files: &[TextFile]) -> Vec<Finding> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let absent = |path: &str, right| Finding { path: path.into(), line: 1, wrong: "it does not exist".into(), right };
    let mut findings = Vec::new();
    match find("README.md") {
        None => findings.push(absent("README.md", format!("write one that shows `{TEST}`"))),
        Some(readme) => {
            let is_test = |line: &str| line.strip_prefix("$ ").unwrap_or(line) == TEST;
            let is_shown = |line: &markdown::Line<'_>| matches!(line.place, Place::Code(_)) && is_test(line.text);
            if !markdown::lines(&readme.text).iter().any(is_shown) {
                let right = format!("show `{TEST}` on a line of its own in a fenced block");
                findings.push(readme.finding(1, "it does not show how to run the tests", right));
            }
        }
    }
    match find(".ci/run") {
        None => findings.push(absent(".ci/run", format!("let it run `{TEST}`"))),
        Some(ci) => {
            let runs = |line: &str| !line.trim_start().starts_with('#') && line.contains(TEST);
            if !ci.text.lines().any(runs) {
                findings.push(ci.finding(1, "it does not run the README's test command", format!("run `{TEST}`")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    const CI: &str = "#!/bin/sh\nexec cargo xtask test\n";
    const SHOWN: &str = "```\n$ cargo xtask test\n```\n";

    #[track_caller]
    fn check_readme(text: &str, expected: &[&str]) {
        let files = [file("README.md", &format!("{text}\n{SHOWN}")), file(".ci/run", CI)];
        check_found(&check(&files, "0.1.0", "1.95", &["test", "tidy"]), expected);
    }

    #[test]
    fn a_snippet_with_a_version_of_the_past_is_reported() {
        let text = "```toml\n[dependencies]\nherdproof = \"0.0.9\"\nherdproof-redis = { version = \"0.2\" }\n```";
        check_readme(
            text,
            &["README.md:3: the snippet asks for version 0.0.9", "README.md:4: the snippet asks for version 0.2"],
        );
    }

    #[test]
    fn a_snippet_with_a_table_of_its_own_is_checked_too() {
        let text = "```toml\n[dependencies.herdproof]\nversion = \"0.2\"\n```\n```toml\nversion = \"7\"\n```";
        check_readme(text, &["README.md:3: the snippet asks for version 0.2"]);
    }

    #[test]
    fn a_prefix_of_the_version_and_other_crates_are_fine() {
        let text = "```toml\nherdproof = \"0.1\"\nherdproof = { git = \"x\" }\ntokio = { version = \"9\" }\n```\nherdproof = \"7\"";
        check_readme(text, &[]);
    }

    #[test]
    fn a_version_that_only_begins_with_the_same_letters_is_reported() {
        let files = [file("docs/a.md", "```toml\nherdproof = \"0.1\"\n```\n")];
        check_found(&dependency_versions(&files[0], "0.10.0"), &["docs/a.md:2: the snippet asks for version 0.1"]);
    }

    #[test]
    fn a_rust_that_is_too_old_is_reported() {
        check_readme("Rust 1.95 or newer.\nRust 1.9 will do.", &["README.md:2: it asks for Rust 1.9"]);
    }

    #[test]
    fn a_command_that_does_not_exist_is_reported() {
        let text = "`cargo xtask tidy`, `cargo xtask`, cargo xtask --help, cargo xtask COMMAND\n`cargo xtask tests`";
        check_readme(text, &["README.md:2: there is no `cargo xtask tests`"]);
    }

    #[test]
    fn a_readme_and_a_ci_that_disagree_on_the_tests_are_reported() {
        let files = [file("README.md", "cargo xtask test\n"), file(".ci/run", "# cargo xtask test\ncargo test\n")];
        check_found(&test_command(&files), &["README.md:1: it does not show", ".ci/run:1: it does not run"]);
    }

    #[test]
    fn a_lost_readme_does_not_switch_the_check_off() {
        check_found(&test_command(&[]), &["README.md:1: it does not exist", ".ci/run:1: it does not exist"]);
    }
}
