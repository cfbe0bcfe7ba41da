//! A program that was started here: what it costs, and its end.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may tidy up before it is made to end.
const GRACE: Duration = Duration::from_millis(1500);

/// A server and whatever it has started. Dropping it ends them, by their numbers.
pub struct Process {
    child: Child,
}

impl Process {
    pub fn start(command: &mut Command) -> std::io::Result<Process> {
        // SAFETY: it runs between fork and exec, where it makes one system call and touches nothing else.
        unsafe {
            command.pre_exec(|| {
                // Whatever becomes of the bench, no server is left behind.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        Ok(Process { child: command.spawn()? })
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Its own number and those of its children and theirs.
    fn tree(&self) -> Vec<u32> {
        let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
                Some((pid, stat(pid)?.parent))
            })
            .collect();
        let mut tree = vec![self.child.id()];
        let mut next = 0;
        while next < tree.len() {
            let parent = tree[next];
            tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            next += 1;
        }
        tree
    }

    /// The CPU time of all of them so far.
    pub fn cpu(&self) -> Duration {
        self.tree().into_iter().filter_map(|pid| Some(stat(pid)?.cpu.max(running_time(pid)))).sum()
    }

    /// Their memory, in bytes; what they share with others counts in parts.
    pub fn memory(&self) -> u64 {
        let pss = |pid: u32| -> Option<u64> {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
        };
        self.tree().into_iter().filter_map(pss).sum()
    }

    /// How many files and sockets they have open.
    pub fn descriptors(&self) -> usize {
        self.tree().into_iter().filter_map(|pid| Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let tree = self.tree();
        signal(self.child.id(), Signal::TERM);
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !self.has_ended() {
            tree.into_iter().for_each(|pid| signal(pid, Signal::KILL));
            let _ = self.child.wait();
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// As the scheduler counts it, to the nanosecond; without the threads that have ended.
fn running_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let nanos = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(threads.filter_map(|thread| nanos(thread.ok()?)).sum())
}

struct Stat {
    parent: u32,
    /// To the hundredth of a second, with that of threads that have ended.
    cpu: Duration,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Stat> {
    // The name before it may hold anything, also spaces and parentheses.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let parent = words.nth(1)?.parse().ok()?;
    let user: u64 = words.nth(9)?.parse().ok()?;
    let system: u64 = words.next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Stat { parent, cpu: Duration::from_secs_f64((user + system) as f64 / per_second as f64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_numbers() {
        let stat = parse("7 (a) b (c) S 3 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 5 6").unwrap();
        assert_eq!((stat.parent, stat.cpu), (3, Duration::from_secs(3)));
    }
}
