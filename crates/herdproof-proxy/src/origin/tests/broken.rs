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
        let answer = origin.send(request, Ask::new(&env)).await.unwrap();
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
            for connections in 1..=2 {
                let error = origin.get("/").await.unwrap_err();
                assert_eq!(error.to_string(), text, "{bytes}");
                assert!(matches!(error, OriginError::BadResponse(_)));
                assert_eq!(
                    raw.connections(),
                    connections,
                    "not tried again, and not over the same connection: {bytes}"
                );
            }
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
                while talk.request().await.is_some() {
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
        assert!(matches!(error, OriginError::Broken(_)), "{error:?}");
        assert_eq!(raw.connections(), 3);
        // Seven in a row, and the origin is left alone.
        while raw.connections() < 7 {
            assert!(origin.get("/").await.is_err());
        }
        let OriginError::Refused(refusal) = origin.get("/").await.unwrap_err() else { panic!("not refused") };
        assert_eq!(refusal.why, Why::Tripped);
        assert!(refusal.after.is_some());
        assert_eq!(raw.connections(), 7);
        assert!(matches!(origin.stats().breaker, Phase::Open { .. }));
        let tripped = origin.stats().refusals.into_iter().find(|(why, _)| *why == Why::Tripped).unwrap();
        assert!(tripped.1 >= 1);
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
        assert_eq!((stats.retries, stats.dialled, stats.requests), (2, 3, 0), "certainly not sent, so tried again");
        assert_eq!((stats.in_flight, stats.connections), (0, 0));
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
        assert_eq!((stats.requests, stats.timeouts, stats.faults, stats.retries), (2, 2, 2, 0));
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
        let answer = raw.origin().send(post(body), Ask::new(&env).deadline(deadline)).await.unwrap();
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
