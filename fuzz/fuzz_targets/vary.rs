//! Variants: a request matches its own, whoever matches has the same, and two are the same just when the fields that choose say
//! the same. What that is, is told here a second time and more simply.
#![no_main]

use herdproof_fuzz::{headers, joined, split};
use herdproof_proxy::policy::{
    Vary,
    vary::{Encodings, ask_plainly},
};
use http::{HeaderMap, HeaderName, header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (response, requests) = split(data);
    let (one, other) = split(requests);
    let (response, one, other) = (headers(response), headers(one), headers(other));
    let vary = Vary::read(&response);
    if let Some(joined) = joined(&response, &header::VARY) {
        assert_eq!(vary, Vary::read(&joined));
    }
    let Vary::On(spec) = vary else { return };
    let variant = spec.variant(&one);
    assert!(spec.matches(&variant, &one));
    assert_eq!(spec.matches(&variant, &other), variant == spec.variant(&other));
    let same = spec.names().iter().all(|name| plain(&one, name) == plain(&other, name));
    assert_eq!(variant == spec.variant(&other), same);

    for name in spec.names() {
        // The lines of a cookie are not a list, and are compared as they are.
        if let Some(joined) = joined(&one, name).filter(|_| !is_secret(name)) {
            assert!(spec.matches(&variant, &joined), "{name}");
        }
    }
    let mut asked = one.clone();
    ask_plainly(&mut asked);
    assert_eq!(Encodings::read(&asked), Encodings::read(&one));
});

fn is_secret(name: &HeaderName) -> bool {
    [header::COOKIE, header::AUTHORIZATION, header::PROXY_AUTHORIZATION].contains(name)
}

/// What a request says in a field, as far as it chooses the answer.
fn plain(request: &HeaderMap, name: &HeaderName) -> Option<Vec<Vec<u8>>> {
    if *name == header::ACCEPT_ENCODING {
        return Some(vec![Encodings::read(request).as_str().into()]);
    }
    request.get(name)?;
    let lines = request.get_all(name).into_iter();
    if is_secret(name) {
        return Some(lines.map(|line| line.as_bytes().to_vec()).collect());
    }
    let mut elements: Vec<Vec<u8>> = lines.flat_map(|line| elements(line.as_bytes())).collect();
    if *name == header::ACCEPT_LANGUAGE {
        for element in &mut elements {
            element.retain(|byte| !byte.is_ascii_whitespace());
            element.make_ascii_lowercase();
        }
        elements.sort();
    }
    Some(elements)
}

/// The elements of a line: commas in quotes part nothing, unless the quote has no end.
fn elements(line: &[u8]) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    let (mut begin, mut at) = (0, 0);
    let mut open = true;
    while at <= line.len() {
        match line.get(at) {
            Some(b',') | None => {
                elements.push(line[begin..at].trim_ascii().to_vec());
                begin = at + 1;
            }
            Some(b'"') if open => match end_of_quote(&line[at + 1..]) {
                Some(length) => at += length + 1,
                None => {
                    // From the beginning of this element on, quotes are letters.
                    (open, at) = (false, begin);
                    continue;
                }
            },
            Some(_) => {}
        }
        at += 1;
    }
    elements.retain(|element| !element.is_empty());
    elements
}

fn end_of_quote(rest: &[u8]) -> Option<usize> {
    let mut escaped = false;
    rest.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}
