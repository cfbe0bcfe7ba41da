//! A settings file: taken, or refused in words.
#![no_main]

use herdproof_proxy::Settings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(wrong) = Settings::parse(text) {
        assert!(!wrong.to_string().is_empty());
    }
});
