//! Requests and responses as they come. A field over several lines means what it means in one, case means nothing, what is not
//! known means nothing, and a prohibition more never makes a verdict more generous.
#![no_main]

use std::time::UNIX_EPOCH;

use herdproof::Tick;
use herdproof_fuzz::{headers, joined, split};
use herdproof_proxy::policy::{
    Directives, Draws, Judged, RequestDirectives, Route, Times, cache_control::CDN_CACHE_CONTROL, classify, judge,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (request, response) = split(data);
    let (request, mut response) = (headers(request), headers(response));
    let class = classify(&Method::GET, &request, &Route::default());
    // One pass through the head and the two look-ups by name are the same reading.
    assert_eq!(class.asked, RequestDirectives::read(&request));
    if let Some(joined) = joined(&request, &header::CACHE_CONTROL) {
        assert_eq!(class.asked, RequestDirectives::read(&joined));
    }

    let said = Directives::of_cache_control(&response);
    if let Some(joined) = joined(&response, &header::CACHE_CONTROL) {
        assert_eq!(said, Directives::of_cache_control(&joined));
        let mut more = joined.clone();
        more.append(header::CACHE_CONTROL, HeaderValue::from_static("x-other=\"private, no-store\", max-agee=5"));
        assert_eq!(said, Directives::of_cache_control(&more));
    }
    let mut shouted = response.clone();
    for (_, line) in shouted.iter_mut().filter(|(name, _)| **name == header::CACHE_CONTROL) {
        *line = HeaderValue::from_bytes(&line.as_bytes().to_ascii_uppercase()).expect("still a value");
    }
    assert_eq!(said, Directives::of_cache_control(&shouted));
    targeted(&response);

    let judged = |response: &HeaderMap| -> Judged {
        let times = Times { asked: Tick::ZERO, answered: Tick::ZERO, wall: UNIX_EPOCH };
        judge(&class, StatusCode::OK, response, &Route::default(), &times, Draws::default())
    };
    let before = judged(&response);
    let _ = before.life.at(Tick::ZERO, &class.asked);
    if !before.verdict.shares() {
        assert!(!before.verdict.stores() || before.life.is_for_each());
    }
    for prohibition in ["no-cache", "private", "no-store", "PRIVATE=\"x\"", " no-store ,"] {
        response.append("cache-control", HeaderValue::from_static(prohibition));
        // A field that is for us alone overrides, as it should.
        assert!(!judged(&response).verdict.shares() || response.contains_key(CDN_CACHE_CONTROL));
    }
});

/// The targeted field: lines are one dictionary, a stranger in it changes nothing, and what is not well formed is not there.
fn targeted(response: &HeaderMap) {
    let said = Directives::of_targeted(response, &CDN_CACHE_CONTROL);
    let has_empty = response.get_all(CDN_CACHE_CONTROL).iter().any(|line| line.as_bytes().trim_ascii().is_empty());
    // An empty line among others would be a comma with nothing behind it.
    if let Some(joined) = joined(response, &CDN_CACHE_CONTROL).filter(|_| !has_empty) {
        assert_eq!(said, Directives::of_targeted(&joined, &CDN_CACHE_CONTROL));
    }
    let with = |line: &'static str| {
        let mut more = response.clone();
        more.append(CDN_CACHE_CONTROL, HeaderValue::from_static(line));
        Directives::of_targeted(&more, &CDN_CACHE_CONTROL)
    };
    assert!(said.is_none() || with("x-other=(1 \"private\");y") == said);
    assert_eq!(with("Max-Age=5"), None);
}
