//! Pages that are compressed here: once for all who take it, and never what is for one client.

use std::io::Read;

use bytes::Bytes;
use flate2::read::GzDecoder;

use super::world::{Asked, Gate, Reply, Step, World, answer, bytes, get, run_with, with};
use crate::{
    Settings,
    settings::{Coding, Route},
};

const LARGE: usize = 3 << 20;

fn compresses(settings: &mut Settings) {
    let rules = settings.rules.clone();
    settings.routes =
        vec![Route { prefix: "/".into(), share: true, rules, fallback: None, compress: vec![Coding::Gzip] }];
}

fn text(len: usize) -> String {
    (0..).map(|number| format!("line {number}\n")).flat_map(String::into_bytes).take(len).map(char::from).collect()
}

fn page(headers: &str, len: usize) -> Step {
    answer(200, &format!("content-type: text/html\r\netag: \"a\"\r\n{headers}"), &text(len))
}

fn gzip(path: &str) -> http::Request<http_body_util::Full<Bytes>> {
    with(path, &[("accept-encoding", "gzip, deflate, br, zstd")])
}

fn unzipped(reply: &Reply) -> String {
    let mut plain = String::new();
    GzDecoder::new(&*reply.body).read_to_string(&mut plain).unwrap();
    plain
}

async fn settled(world: &World, entries: u64) {
    world.settled().await;
    world.until(|| world.proxy.0.store.stats().entries >= entries).await;
}

#[test]
fn there_is_one_copy_for_all_who_take_it_and_one_for_the_others() {
    let script = |asked: &Asked| {
        assert!(["gzip", "identity"].contains(&asked.header("accept-encoding")), "{asked:?}");
        let len = if asked.target == "/large" { LARGE } else { 5_000 };
        vec![page("cache-control: max-age=60", len)]
    };
    run_with(compresses, script, async |world| {
        for (round, (path, len)) in [("/page", 5_000), ("/large", LARGE)].into_iter().enumerate() {
            for said in ["gzip", "gzip, deflate, br, zstd", "br, gzip;q=0.1"] {
                let reply = world.ask(with(path, &[("accept-encoding", said)])).await;
                assert_eq!(unzipped(&reply), text(len));
                assert!(reply.body.len() < len / 3 && reply.whole);
                assert_eq!(
                    ["content-encoding", "etag", "vary"].map(|name| reply.header(name)),
                    ["gzip", "W/\"a\"", "accept-encoding"]
                );
                settled(world, u64::try_from(2 * round + 1).unwrap()).await;
            }
            for request in [get(path), with(path, &[("accept-encoding", "br, gzip;q=0")])] {
                let reply = world.ask(request).await;
                reply.is(200, &text(len));
                assert_eq!(["content-encoding", "etag"].map(|name| reply.header(name)), ["", "\"a\""]);
                assert_eq!(reply.header("vary"), "accept-encoding");
                settled(world, u64::try_from(2 * round + 2).unwrap()).await;
            }
            assert_eq!(world.origin.requests(), 2 * round + 2, "one request for each");
        }
        // All of it is known by now.
        let head =
            world.ask(super::world::request(http::Method::HEAD, "/page", &[("accept-encoding", "gzip")], "")).await;
        let kept = world.ask(gzip("/page")).await;
        assert_eq!(head.header("content-length"), kept.body.len().to_string());
        assert_eq!(world.proxy.0.press.counts(), (2, 0));
    });
}

#[test]
fn a_cold_herd_is_one_request_and_compressed_once() {
    let gate = Gate::new();
    let held = gate.clone();
    let script = move |_: &Asked| vec![Step::Hold(held.clone()), page("cache-control: max-age=60", 100_000)];
    run_with(compresses, script, async |world| {
        let herd = world.herd(50, |_| gzip("/page"));
        world.aboard(50).await;
        gate.open();
        for reply in herd.replies().await {
            assert_eq!(unzipped(&reply), text(100_000));
        }
        assert_eq!((world.origin.requests(), world.proxy.0.press.counts()), (1, (1, 0)));
    });
}

#[test]
fn what_is_for_one_or_decided_by_the_origin_stays_as_it_is() {
    let script = |asked: &Asked| {
        vec![match &*asked.target {
            "/private" => page("cache-control: private", 5_000),
            "/unsaid" => page("", 5_000),
            "/transformed" => page("cache-control: max-age=60, no-transform", 5_000),
            "/coded" => page("cache-control: max-age=60\r\ncontent-encoding: br", 5_000),
            "/small" => page("cache-control: max-age=60", 1_000),
            "/image" => answer(200, "content-type: image/png\r\ncache-control: max-age=60", &text(5_000)),
            "/missing" => answer(404, "content-type: text/html\r\ncache-control: max-age=60", &text(5_000)),
            _ => answer(200, "content-type: text/html\r\ncache-control: no-store", &text(5_000)),
        }]
    };
    run_with(compresses, script, async |world| {
        for path in ["/private", "/unsaid", "/transformed", "/coded", "/small", "/image", "/missing", "/own"] {
            for _ in 0..2 {
                let reply = world.ask(gzip(path)).await;
                assert!(reply.text().starts_with("line 0\n"), "{path}");
                assert_ne!(reply.header("content-encoding"), "gzip", "{path}");
                if path != "/own" && path != "/image" && path != "/missing" {
                    assert_eq!(reply.header("etag"), "\"a\"", "{path}");
                }
            }
        }
        // With a cookie it may be this user's.
        let user = with("/cookie", &[("accept-encoding", "gzip"), ("cookie", "a=b")]);
        assert!(world.ask(user).await.text().starts_with("line 0\n"));
        assert_eq!(world.proxy.0.press.counts(), (0, 0));
    });
    let elsewhere = |settings: &mut Settings| {
        compresses(settings);
        settings.routes[0].prefix = "/other".into();
    };
    run_with(
        elsewhere,
        |_| vec![page("cache-control: max-age=60", 5_000)],
        async |world| {
            let reply = world.ask(gzip("/page")).await;
            assert_eq!((reply.text().len(), reply.header("vary")), (5_000, ""));
        },
    );
}

#[test]
fn a_page_that_has_not_changed_keeps_its_form() {
    let script = |asked: &Asked| {
        if asked.headers.get_all("if-none-match").iter().any(|tag| tag == "\"a\"") {
            return vec![bytes("HTTP/1.1 304 X\r\netag: \"a\"\r\nvary: x-a\r\ncache-control: max-age=60\r\n\r\n")];
        }
        vec![page("cache-control: max-age=1\r\nage: 5\r\nvary: x-a", 5_000)]
    };
    run_with(compresses, script, async |world| {
        assert_eq!(unzipped(&world.ask(gzip("/page")).await), text(5_000));
        settled(world, 1).await;
        for cache in ["revalidated", "hit"] {
            let reply = world.ask(gzip("/page")).await;
            assert_eq!(unzipped(&reply), text(5_000), "{cache}");
            assert_eq!(["content-encoding", "etag"].map(|name| reply.header(name)), ["gzip", "W/\"a\""]);
            let vary: Vec<_> = reply.headers.get_all("vary").iter().collect();
            assert_eq!(vary, ["x-a", "accept-encoding"]);
        }
        assert_eq!((world.origin.requests(), world.proxy.0.press.counts()), (2, (1, 0)));
        // A client that takes no coding does not get it.
        assert!(world.ask(get("/page")).await.text().starts_with("line 0\n"));
        // A tag of either form is of the same page; a part is never cut from other bytes than it was begun with.
        let asks = |name, value| with("/page", &[("accept-encoding", "gzip"), (name, value)]);
        assert_eq!(world.ask(asks("if-none-match", "\"a\"")).await.status, 304);
        let part = [("accept-encoding", "gzip"), ("range", "bytes=0-9"), ("if-range", "\"a\"")];
        assert_eq!(world.ask(with("/page", &part)).await.status, 200);
    });
}

#[test]
fn a_body_that_breaks_off_breaks_off_and_is_not_kept() {
    let script = |asked: &Asked| {
        if asked.number > 1 {
            return vec![page("cache-control: max-age=60", 5_000)];
        }
        let head =
            "HTTP/1.1 200 X\r\ncontent-type: text/html\r\ncache-control: max-age=60\r\ncontent-length: 100000\r\n\r\n";
        vec![bytes(format!("{head}{}", text(50_000))), Step::Close]
    };
    run_with(compresses, script, async |world| {
        assert!(!world.ask(gzip("/page")).await.whole);
        world.settled().await;
        let reply = world.ask(gzip("/page")).await;
        assert_eq!(unzipped(&reply), text(5_000));
    });
}
