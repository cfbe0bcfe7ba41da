//! What HTTP says about attempts: read off requests and responses of the `http` crate, and written onto them.
//!
//! A retry that cannot see that a server below has given up tries again what was tried already, and one that repeats a POST
//! may order twice. HTTP says all of that, in a status, a method and a few headers ([`wire`]), if somebody reads it. These are
//! the functions that do, for [`Shield::run`](crate::Shield::run), [`Retry::run`](crate::Retry::run), and as the hooks of tower
//! layers:
//!
//! | | where | what it does |
//! |---|---|---|
//! | [`judge`] | a client | status, `Retry-After` and `x-no-retry` as a [`Judgement`] |
//! | [`stamp`] | a client | `x-deadline-ms` and `x-retry-attempt` onto the request of an attempt |
//! | [`at_most_once`] | a client | which requests must not be done twice, by their method |
//! | [`ask`] | a server | deadline and attempt of a request, as its client stamped it |
//! | [`no_retry`] | a server | `x-no-retry` onto the response of whoever has given up |
//!
//! ```
//! # #[cfg(feature = "tower")] {
//! use herdproof::{Env, Shield, http, layer::ShieldLayer};
//! use ::http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # use std::io::{Error, ErrorKind};
//! # async fn send(_: Request<String>) -> Result<Response<String>, Error> { Ok(Response::new("42 in stock".into())) }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::system();
//! let refused = |error: &Error| error.kind() == ErrorKind::ConnectionRefused; // with hyper, `Error::is_connect`
//! let client = ServiceBuilder::new()
//!     .layer(
//!         ShieldLayer::new(&env, Shield::for_http(&env).build(), http::judge(&env, refused))
//!             .asking(http::ask) // what its own caller said, if it was copied or stamped onto the request
//!             .stamping(http::stamp)
//!             .at_most_once(http::at_most_once),
//!     )
//!     .service(service_fn(send));
//! let response = client.oneshot(Request::get("/stock/17").body(String::new()).unwrap()).await.unwrap();
//! assert_eq!(response.body(), "42 in stock");
//! # });
//! # }
//! ```
//!
//! A server in the middle is both: it [`ask`]s what its caller said, [`stamp`]s that onto the request it sends on, and says
//! [`no_retry`] on the response if that was given up behind its own retry.

use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};

use crate::{
    backoff::RetryAfter,
    env::Env,
    gate::{Ask, Judgement, Verdict},
    retry::wire,
};

/// Judges responses by their status and headers, and errors as faults.
///
/// | | verdict |
/// |---|---|
/// | 429, 503 | [`Overload`](Verdict::Overload), with `retry-after-ms` or `Retry-After` if one is there |
/// | 501, 505, and 400 to 499 | [`Final`](Verdict::Final): the request is at fault |
/// | other 500 to 599 | [`Fault`](Verdict::Fault) |
/// | all else | [`Ok`](Verdict::Ok) |
/// | an error | [`Fault`](Verdict::Fault); and [`Unsent`](Judgement::Unsent), if `unsent` says so |
///
/// A response with `x-no-retry` is [`NoRetry`](Judgement::NoRetry) beside that. `unsent` is to say yes only if the request certainly
/// was not sent: the client could not connect. Say no where a client follows redirects by itself, since what came before the
/// redirect was sent.
pub fn judge<B, E, U>(env: &Env, unsent: U) -> impl Fn(&Result<Response<B>, E>) -> Judgement + Clone + use<B, E, U>
where
    U: Fn(&E) -> bool + Clone,
{
    let env = env.clone();
    move |outcome| match outcome {
        Ok(response) => of_response(&env, response.status(), response.headers()),
        Err(error) if unsent(error) => Judgement::Unsent(Verdict::Fault),
        Err(_) => Judgement::Plain(Verdict::Fault),
    }
}

fn of_response(env: &Env, status: StatusCode, headers: &HeaderMap) -> Judgement {
    let verdict = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Verdict::Overload { after: after(env, headers) }
        }
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => Verdict::Final,
        _ if status.is_server_error() => Verdict::Fault,
        _ if status.is_client_error() => Verdict::Final,
        _ => Verdict::Ok,
    };
    let told = headers.get(wire::NO_RETRY).is_some_and(|value| wire::parse_no_retry(value.as_bytes()).is_ok());
    if told { Judgement::NoRetry(verdict) } else { Judgement::Plain(verdict) }
}

/// When a server said to come back; to the millisecond, if it said that.
fn after(env: &Env, headers: &HeaderMap) -> Option<Duration> {
    let text = |value: &HeaderValue| value.to_str().ok().map(|text| text.trim().to_owned());
    let millis = headers.get("retry-after-ms").and_then(text).and_then(|text| text.parse().ok());
    let after = millis.map(RetryAfter::millis).or_else(|| {
        let text = headers.get(RETRY_AFTER).and_then(text)?;
        RetryAfter::parse(&text, env.wall()).ok()
    });
    after.map(RetryAfter::duration)
}

/// Writes onto a request how much time its attempt has and which it is; see [`wire`]. What stands there already is what
/// somebody else was told, and is taken away.
pub fn stamp<B>(env: &Env, request: &mut Request<B>, ask: &Ask) {
    let headers = request.headers_mut();
    headers.remove(wire::DEADLINE);
    headers.remove(wire::ATTEMPT);
    wire::write(ask, env.now(), |name, value| drop(headers.insert(name, value.into())));
}

/// What a request asks for: its deadline and its attempt, as [`stamp`] wrote them. What makes no sense is as if it had not been
/// said.
pub fn ask<B>(env: &Env, request: &Request<B>) -> Ask {
    let headers = request.headers();
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    // One by one, so that nonsense in one does not unsay the other.
    [wire::DEADLINE, wire::ATTEMPT].into_iter().fold(Ask::new(env), |ask, which| {
        wire::read(ask.clone(), |name| if name == which { value(name) } else { None }).unwrap_or(ask)
    })
}

/// Whether a request must not be done twice: its method is not idempotent, and it has no `Idempotency-Key` by which the server
/// would notice.
pub fn at_most_once<B>(request: &Request<B>) -> bool {
    !request.method().is_idempotent() && !request.headers().contains_key("idempotency-key")
}

/// Says on a response that it was tried often enough here, and should not be tried again above.
///
/// For what is answered in place of a [`GaveUp`](crate::retry::GaveUp) whose [`no_retry`](crate::retry::GaveUp::no_retry) holds;
/// and for a response of 500 and above that came out of a retry, since that is what it has given up with.
pub fn no_retry<B>(response: &mut Response<B>) {
    response.headers_mut().insert(wire::NO_RETRY, HeaderValue::from_static(wire::OVERLOADED));
}

#[cfg(test)]
mod tests;
