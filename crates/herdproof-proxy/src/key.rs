//! Which requests ask for the same thing.
//!
//! The key is scheme, authority, path and query, and nothing else: what is not in the key must not choose the answer. Who can make
//! the key and the origin see two different URLs can put his page under everybody's name. So what could be read in two ways is
//! refused ([`Ambiguous`]), and what is not refused goes to the origin byte for byte as it is in the key: no `//` is folded, no
//! `%2e` decoded.
//!
//! A hit looks up with what the request holds and allocates nothing: [`KeyRef`] borrows, hashes once, and compares with a stored
//! [`Key`] through [`AsKey`].
//!
//! ```
//! use herdproof_proxy::key::{Keyer, Scheme};
//!
//! let keyer = Keyer::new(7);
//! let asked = keyer.key(Scheme::Http, "Example.com:80", "/a?b=c").unwrap();
//! let stored = asked.to_key();
//! assert_eq!(stored.to_string(), "http://example.com/a?b=c");
//! assert_eq!(keyer.key(Scheme::Http, "example.com", "/a?b=c").unwrap().to_key(), stored);
//! assert!(keyer.key(Scheme::Http, "example.com", "/a\\b").is_err());
//! ```

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
};

use foldhash::fast::FixedState;
use http::{HeaderMap, Uri, header};

use crate::policy::vary::Variant;

/// The longest authority: a name of 253 characters and a port, with room to spare.
const LONGEST_AUTHORITY: usize = 264;

/// In the key of a variant, before the number of its signpost.
const VARIES: &str = "varies";

/// How the origin is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// As URLs write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    fn default_port(self) -> &'static str {
        match self {
            Scheme::Http => ":80",
            Scheme::Https => ":443",
        }
    }
}

/// A request that could be read in two ways. The answer is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ambiguous {
    /// No `Host`, or an empty one.
    NoHost,
    /// More than one `Host`.
    TwoHosts,
    /// The authority of the target is not that of `Host`.
    HostMismatch,
    /// An authority with something in it that does not belong there.
    BadHost,
    /// A path that does not begin with `/`, or with a control character, a space, a backslash, a `#` or an encoded zero in it.
    BadTarget,
}

impl Ambiguous {
    /// As metrics and the answer name it.
    pub fn name(self) -> &'static str {
        match self {
            Ambiguous::NoHost => "no-host",
            Ambiguous::TwoHosts => "two-hosts",
            Ambiguous::HostMismatch => "host-mismatch",
            Ambiguous::BadHost => "bad-host",
            Ambiguous::BadTarget => "bad-target",
        }
    }
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ambiguous::NoHost => "the request names no host",
            Ambiguous::TwoHosts => "the request names more than one host",
            Ambiguous::HostMismatch => "the target and the Host field name different hosts",
            Ambiguous::BadHost => "the host is not one",
            Ambiguous::BadTarget => "the target is not a path that can be read in one way only",
        })
    }
}

impl std::error::Error for Ambiguous {}

/// Makes keys. The seed is the process's own: whoever knows the hash of a key can fill one slot of a table.
#[derive(Clone, Debug)]
pub struct Keyer {
    state: FixedState,
}

/// A key as a request holds it.
#[derive(Clone, Copy, Debug)]
pub struct KeyRef<'a> {
    hash: u64,
    scheme: Scheme,
    /// In whatever case, the default port taken off.
    authority: &'a str,
    /// Path and query.
    target: &'a str,
}

/// A key that is kept: the URL, with its hash.
#[derive(Clone)]
pub struct Key {
    hash: u64,
    scheme: Scheme,
    /// Where the authority ends in the text.
    authority: u16,
    /// Authority in lower case, path, query.
    text: Box<str>,
}

/// What can be looked up as a [`Key`]: one itself, or a [`KeyRef`].
pub trait AsKey {
    /// The key, borrowed.
    fn as_key(&self) -> KeyRef<'_>;
}

impl Keyer {
    /// With a seed that clients do not know.
    pub fn new(seed: u64) -> Keyer {
        Keyer { state: FixedState::with_seed(seed) }
    }

    /// The key of a request, from its target and `Host`.
    #[inline]
    pub fn of<'a>(&self, scheme: Scheme, uri: &'a Uri, headers: &'a HeaderMap) -> Result<KeyRef<'a>, Ambiguous> {
        // A host alone is the target of a tunnel, and nothing that can be asked for.
        if uri.authority().is_some() && uri.scheme().is_none() {
            return Err(Ambiguous::BadTarget);
        }
        let authority = host(scheme, uri, headers)?;
        // No path is `/`; a query without a path, as in `http://a?x`, is refused with all else that does not begin with one.
        self.key(scheme, authority, uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str))
    }

    /// The key of a URL, taken apart.
    #[inline]
    pub fn key<'a>(&self, scheme: Scheme, authority: &'a str, target: &'a str) -> Result<KeyRef<'a>, Ambiguous> {
        check_target(target)?;
        check_authority(authority)?;
        let authority = without_default_port(scheme, authority);
        if authority.is_empty() {
            return Err(Ambiguous::NoHost);
        }
        let mut hasher = self.state.build_hasher();
        if authority.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let mut lower = [0; LONGEST_AUTHORITY];
            let lower = &mut lower[..authority.len()];
            lower.copy_from_slice(authority.as_bytes());
            lower.make_ascii_lowercase();
            hasher.write(lower);
        } else {
            hasher.write(authority.as_bytes());
        }
        hasher.write_u8(scheme as u8);
        hasher.write(target.as_bytes());
        Ok(KeyRef { hash: hasher.finish(), scheme, authority, target })
    }
}

/// Who is asked: by the target if it says, else by `Host`; both if both do, and then they have to agree.
fn host<'a>(scheme: Scheme, uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, Ambiguous> {
    let mut lines = headers.get_all(header::HOST).into_iter();
    let field = match lines.next() {
        Some(line) => Some(line.to_str().map_err(|_| Ambiguous::BadHost)?),
        None => None,
    };
    if lines.next().is_some() {
        return Err(Ambiguous::TwoHosts);
    }
    match (uri.authority(), field) {
        (None, None) => Err(Ambiguous::NoHost),
        (None, Some(host)) => Ok(host),
        (Some(target), None) => Ok(target.as_str()),
        (Some(target), Some(host)) => {
            let (one, other) = (without_default_port(scheme, target.as_str()), without_default_port(scheme, host));
            if one.eq_ignore_ascii_case(other) { Ok(target.as_str()) } else { Err(Ambiguous::HostMismatch) }
        }
    }
}

fn without_default_port(scheme: Scheme, authority: &str) -> &str {
    let authority = authority.strip_suffix(scheme.default_port()).unwrap_or(authority);
    // An empty port is the default one too.
    authority.strip_suffix(':').unwrap_or(authority)
}

/// What a byte is in an authority.
const OF_A_NAME: u8 = 1;
/// What a byte is in a target: nothing to think about.
const PLAIN: u8 = 2;

const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0u8;
    loop {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            bytes[byte as usize] |= OF_A_NAME;
        }
        if !matches!(byte, 0..=b' ' | 0x7f | b'#' | b'%' | b'\\') {
            bytes[byte as usize] |= PLAIN;
        }
        if byte == u8::MAX {
            break bytes;
        }
        byte += 1;
    }
};

fn is(class: u8, byte: u8) -> bool {
    BYTES[usize::from(byte)] & class != 0
}

fn check_authority(authority: &str) -> Result<(), Ambiguous> {
    let bytes = authority.as_bytes();
    if bytes.is_empty() {
        return Err(Ambiguous::NoHost);
    }
    let (name_fits, port) = match bytes.strip_prefix(b"[") {
        Some(rest) => {
            let end = rest.iter().position(|&byte| byte == b']').ok_or(Ambiguous::BadHost)?;
            let is_part = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            (end > 0 && rest[..end].iter().all(is_part), &rest[end + 1..])
        }
        None => {
            let end = bytes.iter().position(|&byte| !is(OF_A_NAME, byte)).unwrap_or(bytes.len());
            (end > 0, &bytes[end..])
        }
    };
    let port_fits = match port.split_first() {
        None => true,
        Some((b':', digits)) => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    if name_fits && port_fits && bytes.len() <= LONGEST_AUTHORITY { Ok(()) } else { Err(Ambiguous::BadHost) }
}

fn check_target(target: &str) -> Result<(), Ambiguous> {
    let bytes = target.as_bytes();
    let is_plain = bytes.iter().all(|&byte| is(PLAIN, byte));
    if bytes.first() == Some(&b'/') && (is_plain || reads_one_way(bytes)) { Ok(()) } else { Err(Ambiguous::BadTarget) }
}

/// No two servers agree on what these mean in a path. In a query a backslash and an encoded zero mean themselves.
fn reads_one_way(target: &[u8]) -> bool {
    let query = target.iter().position(|&byte| byte == b'?').unwrap_or(target.len());
    let nowhere = |byte: &u8| matches!(byte, 0..=b' ' | 0x7f | b'#');
    let path = &target[..query];
    !target.iter().any(nowhere) && !path.contains(&b'\\') && !path.windows(3).any(|three| three == b"%00")
}

impl KeyRef<'_> {
    /// To be kept.
    pub fn to_key(&self) -> Key {
        let mut text = String::with_capacity(self.authority.len() + self.target.len());
        text.push_str(self.authority);
        text.make_ascii_lowercase();
        text.push_str(self.target);
        // No longer than LONGEST_AUTHORITY.
        let authority = u16::try_from(self.authority.len()).unwrap_or(u16::MAX);
        Key { hash: self.hash, scheme: self.scheme, authority, text: text.into() }
    }

    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The key of one of its variants, behind the signpost of that number. No URL has a line break in it, so it is no URL's key.
    pub(crate) fn to_variant(self, signpost: u64, variant: &Variant) -> Key {
        // As characters of one byte each: two that differ stay two.
        self.beside(VARIES, signpost, variant.as_bytes().iter().copied().map(char::from))
    }

    /// The key of the same variant of this URL behind another signpost.
    pub(crate) fn moved(self, variant: &Key, signpost: u64) -> Key {
        self.beside(VARIES, signpost, variant.text.splitn(3, '\n').nth(2).unwrap_or_default().chars())
    }

    /// A key that nobody else has, if nobody else has the number.
    pub(crate) fn alone(self, number: u64) -> Key {
        self.beside("alone", number, [].into_iter())
    }

    fn beside(self, kind: &str, number: u64, rest: impl Iterator<Item = char>) -> Key {
        let Key { hash, scheme, authority, text } = self.to_key();
        let mut text = String::from(text);
        text.extend(format!("\n{kind} {number}\n").chars().chain(rest));
        let mut hasher = FixedState::with_seed(hash).build_hasher();
        hasher.write(&text.as_bytes()[usize::from(authority)..]);
        Key { hash: hasher.finish(), scheme, authority, text: text.into() }
    }

    /// Path and query, as they go to the origin.
    pub fn target(&self) -> &str {
        self.target
    }

    /// Who is asked, in whatever case the request has it.
    pub fn authority(&self) -> &str {
        self.authority
    }

    /// The hash both kinds of key have.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    fn is(&self, other: &KeyRef<'_>) -> bool {
        self.hash == other.hash
            && self.scheme == other.scheme
            && self.target == other.target
            && (self.authority == other.authority || self.authority.eq_ignore_ascii_case(other.authority))
    }
}

impl Key {
    /// Whether it is the key of a variant behind the signpost of this number.
    pub(crate) fn is_behind(&self, signpost: u64) -> bool {
        let named = self.text.split('\n').nth(1).and_then(|words| words.strip_prefix(VARIES));
        named.is_some_and(|number| number.trim_start().parse() == Ok(signpost))
    }

    /// The hash both kinds of key have.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Who is asked, in lower case.
    pub fn authority(&self) -> &str {
        self.as_key_parts().0
    }

    /// Path and query, as they go to the origin.
    pub fn target(&self) -> &str {
        self.as_key_parts().1
    }

    /// How much memory it takes.
    pub fn weight(&self) -> usize {
        size_of::<Key>() + self.text.len()
    }

    fn as_key_parts(&self) -> (&str, &str) {
        self.text.split_at(usize::from(self.authority))
    }
}

impl AsKey for Key {
    #[inline]
    fn as_key(&self) -> KeyRef<'_> {
        let (authority, target) = self.as_key_parts();
        KeyRef { hash: self.hash, scheme: self.scheme, authority, target }
    }
}

impl AsKey for KeyRef<'_> {
    #[inline]
    fn as_key(&self) -> KeyRef<'_> {
        *self
    }
}

impl PartialEq for dyn AsKey + '_ {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_key().is(&other.as_key())
    }
}

impl Eq for dyn AsKey + '_ {}

impl Hash for dyn AsKey + '_ {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.as_key().hash);
    }
}

impl ToOwned for dyn AsKey + '_ {
    type Owned = Key;

    fn to_owned(&self) -> Key {
        self.as_key().to_key()
    }
}

impl<'a> Borrow<dyn AsKey + 'a> for Key {
    #[inline]
    fn borrow(&self) -> &(dyn AsKey + 'a) {
        self
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Key) -> bool {
        self.hash == other.hash
            && self.scheme == other.scheme
            && self.authority == other.authority
            && self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn keyer() -> Keyer {
        Keyer::new(42)
    }

    fn of(uri: &str, hosts: &[&str]) -> Result<String, Ambiguous> {
        let uri: Uri = uri.parse().unwrap();
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        keyer().of(Scheme::Http, &uri, &headers).map(|key| key.to_key().to_string())
    }

    #[track_caller]
    fn check_same(one: (Scheme, &str, &str), other: (Scheme, &str, &str), same: bool) {
        let keyer = keyer();
        let (one, other) = (keyer.key(one.0, one.1, one.2).unwrap(), keyer.key(other.0, other.1, other.2).unwrap());
        assert_eq!(one.to_key() == other.to_key(), same);
        let (borrowed, kept): (&dyn AsKey, Key) = (&one, other.to_key());
        assert_eq!(*borrowed == *(<Key as Borrow<dyn AsKey>>::borrow(&kept)), same, "as a look-up sees it");
        assert_eq!(one.hash() == kept.hash(), same);
    }

    #[test]
    fn only_what_names_the_same_thing_is_the_same_key() {
        let base = (Scheme::Http, "a.example", "/x?y=1");
        check_same(base, (Scheme::Http, "A.Example", "/x?y=1"), true);
        check_same(base, (Scheme::Http, "a.example:80", "/x?y=1"), true);
        check_same(base, (Scheme::Http, "a.example:", "/x?y=1"), true);
        check_same(base, (Scheme::Https, "a.example", "/x?y=1"), false);
        check_same(base, (Scheme::Http, "a.example:443", "/x?y=1"), false);
        check_same(base, (Scheme::Http, "b.example", "/x?y=1"), false);
        for target in ["/x?y=2", "/x", "/x?", "/X?y=1", "//x?y=1", "/./x?y=1", "/%78?y=1", "/x;?y=1", "/x?Y=1"] {
            check_same(base, (Scheme::Http, "a.example", target), false);
        }
        check_same((Scheme::Http, "a", "/b/c"), (Scheme::Http, "a", "/bc"), false);
    }

    #[test]
    fn a_request_that_names_two_hosts_is_refused() {
        assert_eq!(of("/x", &["a", "a"]), Err(Ambiguous::TwoHosts));
        assert_eq!(of("http://a/x", &["b"]), Err(Ambiguous::HostMismatch));
        assert_eq!(of("http://a:81/x", &["a"]), Err(Ambiguous::HostMismatch));
        assert_eq!(of("http://A:80/x", &["a"]).unwrap(), "http://a/x");
        assert_eq!(of("/x", &[]), Err(Ambiguous::NoHost));
        assert_eq!(of("/x", &[""]), Err(Ambiguous::NoHost));
        assert_eq!(of("http://a", &["a"]).unwrap(), "http://a/");
    }

    #[test]
    fn a_host_with_anything_else_in_it_is_refused() {
        for host in [
            "a/b", "a b", "a@b", "user@a", "a?b", "a#b", "a,b", "a\\b", ":80", "a:b", "a:123456", "a:8:0", "[::1",
            "[]", "[::1]x", "[x]", "a%00",
        ] {
            assert_eq!(of("/", &[host]), Err(Ambiguous::BadHost), "{host}");
        }
        let long = "a".repeat(LONGEST_AUTHORITY + 1);
        assert_eq!(of("/", &[&long]), Err(Ambiguous::BadHost));
        for host in ["a", "a-b_c.example.", "127.0.0.1:8080", "[::1]:8080", "[::1]"] {
            assert!(of("/", &[host]).is_ok(), "{host}");
        }
    }

    #[test]
    fn a_target_that_servers_read_differently_is_refused() {
        for target in ["", "x", "*", "?x", "/a b", "/a\tb", "/a\r\nb", "/a#b", "/a\\b", "/a%00b", "/a\u{7f}", "/a\0"] {
            assert_eq!(keyer().key(Scheme::Http, "a", target).err(), Some(Ambiguous::BadTarget), "{target:?}");
        }
        for target in
            ["/", "//", "/a//b", "/a/../b", "/%2e%2e/", "/a;b", "/a?b\\c", "/a?b%00", "/a?b?c", "/%5c", "/\u{e9}"]
        {
            let key = keyer().key(Scheme::Http, "a", target).unwrap();
            assert_eq!((key.target(), key.to_key().target()), (target, target), "what is keyed is what is sent");
        }
    }

    #[test]
    fn the_seed_decides_the_hash() {
        let hashes: BTreeSet<u64> =
            (0..100).map(|seed| Keyer::new(seed).key(Scheme::Http, "a", "/").unwrap().hash()).collect();
        assert_eq!(hashes.len(), 100);
    }

    proptest! {
        #[test]
        fn keys_are_equal_just_when_their_urls_are(
            one in ("[abAB]{1,2}(:80|:8)?", "/[ab/]{0,2}(\\?[ab]?)?"),
            other in ("[abAB]{1,2}(:80|:8)?", "/[ab/]{0,2}(\\?[ab]?)?"),
        ) {
            let keyer = keyer();
            let (a, b) = (keyer.key(Scheme::Http, &one.0, &one.1).unwrap(), keyer.key(Scheme::Http, &other.0, &other.1).unwrap());
            let plain = |(host, target): &(String, String)| (host.to_lowercase().trim_end_matches(":80").to_owned(), target.clone());
            let same = plain(&one) == plain(&other);
            prop_assert_eq!(a.to_key() == b.to_key(), same);
            prop_assert_eq!(a.is(&b), same);
            prop_assert_eq!(a.hash() == b.hash(), same);
        }

        #[test]
        fn no_text_makes_a_key_panic(host in ".{0,20}", target in ".{0,20}") {
            if let Ok(key) = keyer().key(Scheme::Https, &host, &target) {
                prop_assert!(key.to_key().to_string().ends_with(&target));
            }
        }
    }
}
