//! Answers that make no sense, and what a client learns of them.

use std::time::Duration;

use super::world::{answer, bytes, fresh, get, request, run, run_with, with};

#[test]
fn an_answer_that_can_be_read_in_two_ways_is_refused_and_not_kept() {
    const ANSWERS: [&str; 9] = [
        "content-length: 5\r\ncontent-length: 4\r\n\r\nhello",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "content-length: +5\r\n\r\nhello",
        "content-length: 5, 5\r\n\r\nhello",
        "content-length: 5x\r\n\r\nhello",
        "transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "x bad: 1\r\ncontent-length: 5\r\n\r\nhello",
    ];
    run_with(
        |settings| {
            settings.failed = Duration::ZERO..Duration::from_nanos(1);
            settings.origin.attempts = 1;
        },
        |asked| {
            let answer = ANSWERS[asked.target[1..].parse::<usize>().unwrap()];
            vec![bytes(format!("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n{answer}"))]
        },
        async |world| {
            for (number, answer) in ANSWERS.into_iter().enumerate() {
                let before = world.origin.requests();
                for _ in 0..2 {
                    let reply = world.ask(get(&format!("/{number}"))).await;
                    assert_eq!(reply.status, 502, "{answer}");
                    assert!(!reply.text().contains("hello"), "{answer}");
                }
                assert_eq!(world.origin.requests(), before + 2, "{answer}");
            }
        },
    );
}

#[test]
fn a_few_pages_that_fail_do_not_shut_off_the_others() {
    run(
        |asked| match &*asked.target {
            "/fine" => vec![answer(200, "cache-control: private", "fine")],
            _ => vec![answer(500, "", "a bug")],
        },
        async |world| {
            for page in 0..20 {
                world.ask(get(&format!("/{page}"))).await.is(500, "a bug");
            }
            world.ask(get("/fine")).await.is(200, "fine");
        },
    );
}

#[test]
fn bytes_after_an_answer_are_not_the_next_answer() {
    run(
        |asked| match &*asked.target {
            "/split" => vec![bytes(
                "HTTP/1.1 200 OK\r\ncache-control: private\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
            )],
            _ => vec![fresh("fine")],
        },
        async |world| {
            world.ask(get("/split")).await.is(200, "ok");
            world.settled().await;
            for number in 0..4 {
                world.ask(get(&format!("/{number}"))).await.is(200, "fine");
            }
        },
    );
}

#[test]
fn an_error_that_one_request_provoked_is_not_remembered_for_others() {
    for status in [400, 405, 413, 414, 431, 501] {
        run(
            move |asked| {
                if asked.header("x-evil").is_empty() { vec![fresh("fine")] } else { vec![answer(status, "", "evil")] }
            },
            async |world| {
                world.ask(with("/", &[("x-evil", "1")])).await.is(status, "evil");
                world.ask(get("/")).await.is(200, "fine");
                world.settled().await;
                world.ask(get("/")).await.is(200, "fine");
                assert_eq!(world.origin.requests(), 2, "{status}");
            },
        );
    }
}

#[test]
fn an_error_page_of_ours_repeats_nothing_of_the_request() {
    const MARK: &str = "xyzzy";
    run(
        |asked| match asked.target.split('?').next() {
            Some("/reset") => vec![super::world::Step::Reset],
            Some("/bad") => vec![bytes("nonsense\r\n\r\n")],
            _ => vec![answer(503, "", "")],
        },
        async |world| {
            let ask = async |path: &str, extra: &str| {
                let head =
                    format!("GET {path} HTTP/1.1\r\ncookie: {MARK}\r\nx-{MARK}: {MARK}\r\nuser-agent: {MARK}\r\n");
                let told = world.raw(format!("{head}{extra}connection: close\r\n\r\n").as_bytes()).await;
                assert!(!told.is_empty() && !told.to_lowercase().contains(MARK), "{path}: {told}");
                told
            };
            for path in ["/reset", "/bad", "/"] {
                // The first has the origin's, the second ours.
                for _ in 0..2 {
                    ask(&format!("{path}?{MARK}"), "host: a\r\n").await;
                }
            }
            for (path, extra) in [
                (format!("/{MARK}\\"), "host: a\r\n"),
                (format!("/{MARK}"), "host: xyzzy\r\nhost: xyzzy\r\n"),
                (format!("/{MARK}"), "host: xyzzy@\r\n"),
                (format!("http://{MARK}/"), "host: a\r\n"),
                (format!("/{MARK}"), ""),
            ] {
                assert!(ask(&path, extra).await.starts_with("HTTP/1.1 400"), "{path} {extra}");
            }
            let cached = ask(&format!("/none?{MARK}"), "host: a\r\ncache-control: only-if-cached\r\n").await;
            assert!(cached.starts_with("HTTP/1.1 504"), "{cached}");
        },
    );
}

#[test]
fn an_origin_that_cannot_be_reached_is_told_to_clients_by_a_code_and_to_the_operator_in_words() {
    // One request each: the breaker trips soon.
    for method in [http::Method::GET, http::Method::POST] {
        run_with(
            // Nothing listens there; and probes find that too, before a second attempt.
            |settings| {
                settings.origin.url = "http://127.0.0.1:1".into();
                settings.origin.attempts = 1;
            },
            |_| vec![fresh("")],
            async |world| {
                let reply = world.ask(request(method.clone(), "/", &[], "")).await;
                reply.is(502, "502 Bad Gateway: connection_refused\n");
                assert_eq!(reply.header("proxy-status"), "herdproof; error=connection_refused");
                assert!(reply.cache().ends_with("detail=connection_refused"), "{}", reply.cache());
                let (_, why) = world.proxy.origin();
                assert!(why.is_some_and(|why| why.contains("os error")));
            },
        );
    }
}
