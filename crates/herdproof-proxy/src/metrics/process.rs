//! What every Prometheus client library says of its process, under the names that all of them use.
//!
//! Read from `/proc` whenever the page is asked for. Elsewhere than on Linux, and where `/proc` is not mounted, it is left out.

use super::Page;

/// What is known of this process.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    start_seconds: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
    open_descriptors: u64,
    most_descriptors: Option<u64>,
}

#[cfg(not(target_os = "linux"))]
pub(super) fn report(_: &mut Page) {}

#[cfg(target_os = "linux")]
pub(super) fn report(page: &mut Page) {
    let Some(process) = read() else { return };
    let Process { cpu_seconds, start_seconds, .. } = process;
    page.counter("process_cpu_seconds_total", "User and system CPU time of this process, in seconds.", cpu_seconds);
    page.gauge("process_start_time_seconds", "When this process was started, in seconds since 1970.", start_seconds);
    page.gauge("process_virtual_memory_bytes", "Address space of this process.", process.virtual_bytes as f64);
    page.gauge(
        "process_resident_memory_bytes",
        "Memory of this process that is in RAM.",
        process.resident_bytes as f64,
    );
    page.gauge("process_open_fds", "File descriptors that this process has open.", process.open_descriptors as f64);
    if let Some(most) = process.most_descriptors {
        page.gauge("process_max_fds", "How many file descriptors this process may have open.", most as f64);
    }
}

#[cfg(target_os = "linux")]
fn read() -> Option<Process> {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{name}")).ok();
    let descriptors = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as u64;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let stat = Stat::read(&file("self/stat")?)?;
    let booted: f64 = file("stat")?.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    Some(Process {
        cpu_seconds: stat.cpu as f64 / ticks,
        start_seconds: booted + stat.started as f64 / ticks,
        virtual_bytes: stat.virtual_bytes,
        resident_bytes: stat.resident_pages * page,
        // One of them was there to count the others.
        open_descriptors: descriptors.saturating_sub(1),
        most_descriptors: most,
    })
}

/// What is needed of `/proc/self/stat`.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    cpu: u64,
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

#[cfg(target_os = "linux")]
impl Stat {
    /// Fields as proc(5) numbers them. The second, the name of the program, is in brackets and may hold anything, brackets included.
    fn read(stat: &str) -> Option<Stat> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Stat {
            cpu: field(14).and_then(|user: u64| user.checked_add(field(15)?))?,
            started: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = format!("1 (a b) 3) S {}\n", numbers.join(" "));
        let expected = Stat { cpu: 14 + 15, started: 22, virtual_bytes: 23, resident_pages: 24 };
        assert_eq!(Stat::read(&stat), Some(expected));
        for bad in ["", "1 (a", "1 (a) S 4 5", "1 (a) S x x x x x x x x x x x x x x x x x x x x x x"] {
            assert_eq!(Stat::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let process = read().expect("/proc is there");
        assert!(process.resident_bytes > 100_000 && process.virtual_bytes > process.resident_bytes, "{process:?}");
        assert!(process.open_descriptors >= 3, "{process:?}");
        assert!(process.start_seconds > 1e9, "{process:?}");
    }
}
