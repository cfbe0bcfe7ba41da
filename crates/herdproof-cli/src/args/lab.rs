//! What can be said behind `herdproof lab`.

use std::path::PathBuf;

use clap::Subcommand;

use super::number::{seed, whole};

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the scenarios, or what can be set in one
    #[command(after_help = "Example: herdproof lab list\nExample: herdproof lab list retry-wall")]
    List {
        /// Which scenario; its parameters are listed, with what each is by default and its range
        name: Option<String>,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a scenario: every arm on the same seed, then the checks
    #[command(after_help = "The same seed gives the same bytes, on every machine.\n\
        Exit code 1 says that a check failed, or that ctrl-c left runs out. Checks are about the\n\
        parameters as they are: with --set they are shown, and none fails.\n\n\
        --log writes what the origin sees of one arm (--arm, else the first), a line of JSON for each request:\n\
        the fields of the proxy's access log, and what made it: \"herd\" (retry, ttl, cron and others, or null\n\
        for users who come by themselves) and \"wave\", from 0. Only election has none: nobody calls there.\n\n\
        Example: herdproof lab run retry-wall --seed 7\n\
        Example: herdproof lab run retry-wall --set clients=1000 --set base_delay=50ms\n\
        Example: herdproof lab run xfetch --runs 30\n\
        Example: herdproof lab run retry-storm --arm doubled --log storm.jsonl")]
    Run(RunArgs),
    /// Run a scenario over a grid of parameters, and draw a map of a figure
    #[command(
        after_help = "A range is NAME=FROM..TO, with :STEPS for how many values (12 if nothing is said, 200 at most) and an x\n\
        behind it for values that multiply: clients=10..1000:5x. One axis gives bars, two give a heat map in\n\
        shades or colours; a number beside a row says where it falls or rises by more than half of the range.\n\
        Scenarios that name a sweep of their own (metastable, ttl-jitter, autoscale, retry-storm) need no --x.\n\
        Ctrl-C draws what is done; exit code 1 says that cells are missing.\n\n\
        Example: herdproof lab sweep metastable\n\
        Example: herdproof lab sweep metastable --arm defaults --html frontier.html\n\
        Example: herdproof lab sweep stampede --x callers=10..10000:7x --of p99_ms --arm cache"
    )]
    Sweep(SweepArgs),
    /// The trade-offs of eight techniques, with every cell measured
    #[command(
        after_help = "Jitter, backoff, coalescing and five more: does each break synchrony, reduce work, add latency, risk\n\
        answers? A cell is two arms of a scenario and one of their figures, by a rule that is printed with it;\n\
        ? says that no scenario measures it, and a star that the article says otherwise.\n\n\
        Example: herdproof lab table\n\
        Example: herdproof lab table --seed 7 --json"
    )]
    Table {
        /// What everything random follows from
        #[arg(long, default_value_t = 42, allow_negative_numbers = true, value_parser = seed)]
        seed: u64,
        /// Also write the table as a page of its own to this file, or `-` for standard output
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Questions that a run answers: predict first, then see
    #[command(
        after_help = "To each question say a, b, c or d; Enter shows the answer without a prediction, q ends. Then what decides\n\
        it is run: the figures, the commands that show them, and why. Answers are also read from a pipe, one\n\
        for each line; without any, the questions are listed.\n\n\
        Example: herdproof lab ask\n\
        Example: herdproof lab ask 4\n\
        Example: echo b | herdproof lab ask 4"
    )]
    Ask {
        /// Which question, by its number; or all
        #[arg(value_name = "N|all")]
        which: Option<String>,
        /// What everything random follows from
        #[arg(long, default_value_t = 42, allow_negative_numbers = true, value_parser = seed)]
        seed: u64,
    },
    /// Put every claim to the test: all scenarios on 20 seeds
    #[command(
        after_help = "Numbers of the articles, formulas, published measurements and what the library promises, each\n\
        with its tolerance. With --json the last line is {\"checks\": [{name, source, expected, measured, passed}]}.\n\
        Exit code 1 says that a claim did not hold on every seed.\n\n\
        Example: herdproof lab verify\n\
        Example: herdproof lab verify retry-wall xfetch"
    )]
    Verify {
        /// Only these scenarios
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// As one line of JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Which scenario; `herdproof lab list` names them
    pub(crate) name: String,
    /// Show this arm only, by its name or the beginning of it; may be repeated
    #[arg(long, value_name = "ARM")]
    pub(crate) arm: Vec<String>,
    /// Change a parameter; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// What everything random follows from
    #[arg(long, default_value_t = 42, allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
    /// Run it on so many seeds, and give medians with their 95 % intervals
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<u32>(1, 100_000))]
    pub(crate) runs: u32,
    /// Also write the requests of one arm as an access log with truth labels to this file, or `-` for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "runs")]
    pub(crate) log: Option<PathBuf>,
    /// Also write the report as a page of its own, with pictures, to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// As one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Which scenario; `herdproof lab list` names them
    pub(crate) name: String,
    /// The parameter to the right, from where to where
    #[arg(long, value_name = "NAME=FROM..TO")]
    pub(crate) x: Option<String>,
    /// The parameter upwards
    #[arg(long, value_name = "NAME=FROM..TO", requires = "x")]
    pub(crate) y: Option<String>,
    /// Whose figure, by the arm's name or the beginning of it [default: the first arm's]
    #[arg(long, value_name = "ARM")]
    pub(crate) arm: Option<String>,
    /// Which figure, by its key in JSON [default: the first]
    #[arg(long, value_name = "FIGURE")]
    pub(crate) of: Option<String>,
    /// Change a parameter for the whole map; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// What everything random follows from
    #[arg(long, default_value_t = 42, allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
    /// Run each cell on so many seeds, and show the median
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<u32>(1, 10_000))]
    pub(crate) runs: u32,
    /// Also write the map as a page of its own to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// As one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
