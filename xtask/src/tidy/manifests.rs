//! Lints are set once, for all. A crate whose manifest does not ask for them silently has none.

use super::{Finding, TextFile};
use crate::manifest;

pub(super) fn check(files: &[TextFile], members: &[String]) -> Vec<Finding> {
    let is_member = |file: &&TextFile| members.iter().any(|member| is_manifest_of(member, &file.path));
    let without = files.iter().filter(is_member).filter(|file| !has_lints(&file.text));
    without
        .map(|file| file.finding(1, "it does not use the lints of the workspace", "add `[lints] workspace = true`"))
        .collect()
}

/// `member` is a folder, or all folders in one: `crates/*`.
fn is_manifest_of(member: &str, path: &str) -> bool {
    let Some(folder) = path.strip_suffix("/Cargo.toml") else { return false };
    match member.strip_suffix("/*") {
        Some(parent) => folder.rsplit_once('/').is_some_and(|(above, _)| above == parent),
        None => folder == member,
    }
}

fn has_lints(toml: &str) -> bool {
    let section = manifest::entry(toml, "lints", "workspace");
    section.or_else(|| manifest::entry(toml, "", "lints.workspace")).is_some_and(|entry| entry.value == "true")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    #[track_caller]
    fn check_manifest(path: &str, toml: &str, is_found: bool) {
        let expected = [format!("{path}:1: it does not use the lints")];
        let expected: Vec<&str> = expected.iter().filter(|_| is_found).map(String::as_str).collect();
        check_found(&check(&[file(path, toml)], &["crates/*".into(), "xtask".into()]), &expected);
    }

    #[test]
    fn a_member_without_the_lints_is_reported() {
        check_manifest("crates/new/Cargo.toml", "[package]\nworkspace = true\n", true);
        check_manifest("xtask/Cargo.toml", "[lints]\nworkspace = false\n", true);
    }

    #[test]
    fn both_ways_to_write_it_are_fine() {
        check_manifest("crates/new/Cargo.toml", "[package]\n[lints]\nworkspace = true\n", false);
        check_manifest("crates/new/Cargo.toml", "lints.workspace = true\n", false);
    }

    #[test]
    fn manifests_of_other_workspaces_are_left_alone() {
        check_manifest("bench/Cargo.toml", "[package]\n", false);
        check_manifest("crates/new/fuzz/Cargo.toml", "[package]\n", false);
        check_manifest("Cargo.toml", "[workspace]\n", false);
    }
}
