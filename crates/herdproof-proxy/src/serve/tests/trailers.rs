//! Fields after a body: on to who wants them, and none that only a head may say.

use super::world::{Asked, Step, bytes, run};

const ALONE: &str = "cache-control: no-store\r\n";

/// Sends a body in chunks, so long, and trailers after it.
fn trailing(head: &str, length: usize) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 200 X\r\n{head}trailer: Server-Timing, X-Sum, Set-Cookie\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let body = format!("{length:x}\r\n{}\r\n", "x".repeat(length));
    let trailers = "0\r\nserver-timing: db\r\nx-sum: 7\r\nset-cookie: a=b\r\nx-more: 1\r\n\r\n";
    vec![bytes(format!("{head}{body}{trailers}"))]
}

fn get(path: &str, fields: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n").into_bytes()
}

#[test]
fn what_follows_an_answer_goes_to_who_wants_it() {
    let script = |asked: &Asked| trailing(ALONE, asked.target.trim_start_matches('/').parse().unwrap());
    run(script, async |world| {
        // Passed on, and read ahead through a log.
        for length in [1, 100_000] {
            let told = world.raw(&get(&format!("/{length}"), "te: trailers\r\nconnection: te, close\r\n")).await;
            assert!(
                told.ends_with("\r\n0\r\nserver-timing: db\r\nx-sum: 7\r\n\r\n"),
                "{:?}",
                told.get(told.len() - 200..)
            );
            assert!(told.contains("trailer: server-timing, x-sum\r\n"));
            for fields in ["connection: close\r\n", "te: trailers\r\nconnection: close\r\n"] {
                let told = world.raw(&get(&format!("/{length}"), fields)).await;
                assert!(told.ends_with("x\r\n0\r\n\r\n") && !told.contains("trailer:"), "{:?}", told.get(..300));
            }
        }
        let log = world.origin.log();
        assert_eq!([log[0].header("te"), log[1].header("te"), log[2].header("te")], ["trailers", "", ""]);
    });
}

#[test]
fn what_is_kept_has_none_whoever_asks_first() {
    let script = |asked: &Asked| {
        assert_eq!(asked.header("te"), "");
        trailing("cache-control: max-age=60\r\n", 5)
    };
    run(script, async |world| {
        for _ in 0..2 {
            let ask = b"GET /page HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te, close\r\n\r\n";
            let told = world.raw(ask).await;
            assert!(told.contains("xxxxx") && !told.contains("server-timing") && !told.contains("x-sum"), "{told}");
        }
        assert_eq!(world.origin.requests(), 1);
    });
}

#[test]
fn what_follows_an_upload_goes_on_if_it_was_announced_and_says_nothing_of_who_asks() {
    let script = |asked: &Asked| {
        let sent = String::from_utf8(asked.body.clone()).unwrap();
        vec![super::world::answer(
            200,
            "",
            &format!("{}|{}", asked.header("trailer"), &sent[sent.len().min(100_000)..]),
        )]
    };
    run(script, async |world| {
        let trailers = "x-sum: 7\r\nx-forwarded-for: 6.6.6.6\r\nX-Forwarded-User: ann\r\nauthorization: x\r\nx_sum: 8\r\nx-more: 1\r\n";
        let names = "X-Sum, X-Forwarded-For, X-Forwarded-User, Authorization, x_sum";
        let post = |length: usize, announced: &str| {
            let body = format!("{length:x}\r\n{}\r\n0\r\n{trailers}\r\n", "x".repeat(length));
            let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n";
            format!("{head}{announced}\r\n{body}").into_bytes()
        };
        // Read as a whole before it has a seat, and streamed.
        for length in [5, 150_000] {
            let told = world.raw(&post(length, &format!("trailer: {names}\r\n"))).await;
            assert!(told.contains("\r\n\r\nx-sum|"), "{told}");
            let log = world.origin.log();
            let sent = String::from_utf8_lossy(&log.last().unwrap().body).into_owned();
            assert!(sent.ends_with("\r\n0\r\nx-sum: 7\r\n\r\n"), "{:?}", sent.get(sent.len() - 100..));
            world.raw(&post(length, "")).await;
        }
        let log = world.origin.log();
        assert_eq!((log[1].header("content-length"), log[1].header("trailer")), ("5", ""));
        assert!(log[3].body.ends_with(b"x\r\n0\r\n\r\n"));
    });
}
