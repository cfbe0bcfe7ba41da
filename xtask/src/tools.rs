//! Programs that a chore needs and a clone does not bring.
//!
//! A [`Tool`] knows how to see whether it is there, how to get it, and why anybody would want it. A chore asks with
//! [`Tool::ensure`] and decides for itself whether to go on without.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::run::Call;
use crate::say;
use crate::workspace::Workspace;

pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Completes "it is needed to ...".
    pub(crate) why: &'static str,
    source: Source,
}

/// Where a tool comes from decides how to look for it and how to install it.
enum Source {
    /// Changing the user's Rust is the user's decision: we only say how.
    Cargo {
        subcommand: &'static str,
        install: &'static str,
    },
    Debian {
        program: &'static str,
        package: &'static str,
    },
    /// A package that would start its server as soon as it is installed, on a port that may be somebody's.
    DebianServer {
        program: &'static str,
        package: &'static str,
    },
    /// Lives in a virtual environment of ours, so nothing of the system changes.
    Python {
        module: &'static str,
    },
}

/// What came of asking for a tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Here,
    /// With what the user can do about it.
    Missing(String),
}

pub(crate) const RUSTFMT: Tool = Tool {
    name: "cargo fmt",
    why: "check the format",
    source: Source::Cargo { subcommand: "fmt", install: "rustup component add rustfmt" },
};

pub(crate) const CLIPPY: Tool = Tool {
    name: "cargo clippy",
    why: "check the lints",
    source: Source::Cargo { subcommand: "clippy", install: "rustup component add clippy" },
};

pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo nextest",
    why: "run tests in parallel, each in a process of its own",
    source: Source::Cargo { subcommand: "nextest", install: "cargo install --locked cargo-nextest" },
};

pub(crate) const NODE: Tool = Tool {
    name: "node",
    why: "run the public suite of cache tests",
    source: Source::Debian { program: "node", package: "nodejs" },
};

pub(crate) const NPM: Tool = Tool {
    name: "npm",
    why: "get the public suite of cache tests",
    source: Source::Debian { program: "npm", package: "npm" },
};

/// What a bench may name in its `needs:` line.
const FOR_BENCHES: [Tool; 8] = [
    Tool {
        name: "valgrind",
        why: "count instructions instead of noisy nanoseconds",
        source: Source::Debian { program: "valgrind", package: "valgrind" },
    },
    Tool {
        name: "simpy",
        why: "run the same experiment in the simulator people know",
        source: Source::Python { module: "simpy" },
    },
    Tool {
        name: "wrk",
        why: "ask for the same thing as often as a proxy can answer",
        source: Source::Debian { program: "wrk", package: "wrk" },
    },
    server("nginx", "nginx", "nginx-light"),
    server("haproxy", "haproxy", "haproxy"),
    server("varnish", "varnishd", "varnish"),
    server("squid", "squid", "squid"),
    server("trafficserver", "traffic_server", "trafficserver"),
];

const fn server(name: &'static str, program: &'static str, package: &'static str) -> Tool {
    Tool { name, why: "measure it beside ours", source: Source::DebianServer { program, package } }
}

/// Where Debian keeps servers; the path of an ordinary user leaves them out.
const SERVERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

pub(crate) fn for_bench(name: &str) -> Result<&'static Tool, Failure> {
    FOR_BENCHES.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let known: Vec<_> = FOR_BENCHES.iter().map(|tool| tool.name).collect();
        Failure::Found(format!(
            "it needs `{name}`, which xtask/src/tools.rs does not know; known: {}",
            known.join(", ")
        ))
    })
}

impl Tool {
    pub(crate) fn is_here(&self, workspace: &Workspace) -> bool {
        let probe = match self.source {
            Source::Cargo { subcommand, .. } => Call::new("cargo").args([subcommand, "--version"]),
            // Many of them know no `--version`, so this does not run them.
            Source::Debian { program, .. } | Source::DebianServer { program, .. } => return is_on_path(program),
            Source::Python { module } => {
                Call::new(venv_python(&workspace.root)).args(["-c", &format!("import {module}")])
            }
        };
        probe.within(&workspace.root).works()
    }

    /// Looks, and installs what may be installed without asking.
    pub(crate) fn ensure(&self, workspace: &Workspace) -> Presence {
        if self.is_here(workspace) {
            return Presence::Here;
        }
        let steps = match self.source {
            Source::Debian { package, .. } if is_root() => debian_steps(package),
            Source::DebianServer { package, .. } if is_root() => debian_server_steps(package),
            Source::Python { module } => python_steps(&workspace.root, module),
            Source::Cargo { .. } | Source::Debian { .. } | Source::DebianServer { .. } => return self.missing(""),
        };
        say::aside(format!("installing {}, to {}", self.name, self.why));
        let log = workspace.root.join("target/xtask").join(format!("install-{}.log", self.name));
        for step in steps {
            match step.within(&workspace.root).logged(&log) {
                Ok(Some(0)) => {}
                Ok(_) => return self.missing(&format!(", installing it failed as {} tells", log.display())),
                Err(failure) => return self.missing(&format!(", {failure}")),
            }
        }
        if self.is_here(workspace) {
            Presence::Here
        } else {
            self.missing(&format!(", it does not answer although {} looks well", log.display()))
        }
    }

    /// What a program started by us needs in its environment to find the tool.
    pub(crate) fn variable(&self, workspace: &Workspace) -> Option<(&'static str, PathBuf)> {
        match self.source {
            Source::Python { .. } => Some(("HERDPROOF_BENCH_PYTHON", venv_python(&workspace.root))),
            Source::Cargo { .. } | Source::Debian { .. } | Source::DebianServer { .. } => None,
        }
    }

    fn missing(&self, happened: &str) -> Presence {
        let Self { name, why, .. } = self;
        Presence::Missing(format!(
            "{name} is missing (needed to {why}){happened}: install it with `{}`",
            self.by_hand()
        ))
    }

    fn by_hand(&self) -> String {
        match self.source {
            Source::Cargo { install, .. } => install.into(),
            Source::Debian { package, .. } | Source::DebianServer { package, .. } => {
                format!("sudo apt-get install {package}")
            }
            Source::Python { module } => {
                format!("python3 -m venv bench/target/venv && bench/target/venv/bin/python -m pip install {module}")
            }
        }
    }
}

fn debian_steps(package: &str) -> Vec<Call> {
    let apt = |arguments: &[&str]| {
        Call::new("apt-get").args(arguments.iter().copied()).env("DEBIAN_FRONTEND", "noninteractive")
    };
    vec![apt(&["update"]), apt(&["install", "-y", package])]
}

/// Debian asks `policy-rc.d` before it starts anything; who has one of their own keeps it.
const WITHOUT_STARTING: &str = r#"policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy"
fi
apt-get install -y --no-install-recommends "$1""#;

fn debian_server_steps(package: &str) -> Vec<Call> {
    let update = Call::new("apt-get").args(["update"]);
    let install = Call::new("sh").args(["-c", WITHOUT_STARTING, "install", package]);
    vec![update, install].into_iter().map(|step| step.env("DEBIAN_FRONTEND", "noninteractive")).collect()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(SERVERS.map(PathBuf::from)).any(|folder| folder.join(program).is_file())
}

fn python_steps(root: &Path, module: &str) -> Vec<Call> {
    let make_venv = Call::new("python3").args(["-m", "venv"]).args([venv(root)]);
    vec![make_venv, Call::new(venv_python(root)).args(["-m", "pip", "install", module])]
}

fn venv(root: &Path) -> PathBuf {
    root.join("bench/target/venv")
}

fn venv_python(root: &Path) -> PathBuf {
    venv(root).join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

fn is_root() -> bool {
    Call::new("id").args(["-u"]).output().is_ok_and(|user| user.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn workspace(scratch: &Scratch) -> Workspace {
        let root = scratch.path().into();
        Workspace { root, version: String::new(), rust_version: String::new(), members: Vec::new() }
    }

    #[test]
    fn a_tool_nobody_can_install_is_an_error_that_lists_the_known() {
        let failure = for_bench("valgrnd").err().unwrap().to_string();
        assert!(failure.contains("`valgrnd`") && failure.contains("valgrind, simpy"), "{failure}");
    }

    #[test]
    fn a_missing_cargo_command_is_explained_and_not_installed() {
        let scratch = Scratch::new();
        let tool = Tool {
            name: "cargo herd",
            why: "see one",
            source: Source::Cargo { subcommand: "no-such-herd", install: "rustup component add herd" },
        };
        let Presence::Missing(advice) = tool.ensure(&workspace(&scratch)) else { panic!("it was found") };
        assert_eq!(advice, "cargo herd is missing (needed to see one): install it with `rustup component add herd`");
    }

    #[test]
    fn a_python_module_elsewhere_on_the_machine_does_not_count() {
        let scratch = Scratch::new();
        let tool = Tool { name: "json", why: "read", source: Source::Python { module: "json" } };
        assert!(!tool.is_here(&workspace(&scratch)));
    }

    #[test]
    fn a_program_that_knows_no_version_flag_is_seen_without_running_it() {
        assert!(is_on_path("sh") && !is_on_path("no-such-herd"));
    }
}
