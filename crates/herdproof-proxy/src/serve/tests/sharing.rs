//! Who gets whose bytes.

use http::Method;

use super::world::{Gate, Step, answer, bytes, fresh, get, head, request, run, run_with, with};
use crate::policy::Cookies;

/// Every kind of answer that a service may give to a user, and the fields with which users share it.
const KINDS: [(&str, &str, &[&str]); 11] = [
    ("/none", "", &[]),
    ("/guessed", "last-modified: Thu, 18 Aug 2016 02:01:18 GMT", &[]),
    ("/fresh", "cache-control: max-age=60", &["cookie"]),
    ("/private", "cache-control: private", &[]),
    ("/no-store", "cache-control: no-store", &[]),
    ("/no-cache", "cache-control: no-cache\netag: \"x\"", &[]),
    ("/star", "cache-control: public, max-age=60\nvary: accept, *", &[]),
    ("/cookie", "cache-control: public, max-age=60\nset-cookie: id={}", &[]),
    ("/cookie-only", "set-cookie: id={}", &[]),
    ("/vary-cookie", "cache-control: public, max-age=60\nvary: cookie, authorization", &[]),
    ("/public", "cache-control: public, max-age=60", &["cookie", "authorization"]),
];

/// A crowd at every kind of answer: who has bytes or a cookie that were made for another, where that may not be?
fn crowd(size: usize, field: &'static str) {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| {
            settings.origin.limit = 64;
            settings.origin.line = 100_000;
        },
        move |asked| {
            let user = asked.header(field);
            let (_, headers, _) = KINDS.iter().find(|kind| kind.0 == asked.target).unwrap();
            vec![Step::Hold(hold.clone()), answer(200, &headers.replace("{}", user), &format!("for {user}"))]
        },
        async |world| {
            let kind = |number: usize| KINDS[number % KINDS.len()];
            let user = |number: usize| format!("user-{number}");
            let herd = world.herd(size, |number| with(kind(number).0, &[(field, &user(number))]));
            world.origin.asked(KINDS.len()).await;
            gate.open();
            let check = |number: usize, reply: super::world::Reply| {
                let ((path, headers, shared), user) = (kind(number), user(number));
                if reply.status == 503 {
                    // Too many at a time for a busy machine: refused, in words of our own.
                    assert!(reply.text().starts_with("503") && reply.header("set-cookie").is_empty(), "{reply:?}");
                    return false;
                }
                assert!(reply.status == 200 && reply.whole, "{path}: {reply:?}");
                if !shared.contains(&field) {
                    assert_eq!(reply.text(), format!("for {user}"), "{path}");
                }
                let cookie = if headers.contains("set-cookie") { format!("id={user}") } else { String::new() };
                assert_eq!(reply.header("set-cookie"), cookie, "{path}");
                assert!(reply.headers.get_all("set-cookie").iter().count() <= 1, "{path}");
                true
            };
            let mut served = 0;
            for (number, reply) in herd.replies().await.into_iter().enumerate() {
                served += usize::from(check(number, reply));
            }
            // And what is kept by now is not given to others either.
            let later = world.herd(size, |number| with(kind(number).0, &[(field, &user(number))]));
            for (number, reply) in later.replies().await.into_iter().enumerate() {
                served += usize::from(check(number, reply));
            }
            assert!(served > size, "{served}");
            assert!(world.origin.peak() <= 64, "{}", world.origin.peak());
            for path in ["/public", "/fresh"] {
                let asked = world.origin.log().iter().filter(|asked| asked.target == path).count();
                assert!(field == "authorization" || asked == 1, "{path}: {asked}");
            }
        },
    );
}

#[test]
fn a_thousand_users_with_cookies_have_no_byte_of_each_other() {
    crowd(1_000, "cookie");
}

/// A browser has cookies of its own for every page, also for those that are the same for all.
#[test]
fn a_herd_of_browsers_at_a_page_that_says_how_long_it_is_fresh_is_one_request() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| vec![Step::Hold(hold.clone()), fresh("hello")],
        async |world| {
            let browser = |number: usize| with("/", &[("cookie", &format!("session={number}"))]);
            let herd = world.herd(800, browser);
            world.aboard(800).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "hello");
            }
            world.settled().await;
            world.ask(browser(801)).await.is(200, "hello");
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn where_cookies_are_private_only_what_says_that_it_is_public_is_shared() {
    run_with(
        |settings| settings.rules.cookies = Cookies::Private,
        |asked| {
            let control = if asked.target == "/public" { "public, max-age=60" } else { "max-age=60" };
            vec![answer(200, &format!("cache-control: {control}"), &format!("for {}", asked.header("cookie")))]
        },
        async |world| {
            let user = |path: &'static str, name: &str| with(path, &[("cookie", name)]);
            world.ask(user("/", "ann")).await.is(200, "for ann");
            world.ask(user("/", "bob")).await.is(200, "for bob");
            world.ask(user("/public", "ann")).await.is(200, "for ann");
            world.settled().await;
            world.ask(user("/public", "bob")).await.is(200, "for ann");
        },
    );
}

/// How long it is fresh is a guess, and so is that it is the same for one who has logged in.
#[test]
fn what_was_made_for_those_without_cookies_is_not_given_to_those_with_some() {
    run(
        |asked| {
            let modified = "last-modified: Thu, 18 Aug 2016 02:01:18 GMT";
            vec![answer(200, modified, &format!("for {:?}", asked.header("cookie")))]
        },
        async |world| {
            world.ask(get("/")).await.is(200, "for \"\"");
            world.settled().await;
            world.ask(get("/")).await.is(200, "for \"\"");
            assert_eq!(world.origin.requests(), 1, "it is kept");
            let ann = world.ask(with("/", &[("cookie", "ann")])).await;
            ann.is(200, "for \"ann\"");
            assert!(ann.cache().ends_with("detail=cookie"), "{}", ann.cache());
            world.ask(get("/")).await.is(200, "for \"\"");
            assert_eq!(world.origin.requests(), 2, "and stays for those it was made for");
            // It is known now what comes of that, so nobody waits for another's.
            let joins = world.proxy.0.flights.stats().joins;
            let herd = world.herd(20, |number| with("/", &[("cookie", &format!("user-{number}"))]));
            for (number, reply) in herd.replies().await.into_iter().enumerate() {
                reply.is(200, &format!("for \"user-{number}\""));
            }
            assert_eq!(world.proxy.0.flights.stats().joins, joins);
        },
    );
}

#[test]
fn users_with_credentials_have_no_byte_of_each_other() {
    crowd(300, "authorization");
}

#[test]
fn credentials_join_and_hit_only_what_is_for_all() {
    run(
        |asked| {
            let control = match asked.target.trim_end_matches('?') {
                "/fresh" => "max-age=60",
                "/public" => "public, max-age=60",
                "/shared" => "s-maxage=60",
                _ => "max-age=60, must-revalidate",
            };
            let body = format!("for {}", asked.header("authorization"));
            vec![answer(200, &format!("cache-control: {control}"), &body)]
        },
        async |world| {
            for (path, shared) in [("/fresh", false), ("/public", true), ("/shared", true), ("/must", true)] {
                // Kept for those without credentials.
                world.ask(get(path)).await.is(200, "for ");
                world.settled().await;
                let expected = if shared { "for " } else { "for ann" };
                world.ask(with(path, &[("authorization", "ann")])).await.is(200, expected);
            }
            // And the other way round: fetched with credentials, and who may have it then.
            for (path, shared) in [("/fresh?", false), ("/public?", true), ("/shared?", true), ("/must?", true)] {
                world.ask(with(path, &[("authorization", "ann")])).await.is(200, "for ann");
                world.settled().await;
                world.ask(get(path)).await.is(200, if shared { "for ann" } else { "for " });
            }
        },
    );
}

/// What was for all may come back as something that is not.
#[test]
fn credentials_that_wait_with_others_have_only_what_is_for_all() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match (asked.number, asked.header("authorization")) {
            (1, _) => {
                vec![answer(200, "cache-control: public, must-revalidate, max-age=60\nage: 65\netag: \"1\"", "1")]
            }
            (_, "") => vec![Step::Hold(hold.clone()), answer(200, "cache-control: max-age=60", "for nobody known")],
            (_, who) => vec![answer(200, "cache-control: max-age=60", who)],
        },
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            let first = world.herd(1, |_| get("/"));
            world.origin.asked(2).await;
            let second = world.herd(1, |_| with("/", &[("authorization", "ann")]));
            world.aboard(3).await;
            gate.open();
            first.replies().await[0].is(200, "for nobody known");
            second.replies().await[0].is(200, "ann");
        },
    );
}

/// 1. What is kept is for all, and has to be asked about: credentials join who asks.
/// 2. The answer varies, and is another's variant.
/// 3. By the time those who waited look again, somebody's answer lies where theirs would.
#[test]
fn credentials_that_waited_for_another_variant_have_only_what_is_for_all() {
    for (control, shared) in [("max-age=600", false), ("public, max-age=600", true)] {
        let [lead, late] = [Gate::new(), Gate::new()];
        let hold = lead.clone();
        run(
            move |asked| match asked.number {
                // Nobody has it in the meantime, however long that takes.
                1 => {
                    let control = "cache-control: public, max-age=60, must-revalidate\nage: 65\netag: \"1\"";
                    vec![answer(200, control, "1")]
                }
                number => {
                    let body = format!("{} for {}", asked.header("accept-language"), asked.header("authorization"));
                    let answer = answer(200, &format!("cache-control: {control}\nvary: accept-language"), &body);
                    if number == 2 { vec![Step::Hold(hold.clone()), answer] } else { vec![answer] }
                }
            },
            async |world| {
                world.ask(get("/")).await.is(200, "1");
                world.settled().await;
                let leader = world.herd(1, |_| with("/", &[("accept-language", "de")]));
                world.origin.asked(2).await;
                let door = world.late(&late);
                let ann = world.ask_at(&door, with("/", &[("accept-language", "en"), ("authorization", "ann")]));
                world.aboard(3).await;
                lead.open();
                leader.replies().await[0].is(200, "de for ");
                world.ask(with("/", &[("accept-language", "en")])).await.is(200, "en for ");
                world.settled().await;
                late.open();
                ann.await.unwrap().is(200, if shared { "en for " } else { "en for ann" });
                assert_eq!(world.origin.requests(), if shared { 3 } else { 4 });
            },
        );
    }
}

#[test]
fn a_leaders_condition_or_range_shapes_nobody_elses_answer() {
    let leaders: [&[(&str, &str)]; 6] = [
        &[("if-none-match", "\"1\"")],
        &[("if-modified-since", "Wed, 01 Jan 2020 00:00:00 GMT")],
        &[("range", "bytes=2-3")],
        &[("range", "bytes=90-")],
        &[("range", "bytes=2-3"), ("if-range", "\"other\"")],
        &[("if-none-match", "*"), ("range", "bytes=0-0")],
    ];
    for (leader, statuses) in leaders.into_iter().zip([304, 304, 206, 416, 200, 304]) {
        let gate = Gate::new();
        let hold = gate.clone();
        run(
            move |asked| {
                for name in ["if-none-match", "if-modified-since", "range", "if-range"] {
                    assert_eq!(asked.header(name), "", "the origin is asked for the whole");
                }
                let headers = "cache-control: max-age=60\netag: \"1\"\nlast-modified: Wed, 01 Jan 2020 00:00:00 GMT";
                vec![Step::Hold(hold.clone()), answer(200, headers, "0123456789")]
            },
            async |world| {
                let first = world.herd(1, |_| with("/", leader));
                world.origin.asked(1).await;
                let herd = world.herd(20, |_| get("/"));
                world.aboard(21).await;
                gate.open();
                for reply in herd.replies().await {
                    reply.is(200, "0123456789");
                }
                let first = first.replies().await.remove(0);
                assert_eq!(first.status, statuses, "{leader:?}");
                world.settled().await;
                world.ask(get("/")).await.is(200, "0123456789");
                assert_eq!(world.origin.requests(), 1);
            },
        );
    }
}

#[test]
fn a_leader_that_wants_the_head_only_does_not_make_others_have_only_that() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| {
            assert_eq!(asked.method, Method::GET);
            vec![Step::Hold(hold.clone()), fresh("hello")]
        },
        async |world| {
            let first = world.herd(1, |_| request(Method::HEAD, "/", &[], ""));
            world.origin.asked(1).await;
            let herd = world.herd(20, |_| get("/"));
            world.aboard(21).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "hello");
            }
            let first = first.replies().await.remove(0);
            first.is(200, "");
            assert_eq!((first.header("content-length"), world.origin.requests()), ("5", 1));
        },
    );
}

#[test]
fn no_spelling_of_private_is_overlooked() {
    const SPELLINGS: [&str; 12] = [
        "Cache-Control: PRIVATE",
        "CACHE-CONTROL: max-age=60 , Private ",
        "cache-control: max-age=60\ncache-control: private",
        "cache-control: max-age=60,,\t,no-store",
        "cache-control: max-age=60, private=\"set-cookie, x\"",
        "cache-control: private=x, max-age=60",
        "cache-control: max-age=60, No-Store",
        "cache-control: foo=\"a, b\\\", max-age=1\", private, max-age=60",
        "cache-control: public, max-age=60, private",
        "cache-control: max-age=60\nvary:  *",
        "cache-control: max-age=60\nvary: accept\nvary: x , *",
        "cache-control: max-age=60\nSET-COOKIE: a=b",
    ];
    run(
        |asked| {
            let spelling = SPELLINGS[asked.target[1..].parse::<usize>().unwrap()];
            vec![answer(200, spelling, &asked.number.to_string())]
        },
        async |world| {
            for (number, spelling) in SPELLINGS.into_iter().enumerate() {
                let ask = async || world.ask(get(&format!("/{number}"))).await.text().to_owned();
                assert_ne!(ask().await, ask().await, "{spelling}");
            }
        },
    );
}

#[test]
fn no_spelling_of_a_cookie_or_credentials_is_overlooked() {
    run(
        |asked| {
            let is_first = asked.target.trim_start_matches('/').parse::<u8>().unwrap() < 4;
            let said =
                if is_first { "last-modified: Thu, 18 Aug 2016 02:01:18 GMT" } else { "cache-control: max-age=60" };
            vec![answer(200, said, &asked.number.to_string())]
        },
        async |world| {
            let spellings = [
                "Cookie: a=b",
                "COOKIE:a=b",
                "cookie: ",
                "Cookie: a\r\nCookie: b",
                "AUTHORIZATION: x",
                "authorization:",
            ];
            for (number, spelling) in spellings.into_iter().enumerate() {
                let raw = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n{spelling}\r\nconnection: close\r\n\r\n");
                let (one, other) = (world.raw(raw.as_bytes()).await, world.raw(raw.as_bytes()).await);
                assert_ne!(one.split("\r\n\r\n").nth(1), other.split("\r\n\r\n").nth(1), "{spelling}");
            }
        },
    );
}

#[test]
fn connection_cannot_hide_a_cookie_from_the_verdict() {
    run(
        |asked| vec![answer(200, "cache-control: max-age=60", &format!("{} {}", asked.number, asked.header("cookie")))],
        async |world| {
            let own = [("connection", "cookie, authorization"), ("cookie", "a=b"), ("authorization", "x")];
            world.ask(with("/", &own)).await.is(200, "1 ");
            world.ask(get("/")).await.is(200, "2 ");
        },
    );
}

#[test]
fn interim_answers_decide_nothing() {
    run(
        |asked| {
            let early = "HTTP/1.1 103 Early Hints\r\ncache-control: public, max-age=60\r\nlink: </x>\r\n\r\n";
            let further = "HTTP/1.1 100 Continue\r\n\r\n";
            vec![
                bytes(format!("{early}{further}{early}")),
                answer(200, "cache-control: private", &asked.number.to_string()),
            ]
        },
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            let reply = world.ask(get("/")).await;
            reply.is(200, "2");
            assert_eq!(reply.header("link"), "");
        },
    );
}

#[test]
fn what_the_origin_switches_to_unasked_reaches_nobody() {
    run(
        |_| vec![bytes("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello")],
        async |world| {
            let reply = world.ask(with("/", &[("upgrade", "x"), ("connection", "upgrade")])).await;
            assert_eq!(reply.status, 502);
            assert!(!reply.text().contains("hello"));
        },
    );
}

#[test]
fn a_verdict_falls_before_the_first_byte() {
    // The head is private, and its body is never complete: nobody else may wait for it, or have any of it.
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => {
                let head = head(200, "content-length: 9\r\ncache-control: private\r\n");
                vec![Step::Hold(hold.clone()), bytes(head), bytes("half"), Step::Hold(Gate::new())]
            }
            number => vec![answer(200, "cache-control: private", &format!("own {number}"))],
        },
        async |world| {
            let first = world.env.spawn(world.begin_later(get("/")));
            world.origin.asked(1).await;
            let herd = world.herd(20, |_| get("/"));
            world.aboard(21).await;
            gate.open();
            for reply in herd.replies().await {
                assert!(reply.text().starts_with("own "), "{reply:?}");
            }
            let mut first = first.await.unwrap();
            assert_eq!(first.next().await.unwrap().unwrap(), "half");
        },
    );
}
