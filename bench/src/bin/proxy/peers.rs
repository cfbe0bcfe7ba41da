//! Who takes part, and how each is started.
//!
//! Peers run with the settings people recommend against herds (`bench/proxy/*.in`); we run with none.

use std::{
    fs::{self, File, Permissions},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    client::{Ending, get},
    origin::{Origin, Plan},
    process::Process,
};

pub const OURS: &str = "herdproof";

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(30);

pub struct Peer {
    pub name: &'static str,
    program: &'static str,
    /// Files to write into its folder: where from, and under which name.
    files: &'static [(&'static str, &'static str)],
    folders: &'static [&'static str],
    command: fn(&mut Command, &Place),
    /// Whether it keeps what it has in files. Those are in memory, where there is room: a disk is measured elsewhere.
    keeps_files: bool,
    /// Whether it is started anew for every case. Who takes long to start is not, unless a case leaves traces.
    pub starts_quickly: bool,
}

/// What the largest cache takes, and as much again.
const ROOM: u64 = 3 << 30;

/// Where a server runs.
pub struct Place {
    run: PathBuf,
    port: u16,
    origin: SocketAddr,
    /// Where it writes a line for each request, if it does.
    log: Option<PathBuf>,
}

pub const PEERS: [Peer; 6] = [
    Peer {
        name: OURS,
        program: OURS,
        files: &[(include_str!("../../../proxy/herdproof.toml.in"), "herdproof.toml")],
        folders: &[],
        command: |command, place| {
            command.args(["proxy", "--admin", "off", "--config"]).arg(place.run.join("herdproof.toml"));
            command.arg("--origin").arg(format!("http://{}", place.origin));
            command.arg("--listen").arg(format!("127.0.0.1:{}", place.port));
            if let Some(log) = &place.log {
                command.arg("--access-log").arg(log).args(["--access-format", "combined"]);
            }
        },
        keeps_files: false,
        starts_quickly: true,
    },
    Peer {
        name: "haproxy",
        program: "haproxy",
        files: &[(include_str!("../../../proxy/haproxy.cfg.in"), "haproxy.cfg")],
        folders: &[],
        command: |command, place| {
            command.arg("-db").arg("-f").arg(place.run.join("haproxy.cfg"));
        },
        keeps_files: false,
        starts_quickly: true,
    },
    Peer {
        name: "nginx",
        program: "nginx",
        files: &[(include_str!("../../../proxy/nginx.conf.in"), "nginx.conf")],
        folders: &[],
        command: |command, place| {
            command.arg("-e").arg(place.run.join("error.log")).arg("-p").arg(&place.run);
            command.arg("-c").arg(place.run.join("nginx.conf"));
        },
        keeps_files: true,
        starts_quickly: true,
    },
    Peer {
        name: "varnish",
        program: "varnishd",
        files: &[(include_str!("../../../proxy/varnish.vcl.in"), "default.vcl")],
        folders: &[],
        command: |command, place| {
            command.arg("-F").arg("-n").arg(place.run.join("work"));
            command.arg("-a").arg(format!("127.0.0.1:{}", place.port)).arg("-f").arg(place.run.join("default.vcl"));
            command.args(["-s", "malloc,1500m", "-p", "thread_pools=2"]);
            command.args(["-p", "thread_pool_min=100", "-p", "thread_pool_max=5000"]);
        },
        keeps_files: false,
        starts_quickly: false,
    },
    Peer {
        name: "squid",
        program: "squid",
        files: &[(include_str!("../../../proxy/squid.conf.in"), "squid.conf")],
        folders: &[],
        command: |command, place| {
            command.arg("-N").arg("-f").arg(place.run.join("squid.conf"));
        },
        keeps_files: false,
        starts_quickly: false,
    },
    Peer {
        name: "trafficserver",
        program: "traffic_server",
        files: &[
            (include_str!("../../../proxy/trafficserver.runroot.in"), "runroot.yaml"),
            (include_str!("../../../proxy/trafficserver.config.in"), "etc/records.config"),
            ("map / http://127.0.0.1:@ORIGIN@/\n", "etc/remap.config"),
            ("@RUN@/cache 1G\n", "etc/storage.config"),
            ("", "etc/plugin.config"),
            ("ip_allow: [{apply: in, ip_addrs: 127.0.0.1, action: allow, methods: ALL}]\n", "etc/ip_allow.yaml"),
        ],
        folders: &["etc", "run", "log", "cache"],
        command: |command, place| {
            command.arg(format!("--run-root={}", place.run.join("runroot.yaml").display()));
        },
        keeps_files: true,
        starts_quickly: false,
    },
];

/// Where the system keeps servers; the path of an ordinary user leaves them out.
const SERVERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

impl Peer {
    /// Its program, if it is installed. Ours is built here.
    pub fn find(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path).chain(SERVERS.map(PathBuf::from));
        folders.find_map(|folder| Some(folder.join(self.program)).filter(|program| program.is_file()))
    }

    /// Starts it on a free port, and waits until it answers. With a log of its requests, if it is one that is asked to.
    pub async fn start(&'static self, program: &Path, origin: &Origin, logs: bool) -> Result<Running, String> {
        let failed = |what: &str, error: io::Error| format!("{}: cannot {what}: {error}", self.name);
        let run = Scratch::new(self.name, self.keeps_files).map_err(|error| failed("make a folder", error))?;
        let port = free_port().map_err(|error| failed("find a port", error))?;
        let log = logs.then(|| run.0.join("access.log"));
        let place = Place { run: run.0.clone(), port, origin: origin.address, log };
        self.furnish(&place).map_err(|error| failed("write its settings", error))?;
        let log = run.0.join("output.log");
        let output = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = output.map_err(|error| failed("write its log", error))?;
        let mut command = Command::new(program);
        (self.command)(&mut command, &place);
        command.current_dir(&run.0).stdin(Stdio::null()).stdout(out).stderr(err);
        let process = Process::start(&mut command).map_err(|error| failed("start", error))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut running = Running { peer: self, address, process, _run: run };
        let scene = origin.scene(Plan::saying("no-store"));
        let begun = Instant::now();
        loop {
            match get(address, &scene.path("ready"), Duration::from_secs(2)).await.ending {
                // A server that is up and has not found its origin yet says so; anything else is an answer.
                Ending::Cut | Ending::GaveUp | Ending::Status(502 | 503) => {}
                _ => return Ok(running),
            }
            if running.process.has_ended() || begun.elapsed() > START {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let tail: Vec<&str> = said.lines().rev().take(5).collect();
                return Err(format!("{} does not answer; it said: {}", self.name, tail.join(" | ")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn furnish(&self, place: &Place) -> io::Result<()> {
        // Some give up being root, and still have to write.
        let open = |folder: &Path| fs::set_permissions(folder, Permissions::from_mode(0o777));
        open(&place.run)?;
        for folder in self.folders {
            let folder = place.run.join(folder);
            fs::create_dir_all(&folder)?;
            open(&folder)?;
        }
        for (template, name) in self.files {
            let text = template.replace("@RUN@", &place.run.display().to_string());
            let text = text.replace("@PORT@", &place.port.to_string());
            let log = place.log.as_ref().map_or_else(|| "off".into(), |log| log.display().to_string());
            let text = text.replace("@LOG@", &log);
            fs::write(place.run.join(name), text.replace("@ORIGIN@", &place.origin.port().to_string()))?;
        }
        Ok(())
    }
}

/// A server that answers. Dropping it ends it and removes its folder.
pub struct Running {
    pub peer: &'static Peer,
    pub address: SocketAddr,
    pub process: Process,
    _run: Scratch,
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A folder that is gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, in_memory: bool) -> io::Result<Scratch> {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Relaxed);
        let memory = Path::new("/dev/shm");
        let has_room = |at: &Path| rustix::fs::statvfs(at).is_ok_and(|room| room.f_bavail * room.f_frsize > ROOM);
        let parent = if in_memory && has_room(memory) { memory.into() } else { std::env::temp_dir() };
        let folder = parent.join(format!("herdproof-bench-{}-{made}-{name}", std::process::id()));
        fs::create_dir(&folder)?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
