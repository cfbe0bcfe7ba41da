//! What one request gets says nothing about others: not who else may have it, not that what is kept is wrong, not how much of
//! it has come.

use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::world::{Gate, Step, World, answer, bytes, fresh, get, head, obeying, request, run, run_with, with};

const HERD: usize = 20;

/// Waits until something is kept.
async fn kept(world: &World) {
    world.settled().await;
    world.until(|| world.proxy.0.store.stats().entries > 0).await;
}

#[test]
fn what_is_kept_to_be_asked_about_is_asked_about_by_its_own_variant_only() {
    // Of one tag for all languages, as servers make them that know nothing of languages.
    let headers = "cache-control: no-cache\nvary: accept-language\netag: W/\"x\"";
    run(
        move |asked| match asked.header("if-none-match") {
            "" => vec![answer(200, headers, asked.header("accept-language"))],
            _ => vec![answer(304, headers, "")],
        },
        async |world| {
            let ask = async |language| world.ask(with("/", &[("accept-language", language)])).await;
            ask("en").await.is(200, "en");
            kept(world).await;
            ask("de").await.is(200, "de");
            kept(world).await;
            for language in ["en", "de"] {
                ask(language).await.is(200, language);
            }
            assert_eq!(world.origin.requests(), 4, "each is asked about");
        },
    );
}

#[test]
fn a_304_that_says_what_a_response_varies_on_is_heard() {
    run(
        |asked| match (asked.number, asked.header("if-none-match")) {
            (1, _) => vec![answer(200, "cache-control: max-age=60\nage: 65\netag: \"1\"", "en")],
            (_, "") => vec![answer(200, "cache-control: max-age=60\nvary: accept-language", "de")],
            _ => vec![answer(304, "cache-control: max-age=60\netag: \"1\"\nvary: accept-language", "")],
        },
        async |world| {
            let ask = async |language| world.ask(with("/", &[("accept-language", language)])).await;
            ask("en").await.is(200, "en");
            kept(world).await;
            ask("en").await.is(200, "en");
            kept(world).await;
            ask("de").await.is(200, "de");
        },
    );
}

#[test]
fn what_varies_on_the_address_of_the_client_is_for_one_client() {
    for field in ["x-forwarded-for", "X-Real-IP"] {
        run(
            move |asked| {
                let headers = format!("cache-control: max-age=60\nvary: accept, {field}");
                vec![answer(200, &headers, &asked.number.to_string())]
            },
            async |world| {
                world.ask(get("/")).await.is(200, "1");
                world.settled().await;
                world.ask(get("/")).await.is(200, "2");
            },
        );
    }
}

#[test]
fn half_a_body_is_not_kept_by_who_asked_whether_it_has_changed() {
    let gate = Gate::new();
    let hold = gate.clone();
    let headers = "cache-control: max-age=60\nvary: accept-language\netag: \"1\"";
    run_with(
        obeying,
        move |asked| {
            if !asked.header("if-none-match").is_empty() {
                return vec![answer(304, headers, "")];
            }
            if asked.number > 1 {
                return vec![answer(200, headers, "whole")];
            }
            let head = head(200, &format!("content-length: 5\r\n{}\r\n", headers.replace('\n', "\r\n")));
            vec![bytes(head), bytes("wh"), Step::Hold(hold.clone()), Step::Reset]
        },
        async |world| {
            let mut first = world.begin(get("/")).await;
            assert_eq!(first.next().await.unwrap().unwrap(), "wh");
            let second = world.begin(with("/", &[("cache-control", "no-cache")])).await;
            gate.open();
            assert!(!first.rest().await.whole && !second.rest().await.whole);
            world.settled().await;
            world.ask(get("/")).await.is(200, "whole");
        },
    );
}

#[test]
fn what_is_kept_stays_when_one_request_is_answered_otherwise() {
    let control = "cache-control: max-age=60";
    for (name, value, status, said) in [
        ("x-bad", "1", 400, ""),
        ("x-bad", "1", 431, ""),
        ("x-bad", "1", 429, ""),
        ("cookie", "user=1", 200, "cache-control: private"),
        ("cookie", "user=1", 200, "set-cookie: user=1"),
    ] {
        run_with(
            obeying,
            move |asked| match asked.header(name) {
                "" => vec![answer(200, control, "for all")],
                _ => vec![answer(status, said, "for one")],
            },
            async |world| {
                world.ask(get("/")).await.is(200, "for all");
                world.settled().await;
                world.ask(with("/", &[(name, value), ("cache-control", "no-cache")])).await.is(status, "for one");
                world.settled().await;
                world.ask(get("/")).await.is(200, "for all");
                assert_eq!(world.origin.requests(), 2, "{name}: {value} {status}");
            },
        );
    }
}

#[test]
fn a_crowd_is_served_stale_when_the_origin_has_too_much_to_do_and_the_page_stays() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => vec![answer(200, "cache-control: max-age=60, stale-if-error=600\nage: 65", "1")],
            2 => vec![Step::Hold(hold.clone()), answer(429, "retry-after: 1", "too many")],
            _ => vec![fresh("2")],
        },
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            kept(world).await;
            let before = usize::try_from(world.proxy.0.flights.stats().flights).unwrap();
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(before + HERD).await;
            gate.open();
            let replies = herd.replies().await;
            let refused = replies.iter().filter(|reply| reply.status == 429).count();
            assert!(refused <= 1, "{refused} were told so");
            assert!(replies.iter().filter(|reply| reply.status != 429).all(|reply| reply.text() == "1"));
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

/// It can be kept, but does not state how long it is fresh.
const UNTIMED: &str = "last-modified: Thu, 18 Aug 2016 02:01:18 GMT";

#[test]
fn those_without_a_cookie_share_what_one_with_a_cookie_had_for_itself() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => vec![Step::Hold(hold.clone()), answer(200, UNTIMED, "its own")],
            _ => vec![Step::Hold(hold.clone()), answer(200, UNTIMED, "for all")],
        },
        async |world| {
            let first = world.env.spawn(world.begin_later(with("/", &[("cookie", "user=1")])));
            world.origin.asked(1).await;
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(1 + HERD).await;
            gate.open();
            first.await.unwrap().rest().await.is(200, "its own");
            herd.replies().await.iter().for_each(|reply| reply.is(200, "for all"));
            assert_eq!(world.origin.requests(), 2, "one for the user, one for all");
        },
    );
}

#[test]
fn an_answer_in_an_old_version_is_passed_on_in_ours() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| {
            let half = bytes("HTTP/1.0 200 OK\r\ncache-control: private\r\n\r\nhalf");
            vec![half, Step::Hold(hold.clone()), Step::Reset]
        },
        async |world| {
            let mut stream = world.connect().await;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut told = Vec::new();
            while !String::from_utf8_lossy(&told).contains("half") {
                assert_ne!(stream.read_buf(&mut told).await.unwrap(), 0, "it closes before the half that it has");
            }
            // Not before: whoever has told nothing yet when the answer breaks off tells nothing at all.
            gate.open();
            stream.read_to_end(&mut told).await.ok();
            let told = String::from_utf8_lossy(&told);
            assert!(told.starts_with("HTTP/1.1 200"), "{told}");
            assert!(!told.ends_with("0\r\n\r\n"), "half an answer is not ended as a whole one: {told}");
        },
    );
}

#[test]
fn a_body_whose_length_nobody_knows_goes_on_whatever_the_method() {
    run(
        |asked| vec![answer(200, "cache-control: private", &String::from_utf8_lossy(&asked.body))],
        async |world| {
            for method in ["GET", "POST"] {
                let told = world
                    .raw(
                        format!(
                            "{method} / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                             5\r\nhello\r\n0\r\n\r\n"
                        )
                        .as_bytes(),
                    )
                    .await;
                assert!(told.contains("hello"), "{method}: {told}");
            }
            world.ask(request(Method::GET, "/", &[], "with a length")).await.is(200, "with a length");
        },
    );
}
