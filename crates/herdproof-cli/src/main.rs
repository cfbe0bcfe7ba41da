//! The one binary, `herdproof`: arguments in, text or JSON out, an exit code.
//!
//! Exit codes: 0 fine, 1 something was found or failed, 2 the command line was wrong, 3 input or output failed.

mod args;
mod demo;
mod lab;
mod manual;
mod output;
mod proxy;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, LabCommand};
use output::{Failure, Output};

fn main() -> ExitCode {
    let args = Args::parse();
    let mut output = Output::new();
    let done = match args.command {
        Command::Demo { clients, seed, json } => demo::run(&mut output, clients, seed, json),
        Command::Proxy(args) => proxy::run(&output, *args),
        Command::Lab { command: LabCommand::List { name, json } } => lab::list(&mut output, name.as_deref(), json),
        Command::Lab { command: LabCommand::Run(args) } => lab::run(&mut output, &args),
        Command::Lab { command: LabCommand::Sweep(args) } => lab::sweep(&mut output, &args),
        Command::Lab { command: LabCommand::Table { seed, html, json } } => {
            lab::table(&mut output, seed, html.as_deref(), json)
        }
        Command::Lab { command: LabCommand::Ask { which, seed } } => lab::ask(&mut output, which.as_deref(), seed),
        Command::Lab { command: LabCommand::Verify { names, json } } => lab::verify(&mut output, &names, json),
        Command::Completions { shell } => manual::completions(&mut output, shell),
        Command::Man { dir } => manual::man(&mut output, dir.as_deref()),
    };
    output.finish(done)
}

/// Either everything was fine, or something was found that a script should learn of.
type Done = Result<Verdict, Failure>;

/// What a command that worked has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    Found,
}
