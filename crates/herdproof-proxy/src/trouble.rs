//! What whoever runs a proxy has to hear of.
//!
//! Clients of an origin that is down are answered, by what is kept or with an error that says so; a line that could not be
//! logged is counted. All of it is in the metrics, and nobody looks at those before something else is wrong. So each trouble is
//! said once when it begins and once when it is over, however many requests it meets.
//!
//! A proxy that shares little does what it was told to, and nobody notices that a setting would change it. So when many requests of
//! the last minute went to the origin by themselves, for a reason that a setting is about, that is said too, with the setting. Clients
//! choose what they ask for, so any of them can bring that about: the line holds nothing that a client sent, and there is at most one
//! in an hour.

use std::{sync::Arc, time::Duration};

use herdproof::{Tick, breaker::Phase};

use crate::{Proxy, access::AccessLog, metrics::Unshared};

/// Over which time requests that were not shared are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// So many of them are many ...
const MANY: u64 = 100;
/// ... if they are this part of all requests.
const PART: u64 = 10;
/// After one line about them there is none for so long.
const QUIET: Duration = Duration::from_secs(3600);

/// Looks for troubles; see the [module](self).
#[derive(Debug)]
pub struct Watch {
    proxy: Proxy,
    log: Option<AccessLog>,
    state: State,
}

/// What there was to see at one look.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Whether the breaker is open: probes find no answer either.
    is_down: bool,
    /// Why the last request to the origin came to nothing.
    why: Option<Arc<str>>,
    /// What is wrong with the log.
    log: Option<Arc<str>>,
    /// When this was, and how many requests were not shared by then.
    unshared: Option<(Tick, Unshared)>,
}

#[derive(Debug, Default)]
struct State {
    before: Seen,
    /// What was counted when the minute began.
    minute: Option<(Tick, Unshared)>,
    quiet_until: Tick,
}

impl Watch {
    /// Over this proxy, and its log if it has one.
    pub fn new(proxy: &Proxy, log: Option<&AccessLog>) -> Watch {
        Watch { proxy: proxy.clone(), log: log.cloned(), state: State::default() }
    }

    /// What has changed since the last look, a line each. To be asked about once a second.
    pub fn look(&mut self) -> Vec<String> {
        let (stats, why) = self.proxy.origin();
        let log = self.log.as_ref().and_then(AccessLog::trouble);
        let unshared = Some(self.proxy.unshared());
        self.state.next(Seen { is_down: matches!(stats.breaker, Phase::Open { .. }), why, log, unshared })
    }
}

impl State {
    fn next(&mut self, mut seen: Seen) -> Vec<String> {
        let mut news = Vec::new();
        news.extend(seen.unshared.take().and_then(|(now, unshared)| self.passes(now, unshared)));
        let before = &self.before;
        match (before.is_down, seen.is_down) {
            (false, true) => {
                let why = seen.why.as_deref().unwrap_or("it does not answer");
                news.push(format!("the origin gives no answers: {why}"));
            }
            (true, false) => news.push("the origin answers again".into()),
            _ => {}
        }
        match (&before.log, &seen.log) {
            (was, Some(is)) if was.as_ref() != Some(is) => news.push(format!("the access log: {is}")),
            (Some(_), None) => news.push("the access log is written again".into()),
            _ => {}
        }
        self.before = seen;
        news
    }

    /// At the end of a minute in which many requests were not shared that could have been: which setting would change that.
    fn passes(&mut self, now: Tick, unshared: Unshared) -> Option<String> {
        let Some((began, before)) = &self.minute else {
            self.minute = Some((now, unshared));
            return None;
        };
        if now - *began < MINUTE {
            return None;
        }
        let requests = unshared.requests.saturating_sub(before.requests);
        let of_a_setting = unshared.since(before).filter_map(|(why, times)| Some((why, why.remedy()?, times)));
        let of_a_setting: Vec<_> = of_a_setting.collect();
        let passed: u64 = of_a_setting.iter().map(|(_, _, times)| times).sum();
        let leading = of_a_setting.into_iter().max_by_key(|(_, _, times)| *times);
        self.minute = Some((now, unshared));
        let (why, remedy, times) = leading?;
        if passed < MANY || passed < requests / PART || now < self.quiet_until {
            return None;
        }
        self.quiet_until = now + QUIET;
        let why = why.name();
        Some(format!(
            "{passed} of {requests} requests in the last minute went to the origin by themselves, {times} of them for the reason \
             {why:?}: {remedy} (said at most once an hour; herdproof_reasons_total has all)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Detail,
        access::Outcome,
        metrics::{Metrics, tests::record},
    };

    fn origin(is_down: bool) -> Seen {
        Seen { is_down, why: Some("refused".into()), ..Seen::default() }
    }

    #[test]
    fn an_origin_that_is_down_is_said_once_and_once_when_it_is_back() {
        let mut state = State::default();
        let mut look = |seen| state.next(seen).join("; ");
        assert_eq!(look(origin(false)), "", "it may have failed for somebody");
        assert_eq!(look(origin(true)), "the origin gives no answers: refused");
        assert_eq!(look(origin(true)), "");
        assert_eq!(look(origin(false)), "the origin answers again");
    }

    /// What is said, minute by minute, of passes by these reasons.
    fn said(minutes: &[&[(Outcome, Detail, u64)]]) -> Vec<String> {
        let (metrics, mut state) = (Metrics::default(), State::default());
        let mut look = |minute: u64| {
            let at = Tick::ZERO + MINUTE * u32::try_from(minute).unwrap();
            state.next(Seen { unshared: Some((at, metrics.unshared())), ..Seen::default() }).join("; ")
        };
        look(0);
        let minutes = minutes.iter().zip(1..);
        let told = minutes.map(|(requests, minute)| {
            for (outcome, reason, times) in *requests {
                (0..*times).for_each(|_| metrics.count(&record(*outcome, *reason)));
            }
            look(minute)
        });
        told.collect()
    }

    #[test]
    fn many_that_a_setting_would_share_are_said_with_the_setting_that_leads() {
        let told = said(&[&[
            (Outcome::Hit, Detail::None, 100),
            (Outcome::Pass, Detail::Cookie, 90),
            (Outcome::Pass, Detail::NoFreshness, 60),
            (Outcome::Pass, Detail::Private, 500),
        ]]);
        assert!(told[0].starts_with("150 of 750 requests in the last minute"), "{told:?}");
        assert!(told[0].contains("90 of them for the reason \"cookie\": `cookies = "), "{told:?}");
    }

    #[test]
    fn few_and_those_that_no_setting_is_about_are_not_said() {
        assert_eq!(said(&[&[(Outcome::Pass, Detail::Cookie, 99)]]), [""], "few");
        let hits = (Outcome::Hit, Detail::None, 1_000);
        assert_eq!(said(&[&[(Outcome::Pass, Detail::Cookie, 100), hits]]), [""], "a small part");
        assert_eq!(said(&[&[(Outcome::Pass, Detail::Private, 500)]]), [""], "the service says so");
        assert_eq!(said(&[&[(Outcome::Miss, Detail::Cookie, 500)]]), [""], "these did not pass");
        let spread = [&[(Outcome::Pass, Detail::Cookie, 60)][..]; 3];
        assert_eq!(said(&spread), [""; 3], "each minute by itself");
    }

    #[test]
    fn clients_cannot_fill_a_disk_with_requests_that_are_not_shared() {
        let all = [&[(Outcome::Pass, Detail::Cookie, 200)][..]; 181];
        let told = said(&all);
        let minutes: Vec<usize> = (0..told.len()).filter(|minute| !told[*minute].is_empty()).collect();
        assert_eq!(minutes, [0, 60, 120, 180]);
        assert!(told.iter().all(|line| line.len() < 400), "{told:?}");
    }

    #[test]
    fn a_log_that_is_not_written_is_said_and_so_is_another_reason_for_it() {
        let mut state = State::default();
        let mut look = |log: Option<&str>| state.next(Seen { log: log.map(Arc::from), ..Seen::default() }).join("; ");
        assert_eq!(look(None), "");
        assert_eq!(look(Some("no space")), "the access log: no space");
        assert_eq!(look(Some("no space")), "");
        assert_eq!(look(Some("not a file")), "the access log: not a file");
        assert_eq!(look(None), "the access log is written again");
    }
}
