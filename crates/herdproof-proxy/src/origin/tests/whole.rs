//! What works: answers, bodies both ways, connections that are used again.

use std::{
    pin::Pin,
    sync::atomic::AtomicUsize,
    task::{Context, Poll},
};

use http_body::Frame;

use super::*;

#[test]
fn answers_come_through_and_one_connection_carries_them_all() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            while let Some(head) = talk.request().await {
                let target = head.split(' ').nth(1).unwrap().to_owned();
                talk.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}", target.len())).await;
            }
        })
        .await;
        let origin = raw.origin();
        for path in ["/a?b=%2e;c", "//x/../y", "/%00"] {
            let answer = origin.get(path).await.unwrap();
            assert_eq!(text(answer).await.unwrap(), path, "byte for byte");
            // Before the next comes, its connection is back.
            until(|| origin.stats().idle == 1).await;
        }
        let answer = origin.post(Empty::<Bytes>::new()).await.unwrap();
        assert_eq!(text(answer).await.unwrap(), "/");
        until(|| origin.stats().in_flight == 0).await;
        let stats = origin.stats();
        assert_eq!((raw.connections(), stats.dialled, stats.connections, stats.requests), (1, 1, 1, 4));
        assert_eq!((stats.answers, stats.faults, stats.retries, stats.hedges), (4, 0, 0, 0));
    });
}

#[test]
fn an_answer_without_a_body_gives_everything_back_at_once() {
    run(|env| async move {
        let raw = Raw::says(&env, "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n").await;
        let origin = raw.origin();
        let answer = origin.get("/").await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert!(answer.body().is_end_stream());
        until(|| origin.stats().in_flight == 0 && origin.stats().idle == 1).await;
    });
}

#[test]
fn interim_answers_are_not_the_answer() {
    run(|env| async move {
        let raw = Raw::says(
            &env,
            "HTTP/1.1 103 Early Hints\r\ncache-control: private\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
             HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        )
        .await;
        let origin = raw.origin();
        let answer = origin.get("/").await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(!answer.headers().contains_key(header::CACHE_CONTROL));
        assert_eq!(text(answer).await.unwrap(), "ok");
    });
}

#[test]
fn a_body_waits_for_whoever_expects_to_be_told_to_go_on() {
    run(|env| async move {
        let raw = Raw::new(&env, |mut talk, _| async move {
            let head = talk.request().await.unwrap();
            assert!(head.contains("expect: 100-continue"), "{head}");
            talk.say("HTTP/1.1 100 Continue\r\n\r\n").await;
            assert_eq!(talk.take(4).await.unwrap(), b"data");
            talk.say("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
            talk.closed().await;
        })
        .await;
        let origin = raw.origin();
        let mut request = post(Full::new(Bytes::from_static(b"data")));
        request.headers_mut().insert(header::EXPECT, "100-continue".parse().unwrap());
        let answer = origin.send(request, 0, Ask::new(&env)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
    });
}

#[test]
fn trailers_are_dropped_and_the_connection_is_used_again() {
    run(|env| async move {
        let raw = Raw::says(
            &env,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
        )
        .await;
        let origin = raw.origin();
        for _ in 0..2 {
            let mut body = origin.get("/").await.unwrap().into_body();
            let mut frames = Vec::new();
            while let Some(frame) = body.frame().await {
                frames.push(frame.unwrap().into_data().unwrap());
            }
            assert_eq!(frames.concat(), b"abc");
            until(|| origin.stats().idle == 1).await;
        }
        assert_eq!(raw.connections(), 1);
    });
}

const CHUNK: usize = 64 * 1024;
const CHUNKS: usize = 1_024;

/// A body that keeps how far it was ahead of the origin.
struct Ahead {
    given: usize,
    taken: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Body for Ahead {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.given == CHUNKS * CHUNK {
            return Poll::Ready(None);
        }
        self.given += CHUNK;
        self.most.fetch_max(self.given.saturating_sub(self.taken.load(SeqCst)), SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; CHUNK])))))
    }
}

#[test]
fn a_body_is_read_no_faster_than_the_origin_takes_it() {
    run(|env| async move {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let raw = Raw::new(&env, move |mut talk, _| {
            let taken = Arc::clone(&counted);
            async move {
                talk.request().await.unwrap();
                let mut part = vec![0; CHUNK];
                // Chunked, so a little more than the body itself.
                loop {
                    let read = talk.stream.read(&mut part).await.unwrap();
                    taken.fetch_add(read, SeqCst);
                    if part[..read].ends_with(b"0\r\n\r\n") {
                        break;
                    }
                }
                talk.say(HELLO).await;
                talk.closed().await;
            }
        })
        .await;
        let most = Arc::new(AtomicUsize::new(0));
        let body = Ahead { given: 0, taken: Arc::clone(&taken), most: Arc::clone(&most) };
        let answer = raw.origin().post(body).await.unwrap();
        assert_eq!(text(answer).await.unwrap(), "hello");
        assert!(taken.load(SeqCst) >= CHUNKS * CHUNK);
        // What fits into the buffers of two sockets, and not the 64 MiB of it.
        assert!(most.load(SeqCst) < 32 * 1024 * 1024, "{} bytes ahead", most.load(SeqCst));
    });
}

/// Keeps how long the origin took, as everybody who learns from it hears it.
#[derive(Default)]
struct Took(Mutex<Option<Duration>>);

impl herdproof::event::Observer for Took {
    fn observe(&self, event: &Event) {
        if let Event::OriginAnswer { took, .. } = event {
            *self.0.lock() = Some(*took);
        }
    }
}

/// A body that takes its time.
struct Slow(herdproof::env::Sleep, bool);

impl Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.1, true) {
            return Poll::Ready(None);
        }
        let waited = Pin::new(&mut self.0).poll(cx);
        self.1 = waited.is_ready();
        waited.map(|_| Some(Ok(Frame::data(Bytes::from_static(b"data")))))
    }
}

#[test]
fn how_long_a_client_takes_to_send_a_body_is_not_how_long_the_origin_takes() {
    run(|env| async move {
        let took = Arc::new(Took::default());
        let env = env.observed_by(Arc::clone(&took));
        let raw = Raw::new(&env, |mut talk, _| async move {
            talk.request().await.unwrap();
            assert_eq!(talk.take(14).await.unwrap(), b"4\r\ndata\r\n0\r\n\r\n");
            talk.say(HELLO).await;
            talk.closed().await;
        })
        .await;
        let slow = Duration::from_millis(100);
        let began = env.now();
        let answer = raw.origin().post(Slow(env.sleep(slow), false)).await.unwrap();
        let all = env.now() - began;
        assert_eq!(text(answer).await.unwrap(), "hello");
        let took = took.0.lock().unwrap();
        assert!(took + slow <= all, "{took:?} of {all:?}");
    });
}
