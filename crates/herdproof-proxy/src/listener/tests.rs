//! On real sockets: nothing here depends on how long anything takes, but that it ends.

use std::{
    future::pending,
    io,
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use http::{Method, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

use super::*;

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(30);
const GET: &[u8] = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n";

fn run(test: impl AsyncFnOnce(Env)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        // A hang is a failure, not a wait.
        by(&env, Some(env.now() + LONG), test(env.clone())).await.expect("it ends");
    });
}

fn text(text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(text.into()))
}

fn bind(settings: &ClientSettings) -> Listener {
    Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), settings).unwrap()
}

fn echo(env: &Env, settings: &ClientSettings) -> Server {
    bind(settings).serve(env, |request, _| async move { text(request.uri().path().to_owned()) })
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address()).await.unwrap()
}

/// Reads one answer whose length is said; none if the connection is closed first.
async fn answer(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    loop {
        let told = String::from_utf8_lossy(&seen).into_owned();
        if let Some((head, body)) = told.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().unwrap() {
                return Some(told);
            }
        }
        match stream.read_buf(&mut seen).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Waits until the other side has closed; what came before that.
async fn closed(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    stream.read_to_end(&mut seen).await.ok();
    String::from_utf8_lossy(&seen).into_owned()
}

fn reported(server: &Server, line: &str) -> bool {
    let mut page = Page::default();
    server.report()(&mut page);
    page.text().lines().any(|known| known == line)
}

#[test]
fn one_connection_is_answered_again_and_again() {
    run(async |env| {
        let server = echo(&env, &ClientSettings::default());
        let mut stream = connect(&server).await;
        for _ in 0..100 {
            stream.write_all(GET).await.unwrap();
            assert!(answer(&mut stream).await.unwrap().ends_with("\r\n\r\n/a"));
        }
        assert_eq!(server.connections(), 1);
        assert!(reported(&server, "herdproof_connections 1") && reported(&server, "herdproof_connections_total 1"));
        drop(stream);
        server.connections.empty().await;
    });
}

#[test]
fn requests_sent_all_at_once_are_answered_in_their_order() {
    run(async |env| {
        let server = echo(&env, &ClientSettings::default());
        let mut stream = connect(&server).await;
        let all = (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nhost: x\r\n\r\n")).collect::<Vec<_>>().concat();
        stream
            .write_all(all.replacen("/49 HTTP/1.1\r\n", "/49 HTTP/1.1\r\nconnection: close\r\n", 1).as_bytes())
            .await
            .unwrap();
        let told = closed(&mut stream).await;
        let paths: Vec<&str> = told.split("\r\n\r\n/").skip(1).map(|rest| rest.split("HTTP").next().unwrap()).collect();
        assert_eq!(paths, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    });
}

#[test]
fn a_head_that_drips_is_ended_and_others_are_not() {
    run(async |env| {
        // Too much for a head is no reason to end it before its time is over.
        let patience = ClientSettings { head_timeout: 100 * MS, max_head: 64 << 20, ..ClientSettings::default() };
        let server = echo(&env, &patience);
        let mut idle = connect(&server).await;
        let (read, mut write) = connect(&server).await.into_split();
        let dripping = env.spawn(async move {
            // A client that never stops: only the server ends this.
            for byte in b"GET /".iter().chain(std::iter::repeat(&b'a')) {
                if write.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
                if read.try_read(&mut [0; 64]).is_ok_and(|bytes| bytes == 0) {
                    return;
                }
            }
        });
        dripping.await.unwrap();
        assert!(reported(&server, "herdproof_connections_ended_total{reason=\"slow_head\"} 1"));
        idle.write_all(GET).await.unwrap();
        assert!(answer(&mut idle).await.is_some());
    });
}

#[test]
fn a_silent_connection_and_a_half_sent_head_are_ended() {
    run(async |env| {
        let short = ClientSettings { head_timeout: 100 * MS, idle: 100 * MS, ..ClientSettings::default() };
        let server = echo(&env, &short);
        let mut silent = connect(&server).await;
        assert_eq!(closed(&mut silent).await, "");
        let mut half = connect(&server).await;
        half.write_all(b"GET / HT").await.unwrap();
        assert_eq!(closed(&mut half).await, "");
        for line in ["idle", "slow_head"] {
            assert!(reported(&server, &format!("herdproof_connections_ended_total{{reason=\"{line}\"}} 1")), "{line}");
        }
        server.connections.empty().await;
    });
}

#[test]
fn who_waits_for_its_answer_is_not_idle() {
    run(async |env| {
        let short =
            ClientSettings { head_timeout: 100 * MS, idle: 100 * MS, stall: 100 * MS, ..ClientSettings::default() };
        let go = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&go);
        let server = bind(&short).serve(&env, move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                text("late")
            }
        });
        let mut waits = connect(&server).await;
        waits.write_all(GET).await.unwrap();
        // Patience with others runs out several times meanwhile.
        for _ in 0..3 {
            closed(&mut connect(&server).await).await;
        }
        go.add_permits(1);
        assert!(answer(&mut waits).await.unwrap().ends_with("late"));
    });
}

#[test]
fn who_reads_nothing_of_a_large_answer_is_ended() {
    run(async |env| {
        let short = ClientSettings { stall: 100 * MS, ..ClientSettings::default() };
        let asked = Arc::new(Semaphore::new(0));
        let asks = Arc::clone(&asked);
        let server = bind(&short).serve(&env, move |_, _| {
            asks.add_permits(1);
            async { text(vec![0; 64 << 20]) }
        });
        let mut stream = connect(&server).await;
        stream.write_all(GET).await.unwrap();
        // Before that there is nobody yet, which is not the same as nobody any more.
        asked.acquire().await.unwrap().forget();
        server.connections.empty().await;
        assert!(reported(&server, "herdproof_connections_ended_total{reason=\"slow_reader\"} 1"));
    });
}

#[test]
fn a_body_that_does_not_come_is_ended_and_one_that_we_do_not_want_yet_is_not() {
    run(async |env| {
        let short = ClientSettings { stall: 100 * MS, idle: 100 * MS, ..ClientSettings::default() };
        let go = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&go);
        let server = bind(&short).serve(&env, move |request: Request<Incoming>, client: Client| {
            let gate = Arc::clone(&gate);
            async move {
                if request.uri().path() == "/later" {
                    gate.acquire().await.unwrap().forget();
                }
                let body = client.upload(request.into_body()).collect().await.unwrap();
                text(format!("{} bytes", body.to_bytes().len()))
            }
        });
        let post = |path: &str| format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345");
        let mut later = connect(&server).await;
        later.write_all(post("/later").as_bytes()).await.unwrap();
        let mut never = connect(&server).await;
        never.write_all(post("/").as_bytes()).await.unwrap();
        assert_eq!(closed(&mut never).await, "");
        assert!(reported(&server, "herdproof_connections_ended_total{reason=\"slow_body\"} 1"));
        go.add_permits(1);
        later.write_all(b"67890").await.unwrap();
        assert!(answer(&mut later).await.unwrap().ends_with("10 bytes"));
    });
}

#[test]
fn too_large_a_head_is_answered_with_its_own_status() {
    run(async |env| {
        let server = echo(&env, &ClientSettings { max_head: 8 << 10, ..ClientSettings::default() });
        let field = |length: usize| format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(length));
        let mut stream = connect(&server).await;
        stream.write_all(field(4 << 10).as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.unwrap().starts_with("HTTP/1.1 200"));
        stream.write_all(field(16 << 10).as_bytes()).await.ok();
        assert!(closed(&mut stream).await.starts_with("HTTP/1.1 431"));
        let many = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect::<Vec<_>>().concat();
        let mut stream = connect(&server).await;
        stream.write_all(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await.unwrap();
        assert!(closed(&mut stream).await.starts_with("HTTP/1.1 431"));
    });
}

/// Half of a body whose length nobody is told; then whatever its path says.
struct Half {
    polls: u32,
    path: String,
}

impl Half {
    fn of(request: &Request<Incoming>) -> Response<Half> {
        Response::new(Half { polls: 0, path: request.uri().path().to_owned() })
    }
}

impl Body for Half {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.polls += 1;
        match (self.polls, &*self.path) {
            (1, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"half"))))),
            // So that what there is goes out.
            (2, _) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            (_, "/breaks") => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            (_, "/hangs") => Poll::Pending,
            _ => Poll::Ready(None),
        }
    }
}

#[test]
fn half_an_answer_is_not_taken_for_the_whole_by_a_client_that_knows_no_chunks() {
    run(async |env| {
        let server = bind(&ClientSettings::default()).serve(&env, |request, _| async move { Half::of(&request) });
        let ask = async |path: &str, version: &str| {
            let mut stream = connect(&server).await;
            let head = format!("GET {path} HTTP/{version}\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut seen = Vec::new();
            stream.read_to_end(&mut seen).await.map(|_| String::from_utf8(seen).unwrap())
        };
        for _ in 0..10 {
            assert!(ask("/whole", "1.0").await.unwrap().ends_with("\r\n\r\nhalf"));
            assert_eq!(ask("/breaks", "1.0").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            // Who knows them sees whether the last is there, and has all that came.
            assert!(ask("/whole", "1.1").await.unwrap().ends_with("4\r\nhalf\r\n0\r\n\r\n"));
            assert!(ask("/breaks", "1.1").await.unwrap().ends_with("4\r\nhalf\r\n"));
        }
    });
}

#[test]
fn beyond_the_cap_clients_wait_in_line_and_nobody_is_refused() {
    run(async |env| {
        let server = echo(&env, &ClientSettings { max_connections: 2, ..ClientSettings::default() });
        let mut held = [connect(&server).await, connect(&server).await];
        for stream in &mut held {
            stream.write_all(GET).await.unwrap();
            answer(stream).await.unwrap();
        }
        let mut third = connect(&server).await;
        third.write_all(GET).await.unwrap();
        // Time enough to let it in, if anybody would.
        for _ in 0..100 {
            held[0].write_all(GET).await.unwrap();
            answer(&mut held[0]).await.unwrap();
        }
        assert_eq!(server.connections(), 2);
        drop(held);
        assert!(answer(&mut third).await.is_some());
    });
}

#[test]
fn an_address_beyond_its_share_is_turned_away() {
    run(async |env| {
        let server = echo(&env, &ClientSettings { per_address: Some(1), ..ClientSettings::default() });
        let mut first = connect(&server).await;
        first.write_all(GET).await.unwrap();
        answer(&mut first).await.unwrap();
        assert_eq!(closed(&mut connect(&server).await).await, "");
        assert!(reported(&server, "herdproof_connections_ended_total{reason=\"per_address\"} 1"));
    });
}

#[test]
fn what_is_done_for_a_client_that_leaves_is_dropped() {
    struct Told(Arc<Semaphore>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.add_permits(1);
        }
    }
    run(async |env| {
        let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (b, d) = (Arc::clone(&begun), Arc::clone(&dropped));
        let server = bind(&ClientSettings::default()).serve(&env, move |_, _| {
            let told = Told(Arc::clone(&d));
            b.add_permits(1);
            async move {
                let _told = told;
                pending::<Response<Full<Bytes>>>().await
            }
        });
        let mut stream = connect(&server).await;
        stream.write_all(GET).await.unwrap();
        begun.acquire().await.unwrap().forget();
        drop(stream);
        dropped.acquire().await.unwrap().forget();
        server.connections.empty().await;
    });
}

#[test]
fn a_client_that_closed_its_side_gets_its_answer_where_that_is_wanted() {
    run(async |env| {
        for half_close in [true, false] {
            let go = Arc::new(Semaphore::new(0));
            let gate = Arc::clone(&go);
            let settings = ClientSettings { half_close, ..ClientSettings::default() };
            let server = bind(&settings).serve(&env, move |_, _| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    text("still here")
                }
            });
            let mut stream = connect(&server).await;
            stream.write_all(GET).await.unwrap();
            stream.shutdown().await.unwrap();
            if half_close {
                go.add_permits(1);
            }
            assert_eq!(closed(&mut stream).await.ends_with("still here"), half_close);
        }
    });
}

mod stop {
    use super::*;

    #[test]
    fn what_is_under_way_is_answered_and_told_that_it_was_the_last_time() {
        run(async |env| {
            let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
            let (b, g) = (Arc::clone(&begun), Arc::clone(&go));
            let server = bind(&ClientSettings::default()).serve(&env, move |_, _| {
                b.add_permits(1);
                let gate = Arc::clone(&g);
                async move {
                    gate.acquire().await.unwrap().forget();
                    text("the last")
                }
            });
            let address = server.address();
            let mut idle = connect(&server).await;
            let mut streams = Vec::new();
            for _ in 0..20 {
                let mut stream = connect(&server).await;
                stream.write_all(GET).await.unwrap();
                streams.push(stream);
            }
            begun.acquire_many(20).await.unwrap().forget();
            let stopping = env.spawn(server.stop(LONG));
            // An idle client is closed; by then nobody new gets in, and all who wait still do.
            assert_eq!(closed(&mut idle).await, "");
            assert!(TcpStream::connect(address).await.is_err());
            go.add_permits(20);
            for stream in &mut streams {
                let told = closed(stream).await;
                assert!(told.contains("connection: close\r\n") && told.ends_with("the last"), "{told}");
            }
            assert_eq!(stopping.await.unwrap(), Stopped { cut: 0 });
        });
    }

    /// Clients that ask as fast as they are answered, which lose nothing but their connection, and that only between two
    /// requests or after having been told.
    #[test]
    fn a_crowd_that_keeps_asking_loses_no_answer() {
        run(async |env| {
            let server = echo(&env, &ClientSettings::default());
            let asked = Arc::new(AtomicUsize::new(0));
            let mut clients = Vec::new();
            for _ in 0..50 {
                let (mut stream, asked) = (connect(&server).await, Arc::clone(&asked));
                clients.push(env.spawn(async move {
                    loop {
                        stream.write_all(GET).await.unwrap();
                        asked.fetch_add(1, SeqCst);
                        let told = answer(&mut stream).await.expect("every request has its answer");
                        if told.contains("connection: close\r\n") {
                            return;
                        }
                    }
                }));
            }
            while asked.load(SeqCst) < 1_000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(server.stop(LONG).await, Stopped { cut: 0 });
            for client in clients {
                client.await.unwrap();
            }
        });
    }

    /// They are connected as far as they know, and have asked; closing the listener would reset them.
    #[test]
    fn those_who_wait_in_the_kernels_line_are_served_too() {
        run(async |env| {
            let server = echo(&env, &ClientSettings { max_connections: 1, ..ClientSettings::default() });
            let mut first = connect(&server).await;
            first.write_all(GET).await.unwrap();
            answer(&mut first).await.unwrap();
            let mut line = Vec::new();
            for _ in 0..10 {
                let mut stream = connect(&server).await;
                stream.write_all(GET).await.unwrap();
                line.push(stream);
            }
            let stopping = env.spawn(server.stop(LONG));
            for stream in &mut line {
                assert!(answer(stream).await.unwrap().contains("connection: close\r\n"));
            }
            assert_eq!(stopping.await.unwrap(), Stopped { cut: 0 });
        });
    }

    #[test]
    fn who_is_not_done_in_time_is_cut_off_and_counted() {
        run(async |env| {
            let begun = Arc::new(Semaphore::new(0));
            let b = Arc::clone(&begun);
            let server = bind(&ClientSettings::default()).serve(&env, move |_, _| {
                b.add_permits(1);
                pending::<Response<Full<Bytes>>>()
            });
            let mut stream = connect(&server).await;
            stream.write_all(GET).await.unwrap();
            begun.acquire().await.unwrap().forget();
            assert_eq!(server.stop(10 * MS).await, Stopped { cut: 1 });
            assert_eq!(closed(&mut stream).await, "");
        });
    }

    #[test]
    fn nor_is_half_an_answer_that_a_stop_cuts_off() {
        run(async |env| {
            let server = bind(&ClientSettings::default()).serve(&env, |request, _| async move { Half::of(&request) });
            let mut stream = connect(&server).await;
            stream.write_all(b"GET /hangs HTTP/1.0\r\n\r\n").await.unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"half") {
                assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
            }
            assert_eq!(server.stop(10 * MS).await, Stopped { cut: 1 });
            assert_eq!(stream.read_buf(&mut seen).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn giving_up_on_a_stop_ends_everybody_at_once() {
        run(async |env| {
            let begun = Arc::new(Semaphore::new(0));
            let b = Arc::clone(&begun);
            let server = bind(&ClientSettings::default()).serve(&env, move |_, _| {
                b.add_permits(1);
                pending::<Response<Full<Bytes>>>()
            });
            let mut stream = connect(&server).await;
            stream.write_all(GET).await.unwrap();
            begun.acquire().await.unwrap().forget();
            by(&env, Some(env.now()), server.stop(LONG)).await;
            assert_eq!(closed(&mut stream).await, "");
        });
    }
}

#[test]
fn a_port_that_is_taken_says_so_and_how_to_find_who_has_it() {
    run(async |_| {
        let first = bind(&ClientSettings::default());
        let error = Listener::bind(first.address(), &ClientSettings::default()).unwrap_err();
        let port = first.address().port();
        let says =
            format!("cannot listen on 127.0.0.1:{port}: another program has port {port}; `ss -ltnp 'sport = :{port}'`");
        assert!(error.to_string().starts_with(&says), "{error}");
        let denied =
            CannotListen { place: Listen::Address(([0; 4], 80).into()), error: io::ErrorKind::PermissionDenied.into() };
        assert!(denied.to_string().contains("ports below 1024 need a right"), "{denied}");
        let error = Listener::bind("192.0.2.1:0".parse().unwrap(), &ClientSettings::default()).unwrap_err();
        assert!(error.to_string().ends_with("this machine does not have that address"), "{error}");
    });
}

#[test]
fn what_is_no_http_is_refused() {
    run(async |env| {
        let server = bind(&ClientSettings::default()).serve(&env, |request: Request<Incoming>, _| async move {
            assert_eq!(request.method(), Method::GET);
            let mut response = text("");
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        });
        for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET / HTTP/9.9\r\n\r\n", b"GET  /\x01 HTTP/1.1\r\n\r\n"] {
            let mut stream = connect(&server).await;
            stream.write_all(bytes).await.unwrap();
            let told = closed(&mut stream).await;
            assert!(told.is_empty() || told.starts_with("HTTP/1.1 400"), "{told}");
        }
    });
}

#[test]
fn a_bare_lf_and_a_fragment_are_refused_after_the_requests_before_them_are_answered() {
    let bad = [
        "GET /b HTTP/1.1\nhost: x\r\n\r\n",
        "GET /b HTTP/1.1\r\nhost: x\n\r\n",
        "GET /b HTTP/1.1\r\nhost: x\r\n\n",
        "GET /b HTTP/1.1\nhost: x\n\n",
        "GET /b#c HTTP/1.1\r\nhost: x\r\n\r\n",
    ];
    for (bad, cut) in bad.into_iter().flat_map(|bad| [(bad, 0), (bad, 4), (bad, bad.len() - 1)]) {
        run(async |env| {
            let server = echo(&env, &ClientSettings::default());
            let mut stream = connect(&server).await;
            stream.set_nodelay(true).unwrap();
            for fine in [b"POST /a HTTP/1.1\r\ncontent-length: 2\r\n\r\n#\n", GET] {
                stream.write_all(fine).await.unwrap();
                assert!(answer(&mut stream).await.unwrap().ends_with("\r\n\r\n/a"));
            }
            for piece in [&bad[..cut], &bad[cut..]] {
                stream.write_all(piece.as_bytes()).await.unwrap();
                // Time enough for each to be read by itself.
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
            }
            let told = closed(&mut stream).await;
            assert!(told.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{bad:?} in pieces of {cut}: {told}");
            drop(stream);
            server.connections.empty().await;
            assert!(reported(&server, "herdproof_connections_ended_total{reason=\"unreadable\"} 1"));
        });
    }
}
