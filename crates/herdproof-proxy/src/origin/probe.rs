//! Asks the origin with a request of our own, before everybody is shut out and while everybody is.
//!
//! A reset, a timeout or a body that breaks off may mean that the origin is down; or that one client asks for a URL that crashes
//! a worker each time. A breaker that counts them is a switch in that client's hand. So they only raise a suspicion: the origin
//! is asked for something that it did well lately, for other clients, and only when two such probes in a row fail the breaker
//! trips. One that is open is probed too, at random intervals of less than a second, whether or not clients come: an origin
//! that is back is noticed within a second, and no client's request is the test.
//!
//! A probe carries nothing of any client. It asks for a path without a query, rather for one whose answer is for all than for what
//! may be one user's, and no client chooses more than one of the targets that are remembered. One is under way at a time, on a seat
//! like any other request.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{
    Env, Tick,
    breaker::{Breaker, Phase},
    env::Rng,
    gate::Sizer,
    shed::Queue,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use parking_lot::Mutex;

use super::{OriginSettings, Outgoing, limit::Limit};
use crate::policy::{Terms, Vary};

/// So many failed probes in a row trip the breaker.
const FAILED: u32 = 2;
/// How long after a failed probe of a suspicion the next one is sent, and how long after one that worked.
const SOON: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(300));
const LATER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));
/// How long a probe may take; but three times as long as its target took for a client.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Targets that are remembered, each of other clients.
const TARGETS: usize = 8;
/// A target is replaced by a later one of its kind after this, so that not every answer is looked into ...
const FRESH: Duration = Duration::from_secs(1);
/// ... and one whose answer is for all only after this: it is not what one client happens to ask for.
const LASTING: Duration = Duration::from_secs(60);
/// An answer that is fresh for so many seconds is one that nobody minds a probe of.
const KEPT: u32 = 60;
/// Bytes of a target's path.
const LONGEST: usize = 256;

/// See the [module](self).
pub(super) struct Prober {
    env: Env,
    rng: Rng,
    breaker: Breaker,
    limit: Limit,
    queue: Queue,
    /// The path that is asked for, if the settings say so.
    fixed: Option<Uri>,
    /// The origin's own host.
    host: HeaderValue,
    state: Mutex<State>,
    targets: Mutex<Targets>,
    sent: AtomicU64,
    failed: AtomicU64,
}

/// What is asked for, and how long to wait for it.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) request: Outgoing,
    pub(super) timeout: Duration,
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// An answer that only the origin itself gives.
    There,
    /// 503: it is there, and has too much to do.
    Busy,
    /// No connection, no whole answer in time, 502 or 504.
    Gone,
    /// It was not let through to the origin.
    NotAsked,
    /// There is nobody left to ask for.
    Over,
}

/// What a probe has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    /// Open the breaker, or keep it open for longer.
    Trip,
    Recover,
}

/// What the prober knows; decides without a clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Whether there is a task.
    running: bool,
    /// Whether something speaks against the origin since the last probe that worked.
    suspects: bool,
    /// Probes of this suspicion that failed.
    failed: u32,
    /// No probe of a suspicion before this.
    next: Tick,
}

impl State {
    /// Something speaks against the origin. Whether a task is to be started.
    pub(super) fn suspect(&mut self) -> bool {
        self.suspects = true;
        !std::mem::replace(&mut self.running, true)
    }

    /// When the next probe is sent; if never, the task is over.
    pub(super) fn next(&mut self, phase: Phase) -> Option<Tick> {
        let at = match phase {
            Phase::Open { until } => Some(until),
            Phase::Closed | Phase::Ramping { .. } if self.suspects => Some(self.next),
            _ => None,
        };
        self.running = at.is_some();
        at
    }

    /// A probe is over, that was sent while the breaker was open or was not.
    pub(super) fn heard(&mut self, heard: Heard, open: bool, now: Tick, draw: f64) -> Act {
        let within =
            |(shortest, longest): (Duration, Duration)| now + shortest + longest.saturating_sub(shortest).mul_f64(draw);
        match (heard, open) {
            (Heard::Over, _) => Act::Nothing,
            (Heard::There, _) | (Heard::Busy, false) => {
                *self = State { suspects: false, failed: 0, next: within(LATER), ..*self };
                if open { Act::Recover } else { Act::Nothing }
            }
            (_, true) => Act::Trip,
            (Heard::NotAsked, false) => {
                self.next = within(LATER);
                Act::Nothing
            }
            (Heard::Gone, false) => {
                self.failed += 1;
                self.next = within(SOON);
                if self.failed < FAILED {
                    return Act::Nothing;
                }
                self.failed = 0;
                Act::Trip
            }
        }
    }
}

/// What the origin did well lately.
#[derive(Debug, Default)]
pub(super) struct Targets {
    slots: [Option<Target>; TARGETS],
    /// Which was asked for last.
    last: Option<usize>,
    /// Whether the last probe was for one of them, and not for `/`.
    is_asked: bool,
    /// Whether the next one is for `/`.
    root_next: bool,
}

#[derive(Clone, Debug)]
struct Target {
    host: HeaderValue,
    path: Uri,
    took: Duration,
    /// Whether its answer is for all, and may be kept.
    is_for_all: bool,
    since: Tick,
}

impl Target {
    fn gives_way(&self, is_for_all: bool, now: Tick) -> bool {
        match (self.is_for_all, is_for_all) {
            (true, _) => now - self.since >= LASTING,
            (false, true) => true,
            (false, false) => now - self.since >= FRESH,
        }
    }
}

/// Whether an answer is for all and stays so for a while.
fn is_for_all(status: StatusCode, headers: &HeaderMap) -> bool {
    let Terms { directives, vary, sets_cookie, .. } = Terms::read(status, headers);
    let is_kept = directives.s_maxage.or(directives.max_age).is_some_and(|seconds| seconds >= KEPT);
    let is_barred = directives.private() || directives.no_store() || directives.no_cache() || sets_cookie;
    is_kept && !is_barred && vary == Vary::Nothing && !headers.contains_key(header::AGE)
}

impl Targets {
    /// A request of this client was answered well.
    pub(super) fn note(
        &mut self,
        user: u64,
        (host, path): (&HeaderValue, &Uri),
        took: Duration,
        is_for_all: bool,
        now: Tick,
    ) {
        // A query may hold what is meant to be used once.
        if path.query().is_some() || path.path().len() > LONGEST {
            return;
        }
        let place = usize::try_from(user % TARGETS as u64).unwrap_or(0);
        let Some(slot) = self.slots.get_mut(place) else { return };
        if slot.as_ref().is_none_or(|target| target.gives_way(is_for_all, now)) {
            *slot = Some(Target { host: host.clone(), path: path.clone(), took, is_for_all, since: now });
        }
    }

    /// Another than the last time; none if there is no other, or if the last has failed: if it is the target that fails, and not the
    /// origin, `/` may do better. None is forgotten for it, as while the breaker is open nothing new is noted.
    fn pick(&mut self, draw: u64) -> Option<&Target> {
        self.is_asked = false;
        if std::mem::take(&mut self.root_next) {
            return None;
        }
        let others = |place: &usize| self.slots[*place].is_some() && self.last != Some(*place);
        let filled: Vec<usize> = (0..TARGETS).filter(others).collect();
        let count = u64::try_from(filled.len()).unwrap_or(1).max(1);
        self.last = filled.get(usize::try_from(draw % count).unwrap_or(0)).copied();
        self.is_asked = self.last.is_some();
        self.slots.get(self.last?)?.as_ref()
    }
}

impl Prober {
    pub(super) fn new(env: &Env, settings: &OriginSettings, breaker: &Breaker, limit: &Limit, queue: &Queue) -> Prober {
        let authority = settings.url.parse::<Uri>().ok().and_then(|uri| uri.into_parts().authority);
        let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        Prober {
            env: env.clone(),
            rng: env.rng("origin/probe"),
            breaker: breaker.clone(),
            limit: limit.clone(),
            queue: queue.clone(),
            fixed: settings.probe.as_ref().and_then(|path| path.parse().ok()),
            host: host.unwrap_or_else(|| HeaderValue::from_static("localhost")),
            state: Mutex::default(),
            targets: Mutex::default(),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Something speaks against the origin. True if [`run`] is to be started.
    pub(super) fn suspect(&self) -> bool {
        self.state.lock().suspect()
    }

    /// A request was answered; remembers what it asked for, if that is fit for a probe.
    pub(super) fn note(
        &self,
        request: &Outgoing,
        user: u64,
        (status, headers): (StatusCode, &HeaderMap),
        took: Duration,
    ) {
        let good = status.is_success() || status.is_redirection();
        if good
            && request.method == Method::GET
            && let Some(host) = request.headers.get(header::HOST)
        {
            let is_for_all = !request.headers.contains_key(header::AUTHORIZATION) && is_for_all(status, headers);
            self.targets.lock().note(user, (host, &request.target), took, is_for_all, self.env.coarse());
        }
    }

    /// Probes that were sent, and those that failed, in all.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.failed.load(Relaxed))
    }

    fn probe(&self) -> Probe {
        let mut targets = self.targets.lock();
        let picked = if self.fixed.is_none() { targets.pick(self.rng.bits()) } else { None };
        let (host, target, took) = match picked {
            Some(Target { host, path, took, .. }) => (host.clone(), path.clone(), *took),
            None => (self.host.clone(), self.fixed.clone().unwrap_or_else(|| Uri::from_static("/")), Duration::ZERO),
        };
        drop(targets);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host);
        headers.insert(header::USER_AGENT, HeaderValue::from_static("herdproof-probe"));
        let request = Outgoing { method: Method::GET, target, headers, route: 0 };
        Probe { request, timeout: TIMEOUT.max(took.saturating_mul(3)) }
    }

    fn heard(&self, heard: Heard, open: bool) {
        if !matches!(heard, Heard::NotAsked | Heard::Over) {
            self.sent.fetch_add(1, Relaxed);
        }
        let act = self.state.lock().heard(heard, open, self.env.now(), self.rng.unit());
        if heard == Heard::Gone || act == Act::Trip && heard == Heard::Busy {
            self.failed.fetch_add(1, Relaxed);
            let mut targets = self.targets.lock();
            targets.root_next = std::mem::take(&mut targets.is_asked);
        }
        match act {
            Act::Nothing => {}
            Act::Trip => self.breaker.trip(),
            Act::Recover => {
                // The seats first: whoever is let in by the breaker finds them few.
                self.limit.begin_ramp();
                self.queue.set_seats(self.limit.limit());
                self.breaker.recover();
            }
        }
    }
}

/// Probes for as long as there is a reason to. The sender says what came of each probe.
pub(super) async fn run<F>(prober: Arc<Prober>, send: impl Fn(Probe) -> F + Send)
where
    F: Future<Output = Heard> + Send,
{
    loop {
        let phase = prober.breaker.phase();
        let Some(at) = prober.state.lock().next(phase) else { return };
        prober.env.sleep_until(at).await;
        let open = matches!(prober.breaker.phase(), Phase::Open { .. });
        let heard = send(prober.probe()).await;
        prober.heard(heard, open);
        if heard == Heard::Over {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
