//! Many requests: seats, memory and variants are for everybody.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::sleep,
};

use crate::{
    client::{Request, ask, connect, herd},
    good::{beside, judge, paced, spam, use_it},
    origin::{LARGE, Origin},
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place},
};

pub(crate) async fn cancel_spam(context: &Context, place: Place, findings: &mut Findings) {
    let (limit, attackers) = context.pick((64, 100), (16, 40));
    let world = context.world(&["--limit", &limit.to_string()]);
    let number = Arc::new(AtomicUsize::new(0));
    let mut cancelling = JoinSet::new();
    for _ in 0..attackers {
        cancelling.spawn(cancel(world.proxy.at, Arc::clone(&number)));
    }
    let fared = use_it(context, &world, &place.addresses(), context.lasts()).await;
    cancelling.shutdown().await;
    findings.at_most("", "most requests at the origin at a time", world.origin.peak(), limit);
    match place {
        Place::Apart => judge(findings, "", &fared, 1),
        // One address has to share what one address may hold.
        Place::Together => findings.note("", "good users", fared.tally.shown()),
    }
}

/// Asks for something slow and leaves, again and again.
async fn cancel(to: SocketAddr, number: Arc<AtomicUsize>) {
    loop {
        let number = number.fetch_add(1, Relaxed);
        let path = format!("/reports/hold-{number}");
        let request = match number % 3 {
            0 => Request::get(path),
            1 => Request::get(path).with("authorization", "Basic eDp5"),
            _ => Request::new("POST", path).body("x"),
        };
        if let Ok(mut stream) = connect(ATTACKER, to).await {
            stream.write_all(&request.bytes()).await.ok();
            sleep(Duration::from_millis(100)).await;
        }
    }
}

pub(crate) async fn compress_flood(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.configured("[[route]]\nprefix = \"/\"\ncompress = [\"gzip\"]\n", &[]);
    let codings = ["gzip", "gzip, deflate, br, zstd", "*", "br;q=0.1, gzip"];
    let large = |number: usize| {
        Request::get(format!("/shop/text-{number}?{number}")).with("accept-encoding", codings[number % codings.len()])
    };
    let (lasts, addresses) = (context.lasts(), place.addresses());
    let good = use_it(context, &world, &addresses, lasts);
    let (_, fared) = tokio::join!(spam(&world, 50.0, lasts, large), good);
    judge(findings, "", &fared, 1);
    let from = addresses[0];
    for coding in codings {
        ask(from, world.proxy.at, &Request::get("/shop/text-once").with("accept-encoding", coding)).await;
    }
    findings.at_most(
        "",
        "origin requests for one page, asked for in four ways",
        world.origin.asked_for("/shop/text-once"),
        1,
    );
    let own = Request::get("/account/private-orders").with("accept-encoding", "gzip").with("cookie", "user=ann");
    let head = ask(from, world.proxy.at, &own).await.head;
    let is_plain = !head.to_ascii_lowercase().contains("content-encoding");
    findings.check(
        "",
        "a page for one client",
        if is_plain { "as it came" } else { "compressed" },
        "as it came",
        is_plain,
    );
}

pub(crate) async fn upgrade_flood(context: &Context, place: Place, findings: &mut Findings) {
    let (most, attackers) = context.pick((400, 600), (40, 60));
    let world = context.configured(&format!("[upgrades]\nmost = {most}\n"), &["--limit", "16"]);
    let open = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for number in 0..attackers {
        flood.spawn(hold_socket(world.proxy.at, number, Arc::clone(&open)));
    }
    let (lasts, addresses) = (context.lasts(), place.addresses());
    let good = use_it(context, &world, &addresses, lasts);
    let sockets = async {
        sleep(lasts / 2).await;
        let mut granted = 0;
        for from in &addresses[..10] {
            granted += usize::from(open_socket(*from, world.proxy.at).await.is_some());
        }
        (granted, open.load(Relaxed))
    };
    let (fared, (granted, held)) = tokio::join!(good, sockets);
    flood.shutdown().await;
    judge(findings, "", &fared, 1);
    findings.check("", "WebSockets of ten good users", granted, "10", granted == 10);
    findings.at_most("", "upgraded connections of the attacker", held, most / 2);
}

/// A connection that speaks another protocol, if that is granted.
async fn open_socket(from: Ipv4Addr, to: SocketAddr) -> Option<TcpStream> {
    let mut stream = connect(from, to).await.ok()?;
    let request =
        "GET /live/socket HTTP/1.1\r\nhost: shop.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    head.starts_with(b"HTTP/1.1 101 ").then_some(stream)
}

/// Holds one for as long as it may, silent or talking, and asks for another when it is refused or ended.
async fn hold_socket(to: SocketAddr, number: usize, open: Arc<AtomicUsize>) {
    loop {
        if let Some(mut stream) = open_socket(ATTACKER, to).await {
            open.fetch_add(1, Relaxed);
            let mut bytes = [0; 4096];
            while number.is_multiple_of(2) && stream.write_all(&bytes).await.is_ok() {
                if stream.read(&mut bytes).await.unwrap_or(0) == 0 {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
            // Until it is ended.
            while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
            open.fetch_sub(1, Relaxed);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) async fn connection_flood_300(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let number = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..300 {
        let (to, number) = (world.proxy.at, Arc::clone(&number));
        flood.spawn(async move {
            loop {
                let number = number.fetch_add(1, Relaxed);
                let answer = ask(ATTACKER, to, &Request::get(format!("/reports/slow-{number}"))).await;
                // A refusal comes at once; no more than 50 a second are sent all together.
                if !answer.is_ok() {
                    sleep(Duration::from_secs(6)).await;
                }
            }
        });
    }
    sleep(Duration::from_millis(500)).await;
    let fared = use_it(context, &world, &place.addresses(), context.lasts()).await;
    flood.shutdown().await;
    findings.at_most("", "most requests at the origin at a time", world.origin.peak(), 256);
    match place {
        Place::Apart => judge(findings, "", &fared, 1),
        Place::Together => findings.note("", "good users", fared.tally.shown()),
    }
}

pub(crate) async fn cache_busting(context: &Context, place: Place, findings: &mut Findings) {
    let unique = |number| Request::get(format!("/shop/page-home?{number}"));
    beside(findings, context, place, ("", 50.0), 1, unique).await;
}

pub(crate) async fn vary_explosion(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let path = "/shop/agents-home";
    let unique = |number: usize| Request::get(path).with("user-agent", &format!("evil/{number}"));
    let addresses = place.addresses();
    let good = use_it(context, &world, &addresses, context.lasts());
    let (_, fared) = tokio::join!(spam(&world, 50.0, context.lasts(), unique), good);
    judge(findings, "", &fared, 1);
    let browsers = |_| Request::get(path).with("user-agent", "browser/1");
    let answers = herd(&addresses, world.proxy.at, context.herd(), browsers).await;
    findings.nobody_failed("", "herd of one variant", &Tally::of(&answers));
    let asked = world.origin.count(|seen| seen.field("user-agent") == Some("browser/1"));
    findings.at_most("", "origin requests for a herd of one variant", asked, 1);
}

pub(crate) async fn range_abuse(context: &Context, place: Place, findings: &mut Findings) {
    let ranges = vec!["0-"; 500].join(",");
    let tiny = (0..500).map(|at| format!("{at}-{at}")).collect::<Vec<_>>().join(",");
    let world = context.world(&[]);
    for (case, ranges) in [("overlapping", &ranges), ("tiny", &tiny)] {
        let request = Request::get("/files/large-1").with("range", &format!("bytes={ranges}"));
        let answer = ask(ATTACKER, world.proxy.at, &request).await;
        findings.at_most(case, "bytes for a body of 4 MB", answer.body.len(), LARGE + 1024);
    }
    let abuse = |number: usize| {
        let ranges = if number.is_multiple_of(2) { &ranges } else { &tiny };
        Request::get("/shop/page-home").with("range", &format!("bytes={ranges}"))
    };
    beside(findings, context, place, ("", 50.0), 1, abuse).await;
}

pub(crate) async fn shedding_origin(context: &Context, _: Place, findings: &mut Findings) {
    let capacity = 10;
    let learning = context.pick(Duration::from_secs(3), Duration::from_millis(500));
    let judged = 2 * learning;
    let bears = rate_of_capacity(capacity, learning).await;
    for clients in [2, 200] {
        let world = context.world(&[]);
        world.origin.bears(capacity);
        let from: Vec<Ipv4Addr> = Place::Apart.addresses().into_iter().take(clients).collect();
        let to = world.proxy.at;
        let begin = Instant::now();
        let answers = paced(2.0 * bears, learning + judged, |number| {
            let from = from[number % from.len()];
            async move { ask(from, to, &Request::get(format!("/jobs/shed-{number}"))).await }
        })
        .await;
        // What it does at first, before it knows the origin, is not what it comes to.
        let window = begin + learning..begin + learning + judged;
        let good = answers.iter().filter(|answer| answer.is_ok() && window.contains(&answer.at)).count();
        let share = good as f64 / (bears * judged.as_secs_f64());
        let (case, what) = (format!("{clients} client addresses"), "goodput, as a share of the capacity");
        if context.is_full() {
            findings.check(&case, what, format!("{share:.2}"), "at least 0.9", share >= 0.9);
        } else {
            findings.note(&case, what, format!("{share:.2}"));
        }
    }
}

/// How many requests in a second the shedding origin answers at most, as measured here and now.
async fn rate_of_capacity(capacity: usize, lasts: Duration) -> f64 {
    let origin = Origin::start();
    let begin = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..capacity {
        let to = origin.address;
        workers.spawn(async move {
            let mut done = 0;
            while begin.elapsed() < lasts {
                done += u32::from(ask(ATTACKER, to, &Request::get("/jobs/shed-0")).await.is_ok());
            }
            done
        });
    }
    let done: u32 = workers.join_all().await.into_iter().sum();
    f64::from(done) / begin.elapsed().as_secs_f64()
}
