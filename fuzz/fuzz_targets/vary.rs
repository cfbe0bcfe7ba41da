//! Variants: a request matches its own, and whoever matches has the same.
#![no_main]

use herdproof_fuzz::{headers, split};
use herdproof_proxy::policy::Vary;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (response, requests) = split(data);
    let (one, other) = split(requests);
    let Vary::On(spec) = Vary::read(&headers(response)) else { return };
    let (one, other) = (headers(one), headers(other));
    let variant = spec.variant(&one);
    assert!(spec.matches(&variant, &one));
    assert_eq!(spec.matches(&variant, &other), variant == spec.variant(&other));
});
