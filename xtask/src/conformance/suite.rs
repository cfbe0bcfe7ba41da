//! Getting the suite, and running it against a proxy of ours.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;
use crate::run::Call;
use crate::say;
use crate::workspace::Workspace;

const PACKAGE: &str = "http-cache-tests";
const SCORE: &str = include_str!("score.mjs");
/// The suite's server listens on all addresses; a test needs one, and nobody else is to reach it.
const ON_LOOPBACK: &str = "data:text/javascript,import net from 'node:net';\
    const listen = net.Server.prototype.listen;\
    net.Server.prototype.listen = function (port) { return listen.call(this, port, '127.0.0.1') }";
/// A run takes a quarter of a minute. Its client waits for ever for an answer that does not come.
const NOT_FOR_EVER: &str = "data:text/javascript,setTimeout(() => { console.error('it has not ended in five minutes'); \
    process.exit(4) }, 300000).unref()";
/// Ends a program when its own standard input ends, which is when we do, in whatever way. What the terminal sends to all of us
/// at once must not end it sooner.
const WITH_US: &str = r#"trap "" INT TERM HUP; "$@" </dev/null 2>&1 & exec >/dev/null 2>&1; cat; kill -KILL $!; wait"#;

/// The suite in a folder of its own.
pub(super) struct Suite {
    folder: PathBuf,
    package: PathBuf,
}

impl Suite {
    /// As the registry has it in this version; it stays for the next time.
    pub(super) fn get(workspace: &Workspace, version: &str) -> Result<Suite, Failure> {
        let folder = workspace.root.join("target/conformance");
        let package = folder.join("node_modules").join(PACKAGE);
        let suite = Suite { folder, package };
        if suite.is_here(version) {
            return Ok(suite);
        }
        let made = fs::create_dir_all(&suite.folder);
        made.map_err(|error| Failure::io("make", &suite.folder, &error))?;
        let wanted = format!("{PACKAGE}@{version}");
        say::aside(format!("getting {wanted}"));
        let log = suite.folder.join("install.log");
        let flags =
            ["install", "--no-save", "--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts", "--prefix", "."];
        let call = Call::new("npm").args(flags).args([&wanted]).within(&suite.folder);
        if call.logged(&log)? != Some(0) || !suite.is_here(version) {
            return Err(Failure::Io(format!("cannot get {wanted}, as {} tells; by hand:\n  {call}", log.display())));
        }
        Ok(suite)
    }

    fn is_here(&self, version: &str) -> bool {
        let manifest = fs::read_to_string(self.package.join("package.json"));
        manifest.is_ok_and(|manifest| manifest.contains(&format!("\"version\": \"{version}\"")))
    }

    /// Runs all of it against this build of the proxy, and gives what `score.mjs` prints.
    pub(super) fn run(&self, binary: &Path) -> Result<String, Failure> {
        let node = |preloaded: &str, script: &str| {
            let call = Call::new("node").args(["--no-warnings", "--import", preloaded, script]);
            call.within(&self.package).env("npm_config_protocol", "http")
        };
        let server = node(ON_LOOPBACK, "server/server.mjs").env("npm_config_port", "0");
        let server = Process::start(&server.env("npm_config_pidfile", self.folder.join("server.pid")))?;
        let flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--origin", &server.address];
        // What became of each request, to look into a test that misses.
        let log = self.folder.join("access.log");
        fs::write(&log, "").map_err(|error| Failure::io("write", &log, &error))?;
        let proxy = Call::new(binary).args(["proxy"]).args(flags).args([Path::new("--access-log"), &log]);
        let proxy = proxy.env("NO_COLOR", "1");
        let proxy = Process::start(&proxy.within(&self.folder))?;

        let results = self.folder.join("results.json");
        let client =
            node(NOT_FOR_EVER, "cli.mjs").env("npm_config_base", &proxy.address).env("npm_package_config_id", "");
        let written = client.output()?;
        fs::write(&results, written).map_err(|error| Failure::io("write", &results, &error))?;
        drop((proxy, server));

        let score = ["--no-warnings", "--input-type=module", "-e", SCORE, "--"];
        Call::new("node").args(score).args([&self.package, &results]).output()
    }
}

/// A program that serves until this is dropped, or until we end.
struct Process {
    /// The shell that watches over it.
    keeper: Child,
    /// Where it serves, as it says itself.
    address: String,
}

impl Process {
    fn start(call: &Call) -> Result<Process, Failure> {
        let cannot = |why: &str| Failure::Io(format!("cannot run `{call}`: {why}"));
        let mut command: Command = call.under("sh", &["-c", WITH_US, "sh"]);
        let mut keeper =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| cannot(&error.to_string()))?;
        let said = keeper.stdout.take();
        let mut process = Process { keeper, address: String::new() };
        let mut said = BufReader::new(said.ok_or_else(|| cannot("it has no output"))?);
        let mut all = String::new();
        while process.address.is_empty() {
            let mut line = String::new();
            // The shell has given its end of the pipe away, so it ends with the program.
            if said.read_line(&mut line).unwrap_or(0) == 0 {
                return Err(cannot(&format!("it says nothing of where it serves, but: {all}")));
            }
            process.address = address(&line).unwrap_or_default().into();
            all += &line;
        }
        // A full pipe would stop it.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}

/// The first address in a line, without the slash at its end.
fn address(line: &str) -> Option<&str> {
    let is_one = |word: &&str| word.strip_prefix("http://").is_some_and(|rest| rest.contains(':'));
    line.split_whitespace().find(is_one).map(|word| word.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_say_where_they_serve() {
        assert_eq!(address("Listening on http://127.0.0.1:41297/\n"), Some("http://127.0.0.1:41297"));
        let ours = "http://127.0.0.1:8080 stands in front of http://127.0.0.1:8000\n";
        assert_eq!(address(ours), Some("http://127.0.0.1:8080"));
        assert_eq!(address("error: https://127.0.0.1 http://nowhere"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_does_not_start_is_an_error_with_what_it_said() {
        let failure = Process::start(&Call::new("sh").args(["-c", "echo it is taken; exec 1>&- 2>&-"])).err().unwrap();
        assert!(failure.to_string().contains("it is taken"), "{failure}");
    }

    #[cfg(unix)]
    #[test]
    fn what_was_started_ends_with_who_started_it() {
        let process =
            Process::start(&Call::new("sh").args(["-c", "echo http://127.0.0.1:$$; exec sleep 600"])).unwrap();
        let id = process.address.rsplit(':').next().unwrap().to_owned();
        let lives = || Call::new("kill").args(["-0", &id]).works();
        assert!(lives());
        drop(process);
        assert!(!lives());
    }
}
