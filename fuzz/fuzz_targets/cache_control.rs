//! Requests and responses as they come: judged without a panic, and never more generously because a prohibition was added.
#![no_main]

use std::time::UNIX_EPOCH;

use herdproof::Tick;
use herdproof_fuzz::{headers, split};
use herdproof_proxy::policy::{Draws, Route, Times, classify, judge};
use http::{HeaderValue, Method, StatusCode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (request, response) = split(data);
    let (request, mut response) = (headers(request), headers(response));
    let (route, times) = (Route::default(), Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH });
    let class = classify(&Method::GET, &request, &route);
    let judged = judge(&class, StatusCode::OK, &response, &route, &times, Draws::default());
    let _ = judged.life.at(Tick::ZERO, &class.asked);
    for prohibition in ["private", "no-store", "PRIVATE=\"x\"", " no-store ,"] {
        response.append("cache-control", HeaderValue::from_static(prohibition));
        let judged = judge(&class, StatusCode::OK, &response, &route, &times, Draws::default());
        // A field that is for us alone overrides, as it should.
        assert!(!judged.verdict.shares() || response.contains_key("cdn-cache-control"));
    }
});
