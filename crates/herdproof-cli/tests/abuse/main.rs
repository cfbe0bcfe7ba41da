//! What a stranger can do to everybody, tried: attackers and good users at the real binary, from different addresses.
//!
//! A shield that one client can lower is none. Unit tests show that each defence does what it was built for; here is shown
//! that none of them can be used against users: real processes, real sockets, and the numbers that the guide promises
//! (docs/guide/security.md). `cargo xtask abuse` runs everything in full. As an ordinary test each attack lasts a second or
//! two, and only counts are judged, never times.
//!
//! Everything is bounded in number and time, and ends by itself.

#![expect(clippy::disallowed_methods, reason = "real clients at a real process: there is no lab here")]

mod attacks;
mod client;
mod good;
mod origin;
mod report;
mod world;

use std::{
    fmt::Display,
    io::{self, Write},
    net::TcpListener,
    path::PathBuf,
    process::ExitCode,
};

use attacks::{ATTACKS, Attack};
use report::{Check, table};
use world::{ATTACKER, Context, Form};

/// What was asked for on the command line: ours, or that of a test runner.
#[derive(Debug, Default)]
struct Options {
    names: Vec<String>,
    form: Form,
    wish: Wish,
    exact: bool,
    ignored: bool,
    binary: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Table,
    Json,
    List,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--full" => options.form = Form::Full,
                "--exact" => options.exact = true,
                "--list" => options.wish = Wish::List,
                "--ignored" => options.ignored = true,
                "--json" => options.wish = Wish::Json,
                "--binary" => options.binary = Some(arguments.next().ok_or("--binary needs a path")?.into()),
                // Of test runners; there is one form of listing, and nothing is captured.
                "--format" => drop(arguments.next()),
                "--nocapture" | "--include-ignored" | "--quiet" | "-q" => {}
                _ if argument.starts_with("--format=") || argument.starts_with("--test-threads") => {}
                _ if argument.starts_with('-') => return Err(format!("there is no option {argument}")),
                _ => options.names.push(argument),
            }
        }
        Ok(options)
    }

    fn is_full(&self) -> bool {
        self.form == Form::Full
    }

    /// In full a name is one of the list; a test runner may give a part of one.
    fn chosen(&self) -> Result<Vec<&'static Attack>, String> {
        let is_exact = self.exact || self.is_full();
        let matches =
            |attack: &Attack, name: &str| if is_exact { attack.name == name } else { attack.name.contains(name) };
        if let Some(name) =
            self.names.iter().find(|name| self.is_full() && !ATTACKS.iter().any(|attack| attack.name == **name))
        {
            return Err(format!("there is no attack {name}; `cargo xtask abuse --list` shows them"));
        }
        let is_chosen = |attack: &&Attack| self.names.is_empty() || self.names.iter().any(|name| matches(attack, name));
        // No attack is one that runners should leave out.
        Ok(ATTACKS.iter().filter(|_| !self.ignored).filter(is_chosen).collect())
    }
}

fn main() -> ExitCode {
    let chosen = Options::parse(std::env::args().skip(1)).and_then(|options| Ok((options.chosen()?, options)));
    let (chosen, options) = match chosen {
        Ok(chosen) => chosen,
        Err(problem) => {
            aside(problem);
            return ExitCode::from(2);
        }
    };
    if options.wish == Wish::List {
        let width = chosen.iter().map(|attack| attack.name.len()).max().unwrap_or(0);
        for Attack { name, what, .. } in chosen {
            say(if options.is_full() { format!("{name:<width$}  {what}") } else { format!("{name}: test") });
        }
        return ExitCode::SUCCESS;
    }
    if let Err(error) = TcpListener::bind((ATTACKER, 0)) {
        aside(format_args!("nothing was tried: {ATTACKER} is no address of this machine ({error})"));
        // Not every system has all of 127.0.0.0/8.
        return if options.is_full() { ExitCode::from(3) } else { ExitCode::SUCCESS };
    }
    let binary = options.binary.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_herdproof").into());
    let context = Context { form: options.form, binary };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
    let ended = runtime.block_on(async {
        tokio::select! {
            checks = run(&context, &chosen) => Some(checks),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    // What is still running holds proxies; dropped, it ends them.
    drop(runtime);
    let Some(checks) = ended else {
        aside("stopped");
        return ExitCode::FAILURE;
    };
    show(&checks, options.wish)
}

async fn run(context: &Context, chosen: &[&'static Attack]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (number, attack) in chosen.iter().enumerate() {
        aside(format_args!("{} of {}: {}", number + 1, chosen.len(), attack.name));
        let (attack, context) = (*attack, context.clone());
        let run = tokio::spawn(async move { attack.run(&context).await }).await;
        checks.extend(run.unwrap_or_else(|panic| vec![Check::ended_early(attack.name, &panic)]));
    }
    checks
}

fn show(checks: &[Check], wish: Wish) -> ExitCode {
    let missed = checks.iter().filter(|check| check.met == Some(false)).count();
    if wish == Wish::Json {
        say(serde_json::to_string(checks).expect("strings can be written"));
    } else {
        write!(io::stdout(), "{}", table(checks)).ok();
        let judged = checks.iter().filter(|check| check.met.is_some()).count();
        say(format_args!("{} of {judged} promises kept", judged - missed));
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(text: impl Display) {
    writeln!(io::stdout(), "{text}").ok();
}

fn aside(text: impl Display) {
    writeln!(io::stderr(), "{text}").ok();
}
