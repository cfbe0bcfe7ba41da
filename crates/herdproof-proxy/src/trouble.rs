//! What whoever runs a proxy has to hear of.
//!
//! Clients of an origin that is down are answered, by what is kept or with an error that says so; a line that could not be
//! logged is counted. All of it is in the metrics, and nobody looks at those before something else is wrong. So each trouble is
//! said once when it begins and once when it is over, however many requests it meets.

use std::sync::Arc;

use herdproof::breaker::Phase;

use crate::{Proxy, access::AccessLog};

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
}

#[derive(Debug, Default)]
struct State {
    before: Seen,
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
        self.state.next(Seen { is_down: matches!(stats.breaker, Phase::Open { .. }), why, log })
    }
}

impl State {
    fn next(&mut self, seen: Seen) -> Vec<String> {
        let mut news = Vec::new();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(is_down: bool) -> Seen {
        Seen { is_down, why: Some("refused".into()), log: None }
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
