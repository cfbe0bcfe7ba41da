//! The public suite of cache tests against the real proxy, as the suite runs itself.
//!
//! What a cache may and must not do is told by others than us there, and a hundred tests at a time share one proxy: what it learns
//! from one must not change what another gets. `conformance.txt` lists what is known to miss, each with its reason.

mod expected;
mod report;
mod suite;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use expected::Expected;
use suite::Suite;

use crate::failure::Failure;
use crate::run;
use crate::say;
use crate::tools::{self, Presence};
use crate::workspace::Workspace;

const LIST: &str = "xtask/conformance.txt";
const PAGE: &str = "docs/reference/conformance.md";

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let given = binary(arguments)?;
    let list = workspace.root.join(LIST);
    let text = fs::read_to_string(&list).map_err(|error| Failure::io("read", &list, &error))?;
    let expected = Expected::parse(&text).map_err(|problem| Failure::Found(format!("{LIST}:{problem}")))?;
    for tool in [tools::NODE, tools::NPM] {
        if let Presence::Missing(advice) = tool.ensure(workspace) {
            return Err(Failure::Found(advice));
        }
    }
    let suite = Suite::get(workspace, &expected.suite)?;
    let binary = given.map_or_else(|| build(workspace), Ok)?;
    let score = suite.run(&binary)?;
    let outcomes = verdict::read(&score).map_err(Failure::Found)?;
    say::line(report::table(&outcomes));
    let surprises = verdict::surprises(&outcomes, &expected);
    if !surprises.is_empty() {
        return Err(Failure::Found(format!(
            "not what {LIST} expects; rerun just that with `cargo xtask conformance`:\n  {}",
            surprises.join("\n  ")
        )));
    }
    let page = report::page(&outcomes, &expected);
    keep(&workspace.root.join(PAGE), &page, std::env::var_os("HERDPROOF_WRITE_REFERENCE").is_some())
}

/// Another build of the proxy than that of this tree, if one is named.
fn binary(arguments: &[String]) -> Result<Option<PathBuf>, Failure> {
    match arguments {
        [] => Ok(None),
        [flag, path] if flag == "--binary" => {
            let whole = std::path::absolute(path).map_err(|error| Failure::io("find", path.as_ref(), &error))?;
            Ok(Some(whole))
        }
        _ => Err(Failure::Usage(format!("conformance takes only --binary PATH, not `{}`", arguments.join(" ")))),
    }
}

/// The proxy as the tests build it, so that it is built once. It lies beside this program.
fn build(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let flags = ["build", "--quiet", "--workspace", "--all-features", "--bin", "herdproof"];
    run::cargo(workspace, &flags).succeed()?;
    let beside = std::env::current_exe().map(|ours| ours.with_file_name("herdproof"));
    let beside = beside.map_err(|error| Failure::Io(format!("cannot tell where cargo builds: {error}")))?;
    Ok(beside.with_extension(std::env::consts::EXE_EXTENSION))
}

/// Writes the page, or compares it with what is there.
fn keep(path: &Path, page: &str, writes: bool) -> Result<(), Failure> {
    if writes {
        return fs::write(path, page).map_err(|error| Failure::io("write", path, &error));
    }
    if fs::read_to_string(path).is_ok_and(|kept| kept == page) {
        return Ok(());
    }
    Err(Failure::Found(format!(
        "{PAGE} is not what the run gives; write it anew with HERDPROOF_WRITE_REFERENCE=1 cargo xtask conformance"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_page_that_is_out_of_date_is_found_and_written_anew() {
        let scratch = Scratch::new();
        let path = scratch.path().join("page.md");
        assert_eq!(keep(&path, "new", false).unwrap_err().exit_code(), 1);
        keep(&path, "new", true).unwrap();
        keep(&path, "new", false).unwrap();
        assert_eq!(keep(&path, "newer", false).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn an_argument_that_it_does_not_know_is_refused() {
        let given = |arguments: &[&str]| binary(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(given(&["--binary", "old/herdproof"]).unwrap().unwrap().is_absolute());
        assert_eq!(given(&["--binary"]).unwrap_err().exit_code(), 2);
        assert_eq!(given(&["age-parse"]).unwrap_err().exit_code(), 2);
    }
}
