//! On real sockets, with a lane that knows one page by heart.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, timeout::by};
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

use super::*;
use crate::{
    Listener, Server,
    listener::{Besides, connections::Stage},
    settings::ClientSettings,
};

const LONG: Duration = Duration::from_secs(30);
const KNOWN: &[u8] = b"GET /known HTTP/1.1\r\n\r\n";
const OTHER: &[u8] = b"GET /other HTTP/1.1\r\n\r\n";

/// Knows one request, and counts how often it was asked.
struct Known {
    page: Vec<u8>,
    asked: AtomicUsize,
}

impl Lane for Known {
    fn ask(&self, bytes: &[u8], answer: &mut Vec<u8>) -> Asked {
        self.asked.fetch_add(1, SeqCst);
        if bytes == KNOWN {
            // Some of it is written down, some comes after.
            let (down, after) = self.page.split_at(self.page.len() / 3);
            answer.extend_from_slice(down);
            let body = Bytes::copy_from_slice(after);
            let bytes = body.len() as u64;
            let since = Tick::ZERO;
            return Asked::Answered(Answered { body, footprint: None, status: StatusCode::OK, bytes, since });
        }
        if bytes == OTHER { Asked::Whole } else { Asked::Other }
    }

    fn written(&self, _: &Answered) {}
}

impl Known {
    /// Waits until somebody has asked.
    async fn was_asked(&self) {
        while self.asked.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

fn known(page: impl Into<Vec<u8>>) -> Arc<Known> {
    Arc::new(Known { page: page.into(), asked: AtomicUsize::new(0) })
}

fn run(test: impl AsyncFnOnce(Env)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        // A hang is a failure, not a wait.
        by(&env, Some(env.now() + LONG), test(env.clone())).await.expect("it ends");
    });
}

/// A server before which the lane stands. Others than GET are told how long their body was.
fn serve(env: &Env, lane: &Arc<Known>, gate: &Arc<Semaphore>) -> Server {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &ClientSettings::default()).unwrap();
    let gate = Arc::clone(gate);
    let lane: Arc<dyn Lane> = lane.clone();
    listener.serve_with(env, Besides { lane: Some(lane), ledger: None }, move |request, _| {
        let gate = Arc::clone(&gate);
        async move {
            let answer = if request.method() == Method::GET {
                gate.acquire().await.unwrap().forget();
                format!("hyper {}", request.uri().path())
            } else {
                format!("hyper {} bytes", request.into_body().collect().await.unwrap().to_bytes().len())
            };
            Response::new(Full::new(Bytes::from(answer)))
        }
    })
}

fn open() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(Semaphore::MAX_PERMITS))
}

/// Reads until this comes; all that came.
async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).ends_with(end) {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8(seen).unwrap()
}

#[test]
fn hyper_and_the_lane_take_turns_on_one_connection() {
    run(async |env| {
        let lane = known("by heart");
        let server = serve(&env, &lane, &open());
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        for _ in 0..20 {
            stream.write_all(KNOWN).await.unwrap();
            assert_eq!(until(&mut stream, "heart").await, "by heart");
            stream.write_all(OTHER).await.unwrap();
            assert!(until(&mut stream, "hyper /other").await.starts_with("HTTP/1.1 200"));
        }
        assert_eq!(lane.asked.load(SeqCst), 40);
    });
}

/// Who answered here would answer what somebody wrote into a form.
#[test]
fn what_follows_a_head_with_a_body_is_never_taken_for_a_request() {
    run(async |env| {
        let lane = known("by heart");
        let server = serve(&env, &lane, &open());
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let length = KNOWN.len() * 2;
        let head = format!("POST /form HTTP/1.1\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        lane.was_asked().await;
        for _ in 0..2 {
            stream.write_all(KNOWN).await.unwrap();
        }
        let told = until(&mut stream, &format!("hyper {length} bytes")).await;
        assert!(!told.contains("by heart"), "{told}");
        assert_eq!(lane.asked.load(SeqCst), 1);
    });
}

#[test]
fn what_comes_while_hyper_is_at_it_waits_its_turn() {
    run(async |env| {
        let (lane, gate) = (known("by heart"), Arc::new(Semaphore::new(0)));
        let server = serve(&env, &lane, &gate);
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(OTHER).await.unwrap();
        lane.was_asked().await;
        stream.write_all(KNOWN).await.unwrap();
        // Time enough for whoever would push ahead.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        // Who answers it depends on whether it was read before the first was done.
        let mut told = String::new();
        while !told.ends_with("by heart") && !told.ends_with("hyper /known") {
            let mut bytes = [0; 64];
            let count = stream.read(&mut bytes).await.unwrap();
            told.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let (first, second) = told.split_once("hyper /other").unwrap();
        assert!(first.starts_with("HTTP/1.1 200") && !first.contains("by heart"), "{told}");
        assert!(second == "by heart" || second.starts_with("HTTP/1.1 200"), "{told}");
    });
}

#[test]
fn requests_in_one_packet_and_a_head_in_two_are_answered_in_order_by_one_reader() {
    for pieces in [vec![[KNOWN, KNOWN].concat()], vec![KNOWN[..9].to_vec(), [&KNOWN[9..], KNOWN].concat()]] {
        run(async |env| {
            let lane = known("by heart");
            let server = serve(&env, &lane, &open());
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in &pieces {
                stream.write_all(piece).await.unwrap();
                lane.was_asked().await;
            }
            until(&mut stream, "hyper /known").await;
            // Closed: what comes now is hyper's too.
            stream.write_all(KNOWN).await.unwrap();
            until(&mut stream, "hyper /known").await;
            assert_eq!(lane.asked.load(SeqCst), 1);
        });
    }
}

#[test]
fn an_answer_that_is_taken_slowly_goes_out_whole_and_before_the_next() {
    run(async |env| {
        // More than any two sockets hold.
        let page: Vec<u8> = (0..32 << 20).map(|number: u32| (number % 251) as u8).collect();
        let lane = known(page.clone());
        let server = serve(&env, &lane, &open());
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(KNOWN).await.unwrap();
        lane.was_asked().await;
        stream.write_all(OTHER).await.unwrap();
        let mut told = vec![0; page.len()];
        stream.read_exact(&mut told).await.unwrap();
        assert!(told == page, "it is another page");
        assert!(until(&mut stream, "hyper /other").await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn who_stops_in_the_midst_of_an_answer_still_gives_all_of_it() {
    run(async |env| {
        let page = vec![b'x'; 32 << 20];
        let lane = known(page.clone());
        let server = serve(&env, &lane, &open());
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(KNOWN).await.unwrap();
        lane.was_asked().await;
        let stopping = env.spawn(server.stop(LONG));
        let mut told = Vec::new();
        stream.read_to_end(&mut told).await.unwrap();
        assert_eq!(told.len(), page.len());
        assert_eq!(stopping.await.unwrap().cut, 0);
    });
}

#[test]
fn a_stop_is_told_to_those_whose_answer_is_known_by_heart() {
    run(async |env| {
        let lane = known("by heart");
        let server = serve(&env, &lane, &open());
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(KNOWN).await.unwrap();
        until(&mut stream, "by heart").await;
        server.connections.tell(Stage::LastAnswers);
        stream.write_all(KNOWN).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.unwrap();
        assert!(told.contains("connection: close"), "{told}");
        assert_eq!(server.stop(LONG).await.cut, 0);
    });
}

#[test]
fn what_is_left_begins_where_the_client_stopped() {
    let (down, after) = (b"written down", Bytes::from_static(b" and after"));
    let all = [&down[..], &after].concat();
    for (written, step) in (0..=all.len()).flat_map(|written| [(written, 1), (written, 5), (written, 100)]) {
        let mut rest = Rest::after(written, down, after.clone());
        let mut told = all[..written].to_vec();
        while !rest.is_empty() {
            let bytes = rest.left().len().min(step);
            told.extend_from_slice(&rest.left()[..bytes]);
            rest.taken(bytes).unwrap();
        }
        assert_eq!(told, all, "{written}, then {step} at a time");
    }
    assert!(Rest::after(3, down, after).taken(0).is_err(), "a socket that takes nothing is not asked for ever");
}
