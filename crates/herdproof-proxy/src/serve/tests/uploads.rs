//! Clients that send bodies slowly, wrongly, or more than anybody wants.
//!
//! An upload that sends its beginning and then nothing holds what it holds for as long as a test takes: nothing here waits for time
//! to pass, but for the windows after which such an upload is ended, where that is what is tested.

use std::time::Duration;

use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::world::*;

const LARGE: usize = 10 << 20;

/// Begins a request whose body does not come.
async fn stuck(world: &World, path: &str, headers: &str, beginning: &str) -> TcpStream {
    let mut stream = world.connect().await;
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n{beginning}");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

fn page(asked: &Asked) -> Vec<Step> {
    vec![answer(200, "cache-control: no-store", &asked.target)]
}

/// Misses of so many users, all from one address.
async fn all_are_answered(world: &World, users: usize) {
    let herd = world.herd(users, |user| get(&format!("/page/{user}")));
    for (user, reply) in herd.replies().await.iter().enumerate() {
        reply.is(200, &format!("/page/{user}"));
    }
}

#[test]
fn slow_small_uploads_hold_no_seat() {
    run_with(
        |settings| settings.origin.limit = 8,
        page,
        async |world| {
            let mut uploads = Vec::new();
            for number in 0..300 {
                let headers =
                    if number % 2 == 0 { "content-length: 65536\r\n" } else { "transfer-encoding: chunked\r\n" };
                uploads.push(stuck(world, "/up", headers, "1\r\nx\r\n").await);
            }
            world.until(|| world.proxy.0.uploads.stats().buffered >= 300 << 10).await;
            assert_eq!(world.proxy.0.origin.stats().in_flight, 0);
            all_are_answered(world, 50).await;
            assert_eq!(world.origin.requests(), 50);
            drop(uploads);
            world.until(|| world.proxy.0.uploads.stats().buffered == 0).await;
        },
    );
}

#[test]
fn slow_large_uploads_hold_upload_seats_only_and_one_client_half_of_these() {
    run_with(
        |settings| settings.origin.limit = 8,
        page,
        async |world| {
            let mut uploads = Vec::new();
            for _ in 0..300 {
                uploads.push(stuck(world, "/up", &format!("content-length: {LARGE}\r\n"), "x").await);
            }
            world.until(|| world.proxy.0.uploads.stats().waiting >= 250).await;
            all_are_answered(world, 50).await;
            let stats = world.proxy.0.uploads.stats();
            assert!(stats.held <= 1 && world.proxy.0.origin.stats().in_flight <= 1, "{stats:?}");
            drop(uploads);
        },
    );
}

#[test]
fn a_small_body_is_sent_whole_and_with_its_length_however_it_came() {
    run(
        |asked| vec![answer(200, "", &format!("{}:{}", asked.header("content-length"), asked.body.len()))],
        async |world| {
            let length = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\nhello";
            let told = world.raw(length.as_bytes()).await;
            assert!(told.starts_with("HTTP/1.1 100 ") && told.ends_with("5:5"), "{told}");
            assert_eq!(world.origin.log()[0].header("expect"), "", "we have said it");
            let chunked = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
            assert!(world.raw(chunked.as_bytes()).await.ends_with("5:5"));
            world.until(|| world.proxy.0.uploads.stats().buffered == 0).await;
        },
    );
}

#[test]
fn a_larger_body_of_unknown_length_goes_on_from_its_beginning() {
    run(
        |asked| {
            let sum = String::from_utf8_lossy(&asked.body).matches('x').count();
            vec![answer(200, "", &format!("{}:{sum}", asked.header("transfer-encoding")))]
        },
        async |world| {
            let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
            let body = format!("{}0\r\n\r\n", chunk.repeat(20));
            let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
            let told = world.raw(format!("{head}{body}").as_bytes()).await;
            assert!(told.ends_with(&format!("chunked:{}", 20 * 0x8000)), "{told}");
            let stats = world.proxy.0.uploads.stats();
            assert_eq!((stats.held, stats.buffered), (0, 0));
        },
    );
}

#[test]
fn a_client_that_has_its_share_of_the_memory_is_refused_and_told_when_to_come_back() {
    run_with(
        |settings| settings.uploads.buffer = 1 << 20,
        page,
        async |world| {
            let beginning = "x".repeat(60 << 10);
            let mut uploads = Vec::new();
            // A half is for whoever comes first.
            while world.proxy.0.uploads.stats().buffered <= (512 << 10) - (64 << 10) {
                let before = world.proxy.0.uploads.stats().buffered;
                uploads.push(stuck(world, "/up", "content-length: 65536\r\n", &beginning).await);
                world.until(|| world.proxy.0.uploads.stats().buffered >= before + (60 << 10)).await;
            }
            let mut late = stuck(world, "/up", "content-length: 65536\r\n", &beginning).await;
            let told = read_answer(&mut late).await.unwrap();
            assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: "), "{told}");
            assert!(told.contains("connection: close"), "{told}");
            all_are_answered(world, 10).await;
            assert_eq!(world.origin.requests(), 10, "nothing of it came to the origin");
            drop(uploads);
        },
    );
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    run_with(
        |settings| {
            settings.origin.limit = 4;
            settings.wait = Duration::from_millis(300);
        },
        page,
        async |world| {
            let headers = format!("content-length: {LARGE}\r\n");
            let _first = stuck(world, "/up", &headers, "x").await;
            world.until(|| world.proxy.0.uploads.stats().held == 1).await;
            let stream = stuck(world, "/up", &headers, "").await;
            let told = send_until_answered(world, stream).await;
            assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("connection: close"), "{told}");
            // Who sends a little more before it looks at the answer is not reset meanwhile. The proxy is patient for a second, and
            // this machine may be slower than that at times.
            let mut patient = false;
            for _ in 0..5 {
                let mut stream = stuck(world, "/up", &headers, "x").await;
                stream.read_to_end(&mut Vec::new()).await.unwrap();
                let mut sent = Ok(());
                for _ in 0..8 {
                    sent = sent.and(stream.write_all(&[b'x'; 4 << 10]).await);
                }
                patient |= sent.is_ok();
            }
            assert!(patient, "the answer is lost to a reset");
        },
    );
}

/// Sends without end, and reads what comes back until the end of that. An error of the connection is a failure.
async fn send_until_answered(world: &World, stream: TcpStream) -> String {
    let (mut from, mut to) = stream.into_split();
    let sending = world.env.spawn(async move { while to.write_all(&[b'x'; 16 << 10]).await.is_ok() {} });
    let mut told = Vec::new();
    from.read_to_end(&mut told).await.unwrap();
    sending.abort();
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn an_origin_that_does_not_want_a_body_is_heard_before_it_is_sent() {
    run(
        |_| vec![answer(413, "", "too much"), Step::Hold(Gate::new())],
        async |world| {
            let headers = format!("x-early: 1\r\ncontent-length: {LARGE}\r\nexpect: 100-continue\r\n");
            let mut stream = stuck(world, "/up", &headers, "").await;
            let told = read_answer(&mut stream).await.unwrap();
            assert!(told.starts_with("HTTP/1.1 413 ") && told.contains("connection: close"), "{told}");
            assert_eq!(world.origin.log()[0].header("expect"), "100-continue");
            world.until(|| world.proxy.0.uploads.stats().held == 0).await;
        },
    );
}

#[test]
fn a_client_is_told_to_go_on_when_the_origin_is_ready() {
    run(
        |_| vec![bytes("HTTP/1.1 100 Continue\r\n\r\n"), answer(200, "", "thanks"), Step::Hold(Gate::new())],
        async |world| {
            let headers = format!("x-early: 1\r\ncontent-length: {LARGE}\r\nexpect: 100-continue\r\n");
            let mut stream = stuck(world, "/up", &headers, "").await;
            let told = read_answer(&mut stream).await.unwrap();
            assert!(told.starts_with("HTTP/1.1 100 "), "{told}");
        },
    );
}

#[test]
fn an_origins_early_refusal_reaches_a_client_that_is_still_sending_and_ends_the_upload() {
    run(
        |_| vec![answer(403, "", "not you"), Step::Hold(Gate::new())],
        async |world| {
            let stream = stuck(world, "/up", &format!("x-early: 1\r\ncontent-length: {LARGE}\r\n"), "x").await;
            let told = send_until_answered(world, stream).await;
            assert!(told.starts_with("HTTP/1.1 403 ") && told.ends_with("not you"), "{told}");
            world.until(|| world.proxy.0.uploads.stats().held == 0).await;
            world.settled().await;
        },
    );
}

#[test]
fn an_origin_that_refuses_a_body_and_closes_is_heard_however_much_was_sent() {
    run(
        |_| vec![answer(413, "", "too much"), Step::Close],
        async |world| {
            for _ in 0..30 {
                let stream = stuck(world, "/up", &format!("x-early: 1\r\ncontent-length: {LARGE}\r\n"), "x").await;
                let told = send_until_answered(world, stream).await;
                assert!(told.starts_with("HTTP/1.1 413 ") && told.ends_with("too much"), "{told}");
            }
        },
    );
}

/// An origin that does not read a body takes it for the next request on its connection.
#[test]
fn a_connection_that_has_carried_a_body_is_never_used_for_what_others_share() {
    run(page, async |world| {
        let post = || request(Method::POST, "/form", &[], "GET /evil HTTP/1.1\r\nx: ");
        for (asked, connections) in
            [(get("/1"), 1), (post(), 1), (post(), 1), (get("/2"), 2), (get("/3"), 2), (post(), 2), (get("/4"), 2)]
        {
            assert_eq!(world.ask(asked).await.status, 200);
            world.settled().await;
            assert_eq!(world.origin.connections(), connections);
        }
    });
}

#[test]
fn a_page_finds_a_connection_where_all_idle_ones_have_carried_bodies() {
    run_with(
        |settings| settings.origin.limit = 2,
        page,
        async |world| {
            for reply in world.herd(4, |_| request(Method::POST, "/form", &[], "body")).replies().await {
                assert_eq!(reply.status, 200);
            }
            for number in 0..3 {
                assert_eq!(world.ask(get(&format!("/{number}"))).await.status, 200);
            }
        },
    );
}

#[test]
fn a_coding_that_is_not_read_here_is_not_passed_on_as_if_it_were() {
    run(page, async |world| {
        for codings in ["gzip, chunked", "chunked, chunked", "foo;bar, chunked", "gzip\r\ntransfer-encoding: chunked"] {
            for more in ["", "connection: x\r\n"] {
                let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{more}transfer-encoding: {codings}\r\n\r\n");
                let told = world.raw(format!("{head}0\r\n\r\nGET /next HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await;
                assert!(told.starts_with("HTTP/1.1 501 ") || told.starts_with("HTTP/1.1 400 "), "{codings}: {told}");
                assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{codings}: {told}");
            }
        }
        assert_eq!(world.origin.requests(), 0);
    });
}

#[test]
fn a_malformed_body_is_the_clients_fault() {
    run(page, async |world| {
        for (headers, body) in [
            ("transfer-encoding: chunked\r\n", "zz\r\nhello\r\n0\r\n\r\n".to_owned()),
            ("transfer-encoding: chunked\r\n", format!("20000\r\n{}\r\nzz\r\n", "x".repeat(0x20000))),
        ] {
            let mut stream = stuck(world, "/up", headers, &body).await;
            let told = read_answer(&mut stream).await.unwrap();
            assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
        }
        assert_eq!(world.proxy.0.origin.stats().faults, 0);
        all_are_answered(world, 1).await;
    });
}

#[test]
fn an_upload_that_stops_is_told_so_and_its_seat_is_free() {
    run(page, async |world| {
        let mut stream = stuck(world, "/up", &format!("content-length: {LARGE}\r\n"), "x").await;
        let told = read_answer(&mut stream).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 408 ") && told.contains("connection: close"), "{told}");
        world.settled().await;
        let (stats, origin) = (world.proxy.0.uploads.stats(), world.proxy.0.origin.stats());
        assert_eq!((stats.held, stats.slow, origin.faults), (0, 1, 0));
    });
}
