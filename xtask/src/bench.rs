//! One measurement at a time, ours beside the peers.
//!
//! Benches are programs in `bench/src/bin`. The first line of a bench's docs says what it measures, and a line
//! `//! needs: valgrind, simpy` names the tools it would like. A tool that cannot be had costs the bench some rows, not
//! the run: the bench is told what it must do without.

use std::fs;

use crate::failure::Failure;
use crate::run;
use crate::say;
use crate::tools::{self, Presence};
use crate::workspace::Workspace;

#[derive(Debug, PartialEq, Eq)]
struct Bench {
    name: String,
    what: String,
    needs: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let benches = find(workspace)?;
    let Some((name, passed_on)) = arguments.split_first() else {
        say::line(list(&benches));
        return Ok(());
    };
    let bench = benches
        .iter()
        .find(|bench| bench.name == *name)
        .ok_or_else(|| Failure::Usage(format!("there is no bench `{name}`\n{}", list(&benches))))?;

    let build = ["run", "--quiet", "--profile", "dist", "--manifest-path", "bench/Cargo.toml", "--bin", name, "--"];
    let mut call = run::cargo(workspace, &build).args(passed_on);
    let mut without = Vec::new();
    for need in &bench.needs {
        let tool = tools::for_bench(need).map_err(|failure| failure.within(&format!("bench {name}")))?;
        if let Presence::Missing(advice) = tool.ensure(workspace) {
            say::aside(format!("{advice}; going on without"));
            without.push(tool.name);
        } else if let Some((variable, value)) = tool.variable(workspace) {
            call = call.env(variable, value);
        }
    }
    if !without.is_empty() {
        call = call.env("HERDPROOF_BENCH_WITHOUT", without.join(","));
    }
    call.succeed()
}

fn find(workspace: &Workspace) -> Result<Vec<Bench>, Failure> {
    let folder = workspace.root.join("bench/src/bin");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let unreadable = |error: std::io::Error| Failure::io("read", &folder, &error);
    let mut benches = Vec::new();
    for file in fs::read_dir(&folder).map_err(unreadable)? {
        let path = file.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem()
        {
            let source = fs::read_to_string(&path).map_err(|error| Failure::io("read", &path, &error))?;
            benches.push(describe(&name.to_string_lossy(), &source));
        }
    }
    benches.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(benches)
}

fn describe(name: &str, source: &str) -> Bench {
    let docs = || source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let needs = docs().filter_map(|line| line.strip_prefix("needs:")).flat_map(|names| names.split(','));
    Bench {
        name: name.into(),
        what: docs().next().unwrap_or_default().into(),
        needs: needs.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
    }
}

fn list(benches: &[Bench]) -> String {
    if benches.is_empty() {
        return "there are no benches in bench/src/bin yet".into();
    }
    let width = benches.iter().map(|bench| bench.name.len()).max().unwrap_or_default();
    let rows = benches.iter().map(|bench| format!("\n  {:<width$}  {}", bench.name, bench.what));
    format!("benches, run one with `cargo xtask bench NAME`:{}", rows.collect::<Vec<_>>().concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn workspace(scratch: &Scratch) -> Workspace {
        let root = scratch.path().into();
        Workspace { root, version: String::new(), rust_version: String::new(), members: Vec::new() }
    }

    #[test]
    fn needs_named_in_the_docs_are_all_found() {
        let bench =
            describe("flight", "//! Followers of one flight.\n//!\n//! needs: valgrind, simpy\n\nfn main() {}\n");
        assert_eq!(
            (bench.what.as_str(), bench.needs),
            ("Followers of one flight.", vec!["valgrind".into(), "simpy".into()])
        );
    }

    #[test]
    fn needs_mentioned_outside_the_module_docs_install_nothing() {
        let bench = describe("flight", "//! Followers.\nfn main() {}\n//! needs: valgrind\n");
        assert_eq!(bench.needs, Vec::<String>::new());
    }

    #[test]
    fn an_unknown_bench_is_a_usage_error_that_lists_the_real_ones() {
        let scratch = Scratch::new();
        scratch.write("bench/src/bin/zebra.rs", "//! Stripes.\n");
        scratch.write("bench/src/bin/ant.rs", "//! Legs.\n");
        scratch.write("bench/src/bin/notes.md", "not a bench\n");
        let failure = run(&workspace(&scratch), &["flea".into()]).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        let text = failure.to_string();
        assert!(text.contains("\n  ant    Legs.\n  zebra  Stripes."), "{text}");
        assert!(!text.contains("notes"), "{text}");
    }

    #[test]
    fn a_repository_without_benches_says_so_instead_of_failing() {
        let scratch = Scratch::new();
        assert_eq!(find(&workspace(&scratch)).unwrap(), []);
        assert!(list(&[]).contains("no benches"));
    }
}
