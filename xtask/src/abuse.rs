//! The attack suite in full, at a release build: what a stranger can do to everybody, beside what is promised.
//!
//! The attacks are in `crates/herdproof-cli/tests/abuse`, as their short form is a test. Here they are only started.

use std::path;

use crate::failure::Failure;
use crate::run;
use crate::workspace::Workspace;

const BUILD_AND_RUN: [&str; 9] =
    ["test", "--quiet", "--release", "--package", "herdproof-cli", "--test", "abuse", "--", "--full"];

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    run::cargo(workspace, &BUILD_AND_RUN).args(from_anywhere(arguments)?).succeed()
}

/// Cargo runs a test in the folder of its package, so the path after `--binary` is made absolute.
fn from_anywhere(arguments: &[String]) -> Result<Vec<String>, Failure> {
    let mut arguments = arguments.to_vec();
    let binary = arguments.iter().position(|argument| argument == "--binary").map(|flag| flag + 1);
    if let Some(path) = binary.and_then(|path| arguments.get_mut(path)) {
        let whole = path::absolute(&path).map_err(|error| Failure::io("find", path.as_ref(), &error))?;
        *path = whole.display().to_string();
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(arguments: &[&str]) -> Vec<String> {
        from_anywhere(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn another_build_is_found_though_cargo_changes_the_folder() {
        let whole = passed_on(&["--binary", "old/herdproof", "slow_uploads"]);
        assert!(path::Path::new(&whole[1]).is_absolute() && whole[1].ends_with("old/herdproof"), "{whole:?}");
        assert_eq!((&*whole[0], &*whole[2]), ("--binary", "slow_uploads"));
    }

    #[test]
    fn a_binary_without_a_path_is_left_to_be_refused() {
        assert_eq!(passed_on(&["--json", "--binary"]), ["--json", "--binary"]);
    }
}
