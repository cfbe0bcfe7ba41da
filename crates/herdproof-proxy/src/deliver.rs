//! A response made of what is kept or arriving, as one request wants it: a part, only the head, or nothing but that it has not
//! changed. And the responses that are our own.

use std::time::Duration;

use herdproof::{Tick, shed};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{AGE, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, TRANSFER_ENCODING},
};

use crate::{
    body::Body,
    cache_status::CACHE_STATUS,
    object::Object,
    policy::{
        Class, condition,
        range::{Ranged, range},
    },
    settings::Fallback,
};

/// What a request that is answered from an object says about how it wants it. The map is used for the headers.
pub(crate) fn deliver(
    object: &Object,
    class: &Class,
    request: &HeaderMap,
    now: Tick,
    status: HeaderValue,
    mut headers: HeaderMap,
) -> Response<Body> {
    headers.clear();
    object.head().append_to(&mut headers);
    headers.insert(AGE, HeaderValue::from(object.life.age(now)));
    // After what caches behind us have said (RFC 9211 2).
    headers.append(CACHE_STATUS, status);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = object.head().status();
    *response.headers_mut() = headers;
    if class.is_conditional() || class.has_range() {
        adapt(&mut response, object, class, request);
    } else {
        fill(&mut response, object, class);
    }
    response
}

/// The whole body, or its length only.
fn fill(response: &mut Response<Body>, object: &Object, class: &Class) {
    // With a body, its length is said when the head is written.
    if !class.is_head() {
        *response.body_mut() = Body::of(object);
    } else if let Some(len) = object.len() {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
    }
}

#[inline(never)]
fn adapt(response: &mut Response<Body>, object: &Object, class: &Class, request: &HeaderMap) {
    let stored = response.headers();
    if class.is_conditional() && condition::is_unchanged(request, response.status(), stored) {
        *response.headers_mut() = condition::not_modified(stored);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return;
    }
    // Only of what is known to be a whole can a part be had.
    let cuts = class.has_range() && !class.is_head() && response.status() == StatusCode::OK;
    let Some(of) = object.len().filter(|_| cuts && condition::may_cut(request, stored)) else {
        return fill(response, object, class);
    };
    let (status, range) = match range(request, of) {
        Ranged::Whole => return fill(response, object, class),
        Ranged::Part { first, last } => {
            let len = last - first + 1;
            *response.body_mut() = Body::of(object).part(first, len);
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
            (StatusCode::PARTIAL_CONTENT, format!("bytes {first}-{last}/{of}"))
        }
        Ranged::Unsatisfiable => {
            response.headers_mut().remove(CONTENT_LENGTH);
            (StatusCode::RANGE_NOT_SATISFIABLE, format!("bytes */{of}"))
        }
    };
    *response.status_mut() = status;
    if let Ok(range) = HeaderValue::try_from(range) {
        response.headers_mut().insert(CONTENT_RANGE, range);
    }
}

/// A response of our own: a status, why, and when to come back if that is known. Nothing of the request is in it.
pub(crate) fn own(status: StatusCode, why: &str, after: Option<Duration>, cache: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::whole(format!("{status}: {why}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_STATUS, cache);
    for (name, value) in after.map(shed::headers).into_iter().flatten() {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// A route's answer for when the origin cannot.
pub(crate) fn fallback(fallback: &Fallback, cache: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::whole(fallback.body.clone()));
    *response.status_mut() = fallback.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, fallback.content_type.clone());
    headers.insert(CONTENT_LENGTH, HeaderValue::from(fallback.body.len()));
    // For this moment only, whatever a cache behind us makes of its status.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CACHE_STATUS, cache);
    response
}

/// The head of a response that was asked for with another method than it answers.
pub(crate) fn head_only(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().remove(TRANSFER_ENCODING);
    response.map(|_| Body::empty())
}
