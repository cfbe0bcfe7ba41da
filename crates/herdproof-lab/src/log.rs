//! The requests of a run as lines of an access log, with the truth beside each.
//!
//! A detector of herds is right or wrong, and with a log from the street nobody knows which. In a log from here every line says
//! what made the request: the retry of a crowd, the same TTL, a timetable; or nothing, for users who came by themselves. Lines are
//! what an origin sees, in the order of arrival, with the field names of the proxy's own access log where it has them.
//!
//! A scenario takes part by asking its settings for a [`Tap`] for each arm and handing it to the model that is called. Nobody
//! listens unless a log was asked for; then a tap is a pointer that is not there.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use herdproof::{Env, Tick, gate::Halt};
use herdproof_proxy::access::iso;
use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    knob::Settings,
    named::{NoArm, listed, named},
    report::Arm,
    scenario::Scenario,
};

/// The requests of one arm, in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Log {
    /// Of which arm.
    pub arm: &'static str,
    entries: Vec<Entry>,
}

/// One request, as a line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLine {
    time: String,
    client: String,
    method: &'static str,
    path: String,
    status: u16,
    outcome: &'static str,
    reason: &'static str,
    took_us: u64,
    key: String,
    herd: Option<&'static str>,
    wave: Option<u32>,
}

/// Why there is no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// Nothing arrives anywhere in this scenario that one would call a request.
    NoRequests(&'static str),
    /// There is no such arm.
    NoArm(NoArm),
    /// There are several, and a log is of one.
    Several {
        /// What was asked for.
        asked: String,
        /// Those that it may mean.
        meant: Vec<&'static str>,
    },
}

/// Where a model says who called; nowhere, unless somebody wants to know. Clones share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tap(Option<Arc<Heard>>);

#[derive(Debug, Default)]
pub(crate) struct Heard {
    is_taken: AtomicBool,
    entries: Mutex<Vec<Entry>>,
}

/// Who calls, and as part of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    id: u64,
    path: &'static str,
    item: Option<u64>,
    wave: Option<(&'static str, u32)>,
}

#[derive(Clone, Debug)]
struct Entry {
    at: Tick,
    wall: SystemTime,
    caller: Caller,
    status: u16,
    took: Duration,
}

/// A request under way. Dropped before it has ended, its client has gone.
///
/// Boxed, because there is one in every call whether or not somebody listens.
#[must_use]
pub(crate) struct Underway(Option<Box<(Arc<Heard>, Env, Entry)>>);

/// What a server writes down when the client did not wait for the answer.
const GONE: u16 = 499;

impl Caller {
    /// A client that asks for a path.
    pub(crate) const fn of(id: u64, path: &'static str) -> Caller {
        Caller { id, path, item: None, wave: None }
    }

    /// One of many things below the path.
    pub(crate) const fn item(self, item: u64) -> Caller {
        Caller { item: Some(item), ..self }
    }

    /// Which wave it is in; the first, if in none.
    pub(crate) fn wave(self) -> u32 {
        self.wave.map_or(0, |(_, wave)| wave)
    }

    /// As part of this herd, in its first wave (zero) or a later one.
    pub(crate) const fn in_wave(self, herd: &'static str, wave: u32) -> Caller {
        Caller { wave: Some((herd, wave)), ..self }
    }

    /// As part of this herd if it is in one of its waves, or else by itself.
    pub(crate) fn in_wave_if(self, herd: &'static str, wave: Option<u32>) -> Caller {
        wave.map_or(self, |wave| self.in_wave(herd, wave))
    }

    /// By itself, but part of the herd once it tries again.
    pub(crate) fn trying(self, attempt: impl Into<u32>) -> Caller {
        self.in_wave_if("retry", Some(attempt.into()).filter(|attempt| *attempt > 0))
    }
}

impl Tap {
    /// A tap that somebody listens to.
    fn open() -> Tap {
        Tap(Some(Arc::default()))
    }

    /// What was heard of the arm that is called that; nothing if no model has taken it.
    fn heard(&self, arm: &'static str) -> Option<Log> {
        let heard = self.0.as_ref().filter(|heard| heard.is_taken.load(Relaxed))?;
        let mut entries = std::mem::take(&mut *heard.entries.lock());
        // Those of one instant stay in the order in which they ended, which is the same every time.
        entries.sort_by_key(|entry| entry.at);
        Some(Log { arm, entries })
    }

    /// It in the hands of a model.
    pub(crate) fn taken(&self) -> Tap {
        if let Some(heard) = &self.0 {
            heard.is_taken.store(true, Relaxed);
        }
        self.clone()
    }

    /// Whether somebody listens.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// A request arrives.
    pub(crate) fn begin(&self, env: &Env, caller: Caller) -> Underway {
        Underway(self.0.as_ref().map(|heard| {
            let entry = Entry { at: env.now(), wall: env.wall(), caller, status: GONE, took: Duration::ZERO };
            Box::new((Arc::clone(heard), env.clone(), entry))
        }))
    }

    /// A request that a server answers, or refuses at its door. Whoever does not wait for the answer has gone.
    pub(crate) async fn door<T, E>(
        &self,
        env: &Env,
        caller: Caller,
        answer: impl Future<Output = Result<T, Halt<E>>>,
    ) -> Result<T, Halt<E>> {
        let request = self.begin(env, caller);
        let answer = answer.await;
        request.end(match &answer {
            Ok(_) => 200,
            Err(Halt::Refused(_)) => 429,
            Err(_) => 503,
        });
        answer
    }

    /// A request that is answered at once.
    pub(crate) fn note(&self, env: &Env, caller: Caller, status: u16) {
        self.begin(env, caller).end(status);
    }
}

/// Two are the same if they go to the same place.
impl PartialEq for Tap {
    fn eq(&self, other: &Tap) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl Underway {
    /// It is answered.
    pub(crate) fn end(mut self, status: u16) {
        if let Some(underway) = &mut self.0 {
            underway.2.status = status;
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if let Some(underway) = self.0.take() {
            let (heard, env, mut entry) = *underway;
            entry.took = env.now() - entry.at;
            heard.entries.lock().push(entry);
        }
    }
}

impl Log {
    /// Runs a scenario, and listens to one of its arms: the first, unless it is named.
    pub fn of(scenario: &Scenario, settings: &Settings, arm: Option<&str>) -> Result<Log, NoLog> {
        let place = arm.map_or(Ok(0), |asked| {
            let arms: Vec<Arm> = scenario.run(&settings.bare()).arms;
            let known: Vec<&'static str> = arms.iter().map(|arm| arm.name).collect();
            match &named(scenario.name, &known, asked).map_err(NoLog::NoArm)?[..] {
                [one] => Ok(*one),
                several => Err(NoLog::Several {
                    asked: asked.to_owned(),
                    meant: several.iter().map(|place| known[*place]).collect(),
                }),
            }
        })?;
        let tap = Tap::open();
        let arms = scenario.run(&settings.bare().listening(vec![(place, tap.clone())])).arms;
        let name = arms.get(place).map_or("", |arm| arm.name);
        tap.heard(name).ok_or(NoLog::NoRequests(scenario.name))
    }

    /// Its lines.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = LogLine> {
        self.entries.iter().map(Entry::line)
    }
}

impl Entry {
    fn line(&self) -> LogLine {
        let Caller { id, path, item, wave } = self.caller;
        let path = item.map_or_else(|| path.to_owned(), |item| format!("{path}/{item}"));
        let (outcome, reason) = match self.status {
            ..400 => ("pass", ""),
            429 => ("shed", "too many"),
            GONE => ("failed", "client gave up"),
            _ => ("failed", ""),
        };
        LogLine {
            time: iso(self.wall),
            client: address(id).to_string(),
            method: "GET",
            key: format!("{:016x}", hash(&path)),
            path,
            status: self.status,
            outcome,
            reason,
            took_us: u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
            herd: wave.map(|(herd, _)| herd),
            wave: wave.map(|(_, number)| number),
        }
    }
}

/// An address of its own for each of sixteen million clients.
fn address(id: u64) -> SocketAddr {
    let [.., a, b, c] = id.to_be_bytes();
    (Ipv4Addr::new(10, a, b, c), 40_000).into()
}

/// FNV-1a: short, and the same on every machine.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl fmt::Display for NoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLog::NoRequests(scenario) => write!(f, "{scenario} has no log: there are no requests in it"),
            NoLog::NoArm(unknown) => unknown.fmt(f),
            NoLog::Several { asked, meant } => {
                write!(f, "a log is of one arm, and {asked:?} may be any of {}", listed(meant))
            }
        }
    }
}

impl std::error::Error for NoLog {}

#[cfg(test)]
mod tests;
