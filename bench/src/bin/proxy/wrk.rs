//! Load from wrk, which costs less than any client of ours.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors, as `taskset` names them.
pub struct Processors(String);

impl Processors {
    /// Half of those there are, for load alone: whatever this process starts from now on shares the others with it.
    pub fn set_aside() -> Result<Processors, String> {
        let problem = |error| format!("processors: {error}");
        let all = sched_getaffinity(None).map_err(problem)?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let (ours, aside) = all.split_at(all.len().div_ceil(2));
        if aside.is_empty() {
            return Err("--apart takes two processors at least, and there is one".into());
        }
        let mut rest = CpuSet::new();
        ours.iter().for_each(|cpu| rest.set(*cpu));
        sched_setaffinity(None, &rest).map_err(problem)?;
        Ok(Processors(aside.iter().map(usize::to_string).collect::<Vec<_>>().join(",")))
    }
}

/// What Chrome says when somebody follows a link.
const BROWSER: [&str; 10] = [
    "Upgrade-Insecure-Requests: 1",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8",
    "Sec-Fetch-Site: same-origin",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-User: ?1",
    "Sec-Fetch-Dest: document",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Accept-Language: en-US,en;q=0.9",
    "Cookie: session=0123456789abcdef0123456789abcdef; consent=yes",
];

pub struct Load<'a> {
    /// Those it runs on; all, if it says nothing.
    pub on: Option<&'a Processors>,
    pub target: SocketAddr,
    /// What is asked for, or how it begins.
    pub path: String,
    /// Numbers below this follow the path, at random.
    pub keys: Option<usize>,
    /// Whether it asks as a browser does.
    pub browser: bool,
}

pub struct Seen {
    pub requests: u64,
    pub failed: u64,
    pub seconds: f64,
    pub p50: f64,
    pub p99: f64,
}

impl Load<'_> {
    pub fn run(&self, secs: u32) -> Result<Seen, String> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy");
        let mut command = match self.on {
            None => Command::new("wrk"),
            Some(Processors(list)) => {
                let mut command = Command::new("taskset");
                command.args(["-c", list, "wrk"]);
                command
            }
        };
        command.args(["-t2", "-c64"]).arg(format!("-d{secs}s"));
        if self.browser {
            for field in BROWSER {
                command.args(["-H", field]);
            }
        }
        match self.keys {
            None => command.arg("-s").arg(scripts.join("done.lua")).arg(format!("http://{}{}", self.target, self.path)),
            Some(keys) => command
                .arg("-s")
                .arg(scripts.join("keys.lua"))
                .arg(format!("http://{}/", self.target))
                .args(["--", &self.path, &keys.to_string()]),
        };
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("wrk: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        parse(&text).ok_or_else(|| format!("wrk said {text:?} and {:?}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn parse(text: &str) -> Option<Seen> {
    let mut words = text.lines().find_map(|line| line.strip_prefix("seen "))?.split(' ');
    Some(Seen {
        requests: words.next()?.parse().ok().filter(|requests| *requests > 0)?,
        failed: words.next()?.parse().ok()?,
        seconds: words.next()?.parse().ok()?,
        p50: words.next()?.parse().ok()?,
        p99: words.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_an_answer_is_no_measurement() {
        let seen = parse("Running 3s test\nseen 1000 2 3.000000 0.7 1.9\n").unwrap();
        assert_eq!((seen.requests, seen.failed, seen.p99), (1000, 2, 1.9));
        assert!(parse("seen 0 0 3.000000 0 0\n").is_none());
    }
}
