//! `herdproof demo`: a herd at a fragile origin, without and with.

use std::{fmt::Write, io};

use herdproof::Env;
use herdproof_lab::{Comparison, Demo, Way, real::clients_that_fit};

use crate::{
    Done, Verdict,
    output::{Failure, Output, Progress},
};

const BOLD: anstyle::Style = anstyle::Style::new().bold();

pub(crate) fn run(output: &mut Output, clients_asked: u32, seed: u64, json: bool) -> Done {
    let clients = clients_that_fit(clients_asked);
    if clients == 0 {
        return Err(Failure::Io {
            what: "cannot open a socket for even one client".into(),
            error: io::Error::other("the limit of open files is too low; see `ulimit -Hn`"),
        });
    }
    if clients < clients_asked {
        output.note(format_args!(
            "the limit of open files has room for {clients} clients, not {clients_asked}; `ulimit -Hn` shows it"
        ));
    }
    let comparison = compare(Demo { clients, clients_asked, seed })?;
    if json {
        output.json(&comparison)?;
    } else {
        output.text(coloured(&comparison))?;
    }
    Ok(if comparison.passed() { Verdict::Fine } else { Verdict::Found })
}

/// Runs it on a runtime of its own, of which nothing is left.
fn compare(demo: Demo) -> Result<Comparison, Failure> {
    let failed = |error| Failure::Io { what: "cannot run servers on 127.0.0.1".into(), error };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
    let comparison = runtime.block_on(async {
        let env = Env::system();
        let progress = Progress::start(&env);
        let on_way = |way| {
            let what = match way {
                Way::Without => "straight at the origin",
                Way::With => "through herdproof",
            };
            progress.now(format!("{} clients {what}", demo.clients), demo.expected(way));
        };
        demo.run(&env, on_way).await
    });
    comparison.map_err(failed)
}

/// The comparison with the words that matter set off.
fn coloured(comparison: &Comparison) -> String {
    let mut text = String::new();
    for line in comparison.to_string().lines() {
        let matters = !line.starts_with("  ") || line.trim_start().starts_with("origin requests");
        let _ = if matters && !line.is_empty() {
            writeln!(text, "{}{line}{}", BOLD.render(), BOLD.render_reset())
        } else {
            writeln!(text, "{line}")
        };
    }
    text
}
