//! A head, a part, or nothing but that it has not changed.

use http::Method;

use super::world::{Gate, Step, answer, bytes, fresh, get, head, request, run, with};

const MODIFIED: &str = "Wed, 01 Jan 2020 00:00:00 GMT";

/// A cache behind says what it did; so do we, after it (RFC 9211 2).
#[test]
fn what_caches_behind_say_is_kept_and_ours_is_the_last() {
    run(
        |asked| {
            let control = if asked.target == "/private" { "private" } else { "max-age=60" };
            let headers = format!(
                "cache-control: {control}\netag: \"1\"\ncache-status: inner; hit\ncache-status: outer; fwd=miss"
            );
            vec![answer(200, &headers, "1")]
        },
        async |world| {
            let condition = &[("if-none-match", "\"1\"")][..];
            for (path, fields, ours) in [
                ("/", &[][..], "herdproof; fwd=miss; fwd-status=200; stored"),
                ("/", &[], "herdproof; hit"),
                ("/", condition, "herdproof; hit"),
                ("/private", &[], "herdproof; fwd=bypass; fwd-status=200; detail=private"),
            ] {
                let reply = world.ask(with(path, fields)).await;
                world.settled().await;
                let said: Vec<_> = reply.headers.get_all("cache-status").iter().collect();
                assert_eq!(said, ["inner; hit", "outer; fwd=miss", ours], "{path} {fields:?}");
            }
        },
    );
}

#[test]
fn heads_parts_and_conditions_are_answered_from_one_fill() {
    run(
        |_| {
            let headers =
                format!("cache-control: max-age=60\netag: \"1\"\nlast-modified: {MODIFIED}\ncontent-type: text/plain");
            vec![answer(200, &headers, "0123456789")]
        },
        async |world| {
            world.ask(get("/")).await;
            world.settled().await;
            let reply = world.ask(request(Method::HEAD, "/", &[], "")).await;
            reply.is(200, "");
            assert_eq!(reply.header("content-length"), "10");
            for (fields, status, body, range) in [
                ([("range", "bytes=2-3"), ("x", "")], 206, "23", "bytes 2-3/10"),
                ([("range", "bytes=-2"), ("x", "")], 206, "89", "bytes 8-9/10"),
                ([("range", "bytes=9-99"), ("x", "")], 206, "9", "bytes 9-9/10"),
                ([("range", "bytes=10-"), ("x", "")], 416, "", "bytes */10"),
                ([("range", "bytes=0-1,3-4"), ("x", "")], 200, "0123456789", ""),
                ([("range", "bytes=4-2"), ("x", "")], 200, "0123456789", ""),
                ([("range", "lines=0-1"), ("x", "")], 200, "0123456789", ""),
                ([("range", "bytes=0-1"), ("if-range", "\"1\"")], 206, "01", "bytes 0-1/10"),
                ([("range", "bytes=0-1"), ("if-range", "\"2\"")], 200, "0123456789", ""),
                ([("range", "bytes=0-1"), ("if-none-match", "\"1\"")], 304, "", ""),
                ([("if-none-match", "\"2\", W/\"1\""), ("x", "")], 304, "", ""),
                ([("if-none-match", "\"2\""), ("if-modified-since", MODIFIED)], 200, "0123456789", ""),
                ([("if-modified-since", MODIFIED), ("x", "")], 304, "", ""),
            ] {
                let reply = world.ask(with("/", &fields)).await;
                reply.is(status, body);
                assert_eq!(reply.header("content-range"), range, "{fields:?}");
                if status == 304 {
                    assert_eq!((reply.header("content-length"), reply.header("content-type")), ("", ""));
                    assert_eq!(reply.header("etag"), "\"1\"");
                }
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_part_that_has_come_is_served_before_the_rest() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| {
            let head = head(200, "content-length: 10\r\ncache-control: max-age=60\r\n");
            vec![bytes(format!("{head}01234")), Step::Hold(hold.clone()), bytes("56789")]
        },
        async |world| {
            // It leads, and the fill is of the whole.
            world.ask(with("/", &[("range", "bytes=1-3")])).await.is(206, "123");
            let whole = world.herd(5, |_| get("/"));
            world.ask(with("/", &[("range", "bytes=0-4")])).await.is(206, "01234");
            let rest = world.herd(1, |_| with("/", &[("range", "bytes=4-")]));
            gate.open();
            rest.replies().await[0].is(206, "456789");
            for reply in whole.replies().await {
                reply.is(200, "0123456789");
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_status_without_a_body_stays_without() {
    run(
        |_| vec![bytes("HTTP/1.1 204 X\r\ncache-control: max-age=60\r\n\r\n")],
        async |world| {
            for _ in 0..2 {
                let reply = world.ask(get("/")).await;
                reply.is(204, "");
                assert_eq!((reply.header("content-length"), reply.header("transfer-encoding")), ("", ""));
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_head_that_goes_by_itself_says_the_length_of_what_it_does_not_bring() {
    run(
        |asked| {
            let head = head(200, "content-length: 1000\r\ncache-control: private\r\n");
            if asked.method == Method::HEAD { vec![bytes(head)] } else { vec![bytes(head), bytes("x".repeat(1000))] }
        },
        async |world| {
            for _ in 0..3 {
                let reply = world.ask(request(Method::HEAD, "/", &[], "")).await;
                reply.is(200, "");
                assert_eq!(reply.header("content-length"), "1000");
            }
        },
    );
}

#[test]
fn a_body_of_no_bytes_is_a_body() {
    run(
        |asked| match &*asked.target {
            "/chunked" => vec![bytes(
                "HTTP/1.1 200 X\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            )],
            _ => vec![fresh("")],
        },
        async |world| {
            for path in ["/", "/chunked"] {
                for _ in 0..2 {
                    world.ask(get(path)).await.is(200, "");
                    world.settled().await;
                }
                let reply = world.ask(with(path, &[("range", "bytes=0-")])).await;
                assert_eq!(reply.status, 416);
            }
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn trailers_are_for_one_hop_and_do_not_disturb_what_is_kept() {
    run(
        |_| {
            let head = "HTTP/1.1 200 X\r\ncache-control: max-age=60\r\ntrailer: set-cookie\r\ntransfer-encoding: chunked\r\n\r\n";
            vec![bytes(format!("{head}5;a=b\r\nhello\r\n0\r\nset-cookie: a=b\r\n\r\n"))]
        },
        async |world| {
            for _ in 0..2 {
                let reply = world.ask(get("/")).await;
                reply.is(200, "hello");
                assert_eq!(reply.header("set-cookie"), "");
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}
