//! Who the client is, and who the user: a trusted proxy in front is believed, and nobody else is.

use std::fs;

use tokio::io::AsyncWriteExt;

use super::world::{World, answer, fresh, get, read_answer, run_with, with};
use crate::{Settings, settings::LogTo};

/// A proxy in front that is trusted, another one, and somebody who is not.
const FRONT: [u8; 4] = [127, 0, 0, 2];
const STRANGER: [u8; 4] = [127, 0, 0, 3];
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

fn trust(settings: &mut Settings) {
    settings.trusted_proxies = vec!["127.0.0.2".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
}

fn trust_headers(settings: &mut Settings) {
    trust(settings);
    settings.clients.proxy_protocol = true;
}

fn reported(world: &World, line: &str) -> bool {
    let mut page = crate::metrics::Page::default();
    world.server.report()(&mut page);
    page.text().lines().any(|known| known == line)
}

/// What of an answer is after its head.
fn body(told: &str) -> &str {
    told.split("\r\n\r\n").nth(1).unwrap_or_default()
}

#[test]
fn the_origin_hears_of_the_client_from_trusted_proxies_only() {
    let [list, forwarded] = ["x-forwarded-for", "forwarded"];
    run_with(
        trust,
        |asked| {
            let told = ["x-forwarded-for", "x-real-ip", "forwarded", "true-client-ip"].map(|name| asked.header(name));
            vec![answer(200, "cache-control: private", &told.join("|"))]
        },
        async |world| {
            for (from, fields, told) in [
                (FRONT, &[][..], "127.0.0.2|127.0.0.2||"),
                (FRONT, &[(list, "192.0.2.1")], "192.0.2.1, 127.0.0.2|192.0.2.1||"),
                // What stands left of the client was said by the client.
                (FRONT, &[(list, "6.6.6.6, 192.0.2.1, 10.0.0.1:80")], "192.0.2.1, 10.0.0.1, 127.0.0.2|192.0.2.1||"),
                (FRONT, &[(forwarded, "for=\"[2001:db8::1]:80\"")], "2001:db8::1, 127.0.0.2|2001:db8::1||"),
                (FRONT, &[(forwarded, "for=6.6.6.6"), (list, "192.0.2.1")], "192.0.2.1, 127.0.0.2|192.0.2.1||"),
                (FRONT, &[(list, "6.6.6.6, unknown")], "127.0.0.2|127.0.0.2||"),
                (FRONT, &[("true-client-ip", "6.6.6.6"), ("x-real-ip", "6.6.6.6")], "127.0.0.2|127.0.0.2||"),
                // Nobody can take away what a trusted proxy says by naming it in `Connection`.
                (FRONT, &[(list, "192.0.2.1"), ("connection", "x-forwarded-for")], "192.0.2.1, 127.0.0.2|192.0.2.1||"),
                (STRANGER, &[], "127.0.0.3|127.0.0.3||"),
                (STRANGER, &[(list, "6.6.6.6"), (forwarded, "for=6.6.6.6")], "127.0.0.3|127.0.0.3||"),
                (STRANGER, &[(list, "6.6.6.6, 127.0.0.2"), ("true-client-ip", "6.6.6.6")], "127.0.0.3|127.0.0.3||"),
            ] {
                world.ask_from(from, with("/", fields)).await.is(200, told);
            }
        },
    );
}

#[test]
fn the_log_names_the_client_and_not_the_balancer() {
    let file = std::env::temp_dir().join(format!("herdproof-clients-{}.log", std::process::id()));
    let path = file.clone();
    run_with(
        move |settings| {
            trust(settings);
            settings.log.access = Some(LogTo::File(path));
        },
        |_| vec![fresh("1")],
        async |world| {
            let list = "x-forwarded-for";
            // A miss, then hits.
            world.ask_from(FRONT, with("/", &[(list, "192.0.2.1")])).await.is(200, "1");
            world.settled().await;
            world.ask_from(FRONT, with("/", &[(list, "6.6.6.6, 192.0.2.2")])).await.is(200, "1");
            world.ask_from(STRANGER, with("/", &[(list, "6.6.6.6")])).await.is(200, "1");
            let clients = || -> Vec<String> {
                let lines = fs::read_to_string(&file).unwrap_or_default();
                let client = |line: &str| line.split("\"client\":\"").nth(1)?.split('"').next().map(str::to_owned);
                lines.lines().filter_map(client).collect()
            };
            world.until(|| clients().len() == 3).await;
            let mut clients = clients();
            clients.sort();
            assert_eq!(clients[1..], ["192.0.2.1", "192.0.2.2"]);
            assert!(clients[0].starts_with("127.0.0.3:"), "{clients:?}");
        },
    );
    fs::remove_file(&file).ok();
}

#[test]
fn a_users_page_is_not_the_next_users_where_a_trusted_proxy_says_who_they_are() {
    for name in ["x-forwarded-user", "x-auth-request-email", "remote-user", "x-tenant-user", "oidc_claim_sub"] {
        run_with(
            |settings| {
                trust(settings);
                settings.identity_headers = vec!["x-tenant-user".parse().unwrap()];
            },
            move |asked| vec![answer(200, "cache-control: max-age=60", &format!("for {}", asked.header(name)))],
            async |world| {
                let ask = async |user| world.ask_from(FRONT, with("/", &[(name, user)])).await;
                ask("ann").await.is(200, "for ann");
                world.settled().await;
                ask("bob").await.is(200, "for bob");
                world.settled().await;
                world.ask_from(FRONT, get("/")).await.is(200, "for ");
                world.settled().await;
                // What is kept for those who say nothing is not for those who do.
                ask("bob").await.is(200, "for bob");
                assert_eq!(world.origin.requests(), 4, "{name}");
            },
        );
    }
}

#[test]
fn users_share_what_says_that_it_is_for_all() {
    run_with(
        trust,
        |_| vec![answer(200, "cache-control: public, max-age=60", "for all")],
        async |world| {
            for user in ["ann", "bob"] {
                world.ask_from(FRONT, with("/", &[("x-forwarded-user", user)])).await.is(200, "for all");
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn nobody_else_says_who_the_user_is() {
    let names = ["x-forwarded-user", "X-Auth-Request-Email", "remote-user", "x_forwarded_user", "x-tenant-user"];
    run_with(
        |settings| {
            trust(settings);
            settings.identity_headers = vec!["x-tenant-user".parse().unwrap()];
        },
        |asked| {
            let is_said = asked.headers.values().any(|value| value == "ann");
            vec![fresh(if is_said { "ann's" } else { "for all" })]
        },
        async |world| {
            for name in names {
                world.ask_from(STRANGER, with("/", &[(name, "ann")])).await.is(200, "for all");
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1, "and it is no credential of a stranger's");
        },
    );
}

#[test]
fn a_stranger_does_not_choose_the_page_of_a_user_by_naming_it() {
    for name in ["x-forwarded-user", "x-tenant-user"] {
        run_with(
            |settings| {
                trust(settings);
                settings.identity_headers = vec!["x-tenant-user".parse().unwrap()];
            },
            move |asked| {
                let headers = format!("cache-control: public, max-age=60\nvary: {name}");
                vec![answer(200, &headers, &format!("for {}", asked.header(name)))]
            },
            async |world| {
                world.ask_from(FRONT, with("/", &[(name, "ann")])).await.is(200, "for ann");
                world.settled().await;
                world.ask_from(STRANGER, with("/", &[(name, "ann")])).await.is(200, "for ");
            },
        );
    }
}

#[test]
fn a_balancer_may_have_more_connections_than_one_client() {
    run_with(
        |settings| {
            trust(settings);
            settings.clients.per_address = Some(1);
        },
        |_| vec![fresh("1")],
        async |world| {
            let mut held = Vec::new();
            for from in [FRONT, FRONT, FRONT, STRANGER] {
                let mut stream = world.connect_from(from).await;
                stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
                read_answer(&mut stream).await.unwrap();
                held.push(stream);
            }
            assert_eq!(world.raw_from(STRANGER, GET).await, "");
        },
    );
}

#[test]
fn a_trusted_balancer_says_in_a_header_whom_a_connection_is_for() {
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f\xc0\0\x02\x01\x0a\0\0\x01\xdc\x04\0\x50\x04\0\0".as_slice();
    run_with(
        trust_headers,
        |asked| vec![answer(200, "cache-control: private", asked.header("x-forwarded-for"))],
        async |world| {
            for (header, client) in [
                (&b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n"[..], "192.0.2.1"),
                (b"PROXY TCP6 2001:db8::1 ::1 56324 80\r\n", "2001:db8::1"),
                (b"PROXY UNKNOWN\r\n", "127.0.0.2"),
                (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.2"),
                (v2, "192.0.2.1"),
            ] {
                assert_eq!(body(&world.raw_from(FRONT, &[header, GET].concat()).await), client);
                // Byte by byte, and more than one request on a connection.
                let mut stream = world.connect_from(FRONT).await;
                stream.set_nodelay(true).unwrap();
                for byte in header {
                    stream.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                for _ in 0..2 {
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
                    assert_eq!(body(&read_answer(&mut stream).await.unwrap()), client);
                }
            }
        },
    );
}

#[test]
fn what_a_client_says_behind_a_header_is_still_the_word_of_that_client() {
    let ask =
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-for: 6.6.6.6\r\nx-forwarded-user: ann\r\n\r\n";
    run_with(
        trust_headers,
        |asked| {
            let told = ["x-forwarded-for", "x-forwarded-user"].map(|name| asked.header(name));
            vec![answer(200, "cache-control: private", &told.join("|"))]
        },
        async |world| {
            for (header, told) in [
                ("PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n", "192.0.2.1|"),
                // A client that the balancer cannot name is a stranger all the same.
                ("PROXY UNKNOWN\r\n", "127.0.0.2|"),
                // Through a trusted proxy that speaks HTTP, and then through the balancer.
                ("PROXY TCP4 10.0.0.7 10.0.0.1 56324 80\r\n", "6.6.6.6, 10.0.0.7|ann"),
            ] {
                let bytes = [header.as_bytes(), ask].concat();
                assert_eq!(body(&world.raw_from(FRONT, &bytes).await), told, "{header}");
            }
        },
    );
}

#[test]
fn without_a_header_a_balancer_is_not_heard_and_with_one_a_stranger_is_not() {
    run_with(
        trust_headers,
        |asked| vec![answer(200, "cache-control: private", asked.header("x-forwarded-for"))],
        async |world| {
            assert_eq!(world.raw_from(FRONT, GET).await, "", "it may be a client's own");
            assert_eq!(world.raw_from(FRONT, b"PROXY TCP4 rubbish\r\n").await, "");
            // Whoever only looks whether anybody is there says no rubbish.
            drop(world.connect_from(FRONT).await);
            assert_eq!(body(&world.raw_from(STRANGER, GET).await), "127.0.0.3");
            let forged = [&b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n"[..], GET].concat();
            assert!(world.raw_from(STRANGER, &forged).await.starts_with("HTTP/1.1 400"));
            assert!(reported(world, "herdproof_connections_ended_total{reason=\"proxy_header\"} 2"));
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn one_client_behind_a_balancer_has_no_more_connections_than_one_without() {
    run_with(
        |settings| {
            trust_headers(settings);
            settings.clients.per_address = Some(1);
        },
        |_| vec![fresh("1")],
        async |world| {
            let header = b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n";
            let mut held = world.connect_from(FRONT).await;
            held.write_all(&[&header[..], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"].concat()).await.unwrap();
            read_answer(&mut held).await.unwrap();
            assert_eq!(world.raw_from(FRONT, &[&header[..], GET].concat()).await, "");
            let other = b"PROXY TCP4 192.0.2.2 10.0.0.1 56324 80\r\n";
            assert!(world.raw_from(FRONT, &[&other[..], GET].concat()).await.starts_with("HTTP/1.1 200"));
        },
    );
}

#[test]
fn a_header_that_drips_is_ended_as_a_requests_head_would_be() {
    run_with(
        |settings| {
            trust_headers(settings);
            settings.clients.head_timeout = std::time::Duration::from_millis(100);
        },
        |_| vec![fresh("1")],
        async |world| {
            assert_eq!(world.raw_from(FRONT, b"PROXY TCP4 192.0.2.1").await, "");
            assert!(reported(world, "herdproof_connections_ended_total{reason=\"slow_head\"} 1"));
        },
    );
}
