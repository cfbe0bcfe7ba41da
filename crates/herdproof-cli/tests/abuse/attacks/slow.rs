//! Clients that take their time: what they hold must not be what others need.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::sleep,
};

use crate::{
    client::{Request, connect, connect_narrow, herd},
    good::{Fared, judge, use_it},
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place, World},
};

/// How often a slow client does something.
const STEP: Duration = Duration::from_millis(100);
/// How long it stays away once it was thrown out.
const AWAY: Duration = Duration::from_secs(2);
/// For what is stored, for bodies on their way, and what a process needs beside them.
const SETTINGS: &str = "[cache]\nmemory = \"64MiB\"\nin_flight = \"16MiB\"\n";
const BUDGET: u64 = 80 * 1024 * 1024;
const SPARE: u64 = 64 * 1000 * 1000;

pub(crate) async fn slow_uploads(context: &Context, place: Place, findings: &mut Findings) {
    let (limit, uploads, misses) = context.pick(("256", 300, 50), ("16", 60, 10));
    let world = context.world(&["--limit", limit]);
    let mut attackers = JoinSet::new();
    for number in 0..uploads {
        attackers.spawn(upload_slowly(world.proxy.at, number));
    }
    sleep(context.pick(Duration::from_secs(3), Duration::from_secs(1))).await;
    let begin = Instant::now();
    let request = |number| Request::get(format!("/shop/page-{number}"));
    let answers = herd(&place.addresses(), world.proxy.at, misses, request).await;
    let took = begin.elapsed().as_secs_f64();
    findings.nobody_failed("", "misses of good users", &Tally::of(&answers));
    if context.is_full() {
        findings.check("", "until the last was answered", format!("{took:.2} s"), "at most 5 s", took <= 5.0);
    }
    let fared = use_it(context, &world, &place.addresses(), context.lasts()).await;
    judge(findings, "afterwards", &fared, 1);
}

/// 600 bytes a second of a body that is small, large, or of unknown length, again and again.
async fn upload_slowly(to: SocketAddr, number: usize) {
    let length = ["content-length: 40000", "content-length: 1000000", "transfer-encoding: chunked"][number % 3];
    let head = format!("POST /upload/sink-{number} HTTP/1.1\r\nhost: shop.example\r\n{length}\r\n\r\n");
    let piece: &[u8] = if number % 3 == 2 { &[b"32\r\n", &[b'x'; 50][..], b"\r\n"].concat() } else { &[b'x'; 60] };
    loop {
        if let Ok(mut stream) = connect(ATTACKER, to).await
            && stream.write_all(head.as_bytes()).await.is_ok()
        {
            while stream.write_all(piece).await.is_ok() {
                sleep(STEP).await;
            }
        }
        sleep(AWAY).await;
    }
}

pub(crate) async fn slow_readers_shared(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.configured(SETTINGS, &[]);
    let fared = beside_readers(context, &world, place, "large").await;
    judge(findings, "", &fared, 1);
    memory(findings, &world);
}

pub(crate) async fn slow_readers_private(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.configured(SETTINGS, &["--limit", "64"]);
    let fared = beside_readers(context, &world, place, "mine").await;
    match place {
        Place::Apart => judge(findings, "", &fared, 1),
        // One address has to share what one address may hold.
        Place::Together => findings.note("", "good users", fared.tally.shown()),
    }
    memory(findings, &world);
}

async fn beside_readers(context: &Context, world: &World, place: Place, what: &'static str) -> Fared {
    let mut attackers = JoinSet::new();
    for number in 0..context.pick(200, 80) {
        attackers.spawn(read_slowly(world.proxy.at, format!("/files/{what}-{number}")));
    }
    sleep(Duration::from_secs(1)).await;
    use_it(context, world, &place.addresses(), context.lasts()).await
}

/// 2 KB a second of a body, again and again.
async fn read_slowly(to: SocketAddr, path: String) {
    let request = Request::get(path).bytes();
    loop {
        if let Ok(mut stream) = connect_narrow(ATTACKER, to).await
            && stream.write_all(&request).await.is_ok()
        {
            let mut piece = [0; 200];
            while stream.read(&mut piece).await.is_ok_and(|read| read > 0) {
                sleep(STEP).await;
            }
        }
        sleep(AWAY).await;
    }
}

fn memory(findings: &mut Findings, world: &World) {
    let what = "most resident memory, MB";
    match world.proxy.peak_memory() {
        Some(peak) => findings.at_most("", what, peak / 1_000_000, (BUDGET + SPARE) / 1_000_000),
        None => findings.note("", what, "not told by this system"),
    }
}

pub(crate) async fn slowloris_heads(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let mut attackers = JoinSet::new();
    for _ in 0..300 {
        attackers.spawn(trickle(world.proxy.at));
    }
    let fared = use_it(context, &world, &place.addresses(), context.lasts()).await;
    judge(findings, "", &fared, 1);
}

/// A head that never ends.
async fn trickle(to: SocketAddr) {
    loop {
        if let Ok(mut stream) = connect(ATTACKER, to).await
            && stream.write_all(b"GET /shop/page-home HTTP/1.1\r\nhost: shop.example\r\nx: ").await.is_ok()
        {
            while stream.write_all(b"x").await.is_ok() {
                sleep(5 * STEP).await;
            }
        }
        sleep(AWAY).await;
    }
}
