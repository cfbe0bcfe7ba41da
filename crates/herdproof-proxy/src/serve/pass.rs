//! What is for one request only: by itself to the origin, through the same admission as all.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body::Body as _;

use super::{
    Core, Served, Visit,
    upload::{Carried, Refused, may_pause},
};
use crate::{
    access::Outcome,
    detail::Detail,
    fill::Failure,
    key::Key,
    learn,
    origin::{OriginError, Outgoing},
    policy::{Draws, Times, invalidate, judge},
};

const CLOSE: HeaderValue = HeaderValue::from_static("close");

impl Core {
    /// By itself to the origin, without a body.
    pub(super) async fn pass(&self, visit: &Visit<'_>, why: Detail) -> Served {
        let mut headers = visit.headers(self);
        visit.trailers.ask(&mut headers);
        let outgoing = Outgoing {
            method: visit.parts.method.clone(),
            target: visit.target(),
            headers,
            route: visit.template(self).hash(),
        };
        let asked = self.env.now();
        // Boxed, as below: else every client that waits for another's answer would have room for this in its task.
        match Box::pin(self.origin.fetch(&outgoing, visit.ask(self).deadline(asked + self.settings.wait))).await {
            Ok(mut response) => {
                visit.trailers.strip(&mut response);
                let times = Times { asked, answered: self.env.now(), wall: self.env.wall() };
                let route = &visit.route.rules;
                let verdict =
                    judge(&visit.class, response.status(), response.headers(), route, &times, Draws::default()).verdict;
                // Of what is too large nothing is learned: it is not shared whatever it says.
                if visit.host.is_none() && response.body().size_hint().exact().is_none_or(|len| len <= self.max_object)
                {
                    let told = (response.status(), verdict);
                    let plainly = learn::speaks_for_others(&visit.class, &visit.parts.headers, response.status());
                    let by = (visit.who.key(), plainly);
                    self.learn_of(&visit.class, visit.key.hash(), visit.template(self), told, by);
                }
                visit.passed(response, why)
            }
            Err(error) => self.not_served(visit, None, &Failure::of(error, self.env.now() - asked), false),
        }
    }

    /// By itself to the origin, with what it brings.
    pub(super) async fn pass_with<B>(&self, visit: &Visit<'_>, why: Detail, body: B) -> Served
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(served) = self.turned_away(visit) {
            return served;
        }
        if body.is_end_stream() && visit.parts.method.is_idempotent() && visit.parts.method.is_safe() {
            return self.pass(visit, why).await;
        }
        let deadline = visit.arrived + self.settings.wait;
        let headers = &visit.parts.headers;
        let body = if may_pause(headers) { visit.client.pausing_upload(body) } else { visit.client.upload(body) };
        let body = match self.uploads.receive(visit.who.key(), headers, body, deadline).await {
            Ok(body) if visit.trailers.announced.is_some() => body,
            Ok(body) => body.bare(),
            Err(refused) => return self.not_uploaded(refused),
        };
        let (length, progress) = (body.size_hint().exact(), body.progress());
        let mut request = Request::new(body);
        *request.method_mut() = visit.parts.method.clone();
        *request.uri_mut() = visit.target();
        *request.headers_mut() = visit.headers(self);
        if length.is_none() {
            // Else a GET would go on without the body that it came with.
            request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            if let Some(names) = &visit.trailers.announced {
                request.headers_mut().insert(header::TRAILER, names.clone());
            }
        }
        visit.trailers.ask(request.headers_mut());
        Carried::expect(&mut request);
        // How long the body took is not counted: a slow upload waits for its seat as long as any.
        let asked = self.env.now();
        let ask = visit.ask(self).deadline(asked + self.settings.wait);
        match Box::pin(self.origin.send(request, visit.template(self).hash(), ask)).await {
            Ok(mut response) => {
                visit.trailers.strip(&mut response);
                let status = response.status();
                if (status.is_client_error() || status.is_server_error())
                    && progress.is_some_and(|progress| !progress.is_over())
                {
                    // The origin has had enough of this body. So has the client, when it hears that the connection ends.
                    response.headers_mut().insert(header::CONNECTION, CLOSE);
                }
                if invalidate::invalidates(&visit.parts.method, response.status()) {
                    self.changed(visit, response.headers());
                }
                visit.passed(response, why)
            }
            Err(OriginError::Request(_)) => {
                self.not_uploaded(progress.map_or(Refused::Broken, |progress| progress.why()))
            }
            Err(error) => {
                let failure = Failure::of(error, self.env.now() - asked);
                let mut served = self.not_served(visit, None, &failure, false);
                if progress.is_some_and(|progress| !progress.is_over()) {
                    served.response.headers_mut().insert(header::CONNECTION, CLOSE);
                }
                served
            }
        }
    }

    /// A body that did not get to the origin, for a reason that is not the origin's.
    fn not_uploaded(&self, refused: Refused) -> Served {
        let (outcome, detail, status, why, after) = match refused {
            Refused::Busy => {
                let after = Some(self.appointment(None));
                (
                    Outcome::Shed,
                    Detail::Uploads,
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many uploads are under way",
                    after,
                )
            }
            Refused::Slow => {
                let why = "the body of the request came too slowly";
                (Outcome::Bad, Detail::SlowBody, StatusCode::REQUEST_TIMEOUT, why, None)
            }
            Refused::Broken => {
                let why = "the body of the request is malformed or broke off";
                (Outcome::Bad, Detail::Body, StatusCode::BAD_REQUEST, why, None)
            }
        };
        let mut served = Served::own(outcome, detail, status, why, after);
        // What is left of the body would be taken for the next request.
        served.response.headers_mut().insert(header::CONNECTION, CLOSE);
        served
    }

    /// An unsafe request has worked: what is kept of its target, and of what its answer points to on the same host, may be
    /// out of date (RFC 9111 4.4).
    fn changed(&self, visit: &Visit<'_>, headers: &HeaderMap) {
        self.ask_about(&visit.key.to_key());
        for key in invalidate::others(&visit.key, headers, &self.keyer) {
            self.ask_about(&key);
        }
    }

    /// What is kept of a URL is asked about before it is served again. First the flight: what lands after this is not kept, and what
    /// landed before is marked.
    fn ask_about(&self, key: &Key) {
        self.flights.forget(key);
        self.store.changed(key);
    }
}
