//! What can be said on the command line, and its help.

mod lab;
mod number;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use herdproof_proxy::settings::{Listen, NotAnAddress, parse_address, parse_size, parse_time};

use number::{seed, whole};

pub(crate) use lab::{LabCommand, RunArgs, SweepArgs};

/// Keeps a crowd of identical requests from becoming a crowd at your origin
#[derive(Debug, Parser)]
#[command(
    name = "herdproof",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "What to do next:\n  \
        herdproof demo                a herd at a fragile origin, without and with, on real sockets\n  \
        herdproof proxy --origin URL  stand in front of a service\n  \
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
        #[arg(long, value_name = "N", default_value_t = 800, allow_negative_numbers = true, value_parser = whole::<u32>(1, 20_000))]
        clients: u32,
        /// What the clients' starts within 2 ms follow from
        #[arg(long, default_value_t = 42, allow_negative_numbers = true, value_parser = seed)]
        seed: u64,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Stand in front of a service: a caching proxy that no herd gets through
    #[command(
        after_help = "What is under way when it is stopped (ctrl-c, SIGTERM) is answered first; a second ctrl-c ends it at\n\
        once. SIGHUP opens the access log anew, for rotation. Flags override what the file says.\n\n\
        Example: herdproof proxy --origin http://127.0.0.1:3000\n\
        Example: herdproof proxy --origin demo --access-log -"
    )]
    Proxy(Box<ProxyArgs>),
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

#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    #[arg(
        long,
        value_name = "URL",
        help = "The service behind, such as http://127.0.0.1:3000; `demo` starts a fragile one here"
    )]
    pub(crate) origin: Option<String>,
    /// Where clients are served, such as `unix:/run/herdproof.sock` [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<Listen>,
    /// Where metrics and health are, or `off` [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", value_parser = admin_address)]
    pub(crate) admin: Option<AdminAddress>,
    /// Let others reach the admin address, which has no password
    #[arg(long)]
    pub(crate) admin_anywhere: bool,
    /// Settings, as a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Requests at the origin at a time, to begin with [default: 256]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u32>(1, 100_000))]
    pub(crate) limit: Option<u32>,
    /// How long a response is fresh that does not state it, such as 10s [default: not at all, or by its age]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) ttl: Option<Duration>,
    /// How long a stale response is served while it is loaded again, such as 1m [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) grace: Option<Duration>,
    /// Memory for responses, such as 64MiB [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Client connections at a time; others wait [default: 10000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u32>(1, 10_000_000))]
    pub(crate) max_connections: Option<u32>,
    /// How long a stop waits for what is under way, such as 5s [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) drain: Option<Duration>,
    /// Write a line for each request to the end of this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<String>,
    /// How such a line looks [default: json]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) access_format: Option<AccessFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessFormat {
    /// One JSON object per line
    Json,
    /// As web servers write it, with more behind it
    Combined,
}

/// An address, or nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminAddress(pub(crate) Option<SocketAddr>);

fn admin_address(text: &str) -> Result<AdminAddress, NotAnAddress> {
    if text == "off" { Ok(AdminAddress(None)) } else { parse_address(text).map(|address| AdminAddress(Some(address))) }
}
