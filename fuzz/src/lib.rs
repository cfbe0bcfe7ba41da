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

/// The same head with the lines of a field in one, as RFC 9110 5.3 has it; nothing, if a quote is open at the end of a line,
/// for then nobody knows what that is.
pub fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderMap> {
    let lines: Vec<&[u8]> = headers.get_all(name).into_iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() || lines.iter().any(|line| leaves_open(line)) {
        return None;
    }
    let mut joined = headers.clone();
    joined.insert(name, HeaderValue::from_bytes(&lines.join(&b", "[..])).ok()?);
    Some(joined)
}

fn leaves_open(line: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for &byte in line {
        (quoted, escaped) = match byte {
            _ if escaped => (quoted, false),
            b'\\' if quoted => (quoted, true),
            b'"' => (!quoted, false),
            _ => (quoted, false),
        };
    }
    quoted
}
