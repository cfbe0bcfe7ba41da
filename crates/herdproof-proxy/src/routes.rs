//! Which rules hold for a path, however the origin reads it.
//!
//! A request is keyed and sent on byte for byte. What the origin makes of those bytes is not known here: it may decode `%2f`, resolve
//! `..`, merge `//` or drop `;x`. If routes were matched on the bytes alone, `/catalogue/..%2faccount` would have the rules of
//! `/catalogue` and be answered with the page of `/account`: whoever lures a user there reads that user's page from the cache (web cache
//! deception). So a path is matched in every way that a server may read it. Where the readings are on different routes, the strictest
//! of their rules hold, setting by setting. Readings decide about rules only: the key and the request to the origin keep the bytes.
//!
//! Case is not folded. A server that reads `/ACCOUNT` as `/account` needs a route for each way of writing it that it accepts.

use std::{borrow::Cow, cmp::Reverse, sync::Arc};

use crate::settings::{Route, Settings, begins};

/// A path that can be read in more ways than this, or that is longer, has the strictest of all rules.
const MOST_READINGS: usize = 32;
const LONGEST: usize = 1 << 10;

/// What servers do to a path before they look at it. Each may come at any time, and more than once.
const STEPS: [Step; 6] = [
    Step { cares: |path| path.contains(&b'%'), reads: decode },
    Step { cares: |path| path.contains(&b'\\'), reads: turn_slashes },
    Step { cares: |path| path.contains(&b';'), reads: drop_parameters },
    Step { cares: |path| path.windows(2).any(|two| two == b"//"), reads: merge_slashes },
    Step { cares: |path| path.windows(2).any(|two| two == b"/."), reads: resolve_dots },
    Step { cares: |path| path.iter().copied().any(is_end), reads: cut },
];

struct Step {
    /// Whether there is anything for it to do: most paths with a `%` in them are a word in another language, and are read once more
    /// for it, not six times.
    cares: fn(&[u8]) -> bool,
    reads: fn(&[u8]) -> Vec<u8>,
}

/// The routes of the settings, and one for all other paths.
#[derive(Debug)]
pub(crate) struct RouteTable {
    /// The longest prefix first. The last covers every path.
    entries: Vec<Entry>,
    strictest: Arc<Route>,
}

#[derive(Debug)]
struct Entry {
    /// All readings of the route's prefix, which may have a `%` in it itself.
    prefixes: Vec<Vec<u8>>,
    route: Arc<Route>,
}

impl RouteTable {
    pub(crate) fn new(settings: &Settings) -> RouteTable {
        let all = Route {
            prefix: "/".into(),
            share: true,
            rules: settings.rules.clone(),
            fallback: None,
            compress: Vec::new(),
        };
        let mut routes: Vec<_> = settings.routes.iter().cloned().chain([all]).collect();
        routes.sort_by_key(|route| Reverse(route.prefix.len()));
        let strictest = Arc::new(strictest(&routes[0], routes.iter().skip(1)));
        let entry = |route: Route| {
            let prefix = route.prefix.as_bytes();
            let prefixes = readings(prefix).unwrap_or_else(|| vec![prefix.to_vec()]);
            Entry { prefixes, route: Arc::new(route) }
        };
        RouteTable { entries: routes.into_iter().map(entry).collect(), strictest }
    }

    /// The rules of a path: a route's, or those of several.
    #[inline]
    pub(crate) fn of(&self, path: &str) -> Cow<'_, Arc<Route>> {
        let path = path.as_bytes();
        if self.entries.len() == 1 || is_plain(path) {
            return Cow::Borrowed(self.find(path));
        }
        self.of_all_readings(path)
    }

    #[cold]
    fn of_all_readings(&self, path: &[u8]) -> Cow<'_, Arc<Route>> {
        let Some(readings) = readings(path) else { return Cow::Borrowed(&self.strictest) };
        let written = self.find(path);
        let mut others: Vec<&Arc<Route>> = readings.iter().map(|reading| self.find(reading)).collect();
        others.retain(|other| !Arc::ptr_eq(other, written));
        if others.is_empty() {
            return Cow::Borrowed(written);
        }
        Cow::Owned(Arc::new(strictest(written, others.into_iter().map(|route| &**route))))
    }

    /// The route of one reading.
    fn find(&self, path: &[u8]) -> &Arc<Route> {
        let covers = |entry: &&Entry| entry.prefixes.iter().any(|prefix| begins(prefix, path));
        // The last is for all, also for a target that is no path.
        &self.entries.iter().find(covers).unwrap_or(&self.entries[self.entries.len() - 1]).route
    }
}

/// The strictest of what these say, setting by setting.
fn strictest<'a>(one: &Route, others: impl Iterator<Item = &'a Route>) -> Route {
    others.fold(one.clone(), |one, other| Route {
        prefix: one.prefix,
        share: one.share && other.share,
        rules: one.rules.strictest(&other.rules),
        // What one of them would not answer is not answered.
        fallback: one.fallback.filter(|fallback| other.fallback.as_ref() == Some(fallback)),
        compress: one.compress.into_iter().filter(|coding| other.compress.contains(coding)).collect(),
    })
}

/// Whether every server reads it in the same way.
#[inline]
fn is_plain(path: &[u8]) -> bool {
    let mut begins = false;
    for &byte in path {
        match byte {
            b'%' | b';' | b'\\' => return false,
            b'/' | b'.' if begins => return false,
            _ => begins = byte == b'/',
        }
    }
    true
}

/// Everything that the steps make of a path, in any order; none if that is too much.
fn readings(path: &[u8]) -> Option<Vec<Vec<u8>>> {
    if path.len() > LONGEST {
        return None;
    }
    let mut all = vec![path.to_vec()];
    let mut next = 0;
    while let Some(reading) = all.get(next) {
        let others: Vec<_> =
            STEPS.iter().filter(|step| (step.cares)(reading)).map(|step| (step.reads)(reading)).collect();
        for other in others {
            if all.contains(&other) {
                continue;
            }
            if all.len() == MOST_READINGS {
                return None;
            }
            all.push(other);
        }
        next += 1;
    }
    Some(all)
}

/// `%2f` is `/`, once.
fn decode(path: &[u8]) -> Vec<u8> {
    let digit = |at: usize| path.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        if let (b'%', Some(high), Some(low)) = (byte, digit(at + 1), digit(at + 2)) {
            decoded.push(u8::try_from(high * 16 + low).unwrap_or(byte));
            at += 3;
        } else {
            decoded.push(byte);
            at += 1;
        }
    }
    decoded
}

/// `\` is `/`.
fn turn_slashes(path: &[u8]) -> Vec<u8> {
    path.iter().map(|&byte| if byte == b'\\' { b'/' } else { byte }).collect()
}

/// `/a;b/c` is `/a/c`.
fn drop_parameters(path: &[u8]) -> Vec<u8> {
    let mut dropping = false;
    let is_kept = |byte: &u8| {
        dropping = *byte == b';' || dropping && *byte != b'/';
        !dropping
    };
    path.iter().copied().filter(is_kept).collect()
}

/// `//` is `/`.
fn merge_slashes(path: &[u8]) -> Vec<u8> {
    let mut merged = path.to_vec();
    merged.dedup_by(|one, other| *one == b'/' && *other == b'/');
    merged
}

/// `/a/../b/./c` is `/b/c`.
fn resolve_dots(path: &[u8]) -> Vec<u8> {
    let mut resolved = Vec::with_capacity(path.len());
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    resolved.extend_from_slice(segments.next().unwrap_or_default());
    while let Some(segment) = segments.next() {
        if segment == b".." {
            let end = resolved.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            resolved.truncate(end);
        }
        let is_dots = segment == b"." || segment == b"..";
        if !is_dots || segments.peek().is_none() {
            resolved.push(b'/');
            resolved.extend_from_slice(if is_dots { b"" } else { segment });
        }
    }
    resolved
}

/// What was a decoded `?`, `#` or zero ends the path.
fn cut(path: &[u8]) -> Vec<u8> {
    path.split(|&byte| is_end(byte)).next().unwrap_or_default().to_vec()
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'?' | b'#' | 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{prelude::*, sample::Index};

    use super::*;
    use crate::policy::{Cookies, Route as Rules};

    #[test]
    fn a_fallback_is_for_paths_that_all_read_as_its_routes() {
        let text = "[[route]]\nprefix = \"/a\"\nfallback = { body = \"x\" }\n[[route]]\nprefix = \"/b\"\n";
        let routes = RouteTable::new(&Settings::parse(text).unwrap());
        let has = |path: &str| routes.of(path).fallback.is_some();
        assert!(has("/a/1") && has("/a//1"));
        assert!(!has("/b") && !has("/a/..%2fb") && !has("/b/..%2fa") && !has("/other"));
    }

    /// As in the guide, and more.
    fn settings() -> Settings {
        let text = r#"
            [[route]]
            prefix = "/catalogue"
            cookies = "ignore"
            ttl = "10s"
            grace = "1h"

            [[route]]
            prefix = "/account"
            share = false

            [[route]]
            prefix = "/catalogue/private"
            if_error = "0s"

            [[route]]
            prefix = "/api"
            ttl = "1s"
            share_set_cookie = true
            obey_clients = true

            [[route]]
            prefix = "/caf%C3%A9"
            ttl = "5s"
        "#;
        Settings::parse(text).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    fn table() -> RouteTable {
        RouteTable::new(&settings())
    }

    /// Whether what one says allows nothing that the other does not.
    fn is_as_strict(one: &Route, other: &Route) -> bool {
        let (a, b) = (&one.rules, &other.rules);
        (!one.share || other.share)
            && (a.ttl.is_none() || b.ttl.is_some() && a.ttl <= b.ttl)
            && a.grace <= b.grace
            && a.if_error <= b.if_error
            && a.cookies <= b.cookies
            && (!a.share_set_cookie || b.share_set_cookie)
            && (a.obey_clients || !b.obey_clients)
    }

    #[test]
    fn a_path_that_an_origin_reads_as_another_has_the_rules_of_both() {
        let table = table();
        for path in [
            "/catalogue/..%2faccount",
            "/catalogue/..%2Faccount/x",
            "/catalogue/../account",
            "/catalogue/%2e%2e/account",
            "/catalogue/%252e%252e%252faccount",
            "/catalogue/..;/account",
            "/catalogue/..;x=y/account",
            "/catalogue/..%3b/account",
            "/catalogue/..%5caccount",
            "/catalogue/x/..//../account",
            "/catalogue/.//../account",
            "/catalogue%2f..%2faccount",
            "/catalogue/..%2faccount%3fx",
            "/catalogue/..%2faccount%2500.css",
            "/catalogue/..%2f%61ccount",
        ] {
            let rules = table.of(path);
            assert!(!rules.share && rules.rules.cookies == Cookies::Share && rules.rules.ttl.is_none(), "{path}");
        }
        for path in ["//account", "/%61ccount", "/./account", "/account;x", "/account%3fx", "/%2e/account/a.css"] {
            assert!(!table.of(path).share, "{path}");
        }
    }

    #[test]
    fn a_path_that_is_odd_but_on_one_route_keeps_that_route() {
        let table = table();
        let (catalogue, cafe) = (table.of("/catalogue"), table.of("/caf%C3%A9"));
        assert_eq!((&*catalogue.prefix, catalogue.rules.ttl), ("/catalogue", Some(Duration::from_secs(10))));
        for path in
            ["/catalogue/a%20b", "/catalogue/a;v=1", "/catalogue//x", "/catalogue/.well-known", "/catalogue/x/../y"]
        {
            assert!(Arc::ptr_eq(&table.of(path), &catalogue), "{path}");
        }
        assert_eq!(
            (&*cafe.prefix, cafe.rules.ttl),
            ("/caf%C3%A9", Some(Duration::from_secs(5))),
            "a prefix may be odd itself"
        );
        assert!(Arc::ptr_eq(&table.of("/caf%C3%A9/menu"), &cafe));
    }

    #[test]
    fn what_can_be_read_in_too_many_ways_has_the_strictest_of_all_rules() {
        let table = table();
        let deep = format!("/catalogue/%{}2e", "25".repeat(MOST_READINGS));
        let long = format!("/catalogue/%20{}", "x".repeat(LONGEST));
        for path in [&*deep, &long] {
            assert!(Arc::ptr_eq(&table.of(path), &table.strictest), "{path}");
        }
        for entry in &table.entries {
            assert!(is_as_strict(&table.strictest, &entry.route));
        }
        assert!(!is_as_strict(&table.of("/catalogue"), &table.strictest), "strictness is not said of everything");
    }

    #[test]
    fn without_routes_no_path_is_odd() {
        let table = RouteTable::new(&Settings {
            rules: Rules { ttl: Some(Duration::ZERO), ..Rules::default() },
            ..Settings::default()
        });
        assert_eq!(table.of("/a/..%2fb").rules.ttl, Some(Duration::ZERO));
    }

    #[test]
    fn dots_are_resolved_as_servers_do() {
        for (path, resolved) in [
            ("/a/b/../c", "/a/c"),
            ("/a/./b", "/a/b"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a//../b", "/a/b"),
            ("/.a/..b", "/.a/..b"),
            ("/", "/"),
            ("*", "*"),
        ] {
            assert_eq!(String::from_utf8(resolve_dots(path.as_bytes())).unwrap(), resolved, "{path}");
        }
    }

    /// Writes a path in another way that some server reads as it was.
    fn disguise(path: &str, (trick, place): &(u8, Index)) -> String {
        let insert_after_slash = |what: &str| {
            let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at + 1).collect();
            let mut path = path.to_owned();
            if !slashes.is_empty() {
                path.insert_str(slashes[place.index(slashes.len())], what);
            }
            path
        };
        let encode = |at: usize| format!("{}%{:02x}{}", &path[..at], path.as_bytes()[at], &path[at + 1..]);
        match trick {
            0 => insert_after_slash("./"),
            1 => insert_after_slash("catalogue/../"),
            2 => insert_after_slash("x/../"),
            3 => insert_after_slash("/"),
            4 => format!("{path};catalogue=1"),
            // The first slash stays, or it is no path.
            5 if path.len() > 1 => encode(1 + place.index(path.len() - 1)),
            6 => {
                let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
                if slashes.is_empty() {
                    return path.to_owned();
                }
                let at = slashes[place.index(slashes.len())];
                format!("{}%5c{}", &path[..at], &path[at + 1..])
            }
            _ => path.to_owned(),
        }
    }

    proptest! {
        #[test]
        fn no_disguise_of_a_path_has_less_strict_rules(
            path in "(/(account|catalogue|api|private|x)){1,3}",
            tricks in proptest::collection::vec((0u8..7, any::<Index>()), 0..5),
        ) {
            let table = table();
            let disguised = tricks.iter().fold(path.clone(), |path, trick| disguise(&path, trick));
            prop_assert!(is_as_strict(&table.of(&disguised), &table.of(&path)), "{} as {}", path, disguised);
        }

        #[test]
        fn the_rules_are_as_strict_as_those_of_each_reading(path in "/(account|catalogue|private|%2f|%2e|%25|%5c|[/.;?%x]){0,9}") {
            let table = table();
            let rules = table.of(&path);
            for reading in readings(path.as_bytes()).into_iter().flatten() {
                prop_assert!(is_as_strict(&rules, table.find(&reading)), "{}", path);
            }
        }

        #[test]
        fn what_is_plain_has_one_reading(path in "/[a-z./;%\\\\2f?]{0,12}") {
            let bytes = path.as_bytes();
            if is_plain(bytes) && !path.contains('?') {
                prop_assert_eq!(readings(bytes), Some(vec![bytes.to_vec()]));
            }
        }
    }
}
