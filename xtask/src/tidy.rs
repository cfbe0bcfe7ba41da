//! What no compiler checks and every reviewer forgets: that modules depend downwards only, that documents tell the
//! truth, that nothing of the author's machine leaks into the repository.
//!
//! Each check is a plain function from files to findings; only this file reads the disk.

mod library;
mod links;
mod manifests;
mod markdown;
mod mutants;
mod paths;
mod readme;
mod rows;
mod source;
mod text;

use std::fmt;
use std::fs;

use crate::failure::Failure;
use crate::say;
use crate::workspace::Workspace;

/// Where the library's modules are.
const LIBRARY: &str = "crates/herdproof/src/";

/// A file of the repository, with its path from the root in forward slashes.
struct TextFile {
    path: String,
    text: String,
}

impl TextFile {
    fn is_markdown(&self) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extension == "md")
    }

    fn finding(&self, line: usize, wrong: impl Into<String>, right: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, wrong: wrong.into(), right: right.into() }
    }
}

/// Something that is wrong, and what would be right.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1; 1 also stands for the whole file.
    line: usize,
    wrong: String,
    right: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.wrong, self.right)
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("tidy takes no arguments, not `{argument}`")));
    }
    let tracked = workspace.tracked()?;
    let files = read(workspace, &tracked)?;
    let needles = paths::Needles::new(&workspace.root, std::env::var("HOME").ok().as_deref());

    let mut findings = Vec::new();
    findings.extend(rows::check(&files));
    findings.extend(readme::check(&files, &workspace.version, &workspace.rust_version, &crate::command_names()));
    findings.extend(links::check(&files, &tracked));
    findings.extend(manifests::check(&files, &workspace.members));
    findings.extend(mutants::check(&files));
    for file in &files {
        findings.extend(needles.check(file));
        findings.extend(text::check(file));
        findings.extend(library::check(file));
    }

    findings.sort();
    for finding in &findings {
        say::line(finding);
    }
    if findings.is_empty() {
        say::line(format!("findings: none, files read: {}", files.len()));
        return Ok(());
    }
    Err(Failure::Found(format!("findings: {}, files read: {}", findings.len(), files.len())))
}

/// The text files among `tracked`; what is not UTF-8 is not text.
fn read(workspace: &Workspace, tracked: &[String]) -> Result<Vec<TextFile>, Failure> {
    let mut files = Vec::new();
    for path in tracked {
        let absolute = workspace.root.join(path);
        let bytes = fs::read(&absolute).map_err(|error| Failure::io("read", &absolute, &error))?;
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            files.push(TextFile { path: path.clone(), text });
        }
    }
    Ok(files)
}

/// The 1-based line in which the byte at `offset` stands.
fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod testing {
    use super::{Finding, TextFile};

    pub(super) fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    /// Compares findings by where they are and how they begin.
    #[track_caller]
    pub(super) fn check_found(found: &[Finding], expected: &[&str]) {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let equal = found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a.starts_with(b));
        assert!(equal, "expected findings that begin with\n{expected:#?}\nbut found\n{found:#?}");
    }
}
