//! What is for one request only: by itself to the origin, through the same admission as all.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body::Body as _;

use super::{Core, Served, Visit};
use crate::{
    key::Key,
    learn,
    origin::Outgoing,
    policy::{Draws, Times, hop, invalidate, judge},
};

impl Core {
    /// By itself to the origin, without a body.
    pub(super) async fn pass(&self, visit: &Visit<'_>, why: &'static str) -> Served {
        let outgoing = Outgoing {
            method: visit.parts.method.clone(),
            target: visit.target(),
            headers: visit.headers(self),
            route: visit.template(self).hash(),
        };
        let asked = self.env.now();
        match self.origin.fetch(&outgoing, visit.ask(self).deadline(asked + self.settings.wait)).await {
            Ok(mut response) => {
                hop::strip(response.headers_mut());
                let times = Times { asked, answered: self.env.now(), wall: self.env.wall() };
                let route = &visit.route.rules;
                let verdict =
                    judge(&visit.class, response.status(), response.headers(), route, &times, Draws::default()).verdict;
                // Of what is too large nothing is learned: it is not shared whatever it says.
                if response.body().size_hint().exact().is_none_or(|len| len <= self.max_object) {
                    let told = (response.status(), verdict);
                    let plainly = !visit.class.has_credentials() && learn::speaks_for_others(&visit.parts.headers);
                    self.learn_of(&visit.class, visit.key.hash(), visit.template(self), told, plainly);
                }
                visit.passed(response, why)
            }
            Err(error) => self.not_served(visit, None, &error.into(), false),
        }
    }

    /// By itself to the origin, with what it brings.
    pub(super) async fn pass_with<B>(&self, visit: &Visit<'_>, why: &'static str, body: B) -> Served
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
        let length = body.size_hint().exact();
        let mut request = Request::new(visit.client.upload(body));
        *request.method_mut() = visit.parts.method.clone();
        *request.uri_mut() = visit.target();
        *request.headers_mut() = visit.headers(self);
        if length.is_none() {
            // Else a GET would go on without the body that it came with.
            request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let ask = visit.ask(self).deadline(visit.arrived + self.settings.wait);
        match self.origin.send(request, visit.template(self).hash(), ask).await {
            Ok(mut response) => {
                hop::strip(response.headers_mut());
                if invalidate::invalidates(&visit.parts.method, response.status()) {
                    self.changed(visit, response.headers());
                }
                visit.passed(response, why)
            }
            Err(error) => self.not_served(visit, None, &error.into(), false),
        }
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
