//! Who may share an answer.
//!
//! Coalescing shares before it stores: those who wait for a response get its bytes whether or not anything is kept. So the rules
//! of a cache are not enough; they have to be asked before a follower sees a byte, and again for each follower. Peers have leaked
//! here (CVE-2016-10003; a body given to a hundred users because only its cookie was taken off).
//!
//! | the request | looks up, joins | leads a shared flight |
//! |---|---|---|
//! | GET or HEAD without body | yes | yes |
//! | the same with `Authorization`, or with a user's [identity](super::identity) from a trusted peer | only what says `public`, `s-maxage` or `must-revalidate` | no |
//! | with a body, an upgrade, `If-Match`, `If-Unmodified-Since`, another method | no | no |
//!
//! | the response | who has it |
//! |---|---|
//! | may be kept and is fresh | all aboard, and all later ones |
//! | may be kept, and is stale at once: `max-age=0` | those aboard before its head came |
//! | `private`, `no-store`, `no-cache`, `Vary: *`, `Set-Cookie`, asked for with credentials and not `public`, a status that says nothing about others, or nothing said at all | the one who asked |
//! | it does not state that it is fresh for some time: a validator's age or the route's `ttl` has to do, or it is stale at once | those without cookies; who has some gets an own answer ([`Cookies`](super::Cookies)) |
//! | asked for with the request's own `no-store`, on a route that obeys clients | those aboard before its head came; it is not kept |
//! | an error of the origin that may not be kept | its bytes the one who asked; the others learn of it |
//!
//! A response with `no-cache` and a validator is kept all the same (RFC 9111 5.2.2.4): each later request asks the origin by itself
//! whether it is still right *for that request*, and only the body is spared.
//!
//! Nothing said at all is no yes. Services that tell users apart by a header of their own (`X-Api-Key`) and never heard of caches
//! say nothing, and all their users may ask at once. A route that knows better sets [`Route::ttl`]; zero shares with those aboard.

use std::fmt;

use http::{HeaderMap, Method, StatusCode};

use super::{
    Route,
    cache_control::RequestDirectives,
    life::{Draws, Life, Times},
    terms::Terms,
    vary::Vary,
};

const HEAD: u8 = 1;
const AUTHORIZATION: u8 = 1 << 1;
const COOKIE: u8 = 1 << 2;
const RANGE: u8 = 1 << 3;
const CONDITIONAL: u8 = 1 << 4;

/// What a request is, as far as sharing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    way: Way,
    bits: u8,
    /// What it will take.
    pub asked: RequestDirectives,
}

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It looks up, joins and leads.
    Share,
    /// It looks up and joins where the response says it is for all. Where nothing is there to join, it is asked by itself; its
    /// answer may be kept if the verdict is that all may have it.
    Alone,
    /// It goes to the origin by itself, and nobody else learns of it.
    Pass(Pass),
}

/// Why a request goes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// Another method than GET and HEAD.
    Method,
    /// It brings a body.
    Body,
    /// It wants to become another protocol.
    Upgrade,
    /// It makes a condition that only the origin can judge.
    Precondition,
}

/// Who may have a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// All aboard and, from the store, all later ones.
    Shareable,
    /// Those who were aboard before its head came.
    AboardOnly {
        /// Whether it is of use later all the same: it may be served stale, or spare the origin a body.
        store: bool,
    },
    /// The one who asked.
    NotShareable {
        /// Why.
        why: Reason,
        /// Whether it is kept, to be used only after each request has asked the origin itself: [`Use::Alone`](super::Use::Alone).
        store: bool,
    },
    /// The origin failed: the bytes for the one who asked, the news for all.
    Failed(Reason),
}

/// Why a response is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The request was not one to share.
    Passed,
    /// `Cache-Control: private`.
    Private,
    /// `Cache-Control: no-store`.
    NoStore,
    /// `Cache-Control: no-cache`.
    NoCache,
    /// `must-understand`, and we do not know the status.
    NotUnderstood,
    /// `Vary: *`.
    VaryStar,
    /// It varies on too many fields.
    VaryTooMuch,
    /// It sets a cookie.
    SetCookie,
    /// It was asked for with `Authorization`, and does not say that it is for all.
    Authorization,
    /// It was asked for with `Cookie`, and does not state how long it is fresh, or not that it is `public` where that counts.
    Cookie,
    /// It is a part.
    Partial,
    /// It answers a condition of the one who asked.
    Condition,
    /// It is not the final response.
    Interim,
    /// The origin has too much to do, for the one who asked or for all.
    Overload,
    /// Its status is not one to keep unless told so, and nobody said so.
    Status,
    /// It says nothing about being kept.
    Unsaid,
    /// An error of the origin.
    Error,
    /// It is larger than what is kept.
    TooLarge,
}

impl Class {
    /// Which way it goes.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether it may have what is stored or under way; see [`may_have`](Class::may_have).
    pub fn looks_up(&self) -> bool {
        !matches!(self.way, Way::Pass(_))
    }

    /// Whether others may wait for what it is asked for.
    pub fn leads(&self) -> bool {
        self.way == Way::Share
    }

    /// Whether it may have a response that was not asked for on its behalf: to be asked of a stored one and, at the head of a
    /// response, for each who waits.
    #[inline]
    pub fn may_have(&self, life: &Life) -> bool {
        let is_for_its_cookies = !self.has_cookie() || life.is_for_cookies();
        match self.way {
            Way::Share => is_for_its_cookies,
            Way::Alone => is_for_its_cookies && life.is_for_all(),
            Way::Pass(_) => false,
        }
    }

    /// The same request where a trusted peer says who the user is: that is a credential, as `Authorization` is.
    #[must_use]
    pub fn identified(self) -> Class {
        let way = if self.way == Way::Share { Way::Alone } else { self.way };
        Class { way, bits: self.bits | AUTHORIZATION, ..self }
    }

    /// Whether it wants the head only.
    pub fn is_head(&self) -> bool {
        self.bits & HEAD != 0
    }

    /// Whether it comes with credentials.
    pub fn has_authorization(&self) -> bool {
        self.bits & AUTHORIZATION != 0
    }

    /// Whether it comes with cookies.
    pub fn has_cookie(&self) -> bool {
        self.bits & COOKIE != 0
    }

    /// Whether it says who asks: what it gets may be for that user.
    pub fn has_credentials(&self) -> bool {
        self.bits & (AUTHORIZATION | COOKIE) != 0
    }

    /// Whether it wants a part. The origin is asked for the whole.
    pub fn has_range(&self) -> bool {
        self.bits & RANGE != 0
    }

    /// Whether it asks if something has changed. The origin is not asked that on its behalf.
    pub fn is_conditional(&self) -> bool {
        self.bits & CONDITIONAL != 0
    }
}

impl Pass {
    /// As metrics and `Cache-Status` name it.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Method => "method",
            Pass::Body => "request-body",
            Pass::Upgrade => "upgrade",
            Pass::Precondition => "precondition",
        }
    }
}

impl Reason {
    /// Every reason there is.
    pub const ALL: [Reason; 18] = [
        Reason::Passed,
        Reason::Private,
        Reason::NoStore,
        Reason::NoCache,
        Reason::NotUnderstood,
        Reason::VaryStar,
        Reason::VaryTooMuch,
        Reason::SetCookie,
        Reason::Authorization,
        Reason::Cookie,
        Reason::Partial,
        Reason::Condition,
        Reason::Interim,
        Reason::Overload,
        Reason::Status,
        Reason::Unsaid,
        Reason::Error,
        Reason::TooLarge,
    ];

    /// As metrics and `Cache-Status` name it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Passed => "passed",
            Reason::Private => "private",
            Reason::NoStore => "no-store",
            Reason::NoCache => "no-cache",
            Reason::NotUnderstood => "must-understand",
            Reason::VaryStar => "vary-star",
            Reason::VaryTooMuch => "vary-too-much",
            Reason::SetCookie => "set-cookie",
            Reason::Authorization => "authorization",
            Reason::Cookie => "cookie",
            Reason::Partial => "partial",
            Reason::Condition => "condition",
            Reason::Interim => "interim",
            Reason::Overload => "overload",
            Reason::Status => "status",
            Reason::Unsaid => "no-freshness",
            Reason::Error => "error",
            Reason::TooLarge => "too-large",
        }
    }
}

impl Reason {
    /// Whether it says something about other requests for the same URL, rather than about how this one was put.
    pub fn is_telling(self) -> bool {
        !matches!(self, Reason::Passed | Reason::Partial | Reason::Condition | Reason::Interim | Reason::Overload)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Verdict {
    /// Whether others than the one who asked may have its bytes.
    pub fn shares(self) -> bool {
        matches!(self, Verdict::Shareable | Verdict::AboardOnly { .. })
    }

    /// Whether it is to be kept.
    pub fn stores(self) -> bool {
        match self {
            Verdict::Shareable => true,
            Verdict::AboardOnly { store } | Verdict::NotShareable { store, .. } => store,
            Verdict::Failed(_) => false,
        }
    }

    /// Why others do not get it, if they do not.
    pub fn why(self) -> Option<Reason> {
        match self {
            Verdict::Shareable | Verdict::AboardOnly { .. } => None,
            Verdict::NotShareable { why, .. } | Verdict::Failed(why) => Some(why),
        }
    }
}

/// What a request is. To be asked before anything is taken off its head: `Connection: authorization` is not to hide the
/// credentials from us.
pub fn classify(method: &Method, headers: &HeaderMap, route: &Route) -> Class {
    let mut bits = if *method == Method::HEAD { HEAD } else { 0 };
    let mut why = if *method == Method::GET || *method == Method::HEAD { None } else { Some(Pass::Method) };
    let mut asked = RequestDirectives::default();
    let mut pragma = RequestDirectives::default();
    let mut has_cache_control = false;
    // Once through, because each look-up by name costs as much as going through a few.
    for (name, value) in headers {
        match name.as_str() {
            "authorization" => bits |= AUTHORIZATION,
            "cookie" => bits |= COOKIE,
            "range" => bits |= RANGE,
            "if-none-match" | "if-modified-since" => bits |= CONDITIONAL,
            "if-match" | "if-unmodified-since" => why = why.or(Some(Pass::Precondition)),
            "transfer-encoding" => why = why.or(Some(Pass::Body)),
            "content-length" if value != "0" => why = why.or(Some(Pass::Body)),
            // `h2c` is an offer that we decline for the origin: it is about this connection, and goes no further.
            "upgrade" if !value.as_bytes().eq_ignore_ascii_case(b"h2c") => why = why.or(Some(Pass::Upgrade)),
            "cache-control" => {
                has_cache_control = true;
                asked.note_line(value.as_bytes());
            }
            "pragma" => pragma.note_pragma(value.as_bytes()),
            _ => {}
        }
    }
    let asked = match (route.obey_clients, has_cache_control) {
        (true, true) => asked,
        (true, false) => pragma,
        (false, _) => asked.without_demands(),
    };
    let way = match why {
        Some(why) => Way::Pass(why),
        None if bits & AUTHORIZATION != 0 => Way::Alone,
        None => Way::Share,
    };
    Class { way, bits, asked }
}

/// A response's terms, its times, and who may have it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What its head says.
    pub terms: Terms,
    /// How long it is fresh and so on; counts if it is kept.
    pub life: Life,
    /// Who may have it.
    pub verdict: Verdict,
}

/// Judges the final head of a response to a request of this class.
pub fn judge(
    class: &Class,
    status: StatusCode,
    headers: &HeaderMap,
    route: &Route,
    times: &Times,
    draws: Draws,
) -> Judged {
    let terms = Terms::read(status, headers);
    let life = Life::begin(&terms, route, times, draws);
    let verdict = verdict(class, &terms, route, &life, times);
    Judged { terms, life, verdict }
}

/// Who may have a response.
pub fn verdict(class: &Class, terms: &Terms, route: &Route, life: &Life, times: &Times) -> Verdict {
    let barred = |why| {
        if is_failure(terms.status) && !matches!(class.way, Way::Pass(_)) {
            Verdict::Failed(why)
        } else {
            Verdict::NotShareable { why, store: false }
        }
    };
    if let Some(why) = bars(class, terms, route) {
        return barred(why);
    }
    let may_keep = !class.asked.no_store();
    let is_for_its_cookie = class.has_cookie() && !terms.is_for_cookies(route.cookies, times.wall);
    if life.is_for_each() {
        let why = if terms.directives.no_cache() { Reason::NoCache } else { Reason::Unsaid };
        // A validator that is the same for all users does not make their answers the same.
        return Verdict::NotShareable { why, store: may_keep && terms.has_validator && !is_for_its_cookie };
    }
    if is_for_its_cookie {
        return barred(Reason::Cookie);
    }
    if may_keep && !life.fresh_for(times.answered).is_zero() {
        return Verdict::Shareable;
    }
    let is_of_use = terms.has_validator || !life.servable_for(times.answered).is_zero();
    Verdict::AboardOnly { store: may_keep && is_of_use }
}

/// Whether a response is fresh and says so for all, but answers how its request was put: then it may be kept for the client that put
/// it so.
pub(crate) fn is_fresh_for_one(class: &Class, terms: &Terms, route: &Route, life: &Life, times: &Times) -> bool {
    let is_cacheable = matches!(terms.status.as_u16(), 400 | 405 | 414 | 501);
    let may_keep = !class.asked.no_store() && bars_of_head(class, terms, route).is_none();
    is_cacheable && may_keep && terms.is_explicit() && !life.is_for_each() && !life.fresh_for(times.answered).is_zero()
}

/// What keeps a response from everybody but the one who asked.
fn bars(class: &Class, terms: &Terms, route: &Route) -> Option<Reason> {
    let passed = matches!(class.way, Way::Pass(_)).then_some(Reason::Passed);
    passed.or_else(|| bars_of_status(terms.status)).or_else(|| bars_of_head(class, terms, route))
}

/// What its head says against it, whatever its status.
fn bars_of_head(class: &Class, terms: &Terms, route: &Route) -> Option<Reason> {
    let directives = terms.directives;
    let because = |holds: bool, why: Reason| holds.then_some(why);
    because(directives.private(), Reason::Private)
        .or_else(|| because(directives.must_understand() && !terms.is_understood(), Reason::NotUnderstood))
        // Who says `must-understand` says `no-store` for those who do not.
        .or_else(|| because(directives.no_store() && !directives.lifts_no_store(), Reason::NoStore))
        .or_else(|| because(terms.vary == Vary::Everything, Reason::VaryStar))
        .or_else(|| because(terms.vary == Vary::TooMuch, Reason::VaryTooMuch))
        .or_else(|| because(terms.sets_cookie && !route.share_set_cookie, Reason::SetCookie))
        .or_else(|| because(class.has_authorization() && !terms.is_for_all(), Reason::Authorization))
        .or_else(|| {
            let kept = terms.is_explicit() || directives.public() || terms.is_kept_by_default();
            let why = match terms.status {
                status if is_failure(status) => Reason::Error,
                StatusCode::TOO_MANY_REQUESTS => Reason::Overload,
                _ => Reason::Status,
            };
            because(!kept, why)
        })
}

/// Statuses that answer something only one request said.
fn bars_of_status(status: StatusCode) -> Option<Reason> {
    match status.as_u16() {
        ..200 => Some(Reason::Interim),
        206 => Some(Reason::Partial),
        304 | 412 | 416 => Some(Reason::Condition),
        // About one client, whatever else it says.
        429 => Some(Reason::Overload),
        _ => is_about_the_request(status).then_some(Reason::Status),
    }
}

/// Statuses that answer how a request was put, and say nothing about the same URL asked for in another way. One header that the origin
/// cannot read would make them what everybody gets, if they were shared.
pub(crate) fn is_about_the_request(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405..=408 | 411..=417 | 421..=426 | 428 | 431 | 501 | 505)
}

/// Whether a status says that the origin failed, and would have failed others too. Not 501 and 505 and their like, which answer how
/// a request was put.
pub fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() && !matches!(status.as_u16(), 501 | 505 | 506 | 510 | 511)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
