//! `herdproof proxy`, as a user runs it: what it says, how it is stopped, and what it does not start with.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStderr, Stdio},
};

use crate::run::{herdproof, output, stderr};

/// A running one, on ports of its own.
struct Proxy {
    child: Child,
    says: BufReader<ChildStderr>,
    at: String,
    admin: String,
}

impl Proxy {
    fn start(args: &[&str]) -> Proxy {
        let base = ["proxy", "--origin", "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut child = herdproof(&[&base, args].concat());
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut says = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = || {
            let mut line = String::new();
            says.read_line(&mut line).expect("it says something");
            line
        };
        let first = line();
        let at = first.strip_prefix("http://").and_then(|rest| rest.split(' ').next()).expect(&first).to_owned();
        assert!(first.contains("stands in front of http://127.0.0.1:"), "{first}");
        assert!(line().contains("at most 256 requests at a time"));
        let third = line();
        let admin = third.trim_end().rsplit("http://").next().expect(&third).to_owned();
        Proxy { child, says, at, admin }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status().expect("there is a `kill`");
        assert!(sent.success());
    }

    /// Waits for the end: its code, what it still said, and what it printed.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut said, mut printed) = (String::new(), String::new());
        self.says.read_to_string(&mut said).expect("it is text");
        self.child.stdout.take().expect("it is piped").read_to_string(&mut printed).expect("it is text");
        (self.child.wait().expect("it ends").code(), said, printed)
    }
}

/// One exchange on a connection of its own.
fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n").expect("it can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// What a proxy that has just started has on its page of metrics.
pub(crate) fn metrics() -> String {
    let scratch = Scratch::new("metrics");
    let proxy = Proxy::start(&["--access-log", &scratch.file("access.log", "")]);
    let page = get(&proxy.admin, "/metrics");
    proxy.signal("TERM");
    proxy.end();
    page
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("herdproof-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("it can be made");
        Scratch(dir)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[cfg(unix)]
#[test]
fn it_serves_tells_and_stops_when_asked() {
    for signal in ["INT", "TERM"] {
        let proxy = Proxy::start(&["--drain", "5s"]);
        assert!(get(&proxy.at, "/").starts_with("HTTP/1.1 "));
        assert!(get(&proxy.admin, "/healthz").ends_with("ok\n"));
        assert!(get(&proxy.admin, "/metrics").contains("\nherdproof_connections_total 1\n"));
        // That the client is gone may be heard of a little later.
        while !get(&proxy.admin, "/metrics").contains("\nherdproof_connections 0\n") {
            std::thread::yield_now();
        }
        proxy.signal(signal);
        let (code, said, printed) = proxy.end();
        assert_eq!((code, &*printed), (Some(0), ""), "{said}");
        assert!(said.contains("stopping; 0 connections have up to 5s"), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn a_hangup_opens_the_log_anew_instead_of_ending_it() {
    let scratch = Scratch::new("hangup");
    let log = scratch.file("access.log", "");
    let proxy = Proxy::start(&["--access-log", &log]);
    std::fs::rename(&log, scratch.0.join("access.log.1")).expect("it is there");
    proxy.signal("HUP");
    while !scratch.0.join("access.log").exists() {
        std::thread::yield_now();
    }
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
}

#[cfg(unix)]
#[test]
fn what_is_answered_from_memory_is_in_the_log_too() {
    let scratch = Scratch::new("log");
    let log = scratch.file("access.log", "");
    let proxy = Proxy::start(&["--access-log", &log]);
    let mut stream = BufReader::new(TcpStream::connect(&proxy.at).expect("it listens"));
    for _ in 0..3 {
        stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").expect("it can be sent");
        let mut line = String::new();
        while line != "the answer to /\n" {
            line.clear();
            assert!(stream.read_line(&mut line).expect("it answers") > 0);
        }
    }
    drop(stream);
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
    let log = std::fs::read_to_string(log).expect("it was written");
    let outcomes: Vec<&str> =
        log.lines().filter_map(|line| line.split("\"outcome\":\"").nth(1)?.split('"').next()).collect();
    assert_eq!(outcomes, ["miss", "hit", "hit"]);
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_at_once_what_the_first_would_wait_for() {
    let proxy = Proxy::start(&["--drain", "1h"]);
    // Half a request: a stop waits for the rest of it.
    let mut stream = TcpStream::connect(&proxy.at).expect("it listens");
    stream.write_all(b"GET / HT").expect("it can be sent");
    while !get(&proxy.admin, "/metrics").contains("\nherdproof_connections 1\n") {
        std::thread::yield_now();
    }
    proxy.signal("INT");
    while !get(&proxy.admin, "/readyz").contains("\r\n\r\nstopping") {
        std::thread::yield_now();
    }
    proxy.signal("INT");
    assert_eq!(proxy.end().0, Some(1));
}

#[test]
fn a_port_that_is_taken_is_an_error_of_input_and_output() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there are free ones");
    let at = taken.local_addr().expect("it has one").to_string();
    for flags in [["--listen", &at, "--admin", "off"], ["--listen", "127.0.0.1:0", "--admin", &at]] {
        let refused = output(&[&["proxy", "--origin", "demo"][..], &flags].concat());
        assert_eq!(refused.status.code(), Some(3));
        let says = format!("cannot listen on {at}: another program has port ");
        assert!(stderr(&refused).contains(&says), "{}", stderr(&refused));
    }
}

#[test]
fn what_cannot_be_is_a_mistake_that_names_itself() {
    let scratch = Scratch::new("settings");
    let wrong = scratch.file("wrong.toml", "[origin]\nurl = \"http://127.0.0.1:1\"\nlimits = 3\n");
    let mut said = String::new();
    for args in [
        &[][..],
        &["--config", &wrong],
        &["--origin", "demo", "--listen", "nowhere"],
        &["--origin", "demo", "--admin", "0.0.0.0:9090", "--listen", "127.0.0.1:0"],
        &["--origin", "demo", "--memory", "lots"],
        &["--origin", "demo", "--limit", "0"],
        &["--origin", "demo", "--drain", "30"],
        &["--origin", "demo", "--access-format", "xml"],
    ] {
        let refused = output(&[&["proxy"][..], args].concat());
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", stderr(&refused));
        assert!(refused.stdout.is_empty());
        said += &stderr(&refused).replace(&scratch.0.display().to_string(), "DIR");
        said.push('\n');
    }
    insta::assert_snapshot!(said);
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_an_error_of_input_and_output() {
    for args in [["--config", "/nowhere/herdproof.toml"], ["--access-log", "/nowhere/access.log"]] {
        let refused = output(&[&["proxy", "--origin", "demo", "--listen", "127.0.0.1:0"][..], &args].concat());
        assert_eq!(refused.status.code(), Some(3));
        assert!(stderr(&refused).contains("/nowhere/"), "{}", stderr(&refused));
    }
}
