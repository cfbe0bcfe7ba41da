//! The servers of a run, and whose turn it is.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use futures_util::future::join_all;

use super::{
    cases::{Case, Prepared, Row, Stage, Way},
    options::Options,
    origin::Origin,
    peers::{OURS, PEERS, Peer, Running},
    results::Results,
};

pub struct Stable<'a> {
    options: &'a Options,
    origin: &'a Origin,
    boxes: Vec<Box>,
}

/// Where one server stands.
struct Box {
    peer: &'static Peer,
    program: PathBuf,
    running: Option<Running>,
}

impl<'a> Stable<'a> {
    /// Everybody who is asked for and here.
    pub fn new(options: &'a Options, origin: &'a Origin) -> Result<Stable<'a>, String> {
        let is_known = |name: &&String| PEERS.iter().any(|peer| peer.name == name.as_str());
        if let Some(unknown) = options.peers.iter().find(|name| !is_known(name)) {
            let names: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
            return Err(format!("there is no peer `{unknown}`; there are {}", names.join(", ")));
        }
        let is_chosen = |peer: &&Peer| options.peers.is_empty() || options.peers.iter().any(|name| name == peer.name);
        let mut boxes = Vec::new();
        for peer in PEERS.iter().filter(is_chosen) {
            let program = if peer.name == OURS { ours(options.binary.as_deref()).map(Some)? } else { peer.find() };
            match program {
                Some(program) => boxes.push(Box { peer, program, running: None }),
                None => eprintln!("without {}, which is not installed", peer.name),
            }
        }
        Ok(Stable { options, origin, boxes })
    }

    /// Whatever fails costs a server its row, not the run.
    pub async fn measure(&mut self, case: &Case, results: &mut Results) {
        let is_left_out = |at: &Box| case.way == Way::Ours && at.peer.name != OURS && self.options.peers.is_empty();
        let (options, origin) = (self.options, self.origin);
        let starting = self.boxes.iter_mut().filter(|at| !is_left_out(at)).map(|at| at.ready(case, origin));
        for problem in join_all(starting).await.into_iter().filter_map(Result::err) {
            results.fails(case, &problem);
        }
        let running: Vec<&Running> = self.boxes.iter().filter_map(|at| at.running.as_ref()).collect();
        let stage = |running, prepared| Stage { running, origin, options, prepared, is_real: case.is_real() };
        // Ours before the others, and alone: what it does is looked at more closely.
        let (ours, others): (Vec<&Running>, Vec<&Running>) =
            running.into_iter().partition(|running| running.peer.name == OURS);
        let mut entries: Vec<(&Running, Option<Prepared>)> = Vec::new();
        for together in [ours, others] {
            if case.prepare.is_some() && !together.is_empty() {
                say(case, &format!("preparing {}", names(&together)));
            }
            let preparing = together.into_iter().map(|running| async move {
                let prepared = match case.prepare {
                    Some(prepare) => prepare(&stage(running, None)).await.map(Some),
                    None => Ok(None),
                };
                (running, prepared)
            });
            for (running, prepared) in join_all(preparing).await {
                match prepared {
                    Ok(prepared) => entries.push((running, prepared)),
                    Err(problem) => results.fails(case, &format!("{}: {problem}", running.peer.name)),
                }
            }
        }
        let all: Vec<usize> = (0..entries.len()).collect();
        let one_by_one = |indices: Vec<usize>| indices.into_iter().map(|index| vec![index]).collect();
        let turns: Vec<Vec<usize>> = match case.way {
            Way::Alone | Way::Ours => one_by_one(all),
            Way::Together => vec![all],
            Way::OursFirst => {
                all.chunk_by(|a, b| is_ours(&entries, *a) == is_ours(&entries, *b)).map(Into::into).collect()
            }
            Way::Rounds => {
                let back: Vec<usize> = all.iter().rev().copied().collect();
                one_by_one(
                    (0..options.rounds).flat_map(|round| if round % 2 == 0 { &all } else { &back }).copied().collect(),
                )
            }
        };
        for (turn, together) in turns.iter().enumerate() {
            let turning: Vec<&Running> = together.iter().map(|index| entries[*index].0).collect();
            say(case, &format!("turn {} of {}: {}", turn + 1, turns.len(), names(&turning)));
            let measuring = together.iter().map(|index| async {
                let (running, prepared) = &entries[*index];
                (running.peer.name, (case.run)(&stage(running, prepared.as_ref())).await)
            });
            for (name, measured) in join_all(measuring).await {
                match measured {
                    Ok(rows) => rows.into_iter().for_each(|row: Row| results.add(case, name, row)),
                    Err(problem) => results.fails(case, &format!("{name}: {problem}")),
                }
            }
        }
        drop(entries);
        eprint!("\r\x1b[K");
        for at in &mut self.boxes {
            if at.peer.starts_quickly || case.leaves_traces {
                at.running = None;
            }
        }
    }
}

impl Box {
    async fn ready(&mut self, case: &Case, origin: &Origin) -> Result<(), String> {
        let is_new = self.peer.starts_quickly || (case.leaves_traces && case.prepare.is_some());
        if is_new || self.running.as_mut().is_some_and(|running| running.process.has_ended()) {
            self.running = None;
        }
        if self.running.is_none() {
            self.running = Some(self.peer.start(&self.program, origin, case.is_real()).await?);
        }
        Ok(())
    }
}

fn is_ours(entries: &[(&Running, Option<Prepared>)], index: usize) -> bool {
    entries[index].0.peer.name == OURS
}

fn names(running: &[&Running]) -> String {
    let names: Vec<&str> = running.iter().map(|running| running.peer.name).collect();
    names.join(", ")
}

fn say(case: &Case, what: &str) {
    let mut err = std::io::stderr();
    let _ = write!(err, "\r\x1b[K{}: {what}", case.name);
    let _ = err.flush();
}

/// Our program, built as it is shipped unless it is there already.
fn ours(binary: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(binary) = binary {
        return binary.canonicalize().map_err(|error| format!("{}: {error}", binary.display()));
    }
    eprintln!("building herdproof");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--profile", "dist", "--bin", OURS, "--message-format", "json"]);
    let output = cargo.arg("--manifest-path").arg(manifest).stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut messages = text.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = messages.find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)));
    built.filter(|_| output.status.success()).ok_or_else(|| "herdproof cannot be built".into())
}
