//! Requests that are put so as to be misunderstood.

use http::Method;
use tokio::io::AsyncWriteExt;

use super::world::{Gate, Step, answer, bytes, fresh, get, read_answer, request, run, run_with, with};

#[test]
fn what_is_not_in_the_key_does_not_choose_what_everybody_gets() {
    const BELIEVED: [&str; 16] = [
        "forwarded",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-server",
        "x-original-url",
        "x-rewrite-url",
        "x-original-host",
        "x-host",
        "x-http-host-override",
        "x-http-method-override",
        "x-method-override",
        "x-http-method",
        "x-real-ip",
    ];
    run(
        |asked| {
            // An origin that repeats whatever it is told.
            let told: Vec<_> = asked.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            vec![fresh(&told.join("\n"))]
        },
        async |world| {
            for name in BELIEVED {
                let path = format!("/{name}");
                let reply = world.ask(with(&path, &[(name, "evil.example"), (name, "evil.example")])).await;
                assert!(!reply.text().contains("evil"), "{name}: {}", reply.text());
                assert!(reply.text().contains("x-forwarded-host=\"a\""), "{}", reply.text());
            }
        },
    );
}

/// An origin that sends whoever comes in the clear to TLS, and repeats the host it is told. Behind a proxy that ends TLS it would
/// send everybody back for ever, or one host's page to another.
#[test]
fn what_a_trusted_proxy_in_front_says_counts_and_is_in_the_key() {
    let [proto, host] = ["x-forwarded-proto", "x-forwarded-host"];
    for (trusted, believed) in [("127.0.0.0/8", true), ("10.0.0.0/8", false)] {
        run_with(
            |settings| settings.trusted_proxies = vec![trusted.parse().unwrap()],
            move |asked| {
                let told = [proto, host, "host", "x-forwarded-for"].map(|name| asked.header(name));
                vec![fresh(&told.join(" "))]
            },
            async |world| {
                let ask = async |fields: &[(&str, &str)]| world.ask(with("/", fields)).await;
                ask(&[]).await.is(200, "http a a 127.0.0.1");
                world.settled().await;
                let scheme = if believed { "https" } else { "http" };
                for hits in [!believed, true] {
                    let reply = ask(&[(proto, "https"), (host, "A:443")]).await;
                    reply.is(200, &format!("{scheme} a a 127.0.0.1"));
                    assert_eq!(reply.cache().ends_with("hit"), hits, "{}", reply.cache());
                    world.settled().await;
                }
                // Another host than that of the key is for one only, and the key's own for all.
                let reply = ask(&[(host, "b"), ("x-forwarded-for", "192.0.2.1")]).await;
                let told = if believed { "http b a 192.0.2.1, 127.0.0.1" } else { "http a a 127.0.0.1" };
                reply.is(200, told);
                assert_eq!(reply.cache().ends_with("detail=forwarded-host"), believed, "{}", reply.cache());
                ask(&[]).await.is(200, "http a a 127.0.0.1");
                // What is no host, and what is said twice, counts for nobody.
                ask(&[(host, "b/../"), (proto, "https"), (proto, "http")]).await.is(200, "http a a 127.0.0.1");
            },
        );
    }
}

#[test]
fn the_origin_is_told_the_host_that_the_key_has() {
    run(
        |asked| vec![fresh(&format!("{} {}", asked.header("host"), asked.header("x-forwarded-host")))],
        async |world| {
            let ask = async |target: &str, host: &str| {
                let raw = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
                world.raw(raw.as_bytes()).await.split("\r\n\r\n").nth(1).unwrap().to_owned()
            };
            // The first to ask chooses nothing for the others.
            for (target, host) in [("/", "A.Example:80"), ("/", "a.example"), ("http://A.example/", "a.Example:")] {
                assert_eq!(ask(target, host).await, "a.example a.example", "{target} {host}");
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn what_is_keyed_is_what_the_origin_sees() {
    run(
        |asked| vec![fresh(&asked.target)],
        async |world| {
            let ask = async |target: &str| {
                let raw = format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
                let told = world.raw(raw.as_bytes()).await;
                let status = told.get(9..12).unwrap_or_default().to_owned();
                (status, told.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned())
            };
            let targets = [
                "/a", "//a", "/a/", "/./a", "/b/../a", "/%61", "/a;x", "/a%2e", "/%2e/a", "/a?", "/a?b", "/a?B",
                "/a?%00", "/A", "/a%2fb", "/a?b\\c",
            ];
            for target in targets {
                assert_eq!(ask(target).await, ("200".into(), target.into()));
            }
            world.settled().await;
            for target in targets {
                assert_eq!(ask(target).await, ("200".into(), target.into()), "and again from memory");
            }
            assert_eq!(world.origin.requests(), targets.len());
            for target in ["/a\\b", "/a%00b", "*", "a", "http://b/a", "http://a@a/", "/a#b", "#"] {
                assert_eq!(ask(target).await.0, "400", "{target}");
            }
            let told = world.raw(b"GET /a HTTP/1.1\nhost: a\n\n").await;
            assert!(told.starts_with("HTTP/1.1 400 "), "though it is kept: {told}");
        },
    );
}

#[test]
fn a_get_with_a_body_is_for_the_one_who_sent_it() {
    run(
        |asked| {
            let body = String::from_utf8_lossy(&asked.body).into_owned();
            vec![answer(200, "cache-control: public, max-age=60", &format!("{} {body}", asked.number))]
        },
        async |world| {
            let fat = || request(Method::GET, "/", &[("content-length", "4")], "evil");
            world.ask(fat()).await.is(200, "1 evil");
            world.ask(get("/")).await.is(200, "2 ");
            world.settled().await;
            world.ask(fat()).await.is(200, "3 evil");
            world.ask(get("/")).await.is(200, "2 ");
            // The next request on the same connection is not what was left of a body.
            let mut stream = world.connect().await;
            let smuggled = "GET /evil HTTP/1.1\r\nhost: a\r\n\r\n";
            let fat = format!("GET / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{smuggled}", smuggled.len());
            stream.write_all(format!("{fat}GET /next HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
            assert!(read_answer(&mut stream).await.unwrap().contains("GET /evil"), "as the body it is");
            world.until(|| world.origin.requests() == 5).await;
            assert_eq!(world.origin.log()[4].target, "/next");
        },
    );
}

#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused_and_its_connection_closed() {
    const SMUGGLED: &str = "GET /evil HTTP/1.1\r\nhost: a\r\n\r\n";
    let requests = [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        "GET / HTTP/1.1\r\n host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx\0: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n",
        "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1 x\r\nhost: a\r\n\r\n",
        "GET / HTTP/3.1\r\nhost: a\r\n\r\n",
    ];
    run(
        |asked| vec![fresh(&asked.target)],
        async |world| {
            for request in requests {
                let told = world.raw(format!("{request}{SMUGGLED}").as_bytes()).await;
                let status = told.get(9..12).unwrap_or_default();
                assert!(told.is_empty() || matches!(status, "400" | "501" | "505"), "{request}: {told}");
                assert!(!told.contains("/evil"), "{request}: {told}");
                assert!(world.origin.log().iter().all(|asked| asked.target != "/evil"), "{request}");
                world.ask(get("/fine")).await.is(200, "/fine");
            }
        },
    );
}

#[test]
fn a_length_and_a_coding_are_never_both_believed() {
    run(
        |asked| vec![answer(200, "cache-control: private", &asked.target)],
        async |world| {
            for order in
                ["content-length: 4\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 4"]
            {
                // Whoever believes the length reads a request out of the body. There is none after it either way: it reads on
                // until the proxy closes.
                let body = "0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n";
                let told =
                    world.raw(format!("POST /post HTTP/1.1\r\nhost: a\r\n{order}\r\n\r\n{body}").as_bytes()).await;
                assert!(told.ends_with("\r\n\r\n/post") && told.contains("\r\nconnection: close\r\n"), "{told}");
                assert!(world.origin.log().iter().all(|asked| asked.target != "/evil"));
                for asked in world.origin.log() {
                    let stated = [asked.header("content-length"), asked.header("transfer-encoding")];
                    assert!(stated.contains(&""), "{stated:?}");
                }
            }
        },
    );
}

#[test]
fn line_ends_without_their_first_half_smuggle_nothing() {
    run(
        |asked| vec![fresh(&asked.target)],
        async |world| {
            let told =
                world.raw(b"GET /one HTTP/1.1\nhost: a\nconnection: close\n\nGET /evil HTTP/1.1\nhost: a\n\n").await;
            assert!(!told.contains("/evil"), "{told}");
            let chunked = "POST /two HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
            for body in [
                "5\nhello\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
                "5;a=\"\n\"\r\nhello\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
                "5\r\nhelloX0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
                "fffffffffffffffff\r\nhello\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
                "-5\r\nhello\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
                "0x5\r\nhello\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n",
            ] {
                let told = world.raw(format!("{chunked}{body}").as_bytes()).await;
                assert!(!told.contains("/evil"), "{body}: {told}");
                assert!(world.origin.log().iter().all(|asked| asked.target != "/evil"), "{body}");
            }
            world.ask(get("/fine")).await.is(200, "/fine");
        },
    );
}

#[test]
fn what_is_about_one_connection_goes_no_further_either_way() {
    run(
        |asked| {
            let told: Vec<_> = asked.headers.keys().map(http::HeaderName::as_str).collect();
            let headers = "cache-control: max-age=60\nconnection: x-named, keep-alive\nx-named: 1\nkeep-alive: x\n\
                           proxy-authenticate: x\ntrailer: x\nupgrade: x\nx-kept: 1";
            vec![answer(200, headers, &told.join(","))]
        },
        async |world| {
            let fields = [
                ("connection", "X-Mine, keep-alive"),
                ("x-mine", "1"),
                ("keep-alive", "1"),
                ("te", "trailers"),
                ("trailer", "x"),
                ("proxy-connection", "x"),
                ("proxy-authorization", "x"),
                ("x-other", "1"),
            ];
            for round in 0..2 {
                let reply = world.ask(with("/", &fields)).await;
                let told: Vec<_> = reply.text().split(',').collect();
                for (name, _) in &fields[..7] {
                    assert!(!told.contains(name), "{name} reached the origin");
                }
                assert!(told.contains(&"x-other"));
                for name in ["x-named", "keep-alive", "proxy-authenticate", "trailer", "upgrade", "connection"] {
                    assert_eq!(reply.header(name), "", "{name} in round {round}");
                }
                assert_eq!(reply.header("x-kept"), "1");
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_field_taken_from_the_origins_sight_does_not_choose_the_variant() {
    // Else whoever names a field in `Connection` puts what the origin says without it where others look with it.
    run(
        |asked| vec![answer(200, "cache-control: max-age=60\nvary: x-tenant", asked.header("x-tenant"))],
        async |world| {
            // So that it is known on what it varies.
            world.ask(with("/", &[("x-tenant", "other")])).await.is(200, "other");
            world.settled().await;
            world.ask(with("/", &[("x-tenant", "victim"), ("connection", "X-Tenant")])).await.is(200, "");
            world.settled().await;
            world.ask(with("/", &[("x-tenant", "victim")])).await.is(200, "victim");
            // And where that is not known yet.
            world.ask(with("/new", &[("x-tenant", "victim"), ("connection", "x-tenant")])).await.is(200, "");
            world.settled().await;
            world.ask(with("/new", &[("x-tenant", "victim")])).await.is(200, "victim");
        },
    );
}

#[test]
fn an_encoding_that_one_client_takes_is_not_given_to_one_that_does_not() {
    run(
        |asked| {
            // As servers choose: the first they know of those that are taken.
            let taken = asked.header("accept-encoding");
            let coding =
                ["br", "zstd", "gzip", "deflate", "compress"].into_iter().find(|coding| taken.contains(coding));
            vec![answer(200, "cache-control: max-age=60\nvary: accept-encoding", coding.unwrap_or("plain"))]
        },
        async |world| {
            for (first, second, fits) in [
                ("deflate", "identity", ["plain"].as_slice()),
                ("compress, x", "", &["plain"]),
                ("gzip, deflate", "gzip", &["gzip", "plain"]),
                ("br;q=0, gzip", "gzip", &["gzip", "plain"]),
            ] {
                let path = format!("/{}", first.replace([' ', ',', ';', '='], ""));
                world.ask(with(&path, &[("accept-encoding", first)])).await;
                world.settled().await;
                let reply = world.ask(with(&path, &[("accept-encoding", second)])).await;
                assert!(fits.contains(&reply.text()), "{first} then {second}: {}", reply.text());
            }
        },
    );
}

#[test]
fn a_request_that_comes_back_goes_no_further() {
    run(
        |asked| {
            let told = format!("{}\n{}", asked.header("via"), asked.header("cdn-loop"));
            vec![answer(200, "cache-control: private", &told)]
        },
        async |world| {
            let reply = world.ask(get("/")).await;
            let (via, cdn_loop) = reply.text().split_once('\n').unwrap();
            for method in [Method::GET, Method::POST] {
                for fields in [[("via", via)], [("cdn-loop", cdn_loop)]] {
                    let reply = world.ask(request(method.clone(), "/again", &fields, "")).await;
                    assert_eq!(reply.status, 508, "{fields:?}");
                }
            }
            assert_eq!(world.origin.requests(), 1);
            // Another proxy of the same kind on the way is no loop.
            let other = [("via", "1.1 herdproof"), ("cdn-loop", "herdproof-0")];
            assert_eq!(world.ask(with("/other", &other)).await.status, 200);
        },
    );
}

#[test]
fn a_tunnel_is_not_made() {
    run(
        |_| vec![answer(200, "", "tunnel")],
        async |world| {
            for target in ["a:80", "/", "http://a/"] {
                let told = world
                    .raw(
                        format!("CONNECT {target} HTTP/1.1\r\nhost: a:80\r\nconnection: close\r\n\r\nhello").as_bytes(),
                    )
                    .await;
                assert!(told.starts_with("HTTP/1.1 4") || told.starts_with("HTTP/1.1 5"), "{target}: {told}");
            }
            assert_eq!(world.origin.requests(), 0);
        },
    );
}

#[test]
fn a_body_that_is_not_sent_holds_no_seat_for_ever() {
    let gate = Gate::new();
    let hold = gate.clone();
    super::world::run_with(
        |settings| {
            settings.clients.stall = std::time::Duration::from_millis(100);
            settings.origin.limit = 1;
        },
        move |_| vec![Step::Hold(hold.clone()), fresh("never")],
        async |world| {
            let mut stream = world.connect().await;
            stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\nhalf").await.unwrap();
            world.until(|| world.proxy.0.origin.stats().in_flight == 1).await;
            // The client is ended, and its seat with it.
            world.until(|| world.server.connections() == 0).await;
            world.until(|| world.proxy.0.origin.stats().in_flight == 0).await;
            drop(stream);
        },
    );
}

/// A request that says nothing of interest is answered without being taken apart; one that says anything else is. Nobody can tell
/// which it was.
#[test]
fn a_hit_by_the_short_way_is_that_of_the_long_way_to_the_last_byte() {
    let [found, missing] = ["200 OK\r\netag: \"1\"\r\nx-odd: a", "404 Not Found\r\ncache-status: behind"];
    run(
        move |asked| {
            let head = if asked.target == "/found" { found } else { missing };
            vec![bytes(format!("HTTP/1.1 {head}\r\ncache-control: max-age=60\r\ncontent-length: 5\r\n\r\nhello"))]
        },
        async |world| {
            for path in ["/found", "/missing"] {
                let mut stream = world.connect().await;
                let mut ask = async |more: &str| {
                    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{more}\r\n");
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let answer = read_answer(&mut stream).await.unwrap();
                    answer.split("\r\n").filter(|line| !line.starts_with("age: ")).map(String::from).collect::<Vec<_>>()
                };
                // An error that says it may be kept is believed of a request of our own, which is the next that is put in another way.
                for more in ["", "unheard-of: y\r\n"] {
                    ask(more).await;
                    world.settled().await;
                }
                let [mut long, mut short] = [ask("unheard-of: x\r\n").await, ask("").await];
                assert!(long.iter().any(|line| line == "cache-status: herdproof; hit"), "{long:?}");
                // Lines of one name may stand apart.
                long.sort();
                short.sort();
                assert_eq!(long, short);
            }
            assert_eq!(world.origin.requests(), 3);
            let page = world.proxy.metrics().page().text().to_owned();
            for line in ["herdproof_requests_total{outcome=\"hit\"} 5", "herdproof_cache_hits_total 5"] {
                assert!(page.lines().any(|told| told == line), "{line}: {page}");
            }
        },
    );
}
