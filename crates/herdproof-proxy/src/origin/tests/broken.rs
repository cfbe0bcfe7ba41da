//! Everything an origin can do wrong, and what is not done because of it.

use std::{
    pin::Pin,
    sync::atomic::AtomicUsize,
    task::{Context, Poll},
};

use http_body::Frame;

use super::*;

#[test]
fn a_body_that_is_dropped_before_its_end_closes_the_connection() {
    run(|env| async move {
        let closed = Arc::new(Notify::new());
        let told = Arc::clone(&closed);
        let raw = Raw::new(&env, move |mut talk, number| {
            let told = Arc::clone(&told);
            async move {
                talk.request().await.unwrap();
                if number == 0 {
                    talk.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
                    talk.closed().await;
                    told.notify_one();
                } else {
                    talk.say(HELLO).await;
                    talk.closed().await;
                }
            }
        })
        .await;
        let origin = raw.origin();
        let mut body = origin.get("/").await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        assert_eq!(origin.stats().in_flight, 1, "the seat is held for the body");
        drop(body);
        closed.notified().await;
        until(|| origin.stats().in_flight == 0).await;
        assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        assert_eq!(raw.connections(), 2);
    });
}

/// A body of which there is only the first part.
struct Unfinished(Option<Bytes>);

impl Body for Unfinished {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.take().map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part)))))
    }
}

#[test]
fn a_connection_that_is_owed_the_rest_of_a_request_is_not_used_for_another() {
    run(|env| async move {
        let raw = Raw::says(&env, HELLO).await;
        let origin = raw.origin_with(|settings| settings.body_timeout = MS * 50);
        // Answered before the body has come.
        let mut request = post(Unfinished(Some(Bytes::from_static(b"part"))));
        request.headers_mut().insert(header::CONTENT_LENGTH, "1000".parse().unwrap());
        let answer = origin.send(request, 0, Ask::new(&env)).await.unwrap();
        assert_eq!(text(answer).await.unwrap(), "hello");
        assert_eq!(origin.stats().idle, 0);
        assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        assert_eq!(raw.connections(), 2, "the next request would have been taken for the rest of the first");
        until(|| origin.stats().in_flight == 0).await;
    });
}

#[test]
fn answers_that_can_be_read_in_two_ways_are_refused_and_nothing_is_used_again() {
    for (bytes, text) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", "the origin's answer is not HTTP"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            "the origin's answer says more than once how long it is",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "the origin's answer says more than once how long it is",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "the origin's answer has a transfer coding that was not asked for",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\nhello",
            "the origin's answer has a transfer coding that was not asked for",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello", "the origin's answer is not HTTP"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "the origin switches to a protocol that was not asked for",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "the origin's answer is not HTTP"),
    ] {
        run(|env| async move {
            let raw = Raw::says(&env, bytes).await;
            let origin = raw.origin();
            for times in 1..=2 {
                let error = origin.get("/").await.unwrap_err();
                assert_eq!(error.to_string(), text, "{bytes}");
                assert!(matches!(error, OriginError::BadResponse(_)));
                assert_eq!(origin.stats().requests, times, "not tried again: {bytes}");
            }
            assert!(raw.connections() >= 2, "not over the same connection: {bytes}");
            until(|| origin.stats().connections == 0 && origin.stats().in_flight == 0).await;
        });
    }
}

#[test]
fn heads_have_an_end() {
    let many = "x: y\r\n".repeat(200);
    let long = "y".repeat(70 * 1024);
    let endless = "y".repeat(1024 * 1024);
    for head in [many, format!("x: {long}\r\n"), format!("x: {endless}")] {
        run(|env| async move {
            let raw = Raw::new(&env, move |mut talk, _| {
                let head = head.clone();
                async move {
                    talk.request().await.unwrap();
                    talk.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{head}\r\n\r\n")).await;
                    talk.closed().await;
                }
            })
            .await;
            let error = raw.origin().get("/").await.unwrap_err();
            assert!(matches!(error, OriginError::BadResponse(_)), "{error:?}");
        });
    }
}

#[test]
fn a_body_that_breaks_off_is_an_error_and_never_an_end() {
    for bytes in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ] {
        run(|env| async move {
            let raw = Raw::new(&env, move |mut talk, _| async move {
                talk.request().await.unwrap();
                talk.say(bytes).await;
            })
            .await;
            let origin = raw.origin();
            let error = text(origin.get("/").await.unwrap()).await.unwrap_err();
            assert_eq!(error.to_string(), "the origin's body broke off", "{bytes}");
            until(|| origin.stats().connections == 0 && origin.stats().in_flight == 0).await;
            assert_eq!(origin.stats().requests, 1);
        });
    }
}

#[test]
fn a_connection_that_was_closed_while_idle_costs_nobody_anything() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            talk.say(HELLO).await;
        })
        .await;
        let origin = raw.origin();
        for _ in 0..50 {
            assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        }
        let stats = origin.stats();
        assert_eq!((stats.faults, raw.connections()), (0, 50));
    });
}

#[test]
fn a_reset_before_the_first_byte_is_tried_again_only_where_that_is_safe() {
    run(|env| async move {
        let asked = Arc::new(AtomicUsize::new(0));
        let number = Arc::clone(&asked);
        let raw = Raw::new(&env, move |mut talk, _| {
            let number = Arc::clone(&number);
            async move {
                while let Some(head) = talk.request().await {
                    if head.contains("herdproof-probe") {
                        talk.say(HELLO).await;
                        continue;
                    }
                    if number.fetch_add(1, SeqCst) != 1 {
                        return talk.reset();
                    }
                    talk.say(HELLO).await;
                }
            }
        })
        .await;
        let origin = raw.origin();
        assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        assert_eq!((asked.load(SeqCst), origin.stats().retries), (2, 1));
        let error = origin.post(Full::new(Bytes::from_static(b"once"))).await.unwrap_err();
        assert!(matches!(error, OriginError::Broken(_)), "{error:?}");
        let seen = (asked.load(SeqCst), origin.stats().retries);
        assert_eq!(seen, (3, 1), "a post that may have been done is not done again");
    });
}

#[test]
fn attempts_have_an_end_and_what_was_refused_is_not_tried_again() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            talk.reset();
        })
        .await;
        let origin = raw.origin_with(|settings| settings.attempts = 3);
        let error = origin.get("/").await.unwrap_err();
        // On a busy machine the probes are done before the last attempt.
        let tripped = matches!(&error, OriginError::Refused(refusal) if refusal.why == Why::Tripped);
        assert!(matches!(error, OriginError::Broken(_)) || tripped, "{error:?}");
        assert!(origin.stats().requests <= 3);
        // Two probes find the same, and the origin is left alone.
        until(|| matches!(origin.stats().breaker, Phase::Open { .. })).await;
        let sent = origin.stats().requests;
        let OriginError::Refused(refusal) = origin.get("/").await.unwrap_err() else { panic!("not refused") };
        assert_eq!(refusal.why, Why::Tripped);
        assert!(refusal.after.is_some());
        let stats = origin.stats();
        assert_eq!((stats.requests, stats.failed_probes >= 2), (sent, true));
        let tripped = stats.refusals.into_iter().find(|(why, _)| *why == Why::Tripped).unwrap();
        assert!(tripped.1 >= 1);
    });
}

/// An origin that resets the connection of whoever asks for `/crash`, breaks off the body of `/half`, and says these words
/// to all others.
async fn fragile(env: &Env, others: &'static str) -> Raw {
    Raw::new(env, move |mut talk, _| async move {
        while let Some(head) = talk.request().await {
            if head.starts_with("GET /crash") {
                return talk.reset();
            }
            if head.starts_with("GET /half") {
                return talk.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
            }
            talk.say(others).await;
        }
    })
    .await
}

#[test]
fn one_client_whose_url_resets_or_breaks_off_does_not_trip_the_breaker() {
    run(|env| async move {
        let raw = fragile(&env, HELLO).await;
        let origin = raw.origin_with(|settings| settings.attempts = 1);
        let ask = |user: u64| Ask::new(&env).user(user);
        for user in 2..5 {
            assert_eq!(text(origin.fetch(&get("/page"), ask(user)).await.unwrap()).await.unwrap(), "hello");
        }
        for _ in 0..20 {
            assert!(origin.fetch(&get("/crash"), ask(1)).await.is_err());
            assert!(text(origin.fetch(&get("/half"), ask(1)).await.unwrap()).await.is_err());
            assert_eq!(text(origin.fetch(&get("/page"), ask(2)).await.unwrap()).await.unwrap(), "hello");
        }
        until(|| origin.stats().probes > 0).await;
        let stats = origin.stats();
        // The head of `/half` is fine, so it may be asked for once, and never twice in a row.
        assert_eq!((stats.breaker, stats.limit), (Phase::Closed, 256), "{stats:?}");
        assert!(stats.faults >= 20, "a body that breaks off is a fault too: {stats:?}");
    });
}

#[test]
fn forty_503s_of_one_client_neither_trip_nor_cut() {
    for status in ["429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable"] {
        run(|env| async move {
            let raw = Raw::new(&env, move |mut talk, _| async move {
                while let Some(head) = talk.request().await {
                    let bad = format!("HTTP/1.1 {status}\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n");
                    talk.say(if head.starts_with("GET /bad") { &bad } else { HELLO }).await;
                }
            })
            .await;
            let origin = raw.origin();
            for number in 0..40 {
                let ask = Ask::new(&env).user(1);
                assert!(!origin.fetch(&get("/bad"), ask).await.unwrap().status().is_success());
                let ask = Ask::new(&env).user(2 + number % 7);
                assert_eq!(text(origin.fetch(&get("/good"), ask).await.unwrap()).await.unwrap(), "hello");
            }
            let stats = origin.stats();
            assert_eq!((stats.breaker, stats.limit, stats.probes), (Phase::Closed, 256, 0), "{status}");
        });
    }
}

#[test]
fn an_origin_whose_gateway_says_that_it_is_gone_is_probed_and_left_alone() {
    run(|env| async move {
        let raw = fragile(&env, "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
        let origin = raw.origin();
        assert_eq!(origin.get("/").await.unwrap().status(), 502);
        until(|| matches!(origin.stats().breaker, Phase::Open { .. })).await;
        assert_eq!(origin.stats().requests, 1, "probes are enough to tell");
    });
}

#[test]
fn an_origin_that_is_back_is_found_though_no_client_asks() {
    run(|env| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = OriginSettings { url: format!("http://{address}"), ..OriginSettings::default() };
        drop(listener);
        let origin = Origin::new(&env, &settings).unwrap();
        while !matches!(origin.stats().breaker, Phase::Open { .. }) {
            assert!(origin.get("/").await.is_err());
        }
        let listener = TcpListener::bind(address).await.unwrap();
        let there = env.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut talk = Talk { stream, buffer: Vec::new() };
                let head = talk.request().await.unwrap();
                assert!(head.starts_with("GET / HTTP/1.1\r\n") && !head.contains("origin.test"), "{head}");
                talk.say(HELLO).await;
            }
        });
        until(|| origin.stats().breaker == Phase::Closed).await;
        assert_eq!(origin.stats().requests, 0);
        there.abort();
    });
}

#[test]
fn a_probe_asks_for_what_the_settings_say() {
    run(|env| async move {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let raw = Raw::new(&env, move |mut talk, _| {
            let heard = Arc::clone(&heard);
            async move {
                while let Some(head) = talk.request().await {
                    heard.lock().push(head.split(' ').nth(1).unwrap().to_owned());
                    talk.say("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
                }
            }
        })
        .await;
        let origin = raw.origin_with(|settings| settings.probe = Some("/healthz".into()));
        origin.get("/page").await.unwrap();
        until(|| origin.stats().probes >= 2).await;
        assert_eq!(asked.lock()[..3], ["/page", "/healthz", "/healthz"]);
    });
}

#[test]
fn nobody_there_is_said_as_such_and_a_body_is_not_lost_by_trying_again() {
    run(|env| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings =
            OriginSettings { url: format!("http://{}", listener.local_addr().unwrap()), ..OriginSettings::default() };
        drop(listener);
        let origin = Origin::new(&env, &settings).unwrap();
        let error = origin.post(Full::new(Bytes::from_static(b"kept"))).await.unwrap_err();
        assert!(matches!(error, OriginError::Connect(_)), "{error:?}");
        let stats = origin.stats();
        assert_eq!((stats.retries, stats.requests), (2, 0), "certainly not sent, so tried again");
        assert!(stats.dialled >= 3, "{stats:?}");
    });
}

#[test]
fn an_answer_that_does_not_begin_is_given_up_and_not_tried_again() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            talk.closed().await;
        })
        .await;
        let origin = raw.origin_with(|settings| settings.head_timeout = MS * 30);
        let error = origin.get("/").await.unwrap_err();
        assert!(matches!(error, OriginError::TimedOut), "{error:?}");
        let error = origin.post(Full::new(Bytes::from_static(b"x"))).await.unwrap_err();
        assert!(matches!(error, OriginError::TimedOut), "{error:?}");
        until(|| origin.stats().in_flight == 0 && origin.stats().connections == 0).await;
        let stats = origin.stats();
        assert_eq!(
            (stats.requests, stats.faults_by[Fault::Timeout as usize].1, stats.faults, stats.retries),
            (2, 2, 2, 0)
        );
    });
}

#[test]
fn a_body_that_stalls_is_given_up() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
            talk.closed().await;
        })
        .await;
        let origin = raw.origin_with(|settings| settings.body_timeout = MS * 30);
        let error = text(origin.get("/").await.unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), "the origin sent nothing of the body for 30 ms");
        until(|| origin.stats().in_flight == 0).await;
    });
}

#[test]
fn a_request_whose_own_body_fails_is_not_held_against_the_origin() {
    run(|env| async move {
        let raw = Raw::says(&env, "").await;
        let origin = raw.origin();
        for _ in 0..10 {
            let error = origin.post(Failing).await.unwrap_err();
            assert!(matches!(error, OriginError::Request(_)), "{error:?}");
        }
        assert_eq!((origin.stats().faults, origin.stats().breaker), (0, Phase::Closed));
    });
}

/// The client is gone.
struct Failing;

impl Body for Failing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(Err(io::Error::other("gone"))))
    }
}

#[test]
fn who_waits_no_longer_does_not_hide_that_the_origin_hangs() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move { talk.closed().await }).await;
        let origin = raw.origin_with(|settings| {
            settings.head_timeout = 600 * MS;
            settings.hedge_after = None;
        });
        let ask = Ask::new(&env).deadline(env.now() + 500 * MS);
        assert!(matches!(origin.fetch(&get("/"), ask).await, Err(OriginError::TimedOut)));
        assert_eq!((origin.stats().requests, origin.stats().faults), (1, 1));
    });
}

/// A body of which the rest comes later.
struct InTwoParts(Option<&'static str>, Option<&'static str>, herdproof::env::Sleep);

impl Body for InTwoParts {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = |part: &'static str| Ok(Frame::data(Bytes::from_static(part.as_bytes())));
        if let Some(part) = self.0.take() {
            return Poll::Ready(Some(frame(part)));
        }
        Pin::new(&mut self.2).poll(cx).map(|_| self.1.take().map(frame))
    }
}

#[test]
fn a_body_may_take_longer_to_come_than_its_request_to_be_let_in() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            talk.take("4\r\nhalf\r\n4\r\nhalf\r\n0\r\n\r\n".len()).await.unwrap();
            talk.say(HELLO).await;
            talk.closed().await;
        })
        .await;
        let deadline = env.now() + 500 * MS;
        let body = InTwoParts(Some("half"), Some("half"), env.sleep_until(deadline + 50 * MS));
        let answer = raw.origin().send(post(body), 0, Ask::new(&env).deadline(deadline)).await.unwrap();
        assert_eq!(text(answer).await.unwrap(), "hello");
    });
}

#[test]
fn a_connection_that_was_answered_in_an_old_version_is_not_used_again() {
    run(|env| async move {
        let raw = Raw::says(&env, "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello").await;
        let origin = raw.origin();
        for connections in 1..=2 {
            assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
            assert_eq!(raw.connections(), connections);
        }
    });
}
