//! However large, however many, however slow: memory is bounded, and nobody pays for another.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::world::{Gate, Step, World, answer, bytes, fresh, get, head, run, run_with, with};
use crate::metrics::Page;

const KB: usize = 1 << 10;
const MB: usize = 1 << 20;

fn sized(length: usize) -> Step {
    bytes(head(200, &format!("cache-control: max-age=60\r\ncontent-length: {length}\r\n")))
}

fn chunked() -> Step {
    bytes(head(200, "cache-control: max-age=60\r\ntransfer-encoding: chunked\r\n"))
}

fn chunk(length: usize) -> Step {
    bytes(format!("{length:x}\r\n{}\r\n", "x".repeat(length)))
}

fn filler(length: usize) -> Step {
    Step::Send(Bytes::from(vec![b'x'; length]))
}

#[test]
fn what_is_too_large_to_keep_is_streamed_and_not_kept() {
    run_with(
        |settings| settings.max_object = 100 * KB as u64,
        |_| vec![sized(300 * KB), filler(300 * KB)],
        async |world| {
            for round in 1..=3 {
                let reply = world.ask(get("/")).await;
                assert_eq!((reply.body.len(), reply.whole), (300 * KB, true));
                assert_eq!(world.origin.requests(), round);
            }
            assert_eq!(world.proxy.0.store.stats().entries, 0);
            assert_eq!(world.proxy.0.flights.stats().joins, 0);
            world.until(|| world.proxy.0.memory.bytes() == 0).await;
        },
    );
}

#[test]
fn a_body_of_unknown_length_that_grows_too_large_reaches_those_who_keep_up() {
    let [aboard, more] = [Gate::new(), Gate::new()];
    let hold = (aboard.clone(), more.clone());
    run_with(
        |settings| settings.max_object = 100 * KB as u64,
        move |asked| {
            if asked.number > 1 {
                return vec![chunked(), chunk(5), bytes("0\r\n\r\n")];
            }
            let (aboard, more) = hold.clone();
            let mut steps = vec![Step::Hold(aboard), chunked()];
            for _ in 0..6 {
                steps.extend([Step::Hold(more.clone()), chunk(50 * KB)]);
            }
            steps.extend([Step::Hold(more), bytes("0\r\n\r\n")]);
            steps
        },
        async |world| {
            let herd: Vec<_> = (0..5).map(|_| world.env.spawn(world.begin_later(get("/")))).collect();
            world.aboard(5).await;
            aboard.open();
            let mut readers = Vec::new();
            for reader in herd {
                readers.push(reader.await.unwrap());
            }
            for _ in 0..6 {
                more.let_one();
                for reader in &mut readers {
                    let mut read = 0;
                    while read < 50 * KB {
                        read += reader.next().await.unwrap().unwrap().len();
                    }
                }
                assert!(world.proxy.0.memory.bytes() < 200 * KB as u64);
            }
            // Its beginning is gone: who comes now has to have its own.
            let late = world.ask(get("/")).await;
            assert_eq!((late.body.len(), late.whole), (5, true), "{:?}", late.headers);
            more.let_one();
            for reader in readers {
                let rest = reader.rest().await;
                assert_eq!((rest.body.len(), rest.whole), (0, true));
            }
            world.settled().await;
        },
    );
}

/// Less than what is told at a time may be all that fits.
#[test]
fn where_hardly_anything_may_be_kept_a_body_still_arrives() {
    run_with(
        |settings| settings.max_object = 10 * KB as u64,
        |_| {
            let mut steps = vec![chunked()];
            steps.extend((0..40).map(|_| chunk(5 * KB)));
            steps.push(bytes("0\r\n\r\n"));
            steps
        },
        async |world| {
            let reply = world.ask(get("/")).await;
            assert_eq!((reply.body.len(), reply.whole), (200 * KB, true));
        },
    );
}

#[test]
fn a_variant_whose_beginning_is_gone_is_not_served() {
    let more = Gate::new();
    let hold = more.clone();
    run_with(
        |settings| settings.max_object = 100 * KB as u64,
        move |asked| {
            let head = bytes(head(200, "cache-control: max-age=60\r\nvary: x-v\r\ntransfer-encoding: chunked\r\n"));
            if asked.number > 1 {
                return vec![head, chunk(5), bytes("0\r\n\r\n")];
            }
            let more = Step::Hold(hold.clone());
            vec![head, chunk(90 * KB), more.clone(), chunk(90 * KB), chunk(90 * KB), more, bytes("0\r\n\r\n")]
        },
        async |world| {
            let mut first = world.begin(get("/")).await;
            let mut read = 0;
            while read < 90 * KB {
                read += first.next().await.unwrap().unwrap().len();
            }
            more.let_one();
            while read < 270 * KB {
                read += first.next().await.unwrap().unwrap().len();
            }
            let late = world.ask(get("/")).await;
            assert_eq!((late.body.len(), late.whole), (5, true), "{:?}", late.headers);
            more.open();
            assert!(first.rest().await.whole);
        },
    );
}

/// A request from this address, whose answer is not read.
async fn stall(world: &World, address: [u8; 4], path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.bind((address, 0).into()).unwrap();
    let mut stream = socket.connect(world.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// How many were ended, for want of memory.
fn ended(world: &World) -> u64 {
    let mut page = Page::default();
    world.server.report()(&mut page);
    let line = "herdproof_connections_ended_total{reason=\"slow_reader_memory\"} ";
    page.text().lines().find_map(|count| count.strip_prefix(line)).unwrap().parse().unwrap()
}

/// Each has a body of its own, more than the kernel takes.
fn slow_readers_hold_no_more_than_the_budget(control: &'static str) {
    const SIZE: usize = 4 * MB - KB;
    const BUDGET: u64 = 16 * MB as u64;
    run_with(
        |settings| (settings.memory, settings.in_flight) = (64 * MB as u64, BUDGET),
        move |asked| match &*asked.target {
            "/good" => vec![sized(MB), filler(MB)],
            _ => {
                let head = head(200, &format!("cache-control: {control}\r\ncontent-length: {SIZE}\r\n"));
                vec![bytes(head), filler(SIZE)]
            }
        },
        async |world| {
            let memory = &world.proxy.0.memory;
            let mut slow = Vec::new();
            for number in 0..28 {
                let good = world.ask(get("/good")).await;
                assert_eq!((good.body.len(), good.whole), (MB, true));
                slow.push(stall(world, [127, 0, 0, 2], &format!("/{number}")).await);
                world.origin.asked(number + 2).await;
                world.until(|| memory.bytes() <= BUDGET + 3 * SIZE as u64).await;
            }
            assert_eq!(world.origin.requests(), 29, "what is shared is kept");
            drop(slow);
            world.until(|| memory.bytes() == 0).await;
        },
    );
}

#[test]
fn slow_readers_of_bodies_of_their_own_hold_no_more_than_the_budget() {
    slow_readers_hold_no_more_than_the_budget("max-age=60");
}

#[test]
fn slow_readers_of_private_bodies_hold_no_more_than_the_budget() {
    slow_readers_hold_no_more_than_the_budget("private");
}

#[test]
fn who_is_ended_for_its_memory_sees_no_clean_end_and_others_lose_nothing() {
    const SIZE: usize = 4 * MB;
    const HALF: usize = 512 * KB;
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| (settings.memory, settings.in_flight) = (16 * MB as u64, 8 * MB as u64),
        move |asked| {
            let mut steps = vec![chunked()];
            match &*asked.target {
                "/shared" => steps.extend([chunk(HALF), Step::Hold(hold.clone()), chunk(HALF)]),
                _ => steps.extend((0..64).map(|_| chunk(SIZE / 64))),
            }
            steps.push(bytes("0\r\n\r\n"));
            steps
        },
        async |world| {
            let mut good = world.begin(get("/shared")).await;
            let mut read = 0;
            while read < HALF {
                read += good.next().await.unwrap().unwrap().len();
            }
            let mut slow = vec![stall(world, [127, 0, 0, 2], "/shared").await];
            // Each holds what the kernel does not take: in the end more than the budget, however little is kept of a body.
            for number in 0.. {
                slow.push(stall(world, [127, 0, 0, 2], &format!("/{number}")).await);
                world.origin.asked(number + 2).await;
                if ended(world) >= 5 {
                    break;
                }
            }
            gate.open();
            let rest = good.rest().await;
            assert_eq!((read + rest.body.len(), rest.whole), (2 * HALF, true));
            let mut broken = 0;
            for mut stream in slow {
                let mut read = Vec::new();
                let ended = stream.read_to_end(&mut read).await;
                broken += u64::from(ended.is_err() || !read.ends_with(b"0\r\n\r\n"));
            }
            assert!(broken >= ended(world), "{broken}");
        },
    );
}

#[test]
fn while_memory_is_short_a_herd_is_still_one_request() {
    let [large, herd] = [Gate::new(), Gate::new()];
    let hold = (large.clone(), herd.clone());
    run_with(
        |settings| {
            settings.in_flight = 100 * KB as u64;
            settings.rules.grace = Duration::from_secs(600);
        },
        move |asked| match &*asked.target {
            _ if asked.number == 1 => vec![answer(200, "cache-control: max-age=1\nage: 1", "small")],
            "/large" => vec![sized(110 * KB), filler(105 * KB), Step::Hold(hold.0.clone()), filler(5 * KB)],
            path => vec![Step::Hold(hold.1.clone()), fresh(path)],
        },
        async |world| {
            // A refresh, which nobody can be ended for.
            world.ask(get("/large")).await.is(200, "small");
            world.settled().await;
            world.ask(get("/large")).await.is(200, "small");
            world.until(|| world.proxy.0.memory.is_short()).await;
            let replies = world.herd(20, |_| get("/small"));
            world.aboard(22).await;
            herd.open();
            for reply in replies.replies().await {
                reply.is(200, "/small");
            }
            assert!(world.proxy.0.memory.is_short());
            assert_eq!(world.origin.requests(), 3);
            large.open();
            world.until(|| world.proxy.0.memory.bytes() == 0).await;
        },
    );
}

#[test]
fn downloads_that_were_left_half_way_do_not_fill_the_memory_of_others() {
    let large = Gate::new();
    let hold = large.clone();
    run_with(
        |settings| settings.in_flight = 100 * KB as u64,
        move |_| vec![sized(110 * KB), filler(80 * KB), Step::Hold(hold.clone()), filler(30 * KB)],
        async |world| {
            for number in 0..3 {
                let reader = world.begin(get(&format!("/{number}"))).await;
                world.until(|| world.proxy.0.memory.bytes() >= 80 * KB as u64).await;
                drop(reader);
                world.until(|| world.proxy.0.memory.bytes() == 0).await;
            }
            large.open();
        },
    );
}

#[test]
fn one_who_does_not_read_slows_nobody() {
    const SIZE: usize = 12 * MB;
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| vec![Step::Hold(hold.clone()), sized(SIZE), filler(SIZE)],
        async |world| {
            let mut slow = world.connect().await;
            slow.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
            world.origin.asked(1).await;
            let herd = world.herd(20, |_| get("/"));
            world.aboard(21).await;
            gate.open();
            for reply in herd.replies().await {
                assert_eq!((reply.body.len(), reply.whole), (SIZE, true));
            }
            world.settled().await;
            assert!(world.ask(get("/")).await.cache().ends_with("hit"));
            // And loses nothing.
            let mut read = Vec::new();
            slow.read_to_end(&mut read).await.unwrap();
            assert!(read.ends_with(b"xxxx") && read.len() > SIZE);
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

/// The limit is on what the origin has to do, and it has done it.
#[test]
fn one_who_does_not_read_a_private_answer_holds_no_seat_for_it() {
    run(
        |asked| {
            let size: usize = asked.target.trim_start_matches('/').parse().unwrap();
            let head = head(200, &format!("cache-control: private\r\ncontent-length: {size}\r\n"));
            vec![bytes(head), filler(size)]
        },
        async |world| {
            let reads = Gate::new();
            let door = world.unread(&reads);
            let seats = || world.proxy.0.origin.seats().0;
            let small: Vec<_> = (0..20).map(|_| world.ask_at(&door, get("/200000"))).collect();
            world.origin.asked(20).await;
            world.until(|| seats() == 0 && world.proxy.0.memory.bytes() > 20 * 200_000).await;
            let large = world.ask_at(&door, get("/1000000"));
            world.until(|| world.proxy.0.memory.bytes() > 21 * 200_000).await;
            assert_eq!(seats(), 1, "and no more is read ahead of it than may be");
            assert!(world.proxy.0.memory.bytes() < 20 * 201_000 + 600_000);
            reads.open();
            for reply in small {
                let reply = reply.await.unwrap();
                assert_eq!((reply.body.len(), reply.whole), (200_000, true));
            }
            let large = large.await.unwrap();
            assert_eq!((large.body.len(), large.whole), (1_000_000, true));
            world.until(|| seats() == 0 && world.proxy.0.memory.bytes() == 0).await;
        },
    );
}

#[test]
fn one_who_leaves_while_its_private_answer_pauses_gives_its_seat_back() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| {
            let head = head(200, "cache-control: private\r\ntransfer-encoding: chunked\r\n");
            vec![bytes(head), chunk(10), Step::Hold(hold.clone()), bytes("0\r\n\r\n")]
        },
        async |world| {
            let mut reader = world.begin(get("/")).await;
            assert!(reader.next().await.unwrap().is_ok());
            assert_eq!(world.proxy.0.origin.seats().0, 1);
            drop(reader);
            world.until(|| world.proxy.0.origin.seats().0 == 0).await;
        },
    );
}

#[test]
fn a_large_body_that_pauses_after_its_head_is_not_given_up() {
    const SIZE: usize = 3 * MB;
    let [aboard, gate] = [Gate::new(), Gate::new()];
    let hold = (aboard.clone(), gate.clone());
    run(
        move |_| {
            let (aboard, gate) = hold.clone();
            vec![Step::Hold(aboard), sized(SIZE), Step::Hold(gate), filler(SIZE)]
        },
        async |world| {
            for _ in 0..10 {
                let path = format!("/{}", world.origin.requests());
                let before = world.proxy.0.flights.stats();
                let herd: Vec<_> = (0..4).map(|_| world.env.spawn(world.begin_later(get(&path)))).collect();
                world.aboard(usize::try_from(before.flights + before.joins).unwrap() + 4).await;
                aboard.let_one();
                let mut readers = Vec::new();
                for reader in herd {
                    readers.push(reader.await.unwrap());
                }
                gate.let_one();
                for reader in readers {
                    let reply = reader.rest().await;
                    assert_eq!((reply.body.len(), reply.whole), (SIZE, true));
                }
            }
        },
    );
}

#[test]
fn an_endless_body_that_nobody_reads_any_more_is_ended() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| {
            let head = head(200, "cache-control: max-age=0\r\ntransfer-encoding: chunked\r\n");
            let mut steps = vec![bytes(head)];
            for _ in 0..10_000 {
                steps.extend([chunk(10), Step::Hold(hold.clone())]);
            }
            steps
        },
        async |world| {
            let mut reader = world.begin(get("/")).await;
            assert!(reader.next().await.unwrap().is_ok());
            drop(reader);
            world.until(|| world.server.connections() == 0).await;
            while world.proxy.0.origin.stats().in_flight > 0 {
                gate.let_one();
                world.env.sleep(std::time::Duration::from_millis(10)).await;
            }
        },
    );
}

#[test]
fn random_queries_do_not_grow_what_is_kept_beyond_its_measure() {
    run_with(
        |settings| settings.memory = MB as u64,
        |asked| vec![fresh(&format!("{}{}", asked.target, "x".repeat(8 * KB)))],
        async |world| {
            for round in 0..4 {
                for reply in world.herd(100, |number| get(&format!("/?{round}-{number}"))).replies().await {
                    assert_eq!(reply.status, 200);
                }
            }
            world.settled().await;
            let stats = world.proxy.0.store.stats();
            assert!(stats.weight <= MB as u64 && stats.evictions > 0, "{stats:?}");
            world.until(|| world.proxy.0.memory.bytes() == 0).await;
        },
    );
}

/// Somebody invents values of a field that answers vary on. Those who do not still share, whoever came first.
#[test]
fn invented_variants_take_no_room_from_real_ones() {
    run(
        |asked| {
            let agent = asked.header("user-agent");
            vec![super::world::answer(200, "cache-control: max-age=60\nvary: user-agent", agent)]
        },
        async |world| {
            let ask = async |agent: &str| {
                let reply = world.ask(with("/", &[("user-agent", agent)])).await;
                reply.is(200, agent);
                world.settled().await;
                reply.cache().ends_with("hit")
            };
            assert!(!ask("early").await);
            for number in 0..200 {
                assert!(!ask(&format!("invented-{number}")).await);
                assert!(number % 50 > 0 || ask("early").await, "{number}");
            }
            assert!(!ask("late").await && ask("late").await && ask("early").await);
            assert!(world.proxy.0.store.stats().entries <= 65, "one URL has no more than may be");
        },
    );
}
