//! Caching proxies in front of herds: ours beside nginx, HAProxy, Varnish, Squid and Traffic Server.
//! needs: wrk, nginx, haproxy, varnish, squid, trafficserver
//!
//! Counts first: how many requests of a herd reach the origin, how many at one time, and what that means for those who
//! wait. Then what a hit costs, in CPU time of the proxy and everything it started. Peers run with the settings people
//! recommend against herds, ours with none. `bench/README.md` says what each case is; `--list` names them.
//!
//! Load, origin and proxy share the machine, so times are for comparing within one run. Cases in which every microsecond
//! counts are measured in rounds of alternating order, and their ratios are of minima.
#[path = "proxy/body.rs"]
mod body;
#[path = "proxy/cases.rs"]
mod cases;
#[path = "proxy/client.rs"]
mod client;
#[path = "proxy/musts.rs"]
mod musts;
#[path = "proxy/options.rs"]
mod options;
#[path = "proxy/origin.rs"]
mod origin;
#[path = "proxy/peers.rs"]
mod peers;
#[path = "proxy/process.rs"]
mod process;
#[path = "proxy/results.rs"]
mod results;
#[path = "proxy/stable.rs"]
mod stable;
#[path = "proxy/wrk.rs"]
mod wrk;

use std::{process::ExitCode, time::Instant};

use cases::{CASES, Case};
use options::Options;
use origin::Origin;
use results::Results;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stable::Stable;
use tokio::signal::unix::{SignalKind, signal};
use wrk::Processors;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench proxy: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let mut options = Options::parse(std::env::args().skip(1))?;
    if options.list {
        for case in CASES {
            println!("{:<8} {:<14} {}", case.group, case.name, case.what);
        }
        return Ok(());
    }
    if options.apart {
        options.aside = Some(Processors::set_aside()?);
    }
    let cases = chosen(&options)?;
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let origin = Origin::start().map_err(|error| format!("no origin: {error}"))?;
    let mut stable = Stable::new(&options, &origin)?;
    let mut results = Results::default();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let measuring = async {
            for case in cases {
                let begun = Instant::now();
                stable.measure(case, &mut results).await;
                results.print(case, begun.elapsed());
            }
            Ok(())
        };
        // Whoever stops it gets their machine back: the servers end with the stable, and their folders go.
        tokio::select! {
            done = measuring => done,
            told = told_to_stop() => Err(told),
        }
    })?;
    drop(stable);
    let musts = musts::all(&results);
    musts::print(&musts);
    if options.json {
        println!("{}", results.json(&musts));
    }
    Ok(())
}

/// What the user is told then.
async fn told_to_stop() -> String {
    let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else { return std::future::pending().await };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    "stopped".into()
}

fn chosen(options: &Options) -> Result<Vec<&'static Case>, String> {
    let mut cases = Vec::new();
    for name in &options.cases {
        let is_group = |case: &&Case| case.group == name;
        let begins_so = |case: &&Case| case.name.starts_with(name.as_str());
        let before = cases.len();
        cases.extend(CASES.iter().filter(is_group));
        if cases.len() == before {
            cases.extend(CASES.iter().filter(begins_so));
        }
        if cases.len() == before {
            return Err(format!("there is no case `{name}`; --list shows them"));
        }
    }
    Ok(if options.cases.is_empty() { CASES.iter().collect() } else { cases })
}

/// Clients and origin of five thousand need ten thousand sockets.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err()
        || maximum.is_some_and(|most| most < 16_000)
    {
        eprintln!("the limit of open files may be too low for the largest herds; `ulimit -Hn` shows it");
    }
}
