//! Heads from bytes.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A line for each header, `name:value`; lines that are none are left out.
pub fn headers(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|&byte| byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// What comes before the first empty line, and what comes after it.
pub fn split(data: &[u8]) -> (&[u8], &[u8]) {
    match data.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&data[..at], &data[at + 2..]),
        None => (data, &[]),
    }
}
