//! Help, mistakes, pipes and terminals.

use crate::run::{herdproof, output, printed, stderr};

#[test]
fn help_says_what_to_do_next() {
    insta::assert_snapshot!(printed(&["--help"]));
}

#[test]
fn nothing_at_all_gives_the_help_and_the_code_for_usage() {
    let nothing = output(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(stderr(&nothing).contains("What to do next"));
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(printed(&["--version"]), concat!("herdproof ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_mistake_names_itself_and_the_way_out() {
    for (args, says) in [
        (&["lab", "run", "retry_wall"][..], "did you mean \"retry-wall\"?"),
        (&["lab", "run", "quicksort"], "`herdproof lab list` shows them all"),
        (&["lab", "run", "retry-wall", "--seed", "many"], "invalid value 'many' for '--seed <SEED>'"),
        (&["lab", "run", "retry-wall", "--seed", "-1"], "a whole number from 0 to 18446744073709551615"),
        (&["lab", "run", "retry-wall", "--seed", "abc"], "a whole number from 0 to 18446744073709551615"),
        (&["lab", "run", "retry-wall", "--runs", "-1"], "a whole number from 1 to 100000"),
        (&["proxy", "--limit", "99999999999999999999"], "a whole number from 1 to 100000"),
        (&["lab", "run"], "<NAME>"),
        (&["completions", "cmd.exe"], "possible values: bash"),
        (&["proxi"], "unrecognized subcommand 'proxi'"),
    ] {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?} said {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?} printed something");
    }
}

#[test]
fn colours_are_for_terminals_and_for_those_who_insist() {
    let escapes =
        |command: &mut std::process::Command| command.output().expect("the binary starts").stdout.contains(&0x1b);
    let run = &["lab", "list"];
    assert!(!escapes(&mut herdproof(run)), "a pipe is not a terminal");
    assert!(escapes(herdproof(run).env("CLICOLOR_FORCE", "1")));
    assert!(!escapes(herdproof(run).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1")) || cfg!(windows));
}

#[test]
fn a_reader_that_has_seen_enough_is_not_an_error() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = herdproof(&["lab", "run", "retry-wall"]).stdout(writer).output().expect("the binary starts");
    assert_eq!(status.status.code(), Some(0), "{}", stderr(&status));
    assert!(status.stderr.is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_input_and_output() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = herdproof(&["lab", "list"]).stdout(full).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("cannot write to standard output: No space left"), "{}", stderr(&output));
}
