//! The library is a guest in somebody's process: it prints nothing and reads no environment.

use super::{Finding, LIBRARY, TextFile, line_at, source};

const FORBIDDEN: [(&str, &str); 5] = [
    ("println!", "report it as an event"),
    ("eprintln!", "report it as an event"),
    ("print!", "report it as an event"),
    ("eprint!", "report it as an event"),
    // All of it: arguments, variables, and folders that come from variables.
    ("std::env", "take it as a parameter"),
];

pub(super) fn check(file: &TextFile) -> Vec<Finding> {
    if !file.path.starts_with(LIBRARY) || source::is_test_file(&file.path) {
        return Vec::new();
    }
    let code = source::code(&file.text);
    let mut findings = Vec::new();
    for (needle, right) in FORBIDDEN {
        let stands_alone = |offset: &usize| !code[offset + needle.len()..].starts_with(source::is_identifier);
        for offset in source::words(&code, needle).filter(stands_alone) {
            findings.push(file.finding(line_at(&code, offset), format!("the library uses `{needle}`"), right));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    #[test]
    fn a_library_that_prints_is_reported_once_for_each_place() {
        let source = "fn f() {\n    eprintln!(\"x\");\n    println!();\n}\n";
        let expected = [
            "crates/herdproof/src/a.rs:3: the library uses `println!`",
            "crates/herdproof/src/a.rs:2: the library uses `eprintln!`",
        ];
        check_found(&check(&file("crates/herdproof/src/a.rs", source)), &expected);
    }

    #[test]
    fn a_library_that_reads_the_environment_is_reported() {
        let expected = ["crates/herdproof/src/a.rs:1: the library uses `std::env`"];
        check_found(&check(&file("crates/herdproof/src/a.rs", "let x = std::env::var_os(\"X\");")), &expected);
        check_found(&check(&file("crates/herdproof/src/a.rs", "use std::env;")), &expected);
    }

    #[test]
    fn docs_tests_and_other_crates_may_print() {
        let source = "/// println!()\n#[cfg(test)]\nmod tests { fn f() { println!() } }\nfn g() { std::environs() }\n";
        check_found(&check(&file("crates/herdproof/src/a.rs", source)), &[]);
        check_found(&check(&file("crates/herdproof/src/a/tests.rs", "println!()")), &[]);
        check_found(&check(&file("crates/herdproof-cli/src/main.rs", "println!()")), &[]);
        check_found(&check(&file("crates/herdproof/examples/a.rs", "println!()")), &[]);
    }
}
