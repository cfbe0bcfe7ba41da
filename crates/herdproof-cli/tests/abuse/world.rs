//! Where an attack takes place: an origin, the proxy as a process, and who comes from which address.

use std::{
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use crate::{client::raw, origin::Origin};

/// Where the attacker is.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// How long attacks last, and how many take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the guide promises; times are judged.
    Full,
    /// A second or two each, for any build on any machine; only counts are judged.
    #[default]
    Short,
}

/// Where good users come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// From other addresses than the attacker.
    Apart,
    /// From the attacker's, as behind one balancer or one office's router.
    Together,
}

impl Place {
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Place::Apart => "",
            Place::Together => "one address",
        }
    }

    /// The addresses of good users.
    pub(crate) fn addresses(self) -> Vec<Ipv4Addr> {
        match self {
            Place::Apart => (10..210).map(|last| Ipv4Addr::new(127, 0, 1, last)).collect(),
            Place::Together => vec![ATTACKER],
        }
    }
}

/// What every attack is given.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) form: Form,
    pub(crate) binary: PathBuf,
}

impl Context {
    pub(crate) fn is_full(&self) -> bool {
        self.form == Form::Full
    }

    pub(crate) fn pick<T>(&self, full: T, short: T) -> T {
        if self.is_full() { full } else { short }
    }

    /// How long an attack goes on.
    pub(crate) fn lasts(&self) -> Duration {
        self.pick(Duration::from_secs(6), Duration::from_millis(1500))
    }

    /// How large a cold herd is.
    pub(crate) fn herd(&self) -> usize {
        self.pick(400, 100)
    }

    /// An origin and a proxy in front of it.
    pub(crate) fn world(&self, args: &[&str]) -> World {
        self.configured("", args)
    }

    /// The same with settings from a file.
    pub(crate) fn configured(&self, settings: &str, args: &[&str]) -> World {
        let origin = Origin::start();
        let proxy = self.proxy(&origin, settings, args);
        World { origin, proxy }
    }

    pub(crate) fn proxy(&self, origin: &Origin, settings: &str, args: &[&str]) -> Proxy {
        Proxy::start(self, &format!("http://{}", origin.address), settings, args)
    }
}

pub(crate) struct World {
    pub(crate) origin: Origin,
    pub(crate) proxy: Proxy,
}

/// The proxy as a process. Dropping it ends it, by its number.
pub(crate) struct Proxy {
    child: Child,
    pub(crate) at: SocketAddr,
    pub(crate) admin: SocketAddr,
    settings: Option<PathBuf>,
}

impl Proxy {
    pub(crate) fn start(context: &Context, origin: &str, settings: &str, args: &[&str]) -> Proxy {
        let mut command = Command::new(&context.binary);
        command.args(["proxy", "--origin", origin, "--admin", "127.0.0.1:0"]).args(args);
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let settings = (!settings.is_empty()).then(|| write_settings(settings));
        command.args(settings.iter().flat_map(|file| ["--config".into(), file.clone().into_os_string()]));
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the proxy starts");
        let mut says = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut said = String::new();
        // The line that begins with an address is where clients go; the one that ends with one, the admin's.
        let (mut at, mut admin) = (None, None);
        while at.is_none() || admin.is_none() {
            let mut line = String::new();
            let length = says.read_line(&mut line).unwrap_or(0);
            assert!(length > 0, "the proxy did not start: {said}");
            let address = |word: Option<&str>| word?.strip_prefix("http://")?.parse().ok();
            let mut words = line.split_whitespace();
            match at {
                None => at = address(words.next()),
                Some(_) => admin = address(words.next_back()),
            }
            said += &line;
        }
        // A full pipe would stop the proxy.
        std::thread::spawn(move || says.read_to_end(&mut Vec::new()));
        let (Some(at), Some(admin)) = (at, admin) else { unreachable!("the loop ends with both") };
        Proxy { child, at, admin, settings }
    }

    /// A number of its page of metrics.
    pub(crate) async fn metric(&self, name: &str) -> Option<u64> {
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin);
        let page = raw(Ipv4Addr::LOCALHOST, self.admin, request.as_bytes()).await.text();
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(value)
    }

    /// The most memory that it has had, in bytes; where the system tells.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(file) = &self.settings {
            std::fs::remove_file(file).ok();
        }
    }
}

fn write_settings(text: &str) -> PathBuf {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let number = WRITTEN.fetch_add(1, Relaxed);
    let file = std::env::temp_dir().join(format!("herdproof-abuse-{}-{number}.toml", std::process::id()));
    std::fs::write(&file, text).expect("the settings can be written");
    file
}
