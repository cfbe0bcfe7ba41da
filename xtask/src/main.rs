//! Repository chores, so that a stranger needs to know one command and not nine.
//!
//! Each chore is a module of the same name. A chore decides in plain functions over text and acts in a thin shell, so
//! the deciding part is tested without a repository around it.

mod abuse;
mod bench;
mod conformance;
mod failure;
mod manifest;
mod mutants;
mod run;
mod say;
#[cfg(test)]
mod scratch;
mod test;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use crate::failure::Failure;
use crate::workspace::Workspace;

struct Command {
    name: &'static str,
    arguments: &'static str,
    what: &'static str,
    run: fn(&Workspace, &[String]) -> Result<(), Failure>,
}

const COMMANDS: [Command; 6] = [
    Command {
        name: "test",
        arguments: "[--skip STEP]...",
        what: "everything a change must pass: format, lints, tests, docs",
        run: test::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        what: "what compilers do not check: module rows, links, README, files",
        run: tidy::run,
    },
    Command {
        name: "bench",
        arguments: "[NAME [--json] [ARGS]...]",
        what: "one measurement against the peers; without NAME, the list",
        run: bench::run,
    },
    Command {
        name: "abuse",
        arguments: "[NAME]... [--list] [--json]",
        what: "attacks the proxy beside good users and judges what they see; with --binary PATH, another build of it",
        run: abuse::run,
    },
    Command {
        name: "conformance",
        arguments: "[--binary PATH]",
        what: "the public suite of cache tests against the proxy; needs node and npm",
        run: conformance::run,
    },
    Command {
        name: "mutants",
        arguments: "[WORD]",
        what: "switches remedies off and sees that a named test notices; WORD is a name or a part of it or of the file",
        run: mutants::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match obey(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::aside(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn obey(arguments: &[String]) -> Result<(), Failure> {
    match wish(arguments)? {
        Wish::Help => {
            say::line(help());
            Ok(())
        }
        Wish::Run(command, rest) => (command.run)(&Workspace::find()?, rest),
    }
}

enum Wish<'a> {
    Help,
    Run(&'static Command, &'a [String]),
}

fn wish(arguments: &[String]) -> Result<Wish<'_>, Failure> {
    let Some((name, rest)) = arguments.split_first() else { return Ok(Wish::Help) };
    // Further back, `--help` may be meant for a bench.
    if asks_for_help(Some(name)) || asks_for_help(rest.first()) {
        return Ok(Wish::Help);
    }
    let command = COMMANDS.iter().find(|command| command.name == name).ok_or_else(|| {
        Failure::Usage(format!("there is no command `{name}`; there are: {}", command_names().join(", ")))
    })?;
    Ok(Wish::Run(command, rest))
}

fn asks_for_help(argument: Option<&String>) -> bool {
    argument.is_some_and(|argument| matches!(argument.as_str(), "--help" | "-h"))
}

fn command_names() -> Vec<&'static str> {
    COMMANDS.iter().map(|command| command.name).collect()
}

fn help() -> String {
    let rows = COMMANDS.iter().map(|Command { name, arguments, what, .. }| {
        let call = format!("{name} {arguments}");
        format!("  {call:<34}{what}\n")
    });
    format!(
        "Repository chores for Herdproof.\n\n\
         Usage: cargo xtask COMMAND\n\n\
         {}\n\
         Start with `cargo xtask test`. For a change of prose only, `cargo xtask tidy` is enough.\n\
         Exit codes: 0 fine, 1 found or failed, 2 usage, 3 input/output.",
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(arguments: &[&str]) -> Result<&'static str, u8> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        match wish(&arguments) {
            Ok(Wish::Help) => Ok("help"),
            Ok(Wish::Run(command, _)) => Ok(command.name),
            Err(failure) => Err(failure.exit_code()),
        }
    }

    #[test]
    fn a_mistyped_command_is_a_usage_error() {
        assert_eq!(wanted(&["tset"]), Err(2));
    }

    #[test]
    fn asking_for_help_on_a_command_does_not_run_it() {
        assert_eq!(
            (wanted(&["mutants", "--help"]), wanted(&["-h"]), wanted(&[])),
            (Ok("help"), Ok("help"), Ok("help"))
        );
    }

    #[test]
    fn help_meant_for_a_bench_reaches_the_bench() {
        assert_eq!(wanted(&["bench", "flight", "--help"]), Ok("bench"));
    }

    #[test]
    fn a_command_missing_from_the_help_would_be_unfindable() {
        let help = help();
        for name in command_names() {
            assert!(help.contains(&format!("\n  {name} ")), "{name} is not in:\n{help}");
        }
    }
}
