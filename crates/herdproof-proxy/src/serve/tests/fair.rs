//! Seats at the origin, when one client wants them all. Clients are told apart by loopback addresses.

use std::net::Ipv4Addr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::world::{Asked, Gate, Step, World, answer, fresh, run_with};

/// A request from 127.0.0.`client`, over a connection of its own, which is closed after the answer.
async fn send(world: &World, client: u8, method: &str, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, client), 0).into()).unwrap();
    let mut stream = socket.connect(world.address()).await.unwrap();
    let length = if method == "POST" { "content-length: 0\r\n" } else { "" };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{length}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn told(mut stream: TcpStream) -> String {
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    told
}

/// An origin that takes its time for what begins with `/slow`.
fn slow(gate: &Gate) -> impl Fn(&Asked) -> Vec<Step> + Send + Sync + use<> {
    let gate = gate.clone();
    move |asked| {
        if asked.target.starts_with("/slow") {
            vec![Step::Hold(gate.clone()), fresh("slow")]
        } else {
            vec![fresh("quick")]
        }
    }
}

/// One client has as many connections to what is slow, and as many of them are at the origin as may be.
async fn flood(world: &World, connections: usize) -> Vec<TcpStream> {
    let mut flood = Vec::new();
    for n in 0..connections {
        flood.push(send(world, 2, "GET", &format!("/slow/{n}")).await);
    }
    world
        .until(|| {
            let stats = world.proxy.0.origin.stats();
            stats.in_flight == 52 && stats.waiting as usize == connections - 52
        })
        .await;
    flood
}

#[test]
fn three_hundred_connections_of_one_client_fail_nobody_else() {
    let gate = Gate::new();
    run_with(
        |settings| settings.origin.limit = 64,
        slow(&gate),
        async |world| {
            let flood = flood(world, 300).await;
            for client in 3..23 {
                for n in 0..3 {
                    let said = told(send(world, client, "GET", &format!("/good/{client}/{n}")).await).await;
                    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("quick"), "{said}");
                }
            }
            assert_eq!(world.origin.requests(), 52 + 60);
            gate.open();
            drop(flood);
        },
    );
}

#[test]
fn a_page_that_a_greedy_client_asked_for_first_does_not_wait_in_its_line() {
    let gate = Gate::new();
    run_with(
        |settings| settings.origin.limit = 64,
        slow(&gate),
        async |world| {
            let flood = flood(world, 200).await;
            let first = send(world, 2, "GET", "/popular").await;
            world.until(|| world.proxy.0.origin.stats().waiting == 149).await;
            let said = told(send(world, 3, "GET", "/popular").await).await;
            assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("quick"), "{said}");
            assert!(told(first).await.starts_with("HTTP/1.1 200"), "who asked first has it too");
            assert_eq!(world.origin.log().iter().filter(|asked| asked.target == "/popular").count(), 1);
            gate.open();
            drop(flood);
        },
    );
}

#[test]
fn clients_that_send_and_leave_never_give_the_origin_more_than_its_limit() {
    let gate = Gate::new();
    let work = gate.clone();
    run_with(
        |settings| settings.origin.limit = 64,
        move |_| vec![Step::Work(work.clone()), answer(200, "", "done")],
        async |world| {
            let stats = || world.proxy.0.origin.stats();
            for _ in 0..6 {
                let before = stats().in_flight;
                let mut clients = Vec::new();
                for n in 0..100 {
                    clients.push(send(world, 2 + n % 2, "POST", "/").await);
                }
                world.until(|| stats().in_flight + stats().waiting == before + 100).await;
                drop(clients);
                world.until(|| stats().waiting == 0).await;
                let there = stats().in_flight;
                assert!(there > 50, "{there} are still at the origin, though everybody has left");
                (0..25).for_each(|_| gate.let_one());
                world.until(|| stats().in_flight == there - 25).await;
            }
            assert!(world.origin.peak() <= 64, "{} at a time", world.origin.peak());
            assert!(world.origin.requests() > 150, "{} requests", world.origin.requests());
            gate.open();
        },
    );
}
