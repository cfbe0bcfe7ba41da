//! Whose requests are answered.
//!
//! There is no password, so everything hangs on who can send a request. A browser can, on behalf of any page it shows, and a page can
//! have its own name point to our address (DNS rebinding): then it may read what is answered. But the browser says in `Host` which
//! name it asked for, and pages cannot change that. So only requests are answered that name this listener: by its address, as
//! `localhost`, or by a name of `admin_hosts`. An address cannot be made to point elsewhere; where others may reach the listener, and
//! it has more addresses than anybody listed (a pod's, a container's), each of them will do. Ports are not compared: a forwarded
//! port is another one.
//!
//! A page that asks by our address cannot read the answer, but it could still ask. Browsers say in `Sec-Fetch-Site` where a request
//! comes from, and older ones in `Origin`: what other sites make is refused, but for a link that somebody follows.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use crate::policy::client::address;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Names and addresses that a listener is meant by.
#[derive(Debug)]
pub(super) struct Hosts {
    own: IpAddr,
    /// In small letters.
    names: Vec<String>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) why: &'static str,
}

const NO_HOST: Refused = Refused { status: StatusCode::BAD_REQUEST, why: "one Host has to be named\n" };
const ANOTHER_HOST: Refused = Refused {
    status: StatusCode::MISDIRECTED_REQUEST,
    why: "this is another host; ask by address, or name it in `admin_hosts`\n",
};
const ANOTHER_SITE: Refused = Refused { status: StatusCode::FORBIDDEN, why: "not for other sites' pages\n" };

impl Hosts {
    /// Of a listener with this address, and with these names besides `localhost`.
    pub(super) fn new(own: IpAddr, names: &[String]) -> Hosts {
        let names = names.iter().map(|name| name.to_ascii_lowercase());
        Hosts { own: own.to_canonical(), names: names.chain(["localhost".to_owned()]).collect() }
    }

    /// Whether a request is to be answered.
    pub(super) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        let mut lines = headers.get_all(header::HOST).into_iter();
        let (Some(host), None) = (lines.next(), lines.next()) else { return Err(NO_HOST) };
        // A target with a host of its own is to be preferred to the field (RFC 9112 3.2.2): here both have to be right.
        let target = uri.authority().map(|authority| authority.as_str().as_bytes());
        if !self.is_meant(host.as_bytes()) || !target.is_none_or(|target| self.is_meant(target)) {
            return Err(ANOTHER_HOST);
        }
        let is_foreign = is_of_another_site(headers) || !self.is_origin_meant(headers);
        if is_foreign && !(*method == Method::GET && is_followed(headers)) {
            return Err(ANOTHER_SITE);
        }
        Ok(())
    }

    /// Whether the page that makes the request, if it is said, is of this listener. Browsers too old for `Sec-Fetch-Site` say it.
    fn is_origin_meant(&self, headers: &HeaderMap) -> bool {
        headers.get_all(header::ORIGIN).into_iter().all(|origin| {
            let origin = origin.as_bytes();
            let host = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
            host.is_some_and(|host| self.is_meant(host))
        })
    }

    fn is_meant(&self, host: &[u8]) -> bool {
        if let Some(address) = address(host) {
            return !self.own.is_loopback() || address.is_loopback();
        }
        let Ok(host) = str::from_utf8(host) else { return false };
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        let name = name.strip_suffix('.').unwrap_or(name);
        port.bytes().all(|byte| byte.is_ascii_digit()) && self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Whether a page of another site makes this request, and not a person or a program.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    headers.get_all(SITE).into_iter().any(|site| site != "none" && site != "same-origin")
}

/// Whether it is a link that somebody follows, so that its page takes the place of the one it was on.
fn is_followed(headers: &HeaderMap) -> bool {
    let is = |name, word: &str| headers.get(name).is_some_and(|value| value == word);
    is(MODE, "navigate") && is(DEST, "document")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn hosts(own: &str) -> Hosts {
        Hosts::new(own.parse().unwrap(), &["Proxy.internal".into()])
    }

    fn check(hosts: &Hosts, method: &Method, target: &str, fields: &[(&str, &str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        let checked = hosts.check(method, &target.parse().unwrap(), &headers);
        checked.map_or_else(|refused| refused.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_its_own_names_and_addresses_are_meant() {
        for (own, host, status) in [
            ("127.0.0.1", "127.0.0.1", 200),
            ("127.0.0.1", "127.0.0.1:9090", 200),
            ("127.0.0.1", "[::1]:9090", 200),
            ("127.0.0.1", "[::ffff:127.0.0.1]:9090", 200),
            ("127.0.0.1", "localhost", 200),
            ("127.0.0.1", "LocalHost.:19090", 200),
            ("127.0.0.1", "proxy.internal:9090", 200),
            ("127.0.0.1", "10.0.0.5:9090", 421),
            ("::1", "[::1]", 200),
            // A scrape of a pod by its address.
            ("0.0.0.0", "10.0.0.5:9090", 200),
            ("::", "[2001:db8::5]:9090", 200),
            ("10.0.0.5", "10.0.0.5:9090", 200),
            ("0.0.0.0", "localhost:9090", 200),
            ("0.0.0.0", "proxy.internal", 200),
            ("0.0.0.0", "evil.example:9090", 421),
            ("0.0.0.0", "10.0.0.5.evil.example", 421),
            ("127.0.0.1", "evil.example", 421),
            ("127.0.0.1", "localhost.evil.example", 421),
            ("127.0.0.1", "evil-localhost", 421),
            ("127.0.0.1", "a@localhost", 421),
            ("127.0.0.1", "localhost:evil", 421),
            ("127.0.0.1", "localhost:90:90", 421),
            ("127.0.0.1", "localhost, evil.example", 421),
            ("127.0.0.1", "", 421),
            ("127.0.0.1", "2130706433", 421),
            ("127.0.0.1", "127.1", 421),
        ] {
            assert_eq!(check(&hosts(own), &Method::GET, "/metrics", &[("host", host)]), status, "{own} {host}");
        }
        let own = hosts("127.0.0.1");
        assert_eq!(check(&own, &Method::GET, "/", &[]), 400);
        assert_eq!(check(&own, &Method::GET, "/", &[("host", "localhost"), ("host", "localhost")]), 400);
        assert_eq!(check(&own, &Method::GET, "http://evil.example/", &[("host", "localhost")]), 421);
        assert_eq!(check(&own, &Method::GET, "http://localhost/", &[("host", "evil.example")]), 421);
        assert_eq!(check(&own, &Method::GET, "http://localhost:9090/", &[("host", "localhost:9090")]), 200);
    }

    #[test]
    fn what_another_sites_page_asks_is_refused_but_a_link_may_be_followed() {
        let [site, mode, dest] = ["sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];
        for (method, fields, status) in [
            (Method::GET, &[(site, "none")][..], 200),
            (Method::GET, &[(site, "same-origin"), (mode, "cors")], 200),
            (Method::GET, &[("origin", "http://localhost:9090")], 200),
            (Method::GET, &[("origin", "http://evil.example")], 403),
            (Method::GET, &[("origin", "null")], 403),
            (Method::GET, &[("origin", "http://localhost"), ("origin", "http://evil.example")], 403),
            (Method::GET, &[(site, "cross-site")], 403),
            (Method::GET, &[(site, "same-site"), (mode, "cors")], 403),
            (Method::GET, &[(site, "whatever")], 403),
            (Method::GET, &[(site, "same-origin"), (site, "cross-site")], 403),
            (Method::GET, &[(site, "cross-site"), (mode, "no-cors"), (dest, "script")], 403),
            (Method::GET, &[(site, "cross-site"), (mode, "navigate"), (dest, "iframe")], 403),
            (Method::GET, &[(site, "cross-site"), (mode, "navigate"), (dest, "document")], 200),
            (Method::POST, &[(site, "cross-site"), (mode, "navigate"), (dest, "document")], 403),
        ] {
            let fields = [&[("host", "localhost")], fields].concat();
            assert_eq!(check(&hosts("127.0.0.1"), &method, "/", &fields), status, "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn no_other_name_is_meant(host in "[a-z0-9.:@\\[\\]%-]{0,24}") {
            let meant = hosts("127.0.0.1").is_meant(host.as_bytes());
            let own = ["localhost", "proxy.internal", "127.", "[::", "::"];
            prop_assert!(!meant || own.iter().any(|own| host.starts_with(own)), "{}", host);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for own in ["127.0.0.1", "::"] {
                hosts(own).is_meant(&bytes);
            }
        }
    }
}
