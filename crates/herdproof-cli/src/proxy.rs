//! `herdproof proxy`: settings from a file and flags, sockets, signals, and a stop that loses nothing.

use std::{
    fs,
    future::{Future, poll_fn},
    io,
    path::Path,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use herdproof::Env;
use herdproof_lab::real::FragileOrigin;
use herdproof_proxy::{
    Listener, Proxy, Server, Settings,
    access::{AccessLog, CannotOpen},
    admin::{Admin, BadAdmin, Readiness},
    listener::{CannotListen, Stopped, raise_descriptors},
    policy::Route as Rules,
    settings::{Listen, LogFormat, LogTo, show_size, show_time},
    trouble::Watch,
};

use crate::{
    Done, Verdict,
    args::{AccessFormat, AdminAddress, ProxyArgs},
    output::{Failure, Output},
};

/// For how long the built-in origin's answers may be kept.
const DEMO_MAX_AGE: Duration = Duration::from_secs(10);
/// How often troubles are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// What a log that cannot be written may keep a stop waiting.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Standard streams, the runtime's own, the listeners, the log, and what was inherited.
const SPARE: u64 = 64;

pub(crate) fn run(output: &Output, args: ProxyArgs) -> Done {
    let mut settings = settings(args)?;
    make_room(output, &mut settings);
    let failed = |error| Failure::Io { what: "cannot start".into(), error };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let done = runtime.block_on(serve(output, settings));
    // Nothing that is still running is worth waiting for.
    runtime.shutdown_background();
    done
}

/// What the file says, overridden by what the flags say.
fn settings(args: ProxyArgs) -> Result<Settings, Failure> {
    let (ttl, grace) = (args.ttl, args.grace);
    let change = |rules: &mut Rules| {
        set(&mut rules.ttl, ttl.map(Some));
        set(&mut rules.grace, grace);
    };
    let mut settings = match &args.config {
        Some(file) => read(file, change)?,
        None => {
            let mut settings = Settings::default();
            change(&mut settings.rules);
            settings
        }
    };
    let ProxyArgs { origin, listen, admin, admin_anywhere, config: _, limit, memory, max_connections, drain, .. } =
        args;
    set(&mut settings.origin.url, origin);
    set(&mut settings.listen, listen);
    set(&mut settings.admin, admin.map(|AdminAddress(address)| address));
    settings.admin_anywhere |= admin_anywhere;
    set(&mut settings.origin.limit, limit);
    set(&mut settings.memory, memory);
    set(&mut settings.clients.max_connections, max_connections);
    set(&mut settings.drain, drain);
    set(&mut settings.log.access, args.access_log.map(|name| Some(LogTo::from(name))));
    set(
        &mut settings.log.format,
        args.access_format.map(|format| match format {
            AccessFormat::Json => LogFormat::Json,
            AccessFormat::Combined => LogFormat::Combined,
        }),
    );
    if settings.origin.url.is_empty() {
        return Err(Failure::Usage {
            problem: "nobody said which service to stand in front of".into(),
            hint: "Say it with --origin http://127.0.0.1:3000, or as `url` under [origin] in a --config file;\n\
                   --origin demo starts a fragile one to try it with"
                .into(),
        });
    }
    Ok(settings)
}

fn read(file: &Path, change: impl FnOnce(&mut Rules)) -> Result<Settings, Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| Failure::Io { what: format!("cannot read {name}"), error })?;
    Settings::parse_file(&name, &text, change)
        .map_err(|wrong| Failure::Usage { problem: wrong.to_string(), hint: "Nothing was started".into() })
}

fn set<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}

/// Raises the limit of open files, or accepts fewer clients.
fn make_room(output: &Output, settings: &mut Settings) {
    let asked = settings.clients.max_connections;
    let upgrades = if settings.upgrades.protocols.is_empty() { 0 } else { u64::from(settings.upgrades.most) };
    let others = u64::from(settings.origin.limit) + u64::from(settings.origin.max_idle) + SPARE;
    let room = raise_descriptors(u64::from(asked) + upgrades + others).saturating_sub(others).max(1);
    if room < u64::from(asked) + upgrades {
        // One that is upgraded takes two. Without one for its other end no connection to the origin could be made, for anybody.
        let upgrades = upgrades.min(room / 4);
        let room = (room - upgrades).min(u64::from(asked));
        settings.upgrades.most = u32::try_from(upgrades).unwrap_or(u32::MAX);
        settings.clients.max_connections = u32::try_from(room).unwrap_or(u32::MAX);
        output.note(format_args!(
            "the limit of open files has room for {room} client connections, not {asked}; `ulimit -Hn` shows it"
        ));
    }
}

async fn serve(output: &Output, mut settings: Settings) -> Done {
    let env = Env::system();
    let mut signals = Signals::new().map_err(|error| Failure::Io { what: "cannot hear of signals".into(), error })?;
    let log = AccessLog::open(&env, &settings.log).map_err(|CannotOpen { path, error }| Failure::Io {
        what: format!("cannot open the access log {}", path.display()),
        error,
    })?;
    let listener = Listener::bind_to(&settings.listen, &settings.clients).map_err(|error| cannot_listen(&error))?;
    let admin = settings.admin.map(|address| Admin::bind(address, settings.admin_anywhere)).transpose();
    let admin = admin.map_err(bad_admin)?;
    let demo = demo_origin(&env, &mut settings)?;

    let proxy = Proxy::new(&env, settings.clone(), log.clone()).map_err(|bad| Failure::Usage {
        problem: bad.to_string(),
        hint: "An origin is an address such as http://127.0.0.1:3000".into(),
    })?;
    let server = proxy.serve_on(&env, listener);
    let readiness = Readiness::new(&env, &settings);
    let admin = admin.map(|listener| {
        let told = Admin::new(&env, Arc::clone(proxy.metrics()), readiness.clone()).named(&settings.admin_hosts);
        let told = told.with(proxy.report()).with(server.report());
        let told = match &log {
            Some(log) => told.with(log.report()),
            None => told,
        };
        told.serve(listener)
    });
    say_where(output, &settings, &server, admin.as_ref(), demo.is_some());

    let mut watch = Watch::new(&proxy, log.as_ref());
    loop {
        match unless(signals.next(), env.sleep(LOOK)).await {
            Some(Signal::Stop) => break,
            Some(Signal::Reopen) => log.iter().for_each(AccessLog::reopen),
            None => watch.look().iter().for_each(|news| output.note(news)),
        }
    }
    readiness.stop();
    let drain = show_time(settings.drain);
    output.say(format_args!("stopping; {} connections have up to {drain}, ctrl-c ends them now", server.connections()));
    let stopped = unless(server.stop(settings.drain), signals.stop()).await;
    if let Some(log) = &log {
        log.close(&env, LAST_LINES).await;
    }
    match stopped {
        Some(Stopped { cut: 0 }) => Ok(Verdict::Fine),
        Some(Stopped { cut }) => {
            output.note(format_args!("{cut} connections were cut off, as {drain} were over"));
            Ok(Verdict::Found)
        }
        None => Ok(Verdict::Found),
    }
}

fn say_where(output: &Output, settings: &Settings, server: &Server, admin: Option<&Server>, is_demo: bool) {
    let Settings { origin, memory, .. } = settings;
    let kind = if is_demo { " (a fragile one, to try it with)" } else { "" };
    let here = match server.place() {
        Listen::Address(address) => format!("http://{address}"),
        place @ Listen::Unix(_) => place.to_string(),
    };
    output.say(format_args!("{here} stands in front of {}{kind}", origin.url));
    let (limit, memory) = (origin.limit, show_size(*memory));
    output.say(format_args!("at most {limit} requests at a time reach it; {memory} of memory for responses"));
    if let Some(admin) = admin {
        output.say(format_args!("metrics and health at http://{}", admin.address()));
    }
}

/// Starts the built-in origin, if that is the one to stand in front of. Dropping it ends it.
fn demo_origin(env: &Env, settings: &mut Settings) -> Result<Option<FragileOrigin>, Failure> {
    if settings.origin.url != "demo" {
        return Ok(None);
    }
    let origin = FragileOrigin::start_cacheable(env, FragileOrigin::LAW, DEMO_MAX_AGE);
    let origin = origin.map_err(|error| Failure::Io { what: "cannot start the built-in origin".into(), error })?;
    settings.origin.url = format!("http://{}", origin.address());
    Ok(Some(origin))
}

fn cannot_listen(error: &CannotListen) -> Failure {
    Failure::Io { what: format!("cannot listen on {}", error.place), error: io::Error::other(error.why()) }
}

fn bad_admin(error: BadAdmin) -> Failure {
    match error {
        BadAdmin::Reachable(address) => Failure::Usage {
            problem: format!("the admin address {address} can be reached by others, and it has no password"),
            hint: "Keep it on 127.0.0.1, or say that it is meant with --admin-anywhere or `admin_anywhere = true`"
                .into(),
        },
        BadAdmin::Listen(error) => cannot_listen(&error),
    }
}

enum Signal {
    Stop,
    Reopen,
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            if self.interrupt.poll_recv(cx).is_ready() || self.terminate.poll_recv(cx).is_ready() {
                return Poll::Ready(Signal::Stop);
            }
            self.hangup.poll_recv(cx).map(|_| Signal::Reopen)
        })
        .await
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) -> Signal {
        tokio::signal::ctrl_c().await.ok();
        Signal::Stop
    }
}

impl Signals {
    async fn stop(&mut self) {
        while let Signal::Reopen = self.next().await {}
    }
}

/// What the work gives, unless the other comes first.
async fn unless<W: Future>(work: W, other: impl Future) -> Option<W::Output> {
    let (mut work, mut other) = (pin!(work), pin!(other));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => other.as_mut().poll(cx).map(|_| None),
    })
    .await
}
