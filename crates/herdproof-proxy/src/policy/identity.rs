//! Fields in which somebody in front says who the user or the client is.
//!
//! A gate in front (oauth2-proxy, Cloudflare Access, an Apache with certificates) finds out who the user is and says so in a field
//! of its own, which the origin believes. Two dangers. A client that reaches us by itself says the same of itself: so these fields go
//! on to the origin only from a peer in `trusted_proxies`. And the field is not in the key, so that the page of the first user would
//! be everybody's: from a trusted peer such a field is a credential, as `Authorization` is.
//!
//! A field that says only which address a client has is of no use to anybody: whose word counts for that is decided in
//! [`client`](super::client), and the origin is told in `X-Forwarded-For` and `X-Real-IP`. It is removed whoever sends it.

use http::{HeaderMap, HeaderName};

/// Fields that say who the user is. What a client may say for itself in the ordinary way (`Authorization`, `Cookie`, an
/// `X-Api-Key`) is not here.
const NAMES: [&str; 9] = [
    "x-arr-clientcert",
    "x-forwarded-access-token",
    "x-forwarded-client-cert",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
    "x-ssl-cert",
    "x-userinfo",
];

/// How such fields begin where there is a family of them.
const PREFIXES: [&str; 25] = [
    // RFC 9440; nginx, HAProxy, Apache, Traefik, AWS: a client's certificate.
    "client-cert",
    "ssl-client-",
    "x-amzn-mtls-",
    "x-client-cert",
    "x-forwarded-tls-client-cert",
    "x-ssl-client-",
    // Apache, Authelia, Kubernetes, Grafana.
    "remote-",
    "x-remote-",
    "x-webauth-",
    // oauth2-proxy, mod_auth_openidc, Vouch, Pomerium, authentik, Kong.
    "oidc-claim-",
    "oidc_claim_",
    "x-auth-request-",
    "x-authenticated-",
    "x-authentik-",
    "x-consumer-",
    "x-credential-",
    "x-pomerium-",
    "x-vouch-",
    // Cloudflare Access, AWS, Azure, Google, Tailscale.
    "cf-access-",
    "tailscale-user-",
    "x-amzn-oidc-",
    "x-goog-authenticated-user-",
    "x-goog-iap-",
    "x-ms-client-principal",
    "x-ms-token-",
];

/// Fields that say which address the client has.
const ADDRESSES: [&str; 21] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "client-ip",
    "do-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "proxy-client-ip",
    "remote-addr",
    "remote-ip",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-remote-addr",
    "x-remote-ip",
];

/// What Envoy says of a client and of the way to the origin. An Envoy in front adds some of them to every request, so that taking
/// them for credentials would share nothing any more.
const ENVOY: &str = "x-envoy-";

/// Whether a field says only which address the client has, or how an Envoy is to treat the request.
pub(super) fn is_address(name: &str) -> bool {
    ADDRESSES.contains(&name) || name.starts_with(ENVOY)
}

/// Whether a field says who the user is, for whoever does not name more.
pub(super) fn is_known(name: &str) -> bool {
    !is_address(name) && (NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Which fields say who the user is.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    more: Vec<HeaderName>,
}

impl Identity {
    /// The known ones and these.
    pub fn with(more: &[HeaderName]) -> Identity {
        Identity { more: more.to_vec() }
    }

    /// Whether it is said in this field.
    pub fn is(&self, name: &str) -> bool {
        is_known(name) || self.more.iter().any(|more| more == name)
    }

    /// Whether this name, spelt with dashes, is another spelling of such a field.
    pub(super) fn resembles(&self, spelt: &str) -> bool {
        is_known(spelt) || self.more.iter().any(|more| more.as_str().replace('_', "-") == spelt)
    }

    /// Whether it is said in any of these.
    pub fn is_said(&self, headers: &HeaderMap) -> bool {
        headers.keys().any(|name| self.is(name.as_str()))
    }

    /// Removes all that say it.
    pub fn remove(&self, headers: &mut HeaderMap) {
        let said: Vec<HeaderName> = headers.keys().filter(|name| self.is(name.as_str())).cloned().collect();
        for name in said {
            headers.remove(name);
        }
    }

    /// Removes the ones that were named in addition, so that a stranger's word does not choose a variant. One that is
    /// known anyway chooses none, see [`Vary`](super::Vary).
    #[inline]
    pub fn remove_more(&self, headers: &mut HeaderMap) {
        for name in &self.more {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_field_is_an_address_or_an_identity_and_never_what_clients_say_for_themselves() {
        let identity = Identity::with(&["x-tenant-user".parse().unwrap()]);
        for name in [
            "x-forwarded-user",
            "x-forwarded-email",
            "x-auth-request-user",
            "x-authenticated-userid",
            "remote-user",
            "x-remote-group",
            "x-amzn-oidc-data",
            "x-ms-client-principal",
            "x-ms-client-principal-id",
            "x-goog-authenticated-user-email",
            "x-webauth-user",
            "tailscale-user-login",
            "x-ssl-client-cert",
            "ssl-client-verify",
            "client-cert",
            "x-client-cert-dn",
            "oidc_claim_sub",
            "x-tenant-user",
        ] {
            assert!(identity.is(name) && !is_address(name), "{name}");
        }
        for name in ["true-client-ip", "cf-connecting-ip", "x-remote-addr", "x-envoy-external-address", "x-client-ip"] {
            assert!(is_address(name) && !identity.is(name), "{name}");
        }
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "x-access-token",
            "x-requested-with",
            "x-request-id",
            "accept",
            "client-hints",
            "remote",
            "x-tenant-user-id",
            "cf-ray",
            "x-amzn-trace-id",
        ] {
            assert!(!identity.is(name) && !is_address(name), "{name}");
        }
    }

    #[test]
    fn every_field_that_says_who_the_user_is_is_found_and_removed() {
        let identity = Identity::with(&["x-tenant-user".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        headers.append("accept", HeaderValue::from_static("x"));
        assert!(!identity.is_said(&headers));
        for name in ["remote-user", "x-tenant-user", "x-tenant-user"] {
            headers.append(name, HeaderValue::from_static("ann"));
        }
        assert!(identity.is_said(&headers));
        identity.remove(&mut headers);
        assert_eq!(headers.len(), 1, "{headers:?}");
    }
}
