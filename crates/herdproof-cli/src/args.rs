//! What can be said on the command line, and its help.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Keeps a crowd of identical requests from becoming a crowd at your origin
#[derive(Debug, Parser)]
#[command(
    name = "herdproof",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "What to do next:\n  \
        herdproof demo                a herd at a fragile origin, without and with, on real sockets\n  \
        herdproof lab list            the herds that can be studied here\n  \
        herdproof lab run retry-wall  see a wall of retries become a curve, in virtual time\n\n\
        Exit codes: 0 fine, 1 found or failed, 2 usage, 3 input/output."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See a herd: a crowd wants one cold key, without herdproof and with it
    #[command(
        after_help = "Everything runs in this process on 127.0.0.1, on real sockets and the wall clock: an origin that\n\
        takes 80 ms alone and 5 s with 800 requests in flight, and the clients, which connect first and\n\
        then ask within 2 ms. The same seed gives the same starts; times differ from run to run.\n\
        Exit code 1 says that herdproof spared the origin nothing or failed a client.\n\n\
        Example: herdproof demo --clients 200"
    )]
    Demo {
        /// How many clients, from 1 to 20000; each needs two open files
        #[arg(long, value_name = "N", default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..=20_000))]
        clients: u32,
        /// What the clients' starts within 2 ms follow from
        #[arg(long, default_value_t = 42)]
        seed: u64,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Study a herd: an experiment in virtual time, run with the real library code
    Lab {
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Print completions for a shell
    #[command(
        after_help = "Example: herdproof completions bash > ~/.local/share/bash-completion/completions/herdproof"
    )]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = "Example: herdproof man | man -l -")]
    Man {
        /// Write one page for each command into this folder instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the scenarios
    List {
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a scenario: every arm on the same seed, then the checks
    #[command(after_help = "The same seed gives the same bytes, on every machine.\n\
        Exit code 1 says that a check failed.\n\n\
        Example: herdproof lab run retry-wall --seed 7")]
    Run {
        /// Which scenario; `herdproof lab list` names them
        name: String,
        /// What everything random follows from
        #[arg(long, default_value_t = 42)]
        seed: u64,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
}
