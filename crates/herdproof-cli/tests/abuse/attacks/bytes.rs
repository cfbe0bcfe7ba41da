//! Bytes that two parsers could read in two ways, and what the proxy says to them.

use std::{net::TcpListener, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    client::{Answer, Request, ask, raw},
    good::{judge, paced, use_it},
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place, Proxy, World},
};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: shop.example\r\n\r\n";

/// Whether the client is told that its request is at fault, or not answered at all.
fn is_refused(answer: &Answer) -> bool {
    answer.status.map_or(true, |status| (400..500).contains(&status) || matches!(status, 501 | 505))
}

/// Sends all of them at once, each on a connection of its own.
async fn send_all(world: &World, cases: Vec<(&'static str, Vec<u8>)>) -> Vec<(&'static str, Answer)> {
    let mut sending = JoinSet::new();
    for (name, bytes) in cases {
        let to = world.proxy.at;
        sending.spawn(async move { (name, raw(ATTACKER, to, &bytes).await) });
    }
    sending.join_all().await
}

pub(crate) async fn request_framing(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let post =
        |fields: &str, body: &str| format!("POST /x HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n{body}").into_bytes();
    let get = |line: &str, fields: &str| format!("{line}\r\nhost: shop.example\r\n{fields}\r\n").into_bytes();
    let chunked = "transfer-encoding: chunked\r\n";
    let hidden = format!("0\r\n\r\n{SMUGGLED}");
    // These may be answered as chunked too, if nothing after them is (RFC 9112, 6.3).
    let both = vec![
        ("length and chunked", post(&format!("content-length: 6\r\n{chunked}"), &hidden)),
        ("chunked and length", post(&format!("{chunked}content-length: 6\r\n"), &hidden)),
    ];
    // Of these the first is answered, and the second refused.
    let after = [post("content-length: 1\r\n", "\n"), b"GET /smuggled HTTP/1.1\nhost: shop.example\n\n".to_vec()];
    for (name, answer) in send_all(&world, vec![("bare LF after a body", after.concat())]).await {
        let is_met = answer.text().contains("HTTP/1.1 400 ");
        findings.check(name, "second answer", if is_met { "400" } else { "another" }, "400", is_met);
    }
    for (name, answer) in send_all(&world, both).await {
        let answers = answer.text().matches("HTTP/1.1 ").count() + usize::from(!answer.head.is_empty());
        findings.at_most(name, "answers on the connection", answers, 1);
    }
    let cases = vec![
        ("two lengths", post("content-length: 0\r\ncontent-length: 50\r\n", SMUGGLED)),
        ("a list of lengths", post("content-length: 0, 50\r\n", SMUGGLED)),
        ("length +0", post("content-length: +0\r\n", SMUGGLED)),
        ("length -1", post("content-length: -1\r\n", SMUGGLED)),
        ("length 0x0", post("content-length: 0x0\r\n", SMUGGLED)),
        ("length beyond 64 bits", post("content-length: 18446744073709551616\r\n", SMUGGLED)),
        ("space before the colon", post("transfer-encoding : chunked\r\n", &hidden)),
        ("vertical tab before chunked", post("transfer-encoding: \u{b}chunked\r\n", &hidden)),
        ("xchunked", post("transfer-encoding: xchunked\r\n", &hidden)),
        ("chunked, identity", post("transfer-encoding: chunked, identity\r\n", &hidden)),
        ("gzip, chunked", post("transfer-encoding: gzip, chunked\r\n", &hidden)),
        ("chunked, chunked", post("transfer-encoding: chunked, chunked\r\n", &hidden)),
        ("chunked twice", post("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", &hidden)),
        ("folded transfer-encoding", post("transfer-encoding:\r\n chunked\r\n", &hidden)),
        (
            "HTTP/1.0 with chunked",
            b"POST /x HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        ),
        ("LF in a field", get("GET /x HTTP/1.1", "x: a\nGET /smuggled HTTP/1.1\r\nconnection: close\r\n")),
        ("CR in a field", get("GET /x HTTP/1.1", "x: a\rb\r\nconnection: close\r\n")),
        ("NUL in a field", get("GET /x HTTP/1.1", "x: a\0b\r\nconnection: close\r\n")),
        ("folded field", get("GET /x HTTP/1.1", "x: a\r\n b\r\nconnection: close\r\n")),
        ("field without a colon", get("GET /x HTTP/1.1", "nothing\r\nconnection: close\r\n")),
        ("space in a name", get("GET /x HTTP/1.1", "a b: c\r\nconnection: close\r\n")),
        ("no host", b"GET /x HTTP/1.1\r\nconnection: close\r\n\r\n".to_vec()),
        ("two hosts", get("GET /x HTTP/1.1", "host: evil.example\r\nconnection: close\r\n")),
        ("first field indented", b"GET /x HTTP/1.1\r\n host: x\r\nconnection: close\r\n\r\n".to_vec()),
        ("chunk size beyond 64 bits", post(chunked, "fffffffffffffffff\r\nx")),
        ("chunk size -1", post(chunked, "-1\r\nx\r\n0\r\n\r\n")),
        ("chunk size 0x1", post(chunked, "0x1\r\nx\r\n0\r\n\r\n")),
        ("chunk size of nothing", post(chunked, "\r\nx\r\n0\r\n\r\n")),
        ("chunk longer than it says", post(chunked, "1\r\nxyz\r\n0\r\n\r\n")),
        ("LF in a chunk extension", post(chunked, "1;a\nb\r\nx\r\n0\r\n\r\n")),
        ("bare LF after a chunk size", post(chunked, "1\nx\r\n0\r\n\r\n")),
        ("bare LF", b"GET /x HTTP/1.1\nhost: shop.example\nconnection: close\n\nGET /smuggled HTTP/1.1\n\n".to_vec()),
        ("bare LF at the end of a head", b"GET /x HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\n".to_vec()),
        ("two spaces", get("GET  /x HTTP/1.1", "connection: close\r\n")),
        ("HTTP/3.7", get("GET /x HTTP/3.7", "connection: close\r\n")),
        ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("a head of 100 KB", get("GET /x HTTP/1.1", &format!("x: {}\r\n", "x".repeat(100_000)))),
        ("2,000 fields", get("GET /x HTTP/1.1", &"x: y\r\n".repeat(2000))),
    ];
    let sent = cases.len();
    let answers = send_all(&world, cases).await;
    let refused = answers.iter().filter(|(_, answer)| is_refused(answer)).count();
    findings.check("", "refused as the client's fault", format!("{refused} of {sent}"), "all", refused == sent);
    for (name, answer) in answers.iter().filter(|(_, answer)| !is_refused(answer)) {
        findings.check(name, "answer", answer.shown(), "a refusal", false);
    }
    findings.at_most("", "smuggled requests at the origin", world.origin.asked_for("/smuggled"), 0);
    let after = ask(place.addresses()[0], world.proxy.at, &Request::get("/shop/page-after")).await;
    findings.nobody_failed("", "a good user afterwards", &Tally::of(&[after]));
}

pub(crate) async fn request_targets(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    let hosts = [
        ("absolute form, another Host", "GET http://evil.example/shop/page-abs HTTP/1.1\r\nhost: shop.example\r\n"),
        ("Host with a path", "GET /shop/page-abs HTTP/1.1\r\nhost: evil.example/shop.example\r\n"),
        ("Host with a user", "GET /shop/page-abs HTTP/1.1\r\nhost: shop.example@evil.example\r\n"),
        ("Host in upper case", "GET /shop/page-abs HTTP/1.1\r\nhost: EVIL.example\r\n"),
    ];
    for (case, head) in hosts {
        raw(ATTACKER, to, format!("{head}connection: close\r\n\r\n").as_bytes()).await;
        let good = ask(from[0], to, &Request::get("/shop/page-abs")).await;
        let got = good.text();
        findings.check(
            case,
            "a good user gets",
            got.trim_end(),
            "page shop.example ...",
            got.starts_with("page shop.example "),
        );
    }
    // Refused, or the origin gets exactly what the key was made of.
    let targets = [
        "/shop/page%00",
        "/shop/page-\\x",
        "//shop/page-double",
        "/shop/./page-dot",
        "/shop/%2e/page-dot",
        "/shop/page-;x=1",
        "/shop/page-%2f",
        "/shop/page-\u{e9}",
        "/shop/page-\tx",
        "shop/page-relative",
        "*",
        "http:/shop/page-one",
        "http://",
        "/shop/page-f#x",
        "#",
    ];
    let mut wrong = Vec::new();
    for target in targets {
        let before = world.origin.seen(|_| true).len();
        let answer = raw(ATTACKER, to, &Request::get(target).bytes()).await;
        let arrived: Vec<String> =
            world.origin.seen(|_| true).split_off(before).into_iter().map(|seen| seen.path).collect();
        if !is_refused(&answer) && arrived != [target] {
            wrong.push(format!("{target} as {}", arrived.join(" ")));
        }
    }
    let got = if wrong.is_empty() { "none".into() } else { wrong.join(", ") };
    findings.check("", "targets that change on the way", got, "none", wrong.is_empty());
}

pub(crate) async fn upgrade_smuggling(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let forged = "GET /shop/page-forged HTTP/1.1\r\nhost: shop.example\r\nx-forwarded-for: 6.6.6.6\r\n\r\n";
    let ask = |path: &str, connection: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: {connection}\r\n{more}\r\n{forged}")
            .into_bytes()
    };
    let cases = vec![
        ("refused", ask("/shop/page-1", "upgrade", "upgrade: websocket\r\n")),
        (
            "refused with a status",
            ask("/shop/missing", "upgrade", "upgrade: websocket\r\nsec-websocket-version: 777\r\n"),
        ),
        ("h2c", ask("/live/socket", "upgrade, http2-settings", "upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n")),
        ("not in Connection", ask("/live/socket", "keep-alive", "upgrade: websocket\r\n")),
        ("with a length", ask("/live/socket", "upgrade", "upgrade: websocket\r\ncontent-length: 5\r\n")),
    ];
    for (name, answer) in send_all(&world, cases).await {
        let is_switched = answer.status == Ok(101) || answer.text().contains("HTTP/1.1 101 ");
        let got = if is_switched { "101" } else { "another" };
        findings.check(name, "first answer", got, "no 101", !is_switched);
    }
    let unseen = world.origin.count(|seen| {
        seen.field("via").is_none() || seen.field("x-forwarded-for").is_none_or(|client| client.contains("6.6.6.6"))
    });
    findings.at_most("", "requests at the origin that the proxy has not read", unseen, 0);
    let after = crate::client::ask(place.addresses()[0], world.proxy.at, &Request::get("/shop/page-after")).await;
    findings.check("", "a page after that", after.shown(), 200, after.is_ok());
}

pub(crate) async fn response_splitting(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    for case in ["split-lengths", "split-both", "split-more", "split-negative", "split-chunk", "split-nul"] {
        let path = format!("/shop/{case}");
        let mut answers = Vec::new();
        for _ in 0..2 {
            answers.push(ask(from[0], to, &Request::get(&path)).await);
        }
        let after = ask(from[1], to, &Request::get(format!("/shop/page-{case}"))).await;
        let smuggled = answers.iter().any(|answer| answer.is_ok() && answer.text().contains("smuggled"));
        let is_met = !smuggled && after.is_ok() && after.text().starts_with("page ");
        let got = format!("{}, then a page: {}", answers[0].shown(), after.shown());
        findings.check(case, "nothing smuggled", got, "no smuggled body, then 200", is_met);
    }
}

pub(crate) async fn fat_get(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let path = "/shop/page-fat";
    let fat = Request::get(path).body("x=evil");
    ask(ATTACKER, world.proxy.at, &fat).await;
    let good = ask(place.addresses()[0], world.proxy.at, &Request::get(path)).await;
    let own = world.origin.count(|seen| seen.path == path && seen.field("content-length").is_none());
    findings.check("", "a good user's own origin requests", own, 1, own == 1 && good.is_ok());
}

pub(crate) async fn unread_body(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (mut wrong, rounds) = (0, context.pick(50, 10));
    for number in 0..rounds {
        let beginning = "GET /smuggled HTTP/1.1\r\nhost: shop.example\r\nx: ";
        let post = Request::new("POST", format!("/bug/unread-{number}")).body(beginning);
        ask(ATTACKER, world.proxy.at, &post).await;
        let path = format!("/shop/page-after-{number}");
        let good = ask(place.addresses()[0], world.proxy.at, &Request::get(&path)).await;
        wrong += usize::from(!good.is_ok() || good.text().trim_end() != format!("page shop.example {path}"));
    }
    findings.check("", "good users with another's page", format!("{wrong} of {rounds}"), "none", wrong == 0);
}

pub(crate) async fn bad_chunk(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (addresses, to) = (place.addresses(), world.proxy.at);
    let bytes =
        b"POST /upload/sink HTTP/1.1\r\nhost: shop.example\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n";
    let attack = paced(50.0, context.lasts(), |_| raw(ATTACKER, to, bytes));
    let (answers, fared) = tokio::join!(attack, use_it(context, &world, &addresses, context.lasts()));
    judge(findings, "", &fared, 1);
    let mut told: Vec<String> = answers.iter().filter(|answer| !is_refused(answer)).map(Answer::shown).collect();
    let wrong = told.len();
    told.sort();
    told.dedup();
    let got = if wrong == 0 { "none".into() } else { format!("{wrong} of {}: {}", answers.len(), told.join(", ")) };
    findings.check("", "attackers told that it was the origin's fault", got, "none", wrong == 0);
}

pub(crate) async fn error_pages_echo(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let marker = "<script>evil</script>";
    let get = |target: &str, more: &str| {
        format!("GET {target} HTTP/1.1\r\nhost: shop.example\r\nx-marker: {marker}\r\n{more}connection: close\r\n\r\n")
    };
    world.origin.refuse();
    sleep(Duration::from_millis(50)).await;
    let cases = [
        get(&format!("/{marker}"), ""),
        get("/shop/page-1", ""),
        get("/shop/page-1", "cache-control: only-if-cached\r\n"),
        get("/shop/page-1", "expect: 200-maybe\r\n"),
        get("/shop/page-1", "bad field\r\n"),
        get("/shop/page-1", "host: other\r\n"),
        format!("{marker} / HTTP/1.1\r\n\r\n"),
    ];
    let mut echoed = 0;
    for case in cases {
        let answer = raw(place.addresses()[0], world.proxy.at, case.as_bytes()).await;
        echoed += usize::from(answer.head.contains(marker) || answer.text().contains(marker));
    }
    findings.at_most("", "error pages with the client's bytes in them", echoed, 0);
}

pub(crate) async fn request_loop(context: &Context, place: Place, findings: &mut Findings) {
    // A port that was free a moment ago.
    let free =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("there are free ports");
    let proxy = Proxy::start(context, &format!("http://{free}"), "", &["--listen", &free.to_string()]);
    let answer = ask(place.addresses()[0], proxy.at, &Request::get("/shop/page-1")).await;
    let is_met = answer.status.is_ok_and(|status| status >= 400);
    findings.check("", "answer", answer.shown(), "an error", is_met);
    let accepted = proxy.metric("herdproof_connections_total").await;
    findings.at_most("", "connections that one request made", accepted.unwrap_or(u64::MAX), 10);
}
