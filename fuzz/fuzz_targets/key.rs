//! Keys: two are equal just when the URLs are, where the case of a host and the default port say nothing; and what is accepted
//! goes to the origin byte for byte as it is in the key.
#![no_main]

use std::borrow::Borrow;

use herdproof_proxy::key::{AsKey, Key, KeyRef, Keyer, Scheme};
use http::{HeaderMap, HeaderValue, Uri, header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let mut url = |scheme: Scheme| (scheme, lines.next().unwrap_or("a"), lines.next().unwrap_or("/"));
    let (one, other) = (url(Scheme::Http), url(Scheme::Http));
    let keyer = Keyer::new(1);
    let Ok(key) = keyer.key(one.0, one.1, one.2) else { return };
    let kept = key.to_key();
    assert_eq!(kept.target(), one.2);
    assert!(one.2.starts_with('/') && !one.2.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'#'));
    assert_eq!(kept.to_string(), format!("http://{}{}", plain(one), one.2));
    let again = keyer.key(Scheme::Http, kept.authority(), kept.target()).expect("what was accepted is accepted");
    assert_eq!((again.to_key(), again.hash()), (kept.clone(), key.hash()));
    through_a_request(&keyer, one, &kept);

    for other in [other, (Scheme::Https, one.1, one.2), (Scheme::Http, other.1, one.2), (Scheme::Http, one.1, other.2)] {
        let Ok(second) = keyer.key(other.0, other.1, other.2) else { continue };
        let same = (one.0, plain(one), one.2) == (other.0, plain(other), other.2);
        assert_eq!(kept == second.to_key(), same);
        assert_eq!(looked_up(&kept, &second), same);
        assert!(!same || kept.hash() == second.hash());
    }
});

fn looked_up(kept: &Key, asked: &KeyRef<'_>) -> bool {
    let asked: &dyn AsKey = asked;
    *<Key as Borrow<dyn AsKey>>::borrow(kept) == *asked
}

/// Who is asked, told a second time: in lower case, without the port that everybody means.
fn plain((scheme, authority, _): (Scheme, &str, &str)) -> String {
    let default = match scheme {
        Scheme::Http => "80",
        Scheme::Https => "443",
    };
    let lower = authority.to_ascii_lowercase();
    match lower.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') && (port.is_empty() || port == default) => host.to_owned(),
        _ => lower,
    }
}

/// The same from the head of a request, whose `Host` is one that agrees or the only one there is.
fn through_a_request(keyer: &Keyer, (scheme, authority, target): (Scheme, &str, &str), kept: &Key) {
    let Ok(host) = HeaderValue::from_str(authority) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, host.clone());
    let Ok(uri) = target.parse::<Uri>() else { return };
    if uri.scheme().is_none() && uri.authority().is_none() {
        let key = keyer.of(scheme, &uri, &headers).expect("the same as by its parts");
        assert_eq!(key.to_key(), *kept);
    }
    let Ok(uri) = format!("http://{authority}{target}").parse::<Uri>() else { return };
    if let Ok(key) = keyer.of(scheme, &uri, &headers) {
        assert_eq!(key.to_key(), *kept);
    }
    headers.append(header::HOST, host);
    assert!(keyer.of(scheme, &uri, &headers).is_err(), "two hosts are none");
}
