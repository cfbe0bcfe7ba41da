//! URLs that fail: who is answered with what, and when the origin is asked again.
//!
//! A herd at a URL that fails must not become a herd at the origin, so a failure has to be shared and remembered. But a failure
//! can be one client's doing: a header that the origin chokes on turns any page into a 500, and a cache that shares or
//! remembers it shows that 500 to everybody (cache-poisoned denial of service). So before a failure counts for others, the
//! proxy asks with a **request of its own**, which has nothing in it that a client could choose but the URL and what the
//! response varies on.
//!
//! | what failed | who gets what | what is remembered |
//! |---|---|---|
//! | a request with a client's headers | that client its own answer; the others aboard a second round | one more failed start: they are paced at 2 a second, burst 2 |
//! | a request of our own, by 5xx; or without an answer, as a client's before it | all aboard: our response with the same status | the same for newcomers, for 1 to 2 s |
//! | a request with a client's headers, by 4xx that is not for all | the same | the same, if others were aboard |
//! | a connection that cannot be made | all aboard, at once: no client can cause that | the same |
//! | a request of our own, by 4xx; or without an answer, where a client's had one | the next round, with a client's headers | for ten minutes a request of our own says nothing about this URL (by 429: for ten seconds) |
//! | a request of our own, again, after a client's has succeeded meanwhile | the same | the same |
//!
//! Where a request of our own says nothing, requests of two different clients have to fail before others are told. The first of
//! them is the *witness*; it does not lead again while it is one. With one client address for everybody that second failure
//! never comes: each of them is then told by its own request, paced.
//!
//! Everything here is arithmetic on one record for each URL; [`Failing`] keeps them in a table of fixed size.

use std::{ops::Range, time::Duration};

use herdproof::Tick;
use http::StatusCode;

use crate::table::{Table, Worth};

/// How many URLs are remembered.
const KEYS: usize = 16 * 1024;
/// Failed starts of one URL: one in this time ...
const EVERY: Duration = Duration::from_millis(500);
/// ... and so many at once.
const BURST: u32 = 2;
/// For how long a request of our own is not asked about a URL that it says nothing about.
const OWN_BAD: Duration = Duration::from_secs(600);
/// A client that succeeds so soon after a request of our own has failed speaks against ours.
const CONTRADICTED: Duration = Duration::from_secs(60);
/// How long a witness is one.
const WITNESS: Duration = Duration::from_secs(10);
/// The longest that an origin's `Retry-After` counts for one URL.
const LONGEST: Duration = Duration::from_secs(10);

/// Which URLs fail, by a hash of their key; see the [module](self).
///
/// It decides and does nothing: whoever has a request asks it when to [`start`](Failing::start), waits until then, and tells
/// it how the request [`ended`](Failing::ended). The proxy does so for every response that is not in its cache, and the lab
/// for a whole crowd in virtual time (`herdproof lab run turned-shield`).
///
/// ```
/// use std::time::Duration;
/// use herdproof::Tick;
/// use herdproof_proxy::failing::{By, Ended, Failing, Next, Own, Start};
/// use http::StatusCode;
///
/// let (failing, now, url) = (Failing::new(), Tick::ZERO + Duration::from_secs(1), 7);
/// let error = Ended::Status(StatusCode::INTERNAL_SERVER_ERROR, None);
/// let remembered = (&(Duration::from_secs(1)..Duration::from_secs(2)), 0.5);
///
/// // A request with the headers of client 1 fails while others wait for it: they ask again, by a request of our own.
/// assert_eq!(failing.ended(url, now, By::Client(1), error, true, remembered), Next::Again);
/// assert!(matches!(failing.start(url, now, 2), Start::Ask { own: Own::Yes, .. }));
///
/// // That fails too: so it does for everybody, for a while.
/// assert!(matches!(failing.ended(url, now, By::Proxy, error, true, remembered), Next::Fail(_)));
/// assert!(matches!(failing.start(url, now, 2), Start::Known(_)));
/// ```
#[derive(Debug)]
pub struct Failing(Table<Record>);

/// What is known of a URL that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    /// When the failed starts so far would be used up at their rate (the theoretical arrival time of GCRA).
    used_until: Tick,
    /// Until when newcomers are told what was found last.
    known_until: Tick,
    /// What was found last.
    status: u16,
    /// Whether the last client's failure was one without an answer.
    broke: bool,
    /// When a request of our own failed last; zero if none did.
    own_failed: Tick,
    /// Until when a request of our own says nothing.
    own_bad_until: Tick,
    /// A client succeeded soon after a request of our own had failed: either it has recovered, or ours says nothing. The next of
    /// ours tells which.
    is_contradicted: bool,
    /// Others were aboard when a client's request failed: the next start is a request of our own.
    own_next: bool,
    /// Whose request failed, where a request of our own says nothing; and until when that counts.
    witness: u64,
    witness_until: Tick,
}

/// What to do with a request for a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Ask the origin at this tick, with everybody who comes until then.
    Ask {
        /// When.
        at: Tick,
        /// Whether with a request of our own.
        own: Own,
        /// Whether it has failed lately, so that one attempt has to do.
        again: bool,
    },
    /// Ask by itself at this tick: its last failure is not to be shared.
    Aside {
        /// When.
        at: Tick,
    },
    /// It failed a moment ago, for everybody.
    Known(Known),
}

/// Whether the origin is asked with a request of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It is.
    Yes,
    /// It is asked with a client's headers.
    No,
    /// If more than one client waits for it.
    IfShared,
}

/// A failure that holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The status it failed with.
    pub status: StatusCode,
    /// Until when nobody asks again.
    pub until: Tick,
}

/// Whose headers a request had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The client with this key.
    Client(u64),
    /// Nobody's: the proxy asked.
    Proxy,
}

/// How a request for a URL ended, as far as failures go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an answer that is no failure.
    Well,
    /// With 4xx: a request of ours lacks something, or the origin does not like how a client's was put.
    Refused,
    /// With 429: it is one too many, of a client's or of ours.
    Limited,
    /// With a status of 5xx, and maybe when to come back.
    Status(StatusCode, Option<Duration>),
    /// Without an answer, or with half of one, after so many attempts.
    Broken(StatusCode, u16),
    /// Without a connection.
    Unreachable(StatusCode),
}

impl Ended {
    /// Whether the origin has answered, and does not want to give what was asked for.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(self, Ended::Refused | Ended::Limited)
    }
}

/// What those aboard do who did not get the answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It failed for them too, until then.
    Fail(Tick),
    /// They ask again, together.
    Again,
}

impl Default for Failing {
    fn default() -> Failing {
        Failing::new()
    }
}

impl Failing {
    /// With nothing known of any URL.
    pub fn new() -> Failing {
        Failing(Table::new(KEYS))
    }

    /// What to do with a request of this client.
    pub fn start(&self, key: u64, now: Tick, client: u64) -> Start {
        let begin = Start::Ask { at: now, own: Own::No, again: false };
        match self.0.get(key, |record| record.start(now, client)) {
            Some(Start::Aside { .. }) => {
                // It takes its place in the pace now: many of them may go aside at once.
                self.0.change(key, now, |record| record.aside(now))
            }
            start => start.unwrap_or(begin),
        }
    }

    /// Whether it has failed lately.
    pub(crate) fn knows(&self, key: u64) -> bool {
        self.0.get(key, |_| ()).is_some()
    }

    /// Whether a request of our own says nothing about this URL.
    pub fn own_is_bad(&self, key: u64, now: Tick) -> bool {
        self.0.get(key, |record| record.own_is_bad(now)).unwrap_or(false)
    }

    /// A request has ended. `others`: whether more clients than the one whose headers it had waited for it; `rest` and `draw`:
    /// how long a failure holds for all.
    pub fn ended(
        &self,
        key: u64,
        now: Tick,
        by: By,
        ended: Ended,
        others: bool,
        (rest, draw): (&Range<Duration>, f64),
    ) -> Next {
        let is_news = match (by, ended) {
            (_, Ended::Well) => false,
            (By::Client(_), Ended::Refused | Ended::Limited) => others,
            _ => true,
        };
        if !is_news && self.0.get(key, |_| ()).is_none() {
            return Next::Again;
        }
        self.0.change(key, now, |record| record.ended(now, by, ended, others, (rest, draw)))
    }
}

impl Record {
    fn start(&self, now: Tick, client: u64) -> Start {
        if now < self.known_until {
            return Start::Known(Known { status: self.status(), until: self.known_until });
        }
        if self.own_is_bad(now) {
            return if self.is_witness(now, client) {
                Start::Aside { at: self.next(now) }
            } else {
                Start::Ask { at: self.next(now), own: Own::No, again: true }
            };
        }
        let at = self.next(now);
        let own = match (self.own_next, at > now) {
            (true, _) => Own::Yes,
            (false, true) => Own::IfShared,
            (false, false) => Own::No,
        };
        Start::Ask { at, own, again: true }
    }

    /// The witness asks by itself. If it is far ahead of the pace it is told what it was told before.
    fn aside(&mut self, now: Tick) -> Start {
        let at = self.next(now);
        if at > now + EVERY {
            return Start::Known(Known { status: self.status(), until: at });
        }
        self.charge(now, 1);
        Start::Aside { at }
    }

    fn ended(&mut self, now: Tick, by: By, ended: Ended, others: bool, (rest, draw): (&Range<Duration>, f64)) -> Next {
        let drawn = rest.start + rest.end.saturating_sub(rest.start).mul_f64(draw);
        match ended {
            Ended::Status(..) => self.charge(now, 1),
            Ended::Broken(_, attempts) => self.charge(now, attempts.into()),
            // Ours, or one that those aboard have waited for in vain.
            Ended::Refused | Ended::Limited if by == By::Proxy || others => self.charge(now, 1),
            Ended::Refused | Ended::Limited | Ended::Well | Ended::Unreachable(_) => {}
        }
        match (by, ended) {
            // It may be about how this one request was put: whether others are refused too, a request of our own finds out.
            (By::Client(_), Ended::Refused | Ended::Limited) => {
                self.own_next |= others && !self.own_is_bad(now);
                Next::Again
            }
            (By::Client(_), Ended::Well) => {
                let contradicts = self.own_failed > Tick::ZERO && now < self.own_failed + CONTRADICTED;
                *self = Record {
                    own_bad_until: self.own_bad_until,
                    own_failed: if contradicts { self.own_failed } else { Tick::ZERO },
                    own_next: contradicts,
                    is_contradicted: contradicts,
                    ..Record::default()
                };
                Next::Again
            }
            (By::Proxy, Ended::Well) => {
                *self = Record::default();
                Next::Again
            }
            (_, Ended::Unreachable(status)) => self.holds(now, status, drawn),
            (By::Proxy, Ended::Status(..) | Ended::Broken(..)) if self.is_contradicted => {
                *self = Record { own_bad_until: now + OWN_BAD, used_until: self.used_until, ..Record::default() };
                Next::Again
            }
            (By::Proxy, Ended::Status(status, after)) => {
                (self.own_failed, self.own_next) = (now, false);
                self.holds(now, status, after.map_or(drawn, |after| after.min(LONGEST).max(drawn)))
            }
            // Ours and a client's agree.
            (By::Proxy, Ended::Broken(status, _)) if self.broke => {
                (self.own_failed, self.own_next) = (now, false);
                self.holds(now, status, drawn)
            }
            (By::Proxy, Ended::Refused | Ended::Limited | Ended::Broken(..)) => {
                let bad = if ended == Ended::Limited { LONGEST } else { OWN_BAD };
                (self.own_bad_until, self.own_next) = (now + bad, false);
                Next::Again
            }
            (By::Client(client), Ended::Status(status, _) | Ended::Broken(status, _)) => {
                self.status = status.as_u16();
                self.broke = matches!(ended, Ended::Broken(..));
                if !self.own_is_bad(now) {
                    self.own_next |= others;
                    return Next::Again;
                }
                if now < self.witness_until && self.witness != client {
                    (self.witness, self.witness_until) = (0, Tick::ZERO);
                    return self.holds(now, status, drawn);
                }
                (self.witness, self.witness_until) = (client, now + WITNESS);
                Next::Again
            }
        }
    }

    /// It holds for everybody for so long.
    fn holds(&mut self, now: Tick, status: StatusCode, rest: Duration) -> Next {
        (self.status, self.known_until) = (status.as_u16(), now + rest);
        Next::Fail(self.known_until)
    }

    fn own_is_bad(&self, now: Tick) -> bool {
        now < self.own_bad_until
    }

    fn is_witness(&self, now: Tick, client: u64) -> bool {
        now < self.witness_until && self.witness == client
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY)
    }

    /// When the next start fits the pace.
    fn next(&self, now: Tick) -> Tick {
        let ahead = EVERY.saturating_mul(BURST - 1).as_nanos();
        let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
        now.max(Tick::from_nanos(self.used_until.as_nanos().saturating_sub(ahead)))
    }

    /// So many more attempts have failed.
    fn charge(&mut self, now: Tick, attempts: u32) {
        self.used_until = now.max(self.used_until) + EVERY.saturating_mul(attempts);
    }
}

impl Worth for Record {
    fn worth(&self, now: Tick) -> u64 {
        // That a request of our own says nothing is remembered for long, and is worth little: who makes it so for many URLs must not
        // push out what is known of others.
        let last = self.used_until.max(self.known_until).max(self.own_bad_until.min(now + EVERY));
        let last = last.max(if self.own_failed > Tick::ZERO { self.own_failed + CONTRADICTED } else { Tick::ZERO });
        u64::try_from((last - now).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(2);
    const ANN: By = By::Client(1);
    const BOB: By = By::Client(2);
    const ERROR: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Duration::from_millis(10_000 + millis)
    }

    struct Url(Failing);

    impl Url {
        fn new() -> Url {
            Url(Failing::new())
        }

        fn start(&self, millis: u64, client: u64) -> Start {
            self.0.start(7, at(millis), client)
        }

        fn ended(&self, millis: u64, by: By, ended: Ended) -> Next {
            self.0.ended(7, at(millis), by, ended, true, (&REST, 0.5))
        }

        fn failed(&self, millis: u64, by: By) -> Next {
            self.ended(millis, by, Ended::Status(ERROR, None))
        }
    }

    #[test]
    fn a_failure_of_one_client_is_not_told_to_others() {
        let url = Url::new();
        for round in 0..50 {
            assert_eq!(url.failed(round * 20, ANN), Next::Again);
            assert!(!matches!(url.start(round * 20, 2), Start::Known(_)), "round {round}");
        }
    }

    #[test]
    fn after_a_clients_failure_the_others_are_decided_for_by_a_request_of_our_own() {
        let url = Url::new();
        url.failed(0, ANN);
        assert_eq!(url.start(0, 1), Start::Ask { at: at(0), own: Own::Yes, again: true }, "whoever leads");
        assert_eq!(url.failed(10, By::Proxy), Next::Fail(at(1_510)));
        let known = Start::Known(Known { status: ERROR, until: at(1_510) });
        assert_eq!((url.start(11, 1), url.start(1_509, 2)), (known, known));
        assert!(matches!(url.start(1_510, 2), Start::Ask { own: Own::No, .. }), "then anew");
    }

    #[test]
    fn a_lone_failure_does_not_make_the_next_request_ours() {
        let url = Url::new();
        url.0.ended(7, at(0), ANN, Ended::Status(ERROR, None), false, (&REST, 0.5));
        assert_eq!(url.start(0, 2), Start::Ask { at: at(0), own: Own::No, again: true });
    }

    #[test]
    fn a_url_that_fails_for_all_is_asked_for_at_most_three_times_in_any_second() {
        for own in [false, true] {
            let url = Url::new();
            let mut starts = Vec::new();
            let mut now = 0;
            while now < 30_000 {
                // Always somebody who asks, and a failure at once.
                match url.start(now, now % 3) {
                    Start::Ask { at: then, .. } if then > at(now) => {}
                    Start::Ask { own: asks, .. } => {
                        starts.push(now);
                        url.failed(now, if own && asks == Own::Yes { By::Proxy } else { By::Client(now % 3) });
                        continue;
                    }
                    Start::Aside { .. } | Start::Known(_) => {}
                }
                now += 1;
            }
            let most = starts.iter().map(|from| starts.iter().filter(|&at| (*from..from + 1_000).contains(at)).count());
            assert!(most.max().unwrap() <= 3 && starts.len() > 10, "{starts:?}");
        }
    }

    #[test]
    fn attempts_that_were_repeated_count_each() {
        let url = Url::new();
        url.ended(0, ANN, Ended::Broken(StatusCode::BAD_GATEWAY, 3));
        assert_eq!(url.start(0, 2), Start::Ask { at: at(1_000), own: Own::Yes, again: true });
    }

    #[test]
    fn delayed_starts_are_a_request_of_our_own_if_shared() {
        let url = Url::new();
        for _ in 0..2 {
            url.0.ended(7, at(0), ANN, Ended::Status(ERROR, None), false, (&REST, 0.5));
        }
        assert_eq!(url.start(0, 2), Start::Ask { at: at(500), own: Own::IfShared, again: true });
        assert_eq!(url.start(500, 2), Start::Ask { at: at(500), own: Own::No, again: true });
    }

    #[test]
    fn where_a_request_of_our_own_says_nothing_two_clients_have_to_fail() {
        for says_nothing in [Ended::Refused, Ended::Broken(StatusCode::BAD_GATEWAY, 1)] {
            let url = Url::new();
            url.failed(0, ANN);
            assert_eq!(url.ended(0, By::Proxy, says_nothing), Next::Again);
            assert_eq!(url.failed(600, ANN), Next::Again);
            assert_eq!(url.failed(1_200, ANN), Next::Again, "the same again");
            assert_eq!(url.failed(1_800, BOB), Next::Fail(at(3_300)));
            assert!(matches!(url.start(1_801, 3), Start::Known(_)));
            assert!(matches!(url.start(3_300, 3), Start::Ask { own: Own::No, .. }));
            assert_eq!(url.failed(3_300, BOB), Next::Again, "each time anew");
        }
    }

    #[test]
    fn a_connection_that_breaks_for_a_client_and_for_us_breaks_for_all() {
        let broken = Ended::Broken(StatusCode::BAD_GATEWAY, 1);
        let url = Url::new();
        assert_eq!(url.ended(0, ANN, broken), Next::Again);
        assert_eq!(url.ended(10, By::Proxy, broken), Next::Fail(at(1_510)));
        url.ended(2_000, BOB, Ended::Well);
        assert_eq!(url.ended(2_100, By::Proxy, broken), Next::Again);
        assert!(url.0.own_is_bad(7, at(2_100)), "unless a client's does not, and ours still does");
    }

    #[test]
    fn a_witness_does_not_lead_again_and_is_paced_by_itself() {
        let url = Url::new();
        url.failed(0, ANN);
        url.ended(0, By::Proxy, Ended::Refused);
        url.failed(600, ANN);
        assert!(matches!(url.start(600, 2), Start::Ask { own: Own::No, .. }));
        let mut asides = 0;
        for _ in 0..50 {
            asides += u32::from(matches!(url.start(600, 1), Start::Aside { .. }));
        }
        assert!((1..=3).contains(&asides), "{asides}");
    }

    #[test]
    fn a_client_that_succeeds_after_ours_failed_shows_that_ours_says_nothing_if_it_fails_again() {
        let url = Url::new();
        url.failed(0, ANN);
        url.failed(0, By::Proxy);
        url.ended(2_000, BOB, Ended::Well);
        assert!(matches!(url.start(2_100, 2), Start::Ask { own: Own::Yes, .. }), "ours is asked which it is");
        assert_eq!(url.failed(2_100, By::Proxy), Next::Again, "and nobody else fails for it");
        assert!(url.0.own_is_bad(7, at(2_100)) && !url.0.own_is_bad(7, at(700_000)));
        assert!(matches!(url.start(2_700, 2), Start::Ask { own: Own::No, .. }), "no second round by ours");
    }

    #[test]
    fn a_limit_that_ours_runs_into_says_nothing_for_a_moment_only() {
        let url = Url::new();
        url.failed(0, ANN);
        assert_eq!(url.ended(0, By::Proxy, Ended::Limited), Next::Again);
        assert!(url.0.own_is_bad(7, at(9_999)) && !url.0.own_is_bad(7, at(10_000)));
    }

    #[test]
    fn an_outage_that_is_over_does_not_speak_against_requests_of_our_own() {
        let url = Url::new();
        url.failed(0, ANN);
        url.failed(0, By::Proxy);
        url.ended(2_000, BOB, Ended::Well);
        url.ended(2_100, By::Proxy, Ended::Well);
        assert!(!url.0.own_is_bad(7, at(2_100)));
        assert_eq!(url.start(2_100, 2), Start::Ask { at: at(2_100), own: Own::No, again: false });
    }

    #[test]
    fn any_other_success_forgets_the_url() {
        for by in [BOB, By::Proxy] {
            let url = Url::new();
            url.failed(0, ANN);
            url.failed(0, ANN);
            url.ended(0, by, Ended::Well);
            assert_eq!(url.start(0, 1), Start::Ask { at: at(0), own: Own::No, again: false });
        }
    }

    #[test]
    fn no_client_can_cause_a_refused_connection_so_it_holds_for_all() {
        let url = Url::new();
        assert_eq!(url.ended(0, ANN, Ended::Unreachable(StatusCode::BAD_GATEWAY)), Next::Fail(at(1_500)));
        assert!(matches!(url.start(1, 2), Start::Known(Known { status: StatusCode::BAD_GATEWAY, .. })));
    }

    #[test]
    fn an_origins_retry_after_holds_for_its_url_and_not_for_long() {
        for (after, rests) in [(0, 1_500), (5, 5_000), (3_600, 10_000)] {
            let url = Url::new();
            let after = Some(Duration::from_secs(after));
            assert_eq!(url.ended(0, By::Proxy, Ended::Status(ERROR, after)), Next::Fail(at(rests)));
        }
    }
}
