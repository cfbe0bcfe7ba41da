//! Keys: what is accepted goes to the origin byte for byte as it is in the key.
#![no_main]

use herdproof_proxy::key::{Keyer, Scheme};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (authority, target) = text.split_once('\n').unwrap_or((text, "/"));
    let keyer = Keyer::new(1);
    let Ok(key) = keyer.key(Scheme::Http, authority, target) else { return };
    let kept = key.to_key();
    assert_eq!(kept.target(), target);
    assert!(target.starts_with('/') && !target.bytes().any(|byte| byte <= b' ' || byte == 0x7f));
    let again = keyer.key(Scheme::Http, kept.authority(), kept.target()).expect("what was accepted is accepted");
    assert_eq!((again.to_key(), again.hash()), (kept, key.hash()));
});
