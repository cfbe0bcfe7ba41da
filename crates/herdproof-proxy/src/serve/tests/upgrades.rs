//! Connections that leave HTTP: only if the origin says so, only as many as there may be, and gone when either side is.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::world::{Asked, Step, World, answer, bytes, read_answer, run, run_with};
use crate::Settings;

const GRANTED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\nx-a: b\r\n\r\n";
const NEIGHBOUR: [u8; 4] = [127, 0, 0, 9];

fn ask(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n")
}

/// Grants what asks for it, and sends back what comes then.
fn grants(asked: &Asked) -> Vec<Step> {
    if asked.header("upgrade").is_empty() {
        return vec![answer(200, "cache-control: no-store", "plain")];
    }
    vec![bytes(GRANTED), Step::Echo(usize::MAX)]
}

async fn opened(world: &World, from: [u8; 4]) -> TcpStream {
    let mut stream = world.connect_from(from).await;
    stream.write_all(ask("/").as_bytes()).await.unwrap();
    let head = read_answer(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

async fn says(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut told = vec![0; what.len()];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(told, what);
}

fn held(world: &World) -> u32 {
    world.proxy.0.upgrades.stats().held
}

async fn gone(world: &World) {
    world.until(|| held(world) == 0 && world.server.connections() == 0).await;
}

#[test]
fn bytes_go_both_ways_and_neither_a_seat_nor_a_pooled_connection_is_held() {
    run(grants, async |world| {
        let mut stream = world.connect().await;
        stream.write_all(ask("/chat").as_bytes()).await.unwrap();
        let head = read_answer(&mut stream).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        for line in ["connection: upgrade\r\n", "upgrade: websocket\r\n", "x-a: b\r\n"] {
            assert!(head.contains(line), "{head}");
        }
        assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
        // What no head and no line may have.
        says(&mut stream, b"\x81\x05hello\n\0\n#\r\n").await;
        let asked = &world.origin.log()[0];
        assert_eq!((asked.header("connection"), asked.header("upgrade")), ("upgrade", "websocket"));
        assert_eq!(asked.header("x-forwarded-for"), "127.0.0.1");
        world.until(|| world.proxy.0.origin.stats().in_flight == 0).await;
        let stats = world.proxy.0.origin.stats();
        assert_eq!((stats.connections, stats.idle, held(world)), (0, 0, 1));
        // More than all buffers on the way take.
        let (mut read, mut write) = stream.into_split();
        let large = 8 << 20;
        let sending = world.env.spawn(async move {
            write.write_all(&vec![7; large]).await.unwrap();
            write
        });
        let mut told = vec![0; large];
        read.read_exact(&mut told).await.unwrap();
        assert!(told.iter().all(|byte| *byte == 7));
        drop((read, sending.await.unwrap()));
        gone(world).await;
        assert_eq!(world.proxy.0.upgrades.stats().begun, 1);
    });
}

#[test]
fn what_the_origin_does_not_grant_stays_http_and_nothing_is_smuggled() {
    let refuses = |asked: &Asked| match &*asked.target {
        "/" => vec![answer(426, "upgrade: other\r\nconnection: upgrade", "no")],
        _ => vec![answer(200, "cache-control: no-store", "plain")],
    };
    run(refuses, async |world| {
        let mut stream = world.connect().await;
        let forged = "GET /admin HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 6.6.6.6\r\nconnection: close\r\n\r\n";
        stream.write_all(format!("{}{forged}", ask("/")).as_bytes()).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 426 ") && told.contains("HTTP/1.1 200 "), "{told}");
        assert!(!told.contains("upgrade: other"), "{told}");
        let log = world.origin.log();
        assert_eq!(log.len(), 2);
        // It came as a request of its own, with what the proxy says of it.
        assert_eq!((&*log[1].target, log[1].header("x-forwarded-for")), ("/admin", "127.0.0.1"));
        assert!(!log[1].header("via").is_empty());
        gone(world).await;
        assert_eq!((world.origin.connections(), world.proxy.0.upgrades.stats().begun), (1, 0));
    });
}

#[test]
fn http_itself_is_no_protocol_to_upgrade_to() {
    run(grants, async |world| {
        for upgrade in ["h2c", "HTTP/2.0", "TLS/1.0", "other"] {
            let fields = "connection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}upgrade: {upgrade}\r\n\r\n");
            let mut stream = world.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            assert!(read_answer(&mut stream).await.unwrap().ends_with("plain"));
        }
        for asked in world.origin.log() {
            assert_eq!([asked.header("upgrade"), asked.header("http2-settings"), asked.header("connection")], [""; 3]);
        }
    });
}

#[test]
fn a_request_with_a_body_is_not_upgraded() {
    run(grants, async |world| {
        let told = world
            .raw(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close\r\nupgrade: websocket\r\ncontent-length: 2\r\n\r\nhi")
            .await;
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    });
}

#[test]
fn a_101_that_nobody_asked_for_or_to_something_else_is_no_answer() {
    let switches = |asked: &Asked| {
        let protocol = if asked.target == "/bare" { "" } else { "upgrade: other\r\n" };
        vec![bytes(format!("HTTP/1.1 101 Switching Protocols\r\n{protocol}connection: upgrade\r\n\r\nbytes"))]
    };
    run(switches, async |world| {
        let plain = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned();
        for request in [ask("/"), ask("/bare"), plain] {
            let mut stream = world.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let told = read_answer(&mut stream).await.unwrap();
            assert!(told.starts_with("HTTP/1.1 502 ") && !told.contains("bytes"), "{told}");
        }
        assert_eq!(held(world), 0);
    });
}

#[test]
fn what_is_sent_too_early_comes_after_the_grant_or_ends_the_connection() {
    run(grants, async |world| {
        let mut stream = world.connect().await;
        stream.write_all(format!("{}early", ask("/")).as_bytes()).await.unwrap();
        let head = read_until(&mut stream, "early").await;
        assert!(head.ends_with("\r\n\r\nearly"), "{head}");
        // Read as the beginning of a request, it has a byte that is refused: nobody knows what the origin should get of it.
        let mut stream = world.connect().await;
        stream.write_all(format!("{}early\n", ask("/")).as_bytes()).await.unwrap();
        let mut told = Vec::new();
        stream.read_to_end(&mut told).await.ok();
        assert!(!String::from_utf8_lossy(&told).contains("early"));
    });
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).ends_with(end) {
        assert!(stream.read_buf(&mut told).await.unwrap() > 0);
    }
    String::from_utf8(told).unwrap()
}

#[test]
fn who_leaves_takes_the_other_side_along() {
    let breaks = |asked: &Asked| {
        let end = if asked.target == "/reset" { Step::Reset } else { Step::Close };
        vec![bytes(GRANTED), Step::Echo(1), end]
    };
    run(breaks, async |world| {
        for (path, is_error) in [("/close", false), ("/reset", true)] {
            let mut stream = world.connect().await;
            stream.write_all(ask(path).as_bytes()).await.unwrap();
            read_answer(&mut stream).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            let ended = stream.read_to_end(&mut Vec::new()).await;
            assert_eq!(ended.is_err(), is_error, "{path}");
            gone(world).await;
        }
    });
    run(grants, async |world| {
        let mut stream = opened(world, NEIGHBOUR).await;
        says(&mut stream, b"x").await;
        stream.set_zero_linger().unwrap();
        drop(stream);
        gone(world).await;
        // And one that leaves before the origin has said anything.
        assert_eq!(world.proxy.0.origin.stats().in_flight, 0);
    });
}

#[test]
fn one_client_has_half_of_the_upgrades_and_who_finds_none_is_told_when_to_come_back() {
    let few = |settings: &mut Settings| settings.upgrades.most = 4;
    run_with(few, grants, async |world| {
        let mine = [opened(world, NEIGHBOUR).await, opened(world, NEIGHBOUR).await];
        let mut stream = world.connect_from(NEIGHBOUR).await;
        stream.write_all(ask("/").as_bytes()).await.unwrap();
        let told = read_answer(&mut stream).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: "), "{told}");
        // The connection goes on, and so do all other requests.
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert!(read_answer(&mut stream).await.unwrap().ends_with("plain"));
        let other = opened(world, [127, 0, 0, 1]).await;
        assert_eq!((held(world), world.origin.requests()), (3, 4));
        drop((mine, other, stream));
        gone(world).await;
    });
}

#[test]
fn silence_ends_it_and_so_does_a_stop() {
    let impatient = |settings: &mut Settings| settings.upgrades.idle = Duration::from_millis(100);
    run_with(impatient, grants, async |world| {
        let mut stream = opened(world, NEIGHBOUR).await;
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        gone(world).await;
    });
    run(grants, async |world| {
        let listener = crate::Listener::bind(([127, 0, 0, 1], 0).into(), &crate::settings::ClientSettings::default());
        let door = world.proxy.serve_on(&world.env, listener.unwrap());
        let mut streams = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(door.address()).await.unwrap();
            stream.write_all(ask("/").as_bytes()).await.unwrap();
            read_answer(&mut stream).await.unwrap();
            streams.push(stream);
        }
        let stopped = door.stop(Duration::from_secs(2)).await;
        assert_eq!((stopped.cut, held(world)), (0, 0), "they leave by themselves, in time");
        for stream in &mut streams {
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
    });
}

#[test]
fn nothing_is_upgraded_where_no_protocol_is_listed() {
    run_with(
        |settings| settings.upgrades.protocols.clear(),
        grants,
        async |world| {
            let mut stream = world.connect().await;
            stream.write_all(ask("/").as_bytes()).await.unwrap();
            assert!(read_answer(&mut stream).await.unwrap().ends_with("plain"));
        },
    );
}
