//! What a change makes old (RFC 9111 4.4).
//!
//! A POST that worked makes what is stored under its own URL old, and what its `Location` and `Content-Location` name, if that is of
//! the same origin: else any site could throw out any other's.

use http::{HeaderMap, Method, StatusCode, header};

use crate::key::{Key, KeyRef, Keyer};

/// Whether an answer to this method makes stored responses old: it may have changed something, and it worked.
pub fn invalidates(method: &Method, status: StatusCode) -> bool {
    !is_safe(method) && (status.is_success() || status.is_redirection())
}

/// Whether a method is registered as one that changes nothing. What is not known may change something.
fn is_safe(method: &Method) -> bool {
    method.is_safe() || matches!(method.as_str(), "PROPFIND" | "QUERY" | "REPORT" | "SEARCH")
}

/// What else than the URL itself becomes old: two keys at most.
pub fn others(key: &KeyRef<'_>, response: &HeaderMap, keyer: &Keyer) -> Vec<Key> {
    let named = [header::LOCATION, header::CONTENT_LOCATION].into_iter().filter_map(|name| response.get(name));
    named.filter_map(|value| resolve(key, value.to_str().ok()?, keyer)).collect()
}

/// A reference of RFC 3986, seen from a URL; none if it leads to another origin.
fn resolve(key: &KeyRef<'_>, reference: &str, keyer: &Keyer) -> Option<Key> {
    let reference = reference.split('#').next().unwrap_or_default().trim_ascii();
    let scheme = key.scheme();
    let rest = match reference.split_once(':') {
        // A colon before the first slash ends a scheme.
        Some((named, rest)) if !named.contains(['/', '?']) => {
            if !named.eq_ignore_ascii_case(scheme.as_str()) {
                return None;
            }
            rest
        }
        _ => reference,
    };
    let other = if let Some(rest) = rest.strip_prefix("//") {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        keyer.key(scheme, authority, &target).ok()?.to_key()
    } else {
        keyer.key(scheme, key.authority(), &seen_from(key.target(), rest)).ok()?.to_key()
    };
    other.authority().eq_ignore_ascii_case(key.authority()).then_some(other)
}

/// A path and query, seen from another.
fn seen_from(base: &str, reference: &str) -> String {
    let (path, _) = split(base);
    let (to, query) = split(reference);
    let joined = if to.is_empty() {
        // The same path; without a query the same one too.
        return if query.is_empty() { base.to_owned() } else { format!("{path}{query}") };
    } else if to.starts_with('/') {
        to.to_owned()
    } else {
        format!("{}{to}", &path[..=path.rfind('/').unwrap_or(0)])
    };
    let mut segments: Vec<&str> = Vec::new();
    for segment in joined.split('/').skip(1) {
        match segment {
            "." | ".." => {
                if segment == ".." {
                    segments.pop();
                }
            }
            _ => segments.push(segment),
        }
    }
    let is_folder = joined.ends_with("/.") || joined.ends_with("/..");
    format!("/{}{}{query}", segments.join("/"), if is_folder && !segments.is_empty() { "/" } else { "" })
}

/// Path, and query with its `?`.
fn split(target: &str) -> (&str, &str) {
    target.split_at(target.find('?').unwrap_or(target.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Scheme;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn old(location: &str) -> Option<String> {
        let keyer = Keyer::new(1);
        let key = keyer.key(Scheme::Http, "a.example", "/b/c/d?q=1").unwrap();
        let mut response = HeaderMap::new();
        response.insert(header::LOCATION, HeaderValue::from_str(location).unwrap());
        others(&key, &response, &keyer).pop().map(|key| key.to_string())
    }

    #[test]
    fn only_a_change_that_worked_makes_anything_old() {
        let unknown = ["M-SEARCH", "PURGE", "FOO", "query"].map(|name| Method::from_bytes(name.as_bytes()).unwrap());
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH].into_iter().chain(unknown) {
            for (status, old) in [(200, true), (204, true), (303, true), (400, false), (404, false), (500, false)] {
                assert_eq!(invalidates(&method, StatusCode::from_u16(status).unwrap()), old, "{method} {status}");
            }
        }
        for name in ["GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "QUERY", "REPORT", "SEARCH"] {
            assert!(!invalidates(&Method::from_bytes(name.as_bytes()).unwrap(), StatusCode::OK), "{name}");
        }
    }

    #[test]
    fn a_location_is_seen_from_where_it_was_said() {
        for (location, expected) in [
            ("e", "/b/c/e"),
            ("e?x=/y", "/b/c/e?x=/y"),
            ("./e", "/b/c/e"),
            ("../e", "/b/e"),
            ("../../../e", "/e"),
            ("..", "/b/"),
            ("../..", "/"),
            (".", "/b/c/"),
            ("/e/./f/../g#h", "/e/g"),
            ("?x", "/b/c/d?x"),
            ("", "/b/c/d?q=1"),
            ("http://A.example:80/e", "/e"),
            ("HTTP://a.example", "/"),
            ("http://a.example?x", "/?x"),
            ("//a.example/e", "/e"),
            ("http:e", "/b/c/e"),
        ] {
            assert_eq!(old(location).as_deref(), Some(format!("http://a.example{expected}").as_str()), "{location}");
        }
    }

    #[test]
    fn nobody_makes_old_what_is_anothers() {
        for location in [
            "http://b.example/e",
            "https://a.example/e",
            "//b.example/",
            "//user@a.example/",
            "ftp:e",
            "http://a.example:81/",
            "/a\\b",
        ] {
            assert_eq!(old(location), None, "{location}");
        }
    }

    proptest! {
        #[test]
        fn no_reference_leads_to_another_origin(reference in "(http|https|x)?:?/{0,3}[a.:@]{0,9}[/.?#a]{0,9}") {
            if let Some(url) = old(&reference) {
                prop_assert!(url.starts_with("http://a.example/"), "{}", url);
            }
        }
    }
}
