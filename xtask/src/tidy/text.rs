//! Files are shaped alike: they end with a newline, have no invisible tails, and Rust files open with what they are for.

use super::{Finding, TextFile};

pub(super) fn check(file: &TextFile) -> Vec<Finding> {
    let TextFile { path, text } = file;
    let mut findings = Vec::new();
    if path.rsplit('/').next() == Some("mod.rs") {
        findings.push(file.finding(
            1,
            "a file named mod.rs",
            "name it for its concept: `breaker.rs` beside `breaker/`",
        ));
    }
    if is_crate_source(path) && !text.starts_with("//!") {
        findings.push(file.finding(1, "it does not open with docs", "start with `//!` and why the module exists"));
    }
    // Splitting keeps a carriage return, which is a tail too.
    for (line, number) in text.split('\n').zip(1..) {
        if line.trim_end() != line {
            findings.push(file.finding(number, "blanks at the end of the line", "remove them"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(file.finding(text.lines().count(), "no newline at the end of the file", "add one"));
    }
    findings
}

/// `crates/NAME/src/**.rs`
fn is_crate_source(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src") && path.strip_suffix(".rs").is_some()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    #[test]
    fn a_module_without_a_reason_is_reported() {
        let source = "use std::fmt;\n//! too late\n";
        check_found(
            &check(&file("crates/x/src/a/b.rs", source)),
            &["crates/x/src/a/b.rs:1: it does not open with docs"],
        );
        check_found(&check(&file("crates/x/tests/b.rs", source)), &[]);
    }

    #[test]
    fn a_mod_rs_anywhere_is_reported() {
        check_found(&check(&file("bench/src/common/mod.rs", "")), &["bench/src/common/mod.rs:1: a file named mod.rs"]);
    }

    #[test]
    fn invisible_tails_are_reported_on_their_line() {
        let found = check(&file("a.md", "fine\ntwo blanks  \nfine\r\ntab\t"));
        let expected = ["a.md:2: blanks", "a.md:3: blanks", "a.md:4: blanks", "a.md:4: no newline"];
        check_found(&found, &expected);
    }

    #[test]
    fn an_empty_file_is_fine() {
        check_found(&check(&file("a.txt", "")), &[]);
    }
}
