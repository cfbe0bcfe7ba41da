//! Why a request was answered as it was: the one list of reasons.
//!
//! An [outcome](crate::access::Outcome) says where an answer came from. What an operator does about it depends on why: ten thousand
//! passes are a service without `Cache-Control`, a cookie on every page, or a route that says `share = false`. The same word stands in
//! `Cache-Status` (`detail`, RFC 9211), in the access log and in the metrics (`reason`), and all of them are in this file. They are a
//! closed list, so that counting them by label is bounded whatever clients send.

use herdproof::gate;

use crate::{
    key::Ambiguous,
    policy::{Pass, Reason},
};

macro_rules! details {
    ($($variant:ident $name:literal $help:literal)*) => {
        /// Why a request was answered as it was; see the [module](self).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Detail {
            /// The outcome says all there is to say.
            #[default]
            None,
            $(#[doc = $help] $variant,)*
        }

        impl Detail {
            /// Every one there is, but for [`None`](Detail::None).
            pub const ALL: &'static [Detail] = &[$(Detail::$variant),*];

            /// What it is called in `Cache-Status`, logs and metrics; empty for [`None`](Detail::None).
            pub const fn name(self) -> &'static str {
                match self {
                    Detail::None => "",
                    $(Detail::$variant => $name,)*
                }
            }

            /// What it means, in one sentence.
            pub const fn help(self) -> &'static str {
                match self {
                    Detail::None => "",
                    $(Detail::$variant => $help,)*
                }
            }
        }
    };
}

details! {
    Private       "private"         "The response says `Cache-Control: private`."
    NoStore       "no-store"        "The response says `Cache-Control: no-store`."
    NoCache       "no-cache"        "The response says `Cache-Control: no-cache`."
    NotUnderstood "must-understand" "The response says `must-understand`, and its status is not one that the proxy understands."
    VaryStar      "vary-star"       "The response varies on what is not in the request (`Vary: *`), or on who the client is."
    VaryTooMuch   "vary-too-much"   "The response varies on too many fields."
    SetCookie     "set-cookie"      "The response sets a cookie, and the route does not say `share_set_cookie`."
    Authorization "authorization"   "The request has credentials, and the response does not say that it is for all."
    Cookie        "cookie"          "The request has a cookie, and the response does not say that it is for all."
    Partial       "partial"         "The response is a part (206)."
    Condition     "condition"       "The response answers a condition of this request (304, 412, 416)."
    Interim       "interim"         "The response is not a final one (1xx)."
    Overload      "overload"        "The origin answered 429."
    Status        "status"          "The response has a status that is about this request, or that is not stored unless the response says so."
    NoFreshness   "no-freshness"    "The response says nothing of how long it is fresh, and the route has no `ttl`."
    Error         "error"           "The response is an error of the origin (5xx)."
    TooLarge      "too-large"       "The response is larger than `max_object`, or than what is left of it for those who come late."
    Passed        "passed"          "The request was not one to share."
    Method        "method"          "The request has another method than GET and HEAD."
    RequestBody   "request-body"    "The request has a body."
    Upgrade       "upgrade"         "The request asks for another protocol."
    Precondition  "precondition"    "The request has a condition that only the origin can judge (`If-Match`, `If-Unmodified-Since`)."
    Route         "route"           "The route says `share = false`."
    ForwardedHost "forwarded-host"  "A trusted proxy names another host in `X-Forwarded-Host` than in `Host`."
    Learned       "learned"         "Responses of this route could not be shared lately, so a few requests for this URL go in parallel."
    Vary          "vary"            "What came was again and again another variant than this request's."

    StaleWhileRevalidate "stale-while-revalidate" "Stale, and fetched again beside this request."
    MaxStale             "max-stale"              "Stale, as the client allows with `max-stale`."
    OriginFailed         "origin-failed"          "The origin failed."
    OriginSlow           "origin-slow"            "The origin did not answer for longer than it is waited for where there is something stale."
    RefreshRefused       "refresh-refused"        "The origin answered the proxy's own request for this URL, but with an error (4xx) or something that is not for all."
    OwnError             "own-error"              "An error that says it may be kept, kept for the client that got it and asks in the same way."
    FailedLately         "failed-lately"          "The origin failed for this URL a moment ago, and is not asked again so soon."

    ConnectionRefused     "connection_refused"       "The origin refused the connection."
    ConnectionTimeout     "connection_timeout"       "No connection to the origin was made in time."
    ConnectionTerminated  "connection_terminated"    "The origin closed the connection before its answer."
    DestinationNotFound   "destination_not_found"    "The origin's name was not found."
    DestinationUnavailable "destination_unavailable" "No connection to the origin could be made."
    ResponseTimeout       "http_response_timeout"    "The origin did not begin its answer in time."
    ProtocolError         "http_protocol_error"      "The origin's answer is not HTTP, or can be read in more than one way."
    RequestError          "http_request_error"       "The body of the request broke off on its way to the origin."

    Breaker       "breaker"         "The breaker is open: the origin counts as down."
    Queue         "queue"           "The queue for the origin is full."
    Shed          "shed"            "The queue for the origin has stood for too long, and load is shed."
    Deadline      "deadline"        "The request waited in the queue for the origin for longer than `queue_wait` or `wait`."
    Concurrency   "concurrency"     "No seat at the origin was free for an attempt that does not wait."
    Rate          "rate"            "Too many requests in too short a time."
    Throttled     "throttled"       "The origin refuses most requests."
    Budget        "budget"          "The budget for retries and hedges is spent."
    WaitedTooLong "waited-too-long" "The request waited for a shared response for longer than `wait`."
    TooManyWait   "too-many-wait"   "More than `max_followers` requests wait for the same response."
    Abandoned     "abandoned"       "The fetch that this request waited for was given up."
    Uploads       "uploads"         "Too many uploads are under way."
    Upgrades      "upgrades"        "Too many connections are upgraded."
    Fallback      "fallback"        "The origin failed or was not asked, and the route has an answer of its own for that."
    OnlyIfCached  "only-if-cached"  "The client takes only what is stored, and nothing is."

    NoHost         "no-host"         "The request names no host."
    TwoHosts       "two-hosts"       "The request names more than one host."
    HostMismatch   "host-mismatch"   "The target and the `Host` field name different hosts."
    BadHost        "bad-host"        "The host cannot be one."
    BadTarget      "bad-target"      "The target is not a path that can be read in one way only."
    TransferCoding "transfer-coding" "The body of the request has another transfer coding than `chunked`."
    Tunnel         "tunnel"          "The request asks for a tunnel (CONNECT)."
    Loop           "loop"            "The request has been here before."
    SlowBody       "slow-body"       "The body of the request came too slowly."
    Body           "body"            "The body of the request is malformed or broke off."
    Unreadable     "unreadable"      "The head of the request is not HTTP/1.1."
    HeadTooLarge   "head-too-large"  "The head of the request is larger than `max_head`."
    UriTooLong     "uri-too-long"    "The target of the request is longer than 64 KiB."
    SlowHead       "slow-head"       "The head of the request was not there within `head_timeout`; nothing was answered."
    Ended          "ended"           "The proxy ended the connection before the answer; `herdproof_connections_ended_total` says why."
}

/// How many there are, with [`None`](Detail::None).
pub(crate) const DETAILS: usize = Detail::ALL.len() + 1;

impl Detail {
    /// The one whose number, as a `u8`, this is.
    pub(crate) fn at(number: u8) -> Detail {
        let place = usize::from(number).checked_sub(1);
        place.and_then(|place| Detail::ALL.get(place)).copied().unwrap_or_default()
    }

    /// What an operator could do to have such requests shared, if anything; [`None`] where the service itself says that it does not
    /// want that.
    pub(crate) fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Detail::Cookie => "`cookies = \"ignore\"` shares them, on routes whose pages do not depend on cookies",
            Detail::NoFreshness => {
                "`ttl` shares them, on routes whose pages are the same for all; or let the service send Cache-Control"
            }
            Detail::SetCookie => "`share_set_cookie = true` shares them, the cookie included",
            Detail::TooLarge => "a larger `max_object`, and `memory` of sixteen times that, shares them",
            Detail::ForwardedHost => "let the proxy in front keep `Host` as the client sent it",
            _ => return None,
        })
    }
}

impl From<Reason> for Detail {
    fn from(reason: Reason) -> Detail {
        match reason {
            Reason::Passed => Detail::Passed,
            Reason::Private => Detail::Private,
            Reason::NoStore => Detail::NoStore,
            Reason::NoCache => Detail::NoCache,
            Reason::NotUnderstood => Detail::NotUnderstood,
            Reason::VaryStar => Detail::VaryStar,
            Reason::VaryTooMuch => Detail::VaryTooMuch,
            Reason::SetCookie => Detail::SetCookie,
            Reason::Authorization => Detail::Authorization,
            Reason::Cookie => Detail::Cookie,
            Reason::Partial => Detail::Partial,
            Reason::Condition => Detail::Condition,
            Reason::Interim => Detail::Interim,
            Reason::Overload => Detail::Overload,
            Reason::Status => Detail::Status,
            Reason::Unsaid => Detail::NoFreshness,
            Reason::Error => Detail::Error,
            Reason::TooLarge => Detail::TooLarge,
        }
    }
}

impl From<Pass> for Detail {
    fn from(pass: Pass) -> Detail {
        match pass {
            Pass::Method => Detail::Method,
            Pass::Body => Detail::RequestBody,
            Pass::Upgrade => Detail::Upgrade,
            Pass::Precondition => Detail::Precondition,
        }
    }
}

impl From<Ambiguous> for Detail {
    fn from(ambiguous: Ambiguous) -> Detail {
        match ambiguous {
            Ambiguous::NoHost => Detail::NoHost,
            Ambiguous::TwoHosts => Detail::TwoHosts,
            Ambiguous::HostMismatch => Detail::HostMismatch,
            Ambiguous::BadHost => Detail::BadHost,
            Ambiguous::BadTarget => Detail::BadTarget,
        }
    }
}

impl From<gate::Why> for Detail {
    fn from(why: gate::Why) -> Detail {
        match why {
            gate::Why::Tripped => Detail::Breaker,
            gate::Why::Rate => Detail::Rate,
            gate::Why::Concurrency => Detail::Concurrency,
            gate::Why::Queue => Detail::Queue,
            gate::Why::Deadline => Detail::Deadline,
            gate::Why::Shed => Detail::Shed,
            gate::Why::Throttled => Detail::Throttled,
            gate::Why::Budget => Detail::Budget,
            _ => Detail::Abandoned,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_one_name_which_is_a_token_and_no_other_has_it() {
        let names: BTreeSet<&str> = Detail::ALL.iter().map(|detail| detail.name()).collect();
        assert_eq!(names.len(), Detail::ALL.len());
        let is_token = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_'));
        assert!(names.iter().all(is_token) && !names.contains(""), "{names:?}");
    }

    #[test]
    fn what_the_verdict_calls_a_reason_is_what_the_log_calls_it() {
        for reason in Reason::ALL {
            assert_eq!(Detail::from(reason).name(), reason.name());
        }
        for pass in [Pass::Method, Pass::Body, Pass::Upgrade, Pass::Precondition] {
            assert_eq!(Detail::from(pass).name(), pass.name());
        }
    }
}
